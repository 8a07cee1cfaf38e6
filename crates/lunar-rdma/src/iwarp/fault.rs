//! What the other side did wrong, and what it is told.

use lunar_wire::iwarp::Terminate;
use std::io;

/// A fault of the other side, after which the connection cannot go on.
#[derive(Debug)]
pub(super) struct IwarpError {
    /// What it is told.
    pub(super) told: Terminate,
    /// What happened.
    what: String,
}

impl IwarpError {
    pub(super) fn new(told: Terminate, what: impl Into<String>) -> IwarpError {
        IwarpError { told, what: what.into() }
    }
}

impl From<Terminate> for IwarpError {
    fn from(told: Terminate) -> IwarpError {
        IwarpError { told, what: told.text().unwrap_or_default().into() }
    }
}

impl From<IwarpError> for io::Error {
    fn from(fault: IwarpError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("the other side sent {}", fault.what))
    }
}
