//! Changes the units whose definition changed: first all steps that can fail, then those that cannot.

use super::medium::{Medium, has_path, same_backend, same_place, share};
use super::moved::StateCopy;
use super::reusable_media::ReusableMedia;
use super::saved_state::{invalid, restored, state_path};
use super::settings::{passing, settings};
use super::state_lock::{UnitLocks, serial_twice};
use super::{OldUnits, OpenUnit, Rest, UnitName, Units, create_folder, of_lun, unlinked};
use crate::config::LunConfig;
use crate::{Diagnostic, ErrorCode, identity, io_text};
use lunar_block::DataLifetime;
use lunar_gateway::SharedUnitGuard;
use lunar_proto::size;
use lunar_scsi::{Lu, LuSettings};
use lunar_target::{LogicalUnit, Quiesced};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A unit after all steps that can fail.
struct PlannedUnit {
    lun: LunConfig,
    settings: LuSettings,
    medium: Medium,
    locks: UnitLocks,
    /// The new unit; None if the open unit continues.
    fresh: Option<Arc<LogicalUnit>>,
    /// Keeps the unit shared.
    shared: Option<Arc<SharedUnitGuard>>,
    /// The state of a moved unit.
    copy: Option<StateCopy>,
}

impl Units {
    /// Changes the units whose definition changed.
    pub(super) fn change(
        &self,
        wanted: &BTreeMap<UnitName, &LunConfig>,
        max_registrants: usize,
        old: OldUnits<'_>,
        rest: Rest<'_>,
    ) -> Result<BTreeMap<UnitName, OpenUnit>, Vec<Diagnostic>> {
        let OldUnits { staying, leaving, .. } = old;
        serial_twice(wanted)?;
        let lost = unlinked::lost(leaving, staying, wanted);
        if !lost.is_empty() && !self.may_discard {
            return Err(lost);
        }
        let resting = to_rest(leaving, wanted, rest)?;
        let changed = wanted.iter().filter(|(name, _)| !staying.contains_key(*name));
        let changed: Vec<(&UnitName, LunConfig)> =
            changed.map(|(name, lun)| (name, (*lun).clone())).collect();
        let media = ReusableMedia::offer(old, &self.kept, changed.iter().map(|(name, lun)| (*name, lun)));
        match self.plan_all(changed, max_registrants, leaving, &media) {
            Ok(plans) => {
                let open = apply(plans, max_registrants, leaving, resting);
                self.locks.sign(open.iter().map(|(name, open)| (name, &open.lun, &open._locks)));
                Ok(open)
            }
            Err(problems) => {
                media.keep();
                Err(problems)
            }
        }
    }

    /// Executes all steps that can fail.
    fn plan_all(
        &self,
        changed: Vec<(&UnitName, LunConfig)>,
        max_registrants: usize,
        leaving: &BTreeMap<UnitName, OpenUnit>,
        media: &ReusableMedia<'_>,
    ) -> Result<BTreeMap<UnitName, PlannedUnit>, Vec<Diagnostic>> {
        let (mut plans, mut problems) = (BTreeMap::new(), Vec::new());
        self.remove_leftovers(&changed);
        // First, so that a rejected unit creates no file.
        let locks = self.locks.take(&self.state_dir, changed.iter().map(|(name, lun)| (*name, lun)));
        for ((name, lun), locks) in changed.into_iter().zip(locks) {
            let is_kept = self.kept.find(name, &lun).is_some();
            if let Some(open) = leaving.get(name).filter(|_| !is_kept)
                && let Some(problem) = would_forget(&open.lun, &lun)
            {
                problems.push(of_lun(name, problem));
                continue;
            }
            let before = leaving.get(name).filter(|open| goes_on(name, open, &lun));
            match self.plan(name, lun, locks, max_registrants, media, before) {
                Ok(plan) => _ = plans.insert(name.clone(), plan),
                Err(problem) => problems.push(of_lun(name, problem)),
            }
        }
        if problems.is_empty() { Ok(plans) } else { Err(problems) }
    }

    /// Removes temporary files of killed writers. Each folder is read once, because it may hold files of many units.
    fn remove_leftovers(&self, changed: &[(&UnitName, LunConfig)]) {
        let paths = changed.iter().map(|(name, lun)| state_path(&self.state_dir, name, lun));
        let folders: BTreeSet<_> = paths.filter_map(|path| path.parent().map(Path::to_path_buf)).collect();
        folders.iter().for_each(|folder| lunar_target::remove_leftovers_in(folder));
    }

