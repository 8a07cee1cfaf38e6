//! Targets and their portals.

use super::IetImport;
use super::file::{IetKey, IetTarget, first_line};
use super::lists::IetLists;
use crate::common::{count_of_luns, every_address, everywhere, limit_portals, network};
use crate::portals::PortalSets;
use crate::{NewPortal, NewTarget, NewTransport};

/// Keys of the login negotiation, in lower case.
const NEGOTIATED: [&str; 14] = [
    "maxconnections",
    "initialr2t",
    "immediatedata",
    "maxrecvdatasegmentlength",
    "maxxmitdatasegmentlength",
    "maxburstlength",
    "firstburstlength",
    "defaulttime2wait",
    "defaulttime2retain",
    "maxoutstandingr2t",
    "datapduinorder",
    "datasequenceinorder",
    "errorrecoverylevel",
    "headerdigest",
];

impl IetImport {
    pub(super) fn target(&mut self, target: &IetTarget, lists: &IetLists, portals: &mut PortalSets) {
        let name = self.0.target_name(&target.name, &target.place);
        let alias = target.keys.iter().rfind(|key| key.key == "alias").map(|key| key.value.clone());
        let alias = alias.filter(|alias| !alias.is_empty());
        let (chap, mutual) = self.users(&target.keys);
        let mut new = NewTarget { name, alias, mutual, ..NewTarget::default() };
        self.access(&mut new, &target.name, lists, chap);
        for key in &target.keys {
            match key.key.as_str() {
                "lun" => self.lun(&mut new, key),
                "alias" | "incominguser" | "outgoinguser" => {}
                _ => self.other_key(key, &target.name),
            }
        }
        let (addresses, networks) = self.addresses(target, lists);
        limit_portals(&mut new.access, &networks);
        new.offline = addresses.is_empty();
        portals.add(Some(1), addresses);
        self.0.notes.carried(&target.place, format!("{}: {}", new.name, count_of_luns(new.luns.len())));
        self.0.configuration.targets.push(new);
    }

    /// The portals of a target: the addresses that `targets.allow` lists for it. With networks, every address is a
    /// portal, and access is limited to the second part.
    fn addresses(&mut self, target: &IetTarget, lists: &IetLists) -> (Vec<NewPortal>, Vec<String>) {
        let Some((path, text)) = &lists.targets else { return (every_address(false).into(), Vec::new()) };
        let (line, items) = first_line(text, &target.name).unwrap_or_default();
        let place = format!("{path}:{line}");
        let (mut portals, mut networks) = (Vec::new(), Vec::new());
        let has_networks = items.iter().any(|item| *item == "ALL" || item.contains('/'));
        for item in items {
            match (item, network(item)) {
                ("ALL", _) => networks.extend(everywhere()),
                (_, Some(network)) if has_networks => networks.push(network),
                (_, Some(address)) => {
                    let listen = match address.contains(':') {
                        true => format!("[{address}]:3260"),
                        false => format!("{address}:3260"),
                    };
                    portals.push(NewPortal { listen, transport: NewTransport::Tcp });
                }
                _ => self
                    .0
                    .notes
                    .lost(&place, format!("{}: the portals in {item}, which is no network", target.name)),
            }
        }
        if !networks.is_empty() {
            portals.extend(every_address(false));
        }
        if portals.is_empty() {
            let what = format!("{}: {path} names no address for it, so it is offline", target.name);
            self.0.notes.changed(&target.place, what);
        }
        (portals, networks)
    }

    /// Makes the portal groups, and names them in the targets. A target without addresses is in the first group.
    pub(super) fn portals(&mut self, portals: &mut PortalSets) {
        for address in portals.resolve().replaced {
            let what = format!(
                "the portal {address}: only the single addresses of targets.allow, because it covers them"
            );
            self.0.notes.changed("targets", what);
        }
        let (mut groups, tags) = portals.groups();
        if groups.is_empty() {
            let mut every = PortalSets::default();
            every.add(Some(1), every_address(false));
            groups = every.groups().0;
        }
        let first = groups.first().map(|group| group.tag);
        for (target, tags) in self.0.configuration.targets.iter_mut().zip(tags) {
            target.portal_groups = tags;
            if target.portal_groups.is_empty() {
                target.portal_groups.extend(first);
            }
        }
        self.0.configuration.portal_groups = groups;
        let what = "the port 3260: compare it and the addresses with the arguments of ietd";
        self.0.notes.changed("targets", what);
    }

    /// Reports a key that has no counterpart.
    pub(super) fn other_key(&mut self, key: &IetKey, of: &str) {
        let what = format!("{of}: {} {}", key.key, key.value);
        match key.key.as_str() {
            "nopinterval" | "noptimeout" => {
                let what = format!("{what}: set nop_interval_s and nop_timeout_s in [session]");
                self.0.notes.changed(&key.place, what);
            }
            word if NEGOTIATED.contains(&word) || word == "datadigest" => {
                let what =
                    format!("{what}: hosts negotiate it with the server, see [session] in docs/operate.md");
                self.0.notes.changed(&key.place, what);
            }
            word if word.starts_with("isns") => {
                self.0.notes.lost(&key.place, format!("{what}: Lunar does not register with iSNS"));
            }
            _ => self.0.notes.lost(&key.place, what),
        }
    }
}
