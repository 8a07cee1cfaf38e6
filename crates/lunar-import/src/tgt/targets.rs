//! Targets. tgt-admin numbers them, and identities of disks contain the number.

use super::TgtImport;
use super::access::NO_SECRET;
use super::disks::{Store, stores};
use super::file::TgtEntry;
use super::settings::TgtSettings;
use crate::NewTarget;
use std::collections::BTreeMap;

/// Keys of a target that this module and the others read.
const KNOWN: [&str; 9] = [
    "driver",
    "backing-store",
    "direct-store",
    "initiator-address",
    "initiator-name",
    "incominguser",
    "outgoinguser",
    "controller_tid",
    "state",
];

/// The entries of each target. Blocks with the same name are one target.
pub(super) fn merged(entries: &[TgtEntry]) -> BTreeMap<&str, (String, TgtSettings<'_>)> {
    let mut targets: BTreeMap<&str, (String, TgtSettings<'_>)> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.key == "target") {
        let Some(block) = &entry.block else { continue };
        let (_, keys) =
            targets.entry(&entry.value).or_insert_with(|| (entry.place.clone(), TgtSettings::default()));
        keys.0.extend(block);
    }
    targets
}

impl TgtImport {
    /// Adds the targets. They get their numbers in the order of their names.
    pub(super) fn targets(&mut self, targets: BTreeMap<&str, (String, TgtSettings<'_>)>, driver: &str) {
        let mut tid = 0;
        let is_dump =
            targets.values().any(|(_, keys)| keys.0.iter().any(|entry| entry.value.ends_with(NO_SECRET)));
        if is_dump {
            let what = "a dump has no LUN numbers and no settings of LUNs: compare with tgtadm --mode target --op show";
            self.0.notes.changed("targets", what);
        }
        for (name, (place, keys)) in targets {
            let own = keys.value("controller_tid").and_then(|own| own.parse::<u16>().ok());
            tid = own.map_or(u32::saturating_add(tid, 1), u32::from);
            match keys.value("driver").unwrap_or(driver) {
                "iscsi" => {}
                "iser" => self.1 = true,
                other => {
                    self.0.notes.lost(&place, format!("{name}: a target of the driver {other:?}"));
                    continue;
                }
            }
            self.target(name, tid, &place, &keys);
        }
    }

    fn target(&mut self, name: &str, tid: u32, place: &str, keys: &TgtSettings<'_>) {
        let offline = keys.value("state").is_some_and(|state| state == "offline");
        let mut target = NewTarget { name: self.0.target_name(name, place), offline, ..NewTarget::default() };
        target.portal_groups.insert(1);
        self.access(&mut target, keys);
        let stores = stores(keys);
        for entry in keys.0.iter().filter(|entry| !KNOWN.contains(&entry.key.as_str())) {
            if !Store::reads(&entry.key) {
                self.other_key(entry, name);
            }
        }
        for store in &stores {
            self.store(&mut target, tid, store);
        }
        let what = format!("{name}: target number {tid}, which is in the identities of its disks");
        self.0.notes.carried(place, what);
        self.0.configuration.targets.push(target);
    }
}
