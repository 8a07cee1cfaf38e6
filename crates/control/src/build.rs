//! From a configuration to what the target runs: backends opened, state loaded, and unchanged units kept.

use crate::config::{Config, Fail, Filter, Lun, Source};
use crate::{Problem, identity, io_text, plain};
use ::target::Unit;
use ::target::setup::{Setup, Target};
use block::{Backend, Spec};
use device::{Lu, Settings};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The logical units of the configuration that runs. It lives as long as the server, and makes each new
/// [`Setup`]: what a new configuration does not change keeps its unit, and with it reservations, mode pages
/// and contents.
pub struct Units {
    state_dir: PathBuf,
    open: BTreeMap<Name, Open>,
}

/// Target and LUN.
type Name = (String, u16);

/// An open logical unit and what it was made of.
#[derive(Clone)]
struct Open {
    lun: Lun,
    medium: Arc<dyn Backend>,
    unit: Arc<Unit>,
}

impl Units {
    /// Nothing open. State is kept below `state_dir`.
    pub fn new(state_dir: impl Into<PathBuf>) -> Units {
        Units { state_dir: state_dir.into(), open: BTreeMap::new() }
    }

    /// Opens what is new, keeps what is as before, and forgets the rest. After an error everything is as it
    /// was.
    ///
    /// A unit that is kept has the limit of registrants that it began with. A unit whose definition changed,
    /// but not the medium, keeps the medium.
    pub fn setup(&mut self, config: &Config) -> Result<Setup, Vec<Problem>> {
        let mut open = BTreeMap::new();
        let mut problems = Vec::new();
        for target in &config.targets {
            for (number, lun) in &target.luns {
                let name = (target.name.clone(), *number);
                match self.keep_or_open(&name, lun, config.max_registrants) {
                    Ok(unit) => _ = open.insert(name, unit),
                    Err(problem) => problems.push(problem),
                }
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        self.open = open;
        Ok(self.assemble(config))
    }

    fn keep_or_open(&self, name: &Name, lun: &Lun, max_registrants: usize) -> Result<Open, Problem> {
        if let Some(open) = self.open.get(name).filter(|open| open.lun == *lun) {
            return Ok(open.clone());
        }
        let medium = match self.open_medium(name, lun) {
            Some(medium) => medium,
            None => self.open_new(lun).map_err(|problem| of_lun(name, problem))?,
        };
        let unit =
            self.unit(name, lun, medium.clone(), max_registrants).map_err(|problem| of_lun(name, problem))?;
        Ok(Open { lun: lun.clone(), medium, unit: Arc::new(unit) })
    }

    /// The medium of a unit that goes on under another definition: its file is locked, so it cannot be opened
    /// twice.
    fn open_medium(&self, name: &Name, lun: &Lun) -> Option<Arc<dyn Backend>> {
        let wanted = spec(lun);
        let same = |open: &&Open| spec(&open.lun) == wanted;
        let here = self.open.get(name).filter(same);
        let has_path = !wanted.path.as_os_str().is_empty();
        let moved = || self.open.values().find(|open| has_path && same(open));
        here.or_else(moved).map(|open| open.medium.clone())
    }

    fn open_new(&self, lun: &Lun) -> Result<Arc<dyn Backend>, Problem> {
        let spec = spec(lun);
        block::open(&spec).map_err(|e| {
            let path = &spec.path;
            let held = self
                .open
                .values()
                .any(|open| !path.as_os_str().is_empty() && self::spec(&open.lun).path == *path);
            let hint = if held { "restart lunar to open it in another way".into() } else { e.hint };
            Problem::new(format!("{}: {}", e.subject, plain(&e.what)), hint)
        })
    }

    fn unit(
        &self,
        name: &Name,
        lun: &Lun,
        medium: Arc<dyn Backend>,
        max_registrants: usize,
    ) -> Result<Unit, Problem> {
        let facts = medium.facts();
        if facts.capacity < u64::from(lun.block_size) {
            return Err(Problem::new(
                format!("the medium has {} bytes, less than a block of {}", facts.capacity, lun.block_size),
                "serve a larger one",
            ));
        }
        let settings = Settings {
            kind: lun.kind,
            identity: identity::identity(&name.0, name.1, lun),
            block_size: lun.block_size,
            physical_block_size: lun.physical_block_size,
            capacity: facts.capacity,
            read_only: lun.read_only || facts.read_only,
            removable: lun.removable,
            write_cache: lun.write_cache,
            thin: lun.thin && facts.unmap,
            max_registrants,
        };
        let state_file = self.state_file(name, lun)?;
        let lu = Arc::new(load(settings, &state_file)?);
        Ok(Unit::new(lu, filtered(medium, lun), Some(state_file)))
    }

    /// The file that keeps a unit's state, in a folder that exists.
    fn state_file(&self, name: &Name, lun: &Lun) -> Result<PathBuf, Problem> {
        let file = lun.state_name.clone().unwrap_or_else(|| name.1.to_string()) + ".state";
        let folder = self.state_dir.join("lu").join(&name.0);
        create_folder(&folder)?;
        Ok(folder.join(file))
    }

    fn assemble(&self, config: &Config) -> Setup {
        let targets =
            config.targets.iter().map(|target| (target.name.clone(), self.target(target))).collect();
        Setup {
            limits: config.limits.clone(),
            session: config.session.clone(),
            discovery: config.discovery.clone(),
            portal_groups: config.portal_groups.clone(),
            targets,
        }
    }

    fn target(&self, target: &crate::config::Target) -> Target {
        let unit =
            |number: &u16| Some((*number, self.open.get(&(target.name.clone(), *number))?.unit.clone()));
        Target {
            name: target.name.clone(),
            alias: target.alias.clone(),
            portal_groups: target.portal_groups.clone(),
            redirects: target.redirects.clone(),
            offline: target.offline,
            mutual: target.mutual.clone(),
            luns: target.luns.keys().filter_map(unit).collect(),
            access: target.access.clone(),
        }
    }
}

/// Makes a folder, and those above it, that only the user can enter.
pub fn create_folder(folder: &Path) -> Result<(), Problem> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| {
        Problem::new(
            format!("cannot create the folder {}: {}", folder.display(), io_text(&e)),
            "set XDG_STATE_HOME, or state_dir in the configuration, to a folder that this user can write",
        )
    })
}

