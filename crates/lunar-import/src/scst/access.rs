//! CHAP users, and the LUNs that a group of hosts sees.

use super::file::ScstEntry;
use super::{ScstDevice, ScstImport};
use crate::common::MAX_LUN;
use crate::{Access, NewTarget, ReadOnly};
use std::collections::{BTreeMap, BTreeSet};

/// The LUNs that some hosts see.
#[derive(Default)]
pub(super) struct LunView {
    /// The LUN of the target for each LUN of the hosts.
    luns: BTreeMap<u16, u16>,
    read_only: BTreeSet<u16>,
    /// Whether the file lists no LUN, so that hosts cannot log in.
    pub(super) is_hidden: bool,
}

impl LunView {
    /// An entry that shows these LUNs to some hosts, or rejects the hosts if there are none.
    pub(super) fn entry(&self, hosts: Access, chap: &[String]) -> Access {
        if self.is_hidden {
            return Access { deny: true, ..hosts };
        }
        Access {
            chap: chap.to_vec(),
            luns: Some(self.luns.clone()),
            read_only: match self.read_only.is_empty() {
                true => ReadOnly::None,
                false => ReadOnly::Luns(self.read_only.clone()),
            },
            ..hosts
        }
    }

    /// Whether the hosts see and write every LUN of a target under its own number.
    pub(super) fn is_all_of(&self, target: &NewTarget) -> bool {
        let same = self.luns.iter().all(|(seen, lun)| seen == lun);
        same && !self.is_hidden && self.read_only.is_empty() && self.luns.len() == target.luns.len()
    }

    pub(super) fn len(&self) -> usize {
        self.luns.len()
    }
}

impl ScstImport {
    /// The CHAP users of a target or of discovery: those of hosts, and that of the target.
    pub(super) fn users(&mut self, owner: &ScstEntry, name: &str) -> (Vec<String>, Option<String>) {
        let mut chap = Vec::new();
        let mut mutual = None;
        let users = |kind| {
            let is_one =
                move |entry: &&ScstEntry| super::targets::is_user(&entry.key) && entry.key.starts_with(kind);
            owner.entries.iter().filter(is_one)
        };
        for entry in users("IncomingUser") {
            let (user, secret) = credentials(entry);
            let id = self.imported.user(&user, &secret, entry.place());
            let names = |id: &String| {
                self.imported.configuration.chap_users.iter().any(|u| u.id == *id && u.name == user)
            };
            if chap.contains(&id) || chap.iter().any(names) {
                self.imported
                    .notes
                    .lost(entry.place(), format!("{name}: another secret of the user {user:?}"));
            } else {
                chap.push(id);
            }
        }
        for entry in users("OutgoingUser") {
            let (user, secret) = credentials(entry);
            if mutual.is_some() {
                self.imported
                    .notes
                    .lost(entry.place(), format!("{name}: another user of the target, {user:?}"));
                continue;
            }
            mutual = Some(self.imported.mutual_user(&user, &secret, &chap, &entry.place()));
        }
        (chap, mutual)
    }

    /// The LUNs of a target or of a group of hosts. Disks that the target does not have yet become LUNs of it.
    pub(super) fn view(&mut self, target: &mut NewTarget, owner: &ScstEntry) -> LunView {
        let mut view = LunView { is_hidden: owner.find("LUN").is_none(), ..LunView::default() };
        for entry in owner.all("LUN") {
            let name = entry.args.get(1).map_or("", String::as_str);
            match self.lun(target, &view, entry.arg(), name) {
                Ok(None) => {}
                Ok(Some((seen, lun))) => {
                    view.luns.insert(seen, lun);
                    let words = entry.args.get(2).is_some_and(|word| word == "read_only");
                    if words || entry.flag("read_only") == Some(true) {
                        view.read_only.insert(seen);
                    }
                }
                Err(why) => {
                    let what = format!("{}: LUN {} {name}: {why}", target.name, entry.arg());
                    self.imported.notes.lost(entry.place(), what);
                }
            }
        }
        view
    }

    /// The LUN of the hosts and that of the target for a device; None for a dummy.
    fn lun(
        &self,
        target: &mut NewTarget,
        view: &LunView,
        number: &str,
        name: &str,
    ) -> Result<Option<(u16, u16)>, &'static str> {
        let seen = number.parse().ok().filter(|number: &u16| *number <= MAX_LUN);
        let seen = seen.ok_or("the number is not between 0 and 16383")?;
        let disk = match self.devices.get(name) {
            Some(ScstDevice::Disk(disk, _)) => *disk,
            Some(ScstDevice::Dummy) => return Ok(None),
            Some(ScstDevice::Lost) => return Err("the device is lost"),
            None => return Err("the file has no such device"),
        };
        if view.luns.contains_key(&seen) {
            return Err("the number is given twice");
        }
        let shown = target.luns.iter().find(|(_, shown)| **shown == disk).map(|(lun, _)| *lun);
        if shown.is_some_and(|lun| view.luns.values().any(|other| *other == lun)) {
            return Err("these hosts have the device already");
        }
        let is_free = |lun: &u16| !target.luns.contains_key(lun);
        let lun = shown.or_else(|| std::iter::once(seen).chain(0..=MAX_LUN).find(is_free));
        let lun = lun.ok_or("the target has too many LUNs")?;
        target.luns.insert(lun, disk);
        Ok(Some((seen, lun)))
    }
}

/// The name and the secret of a user: one argument with a blank between them, or two.
fn credentials(entry: &ScstEntry) -> (String, String) {
    let text = entry.args.join(" ");
    let (name, secret) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    (if name.is_empty() { "unknown".into() } else { name.to_owned() }, secret.trim().to_owned())
}
