//! The reservation commands: rows of the command table, and handlers that connect the registry with the logical unit.

use super::actions::{PortAndUser, ReserveOutContext};
use super::registry::{Effect, Registrant, Registry};
use super::request::{self, ReserveOut, ServiceAction};
use super::{Reserver, report};
use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{NexusId, Op, Plan, PlanResult, State};
use lunar_wire::scsi::cdb::{SERVICE_ACTION, persistent_reserve_in::ALLOCATION_LENGTH};
use lunar_wire::scsi::{Sense, Status, op};
use std::collections::{BTreeMap, BTreeSet};

const fn row(
    opcode: u8,
    handler: fn(&mut CommandContext<'_>) -> PlanResult,
    changes: ChangeScope,
    usage: &'static [u8],
) -> Row {
    Row::new(opcode, handler, ReservationClass::Always, changes, usage)
}

const fn reserves(
    opcode: u8,
    handler: fn(&mut CommandContext<'_>) -> PlanResult,
    usage: &'static [u8],
) -> Row {
    row(opcode, handler, ChangeScope::Shared, usage)
}

const fn prin(action: u16, handler: fn(&mut CommandContext<'_>) -> PlanResult, usage: &'static [u8]) -> Row {
    row(op::PERSISTENT_RESERVE_IN, handler, ChangeScope::Nothing, usage).action(action).in_standby()
}

const fn prout(action: u16, usage: &'static [u8]) -> Row {
    reserves(op::PERSISTENT_RESERVE_OUT, reserve_out, usage).action(action).in_standby().persists()
}

/// Rows of the command table. All are allowed under reservations, because keys decide on PERSISTENT RESERVE OUT, and
/// the handlers on RESERVE and RELEASE. SCOPE and TYPE may be set where they are ignored.
#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    reserves(op::RESERVE_6, reserve, &[0x16, 0, 0, 0, 0, 0]).persists(),
    reserves(op::RELEASE_6, release, &[0x17, 0, 0, 0, 0, 0]).persists().despite_reserve(),
    reserves(op::RESERVE_10, reserve, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0]).persists(),
    reserves(op::RELEASE_10, release, &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]).persists().despite_reserve(),
    prin(0, |cx| read(cx, report::keys), &[0x5e, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    prin(1, |cx| read(cx, report::reservation), &[0x5e, 1, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    prin(2, |cx| read(cx, report::capabilities), &[0x5e, 2, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    prin(3, |cx| read(cx, report::full_status), &[0x5e, 3, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    prout(0, &[0x5f, 0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]),
    prout(1, &[0x5f, 1, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]),
    prout(2, &[0x5f, 2, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]),
    prout(3, &[0x5f, 3, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]),
    prout(4, &[0x5f, 4, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]),
    prout(5, &[0x5f, 5, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]),
    prout(6, &[0x5f, 6, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]),
    prout(7, &[0x5f, 7, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]),
];

/// RESERVE(6) and RESERVE(10) of the whole logical unit by the nexus itself. Other forms are not supported.
fn reserve(cx: &mut CommandContext<'_>) -> PlanResult {
    let reservations = &mut cx.state.reservations;
    if reservations.covered(cx.port) {
        return Ok(Plan::Done);
    }
    let own = Some(Reserver::Here(cx.nexus));
    let others = reservations.reserved.is_some() && reservations.reserved != own;
    if others || !reservations.registry.keys.is_empty() {
        return Err(Status::ReservationConflict.into());
    }
    if reservations.reserved != own {
        reservations.reserved = own;
        cx.state.mark_shared_change();
    }
    Ok(Plan::Done)
}

/// RELEASE(6) and RELEASE(10). A nexus that did not reserve gets GOOD, without effect.
fn release(cx: &mut CommandContext<'_>) -> PlanResult {
    let reservations = &mut cx.state.reservations;
    if !reservations.registry.keys.is_empty() && !reservations.covered(cx.port) {
        return Err(Status::ReservationConflict.into());
    }
    if reservations.reserved == Some(Reserver::Here(cx.nexus)) {
        reservations.reserved = None;
        cx.state.mark_shared_change();
    }
    Ok(Plan::Done)
}

fn read(cx: &mut CommandContext<'_>, report: fn(&Registry) -> Vec<u8>) -> PlanResult {
    let data = report(&cx.state.reservations.registry);
    Ok(Plan::data_cut(data, ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

fn reserve_out(cx: &mut CommandContext<'_>) -> PlanResult {
    // The rows of the command table have no other codes.
    let code = SERVICE_ACTION.get(cx.cdb) as usize;
    let action = *ServiceAction::ALL.get(code).ok_or(Sense::in_cdb(SERVICE_ACTION))?;
    let len = request::length(action, cx.cdb)?;
    let Some(data) = cx.parameters else { return Ok(Plan::Parameters { len }) };
    // While the parameter list was in transit, another nexus may have sent RESERVE.
    if cx.state.reservations.reserved.is_some() {
        return Err(Status::ReservationConflict.into());
    }
    let data = data.get(..len as usize).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let request = ReserveOut::decode(action, cx.cdb, data)?;
    let known = if request.names() { known(cx.state) } else { BTreeSet::new() };
    let context = ReserveOutContext { who: &cx.port.into(), ports: &cx.port.ports.get(), known: &known };
    let is_shared = cx.state.is_shared();
    let registry = &mut cx.state.reservations.registry;
    let before = is_shared.then(|| registry.clone());
    let persisted = registry.persists;
    let effect = registry.act(&context, &request)?;
    let save = match before {
        Some(before) => before != *registry,
        None => persisted || registry.persists,
    };
    Ok(finish(cx.state, action, effect, save))
}

/// All initiator ports that are logged in.
fn known(state: &State) -> BTreeSet<PortAndUser> {
    state.nexuses.values().map(|p| (p.port.initiator.clone(), p.port.user.clone())).collect()
}

/// Raises the unit attentions, and returns the remaining work.
fn finish(state: &mut State, action: ServiceAction, effect: Effect, save: bool) -> Plan {
    let ids = logged_in(state);
    for (on, sense) in &effect.attentions {
        for id in ids.get(on).into_iter().flatten() {
            if let Some(peer) = state.nexuses.get_mut(id) {
                peer.raise(*sense);
            }
        }
    }
    if state.is_shared() {
        effect.attentions.iter().for_each(|(on, sense)| state.effects.raise(on.clone(), *sense));
        let aborted = effect.victims.iter().filter(|_| action == ServiceAction::PreemptAndAbort);
        aborted.for_each(|victim| state.effects.abort(victim.clone()));
    }
    if save {
        state.mark_persistent_change();
    }
    state.mark_changed();
    let victims: Vec<NexusId> = effect.victims.iter().filter_map(|v| ids.get(v)).flatten().copied().collect();
    match action {
        ServiceAction::PreemptAndAbort if !victims.is_empty() => Plan::op(Op::Preempt { victims }),
        _ => Plan::Done,
    }
}

/// The logged-in nexuses of each registrant.
fn logged_in(state: &State) -> BTreeMap<Registrant, Vec<NexusId>> {
    let mut ids: BTreeMap<Registrant, Vec<NexusId>> = BTreeMap::new();
    for (id, peer) in &state.nexuses {
        ids.entry(Registrant::from(&*peer.port)).or_default().push(*id);
    }
    ids
}
