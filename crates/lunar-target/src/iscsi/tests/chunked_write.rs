//! Long writes in chunks.

use super::host::Host;
use crate::ScsiError;
use crate::config::TargetConfig;
use crate::task_set_lock::LockMode;
use crate::test_target::{self, TestTarget, run_ready, run_test, run_test_with};
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use lunar_scsi::CoreIndex;
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::{Bhs, opcode};
use lunar_wire::scsi::Status;
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::{TaskAttribute, TaskManagementFunction};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

const CHUNK_LEN: u32 = 1 << 20;
const CHUNK_BLOCKS: u32 = CHUNK_LEN / 512;
/// Three and a half chunks.
const LEN: u32 = 3 * CHUNK_LEN + CHUNK_LEN / 2;
const BLOCKS: u32 = LEN / 512;
const OLD: u8 = 1;
const NEW: u8 = 2;

/// A long write and its R2Ts.
struct LongWrite {
    itt: u32,
    r2ts: Vec<Bhs>,
    answered: usize,
}

fn end_of(r2t: &Bhs) -> u32 {
    r2t.buffer_offset() + r2t.desired_len()
}

impl LongWrite {
    /// Sends the command of a write of [`LEN`] bytes from block 0 on.
    async fn begin(host: &mut Host) -> LongWrite {
        LongWrite::begin_as(host, &cdb::write_10(0, BLOCKS as u16, false), TaskAttribute::Simple).await
    }

    async fn begin_as(host: &mut Host, cdb: &Cdb, attribute: TaskAttribute) -> LongWrite {
        LongWrite::begin_of(LEN, host, cdb, attribute).await
    }

    async fn begin_of(len: u32, host: &mut Host, cdb: &Cdb, attribute: TaskAttribute) -> LongWrite {
        let mut header = host.command_as(cdb, attribute);
        request::set_write(&mut header, len, false);
        host.queue(header, &[]);
        host.send();
        let mut long = LongWrite { itt: header.itt(), r2ts: Vec::new(), answered: 0 };
        long.receive_r2t(host).await;
        long
    }

    /// Receives the next R2T. R2Ts have no gaps, are numbered, and do not cross chunk boundaries (RFC 7143 section
    /// 11.8).
    async fn receive_r2t(&mut self, host: &mut Host) {
        let mut next = host.receive(opcode::R2T).await;
        while next.itt() != self.itt {
            next = host.receive(opcode::R2T).await;
        }
        let end = self.end();
        assert_eq!((next.buffer_offset(), next.r2t_sn()), (end, self.r2ts.len() as u32), "offset and R2TSN");
        assert_eq!(end / CHUNK_LEN, (end_of(&next) - 1) / CHUNK_LEN, "{end} to {}", end_of(&next));
        self.r2ts.push(next);
    }

    /// The end of the requested data.
    fn end(&self) -> u32 {
        self.r2ts.last().map_or(0, end_of)
    }

    /// Sends the requested data that were not sent yet, up to this byte.
    async fn send(&mut self, host: &mut Host, to: u32, byte: u8) {
        loop {
            let sent = self.answered.checked_sub(1).map_or(0, |last| end_of(&self.r2ts[last]));
            if sent >= to {
                return;
            }
            while self.answered == self.r2ts.len() {
                self.receive_r2t(host).await;
            }
            host.answer(&self.r2ts[self.answered], byte).await;
            self.answered += 1;
        }
    }

    /// Sends the first chunk, and waits until it is on the medium.
    async fn first_chunk(&mut self, target: &TestTarget, host: &mut Host) {
        self.send(host, CHUNK_LEN, OLD).await;
        while target.on_medium(CHUNK_BLOCKS - 1) != OLD {
            lunar_runtime::yield_now().await;
        }
    }

    /// Receives the R2Ts for the second and third chunk, which follow the write of the first.
    async fn receive_next_r2ts(&mut self, host: &mut Host) {
        while self.end() < 3 * CHUNK_LEN {
            self.receive_r2t(host).await;
        }
    }
}

/// The first byte of each chunk on the medium.
fn pieces(target: &TestTarget) -> [u8; 4] {
    [0, 1, 2, 3].map(|n| target.on_medium(n * CHUNK_BLOCKS))
}

/// The status of the next response.
async fn status(host: &mut Host) -> u8 {
    host.receive(opcode::SCSI_RESPONSE).await.scsi_status()
}

const GOOD: u8 = Status::Good as u8;