/// A problem of a logical unit names it.
fn of_lun(name: &Name, problem: Problem) -> Problem {
    Problem { what: format!("LUN {} of {}: {}", name.1, name.0, problem.what), ..problem }
}

/// How a medium is opened.
fn spec(lun: &Lun) -> Spec {
    let (kind, path, size) = match &lun.source {
        Source::Null { size } => return Spec::sized(block::Kind::Null, *size),
        Source::Memory { size } => return Spec::sized(block::Kind::Memory, *size),
        Source::File { path, size } => (block::Kind::File, path, *size),
        Source::Device { path } => (block::Kind::Device, path, None),
    };
    Spec {
        kind,
        path: path.clone(),
        size,
        read_only: lun.read_only,
        direct: lun.direct,
        create: size.is_some(),
    }
}

/// No state of a unit is larger.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// A logical unit with its saved state. A state that cannot be understood is refused, and stays as it is: it
/// may hold reservations that protect somebody's data.
fn load(settings: Settings, state_file: &Path) -> Result<Lu, Problem> {
    let wrong = |e: device::Invalid| Problem::new(e.to_string(), "change the definition of the LUN");
    let Some(saved) = read_state(state_file)? else {
        return Lu::new(settings, None).map_err(wrong);
    };
    // To tell a wrong definition from a wrong file.
    Lu::new(settings.clone(), None).map_err(wrong)?;
    Lu::new(settings, Some(&saved)).map_err(|e| {
        Problem::new(
            format!("the saved state {} is damaged: {e}", state_file.display()),
            "restore it from a backup, or move it away to begin without reservations and saved mode pages",
        )
    })
}

fn read_state(path: &Path) -> Result<Option<Vec<u8>>, Problem> {
    let failed = |what: String| {
        Problem::new(
            format!("the saved state {} {what}", path.display()),
            "make it readable, or move it away to begin without reservations and saved mode pages",
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

/// The medium inside of its filters.
fn filtered(medium: Arc<dyn Backend>, lun: &Lun) -> Arc<dyn Backend> {
    lun.filters.iter().fold(medium, |inner, filter| match *filter {
        Filter::Stats => block::filter::stats(inner).0,
        Filter::Delay { read_us, write_us } => {
            block::filter::delay(inner, Duration::from_micros(read_us), Duration::from_micros(write_us))
        }
        Filter::Rate { iops, bytes_per_s } => block::filter::rate(inner, iops, bytes_per_s),
        Filter::Error { rate, op } => block::filter::error(inner, op_of(op), rate, None),
    })
}

fn op_of(fail: Fail) -> block::filter::Op {
    match fail {
        Fail::Read => block::filter::Op::Read,
        Fail::Write => block::filter::Op::Write,
        Fail::Flush => block::filter::Op::Flush,
    }
}

#[cfg(test)]
mod tests;
