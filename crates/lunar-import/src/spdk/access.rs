//! Calls that change who may connect after a subsystem was created, and settings of the whole target.

use super::calls::Call;
use super::{HARMLESS, SpdkImport};
use std::collections::BTreeMap;

pub(super) const ANY_HOST: &str = "nvmf_subsystem_allow_any_host";
/// Lists of `nvmf_set_config` with all their values.
const LISTS: &[(&str, &[&str])] = &[
    ("dhchap_digests", &["sha256", "sha384", "sha512"]),
    ("dhchap_dhgroups", &["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"]),
];

/// Whether subsystems admit every host, by NQN. The last call decides.
pub(super) fn any_host(calls: &[Call]) -> BTreeMap<String, bool> {
    let calls = calls.iter().filter(|call| call.method == ANY_HOST);
    calls.map(|call| (call.text("nqn").to_owned(), allows(call))).collect()
}

fn allows(call: &Call) -> bool {
    call.flag("allow_any_host") && !call.flag("disable")
}

impl SpdkImport<'_> {
    /// Reports a call that is in `any_host` already.
    pub(super) fn admits_any_host(&mut self, call: &Call) {
        let nqn = call.text("nqn");
        let hosts = if allows(call) { "every host" } else { "only hosts that are named" };
        let notes = &mut self.imported.notes;
        match self.imported.configuration.subsystems.iter().any(|one| one.nqn == nqn) {
            true => notes.carried(&call.place, format!("{nqn}: {hosts}")),
            false => notes.lost(&call.place, format!("{nqn}: {hosts}: there is no such subsystem")),
        }
    }

    /// Reports a call without a counterpart. It may take access from a host, so its subsystem goes offline.
    pub(super) fn unknown(&mut self, call: &Call) {
        let (nqn, method) = (call.text("nqn"), call.method.as_str());
        let mut subsystems = self.imported.configuration.subsystems.iter_mut().filter(|one| one.nqn == nqn);
        let what = match subsystems.next() {
            Some(_) if HARMLESS.contains(&method) => format!("{nqn}: {method}"),
            Some(subsystem) => {
                subsystem.offline = true;
                format!("{nqn}: offline, because {method} may limit access")
            }
            None if method.starts_with("bdev_") => format!("{method} of {:?}", call.text("name")),
            None => method.to_owned(),
        };
        self.imported.notes.lost(&call.place, what);
    }

    /// Reports settings of the target that limit what hosts may do.
    pub(super) fn target_settings(&mut self, call: &Call) {
        let notes = &mut self.imported.notes;
        for (key, all) in LISTS {
            let limit = call.texts(key).filter(|some| !all.iter().all(|one| some.contains(one)));
            if let Some(some) = limit {
                notes.lost(&call.place, format!("{key} with only {}: hosts may use each", some.join(", ")));
            }
        }
        if !matches!(call.text("discovery_filter"), "" | "match_any") {
            let what =
                format!("discovery_filter {:?}: hosts discover each portal", call.text("discovery_filter"));
            notes.lost(&call.place, what);
        }
        if call.part("admin_cmd_passthru").flag("identify_ctrlr") {
            notes.lost(&call.place, "admin_cmd_passthru: controllers report Lunar's own values");
        }
    }
}
