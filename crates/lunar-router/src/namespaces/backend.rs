//! A path to a namespace as a path of [`Multipath`](lunar_initiator::multipath::Multipath).

use super::path::NamespacePath;
use lunar_block::{Backend, BackendInfo, BackendQueue, BufResult, LocalBoxFuture};
use lunar_initiator::multipath::{LunPath, PathState, RangeLocks};
use lunar_initiator::{Error, Event, Lun};
use lunar_runtime::Buf;
use std::io;
use std::sync::Arc;

impl LunPath for NamespacePath {
    fn name(&self) -> String {
        self.location()
    }

    fn identity(&self) -> Vec<u8> {
        self.context.found.designators.clone()
    }

    fn share(&self, ranges: &Arc<RangeLocks>) {
        if let Some(namespace) = self.opened() {
            LunPath::share(&**namespace, ranges);
        }
    }

    fn lun(&self) -> Option<&Lun> {
        None
    }

    fn compare_and_write(&self, offset: u64, data: Buf) -> LocalBoxFuture<'_, (Result<bool, Error>, Buf)> {
        match self.opened() {
            Some(namespace) => LunPath::compare_and_write(&**namespace, offset, data),
            None => Box::pin(async move { (Err(self.closed()), data) }),
        }
    }

    fn check(&self) -> LocalBoxFuture<'_, PathState> {
        Box::pin(self.state())
    }

    /// NVMe/TCP has no command that ends those of a lost controller.
    fn reset_abandoned(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn take_deferred_error(&self) -> Option<Error> {
        None
    }

    fn events(&self) -> flume::Receiver<Event> {
        self.events.clone()
    }
}

/// Forwards an operation to the namespace; an error if the path is closed.
macro_rules! forward {
    ($self:ident, $namespace:ident => $operation:expr) => {
        match $self.opened() {
            Some($namespace) => $operation,
            None => Box::pin(async { Err($self.closed().into()) }),
        }
    };
}

impl Backend for NamespacePath {
    fn info(&self) -> BackendInfo {
        self.context.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        match self.opened() {
            Some(namespace) => namespace.read(offset, buf),
            None => Box::pin(async move { (Err(self.closed().into()), buf) }),
        }
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        match self.opened() {
            Some(namespace) => namespace.write(offset, buf, fua),
            None => Box::pin(async move { (Err(self.closed().into()), buf) }),
        }
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        self.opened()?.clone().queue()
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        forward!(self, namespace => namespace.flush())
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        forward!(self, namespace => namespace.unmap(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        forward!(self, namespace => namespace.write_zeroes(offset, len, unmap))
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.opened().map(|namespace| namespace.describe()).unwrap_or_default()
    }
}
