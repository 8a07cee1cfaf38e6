//! Writes a configuration as `lunar.toml`.

use crate::configuration::{
    Access, Configuration, Disk, DiskMedium, Identity, NewPortalGroup, NewTarget, NewTransport, ReadOnly,
};
use std::collections::BTreeMap;
use std::fmt::Display;

/// The text of `lunar.toml`. Secrets of CHAP users are in the files `ID.secret` of the folder `secrets`, relative to the file.
/// Those of NVMe are there in files with their own names.
pub fn toml(configuration: &Configuration, secrets: &str) -> String {
    let mut text = Text::default();
    configuration.portal_groups.iter().for_each(|group| text.portal_group(group));
    text.discovery(configuration);
    let shared = shared(configuration);
    for index in shared.values().filter(|index| **index < configuration.disks.len()) {
        text.table("[[disk]]");
        text.text("name", Some(&configuration.disks[*index].name));
        text.disk(&configuration.disks[*index]);
    }
    configuration.targets.iter().for_each(|target| text.target(target, configuration, &shared));
    for subsystem in &configuration.subsystems {
        text.subsystem(subsystem, configuration, &shared, secrets);
    }
    for user in &configuration.chap_users {
        text.table("[[chap_user]]");
        text.text("id", Some(&user.id).filter(|id| **id != user.name));
        text.text("name", Some(&user.name));
        text.text("secret_file", Some(&format!("{secrets}/{}.secret", user.id)));
    }
    text.0
}

/// The disks that several LUNs or namespaces show, by name.
fn shared(configuration: &Configuration) -> BTreeMap<&str, usize> {
    let mut shown = BTreeMap::new();
    let luns = configuration.targets.iter().flat_map(|target| target.luns.values().copied());
    let of = |subsystem: &'_ crate::NewSubsystem| -> Vec<usize> {
        subsystem.namespaces.values().map(|namespace| namespace.disk).collect()
    };
    for index in luns.chain(configuration.subsystems.iter().flat_map(of)) {
        *shown.entry(index).or_insert(0) += 1;
    }
    let shared = shown.into_iter().filter(|(_, count)| *count > 1);
    shared.map(|(index, _)| (configuration.disks[index].name.as_str(), index)).collect()
}

/// A value as it stands in TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

#[derive(Default)]
pub(crate) struct Text(String);

impl Text {
    pub(crate) fn table(&mut self, name: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        self.0 += &format!("{gap}{name}\n");
    }

    pub(crate) fn key(&mut self, key: &str, value: impl Display) {
        self.0 += &format!("{key} = {value}\n");
    }

    pub(crate) fn text(&mut self, key: &str, value: Option<&String>) {
        value.into_iter().for_each(|value| self.key(key, quoted(value)));
    }

    pub(crate) fn texts(&mut self, key: &str, values: &[String]) {
        if !values.is_empty() {
            let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
            self.key(key, format!("[{}]", values.join(", ")));
        }
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool, default: bool) {
        if value != default {
            self.key(key, value);
        }
    }

    pub(crate) fn numbers(&mut self, key: &str, numbers: impl IntoIterator<Item = impl Display>) {
        self.key(key, list(numbers));
    }

    fn portal_group(&mut self, group: &NewPortalGroup) {
        self.table("[[portal_group]]");
        self.key("tag", group.tag);
        let portals = group.portals.iter().map(|portal| match transport(portal.transport) {
            "" => quoted(&portal.listen),
            keys => format!("{{ listen = {}, {keys} }}", quoted(&portal.listen)),
        });
        self.key("portals", format!("[{}]", portals.collect::<Vec<_>>().join(", ")));
    }

    fn discovery(&mut self, configuration: &Configuration) {
        let discovery = &configuration.discovery;
        if *discovery == Default::default() && configuration.nvme_referrals.is_empty() {
            return;
        }
        self.table("[discovery]");
        self.flag("enabled", !discovery.disabled, true);
        self.texts("chap", &discovery.chap);
        self.text("mutual", discovery.mutual.as_ref());
        self.texts("nvme_referrals", &configuration.nvme_referrals);
    }

