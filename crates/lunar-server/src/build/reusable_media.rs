//! Media that are open already, which changed units may continue to use.

use super::change::goes_on;
use super::kept::TrialMemory;
use super::medium::{has_path, same_backend, spec};
use super::saved_state::own_state_dir;
use super::{OldUnits, OpenUnit, UnitName, cannot_open, create_folder, unlinked};
use crate::config::LunConfig;
use crate::{Diagnostic, folders, identity};
use lunar_block::{Backend, RbdBackend};
use std::path::Path;
use std::sync::Arc;

/// The media of units that leave or change. A medium that no unit keeps is offered, so that it can be opened in
/// another way.
pub(super) struct ReusableMedia<'a> {
    old: OldUnits<'a>,
    kept: &'a TrialMemory,
    offered: Vec<Arc<dyn Backend>>,
}

impl<'a> ReusableMedia<'a> {
    pub(super) fn offer<'l>(
        old: OldUnits<'a>,
        kept: &'a TrialMemory,
        wanted: impl Iterator<Item = (&'l UnitName, &'l LunConfig)>,
    ) -> ReusableMedia<'a> {
        let mut media = ReusableMedia { old, kept, offered: Vec::new() };
        let mut used: Vec<_> = wanted.filter_map(|(name, lun)| media.find(name, lun)).collect();
        used.extend(old.staying.values().map(|open| open.medium.blocks.clone()));
        for open in old.leaving.values() {
            if used.iter().any(|medium| Arc::ptr_eq(medium, &open.medium.blocks)) {
                continue;
            }
            used.push(open.medium.blocks.clone());
            open.medium.blocks.offer(true);
            media.offered.push(open.medium.blocks.clone());
        }
        media
    }

    /// The unit that moves to this name.
    pub(super) fn former(&self, name: &UnitName) -> Option<(&'a UnitName, &'a OpenUnit)> {
        self.old.former(name)
    }

    /// The medium of a LUN if it is open in the same way already.
    pub(super) fn find(&self, name: &UnitName, lun: &LunConfig) -> Option<Arc<dyn Backend>> {
        let same = |open: &&OpenUnit| same_backend(&open.lun, lun);
        let former = self.former(name).map(|(_, open)| open);
        let here = self.old.leaving.get(name).or(former).filter(same).or_else(|| self.kept.find(name, lun));
        // Memory is never shared by two LUNs.
        let all = || self.old.all().find(same);
        here.or_else(|| all().filter(|_| has_path(lun))).map(|open| open.medium.blocks.clone())
    }

    /// The image of a unit that continues.
    pub(super) fn shared(&self, name: &UnitName, lun: &LunConfig) -> Option<Arc<RbdBackend>> {
        let open = self.old.leaving.get(name).filter(|open| goes_on(name, open, lun))?;
        open.medium.shared.clone()
    }

    /// Checks that the path of a LUN still leads to its open medium.
    pub(super) fn in_place(&self, lun: &LunConfig) -> Result<(), Diagnostic> {
        unlinked::in_place(self.old.all(), lun)
    }

    /// With `raw`, image formats are not detected.
    pub(super) fn open(
        &self,
        name: &UnitName,
        lun: &LunConfig,
        raw: bool,
        state_dir: &Path,
    ) -> Result<Arc<dyn Backend>, Diagnostic> {
        let Some(mut spec) = spec(lun) else {
            return Err(Diagnostic::new(
                format!("{} is not open", lun.source),
                "check the upstream: lunar ls URL",
            ));
        };
        spec.raw = raw;
        if has_path(lun) {
            let records = folders::atomic(own_state_dir(state_dir, lun));
            create_folder(&records)?;
            spec.journal = Some(records);
            // Two servers may know one medium by devices of different names and numbers.
            let is_shared = lun.state_dir.is_some();
            spec.medium_id = is_shared.then(|| format!("LUN serial {}", identity::serial_of(name, lun)));
        }
        lunar_block::open(&spec).map_err(|e| {
            let is_same =
                |open: &OpenUnit| self::spec(&open.lun).is_some_and(|other| other.path == spec.path);
            let held = has_path(lun) && self.old.leaving.values().any(is_same);
            let problem = cannot_open(lun, e);
            match held && spec.kind == lunar_block::BackendKind::Device {
                true => Diagnostic { hint: Some("restart lunar to reopen the device".into()), ..problem },
                false => problem,
            }
        })
    }

    /// Withdraws the offers after a failure.
    pub(super) fn keep(self) {
        self.offered.iter().for_each(|medium| medium.offer(false));
    }
}
