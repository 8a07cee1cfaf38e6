//! The record of a running `lunar adopt`, a hidden file in the folder of the API. Objects move from a file of an
//! administrator to new files of the API. The new files count once the administrator's file has changed, so that each
//! object counts exactly once at any moment, also after a crash.

use super::{api_folder, hex};
use lunar_config::{ConfigFile, Diagnostic, ErrorCode, io_text};
use lunar_runtime::host::open_regular;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The name of the record. Its beginning hides it.
const NAME: &str = ".adopting";
/// Its maximum size.
const MAX_BYTES: u64 = 16 << 20;

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adopting {
    /// The file of the administrator, relative to the folder of the configuration.
    pub file: PathBuf,
    /// SHA-256 of its text before the change.
    pub sha256: String,
    /// The names of the new files.
    pub new_files: Vec<String>,
}

impl Adopting {
    /// The record of a change of `file`, which has this text before.
    pub fn new(file: PathBuf, before: &str, new_files: Vec<String>) -> Adopting {
        Adopting { file, sha256: sha256(before), new_files }
    }

    /// The path of the record for the configuration at `path`.
    pub fn path(path: &Path) -> PathBuf {
        api_folder(path).join(NAME)
    }

    /// The record of the configuration at `path`; None if no adoption is running.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> Result<Option<Adopting>, Diagnostic> {
        let record = Adopting::path(path);
        let failed = |what: String| {
            let what = format!("the record {} of lunar adopt {what}", record.display());
            Diagnostic::new(what, "remove the record, and then one of each two objects that are given twice")
        };
        read_record(&record, MAX_BYTES, failed)
    }

    /// The text of the record.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether the file of the administrator still has the text before the change.
    pub fn is_before(&self, text: &str) -> bool {
        sha256(text) == self.sha256
    }

    /// Removes the new files from the files of the configuration at `path`, if they do not count yet.
    pub(super) fn leave_out(&self, path: &Path, files: &mut Vec<ConfigFile>) {
        let changed = path.parent().unwrap_or(Path::new("")).join(&self.file);
        if files.iter().any(|file| file.path == changed && self.is_before(&file.text)) {
            let api = api_folder(path);
            let is_new = |file: &ConfigFile| self.new_files.iter().any(|name| file.path == api.join(name));
            files.retain(|file| !is_new(file));
        }
    }
}

/// Reads a record of the folder of the API; None if it does not exist. `failed` describes a fault.
pub(super) fn read_record<T: DeserializeOwned>(
    path: &Path,
    max_bytes: u64,
    failed: impl Fn(String) -> Diagnostic,
) -> Result<Option<T>, Diagnostic> {
    let mut bytes = Vec::new();
    match open_regular(path).and_then(|file| file.take(max_bytes).read_to_end(&mut bytes)) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => {
            Err(failed(format!("cannot be read: {}", io_text(&e))).with_code(ErrorCode::from(e.kind())))
        }
        Ok(_) => serde_json::from_slice(&bytes).map(Some).map_err(|e| failed(format!("is damaged: {e}"))),
    }
}

fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_files;
    use crate::config::tests::Folder;

    #[test]
    fn new_files_count_when_the_old_one_has_changed() {
        let folder = Folder::new("adopting");
        std::fs::create_dir_all(folder.0.join("lunar.d/api")).unwrap();
        let path = folder.file("lunar.toml", "before", 0o644);
        folder.file("lunar.d/api/a.toml", "", 0o644);
        folder.file("lunar.d/api/b.toml", "", 0o644);
        let names = || {
            let files = read_files(&path).map_err(|list| list[0].to_string());
            files.map(|files| {
                files.iter().map(|file| file.path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
            })
        };
        let record = Adopting::new("lunar.toml".into(), "before", vec!["b.toml".into()]);
        folder.file("lunar.d/api/.adopting", record.text(), 0o644);
        assert_eq!(names().unwrap(), ["lunar.toml", "a.toml"]);
        folder.file("lunar.toml", "after", 0o644);
        assert_eq!(names().unwrap(), ["lunar.toml", "a.toml", "b.toml"]);
        folder.file("lunar.d/api/.adopting", "{", 0o644);
        assert!(names().unwrap_err().contains(".adopting of lunar adopt is damaged: EOF"));
        std::fs::remove_file(folder.0.join("lunar.d/api/.adopting")).unwrap();
        std::os::unix::fs::symlink("/dev/null", folder.0.join("lunar.d/api/.adopting")).unwrap();
        assert!(names().unwrap_err().contains("cannot be read: it is not a regular file"));
    }
}
