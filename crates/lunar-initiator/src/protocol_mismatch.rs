//! Portals that speak something else than what they are asked in: one kind of failure, whoever finds it out.

use crate::io_error::io_text;
use crate::{Error, Kind};
use std::io;

/// There is no RDMA connection. A portal that knows none closes or waits for more, so nobody can tell what it is; nor may one
/// that has enough connections say more.
pub fn no_rdma(e: &io::Error) -> Error {
    let hint = match e.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::TimedOut => {
            "it may be a portal of iSCSI over TCP: use iscsi://HOST[:PORT]/IQN there; or have as many connections as it \
             takes: its log says so"
        }
        _ => "look at host and port: no portal of Lunar, nor of Linux, answers so",
    };
    Error::new(Kind::Unreachable, io_text(e)).with_hint(hint)
}

/// What a portal may speak, and the URL to use there.
pub struct Protocol(&'static str, &'static str);

pub const ISER: Protocol = Protocol("iSER", "use iser://HOST[:PORT]/IQN there");
pub const SRP: Protocol = Protocol(
    "SRP",
    "use srp://HOST[:PORT]/ID_EXT[:IOC_GUID] there, as the target shows its id_ext and ioc_guid",
);

/// It seems to speak that, for this happened.
pub fn mismatch(happened: &str, Protocol(what, hint): Protocol) -> Error {
    Error::new(Kind::Unreachable, format!("{happened}: it seems to be a portal of {what}")).with_hint(hint)
}
