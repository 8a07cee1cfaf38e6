//! The configuration of SPDK, as `rpc.py save_config` writes it: a list of RPCs for each part of SPDK.

mod access;
mod bdevs;
mod calls;
mod hosts;
mod subsystems;

use crate::nvme_steps::listen_address;
use crate::portals::{PortalSets, covers};
use crate::{AdmittedHosts, ImportError, Imported, NewPortal, NewPortalGroup, NewTransport, Reader};
use bdevs::Bdev;
use calls::Call;
use std::collections::{BTreeMap, BTreeSet};

/// Methods that set up what Lunar does in its own way, and that change nothing for hosts.
const SETTINGS: &[&str] = &[
    "accel_assign_opc",
    "accel_set_driver",
    "accel_set_options",
    "bdev_enable_histogram",
    "bdev_examine",
    "bdev_iscsi_set_options",
    "bdev_nvme_set_hotplug",
    "bdev_nvme_set_multipath_policy",
    "bdev_nvme_set_options",
    "bdev_raid_set_options",
    "bdev_set_options",
    "bdev_wait_for_examine",
    "compressdev_scan_accel_module",
    "dpdk_cryptodev_scan_accel_module",
    "dpdk_cryptodev_set_driver",
    "dsa_scan_accel_module",
    "framework_set_scheduler",
    "framework_start_init",
    "fsdev_set_opts",
    "iaa_scan_accel_module",
    "ioat_scan_accel_module",
    "iobuf_set_options",
    "iscsi_set_options",
    "keyring_linux_set_options",
    "log_set_flag",
    "log_set_level",
    "log_set_print_level",
    "mlx5_scan_accel_module",
    "nvmf_create_transport",
    "nvmf_set_crdt",
    "nvmf_set_max_subsystems",
    "scheduler_set_options",
    "sock_impl_set_options",
    "sock_set_default_impl",
    "vmd_enable",
];
/// Methods that are lost, and that give no host more access without them. Others with the NQN of a subsystem may do so.
const HARMLESS: &[&str] = &["nvmf_subsystem_listener_set_ana_state", "nvmf_subsystem_set_ns_ana_group"];

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
    let mut import = SpdkImport {
        imported: Imported::default(),
        reader,
        bdevs: BTreeMap::new(),
        keys: BTreeMap::new(),
        any_host: access::any_host(&calls),
    };
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
    /// Whether a subsystem admits every host in the end, by NQN, if a call says so after it was created.
    any_host: BTreeMap<String, bool>,
}

/// The portals of the subsystems.
#[derive(Default)]
struct Portals {
    sets: PortalSets,
    /// The sets of each subsystem.
    used: Vec<BTreeSet<usize>>,
    /// Addresses of discovery.
    discovery: BTreeSet<NewPortal>,
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
            access::ANY_HOST => self.admits_any_host(call),
            "nvmf_set_config" => self.target_settings(call),
            method if SETTINGS.contains(&method) => {}
            method if bdevs::is_made_by(method) => self.bdev(call),
            _ => self.unknown(call),
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
            portals.discovery.insert(NewPortal { listen, transport: NewTransport::NvmeDiscovery });
        } else if let Some(index) = known {
            self.imported.notes.carried(&call.place, format!("{nqn}: {listen}"));
            let transport = match call.flag("secure_channel") {
                true => NewTransport::NvmeTls,
                false => NewTransport::NvmeTcp,
            };
            let set = portals.sets.add(None, [NewPortal { listen: listen.clone(), transport }]);
            portals.used[index].insert(set);
            if !matches!(call.text("ana_state"), "" | "optimized") {
                let what = format!("{nqn}: the ANA state {} at {listen}", call.text("ana_state"));
                self.imported.notes.lost(&call.place, what);
            }
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
    fn discovery_portals(&mut self, portals: BTreeSet<NewPortal>) {
        let mut own: Vec<NewPortal> = Vec::new();
        let groups = &mut self.imported.configuration.portal_groups;
        let all: Vec<&str> =
            groups.iter().flat_map(|group| &group.portals).map(|one| one.listen.as_str()).collect();
        for portal in &portals {
            let listen = portal.listen.as_str();
            let others = all.iter().copied().chain(portals.iter().map(|one| one.listen.as_str()));
            if others.into_iter().any(|other| covers(listen, other)) {
                let what = format!("discovery at {listen}: only at the addresses of the other portals");
                self.imported.notes.changed("nvmf", what);
            } else if !all.iter().any(|other| *other == listen || covers(other, listen)) {
                own.push(portal.clone());
            }
        }
        let tag = groups.iter().map(|group| group.tag).max().unwrap_or(0).checked_add(1);
        if let (Some(tag), false) = (tag, own.is_empty()) {
            groups.push(NewPortalGroup { tag, portals: own });
        }
    }
}
