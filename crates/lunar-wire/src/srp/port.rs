//! Identifiers of SRP ports.

use crate::fnv::fnv1a;
use std::fmt;
use std::str::FromStr;

/// A port identifier: identifier extension and GUID, 8 bytes each. Its text form is `0x` and 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub [u8; 16]);

impl PortId {
    /// Joins `id_ext` or `initiator_ext` of a login string and the GUID (`ioc_guid` of a target).
    pub fn new(extension: u64, guid: u64) -> PortId {
        PortId(((u128::from(extension) << 64) | u128::from(guid)).to_be_bytes())
    }

    /// The port identifier of a device with an iSCSI name. Both halves are the 64-bit FNV-1a hash of the name, so the
    /// identifier is stable and predictable. It is never zero.
    pub fn of_name(name: &str) -> PortId {
        let id = fnv1a(name.as_bytes()).max(1);
        PortId::new(id, id)
    }

    /// The identifier extension.
    pub fn extension(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The GUID.
    pub fn guid(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#034x}", u128::from_be_bytes(self.0))
    }
}

/// A text that is no port identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPortId;

impl fmt::Display for InvalidPortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an SRP port must be 0x and 32 hexadecimal digits")
    }
}

impl std::error::Error for InvalidPortId {}

impl FromStr for PortId {
    type Err = InvalidPortId;

    fn from_str(text: &str) -> Result<PortId, InvalidPortId> {
        let digits = text.strip_prefix("0x").filter(|d| d.len() == 32).ok_or(InvalidPortId)?;
        // `from_str_radix` would take a sign.
        if !digits.bytes().all(|d| d.is_ascii_hexdigit()) {
            return Err(InvalidPortId);
        }
        u128::from_str_radix(digits, 16).map(|id| PortId(id.to_be_bytes())).map_err(|_| InvalidPortId)
    }
}
