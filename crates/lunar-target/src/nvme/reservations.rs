//! Reservation commands as PERSISTENT RESERVE OUT, so that there is one state for hosts of both families.

use super::identifiers::uuid_of;
use super::limits::DYNAMIC_CONTROLLER;
use super::queue::NvmeQueue;
use crate::core::NexusState;
use lunar_scsi::{InitiatorPort, ReportedRegistrant, ReservationsView};
use lunar_wire::nvme::{
    NvmeStatus, ReservationAction, ReservationKind, ReservationRegistrant, ReservationReport, Sqe,
    nvm_opcode, reservation_key, reservation_keys,
};
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::pr::{PARAMETERS_LEN, ReserveOutParameters};

/// Service actions of PERSISTENT RESERVE OUT.
mod action {
    pub const REGISTER: u8 = 0;
    pub const RESERVE: u8 = 1;
    pub const RELEASE: u8 = 2;
    pub const CLEAR: u8 = 3;
    pub const PREEMPT: u8 = 4;
    pub const PREEMPT_AND_ABORT: u8 = 5;
    pub const REGISTER_AND_IGNORE: u8 = 6;
}

/// CPTPL: the state persists.
const PERSISTS: u8 = 3;
/// CPTPL: no change.
const NO_CHANGE: u8 = 0;
/// Report: extended data structures (EDS, command dword 11).
const EXTENDED: u32 = 1;

/// A reservation command for the core.
pub enum Translated {
    /// The command, with its parameter list.
    Command(Cdb, Vec<u8>),
    /// The data of a report.
    Report(Vec<u8>),
}

/// Whether this is the opcode of a reservation command.
pub fn is_one(opcode: u8) -> bool {
    to_host(opcode)
        || matches!(
            opcode,
            nvm_opcode::RESERVATION_REGISTER
                | nvm_opcode::RESERVATION_ACQUIRE
                | nvm_opcode::RESERVATION_RELEASE
        )
}

/// Whether the data of the command go to the host.
pub fn to_host(opcode: u8) -> bool {
    opcode == nvm_opcode::RESERVATION_REPORT
}

