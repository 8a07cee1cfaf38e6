//! Reservations: their types and actions, and the report.

use super::Sqe;
use super::page::page;
use crate::le;

/// A type of a reservation (RTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReservationKind {
    /// Write Exclusive.
    WriteExclusive = 1,
    /// Exclusive Access.
    ExclusiveAccess = 2,
    /// Write Exclusive, Registrants Only.
    WriteExclusiveRegistrants = 3,
    /// Exclusive Access, Registrants Only.
    ExclusiveAccessRegistrants = 4,
    /// Write Exclusive, All Registrants.
    WriteExclusiveAll = 5,
    /// Exclusive Access, All Registrants.
    ExclusiveAccessAll = 6,
}

/// The types in the order of their codes, with the codes of SCSI (SPC-5 section 5.14).
const KINDS: [(ReservationKind, u8); 6] = [
    (ReservationKind::WriteExclusive, 1),
    (ReservationKind::ExclusiveAccess, 3),
    (ReservationKind::WriteExclusiveRegistrants, 5),
    (ReservationKind::ExclusiveAccessRegistrants, 6),
    (ReservationKind::WriteExclusiveAll, 7),
    (ReservationKind::ExclusiveAccessAll, 8),
];

impl ReservationKind {
    /// The type with this code; `None` if it is reserved.
    pub fn decode(code: u8) -> Option<ReservationKind> {
        KINDS.into_iter().map(|(kind, _)| kind).find(|kind| *kind as u8 == code)
    }

    /// The type that SCSI has as this code.
    pub fn of_scsi(code: u8) -> Option<ReservationKind> {
        KINDS.into_iter().find(|(_, scsi)| *scsi == code).map(|(kind, _)| kind)
    }

    /// Its code in SCSI.
    pub fn scsi(self) -> u8 {
        KINDS[usize::from(self as u8) - 1].1
    }
}

/// The fields that reservation commands share (command dword 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationAction {
    /// RREGA, RACQA or RRELA.
    pub action: u8,
    /// The current key is not compared (IEKEY).
    pub ignores_key: bool,
    /// The code of the type of Acquire and Release.
    pub kind: u8,
    /// Register: 0 no change, 2 the state ends at a loss of power, 3 it persists (CPTPL).
    pub persistence: u8,
}

impl ReservationAction {
    /// Decodes the fields of an entry.
    pub fn decode(sqe: &Sqe) -> ReservationAction {
        let dword = sqe.dword(10);
        ReservationAction {
            action: dword as u8 & 7,
            ignores_key: dword & 8 != 0,
            kind: (dword >> 8) as u8,
            persistence: (dword >> 30) as u8,
        }
    }

    /// The command dword.
    pub fn encode(&self) -> u32 {
        u32::from(self.action & 7)
            | u32::from(self.ignores_key) << 3
            | u32::from(self.kind) << 8
            | u32::from(self.persistence) << 30
    }
}

/// The keys of Register and Acquire: the current key, and the new key or the key to preempt. `None`: the data are too short.
pub fn reservation_keys(data: &[u8]) -> Option<(u64, u64)> {
    let (current, rest) = data.split_at_checked(8)?;
    Some((le::get64(current), u64::from_le_bytes(*rest.first_chunk()?)))
}

/// The current key, which is all that Release needs. `None`: the data are too short.
pub fn reservation_key(data: &[u8]) -> Option<u64> {
    data.first_chunk().map(|key| u64::from_le_bytes(*key))
}

page! {
    /// The head of a report with extended data structures (Reservation Report with EDS).
    ReservationReport, 64, {
        /// The number of changes.
        generation: u32 = 0,
        /// The code of the type; 0: there is no reservation.
        kind: u8 = 4,
        /// The number of registrants, even if the report has no room for all.
        registrants: u16 = 5,
        /// Whether the state persists through a loss of power (PTPLS).
        persistence: u8 = 9,
    }
}

page! {
    /// A registrant of a report.
    ReservationRegistrant, 64, {
        /// The controller; FFFFh: dynamic.
        controller: u16 = 0,
        /// Bit 0: it holds the reservation (RCSTS).
        status: u8 = 2,
        /// Its key.
        key: u64 = 8,
        /// The host (HOSTID).
        host_id: [u8; 16] = 16,
    }
}
