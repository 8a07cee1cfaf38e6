//! CHAP users.

use super::IstgtImport;
use super::file::{IstgtKey, IstgtSection, number_after};
use crate::Discovery;

impl IstgtImport {
    /// Carries over the authentication of discovery.
    pub(super) fn discovery(&mut self, global: &IstgtSection, sections: &[IstgtSection]) {
        let method = [global.word("DiscoveryAuthMethod", 0), global.word("DiscoveryAuthMethod", 1)];
        let group = global.word("DiscoveryAuthGroup", 0).unwrap_or_default();
        let (chap, mutual) = self.users(method, group, sections, &global.place);
        self.0.configuration.discovery = Discovery { disabled: false, chap, mutual };
    }

    /// The ids of the users of a group, and of the one for mutual CHAP. With the methods Auto and None, hosts log in
    /// without CHAP.
    pub(super) fn users(
        &mut self,
        method: [Option<&str>; 2],
        group: &str,
        sections: &[IstgtSection],
        place: &str,
    ) -> (Vec<String>, Option<String>) {
        let is = |word: Option<&str>, other: &str| word.is_some_and(|word| word.eq_ignore_ascii_case(other));
        if !is(method[0], "CHAP") && !is(method[0], "Mutual") {
            if is(method[0], "Auto") && !group.is_empty() && !group.eq_ignore_ascii_case("None") {
                let what =
                    format!("{group}: with the method Auto, hosts may use CHAP; now they log in without it");
                self.0.notes.changed(place, what);
            }
            return (Vec::new(), None);
        }
        if is(method[1], "Mutual") {
            self.0.notes.changed(place, "CHAP Mutual: the host decides whether it uses mutual CHAP");
        }
        let number = number_after(group, "AuthGroup");
        let found = sections.iter().find(|section| number.is_some() && section.number("AuthGroup") == number);
        let keys: Vec<&IstgtKey> = found.iter().flat_map(|section| section.all("Auth")).collect();
        let mut chap = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            match keys[..n].iter().any(|other| other.word(0) == key.word(0)) {
                true => self
                    .0
                    .notes
                    .lost(&key.place, format!("the CHAP user {:?}, which stands above already", key.word(0))),
                false => chap.push(self.0.user(key.word(0), key.word(1), &key.place)),
            }
        }
        if chap.is_empty() {
            self.0.notes.lost(place, format!("the users of {group:?}, which the files do not have"));
            chap.push(self.0.configuration.chap_user("unknown", None));
        }
        let mutual = self.mutual(&keys, &chap);
        (chap, mutual)
    }

    /// The user for mutual CHAP, of which an access entry has one.
    fn mutual(&mut self, keys: &[&IstgtKey], chap: &[String]) -> Option<String> {
        let mut with = keys.iter().filter(|key| !key.word(2).is_empty());
        let first = with.next()?;
        for other in with.filter(|other| [other.word(2), other.word(3)] != [first.word(2), first.word(3)]) {
            let what = format!(
                "the user {:?} for mutual CHAP with {:?}: hosts of one entry have one",
                other.word(2),
                other.word(0)
            );
            self.0.notes.lost(&other.place, what);
        }
        Some(self.0.mutual_user(first.word(2), first.word(3), chap, &first.place))
    }
}
