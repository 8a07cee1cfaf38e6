//! The parameter list of PERSISTENT RESERVE OUT (SPC-5 section 6.16.3).

use super::NO_BIT;
use super::transport_id::{self, TransportId};
use lunar_wire::be;
use lunar_wire::scsi::Sense;

/// Bytes of the basic parameter list.
const BASIC: usize = 24;
/// Bytes before the TransportIDs of SPEC_I_PT.
const LIST: usize = 28;
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
    let len = be::get32(&cdb[5..]);
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
        let flags = if moves { data[17] } else { data[20] };
        Ok(ReserveOut {
            action,
            scope_and_type: cdb[2],
            key: be::get64(data),
            action_key: be::get64(&data[8..]),
            persists: flags & 0x01 != 0,
            all_ports: !moves && flags & 0x04 != 0,
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
    let specified = data[20] & 0x08 != 0;
    if specified && action != ServiceAction::Register {
        return Err(Sense::parameter_field(20, 3));
    }
    if !specified {
        return if data.len() == BASIC { Ok(None) } else { Err(Sense::PARAMETER_LIST_LENGTH) };
    }
    if data.len() < LIST || be::get32(&data[BASIC..]) as usize != data.len() - LIST {
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
    if be::get32(&data[20..]) as usize != data.len() - BASIC {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let (to, len) = transport_id::decode(&data[BASIC..], BASIC)?;
    if len != data.len() - BASIC {
        return Err(Sense::parameter_field(20, NO_BIT));
    }
    Ok(Destination { unregister: data[17] & 0x02 != 0, tag: be::get16(&data[18..]), to })
}