#[test]
fn long_write_is_requested_and_stored_in_chunks() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        while long.end() < CHUNK_LEN {
            long.receive_r2t(&mut host).await;
        }
        run_ready().await;
        assert!(host.next_now().is_none(), "one chunk is requested before data arrive");
        long.first_chunk(&target, &mut host).await;
        assert_eq!(pieces(&target), [OLD, 0, 0, 0]);
        long.send(&mut host, LEN, OLD).await;
        assert_eq!(status(&mut host).await, GOOD);
        assert_eq!(
            (pieces(&target), target.on_medium(BLOCKS - 1), target.on_medium(BLOCKS)),
            ([OLD; 4], OLD, 0)
        );
        assert_eq!(target.shared.pool.used(), 0);
    });
}

#[test]
fn long_writes_hold_two_chunks_each() {
    const COUNT: usize = 8;
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        for _ in 0..COUNT {
            LongWrite::begin(&mut host).await;
        }
        assert_eq!(target.shared.pool.used(), 0, "announcements hold nothing");
        let mut hosts = Vec::new();
        for n in 0..COUNT {
            let mut host = Host::session_of(&target, &format!("host{n}"), 2).await;
            let mut long = LongWrite::begin(&mut host).await;
            long.first_chunk(&target, &mut host).await;
            hosts.push(host);
        }
        run_ready().await;
        let used = target.shared.pool.used();
        assert!(used > 0 && used <= 2 * COUNT * CHUNK_LEN as usize, "{used} bytes");
    });
}

/// Sends the data of all received R2Ts.
async fn send_requested(host: &mut Host, long: &LongWrite) {
    for r2t in &long.r2ts[long.answered..] {
        host.answer(r2t, OLD).await;
    }
}

#[test]
fn aborted_long_write_stores_nothing_after_response() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        long.receive_next_r2ts(&mut host).await;
        host.manage(TaskManagementFunction::AbortTask, Some(long.itt));
        assert_eq!(host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.response(), 0);
        send_requested(&mut host, &long).await;
        host.write(BLOCKS, NEW);
        host.send();
        assert_eq!(status(&mut host).await, GOOD, "a live session");
        assert_eq!(pieces(&target), [OLD, 0, 0, 0]);
        assert_eq!(target.shared.pool.used(), 0);
    });
}

/// ABORT TASK SET waits for requested data (RFC 7143 section 4.2.3.3).
#[test]
fn abort_task_set_awaits_requested_chunk() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        long.receive_next_r2ts(&mut host).await;
        host.manage(TaskManagementFunction::AbortTaskSet, None);
        run_ready().await;
        assert!(host.next_now().is_none(), "no response yet");
        send_requested(&mut host, &long).await;
        let received = host.next().await.expect("an answer");
        assert_eq!((received.opcode(), received.response()), (opcode::TASK_MANAGEMENT_RESPONSE, 0));
        assert_eq!(pieces(&target), [OLD, 0, 0, 0]);
    });
}

#[test]
fn lost_connection_ends_long_write_midway() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        long.receive_next_r2ts(&mut host).await;
        send_requested(&mut host, &long).await;
        host.reset();
        while target.sessions() != 0 {
            lunar_runtime::yield_now().await;
        }
        run_ready().await;
        assert_eq!(pieces(&target), [OLD, 0, 0, 0]);
        assert_eq!(target.shared.pool.used(), 0);
    });
}

#[test]
fn chunk_at_lock_does_not_begin_after_reset() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        long.receive_next_r2ts(&mut host).await;
        let inside = target.disk().task_set.handle(CoreIndex::current()).lock(LockMode::Exclusive).await;
        send_requested(&mut host, &long).await;
        run_ready().await;
        host.reset();
        drop(inside);
        while target.sessions() != 0 {
            lunar_runtime::yield_now().await;
        }
        run_ready().await;
        assert_eq!(pieces(&target), [OLD, 0, 0, 0]);
    });
}

/// A disk that accepts writes up to an offset, and counts writes and flushes.
struct HeldDisk {
    inner: Arc<dyn Backend>,
    end: u64,
    /// Number of writes, and of flushes after the last write.
    counts: Mutex<[usize; 2]>,
    /// The error of writes from that offset on, and of flushes if `flush_fails`.
    error: fn() -> io::Error,
    flush_fails: bool,
    /// A write of the second chunk blocks until the sender of this channel is dropped.
    held: Mutex<Option<flume::Receiver<()>>>,
}

