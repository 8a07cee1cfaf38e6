//! Builds the configuration of the target: opens backends, loads state, and changes units that continue in place.

mod filters;
mod kept;
mod medium_history;
mod remedy;
mod settings;
mod state_lock;
mod unlinked;

use filters::filtered;
pub(crate) use medium_history::MediumHistory;
pub use medium_history::was_served;
pub(crate) use remedy::cannot_open;
use settings::passing;
pub(crate) use settings::settings;
pub(crate) use state_lock::{LockConflict, configuration, has_identity, held, lockable, serial_twice};

use crate::config::{Config, LunConfig, Share};
use crate::{Diagnostic, ErrorCode, folders, identity, io_text};
use kept::TrialMemory;
use lunar_block::filter::RateLimit;
use lunar_block::{Backend, BackendSpec, DataLifetime, SizeRule};
use lunar_proto::size;
use lunar_router::routes::{RoutedLu, Routes, ServedLu};
use lunar_router::with_rate_limit;
use lunar_scsi::{Lu, LuSettings, PassthroughMode};
use lunar_target::config::{TargetConfig, TargetNode, TextKeyHandler};
use lunar_target::{Instance, LogicalUnit, PassthroughLu, Quiesced};
use state_lock::{StateLock, StateLocks};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The logical units of the running configuration. This object lives as long as the server, and builds each new
/// [`TargetConfig`]. A LUN keeps its unit while it is served from the same medium or under the same identity, and
/// with it reservations, unit attentions and mode pages. A unit is quiesced while it changes.
pub struct Units {
    state_dir: PathBuf,
    open: BTreeMap<Name, OpenUnit>,
    /// The routes; None without a router.
    routes: Option<Arc<Routes>>,
    /// The rate limits of routing instances.
    rates: Mutex<BTreeMap<String, Arc<RateLimit>>>,
    holds: StateLocks,
    /// Memory disks that a change on trial has removed.
    kept: TrialMemory,
}

/// Target and LUN.
pub(crate) type Name = (String, u16);

/// Quiesces the units that change (`lunar_target::TargetServer::quiesce`).
pub type Rest<'a> = &'a dyn Fn(Vec<Arc<LogicalUnit>>) -> Result<Vec<Quiesced>, (usize, std::io::Error)>;

/// An open logical unit and its definition.
#[derive(Clone)]
struct OpenUnit {
    lun: LunConfig,
    max_registrants: usize,
    medium: Medium,
    unit: Arc<LogicalUnit>,
    /// Locks on its state file and its serial number.
    _holds: Vec<Arc<StateLock>>,
}

/// The backend or passthrough of a logical unit.
#[derive(Clone)]
struct Medium {
    blocks: Arc<dyn Backend>,
    /// The passthrough; if set, the medium has no blocks.
    commands: Option<(Arc<dyn PassthroughLu>, PassthroughMode)>,
    /// The rate limit that all LUNs of its routing instance share.
    rate: Option<Arc<RateLimit>>,
    /// The block size that hosts see, if the medium determines it; None: as defined.
    block_size: Option<u32>,
    /// Pending until it is written.
    record: Option<medium_history::PendingRecord>,
}

impl Medium {
    fn of(rate: Option<Arc<RateLimit>>, opened: RoutedLu) -> Medium {
        let (blocks, commands) = match opened {
            RoutedLu::Blocks(blocks) => (blocks, None),
            RoutedLu::Commands(passage, passes) => (lunar_block::nothing(), Some((passage, passes))),
        };
        Medium { blocks, commands, rate, block_size: None, record: None }
    }

    /// The passthrough, wrapped in its rate limit.
    fn passage(&self) -> Option<Arc<dyn PassthroughLu>> {
        let (passage, _) = self.commands.as_ref()?;
        Some(match &self.rate {
            Some(rate) => with_rate_limit(passage.clone(), rate.clone()),
            None => passage.clone(),
        })
    }

