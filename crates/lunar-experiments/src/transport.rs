//! The transport of an experiment, and its RDMA provider.

use lunar_bench::{Error, ErrorKind, TargetTransport};
use lunar_rdma::verbs::MissingLibrary;
use lunar_wire::srp::PortId;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// The RDMA provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RdmaProvider {
    /// iWARP in software, over TCP on loopback
    Iwarp,
    /// An RDMA device of this host
    Verbs,
}

/// An active device, and an address on it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RdmaDevice {
    name: String,
    address: IpAddr,
}

/// A transport and its RDMA device; without a device it uses loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricTransport {
    transport: TargetTransport,
    device: Option<RdmaDevice>,
}

impl FabricTransport {
    /// The transport to use. Without a provider, an active device is preferred.
    ///
    /// # Errors
    /// If no device is active, or a provider is given for TCP.
    pub fn of(transport: TargetTransport, provider: Option<RdmaProvider>) -> Result<FabricTransport, Error> {
        FabricTransport::among(transport, provider, lunar_rdma::verbs::devices)
    }

    fn among(
        transport: TargetTransport,
        provider: Option<RdmaProvider>,
        devices: impl FnOnce() -> Result<Vec<lunar_rdma::verbs::RdmaDevice>, MissingLibrary>,
    ) -> Result<FabricTransport, Error> {
        let device = match (transport, provider) {
            (TargetTransport::Tcp, Some(_)) => {
                let hint = "omit --provider, or use --transport iser or srp";
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "--provider does not apply to --transport tcp",
                    hint,
                ));
            }
            (TargetTransport::Tcp, None) | (_, Some(RdmaProvider::Iwarp)) => None,
            (_, None) => devices().ok().and_then(one_that_is_up),
            (_, Some(RdmaProvider::Verbs)) => {
                Some(devices().map_err(without_libraries).and_then(|devices| {
                    let what = "--provider verbs: this host has no active RDMA device with an address";
                    one_that_is_up(devices).ok_or_else(|| {
                        Error::new(ErrorKind::Invalid, what, "list the devices with lunar rdma list")
                    })
                })?)
            }
        };
        Ok(FabricTransport { transport, device })
    }

    /// iSCSI over TCP on loopback.
    #[cfg(test)]
    pub fn tcp() -> FabricTransport {
        FabricTransport { transport: TargetTransport::Tcp, device: None }
    }

    /// Whether this is iSCSI over TCP, the only transport for which other targets are started.
    pub fn is_tcp(&self) -> bool {
        self.transport == TargetTransport::Tcp
    }

    /// Whether it uses TCP connections, which a relay can forward.
    pub fn is_relayed(&self) -> bool {
        self.device.is_none()
    }

    /// The name in reports: `tcp`, `iser/iwarp`, `srp/verbs:rxe0`.
    pub fn name(&self) -> String {
        match (self.transport, &self.device) {
            (TargetTransport::Tcp, _) => "tcp".into(),
            (transport, None) => format!("{}/iwarp", transport.scheme()),
            (transport, Some(device)) => format!("{}/verbs:{}", transport.scheme(), device.name),
        }
    }

    /// A note about the network of the publication and its replacement.
    pub fn stands_in(&self, network: &str) -> String {
        let protocol = match self.transport {
            TargetTransport::Tcp => "iSCSI over tcp",
            TargetTransport::Iser => "iSER",
            TargetTransport::Srp => "SRP",
        };
        let how = match (&self.device, self.is_tcp()) {
            (Some(device), _) => {
                format!(" by the device {} ({}), both ends on this host,", device.name, self.name())
            }
            (None, true) => " on loopback".into(),
            (None, false) => format!(" over iWARP in software ({}) on loopback", self.name()),
        };
        format!("{protocol}{how} replaces {network}")
    }

    /// The addresses at which Lunar listens. A device cannot choose ports: it gets some that are free now.
    ///
    /// # Errors
    /// If no port is free.
    pub fn addresses(&self, many: usize) -> Result<Vec<SocketAddr>, String> {
        match &self.device {
            None => Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); many]),
            Some(device) => free_ports(device.address, many),
        }
    }

    /// A portal of Lunar with this transport, as a configuration value.
    pub fn portal(&self, listen: SocketAddr) -> String {
        let (carries, provider) = match (self.transport, &self.device) {
            (TargetTransport::Tcp, _) => return format!("\"{listen}\""),
            (TargetTransport::Iser, None) => ("\"tcp\", \"iser\"", ""),
            // Software iWARP devices use TCP themselves.
            (TargetTransport::Iser, Some(_)) => ("\"iser\"", ", provider = \"verbs\""),
            (TargetTransport::Srp, None) => ("\"srp\"", ""),
            (TargetTransport::Srp, Some(_)) => ("\"srp\"", ", provider = \"verbs\""),
        };
        format!("{{ listen = \"{listen}\", transport = [{carries}]{provider} }}")
    }

    /// The URL of a target, or of its LUN, with options.
    pub fn url(&self, portal: SocketAddr, target: &str, lun: Option<u16>, settings: &str) -> String {
        let name = match self.transport {
            TargetTransport::Srp => format!("{:016x}", PortId::of_name(target).guid()),
            TargetTransport::Tcp | TargetTransport::Iser => target.to_owned(),
        };
        let lun = lun.map(|lun| format!("/{lun}")).unwrap_or_default();
        let provider = if self.device.is_some() { "provider=verbs" } else { "" };
        let settings =
            [settings, provider].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("&");
        let query = if settings.is_empty() { String::new() } else { format!("?{settings}") };
        format!("{}://{portal}/{name}{lun}{query}", self.transport.scheme())
    }
}

