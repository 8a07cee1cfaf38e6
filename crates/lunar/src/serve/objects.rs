//! Changes of single objects of the configuration by the API.

mod grow;
mod secret;

use super::Service;
use super::rollback::{self, Replaced};
use crate::server::TargetServer;
use crate::staged_files::{NewFile, StagedFile, commit, stage};
use grow::Growth;
use lunar_admin::{
    ConfigSnapshot, ControlError, ControlErrorKind, Keys, ObjectAction, ObjectChange, ObjectId, Response,
};
use lunar_server::config::{self, Config, FileWrite, Target};
use lunar_server::{Diagnostic, Difference, ErrorCode};
use secret::StagedSecret;
use serde_json::Value;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The configuration in force as the API shows it.
#[derive(Clone, Default)]
pub struct Published(Arc<RwLock<Arc<ConfigSnapshot>>>);

impl Published {
    pub fn get(&self) -> Arc<ConfigSnapshot> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, snapshot: ConfigSnapshot) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }
}

/// Numbers the configurations of this process.
pub struct ConfigVersion {
    /// Of another process, the same number must mean another version.
    start_ms: u128,
    number: u64,
}

impl ConfigVersion {
    pub fn first() -> ConfigVersion {
        let start_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        ConfigVersion { start_ms, number: 1 }
    }

    pub fn next(&mut self) {
        self.number += 1;
    }
}

impl std::fmt::Display for ConfigVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}-{}", self.start_ms, self.number)
    }
}

impl<S: TargetServer> Service<S> {
    /// Shows the configuration in force to the API.
    pub(super) fn publish(&self) {
        let targets = || self.whole.targets.iter().filter(|target| target.subsystem.is_none());
        let subsystems = || self.whole.targets.iter().filter(|target| target.subsystem.is_some());
        self.published.set(ConfigSnapshot {
            version: self.version.to_string(),
            file: self.file.clone(),
            objects: self.config.sources.document.clone(),
            targets: targets().count(),
            luns: targets().map(|target| target.luns.len()).sum(),
            subsystems: subsystems().count(),
            namespaces: subsystems().map(Target::disks).sum(),
            standby: lunar_server::standby::on_standby(&self.config, &self.standby.promoted),
            closing: self.standby.open_media(),
            warnings: super::warnings(&self.config).collect(),
            stopping: self.is_stopping,
            confirm_by: self.trial.confirm_by(),
            certificate_not_after: self
                .config
                .api
                .as_ref()
                .and_then(|api| seconds(api.credentials.not_after()?)),
            last_reload: self.last_reload,
        });
    }

    /// Changes an object of the configuration.
    pub(super) fn change_object(&mut self, change: ObjectChange) -> Response {
        self.try_change(change).unwrap_or_else(Response::from)
    }

    fn try_change(&mut self, change: ObjectChange) -> Result<Response, ControlError> {
        self.check_state(&change)?;
        let secret = StagedSecret::of(&self.config, change)?;
        let edited = config::edit(&self.config, &secret.change)?;
        let new = config::parse_files(edited.files, &self.config.sources.whole)
            .map_err(|problems| ControlError { kind: ControlErrorKind::Invalid, problems })?;
        if !secret.change.force {
            self.check_taken(&new)?;
            self.check_opened(&new)?;
        }
        self.check_files(&edited.writes)?;
        let growth = Growth::of(&new, &secret.change)?;
        let mut warnings = config::change_warnings(&self.config, &new);
        warnings.extend(self.excluded(&new));
        if !secret.change.transient {
            warnings.extend(self.unread_by_next_start(&new));
        }
        if secret.change.dry_run {
            let changes = lunar_server::diff(&self.in_force, &new);
            return Ok(self.changed(changes, warnings));
        }
        if matches!(secret.change.action, ObjectAction::Move(_)) && !secret.change.transient {
            return self.move_object(new, &edited.writes, warnings);
        }
        let staged = match secret.change.transient {
            true => Vec::new(),
            false => staged(&edited.writes)?,
        };
        // A removed memory disk is kept until its file is removed.
        self.units.begin_trial();
        self.units.discard_deleted(secret.change.force);
        let changes = self.apply_and_save(new, growth, staged);
        self.units.discard_deleted(false);
        self.units.end_trial();
        let changes = changes?;
        if secret.change.transient {
            self.transient.extend(edited.writes.into_iter().map(|write| (write.path, write.text)));
        } else {
            edited.writes.iter().for_each(|write| _ = self.transient.remove(&write.path));
        }
        secret.keep(&self.config);
        Ok(self.made(changes, warnings))
    }

