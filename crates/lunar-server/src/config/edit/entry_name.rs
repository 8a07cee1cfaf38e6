//! Names of the files of access entries. The order of the names is that of the entries, so a new name is enough to insert
//! an entry, and no other file changes.

use lunar_config::ConfigFile;
use std::path::Path;

/// The number of the first entry before another one: later ones find room on both sides.
const MIDDLE: u64 = 500_000;

/// The last number of the files whose names begin with `name`. None if there is no such file.
pub(in crate::config) fn last_number(files: &[ConfigFile], name: &str) -> Option<u64> {
    let number = |file: &ConfigFile| {
        let rest = stem(&file.path).strip_prefix(name)?.strip_prefix('-')?;
        rest.split('-').next()?.parse::<u64>().ok()
    };
    files.iter().filter_map(number).max()
}

/// The file name with this number.
pub(in crate::config) fn numbered(name: &str, number: u64) -> String {
    format!("{name}-{number:06}.toml")
}

/// The place of a new entry: between two files, or before the first one.
pub(super) struct EntryPlace<'p> {
    pub(super) before: Option<&'p Path>,
    pub(super) next: &'p Path,
}

impl EntryPlace<'_> {
    /// A name for this place. `-` sorts before the dot of a suffix, so `a-1-500000.toml` comes before `a-1.toml`.
    pub(super) fn name(&self, files: &[ConfigFile]) -> String {
        let next = stem(self.next);
        let lower = lower(next).filter(|name| self.has_room_for(name, files));
        lower.unwrap_or_else(|| numbered(next, last_number(files, next).map_or(MIDDLE, |last| last + 1)))
    }

    fn has_room_for(&self, name: &str, files: &[ConfigFile]) -> bool {
        let is_taken = |file: &ConfigFile| file.path.file_name().is_some_and(|taken| taken == name);
        let is_after = |before: &Path| before.file_name().is_none_or(|before| *before < *name);
        self.before.is_none_or(is_after) && !files.iter().any(is_taken)
    }
}

/// The name with the number below.
fn lower(stem: &str) -> Option<String> {
    let (name, number) = stem.rsplit_once('-').filter(|(_, number)| number.len() == 6)?;
    Some(numbered(name, number.parse::<u64>().ok()?.checked_sub(1)?))
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}
