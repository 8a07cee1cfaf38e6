//! The return to an earlier tree of the configuration, and the history of the trees.

use super::journal::Journal;
use super::objects::{cannot_write, staged};
use super::{Service, change};
use crate::server::TargetServer;
use lunar_admin::{
    ApplyCause, ApplyOptions, ControlError, ControlErrorKind, Difference, HistoryPoint, Request, Response,
    RollbackRequest,
};
use lunar_server::config::{self, Config, FileWrite, TrialRecord};
use std::io;
use std::path::{Path, PathBuf};

/// The pause before a rollback that could not be written is undone.
const RETRY_S: u64 = 5;

/// The cause of what a request applies. None if it applies nothing.
pub fn cause(request: &Request) -> Option<ApplyCause> {
    match request {
        Request::Apply(ApplyOptions { file: None, confirm_within_s: None, .. }) => Some(ApplyCause::Reload),
        Request::Apply(_) => Some(ApplyCause::Apply),
        Request::Change(_) => Some(ApplyCause::Change),
        Request::Rollback | Request::RollBackTo(_) => Some(ApplyCause::Rollback),
        _ => None,
    }
}

/// The files of a change that takes effect as a whole.
pub(super) struct Replaced<'a> {
    pub(super) writes: &'a [FileWrite],
    pub(super) transient: &'a [FileWrite],
}

impl<S: TargetServer> Service<S> {
    /// Keeps the tree in force in the history.
    pub(super) fn keep(&self, cause: ApplyCause, asker: Option<&str>) {
        self.history.record(&self.config.sources, cause, asker);
    }

    /// The changes since an earlier tree.
    pub(super) fn diff_since(&self, point: HistoryPoint) -> Response {
        self.changes_since(point).map_or_else(Response::from, Response::Differences)
    }

    fn changes_since(&self, point: HistoryPoint) -> Result<Vec<Difference>, ControlError> {
        let kept = self.history.tree(point)?;
        let invalid = |problems| ControlError { kind: ControlErrorKind::Conflict, problems };
        let then = config::tree(&kept.text, &kept.path, Path::new(&kept.entry.file)).map_err(invalid)?;
        // Both without secrets, which the history does not have.
        let sources = &self.config.sources;
        let now = config::tree(&config::shown(sources), &sources.whole, &sources.whole).map_err(invalid)?;
        Ok(lunar_server::diff(&then, &now))
    }

    /// Returns to an earlier tree.
    pub(super) fn roll_back_to(&mut self, request: &RollbackRequest) -> Response {
        self.try_roll_back(request).unwrap_or_else(Response::from)
    }

    fn try_roll_back(&mut self, request: &RollbackRequest) -> Result<Response, ControlError> {
        self.check_version(request.version.as_deref())?;
        self.check_changeable()?;
        let kept = self.history.tree(HistoryPoint::Number(request.to))?;
        let whole = &self.config.sources.whole;
        if Path::new(&kept.entry.file) != whole {
            let what = format!("entry {} is of the configuration {}", request.to, kept.entry.file);
            return Err(ControlError::conflict(what, format!("run lunar apply {}", kept.entry.file)));
        }
        let mut back = config::roll_back(&self.config, &kept.text, &kept.path)?;
        let new = config::parse_files(std::mem::take(&mut back.files), whole)
            .map_err(|problems| ControlError { kind: ControlErrorKind::Invalid, problems })?;
        back.check(&new)?;
        if !request.force {
            self.check_taken(&new)?;
            self.check_opened(&new)?;
        }
        self.check_files(&back.writes)?;
        let mut warnings = config::change_warnings(&self.config, &new);
        warnings.extend(self.excluded(&new));
        if request.dry_run || (back.writes.is_empty() && back.transient.is_empty()) {
            let changes = lunar_server::diff(&self.in_force, &new);
            return Ok(self.changed(changes, warnings));
        }
        let journal = journal(whole, &back.writes).map_err(|(path, e)| cannot_write(&path, &e))?;
        let replaced = Replaced { writes: &back.writes, transient: &back.transient };
        let changes = self.replace_files(new, replaced, journal, request.confirm_within_s)?;
        tracing::info!("the tree of entry {} is in force again", request.to);
        Ok(self.made(changes, warnings))
    }

    /// Puts a configuration in force and writes its files: as a whole, also after a crash.
    pub(super) fn replace_files(
        &mut self,
        new: Config,
        Replaced { writes, transient: temporary }: Replaced<'_>,
        journal: Journal,
        confirm_within_s: Option<u64>,
    ) -> Result<Vec<Difference>, ControlError> {
        let before = self.config.clone();
        if confirm_within_s.is_some() {
            self.units.begin_trial();
        }
        let saved = staged(writes).and_then(|staged| self.apply_and_save(new, None, staged));
        let changes = match saved {
            Ok(changes) => changes,
            Err(error) => {
                self.units.end_trial();
                if let Err((path, e)) = journal.undo() {
                    // As long as the journal is there, no other change is possible, and the server retries.
                    change::log_problems(&cannot_write(&path, &e).problems);
                    self.begin_trial(before, Some(journal), None, RETRY_S);
                }
                return Err(error);
            }
        };
        let transient = self.transient.clone();
        writes.iter().for_each(|write| _ = self.transient.remove(&write.path));
        self.transient.extend(temporary.iter().map(|write| (write.path.clone(), write.text.clone())));
        match confirm_within_s.map_or_else(|| journal.remove().map(|()| None), |seconds| Ok(Some(seconds))) {
            Ok(None) => self.discard_secrets(&before),
            Ok(Some(seconds)) => self.begin_trial(before, Some(journal), Some(transient), seconds),
            Err((path, e)) => {
                // The next start would undo the rollback, so the server does it now.
                self.begin_trial(before, Some(journal), Some(transient), RETRY_S);
                return Err(cannot_write(&path, &e));
            }
        }
        Ok(changes)
    }
}

/// The journal of the files as they are on the disk now.
pub(super) fn journal(whole: &Path, writes: &[FileWrite]) -> Result<Journal, (PathBuf, io::Error)> {
    let mut record = TrialRecord::default();
    for FileWrite { path, .. } in writes {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => None,
            Err(e) => return Err((path.clone(), e)),
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        record.files.insert(name, text);
    }
    Journal::write(whole, record)
}

#[cfg(test)]
mod tests;
