//! The logical unit, which all of its nexuses share.

use crate::log::LogCounter;
use crate::per_core::{CoreIndex, PerCore, PerCoreSlots};
use crate::{NexusId, State};
use lunar_wire::scsi::Sense;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

/// The peripheral device type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeripheralDeviceType {
    /// Direct access block device (00h).
    Disk,
    /// CD/DVD device (05h) with 2048-byte blocks, read-only.
    CdRom,
}

/// The identity of a logical unit, for INQUIRY and its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuIdentity {
    /// T10 vendor identification, at most 8 ASCII characters.
    pub vendor: String,
    /// Product identification, at most 16 ASCII characters.
    pub product: String,
    /// Product revision level, at most 4 ASCII characters.
    pub revision: String,
    /// Unit serial number.
    pub serial: String,
    /// NAA designator: locally assigned (3h, 8 bytes) or registered extended (6h, 16 bytes).
    pub naa: Vec<u8>,
    /// The designation descriptors of VPD 83h for the logical unit, concatenated, if another target defines them. If
    /// `None`, they are built from vendor, serial number and NAA designator.
    pub designators: Option<Vec<u8>>,
}

/// Selects the commands that are sent unchanged to a backing device ([`Plan::Passthrough`](crate::Plan::Passthrough)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassthroughMode {
    /// No command: this device server executes all.
    None,
    /// Commands that need the device. All nexuses share one nexus to the device. Reservations are therefore handled
    /// here, and a unit attention from the device is queued for all nexuses ([`Lu::attention_received`]).
    Shared,
    /// All commands except REPORT LUNS. Each nexus has its own nexus to the device, with its own reservations and
    /// unit attentions.
    PerNexus,
}

/// The settings of a logical unit. [`Lu::resized`] changes the capacity later.
#[derive(Clone, Debug)]
pub struct LuSettings {
    /// Device type.
    pub device_type: PeripheralDeviceType,
    /// Identity for INQUIRY and VPD.
    pub identity: LuIdentity,
    /// Logical block size in bytes: 512, 2048 (CD) or 4096.
    pub block_size: u32,
    /// Physical block size in bytes, a power of two multiple of the logical one.
    pub physical_block_size: u32,
    /// Capacity in bytes. A remainder that is less than a block is not used.
    pub capacity: u64,
    /// Writes are rejected with WRITE PROTECTED.
    pub read_only: bool,
    /// The medium can be ejected and loaded.
    pub removable: bool,
    /// WCE at power on: the write cache is enabled.
    pub write_cache: bool,
    /// Thin provisioned: UNMAP, and UNMAP in WRITE SAME, are supported.
    pub thin: bool,
    /// Maximum length of WRITE ATOMIC in bytes (MAXIMUM ATOMIC TRANSFER LENGTH of VPD B0h); 0 if it is not supported.
    pub max_atomic: u32,
    /// The medium compares and writes a block in one step, because other servers may write it too. COMPARE AND WRITE is
    /// limited to one block then, and ORWRITE is not supported.
    pub medium_compares: bool,
    /// Maximum number of registrants of persistent reservations.
    pub max_registrants: usize,
    /// Reservations are supported. If false, the reservation commands do not exist.
    pub reservable: bool,
    /// The commands that the backing device executes.
    pub passthrough: PassthroughMode,
    /// SET TARGET PORT GROUPS is supported. If false, only [`Lu::set_access`] sets access states.
    pub explicit_access: bool,
    /// Other servers share the state ([`Lu::share`]). SANITIZE is not supported then, because its state is not shared.
    /// Neither is COMPARE AND WRITE, unless the medium compares.
    pub shared: bool,
}

/// Contradictory settings, or invalid saved state; the text describes the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidDefinition(&'static str);

impl InvalidDefinition {
    pub(crate) const fn new(what: &'static str) -> InvalidDefinition {
        InvalidDefinition(what)
    }
}

impl fmt::Display for InvalidDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidDefinition {}

impl LuSettings {
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks; 0 if it is not supported.
    pub(crate) const fn max_compare_and_write(&self) -> u8 {
        match (self.medium_compares, self.shared) {
            (true, _) => 1,
            (false, true) => 0,
            // The maximum that the CDB can express.
            (false, false) => u8::MAX,
        }
    }

