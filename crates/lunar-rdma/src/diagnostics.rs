//! Error messages for hosts without RDMA devices.

use crate::verbs::devices;
use lunar_runtime::error::{Hint, with_hint};
use std::io;

/// The error text for a host without RDMA devices.
pub const NO_DEVICE: &str = "this host has no RDMA device";

/// The fix for [`NO_DEVICE`].
pub const NO_DEVICE_HINT: Hint = Hint::new(
    "omit provider: software iWARP needs no device; or add a software device: rdma link add siw0 type siw netdev \
     eth0",
);

/// Replaces an error of an RDMA device with [`NO_DEVICE`] if the host has no device. [`lunar_runtime::error::hint`]
/// returns its hint.
pub fn explained(e: io::Error) -> io::Error {
    explain(e, devices().is_ok_and(|devices| devices.is_empty()))
}

fn explain(e: io::Error, has_none: bool) -> io::Error {
    match has_none {
        true => with_hint(io::Error::new(e.kind(), NO_DEVICE), NO_DEVICE_HINT),
        false => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_runtime::error::hint;

    #[test]
    fn host_without_devices_has_one_fault_and_hint() {
        let e = || with_hint(io::ErrorKind::NotFound.into(), "load the modules");
        let none = explain(e(), true);
        assert_eq!((none.kind(), none.to_string()), (io::ErrorKind::NotFound, NO_DEVICE.to_owned()));
        assert_eq!(hint(&none), Some(&NO_DEVICE_HINT));
        assert_eq!(hint(&explain(e(), false)), Some(&Hint::new("load the modules")));
    }
}