impl HeldDisk {
    fn up_to(end: u32) -> Arc<HeldDisk> {
        let inner = lunar_block::open(&lunar_block::BackendSpec::sized(
            lunar_block::BackendKind::Memory,
            test_target::CAPACITY,
        ))
        .expect("memory");
        let error = || io::Error::other("a scratch");
        let (counts, held) = (Mutex::default(), Mutex::default());
        Arc::new(HeldDisk { inner, end: end.into(), counts, error, flush_fails: false, held })
    }

    /// A disk whose writes from `end` on, or whose flushes, fail with the status of a device behind it.
    fn answering(end: u32, flush_fails: bool, error: fn() -> io::Error) -> Arc<HeldDisk> {
        let disk = Arc::into_inner(HeldDisk::up_to(end)).expect("one reference");
        Arc::new(HeldDisk { error, flush_fails, ..disk })
    }

    fn counts(&self) -> [usize; 2] {
        *self.counts.lock().expect("counts")
    }
}

impl Backend for HeldDisk {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> lunar_block::TryIo {
        self.inner.try_read(offset, buf)
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        let mut counts = self.counts.lock().expect("counts");
        *counts = [counts[0] + 1, 0];
        match offset < self.end {
            true if offset == CHUNK_LEN.into() => Box::pin(async move {
                let written = self.inner.write(offset, buf, fua).await;
                let held = self.held.lock().expect("a hold").take();
                if let Some(held) = held {
                    _ = held.recv_async().await;
                }
                written
            }),
            true => self.inner.write(offset, buf, fua),
            false => Box::pin(std::future::ready((Err((self.error)()), buf))),
        }
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.counts.lock().expect("counts")[1] += 1;
        if self.flush_fails {
            return Box::pin(std::future::ready(Err((self.error)())));
        }
        self.inner.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

/// A configuration with this disk as LUN 0.
fn with(disk: Arc<HeldDisk>) -> impl FnOnce(&mut TargetConfig) {
    let luns = BTreeMap::from([(0, test_target::unit_of(1, disk))]);
    |config| _ = config.targets.insert(test_target::NAME.into(), test_target::target(test_target::NAME, luns))
}

/// While the second chunk is being written, the last one arrives, and the kernel has just reported the connection as
/// open. The last chunk, which does not wait for the lock, must not rely on that report. The test runs several times,
/// because a stale report is used only until the coarse clock of the kernel advances.
#[test]
fn chunk_behind_another_does_not_begin_after_reset() {
    for _ in 0..8 {
        let (go_on, held) = flume::bounded(0);
        let disk = HeldDisk::up_to(u32::MAX);
        *disk.held.lock().expect("a hold") = Some(held);
        run_test_with(with(disk), move |target| async move {
            let (mut host, hold) = Host::session_with_hold(&target, 1).await;
            // No R2T may follow the second chunk, because sending it would reveal the reset.
            let write = cdb::write_10(0, 3 * CHUNK_BLOCKS as u16, false);
            let mut long = LongWrite::begin_of(3 * CHUNK_LEN, &mut host, &write, TaskAttribute::Simple).await;
            long.first_chunk(&target, &mut host).await;
            long.receive_next_r2ts(&mut host).await;
            send_requested(&mut host, &long).await;
            host.write(3 * CHUNK_BLOCKS, NEW);
            host.send();
            assert_eq!(status(&mut host).await, GOOD);
            hold.begin();
            host.reset();
            drop(go_on);
            run_ready().await;
            assert_eq!(pieces(&target), [OLD, OLD, 0, NEW]);
            hold.end();
            while target.sessions() != 0 {
                lunar_runtime::yield_now().await;
            }
        });
    }
}

#[test]
fn fua_long_write_flushes_once_after_last_chunk() {
    for (fua, flushes) in [(true, 1), (false, 0)] {
        let disk = HeldDisk::up_to(u32::MAX);
        let watched = disk.clone();
        run_test_with(with(disk), move |target| async move {
            let mut host = Host::session(&target, 1).await;
            let cdb = cdb::write_10(0, BLOCKS as u16, fua);
            let mut long = LongWrite::begin_as(&mut host, &cdb, TaskAttribute::Simple).await;
            long.first_chunk(&target, &mut host).await;
            long.send(&mut host, LEN - CHUNK_LEN / 2, OLD).await;
            run_ready().await;
            assert_eq!(watched.counts(), [3, 0]);
            long.send(&mut host, LEN, OLD).await;
            assert_eq!(status(&mut host).await, GOOD);
            assert_eq!(watched.counts(), [4, flushes], "{fua}");
        });
    }
}

#[test]
fn abort_of_long_write_waits_for_chunk_in_progress() {
    let (go_on, held) = flume::bounded(0);
    let disk = HeldDisk::up_to(u32::MAX);
    *disk.held.lock().expect("a hold") = Some(held);
    run_test_with(with(disk), move |target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        long.receive_next_r2ts(&mut host).await;
        send_requested(&mut host, &long).await;
        run_ready().await;
        host.manage(TaskManagementFunction::AbortTask, Some(long.itt));
        host.ping().await;
        run_ready().await;
        assert!(host.next_now().is_none(), "no response yet");
        drop(go_on);
        assert_eq!(host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.response(), 0);
        let then = pieces(&target);
        run_ready().await;
        assert_eq!((then, pieces(&target)), ([OLD, OLD, 0, 0], [OLD, OLD, 0, 0]));
    });
}

#[test]
fn medium_error_ends_long_write_after_its_data() {
    run_test_with(with(HeldDisk::up_to(CHUNK_LEN)), |target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        long.send(&mut host, 2 * CHUNK_LEN, OLD).await;
        // R2Ts for the third chunk may already have been sent.
        let answer = loop {
            match host.next().await.expect("a live session") {
                next if next.opcode() == opcode::R2T => host.answer(&next, OLD).await,
                next => break next,
            }
        };
        assert_eq!(
            (answer.opcode(), answer.scsi_status()),
            (opcode::SCSI_RESPONSE, Status::CheckCondition as u8)
        );
        assert_eq!(pieces(&target), [OLD, 0, 0, 0]);
        assert_eq!(target.shared.pool.used(), 0);
        host.write(0, NEW);
        host.send();
        assert_eq!(status(&mut host).await, GOOD);
    });
}

