//! Served media that are missing from their paths. The data of an unlinked file is lost when it is closed. Hosts must
//! not find another disk in the place of the one that they use.

use super::{OpenUnit, UnitName, Units, has_path, of_lun, same_backend, same_place, wanted};
use crate::Diagnostic;
use crate::config::{Config, LunConfig};
use lunar_block::MissingMedium;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The two ways to serve another file at the path of a served one.
const ANEW: &str = "to serve the file now at the path, stop and start the server";
const AGAIN: &str = "to serve the file now at the path, reload once without this LUN and once with it";

impl Units {
    /// The LUNs whose data is lost when this server ends, because their files were deleted or replaced.
    pub fn unlinked(&self) -> Vec<Diagnostic> {
        self.open.iter().filter_map(|(name, open)| unlinked(name, open)).collect()
    }

    /// Checks the paths of a configuration. It is an error if a path leads to another medium than the served one. A
    /// missing path is only logged: its LUN keeps the open medium.
    ///
    /// # Errors
    /// One for each LUN, because hosts would silently get another disk under the same identity.
    pub fn check_paths(&self, config: &Config) -> Result<(), Vec<Diagnostic>> {
        let wanted = wanted(config);
        let mut replaced = Vec::new();
        for (name, open) in self.open.iter().filter(|(_, open)| has_path(&open.lun)) {
            let Some(lun) = wanted.values().find(|lun| same_place(&open.lun, lun)) else { continue };
            match open.medium.blocks.missing() {
                Some(missing) if missing.is_replaced() => replaced.push(of_lun(name, not_in_place(&missing))),
                Some(missing) if same_backend(&open.lun, lun) => tracing::warn!(
                    "{name}: {missing}; the LUN keeps using the open file; hint: {}",
                    missing.remedy()
                ),
                _ => {}
            }
        }
        if replaced.is_empty() { Ok(()) } else { Err(replaced) }
    }
}

fn unlinked(name: &UnitName, open: &OpenUnit) -> Option<Diagnostic> {
    let missing = open.medium.blocks.missing().filter(|missing| missing.is_unlinked)?;
    let what = format!("{missing}; the data of the file is lost when the server closes it");
    Some(of_lun(name, Diagnostic::new(what, missing.remedy())))
}

/// Checks that a path still leads to its open medium, before it is opened again.
pub(super) fn in_place<'a>(
    mut open: impl Iterator<Item = &'a OpenUnit>,
    lun: &LunConfig,
) -> Result<(), Diagnostic> {
    let at_path = |open: &OpenUnit| has_path(lun) && same_place(&open.lun, lun);
    let missing = open.find(|open| at_path(open)).and_then(|open| open.medium.blocks.missing());
    missing.map_or(Ok(()), |missing| Err(not_in_place(&missing)))
}

fn not_in_place(missing: &MissingMedium) -> Diagnostic {
    let remedy = missing.remedy();
    let hint = match missing.is_replaced() {
        false => remedy,
        true if missing.is_unlinked => format!("{remedy}; {ANEW}"),
        true => format!("{remedy}; {AGAIN}"),
    };
    Diagnostic::new(missing.to_string(), hint)
}

/// The LUNs whose only copy of the data would be closed, because they are removed or opened again.
pub(super) fn lost(
    leaving: &BTreeMap<UnitName, OpenUnit>,
    staying: &BTreeMap<UnitName, OpenUnit>,
    wanted: &BTreeMap<UnitName, &LunConfig>,
) -> Vec<Diagnostic> {
    let goes = |open: &OpenUnit| {
        let is_shared = |other: &OpenUnit| Arc::ptr_eq(&other.medium.blocks, &open.medium.blocks);
        !wanted.values().any(|lun| same_backend(&open.lun, lun)) && !staying.values().any(is_shared)
    };
    let lost = leaving.iter().filter(|(_, open)| goes(open));
    let problem = |problem: Diagnostic| Diagnostic {
        hint: problem.hint.map(|hint| format!("{hint}; to discard the data, use --force (force=true)")),
        ..problem
    };
    lost.filter_map(|(name, open)| unlinked(name, open)).map(problem).collect()
}
