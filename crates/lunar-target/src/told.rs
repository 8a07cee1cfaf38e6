//! What a SCSI device says of a failure, carried in an error of the operating system.

use lunar_wire::scsi::{Sense, Status};
use std::{fmt, io};

/// The answer of a SCSI device that stands behind a backend, to be passed on as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The status.
    pub status: Status,
    /// Its sense data.
    pub sense: Option<Sense>,
}

impl Told {
    /// What an error carries, if it carries an answer.
    pub fn of(e: &io::Error) -> Option<Told> {
        e.get_ref()?.downcast_ref().copied()
    }
}

impl From<Sense> for Told {
    fn from(sense: Sense) -> Told {
        Told { status: Status::CheckCondition, sense: Some(sense) }
    }
}

impl From<Told> for io::Error {
    fn from(told: Told) -> io::Error {
        io::Error::other(told)
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sense {
            Some(sense) => write!(f, "the device says: {sense}"),
            None => write!(f, "the device answers with status {:02x}h", self.status as u8),
        }
    }
}

impl std::error::Error for Told {}