/// Writes [`LEN`] bytes with FUA to a disk, and returns the status.
fn status_of_long_write(disk: Arc<HeldDisk>) -> u8 {
    let (result, ended) = flume::bounded(1);
    run_test_with(with(disk), |target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long =
            LongWrite::begin_as(&mut host, &cdb::write_10(0, BLOCKS as u16, true), TaskAttribute::Simple)
                .await;
        let status = loop {
            if long.answered < long.r2ts.len() {
                host.answer(&long.r2ts[long.answered], OLD).await;
                long.answered += 1;
                continue;
            }
            match host.next().await.expect("a live session") {
                next if next.opcode() == opcode::R2T => long.r2ts.push(next),
                next => break next.scsi_status(),
            }
        };
        _ = result.send(status);
    });
    ended.recv().expect("a status")
}

/// The statuses that mean that a command was not executed (SAM-5 section 5.3.1).
const NOT_EXECUTED: [(Status, fn() -> io::Error); 4] = [
    (Status::Busy, || ScsiError { status: Status::Busy, sense: None }.into()),
    (Status::ReservationConflict, || ScsiError { status: Status::ReservationConflict, sense: None }.into()),
    (Status::TaskSetFull, || ScsiError { status: Status::TaskSetFull, sense: None }.into()),
    (Status::AcaActive, || ScsiError { status: Status::AcaActive, sense: None }.into()),
];

#[test]
fn failure_of_second_chunk_reports_begun_command() {
    for (status, error) in NOT_EXECUTED {
        let first = status_of_long_write(HeldDisk::answering(0, false, error));
        assert_eq!(first, status as u8, "the first chunk: nothing was done");
        let second = status_of_long_write(HeldDisk::answering(CHUNK_LEN, false, error));
        assert_eq!(second, Status::CheckCondition as u8, "{status:?}");
    }
}

#[test]
fn failure_of_last_flush_reports_begun_command() {
    for (status, error) in NOT_EXECUTED {
        let flushed = status_of_long_write(HeldDisk::answering(u32::MAX, true, error));
        assert_eq!(flushed, Status::CheckCondition as u8, "{status:?}");
    }
}

