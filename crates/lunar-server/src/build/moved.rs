//! Logical units that move to another LUN. They keep their state and their medium.
//!
//! The files of the state are copied before the change takes effect. Those of the former place are removed once the
//! change is permanent. So after a crash, the place that the configuration has is the one with the state.

use super::{OpenUnit, UnitName, Units, is_nameless, same_backend, state_path};
use crate::config::LunConfig;
use crate::{Diagnostic, ErrorCode, identity, io_text};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The extensions of the files of a unit: its state, and the record of its media.
const EXTENSIONS: [&str; 2] = ["state", "medium"];

/// The former names of moved units, by their new names.
pub(super) type Moves = BTreeMap<UnitName, UnitName>;

/// The units that move: a unit leaves, and another name has its serial number and its medium.
pub(super) fn moves(
    wanted: &BTreeMap<UnitName, &LunConfig>,
    staying: &BTreeMap<UnitName, OpenUnit>,
    leaving: &BTreeMap<UnitName, OpenUnit>,
) -> Moves {
    let is_lasting = |lun: &LunConfig| !is_nameless(lun) && lun.source.lu_address().is_none();
    let gone = leaving.iter().filter(|(name, open)| !wanted.contains_key(*name) && is_lasting(&open.lun));
    let gone: BTreeMap<String, (&UnitName, &OpenUnit)> =
        gone.map(|(name, open)| (serial(name, &open.lun), (name, open))).collect();
    if gone.is_empty() {
        return Moves::new();
    }
    let is_new = |name: &UnitName| !staying.contains_key(name) && !leaving.contains_key(name);
    let new = wanted.iter().filter(|(name, lun)| is_new(name) && is_lasting(lun));
    let former = new.filter_map(|(name, lun)| {
        let (former, open) = gone.get(&serial(name, lun))?;
        let is_same = open.lun.kind == lun.kind && same_backend(&open.lun, lun);
        is_same.then(|| (name.clone(), (*former).clone()))
    });
    former.collect()
}

fn serial(name: &UnitName, lun: &LunConfig) -> String {
    identity::serial_of(name, lun).trim().to_owned()
}

/// Copies of the files of a moved unit, which are removed unless the move takes effect.
#[derive(Default)]
pub(super) struct StateCopy(Vec<PathBuf>);

impl StateCopy {
    fn add(&mut self, from: &Path, to: PathBuf) -> io::Result<()> {
        match std::fs::read(from) {
            Ok(bytes) => {
                lunar_target::replace_file(&to, &bytes)?;
                self.0.push(to);
                Ok(())
            }
            // The state of an earlier LUN of this place must not become that of the moved one.
            Err(e) if e.kind() == ErrorKind::NotFound => removed(&to),
            Err(e) => Err(e),
        }
    }

    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for StateCopy {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| _ = std::fs::remove_file(file));
    }
}

impl Units {
    /// Copies the files of a moved unit to its new place. The unit is quiesced, so they do not change meanwhile.
    pub(super) fn copy_state(
        &self,
        (former, open): (&UnitName, &OpenUnit),
        (name, lun): (&UnitName, &LunConfig),
    ) -> Result<StateCopy, Diagnostic> {
        let (from, to) = (state_path(&self.state_dir, former, &open.lun), self.state_file(name, lun)?);
        let mut copy = StateCopy::default();
        if from == to {
            return Ok(copy);
        }
        for extension in EXTENSIONS {
            let (from, to) = (from.with_extension(extension), to.with_extension(extension));
            copy.add(&from, to).map_err(|e| {
                let what = format!("cannot copy its state {}: {}", from.display(), io_text(&e));
                let hint = "make the state folder readable and writable for the server, and free some space";
                Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind()))
            })?;
        }
        Ok(copy)
    }

    /// Remembers the former places of moved units.
    pub(super) fn leave(&mut self, moves: &Moves, leaving: &BTreeMap<UnitName, OpenUnit>) {
        let place = |name| leaving.get(name).map(|open| state_path(&self.state_dir, name, &open.lun));
        self.former.extend(moves.values().filter_map(place));
    }

    /// Removes the files of former places, unless a unit is there again. Otherwise, a later LUN of such a place would
    /// begin with the reservations of the moved one.
    pub(super) fn remove_former(&mut self) {
        if self.former.is_empty() {
            return;
        }
        let places: BTreeSet<PathBuf> =
            self.open.iter().map(|(name, open)| state_path(&self.state_dir, name, &open.lun)).collect();
        let former = std::mem::take(&mut self.former);
        for file in former.into_iter().filter(|file| !places.contains(file)) {
            for file in EXTENSIONS.map(|extension| file.with_extension(extension)) {
                if let Err(e) = removed(&file) {
                    tracing::warn!(
                        "cannot remove the state of a moved LUN: {}: {}",
                        file.display(),
                        io_text(&e)
                    );
                }
            }
        }
    }
}

/// Removes a file that may be missing.
fn removed(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