    pub(crate) fn check(&self) -> Result<(), InvalidDefinition> {
        let (block, physical) = (self.block_size, self.physical_block_size);
        if !block.is_power_of_two() || !(512..=65536).contains(&block) {
            return Err(InvalidDefinition("the block size is not a power of two from 512 to 65536"));
        }
        if !physical.is_power_of_two() || physical < block || physical / block > 1 << 15 {
            return Err(InvalidDefinition(
                "the physical block size is not the block size times a power of two",
            ));
        }
        let id = &self.identity;
        let texts = [(&id.vendor, 8), (&id.product, 16), (&id.revision, 4), (&id.serial, 252)];
        if texts.iter().any(|(t, max)| t.len() > *max || !t.bytes().all(|b| (0x20..0x7f).contains(&b))) {
            return Err(InvalidDefinition(
                "vendor, product, revision or serial number is too long or not printable ASCII",
            ));
        }
        match id.naa.len() {
            8 | 16 => Ok(()),
            _ => Err(InvalidDefinition("an NAA designator must have 8 or 16 bytes")),
        }
    }
}

/// A logical unit, shared by all cores.
pub struct Lu {
    /// Replaced only while `state` is locked.
    settings: RwLock<Arc<LuSettings>>,
    slots: PerCoreSlots,
    state: Mutex<State>,
    /// Number of times that the medium, or its block size, was replaced.
    media: AtomicU64,
    watchers: Mutex<Vec<Weak<LuWatcher>>>,
}

/// Called after every change that nexuses must see, while the state is locked: it must only wake others.
pub type LuWatcher = dyn Fn() + Send + Sync;

/// The locked state of a logical unit. If it was changed, dropping it advances the epoch, so that nexuses take new
/// snapshots.
pub(crate) struct LockedState<'a> {
    state: MutexGuard<'a, State>,
    lu: &'a Lu,
}

impl Lu {
    /// A logical unit at power on. `saved` is the state that [`Lu::saved_state`] returned before, if any.
    pub fn new(settings: LuSettings, saved: Option<&[u8]>) -> Result<Lu, InvalidDefinition> {
        settings.check()?;
        let mut state = State::new(&settings);
        if let Some(bytes) = saved {
            state.restore(bytes)?;
        }
        let settings = RwLock::new(Arc::new(settings));
        let (slots, state, media) = (PerCoreSlots::new(), Mutex::new(state), AtomicU64::new(0));
        Ok(Lu { settings, slots, state, media, watchers: Mutex::default() })
    }

    /// Sets the size of the medium in bytes. If the number of blocks changes, it returns true, and every nexus gets
    /// the unit attention CAPACITY DATA HAS CHANGED.
    pub fn resized(&self, capacity: u64) -> bool {
        let mut state = self.change();
        let blocks = capacity / self.settings().block_size as u64;
        let changed = state.blocks != blocks;
        if changed {
            state.blocks = blocks;
            state.raise(Sense::CAPACITY_CHANGED, |_, _| true);
        }
        changed
    }

    /// The capacity that initiators see, in bytes. Without a resize it is that of the settings, in whole blocks.
    pub fn capacity(&self) -> u64 {
        let state = self.change();
        state.blocks * self.settings().block_size as u64
    }

    /// The backing device was reset and may have lost data that were not flushed: every nexus gets the unit attention
    /// POWER ON.
    pub fn backing_device_reset(&self) {
        self.change().raise(Sense::POWER_ON, |_, _| true);
    }

    /// Logical units of the target were added or removed: every nexus gets REPORTED LUNS DATA HAS CHANGED, once.
    pub fn luns_changed(&self) {
        self.change().raise(Sense::LUNS_CHANGED, |_, _| true);
    }

    /// Logical unit reset (SAM-5 section 6.3.3). Every nexus, including the requesting one, gets a unit attention.
    /// The caller aborts the tasks.
    pub fn reset(&self) {
        self.change().reset();
    }

    /// Whether a reset would disable the write cache. The caller must flush before the reset.
    pub fn reset_ends_write_cache(&self) -> bool {
        self.change().modes.reset_ends_write_cache()
    }

    /// A nexus cleared the task set. The other nexuses get COMMANDS CLEARED BY ANOTHER INITIATOR, unless TAS is set
    /// and their tasks end with TASK ABORTED.
    pub fn task_set_cleared(&self, by: Option<NexusId>) {
        self.change().clear_task_set(by);
    }

