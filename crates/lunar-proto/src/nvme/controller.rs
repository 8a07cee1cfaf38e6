//! The properties of a controller: how a host enables it, and shuts it down (NVM Express Base, controller properties).

use lunar_wire::nvme::{ControllerConfiguration, NvmeStatus, PropertyAccess, property};

/// CSTS: the controller is ready.
const READY: u32 = 1 << 0;
/// CSTS: the controller has failed.
const FATAL: u32 = 1 << 1;
/// CSTS: the shutdown is in progress, or complete.
const SHUTTING_DOWN: u32 = 1 << 2;
const SHUT_DOWN: u32 = 2 << 2;
const SHUTDOWN: u32 = 3 << 2;
/// The version that is reported: 1.4.
const VERSION: u32 = 0x0001_0400;
/// CAP: queues are contiguous, and the NVM command set is there.
const CAPABILITIES: u64 = 1 << 16 | 1 << 37;
/// CAP.TO: the time in which a controller becomes ready, in units of 500 ms.
const READY_WITHIN: u64 = 30;
/// The binary logarithms of the sizes of queue entries.
const ENTRY_SIZES: (u8, u8) = (6, 4);

/// The command sets that a host may select: NVM, or all that are there. Some hosts select the latter without a look at CAP.
const COMMAND_SETS: [u8; 2] = [0, 6];

/// The kind of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// It has namespaces, and I/O queues.
    Io,
    /// It has the discovery log, and no I/O queues.
    Discovery,
}

/// The effect of a Property Set, which the caller carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyChange {
    /// None.
    None,
    /// The controller begins. Then call [`ControllerProperties::set_ready`].
    Enable,
    /// All commands and I/O queues end. Then call [`ControllerProperties::set_disabled`].
    Disable,
    /// All commands end, and data are flushed. Then call [`ControllerProperties::set_shut_down`].
    Shutdown,
}

/// The properties of a controller.
#[derive(Clone, Debug)]
pub struct ControllerProperties {
    kind: ControllerKind,
    max_queue_len: u16,
    configuration: ControllerConfiguration,
    status: u32,
    /// Number of changes that hosts have made.
    changes: u64,
}

impl ControllerProperties {
    /// A controller that is not enabled. `max_queue_len` is the largest size of a queue.
    pub fn new(kind: ControllerKind, max_queue_len: u16) -> ControllerProperties {
        let configuration = ControllerConfiguration(0);
        ControllerProperties { kind, max_queue_len, configuration, status: 0, changes: 0 }
    }

    /// Whether commands other than those of fabrics are allowed.
    pub fn is_ready(&self) -> bool {
        self.status & (READY | FATAL) == READY
    }

    /// Whether a shutdown has begun or ended.
    pub fn is_shut_down(&self) -> bool {
        self.status & SHUTDOWN != 0
    }

    /// The version that it reports.
    pub fn version(&self) -> u32 {
        VERSION
    }

    /// Property Get.
    ///
    /// # Errors
    /// There is no such property of this size.
    pub fn get(&self, access: PropertyAccess) -> Result<u64, NvmeStatus> {
        match (access.offset, access.is_long) {
            (property::CAP, true) => {
                Ok(CAPABILITIES | READY_WITHIN << 24 | u64::from(self.max_queue_len.saturating_sub(1)))
            }
            (property::VS, false) => Ok(VERSION.into()),
            (property::CC, false) => Ok(self.configuration.0.into()),
            (property::CSTS, false) => Ok(self.status.into()),
            _ => Err(NvmeStatus::INVALID_FIELD),
        }
    }

    /// Property Set.
    ///
    /// # Errors
    /// There is no such property that hosts may change.
    pub fn set(&mut self, access: PropertyAccess) -> Result<PropertyChange, NvmeStatus> {
        if (access.offset, access.is_long) != (property::CC, false) {
            return Err(NvmeStatus::INVALID_FIELD);
        }
        let (before, now) = (self.configuration, ControllerConfiguration(access.value as u32));
        self.configuration = now;
        let change = self.change(before, now);
        // A host that writes the same again changes nothing, and still waits for what it has asked for.
        self.changes += u64::from(change != PropertyChange::None);
        Ok(change)
    }

