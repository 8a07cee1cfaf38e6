//! Copies between two logical units that other commands use at the same time.

use super::super::tests::{port, refusing_after, settings};
use super::*;
use lunar_block::testing::VolatileBackend;
use lunar_block::{Backend, BackendKind, BackendSpec};
use lunar_scsi::{CopyRange, CoreIndex, Lu, LuSettings, Nexus};
use lunar_wire::scsi::{Status, op};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const BLOCK: u64 = 512;
const STEPS: u64 = 3;
const LEN: u64 = STEPS * STEP as u64;

fn memory() -> Arc<dyn Backend> {
    match lunar_block::open(&BackendSpec::sized(BackendKind::Memory, LEN)) {
        Ok(backend) => backend,
        Err(e) => panic!("{}: {}", e.subject, e.what),
    }
}

/// Two logical units. All bytes of the first are 7.
fn units() -> [Arc<LogicalUnit>; 2] {
    units_on([filled(7), memory()])
}

/// A medium with this byte everywhere.
fn filled(byte: u8) -> Arc<dyn Backend> {
    let backend = memory();
    let mut buf = Buf::zeroed(LEN as usize);
    buf.fill(byte);
    assert!(now(backend.write(0, buf, false)).0.is_ok());
    backend
}

/// Two logical units with a write cache.
fn units_on(backends: [Arc<dyn Backend>; 2]) -> [Arc<LogicalUnit>; 2] {
    let mut number = 0;
    backends.map(|backend| {
        number += 1;
        let mut settings = LuSettings { capacity: LEN, ..settings(true) };
        settings.identity.naa[7] = number;
        Arc::new(LogicalUnit::new(Arc::new(Lu::new(settings, None).expect("settings")), backend, None))
    })
}

fn poll<F: Future>(f: Pin<&mut F>) -> Poll<F::Output> {
    f.poll(&mut Context::from_waker(Waker::noop()))
}

fn now<T>(work: impl Future<Output = T>) -> T {
    match poll(pin!(work)) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

fn attach(unit: &Arc<LogicalUnit>) -> Nexus {
    let mut nexus = unit.lu.attach(port(), false);
    assert!(nexus.begin(&[0; 16]).is_err(), "POWER ON");
    nexus
}

/// The first byte that each step copies, on a medium.
fn parts(unit: &Arc<LogicalUnit>) -> [u8; STEPS as usize] {
    let (result, buf) = now(unit.backend().read(0, Buf::zeroed(LEN as usize)));
    result.expect("memory");
    std::array::from_fn(|step| buf[step * STEP])
}

/// A session that sees both logical units, and has sent a command to one of them.
struct CopySession<'a> {
    units: &'a [Arc<LogicalUnit>; 2],
    nexuses: [Nexus; 2],
    members: [TaskSetHandle; 2],
    /// The index of the command's own logical unit, and the lock mode.
    own: (usize, LockMode),
    is_stable: bool,
    aborted: Cell<bool>,
    /// The number of times that the range was requested, and the action at each.
    asked: Cell<u64>,
    then: RefCell<Box<dyn FnMut(u64) + 'a>>,
}

