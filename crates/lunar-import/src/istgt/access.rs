//! Access: pairs of a portal group and an initiator group. In an initiator group, the first name that matches decides,
//! and its address must be in a netmask of the group.

use super::IstgtImport;
use super::file::{IstgtKey, IstgtSection, number_after};
use super::portals::PortalTags;
use crate::common::{is_initiator, network};
use crate::{Access, NewTarget};
use std::collections::BTreeMap;

impl IstgtImport {
    /// Carries over the mappings of a target. An access entry of Lunar counts for all portal groups of the target, so
    /// portal groups with other initiator groups than the first one are lost.
    pub(super) fn mappings(
        &mut self,
        target: &mut NewTarget,
        unit: &IstgtSection,
        sections: &[IstgtSection],
        portals: &PortalTags,
        users: (Vec<String>, Option<String>),
    ) {
        let mut by_portal: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for key in unit.all("Mapping") {
            match mapping(key).filter(|(portal, _)| portals.contains_key(portal)) {
                Some((portal, initiators)) => by_portal.entry(portal).or_default().push(initiators),
                None => {
                    self.0.notes.lost(&key.place, format!("{}: {}: no such group", target.name, key.shown()))
                }
            }
        }
        let first =
            unit.all("Mapping").filter_map(mapping).find(|(portal, _)| by_portal.contains_key(portal));
        let groups = first.map(|(portal, _)| by_portal[&portal].clone()).unwrap_or_default();
        for key in unit.all("Mapping") {
            let Some((portal, _)) = mapping(key) else { continue };
            match by_portal.get(&portal) {
                Some(all) if *all == groups => target.portal_groups.extend(&portals[&portal]),
                Some(_) => {
                    let what = format!(
                        "{}: {}: access entries count for all portals, so only portal groups with the same initiator \
                         groups are carried",
                        target.name,
                        key.shown()
                    );
                    self.0.notes.lost(&key.place, what);
                }
                None => {}
            }
        }
        for group in groups {
            let found = sections.iter().find(|section| section.number("InitiatorGroup") == Some(group));
            match found {
                Some(section) => self.initiators(target, section, &users),
                None => self.0.notes.lost(
                    &unit.place,
                    format!("{}: InitiatorGroup{group}, which the file does not have", target.name),
                ),
            }
        }
        close(target);
    }

    fn initiators(
        &mut self,
        target: &mut NewTarget,
        group: &IstgtSection,
        users: &(Vec<String>, Option<String>),
    ) {
        let networks = self.networks(group);
        for key in group.all("InitiatorName") {
            let name = key.word(0);
            let (deny, bare) = name.strip_prefix('!').map_or((false, name), |bare| (true, bare));
            let initiators = match bare {
                _ if bare.eq_ignore_ascii_case("ALL") => Vec::new(),
                bare if is_initiator(bare) => vec![bare.to_owned()],
                _ => {
                    self.0.notes.lost(
                        &key.place,
                        format!("{}: the initiator {name:?}, which is no name", target.name),
                    );
                    if deny {
                        // The names behind it may match hosts that it denies.
                        target.access.push(Access { deny, ..Access::default() });
                        return;
                    }
                    continue;
                }
            };
            if deny {
                target.access.push(Access { initiators, deny, ..Access::default() });
            } else if let Some(networks) = &networks {
                let (chap, mutual) = users.clone();
                target.access.push(Access {
                    initiators,
                    networks: networks.clone(),
                    chap,
                    mutual,
                    ..Access::default()
                });
            }
        }
    }

    /// The networks of a group; empty: all. None: the group has networks, and none of them is valid.
    fn networks(&mut self, group: &IstgtSection) -> Option<Vec<String>> {
        let keys: Vec<&IstgtKey> = group.all("Netmask").collect();
        if keys.is_empty() || keys.iter().any(|key| key.word(0).eq_ignore_ascii_case("ALL")) {
            return Some(Vec::new());
        }
        let mut networks = Vec::new();
        for key in keys {
            match network(key.word(0)) {
                Some(network) => networks.push(network),
                None => self
                    .0
                    .notes
                    .lost(&key.place, format!("{}: {}, which is no network", group.name, key.shown())),
            }
        }
        Some(networks).filter(|networks| !networks.is_empty())
    }
}

/// The numbers of a mapping.
fn mapping(key: &IstgtKey) -> Option<(u16, u16)> {
    Some((number_after(key.word(0), "PortalGroup")?, number_after(key.word(1), "InitiatorGroup")?))
}

/// Without an entry, no host may log in. An entry for every host without CHAP is the default.
fn close(target: &mut NewTarget) {
    match target.access.as_slice() {
        [] => target.access.push(Access { deny: true, ..Access::default() }),
        [one] if *one == Access::default() => target.access.clear(),
        _ => {}
    }
}
