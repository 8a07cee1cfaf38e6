//! Target drivers and targets.

use super::ScstImport;
use super::file::ScstEntry;
use super::portals::UsedPortals;
use crate::NewTarget;
use crate::common::{count_of_luns, limit_portals};
use crate::portals::PortalSets;

/// Attributes of targets that are carried over elsewhere, or that hosts negotiate.
const KNOWN: [&str; 23] = [
    "enabled",
    "alias",
    "rel_tgt_id",
    "allowed_portal",
    "per_portal_acl",
    "LUN",
    "GROUP",
    "InitialR2T",
    "ImmediateData",
    "MaxRecvDataSegmentLength",
    "MaxXmitDataSegmentLength",
    "MaxBurstLength",
    "FirstBurstLength",
    "MaxOutstandingR2T",
    "QueuedCommands",
    "NopInInterval",
    "NopInTimeout",
    "RspTimeout",
    "aen_disabled",
    "redirect",
    "addr_method",
    "thread_pid",
    "per_sess_dedicated_tgt_threads",
];

impl ScstImport {
    /// Adds the targets of the iSCSI driver.
    pub(super) fn drivers(&mut self, file: &ScstEntry) {
        let mut sets = PortalSets::default();
        let mut used = Vec::new();
        for driver in file.all("TARGET_DRIVER") {
            match driver.arg() {
                "iscsi" => self.iscsi(driver, &mut sets, &mut used),
                "copy_manager" => {}
                other => {
                    for target in driver.all("TARGET") {
                        let how =
                            if other == "ib_srpt" { "; docs/rdma.md describes SRP portals" } else { "" };
                        let what = format!("{}: a target of the driver {other}{how}", target.arg());
                        self.imported.notes.lost(target.place(), what);
                    }
                }
            }
        }
        self.portal_groups(&mut sets, &used);
    }

    fn iscsi(&mut self, driver: &ScstEntry, sets: &mut PortalSets, used: &mut Vec<UsedPortals>) {
        let is_enabled = driver.flag("enabled") == Some(true);
        if !is_enabled {
            let what = "the iSCSI driver is not enabled, so its targets are offline";
            self.imported.notes.carried(driver.place(), what);
        }
        let (chap, mutual) = self.users(driver, "discovery");
        self.imported.configuration.discovery.chap.extend(chap);
        self.imported.configuration.discovery.mutual = mutual;
        for entry in &driver.entries {
            match entry.key.as_str() {
                "enabled" | "link_local" | "version" | "open_state" => {}
                "TARGET" => {
                    let (target, set) = self.target(entry, is_enabled, sets);
                    self.imported.configuration.targets.push(target);
                    let relative = entry.all("rel_tgt_id").next();
                    let relative = relative.map(|id| (id.place(), id.arg().to_owned()));
                    used.push(UsedPortals { set, relative });
                }
                key if is_user(key) => {}
                _ => self.unknown(entry, "iscsi"),
            }
        }
    }

    fn target(
        &mut self,
        entry: &ScstEntry,
        is_enabled: bool,
        sets: &mut PortalSets,
    ) -> (NewTarget, Option<usize>) {
        let place = entry.place();
        let is_online = is_enabled && entry.flag("enabled") == Some(true);
        let mut target = NewTarget {
            name: self.imported.target_name(entry.arg(), &place),
            alias: entry.value("alias").map(Into::into),
            offline: !is_online,
            ..NewTarget::default()
        };
        let (set, networks) = self.portals(&mut target, entry, sets);
        let (chap, mutual) = self.users(entry, &target.name);
        target.mutual = mutual;
        self.access(&mut target, entry, &chap);
        limit_portals(&mut target.access, &networks);
        self.parameters(entry, &target.name);
        let state = if target.offline { ", offline" } else { "" };
        let what = format!("{}: {}{state}", target.name, count_of_luns(target.luns.len()));
        self.imported.notes.carried(place, what);
        (target, set)
    }

    /// Reports the attributes of a target that hosts may notice.
    fn parameters(&mut self, target: &ScstEntry, name: &str) {
        for entry in &target.entries {
            let (key, value) = (entry.key.as_str(), entry.arg());
            let what = match key {
                "HeaderDigest" | "DataDigest" if !value.contains("None") => {
                    "hosts choose digests now: see [session] in docs/operate.md"
                }
                "HeaderDigest" | "DataDigest" => continue,
                "MaxSessions" if value == "0" => continue,
                "MaxSessions" => "limits count for the whole server: see docs/operate.md",
                "redirect" if value.is_empty() => continue,
                _ if is_user(key) || (KNOWN.contains(&key) && key != "redirect") => continue,
                _ => {
                    self.unknown(entry, name);
                    continue;
                }
            };
            self.imported.notes.changed(entry.place(), format!("{name}: {key} {value}: {what}"));
        }
    }
}

/// Whether an attribute is a CHAP user.
pub(super) fn is_user(key: &str) -> bool {
    let number = key.strip_prefix("IncomingUser").or_else(|| key.strip_prefix("OutgoingUser"));
    number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
}
