//! Copies from one disk to another as one operation: data is written as soon as it is read.

use crate::unsupported;
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use lunar_runtime::error::with_context;
use std::io;
use std::sync::Arc;

/// A disk whose reads copy: each reads from one disk and writes the data to another.
pub struct CopyDisk {
    /// The source.
    pub from: Arc<dyn Backend>,
    /// The destination.
    pub to: Arc<dyn Backend>,
    /// The first byte of the source, and its offset in the destination.
    pub start: (u64, u64),
    /// Write with FUA.
    pub fua: bool,
}

impl CopyDisk {
    async fn copy(&self, offset: u64, buf: Buf) -> BufResult {
        let (read, buf) = self.from.read(offset, buf).await;
        if let Err(e) = read {
            return (Err(with_context(e, "reading")), buf);
        }
        let (written, buf) = self.to.write(offset - self.start.0 + self.start.1, buf, self.fua).await;
        (written.map_err(|e| with_context(e, "writing")), buf)
    }
}

impl Backend for CopyDisk {
    /// Limited by the source, and by the room in the destination.
    fn info(&self) -> BackendInfo {
        let (from, to) = (self.from.info(), self.to.info());
        let room = to.capacity.saturating_sub(self.start.1).saturating_add(self.start.0);
        BackendInfo { capacity: from.capacity.min(room), ..from }
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.copy(offset, buf))
    }

    fn write(&self, _offset: u64, buf: Buf, _stable: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move { (Err(io::ErrorKind::Unsupported.into()), buf) })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.to.flush()
    }

    fn unmap(&self, _offset: u64, _len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        unsupported()
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        unsupported()
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.from.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_bench::testing::{RecordingDisk, run_on_core};

    #[test]
    fn copy_moves_bytes_and_errors_name_the_side() {
        let (from, to) = (RecordingDisk::new(8192), RecordingDisk::new(4096));
        from.set(&[7; 8192]);
        let copy = CopyDisk { from: from.clone(), to: to.clone(), start: (1024, 512), fua: false };
        assert_eq!(copy.info().capacity, 4096 - 512 + 1024);
        run_on_core(move || async move {
            copy.read(2048, Buf::zeroed(1024)).await.0.expect("copied");
            let why = |end: BufResult| end.0.unwrap_err().to_string();
            assert!(why(copy.read(8192, Buf::zeroed(512)).await).starts_with("reading: "));
            assert!(why(copy.read(7168, Buf::zeroed(512)).await).starts_with("writing: "));
        });
        let mut expected = vec![0; 4096];
        expected[1536..2560].fill(7);
        assert!(to.bytes() == expected);
    }
}
