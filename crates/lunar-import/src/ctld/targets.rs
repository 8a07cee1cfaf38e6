//! Targets, with their portal groups and their access.

use super::access::CtldAccess;
use super::file::{CtldKey, all};
use super::portals::{CtldPortals, DEFAULT, groups_of, is_address};
use super::{CtldDisks, CtldImport};
use crate::common::count_of_luns;
use crate::{Access, NewTarget};
use std::collections::BTreeSet;

/// Keys of a target that set its access.
const ACCESS: [&str; 5] = ["auth-type", "chap", "chap-mutual", "initiator-name", "initiator-portal"];

impl CtldImport {
    /// Adds a target.
    pub(super) fn target(
        &mut self,
        key: &CtldKey,
        keys: &[CtldKey],
        disks: &CtldDisks<'_>,
        portals: &[CtldPortals<'_>],
    ) {
        let place = key.place();
        if groups_of(key).next().is_none() {
            let ports: Vec<&str> = all(&key.block, "port").map(|port| port.word(0)).collect();
            let what =
                format!("{}: a target with the ports {}, and no portal group", key.word(0), ports.join(", "));
            self.0.notes.lost(place, what);
            return;
        }
        let name = self.0.target_name(key.word(0), &place);
        if self.0.configuration.targets.iter().any(|target| target.name == name) {
            self.0.notes.lost(place, format!("{name}: a target with this name is above already"));
            return;
        }
        let mut target = NewTarget { name, ..NewTarget::default() };
        self.target_portals(&mut target, key, keys, portals);
        for entry in &key.block {
            self.target_key(&mut target, entry, disks);
        }
        self.0.notes.carried(place, format!("{}: {}", target.name, count_of_luns(target.luns.len())));
        self.0.configuration.targets.push(target);
    }

    fn target_key(&mut self, target: &mut NewTarget, key: &CtldKey, disks: &CtldDisks<'_>) {
        match key.key.as_str() {
            "auth-group" | "portal-group" => {}
            access if ACCESS.contains(&access) => {}
            "alias" => target.alias = Some(key.word(0).to_owned()).filter(|alias| !alias.is_empty()),
            "offline" => target.offline = true,
            "lun" => self.lun(target, key, disks),
            "redirect" => self.target_redirect(target, key),
            _ => self.0.notes.lost(key.place(), format!("{}: {}", target.name, key.shown())),
        }
    }

    /// Redirects the logins of a target, at portal groups that do not redirect them already.
    fn target_redirect(&mut self, target: &mut NewTarget, key: &CtldKey) {
        if !is_address(key.word(0)) {
            target.offline = true;
            let what = format!("{}: {}, which is no address, so it is offline", target.name, key.shown());
            self.0.notes.lost(key.place(), what);
        } else {
            redirect(target, &target.portal_groups.clone(), key.word(0));
        }
    }

    /// Carries over the portal groups and the access. An access entry counts for all portal groups of a target, so
    /// portal groups with another auth group than the first one are lost. Those that redirect give no access.
    fn target_portals(
        &mut self,
        target: &mut NewTarget,
        key: &CtldKey,
        keys: &[CtldKey],
        portals: &[CtldPortals<'_>],
    ) {
        let own = all(&key.block, "auth-group").next();
        let mut first: Option<&str> = None;
        for (name, group) in groups_of(key) {
            let place = group.unwrap_or(key).place();
            let Some(found) = portals.iter().find(|found| found.name == name && !found.tags.is_empty())
            else {
                self.0
                    .notes
                    .lost(&place, format!("{}: portal group {name}, which has no portal", target.name));
                continue;
            };
            let auth = group.and_then(|group| group.words.get(1)).map(String::as_str);
            let auth = auth.unwrap_or_else(|| own.map_or("", |own| own.word(0)));
            match &found.redirect {
                Some(to) if is_address(to) => redirect(target, &found.tags, to),
                Some(to) => {
                    let what = format!(
                        "{}: portal group {name}: the redirect {to:?}, which is no address",
                        target.name
                    );
                    self.0.notes.lost(&place, what);
                    continue;
                }
                None if *first.get_or_insert(auth) != auth => {
                    let what = format!(
                        "{}: portal group {name}: access entries count for all portals, so only portal groups with \
                         the same auth group are carried",
                        target.name
                    );
                    self.0.notes.lost(&place, what);
                    continue;
                }
                None => {}
            }
            target.portal_groups.extend(&found.tags);
        }
        if target.portal_groups.is_empty() {
            // Without portal groups, the target would be in all of them.
            target.offline = true;
            self.0.notes.lost(key.place(), format!("{}: its portals, so it is offline", target.name));
        }
        let auth = first.unwrap_or_else(|| own.map_or("", |own| own.word(0)));
        let access = match auth {
            "" if key.block.iter().any(|key| ACCESS.contains(&key.key.as_str())) => {
                self.rules(&key.block, &target.name, &key.place())
            }
            "" => self.auth_group(keys, DEFAULT, &key.place()),
            name => self.auth_group(keys, name, &own.unwrap_or(key).place()),
        };
        match access {
            CtldAccess::Denied => {
                self.0.notes.carried(key.place(), format!("{}: no host may log in", target.name));
                target.access.push(Access { deny: true, ..Access::default() });
            }
            // No list has the same meaning as an entry for every host.
            CtldAccess::Entry(entry) if entry == Access::default() => {}
            CtldAccess::Entry(entry) => target.access.push(entry),
        }
    }
}

/// Adds redirects of portal groups that have none.
fn redirect(target: &mut NewTarget, tags: &BTreeSet<u16>, to: &str) {
    for tag in tags {
        if target.redirects.iter().all(|(other, _)| other != tag) {
            target.redirects.push((*tag, to.to_owned()));
        }
    }
}