    /// Puts a moved object in force, and writes both files as one: also a crash leaves it at one of the two places.
    fn move_object(
        &mut self,
        new: Config,
        writes: &[FileWrite],
        warnings: Vec<String>,
    ) -> Result<Response, ControlError> {
        let journal = rollback::journal(&self.config.sources.whole, writes);
        let journal = journal.map_err(|(path, e)| cannot_write(&path, &e))?;
        // The state at the former place is kept until the files have changed.
        self.units.begin_trial();
        let changes = self.replace_files(new, Replaced { writes, transient: &[] }, journal, None)?;
        self.units.end_trial();
        Ok(self.made(changes, warnings))
    }

    /// The response to a change or its dry run, with the version now in force.
    pub(super) fn changed(&self, changes: Vec<Difference>, warnings: Vec<String>) -> Response {
        Response::Changed { version: self.version.to_string(), changes, warnings }
    }

    /// The response to a change that was made. Logs its warnings.
    pub(super) fn made(&self, changes: Vec<Difference>, warnings: Vec<String>) -> Response {
        warnings.iter().for_each(|line| tracing::warn!("{line}"));
        self.changed(changes, warnings)
    }

    /// Applies a configuration, and saves it. After an error, the configuration before is in force.
    pub(super) fn apply_and_save(
        &mut self,
        new: Config,
        growth: Option<Growth>,
        staged: Vec<StagedFile>,
    ) -> Result<Vec<Difference>, ControlError> {
        let before = self.config.clone();
        let changes = self
            .apply(new)
            .map_err(|problems| ControlError { kind: ControlErrorKind::Conflict, problems })?;
        let saved = growth.as_ref().map_or(Ok(()), Growth::grow);
        let saved = saved.and_then(|()| commit(staged).map_err(|(path, e)| cannot_write(&path, &e)));
        if let Err(error) = saved {
            // Hosts must not see what a restart would take back.
            if let Err(problems) = self.apply(before) {
                super::change::log_problems(&problems);
            }
            return Err(error);
        }
        if let Some((name, number)) = growth.and_then(|growth| growth.place) {
            self.server.look_at_medium(&name, number);
        }
        Ok(changes)
    }

    /// Checks that the files to change are those that were loaded: an administrator may have edited one since.
    pub(super) fn check_files(&self, writes: &[FileWrite]) -> Result<(), ControlError> {
        let has_changed = |write: &&FileWrite| {
            let is_file = std::fs::metadata(&write.path).is_ok_and(|found| found.is_file());
            let text = is_file.then(|| std::fs::read_to_string(&write.path).ok()).flatten();
            text != write.loaded && !self.transient.contains_key(&write.path)
        };
        let Some(write) = writes.iter().find(has_changed) else { return Ok(()) };
        let what = format!("{} has changed since the server has read it", write.path.display());
        Err(ControlError::conflict(what, "run lunar reload, and repeat the change if it still applies"))
    }

    /// Checks that a change is meant for this configuration.
    pub(super) fn check_version(&self, wanted: Option<&str>) -> Result<(), ControlError> {
        if wanted.is_some_and(|wanted| *wanted != self.version.to_string()) {
            let what = format!("the configuration has changed: its version is {}", self.version);
            let hint = "read the object again, and repeat the change if it still applies";
            return Err(ControlError::one(ControlErrorKind::Stale, Diagnostic::new(what, hint)));
        }
        Ok(())
    }

    /// Checks that the files of the API can be changed now.
    pub(super) fn check_changeable(&self) -> Result<(), ControlError> {
        if self.trial.confirm_by().is_some() {
            let hint = "run lunar apply --confirm or lunar apply --rollback first";
            return Err(ControlError::conflict("a configuration is on trial", hint));
        }
        let whole = &self.config.sources.whole;
        if self.own.as_ref().is_some_and(|own| own != whole) {
            let what = format!("the configuration in force is {}, not that of the server", whole.display());
            return Err(ControlError::conflict(
                what,
                "run lunar reload to return to the server's own configuration",
            ));
        }
        Ok(())
    }

    /// Checks that the objects can be changed now, as the change asks.
    fn check_state(&self, change: &ObjectChange) -> Result<(), ControlError> {
        self.check_version(change.version.as_deref())?;
        self.check_changeable()?;
        match &change.action {
            ObjectAction::Delete | ObjectAction::Move(_) => self.check_unnamed(&change.id),
            _ => Ok(()),
        }
    }

