//! NewPortal groups. In Lunar they belong to the server, and targets name them. Other targets give each target its own
//! portals.

use crate::configuration::{NewPortal, NewPortalGroup, NewTransport};
use std::collections::{BTreeMap, BTreeSet};

/// Addresses that have another effect now.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ResolvedPortals {
    /// They gave way to single addresses.
    pub(crate) replaced: BTreeSet<String>,
    /// Hosts reached them without TLS, and must use it now.
    pub(crate) with_tls: BTreeSet<String>,
}

/// The portals of the targets, or of their portal groups, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct PortalSets {
    sets: Vec<(Option<u16>, BTreeSet<NewPortal>)>,
}

impl PortalSets {
    /// Adds the portals of a target. `tag` is the preferred portal group tag. Returns the index of the set.
    pub(crate) fn add(&mut self, tag: Option<u16>, portals: impl IntoIterator<Item = NewPortal>) -> usize {
        self.sets.push((tag, portals.into_iter().collect()));
        self.sets.len() - 1
    }

    /// Replaces portals that Lunar cannot have beside others. An unspecified address covers every address of the host,
    /// so it gives way to single addresses with the same port. All sets with an address have its greatest transport, also if
    /// only an unspecified address has it: TLS would end otherwise.
    pub(crate) fn resolve(&mut self) -> ResolvedPortals {
        let all: BTreeSet<NewPortal> = self.sets.iter().flat_map(|(_, portals)| portals.clone()).collect();
        let greatest = |portal: &NewPortal| {
            let is_same =
                |other: &&NewPortal| other.listen == portal.listen || covers(&other.listen, &portal.listen);
            all.iter().filter(is_same).map(|other| other.transport).max().unwrap_or(portal.transport)
        };
        let mut resolved = ResolvedPortals::default();
        let gets_tls = |one: &&NewPortal| {
            one.transport == NewTransport::NvmeTcp && greatest(one) == NewTransport::NvmeTls
        };
        resolved.with_tls = all.iter().filter(gets_tls).map(|portal| portal.listen.clone()).collect();
        for (_, portals) in &mut self.sets {
            let mut new = BTreeSet::new();
            for portal in portals.iter() {
                let single: Vec<&NewPortal> =
                    all.iter().filter(|other| covers(&portal.listen, &other.listen)).collect();
                if single.is_empty() {
                    new.insert(portal.clone());
                } else {
                    resolved.replaced.insert(portal.listen.clone());
                    new.extend(single.into_iter().cloned());
                }
            }
            let merged = new.into_iter().map(|portal| NewPortal { transport: greatest(&portal), ..portal });
            *portals = merged.collect();
        }
        resolved
    }

    /// NewPortal groups such that each set is a union of groups, and the tags of each set. A portal is in one group only,
    /// so portals of several sets form groups of their own.
    pub(crate) fn groups(&self) -> (Vec<NewPortalGroup>, Vec<BTreeSet<u16>>) {
        let mut by_users: BTreeMap<Vec<usize>, Vec<NewPortal>> = BTreeMap::new();
        let all: BTreeSet<&NewPortal> = self.sets.iter().flat_map(|(_, portals)| portals).collect();
        for portal in all {
            let has =
                |(_, (_, portals)): &(usize, &(Option<u16>, BTreeSet<NewPortal>))| portals.contains(portal);
            let users = self.sets.iter().enumerate().filter(has).map(|(index, _)| index).collect();
            by_users.entry(users).or_default().push(portal.clone());
        }
        let mut tags = vec![BTreeSet::new(); self.sets.len()];
        let mut groups: Vec<NewPortalGroup> = Vec::new();
        for (users, portals) in by_users {
            let preferred = users.iter().filter_map(|user| self.sets[*user].0);
            let free = |tag: &u16| groups.iter().all(|group| group.tag != *tag);
            let tag = preferred.chain(1..=u16::MAX).find(free).unwrap_or(u16::MAX);
            users.iter().for_each(|user| _ = tags[*user].insert(tag));
            groups.push(NewPortalGroup { tag, portals });
        }
        groups.sort_by_key(|group| group.tag);
        (groups, tags)
    }
}

