//! The parameter list of PERSISTENT RESERVE OUT (SPC-5 section 6.16.3).

use super::transport_id::{self, TransportId};
use super::without_bit;
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::cdb::persistent_reserve_out::{PARAMETER_LIST_LENGTH, SCOPE_AND_TYPE};
use lunar_wire::scsi::pr::{PARAMETERS_LEN, register_and_move, reserve_out};

/// Bytes of the basic parameter list.
const BASIC: usize = PARAMETERS_LEN;
/// Bytes before the TransportIDs of SPEC_I_PT.
const LIST: usize = reserve_out::TRANSPORT_IDS;
/// Maximum length of a parameter list in bytes, because field pointers have 16 bits.
const MAX: u32 = 65536;

/// Service actions of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ServiceAction {
    Register,
    Reserve,
    Release,
    Clear,
    Preempt,
    PreemptAndAbort,
    RegisterAndIgnore,
    RegisterAndMove,
}

impl ServiceAction {
    /// All service actions, indexed by their codes.
    pub(crate) const ALL: [ServiceAction; 8] = [
        ServiceAction::Register,
        ServiceAction::Reserve,
        ServiceAction::Release,
        ServiceAction::Clear,
        ServiceAction::Preempt,
        ServiceAction::PreemptAndAbort,
        ServiceAction::RegisterAndIgnore,
        ServiceAction::RegisterAndMove,
    ];
}

/// A PERSISTENT RESERVE OUT with its parameter list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReserveOut {
    pub(super) action: ServiceAction,
    /// SCOPE and TYPE, byte 2 of the CDB.
    pub(super) scope_and_type: u8,
    pub(super) key: u64,
    pub(super) action_key: u64,
    /// APTPL.
    pub(super) persists: bool,
    /// ALL_TG_PT.
    pub(super) all_ports: bool,
    /// The TransportIDs of SPEC_I_PT, each with its offset in the parameter list.
    pub(super) others: Option<Vec<(TransportId, u16)>>,
    /// The destination of REGISTER AND MOVE.
    pub(super) destination: Option<Destination>,
}

/// The fields of the parameter list of REGISTER AND MOVE after the basic ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// UNREG: the sender is unregistered.
    pub(super) unregister: bool,
    /// Relative target port identifier.
    pub(super) tag: u16,
    pub(super) to: TransportId,
}

/// The parameter list length in a CDB. Fails if the service action does not allow it.
pub(super) fn length(action: ServiceAction, cdb: &[u8]) -> Result<u32, Sense> {
    let len = PARAMETER_LIST_LENGTH.get_u32(cdb);
    let possible = match action {
        ServiceAction::Register => len == BASIC as u32 || (LIST as u32..=MAX).contains(&len),
        ServiceAction::RegisterAndMove => (BASIC + 1..=BASIC + transport_id::MAX).contains(&(len as usize)),
        _ => len == BASIC as u32,
    };
    if possible { Ok(len) } else { Err(Sense::PARAMETER_LIST_LENGTH) }
}

impl ReserveOut {
    /// Decodes the parameter list. `data` has the parameter list length of the CDB.
    pub(super) fn decode(action: ServiceAction, cdb: &[u8], data: &[u8]) -> Result<ReserveOut, Sense> {
        if data.len() < BASIC {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let moves = action == ServiceAction::RegisterAndMove;
        let persists = if moves { register_and_move::APTPL } else { reserve_out::APTPL };
        Ok(ReserveOut {
            action,
            scope_and_type: SCOPE_AND_TYPE.get_u8(cdb),
            key: reserve_out::KEY.get(data),
            action_key: reserve_out::ACTION_KEY.get(data),
            persists: persists.is_set(data),
            all_ports: !moves && reserve_out::ALL_TG_PT.is_set(data),
            others: if moves { None } else { others(action, data)? },
            destination: if moves { Some(destination(data)?) } else { None },
        })
    }

    /// Whether the parameter list names other initiators.
    pub(super) fn names(&self) -> bool {
        self.others.is_some() || self.destination.is_some()
    }
}

/// The TransportIDs of SPEC_I_PT.
fn others(action: ServiceAction, data: &[u8]) -> Result<Option<Vec<(TransportId, u16)>>, Sense> {
    let specified = reserve_out::SPEC_I_PT.is_set(data);
    if specified && action != ServiceAction::Register {
        return Err(Sense::in_parameters(reserve_out::SPEC_I_PT));
    }
    if !specified {
        return if data.len() == BASIC { Ok(None) } else { Err(Sense::PARAMETER_LIST_LENGTH) };
    }
    if data.len() < LIST || reserve_out::TRANSPORT_IDS_LENGTH.get(data) as usize != data.len() - LIST {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let (mut found, mut at) = (Vec::new(), LIST);
    while at < data.len() {
        let (id, len) = transport_id::decode(&data[at..], at)?;
        found.push((id, at as u16));
        at += len;
    }
    Ok(Some(found))
}

fn destination(data: &[u8]) -> Result<Destination, Sense> {
    use register_and_move::{RELATIVE_TARGET_PORT, TRANSPORT_ID, TRANSPORT_ID_LENGTH, UNREG};
    let id = &data[TRANSPORT_ID..];
    if TRANSPORT_ID_LENGTH.get(data) as usize != id.len() {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let (to, len) = transport_id::decode(id, TRANSPORT_ID)?;
    if len != id.len() {
        return Err(without_bit(TRANSPORT_ID_LENGTH));
    }
    Ok(Destination { unregister: UNREG.is_set(data), tag: RELATIVE_TARGET_PORT.get_u16(data), to })
}
