//! Blocking calls, for programs without an event loop.
//!
//! Each call blocks its thread until the operation has ended. Any number of threads may use a [`BlockingLun`] at once.
//! All work runs on one background thread of the process, which starts with the first call.
//!
//! ```no_run
//! use lunar_initiator::blocking::BlockingLun;
//!
//! let lun = BlockingLun::open(&"iscsi://192.0.2.1/iqn.2026-11.org.example:disks/0".parse()?)?;
//! let mut block = [0; 4096];
//! lun.read_at(0, &mut block)?;
//! # Ok::<(), lunar_initiator::Error>(())
//! ```
//!
//! Do not make these calls inside an event loop or a callback of this crate: they block everything else there. A `fork`
//! does not copy the background thread: open logical units after it, not before.

use crate::event_loop;
pub use crate::shared_lun::Data;
use crate::shared_lun::SharedLun;
use crate::{Completion, Error, Properties, Url};
use lunar_wire::scsi::cdb::Cdb;

/// Runs other work of this crate on the background thread and waits for the result.
///
/// ```no_run
/// use lunar_initiator::{Url, blocking, discover};
///
/// let portal: Url = "iscsi://192.0.2.1".parse()?;
/// let targets = blocking::run(|| async move { discover(portal.portal.clone(), &portal.options()?).await })??;
/// targets.iter().for_each(|target| println!("{}", target.name));
/// # Ok::<(), lunar_initiator::Error>(())
/// ```
///
/// # Errors
/// When the background thread cannot be started, or the work panics.
pub fn run<T, W>(work: impl FnOnce() -> W + Send + 'static) -> Result<T, Error>
where
    T: Send + 'static,
    W: Future<Output = T> + 'static,
{
    event_loop::start(work)?.wait()
}

/// A logical unit with its own session.
#[derive(Debug)]
pub struct BlockingLun(SharedLun);

impl BlockingLun {
    /// Opens the logical unit of a URL.
    ///
    /// # Errors
    /// Those of [`crate::open`].
    pub fn open(url: &Url) -> Result<BlockingLun, Error> {
        SharedLun::open(url)?.wait()?.map(BlockingLun)
    }

    /// The properties, as last read.
    pub fn properties(&self) -> Properties {
        self.0.properties()
    }

    /// The current capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    /// Reads `data.len()` bytes at byte `offset` into `data`.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`](crate::ErrorCode::InvalidArgument) for a range beyond the capacity; the errors of
    /// the SCSI commands.
    pub fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let read = self.0.read(offset, data.len())?.wait()??;
        data.copy_from_slice(&read);
        Ok(())
    }

    /// Writes `data` at byte `offset`. A later [`BlockingLun::flush`] makes it durable.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`](crate::ErrorCode::InvalidArgument) for a range beyond the capacity; the errors of
    /// the SCSI commands.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.0.write(offset, data)?.wait()?
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// The errors of the SCSI commands.
    pub fn flush(&self) -> Result<(), Error> {
        self.0.flush()?.wait()?
    }

    /// Deallocates these bytes where the logical unit supports it. They read as zeros afterwards.
    ///
    /// # Errors
    /// Those of [`BlockingLun::write_at`].
    pub fn unmap(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.0.unmap(offset, len)?.wait()?
    }

    /// Writes zeros to these bytes. With `unmap`, the logical unit may deallocate them.
    ///
    /// # Errors
    /// Those of [`BlockingLun::write_at`].
    pub fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.0.write_zeroes(offset, len, unmap)?.wait()?
    }

    /// Compares blocks with `old` and writes `new` if they are equal, in one atomic step. Returns false if they differ.
    ///
    /// # Errors
    /// Those of [`crate::Lun::compare_and_write`].
    pub fn compare_and_write(&self, offset: u64, old: &[u8], new: &[u8]) -> Result<bool, Error> {
        self.0.compare_and_write(offset, old, new)?.wait()?
    }

    /// Sends a CDB once, unchanged. A status other than GOOD is not an error: see [`Completion::status`].
    ///
    /// # Errors
    /// When the logical unit does not respond.
    pub fn scsi(&self, cdb: Cdb, data: Data<'_>) -> Result<Completion, Error> {
        let (completion, buf) = self.0.scsi(cdb, data.to_direction())?.wait()??;
        data.fill(&completion, buf);
        Ok(completion)
    }

    /// Logs out. A dropped [`BlockingLun`] logs out in the background, unless the process ends first.
    ///
    /// # Errors
    /// When the target does not answer in time. The session ends in either case.
    pub fn close(self) -> Result<(), Error> {
        self.0.close()?.wait()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    #[test]
    fn blocking_lun_is_send_and_sync() {
        fn shared<T: Send + Sync>() {}
        shared::<BlockingLun>();
    }

    #[test]
    fn unreachable_portal_is_an_error() {
        let url: Url = "iscsi://127.0.0.1:1/iqn.2026-11.org.example:a/0?login_tries=1".parse().unwrap();
        let Err(e) = BlockingLun::open(&url) else { panic!("no target should listen on port 1") };
        assert_eq!(e.code, ErrorCode::Unreachable);
    }
}
