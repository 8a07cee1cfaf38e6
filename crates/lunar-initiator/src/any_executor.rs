//! Futures for any executor: tokio, smol, or `block_on`.
//!
//! Every future of this module is `Send`. It needs no event loop of the executor: sockets and timers belong to one
//! background thread of the process, which starts with the first call. An operation begins when its future is first
//! polled. Dropping the future does not cancel an operation that has begun: a write may still reach the logical unit.
//!
//! ```no_run
//! use lunar_initiator::{Error, any_executor::AsyncLun};
//!
//! // Inside a task of tokio, for example.
//! async fn first_block(url: &str) -> Result<[u8; 4096], Error> {
//!     let lun = AsyncLun::open(&url.parse()?).await?;
//!     let mut block = [0; 4096];
//!     lun.read_at(0, &mut block).await?;
//!     lun.close().await?;
//!     Ok(block)
//! }
//! ```
//!
//! Each operation crosses to the background thread and back. A program that needs the highest speed opens its logical
//! units on its own event loops: see [the front page](crate#one-event-loop-for-each-core).

use crate::event_loop;
pub use crate::shared_lun::Data;
use crate::shared_lun::SharedLun;
use crate::{Completion, Error, Properties, Url};
use lunar_wire::scsi::cdb::Cdb;

/// Runs other work of this crate on the background thread. The result must be `Send`; the future of the work need not
/// be.
///
/// ```no_run
/// use lunar_initiator::{DiscoveredTarget, Error, Url, any_executor, discover};
///
/// async fn targets(portal: Url) -> Result<Vec<DiscoveredTarget>, Error> {
///     any_executor::run(|| async move { discover(portal.portal.clone(), &portal.options()?).await }).await?
/// }
/// ```
///
/// # Errors
/// When the background thread cannot be started, or the work panics.
pub async fn run<T, W>(work: impl FnOnce() -> W + Send + 'static) -> Result<T, Error>
where
    T: Send + 'static,
    W: Future<Output = T> + 'static,
{
    event_loop::start(work)?.ended().await
}

/// A logical unit with its own session. Any number of tasks may use it at once. Clones share the session.
#[derive(Clone, Debug)]
pub struct AsyncLun(SharedLun);

impl AsyncLun {
    /// Opens the logical unit of a URL.
    ///
    /// # Errors
    /// Those of [`crate::open`].
    pub async fn open(url: &Url) -> Result<AsyncLun, Error> {
        SharedLun::open(url)?.ended().await?.map(AsyncLun)
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
    pub async fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let read = self.0.read(offset, data.len())?.ended().await??;
        data.copy_from_slice(&read);
        Ok(())
    }

    /// Writes `data` at byte `offset`. A later [`AsyncLun::flush`] makes it durable.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`](crate::ErrorCode::InvalidArgument) for a range beyond the capacity; the errors of
    /// the SCSI commands.
    pub async fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.0.write(offset, data)?.ended().await?
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// The errors of the SCSI commands.
    pub async fn flush(&self) -> Result<(), Error> {
        self.0.flush()?.ended().await?
    }

    /// Deallocates these bytes where the logical unit supports it. They read as zeros afterwards.
    ///
    /// # Errors
    /// Those of [`AsyncLun::write_at`].
    pub async fn unmap(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.0.unmap(offset, len)?.ended().await?
    }

    /// Writes zeros to these bytes. With `unmap`, the logical unit may deallocate them.
    ///
    /// # Errors
    /// Those of [`AsyncLun::write_at`].
    pub async fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.0.write_zeroes(offset, len, unmap)?.ended().await?
    }

    /// Compares blocks with `old` and writes `new` if they are equal, in one atomic step. Returns false if they differ.
    ///
    /// # Errors
    /// Those of [`crate::Lun::compare_and_write`].
    pub async fn compare_and_write(&self, offset: u64, old: &[u8], new: &[u8]) -> Result<bool, Error> {
        self.0.compare_and_write(offset, old, new)?.ended().await?
    }

    /// Sends a CDB once, unchanged. A status other than GOOD is not an error: see [`Completion::status`].
    ///
    /// # Errors
    /// When the logical unit does not respond.
    pub async fn scsi(&self, cdb: Cdb, data: Data<'_>) -> Result<Completion, Error> {
        let (completion, buf) = self.0.scsi(cdb, data.to_direction())?.ended().await??;
        data.fill(&completion, buf);
        Ok(completion)
    }

    /// Logs out; later operations of clones fail. Dropping the last clone logs out in the background, unless the
    /// process ends first.
    ///
    /// # Errors
    /// When the target does not answer in time. The session ends in either case.
    pub async fn close(self) -> Result<(), Error> {
        self.0.close()?.ended().await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake};
    use std::thread::{self, Thread};

    /// A minimal executor that parks its thread.
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<T>(future: impl Future<Output = T> + Send) -> T {
        let (mut future, waker) = (pin!(future), Arc::new(Unpark(thread::current())).into());
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }

    #[test]
    fn future_is_send_and_runs_on_a_foreign_executor() {
        let url: Url = "iscsi://127.0.0.1:1/iqn.2026-11.org.example:a/0?login_tries=1".parse().unwrap();
        let opened = block_on(async move { AsyncLun::open(&url).await.map(drop) });
        assert_eq!(opened.map_err(|e| e.code), Err(ErrorCode::Unreachable));
    }

    #[test]
    fn result_of_other_work_comes_back() {
        let id = block_on(run(|| async { thread::current().id() })).unwrap();
        assert_ne!(id, thread::current().id());
    }
}