fn without_libraries(missing: MissingLibrary) -> Error {
    Error::new(ErrorKind::Invalid, format!("--provider verbs: {missing}"), MissingLibrary::HINT)
}

fn one_that_is_up(devices: Vec<lunar_rdma::verbs::RdmaDevice>) -> Option<RdmaDevice> {
    let usable = devices.into_iter().filter(|device| device.is_usable);
    let up = |device: lunar_rdma::verbs::RdmaDevice| {
        let mut ports = device.ports.into_iter().filter(|port| port.state == "ACTIVE");
        // The connection manager rejects link-local addresses without their scope.
        let address = ports.find_map(|port| port.addresses.into_iter().find(IpAddr::is_ipv4))?;
        Some(RdmaDevice { name: device.name, address })
    };
    usable.filter_map(up).next()
}

/// Ports of an address that were free a moment ago.
///
/// # Errors
/// If none is free.
pub fn free_ports(address: IpAddr, many: usize) -> Result<Vec<SocketAddr>, String> {
    let held: Result<Vec<_>, _> = (0..many).map(|_| TcpListener::bind((address, 0))).collect();
    let addresses = held.and_then(|held| held.iter().map(TcpListener::local_addr).collect());
    addresses.map_err(|e: std::io::Error| format!("no free TCP port on {address}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_rdma::verbs;

    const IQN: &str = "iqn.2026-11.org.example:disks";

    fn devices(state: &str, address: &str) -> Result<Vec<verbs::RdmaDevice>, MissingLibrary> {
        let port = verbs::RdmaPort {
            number: 1,
            state: state.into(),
            gid: String::new(),
            netdev: None,
            addresses: vec!["fe80::1".parse().expect("an address"), address.parse().expect("an address")],
        };
        let transport = verbs::LinkTransport::Roce;
        Ok(vec![verbs::RdmaDevice { name: "rxe0".into(), transport, ports: vec![port], is_usable: true }])
    }

    fn transport(
        transport: TargetTransport,
        provider: Option<RdmaProvider>,
        state: &str,
    ) -> Result<FabricTransport, Error> {
        FabricTransport::among(transport, provider, || devices(state, "192.0.2.1"))
    }

    #[test]
    fn active_device_is_preferred_over_iwarp() {
        let name = |provider, state| transport(TargetTransport::Srp, provider, state).map(|c| c.name());
        assert_eq!(name(None, "ACTIVE").as_deref(), Ok("srp/verbs:rxe0"));
        assert_eq!(name(None, "DOWN").as_deref(), Ok("srp/iwarp"));
        assert_eq!(name(Some(RdmaProvider::Iwarp), "ACTIVE").as_deref(), Ok("srp/iwarp"));
        let e = name(Some(RdmaProvider::Verbs), "DOWN").expect_err("none is up");
        assert!(e.kind == ErrorKind::Invalid && e.what.contains("no active RDMA device"), "{e}");
        let missing = || Err(MissingLibrary { what: "no library".into() });
        let e = FabricTransport::among(TargetTransport::Iser, Some(RdmaProvider::Verbs), missing)
            .expect_err("no libraries");
        assert!(e.what.ends_with("no library") && e.hint == MissingLibrary::HINT, "{e}");
        assert_eq!(
            FabricTransport::among(TargetTransport::Iser, None, missing).map(|c| c.name()).as_deref(),
            Ok("iser/iwarp")
        );
        assert!(transport(TargetTransport::Tcp, Some(RdmaProvider::Iwarp), "ACTIVE").is_err());
        assert_eq!(transport(TargetTransport::Tcp, None, "ACTIVE"), Ok(FabricTransport::tcp()));
    }

    #[test]
    fn portals_and_urls_name_the_transport() {
        let at: SocketAddr = "192.0.2.1:4000".parse().expect("an address");
        let with = |carrier, provider| transport(carrier, Some(provider), "ACTIVE").expect("a transport");
        let srp = with(TargetTransport::Srp, RdmaProvider::Iwarp);
        assert_eq!(srp.portal(at), "{ listen = \"192.0.2.1:4000\", transport = [\"srp\"] }");
        assert_eq!(srp.url(at, IQN, Some(3), "window=9"), "srp://192.0.2.1:4000/5c0f2813d1be3e7a/3?window=9");
        let iser = with(TargetTransport::Iser, RdmaProvider::Verbs);
        let portal = "{ listen = \"192.0.2.1:4000\", transport = [\"iser\"], provider = \"verbs\" }";
        assert_eq!(iser.portal(at), portal);
        assert_eq!(iser.url(at, IQN, None, ""), format!("iser://192.0.2.1:4000/{IQN}?provider=verbs"));
        assert!(iser.addresses(1).is_err(), "the address is not local");
        assert!(!iser.is_relayed() && srp.is_relayed() && !srp.is_tcp());
        assert_eq!(FabricTransport::tcp().portal(at), "\"192.0.2.1:4000\"");
        assert_eq!(
            FabricTransport::tcp().url(at, IQN, Some(0), ""),
            format!("iscsi://192.0.2.1:4000/{IQN}/0")
        );
    }
}
