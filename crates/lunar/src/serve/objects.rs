//! Changes of single objects of the configuration by the API.

mod grow;

use super::Service;
use crate::server::TargetServer;
use grow::Growth;
use lunar_admin::{
    ConfigSnapshot, ControlError, ControlErrorKind, ObjectAction, ObjectChange, ObjectId, Response,
};
use lunar_server::config::{self, Config, FileWrite, api_folder};
use lunar_server::{Diagnostic, ErrorCode};
use serde_json::Value;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
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
        self.published.set(ConfigSnapshot {
            version: self.version.to_string(),
            file: self.file.clone(),
            objects: self.config.sources.document.clone(),
            confirm_by: self.trial.confirm_by(),
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
        let growth = Growth::of(&new, &secret.change)?;
        if secret.change.dry_run {
            let changes = lunar_server::diff(&self.in_force, &new);
            return Ok(Response::Changed { version: self.version.to_string(), changes });
        }
        let staged = match secret.change.transient {
            true => Vec::new(),
            false => stage(&edited.writes).map_err(|(path, e)| cannot_write(&path, &e))?,
        };
        let before = self.config.clone();
        let changes = self
            .apply(new)
            .map_err(|problems| ControlError { kind: ControlErrorKind::Conflict, problems })?;
        let saved = growth.map_or(Ok(()), |growth| growth.grow());
        let saved = saved.and_then(|()| commit(staged).map_err(|(path, e)| cannot_write(&path, &e)));
        if let Err(error) = saved {
            // Hosts must not see what a restart would take back.
            if let Err(problems) = self.apply(before) {
                super::change::log_problems(&problems);
            }
            return Err(error);
        }
        if secret.change.transient {
            self.transient.extend(edited.writes.into_iter().map(|write| (write.path, write.text)));
        } else {
            edited.writes.iter().for_each(|write| _ = self.transient.remove(&write.path));
        }
        secret.keep(&self.config);
        Ok(Response::Changed { version: self.version.to_string(), changes })
    }

    /// Checks that objects can be changed now, and that the change is meant for this configuration.
    fn check_state(&self, change: &ObjectChange) -> Result<(), ControlError> {
        if change.version.as_ref().is_some_and(|wanted| *wanted != self.version.to_string()) {
            let what = format!("the configuration has changed: its version is {}", self.version);
            let hint = "read the object again, and repeat the change if it still applies";
            return Err(ControlError::one(ControlErrorKind::Stale, Diagnostic::new(what, hint)));
        }
        if self.trial.confirm_by().is_some() {
            let hint = "run lunar apply --confirm or lunar apply --rollback first";
            return Err(conflict("a configuration is on trial", hint));
        }
        let whole = &self.config.sources.whole;
        if self.own.as_ref().is_some_and(|own| own != whole) {
            let what = format!("the configuration in force is {}, not that of the server", whole.display());
            return Err(conflict(what, "run lunar reload to return to the server's own configuration"));
        }
        match (&change.action, &change.id) {
            (ObjectAction::Delete, ObjectId::Access(target, _)) if !change.force => {
                self.check_restricted(target)
            }
            (ObjectAction::Delete, id) if !change.force => self.check_unused(id),
            _ => Ok(()),
        }
    }

    /// Checks that the target has another access entry: without entries it would admit all initiators.
    fn check_restricted(&self, target: &str) -> Result<(), ControlError> {
        let mut targets = self.config.targets.iter();
        if targets.any(|one| one.name == target && one.access.len() == 1) {
            let what = format!(
                "target {} would admit all initiators without its last access entry",
                target.escape_debug()
            );
            return Err(conflict(what, "add another entry first, or use --force (force=true)"));
        }
        Ok(())
    }

    /// Checks that no session uses a target or a LUN.
    fn check_unused(&self, id: &ObjectId) -> Result<(), ControlError> {
        let (ObjectId::Target(target) | ObjectId::Lun(target, _)) = id else { return Ok(()) };
        let sessions = self.server.sessions();
        let users = sessions.iter().filter(|session| session.target.as_ref() == Some(target));
        let users: Vec<String> = users
            .map(|session| format!("{} at {}", session.initiator.escape_debug(), session.initiator_address))
            .collect();
        if users.is_empty() {
            return Ok(());
        }
        let problem = Diagnostic::new(
            format!("{id} is in use by {}", users.join(" and ")),
            "log the hosts out first, or use --force (force=true)",
        );
        Err(ControlError::one(ControlErrorKind::Conflict, problem.with_code(ErrorCode::InUse)))
    }
}

fn conflict(what: impl Into<String>, hint: &str) -> ControlError {
    ControlError::one(ControlErrorKind::Conflict, Diagnostic::new(what, hint))
}

fn cannot_write(path: &Path, e: &io::Error) -> ControlError {
    let what = format!("cannot write {}: {}", path.display(), e);
    let hint = "make the folder writable for the user of the server, or use --transient (transient=true)";
    let problem = Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind()));
    ControlError::one(ControlErrorKind::Conflict, problem)
}

