//! The parts of a URL that differ over SRP.

use super::error::wrong;
use super::settings::{Belongs, Row};
use crate::options::Transport;
use crate::{Error, srp};

/// The form of an SRP URL, for hints.
pub const FORM: &str = "it has the form srp://HOST[:PORT]/ID_EXT[:IOC_GUID][/LUN][?KEY=VALUE&...]";
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
                "\"{half}\" in the URL is to have {} hexadecimal digits, and has {}",
                srp::DIGITS,
                half.len()
            ),
            format!("zeros in front belong to it: {half:0>width$}", width = srp::DIGITS),
        ),
        None => wrong(
            format!("\"{}\" in the URL is not an SRP target port", name.escape_debug()),
            "it is ID_EXT[:IOC_GUID], 16 hexadecimal digits each, as the target shows its id_ext and ioc_guid",
        ),
    }
}

/// Whether `HOST[:PORT]` contains a port.
pub fn names_port(place: &str) -> bool {
    // The colons of an IPv6 address are inside its brackets.
    place.rsplit(']').next().is_some_and(|rest| rest.contains(':'))
}

/// Checks that a setting applies to this transport.
pub fn check(transport: Transport, row: &Row) -> Result<(), Error> {
    match (row.belongs(), transport) {
        (Belongs::Iscsi, Transport::Srp) => Err(no_users()),
        (Belongs::Srp, Transport::Tcp | Transport::Iser) => {
            Err(wrong(format!("{} in the URL is for SRP alone", row.name), FORM))
        }
        (Belongs::Rdma, Transport::Tcp) => {
            let what = format!("{} in the URL is for RDMA alone", row.name);
            Err(wrong(what, "write iser:// instead of iscsi://, or leave it out"))
        }
        _ => Ok(()),
    }
}

/// The error for a user in an SRP URL: SRP has no authentication.
pub fn no_users() -> Error {
    wrong("SRP has no users and no passwords", "the target lets ports and addresses in: leave them out")
}
