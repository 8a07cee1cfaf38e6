//! The null backend, for measuring the layers above.

use crate::{
    Backend, BackendInfo, BufResult, Extent, LocalBoxFuture, MAX_ATOMIC, TryIo, describe_row, within,
};
use lunar_runtime::Buf;
use std::io;

/// Returns zeros and discards writes.
pub(crate) struct NullBackend {
    capacity: u64,
}

impl NullBackend {
    pub(crate) fn new(capacity: u64) -> Self {
        NullBackend { capacity }
    }

    fn check(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(within(self.capacity, offset, len)))
    }
}

impl Backend for NullBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            capacity: self.capacity,
            read_only: false,
            unmap: true,
            null: true,
            remote: false,
            write_through: true,
        }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        buf.fill(0);
        TryIo::Done(within(self.capacity, offset, buf.len() as u64))
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        TryIo::Done(within(self.capacity, offset, data.len() as u64))
    }

    fn read(&self, offset: u64, mut buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        buf.fill(0);
        Box::pin(std::future::ready((within(self.capacity, offset, buf.len() as u64), buf)))
    }

    fn write(&self, offset: u64, buf: Buf, _stable: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(std::future::ready((within(self.capacity, offset, buf.len() as u64), buf)))
    }

    fn max_atomic(&self) -> u32 {
        MAX_ATOMIC
    }

    fn write_atomic(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.write(offset, buf, true)
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.check(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.check(offset, len)
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        let found = within(self.capacity, offset, len).map(|()| Extent { offset, len, mapped: false });
        Box::pin(std::future::ready(found))
    }

    fn describe(&self) -> Vec<(String, String)> {
        vec![describe_row("backend", "null"), describe_row("capacity", self.capacity)]
    }
}
