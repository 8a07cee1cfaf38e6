//! Media that are served and are missing from their paths: what is in a file without a name ends when it is closed, and
//! hosts that use a disk must not find another one in its place.

use super::{Name, OpenUnit, Units, has_path, of_lun, same_place, same_way, wanted};
use crate::Diagnostic;
use crate::config::{Config, LunConfig};
use lunar_block::MissingMedium;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The two ways to another file at the path of a served one.
const ANEW: &str = "to serve the file now at the path, stop and start the server";
const AGAIN: &str = "to serve the file now at the path, reload once without this LUN and once with it";

impl Units {
    /// The LUNs whose data end with this server, as their files were deleted or replaced.
    pub fn unlinked(&self) -> Vec<Diagnostic> {
        self.open.iter().filter_map(|(name, open)| unlinked(name, open)).collect()
    }

    /// The LUNs of a configuration at whose paths there is something else than what is served. A medium that is at no
    /// path is only logged: it goes on as it is.
    ///
    /// # Errors
    /// One for each LUN. Nobody may find another disk under its identity without a word.
    pub fn look_at_paths(&self, config: &Config) -> Result<(), Vec<Diagnostic>> {
        let wanted = wanted(config);
        let mut replaced = Vec::new();
        for (name, open) in self.open.iter().filter(|(_, open)| has_path(&open.lun)) {
            let Some(lun) = wanted.values().find(|lun| same_place(&open.lun, lun)) else { continue };
            match open.medium.blocks.missing() {
                Some(missing) if missing.is_replaced() => replaced.push(of_lun(name, not_in_place(&missing))),
                Some(missing) if same_way(&open.lun, lun) => tracing::warn!(
                    "LUN {} of {}: {missing}; the LUN keeps using the open file; hint: {}",
                    name.1,
                    name.0,
                    missing.remedy()
                ),
                _ => {}
            }
        }
        if replaced.is_empty() { Ok(()) } else { Err(replaced) }
    }
}

fn unlinked(name: &Name, open: &OpenUnit) -> Option<Diagnostic> {
    let missing = open.medium.blocks.missing().filter(|missing| missing.is_unlinked)?;
    let what = format!("{missing}; its data is lost when the server closes it");
    Some(of_lun(name, Diagnostic::new(what, missing.remedy())))
}

/// A path is opened once more only if it still leads to what is open by it.
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

/// The LUNs that would be removed, or be opened anew, with the only copy of their data.
pub(super) fn lost(
    leaving: &BTreeMap<Name, OpenUnit>,
    staying: &BTreeMap<Name, OpenUnit>,
    wanted: &BTreeMap<Name, &LunConfig>,
) -> Vec<Diagnostic> {
    let goes = |open: &OpenUnit| {
        let is_shared = |other: &OpenUnit| Arc::ptr_eq(&other.medium.blocks, &open.medium.blocks);
        !wanted.values().any(|lun| same_way(&open.lun, lun)) && !staying.values().any(is_shared)
    };
    let lost = leaving.iter().filter(|(_, open)| goes(open));
    let problem = |problem: Diagnostic| Diagnostic {
        hint: problem
            .hint
            .map(|hint| format!("{hint}; to discard the data, restart the server without this LUN")),
        ..problem
    };
    lost.filter_map(|(name, open)| unlinked(name, open)).map(problem).collect()
}