impl<'a> CopySession<'a> {
    fn new(units: &'a [Arc<LogicalUnit>; 2], own: (usize, LockMode)) -> CopySession<'a> {
        CopySession {
            units,
            nexuses: units.each_ref().map(attach),
            members: units.each_ref().map(|u| u.task_set.handle(CoreIndex::current())),
            own,
            is_stable: false,
            aborted: Cell::new(false),
            asked: Cell::new(0),
            then: RefCell::new(Box::new(|_| {})),
        }
    }

    fn then(self, then: impl FnMut(u64) + 'a) -> CopySession<'a> {
        CopySession { then: RefCell::new(Box::new(then)), ..self }
    }

    fn end(&self, naa: &[u8]) -> CopyEnd {
        let at = naa[7] as usize - 1;
        let (unit, task_set) = (self.units[at].clone(), self.members[at].clone());
        let medium = unit.lu.medium();
        CopyEnd { lun: at as u16, unit, nexus: self.nexuses[at].id(), task_set, medium }
    }

    /// Copies all of logical unit `from` to the other one.
    async fn copy(&self, from: usize) -> ExecutionResult {
        let naa = |at: usize| self.units[at].lu.settings().identity.naa.clone();
        let segment = CopySegment {
            source: naa(from),
            destination: naa(1 - from),
            source_lba: 0,
            destination_lba: 0,
            blocks: LEN / BLOCK,
            count_by_destination: false,
            source_block_size: 0,
            destination_block_size: 0,
        };
        let (own, _) = self.own;
        let list = (self.nexuses[own].id(), 1, vec![segment]);
        run(&self.units[own], &Pool::new(64 << 20), list, self).await
    }
}

impl ExecutionContext for CopySession<'_> {
    fn luns(&self) -> Vec<u16> {
        vec![0, 1]
    }
    fn copy_ends(&self, _: u16, segment: &CopySegment) -> Result<CopyEnds, Sense> {
        Ok(CopyEnds { source: self.end(&segment.source), destination: self.end(&segment.destination) })
    }
    fn copy_range(&self, number: u16, segment: &CopySegment, ends: &CopyEnds) -> Result<CopyRange, Sense> {
        self.asked.set(self.asked.get() + 1);
        (self.then.borrow_mut())(self.asked.get());
        let nexus = |end: &CopyEnd| &self.nexuses[end.lun as usize];
        segment.range(number, nexus(&ends.source), nexus(&ends.destination))
    }
    fn own_lock(&self) -> Option<(TaskSetHandle, LockMode)> {
        let (own, mode) = self.own;
        Some((self.members[own].clone(), mode))
    }
    fn copies_stably(&self) -> bool {
        self.is_stable
    }
    fn abort(&self, _: Vec<NexusId>) -> lunar_block::LocalBoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
    fn is_aborted(&self) -> bool {
        self.aborted.get()
    }
    fn until_aborted(&self) -> lunar_block::LocalBoxFuture<'_, ()> {
        Box::pin(std::future::poll_fn(|_| if self.aborted.get() { Poll::Ready(()) } else { Poll::Pending }))
    }
}

/// The number of the request in the first step. The first request precedes the steps, and determines the total
/// length.
const FIRST: u64 = 2;

#[test]
fn copy_waits_for_exclusive_holder_at_either_end() {
    wait(async {
        for (own, alone) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let units = units();
            let session = CopySession::new(&units, (own, LockMode::Shared));
            let other = units[alone].task_set.handle(CoreIndex::current());
            let held = now(other.lock_exclusive());
            let mut copy = pin!(session.copy(0));
            assert!(poll(copy.as_mut()).is_pending(), "command to {own}, {alone} is locked");
            assert_eq!(parts(&units[1]), [0; 3]);
            drop(held);
            assert!(matches!(poll(copy.as_mut()), Poll::Ready(Ok(ExecutionOutput::Good))));
            assert_eq!(parts(&units[1]), [7; 3]);
        }
    });
}

/// Force Unit Access of NVMe. A source without storage is not read, and its zeros must be stable too.
#[test]
fn stable_copy_survives_the_loss_of_the_cache() {
    wait(async {
        for (source, is_stable, expected) in
            [(filled(7), false, 5), (filled(7), true, 7), (memory(), false, 5), (memory(), true, 0)]
        {
            let lossy = Arc::new(VolatileBackend::new(filled(5)));
            let units = units_on([source, lossy.clone()]);
            let session = CopySession { is_stable, ..CopySession::new(&units, (0, LockMode::Shared)) };
            assert!(matches!(session.copy(0).await, Ok(ExecutionOutput::Good)));
            lossy.lose(None).await.expect("the medium works");
            assert_eq!(parts(&units[1]), [expected; 3]);
        }
    });
}

