//! The trait of block backends.

use crate::MissingMedium;
use lunar_runtime::{Buf, LocalBoxFuture, PipedBytes};
use std::io;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

/// The result of an operation that owned a buffer, and the buffer.
pub type BufResult = (io::Result<()>, Buf);

/// The result of a [`Backend::read_piped`], and its buffer: with a pipe, the pipe has the bytes and not the buffer.
pub type PipedResult = (io::Result<Option<PipedBytes>>, Buf);

/// The properties of a backend. Callers cache them until [`Backend::refresh`] reports a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// The capacity in bytes.
    pub capacity: u64,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// Whether UNMAP frees space, and unmapped bytes read as zeros.
    pub unmap: bool,
    /// Whether reads return zeros and writes are discarded, so that callers may skip the transfer.
    pub null: bool,
    /// Whether another system executes the operations. If it is unreachable, they may stay in progress for long.
    pub remote: bool,
    /// Whether each write is on stable storage when it ends, so that a flush is not needed.
    pub write_through: bool,
}

/// A range of bytes with its provisioning state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Whether storage is allocated (mapped); otherwise it reads as zeros.
    pub mapped: bool,
}

/// The outcome of an attempt to do I/O without waiting.
#[derive(Debug)]
pub enum TryIo {
    /// Done, with this result.
    Done(io::Result<()>),
    /// It would wait: use the asynchronous method.
    WouldWait,
}

/// A byte-addressed disk, usable from every core at once.
///
/// Callers keep offset and length within the capacity. Errors are those of the operating system: `StorageFull`
/// without space, `ReadOnlyFilesystem` or `PermissionDenied` on a read-only medium, `Unsupported` for an operation
/// that the backend lacks.
pub trait Backend: Send + Sync {
    /// The current properties. The capacity may change; see [`Backend::refresh`].
    fn info(&self) -> BackendInfo;

    /// Reads the properties of the medium again (a file may have been resized); true if they changed.
    fn refresh(&self) -> bool {
        false
    }

    /// Reports that the path no longer leads to the open medium; None while it does.
    fn missing(&self) -> Option<MissingMedium> {
        None
    }

    /// A mark that lasts until all descriptors of the medium are closed, also those of operations in flight. They outlive
    /// the backend, and closing a device may take long. None: the medium has no descriptors.
    fn open_mark(&self) -> Option<Weak<()>> {
        None
    }

    /// The logical block size in bytes, if the medium has one.
    fn device_block_size(&self) -> Option<u32> {
        None
    }

    /// While `offered`, this process may open the medium again with other options. The locks still exclude other
    /// processes. The caller must not use this backend meanwhile. A writable device has one open descriptor only.
    fn offer(&self, _offered: bool) {}

    /// Fills `buf` from `offset` if that does not block.
    fn try_read(&self, _offset: u64, _buf: &mut [u8]) -> TryIo {
        TryIo::WouldWait
    }

    /// References to the cached pages with these bytes, which must be in the page cache. A later write changes the
    /// content of the pages. None: the bytes must be read.
    fn cached_pages(&self, _offset: u64, _len: usize) -> Option<PipedBytes> {
        None
    }

    /// Writes `data` at `offset` if that does not block. Not for FUA writes.
    fn try_write(&self, _offset: u64, _data: &[u8]) -> TryIo {
        TryIo::WouldWait
    }

    /// Fills the whole of `buf` from `offset`.
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult>;

    /// As [`Backend::read`], for a caller that sends the bytes to a socket: they may be in a pipe instead.
    fn read_piped(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, PipedResult> {
        Box::pin(async move {
            let (result, buf) = self.read(offset, buf).await;
            (result.map(|()| None), buf)
        })
    }

    /// Writes the whole of `buf` at `offset`. With `fua` (Force Unit Access), it is on stable storage when the future
    /// ends.
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult>;

    /// The limit of [`Backend::write_atomic`] in bytes; 0 if it is unsupported.
    fn max_atomic(&self) -> u32 {
        0
    }

    /// Writes all of `buf` at `offset` or nothing, on stable storage when the future ends. This holds when the
    /// process is killed, power fails, or space runs out. The caller must prevent concurrent reads and writes of
    /// these bytes.
    fn write_atomic(&self, _offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(std::future::ready((Err(io::ErrorKind::Unsupported.into()), buf)))
    }

    /// The limit of [`Backend::compare_and_swap`] in bytes; 0 if it is unsupported.
    fn max_compare_and_swap(&self) -> u32 {
        0
    }

    /// Compares the first half of `buf` with the bytes at `offset`. If they are equal, it writes the second half there,
    /// on stable storage when the future ends, and returns None. Otherwise it returns the index of the first byte that
    /// differs. No client of the medium can write between, in this process or elsewhere.
    ///
    /// The length of a half is a power of two from 512 to the limit, and divides `offset`.
    fn compare_and_swap(&self, _offset: u64, _buf: Buf) -> LocalBoxFuture<'_, io::Result<Option<usize>>> {
        Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())))
    }

    /// A queue for many reads and writes of one owner without a future for each; None where that is not cheaper, or
    /// not on this core.
    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        None
    }

    /// Makes every completed write durable.
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Whether nothing was written, so that a failed flush loses nothing. False if unknown.
    fn is_unwritten(&self) -> bool {
        false
    }

    /// Frees space where it can; the bytes read as zeros afterwards.
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Writes zeros; with `unmap`, it may free the space instead.
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>>;

    /// The best size of one read, in bytes, for a remote medium. A caller splits longer reads, so that it forwards
    /// the first part while the rest arrives. None: reads are not split.
    fn preferred_read_size(&self) -> Option<usize> {
        None
    }

    /// Hints that these bytes will be read soon.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// The extent that begins at `offset`, at most `len` bytes of it.
    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(async move { Ok(Extent { offset, len, mapped: true }) })
    }

    /// The extents from `offset` on, adjacent and in order, within `len` bytes and at most `max`; neighbours may
    /// have the same state. A remote backend may return fewer, but at least one: the caller continues where they end.
    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            let (mut at, end) = (offset, offset.saturating_add(len));
            let mut found = Vec::new();
            while at < end && found.len() < max {
                let extent = self.extent(at, end - at).await?;
                if extent.len == 0 {
                    break;
                }
                at += extent.len;
                found.push(extent);
            }
            Ok(found)
        })
    }

    /// Counters and settings as (name, value), from the outermost filter to the medium.
    fn describe(&self) -> Vec<(String, String)>;
}

/// A row of [`Backend::describe`].
pub fn describe_row(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// Reads and writes of one owner, which polls for their completions. Each operation has a lane, a small number chosen
/// by the owner; a lane has one operation at a time. Dropping the queue abandons the results, not the operations.
pub trait BackendQueue {
    /// Starts a [`Backend::read`].
    fn read(&mut self, lane: usize, offset: u64, buf: Buf);

    /// Starts a [`Backend::write`].
    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool);

    /// Returns the next completion. Poll again after starting operations, because some only progress when polled.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)>;
}
