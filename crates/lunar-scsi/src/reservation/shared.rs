//! The state that several servers share. It contains all registrations, whatever APTPL is, and PRGENERATION.

use super::registry::{Registrant, Registry};
use super::{Reserver, State, saved};
use crate::state::AttachedNexus;
use crate::{InvalidDefinition, NexusId};
use std::collections::BTreeMap;

type Nexuses = BTreeMap<NexusId, AttachedNexus>;

impl State {
    /// The state is stored, so APTPL is possible.
    pub(crate) fn set_can_persist(&mut self) {
        self.registry.can_persist = true;
    }

    /// PRGENERATION, APTPL, and the registrations.
    pub(crate) fn save_shared(&self) -> Vec<u8> {
        let registry = &self.registry;
        let registrations = if registry.keys.is_empty() { Vec::new() } else { saved::encode_all(registry) };
        [&registry.generation.to_be_bytes()[..], &[registry.persists.into()], &registrations].concat()
    }

    /// Restores what [`State::save_shared`] returned.
    pub(crate) fn restore_shared(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        let short = InvalidDefinition::new("the shared registrations are truncated");
        let (generation, rest) = bytes.split_first_chunk().ok_or(short.clone())?;
        let (&persists, registrations) = rest.split_first().ok_or(short)?;
        let generation = u32::from_be_bytes(*generation);
        let decoded = saved::decode(registrations, self.registry.max)?;
        self.registry = Registry { generation, persists: persists != 0, can_persist: true, ..decoded };
        Ok(())
    }

    /// The settings of this state, without registrations and without RESERVE.
    pub(crate) fn without_state(&self) -> State {
        let registry =
            Registry { can_persist: self.registry.can_persist, ..Registry::new(self.registry.max) };
        State { reserved: None, registry }
    }

    /// The registrants that another state lacks.
    pub(crate) fn missing_from(&self, other: &State) -> Vec<Registrant> {
        self.registry.select(|who, _| !other.registry.keys.contains_key(who))
    }

    /// The nexus of RESERVE as other servers know it. A lost nexus is none.
    pub(crate) fn reserved_by(&self, nexuses: &Nexuses) -> Option<Registrant> {
        match self.reserved.as_ref()? {
            Reserver::Here(id) => nexuses.get(id).map(|peer| (&*peer.port).into()),
            Reserver::Elsewhere(who) => Some(who.clone()),
        }
    }

    /// Sets the nexus of RESERVE. The target port belongs to one server, so a nexus with these ports is the one.
    pub(crate) fn set_reserved(&mut self, who: Registrant, nexuses: &Nexuses) {
        let own = nexuses.iter().find(|(_, peer)| Registrant::from(&*peer.port) == who);
        self.reserved = Some(own.map_or(Reserver::Elsewhere(who), |(id, _)| Reserver::Here(*id)));
    }

    /// Ends all that does not persist through power loss.
    pub(crate) fn power_on(&mut self) {
        self.reserved = None;
        self.registry.generation = 0;
        if !self.registry.persists {
            self.registry.keys.clear();
            self.registry.reservation = None;
        }
    }

    /// Whether [`State::follow_nexuses`] would change something.
    pub(crate) fn lags(&self, nexuses: &Nexuses, own_ports: &[u16]) -> bool {
        self.is_reserved_by_lost(nexuses, own_ports)
            || nexuses.values().any(|peer| self.registry.adopts(&(&*peer.port).into()))
    }

    /// Ends the RESERVE of a lost nexus, and lets nexuses with a CHAP user take matching registrations without a user.
    pub(crate) fn follow_nexuses(&mut self, nexuses: &Nexuses, own_ports: &[u16]) {
        if self.is_reserved_by_lost(nexuses, own_ports) {
            self.reserved = None;
        }
        for peer in nexuses.values() {
            self.registry.adopt(&(&*peer.port).into());
        }
    }

    /// Ends a RESERVE through these ports, whose server is gone.
    pub(crate) fn release_ports(&mut self, ports: &[u16]) {
        if matches!(&self.reserved, Some(Reserver::Elsewhere(who)) if ports.contains(&who.tag)) {
            self.reserved = None;
        }
    }

    /// Whether the nexus of RESERVE was one of this server and is gone. A state that was installed after its end names
    /// its port.
    fn is_reserved_by_lost(&self, nexuses: &Nexuses, own_ports: &[u16]) -> bool {
        match &self.reserved {
            Some(Reserver::Here(id)) => !nexuses.contains_key(id),
            Some(Reserver::Elsewhere(who)) => own_ports.contains(&who.tag),
            None => false,
        }
    }
}
