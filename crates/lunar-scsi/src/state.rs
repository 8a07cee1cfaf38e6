//! What may change while a logical unit lives.

use crate::attention::Queue;
use crate::{Invalid, NexusId, Port, Settings};
use crate::{alua, buffer, cdrom, copy, log, medium, modes, reservation, sanitize, saved};
use lunar_wire::scsi::Sense;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A nexus, as its logical unit sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) port: Arc<Port>,
    pub(crate) attentions: Queue,
}

/// What may change while a logical unit lives. Guarded by its lock; see `Lu::change`.
pub(crate) struct State {
    pub(crate) touched: bool,
    /// Commands are answered BUSY.
    pub(crate) busy: bool,
    /// Grows with every change that is to be kept on stable storage.
    pub(crate) saves: u64,
    /// Capacity in blocks.
    pub(crate) blocks: u64,
    pub(crate) peers: BTreeMap<NexusId, Peer>,
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
    pub(crate) fn new(settings: &Settings) -> State {
        State {
            touched: false,
            busy: false,
            saves: 0,
            blocks: settings.capacity / settings.block_size as u64,
            peers: BTreeMap::new(),
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
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    /// Marks a change that is to be kept: where a command made it, its row must say so (`Row::keeps`).
    pub(crate) fn changed_what_is_saved(&mut self) {
        self.saves += 1;
        self.touch();
    }

    /// Why there is nothing to read or write. A medium of less than a block is none: READ CAPACITY has no way to
    /// say "no blocks".
    pub(crate) fn no_medium(&self) -> Option<Sense> {
        self.medium.not_ready().or((self.blocks == 0).then_some(Sense::NOT_READY_NO_MEDIUM))
    }

    /// Raises a unit attention on the nexuses that `on` picks.
    pub(crate) fn raise(&mut self, sense: Sense, mut on: impl FnMut(NexusId, &Port) -> bool) {
        for (&id, peer) in &mut self.peers {
            if on(id, &peer.port) {
                peer.attentions.raise(sense);
            }
        }
        self.touch();
    }

    /// Raises a unit attention on every nexus but this one.
    pub(crate) fn raise_on_others(&mut self, sense: Sense, but: NexusId) {
        self.raise(sense, |id, _| id != but);
    }

    pub(crate) fn attach(&mut self, id: NexusId, port: &Arc<Port>) {
        self.peers.insert(id, Peer { port: port.clone(), attentions: Queue::power_on() });
        if self.reservations.attach(port) {
            self.touch();
        }
    }

    pub(crate) fn detach(&mut self, id: NexusId) {
        self.peers.remove(&id);
        self.medium.detach(id);
        self.copy.detach(id);
        self.cdrom.detach(id);
        self.reservations.detach(id);
        self.touch();
    }

    /// Logical unit reset (SAM-5 section 6.3.3): what lives until then ends.
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

    pub(crate) fn restore(&mut self, bytes: &[u8]) -> Result<(), Invalid> {
        for (id, section) in saved::decode(bytes)? {
            match id {
                MODES => self.modes.restore(section)?,
                RESERVATIONS => self.reservations.restore(section)?,
                SANITIZE => self.sanitize.restore(section)?,
                _ => return Err(Invalid::new("a section that this version does not know")),
            }
        }
        Ok(())
    }
}
