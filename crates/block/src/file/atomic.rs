//! Atomic writes of a file or device, with a [`Journal`](super::journal::Journal).

use super::{File, Share};
use crate::{Finished, MAX_ATOMIC, locked};
use net::Buf;
use rustix::fs::FallocateFlags;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A record that may be valid. No other write begins until it is cleared: done again later, it would replace newer data.
#[derive(Default)]
pub(super) struct Open {
    is_open: AtomicBool,
    /// The old blocks of a write that failed, and where they belong.
    undo: Mutex<Option<(u64, Buf)>>,
}

impl Open {
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(SeqCst)
    }

    fn begin(&self) {
        self.is_open.store(true, SeqCst);
    }

    fn end(&self) {
        *locked(&self.undo) = None;
        self.is_open.store(false, SeqCst);
    }

    fn copy(&self) -> Option<(u64, Buf)> {
        locked(&self.undo).as_ref().map(|(offset, old)| {
            let mut copy = Buf::zeroed(old.len());
            copy.copy_from_slice(old);
            (*offset, copy)
        })
    }
}

impl File {
    /// Keeps a record, writes, and clears the record: one atomic write of a medium at a time.
    pub(super) async fn write_recorded(&self, offset: u64, buf: Buf) -> Finished {
        let Some(journal) = self.journal.clone().filter(|_| buf.len() <= MAX_ATOMIC as usize) else {
            return (Err(io::ErrorKind::Unsupported.into()), buf);
        };
        let _turn = self.atomic.hold(0..1, Share::Nothing).await;
        let old = match self.stable_old(offset, buf.len()).await {
            Ok(old) => old,
            Err(e) => return (Err(e), buf),
        };
        let record = journal.record(offset, &old, &buf);
        self.open.begin();
        let kept = net::blocking(move || journal.put(&record)).await;
        let (result, buf) = match kept {
            Ok(()) => self.write_or_undo(offset, buf, old).await,
            Err(e) => (Err(e), buf),
        };
        let ended = self.end_record().await;
        if let Err(e) = &ended {
            let len = buf.len();
            tracing::error!(
                error = %e, offset, len,
                "the record of an atomic write cannot be cleared; the medium refuses writes until it is; \
                 hint: check the disks of the medium and of the state folder, and restart"
            );
        }
        (result.and(ended), buf)
    }

    /// The blocks as they are, on stable storage too: after a power loss the record must know each of them.
    async fn stable_old(&self, offset: u64, len: usize) -> io::Result<Buf> {
        self.end_record().await?;
        self.syncer.flush().await?;
        let (result, old) = self.read_all(offset, Buf::zeroed(len)).await;
        result.map(|()| old)
    }

    /// Another write may begin: the record of the last atomic write is cleared.
    pub(super) async fn no_record(&self) -> io::Result<()> {
        if !self.open.is_open() {
            return Ok(());
        }
        let _turn = self.atomic.hold(0..1, Share::Nothing).await;
        self.end_record().await
    }

    /// Clears the record, and before that restores the old blocks if its write failed.
    async fn end_record(&self) -> io::Result<()> {
        let Some(journal) = self.journal.clone().filter(|_| self.open.is_open()) else { return Ok(()) };
        if let Some((offset, old)) = self.open.copy() {
            self.write_all(offset, old, false).await.0?;
            self.syncer.flush().await?;
        }
        net::blocking(move || journal.clear()).await?;
        self.open.end();
        Ok(())
    }

    /// What cannot be written as a whole is to be undone.
    async fn write_or_undo(&self, offset: u64, buf: Buf, old: Buf) -> Finished {
        if let Err(e) = self.reserve(offset, buf.len() as u64).await {
            return (Err(e), buf);
        }
        let (result, buf) = self.write_all(offset, buf, true).await;
        if result.is_err() {
            *locked(&self.open.undo) = Some((offset, old));
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