    /// The effect of another configuration. A reset includes what a shutdown does to commands and I/O queues.
    fn change(&mut self, before: ControllerConfiguration, now: ControllerConfiguration) -> PropertyChange {
        match (before.is_enabled(), now.is_enabled()) {
            (true, false) => PropertyChange::Disable,
            _ if now.is_shutdown() && !before.is_shutdown() => {
                self.status = self.status & !SHUTDOWN | SHUTTING_DOWN;
                PropertyChange::Shutdown
            }
            (false, true) if self.begins() => PropertyChange::Enable,
            _ => PropertyChange::None,
        }
    }

    /// Whether it can work with its configuration. Otherwise it fails.
    fn begins(&mut self) -> bool {
        let wanted = self.configuration;
        let has_entries = self.kind == ControllerKind::Discovery || wanted.entry_sizes() == ENTRY_SIZES;
        let serves = COMMAND_SETS.contains(&wanted.command_set())
            && (wanted.page_shift(), wanted.arbitration()) == (0, 0)
            && has_entries;
        if !serves {
            self.set_failed();
        }
        serves
    }

    /// The controller has begun.
    pub fn set_ready(&mut self) {
        self.status |= READY;
    }

    /// Its commands and I/O queues have ended. Returns whether the host has enabled it again meanwhile. Then it begins.
    pub fn set_disabled(&mut self) -> bool {
        self.status = 0;
        self.configuration.is_enabled() && self.begins()
    }

    /// Number of changes that hosts have made.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Its shutdown is complete. It was requested with this number of changes. Returns whether the host waits for no other
    /// one, which it has requested since.
    pub fn set_shut_down(&mut self, changes: u64) -> bool {
        if self.changes == changes {
            self.status = self.status & !SHUTDOWN | SHUT_DOWN;
        }
        self.status & SHUTDOWN != SHUTTING_DOWN
    }