/// The holder may be a command that waits for the end of the copy.
#[test]
fn aborted_copy_does_not_wait_for_a_lock() {
    wait(async {
        for mode in [LockMode::Shared, LockMode::Exclusive] {
            let units = units();
            let session = CopySession::new(&units, (0, mode));
            let other = units[0].task_set.handle(CoreIndex::current());
            let _held = now(other.lock_exclusive());
            let mut copy = pin!(session.copy(0));
            assert!(poll(copy.as_mut()).is_pending());
            session.aborted.set(true);
            assert!(matches!(poll(copy.as_mut()), Poll::Ready(Err(_))));
            assert_eq!(parts(&units[1]), [0; 3]);
        }
    });
}

/// COMPARE AND WRITE runs between two steps, but not during one.
#[test]
fn exclusive_command_waits_for_one_copy_step() {
    wait(async {
        for place in [0, 1] {
            let units = units();
            let other = units[place].task_set.handle(CoreIndex::current());
            let mut alone = Box::pin(other.lock_exclusive());
            let wants = |asked| {
                if asked == FIRST {
                    assert!(poll(alone.as_mut()).is_pending(), "the copy holds the lock");
                }
            };
            {
                let session = CopySession::new(&units, (0, LockMode::Shared)).then(wants);
                let mut copy = pin!(session.copy(0));
                assert!(poll(copy.as_mut()).is_pending(), "after the first step it waits");
                assert_eq!(parts(&units[1]), [7, 0, 0]);
            }
            assert!(poll(alone.as_mut()).is_ready());
        }
    });
}

/// Other commands of its own logical unit observe an ORDERED copy as one command.
#[test]
fn ordered_copy_excludes_others() {
    let units = units();
    let other = units[0].task_set.handle(CoreIndex::current());
    let looks = |_| {
        assert!(
            !other.try_lock_shared() || {
                other.unlock_shared();
                false
            },
            "the copy runs"
        )
    };
    let session = CopySession::new(&units, (0, LockMode::Exclusive)).then(looks);
    assert!(now(session.copy(0)).is_ok());
    assert_eq!((session.asked.get(), parts(&units[1])), (1 + STEPS, [7; 3]));
    assert!(other.try_lock_shared());
}

#[test]
fn copy_keeps_the_holes_of_a_thin_source() {
    let units = units();
    let hole = (STEP as u64, STEP as u64);
    assert!(now(units[0].backend().unmap(hole.0, hole.1)).is_ok());
    let mut full = Buf::zeroed(LEN as usize);
    full.fill(9);
    assert!(now(units[1].backend().write(0, full, false)).0.is_ok());
    let session = CopySession::new(&units, (0, LockMode::Shared));
    assert!(now(session.copy(0)).is_ok());
    assert_eq!(parts(&units[1]), [7, 0, 7]);
    let mapped = |(offset, len)| now(units[1].backend().extent(offset, len)).expect("memory").mapped;
    assert_eq!([(0, 1), hole, (2 * STEP as u64, 1)].map(mapped), [true, false, true]);
}

/// A reservation that is made during the second step stops the copy.
#[test]
fn copy_checks_reservations_at_each_step() {
    for place in [0, 1] {
        let units = units();
        let mut other = attach(&units[place]);
        let reserves = |asked| {
            if asked == FIRST + 1 {
                let mut cdb = [0; 16];
                cdb[0] = op::RESERVE_6;
                assert!(other.begin(&cdb).is_ok());
            }
        };
        let session = CopySession::new(&units, (0, LockMode::Shared)).then(reserves);
        let byte = if place == 0 { 4 } else { 6 };
        let refused = Sense::COPY_TARGET_UNREACHABLE.segment(0, byte);
        assert!(now(session.copy(0)).is_err_and(|f| f.sense == Some(refused)), "{place}");
        assert_eq!(parts(&units[1]), [7, 0, 0]);
    }
}

