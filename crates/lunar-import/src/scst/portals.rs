//! The portals of targets.

use super::ScstImport;
use super::file::ScstEntry;
use super::hosts;
use crate::common::{every_address, everywhere};
use crate::portals::PortalSets;
use crate::{NewPortal, NewTarget, NewTransport};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

const PORT: u16 = 3260;

/// The portals of a target.
pub(super) struct UsedPortals {
    /// The index of the set.
    pub(super) set: Option<usize>,
    /// The relative target port identifier, with its place.
    pub(super) relative: Option<(String, String)>,
}

impl ScstImport {
    /// Adds the portals of a target: those that it allows, or every address. Returns the index of the set, and the
    /// networks of the portals that patterns allow.
    pub(super) fn portals(
        &mut self,
        target: &mut NewTarget,
        entry: &ScstEntry,
        sets: &mut PortalSets,
    ) -> (Option<usize>, Vec<String>) {
        let mut portals = BTreeSet::new();
        let mut networks = BTreeSet::new();
        let mut is_limited = false;
        for allowed in entry.all("allowed_portal").filter(|allowed| !allowed.arg().is_empty()) {
            is_limited = true;
            let address = allowed.arg().trim_matches(['[', ']']).parse::<IpAddr>().ok();
            match (address, hosts::portals(allowed.arg())) {
                (Some(address), _) => {
                    portals.insert(portal(address));
                    networks.insert(address.to_string());
                }
                (None, Some(all)) => {
                    portals.extend(every_address(false));
                    networks.extend(if all.is_empty() { everywhere() } else { all });
                }
                (None, None) => {
                    let what = format!(
                        "{}: the portals {}: add the addresses of this host to [[portal_group]]",
                        target.name,
                        allowed.arg()
                    );
                    self.imported.notes.lost(allowed.place(), what);
                }
            }
        }
        if !is_limited {
            portals.extend(every_address(false));
        }
        if portals.is_empty() && !target.offline {
            target.offline = true;
            let what =
                format!("{}: all of its portals, so it is offline until it has portal_groups", target.name);
            self.imported.notes.lost(entry.place(), what);
        }
        // Single addresses are portals of their own.
        let has_every = portals.contains(&every_address(false)[0]);
        let networks = if has_every { networks.into_iter().collect() } else { Vec::new() };
        ((!portals.is_empty()).then(|| sets.add(Some(1), portals)), networks)
    }

    /// Makes the portal groups, and names them in the targets.
    pub(super) fn portal_groups(&mut self, sets: &mut PortalSets, used: &[UsedPortals]) {
        let tags = self.imported.portal_groups(sets, "TARGET_DRIVER iscsi");
        if !self.imported.configuration.portal_groups.is_empty() {
            let what = "the port and the addresses, which are arguments of iscsi-scstd: now port 3260 of the \
                        allowed portals, or of every address";
            self.imported.notes.changed("TARGET_DRIVER iscsi", what);
        }
        for (target, UsedPortals { set, relative }) in
            self.imported.configuration.targets.iter_mut().zip(used)
        {
            target.portal_groups.extend(set.iter().flat_map(|set| &tags[*set]));
            let Some((place, id)) = relative else { continue };
            // A target of SCST is one port, and one of Lunar has a port for each portal group.
            match (id.parse(), target.portal_groups.first()) {
                (Ok(id @ 1..), Some(tag)) if target.portal_groups.len() == 1 => {
                    target.relative_ports.extend((id != *tag).then_some((*tag, id)));
                    self.imported.notes.carried(place, format!("{}: rel_tgt_id {id}", target.name));
                }
                _ => {
                    let what = format!(
                        "{}: rel_tgt_id {id}: hosts see other relative target port identifiers",
                        target.name
                    );
                    self.imported.notes.changed(place, what);
                }
            }
        }
    }
}

fn portal(address: IpAddr) -> NewPortal {
    NewPortal { listen: SocketAddr::new(address, PORT).to_string(), transport: NewTransport::Tcp }
}
