//! A portal: a host and a port.

use crate::{Error, ErrorCode};
use lunar_proto::initiator::targets::PortalAddress;
use std::fmt;

/// A host, by name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Portal {
    /// A name or an address. IPv6 addresses have no brackets here.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<PortalAddress> for Portal {
    fn from(PortalAddress { host, port, .. }: PortalAddress) -> Portal {
        Portal { host, port }
    }
}

impl std::str::FromStr for Portal {
    type Err = Error;

    /// Parses `HOST[:PORT][,TAG]`, with an IPv6 address in brackets. The tag is ignored.
    fn from_str(text: &str) -> Result<Portal, Error> {
        let bad = |why| {
            Error::new(ErrorCode::InvalidArgument, format!("portal \"{}\": {why}", text.escape_debug()))
        };
        PortalAddress::parse(text).map(Portal::from).map_err(bad)
    }
}
