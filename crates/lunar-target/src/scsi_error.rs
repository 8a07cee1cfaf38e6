//! What a SCSI device says of a failure, carried in an error of the operating system.

use lunar_wire::scsi::{Sense, Status};
use std::{fmt, io};

/// The answer of a SCSI device that stands behind a backend, to be passed on as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiError {
    /// The status.
    pub status: Status,
    /// Its sense data.
    pub sense: Option<Sense>,
}

impl ScsiError {
    /// What an error carries, if it carries an answer.
    pub fn of(e: &io::Error) -> Option<ScsiError> {
        e.get_ref()?.downcast_ref().copied()
    }
}

impl From<Sense> for ScsiError {
    fn from(sense: Sense) -> ScsiError {
        ScsiError { status: Status::CheckCondition, sense: Some(sense) }
    }
}

impl From<ScsiError> for io::Error {
    fn from(told: ScsiError) -> io::Error {
        io::Error::other(told)
    }
}

impl fmt::Display for ScsiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sense {
            Some(sense) => write!(f, "the device says: {sense}"),
            None => write!(f, "the device answers with status {:02x}h", self.status as u8),
        }
    }
}

impl std::error::Error for ScsiError {}
