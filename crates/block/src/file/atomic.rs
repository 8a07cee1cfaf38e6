//! Atomic writes of a file or device, with a [`Journal`](super::journal::Journal).

use super::journal;
use super::{File, Share};
use crate::{Finished, MAX_ATOMIC};
use net::Buf;
use rustix::fs::FallocateFlags;
use std::io;

impl File {
    /// Keeps a record, writes, and clears the record: one atomic write of a medium at a time.
    pub(super) async fn write_recorded(&self, offset: u64, buf: Buf) -> Finished {
        let Some(journal) = self.journal.clone().filter(|_| buf.len() <= MAX_ATOMIC as usize) else {
            return (Err(io::ErrorKind::Unsupported.into()), buf);
        };
        let _turn = self.atomic.hold(0..1, Share::Nothing).await;
        let old = match self.read_all(offset, Buf::zeroed(buf.len())).await {
            (Ok(()), old) => old,
            (Err(e), _) => return (Err(e), buf),
        };
        let record = journal::record(offset, &old, &buf);
        let (recorded, clears) = (journal.clone(), journal.clone());
        let kept = net::blocking(move || recorded.put(&record)).await;
        let (result, buf) = match kept {
            Ok(()) => self.write_or_undo(offset, buf, old).await,
            Err(e) => (Err(e), buf),
        };
        let cleared = net::blocking(move || clears.clear()).await;
        (result.and(cleared), buf)
    }

    /// What cannot be written as a whole is as it was.
    async fn write_or_undo(&self, offset: u64, buf: Buf, old: Buf) -> Finished {
        if let Err(e) = self.reserve(offset, buf.len() as u64).await {
            return (Err(e), buf);
        }
        let (result, buf) = self.write_all(offset, buf, true).await;
        if result.is_err() {
            let (undone, _) = self.write_all(offset, old, false).await;
            if let Err(e) = undone {
                let len = buf.len();
                tracing::error!(error = %e, offset, len, "an atomic write failed and its blocks cannot be restored");
            }
        }
        (result, buf)
    }

    /// Sees to it that there is space, where that can be asked for.
    async fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.medium.is_device() {
            return Ok(());
        }
        match self.allocate(FallocateFlags::KEEP_SIZE, &(offset..offset + len)).await {
            Err(e) if super::space::cannot(&e) => Ok(()),
            other => other,
        }
    }
}