    /// The blocks, wrapped in the filters of a LUN and its rate limit.
    fn filtered(&self, lun: &LunConfig) -> Arc<dyn Backend> {
        let blocks = filtered(self.blocks.clone(), lun);
        match &self.rate {
            Some(rate) => lunar_block::filter::rate(blocks, rate.clone()),
            None => blocks,
        }
    }

    /// Whether both have the same passthrough, or neither has one.
    fn passes_as(&self, other: &Medium) -> bool {
        match (&self.commands, &other.commands) {
            (None, None) => true,
            (Some((a, _)), Some((b, _))) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// A unit after all steps that can fail.
struct PlannedUnit {
    lun: LunConfig,
    settings: LuSettings,
    medium: Medium,
    holds: Vec<Arc<StateLock>>,
    /// The new unit; None if the open unit continues.
    fresh: Option<Arc<LogicalUnit>>,
}

impl Units {
    /// An empty set. State files are below `state_dir`.
    pub fn new(state_dir: impl Into<PathBuf>) -> Units {
        Units {
            state_dir: state_dir.into(),
            open: BTreeMap::new(),
            routes: None,
            rates: Mutex::default(),
            holds: StateLocks::default(),
            kept: TrialMemory::default(),
        }
    }

    /// Adds the routes of routers.
    pub fn with(self, routes: Arc<Routes>) -> Units {
        Units { routes: Some(routes), ..self }
    }

    /// Opens new units, changes the units whose definition changed, and removes the rest. After an error, nothing has
    /// changed. Call [`Units::record`] once the result is served.
    ///
    /// A changed unit is quiesced during the whole change: no command uses its medium while the medium is reopened or
    /// given to another unit. Removed units stay busy.
    pub fn setup(&mut self, config: &Config, rest: Rest<'_>) -> Result<TargetConfig, Vec<Diagnostic>> {
        let wanted = wanted(config);
        let routes = self.routes.clone();
        let stays = |name: &Name, open: &OpenUnit| {
            wanted.get(name).is_some_and(|lun| **lun == open.lun)
                && open.max_registrants == config.max_registrants
                && is_led_to(open, routes.as_deref())
        };
        let (staying, leaving): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.open).into_iter().partition(|(name, open)| stays(name, open));
        let result = self.change(&wanted, config.max_registrants, &staying, &leaving, rest);
        self.open = staying;
        match result {
            Ok(next) => {
                self.open.extend(next);
                self.kept.keep(leaving, &self.open);
            }
            Err(problems) => {
                self.open.extend(leaving);
                return Err(problems);
            }
        }
        Ok(self.assemble(config))
    }

    /// Changes the units whose definition changed.
    fn change(
        &self,
        wanted: &BTreeMap<Name, &LunConfig>,
        max_registrants: usize,
        staying: &BTreeMap<Name, OpenUnit>,
        leaving: &BTreeMap<Name, OpenUnit>,
        rest: Rest<'_>,
    ) -> Result<BTreeMap<Name, OpenUnit>, Vec<Diagnostic>> {
        serial_twice(wanted)?;
        let lost = unlinked::lost(leaving, staying, wanted);
        if !lost.is_empty() {
            return Err(lost);
        }
        let mut resting = to_rest(leaving, wanted, rest)?;
        let changed = wanted.iter().filter(|(name, _)| !staying.contains_key(*name));
        let changed: Vec<(&Name, LunConfig)> = changed.map(|(name, lun)| (name, (*lun).clone())).collect();
        let media = ReusableMedia::offer(
            staying,
            leaving,
            &self.kept,
            changed.iter().map(|(name, lun)| (*name, lun)),
        );
        let (mut next, mut problems) = (BTreeMap::new(), Vec::new());
        for (name, lun) in changed {
            let is_kept = self.kept.find(name, &lun).is_some();
            if let Some(open) = leaving.get(name).filter(|_| !is_kept)
                && let Some(problem) = would_forget(&open.lun, &lun)
            {
                problems.push(of_lun(name, problem));
                continue;
            }
            let before = leaving.get(name).filter(|open| goes_on(name, open, &lun));
            match self.next(name, lun, max_registrants, &media, before) {
                Ok(one) => _ = next.insert(name.clone(), one),
                Err(problem) => problems.push(of_lun(name, problem)),
            }
        }
        if !problems.is_empty() {
            drop(next);
            media.keep();
            return Err(problems);
        }
        let mut open = BTreeMap::new();
        for (name, mut next) in next {
            next.set_rate();
            let before = leaving.get(&name).zip(resting.remove(&name));
            let unit = match (next.fresh.take(), before) {
                (Some(fresh), before) => {
                    if let Some((_, resting)) = before {
                        resting.retire();
                    }
                    fresh
                }
                (None, Some((before, resting))) => {
                    next.succeed(before, &resting);
                    before.unit.clone()
                }
                // Unreachable: a unit that continues was open before.
                (None, None) => continue,
            };
            unit.set_on_missing(next.lun.on_missing_file);
            state_lock::sign(&next.holds, &name, &next.lun);
            let (lun, medium, holds) = (next.lun, next.medium, next.holds);
            open.insert(name, OpenUnit { lun, max_registrants, medium, unit, _holds: holds });
        }
        resting.into_values().for_each(Quiesced::retire);
        Ok(open)
    }

    /// Executes all steps for a changed unit that can fail.
    fn next(
        &self,
        name: &Name,
        lun: LunConfig,
        max_registrants: usize,
        media: &ReusableMedia<'_>,
        before: Option<&OpenUnit>,
    ) -> Result<PlannedUnit, Diagnostic> {
        // First, so that a rejected unit creates no file.
        let holds = match self.holds.take(&self.state_dir, name, &lun) {
            // Without state, such a disk has no data that two servers could mix.
            Err(problem)
                if problem.code == ErrorCode::InUse
                    && lun.source.data_lifetime() == DataLifetime::None
                    && lun.serial.is_none() =>
            {
                tracing::warn!(
                    "LUN {} of {} saves no reservations and mode pages: {}",
                    name.1,
                    name.0,
                    problem.what
                );
                None
            }
            other => Some(other?),
        };
        let medium = self.medium(name, &lun, media)?;
        let before = before.filter(|open| open.medium.passes_as(&medium));
        let known = known(&lun, self.kept.find(name, &lun).or(before))?;
        let known = LunConfig { block_size: medium.block_size.unwrap_or(known.block_size), ..known };
        let settings = match medium.commands {
            Some((_, passes)) => passing(name, &known, passes, max_registrants),
            None => LuSettings {
                max_atomic: medium.blocks.max_atomic(),
                ..settings(name, &known, medium.blocks.facts(), max_registrants)?
            },
        };
        let fresh = match before {
            Some(_) => {
                Lu::new(settings.clone(), None).map_err(invalid)?;
                None
            }
            None => {
                let keeps = holds.is_some() && !is_nameless(&lun);
                let state_file = if keeps { Some(self.state_file(name, &lun)?) } else { None };
                let lu = match &state_file {
                    Some(file) => restored(name, settings.clone(), file)?,
                    None => Lu::new(settings.clone(), None).map_err(invalid)?,
                };
                let lu = Arc::new(lu);
                Some(Arc::new(match medium.passage() {
                    Some(passage) => LogicalUnit::new_passthrough(lu, passage, state_file),
                    None => LogicalUnit::new(lu, medium.filtered(&lun), state_file),
                }))
            }
        };
        Ok(PlannedUnit { lun, settings, medium, holds: holds.unwrap_or_default(), fresh })
    }

    /// The rate limit of a LUN. [`PlannedUnit::set_rate`] sets its values.
    fn rate(&self, lun: &LunConfig, always: bool) -> Option<Arc<RateLimit>> {
        let share = share(lun, always)?;
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        Some(rates.entry(share.router).or_insert_with(|| RateLimit::new(0, 0)).clone())
    }

    /// The medium of a LUN: the open one if it is open in the same way, otherwise a new one.
    fn medium(&self, name: &Name, lun: &LunConfig, media: &ReusableMedia<'_>) -> Result<Medium, Diagnostic> {
        if let Some(place) = lun.source.place() {
            let routes = self
                .routes
                .as_ref()
                .ok_or_else(|| Diagnostic::new("no router is running for the LUN", "restart lunar"))?;
            let opened = routes.open(place);
            let rate = |opened: &RoutedLu| self.rate(lun, matches!(opened, RoutedLu::Commands(..)));
            return opened.map(|opened| Medium::of(rate(&opened), opened)).map_err(|e| {
                let hint = e.hint.clone().unwrap_or_else(|| "check the upstream: lunar ls URL".into());
                Diagnostic::new(format!("{}: {}", lun.source, e.what), hint)
            });
        }
        if has_path(lun) {
            return self.at_path(name, lun, media);
        }
        let blocks = media.find(name, lun).map_or_else(|| media.open(lun, true, &self.state_dir), Ok)?;
        Ok(Medium { blocks, commands: None, rate: self.rate(lun, false), block_size: None, record: None })
    }

    /// The state file of a unit. Creates its folder.
    fn state_file(&self, name: &Name, lun: &LunConfig) -> Result<PathBuf, Diagnostic> {
        let file = state_path(&self.state_dir, name, lun);
        file.parent().map_or(Ok(()), create_folder)?;
        Ok(file)
    }

    fn assemble(&self, config: &Config) -> TargetConfig {
        let targets =
            config.targets.iter().map(|target| (target.name.clone(), self.target(target))).collect();
        TargetConfig {
            limits: config.limits.clone(),
            session: config.session.clone(),
            discovery: config.discovery.clone(),
            portal_groups: config.portal_groups.clone(),
            targets,
            awaited: config.awaited.clone(),
            instances: self.instances(config),
            text_keys: self.answers(),
        }
    }

    /// The instances with their own portal group.
    fn instances(&self, config: &Config) -> BTreeMap<u16, Arc<Instance>> {
        let Some(routes) = &self.routes else { return BTreeMap::new() };
        let mut own = BTreeMap::new();
        for group in &config.portal_groups {
            let is_of = |tags: &[u16]| tags.contains(&group.tag);
            let mut here = config.routers.iter().filter(|router| is_of(&router.portal_groups));
            let is_shared =
                config.targets.iter().any(|target| target.router.is_none() && is_of(&target.portal_groups));
            if let (Some(router), None, false) = (here.next(), here.next(), is_shared) {
                own.insert(group.tag, routes.instance(&router.name));
            }
        }
        own
    }

    /// Answers text keys for the targets behind a routed target, and for the role in a failover pair.
    fn answers(&self) -> TextKeyHandler {
        let Some(routes) = &self.routes else { return TextKeyHandler::default() };
        let routes = routes.clone();
        TextKeyHandler::new(move |target, key, value| routes.answer(target, key, value))
    }

    fn target(&self, target: &crate::config::Target) -> TargetNode {
        let unit =
            |number: &u16| Some((*number, self.open.get(&(target.name.clone(), *number))?.unit.clone()));
        TargetNode {
            name: target.name.clone(),
            alias: target.alias.clone(),
            portal_groups: target.portal_groups.clone(),
            redirects: target.redirects.clone(),
            offline: target.offline,
            mutual: target.mutual.clone(),
            luns: target.luns.keys().filter_map(unit).collect(),
            access: target.access.clone(),
            instance: self.routes.as_ref().zip(target.router.as_deref()).map(|(r, name)| r.instance(name)),
            depth: target.depth,
        }
    }

    /// The routed logical units that hosts see.
    pub fn routed(&self, config: &Config) -> Vec<ServedLu> {
        let tags: BTreeMap<&str, &[u16]> = config
            .targets
            .iter()
            .map(|target| (target.name.as_str(), target.portal_groups.as_slice()))
            .collect();
        let one = |(name, open): (&Name, &OpenUnit)| {
            let place = open.lun.source.place().filter(|_| open.medium.commands.is_none())?.clone();
            let tags = tags.get(name.0.as_str())?.to_vec();
            Some(ServedLu { place, lu: open.unit.lu.clone(), tags })
        };
        self.open.iter().filter_map(one).collect()
    }
}

/// Whether a routed LUN still has the current object of its upstream. A SCSI device of this host is exempt: its
/// reservations are kept here, and a new unit would lose them.
fn is_led_to(open: &OpenUnit, routes: Option<&Routes>) -> bool {
    let is_device = matches!(open.medium.commands, Some((_, PassthroughMode::Shared)));
    let place = open.lun.source.place().filter(|_| !is_device);
    place.zip(routes).is_none_or(|(place, routes)| routes.leads_to(place))
}

/// Quiesces the units that leave or change.
fn to_rest(
    leaving: &BTreeMap<Name, OpenUnit>,
    wanted: &BTreeMap<Name, &LunConfig>,
    rest: Rest<'_>,
) -> Result<BTreeMap<Name, Quiesced>, Vec<Diagnostic>> {
    let hint = "reload again later, or restart lunar; the old configuration stays in force";
    let problem = |name: &Name, what: String| vec![of_lun(name, Diagnostic::new(what, hint))];
    let names: Vec<&Name> = leaving.keys().collect();
    let resting = rest(leaving.values().map(|open| open.unit.clone()).collect());
    let resting = resting.map_err(|(i, e)| match names.get(i) {
        Some(name) => problem(name, format!("cannot be changed now: {}", io_text(&e))),
        None => vec![Diagnostic::new(format!("cannot change LUNs now: {}", io_text(&e)), hint)],
    })?;
    let resting: BTreeMap<Name, Quiesced> = names.into_iter().cloned().zip(resting).collect();
    for (name, one) in &resting {
        let Err(e) = &one.flushed else { continue };
        // A routed unit may fail to flush: an unreachable upstream is often the reason for the change.
        let is_ours = wanted.get(name).is_some_and(|lun| lun.source.place().is_none());
        if is_ours {
            return Err(problem(name, format!("cannot flush the medium of the LUN: {}", io_text(e))));
        }
        tracing::error!(error = %e, "cannot flush the medium of the removed LUN {} of {}", name.1, name.0);
    }
    Ok(resting)
}

/// Whether a LUN under another definition is the same logical unit: of the same type, and on the same disk or with
/// the same identity.
fn goes_on(name: &Name, open: &OpenUnit, lun: &LunConfig) -> bool {
    let identity = || identity::identity(&name.0, name.1, lun).naa == open.unit.lu.settings().identity.naa;
    open.lun.kind == lun.kind
        && open.lun.state_name == lun.state_name
        && (same_place(&open.lun, lun) || identity())
}

/// Whether both definitions lead to the same blocks, even by different paths.
fn same_place(a: &LunConfig, b: &LunConfig) -> bool {
    let (kind, other) = (a.source.kind(), b.source.kind());
    match (a.source.path(), b.source.path()) {
        (Some(a), Some(b)) => kind == other && a == b,
        // The upstreams may differ: the identity decides.
        _ if kind.or(other).is_none() => {
            let identity = |lun: &LunConfig| lun.found.as_ref().map(|found| found.designators.clone());
            identity(a) == identity(b) && identity(a).is_some_and(|identity| !identity.is_empty())
        }
        _ => a.source == b.source,
    }
}

/// Memory without a configured serial number. It is a new disk with a new identity at each start, and has no state.
fn is_nameless(lun: &LunConfig) -> bool {
    lun.serial.is_none() && lun.source.data_lifetime() == DataLifetime::Process
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

/// The share of a LUN. A passthrough LUN (`always`) has one even without a limit, so that a reload can set a limit.
fn share(lun: &LunConfig, always: bool) -> Option<Share> {
    let none =
        || lun.source.place().map(|place| Share { router: place.router.clone(), iops: 0, bytes_per_s: 0 });
    lun.share.clone().or_else(|| none().filter(|_| always))
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
        let is_reached_anew = has_path(&self.lun) || self.lun.source.place().is_some();
        let reopened = is_reached_anew && same_place(&open.lun, &self.lun);
        let replaced = !reopened && !Arc::ptr_eq(&open.medium.blocks, &self.medium.blocks);
        let backend = self.medium.filtered(&self.lun);
        if let Err(e) = resting.redefine(self.settings.clone(), backend, replaced) {
            tracing::error!(error = %e, "cannot apply the new settings of a LUN");
        }
    }
}

/// The media of units that leave or change. A medium that no unit keeps is offered, so that it can be opened in
/// another way.
struct ReusableMedia<'a> {
    staying: &'a BTreeMap<Name, OpenUnit>,
    leaving: &'a BTreeMap<Name, OpenUnit>,
    kept: &'a TrialMemory,
    offered: Vec<Arc<dyn Backend>>,
}

impl<'a> ReusableMedia<'a> {
    fn offer<'l>(
        staying: &'a BTreeMap<Name, OpenUnit>,
        leaving: &'a BTreeMap<Name, OpenUnit>,
        kept: &'a TrialMemory,
        wanted: impl Iterator<Item = (&'l Name, &'l LunConfig)>,
    ) -> ReusableMedia<'a> {
        let mut media = ReusableMedia { staying, leaving, kept, offered: Vec::new() };
        let mut used: Vec<_> = wanted.filter_map(|(name, lun)| media.find(name, lun)).collect();
        used.extend(staying.values().map(|open| open.medium.blocks.clone()));
        for open in leaving.values() {
            if used.iter().any(|medium| Arc::ptr_eq(medium, &open.medium.blocks)) {
                continue;
            }
            used.push(open.medium.blocks.clone());
            open.medium.blocks.offer(true);
            media.offered.push(open.medium.blocks.clone());
        }
        media
    }

    /// The medium of a LUN if it is open in the same way already.
    fn find(&self, name: &Name, lun: &LunConfig) -> Option<Arc<dyn Backend>> {
        let same = |open: &&OpenUnit| same_way(&open.lun, lun);
        let here = self.leaving.get(name).filter(same).or_else(|| self.kept.find(name, lun));
        // Memory is never shared by two LUNs.
        let all = || self.leaving.values().chain(self.staying.values()).find(same);
        here.or_else(|| all().filter(|_| has_path(lun))).map(|open| open.medium.blocks.clone())
    }

    /// Checks that the path of a LUN still leads to its open medium.
    fn in_place(&self, lun: &LunConfig) -> Result<(), Diagnostic> {
        unlinked::in_place(self.leaving.values().chain(self.staying.values()), lun)
    }

    /// With `raw`, image formats are not detected.
    fn open(&self, lun: &LunConfig, raw: bool, state_dir: &Path) -> Result<Arc<dyn Backend>, Diagnostic> {
        let Some(mut spec) = spec(lun) else {
            return Err(Diagnostic::new(
                format!("{} is not open", lun.source),
                "check the upstream: lunar ls URL",
            ));
        };
        spec.raw = raw;
        if has_path(lun) {
            let records = folders::atomic(state_dir);
            create_folder(&records)?;
            spec.journal = Some(records);
        }
        lunar_block::open(&spec).map_err(|e| {
            let is_same =
                |open: &OpenUnit| self::spec(&open.lun).is_some_and(|other| other.path == spec.path);
            let held = has_path(lun) && self.leaving.values().any(is_same);
            let problem = cannot_open(lun, e);
            match held && spec.kind == lunar_block::BackendKind::Device {
                true => Diagnostic { hint: Some("restart lunar to reopen the device".into()), ..problem },
                false => problem,
            }
        })
    }

    /// Withdraws the offers after a failure.
    fn keep(self) {
        self.offered.iter().for_each(|medium| medium.offer(false));
    }
}

