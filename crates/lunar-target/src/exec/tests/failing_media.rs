//! Media that fail, or delay writes.

use super::*;
use lunar_block::{BackendInfo, BufResult, LocalBoxFuture};
use std::io::{self, ErrorKind};

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