    /// Executes all steps for a changed unit that can fail.
    fn plan(
        &self,
        name: &UnitName,
        lun: LunConfig,
        locks: Result<UnitLocks, Diagnostic>,
        max_registrants: usize,
        media: &ReusableMedia<'_>,
        before: Option<&OpenUnit>,
    ) -> Result<PlannedUnit, Diagnostic> {
        let locks = held(name, &lun, locks)?;
        let former = media.former(name);
        let copy = former.map(|former| self.copy_state(former, (name, &lun))).transpose()?;
        let medium = self.medium(name, &lun, media)?;
        let before = before.filter(|open| open.medium.has_same_passthrough(&medium));
        let known = known(&lun, self.kept.find(name, &lun).or(before))?;
        let known = LunConfig { block_size: medium.block_size.unwrap_or(known.block_size), ..known };
        let settings = match medium.commands {
            Some((_, passes)) => passing(name, &known, passes, max_registrants),
            None => LuSettings {
                max_atomic: medium.blocks.max_atomic(),
                medium_compares: medium.blocks.max_compare_and_swap() >= known.block_size,
                ..settings(name, &known, medium.blocks.info(), max_registrants)?
            },
        };
        let settings = match &medium.shared {
            Some(image) => shared(settings, image.has_exclusive_lock()),
            None => settings,
        };
        let fresh = match before {
            Some(_) => {
                Lu::new(settings.clone(), None).map_err(invalid)?;
                None
            }
            None => Some(self.fresh(name, &lun, &settings, &medium, locks.is_some())?),
        };
        let shared = match (&fresh, before) {
            (Some(fresh), _) => self.share(fresh, &medium),
            (None, before) => before.and_then(|open| open.shared.clone()),
        };
        if let Some(((_, open), fresh)) = former.zip(fresh.as_ref()) {
            take_over(open, fresh)?;
        }
        Ok(PlannedUnit { lun, settings, medium, locks: locks.unwrap_or_default(), fresh, shared, copy })
    }

    /// Shares a new unit with other gateways, if its medium is shared.
    fn share(&self, unit: &Arc<LogicalUnit>, medium: &Medium) -> Option<Arc<SharedUnitGuard>> {
        let (gateway, backend) = self.gateway.as_ref().zip(medium.shared.clone())?;
        Some(Arc::new(gateway.share(unit, backend)))
    }

    /// A new unit, with its saved state if it keeps one. The group keeps that of a shared unit.
    fn fresh(
        &self,
        name: &UnitName,
        lun: &LunConfig,
        settings: &LuSettings,
        medium: &Medium,
        is_held: bool,
    ) -> Result<Arc<LogicalUnit>, Diagnostic> {
        let keeps = is_held && !is_nameless(lun) && medium.shared.is_none();
        let state_file = if keeps { Some(self.state_file(name, lun)?) } else { None };
        let lu = match &state_file {
            Some(file) => restored(name, settings.clone(), file)?,
            None => Lu::new(settings.clone(), None).map_err(invalid)?,
        };
        let lu = Arc::new(lu);
        Ok(Arc::new(match medium.passthrough() {
            Some(passthrough) => LogicalUnit::new_passthrough(lu, passthrough, state_file),
            None => LogicalUnit::new(lu, medium.filtered(lun), state_file),
        }))
    }

    /// The state file of a unit. Creates its folder.
    pub(super) fn state_file(&self, name: &UnitName, lun: &LunConfig) -> Result<PathBuf, Diagnostic> {
        let file = state_path(&self.state_dir, name, lun);
        file.parent().map_or(Ok(()), create_folder)?;
        Ok(file)
    }
}

/// The settings of a unit that other gateways serve, too: no server flushes the cache of another. Hosts choose the gateway
/// of an image that one at a time serves.
fn shared(settings: LuSettings, is_passive: bool) -> LuSettings {
    LuSettings { shared: true, write_cache: false, explicit_access: is_passive, max_atomic: 0, ..settings }
}

