//! Access lists and CHAP users. With `initiators.deny`, a host may log in unless that list matches it and
//! `initiators.allow` does not. Without it, `initiators.allow` must match, if that file exists.

use super::IetImport;
use super::file::{IetKey, first_line};
use super::lists::IetLists;
use super::patterns::patterns;
use crate::common::network;
use crate::{Access, NewTarget};

/// The hosts of a line.
#[derive(Default)]
struct IetHosts {
    everybody: bool,
    networks: Vec<String>,
    initiators: Vec<String>,
    /// Whether an item has no counterpart.
    is_partial: bool,
}

impl IetHosts {
    fn entries(&self, of: &Access) -> Vec<Access> {
        if self.everybody {
            return vec![of.clone()];
        }
        let networks = Access { networks: self.networks.clone(), ..of.clone() };
        let initiators = Access { initiators: self.initiators.clone(), ..of.clone() };
        let has_any = |entry: &Access| !entry.networks.is_empty() || !entry.initiators.is_empty();
        [networks, initiators].into_iter().filter(has_any).collect()
    }
}

impl IetImport {
    /// Carries over the rules of a target. `name` is its name in the lists.
    pub(super) fn access(&mut self, target: &mut NewTarget, name: &str, lists: &IetLists, chap: Vec<String>) {
        let admit = Access { chap, ..Access::default() };
        let refuse = Access { deny: true, ..Access::default() };
        let allowed = self.hosts(&lists.allow, name).unwrap_or_default();
        let denied = self.hosts(&lists.deny, name).unwrap_or_default();
        target.access = allowed.entries(&admit);
        if lists.deny.is_some() {
            target.access.extend(denied.entries(&refuse));
        }
        let others = match (&lists.deny, &lists.allow) {
            (Some(_), _) => !denied.is_partial,
            (None, allow) => allow.is_none(),
        };
        match others {
            true => target.access.push(admit),
            false if lists.deny.is_some() => target.access.push(refuse),
            false if target.access.is_empty() => target.access.push(refuse),
            false => {}
        }
        shorten(&mut target.access);
    }

    /// The hosts of the first line for a target.
    fn hosts(&mut self, list: &Option<(String, String)>, target: &str) -> Option<IetHosts> {
        let (path, text) = list.as_ref()?;
        let (line, items) = first_line(text, target)?;
        let mut hosts = IetHosts::default();
        for item in items {
            match (item, network(item), patterns(item)) {
                ("ALL", ..) => hosts.everybody = true,
                (_, Some(network), _) => hosts.networks.push(network),
                (_, None, Some(all)) => hosts.initiators.extend(all),
                _ => {
                    let what = format!(
                        "{target}: the rule {item:?}, which no pattern expresses: such hosts are denied"
                    );
                    self.0.notes.lost(format!("{path}:{line}"), what);
                    hosts.is_partial = true;
                }
            }
        }
        Some(hosts)
    }

    /// The ids of the users of hosts, and of the one for mutual CHAP.
    pub(super) fn users(&mut self, keys: &[IetKey]) -> (Vec<String>, Option<String>) {
        let mut chap = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for key in keys.iter().filter(|key| key.key == "incominguser") {
            let (name, secret) = user_and_secret(&key.value);
            match names.contains(&name) {
                true => self
                    .0
                    .notes
                    .lost(&key.place, format!("the CHAP user {name:?}, which stands above already")),
                false => chap.push(self.0.user(name, secret, &key.place)),
            }
            names.push(name);
        }
        let mut outgoing = keys.iter().filter(|key| key.key == "outgoinguser");
        let mutual = outgoing.next().map(|key| {
            let (name, secret) = user_and_secret(&key.value);
            self.0.mutual_user(name, secret, &chap, &key.place)
        });
        for key in outgoing {
            self.0.notes.lost(&key.place, "another OutgoingUser, of which a target has one");
        }
        (chap, mutual)
    }
}

fn user_and_secret(text: &str) -> (&str, &str) {
    let mut words = text.split_whitespace();
    (words.next().unwrap_or("unknown"), words.next().unwrap_or_default())
}

/// Removes entries that have no effect.
fn shorten(access: &mut Vec<Access>) {
    let is_all = |entry: &Access| entry.networks.is_empty() && entry.initiators.is_empty();
    if let Some(first) = access.iter().position(is_all) {
        access.truncate(first + 1);
    }
    if *access == [Access::default()] {
        access.clear();
    }
}
