//! Persistent reservations: the codes of their commands, and what PERSISTENT RESERVE IN reports.

use crate::raw::Raw;
use crate::scsi::Reply;

/// The status of a command that a reservation does not allow.
pub const RESERVATION_CONFLICT: u8 = 0x18;

/// Service actions of PERSISTENT RESERVE OUT.
pub mod action {
    /// REGISTER.
    pub const REGISTER: u8 = 0;
    /// RESERVE.
    pub const RESERVE: u8 = 1;
    /// RELEASE.
    pub const RELEASE: u8 = 2;
    /// CLEAR.
    pub const CLEAR: u8 = 3;
    /// PREEMPT.
    pub const PREEMPT: u8 = 4;
    /// PREEMPT AND ABORT.
    pub const PREEMPT_AND_ABORT: u8 = 5;
    /// REGISTER AND IGNORE EXISTING KEY.
    pub const REGISTER_AND_IGNORE: u8 = 6;
    /// REGISTER AND MOVE.
    pub const REGISTER_AND_MOVE: u8 = 7;
}

/// Types of a reservation.
pub mod kind {
    /// Write Exclusive.
    pub const WRITE_EXCLUSIVE: u8 = 1;
    /// Write Exclusive - Registrants Only.
    pub const REGISTRANTS_ONLY: u8 = 5;
}

/// Flags of a parameter list.
pub mod flag {
    /// APTPL: registrations persist through power loss.
    pub const APTPL: u8 = 1;
    /// ALL_TG_PT: a registration for all target ports.
    pub const ALL_TG_PT: u8 = 4;
}

/// Unit attentions.
pub mod attention {
    /// RESERVATIONS PREEMPTED.
    pub const RESERVATIONS_PREEMPTED: u32 = 0x06_2a_03;
    /// RESERVATIONS RELEASED.
    pub const RESERVATIONS_RELEASED: u32 = 0x06_2a_04;
    /// ASYMMETRIC ACCESS STATE CHANGED.
    pub const ACCESS_STATE_CHANGED: u32 = 0x06_2a_06;
    /// REGISTRATIONS PREEMPTED.
    pub const REGISTRATIONS_PREEMPTED: u32 = 0x06_2a_05;
}

/// PERSISTENT RESERVE IN with this service action.
pub fn reserve_in(raw: &mut Raw, lun: u16, action: u8) -> Reply {
    raw.read(lun, &[0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xf8, 0], 0xfff8)
}

/// PRGENERATION.
pub fn generation(raw: &mut Raw, lun: u16) -> u32 {
    let data = reserve_in(raw, lun, 0).good();
    u32::from_be_bytes(data[..4].try_into().expect("4 bytes"))
}

/// The key and the type of the reservation (READ RESERVATION). None: there is no reservation.
pub fn holder(raw: &mut Raw, lun: u16) -> Option<(u64, u8)> {
    let data = reserve_in(raw, lun, 1).good();
    let key = data.get(8..16)?.try_into().expect("8 bytes");
    Some((u64::from_be_bytes(key), data[21] & 0xf))
}
