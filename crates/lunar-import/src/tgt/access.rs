//! Access lists and CHAP users. In tgt a host may log in if its address or its name is in a list, whichever matches.

use super::TgtImport;
use super::file::TgtEntry;
use super::settings::TgtSettings;
use crate::common::{is_initiator, network};
use crate::{Access, NewTarget};

/// The word that `tgt-admin --dump` writes in place of a secret.
pub(super) const NO_SECRET: &str = "PLEASE_CORRECT_THE_PASSWORD";

impl TgtImport {
    /// Carries over the access list of a target.
    pub(super) fn access(&mut self, target: &mut NewTarget, keys: &TgtSettings<'_>) {
        let (addresses, names) = (keys.all("initiator-address"), keys.all("initiator-name"));
        let chap = self.users(&keys.all("incominguser"));
        target.mutual = self.mutual(&keys.all("outgoinguser"), &chap);
        let is_open = addresses.is_empty() && names.is_empty();
        if is_open || addresses.iter().any(|entry| entry.value == "ALL") {
            let any = Access { chap, ..Access::default() };
            target.access.extend(Some(any).filter(|any| *any != Access::default()));
            return;
        }
        let mut networks: Vec<String> = addresses.iter().filter_map(|entry| self.address(entry)).collect();
        let mut initiators = Vec::new();
        for entry in names {
            match network(&entry.value) {
                Some(network) => {
                    let what =
                        format!("{}: an address, as tgt-admin --dump writes it, not a name", entry.value);
                    self.0.notes.changed(&entry.place, what);
                    networks.push(network);
                }
                None => initiators.extend(self.name(entry)),
            }
        }
        let entry = || Access { chap: chap.clone(), ..Access::default() };
        if !networks.is_empty() {
            target.access.push(Access { networks, ..entry() });
        }
        if !initiators.is_empty() {
            target.access.push(Access { initiators, ..entry() });
        }
        if target.access.is_empty() {
            target.access.push(Access { deny: true, ..Access::default() });
        }
    }

    fn address(&mut self, entry: &TgtEntry) -> Option<String> {
        let network = network(&entry.value);
        if network.is_none() {
            let what = format!("access from {:?}, which is no address and no network", entry.value);
            self.0.notes.lost(&entry.place, what);
        }
        network
    }

    /// A name of a host, which has no wildcards in tgt.
    fn name(&mut self, entry: &TgtEntry) -> Option<String> {
        let name = &entry.value;
        if is_initiator(name) {
            return Some(name.clone());
        }
        self.0.notes.lost(&entry.place, format!("access of {name:?}, which is no initiator name"));
        None
    }

    /// The ids of users. Of two with the same name, tgt knows the last.
    pub(super) fn users(&mut self, entries: &[&TgtEntry]) -> Vec<String> {
        let mut ids = Vec::new();
        for (n, entry) in entries.iter().enumerate() {
            let (name, secret) = user_and_secret(&entry.value);
            if entries[n + 1..].iter().any(|other| user_and_secret(&other.value).0 == name) {
                let what = format!("the CHAP user {name:?}, which has another secret below");
                self.0.notes.lost(&entry.place, what);
                continue;
            }
            ids.push(match secret {
                NO_SECRET => self.unknown_secret(name, &entry.place),
                secret => self.0.user(name, secret, &entry.place),
            });
        }
        ids
    }

    /// The id of the user for mutual CHAP, the first one.
    pub(super) fn mutual(&mut self, entries: &[&TgtEntry], hosts: &[String]) -> Option<String> {
        let (first, others) = entries.split_first()?;
        for other in others {
            let what =
                format!("{} {}: tgt uses the first one only", other.key, user_and_secret(&other.value).0);
            self.0.notes.lost(&other.place, what);
        }
        let (name, secret) = user_and_secret(&first.value);
        Some(match secret {
            NO_SECRET => self.unknown_secret(name, &first.place),
            secret => self.0.mutual_user(name, secret, hosts, &first.place),
        })
    }

    fn unknown_secret(&mut self, name: &str, place: &str) -> String {
        let what = format!("the CHAP secret of {name:?}, which tgt-admin --dump does not write");
        self.0.notes.lost(place, what);
        self.0.configuration.chap_user(name, None)
    }
}

fn user_and_secret(text: &str) -> (&str, &str) {
    let mut words = text.split_whitespace();
    (words.next().unwrap_or("unknown"), words.next().unwrap_or_default())
}