/// Notes about a medium of `capacity` bytes: hosts do not see all of it, or an existing file has another size than the
/// configured one.
pub(crate) fn notes_of_size(lun: &LunConfig, capacity: u64) -> Vec<String> {
    let mut notes = Vec::new();
    let (block, rest) = (lun.block_size, capacity % u64::from(lun.block_size));
    if rest > 0 {
        notes.push(format!(
            "the last {rest} bytes of the medium are less than a block of {block} bytes and are not served"
        ));
    }
    if let (Some(path), Some(wanted)) = (lun.source.path(), lun.source.size())
        && capacity != wanted
    {
        let (found, wanted, path) = (size::show(capacity), size::show(wanted), path.display());
        notes.push(format!("{path} exists and keeps its size of {found}; the given size is {wanted}"));
    }
    notes
}

/// All LUNs of a configuration, by name.
pub(crate) fn wanted(config: &Config) -> BTreeMap<Name, &LunConfig> {
    let luns = config
        .targets
        .iter()
        .flat_map(|t| t.luns.iter().map(|(number, lun)| ((t.name.clone(), *number), lun)));
    luns.collect()
}

pub(crate) fn has_path(lun: &LunConfig) -> bool {
    lun.source.path().is_some()
}

/// The path of the state file of a unit.
pub(crate) fn state_path(state_dir: &Path, name: &Name, lun: &LunConfig) -> PathBuf {
    let file = lun.state_name.clone().unwrap_or_else(|| name.1.to_string()) + ".state";
    state_dir.join("lu").join(&name.0).join(file)
}

