//! State that a power loss ends and a restart of the server keeps: current mode parameters, and registrations without
//! APTPL. Unit attentions need no part of it, because each nexus of the new process begins with POWER ON, which implies
//! all others (SAM-5 section 5.14).

use crate::state::State;
use crate::{InvalidDefinition, Lu, saved};

const MODES: u8 = 1;
const RESERVATIONS: u8 = 2;

impl Lu {
    /// The state for the next process that serves this logical unit; empty if [`Lu::saved_state`] and the settings are
    /// enough.
    pub fn hand_over(&self) -> Vec<u8> {
        self.change().hand_over()
    }

    /// Takes the result of [`Lu::hand_over`] of an earlier process. No nexus may exist yet.
    ///
    /// # Errors
    /// The state is invalid. Then nothing has changed.
    pub fn take_over(&self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        let mut state = self.change();
        state.take_over(bytes)?;
        state.mark_changed();
        Ok(())
    }
}

impl State {
    fn hand_over(&self) -> Vec<u8> {
        let sections = [(MODES, self.modes.hand_over()), (RESERVATIONS, self.reservations.hand_over())];
        if sections.iter().all(|(_, bytes)| bytes.is_empty()) { Vec::new() } else { saved::encode(&sections) }
    }

    fn take_over(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        let (mut modes, mut reservations) = (self.modes.clone(), self.reservations.clone());
        for (id, section) in saved::decode(bytes)? {
            match id {
                MODES => modes.take_over(section)?,
                RESERVATIONS => reservations.take_over(section)?,
                _ => {
                    return Err(InvalidDefinition::new(
                        "the state of the earlier process has an unknown section",
                    ));
                }
            }
        }
        (self.modes, self.reservations) = (modes, reservations);
        Ok(())
    }
}