    /// The state to keep on stable storage, and its version. A lower version must not overwrite a higher one.
    pub fn saved_state(&self) -> (u64, Vec<u8>) {
        let state = self.change();
        (state.saved_version, state.save())
    }

    /// WCE of the caching mode page: writes may be acknowledged before they are on stable storage.
    pub fn write_cache(&self) -> bool {
        self.change().modes.write_cache()
    }

    /// The current settings; see [`Lu::redefine`].
    pub fn settings(&self) -> Arc<LuSettings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A number that increases when the medium, or its block size, is replaced. A command for the previous medium
    /// must not be executed on the new one.
    pub fn medium(&self) -> u64 {
        self.media.load(Ordering::SeqCst)
    }

    pub(crate) fn medium_replaced(&self) {
        self.media.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn set_settings(&self, settings: LuSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    pub(crate) fn per_core_slots(&self) -> &PerCoreSlots {
        &self.slots
    }

    /// This core's part of the logical unit.
    #[inline]
    pub fn per_core(&self, core: CoreIndex) -> &PerCore {
        self.slots.at(core)
    }

    /// The parts of all cores.
    pub fn all_cores(&self) -> &[PerCore] {
        self.slots.all()
    }

    /// Adds `by` to a log counter.
    pub fn count(&self, count: LogCounter, by: u64) {
        self.per_core(CoreIndex::current()).count(count, by);
    }

    /// The epoch: a number that increases with every change that nexuses must see.
    pub fn epoch(&self) -> u64 {
        self.per_core(CoreIndex::current()).epoch()
    }

    /// Locks the state.
    pub(crate) fn change(&self) -> LockedState<'_> {
        // Ignore poisoning: no change is left incomplete in a way that is worse than the panic itself.
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        LockedState { state, lu: self }
    }

    /// Calls `watcher` after every change that nexuses must see, until it is dropped.
    pub fn watch(&self, watcher: &Arc<LuWatcher>) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|other| other.strong_count() > 0);
        watchers.push(Arc::downgrade(watcher));
    }

    fn wake_watchers(&self) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.iter().filter_map(Weak::upgrade).for_each(|watcher| watcher());
    }
}

impl Deref for LockedState<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for LockedState<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for LockedState<'_> {
    fn drop(&mut self) {
        if std::mem::take(&mut self.state.changed) {
            self.lu.slots.next_epoch();
            self.lu.wake_watchers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::disk;

    #[test]
    fn contradictory_settings_are_rejected() {
        let identity = disk().identity;
        let wrong = [
            LuSettings { block_size: 0, ..disk() },
            LuSettings { block_size: 520, ..disk() },
            LuSettings { physical_block_size: 256, ..disk() },
            LuSettings { physical_block_size: 1 << 31, ..disk() },
            LuSettings {
                identity: LuIdentity { vendor: "TOO LONG A VENDOR".into(), ..identity.clone() },
                ..disk()
            },
            LuSettings { identity: LuIdentity { serial: "\n".into(), ..identity.clone() }, ..disk() },
            LuSettings { identity: LuIdentity { naa: vec![], ..identity }, ..disk() },
        ];
        for settings in wrong {
            assert!(Lu::new(settings.clone(), None).is_err(), "{settings:?}");
        }
    }

    #[test]
    fn capacity_is_rounded_down_to_whole_blocks() {
        let lu = Lu::new(LuSettings { capacity: 1535, ..disk() }, None).unwrap();
        assert_eq!(lu.capacity(), 1024);
    }

    #[test]
    fn corrupt_saved_state_is_rejected() {
        let (_, saved) = Lu::new(disk(), None).unwrap().saved_state();
        assert!(Lu::new(disk(), Some(&saved)).is_ok());
        for bytes in [&b""[..], b"lunarLU", &saved[..saved.len() - 1], b"lunarLU\x02....", b"something else"]
        {
            assert!(Lu::new(disk(), Some(bytes)).is_err());
        }
    }

    #[test]
    fn only_a_touched_state_moves_the_epoch() {
        let lu = Lu::new(disk(), None).unwrap();
        let before = lu.epoch();
        drop(lu.change());
        assert_eq!(lu.epoch(), before);
        lu.change().mark_changed();
        assert_eq!(lu.epoch(), before + 1);
    }
}
