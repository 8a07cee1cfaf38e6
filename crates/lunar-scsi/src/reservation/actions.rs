//! The service actions of PERSISTENT RESERVE OUT (SPC-5 section 5.14, tables 59 to 64). Each makes all of its changes
//! or none.

use super::registry::{Effect, Registrant, Registry};
use super::request::{Destination, ReserveOut, ServiceAction};
use super::transport_id::TransportId;
use super::types::{RegistrantRole, ReservationType};
use super::{NO_BIT, without_bit};
use crate::{CommandError, InitiatorPort, TargetPort};
use lunar_wire::scsi::cdb::SERVICE_ACTION;
use lunar_wire::scsi::pr::{register_and_move, reserve_out};
use lunar_wire::scsi::transport_id::{FORMAT_CODE, PROTOCOL_IDENTIFIER};
use lunar_wire::scsi::{BitField, Sense, Status};
use std::collections::{BTreeMap, BTreeSet};

/// The requesting nexus, the target's ports, and the logged-in initiator ports.
pub(super) struct ReserveOutContext<'a> {
    pub(super) who: &'a Registrant,
    /// The ports of the target.
    pub(super) ports: &'a [TargetPort],
    /// The initiator ports that are logged in. Needed if the parameter list names ports.
    pub(super) known: &'a BTreeSet<PortAndUser>,
}

/// An initiator port, and a CHAP user of it.
pub(super) type PortAndUser = (InitiatorPort, String);

type EffectResult = Result<Effect, CommandError>;

const CONFLICT: Status = Status::ReservationConflict;
/// The first byte of the TransportID of REGISTER AND MOVE.
const DESTINATION: u16 = register_and_move::TRANSPORT_ID as u16;

impl Registry {
    /// Performs a service action.
    pub(super) fn act(&mut self, context: &ReserveOutContext<'_>, request: &ReserveOut) -> EffectResult {
        match request.action {
            ServiceAction::Register | ServiceAction::RegisterAndIgnore => self.register(context, request),
            ServiceAction::Reserve => self.reserve(context.who, request),
            ServiceAction::Release => self.release(context.who, request),
            ServiceAction::Clear => self.clear(context.who, request),
            ServiceAction::Preempt | ServiceAction::PreemptAndAbort => self.preempt(context.who, request),
            ServiceAction::RegisterAndMove => self.register_and_move(context, request),
        }
    }

    /// Rejects APTPL if the saved state is not stored.
    fn check_persists(&self, request: &ReserveOut, aptpl: BitField) -> Result<(), Sense> {
        if request.persists && !self.can_persist { Err(Sense::in_parameters(aptpl)) } else { Ok(()) }
    }

    fn registered(&mut self, request: &ReserveOut) {
        self.generation = self.generation.wrapping_add(1);
        self.persists = request.persists;
    }

    fn register(&mut self, context: &ReserveOutContext<'_>, request: &ReserveOut) -> EffectResult {
        let own = self.keys.get(context.who).copied();
        let ignore = request.action == ServiceAction::RegisterAndIgnore;
        if !ignore && own.unwrap_or(0) != request.key {
            return Err(CONFLICT.into());
        }
        if own.is_some() && request.others.is_some() {
            return Err(Sense::in_parameters(reserve_out::SPEC_I_PT).into());
        }
        self.check_persists(request, reserve_out::APTPL)?;
        let mut effect = Effect::default();
        match (own, request.action_key) {
            (None, 0) => return Ok(effect),
            (None, key) => self.register_new(context, request, key)?,
            (Some(old), 0) => {
                let ports = own_ports(context, request);
                let gone = self.select(|n, k| ports.contains(n) && (ignore || k == old));
                self.remove(&gone, &mut effect);
            }
            (Some(old), key) => {
                let mut ports = own_ports(context, request);
                ports.retain(|n| ignore || self.keys.get(n) == Some(&old));
                self.enroll(ports.into_iter().collect(), key)?;
            }
        }
        self.registered(request);
        Ok(effect)
    }

    /// Registers this nexus and the nexuses that SPEC_I_PT and ALL_TG_PT add. If one of them has another key, it is a
    /// conflict, as if each had registered itself.
    fn register_new(
        &mut self,
        context: &ReserveOutContext<'_>,
        request: &ReserveOut,
        key: u64,
    ) -> Result<(), CommandError> {
        let mut nexuses = own_ports(context, request);
        // A repeated TransportID costs no more than one.
        let others: BTreeMap<_, _> = request.others.iter().flatten().map(|(id, at)| (id, at)).collect();
        for (id, at) in others {
            let ports = self.initiator_ports(context, id);
            let added: Vec<_> = ports.iter().flat_map(|port| on_ports(context, request, port)).collect();
            if added.is_empty() {
                return Err(Sense::parameter_field(*at, NO_BIT).into());
            }
            nexuses.extend(added);
        }
        let differs = |n: &Registrant| self.keys.get(n).is_some_and(|k| *k != key);
        if request.action == ServiceAction::Register && nexuses.iter().any(differs) {
            return Err(CONFLICT.into());
        }
        self.enroll(nexuses.into_iter().collect(), key)
    }

