//! Reservations: RESERVE and RELEASE (SPC-2 section 5.5.1), and persistent reservations (SPC-5 section 5.14).

mod actions;
mod commands;
mod registry;
mod report;
mod request;
mod saved;
mod shared;
#[cfg(test)]
mod tests;
mod transport_id;
mod types;

use crate::table::Row;
use crate::{InvalidDefinition, Lu, LuSettings, NexusId, NexusPorts, ReservationClass};
use crate::{ReportedRegistrant, ReservationsView};
use lunar_wire::scsi::{BitField, Sense, op};
use registry::Registry;
use types::RegistrantRole;

pub(crate) use commands::ROWS;
pub(crate) use registry::Registrant;

/// The reservation commands.
pub(crate) const OPCODES: [u8; 6] = [
    op::PERSISTENT_RESERVE_IN,
    op::PERSISTENT_RESERVE_OUT,
    op::RESERVE_6,
    op::RELEASE_6,
    op::RESERVE_10,
    op::RELEASE_10,
];

/// A field pointer without a bit pointer.
const NO_BIT: u8 = 8;

/// INVALID FIELD IN PARAMETER LIST with a field pointer to the first byte of a field, without a bit.
fn without_bit(field: BitField) -> Sense {
    Sense::parameter_field(field.byte(), NO_BIT)
}

impl Lu {
    /// Declares that [`Lu::saved_state`] is not stored. Registrations that persist through power loss (APTPL) and
    /// saved mode pages (SP) are then rejected.
    pub fn set_volatile(&self) {
        self.change().reservations.registry.can_persist = false;
    }

    /// The number of registrants, and whether a persistent reservation exists.
    pub fn reservations(&self) -> (usize, bool) {
        let registry = &self.change().reservations.registry;
        (registry.keys.len(), registry.reservation.is_some())
    }

    /// The name of the initiator that holds the persistent reservation. None: there is none, or all registrants hold it.
    pub fn reservation_holder(&self) -> Option<String> {
        let state = self.change();
        let holder = state.reservations.registry.reservation.as_ref()?.holder.as_ref()?;
        Some(holder.initiator.name().into_owned())
    }
}

/// The nexus of a RESERVE.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reserver {
    /// A nexus of this server.
    Here(NexusId),
    /// A nexus of another server that shares the state.
    Elsewhere(Registrant),
}

/// Registrations and reservations of a logical unit.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The nexus that reserved the logical unit by RESERVE.
    reserved: Option<Reserver>,
    registry: Registry,
}

impl State {
    /// A state without registrations.
    pub(crate) fn new(settings: &LuSettings) -> State {
        State { reserved: None, registry: Registry::new(settings.max_registrants) }
    }

    /// Sets the maximum number of registrants. Existing registrants above it stay.
    pub(crate) fn set_max_registrants(&mut self, max: usize) {
        self.registry.max = max;
    }

    /// Whether a reservation of another nexus conflicts with a command of this nexus.
    pub(crate) fn conflicts(&self, row: &Row, nexus: NexusId, port: &NexusPorts) -> bool {
        match &self.reserved {
            // Persistent reservations conflict with RESERVE from any nexus.
            Some(_) if persistent(row.opcode) => true,
            Some(Reserver::Here(holder)) if *holder == nexus => false,
            // The forms of START STOP UNIT and PREVENT ALLOW that are never allowed use `ReservationClass::Never`.
            Some(_) if row.allowed != ReservationClass::Always => true,
            Some(_) => !row.despite_reserve,
            None => !self.registry.permits(port, row.allowed),
        }
    }

    /// Whether the saved state is stored.
    pub(crate) fn can_persist(&self) -> bool {
        self.registry.can_persist
    }

    /// The state that reports show.
    pub(crate) fn view(&self) -> ReservationsView {
        let registry = &self.registry;
        let registrant = |(who, key): (&Registrant, &u64)| ReportedRegistrant {
            initiator: who.initiator.clone(),
            key: *key,
            is_holder: registry.role(who) == RegistrantRole::Holder,
        };
        ReservationsView {
            generation: registry.generation,
            kind: registry.reservation.as_ref().map(|reservation| reservation.kind as u8),
            persists: registry.persists,
            registrants: registry.keys.iter().map(registrant).collect(),
        }
    }

    /// Records a new nexus. If it has a CHAP user, it adopts a matching registration without a user. Returns whether
    /// there was one.
    pub(crate) fn attach(&mut self, port: &NexusPorts) -> bool {
        self.registry.adopt(&port.into())
    }

    /// Records a lost nexus: its RESERVE ends, its registration stays.
    pub(crate) fn detach(&mut self, nexus: NexusId) {
        if self.reserved == Some(Reserver::Here(nexus)) {
            self.reserved = None;
        }
    }

    /// Logical unit reset: RESERVE ends, persistent reservations stay.
    pub(crate) fn reset(&mut self) {
        self.reserved = None;
    }

    /// Encodes the state that persists through power loss (APTPL); empty if nothing persists.
    pub(crate) fn save(&self) -> Vec<u8> {
        saved::encode(&self.registry)
    }

    /// Encodes PRGENERATION, and registrations that do not persist through power loss; empty if there are none.
    pub(crate) fn hand_over(&self) -> Vec<u8> {
        let registry = &self.registry;
        if registry.persists || registry.keys.is_empty() {
            return Vec::new();
        }
        [&registry.generation.to_be_bytes()[..], &saved::encode_all(registry)].concat()
    }

    /// Takes what [`State::hand_over`] returned, unless there are saved registrations.
    pub(crate) fn take_over(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        let short = InvalidDefinition::new("the registrations of the earlier process are truncated");
        let (generation, registrations) = bytes.split_first_chunk().ok_or(short)?;
        let taken = saved::decode(registrations, self.registry.max)?;
        if self.registry.keys.is_empty() {
            let generation = u32::from_be_bytes(*generation);
            let can_persist = self.registry.can_persist;
            self.registry = Registry { generation, persists: false, can_persist, ..taken };
        }
        Ok(())
    }

    /// Restores what [`State::save`] returned.
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        self.registry = saved::decode(bytes, self.registry.max)?;
        saved::fold_names(&mut self.registry);
        Ok(())
    }

    /// Whether a persistent reservation allows this nexus all commands, so that RESERVE and RELEASE succeed without
    /// effect (CRH, SPC-5 section 5.14.3).
    fn covered(&self, port: &NexusPorts) -> bool {
        self.registry.reservation.is_some() && self.registry.permits(port, ReservationClass::Never)
    }
}

fn persistent(opcode: u8) -> bool {
    matches!(opcode, op::PERSISTENT_RESERVE_IN | op::PERSISTENT_RESERVE_OUT)
}
