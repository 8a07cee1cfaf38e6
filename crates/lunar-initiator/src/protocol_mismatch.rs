//! Errors about portals that use another protocol.

use crate::{Error, ErrorCode};
#[cfg(feature = "rdma")]
use lunar_runtime::error::text;
#[cfg(feature = "rdma")]
use std::io;

/// The error when a portal closes without an RDMA connection. The cause is ambiguous: another protocol, or the
/// connection limit of the portal.
#[cfg(feature = "rdma")]
pub fn no_rdma(e: &io::Error) -> Error {
    let hint = match e.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::TimedOut => {
            "if the portal serves iSCSI over TCP, use iscsi://HOST[:PORT]/IQN; if its connection limit is reached, \
             end some connections (see the log of the target)"
        }
        _ => "check host and port: portals of Lunar and Linux do not fail in this way",
    };
    Error::new(ErrorCode::Unreachable, text(e)).with_hint(hint)
}

/// A protocol, and a hint with the URL to use for it.
pub struct Protocol(&'static str, &'static str);

pub const ISCSI: Protocol = Protocol("iSCSI", "use iscsi://HOST[:PORT]/IQN");
pub const NVME: Protocol = Protocol("NVMe/TCP", "use nvme://HOST[:PORT]/NQN");
#[cfg(feature = "rdma")]
pub const ISER: Protocol = Protocol("iSER", "use iser://HOST[:PORT]/IQN");
#[cfg(feature = "rdma")]
pub const SRP: Protocol = Protocol(
    "SRP",
    "use srp://HOST[:PORT]/ID_EXT[:IOC_GUID], with id_ext and ioc_guid as the target shows them",
);

/// The error when a portal seems to use another protocol. `happened` is the evidence.
pub fn mismatch(happened: &str, Protocol(what, hint): Protocol) -> Error {
    Error::new(ErrorCode::Unreachable, format!("{happened}: the portal seems to serve {what}"))
        .with_hint(hint)
}
