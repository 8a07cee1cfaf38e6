//! Reservations: hosts register with keys, and one or all of them hold a reservation. A registrant is a name of a host with its
//! identifier ([`NvmeOptions::host_id`](crate::nvme::NvmeOptions::host_id)), whatever the number of its controllers.

use super::NvmeNamespace;
use crate::nvme::command::NvmeCommand;
use crate::nvme::status::error_of;
use crate::{Direction, Error, ErrorCode};
use lunar_runtime::Buf;
use lunar_wire::nvme::{
    NvmeStatus, ReservationAction, ReservationKind, ReservationRegistrant, ReservationReport, Sqe, nvm_opcode,
};
use lunar_wire::scsi::Sense;

/// ONCS bit 5: reservations.
const RESERVATIONS: u16 = 1 << 5;
/// RESCAP bit 0: reservations can persist through a loss of power (PTPL).
const PERSISTENCE: u8 = 1;
const WITHOUT_RESERVATIONS: &str = "use a namespace that keeps reservations: lunar info URL shows it; a router keeps none for the \
                                    LUNs of a failover pair";
const WITHOUT_PERSISTENCE: &str = "register without it, and again after each restart of the target; or let the target save \
    the state of its disks";
/// Report, command dword 11: extended data structures (EDS), with host identifiers of 128 bits.
const EXTENDED: u32 = 1;
/// The controller of a registrant: any (dynamic).
const DYNAMIC: u16 = 0xffff;
/// Bytes of the first attempt of a report. They suffice for 63 registrants.
const FIRST_REPORT: usize = 4096;
/// The most attempts to read a report, in case that the number of registrants grows.
const REPORTS: usize = 4;

/// A change of the reservations of a namespace. Keys are those of this host, unless they are named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationChange {
    /// Registers this host, which has no key, or the same one.
    Register {
        /// The key.
        key: u64,
        /// Whether the state of all reservations survives a loss of power. None: no change.
        persists: Option<bool>,
    },
    /// Replaces the key of this host.
    Replace {
        /// The current key. None: whatever it is.
        key: Option<u64>,
        /// The new key.
        new_key: u64,
        /// As in [`ReservationChange::Register`].
        persists: Option<bool>,
    },
    /// Ends the registration of this host, and with it the reservation that it holds alone.
    Unregister {
        /// The current key. None: whatever it is.
        key: Option<u64>,
    },
    /// Acquires the reservation.
    Acquire {
        /// The key.
        key: u64,
        /// The type of the reservation.
        kind: ReservationKind,
    },
    /// Ends the registrations with another key, and takes over their reservation.
    Preempt {
        /// The key.
        key: u64,
        /// The key of the other hosts.
        preempted: u64,
        /// The type of the reservation.
        kind: ReservationKind,
        /// Whether the commands of these hosts are aborted.
        aborts: bool,
    },
    /// Releases the reservation.
    Release {
        /// The key.
        key: u64,
        /// The type of the reservation.
        kind: ReservationKind,
    },
    /// Ends the reservation and all registrations.
    Clear {
        /// The key.
        key: u64,
    },
}

/// The state of the reservations of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeReservations {
    /// The number of changes.
    pub generation: u32,
    /// The type of the reservation, if there is one.
    pub kind: Option<ReservationKind>,
    /// Whether the state survives a loss of power.
    pub persists: bool,
    /// The registrants.
    pub registrants: Vec<NvmeRegistrant>,
}

/// A registered host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeRegistrant {
    /// Its identifier.
    pub host_id: [u8; 16],
    /// Its key.
    pub key: u64,
    /// Its controller, if the subsystem has static ones.
    pub controller: Option<u16>,
    /// Whether it holds the reservation.
    pub is_holder: bool,
}

