//! Several paths as a [`Backend`].

use super::Multipath;
use super::queue::{BlockIo, PathQueue};
use lunar_block::{Backend, BackendInfo, BackendQueue, BufResult, Extent, LocalBoxFuture, describe_row};
use lunar_runtime::Buf;
use std::io;
use std::sync::Arc;

impl Backend for Multipath {
    fn info(&self) -> BackendInfo {
        self.any().info()
    }

    fn refresh(&self) -> bool {
        // Every path has its own flag, so each must be read.
        self.lun_paths.iter().fold(false, |changed, way| way.refresh() | changed)
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.run(buf, move |way, buf| BlockIo::Read { offset }.on(way, buf)))
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.run(buf, move |way, buf| BlockIo::Write { offset, fua }.on(way, buf)))
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        Some(Box::new(PathQueue::new(self)))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.run((), |way, ()| Box::pin(async move { (way.flush().await, ()) })).await.0?;
            // One path flushes the medium. Another may hold a deferred error.
            self.lun_paths.iter().find_map(|way| way.take_deferred_error()).map_or(Ok(()), |e| Err(e.into()))
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.run((), move |way, ()| Box::pin(async move { (way.unmap(offset, len).await, ()) })).await.0
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.run((), move |way, ()| {
                Box::pin(async move { (way.write_zeroes(offset, len, unmap).await, ()) })
            })
            .await
            .0
        })
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            self.run((), move |way, ()| Box::pin(async move { (way.extent(offset, len).await, ()) })).await.0
        })
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            self.run((), move |way, ()| Box::pin(async move { (way.extents(offset, len, max).await, ()) }))
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