    fn reserve(&mut self, who: &Registrant, request: &ReserveOut) -> EffectResult {
        let kind = ReservationType::of_scope_and_type(request.scope_and_type)?;
        self.check_key(who, request.key)?;
        match &self.reservation {
            None => self.establish(kind, who),
            Some(held) if held.kind == kind && self.role(who) == RegistrantRole::Holder => {}
            Some(_) => return Err(CONFLICT.into()),
        }
        Ok(Effect::default())
    }

    fn release(&mut self, who: &Registrant, request: &ReserveOut) -> EffectResult {
        let kind = ReservationType::of_scope_and_type(request.scope_and_type)?;
        self.check_key(who, request.key)?;
        let mut effect = Effect::default();
        let Some(held) = &self.reservation else { return Ok(effect) };
        if self.role(who) != RegistrantRole::Holder {
            return Ok(effect);
        }
        if held.kind != kind {
            return Err(Sense::INVALID_RELEASE.into());
        }
        if kind.shared() {
            effect.raise(Sense::RESERVATIONS_RELEASED, self.select(|n, _| n != who));
        }
        self.reservation = None;
        Ok(effect)
    }

    fn clear(&mut self, who: &Registrant, request: &ReserveOut) -> EffectResult {
        self.check_key(who, request.key)?;
        let mut effect = Effect::default();
        effect.raise(Sense::RESERVATIONS_PREEMPTED, self.select(|n, _| n != who));
        self.keys.clear();
        self.reservation = None;
        self.generation = self.generation.wrapping_add(1);
        Ok(effect)
    }

    fn preempt(&mut self, who: &Registrant, request: &ReserveOut) -> EffectResult {
        self.check_key(who, request.key)?;
        let held = self.reservation.as_ref().map(|r| r.kind);
        let target = request.action_key;
        let effect = match held {
            Some(held) if target == self.holder_key() => self.preempt_reservation(who, request, held)?,
            _ if target == 0 => return Err(without_bit(reserve_out::ACTION_KEY).into()),
            _ => self.preempt_registrations(who, target)?,
        };
        self.generation = self.generation.wrapping_add(1);
        Ok(effect)
    }

    /// Transfers the reservation to the requester. Registrants with the holder's key lose their registrations. Under
    /// an all registrants type, all other registrants do.
    fn preempt_reservation(
        &mut self,
        who: &Registrant,
        request: &ReserveOut,
        held: ReservationType,
    ) -> EffectResult {
        let kind = ReservationType::of_scope_and_type(request.scope_and_type)?;
        let target = request.action_key;
        let victims = self.select(|n, key| n != who && (target == 0 || key == target));
        for victim in &victims {
            self.keys.remove(victim);
        }
        self.establish(kind, who);
        let mut effect = Effect::default();
        effect.raise(Sense::REGISTRATIONS_PREEMPTED, victims.iter().cloned());
        if kind != held {
            effect.raise(Sense::RESERVATIONS_RELEASED, self.select(|n, _| n != who));
        }
        effect.victims = victims;
        Ok(effect)
    }

    /// Removes the registrations with this key, including the requester's. SCOPE and TYPE are ignored.
    fn preempt_registrations(&mut self, who: &Registrant, target: u64) -> EffectResult {
        let gone = self.select(|_, key| key == target);
        if gone.is_empty() {
            return Err(CONFLICT.into());
        }
        let mut effect = Effect::default();
        self.remove(&gone, &mut effect);
        let victims: Vec<_> = gone.into_iter().filter(|n| n != who).collect();
        effect.raise(Sense::REGISTRATIONS_PREEMPTED, victims.iter().cloned());
        effect.victims = victims;
        Ok(effect)
    }

    fn register_and_move(&mut self, context: &ReserveOutContext<'_>, request: &ReserveOut) -> EffectResult {
        self.check_key(context.who, request.key)?;
        let Some(held) = self.reservation.as_ref().map(|r| r.kind) else {
            return Err(Sense::in_cdb(SERVICE_ACTION).into());
        };
        if held.all_registrants() || self.role(context.who) != RegistrantRole::Holder {
            return Err(CONFLICT.into());
        }
        if request.action_key == 0 {
            return Err(without_bit(reserve_out::ACTION_KEY).into());
        }
        self.check_persists(request, register_and_move::APTPL)?;
        let Some(destination) = &request.destination else { return Err(Sense::PARAMETER_LIST_LENGTH.into()) };
        let to = self.moves_to(context, destination)?;
        self.enroll(vec![to.clone()], request.action_key)?;
        self.establish(held, &to);
        if destination.unregister {
            self.keys.remove(context.who);
        }
        self.registered(request);
        Ok(Effect::default())
    }
}

