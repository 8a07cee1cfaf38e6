//! Error messages for hosts without RDMA devices.

use crate::verbs::devices;
use std::io;

/// The fault of a host that has no RDMA device, and the fix.
pub const NO_DEVICE: (&str, &str) = (
    "this host has no RDMA device",
    "leave provider out: iWARP in software needs no device; or add one of software: rdma link add siw0 type siw netdev \
     eth0",
);

/// Replaces an error of an RDMA device by [`NO_DEVICE`] if the host has none. The fix follows on a line that begins with
/// `hint:`.
pub fn explained(e: &io::Error) -> io::Error {
    match devices().is_ok_and(|devices| devices.is_empty()) {
        true => without_device(e.kind()),
        false => io::Error::new(e.kind(), e.to_string()),
    }
}

fn without_device(kind: io::ErrorKind) -> io::Error {
    let (what, hint) = NO_DEVICE;
    io::Error::new(kind, format!("{what}\nhint: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_devices_needs_no_modules() {
        let e = io::Error::other("cannot open it\nhint: load the modules");
        let told = explained(&e).to_string();
        match devices() {
            Ok(devices) if devices.is_empty() => {
                assert!(told.starts_with("this host has no RDMA device\nhint: leave provider out"), "{told}");
            }
            _ => assert_eq!(told, e.to_string()),
        }
    }
}
