use super::driver::{SgCompletion, SgOutcome};
use super::*;
use lunar_runtime::Buf;
use lunar_wire::scsi::TaskAttribute::{self, HeadOfQueue, Ordered, Simple};
use lunar_wire::scsi::cdb;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

type Answering = fn(&mut SgIo) -> SgOutcome;

#[derive(Default)]
struct State {
    /// The second byte of each CDB, in order of arrival.
    sent: Vec<u8>,
    flying: Vec<(u32, SgIo)>,
    ended: VecDeque<SgCompletion>,
    woken: bool,
    refusing: Option<Errno>,
    refusing_resets: Option<Errno>,
    is_broken: bool,
    answering: Option<Answering>,
}

/// A fake kernel whose commands complete when the test requests it.
#[derive(Default)]
struct Fake {
    state: Mutex<State>,
    changed: Condvar,
}

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits for this number of commands, and returns the second bytes of their CDBs.
    fn sent(&self, count: usize) -> Vec<u8> {
        let state = self.changed.wait_timeout_while(self.state(), LIMIT, |state| state.sent.len() < count);
        state.unwrap_or_else(PoisonError::into_inner).0.sent.clone()
    }

    /// Completes the command with this mark, once it has arrived.
    fn end(&self, mark: u8, outcome: SgOutcome) {
        let at = |state: &State| state.flying.iter().position(|flying| flying.1.cdb[1] == mark);
        let state = self.changed.wait_timeout_while(self.state(), LIMIT, |state| at(state).is_none());
        let mut state = state.unwrap_or_else(PoisonError::into_inner).0;
        let at = at(&state).expect("a command in flight");
        let (id, sg_io) = state.flying.remove(at);
        state.ended.push_back(SgCompletion { id, sg_io, outcome });
        drop(state);
        self.changed.notify_all();
    }
}

impl SgDriver for Fake {
    fn send(&self, id: u32, mut sg_io: SgIo) -> Result<(), (io::Error, SgIo)> {
        let mut state = self.state();
        if let Some(errno) = state.refusing {
            return Err((errno.into(), sg_io));
        }
        state.sent.push(sg_io.cdb[1]);
        match state.answering {
            Some(answering) => {
                let outcome = answering(&mut sg_io);
                state.ended.push_back(SgCompletion { id, sg_io, outcome });
            }
            None => state.flying.push((id, sg_io)),
        }
        self.changed.notify_all();
        Ok(())
    }

    fn receive(&self) -> io::Result<Option<SgCompletion>> {
        let mut state = self.state();
        if state.is_broken { Err(Errno::PERM.into()) } else { Ok(state.ended.pop_front()) }
    }

    fn wait(&self, in_flight: bool) -> io::Result<()> {
        let sleeps =
            |state: &mut State| !(state.woken || in_flight && (state.is_broken || !state.ended.is_empty()));
        let mut state = self.changed.wait_while(self.state(), sleeps).unwrap_or_else(PoisonError::into_inner);
        state.woken = false;
        Ok(())
    }

    fn wake(&self) {
        self.change(|state| state.woken = true);
    }

    fn reset(&self) -> io::Result<()> {
        self.state().refusing_resets.map_or(Ok(()), |errno| Err(errno.into()))
    }
}

fn runs<F: std::future::Future>(test: F) -> F::Output {
    let test = async { compio::time::timeout(LIMIT, test).await.expect("the test hangs") };
    compio::runtime::Runtime::new().expect("a runtime").block_on(test)
}

/// A device with this queue depth and type.
fn device(queue_depth: i16, device_type: i32) -> (Arc<Fake>, Arc<Device>) {
    let fake = Arc::<Fake>::default();
    let scsi_id = ScsiId { queue_depth, device_type, ..ScsiId::default() };
    let device = Device::start(Path::new("/dev/sg7"), scsi_id, 4096, fake.clone()).expect("a device");
    (fake, device)
}

