//! The properties of a controller, and the state of its connection.

use super::association::{Association, SubsystemAddress};
use super::options::NvmeOptions;
use crate::Portal;
use lunar_wire::nvme::{IdentifyController, Nqn};
use lunar_wire::scsi::fields;

/// The state of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControllerInfo {
    /// The portal.
    pub portal: Portal,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The identifier of the controller (CNTLID).
    pub controller: u16,
    /// Its version (VS).
    pub version: u32,
    /// Identify Controller.
    pub identify: IdentifyController,
    /// The most data of one command in bytes; None without a limit.
    pub max_transfer: Option<u64>,
    /// I/O queues with a connection.
    pub io_queues: u16,
    /// Entries of an I/O queue.
    pub queue_len: u32,
    /// Whether the controller demanded that this host authenticates itself.
    pub authenticated: bool,
    /// Whether headers and data have digests.
    pub digests: (bool, bool),
    /// Whether there is a connection.
    pub connected: bool,
    /// Why the last connection has ended.
    pub lost_by: Option<String>,
    /// Whether there is no connection because another namespace is in the place of one in use.
    pub replaced: bool,
    /// Whether the controller reports changes of namespaces by events.
    pub(super) reports_changes: bool,
    /// How often a lost connection was replaced.
    pub recoveries: u32,
}

impl ControllerInfo {
    /// A controller without a connection.
    pub(super) fn new(address: &SubsystemAddress) -> ControllerInfo {
        ControllerInfo {
            portal: address.portal.clone(),
            subsystem: address.subsystem.clone(),
            controller: 0,
            version: 0,
            identify: IdentifyController::zeroed(),
            max_transfer: None,
            io_queues: 0,
            queue_len: 0,
            authenticated: false,
            digests: (false, false),
            connected: false,
            lost_by: None,
            replaced: false,
            reports_changes: false,
            recoveries: 0,
        }
    }

    /// The model number, safe for a terminal.
    pub fn model(&self) -> String {
        fields::text(&self.identify.model)
    }

    /// The serial number, safe for a terminal.
    pub fn serial(&self) -> String {
        fields::text(&self.identify.serial)
    }

    /// The firmware revision, safe for a terminal.
    pub fn firmware(&self) -> String {
        fields::text(&self.identify.firmware)
    }

    /// Records a new association.
    pub(super) fn set(&mut self, association: &Association, options: &NvmeOptions, io_queues: u16) {
        self.controller = association.id;
        self.version = association.version;
        self.identify = association.identify.clone();
        self.max_transfer = max_transfer(&association.identify, association.page_shift);
        self.io_queues = io_queues;
        self.queue_len = options.queue_len.min(association.max_entries);
        self.authenticated = association.is_authenticated;
        self.digests = (options.header_digest, options.data_digest);
        (self.connected, self.replaced, self.reports_changes) = (true, false, false);
    }
}

/// The most data of one command in bytes (MDTS); None without a limit.
pub(super) fn max_transfer(identify: &IdentifyController, page_shift: u32) -> Option<u64> {
    match identify.max_transfer {
        0 => None,
        power => 1u64.checked_shl(u32::from(power) + page_shift),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_controller_have_no_escape_sequences() {
        let subsystem = Nqn::new("nqn.2026-11.org.example:a").expect("a name");
        let portal = Portal { host: "h".into(), port: 4420 };
        let mut info = ControllerInfo::new(&SubsystemAddress { portal, subsystem });
        info.identify.model[..8].copy_from_slice(b"M\x1b[31m  ");
        info.identify.serial[..3].copy_from_slice(b"S\r\n");
        info.identify.firmware[..2].copy_from_slice(b"F\x9b");
        assert_eq!([info.model(), info.serial(), info.firmware()], ["M?[31m", "S??", "F?"]);
    }

    #[test]
    fn transfer_limit_counts_in_pages_of_the_controller() {
        let limit = |power, shift| {
            max_transfer(&IdentifyController { max_transfer: power, ..IdentifyController::zeroed() }, shift)
        };
        assert_eq!([limit(0, 12), limit(5, 12), limit(1, 16)], [None, Some(128 << 10), Some(128 << 10)]);
        assert_eq!(limit(255, 12), None, "more than any command");
    }
}
