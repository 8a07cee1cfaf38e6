//! Builds the configuration of the target: opens backends, loads state, and changes units that continue in place.

mod assemble;
mod change;
mod equal_ids;
mod filters;
mod folder;
mod hand_over;
mod kept;
mod medium;
mod medium_history;
mod moved;
mod remedy;
mod reusable_media;
mod saved_state;
mod settings;
mod state_lock;
mod unit_name;
mod unlinked;

pub(crate) use change::is_nameless;
pub(crate) use equal_ids::identifier_twice;
use folder::TRIAL;
pub use folder::create_folder;
pub(crate) use folder::{can_create, create_folder_or};
pub(crate) use medium::{has_path, notes_of_size, spec};
use medium::{same_backend, same_place};
pub(crate) use medium_history::MediumHistory;
pub use medium_history::was_served;
pub(crate) use remedy::cannot_open;
use saved_state::MAX_STATE_BYTES;
pub(crate) use saved_state::{load, state_path};
pub(crate) use settings::settings;
pub use state_lock::used_state_files;
pub(crate) use state_lock::{HeldLocks, LockConflict, configuration, has_identity, lockable, serial_twice};
pub(crate) use unit_name::{UnitName, wanted};

use crate::Diagnostic;
use crate::config::{Config, LunConfig};
use kept::TrialMemory;
use lunar_block::Backend;
use lunar_block::filter::RateLimit;
use lunar_gateway::{Gateway, SharedUnitGuard};
use lunar_router::routes::Routes;
use lunar_scsi::PassthroughMode;
use lunar_target::config::TargetConfig;
use lunar_target::{LogicalUnit, Quiesced};
use medium::Medium;
use moved::Moves;
use state_lock::{StateLocks, UnitLocks};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

/// The logical units of the running configuration. This object lives as long as the server, and builds each new
/// [`TargetConfig`]. A LUN keeps its unit while it is served from the same medium or under the same identity, and
/// with it reservations, unit attentions and mode pages. A unit is quiesced while it changes.
pub struct Units {
    state_dir: PathBuf,
    open: BTreeMap<UnitName, OpenUnit>,
    /// The routes; None without a router.
    routes: Option<Arc<Routes>>,
    /// The subsystems that hosts may use already: a LUN that is awaited later does not close them.
    served: Mutex<BTreeSet<String>>,
    /// The rate limits of routing instances.
    rates: Mutex<BTreeMap<String, Arc<RateLimit>>>,
    /// The group of gateways.
    gateway: Option<Arc<Gateway>>,
    locks: StateLocks,
    /// Memory disks that a change on trial has removed.
    kept: TrialMemory,
    /// The state files of the former places of moved units, which are not removed yet.
    former: Vec<PathBuf>,
    /// Whether a change may close a deleted file, whose data is lost then.
    may_discard: bool,
}

/// Quiesces the units that change (`lunar_target::TargetServer::quiesce`).
pub type Rest<'a> = &'a dyn Fn(Vec<Arc<LogicalUnit>>) -> Result<Vec<Quiesced>, (usize, std::io::Error)>;

/// An open logical unit and its definition.
#[derive(Clone)]
struct OpenUnit {
    lun: LunConfig,
    max_registrants: usize,
    medium: Medium,
    unit: Arc<LogicalUnit>,
    /// Keeps the unit shared with other gateways.
    shared: Option<Arc<SharedUnitGuard>>,
    /// Locks on its state file and its serial number.
    _locks: UnitLocks,
}

/// Shows whether a medium is closed, without keeping it open.
pub struct MediumWatch {
    backend: Weak<dyn Backend>,
    /// As [`Backend::open_mark`].
    mark: Option<Weak<()>>,
}

impl MediumWatch {
    /// Watches the medium of a backend.
    pub fn of(backend: &Arc<dyn Backend>) -> MediumWatch {
        MediumWatch { backend: Arc::downgrade(backend), mark: backend.open_mark() }
    }

    /// Whether nothing uses the medium anymore, and its last close has ended.
    pub fn is_closed(&self) -> bool {
        self.backend.strong_count() == 0 && self.mark.as_ref().is_none_or(|mark| mark.strong_count() == 0)
    }
}

/// The units before a change.
#[derive(Clone, Copy)]
struct OldUnits<'a> {
    /// They stay as they are.
    staying: &'a BTreeMap<UnitName, OpenUnit>,
    /// They change or leave.
    leaving: &'a BTreeMap<UnitName, OpenUnit>,
    moves: &'a Moves,
}

impl<'a> OldUnits<'a> {
    /// The unit that moves to this name.
    fn former(&self, name: &UnitName) -> Option<(&'a UnitName, &'a OpenUnit)> {
        self.leaving.get_key_value(self.moves.get(name)?)
    }