    /// Checks that no other object names this one.
    fn check_unnamed(&self, id: &ObjectId) -> Result<(), ControlError> {
        let is = |value: Option<&Value>, name: &Value| {
            value.is_some_and(|value| value == name || value.as_array().is_some_and(|all| all.contains(name)))
        };
        let any =
            |keys: &Keys, names: &[&str], name: Value| names.iter().any(|key| is(keys.get(*key), &name));
        let names_it = |keys: &Keys| match id {
            ObjectId::ChapUser(user) => any(keys, &["chap", "mutual"], user.as_str().into()),
            ObjectId::Disk(name) => any(keys, &["disk"], name.as_str().into()),
            ObjectId::PortalGroup(tag) => any(keys, &["portal_groups"], (*tag).into()),
            ObjectId::Target(name) => any(keys, &["target"], name.as_str().into()),
            ObjectId::Lun(target, lun) => {
                any(keys, &["target"], target.as_str().into()) && any(keys, &["lun"], (*lun).into())
            }
            ObjectId::Access(..) | ObjectId::Subsystem(_) | ObjectId::Namespace(..) | ObjectId::Host(..) => {
                false
            }
        };
        let document = self.config.sources.document.iter();
        let users = document.filter(|(_, object)| names_it(&object.keys)).map(|(user, _)| user.to_string());
        unused_by(id, &users.collect::<Vec<_>>(), "change or remove those first")
    }

    /// Checks that no target or subsystem loses its last restriction, which would admit hosts that could not connect before. Those
    /// that are offline admit no host.
    pub(super) fn check_opened(&self, new: &Config) -> Result<(), ControlError> {
        let after = |before: &Target| new.target(&before.name).filter(|after| !after.offline);
        let both = self.config.targets.iter().filter_map(|before| Some((before, after(before)?)));
        let fault = |(before, after): (&Target, &Target)| {
            let loses_secrets = before.secrets() > 0 && after.secrets() == 0;
            // A subsystem without a restriction has an access rule if it is read-only.
            let is_open = |target: &Target| match target.subsystem {
                Some(_) => config::is_open(&target.access),
                None => target.access.is_empty(),
            };
            match (loses_secrets, !is_open(before) && is_open(after)) {
                (true, _) => {
                    Some(opened(before, "hosts without a secret if it lost its last host", ANOTHER_HOST))
                }
                (_, true) if before.subsystem.is_some() => {
                    Some(opened(before, "all hosts without `allowed_hosts` and `networks`", OFFLINE))
                }
                (_, true) => {
                    Some(opened(before, "all initiators without its last access entry", ANOTHER_ENTRY))
                }
                (false, false) => None,
            }
        };
        both.into_iter().find_map(fault).map_or(Ok(()), Err)
    }
}

/// Steps that come before the loss of the last restriction.
const ANOTHER_HOST: &str = "add another host";
const ANOTHER_ENTRY: &str = "add another entry";
const OFFLINE: &str = "set offline=true";

/// The error of a target or subsystem that would lose its last restriction.
fn opened(target: &Target, admitted: &str, first: &str) -> ControlError {
    let hint = format!("{first} first, or use --force (force=true)");
    ControlError::conflict(format!("{} would admit {admitted}", target.id()), hint)
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// The error if anything uses an object.
fn unused_by(id: &ObjectId, users: &[String], hint: &str) -> Result<(), ControlError> {
    if users.is_empty() {
        return Ok(());
    }
    let problem = Diagnostic::new(format!("{id} is in use by {}", users.join(" and ")), hint);
    Err(ControlError::one(ControlErrorKind::Conflict, problem.with_code(ErrorCode::InUse)))
}

/// The files of a change, written beside their places.
pub(super) fn staged(writes: &[FileWrite]) -> Result<Vec<StagedFile>, ControlError> {
    let files =
        writes.iter().map(|write| NewFile::private(&write.path, write.text.as_deref().map(str::as_bytes)));
    stage(files).map_err(|(path, e)| cannot_write(&path, &e))
}

pub(super) fn cannot_write(path: &Path, e: &io::Error) -> ControlError {
    let what = format!("cannot write {}: {}", path.display(), e);
    let hint = "make the folder writable for the user of the server, or use --transient (transient=true)";
    let problem = Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind()));
    ControlError::one(ControlErrorKind::Conflict, problem)
}

#[cfg(test)]
mod tests;
