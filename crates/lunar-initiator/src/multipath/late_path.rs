//! A path that opens later.

use super::{LunPath, PathState};
use crate::{Error, Event, Lun};
use lunar_block::range_lock::RangeLocks;
use lunar_block::{Backend, BackendInfo, BackendQueue, BufResult, Extent, LocalBoxFuture, PipedResult};
use lunar_runtime::Buf;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// Opens a path, and answers for it while it is closed.
pub trait PathOpener: Send + Sync + 'static {
    /// The logical unit or namespace.
    type Path: LunPath + ?Sized;

    /// The logical unit or namespace, once the path is open.
    fn opened(&self) -> Option<&Arc<Self::Path>>;

    /// See [`LunPath::name`].
    fn name(&self) -> String;

    /// See [`LunPath::identity`].
    fn identity(&self) -> Vec<u8>;

    /// See [`Backend::info`].
    fn info(&self) -> BackendInfo;

    /// See [`Backend::refresh`].
    fn refresh(&self) -> bool {
        false
    }

    /// Checks the open path.
    fn check_opened<'a>(&'a self, opened: &'a Self::Path) -> LocalBoxFuture<'a, PathState> {
        opened.check()
    }

    /// Checks the closed path.
    fn check_closed(&self) -> LocalBoxFuture<'_, PathState>;

    /// The error of an operation on the closed path. Multipath sends operations to open paths only.
    fn closed(&self) -> Error;

    /// See [`LunPath::events`].
    fn events(&self) -> flume::Receiver<Event>;
}

/// A path that its opener opens later. Operations go to the logical unit, and fail while the path is closed.
pub struct LatePath<P>(P);

impl<P: PathOpener> LatePath<P> {
    /// The path of this opener.
    pub fn new(opener: P) -> Arc<LatePath<P>> {
        Arc::new(LatePath(opener))
    }

    /// The logical unit or namespace, once the path is open.
    pub fn opened(&self) -> Option<&Arc<P::Path>> {
        self.0.opened()
    }

    fn closed(&self) -> io::Error {
        self.0.closed().into()
    }
}

impl<P: PathOpener> fmt::Debug for LatePath<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LatePath").field(&self.0.name()).finish()
    }
}

impl<P> Deref for LatePath<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.0
    }
}

/// Forwards an operation to the logical unit; an error if the path is closed.
macro_rules! forward {
    ($self:ident, $lun:ident => $operation:expr) => {
        match $self.opened() {
            Some($lun) => $operation,
            None => Box::pin(async { Err($self.closed()) }),
        }
    };
}

impl<P: PathOpener> LunPath for LatePath<P> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn identity(&self) -> Vec<u8> {
        self.0.identity()
    }

    fn share(&self, ranges: &Arc<RangeLocks>) {
        if let Some(lun) = self.opened() {
            LunPath::share(&**lun, ranges);
        }
    }

    fn lun(&self) -> Option<&Lun> {
        self.opened().and_then(|lun| lun.lun())
    }

    fn compare_and_write(&self, offset: u64, data: Buf) -> LocalBoxFuture<'_, (Result<bool, Error>, Buf)> {
        match self.opened() {
            Some(lun) => LunPath::compare_and_write(&**lun, offset, data),
            None => Box::pin(async move { (Err(self.0.closed()), data) }),
        }
    }

    fn check(&self) -> LocalBoxFuture<'_, PathState> {
        self.opened().map_or_else(|| self.0.check_closed(), |lun| self.0.check_opened(lun))
    }

    fn reset_abandoned(&self) -> LocalBoxFuture<'_, ()> {
        match self.opened() {
            Some(lun) => lun.reset_abandoned(),
            None => Box::pin(async {}),
        }
    }

    fn take_deferred_error(&self) -> Option<Error> {
        self.opened().and_then(|lun| lun.take_deferred_error())
    }

    fn events(&self) -> flume::Receiver<Event> {
        self.0.events()
    }
}

impl<P: PathOpener> Backend for LatePath<P> {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }

    fn refresh(&self) -> bool {
        self.0.refresh()
    }

    fn device_block_size(&self) -> Option<u32> {
        self.opened().and_then(|lun| lun.device_block_size())
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        match self.opened() {
            Some(lun) => lun.read(offset, buf),
            None => Box::pin(async move { (Err(self.closed()), buf) }),
        }
    }

    fn read_piped(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, PipedResult> {
        match self.opened() {
            Some(lun) => lun.read_piped(offset, buf),
            None => Box::pin(async move { (Err(self.closed()), buf) }),
        }
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        match self.opened() {
            Some(lun) => lun.write(offset, buf, fua),
            None => Box::pin(async move { (Err(self.closed()), buf) }),
        }
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        self.opened()?.clone().queue()
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        forward!(self, lun => lun.flush())
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        forward!(self, lun => lun.unmap(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        forward!(self, lun => lun.write_zeroes(offset, len, unmap))
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        forward!(self, lun => lun.extent(offset, len))
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        forward!(self, lun => lun.extents(offset, len, max))
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.opened().map(|lun| lun.describe()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;
    use crate::multipath::ExpectedUnit;

    struct NeverOpened;

    impl PathOpener for NeverOpened {
        type Path = Lun;

        fn opened(&self) -> Option<&Arc<Lun>> {
            None
        }

        fn name(&self) -> String {
            "a path".into()
        }

        fn identity(&self) -> Vec<u8> {
            Vec::new()
        }

        fn info(&self) -> BackendInfo {
            ExpectedUnit::default().info()
        }

        fn check_closed(&self) -> LocalBoxFuture<'_, PathState> {
            Box::pin(async { PathState::Changed })
        }

        fn closed(&self) -> Error {
            Error::new(ErrorCode::IdentityMismatch, "the path is not open")
        }

        fn events(&self) -> flume::Receiver<Event> {
            flume::bounded(1).1
        }
    }

    #[test]
    fn operation_on_closed_path_has_the_error_of_its_opener() {
        compio::runtime::Runtime::new().expect("an event loop").block_on(async {
            let path = LatePath::new(NeverOpened);
            let (read, buf) = path.read(0, Buf::zeroed(512)).await;
            assert_eq!(buf.len(), 512, "the buffer comes back");
            for result in
                [read, path.write(0, buf, false).await.0, path.flush().await, path.unmap(0, 1).await]
            {
                let e = result.expect_err("a closed path");
                assert_eq!(Error::of(&e).map(|e| e.code), Some(ErrorCode::IdentityMismatch));
            }
            assert_eq!((path.check().await, path.lun().is_none()), (PathState::Changed, true));
        });
    }
}
