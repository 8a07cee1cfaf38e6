//! The attached disks. Each attachment has a record, and a lock that its process holds while it runs. A process holds
//! the lock of the folder while it reads or changes records and locks.

use crate::config::attachment::check_name;
use crate::{Diagnostic, ErrorCode, create_folder_or, io_text};
pub use lunar_admin::attachment::{AttachedPath, LeftSession, Record, UNKNOWN_PORT};
use lunar_block::lock_file;
use rustix::fs::Access;
use serde::{Deserialize, Serialize};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The state of an attachment, as its process reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Its paths.
    pub paths: Vec<AttachedPath>,
    /// Its users, as text.
    pub users: Vec<String>,
    /// Writes in flight.
    #[serde(default)]
    pub waiting_writes: u64,
}

/// The longest response of a process, in bytes.
const MAX_STATE_BYTES: u64 = 1 << 20;
/// Time limit for the response of a process.
const PATIENCE: Duration = Duration::from_secs(5);

/// The file that requests waiting commands to fail.
const FORCE: &str = "force";

/// The modes of the folder and of its files where the group of the service may read them. Otherwise the folder has
/// mode 0700.
const SHARED_FOLDER: u32 = 0o2750;
const READABLE: u32 = 0o640;

/// The shortest socket timeout: zero is invalid.
const LEAST: Duration = Duration::from_millis(1);

/// The folder of the records and locks of attachments.
#[derive(Clone, Debug)]
pub struct Attached {
    folder: PathBuf,
}

/// The lock of the folder. No other process reads or changes the folder while it is held.
pub struct LockedFolder<'a> {
    attached: &'a Attached,
    _lock: File,
}

/// The lock that a process holds for its attachment while it runs.
#[derive(Debug)]
pub struct ProcessLock(#[expect(dead_code, reason = "it is held, not used")] File);

impl Attached {
    /// Opens this folder, and creates it if it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn at(folder: PathBuf) -> Result<Attached, Diagnostic> {
        create_folder_or(&folder, "set LUNAR_RUN_DIR to a folder that this user can write")?;
        // Without it, the API of the service does not show them.
        _ = share(&folder);
        Ok(Attached { folder })
    }

    /// This folder for a process that may have no right to write to it; None if it does not exist.
    pub fn existing(folder: PathBuf) -> Option<Attached> {
        folder.symlink_metadata().is_ok().then_some(Attached { folder })
    }

    /// Checks that this process may change records.
    ///
    /// # Errors
    /// [`ErrorCode::PermissionDenied`].
    pub fn check_writable(&self) -> Result<(), Diagnostic> {
        let found = rustix::fs::access(&self.folder, Access::WRITE_OK | Access::EXEC_OK);
        found.map_err(|e| cannot("write to", &self.folder, &e.into()))
    }

    /// The path of a file of an attachment: `log`, `ctl` (the socket where its process reports its state), `nbd`.
    pub fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{name}.{kind}"))
    }

    /// Asks the process of an attachment not to wait for an unreachable target. The process checks this when it stops.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn force(&self, name: &str) -> Result<(), Diagnostic> {
        let path = self.file(name, FORCE);
        open(&path).map(drop).map_err(|e| cannot("write", &path, &e))
    }

    /// Whether [`Attached::force`] was called for it.
    pub fn is_forced(&self, name: &str) -> bool {
        self.file(name, FORCE).exists()
    }

    /// Waits for the lock of the folder.
    ///
    /// # Errors
    /// When the folder cannot be locked.
    pub fn lock(&self) -> Result<LockedFolder<'_>, Diagnostic> {
        let path = self.folder.join("lock");
        Ok(LockedFolder { attached: self, _lock: wait(&path).map_err(|e| cannot("lock", &path, &e))? })
    }

    /// The state from the process of an attachment; None if it does not respond within `limit`, or within 5 s.
    pub fn ask(&self, name: &str, limit: Duration) -> Option<State> {
        let socket = UnixStream::connect(self.file(name, "ctl")).ok()?;
        socket.set_read_timeout(Some(PATIENCE.min(limit).max(LEAST))).ok()?;
        let mut text = String::new();
        socket.take(MAX_STATE_BYTES).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl LockedFolder<'_> {
    /// All records, by name. An unreadable record is left out and logged.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn all(&self) -> Result<Vec<Record>, Diagnostic> {
        let folder = &self.attached.folder;
        let entries = std::fs::read_dir(folder).map_err(|e| cannot("read", folder, &e))?;
        let name = |path: PathBuf| {
            let is_record = path.extension().is_some_and(|extension| extension == "json");
            path.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_record).map(str::to_owned)
        };
        let names = entries.flatten().filter_map(|entry| name(entry.path()));
        let mut records: Vec<Record> = names.filter_map(|name| self.record(&name)).collect();
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    /// The record of this name, if it exists and is readable.
    pub fn record(&self, name: &str) -> Option<Record> {
        check_name(name).ok()?;
        let path = self.attached.file(name, "json");
        let text = std::fs::read_to_string(&path).ok()?;
        let record = serde_json::from_str(&text).inspect_err(|e| tracing::warn!("{}: {e}", path.display()));
        record.ok().filter(|record: &Record| record.name == name)
    }

    /// Whether the process of this attachment runs.
    pub fn is_alive(&self, name: &str) -> bool {
        lock_file::is_held(&self.attached.file(name, "lock"))
    }

    /// Takes the lock of an attachment for this process; None when another has it.
    ///
    /// # Errors
    /// When it cannot be locked.
    pub fn take(&self, name: &str) -> Result<Option<ProcessLock>, Diagnostic> {
        let path = self.attached.file(name, "lock");
        let lock = lock_file::try_lock(&path).map_err(|e| cannot("lock", &path, &e))?;
        if let Some(file) = &lock {
            _ = file.set_permissions(Permissions::from_mode(READABLE));
            // A request to an earlier process, which is gone.
            _ = std::fs::remove_file(self.attached.file(name, FORCE));
        }
        Ok(lock.map(ProcessLock))
    }

    /// Writes a record, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), Diagnostic> {
        let path = self.attached.file(&record.name, "json");
        let new = self.attached.file(&record.name, "new");
        let text = serde_json::to_string_pretty(record).map_err(io::Error::other);
        let written = text.and_then(|text| write_new(&new, text.as_bytes()));
        written.and_then(|()| std::fs::rename(&new, &path)).map_err(|e| cannot("write", &path, &e))
    }

    /// Removes all files of an attachment except its log.
    pub fn clear(&self, name: &str) {
        for kind in ["json", "new", "ctl", "lock", FORCE] {
            // A missing file is not an error.
            _ = std::fs::remove_file(self.attached.file(name, kind));
        }
    }
}

