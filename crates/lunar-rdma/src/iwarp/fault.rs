//! What the other side did wrong, and what it is told.

use lunar_wire::iwarp::Terminate;
use std::io;

/// A fault of the other side, after which the connection cannot go on.
#[derive(Debug)]
pub(super) struct Fault {
    /// What it is told.
    pub(super) told: Terminate,
    /// What happened.
    what: String,
}

impl Fault {
    pub(super) fn new(told: Terminate, what: impl Into<String>) -> Fault {
        Fault { told, what: what.into() }
    }
}

impl From<Terminate> for Fault {
    fn from(told: Terminate) -> Fault {
        Fault { told, what: told.text().unwrap_or_default().into() }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("the other side sent {}", fault.what))
    }
}
