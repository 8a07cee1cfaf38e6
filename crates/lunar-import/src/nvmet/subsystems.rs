//! Subsystems with their namespaces.

use super::NvmetImport;
use super::file::{Attributes, NvmetConfig, NvmetNamespace, NvmetSubsystem};
use crate::common::{medium_of, name_of};
use crate::{Disk, DiskMedium, NamespaceIdentifiers, NewSubsystem, Notes, Outcome};

/// The block size of a file in bytes: the kernel's target takes that of the file system, up to 4096.
const FILE_BLOCK_SIZE: u32 = 4096;
/// Attributes that have a counterpart, or that controllers of Lunar have too.
const KNOWN: &[&str] = &["allow_any_host", "serial", "model", "version", "firmware"];
const OWN: &str = "controllers report Lunar's own";
/// The other attributes of a subsystem.
const ATTRIBUTES: &[Usual] = &[
    Usual(
        "cntlid_min",
        &["1"],
        Outcome::Lost,
        "controller identifiers depend on the tag of the portal group",
    ),
    Usual(
        "cntlid_max",
        &["65519"],
        Outcome::Lost,
        "controller identifiers depend on the tag of the portal group",
    ),
    Usual("pi_enable", &["0"], Outcome::Lost, "protection information"),
    Usual("offload", &["0"], Outcome::Lost, "offload to a network card"),
    Usual("qid_max", &["128"], Outcome::Changed, "a controller has up to 64 I/O queues"),
    Usual("ieee_oui", &["0x000000"], Outcome::Changed, OWN),
    Usual("vendor_id", &["0x0"], Outcome::Changed, OWN),
    Usual("subsys_vendor_id", &["0x0"], Outcome::Changed, OWN),
];

/// An attribute: its key, the values that need no report, and the report of another value.
pub(super) struct Usual(
    pub(super) &'static str,
    pub(super) &'static [&'static str],
    pub(super) Outcome,
    pub(super) &'static str,
);

/// Reports attributes with other values than the usual ones.
pub(super) fn report(notes: &mut Notes, table: &[Usual], all: &Attributes, place: &str) {
    for (key, value) in all.iter().filter(|(key, value)| !value.is_empty() && !KNOWN.contains(key)) {
        match table.iter().find(|Usual(known, ..)| *known == key) {
            Some(Usual(_, usual, ..)) if usual.contains(&value) => {}
            Some(Usual(.., outcome, why)) => notes.add(*outcome, place, format!("{key}={value}: {why}")),
            None => notes.lost(place, format!("{key}={value}")),
        }
    }
}

impl NvmetImport {
    /// Adds a subsystem.
    pub(super) fn subsystem(&mut self, file: &NvmetConfig, from: &NvmetSubsystem, place: &str) {
        self.0.check_subsystem_name(&from.nqn, place);
        report(&mut self.0.notes, ATTRIBUTES, &from.attr, &format!("{place}.attr"));
        let hosts = self.hosts(file, from, place);
        let mut new = NewSubsystem {
            nqn: from.nqn.clone(),
            serial: self.0.subsystem_text(from.attr.text("serial"), "serial number", 20, place),
            model: self.0.subsystem_text(from.attr.text("model"), "model number", 40, place),
            secret: self.own_secret(file, from, &hosts, place),
            hosts,
            ..NewSubsystem::default()
        };
        for passthru in from.passthru.iter().filter(|one| one.enable.is_set()) {
            let what = format!("{}: commands for {} itself", from.nqn, passthru.device.text("path"));
            self.0.notes.lost(format!("{place}.passthru"), what);
        }
        for (n, namespace) in from.namespaces.iter().enumerate() {
            let place = format!("{place}.namespaces[{n}]");
            if self.namespace(&mut new, namespace, &place) {
                self.access_states(file, &from.nqn, namespace, &place);
            }
        }
        self.0.configuration.subsystems.push(new);
    }

    /// Adds a namespace. Returns false if it is not served.
    fn namespace(&mut self, new: &mut NewSubsystem, from: &NvmetNamespace, place: &str) -> bool {
        let (nsid, path) = (from.nsid.number().unwrap_or_default(), from.device.text("path"));
        let why = match path {
            "" => Some("the path is not in the file"),
            _ if !from.enable.is_set() => Some("it is disabled"),
            _ => None,
        };
        if let Some(why) = why {
            self.0.notes.lost(place, format!("{}: namespace {nsid}: {why}", new.nqn));
            return false;
        }
        let medium = medium_of(path);
        let block_size = matches!(medium, DiskMedium::File(_)).then_some(FILE_BLOCK_SIZE);
        let disk = Disk { write_cache: true, block_size, ..Disk::new(name_of(path), medium) };
        let identifiers = NamespaceIdentifiers::new(from.device.text("uuid"), from.device.text("nguid"), "");
        self.0.add_namespace(new, nsid, disk, identifiers.without_default_nguid(), place);
        true
    }
}
