//! Secrets of CHAP users, of subsystems and of their hosts, in files of the API.

use super::{Service, cannot_write};
use crate::private_file;
use crate::server::TargetServer;
use lunar_admin::{ControlError, ObjectAction, ObjectChange, ObjectId};
use lunar_server::config::{self, Config, api_folder};
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// A change whose secret is in a file of its own, which is removed unless the change succeeds.
pub(super) struct StagedSecret {
    pub(super) change: ObjectChange,
    file: Option<PathBuf>,
    /// The files of the secrets before. Those of a transient change are still named by files of the configuration.
    before: Vec<PathBuf>,
}

impl StagedSecret {
    /// Moves the key `secret` of an object to a file. Each secret has a file of its own, so that the old one stays
    /// valid until the change has succeeded.
    pub(super) fn of(config: &Config, mut change: ObjectChange) -> Result<StagedSecret, ControlError> {
        if !matches!(change.id, ObjectId::ChapUser(_) | ObjectId::Subsystem(_) | ObjectId::Host(..)) {
            return Ok(StagedSecret { change, file: None, before: Vec::new() });
        }
        let folder = secret_folder(config);
        let may_go = |before: &PathBuf| !change.transient && is_in(before, &folder);
        let before = secret_files(config, &change).filter(may_go).collect();
        let mut file = None;
        if let ObjectAction::Create(keys) | ObjectAction::Replace(keys) | ObjectAction::Merge(keys) =
            &mut change.action
            && let Some(secret) = keys.remove("secret").filter(|secret| !secret.is_null())
        {
            let written = written_secret(&folder, &change.id, &secret, change.transient)?;
            // A relative path stays valid when the folder of the configuration moves.
            let below = written.strip_prefix(base(config)).unwrap_or(&written).display().to_string();
            keys.insert("secret_file".into(), below.into());
            file = Some(written);
        }
        Ok(StagedSecret { change, file, before })
    }

    /// Keeps the new file, and removes the old one if nothing in the configuration names it any more.
    pub(super) fn keep(mut self, config: &Config) {
        self.file = None;
        discard(self.before.drain(..).filter(|before| !is_named(before, config)));
    }
}

impl<S: TargetServer> Service<S> {
    /// Removes the files of secrets that the server has made for an earlier configuration, and that nothing names any more:
    /// neither the configuration in force, nor a file that a transient change hides until the next start.
    pub(in crate::serve) fn discard_secrets(&self, before: &Config) {
        let folder = secret_folder(before);
        let uses = config::secret_uses(&before.sources).into_iter().filter_map(|one| one.secret_file);
        let hidden: Vec<String> =
            self.transient.keys().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        let is_hidden = |file: &Path| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            hidden.iter().any(|text| text.contains(&*name))
        };
        discard(
            uses.filter(|file| is_in(file, &folder) && !is_named(file, &self.config) && !is_hidden(file)),
        );
    }
}

fn discard(files: impl Iterator<Item = PathBuf>) {
    for file in files {
        if let Err(e) = std::fs::remove_file(file) {
            tracing::warn!("cannot remove the file of a former secret: {e}");
        }
    }
}

/// The folder of the secrets that the server has made.
fn secret_folder(config: &Config) -> PathBuf {
    api_folder(&config.sources.whole).join("secrets")
}

impl Drop for StagedSecret {
    fn drop(&mut self) {
        self.file.take().into_iter().for_each(|file| _ = std::fs::remove_file(file));
    }
}

/// Whether a file is in a folder itself. Its path may have links and `..`.
fn is_in(file: &Path, folder: &Path) -> bool {
    let place = |folder: &Path| folder.canonicalize().ok();
    file.parent().and_then(place).is_some_and(|parent| place(folder) == Some(parent))
}

/// Whether the configuration names a file, in whatever spelling.
fn is_named(file: &Path, config: &Config) -> bool {
    let place = |file: &Path| file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    let mut uses = config::secret_uses(&config.sources).into_iter().filter_map(|one| one.secret_file);
    uses.any(|named| place(&named) == place(file))
}

/// The file of the secret of an object, and if it is removed also those of its hosts.
fn secret_files(config: &Config, change: &ObjectChange) -> impl Iterator<Item = PathBuf> {
    let is_removed = change.action == ObjectAction::Delete;
    let is_meant =
        move |id: &ObjectId| *id == change.id || is_removed && id.parent().as_ref() == Some(&change.id);
    let objects = config.sources.document.iter().filter(move |(id, _)| is_meant(id));
    let files = objects.filter_map(|(_, object)| object.keys.get("secret_file")?.as_str());
    files.map(|path| base(config).join(path))
}

/// The folder at which relative paths start.
fn base(config: &Config) -> &Path {
    config.sources.whole.parent().unwrap_or(Path::new("/"))
}

fn written_secret(
    folder: &Path,
    id: &ObjectId,
    secret: &Value,
    transient: bool,
) -> Result<PathBuf, ControlError> {
    let Some(secret) = secret.as_str() else {
        let form = match id {
            ObjectId::ChapUser(_) => "write 12 to 255 characters, or 0x and hexadecimal digits",
            _ => "write it in the form DHHC-1:HH:BASE64:",
        };
        return Err(ControlError::invalid("`secret` must be a string", form));
    };
    if transient {
        return Err(ControlError::invalid(
            "a transient change cannot have a `secret`",
            "write the secret to a file, and use secret_file",
        ));
    }
    let cannot = |e: io::Error| cannot_write(folder, &e);
    let random = getrandom::u64().map_err(|e| cannot(io::Error::other(e)))?;
    let path = folder.join(format!("{}-{random:016x}.secret", config::file_name(id)));
    private_file::create_folder(folder)
        .and_then(|()| private_file::write_new(&path, secret.as_bytes()))
        .map_err(cannot)?;
    Ok(path)
}