/// TEST UNIT READY with a mark.
fn command(mark: u8, attribute: TaskAttribute) -> PassthroughCommand {
    let mut cdb = cdb::test_unit_ready();
    cdb[1] = mark;
    PassthroughCommand { tag: mark.into(), cdb: cdb.into(), attribute, data: PassthroughData::None }
}

async fn is_pending<T>(future: &mut LocalBoxFuture<'_, T>) -> bool {
    compio::time::timeout(Duration::from_millis(30), future).await.is_err()
}

#[test]
fn commands_reach_the_kernel_in_their_order_and_not_too_many() {
    runs(async {
        let (fake, device) = device(2, 0);
        let nexus = device.nexus();
        let replies: Vec<_> = (0..6).map(|mark| nexus.submit(command(mark, Simple))).collect();
        assert_eq!(fake.sent(2), [0, 1]);
        fake.end(1, SgOutcome::default());
        assert_eq!(fake.sent(3), [0, 1, 2]);
        [0, 2, 3, 4, 5].into_iter().for_each(|mark| fake.end(mark, SgOutcome::default()));
        assert_eq!(fake.sent(6), [0, 1, 2, 3, 4, 5]);
        for reply in replies {
            assert_eq!(reply.await.status, 0);
        }
    });
}

#[test]
fn task_attributes_are_kept() {
    runs(async {
        let (fake, device) = device(2, 0);
        let nexus = device.nexus();
        let _first = nexus.submit(command(0, Simple));
        assert_eq!(fake.sent(1), [0]);
        let attributes = [Ordered, Simple, Simple, HeadOfQueue];
        let _replies: Vec<_> = (1..).zip(attributes).map(|(n, a)| nexus.submit(command(n, a))).collect();
        // The head of queue command precedes the queued ones. The ordered one runs alone.
        assert_eq!(fake.sent(2), [0, 4]);
        assert!(fake.state().flying[1].1.first);
        fake.end(4, SgOutcome::default());
        fake.end(0, SgOutcome::default());
        assert_eq!(fake.sent(3), [0, 4, 1]);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(fake.state().flying.len(), 1);
        fake.end(1, SgOutcome::default());
        assert_eq!(fake.sent(5), [0, 4, 1, 2, 3]);
    });
}

#[test]
fn sg_io_hdr_has_length_and_timeout() {
    let (fake, device) = device(1, 1);
    let nexus = device.nexus();
    let cdb = [0x01, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].into();
    let _rewind =
        nexus.submit(PassthroughCommand { tag: 1, cdb, attribute: Simple, data: PassthroughData::None });
    assert_eq!(fake.sent(1), [7]);
    let state = fake.state();
    let sg_io = &state.flying[0].1;
    assert_eq!((sg_io.cdb.len(), sg_io.timeout_ms, sg_io.first), (6, 4 * 3600 * 1000, false));
}

#[test]
fn abort_of_queued_command_is_at_once_else_at_its_end() {
    runs(async {
        let (fake, device) = device(1, 0);
        let (nexus, other) = (device.nexus(), device.nexus());
        let replies = [nexus.submit(command(1, Simple)), nexus.submit(command(2, Simple))];
        // The same tag of another nexus is another command.
        let theirs = other.submit(command(2, Simple));
        assert_eq!(fake.sent(1), [1]);
        nexus.abort(2).await;
        let mut abort = nexus.abort(1);
        assert!(is_pending(&mut abort).await);
        fake.end(1, SgOutcome::default());
        abort.await;
        let [first, second] = replies;
        assert_eq!((first.await.status, second.await.status), (0, 0x40));
        fake.end(2, SgOutcome::default());
        assert_eq!((theirs.await.status, fake.sent(2)), (0, vec![1, 2]));
        nexus.abort(99).await;
    });
}

