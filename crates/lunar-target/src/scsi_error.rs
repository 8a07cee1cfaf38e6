//! A SCSI status in an I/O error.

use lunar_wire::scsi::{Sense, Status};
use std::{fmt, io};

/// The failure that a SCSI device behind a backend reported. It is passed on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiError {
    /// The status.
    pub status: Status,
    /// Its sense data.
    pub sense: Option<Sense>,
}

impl ScsiError {
    /// The SCSI failure in an I/O error, if there is one.
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
    fn from(error: ScsiError) -> io::Error {
        io::Error::other(error)
    }
}

impl fmt::Display for ScsiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sense {
            Some(sense) => write!(f, "device error: {sense}"),
            None => write!(f, "device status {:02x}h", self.status as u8),
        }
    }
}

impl std::error::Error for ScsiError {}