/// Creates a folder, and its missing parents, with access for this user only.
pub fn create_folder(folder: &Path) -> Result<(), Diagnostic> {
    create_folder_or(folder, STATE_FOLDER_HINT)
}

/// As [`create_folder`], with this hint in its error.
pub(crate) fn create_folder_or(folder: &Path, hint: &str) -> Result<(), Diagnostic> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| cannot_create(folder, &e, hint))
}

/// Checks that [`create_folder`] would succeed, by creating and removing a copy of the missing folders. Permissions alone
/// do not show it: /proc accepts no folder, and a file system may be out of inodes.
pub(crate) fn can_create(folder: &Path) -> Result<(), Diagnostic> {
    let Some(there) = folder.ancestors().find(|folder| folder.symlink_metadata().is_ok()) else {
        return Ok(());
    };
    let made = match there.is_dir() {
        true if there == folder => Ok(()),
        true => {
            let copy = there.join(TRIAL.to_owned() + &std::process::id().to_string());
            let below: PathBuf = folder.strip_prefix(there).into_iter().flatten().skip(1).collect();
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(copy.join(below));
            // Removes whatever was created. It is not an error if nothing was.
            _ = std::fs::remove_dir_all(copy);
            made
        }
        false if there == folder => Err(rustix::io::Errno::EXIST.into()),
        false => Err(rustix::io::Errno::NOTDIR.into()),
    };
    made.map_err(|e| cannot_create(folder, &e, STATE_FOLDER_HINT))
}

