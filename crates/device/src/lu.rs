//! The logical unit: what all of its nexuses share.

use crate::NexusId;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The peripheral device type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Direct access block device (00h).
    Disk,
    /// CD/DVD device (05h) with 2048-byte blocks, read-only.
    CdRom,
}

/// Who a logical unit is, for INQUIRY and its pages. Never changes.
#[derive(Clone, Debug)]
pub struct Identity {
    /// T10 vendor identification, at most 8 ASCII characters.
    pub vendor: String,
    /// Product identification, at most 16.
    pub product: String,
    /// Product revision level, at most 4.
    pub revision: String,
    /// Unit serial number.
    pub serial: String,
    /// NAA designator: locally assigned (3h, 8 bytes) or registered extended (6h, 16 bytes).
    pub naa: Vec<u8>,
}

/// How a logical unit is set up; capacity is the backend's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Device type.
    pub kind: Kind,
    /// Who it is.
    pub identity: Identity,
    /// Logical block size in bytes: 512, 2048 (CD) or 4096.
    pub block_size: u32,
    /// Physical block size in bytes, a power of two multiple of the logical one.
    pub physical_block_size: u32,
    /// Bytes of medium, a multiple of the block size (what exceeds it is cut off).
    pub capacity: u64,
    /// Writes are refused (WRITE PROTECTED).
    pub read_only: bool,
    /// The medium can be ejected and loaded.
    pub removable: bool,
    /// Write cache enabled (WCE) at power on.
    pub write_cache: bool,
    /// UNMAP and WRITE SAME with UNMAP work: thin provisioned.
    pub thin: bool,
    /// Persistent reservation registrants at most.
    pub max_registrants: usize,
}

/// What may change while a logical unit lives. Guarded by its lock; see [`Lu::change`].
pub struct State {
    pub(crate) touched: bool,
}

impl State {
    /// Marks a change that nexuses must see.
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }
}

/// A logical unit, shared by all cores.
pub struct Lu {
    settings: Settings,
    epoch: AtomicU64,
    state: Mutex<State>,
}

/// The locked state of a logical unit. When it goes, and something was touched, every nexus will look again.
pub struct Change<'a> {
    state: MutexGuard<'a, State>,
    epoch: &'a AtomicU64,
}

impl Lu {
    /// How it was set up.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Grows with every change that nexuses must see.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Locks the state.
    pub fn change(&self) -> Change<'_> {
        // A panic cannot leave the state half changed in a way that matters more than the panic itself.
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        Change { state, epoch: &self.epoch }
    }
}

impl Deref for Change<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if std::mem::take(&mut self.state.touched) {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }
}
