//! Several paths as a [`Backend`].

use super::Multipath;
use super::path_counters::OpKind;
use super::queue::{BlockIo, PathQueue};
use lunar_block::{
    Backend, BackendInfo, BackendQueue, BufResult, Extent, LocalBoxFuture, PipedResult, describe_row,
};
use lunar_runtime::Buf;
use std::io;
use std::sync::Arc;

impl Backend for Multipath {
    fn info(&self) -> BackendInfo {
        self.any().info()
    }

    fn refresh(&self) -> bool {
        // Every path has its own flag, so each must be read.
        self.lun_paths.iter().fold(false, |changed, path| path.refresh() | changed)
    }

    fn device_block_size(&self) -> Option<u32> {
        self.lun_paths.iter().find_map(|path| path.device_block_size())
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.run_io(BlockIo::Read { offset }, buf))
    }

    fn read_piped(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, PipedResult> {
        Box::pin(self.run(OpKind::Read(buf.len()), buf, move |path, buf| path.read_piped(offset, buf)))
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.run_io(BlockIo::Write { offset, fua }, buf))
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        Some(Box::new(PathQueue::new(self)))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.run(OpKind::Other, (), |path, ()| Box::pin(async move { (path.flush().await, ()) }))
                .await
                .0?;
            // One path flushes the medium. Another may hold a deferred error.
            self.lun_paths
                .iter()
                .find_map(|path| path.take_deferred_error())
                .map_or(Ok(()), |e| Err(e.into()))
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.run(OpKind::Other, (), move |path, ()| {
                Box::pin(async move { (path.unmap(offset, len).await, ()) })
            })
            .await
            .0
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.run(OpKind::Other, (), move |path, ()| {
                Box::pin(async move { (path.write_zeroes(offset, len, unmap).await, ()) })
            })
            .await
            .0
        })
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            self.run(OpKind::Other, (), move |path, ()| {
                Box::pin(async move { (path.extent(offset, len).await, ()) })
            })
            .await
            .0
        })
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            self.run(OpKind::Other, (), move |path, ()| {
                Box::pin(async move { (path.extents(offset, len, max).await, ()) })
            })
            .await
            .0
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let paths = self.paths();
        let rows =
            paths.into_iter().map(|(name, state, load)| (name, format!("{state:?}, {load} in flight")));
        std::iter::once(describe_row("kind", "multipath")).chain(rows).collect()
    }
}
