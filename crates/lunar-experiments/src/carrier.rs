//! What carries commands and data of an experiment, and on which provider of RDMA.

use lunar_bench::{Error, Kind, Transport};
use lunar_rdma::verbs::MissingLibrary;
use lunar_wire::srp::PortId;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// What carries RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Provider {
    /// iWARP in software, over TCP on loopback
    Iwarp,
    /// An RDMA device of this host
    Verbs,
}

/// A device that is up, and an address that leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    name: String,
    address: IpAddr,
}

/// A transport, and the device that is used for it; None is TCP on loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    transport: Transport,
    device: Option<Device>,
}

impl Carrier {
    /// What an experiment is asked to use: without a word about the provider a device, where there is one.
    ///
    /// # Errors
    /// When a device is wanted and there is none, or a provider for TCP.
    pub fn of(transport: Transport, provider: Option<Provider>) -> Result<Carrier, Error> {
        Carrier::among(transport, provider, lunar_rdma::verbs::devices)
    }

    fn among(
        transport: Transport,
        provider: Option<Provider>,
        devices: impl FnOnce() -> Result<Vec<lunar_rdma::verbs::RdmaDevice>, MissingLibrary>,
    ) -> Result<Carrier, Error> {
        let device = match (transport, provider) {
            (Transport::Tcp, Some(_)) => {
                let hint = "leave it out, or say --transport iser or srp";
                return Err(Error::new(Kind::Invalid, "--provider: TCP needs none", hint));
            }
            (Transport::Tcp, None) | (_, Some(Provider::Iwarp)) => None,
            (_, None) => devices().ok().and_then(one_that_is_up),
            (_, Some(Provider::Verbs)) => Some(devices().map_err(without_libraries).and_then(|devices| {
                let what = "--provider verbs: this host has no RDMA device that is up and has an address";
                one_that_is_up(devices)
                    .ok_or_else(|| Error::new(Kind::Invalid, what, "lunar rdma list shows what there is"))
            })?),
        };
        Ok(Carrier { transport, device })
    }

    /// iSCSI over TCP on loopback.
    #[cfg(test)]
    pub fn tcp() -> Carrier {
        Carrier { transport: Transport::Tcp, device: None }
    }

    /// Plain iSCSI: what other targets are started for.
    pub fn is_tcp(&self) -> bool {
        self.transport == Transport::Tcp
    }

    /// It travels over TCP connections, which a relay can carry on.
    pub fn is_relayed(&self) -> bool {
        self.device.is_none()
    }

    /// As reports have it: `tcp`, `iser/iwarp`, `srp/verbs:rxe0`.
    pub fn name(&self) -> String {
        match (self.transport, &self.device) {
            (Transport::Tcp, _) => "tcp".into(),
            (transport, None) => format!("{}/iwarp", transport.scheme()),
            (transport, Some(device)) => format!("{}/verbs:{}", transport.scheme(), device.name),
        }
    }

    /// What stands in for the network of a publication.
    pub fn stands_in(&self, network: &str) -> String {
        let protocol = match self.transport {
            Transport::Tcp => "iSCSI over tcp",
            Transport::Iser => "iSER",
            Transport::Srp => "SRP",
        };
        let how = match (&self.device, self.is_tcp()) {
            (Some(device), _) => {
                format!(" by the device {} ({}), both ends on this host,", device.name, self.name())
            }
            (None, true) => " on loopback".into(),
            (None, false) => format!(" over iWARP in software ({}) on loopback", self.name()),
        };
        format!("{protocol}{how} stands in for {network}")
    }