#[test]
fn ordered_command_waits_for_earlier_long_write() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        host.write_as(0, NEW, TaskAttribute::Ordered);
        host.write_as(BLOCKS - 1, NEW, TaskAttribute::Simple);
        host.send();
        run_ready().await;
        assert_eq!((target.on_medium(0), target.on_medium(BLOCKS - 1)), (OLD, 0));
        long.send(&mut host, LEN, OLD).await;
        for _ in 0..3 {
            assert_eq!(status(&mut host).await, GOOD);
        }
        assert_eq!((target.on_medium(0), target.on_medium(BLOCKS - 1)), (NEW, NEW));
        assert_eq!(pieces(&target)[1..], [OLD; 3]);
    });
}

/// An ORDERED write holds the lock exclusively, so nothing is stored before all data have arrived.
#[test]
fn ordered_long_write_is_not_chunked() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let cdb = cdb::write_10(0, BLOCKS as u16, false);
        let mut long = LongWrite::begin_as(&mut host, &cdb, TaskAttribute::Ordered).await;
        long.send(&mut host, LEN - CHUNK_LEN / 2, OLD).await;
        run_ready().await;
        assert_eq!(pieces(&target), [0; 4]);
        long.send(&mut host, LEN, OLD).await;
        assert_eq!(status(&mut host).await, GOOD);
        assert_eq!(pieces(&target), [OLD; 4]);
    });
}

#[test]
fn long_write_between_chunks_blocks_no_other() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut other = Host::session_of(&target, "other", 2).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        let mut compare = other.command(&cdb::compare_and_write(u64::from(BLOCKS), 1, false));
        request::set_write(&mut compare, 1024, false);
        other.queue(compare, &[[0; 512], [NEW; 512]].concat());
        other.send();
        assert_eq!(status(&mut other).await, GOOD);
        long.send(&mut host, LEN, OLD).await;
        assert_eq!(status(&mut host).await, GOOD);
        assert_eq!((pieces(&target), target.on_medium(BLOCKS)), ([OLD; 4], NEW));
    });
}

#[test]
fn reservation_between_chunks_stops_long_write() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut other = Host::session_of(&target, "other", 2).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        long.receive_next_r2ts(&mut host).await;
        let mut reserve = [0; 16];
        reserve[0] = lunar_wire::scsi::op::RESERVE_6;
        let reserve = other.command(&reserve);
        other.queue(reserve, &[]);
        other.send();
        assert_eq!(status(&mut other).await, GOOD);
        send_requested(&mut host, &long).await;
        let answer = loop {
            match host.next().await.expect("a live session") {
                next if next.opcode() == opcode::R2T => host.answer(&next, OLD).await,
                next => break next,
            }
        };
        // The command has begun, so its status must not mean that nothing was stored.
        assert_eq!(answer.scsi_status(), Status::CheckCondition as u8);
        assert_eq!(pieces(&target), [OLD, 0, 0, 0]);
    });
}

#[test]
fn attention_between_chunks_waits_for_next_command() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut long = LongWrite::begin(&mut host).await;
        long.first_chunk(&target, &mut host).await;
        target.disk().lu.luns_changed();
        long.send(&mut host, LEN, OLD).await;
        assert_eq!(status(&mut host).await, GOOD);
        assert_eq!(pieces(&target), [OLD; 4]);
        host.write(0, NEW);
        host.send();
        assert_eq!(status(&mut host).await, Status::CheckCondition as u8);
    });
}

#[test]
fn long_write_of_wrong_length_is_rejected_or_cut() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        for (blocks, wanted) in [(BLOCKS + 1, 0), (BLOCKS - 3, OLD)] {
            // After an ORDERED command, the write is not planned yet when its data are requested.
            let cdb = cdb::write_10(0, blocks as u16, false);
            let inside = target.disk().task_set.handle(CoreIndex::current()).lock(LockMode::Exclusive).await;
            let mut long = LongWrite::begin_as(&mut host, &cdb, TaskAttribute::Simple).await;
            drop(inside);
            let answer = loop {
                if long.answered == long.r2ts.len() {
                    match host.next().await.expect("a live session") {
                        next if next.opcode() == opcode::R2T => long.r2ts.push(next),
                        next => break next,
                    }
                } else {
                    host.answer(&long.r2ts[long.answered], OLD).await;
                    long.answered += 1;
                }
            };
            let good = if wanted == 0 { Status::CheckCondition as u8 } else { GOOD };
            assert_eq!(answer.scsi_status(), good, "{blocks}");
            assert_eq!(pieces(&target), [wanted; 4]);
            assert_eq!(target.on_medium(blocks.min(BLOCKS - 1)), 0);
        }
    });
}
