//! Resolves the host name of a portal to addresses.

use crate::{Error, ErrorCode, Portal};
use lunar_runtime::error::text;
use std::net::{SocketAddr, SocketAddrV6, ToSocketAddrs};

/// The addresses of a portal.
pub async fn resolve(portal: &Portal) -> Result<Vec<SocketAddr>, Error> {
    if let Some(address) = with_zone(portal)? {
        return Ok(vec![address]);
    }
    let (host, port) = (portal.host.clone(), portal.port);
    let asked =
        compio::runtime::spawn_blocking(move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    let unknown = |e: String| Error::new(ErrorCode::UnknownHost, format!("host \"{}\": {e}", portal.host));
    asked
        .await
        .map_err(|_| unknown("the thread that resolves the name panicked".into()))?
        .map_err(|e| unknown(text(&e)))
}

/// Parses an IPv6 address with a zone, which is the index or name of an interface. Resolvers accept interface names
/// for link-local addresses only.
fn with_zone(portal: &Portal) -> Result<Option<SocketAddr>, Error> {
    let Some((address, zone)) = portal.host.split_once('%') else { return Ok(None) };
    let by_name =
        || std::fs::read_to_string(format!("/sys/class/net/{zone}/ifindex")).ok()?.trim().parse().ok();
    let unknown =
        |what: String| Error::new(ErrorCode::UnknownHost, format!("host \"{}\": {what}", portal.host));
    let address = address.parse().map_err(|_| unknown("the part before % is not an IPv6 address".into()))?;
    let number = zone.parse().ok().or_else(by_name);
    let number = number.ok_or_else(|| unknown(format!("this host has no network interface \"{zone}\"")))?;
    Ok(Some(SocketAddrV6::new(address, portal.port, 0, number).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_is_the_name_or_the_number_of_an_interface() {
        let zone = |host: &str| with_zone(&Portal { host: host.into(), port: 7 });
        assert_eq!(
            zone("fe80::1%1").unwrap(),
            Some(SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 1).into())
        );
        assert_eq!(zone("::1%lo").unwrap(), zone("::1%1").unwrap(), "the loopback interface has index 1");
        assert_eq!(zone("::1").unwrap(), None);
        assert_eq!(zone("::1%no-such-thing").unwrap_err().code, ErrorCode::UnknownHost);
    }
}
