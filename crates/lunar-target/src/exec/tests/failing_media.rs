//! Media that fail, or delay writes.

use super::*;
use lunar_block::{BackendInfo, BufResult, LocalBoxFuture};
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering::Relaxed;

/// A disk whose writes fail with this error.
struct WriteFailingDisk(Arc<dyn Backend>, fn() -> io::Error);

impl Backend for WriteFailingDisk {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.0.read(offset, buf)
    }

    fn write(&self, _: u64, buf: Buf, _: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(std::future::ready((Err(self.1()), buf)))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.0.describe()
    }
}

/// The failure of a COMPARE AND WRITE whose write fails with this error.
async fn compared(with: fn() -> io::Error) -> CommandError {
    let mut disk = TestDisk::new(true);
    (disk.unit, disk.nexus) = unit(true, Arc::new(WriteFailingDisk(memory(), with)));
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (op::COMPARE_AND_WRITE, 1);
    disk.end(&cdb, &[[0; BLOCK], [7; BLOCK]].concat()).await.err().expect("its write fails")
}

type Comparison = fn(u64, &[u8]) -> io::Result<Option<usize>>;

/// The end of a COMPARE AND WRITE of block 3 that the medium carries out, and the bytes that were read and written.
async fn compared_by_medium(compare: Comparison) -> (Result<(), CommandError>, [u64; 2]) {
    let mut disk = TestDisk::new(true);
    let comparing = Arc::new(lunar_block::testing::ComparingBackend::new(memory(), compare));
    let lu = Lu::new(LuSettings { medium_compares: true, ..settings(true) }, None).expect("settings");
    (disk.unit, disk.nexus) = unit_of(Arc::new(lu), comparing);
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (op::COMPARE_AND_WRITE, 3, 1);
    let ended = disk.end(&cdb, &[[1; BLOCK], [7; BLOCK]].concat()).await.map(drop);
    let read = disk.unit.backend().read(0, Buf::zeroed(8 * BLOCK)).await.1;
    assert!(read.iter().all(|byte| *byte == 0), "this server writes nothing");
    (ended, [disk.logged(READS, BYTES).await, disk.logged(WRITES, BYTES).await])
}

#[test]
fn medium_that_compares_does_it_in_one_step() {
    runs(async {
        let equal: Comparison = |offset, data| {
            assert_eq!((offset, data), (3 * BLOCK as u64, &[[1; BLOCK], [7; BLOCK]].concat()[..]));
            Ok(None)
        };
        let (ended, counted) = compared_by_medium(equal).await;
        assert!(ended.is_ok());
        assert_eq!(counted, [BLOCK as u64; 2]);
        let (ended, counted) = compared_by_medium(|_, _| Ok(Some(100))).await;
        assert_eq!(ended.err().and_then(|failure| failure.sense), Some(Sense::MISCOMPARE.at(100)));
        assert_eq!(counted, [BLOCK as u64, 0]);
    });
}

#[test]
fn failed_comparison_of_medium_has_sense_of_a_write() {
    let cases: [(Comparison, Sense); 4] = [
        (|_, _| Err(ErrorKind::StorageFull.into()), Sense::SPACE_ALLOCATION_FAILED),
        (|_, _| Err(ErrorKind::TimedOut.into()), Sense::new(0x0b, 0x08, 0x00)),
        (|_, _| Err(ErrorKind::NotFound.into()), Sense::new(0x0b, 0x08, 0x00)),
        (|_, _| Err(io::Error::other("a scratch")), Sense::WRITE_ERROR.at(3)),
    ];
    runs(async {
        for (compare, sense) in cases {
            let (ended, counted) = compared_by_medium(compare).await;
            assert_eq!((ended.err().and_then(|failure| failure.sense), counted), (Some(sense), [0; 2]));
        }
    });
}

#[test]
fn deleted_remote_medium_is_not_ready() {
    let (unit, _) = unit(true, memory());
    for access in [&super::super::medium::READ, &super::super::medium::WRITE] {
        let failure = io_failure(&unit, &ErrorKind::NotFound.into(), 0, access);
        assert_eq!(failure.sense, Some(Sense::NOT_READY_INTERVENTION));
    }
}

/// The same error is reported if a file may not grow because of the file system or a limit of this process.
#[test]
fn full_disk_fails_write_with_space_allocation() {
    runs(async {
        for with in [
            || ErrorKind::StorageFull.into(),
            || ErrorKind::QuotaExceeded.into(),
            || ErrorKind::FileTooLarge.into(),
            || io::Error::from_raw_os_error(27),
        ] as [fn() -> io::Error; 4]
        {
            assert_eq!(compared(with).await.sense, Some(Sense::SPACE_ALLOCATION_FAILED));
        }
    });
}