    /// Where Lunar is to listen. A device has no port to give away: it gets some that are free now.
    ///
    /// # Errors
    /// When no port is free, for people.
    pub fn addresses(&self, many: usize) -> Result<Vec<SocketAddr>, String> {
        match &self.device {
            None => Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); many]),
            Some(device) => free_ports(device.address, many),
        }
    }

    /// A portal of Lunar that carries it, in a configuration.
    pub fn portal(&self, listen: SocketAddr) -> String {
        let (carries, provider) = match (self.transport, &self.device) {
            (Transport::Tcp, _) => return format!("\"{listen}\""),
            (Transport::Iser, None) => ("\"tcp\", \"iser\"", ""),
            // iWARP devices in software are TCP themselves.
            (Transport::Iser, Some(_)) => ("\"iser\"", ", provider = \"verbs\""),
            (Transport::Srp, None) => ("\"srp\"", ""),
            (Transport::Srp, Some(_)) => ("\"srp\"", ", provider = \"verbs\""),
        };
        format!("{{ listen = \"{listen}\", transport = [{carries}]{provider} }}")
    }

    /// The URL of a target of this iSCSI name, or of its LUN, with settings.
    pub fn url(&self, portal: SocketAddr, target: &str, lun: Option<u16>, settings: &str) -> String {
        let name = match self.transport {
            Transport::Srp => format!("{:016x}", PortId::of_name(target).guid()),
            Transport::Tcp | Transport::Iser => target.to_owned(),
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
    Error::new(Kind::Invalid, format!("--provider verbs: {missing}"), MissingLibrary::HINT)
}

fn one_that_is_up(devices: Vec<lunar_rdma::verbs::RdmaDevice>) -> Option<Device> {
    let usable = devices.into_iter().filter(|device| device.is_usable);
    let up = |device: lunar_rdma::verbs::RdmaDevice| {
        let mut ports = device.ports.into_iter().filter(|port| port.state == "ACTIVE");
        // The connection manager does not take addresses of one link without its number.
        let address = ports.find_map(|port| port.addresses.into_iter().find(IpAddr::is_ipv4))?;
        Some(Device { name: device.name, address })
    };
    usable.filter_map(up).next()
}

/// Ports of an address that were free a moment ago.
///
/// # Errors
/// When there are none, for people.
pub fn free_ports(address: IpAddr, many: usize) -> Result<Vec<SocketAddr>, String> {
    let held: Result<Vec<_>, _> = (0..many).map(|_| TcpListener::bind((address, 0))).collect();
    let addresses = held.and_then(|held| held.iter().map(TcpListener::local_addr).collect());
    addresses.map_err(|e: std::io::Error| format!("no port is free: {e}"))
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

    fn carrier(transport: Transport, provider: Option<Provider>, state: &str) -> Result<Carrier, Error> {
        Carrier::among(transport, provider, || devices(state, "192.0.2.1"))
    }

    #[test]
    fn a_device_is_used_where_one_is_up_and_iwarp_otherwise() {
        let name = |provider, state| carrier(Transport::Srp, provider, state).map(|c| c.name());
        assert_eq!(name(None, "ACTIVE").as_deref(), Ok("srp/verbs:rxe0"));
        assert_eq!(name(None, "DOWN").as_deref(), Ok("srp/iwarp"));
        assert_eq!(name(Some(Provider::Iwarp), "ACTIVE").as_deref(), Ok("srp/iwarp"));
        let e = name(Some(Provider::Verbs), "DOWN").expect_err("none is up");
        assert!(e.kind == Kind::Invalid && e.what.contains("no RDMA device that is up"), "{e}");
        let missing = || Err(MissingLibrary { what: "no library".into() });
        let e = Carrier::among(Transport::Iser, Some(Provider::Verbs), missing).expect_err("no libraries");
        assert!(e.what.ends_with("no library") && e.hint == *MissingLibrary::HINT, "{e}");
        assert_eq!(
            Carrier::among(Transport::Iser, None, missing).map(|c| c.name()).as_deref(),
            Ok("iser/iwarp")
        );
        assert!(carrier(Transport::Tcp, Some(Provider::Iwarp), "ACTIVE").is_err());
        assert_eq!(carrier(Transport::Tcp, None, "ACTIVE"), Ok(Carrier::tcp()));
    }

    #[test]
    fn portals_and_urls_say_what_carries_them() {
        let at: SocketAddr = "192.0.2.1:4000".parse().expect("an address");
        let with = |transport, provider| carrier(transport, Some(provider), "ACTIVE").expect("a carrier");
        let srp = with(Transport::Srp, Provider::Iwarp);
        assert_eq!(srp.portal(at), "{ listen = \"192.0.2.1:4000\", transport = [\"srp\"] }");
        assert_eq!(srp.url(at, IQN, Some(3), "window=9"), "srp://192.0.2.1:4000/5c0f2813d1be3e7a/3?window=9");
        let iser = with(Transport::Iser, Provider::Verbs);
        let portal = "{ listen = \"192.0.2.1:4000\", transport = [\"iser\"], provider = \"verbs\" }";
        assert_eq!(iser.portal(at), portal);
        assert_eq!(iser.url(at, IQN, None, ""), format!("iser://192.0.2.1:4000/{IQN}?provider=verbs"));
        assert!(iser.addresses(1).is_err(), "nobody has this address");
        assert!(!iser.is_relayed() && srp.is_relayed() && !srp.is_tcp());
        assert_eq!(Carrier::tcp().portal(at), "\"192.0.2.1:4000\"");
        assert_eq!(Carrier::tcp().url(at, IQN, Some(0), ""), format!("iscsi://192.0.2.1:4000/{IQN}/0"));
    }
}