impl ReservationChange {
    /// Opcode, command dword 10, and data.
    fn encode(self) -> (u8, u32, Vec<u8>) {
        use ReservationChange::{Acquire, Clear, Preempt, Register, Release, Replace, Unregister};
        let keys = |key: u64, other: u64| [key, other].map(u64::to_le_bytes).concat();
        let (register, acquire, release) = (
            nvm_opcode::RESERVATION_REGISTER,
            nvm_opcode::RESERVATION_ACQUIRE,
            nvm_opcode::RESERVATION_RELEASE,
        );
        // Only Register has a bit for keys that are not compared, and the bits of persistence.
        let (opcode, action, kind, data) = match self {
            Register { key, .. } => (register, 0, None, keys(0, key)),
            Unregister { key } => (register, 1, None, keys(key.unwrap_or(0), 0)),
            Replace { key, new_key, .. } => (register, 2, None, keys(key.unwrap_or(0), new_key)),
            Acquire { key, kind } => (acquire, 0, Some(kind), keys(key, 0)),
            Preempt { key, preempted, kind, aborts } => {
                (acquire, 1 + u8::from(aborts), Some(kind), keys(key, preempted))
            }
            Release { key, kind } => (release, 0, Some(kind), key.to_le_bytes().into()),
            Clear { key } => (release, 1, None, key.to_le_bytes().into()),
        };
        let persistence = match self {
            Register { persists, .. } | Replace { persists, .. } => persists.map_or(0, |on| 2 + u8::from(on)),
            _ => 0,
        };
        let ignores_key = matches!(self, Replace { key: None, .. } | Unregister { key: None });
        let fields =
            ReservationAction { action, ignores_key, kind: kind.map_or(0, |kind| kind as u8), persistence };
        (opcode, fields.encode(), data)
    }

    /// Whether the state of all reservations shall survive a loss of power.
    fn persists(self) -> bool {
        use ReservationChange::{Register, Replace};
        matches!(self, Register { persists, .. } | Replace { persists, .. } if persists == Some(true))
    }

    /// Rejects persistence that a namespace with these capabilities (RESCAP) does not have. Targets may accept the request of it
    /// nevertheless, because the Linux kernel always sends it.
    fn check(self, namespace: u32, capabilities: u8) -> Result<(), Error> {
        if !self.persists() || capabilities & PERSISTENCE != 0 {
            return Ok(());
        }
        let what = format!("namespace {namespace} cannot keep reservations across a loss of power (PTPL)");
        let error = Error::new(ErrorCode::ScsiError, what).with_hint(WITHOUT_PERSISTENCE);
        Err(error.with_sense(Some(Sense::INVALID_FIELD_IN_PARAMETERS)))
    }

    /// The error of a change that ended with this status.
    fn error(self, status: NvmeStatus) -> Error {
        let error = error_of(status);
        if self.persists() && (status.kind, status.code) == (0, NvmeStatus::INVALID_FIELD.code) {
            return error.with_hint(
                "the namespace may be unable to keep reservations across a loss of power: register without it",
            );
        }
        error
    }
}

impl NvmeNamespace {
    /// Changes the reservations, once: a change is never repeated.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when the key or the registrations of others forbid it; [`ErrorCode::ScsiError`] when
    /// the controller has no reservations, cannot keep them as the change asks, or rejects the command;
    /// [`ErrorCode::ConnectionLost`] if the controller may have executed it.
    pub async fn change_reservation(&self, change: ReservationChange) -> Result<(), Error> {
        self.check_reservable()?;
        change.check(self.id, self.properties().identify.reservations)?;
        let (opcode, dword, data) = change.encode();
        let sqe = Sqe::new(opcode, 0, self.id).with_dword(10, dword);
        let command = NvmeCommand::new(sqe, Direction::Out(Buf::copy_of(&data))).once();
        let (result, _) = self.controller.submit(command).await;
        let status = result?.status;
        if status.is_success() { Ok(()) } else { Err(change.error(status)) }
    }