    fn target(&mut self, target: &NewTarget, configuration: &Configuration, shared: &BTreeMap<&str, usize>) {
        self.table("[[target]]");
        self.text("name", Some(&target.name));
        self.text("alias", target.alias.as_ref());
        if !target.portal_groups.is_empty() {
            self.numbers("portal_groups", &target.portal_groups);
        }
        if !target.relative_ports.is_empty() {
            self.key("relative_ports", map(&target.relative_ports));
        }
        if !target.redirects.is_empty() {
            let one = |(tag, to): &(u16, String)| format!("{{ portal_group = {tag}, to = {} }}", quoted(to));
            self.key(
                "redirect",
                format!("[{}]", target.redirects.iter().map(one).collect::<Vec<_>>().join(", ")),
            );
        }
        self.flag("offline", target.offline, false);
        self.text("mutual", target.mutual.as_ref());
        for (number, index) in &target.luns {
            self.table("[[target.lun]]");
            self.key("lun", number);
            self.medium_or_name(*index, configuration, shared);
        }
        target.access.iter().for_each(|access| self.access(access));
    }

    /// The keys of a disk, or its name if others show it too.
    pub(crate) fn medium_or_name(
        &mut self,
        index: usize,
        configuration: &Configuration,
        shared: &BTreeMap<&str, usize>,
    ) {
        let disk = &configuration.disks[index];
        match shared.values().any(|shared| *shared == index) {
            true => self.text("disk", Some(&disk.name)),
            false => self.disk(disk),
        }
    }

    fn disk(&mut self, disk: &Disk) {
        match &disk.medium {
            DiskMedium::File(path) => self.medium("file", Some(path), None),
            DiskMedium::Device(path) => self.medium("device", Some(path), None),
            DiskMedium::Memory(size) => self.medium("memory", None, Some(*size)),
            DiskMedium::Null(size) => self.medium("null", None, Some(*size)),
        }
        if disk.cdrom {
            self.key("kind", "\"cdrom\"");
        }
        disk.block_size.iter().for_each(|size| self.key("block_size", size));
        disk.physical_block_size.iter().for_each(|size| self.key("physical_block_size", size));
        self.flag("read_only", disk.read_only, disk.cdrom);
        self.flag("removable", disk.removable, disk.cdrom);
        self.flag("write_cache", disk.write_cache, true);
        self.flag("direct", disk.direct, false);
        self.flag("thin", disk.thin, !disk.cdrom);
        self.identity(&disk.identity);
    }

    fn medium(&mut self, backend: &str, path: Option<&String>, size: Option<u64>) {
        self.key("backend", quoted(backend));
        self.text("path", path);
        size.iter().for_each(|size| self.key("size", size));
    }

    fn identity(&mut self, identity: &Identity) {
        for (key, value) in [
            ("serial", &identity.serial),
            ("naa", &identity.naa),
            ("eui64", &identity.eui64),
            ("t10_id", &identity.t10_id),
            ("scsi_name", &identity.scsi_name),
        ] {
            self.text(key, value.as_ref());
        }
        self.texts("designators", &identity.designators);
        self.text("vendor", identity.vendor.as_ref());
        self.text("product", identity.product.as_ref());
        self.text("revision", identity.revision.as_ref());
    }

    fn access(&mut self, access: &Access) {
        self.table("[[target.access]]");
        self.texts("initiators", &access.initiators);
        self.texts("networks", &access.networks);
        self.texts("portals", &access.portals);
        self.flag("deny", access.deny, false);
        self.texts("chap", &access.chap);
        self.text("mutual", access.mutual.as_ref());
        if let Some(luns) = &access.luns {
            self.key("luns", if luns.is_empty() { "[]".into() } else { map(luns) });
        }
        match &access.read_only {
            ReadOnly::None => {}
            ReadOnly::All => self.key("read_only", true),
            ReadOnly::Luns(luns) => self.key("read_only", list(luns)),
        }
    }
}

/// The keys of a portal with this transport.
fn transport(transport: NewTransport) -> &'static str {
    match transport {
        NewTransport::Tcp => "",
        NewTransport::Iser => "transport = [\"tcp\", \"iser\"]",
        NewTransport::NvmeDiscovery => "transport = [\"nvme-discovery\"]",
        NewTransport::NvmeTcp => "transport = [\"nvme-tcp\"]",
        NewTransport::NvmeTls => "transport = [\"nvme-tcp\"], tls = \"required\"",
    }
}

fn map(numbers: &BTreeMap<u16, u16>) -> String {
    let one = |(key, number): (&u16, &u16)| format!("{key} = {number}");
    format!("{{ {} }}", numbers.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn list(numbers: impl IntoIterator<Item = impl Display>) -> String {
    format!("[{}]", numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(", "))
}
