//! The storage seam.

use crate::MissingMedium;
use lunar_runtime::Buf;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A future that stays on its core.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn std::future::Future<Output = T> + 'a>>;

/// The end of an operation that borrowed a buffer: the result, and the buffer back.
pub type BufResult = (io::Result<()>, Buf);

/// What a backend is. Asked on every change, cached in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// Bytes that can be addressed.
    pub capacity: u64,
    /// The medium cannot be written.
    pub read_only: bool,
    /// UNMAP gives space back, and unmapped bytes read as zeros.
    pub unmap: bool,
    /// Reads are zeros and writes go nowhere: no buffer needs to be filled or kept.
    pub null: bool,
    /// A write is stable when it is acknowledged; flush has nothing to do.
    pub stable: bool,
}

/// A stretch of bytes and whether storage is allocated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Storage is allocated (mapped); otherwise it reads as zeros.
    pub mapped: bool,
}

/// The answer of an attempt to finish an operation on the spot.
#[derive(Debug)]
pub enum TryIo {
    /// Done, with this result.
    Done(io::Result<()>),
    /// It would wait: use the asynchronous form.
    WouldWait,
}

/// A line of bytes that can be read and written at any offset, from every core at once.
///
/// Callers keep offset and length within the capacity. Errors are the operating system's: `StorageFull` for
/// no space, `ReadOnlyFilesystem` or `PermissionDenied` for a medium that cannot be written, `Unsupported`
/// for what the backend cannot do.
pub trait Backend: Send + Sync {
    /// What it is now. Capacity may change while it lives; see [`Backend::refresh`].
    fn facts(&self) -> BackendInfo;

    /// Looks at the medium again (a file may have been resized); true if the facts changed.
    fn refresh(&self) -> bool {
        false
    }

    /// How the medium is missing from the path that it was opened by; None while it is there.
    fn missing(&self) -> Option<MissingMedium> {
        None
    }

    /// Bytes of a logical block, where the medium has blocks of its own.
    fn device_block_size(&self) -> Option<u32> {
        None
    }

    /// While `offered`, this process may open the medium once more in another way. Locks keep other processes out all
    /// the time, and nothing may use this backend meanwhile. A device that can be written is open in one way only.
    fn offer(&self, _offered: bool) {}

    /// Fills `buf` from `offset` if that takes no waiting.
    fn read_now(&self, _offset: u64, _buf: &mut [u8]) -> TryIo {
        TryIo::WouldWait
    }

    /// Writes `data` at `offset` if that takes no waiting. Never used for writes that must be stable at once.
    fn write_now(&self, _offset: u64, _data: &[u8]) -> TryIo {
        TryIo::WouldWait
    }

    /// Fills the whole of `buf` from `offset`.
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult>;

    /// Writes the whole of `buf` at `offset`; with `stable` it is on stable storage before this ends.
    fn write(&self, offset: u64, buf: Buf, stable: bool) -> LocalBoxFuture<'_, BufResult>;

    /// The most that [`Backend::write_atomic`] writes, in bytes; 0: it does not.
    fn max_atomic(&self) -> u32 {
        0
    }

    /// Writes the whole of `buf` at `offset`, or nothing of it, and on stable storage before this ends. That holds when
    /// the process is killed, when the power fails, and when there is no space. The caller sees to it that nobody reads
    /// or writes these bytes meanwhile.
    fn write_atomic(&self, _offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(std::future::ready((Err(io::ErrorKind::Unsupported.into()), buf)))
    }

    /// Many reads and writes of one owner at once, without a future for each, where that is cheaper; None where it is
    /// not, or not on this core.
    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        None
    }

    /// Every acknowledged write becomes stable.
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Nothing was written through it, so a flush that fails loses nothing. False where that is not known.
    fn is_unwritten(&self) -> bool {
        false
    }

    /// Gives space back where it can; the bytes read as zeros afterwards.
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>>;

    /// The bytes read as zeros afterwards; with `unmap` space may be given back.
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Bytes that are best asked for at a time, where they come from afar: who reads more sends on what has come
    /// while the rest is on its way. None: reads are not cut.
    fn stride(&self) -> Option<usize> {
        None
    }

    /// Asks the medium to bring bytes near; a hint.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// The extent that begins at `offset`, at most `len` bytes of it.
    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(async move { Ok(Extent { offset, len, mapped: true }) })
    }

    /// The extents from `offset` on, one after the other without gaps, within `len` bytes and `most` of them; neighbours
    /// may be alike. It may be fewer, where more would take another question to somebody far away, but never none of
    /// what there is: who wants the rest asks again from where they end.
    fn extents(&self, offset: u64, len: u64, most: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            let (mut at, end) = (offset, offset.saturating_add(len));
            let mut found = Vec::new();
            while at < end && found.len() < most {
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

    /// Counters and settings for people, as (name, value), from the outermost filter to the medium.
    fn describe(&self) -> Vec<(String, String)>;
}

/// Reads and writes of one owner, who takes their ends one after the other. Each has a lane, a small number that its
/// owner chose, and until it has ended it is the only one there. Dropping the queue gives the answers up, not the
/// operations.
pub trait BackendQueue {
    /// Begins what [`Backend::read`] does.
    fn read(&mut self, lane: usize, offset: u64, buf: Buf);

    /// Begins what [`Backend::write`] does.
    fn write(&mut self, lane: usize, offset: u64, buf: Buf, stable: bool);

    /// The next one that has ended. To be asked again after anything was begun: not all of them move before.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)>;
}