#[test]
fn task_sets_end() {
    runs(async {
        let (fake, device) = device(1, 0);
        let (nexus, other) = (device.nexus(), device.nexus());
        let flying = nexus.submit(command(1, Simple));
        let (ours, theirs) = (nexus.submit(command(2, Simple)), other.submit(command(3, Simple)));
        assert!(other.manage(TaskManagementFunction::AbortTaskSet).await);
        assert_eq!(theirs.await.status, 0x40);
        assert_eq!(fake.sent(1), [1]);
        let mut clear = other.manage(TaskManagementFunction::ClearTaskSet);
        assert!(is_pending(&mut clear).await);
        assert_eq!(ours.await.status, 0x40);
        fake.end(1, SgOutcome::default());
        assert_eq!((clear.await, flying.await.status), (true, 0));
        assert!(!nexus.manage(TaskManagementFunction::TargetColdReset).await);
    });
}

#[test]
fn reset_ends_waiting_commands_and_returns_its_result() {
    runs(async {
        let (fake, device) = device(1, 0);
        let nexus = device.nexus();
        let (flying, waiting) = (nexus.submit(command(1, Simple)), nexus.submit(command(2, Simple)));
        assert_eq!(fake.sent(1), [1]);
        assert!(nexus.manage(TaskManagementFunction::LunReset).await);
        assert_eq!(waiting.await.status, 0x40);
        fake.end(1, SgOutcome { host: 8, ..SgOutcome::default() });
        let reply = flying.await;
        assert_eq!((reply.status, reply.sense[2], reply.sense[12]), (2, 6, 0x29));
        fake.change(|state| state.refusing_resets = Some(Errno::ACCESS));
        assert!(!nexus.manage(TaskManagementFunction::LunReset).await);
    });
}

/// The kernel may still write to the memory of a command whose nexus was dropped.
#[test]
fn dropped_nexus_drops_its_waiting_commands() {
    runs(async {
        let (fake, device) = device(1, 0);
        let (nexus, other) = (device.nexus(), device.nexus());
        let data = PassthroughData::In(Buf::zeroed(512));
        drop(nexus.submit(PassthroughCommand { data, ..command(1, Simple) }));
        drop(nexus.submit(command(2, Simple)));
        assert_eq!(fake.sent(1), [1]);
        drop(nexus);
        let theirs = other.submit(command(3, Simple));
        assert_eq!(fake.state().flying[0].1.len(), 512);
        fake.end(1, SgOutcome::default());
        fake.end(3, SgOutcome::default());
        assert_eq!((theirs.await.status, fake.sent(2)), (0, vec![1, 3]));
    });
}

#[test]
fn device_that_goes_is_not_ready() {
    runs(async {
        let (fake, device) = device(1, 0);
        fake.change(|state| state.refusing = Some(Errno::NODEV));
        assert!(!device.is_gone());
        let reply = device.nexus().submit(command(1, Simple)).await;
        assert_eq!((reply.status, reply.sense[2], &reply.sense[12..14]), (2, 2, &[0x04, 0x0c][..]));
        assert!(device.is_gone() && device.describe().contains(&("gone".into(), "true".into())));
        assert!(device.properties().await.is_err());
    });
}

#[test]
fn another_takes_the_place_of_a_device_that_has_gone() {
    runs(async {
        let [(old, first), (new, second)] = [device(1, 0), device(1, 0)];
        let nexus = first.nexus();
        old.change(|state| state.refusing = Some(Errno::NODEV));
        assert_eq!(nexus.submit(command(1, Simple)).await.status, 2);
        first.close();
        assert_eq!(first.describe(), [("device", "/dev/sg7"), ("gone", "true")].map(owned));
        assert_eq!(
            (
                nexus.submit(command(2, Simple)).await.status,
                nexus.manage(TaskManagementFunction::LunReset).await
            ),
            (2, false)
        );
        nexus.abort(2).await;
        first.replace(&second);
        drop(second);
        new.change(|state| state.answering = Some(|_| SgOutcome::default()));
        assert_eq!((nexus.submit(command(3, Simple)).await.status, first.is_gone()), (0, false));
        assert_eq!((old.sent(0), new.sent(1)), (vec![], vec![3]), "the nexus uses the other device");
        drop((nexus, first));
        until_it_is_free(&new);
    });
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.into(), value.into())
}

