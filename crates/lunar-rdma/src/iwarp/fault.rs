//! Protocol errors of the peer.

use lunar_wire::iwarp::Terminate;
use std::io;

/// A protocol error of the peer, which ends the connection.
#[derive(Debug)]
pub(super) struct IwarpError {
    /// The Terminate error.
    pub(super) terminate: Terminate,
    /// The description.
    what: String,
}

impl IwarpError {
    pub(super) fn new(terminate: Terminate, what: impl Into<String>) -> IwarpError {
        IwarpError { terminate, what: what.into() }
    }
}

impl From<Terminate> for IwarpError {
    fn from(terminate: Terminate) -> IwarpError {
        IwarpError { terminate, what: terminate.text().unwrap_or_default().into() }
    }
}

impl From<IwarpError> for io::Error {
    fn from(fault: IwarpError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("the peer sent {}", fault.what))
    }
}
