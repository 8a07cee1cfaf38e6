//! Errors about portals that use another protocol.

use crate::{Error, ErrorCode};
use lunar_runtime::error::text;
use std::io;

/// The error when a portal closes without an RDMA connection. The cause is ambiguous: another protocol, or the
/// connection limit of the portal.
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
    Error::new(ErrorCode::Unreachable, text(e)).with_hint(hint)
}

/// A protocol, and a hint with the URL to use for it.
pub struct Protocol(&'static str, &'static str);

pub const ISER: Protocol = Protocol("iSER", "use iser://HOST[:PORT]/IQN there");
pub const SRP: Protocol = Protocol(
    "SRP",
    "use srp://HOST[:PORT]/ID_EXT[:IOC_GUID] there, as the target shows its id_ext and ioc_guid",
);

/// The error when a portal seems to use another protocol. `happened` is the evidence.
pub fn mismatch(happened: &str, Protocol(what, hint): Protocol) -> Error {
    Error::new(ErrorCode::Unreachable, format!("{happened}: it seems to be a portal of {what}"))
        .with_hint(hint)
}
