//! `lunar rdma`: lists the RDMA devices and providers of this host.

use crate::client::json;
use crate::exit::Failure;
use clap::Subcommand;
use lunar_rdma::verbs::{MissingLibrary, RdmaDevice, devices};
use serde::Serialize;
use std::fmt::Write;
use utoipa::ToSchema;

/// A command of `lunar rdma`.
#[derive(Debug, Subcommand)]
pub enum Rdma {
    /// List RDMA devices with their ports, and software providers
    #[command(after_help = "Examples:\n  lunar rdma list\n  lunar rdma list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// All devices and providers.
#[derive(Debug, Serialize, ToSchema)]
pub struct RdmaInventory {
    providers: Vec<ProviderStatus>,
    ports: Vec<RdmaPort>,
}

/// A provider, and the reason why it is unusable, if it is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RdmaProvider)]
pub struct ProviderStatus {
    name: &'static str,
    what: &'static str,
    usable: bool,
    missing: Option<String>,
    hint: Option<String>,
}

/// A port of a device.
#[derive(Debug, Serialize, ToSchema)]
pub struct RdmaPort {
    device: String,
    transport: String,
    port: u32,
    state: String,
    gid: String,
    netdev: Option<String>,
    addresses: Vec<String>,
    usable: bool,
}

/// The text to print.
///
/// # Errors
/// When the output cannot be serialized as JSON.
pub fn rdma(command: &Rdma) -> Result<String, Failure> {
    let Rdma::List { json: as_json } = command;
    let found = found(devices());
    if *as_json { Ok(json(&found)?) } else { Ok(text(&found)) }
}

fn found(devices: Result<Vec<RdmaDevice>, MissingLibrary>) -> RdmaInventory {
    let (missing, hint) = match &devices {
        Ok(list) if list.is_empty() => {
            (Some(lunar_rdma::NO_DEVICE.to_owned()), Some(lunar_rdma::NO_DEVICE_HINT.to_string()))
        }
        Ok(list) if list.iter().all(|device| !device.is_usable) => (
            Some("rdma-core has no provider for the RDMA devices of this host".to_owned()),
            Some("install the providers of rdma-core (Debian, Ubuntu: ibverbs-providers)".to_owned()),
        ),
        Ok(_) => (None, None),
        Err(missing) => (Some(missing.to_string()), Some(MissingLibrary::HINT.to_string())),
    };
    let iwarp = ProviderStatus {
        name: "iwarp",
        what: "iWARP in software, over any TCP",
        usable: true,
        missing: None,
        hint: None,
    };
    let verbs = ProviderStatus {
        name: "verbs",
        what: "RDMA devices, by rdma-core",
        usable: missing.is_none(),
        missing,
        hint,
    };
    let ports = devices.unwrap_or_default().into_iter().flat_map(ports).collect();
    RdmaInventory { providers: vec![iwarp, verbs], ports }
}

fn ports(device: RdmaDevice) -> Vec<RdmaPort> {
    let RdmaDevice { name, transport, ports, is_usable } = device;
    let port = |port: lunar_rdma::verbs::RdmaPort| RdmaPort {
        device: name.clone(),
        transport: transport.to_string(),
        port: port.number,
        state: port.state,
        gid: port.gid,
        netdev: port.netdev,
        addresses: port.addresses.iter().map(ToString::to_string).collect(),
        usable: is_usable,
    };
    ports.into_iter().map(port).collect()
}

fn text(found: &RdmaInventory) -> String {
    let mut text = String::from("PROVIDER  USABLE  WHAT\n");
    for provider in &found.providers {
        let usable = if provider.usable { "yes" } else { "no" };
        _ = writeln!(text, "{:<8}  {usable:<6}  {}", provider.name, provider.what);
        provider.missing.iter().for_each(|what| _ = writeln!(text, "  {what}"));
        provider.hint.iter().for_each(|hint| _ = writeln!(text, "  hint: {hint}"));
    }
    if !found.ports.is_empty() {
        _ = writeln!(
            text,
            "\n{:<12}  {:<10}  {:>4}  {:<10}  ADDRESSES",
            "DEVICE", "TRANSPORT", "PORT", "STATE"
        );
    }
    for p in &found.ports {
        let addresses = if p.addresses.is_empty() { p.gid.clone() } else { p.addresses.join(" ") };
        let (device, transport) = (&p.device, &p.transport);
        _ = writeln!(text, "{device:<12}  {transport:<10}  {:>4}  {:<10}  {addresses}", p.port, p.state);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_rdma::verbs::LinkTransport;

    #[test]
    fn missing_provider_has_a_hint() {
        let text = text(&found(Err(MissingLibrary { what: "libibverbs.so.1: no such file".into() })));
        assert!(text.contains("iwarp     yes") && text.contains("verbs     no"), "{text}");
        assert!(text.contains("libibverbs.so.1: no such file\n  hint: install"), "{text}");
        let text = super::text(&found(Ok(Vec::new())));
        assert!(
            text.contains("this host has no RDMA device\n  hint: omit provider: software iWARP needs no"),
            "{text}"
        );
    }

    #[test]
    fn each_port_has_a_line() {
        let port = lunar_rdma::verbs::RdmaPort {
            number: 1,
            state: "ACTIVE".into(),
            gid: "fe80::1".into(),
            netdev: Some("eth0".into()),
            addresses: vec![
                "192.0.2.1".parse().expect("an address"),
                "2001:db8::1".parse().expect("an address"),
            ],
        };
        let device = RdmaDevice {
            name: "siw0".into(),
            transport: LinkTransport::Iwarp,
            ports: vec![port],
            is_usable: true,
        };
        let text = text(&found(Ok(vec![device])));
        assert!(
            text.ends_with("siw0          iWARP          1  ACTIVE      192.0.2.1 2001:db8::1\n"),
            "{text}"
        );
        assert!(text.contains("verbs     yes"), "{text}");
    }
}
