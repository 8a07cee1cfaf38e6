//! The parts of a URL that differ over SRP.

use super::error::wrong;
use super::settings::{Belongs, Row};
use crate::options::Transport;
use crate::{Error, srp};

/// The form of an SRP URL, for hints.
pub const FORM: &str = "write srp://HOST[:PORT]/ID_EXT[:IOC_GUID][/LUN][?KEY=VALUE&...]";
/// The default port. None is assigned; Linux's tests use this one.
pub const PORT: u16 = 5555;

/// Normalizes a target port to both halves.
pub fn target(name: &str) -> Result<String, Error> {
    srp::target_port(name).map(srp::target_name).ok_or_else(|| no_target(name))
}

fn no_target(name: &str) -> Error {
    let (extension, guid) = name.split_once(':').unwrap_or((name, name));
    let halves = [extension, guid];
    let short = halves.into_iter().find(|half| half.len() < srp::DIGITS);
    match short.filter(|_| halves.into_iter().all(srp::are_digits)) {
        Some(half) => wrong(
            format!(
                "\"{half}\" in the URL must have {} hexadecimal digits, and has {}",
                srp::DIGITS,
                half.len()
            ),
            format!("write the leading zeros: {half:0>width$}", width = srp::DIGITS),
        ),
        None => wrong(
            format!("\"{}\" in the URL is not an SRP target port", name.escape_debug()),
            "write ID_EXT[:IOC_GUID], each of 16 hexadecimal digits, as the target shows its id_ext and ioc_guid",
        ),
    }
}

/// Whether `HOST[:PORT]` contains a port.
pub fn names_port(authority: &str) -> bool {
    // The colons of an IPv6 address are inside its brackets.
    authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'))
}

/// Checks that a setting applies to this transport.
pub fn check(transport: Transport, row: &Row) -> Result<(), Error> {
    match (row.belongs(), transport) {
        (Belongs::Iscsi, Transport::Srp) => Err(no_users()),
        (Belongs::Srp, Transport::Tcp | Transport::Iser) => {
            Err(wrong(format!("{} in the URL applies only to srp:// URLs", row.name), FORM))
        }
        (Belongs::Rdma, Transport::Tcp) => {
            let what = format!("{} in the URL applies only to iser:// and srp:// URLs", row.name);
            Err(wrong(what, "write iser:// instead of iscsi://, or remove the key"))
        }
        _ => Ok(()),
    }
}

/// The error for a user in an SRP URL: SRP has no authentication.
pub fn no_users() -> Error {
    wrong(
        "the SRP URL has a user or a password, which SRP does not support",
        "remove user and password: SRP targets admit initiators by port or address",
    )
}
