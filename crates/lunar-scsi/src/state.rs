//! The mutable state of a logical unit.

use crate::shared::Effects;
use crate::unit_attention::UnitAttentions;
use crate::{InvalidDefinition, LuSettings, NexusId, NexusPorts};
use crate::{alua, buffer, cdrom, copy, log, medium, modes, reservation, sanitize, saved};
use lunar_wire::scsi::Sense;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A nexus in the state of its logical unit.
#[derive(Debug)]
pub(crate) struct AttachedNexus {
    pub(crate) port: Arc<NexusPorts>,
    pub(crate) attentions: UnitAttentions,
    /// Reservation events of an NVMe host.
    pub(crate) events: UnitAttentions,
}

impl AttachedNexus {
    fn new(port: &Arc<NexusPorts>) -> AttachedNexus {
        let none = UnitAttentions::default;
        let attentions = if port.initiator.is_nvme() { none() } else { UnitAttentions::power_on() };
        AttachedNexus { port: port.clone(), attentions, events: none() }
    }

    /// Raises a unit attention. An NVMe host has none: it gets the events of reservations, and compares all other state
    /// with the state before.
    pub(crate) fn raise(&mut self, sense: Sense) {
        if !self.port.initiator.is_nvme() {
            self.attentions.raise(sense);
        } else if RESERVATION_EVENTS.contains(&sense) {
            self.events.raise(sense);
        }
    }
}

/// The unit attentions that are events of an NVMe host.
const RESERVATION_EVENTS: [Sense; 3] =
    [Sense::RESERVATIONS_RELEASED, Sense::RESERVATIONS_PREEMPTED, Sense::REGISTRATIONS_PREEMPTED];

/// The mutable state of a logical unit. `Lu::change` locks it.
pub(crate) struct State {
    pub(crate) changed: bool,
    /// New commands end with BUSY.
    pub(crate) busy: bool,
    /// New commands end with BUSY because the shared state may be stale.
    pub(crate) held: bool,
    /// Set if other servers share the state. Called when nexuses came or went that the shared state does not show yet.
    pub(crate) sharing: Option<Box<dyn Fn() + Send + Sync>>,
    /// The relative target port identifiers of this server, if the state is shared.
    pub(crate) own_ports: Vec<u16>,
    /// The effects of the running command on nexuses of other servers; recorded only if the state is shared.
    pub(crate) effects: Effects,
    /// The version of the saved state; it increases with every change of that state.
    pub(crate) saved_version: u64,
    /// Capacity in blocks.
    pub(crate) blocks: u64,
    pub(crate) nexuses: BTreeMap<NexusId, AttachedNexus>,
    pub(crate) modes: modes::State,
    pub(crate) medium: medium::State,
    pub(crate) reservations: reservation::State,
    pub(crate) log: log::State,
    pub(crate) sanitize: sanitize::State,
    pub(crate) alua: alua::State,
    pub(crate) buffer: buffer::State,
    pub(crate) copy: copy::State,
    pub(crate) cdrom: cdrom::State,
}

const MODES: u8 = 1;
const RESERVATIONS: u8 = 2;
const SANITIZE: u8 = 3;

impl State {
    pub(crate) fn new(settings: &LuSettings) -> State {
        State {
            changed: false,
            busy: false,
            held: false,
            sharing: None,
            own_ports: Vec::new(),
            effects: Effects::default(),
            saved_version: 0,
            blocks: settings.capacity / settings.block_size as u64,
            nexuses: BTreeMap::new(),
            modes: modes::State::new(settings),
            medium: medium::State::default(),
            reservations: reservation::State::new(settings),
            log: log::State::default(),
            sanitize: sanitize::State::default(),
            alua: alua::State::default(),
            buffer: buffer::State::default(),
            copy: copy::State::default(),
            cdrom: cdrom::State::default(),
        }
    }

    /// Marks a change that nexuses must see.
    pub(crate) fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Marks a change of the saved state. If a command makes it, its row must be marked with `Row::persists`.
    pub(crate) fn mark_persistent_change(&mut self) {
        self.saved_version += 1;
        self.mark_changed();
    }

    /// The sense data if there is nothing to read or write. A medium smaller than a block counts as no medium,
    /// because READ CAPACITY cannot report zero blocks.
    pub(crate) fn no_medium(&self) -> Option<Sense> {
        self.medium.not_ready().or((self.blocks == 0).then_some(Sense::NOT_READY_NO_MEDIUM))
    }

