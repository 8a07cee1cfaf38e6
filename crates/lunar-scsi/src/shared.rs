//! State that several servers of one medium share: registrations, reservations and mode pages.
//!
//! A [`PendingCommit`] of a shared logical unit contains the state after the change, and the effects of the change on
//! nexuses of other servers. The caller publishes both before [`Lu::commit`]. The other servers pass them to
//! [`Lu::install_shared`]. All decisions are those of a logical unit with one server.

mod effects;

use crate::pending_commit::PendingCommit;
use crate::reservation::Registrant;
use crate::state::State;
use crate::{InvalidDefinition, Lu, NexusId, saved};
use lunar_wire::scsi::Sense;

pub(crate) use effects::Effects;

const MODES: u8 = 1;
const RESERVATIONS: u8 = 2;
const RESERVED: u8 = 3;

/// The effects of an installed state on this server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstalledEffects {
    /// Nexuses whose tasks another server's command aborts.
    pub victims: Vec<NexusId>,
    /// A reset, or another nexus cleared the task set: the tasks of all nexuses end.
    pub aborts_all: bool,
}

impl Lu {
    /// Shares the state with other servers. Each change of it is then a [`PendingCommit`], whatever APTPL and SP are.
    /// `on_change` is called when [`Lu::follow_nexuses`] has something to do; it must not block.
    pub fn share(&self, on_change: impl Fn() + Send + Sync + 'static) {
        let mut state = self.change();
        state.sharing = Some(Box::new(on_change));
        state.reservations.set_can_persist();
    }

    /// The relative target port identifiers of this server. A RESERVE through one of them ends if its nexus is gone.
    pub fn set_own_ports(&self, ports: Vec<u16>) {
        self.change().own_ports = ports;
    }

    /// Ends a RESERVE through these relative target ports of a server that is gone. The caller publishes the state.
    pub fn release_ports(&self, ports: &[u16]) {
        let mut state = self.change();
        state.reservations.release_ports(ports);
        state.mark_changed();
    }

    /// The shared state for [`Lu::install_shared`] of another server.
    pub fn shared_state(&self) -> Vec<u8> {
        self.change().save_shared()
    }

    /// Installs the state of another server. `effects` are those of the changes since the installed state, in their
    /// order. If changes are missing from them (`is_complete` is false), each nexus that lost its registration gets
    /// the unit attention REGISTRATIONS PREEMPTED.
    ///
    /// # Errors
    /// The state or an effect is invalid. Then nothing has changed.
    pub fn install_shared(
        &self,
        bytes: &[u8],
        effects: &[&[u8]],
        is_complete: bool,
    ) -> Result<InstalledEffects, InvalidDefinition> {
        let effects = effects.iter().map(|bytes| Effects::decode(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut state = self.change();
        let lost = state.install_shared(bytes)?;
        if !is_complete {
            state.raise(Sense::REGISTRATIONS_PREEMPTED, |_, port| lost.contains(&port.into()));
        }
        let mut installed = InstalledEffects::default();
        effects.iter().for_each(|effects| effects.apply(&mut state, &mut installed));
        state.mark_changed();
        state.poke();
        Ok(installed)
    }

    /// Ends all that does not persist through power loss: registrations without APTPL, RESERVE, mode pages that were
    /// not saved. For the first server of a group that starts. PRGENERATION becomes 0.
    pub fn power_on_shared(&self) {
        let mut state = self.change();
        state.reservations.power_on();
        state.modes.reset();
        state.mark_changed();
    }

    /// New commands end with BUSY until this is called with false.
    pub fn hold(&self, on: bool) {
        let mut state = self.change();
        if state.held != on {
            state.held = on;
            state.mark_changed();
        }
    }

    /// The change that follows from nexuses that came or went: a RESERVE of a lost nexus ends, and a nexus with a CHAP
    /// user takes a registration without one. `None`: there is none.
    pub fn follow_nexuses(&self) -> Option<PendingCommit> {
        PendingCommit::follow_nexuses(self)
    }

    /// Logical unit reset of a shared logical unit, instead of [`Lu::reset`]. `None`: the unit is not shared, and was
    /// reset.
    pub fn pending_reset(&self) -> Option<PendingCommit> {
        PendingCommit::reset(self)
    }

    /// CLEAR TASK SET of a shared logical unit by this nexus, instead of [`Lu::task_set_cleared`]. `None`: the unit is not
    /// shared, and the other nexuses got their unit attentions.
    pub fn pending_clear(&self, by: Option<NexusId>) -> Option<PendingCommit> {
        PendingCommit::clear(self, by)
    }
}

impl State {
    pub(crate) fn save_shared(&self) -> Vec<u8> {
        let reserved = self.reservations.reserved_by(&self.nexuses);
        saved::encode(&[
            (MODES, self.modes.save_shared()),
            (RESERVATIONS, self.reservations.save_shared()),
            (RESERVED, reserved.map(|who| who.encode()).unwrap_or_default()),
        ])
    }

    /// Returns the registrants that the new state lacks.
    pub(crate) fn install_shared(&mut self, bytes: &[u8]) -> Result<Vec<Registrant>, InvalidDefinition> {
        let (mut modes, mut reservations) = (self.modes.clone(), self.reservations.without_state());
        for (id, section) in saved::decode(bytes)? {
            match id {
                MODES => modes.restore_shared(section)?,
                RESERVATIONS => reservations.restore_shared(section)?,
                RESERVED => reservations.set_reserved(Registrant::decode(section)?, &self.nexuses),
                _ => return Err(InvalidDefinition::new("the shared state has an unknown section")),
            }
        }
        let lost = self.reservations.missing_from(&reservations);
        (self.modes, self.reservations) = (modes, reservations);
        Ok(lost)
    }

    /// Calls the function of [`Lu::share`] if nexuses came or went that the shared state does not show yet.
    pub(crate) fn poke(&self) {
        if let Some(on_change) =
            self.sharing.as_ref().filter(|_| self.reservations.lags(&self.nexuses, &self.own_ports))
        {
            on_change();
        }
    }
}
