//! Auth groups. A host has access if its name and its address are listed, and if it logs in as a user of the group.

use super::CtldImport;
use super::file::{CtldKey, all, value};
use super::portals::DEFAULT;
use crate::Access;
use crate::common::{is_initiator, network};

/// The access that an auth group gives.
pub(super) enum CtldAccess {
    /// No host.
    Denied,
    /// These hosts.
    Entry(Access),
}

impl CtldImport {
    /// The access of the auth group with this name. A group that the file does not have denies all hosts.
    pub(super) fn auth_group(&mut self, keys: &[CtldKey], name: &str, place: &str) -> CtldAccess {
        match all(keys, "auth-group").find(|group| group.word(0) == name) {
            Some(group) => self.rules(&group.block, &format!("auth group {name}"), place),
            None if name == "no-authentication" => CtldAccess::Entry(Access::default()),
            None if matches!(name, DEFAULT | "no-access") => CtldAccess::Denied,
            None => {
                self.0.notes.lost(place, format!("auth group {name}, which the file does not have"));
                CtldAccess::Denied
            }
        }
    }

    /// The access by the keys of an auth group, which a target may have too.
    pub(super) fn rules(&mut self, keys: &[CtldKey], of: &str, place: &str) -> CtldAccess {
        let has_users = keys.iter().any(|key| matches!(key.key.as_str(), "chap" | "chap-mutual"));
        match value(keys, "auth-type") {
            Some("none") if !has_users => {}
            Some("none" | "chap" | "chap-mutual") | None if has_users => {}
            Some("deny" | "chap" | "chap-mutual") | None => return CtldAccess::Denied,
            Some(other) => {
                self.0.notes.lost(place, format!("{of}: the auth-type {other:?}: no host has access"));
                return CtldAccess::Denied;
            }
        }
        let initiators = self
            .listed(keys, "initiator-name", of, |name| is_initiator(name).then(|| name.to_ascii_lowercase()));
        let networks = self.listed(keys, "initiator-portal", of, network);
        let (Some(initiators), Some(networks)) = (initiators, networks) else { return CtldAccess::Denied };
        let (chap, mutual) = self.users(keys);
        CtldAccess::Entry(Access { initiators, networks, chap, mutual, ..Access::default() })
    }

    /// The values of a key; empty: the key is absent. None: no value is valid.
    fn listed(
        &mut self,
        keys: &[CtldKey],
        name: &str,
        of: &str,
        valid: impl Fn(&str) -> Option<String>,
    ) -> Option<Vec<String>> {
        let mut values = Vec::new();
        for key in all(keys, name) {
            match valid(key.word(0)) {
                Some(value) => values.push(value),
                None => {
                    self.0.notes.lost(key.place(), format!("{of}: {}, which matches no host", key.shown()))
                }
            }
        }
        (!values.is_empty() || all(keys, name).next().is_none()).then_some(values)
    }

    /// The ids of the users, and of the one for mutual CHAP, of which an access entry has one.
    fn users(&mut self, keys: &[CtldKey]) -> (Vec<String>, Option<String>) {
        let users: Vec<&CtldKey> =
            keys.iter().filter(|key| matches!(key.key.as_str(), "chap" | "chap-mutual")).collect();
        let mut chap = Vec::new();
        for (n, key) in users.iter().enumerate() {
            match users[..n].iter().any(|other| other.word(0) == key.word(0)) {
                true => self
                    .0
                    .notes
                    .lost(key.place(), format!("the CHAP user {:?}, which is above already", key.word(0))),
                false => chap.push(self.0.user(key.word(0), key.word(1), key.place())),
            }
        }
        let mut with = users.iter().filter(|key| !key.word(2).is_empty());
        let Some(first) = with.next() else { return (chap, None) };
        for other in with.filter(|other| [other.word(2), other.word(3)] != [first.word(2), first.word(3)]) {
            let what = format!(
                "the user {:?} for mutual CHAP with {:?}: hosts of one entry have one",
                other.word(2),
                other.word(0)
            );
            self.0.notes.lost(other.place(), what);
        }
        let mutual = self.0.mutual_user(first.word(2), first.word(3), &chap, &first.place());
        (chap, Some(mutual))
    }
}
