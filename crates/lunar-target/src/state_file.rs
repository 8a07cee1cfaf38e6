//! State files, which are replaced atomically. Each writer uses its own temporary file.
//!
//! The order is: write a new file beside the old one, sync it, rename it, and sync the folder. All of this happens
//! before the command is acknowledged. A version number keeps a late writer from replacing newer state. Loading
//! removes temporary files of killed writers. A file that cannot be parsed is rejected and left in place.

use lunar_runtime::descriptors;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Age of a temporary file that no writer uses anymore.
const LEFTOVER_AGE: Duration = Duration::from_secs(60);
/// Part of the names of temporary files of state files, before the process.
const NEW: &[u8] = b".state.new-";

/// Writes a temporary file, makes it stable, and renames it into place. At any moment the path has the old or the new
/// file, and never a mixture of two writers.
///
/// # Errors
/// Those of the file system.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let temporary = folder.join(temporary(path));
    let renamed = descriptors::with_spares(|| write(&temporary, bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    if renamed.is_err() {
        // If it stays, the next load of the state removes it.
        _ = std::fs::remove_file(&temporary);
    }
    renamed?;
    descriptors::with_spares(|| File::open(folder))?.sync_all()
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A name that no other writer uses, in this process or another: `NAME.new-PID-TIME-NUMBER`.
fn temporary(path: &Path) -> OsString {
    static WRITERS: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let mut name = start(path);
    name.push(format!("{}-{time}-{}", std::process::id(), WRITERS.fetch_add(1, Relaxed)));
    name
}

fn start(path: &Path) -> OsString {
    let mut name = path.file_name().map(OsStr::to_os_string).unwrap_or_default();
    name.push(".new-");
    name
}

/// Removes temporary files that killed writers of a state file left behind.
pub fn remove_leftovers(path: &Path) {
    let (start, once) = (start(path), path.with_extension("new"));
    // Older versions used one name for all writers.
    let is_once = |name: &OsStr| Some(name) == once.file_name();
    remove_of_killed(
        path.parent(),
        |name| name.as_encoded_bytes().strip_prefix(start.as_encoded_bytes()),
        is_once,
    );
}

/// As [`remove_leftovers`], of all state files in a folder (`NAME.state`).
pub fn remove_leftovers_in(folder: &Path) {
    remove_of_killed(
        Some(folder),
        |name| writer_of_any(name.as_encoded_bytes()),
        |name| name.as_encoded_bytes().ends_with(b".new"),
    );
}

/// The writer in the name of a temporary file of any state file.
fn writer_of_any(name: &[u8]) -> Option<&[u8]> {
    name.windows(NEW.len()).position(|part| part == NEW).map(|at| &name[at + NEW.len()..])
}

/// Removes the files of a folder whose writer ended or is too old, and those for which `is_once` is true.
fn remove_of_killed(
    folder: Option<&Path>,
    writer: impl Fn(&OsStr) -> Option<&[u8]>,
    is_once: impl Fn(&OsStr) -> bool,
) {
    for entry in folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if writer(&name).is_some_and(|of| is_dead(of) || is_old(&entry)) || is_once(&name) {
            // A file that cannot be removed is harmless.
            _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether the process in the name has ended.
fn is_dead(name: &[u8]) -> bool {
    let digits = name.split(|b| *b == b'-').next().and_then(|pid| std::str::from_utf8(pid).ok());
    let pid = digits.and_then(|digits| digits.parse::<u32>().ok());
    pid.is_some_and(|pid| Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists())
}

fn is_old(entry: &std::fs::DirEntry) -> bool {
    let age = entry.metadata().and_then(|found| found.modified()).map(|then| then.elapsed());
    age.is_ok_and(|age| age.is_ok_and(|age| age > LEFTOVER_AGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> TempDir {
            let path = std::env::temp_dir().join(format!("lunar-state-{name}-{}", std::process::id()));
            _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            TempDir(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn concurrent_writers_do_not_mix() {
        let folder = TempDir::new("writers");
        let file = folder.0.join("0.state");
        let text = |n: u8| vec![n; 64 << 10];
        std::thread::scope(|scope| {
            for n in 0..4 {
                let file = &file;
                scope.spawn(move || (0..20).for_each(|_| replace(file, &text(n)).unwrap()));
            }
        });
        let found = std::fs::read(&file).unwrap();
        assert_eq!(found, text(found[0]), "one of them, as a whole");
        assert_eq!(folder.names(), ["0.state"]);
    }

    #[test]
    fn leftovers_of_killed_writers_are_removed() {
        let folder = TempDir::new("leftovers");
        let file = folder.0.join("0.state");
        let living = format!("0.state.new-{}-7-0", std::process::id());
        let old = format!("0.state.new-{}-8-0", std::process::id());
        for name in ["0.state", "0.new", "0.state.new-4000000000-7-0", &living, &old, "1.state", "1.new"] {
            std::fs::write(folder.0.join(name), name).unwrap();
        }
        let then = SystemTime::now() - 2 * LEFTOVER_AGE;
        File::options().write(true).open(folder.0.join(&old)).unwrap().set_modified(then).unwrap();
        remove_leftovers(&file);
        assert_eq!(folder.names(), ["0.state", &*living, "1.new", "1.state"]);
    }

    #[test]
    fn leftovers_of_all_files_of_a_folder_are_removed() {
        let folder = TempDir::new("all-leftovers");
        let living = format!("0.state.new-{}-7-0", std::process::id());
        for name in [
            "0.state",
            "0.new",
            "0.state.new-4000000000-7-0",
            &living,
            "1.state.new-4000000000-7-0",
            "1.lock",
        ] {
            std::fs::write(folder.0.join(name), name).unwrap();
        }
        remove_leftovers_in(&folder.0);
        remove_leftovers_in(&folder.0.join("none"));
        assert_eq!(folder.names(), ["0.state", &*living, "1.lock"]);
    }

    #[test]
    fn failed_replace_leaves_no_file() {
        let folder = TempDir::new("cannot");
        let file = folder.0.join("0.state");
        std::fs::create_dir(&file).unwrap();
        assert!(replace(&file, b"x").is_err());
        assert_eq!(folder.names(), ["0.state"]);
    }
}
