//! The record of a configuration on trial, a hidden file in the folder of the API. It has the files of the API as they
//! were before the trial. While it exists, the trial is not confirmed, also after a crash.

use super::adopting::read_record;
use super::{Sources, api_folder};
use lunar_config::{ConfigFile, Diagnostic};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The name of the record. Its beginning hides it.
const NAME: &str = ".trial";

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialRecord {
    /// The files of the API that the trial changes, by their names: their text before it, or null if they did not exist.
    pub files: BTreeMap<String, Option<String>>,
    /// The files of administrators that the trial read with another text, with absolute paths. They stay as they are.
    pub others: BTreeSet<PathBuf>,
}

impl TrialRecord {
    /// The record of a change of the files from `before` to `after`. Transient files are not on the disk.
    pub fn of(before: &Sources, after: &Sources) -> TrialRecord {
        let (before_files, after_files) = (texts(before), texts(after));
        let api = api_folder(&before.whole);
        let mut record = TrialRecord::default();
        for path in before_files.keys().chain(after_files.keys()).collect::<BTreeSet<_>>() {
            let (old, new) = (before_files.get(path), after_files.get(path));
            if old == new || old.or(new).is_some_and(|file| file.is_transient) {
                continue;
            }
            match path.strip_prefix(&api).ok().and_then(Path::to_str) {
                Some(name) => _ = record.files.insert(name.to_owned(), old.map(|file| file.text.clone())),
                None => _ = record.others.insert(path.clone()),
            }
        }
        record
    }

    /// The path of the record for the configuration at `path`.
    pub fn path(path: &Path) -> PathBuf {
        api_folder(path).join(NAME)
    }

    /// The record of the configuration at `path`; None if no trial is unconfirmed.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> Result<Option<TrialRecord>, Diagnostic> {
        let place = TrialRecord::path(path);
        let failed = |what: String| {
            let what = format!("the record {} of a configuration on trial {what}", place.display());
            Diagnostic::new(what, "check the files of its folder, and remove the record")
        };
        // It has the texts of files that were loaded before.
        let record: Option<TrialRecord> = read_record(&place, u64::MAX, failed)?;
        let is_foreign = |record: &TrialRecord| record.files.keys().any(|name| !is_name(name));
        match record {
            Some(record) if is_foreign(&record) => {
                Err(failed("is damaged: it names files of other folders".into()))
            }
            record => Ok(record),
        }
    }

    /// The text of the record.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The files to put back, with their paths and texts. None: the file did not exist.
    pub fn before(&self, path: &Path) -> Vec<(PathBuf, Option<&str>)> {
        let api = api_folder(path);
        self.files.iter().map(|(name, text)| (api.join(name), text.as_deref())).collect()
    }
}

/// Whether a name of the record is that of a file of the folder.
fn is_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file| file == name)
}

/// The files by their absolute paths.
fn texts(sources: &Sources) -> BTreeMap<PathBuf, &ConfigFile> {
    let main = super::edit::main_file(sources);
    let path = |file: &ConfigFile| super::document::absolute(&file.path, main, &sources.whole);
    sources.files.iter().map(|file| (path(file), file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::Folder;
    use std::sync::Arc;

    fn sources(folder: &Path, files: &[(&str, &str, bool)]) -> Sources {
        let file = |(name, text, is_transient): &(&str, &str, bool)| ConfigFile {
            path: folder.join(name),
            text: (*text).into(),
            is_transient: *is_transient,
        };
        let files = Arc::new(files.iter().map(file).collect());
        Sources { whole: folder.join("lunar.toml"), files, ..Sources::default() }
    }

    #[test]
    fn record_has_the_texts_before_the_trial() {
        let folder = Folder::new("trial-record");
        let before = [
            ("lunar.toml", "old", false),
            ("lunar.d/a.toml", "a", false),
            ("lunar.d/api/b.toml", "b", false),
            ("lunar.d/api/c.toml", "c", false),
            ("lunar.d/api/t.toml", "t", true),
        ];
        let after = [
            ("lunar.toml", "new", false),
            ("lunar.d/a.toml", "a", false),
            ("lunar.d/api/c.toml", "C", false),
            ("lunar.d/api/d.toml", "d", false),
            ("lunar.d/api/t.toml", "T", true),
        ];
        let record = TrialRecord::of(&sources(&folder.0, &before), &sources(&folder.0, &after));
        let file = |name: &str, text: Option<&str>| (name.to_owned(), text.map(str::to_owned));
        let files = [file("b.toml", Some("b")), file("c.toml", Some("c")), file("d.toml", None)];
        assert_eq!(record.files, BTreeMap::from(files));
        assert_eq!(record.others, BTreeSet::from([folder.0.join("lunar.toml")]));
        assert_eq!(TrialRecord::of(&sources(&folder.0, &before), &sources(&folder.0, &before)).text(), EMPTY);
    }

    const EMPTY: &str = r#"{"files":{},"others":[]}"#;

    #[test]
    fn record_that_is_damaged_is_reported() {
        let folder = Folder::new("trial-damaged");
        std::fs::create_dir_all(folder.0.join("lunar.d/api")).unwrap();
        let path = folder.0.join("lunar.toml");
        assert_eq!(TrialRecord::read(&path).unwrap(), None);
        folder.file("lunar.d/api/.trial", EMPTY, 0o600);
        assert_eq!(TrialRecord::read(&path).unwrap(), Some(TrialRecord::default()));
        for text in ["{", r#"{"files":{"../a.toml":null},"others":[]}"#, r#"{"files":{"":null},"others":[]}"#]
        {
            folder.file("lunar.d/api/.trial", text, 0o600);
            let problem = TrialRecord::read(&path).unwrap_err();
            assert!(problem.what.contains(".trial of a configuration on trial is damaged: "), "{problem}");
        }
    }
}