/// Lets the group of the folder above read what root attached, if the user of the service owns that folder.
fn share(folder: &Path) -> io::Result<()> {
    let (own, above) = (folder.symlink_metadata()?, folder.parent().unwrap_or(folder).metadata()?);
    if own.uid() == 0 && above.uid() != 0 && own.gid() != above.gid() {
        chown(folder, None, Some(above.gid()))?;
        std::fs::set_permissions(folder, Permissions::from_mode(SHARED_FOLDER))?;
    }
    Ok(())
}

/// Waits for a lock. A user who may only read the file can lock it too.
fn wait(path: &Path) -> io::Result<File> {
    match lock_file::wait(path) {
        Ok(file) => {
            // Only its owner can, and needs to.
            _ = file.set_permissions(Permissions::from_mode(READABLE));
            Ok(file)
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let file = File::open(path)?;
            file.lock()?;
            Ok(file)
        }
        Err(e) => Err(e),
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

fn cannot(what: &str, path: &Path, e: &io::Error) -> Diagnostic {
    let what = format!("cannot {what} {}: {}", path.display(), io_text(e));
    let code = match e.kind() {
        io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
        _ => ErrorCode::Other,
    };
    Diagnostic::new(what, "check the path and its permissions, or set LUNAR_RUN_DIR").with_code(code)
}

/// Creates and writes a file. First removes one that a killed process left. Fails if another process creates the path
/// meanwhile, and follows no link.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    _ = std::fs::remove_file(path);
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.set_permissions(Permissions::from_mode(READABLE))?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::attachment::How;

    fn record(name: &str) -> Record {
        Record {
            name: name.into(),
            how: How::Ublk,
            device: Some("/dev/ublkb0".into()),
            place: None,
            ublk_id: Some(0),
            urls: vec!["iscsi://h:3260/iqn.2026-11.org.example:a/0".into()],
            size_bytes: 1 << 30,
            identity: "00ff".into(),
            read_only: false,
            recovery_timeout: Duration::from_secs(120),
            policy: None,
            pid: std::process::id(),
            attached_at: 1,
            isids: vec!["800000000001".into()],
            initiators: vec!["iqn.2026-11.org.example:host".into()],
            ports: vec!["group:1,iqn.2026-11.org.example:a".into()],
            users: vec![String::new()],
            left_behind: Vec::new(),
            failure: None,
        }
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("lunar-attached-{name}-{}", std::process::id()));
            _ = std::fs::remove_dir_all(&path);
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn link_in_the_place_of_a_new_record_is_not_followed() {
        let folder = Folder::new("link");
        let attached = Attached::at(folder.0.clone()).unwrap();
        let (new, other) = (attached.file("a", "new"), folder.0.join("other"));
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &new).unwrap();
        attached.lock().unwrap().write(&record("a")).unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
        assert!(attached.file("a", "json").symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn record_of_an_older_version_is_read() {
        let text = serde_json::to_string(&record("a")).unwrap();
        let older = text.replace("\"attached_at\":\"1970-01-01T00:00:01Z\"", "\"since_unix_s\":1");
        assert_ne!(older, text);
        assert_eq!(serde_json::from_str::<Record>(&older).unwrap(), record("a"));
    }

    #[test]
    fn records_are_kept_and_cleared() {
        let folder = Folder::new("records");
        let attached = Attached::at(folder.0.clone()).unwrap();
        let locked = attached.lock().unwrap();
        for name in ["b", "a"] {
            locked.write(&record(name)).unwrap();
        }
        std::fs::write(attached.file("c", "json"), "{").unwrap();
        std::fs::write(attached.file("d", "json"), serde_json::to_string(&record("other")).unwrap()).unwrap();
        assert_eq!(locked.all().unwrap(), [record("a"), record("b")]);
        assert_eq!(locked.record("../a"), None);
        locked.clear("a");
        assert_eq!(locked.all().unwrap(), [record("b")]);
    }

    #[test]
    fn folder_of_root_is_readable_by_the_service() {
        assert!(rustix::process::geteuid().is_root(), "needs root: chown");
        let folder = Folder::new("shared");
        std::fs::create_dir_all(&folder.0).unwrap();
        chown(&folder.0, Some(65534), Some(65534)).unwrap();
        let below = folder.0.join("attached");
        let attached = Attached::at(below.clone()).unwrap();
        let found = below.metadata().unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (65534, SHARED_FOLDER));
        let locked = attached.lock().unwrap();
        locked.write(&record("a")).unwrap();
        let _lock = locked.take("a").unwrap();
        for file in [attached.file("a", "json"), attached.file("a", "lock"), below.join("lock")] {
            let found = file.metadata().unwrap();
            assert_eq!((found.gid(), found.mode() & 0o777), (65534, READABLE), "{}", file.display());
        }
    }

    #[test]
    fn running_process_holds_its_lock() {
        let folder = Folder::new("locks");
        let attached = Attached::at(folder.0.clone()).unwrap();
        let locked = attached.lock().unwrap();
        assert!(!locked.is_alive("a"));
        let alive = locked.take("a").unwrap().expect("the lock is free");
        assert!(locked.is_alive("a"));
        assert!(locked.take("a").unwrap().is_none());
        drop(alive);
        assert!(!locked.is_alive("a"));
        assert!(locked.take("a").unwrap().is_some());
    }

    #[test]
    fn folder_lock_is_held_by_one_at_a_time() {
        let folder = Folder::new("one");
        let attached = Attached::at(folder.0.clone()).unwrap();
        let locked = attached.lock().unwrap();
        let (other, done) = (attached.clone(), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let _locked = other.lock().unwrap();
                assert!(done.load(std::sync::atomic::Ordering::SeqCst), "the lock was acquired too early");
            });
            std::thread::sleep(Duration::from_millis(50));
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            drop(locked);
            waits.join().unwrap();
        });
    }

    #[test]
    fn ended_process_reports_no_state() {
        let folder = Folder::new("gone");
        let attached = Attached::at(folder.0.clone()).unwrap();
        assert_eq!(attached.ask("a", Duration::from_secs(1)), None);
    }
}