    /// All units.
    fn all(&self) -> impl Iterator<Item = &'a OpenUnit> {
        self.leaving.values().chain(self.staying.values())
    }
}

impl Units {
    /// An empty set. State files are below `state_dir`.
    pub fn new(state_dir: impl Into<PathBuf>) -> Units {
        Units {
            state_dir: state_dir.into(),
            open: BTreeMap::new(),
            routes: None,
            served: Mutex::default(),
            rates: Mutex::default(),
            gateway: None,
            locks: StateLocks::default(),
            kept: TrialMemory::default(),
            former: Vec::new(),
            may_discard: false,
        }
    }

    /// Adds the routes of routers.
    pub fn with(self, routes: Arc<Routes>) -> Units {
        Units { routes: Some(routes), ..self }
    }

    /// Shares images of RBD with other gateways.
    pub fn sharing(self, gateway: Option<Arc<Gateway>>) -> Units {
        Units { gateway, ..self }
    }

    /// Whether the next changes may close deleted files, whose data is lost then. Without it, they are refused.
    pub fn discard_deleted(&mut self, may: bool) {
        self.may_discard = may;
    }

    /// The open media of a target.
    pub fn media_of(&self, target: &str) -> Vec<MediumWatch> {
        let is_of = |name: &UnitName| matches!(name, UnitName::Lun(of, _) if of == target);
        let open = self.open.iter().filter(|(name, _)| is_of(name));
        open.map(|(_, open)| MediumWatch::of(&open.medium.blocks)).collect()
    }

    /// Opens new units, changes the units whose definition changed, and removes the rest. After an error, nothing has
    /// changed. Call [`Units::record`] once the result is served.
    ///
    /// A changed unit is quiesced during the whole change: no command uses its medium while the medium is reopened or
    /// given to another unit. Removed units stay busy. A unit that moves to another LUN keeps its state and its medium.
    pub fn setup(&mut self, config: &Config, rest: Rest<'_>) -> Result<TargetConfig, Vec<Diagnostic>> {
        self.check_gateway(config).map_err(|problem| vec![problem])?;
        identifier_twice(config)?;
        let wanted = wanted(config);
        let routes = self.routes.clone();
        let stays = |name: &UnitName, open: &OpenUnit| {
            wanted.get(name).is_some_and(|lun| **lun == open.lun)
                && open.max_registrants == config.max_registrants
                && is_led_to(open, routes.as_deref())
        };
        // Most changes affect few of many units.
        let names: Vec<UnitName> = self
            .open
            .iter()
            .filter(|(name, open)| !stays(name, open))
            .map(|(name, _)| name.clone())
            .collect();
        let leaving: BTreeMap<_, _> = names.iter().filter_map(|name| self.open.remove_entry(name)).collect();
        let staying = std::mem::take(&mut self.open);
        let moves = moved::moves(&wanted, &staying, &leaving);
        let old = OldUnits { staying: &staying, leaving: &leaving, moves: &moves };
        let result = self.change(&wanted, config.max_registrants, old, rest);
        self.open = staying;
        match result {
            Ok(next) => {
                self.leave(&moves, &leaving);
                self.open.extend(next);
                self.kept.keep(leaving, &self.open);
            }
            Err(problems) => {
                self.open.extend(leaving);
                self.locks.release();
                return Err(problems);
            }
        }
        Ok(self.assemble(config))
    }

    /// Rejects another place in the group: the units that are served would keep the old one.
    fn check_gateway(&self, config: &Config) -> Result<(), Diagnostic> {
        let stays = |own: &Arc<Gateway>| {
            let wanted = config.gateway.as_ref();
            wanted.is_some_and(|to| own.is(&to.group, to.id, to.pool.as_deref()))
        };
        if self.gateway.as_ref().is_none_or(stays) {
            return Ok(());
        }
        let what = "[gateway]: group, id or pool differ from those of the running server";
        Err(Diagnostic::new(what, "restart the server to change them, or keep them"))
    }
}

/// Whether a routed LUN still has the current object of its upstream. A SCSI device of this host is exempt: its
/// reservations are kept here, and a new unit would lose them.
fn is_led_to(open: &OpenUnit, routes: Option<&Routes>) -> bool {
    let is_device = matches!(open.medium.commands, Some((_, PassthroughMode::Shared)));
    let address = open.lun.source.lu_address().filter(|_| !is_device);
    address.zip(routes).is_none_or(|(address, routes)| routes.leads_to(address))
}

/// Prefixes a problem with its logical unit.
pub(crate) fn of_lun(name: &UnitName, problem: Diagnostic) -> Diagnostic {
    Diagnostic { what: format!("{name}: {}", problem.what), ..problem }
}

#[cfg(test)]
mod tests;