    /// Raises a unit attention on the nexuses for which `on` returns true.
    pub(crate) fn raise(&mut self, sense: Sense, mut on: impl FnMut(NexusId, &NexusPorts) -> bool) {
        for (&id, peer) in &mut self.nexuses {
            if on(id, &peer.port) {
                peer.raise(sense);
            }
        }
        self.mark_changed();
    }

    /// Raises a unit attention on every nexus except `but`.
    pub(crate) fn raise_on_others(&mut self, sense: Sense, but: NexusId) {
        self.raise(sense, |id, _| id != but);
    }

    /// As [`State::raise_on_others`], for a change of shared state: nexuses of other servers get it too.
    pub(crate) fn raise_on_others_everywhere(&mut self, sense: Sense, but: NexusId) {
        self.raise_on_others(sense, but);
        if let Some(peer) = self.nexuses.get(&but).filter(|_| self.is_shared()) {
            self.effects.raise_on_others((&*peer.port).into(), sense);
        }
    }

    /// Whether other servers share the state.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.is_some()
    }

    /// New commands end with BUSY.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy || self.held
    }

    /// Marks a change of state that is saved only in shared units. If a command makes it, its row must be marked with
    /// `Row::persists`.
    pub(crate) fn mark_shared_change(&mut self) {
        match self.is_shared() {
            true => self.mark_persistent_change(),
            false => self.mark_changed(),
        }
    }

    pub(crate) fn attach(&mut self, id: NexusId, port: &Arc<NexusPorts>) {
        self.nexuses.insert(id, AttachedNexus::new(port));
        // A shared registration changes by `Lu::follow_nexuses`.
        if !self.is_shared() && self.reservations.attach(port) {
            self.mark_changed();
        }
        self.poke();
    }

    pub(crate) fn detach(&mut self, id: NexusId) {
        self.nexuses.remove(&id);
        self.medium.detach(id);
        self.copy.detach(id);
        self.cdrom.detach(id);
        if !self.is_shared() {
            self.reservations.detach(id);
        }
        self.mark_changed();
        self.poke();
    }

    /// Logical unit reset (SAM-5 section 6.3.3).
    pub(crate) fn reset(&mut self) {
        self.reset_shared();
        self.reset_unshared();
    }

    /// The part of a reset that changes shared state.
    pub(crate) fn reset_shared(&mut self) {
        self.modes.reset();
        self.reservations.reset();
        self.raise(Sense::LUN_RESET, |_, _| true);
    }

    /// The unit attentions after a nexus cleared the task set. With TAS, the tasks end with TASK ABORTED instead.
    pub(crate) fn clear_task_set(&mut self, by: Option<NexusId>) {
        match by {
            _ if self.modes.task_aborted_status() => {}
            Some(by) => self.raise_on_others_everywhere(Sense::COMMANDS_CLEARED, by),
            None => {
                self.raise(Sense::COMMANDS_CLEARED, |_, _| true);
                if self.is_shared() {
                    self.effects.raise_on_all(Sense::COMMANDS_CLEARED);
                }
            }
        }
    }

    /// The part of a reset that changes state of this server.
    pub(crate) fn reset_unshared(&mut self) {
        self.medium.reset();
        self.copy.reset();
    }

    /// The bytes to store before a change takes effect.
    pub(crate) fn to_store(&self) -> Vec<u8> {
        if self.is_shared() { self.save_shared() } else { self.save() }
    }

    /// Adapts shared state to nexuses that came or went. Returns whether it changed.
    pub(crate) fn follow_nexuses(&mut self) -> bool {
        let lags = self.reservations.lags(&self.nexuses, &self.own_ports);
        if lags {
            self.reservations.follow_nexuses(&self.nexuses, &self.own_ports);
        }
        lags
    }

    pub(crate) fn save(&self) -> Vec<u8> {
        saved::encode(&[
            (MODES, self.modes.save()),
            (RESERVATIONS, self.reservations.save()),
            (SANITIZE, self.sanitize.save()),
        ])
    }

    pub(crate) fn restore(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        for (id, section) in saved::decode(bytes)? {
            match id {
                MODES => self.modes.restore(section)?,
                RESERVATIONS => self.reservations.restore(section)?,
                SANITIZE => self.sanitize.restore(section)?,
                _ => return Err(InvalidDefinition::new("the saved state has an unknown section")),
            }
        }
        Ok(())
    }
}
