//! Addresses and networks of the configuration, in the types of the target.

use lunar_config::{InvalidValue, invalid};
use lunar_target::config::{IpNetwork, PortalProtocol, Transports};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The IANA port of iSCSI targets (RFC 7143 section 15).
pub const PORT: u16 = 3260;

/// An address with a prefix length, or a single address.
pub(crate) fn network(text: &str) -> Result<IpNetwork, InvalidValue> {
    let not = |why: &str| {
        invalid(
            format!("\"{}\" is not a network{why}", text.escape_debug()),
            "write a network such as 192.0.2.0/24 or 2001:db8::/32",
        )
    };
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return not(": the address is invalid") };
    let max = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits.map(str::parse::<u8>) {
        None => max,
        Some(Ok(bits)) if bits <= max => bits,
        Some(_) => return not(&format!(": the prefix length must be 0 to {max}")),
    };
    let first = first_address(address, bits);
    if first != address {
        let what = format!("the network {text} has host bits set beyond the prefix of {bits}");
        return invalid(what, format!("write {first}/{bits} for the network, or {address} for one address"));
    }
    Ok(IpNetwork { address, bits })
}

/// The address with all but its leading bits cleared.
fn first_address(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

/// The registered ports of NVMe over TCP.
pub const NVME_PORT: u16 = 4420;
pub const NVME_DISCOVERY_PORT: u16 = 8009;

/// The default port of SRP.
const SRP_PORT: u16 = 5555;

/// An address to listen on: `ADDR:PORT`, or `ADDR` with the default port of its transport.
pub(crate) fn listen(text: &str, transports: Transports) -> Result<SocketAddr, InvalidValue> {
    let port = match transports.protocol {
        PortalProtocol::Iscsi => PORT,
        PortalProtocol::Srp => SRP_PORT,
        PortalProtocol::NvmeTcp => NVME_PORT,
        PortalProtocol::NvmeDiscovery => NVME_DISCOVERY_PORT,
    };
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    text.parse().or_else(|_| {
        let written = text.rsplit_once(':').map_or("", |(_, port)| port);
        let is_number = !written.is_empty() && written.bytes().all(|digit| digit.is_ascii_digit());
        let why = if is_number && written.parse::<u16>().is_err() {
            format!(": the port {written} is out of range 0 to 65535")
        } else {
            String::new()
        };
        invalid(
            format!("\"{}\" is not an address to listen on{why}", text.escape_debug()),
            format!("write a numeric address and a port: 127.0.0.1:{port}, [::1]:{port} or 0.0.0.0:{port}"),
        )
    })
}
