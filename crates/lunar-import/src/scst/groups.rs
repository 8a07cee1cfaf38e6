//! Groups of hosts, which become access entries. The first entry that matches decides.

use super::ScstImport;
use super::access::LunView;
use super::file::ScstEntry;
use super::hosts::ScstHosts;
use crate::common::count_of_luns;
use crate::{Access, NewTarget};

impl ScstImport {
    /// Carries over the LUNs and the access list of a target.
    pub(super) fn access(&mut self, target: &mut NewTarget, entry: &ScstEntry, chap: &[String]) {
        let rest = self.view(target, entry);
        let mut groups = Vec::new();
        for group in entry.all("GROUP") {
            let view = self.view(target, group);
            let hosts = self.hosts(target, entry, group);
            self.group_attributes(target, group);
            let what = match view.is_hidden {
                true => format!("{}: group {}, which cannot log in", target.name, group.arg()),
                false => format!("{}: group {}, {}", target.name, group.arg(), count_of_luns(view.len())),
            };
            self.imported.notes.carried(group.place(), what);
            groups.push((group, view, hosts));
        }
        self.overlaps(&groups, &target.name);
        for (_, view, hosts) in &groups {
            entries(target, view, hosts, chap);
        }
        self.last_entries(target, &groups, &rest, chap);
    }

    /// Adds the entries of hosts that no group names: of a group with a negated pattern, or of the target.
    fn last_entries(
        &mut self,
        target: &mut NewTarget,
        groups: &[(&ScstEntry, LunView, ScstHosts)],
        rest: &LunView,
        chap: &[String],
    ) {
        let mut negated =
            groups.iter().filter_map(|(group, view, hosts)| Some((group, view, hosts.except.as_ref()?)));
        let Some((_, view, except)) = negated.next() else {
            let is_open = target.access.is_empty() && chap.is_empty() && rest.is_all_of(target);
            // Without a matching entry, a host cannot log in.
            if !is_open && (!rest.is_hidden || target.access.is_empty()) {
                target.access.push(rest.entry(Access::default(), chap));
            }
            return;
        };
        let mut is_single = true;
        for (group, _, other) in negated {
            is_single = false;
            let what = format!(
                "{}: !{other}, a second negated pattern: hosts like {except} cannot log in",
                target.name
            );
            self.imported.notes.lost(group.place(), what);
        }
        let excluded = except.entry();
        target.access.push(match is_single {
            true => rest.entry(excluded, chap),
            false => Access { deny: true, ..excluded },
        });
        target.access.push(view.entry(Access::default(), chap));
    }

    /// Reports attributes of a group that have no counterpart.
    fn group_attributes(&mut self, target: &NewTarget, group: &ScstEntry) {
        let known = ["LUN", "INITIATOR", "addr_method", "black_hole"];
        for other in group.entries.iter().filter(|other| {
            !known.contains(&other.key.as_str()) || other.key == "black_hole" && other.arg() != "0"
        }) {
            self.unknown(other, &target.name);
        }
    }

    /// Reports hosts that several groups name. In SCST, the order of the groups is not defined.
    fn overlaps(&mut self, groups: &[(&ScstEntry, LunView, ScstHosts)], name: &str) {
        for (n, (group, _, hosts)) in groups.iter().enumerate() {
            for (first, _, others) in &groups[..n] {
                for pattern in hosts.all() {
                    if let Some(other) = others.all().find(|other| other.overlaps(pattern)) {
                        let what = format!(
                            "{name}: {pattern} of group {} also matches {other} of group {}, which comes first now",
                            group.arg(),
                            first.arg()
                        );
                        self.imported.notes.changed(group.place(), what);
                    }
                }
            }
        }
    }
}

/// Adds the entries of the hosts that a group names.
fn entries(target: &mut NewTarget, view: &LunView, hosts: &ScstHosts, chap: &[String]) {
    target.access.extend(hosts.entries().into_iter().map(|entry| view.entry(entry, chap)));
    let denied = hosts.elsewhere.iter().map(|pattern| Access { deny: true, ..pattern.entry() });
    target.access.extend(denied);
}
