//! Mode parameters (SPC-5 section 7.5).

use crate::{Invalid, Settings};

/// What mode pages can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Values {
    /// WCE.
    write_cache: bool,
    /// D_SENSE.
    descriptor_sense: bool,
    /// TAS.
    task_aborted_status: bool,
    /// SWP.
    software_write_protect: bool,
}

/// Current, default and saved values.
#[derive(Debug)]
pub(crate) struct State {
    current: Values,
    default: Values,
    /// None: never saved, the defaults hold.
    saved: Option<Values>,
}

impl State {
    pub(crate) fn new(settings: &Settings) -> State {
        let default = Values {
            write_cache: settings.write_cache,
            descriptor_sense: false,
            task_aborted_status: false,
            software_write_protect: false,
        };
        State { current: default, default, saved: None }
    }

    /// WCE: writes need not be stable before their status.
    pub(crate) fn write_cache(&self) -> bool {
        self.current.write_cache
    }

    /// D_SENSE.
    pub(crate) fn descriptor_sense(&self) -> bool {
        self.current.descriptor_sense
    }

    /// TAS.
    pub(crate) fn task_aborted_status(&self) -> bool {
        self.current.task_aborted_status
    }

    /// SWP.
    pub(crate) fn software_write_protect(&self) -> bool {
        self.current.software_write_protect
    }

    /// A reset brings the saved values back.
    pub(crate) fn reset(&mut self) {
        self.current = self.saved.unwrap_or(self.default);
    }

    /// The saved values as bits of one byte; empty when none were saved.
    pub(crate) fn save(&self) -> Vec<u8> {
        self.saved.map(|v| v.bits()).into_iter().collect()
    }

    /// Takes what `save` gave.
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> Result<(), Invalid> {
        let &[bits @ 0..16] = bytes else { return Err(Invalid::new("mode pages of an unknown form")) };
        self.saved = Some(Values::from_bits(bits));
        self.reset();
        Ok(())
    }
}

impl Values {
    fn bits(self) -> u8 {
        self.write_cache as u8
            | (self.descriptor_sense as u8) << 1
            | (self.task_aborted_status as u8) << 2
            | (self.software_write_protect as u8) << 3
    }

    fn from_bits(bits: u8) -> Values {
        Values {
            write_cache: bits & 1 != 0,
            descriptor_sense: bits & 2 != 0,
            task_aborted_status: bits & 4 != 0,
            software_write_protect: bits & 8 != 0,
        }
    }
}