/// Prefix of the name of a trial folder or file; the process id follows.
const TRIAL: &str = ".lunar-check-";

const STATE_FOLDER_HINT: &str =
    "set XDG_STATE_HOME, or state_dir in the configuration, to a folder that this user can write";

fn cannot_create(folder: &Path, e: &std::io::Error, hint: &str) -> Diagnostic {
    Diagnostic::new(format!("cannot create the folder {}: {}", folder.display(), io_text(e)), hint)
}

/// Prefixes a problem with its logical unit.
pub(crate) fn of_lun(name: &Name, problem: Diagnostic) -> Diagnostic {
    Diagnostic { what: format!("LUN {} of {}: {}", name.1, name.0, problem.what), ..problem }
}

/// The specification of a medium; None for a routed LUN.
pub(crate) fn spec(lun: &LunConfig) -> Option<BackendSpec> {
    let (kind, size) = (lun.source.kind()?, lun.source.size());
    let Some(path) = lun.source.path() else { return size.map(|size| BackendSpec::sized(kind, size)) };
    Some(BackendSpec {
        kind,
        path: path.to_path_buf(),
        size,
        read_only: lun.read_only,
        direct: lun.direct,
        create: size.is_some(),
        raw: lun.raw,
        journal: None,
    })
}

/// Whether two LUNs open their medium in the same way. The size only matters for a file that does not exist yet.
fn same_way(a: &LunConfig, b: &LunConfig) -> bool {
    let way = |lun: &LunConfig| match spec(lun) {
        Some(spec) if spec.kind.size_rule() == SizeRule::IfCreated => {
            Some(BackendSpec { size: None, create: false, raw: true, ..spec })
        }
        // An open medium counts as raw.
        way => way.map(|spec| BackendSpec { raw: true, ..spec }),
    };
    match (way(a), way(b)) {
        (None, None) => a.source == b.source,
        (a, b) => a == b,
    }
}