    /// Reads the state of the reservations.
    ///
    /// # Errors
    /// [`ErrorCode::ScsiError`] when the controller has no reservations or rejects the command; [`ErrorCode::ProtocolError`]
    /// when there are more registrants than a command can report.
    pub async fn reservations(&self) -> Result<NvmeReservations, Error> {
        self.check_reservable()?;
        let mut len = FIRST_REPORT;
        for _ in 0..REPORTS {
            let sqe = Sqe::new(nvm_opcode::RESERVATION_REPORT, 0, self.id)
                .with_dword(10, (len / 4 - 1) as u32)
                .with_dword(11, EXTENDED);
            let (result, buf) = self.perform(sqe, Direction::In(Buf::zeroed(len)), None).await;
            result?;
            match decode(&buf.unwrap_or_else(|| Buf::zeroed(len))) {
                Ok(state) => return Ok(state),
                Err(whole) if whole <= self.transfer() => len = whole,
                Err(_) => break,
            }
        }
        let what = format!("namespace {} has more registrants than a command can report", self.id);
        Err(Error::new(ErrorCode::ProtocolError, what))
    }

    /// Whether hosts can reserve the namespace: the controller has the commands, and the namespace keeps their results.
    pub fn keeps_reservations(&self) -> bool {
        self.reservable().is_ok()
    }

    fn check_reservable(&self) -> Result<(), Error> {
        self.check_same()?;
        self.reservable()
    }

    fn reservable(&self) -> Result<(), Error> {
        let (commands, capabilities) =
            (self.controller.info().identify.commands, self.properties().identify.reservations);
        reservable(self.id, commands, capabilities)
    }
}

/// Rejects reservations that the controller (ONCS) or the namespace (RESCAP) does not have.
fn reservable(namespace: u32, commands: u16, capabilities: u8) -> Result<(), Error> {
    let what = match (commands & RESERVATIONS != 0, capabilities != 0) {
        (true, true) => return Ok(()),
        (true, false) => format!("namespace {namespace} keeps no reservations (RESCAP)"),
        (false, _) => format!("the controller of namespace {namespace} has no reservations"),
    };
    let error = Error::new(ErrorCode::ScsiError, what).with_sense(Some(Sense::INVALID_OPCODE));
    Err(error.with_hint(WITHOUT_RESERVATIONS))
}

