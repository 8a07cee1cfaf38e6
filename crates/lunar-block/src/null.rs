//! The null backend: as fast as nothing, for measuring what stands above it.

use crate::{Backend, Extent, Facts, Finished, Future, Inline, MAX_ATOMIC, within};
use lunar_runtime::Buf;
use std::io;

/// Reads zeros and drops writes.
pub(crate) struct Null {
    capacity: u64,
}

impl Null {
    pub(crate) fn new(capacity: u64) -> Self {
        Null { capacity }
    }

    fn check(&self, offset: u64, len: u64) -> Future<'_, io::Result<()>> {
        Box::pin(std::future::ready(within(self.capacity, offset, len)))
    }
}

impl Backend for Null {
    fn facts(&self) -> Facts {
        Facts { capacity: self.capacity, read_only: false, unmap: true, null: true, stable: true }
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> Inline {
        buf.fill(0);
        Inline::Done(within(self.capacity, offset, buf.len() as u64))
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Inline {
        Inline::Done(within(self.capacity, offset, data.len() as u64))
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Future<'_, Finished> {
        buf.fill(0);
        Box::pin(std::future::ready((within(self.capacity, offset, buf.len() as u64), buf)))
    }

    fn write(&self, offset: u64, buf: Buf, _stable: bool) -> Future<'_, Finished> {
        Box::pin(std::future::ready((within(self.capacity, offset, buf.len() as u64), buf)))
    }

    fn max_atomic(&self) -> u32 {
        MAX_ATOMIC
    }

    fn write_atomic(&self, offset: u64, buf: Buf) -> Future<'_, Finished> {
        self.write(offset, buf, true)
    }

    fn flush(&self) -> Future<'_, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn unmap(&self, offset: u64, len: u64) -> Future<'_, io::Result<()>> {
        self.check(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _unmap: bool) -> Future<'_, io::Result<()>> {
        self.check(offset, len)
    }

    fn extent(&self, offset: u64, len: u64) -> Future<'_, io::Result<Extent>> {
        let found = within(self.capacity, offset, len).map(|()| Extent { offset, len, mapped: false });
        Box::pin(std::future::ready(found))
    }

    fn describe(&self) -> Vec<(String, String)> {
        vec![("backend".into(), "null".into()), ("capacity".into(), self.capacity.to_string())]
    }
}