/// A host repeats a command after BUSY, and would get a miscompare with its own data.
#[test]
fn uncertain_compare_and_write_does_not_report_busy() {
    runs(async {
        for with in [|| ErrorKind::TimedOut.into(), || ErrorKind::WouldBlock.into()] as [fn() -> io::Error; 2]
        {
            assert_eq!(compared(with).await.sense, Some(Sense::new(0x0b, 0x08, 0x00)));
        }
        let busy = compared(|| ScsiError { status: Status::Busy, sense: None }.into()).await;
        assert_eq!((busy.status, busy.sense), (Status::Busy, None), "that device did nothing");
        let io_failure = compared(|| io::Error::other("a scratch")).await;
        assert_eq!(io_failure.sense, Some(Sense::WRITE_ERROR.at(0)));
    });
}

#[test]
fn sanitize_flushes_each_overwrite_pass() {
    runs(async {
        let (counted, counters) = lunar_block::filter::stats(memory());
        let (unit, _nexus) = unit(true, counted);
        let job = sanitize::SanitizeJob { pattern: Some(vec![0x5a]), passes: 3, invert: true };
        assert!(sanitize::run(&unit, &Pool::new(64 << 20), job, false).await.is_ok());
        assert_eq!(counters.total().flushes, 3);
    });
}

/// A disk that a SCSI device serves: after a number of steps, it returns this status.
struct RefusingDisk {
    inner: Arc<dyn Backend>,
    /// Steps that still succeed. Reads count too.
    steps: std::sync::atomic::AtomicUsize,
    status: Status,
}

impl RefusingDisk {
    fn step(&self) -> io::Result<()> {
        let left = self.steps.fetch_update(Relaxed, Relaxed, |steps| steps.checked_sub(1));
        left.map(drop).map_err(|_| ScsiError { status: self.status, sense: None }.into())
    }
}

impl Backend for RefusingDisk {
    fn info(&self) -> BackendInfo {
        BackendInfo { remote: true, ..self.inner.info() }
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        match self.step() {
            Ok(()) => self.inner.read(offset, buf),
            Err(e) => Box::pin(std::future::ready((Err(e), buf))),
        }
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        match self.step() {
            Ok(()) => self.inner.write(offset, buf, fua),
            Err(e) => Box::pin(std::future::ready((Err(e), buf))),
        }
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(self.step()))
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        match self.step() {
            Ok(()) => self.inner.unmap(offset, len),
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        match self.step() {
            Ok(()) => self.inner.write_zeroes(offset, len, unmap),
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

/// A logical unit like `unit`, whose steps after these fail with RESERVATION CONFLICT.
pub fn refusing_after(steps: usize, unit: &LogicalUnit) -> Arc<LogicalUnit> {
    let (inner, status) = (unit.backend().clone(), Status::ReservationConflict);
    let disk = RefusingDisk { inner, steps: steps.into(), status };
    Arc::new(LogicalUnit::new(unit.lu.clone(), Arc::new(disk), None))
}

/// The status of an operation whose step after `steps` others fails with TASK SET FULL.
async fn status_after(steps: usize, op: Op, data: Option<Buf>) -> Status {
    let inner = lunar_block::open(&BackendSpec::sized(BackendKind::Memory, 65 << 20)).expect("memory");
    let disk = RefusingDisk { inner, steps: steps.into(), status: Status::TaskSetFull };
    let (unit, _nexus) = unit(true, Arc::new(disk));
    let ended = run(&unit, &Pool::new(64 << 20), Plan::Op(Box::new(op)), data, &NoContext(false)).await;
    ended.err().expect("a failed step").status
}

fn write_same(zero: bool) -> Op {
    // Two steps of zeros, or of blocks.
    Op::WriteSame {
        offset: 63 << 20,
        len: 2 << 20,
        zero,
        unmap: false,
        block_size: BLOCK as u32,
        stable: true,
    }
}

/// TASK SET FULL means that the command was not executed (SAM-5 section 5.3.1).
#[test]
fn failed_later_step_reports_begun_command() {
    runs(async {
        let block = |byte| Some(Buf::copy_of(&[byte; BLOCK]));
        let unmap = || Op::Unmap { extents: vec![(0, 4096), (8192, 4096)], stable: true };
        let verify = || Op::WriteVerify { offset: 0, len: BLOCK as u32, compare: false };
        for (steps, expected) in [(0, Status::TaskSetFull), (1, Status::CheckCondition)] {
            assert_eq!(status_after(steps, write_same(true), None).await, expected, "zeros");
            assert_eq!(status_after(steps, write_same(false), block(7)).await, expected, "a block");
            assert_eq!(status_after(steps, unmap(), None).await, expected, "UNMAP");
            assert_eq!(status_after(steps, verify(), block(7)).await, expected, "WRITE AND VERIFY");
        }
        for (op, data) in [(write_same(true), None), (write_same(false), block(7)), (unmap(), None)] {
            assert_eq!(status_after(2, op, data).await, Status::CheckCondition, "the flush");
        }
    });
}
