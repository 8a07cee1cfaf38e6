//! Targets with their portal groups. A portal group of LIO has its own LUNs and access list, one of Lunar does not.

use super::file::{Flag, LioPortal, LioPortalGroup, LioTarget, SaveConfig};
use super::{DiskIndices, Import};
use crate::common::count_of_luns;
use crate::portals::PortalSets;
use std::collections::{BTreeMap, BTreeSet};

/// The sets of portals that each target of the configuration uses, with the tags that they had.
pub(super) type TargetPortals = Vec<Vec<(usize, Option<u16>)>>;

impl Import {
    /// Adds the iSCSI targets.
    pub(super) fn targets(
        &mut self,
        file: &SaveConfig,
        disks: &DiskIndices,
        portals: &mut PortalSets,
    ) -> TargetPortals {
        let mut used = Vec::new();
        for (n, target) in file.targets.iter().enumerate() {
            let place = format!("targets[{n}]");
            match target.fabric.as_str() {
                "iscsi" => used.push(self.target(target, &place, disks, portals)),
                other => {
                    self.0.notes.lost(place, format!("{}: a target of the fabric {other:?}", target.wwn))
                }
            }
        }
        used
    }

    fn target(
        &mut self,
        target: &LioTarget,
        place: &str,
        disks: &DiskIndices,
        portals: &mut PortalSets,
    ) -> Vec<(usize, Option<u16>)> {
        let mut new = crate::NewTarget { name: target.wwn.clone(), ..crate::NewTarget::default() };
        let mut used = Vec::new();
        let mut first: Option<&LioPortalGroup> = None;
        for (n, group) in target.tpgs.iter().enumerate() {
            let place = format!("{place}.tpgs[{n}]");
            if !group.enable.unwrap_or(Flag(true)).0 {
                self.0.notes.lost(&place, format!("{}: a disabled portal group", target.wwn));
                continue;
            }
            match first {
                None => self.first_group(&mut new, group, &place, disks),
                Some(first) if is_same_access(first, group) => {}
                // Its portals must not get the LUNs and the access list of the first group.
                Some(_) => {
                    let what = format!(
                        "{}: a portal group with other LUNs or another access list than the first",
                        target.wwn
                    );
                    self.0.notes.lost(&place, what);
                    continue;
                }
            }
            first = first.or(Some(group));
            let own = self.portals(&group.portals, &place);
            if !own.is_empty() {
                used.push((portals.add(group.tag, own), group.tag));
            }
        }
        // A target without portal groups would be in all of them.
        new.offline = used.is_empty();
        self.0.notes.carried(place, format!("{}: {}", new.name, count_of_luns(new.luns.len())));
        self.0.configuration.targets.push(new);
        used
    }

    /// Carries over the LUNs, the access list and the parameters of the first enabled portal group.
    fn first_group(
        &mut self,
        target: &mut crate::NewTarget,
        group: &LioPortalGroup,
        place: &str,
        disks: &DiskIndices,
    ) {
        for (n, lun) in group.luns.iter().enumerate() {
            match disks.get(&lun.storage_object) {
                Some(disk) if target.luns.values().any(|other| other == disk) => {
                    let what =
                        format!("LUN {}: {} is a LUN of this target already", lun.index, lun.storage_object);
                    self.0.notes.lost(format!("{place}.luns[{n}]"), what);
                }
                Some(disk) => _ = target.luns.insert(lun.index, *disk),
                None => {
                    let what = format!("LUN {}: {}", lun.index, lun.storage_object);
                    self.0.notes.lost(format!("{place}.luns[{n}]"), what);
                }
            }
        }
        self.access(target, group, place);
        self.parameters(target, &group.parameters, place);
    }

    /// Reports the negotiated parameters that hosts may notice. The others are Lunar's own.
    fn parameters(
        &mut self,
        target: &mut crate::NewTarget,
        all: &BTreeMap<String, serde_json::Value>,
        place: &str,
    ) {
        let text = |key: &str| all.get(key).and_then(|value| value.as_str()).unwrap_or_default();
        target.alias =
            Some(text("TargetAlias").to_owned()).filter(|alias| !alias.is_empty() && alias != "LIO Target");
        let place = format!("{place}.parameters");
        for (key, usual) in [("ErrorRecoveryLevel", "0"), ("MaxConnections", "1")] {
            let value = text(key);
            if !value.is_empty() && value != usual {
                self.0.notes.changed(&place, format!("{key}={value}: sessions negotiate {usual}"));
            }
        }
        for key in ["HeaderDigest", "DataDigest"] {
            if text(key) == "CRC32C" {
                let what = format!(
                    "{key}=CRC32C demanded digests, which hosts now choose: see [session] in docs/operate.md"
                );
                self.0.notes.changed(&place, what);
            }
        }
    }

    /// The portals of a group. `[::0]` accepts IPv4 too in the kernel's target.
    fn portals(&mut self, portals: &[LioPortal], place: &str) -> Vec<crate::NewPortal> {
        let mut new = Vec::new();
        for (n, portal) in portals.iter().enumerate() {
            let (address, port) = (portal.ip_address.as_str(), portal.port.unwrap_or(3260));
            let is_any = matches!(address, "[::0]" | "[::]" | "::0" | "::");
            let address = match address {
                _ if is_any => "[::]".to_owned(),
                bare if bare.contains(':') && !bare.starts_with('[') => format!("[{bare}]"),
                other => other.to_owned(),
            };
            let transport = crate::NewTransport::iscsi(portal.iser.0);
            new.push(crate::NewPortal { listen: format!("{address}:{port}"), transport });
            if is_any {
                new.push(crate::NewPortal { listen: format!("0.0.0.0:{port}"), transport });
            }
            if portal.offload.0 {
                self.0.notes.changed(
                    format!("{place}.portals[{n}]"),
                    "the portal's offload, which Lunar does not use",
                );
            }
        }
        new
    }

    /// Makes the portal groups, and names them in the targets.
    pub(super) fn portal_groups(&mut self, portals: &mut PortalSets, used: &TargetPortals) {
        let tags = self.0.portal_groups(portals, "targets");
        for (target, sets) in self.0.configuration.targets.iter_mut().zip(used) {
            for (set, before) in sets {
                target.portal_groups.extend(&tags[*set]);
                let same = before.is_none_or(|tag| tags[*set] == BTreeSet::from([tag]));
                if !same {
                    let what = format!(
                        "{}: portal group {} becomes {}, which hosts see as other target port groups",
                        target.name,
                        before.unwrap_or_default(),
                        tags[*set].iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
                    );
                    self.0.notes.changed("targets", what);
                }
            }
        }
    }
}

/// Whether two portal groups show the same LUNs to the same hosts, in the same way.
fn is_same_access(a: &LioPortalGroup, b: &LioPortalGroup) -> bool {
    let luns = |group: &LioPortalGroup| -> BTreeMap<u16, String> {
        group.luns.iter().map(|lun| (lun.index, lun.storage_object.clone())).collect()
    };
    let rules = |group: &LioPortalGroup| {
        (group.attributes.clone(), group.credentials.clone(), group.node_acls.clone())
    };
    luns(a) == luns(b) && rules(a) == rules(b)
}