/// A destination whose second write fails with RESERVATION CONFLICT of the device behind it. That status means that
/// the command was not executed (SAM-5 section 5.3.1).
#[test]
fn failed_second_copy_step_reports_begun_command() {
    for (steps, expected) in [(0, Status::ReservationConflict), (1, Status::CheckCondition)] {
        let mut units = units();
        units[1] = refusing_after(steps, &units[1]);
        let session = CopySession::new(&units, (0, LockMode::Shared));
        assert!(wait(session.copy(0)).is_err_and(|f| f.status == expected), "{steps}");
    }
}

/// A copy neither mixes bytes of two media, nor writes to the second one if the command was sent for the first.
#[test]
fn copy_ends_when_medium_is_replaced() {
    for (at, byte) in [(0, 4), (1, 6)] {
        let units = units();
        let lu = &units[at].lu;
        let session = CopySession::new(&units, (0, LockMode::Shared)).then(|asked| {
            if asked == FIRST {
                assert!(lu.redefine(LuSettings::clone(&lu.settings()), true).is_ok());
            }
        });
        let aborted = Sense::COPY_ABORTED.segment(0, byte);
        assert!(now(session.copy(0)).is_err_and(|f| f.sense == Some(aborted)), "{at}");
        assert_eq!(parts(&units[1]), [7, 0, 0]);
    }
}

#[test]
fn aborted_copy_ends_between_two_steps() {
    wait(async {
        let units = units();
        let other = units[1].task_set.handle(CoreIndex::current());
        let alone = RefCell::new(Box::pin(other.lock_exclusive()));
        let session = CopySession::new(&units, (0, LockMode::Shared)).then(|asked| {
            if asked == FIRST {
                assert!(poll(alone.borrow_mut().as_mut()).is_pending());
            }
        });
        let mut copy = pin!(session.copy(0));
        assert!(poll(copy.as_mut()).is_pending(), "the second step waits for the exclusive command");
        let Poll::Ready(held) = poll(alone.borrow_mut().as_mut()) else { panic!("no command runs") };
        session.aborted.set(true);
        drop(held);
        assert!(matches!(poll(copy.as_mut()), Poll::Ready(Err(f)) if f.status == Status::TaskAborted));
        assert_eq!(parts(&units[1]), [7, 0, 0]);
    });
}

/// The work of a thread. Arguments: both logical units, the index of the thread's own, and the round.
type ThreadWork = fn(&[Arc<LogicalUnit>; 2], usize, usize);

/// Copies in opposite directions, ORDERED or not, while a task at each logical unit takes the lock exclusively.
#[test]
fn opposite_copies_do_not_deadlock() {
    const ROUNDS: usize = 100;
    let units = units();
    let (done, ended) = mpsc::channel();
    let copies = |units: &[Arc<LogicalUnit>; 2], from: usize, round: usize| {
        let mode = [LockMode::Shared, LockMode::Exclusive, LockMode::HeadOfQueue][round % 3];
        assert!(wait(CopySession::new(units, (from, mode)).copy(from)).is_ok());
    };
    let excludes = |units: &[Arc<LogicalUnit>; 2], at: usize, _| {
        let _alone = wait(units[at].task_set.handle(CoreIndex::current()).lock_exclusive());
        std::thread::sleep(Duration::from_micros(200));
    };
    for (at, work) in [(0, copies as ThreadWork), (1, copies), (0, excludes), (1, excludes)] {
        let (units, done) = (units.clone(), done.clone());
        std::thread::spawn(move || {
            (0..ROUNDS).for_each(|round| work(&units, at, round));
            let _ = done.send(());
        });
    }
    for _ in 0..4 {
        ended.recv_timeout(Duration::from_secs(60)).expect("deadlock");
    }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    compio::runtime::Runtime::new().expect("a runtime").block_on(work)
}
