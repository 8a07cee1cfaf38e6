//! A backend that is flushed only if something was written since it last was.

use block::{Backend, Extent, Facts, Finished, Future, Inline};
use net::Buf;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Remembers whether there is anything to flush: a target that is gone loses no writes of a host that only read.
pub struct Written {
    inner: Arc<dyn Backend>,
    /// Begins and ends of writes.
    written: AtomicU64,
    /// What of them a flush has found.
    stable: AtomicU64,
}

impl Written {
    /// Over this; `dirty`: something may have been written before.
    pub fn over(inner: Arc<dyn Backend>, dirty: bool) -> Arc<Written> {
        Arc::new(Written { inner, written: u64::from(dirty).into(), stable: 0.into() })
    }

    /// A flush that began before a write has ended does not make it stable.
    async fn writing<T>(&self, write: Future<'_, T>) -> T {
        self.written.fetch_add(1, SeqCst);
        let ended = write.await;
        self.written.fetch_add(1, SeqCst);
        ended
    }
}

impl Backend for Written {
    fn facts(&self) -> Facts {
        self.inner.facts()
    }

    fn refresh(&self) -> bool {
        self.inner.refresh()
    }

    fn offer(&self, offered: bool) {
        self.inner.offer(offered);
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> Inline {
        self.inner.read_now(offset, buf)
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Inline {
        let ended = self.inner.write_now(offset, data);
        self.written.fetch_add(1, SeqCst);
        ended
    }

    fn read(&self, offset: u64, buf: Buf) -> Future<'_, Finished> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: Buf, stable: bool) -> Future<'_, Finished> {
        Box::pin(self.writing(self.inner.write(offset, buf, stable)))
    }

    fn flush(&self) -> Future<'_, io::Result<()>> {
        Box::pin(async {
            let written = self.written.load(SeqCst);
            if self.stable.load(SeqCst) >= written {
                return Ok(());
            }
            let flushed = self.inner.flush().await;
            if flushed.is_ok() {
                self.stable.fetch_max(written, SeqCst);
            }
            flushed
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> Future<'_, io::Result<()>> {
        Box::pin(self.writing(self.inner.unmap(offset, len)))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Future<'_, io::Result<()>> {
        Box::pin(self.writing(self.inner.write_zeroes(offset, len, unmap)))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn extent(&self, offset: u64, len: u64) -> Future<'_, io::Result<Extent>> {
        self.inner.extent(offset, len)
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> Future<'_, io::Result<Vec<Extent>>> {
        self.inner.extents(offset, len, most)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::filter::{Op, error};
    use block::{Kind, Spec};

    /// A medium that cannot be flushed.
    fn broken() -> Arc<dyn Backend> {
        let memory = block::open(&Spec::sized(Kind::Memory, 1 << 20)).unwrap();
        error(memory, Op::Flush, 1.0, None)
    }

    #[test]
    fn a_flush_without_a_write_asks_nobody() {
        compio::runtime::Runtime::new().unwrap().block_on(async {
            let disk = Written::over(broken(), false);
            disk.read(0, Buf::zeroed(512)).await.0.unwrap();
            disk.flush().await.unwrap();
            disk.write(0, Buf::zeroed(512), false).await.0.unwrap();
            disk.flush().await.unwrap_err();
            disk.flush().await.unwrap_err();
            let taken_over = Written::over(broken(), true);
            taken_over.flush().await.unwrap_err();
            let sound = Written::over(block::open(&Spec::sized(Kind::Memory, 1 << 20)).unwrap(), false);
            sound.unmap(0, 512).await.unwrap();
            assert!(sound.stable.load(SeqCst) < sound.written.load(SeqCst));
            sound.flush().await.unwrap();
            assert_eq!(sound.stable.load(SeqCst), sound.written.load(SeqCst));
        });
    }
}