impl Registry {
    /// The nexus to which REGISTER AND MOVE moves: one initiator port, an existing target port, and not the sender.
    fn moves_to(
        &self,
        context: &ReserveOutContext<'_>,
        destination: &Destination,
    ) -> Result<Registrant, Sense> {
        let port = context.ports.iter().find(|port| port.relative == destination.tag);
        let port = port.ok_or(without_bit(register_and_move::RELATIVE_TARGET_PORT))?;
        let TransportId::Port(initiator) = &destination.to else {
            return Err(Sense::in_parameters(FORMAT_CODE.after(DESTINATION)));
        };
        if initiator.protocol() != port.protocol {
            return Err(Sense::in_parameters(PROTOCOL_IDENTIFIER.after(DESTINATION)));
        }
        let to = |user| Registrant { initiator: initiator.clone(), tag: destination.tag, user };
        let users = self.users(context, initiator);
        let mut named: Vec<_> = users.into_iter().map(to).collect();
        if named.len() > 1 {
            named.retain(|port| self.keys.contains_key(port));
        }
        // A TransportID contains no CHAP user. Reject an ambiguous one, so that a reservation never moves to the
        // wrong user.
        let [to] =
            <[Registrant; 1]>::try_from(named).map_err(|_| Sense::parameter_field(DESTINATION, NO_BIT))?;
        if to == *context.who { Err(Sense::parameter_field(DESTINATION, NO_BIT)) } else { Ok(to) }
    }

    /// The users of the initiator port in a TransportID, at least one. In this order: the sender's own user if the
    /// port is the sender's, the registered users, the logged-in users, an empty user. Registrations precede logins:
    /// while a registered initiator is logged out, another user may log in from its initiator port.
    fn users(&self, context: &ReserveOutContext<'_>, initiator: &InitiatorPort) -> BTreeSet<String> {
        if context.who.initiator == *initiator {
            return [context.who.user.clone()].into();
        }
        let registered = self.keys.keys().filter(|n| n.initiator == *initiator);
        let registered: BTreeSet<_> = registered.map(|n| n.user.clone()).collect();
        if !registered.is_empty() {
            return registered;
        }
        let known = context.known.range((initiator.clone(), String::new())..);
        let known = known.take_while(|(port, _)| port == initiator);
        let known: BTreeSet<_> = known.map(|(_, user)| user.clone()).collect();
        if known.is_empty() { [String::new()].into() } else { known }
    }

    /// The initiator ports that match a TransportID.
    fn initiator_ports(&self, context: &ReserveOutContext<'_>, id: &TransportId) -> BTreeSet<PortAndUser> {
        let ports = match id {
            TransportId::Port(port) => BTreeSet::from([port]),
            TransportId::Name(name) => {
                let from = InitiatorPort::Iscsi { name: name.clone(), isid: [0; 6] };
                let known = context.known.range((from, String::new())..);
                known.map(|(port, _)| port).take_while(|port| port.has_iscsi_name(name)).collect()
            }
        };
        let of_users = |port: &InitiatorPort| {
            let port = port.clone();
            self.users(context, &port).into_iter().map(move |user| (port.clone(), user))
        };
        ports.into_iter().flat_map(of_users).collect()
    }
}

/// The nexuses of the sender's initiator port to which a registration applies.
fn own_ports(context: &ReserveOutContext<'_>, request: &ReserveOut) -> BTreeSet<Registrant> {
    let Registrant { initiator, user, tag: _ } = context.who;
    on_ports(context, request, &(initiator.clone(), user.clone())).into_iter().collect()
}

/// The nexuses of an initiator port with the sender's target port and, with ALL_TG_PT, with all others. Only target
/// ports of the initiator's protocol count, because it cannot reach others.
fn on_ports(context: &ReserveOutContext<'_>, request: &ReserveOut, port: &PortAndUser) -> Vec<Registrant> {
    let (initiator, user) = port;
    let protocol = initiator.protocol();
    let own = (protocol == context.who.protocol()).then_some(context.who.tag);
    let more = context.ports.iter().filter(|port| request.all_ports && port.protocol == protocol);
    let tags = own.into_iter().chain(more.map(|port| port.relative));
    let on = |tag| Registrant { initiator: initiator.clone(), tag, user: user.clone() };
    tags.map(on).collect()
}