/// Decodes a report. The error is the length in bytes of a whole one, if this one has no room for all registrants.
fn decode(data: &[u8]) -> Result<NvmeReservations, usize> {
    let (head, list) = data.split_first_chunk().expect("a report has room for its head");
    let head = ReservationReport::decode(head);
    let count = usize::from(head.registrants);
    let entries = list.as_chunks().0;
    if entries.len() < count {
        return Err(ReservationReport::LEN + count * ReservationRegistrant::LEN);
    }
    let registrant = |entry| {
        let ReservationRegistrant { controller, status, key, host_id } = ReservationRegistrant::decode(entry);
        let controller = Some(controller).filter(|id| *id != DYNAMIC);
        NvmeRegistrant { host_id, key, controller, is_holder: status & 1 != 0 }
    };
    Ok(NvmeReservations {
        generation: head.generation,
        kind: ReservationKind::decode(head.kind),
        persists: head.persistence != 0,
        registrants: entries[..count].iter().map(registrant).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_has_the_action_and_the_keys_of_its_command() {
        use ReservationChange::{Acquire, Clear, Preempt, Register, Release, Replace, Unregister};
        let kind = ReservationKind::WriteExclusiveRegistrants;
        for (change, opcode, dword, keys) in [
            (Register { key: 7, persists: None }, 0x0d, 0, &[0, 7][..]),
            (Register { key: 7, persists: Some(true) }, 0x0d, 3 << 30, &[0, 7]),
            (Unregister { key: Some(7) }, 0x0d, 1, &[7, 0]),
            (Unregister { key: None }, 0x0d, 1 | 8, &[0, 0]),
            (Replace { key: Some(7), new_key: 9, persists: Some(false) }, 0x0d, 2 | 2 << 30, &[7, 9]),
            (Replace { key: None, new_key: 9, persists: None }, 0x0d, 2 | 8, &[0, 9]),
            (Acquire { key: 7, kind }, 0x11, 3 << 8, &[7, 0]),
            (Preempt { key: 7, preempted: 9, kind, aborts: false }, 0x11, 1 | 3 << 8, &[7, 9]),
            (Preempt { key: 7, preempted: 9, kind, aborts: true }, 0x11, 2 | 3 << 8, &[7, 9]),
            (Release { key: 7, kind }, 0x15, 3 << 8, &[7]),
            (Clear { key: 7 }, 0x15, 1, &[7]),
        ] {
            let data: Vec<u8> = keys.iter().flat_map(|key: &u64| key.to_le_bytes()).collect();
            assert_eq!(change.encode(), (opcode, dword, data), "{change:?}");
        }
    }

    #[test]
    fn namespace_without_reservations_is_named() {
        assert!(reservable(1, RESERVATIONS, 0x7f).is_ok());
        for (commands, capabilities, fault) in [
            (RESERVATIONS, 0, "namespace 1 keeps no reservations (RESCAP)"),
            (0, 0, "the controller of namespace 1 has no reservations"),
        ] {
            let error = reservable(1, commands, capabilities).expect_err("an error");
            assert!(error.what == fault && error.hint.is_some(), "{error:?}");
        }
    }

    #[test]
    fn persistence_that_a_namespace_lacks_is_rejected() {
        use ReservationChange::{Register, Replace};
        for (change, capabilities, is_good) in [
            (Register { key: 7, persists: Some(true) }, 0x7e, false),
            (Replace { key: None, new_key: 7, persists: Some(true) }, 0x7e, false),
            (Register { key: 7, persists: Some(true) }, 0x7f, true),
            (Register { key: 7, persists: Some(false) }, 0x7e, true),
            (Register { key: 7, persists: None }, 0x7e, true),
        ] {
            let checked = change.check(1, capabilities);
            assert_eq!(checked.is_ok(), is_good, "{change:?}");
            let hinted = |e: Error| e.code == ErrorCode::ScsiError && e.hint.is_some();
            assert!(checked.err().is_none_or(hinted), "{change:?}");
        }
    }

    #[test]
    fn refused_persistence_has_a_hint() {
        let register = |persists| ReservationChange::Register { key: 7, persists };
        let hint = |persists, status| register(persists).error(status).hint.clone();
        assert!(
            hint(Some(true), NvmeStatus::INVALID_FIELD).is_some_and(|hint| hint.contains("loss of power"))
        );
        assert_eq!(hint(None, NvmeStatus::INVALID_FIELD), error_of(NvmeStatus::INVALID_FIELD).hint);
        assert_eq!(
            hint(Some(true), NvmeStatus::RESERVATION_CONFLICT),
            error_of(NvmeStatus::RESERVATION_CONFLICT).hint
        );
    }

    #[test]
    fn report_shows_registrants_and_the_holder() {
        let head =
            ReservationReport { generation: 5, kind: 2, registrants: 2, ..ReservationReport::zeroed() };
        let entry =
            |controller, status, key| ReservationRegistrant { controller, status, key, host_id: [9; 16] };
        let data = [head.encode(), entry(DYNAMIC, 1, 7).encode(), entry(3, 0, 8).encode()].concat();
        let one =
            |controller, key, is_holder| NvmeRegistrant { host_id: [9; 16], key, controller, is_holder };
        let state = NvmeReservations {
            generation: 5,
            kind: Some(ReservationKind::ExclusiveAccess),
            persists: false,
            registrants: vec![one(None, 7, true), one(Some(3), 8, false)],
        };
        assert_eq!(decode(&[data.clone(), vec![0; 64]].concat()), Ok(state));
        assert_eq!(decode(&data[..128]), Err(192), "the report was too short");
    }
}
