//! `[access.NAME]`: access lists that the targets of routers name.

use super::chap::ChapUsers;
use super::target::access_rule;
use lunar_config::{Diagnostics, nearest};
use lunar_config::{Section, Value, kind, text};
use lunar_target::config::AccessRule;
use std::collections::BTreeMap;
use std::ops::Range;

/// The initiators that may use a target of a router.
#[derive(Clone, Debug)]
pub struct Grant {
    /// As in the file: `all`, `none`, or names of access lists.
    pub names: Vec<String>,
    /// Whether it excludes all initiators.
    pub none: bool,
    /// The entries of the lists; the first match decides. If empty, all initiators have access, or with `none` no
    /// initiator.
    pub entries: Vec<AccessRule>,
}

/// The words with a meaning of their own, which cannot be names of lists.
const WORDS: [&str; 2] = ["all", "none"];

/// All access lists of a file. An invalid list is reported once and counts as valid where it is used.
pub(super) struct AccessLists(BTreeMap<String, AccessRule>);

/// Reads all `[access.NAME]`.
pub(super) fn lists(p: &mut Diagnostics<'_>, root: &mut Section<'_>, users: &ChapUsers) -> AccessLists {
    let mut lists = BTreeMap::new();
    for (name, at, mut s) in root.named(p, "access", "[access.NAME]") {
        if WORDS.contains(&name) {
            p.add(&at, format!("the access list name {name} is reserved"), "choose another name");
        }
        lists.insert(name.to_owned(), access_rule(p, &mut s, users, &None));
        s.done(p);
    }
    AccessLists(lists)
}

impl AccessLists {
    /// The names of all lists.
    pub(super) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The initiators that `access` of a section admits: `"all"`, `"none"`, the name of a list, or a list of names.
    pub(super) fn grant(&self, p: &mut Diagnostics<'_>, s: &mut Section<'_>) -> Grant {
        let mut grant = Grant { names: Vec::new(), none: false, entries: Vec::new() };
        match s.find("access") {
            None => s.missing(p, "access", "\"all\" (or \"none\", or the name of an [access.NAME])"),
            Some(value) => self.read(p, value, &mut grant),
        }
        grant
    }

    fn read(&self, p: &mut Diagnostics<'_>, value: Value<'_>, grant: &mut Grant) {
        const HINT: &str = "write \"all\", \"none\", the name of an [access.NAME], or a list of names";
        if let Some(word) = value.get_ref().as_str() {
            grant.none = word == "none";
            grant.names.push(word.into());
            if !WORDS.contains(&word) {
                grant.entries.extend(self.entry(p, word, &value.span()));
            }
        } else if let Some(array) = value.get_ref().as_array() {
            if array.is_empty() {
                p.add(&value.span(), "`access` is empty", HINT);
            }
            for value in array.iter() {
                let Some(word) = text(p, "access", value) else { continue };
                grant.names.push(word.into());
                grant.entries.extend(self.entry(p, word, &value.span()));
            }
        } else {
            kind(p, "access", value, "a name or a list of names", HINT);
        }
    }

    fn entry(&self, p: &mut Diagnostics<'_>, name: &str, at: &Range<usize>) -> Option<AccessRule> {
        if let Some(entry) = self.0.get(name) {
            return Some(entry.clone());
        }
        let hint = match nearest(name, self.0.keys().map(String::as_str).chain(WORDS)) {
            _ if WORDS.contains(&name) => format!("write access = \"{name}\" without a list"),
            Some(meant) => format!("did you mean \"{}\"?", meant.escape_debug()),
            None => "add [access.NAME] with this name".to_string(),
        };
        p.add(at, format!("unknown access list \"{}\"", name.escape_debug()), hint);
        None
    }
}
