//! Files without a name: what is in them ends when they are closed.

use super::{Name, Open, Units, of_lun, same_place, same_way};
use crate::Problem;
use crate::config::Lun;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Units {
    /// The LUNs whose data end with this server, as their files were deleted or replaced.
    pub fn unlinked(&self) -> Vec<Problem> {
        self.open.iter().filter_map(|(name, open)| unlinked(name, open)).collect()
    }
}

fn unlinked(name: &Name, open: &Open) -> Option<Problem> {
    let missing = open.medium.blocks.missing().filter(|missing| missing.is_unlinked)?;
    let what = format!("{missing}; when it is closed its data are gone");
    Some(of_lun(name, Problem::new(what, missing.remedy())))
}

/// The LUNs that would be removed, or be opened anew, with the only copy of their data. Of a path that is served further
/// the file there now is meant: somebody has put it there and asked for it.
pub(super) fn lost(
    leaving: &BTreeMap<Name, Open>,
    staying: &BTreeMap<Name, Open>,
    wanted: &BTreeMap<Name, &Lun>,
) -> Vec<Problem> {
    let goes = |open: &Open| {
        let goes_on = |lun: &Lun| match open.replaced {
            true => same_place(&open.lun, lun),
            false => same_way(&open.lun, lun),
        };
        let is_shared = |other: &Open| Arc::ptr_eq(&other.medium.blocks, &open.medium.blocks);
        !wanted.values().any(|lun| goes_on(lun)) && !staying.values().any(is_shared)
    };
    let lost = leaving.iter().filter(|(_, open)| goes(open));
    let problem = |problem: Problem| Problem {
        hint: problem
            .hint
            .map(|hint| format!("{hint}; to give them up, restart the server without this LUN")),
        ..problem
    };
    lost.filter_map(|(name, open)| unlinked(name, open)).map(problem).collect()
}