/// Whether an address is unspecified and covers another one.
pub(crate) fn covers(any: &str, single: &str) -> bool {
    let port = |address: &str| address.rsplit_once(':').map(|(_, port)| port.to_owned());
    let is_v6 = |address: &str| address.starts_with('[');
    let is_any = |address: &str| address.starts_with("0.0.0.0:") || address.starts_with("[::]:");
    is_any(any) && !is_any(single) && is_v6(any) == is_v6(single) && port(any) == port(single)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portals(addresses: &[&str]) -> Vec<NewPortal> {
        addresses
            .iter()
            .map(|listen| NewPortal { listen: listen.to_string(), transport: NewTransport::Tcp })
            .collect()
    }

    #[test]
    fn portal_of_two_targets_is_in_a_group_of_its_own() {
        let mut sets = PortalSets::default();
        sets.add(Some(1), portals(&["a:1", "b:1"]));
        sets.add(Some(1), portals(&["b:1", "c:1"]));
        sets.add(None, portals(&["c:1", "b:1"]));
        let (groups, tags) = sets.groups();
        let shown: Vec<(u16, Vec<&str>)> = groups
            .iter()
            .map(|group| (group.tag, group.portals.iter().map(|portal| portal.listen.as_str()).collect()))
            .collect();
        assert_eq!(shown, [(1, vec!["a:1"]), (2, vec!["b:1"]), (3, vec!["c:1"])]);
        assert_eq!(tags, [[1, 2].into(), BTreeSet::from([2, 3]), [2, 3].into()]);
    }

    #[test]
    fn unspecified_address_gives_way_to_single_ones() {
        let mut sets = PortalSets::default();
        sets.add(Some(1), portals(&["192.0.2.1:3260", "192.0.2.2:3261"]));
        sets.add(Some(1), portals(&["0.0.0.0:3260", "[::]:3260"]));
        assert_eq!(sets.resolve().replaced, ["0.0.0.0:3260".to_owned()].into());
        let (_, tags) = sets.groups();
        assert!(tags[0].len() == 2 && tags[1].len() == 2 && tags[0].intersection(&tags[1]).count() == 1);
        assert!(sets.sets[1].1.iter().any(|portal| portal.listen == "[::]:3260"), "nothing else has IPv6");
    }

    #[test]
    fn address_with_iser_has_it_in_each_set() {
        let mut sets = PortalSets::default();
        sets.add(None, portals(&["192.0.2.1:3260"]));
        sets.add(None, [NewPortal { listen: "192.0.2.1:3260".into(), transport: NewTransport::Iser }]);
        assert_eq!(sets.resolve(), ResolvedPortals::default());
        assert_eq!(sets.groups().0.len(), 1);
    }

    #[test]
    fn address_that_a_tls_portal_covers_has_tls() {
        let portal = |listen: &str, transport| [NewPortal { listen: listen.into(), transport }];
        for tls in ["0.0.0.0:4420", "127.0.0.1:4420"] {
            let mut sets = PortalSets::default();
            sets.add(None, portal(tls, NewTransport::NvmeTls));
            sets.add(None, portal("127.0.0.1:4420", NewTransport::NvmeTcp));
            assert_eq!(sets.resolve().with_tls, ["127.0.0.1:4420".to_owned()].into(), "{tls}");
            assert_eq!(sets.groups().0[0].portals, portal("127.0.0.1:4420", NewTransport::NvmeTls));
        }
        let mut sets = PortalSets::default();
        sets.add(None, portal("0.0.0.0:4420", NewTransport::NvmeTcp));
        sets.add(None, portal("127.0.0.1:4420", NewTransport::NvmeTls));
        assert_eq!(sets.resolve().with_tls, BTreeSet::new(), "the plain portal is replaced");
        assert_eq!(sets.groups().0[0].portals, portal("127.0.0.1:4420", NewTransport::NvmeTls));
    }

    #[test]
    fn equal_sets_share_a_group_and_keep_their_tag() {
        let mut sets = PortalSets::default();
        sets.add(Some(7), portals(&["a:1", "b:1"]));
        sets.add(Some(7), portals(&["b:1", "a:1"]));
        let (groups, tags) = sets.groups();
        assert_eq!((groups.len(), groups[0].tag, groups[0].portals.len()), (1, 7, 2));
        assert_eq!(tags, [BTreeSet::from([7]), [7].into()]);
    }
}
