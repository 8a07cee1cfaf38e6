//! Groups of hosts, which become access entries. The first entry that matches decides.

use super::ScstImport;
use super::access::LunView;
use super::file::ScstEntry;
use super::patterns::{is_pattern, overlap};
use crate::common::count_of_luns;
use crate::{Access, NewTarget};

/// The patterns of a group.
#[derive(Default)]
struct ScstHosts {
    /// Hosts with one of these names are in the group.
    names: Vec<String>,
    /// Hosts that the group has at some portals only.
    elsewhere: Vec<String>,
    /// Hosts that do not match this pattern are in the group.
    except: Option<String>,
}

impl ScstImport {
    /// Carries over the LUNs and the access list of a target.
    pub(super) fn access(&mut self, target: &mut NewTarget, entry: &ScstEntry, chap: &[String]) {
        let rest = self.view(target, entry);
        let mut groups = Vec::new();
        for group in entry.all("GROUP") {
            let view = self.view(target, group);
            let hosts = self.hosts(target, entry, group);
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
                target.access.push(rest.entry(Vec::new(), chap));
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
        let excluded = vec![except.clone()];
        target.access.push(match is_single {
            true => rest.entry(excluded, chap),
            false => Access { initiators: excluded, deny: true, ..Access::default() },
        });
        target.access.push(view.entry(Vec::new(), chap));
    }

    /// Reads the patterns of a group.
    fn hosts(&mut self, target: &NewTarget, entry: &ScstEntry, group: &ScstEntry) -> ScstHosts {
        let mut hosts = ScstHosts::default();
        let portals: Vec<&str> = entry.all("allowed_portal").map(ScstEntry::arg).collect();
        for initiator in group.all("INITIATOR") {
            let text = initiator.arg().to_lowercase();
            let (name, portal) = match text.split_once('#') {
                Some((name, portal)) if entry.flag("per_portal_acl") == Some(true) => (name, portal),
                _ => (text.as_str(), "*"),
            };
            let everywhere = portal == "*" || portals == [portal];
            let notes = &mut self.imported.notes;
            let lost = |why: &str| format!("{}: INITIATOR {text}: {why}", target.name);
            match name.strip_prefix('!') {
                _ if !is_pattern(name.trim_start_matches('!')) => {
                    notes.lost(initiator.place(), lost("no initiator name can match"));
                }
                // Hosts that the entry would miss must not get the LUNs of others.
                Some(_) if !everywhere || hosts.except.is_some() => {
                    notes.lost(initiator.place(), lost("hosts that may be in the group cannot log in"));
                    let missed = if everywhere { hosts.except.clone() } else { None };
                    hosts.elsewhere.push(missed.unwrap_or_else(|| "*".into()));
                }
                Some(except) => hosts.except = Some(except.into()),
                None if everywhere => hosts.names.push(name.into()),
                None => {
                    notes.lost(
                        initiator.place(),
                        lost("an entry is valid at all portals, so these hosts cannot log in"),
                    );
                    hosts.elsewhere.push(name.into());
                }
            }
        }
        let known = ["LUN", "INITIATOR", "addr_method", "black_hole"];
        for other in group.entries.iter().filter(|other| {
            !known.contains(&other.key.as_str()) || other.key == "black_hole" && other.arg() != "0"
        }) {
            self.unknown(other, &target.name);
        }
        hosts
    }

    /// Reports hosts that several groups name. In SCST, the order of the groups is not defined.
    fn overlaps(&mut self, groups: &[(&ScstEntry, LunView, ScstHosts)], name: &str) {
        for (n, (group, _, hosts)) in groups.iter().enumerate() {
            for (first, _, others) in &groups[..n] {
                let all = |hosts: &ScstHosts| [&hosts.names[..], &hosts.elsewhere].concat();
                for pattern in all(hosts) {
                    if let Some(other) = all(others).iter().find(|other| overlap(other, &pattern)) {
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
    if !hosts.names.is_empty() {
        target.access.push(view.entry(hosts.names.clone(), chap));
    }
    if !hosts.elsewhere.is_empty() {
        let initiators = hosts.elsewhere.clone();
        target.access.push(Access { initiators, deny: true, ..Access::default() });
    }
}