    /// It has failed, until a host disables it.
    pub fn set_failed(&mut self) {
        self.status |= FATAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(properties: &ControllerProperties, offset: u32) -> Result<u64, NvmeStatus> {
        properties.get(PropertyAccess { offset, is_long: offset == property::CAP, value: 0 })
    }

    fn set(properties: &mut ControllerProperties, value: u64) -> Result<PropertyChange, NvmeStatus> {
        properties.set(PropertyAccess { offset: property::CC, is_long: false, value })
    }

    /// The sequence of Linux 6.12.
    #[test]
    fn host_enables_and_shuts_a_controller_down() {
        let mut it = ControllerProperties::new(ControllerKind::Io, 1024);
        let capabilities = get(&it, property::CAP).expect("CAP");
        assert_eq!((capabilities & 0xffff, capabilities >> 37 & 1, capabilities >> 43 & 1), (1023, 1, 0));
        assert_eq!(set(&mut it, 0x46_0000), Ok(PropertyChange::None));
        assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::Enable));
        assert!(!it.is_ready() && get(&it, property::CSTS) == Ok(0));
        it.set_ready();
        assert!(it.is_ready() && get(&it, property::CSTS) == Ok(1));
        assert_eq!(get(&it, property::VS), Ok(0x1_0400));
        assert_eq!(set(&mut it, 0x46_4001), Ok(PropertyChange::Shutdown));
        assert_eq!(get(&it, property::CSTS), Ok(0b0101), "in progress");
        assert!(it.set_shut_down(it.changes()));
        assert!(it.is_shut_down() && get(&it, property::CSTS) == Ok(0b1001));
        assert_eq!(get(&it, property::CC), Ok(0x46_4001));
    }

    #[test]
    fn disabled_controller_can_be_enabled_again() {
        let mut it = ControllerProperties::new(ControllerKind::Io, 1024);
        assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::Enable));
        it.set_ready();
        assert_eq!(set(&mut it, 0x46_0000), Ok(PropertyChange::Disable));
        assert!(it.is_ready(), "until its commands have ended");
        assert!(!it.set_disabled() && !it.is_ready());
        assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::Enable));
    }

    #[test]
    fn change_during_the_end_of_commands_counts() {
        let mut it = ControllerProperties::new(ControllerKind::Io, 1024);
        assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::Enable));
        it.set_ready();
        assert_eq!(set(&mut it, 0x46_4001), Ok(PropertyChange::Shutdown));
        let requested = it.changes();
        assert_eq!(set(&mut it, 0x46_0000), Ok(PropertyChange::Disable));
        assert!(!it.set_disabled());
        assert!(it.set_shut_down(requested));
        assert_eq!(get(&it, property::CSTS), Ok(0), "the host has reset it");
        for (value, begins, status) in [(0x46_0001, true, 0), (0x46_0071, false, 2)] {
            assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::Enable));
            assert_eq!(set(&mut it, 0x46_0000), Ok(PropertyChange::Disable));
            let _ = set(&mut it, value);
            assert_eq!((it.set_disabled(), get(&it, property::CSTS)), (begins, Ok(status)), "{value:x}");
            assert_eq!(set(&mut it, 0x46_0000), Ok(PropertyChange::Disable));
            assert!(!it.set_disabled());
        }
    }

    #[test]
    fn same_configuration_again_changes_nothing() {
        let mut it = ControllerProperties::new(ControllerKind::Io, 1024);
        for (value, change) in [(0x46_0001, PropertyChange::Enable), (0x46_4001, PropertyChange::Shutdown)] {
            assert_eq!(set(&mut it, value), Ok(change));
            let changes = it.changes();
            assert_eq!((set(&mut it, value), it.changes()), (Ok(PropertyChange::None), changes));
        }
        // An abrupt shutdown instead of a normal one.
        let requested = it.changes();
        assert_eq!(set(&mut it, 0x46_8001), Ok(PropertyChange::None));
        assert!(it.set_shut_down(requested) && it.is_shut_down());
    }

    #[test]
    fn shutdown_that_was_requested_again_is_another_one() {
        let mut it = ControllerProperties::new(ControllerKind::Io, 1024);
        assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::Enable));
        assert_eq!(set(&mut it, 0x46_4001), Ok(PropertyChange::Shutdown));
        let first = it.changes();
        assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::None));
        assert_eq!(set(&mut it, 0x46_4001), Ok(PropertyChange::Shutdown));
        assert!(!it.set_shut_down(first), "the host waits for the second one");
        assert!(it.set_shut_down(it.changes()));
    }

    #[test]
    fn reset_that_is_a_shutdown_too_is_a_reset() {
        let mut it = ControllerProperties::new(ControllerKind::Io, 1024);
        assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::Enable));
        it.set_ready();
        assert_eq!(set(&mut it, 0x46_4000), Ok(PropertyChange::Disable));
        assert!(!it.set_disabled());
        assert_eq!(get(&it, property::CSTS), Ok(0), "not ready");
        assert_eq!(set(&mut it, 0x46_0001), Ok(PropertyChange::Enable));
    }

    #[test]
    fn configuration_that_is_not_served_fails_the_controller() {
        for (kind, value, fails) in [
            (ControllerKind::Io, 0x46_0001, false),
            (ControllerKind::Io, 0x46_0061, false),
            (ControllerKind::Io, 0x46_0031, true),
            (ControllerKind::Io, 0x46_0081, true),
            (ControllerKind::Io, 0x46_0801, true),
            (ControllerKind::Io, 0x00_0001, true),
            (ControllerKind::Discovery, 0x00_0001, false),
        ] {
            let mut it = ControllerProperties::new(kind, 32);
            let change = if fails { PropertyChange::None } else { PropertyChange::Enable };
            assert_eq!(set(&mut it, value), Ok(change), "{value:x}");
            it.set_ready();
            assert_eq!(it.is_ready(), !fails, "{value:x}");
            assert_eq!(set(&mut it, 0), Ok(PropertyChange::Disable));
            it.set_disabled();
            assert_eq!(get(&it, property::CSTS), Ok(0));
        }
    }

    #[test]
    fn other_properties_and_sizes_are_refused() {
        let mut it = ControllerProperties::new(ControllerKind::Io, 32);
        for (offset, is_long) in [
            (property::CAP, false),
            (property::VS, true),
            (property::NSSR, false),
            (4, false),
            (u32::MAX, true),
        ] {
            let access = PropertyAccess { offset, is_long, value: 1 };
            assert_eq!(it.get(access), Err(NvmeStatus::INVALID_FIELD), "{offset:x}");
            assert_eq!(it.set(access), Err(NvmeStatus::INVALID_FIELD), "{offset:x}");
        }
    }
}
