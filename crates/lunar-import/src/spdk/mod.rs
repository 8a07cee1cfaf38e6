//! The configuration of SPDK, as `rpc.py save_config` writes it: a list of RPCs for each part of SPDK.

mod bdevs;
mod calls;
mod hosts;
mod subsystems;

use crate::nvme_steps::listen_address;
use crate::portals::PortalSets;
use crate::{AdmittedHosts, ImportError, Imported, NewPortal, NewPortalGroup, NewTransport, Reader};
use bdevs::Bdev;
use calls::Call;
use std::collections::{BTreeMap, BTreeSet};

/// Methods that set up what Lunar does in its own way, besides those whose names contain `_set_`.
const SETTINGS: &[&str] = &["nvmf_create_transport", "bdev_wait_for_examine", "framework_start_init"];

/// Imports a configuration of SPDK. The reader gets the files with the keys of hosts.
///
/// # Errors
/// The text is no such file, or it has no NVMe subsystem.
pub fn spdk(text: &str, reader: Reader<'_>) -> Result<Imported, ImportError> {
    let calls = calls::read(text)?;
    if !calls.iter().any(|call| call.method == "nvmf_create_subsystem") {
        let hint = "save the running target: rpc.py save_config";
        return Err(ImportError::new("there is no nvmf_create_subsystem", hint));
    }
    let mut import =
        SpdkImport { imported: Imported::default(), reader, bdevs: BTreeMap::new(), keys: BTreeMap::new() };
    let mut portals = Portals::default();
    for call in &calls {
        import.call(call, &mut portals);
    }
    import.imported.subsystem_portals(&mut portals.sets, &portals.used, "nvmf");
    import.discovery_portals(portals.discovery);
    for subsystem in &import.imported.configuration.subsystems {
        if subsystem.hosts == AdmittedHosts::Named(BTreeSet::new()) {
            import.imported.notes.carried("nvmf", format!("{}: no host may connect", subsystem.nqn));
        }
    }
    Ok(import.imported)
}

/// The import in progress.
struct SpdkImport<'a> {
    imported: Imported,
    reader: Reader<'a>,
    bdevs: BTreeMap<String, Bdev>,
    /// The paths of key files by the names of the keys.
    keys: BTreeMap<String, String>,
}

/// The portals of the subsystems.
#[derive(Default)]
struct Portals {
    sets: PortalSets,
    /// The sets of each subsystem.
    used: Vec<BTreeSet<usize>>,
    /// Addresses of discovery.
    discovery: Vec<NewPortal>,
}

impl SpdkImport<'_> {
    fn call(&mut self, call: &Call, portals: &mut Portals) {
        match call.method.as_str() {
            "keyring_file_add_key" => {
                _ = self.keys.insert(call.text("name").to_owned(), call.text("path").to_owned());
            }
            "nvmf_create_subsystem" => {
                self.subsystem(call);
                portals.used.push(BTreeSet::new());
            }
            "nvmf_subsystem_add_host" => self.host(call),
            "nvmf_subsystem_add_ns" => self.namespace(call),
            "nvmf_subsystem_add_listener" => self.listener(call, portals),
            "nvmf_discovery_add_referral" => self.referral(call),
            // The namespace is reported itself.
            "nvmf_ns_add_host" => {}
            method if SETTINGS.contains(&method) || method.contains("_set_") => {}
            method if method.starts_with("bdev_") => self.bdev(call),
            method => self.imported.notes.lost(&call.place, method),
        }
    }

    fn listener(&mut self, call: &Call, portals: &mut Portals) {
        let nqn = call.text("nqn");
        let address = call.part("listen_address");
        let listen = listen_address(address.text("trtype"), address.text("traddr"), address.text("trsvcid"));
        let listen = match listen {
            Ok(listen) => listen,
            Err(why) => return self.imported.notes.lost(&call.place, format!("{nqn}: {why}")),
        };
        let known = self.imported.configuration.subsystems.iter().position(|one| one.nqn == nqn);
        if nqn == crate::nvme_steps::DISCOVERY_NQN {
            self.imported.notes.carried(&call.place, format!("discovery at {listen}"));
            portals.discovery.push(NewPortal { listen, transport: NewTransport::NvmeDiscovery });
        } else if let Some(index) = known {
            self.imported.notes.carried(&call.place, format!("{nqn}: {listen}"));
            let transport = match call.flag("secure_channel") {
                true => NewTransport::NvmeTls,
                false => NewTransport::NvmeTcp,
            };
            let set = portals.sets.add(None, [NewPortal { listen, transport }]);
            portals.used[index].insert(set);
        } else {
            self.imported.notes.lost(&call.place, format!("{nqn}: {listen}: there is no such subsystem"));
        }
    }

    fn referral(&mut self, call: &Call) {
        let address = call.part("address");
        let to = listen_address(address.text("trtype"), address.text("traddr"), address.text("trsvcid"));
        match to {
            Err(why) => self.imported.notes.lost(&call.place, format!("a referral: {why}")),
            Ok(to) => {
                self.imported.notes.carried(&call.place, format!("the referral to {to}"));
                self.imported.configuration.nvme_referrals.push(to);
            }
        }
    }

    /// Adds a portal group for the addresses at which no subsystem is. At the others, discovery is there anyway.
    fn discovery_portals(&mut self, mut portals: Vec<NewPortal>) {
        let groups = &mut self.imported.configuration.portal_groups;
        let is_known = |portal: &NewPortal| {
            groups.iter().flat_map(|group| &group.portals).any(|one| one.listen == portal.listen)
        };
        portals.retain(|portal| !is_known(portal));
        portals.sort();
        portals.dedup();
        let tag = groups.iter().map(|group| group.tag).max().unwrap_or(0).checked_add(1);
        if let (Some(tag), false) = (tag, portals.is_empty()) {
            groups.push(NewPortalGroup { tag, portals });
        }
    }
}
