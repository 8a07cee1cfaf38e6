//! The mutable state of a logical unit.

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
}

/// The mutable state of a logical unit. `Lu::change` locks it.
pub(crate) struct State {
    pub(crate) changed: bool,
    /// New commands end with BUSY.
    pub(crate) busy: bool,
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
                peer.attentions.raise(sense);
            }
        }
        self.mark_changed();
    }

    /// Raises a unit attention on every nexus except `but`.
    pub(crate) fn raise_on_others(&mut self, sense: Sense, but: NexusId) {
        self.raise(sense, |id, _| id != but);
    }

    pub(crate) fn attach(&mut self, id: NexusId, port: &Arc<NexusPorts>) {
        self.nexuses.insert(id, AttachedNexus { port: port.clone(), attentions: UnitAttentions::power_on() });
        if self.reservations.attach(port) {
            self.mark_changed();
        }
    }

    pub(crate) fn detach(&mut self, id: NexusId) {
        self.nexuses.remove(&id);
        self.medium.detach(id);
        self.copy.detach(id);
        self.cdrom.detach(id);
        self.reservations.detach(id);
        self.mark_changed();
    }

    /// Logical unit reset (SAM-5 section 6.3.3).
    pub(crate) fn reset(&mut self) {
        self.modes.reset();
        self.medium.reset();
        self.copy.reset();
        self.reservations.reset();
        self.raise(Sense::LUN_RESET, |_, _| true);
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