/// A change whose secret is in a file of its own, which is removed unless the change succeeds.
struct StagedSecret {
    change: ObjectChange,
    file: Option<PathBuf>,
    /// The file of the secret before.
    before: Option<PathBuf>,
}

impl StagedSecret {
    /// Moves the key `secret` of a CHAP user to a file. Each secret has a file of its own, so that the old one stays
    /// valid until the change has succeeded.
    fn of(config: &Config, mut change: ObjectChange) -> Result<StagedSecret, ControlError> {
        let ObjectId::ChapUser(_) = change.id else {
            return Ok(StagedSecret { change, file: None, before: None });
        };
        let folder = api_folder(&config.sources.whole).join("secrets");
        let before = secret_file(config, &change.id).filter(|before| before.starts_with(&folder));
        let mut file = None;
        if let ObjectAction::Create(keys) | ObjectAction::Replace(keys) | ObjectAction::Merge(keys) =
            &mut change.action
            && let Some(secret) = keys.remove("secret")
        {
            let written = written_secret(&folder, &change.id, &secret, change.transient)?;
            keys.insert("secret_file".into(), written.display().to_string().into());
            file = Some(written);
        }
        Ok(StagedSecret { change, file, before })
    }

    /// Keeps the new file, and removes the old one if the configuration no longer names it.
    fn keep(mut self, config: &Config) {
        self.file = None;
        let current = secret_file(config, &self.change.id);
        let old = self.before.take().filter(|before| Some(before) != current.as_ref());
        if let Some(Err(e)) = old.map(std::fs::remove_file) {
            tracing::warn!("cannot remove the file of a former secret: {e}");
        }
    }
}

impl Drop for StagedSecret {
    fn drop(&mut self) {
        self.file.take().into_iter().for_each(|file| _ = std::fs::remove_file(file));
    }
}

/// The file of the secret of a CHAP user.
fn secret_file(config: &Config, id: &ObjectId) -> Option<PathBuf> {
    let object = config.sources.document.get(id)?;
    object.keys.get("secret_file").and_then(Value::as_str).map(PathBuf::from)
}

fn written_secret(
    folder: &Path,
    id: &ObjectId,
    secret: &Value,
    transient: bool,
) -> Result<PathBuf, ControlError> {
    let invalid = |what: &str, hint: &str| {
        Err(ControlError::one(ControlErrorKind::Invalid, Diagnostic::new(what, hint)))
    };
    let Some(secret) = secret.as_str() else {
        return invalid(
            "`secret` must be a string",
            "write 12 to 255 characters, or 0x and hexadecimal digits",
        );
    };
    if transient {
        return invalid(
            "a transient change cannot have a `secret`",
            "write the secret to a file, and use secret_file",
        );
    }
    let cannot = |e: io::Error| cannot_write(folder, &e);
    let random = getrandom::u64().map_err(|e| cannot(io::Error::other(e)))?;
    let path = folder.join(format!("{}-{random:016x}.secret", config::file_name(id)));
    private_folder(folder).and_then(|()| write_new(&path, secret)).map_err(cannot)?;
    Ok(path)
}

/// Creates a folder and those above it, which only their owner can access.
fn private_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes a new file that only its owner can access, to the disk.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// A file to be renamed or removed.
struct StagedFile {
    staged: Option<PathBuf>,
    path: PathBuf,
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        self.staged.take().into_iter().for_each(|staged| _ = std::fs::remove_file(staged));
    }
}

/// Writes the new files beside their places. So a full disk is found before the change is applied.
fn stage(writes: &[FileWrite]) -> Result<Vec<StagedFile>, (PathBuf, io::Error)> {
    let one = |write: &FileWrite| {
        let name = write.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let staged = write.path.with_file_name(format!(".{name}.new"));
        if let Some(text) = &write.text {
            write.path.parent().map_or(Ok(()), private_folder)?;
            // A crash may have left one.
            _ = std::fs::remove_file(&staged);
            write_new(&staged, text)?;
        }
        Ok(StagedFile { staged: write.text.as_ref().map(|_| staged), path: write.path.clone() })
    };
    writes.iter().map(|write| one(write).map_err(|e| (write.path.clone(), e))).collect()
}

/// Puts the files into their places.
fn commit(staged: Vec<StagedFile>) -> Result<(), (PathBuf, io::Error)> {
    for mut file in staged {
        let done = match &file.staged {
            Some(staged) => std::fs::rename(staged, &file.path),
            None => match std::fs::remove_file(&file.path) {
                // A transient object has no file.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                removed => removed,
            },
        };
        if done.is_ok() {
            file.staged = None;
        }
        let folder = file.path.parent().unwrap_or(Path::new("."));
        done.and_then(|()| File::open(folder)?.sync_all()).map_err(|e| (file.path.clone(), e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
