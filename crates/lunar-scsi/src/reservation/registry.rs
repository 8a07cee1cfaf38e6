//! The registrations, their keys, and the holder of the persistent reservation (SPC-5 section 5.14).

use super::types::{RegistrantRole, ReservationType};
use crate::{CommandError, InitiatorPort, NexusPorts, ReservationClass, TransportProtocol};
use lunar_wire::scsi::{Sense, Status};
use std::collections::BTreeMap;

/// The I_T nexus of a registration, which outlives sessions. The target is the logical unit's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Registrant {
    pub(crate) initiator: InitiatorPort,
    /// Relative target port identifier.
    pub(crate) tag: u16,
    /// The CHAP user of its sessions. Empty without CHAP, and while unknown: if another initiator named the port, or
    /// an older version saved the registration.
    pub(crate) user: String,
}

impl From<&NexusPorts> for Registrant {
    fn from(port: &NexusPorts) -> Self {
        let (initiator, user) = (port.initiator.clone(), port.user.clone());
        Registrant { initiator, tag: port.own.relative, user }
    }
}

impl Registrant {
    fn without_user(&self) -> Registrant {
        Registrant { user: String::new(), ..self.clone() }
    }

    /// The protocol of both ports.
    pub(super) fn protocol(&self) -> TransportProtocol {
        self.initiator.protocol()
    }
}

/// A persistent reservation. Its scope is the logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PersistentReservation {
    /// Its type.
    pub(super) kind: ReservationType,
    /// The holder; `None` under an all registrants type.
    pub(super) holder: Option<Registrant>,
}

/// The registrations and the persistent reservation of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registry {
    /// The key of each registrant; never 0.
    pub(super) keys: BTreeMap<Registrant, u64>,
    pub(super) reservation: Option<PersistentReservation>,
    /// PRGENERATION.
    pub(super) generation: u32,
    /// APTPL of the latest registration: the state persists through power loss.
    pub(super) persists: bool,
    /// PTPL_C: the saved state is stored.
    pub(super) can_persist: bool,
    /// Maximum number of registrants.
    pub(super) max: usize,
}

/// The effects of a service action on other nexuses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// Unit attentions and their registrants.
    pub(super) attentions: Vec<(Registrant, Sense)>,
    /// The preempted registrants, whose tasks PREEMPT AND ABORT aborts.
    pub(super) victims: Vec<Registrant>,
}

impl Effect {
    pub(super) fn raise(&mut self, sense: Sense, on: impl IntoIterator<Item = Registrant>) {
        self.attentions.extend(on.into_iter().map(|r| (r, sense)));
    }
}

impl Registry {
    /// A registry without registrants.
    pub(super) fn new(max: usize) -> Registry {
        Registry {
            keys: BTreeMap::new(),
            reservation: None,
            generation: 0,
            persists: false,
            can_persist: true,
            max,
        }
    }

    /// The role of a nexus in the reservation.
    pub(super) fn role(&self, who: &Registrant) -> RegistrantRole {
        let registered = self.keys.contains_key(who);
        match &self.reservation {
            Some(r) if r.holder.as_ref().map_or(r.kind.all_registrants() && registered, |h| h == who) => {
                RegistrantRole::Holder
            }
            _ if registered => RegistrantRole::Registrant,
            _ => RegistrantRole::Stranger,
        }
    }

    /// Whether the reservation, if any, allows this nexus a command of this class.
    pub(super) fn permits(&self, port: &NexusPorts, class: ReservationClass) -> bool {
        match &self.reservation {
            Some(r) if class != ReservationClass::Always => r.kind.permits(self.role(&port.into()), class),
            _ => true,
        }
    }

    /// The key of the holder; 0 under an all registrants type.
    pub(super) fn holder_key(&self) -> u64 {
        let holder = self.reservation.as_ref().and_then(|r| r.holder.as_ref());
        holder.and_then(|h| self.keys.get(h)).copied().unwrap_or(0)
    }

    /// Fails with RESERVATION CONFLICT unless this nexus is registered with this key.
    pub(super) fn check_key(&self, who: &Registrant, key: u64) -> Result<(), CommandError> {
        if self.keys.get(who) == Some(&key) { Ok(()) } else { Err(Status::ReservationConflict.into()) }
    }

    /// Registers the nexuses with this key. Fails without a change if there is no room for all of them, or if registrants
    /// of the other family exist. No report could show both: NVMe hosts have no TransportID, and SCSI ports no HOSTID.
    pub(super) fn enroll(&mut self, nexuses: Vec<Registrant>, key: u64) -> Result<(), CommandError> {
        let all = nexuses.iter().chain(self.keys.keys());
        let of_nvme = all.clone().filter(|who| who.initiator.is_nvme()).count();
        if of_nvme != 0 && of_nvme != all.count() {
            return Err(Status::ReservationConflict.into());
        }
        let new = nexuses.iter().filter(|n| !self.keys.contains_key(n)).count();
        if self.keys.len() + new > self.max {
            return Err(Sense::INSUFFICIENT_REGISTRATIONS.into());
        }
        self.keys.extend(nexuses.into_iter().map(|n| (n, key)));
        Ok(())
    }

    /// Removes registrations. A reservation that loses its holder ends, and the nexuses that shared it get a unit
    /// attention (SPC-5 section 5.14.11.3).
    pub(super) fn remove(&mut self, nexuses: &[Registrant], effect: &mut Effect) {
        for nexus in nexuses {
            self.keys.remove(nexus);
        }
        let Some(reservation) = &self.reservation else { return };
        let held = match &reservation.holder {
            Some(holder) => self.keys.contains_key(holder),
            None => !self.keys.is_empty(),
        };
        if !held {
            if reservation.kind.shared() {
                effect.raise(Sense::RESERVATIONS_RELEASED, self.keys.keys().cloned());
            }
            self.reservation = None;
        }
    }

    /// Whether [`Registry::adopt`] would pass a registration to this user.
    pub(super) fn adopts(&self, who: &Registrant) -> bool {
        !who.user.is_empty() && !self.keys.contains_key(who) && self.keys.contains_key(&who.without_user())
    }

    /// Passes a registration without a user to the first user that logs in from its initiator port. Returns whether
    /// there was one.
    pub(super) fn adopt(&mut self, who: &Registrant) -> bool {
        if !self.adopts(who) {
            return false;
        }
        let plain = who.without_user();
        let Some(key) = self.keys.remove(&plain) else { return false };
        self.keys.insert(who.clone(), key);
        if let Some(holder) =
            self.reservation.as_mut().and_then(|r| r.holder.as_mut()).filter(|h| **h == plain)
        {
            *holder = who.clone();
        }
        true
    }

    /// Replaces the reservation.
    pub(super) fn establish(&mut self, kind: ReservationType, who: &Registrant) {
        let holder = (!kind.all_registrants()).then(|| who.clone());
        self.reservation = Some(PersistentReservation { kind, holder });
    }

    /// The registrants for which `pick` returns true.
    pub(super) fn select(&self, mut pick: impl FnMut(&Registrant, u64) -> bool) -> Vec<Registrant> {
        self.keys.iter().filter(|(n, k)| pick(n, **k)).map(|(n, _)| n.clone()).collect()
    }
}
