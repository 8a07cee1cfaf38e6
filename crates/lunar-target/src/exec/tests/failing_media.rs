//! Media that fail, or keep what they were given to themselves for a while.

use super::*;
use lunar_block::{BackendInfo, BufResult, LocalBoxFuture};
use std::io::{self, ErrorKind};

/// A disk of which every write fails so.
struct WriteFailingDisk(Arc<dyn Backend>, fn() -> io::Error);

impl Backend for WriteFailingDisk {
    fn facts(&self) -> BackendInfo {
        self.0.facts()
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

/// How a COMPARE AND WRITE ends whose write fails so.
async fn compared(with: fn() -> io::Error) -> CommandError {
    let mut disk = TestDisk::new(true);
    (disk.unit, disk.nexus) = unit(true, Arc::new(WriteFailingDisk(memory(), with)));
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (op::COMPARE_AND_WRITE, 1);
    disk.end(&cdb, &[[0; BLOCK], [7; BLOCK]].concat()).await.err().expect("its write fails")
}

/// Also a file that may not grow that far: by the file system, or by the limit on this process.
#[test]
fn a_write_without_room_ends_as_space_allocation_failed() {
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

/// A host sends again what is answered BUSY, and its own bytes would be a miscompare.
#[test]
fn a_compare_and_write_that_may_have_been_done_is_not_answered_busy() {
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
fn each_pass_of_an_overwrite_reaches_the_medium() {
    runs(async {
        let (counted, counters) = lunar_block::filter::stats(memory());
        let (unit, _nexus) = unit(true, counted);
        let job = sanitize::SanitizeJob { pattern: Some(vec![0x5a]), passes: 3, invert: true };
        assert!(sanitize::run(&unit, &Pool::new(64 << 20), job, false).await.is_ok());
        assert_eq!(counters.total().flushes, 3);
    });
}