/// Translates a reservation command with its data.
///
/// # Errors
/// The status of the command.
pub fn translate(
    state: &mut NexusState<NvmeQueue>,
    sqe: &Sqe,
    lun: u64,
    data: &[u8],
) -> Result<Translated, NvmeStatus> {
    let view = state.namespace(lun).ok_or(NvmeStatus::INVALID_NAMESPACE)?;
    let reservations = state.reservations_of(lun).ok_or(NvmeStatus::INVALID_NAMESPACE)?;
    if !view.reservable {
        return Err(NvmeStatus::INVALID_OPCODE);
    }
    if to_host(sqe.opcode()) {
        return report(sqe, &reservations).map(Translated::Report);
    }
    let host = state.front().controller().host();
    // All hosts without an identifier would share a registration.
    if host.id == [0; 16] {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    let fields = ReservationAction::decode(sqe);
    let too_short = NvmeStatus::SGL_INVALID_LENGTH;
    if sqe.opcode() == nvm_opcode::RESERVATION_RELEASE {
        return release(fields, reservation_key(data).ok_or(too_short)?);
    }
    let (key, action_key) = reservation_keys(data).ok_or(too_short)?;
    match sqe.opcode() {
        nvm_opcode::RESERVATION_REGISTER => {
            let is_own = |who: &&ReportedRegistrant| who.initiator == host.port();
            let registered = reservations.registrants.iter().find(is_own).map(|own| own.key);
            // Linux always asks for persistence. The report shows whether there is any.
            let aptpl = match fields.persistence {
                NO_CHANGE => reservations.persists,
                persistence => persistence == PERSISTS && view.persistent_reservations,
            };
            register(fields, registered, (key, action_key), aptpl)
        }
        _ => acquire(fields, key, action_key),
    }
}

fn command(action: u8, kind: u8, list: ReserveOutParameters) -> Result<Translated, NvmeStatus> {
    let cdb = cdb::persistent_reserve_out(action, kind, PARAMETERS_LEN as u32);
    Ok(Translated::Command(cdb, list.encode().to_vec()))
}

fn with_keys(key: u64, action_key: u64) -> ReserveOutParameters {
    ReserveOutParameters { key, action_key, all_ports: false, aptpl: false }
}

/// Register (RREGA): 0 registers, 1 unregisters, 2 replaces the key. `registered`: the key of this host.
fn register(
    fields: ReservationAction,
    registered: Option<u64>,
    (key, new_key): (u64, u64),
    aptpl: bool,
) -> Result<Translated, NvmeStatus> {
    let action = if fields.ignores_key { action::REGISTER_AND_IGNORE } else { action::REGISTER };
    let (key, action_key) = match (fields.action, registered) {
        // A host that registers its key again stays registered.
        (0, _) if new_key != 0 => (registered.filter(|key| *key == new_key).unwrap_or(0), new_key),
        (1 | 2, None) => return Err(NvmeStatus::RESERVATION_CONFLICT),
        (1, Some(_)) => (key, 0),
        (2, Some(_)) if new_key != 0 => (key, new_key),
        _ => return Err(NvmeStatus::INVALID_FIELD),
    };
    command(action, 0, ReserveOutParameters { aptpl, ..with_keys(key, action_key) })
}

/// Acquire (RACQA): 0 reserves, 1 preempts, 2 preempts and aborts.
fn acquire(fields: ReservationAction, key: u64, action_key: u64) -> Result<Translated, NvmeStatus> {
    let kind = ReservationKind::decode(fields.kind).filter(|_| !fields.ignores_key);
    let kind = kind.ok_or(NvmeStatus::INVALID_FIELD)?.scsi();
    match fields.action {
        0 => command(action::RESERVE, kind, with_keys(key, 0)),
        1 => command(action::PREEMPT, kind, with_keys(key, action_key)),
        2 => command(action::PREEMPT_AND_ABORT, kind, with_keys(key, action_key)),
        _ => Err(NvmeStatus::INVALID_FIELD),
    }
}

/// Release (RRELA): 0 releases, 1 clears.
fn release(fields: ReservationAction, key: u64) -> Result<Translated, NvmeStatus> {
    if fields.ignores_key {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    match fields.action {
        0 => {
            let kind = ReservationKind::decode(fields.kind).ok_or(NvmeStatus::INVALID_FIELD)?.scsi();
            command(action::RELEASE, kind, with_keys(key, 0))
        }
        1 => command(action::CLEAR, 0, with_keys(key, 0)),
        _ => Err(NvmeStatus::INVALID_FIELD),
    }
}

/// The data of Reservation Report, as long as the host asks for.
fn report(sqe: &Sqe, reservations: &ReservationsView) -> Result<Vec<u8>, NvmeStatus> {
    // Identifiers of hosts over fabrics have 128 bits.
    if sqe.dword(11) & EXTENDED == 0 {
        return Err(NvmeStatus::HOST_ID_FORMAT);
    }
    let len = (u64::from(sqe.dword(10)) + 1) * 4;
    if len != u64::from(sqe.data().len) {
        return Err(NvmeStatus::SGL_INVALID_LENGTH);
    }
    let head = ReservationReport {
        generation: reservations.generation,
        kind: reservations.kind.and_then(ReservationKind::of_scsi).map_or(0, |kind| kind as u8),
        registrants: u16::try_from(reservations.registrants.len()).unwrap_or(u16::MAX),
        persistence: reservations.persists.into(),
    };
    let one = |who: &ReportedRegistrant| {
        let entry = ReservationRegistrant {
            controller: DYNAMIC_CONTROLLER,
            status: who.is_holder.into(),
            key: who.key,
            host_id: host_id(&who.initiator),
        };
        entry.encode()
    };
    let mut data = head.encode().to_vec();
    reservations.registrants.iter().for_each(|who| data.extend(one(who)));
    data.resize(len as usize, 0);
    Ok(data)
}

/// The identifier of a host. A SCSI initiator port gets one that is made from its name.
fn host_id(port: &InitiatorPort) -> [u8; 16] {
    match port {
        InitiatorPort::Nvme { id, .. } => *id,
        InitiatorPort::Iscsi { name, isid } => uuid_of(&[name.as_bytes(), isid]),
        InitiatorPort::Srp(_) => uuid_of(&[port.name().as_bytes()]),
    }
}
