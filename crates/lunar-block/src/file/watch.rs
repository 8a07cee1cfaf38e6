//! External changes of an open file or device: its path leads elsewhere, or it shrinks.
//!
//! A server checks the size and the path of each medium once a second. Between two checks, a write could extend a
//! truncated file again. So the size is also read before the first write of each receive.

use super::FileBackend;
use super::medium::OpenMedium;
use crate::{FileId, MissingMedium};
use lunar_runtime::{Recheck, current_batch};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use std::cell::Cell;
use std::fs::Metadata;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

impl OpenMedium {
    /// Reports that the path leads elsewhere; None while it leads here, or if unknown.
    pub(super) fn missing(&self) -> Option<MissingMedium> {
        let (ours, there) = (self.files.plain.metadata(), std::fs::metadata(&self.path));
        let is_unlinked = !self.device
            && match &ours {
                Ok(ours) => ours.nlink() == 0,
                // On NFS: the file no longer exists on the server.
                Err(e) => e.raw_os_error() == Some(Errno::STALE.raw_os_error()),
            };
        let there = match (&ours, &there) {
            (Ok(ours), Ok(there)) if FileId::of(ours) == FileId::of(there) => return None,
            (_, Ok(there)) => Some(FileId::of(there)),
            (_, Err(e)) if is_unlinked || is_gone(e.kind()) => None,
            (_, Err(_)) => return None,
        };
        let served = ours.as_ref().ok().map(FileId::of);
        let is_link = std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_symlink());
        let descriptor = self.files.plain.as_raw_fd();
        let is_ours =
            |found: &Metadata| ours.as_ref().is_ok_and(|ours| FileId::of(ours) == FileId::of(found));
        let name_now = match self.device || is_unlinked {
            true => None,
            false => std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok(),
        };
        // The kernel reports the name that the file was opened by, even if only another name is left.
        let name_now = name_now.filter(|name| std::fs::metadata(name).is_ok_and(|found| is_ours(&found)));
        let (path, is_device) = (self.path.clone(), self.device);
        Some(MissingMedium { path, is_device, served, there, is_link, is_unlinked, name_now, descriptor })
    }

    /// The cached size of a file, without a request to a network file system.
    fn size_known(&self) -> Option<u64> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&self.files.plain, c"", flags, StatxFlags::SIZE).ok()?;
        StatxFlags::from_bits_retain(found.stx_mask)
            .contains(StatxFlags::SIZE)
            .then(|| self.whole(found.stx_size))
    }
}

fn is_gone(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

thread_local! {
    /// The file whose size this core checked last, and the batch of work in which it needed the size last.
    static LAST_CHECKED: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
    /// How long that check is valid.
    static SIZE_RECHECK: Recheck = const { Recheck::new() };
}

/// Waits for a future and invalidates the cached size check.
pub(super) async fn wait<T>(work: impl Future<Output = T>) -> T {
    let (mut work, mut waited) = (pin!(work), false);
    let done = poll_fn(|cx| {
        let done = work.as_mut().poll(cx);
        waited |= done.is_pending();
        done
    });
    let done = done.await;
    if waited {
        invalidate_size();
    }
    done
}

/// Makes the next size check ask the kernel.
pub(super) fn invalidate_size() {
    SIZE_RECHECK.with(Recheck::forget);
}

impl FileBackend {
    /// Checks that the range still exists. Called right before each step of a write, which must never extend a file.
    pub(super) fn still_there(&self, offset: u64, len: u64) -> io::Result<()> {
        self.refresh_size();
        self.check(offset, len)
    }

    /// Reads the size unless the cached check is valid. A new check is due before the first write of each receive (if
    /// the last one is older than 100 microseconds), at each tick of the coarse clock (1 to 10 ms), and after each
    /// wait. A write beyond the end would extend a truncated file again.
    pub(super) fn refresh_size(&self) {
        if self.medium.device {
            return;
        }
        let this = (std::ptr::from_ref(self).addr(), current_batch());
        let last = LAST_CHECKED.replace(this);
        if last.0 != this.0 {
            SIZE_RECHECK.with(Recheck::forget);
        } else if last.1 != this.1 {
            // Later writes are newer than the check. Writes of one receive share a check: it costs as much as a small write.
            SIZE_RECHECK.with(Recheck::next_batch);
        }
        if !SIZE_RECHECK.with(Recheck::take_due) {
            return;
        }
        if let Some(size) = self.medium.size_known() {
            self.capacity.fetch_min(size, Relaxed);
        }
    }
}