fn invalid(e: lunar_scsi::InvalidDefinition) -> Diagnostic {
    Diagnostic::new(e.to_string(), "change the definition of the LUN")
}

/// Upper limit of a state file in bytes.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// A logical unit with its saved state. A damaged state file is rejected and left unchanged: it may hold reservations that
/// protect data.
pub(crate) fn load(settings: LuSettings, state_file: &Path) -> Result<Lu, Diagnostic> {
    let Some(saved) = read_state(state_file)? else {
        return Lu::new(settings, None).map_err(invalid);
    };
    // An invalid definition must not be reported as a damaged file.
    Lu::new(settings.clone(), None).map_err(invalid)?;
    Lu::new(settings, Some(&saved)).map_err(|e| {
        Diagnostic::new(
            format!("the saved state {} is damaged: {e}", state_file.display()),
            "restore the file from a backup, or move it away to start without reservations and saved mode pages",
        )
    })
}

/// As [`load`], and logs restored registrations and reservations, because they may deny access to hosts.
fn restored(name: &Name, settings: LuSettings, state_file: &Path) -> Result<Lu, Diagnostic> {
    lunar_target::remove_leftovers(state_file);
    let lu = load(settings, state_file)?;
    let (registrations, reserved) = lu.reservations();
    if registrations > 0 {
        tracing::info!(
            "LUN {} of {}: restored {registrations} registration{}{} from {}",
            name.1,
            name.0,
            if registrations == 1 { "" } else { "s" },
            if reserved { " and a reservation" } else { "" },
            state_file.display()
        );
    }
    Ok(lu)
}

fn read_state(path: &Path) -> Result<Option<Vec<u8>>, Diagnostic> {
    let failed = |what: String| {
        Diagnostic::new(
            format!("the saved state {} {what}", path.display()),
            "make the file readable, or move it away to start without reservations and saved mode pages",
        )
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(format!("cannot be read: {}", io_text(&e)))),
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_STATE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| failed(format!("cannot be read: {}", io_text(&e))))?;
    if bytes.len() as u64 > MAX_STATE_BYTES {
        return Err(failed("has more than 64 MiB".into()));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