/// The locks of a LUN. None for a LUN that keeps no state.
fn held(
    name: &UnitName,
    lun: &LunConfig,
    locks: Result<UnitLocks, Diagnostic>,
) -> Result<Option<UnitLocks>, Diagnostic> {
    match locks {
        // Without state, a null disk has no data that two servers could mix.
        Err(problem)
            if problem.code == ErrorCode::InUse
                && lun.source.data_lifetime() == DataLifetime::None
                && lun.serial.is_none() =>
        {
            tracing::warn!("{name} cannot save reservations and mode pages: {}", problem.what);
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Gives the state of a unit that is in no file to the one that it becomes.
fn take_over(former: &OpenUnit, fresh: &LogicalUnit) -> Result<(), Diagnostic> {
    let state = former.unit.lu.hand_over();
    if state.is_empty() || fresh.sharing().is_some() {
        Ok(())
    } else {
        fresh.lu.take_over(&state).map_err(invalid)
    }
}

/// Applies the plans. No step can fail.
fn apply(
    plans: BTreeMap<UnitName, PlannedUnit>,
    max_registrants: usize,
    leaving: &BTreeMap<UnitName, OpenUnit>,
    mut resting: BTreeMap<UnitName, Quiesced>,
) -> BTreeMap<UnitName, OpenUnit> {
    let mut open = BTreeMap::new();
    for (name, mut plan) in plans {
        plan.set_rate();
        plan.copy.take().into_iter().for_each(StateCopy::keep);
        let before = leaving.get(&name).zip(resting.remove(&name));
        let unit = match (plan.fresh.take(), before) {
            (Some(fresh), before) => {
                if let Some((_, resting)) = before {
                    resting.retire();
                }
                fresh
            }
            (None, Some((before, resting))) => {
                plan.succeed(before, &resting);
                before.unit.clone()
            }
            // Unreachable: a unit that continues was open before.
            (None, None) => continue,
        };
        unit.set_on_missing(plan.lun.on_missing_file);
        let (lun, medium, shared, locks) = (plan.lun, plan.medium, plan.shared, plan.locks);
        open.insert(name, OpenUnit { lun, max_registrants, medium, unit, shared, _locks: locks });
    }
    resting.into_values().for_each(Quiesced::retire);
    open
}

impl PlannedUnit {
    /// Sets the limits of its share.
    fn set_rate(&self) {
        let share = share(&self.lun, self.medium.commands.is_some());
        if let Some((rate, share)) = self.medium.rate.as_ref().zip(share) {
            rate.set(share.iops, share.bytes_per_s);
        }
    }

    /// Applies the plan to the quiesced unit that continues.
    fn succeed(&self, open: &OpenUnit, resting: &Quiesced) {
        let is_reached_anew = has_path(&self.lun) || self.lun.source.lu_address().is_some();
        let reopened = is_reached_anew && same_place(&open.lun, &self.lun);
        let replaced = !reopened && !Arc::ptr_eq(&open.medium.blocks, &self.medium.blocks);
        let backend = self.medium.filtered(&self.lun);
        if let Err(e) = resting.redefine(self.settings.clone(), backend, replaced) {
            tracing::error!(error = %e, "cannot apply the new settings of a LUN");
        }
    }
}

/// Quiesces the units that leave or change.
fn to_rest(
    leaving: &BTreeMap<UnitName, OpenUnit>,
    wanted: &BTreeMap<UnitName, &LunConfig>,
    rest: Rest<'_>,
) -> Result<BTreeMap<UnitName, Quiesced>, Vec<Diagnostic>> {
    let hint = "reload again later, or restart lunar; the old configuration stays in force";
    let problem = |name: &UnitName, what: String| vec![of_lun(name, Diagnostic::new(what, hint))];
    let names: Vec<&UnitName> = leaving.keys().collect();
    let resting = rest(leaving.values().map(|open| open.unit.clone()).collect());
    let resting = resting.map_err(|(i, e)| match names.get(i) {
        Some(name) => problem(name, format!("cannot be changed now: {}", io_text(&e))),
        None => vec![Diagnostic::new(format!("cannot change LUNs now: {}", io_text(&e)), hint)],
    })?;
    let resting: BTreeMap<UnitName, Quiesced> = names.into_iter().cloned().zip(resting).collect();
    for (name, one) in &resting {
        let Err(e) = &one.flushed else { continue };
        // A routed unit may fail to flush: an unreachable upstream is often the reason for the change.
        let is_ours = wanted.get(name).is_some_and(|lun| lun.source.lu_address().is_none());
        if is_ours {
            return Err(problem(name, format!("cannot flush the medium of the LUN: {}", io_text(e))));
        }
        tracing::error!(error = %e, "cannot flush the medium of the removed {name}");
    }
    Ok(resting)
}

/// Whether a LUN under another definition is the same logical unit: of the same type, and on the same disk or with
/// the same identity.
pub(super) fn goes_on(name: &UnitName, open: &OpenUnit, lun: &LunConfig) -> bool {
    let identity = || identity::identity(name, lun).naa == open.unit.lu.settings().identity.naa;
    open.lun.kind == lun.kind
        && (&open.lun.state_name, &open.lun.state_dir) == (&lun.state_name, &lun.state_dir)
        && (open.medium.shared.is_none() || same_backend(&open.lun, lun))
        && (same_place(&open.lun, lun) || identity())
}

/// A LUN with its serial number. Memory without a configured one keeps its current one, or gets a random one.
fn known(lun: &LunConfig, before: Option<&OpenUnit>) -> Result<LunConfig, Diagnostic> {
    if !is_nameless(lun) {
        return Ok(lun.clone());
    }
    let serial = match before.filter(|open| is_nameless(&open.lun)) {
        Some(open) => open.unit.lu.settings().identity.serial.clone(),
        None => identity::random_serial()?,
    };
    Ok(LunConfig { serial: Some(serial), ..lun.clone() })
}

/// Rejects a change of the size of a memory disk, because it would lose its data.
fn would_forget(open: &LunConfig, lun: &LunConfig) -> Option<Diagnostic> {
    if open.source.kind() != lun.source.kind() || lun.source.data_lifetime() != DataLifetime::Process {
        return None;
    }
    let (old, new) = open.source.size().zip(lun.source.size()).filter(|(old, new)| old != new)?;
    let what = format!(
        "the memory disk has {}: a change to {} would lose its data",
        size::show(old),
        size::show(new)
    );
    Some(Diagnostic::new(what, "keep the size, or restart the server, which empties the disk"))
}

/// Memory without a configured serial number. It is a new disk with a new identity at each start, and has no state.
pub(crate) fn is_nameless(lun: &LunConfig) -> bool {
    lun.serial.is_none() && lun.source.data_lifetime() == DataLifetime::Process
}