#[test]
fn every_command_is_answered_when_the_kernel_falls_silent() {
    runs(async {
        let (fake, device) = device(1, 0);
        let nexus = device.nexus();
        let replies = [nexus.submit(command(1, Simple)), nexus.submit(command(2, Simple))];
        assert_eq!(fake.sent(1), [1]);
        fake.change(|state| state.is_broken = true);
        for reply in replies {
            assert_eq!(reply.await.status, 2);
        }
        nexus.abort(1).await;
        assert_eq!((nexus.submit(command(3, Simple)).await.status, device.is_gone()), (2, true));
    });
}

#[test]
fn thread_ends_with_the_device() {
    let (fake, device) = device(1, 0);
    let nexus = device.nexus();
    drop(nexus.submit(command(1, Simple)));
    assert_eq!(fake.sent(1), [1]);
    drop((nexus, device));
    until_it_is_free(&fake);
}

/// Waits until no reference to the device is left.
fn until_it_is_free(fake: &Arc<Fake>) {
    let end = std::time::Instant::now() + LIMIT;
    while Arc::strong_count(fake) > 1 {
        assert!(std::time::Instant::now() < end, "the thread must end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const NAA: [u8; 8] = [0x50, 1, 2, 3, 4, 5, 6, 7];

/// A tape with a serial number, and a page 83h longer than old devices support.
fn tape(sg_io: &mut SgIo) -> SgOutcome {
    let PassthroughData::In(buf) = &mut sg_io.data else { return SgOutcome::default() };
    let name = [&[2, 1, 0, 44][..], b"EXAMPLE_", &[b'x'; 36]].concat();
    let port = [0x61, 0x94, 0, 4, 0, 0, 0, 1];
    let naa = [&[1, 3, 0, 8][..], &NAA].concat();
    let designators = [name.repeat(6), port.to_vec(), naa].concat();
    let page =
        |code: u8, body: &[u8]| [&[1, code, (body.len() >> 8) as u8, body.len() as u8][..], body].concat();
    let data = match (sg_io.cdb[1], sg_io.cdb[2]) {
        (0, _) => [&[1, 0x80, 6, 2, 31, 0, 0, 0][..], b"EXAMPLE ULTRIUM         01.2"].concat(),
        (_, 0x00) => page(0x00, &[0, 0x80, 0x83]),
        (_, 0x80) => page(0x80, b" TAPE-1 "),
        _ => page(0x83, &designators),
    };
    let len = data.len().min(buf.len());
    buf[..len].copy_from_slice(&data[..len]);
    SgOutcome { residual: (buf.len() - len) as i32, ..SgOutcome::default() }
}

/// A disk of 2^33 blocks of 4096 bytes.
fn disk(sg_io: &mut SgIo) -> SgOutcome {
    let data: &[u8] = match sg_io.cdb[0] {
        0x12 => &[0; 36],
        0x25 => &[0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0],
        _ => &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0],
    };
    let PassthroughData::In(buf) = &mut sg_io.data else { return SgOutcome::default() };
    buf[..data.len()].copy_from_slice(data);
    SgOutcome { residual: (buf.len() - data.len()) as i32, ..SgOutcome::default() }
}

#[test]
fn large_disk_says_how_large_it_is() {
    runs(async {
        let (fake, device) = device(1, 0);
        fake.change(|state| state.answering = Some(disk));
        let it = device.properties().await.expect("properties");
        assert_eq!((it.kind, it.block_size, it.capacity), (0, 4096, 1 << 45));
    });
}

#[test]
fn device_properties_come_from_inquiry() {
    runs(async {
        let (fake, device) = device(1, 1);
        fake.change(|state| state.answering = Some(tape));
        let it = device.properties().await.expect("properties");
        assert_eq!((it.kind, it.removable, it.vendor.as_str()), (1, true, "EXAMPLE"));
        assert_eq!((it.product.as_str(), it.revision.as_str()), ("ULTRIUM", "01.2"));
        assert_eq!((it.serial.trim(), it.designators.len()), ("TAPE-1", 6 * 48 + 12));
        assert_eq!((it.naa, it.block_size), (NAA.to_vec(), 0));
    });
}
