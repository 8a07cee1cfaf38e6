//! The attached disks. Each attachment has a record, and a lock that its process holds while it runs. A process holds
//! the lock of the folder while it reads or changes records and locks.

use crate::config::attachment::{How, PathPolicy, check_name};
use crate::{Diagnostic, create_folder_or, io_text};
use lunar_block::lock_file;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use utoipa::ToSchema;

/// The record of an attached disk. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AttachmentRecord)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// The kind of device that the host sees.
    pub how: How,
    /// The NBD URI, the block device, or the file; None while it is being attached.
    pub device: Option<String>,
    /// The address of an NBD server or the folder of a file, if one was given.
    pub place: Option<String>,
    /// The number of a ublk device.
    pub ublk_id: Option<u32>,
    /// The URL of each path, without secrets.
    pub urls: Vec<String>,
    /// Capacity when it was attached, in bytes.
    pub size_bytes: u64,
    /// Identity of the logical unit, as `lunar ls` shows it: the best designator of VPD page 83h, or else the whole page
    /// in hexadecimal; empty if the unit reports none.
    pub identity: String,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// How long to wait for a lost network, in seconds.
    #[serde(rename = "recovery_timeout_s", with = "crate::seconds")]
    #[schema(value_type = f64)]
    pub recovery_timeout: Duration,
    /// The policy that selects one of several paths, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PathPolicy>,
    /// Its process.
    pub pid: u32,
    /// When it was attached, in seconds since 1970. Records of older versions have the number.
    #[serde(alias = "since_unix_s", with = "lunar_admin::rfc3339::seconds")]
    #[schema(value_type = String)]
    pub attached_at: u64,
    /// ISID of the session of each path, in hexadecimal. A process that attaches the disk after this one has died uses
    /// the same ISID. The target then ends the old session before it accepts the new one (RFC 7143 section 6.3.5), so no
    /// write of the old session is executed after a write of the new one.
    #[serde(default)]
    pub isids: Vec<String>,
    /// The initiator name of the session of each path; an ISID makes another nexus under another name. Records of older
    /// versions have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initiators: Vec<String>,
    /// The target port of the session of each path, from `lunar_initiator::Facts::target_port`; empty for a path that
    /// was never connected. One URL may lead to several ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The CHAP user of the session of each path; empty without CHAP. Records of older versions have none, and their
    /// `ports` are those of the first login.
    #[serde(rename = "chap_users", alias = "users", default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Ended sessions whose writes the target may still execute, including those of paths that reconnected at another
    /// port. The next process ends those writes before it serves the disk. `isids` is empty after the process has
    /// ended cleanly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<LeftSession>,
    /// The reason why its process failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// An ended session whose writes the target may still execute. A login with its initiator name and ISID ends them
/// there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftSession {
    /// Its URL, without secrets.
    pub url: String,
    /// Its ISID, in hexadecimal.
    pub isid: String,
    /// Its initiator name; None in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// Its target port, or [`UNKNOWN_PORT`]; None in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Its CHAP user, empty without CHAP; None in records of older versions. For a target, the same name and ISID
    /// with another user may be another nexus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A target port that could not be determined.
pub const UNKNOWN_PORT: &str = "unknown";

impl Record {
    /// Sessions whose writes the target may still execute after the process is gone. If the process was killed, each
    /// path may have left writes.
    pub fn sessions(&self) -> Vec<LeftSession> {
        let mut sessions = self.left_behind.clone();
        let own = (0..self.urls.len()).filter_map(|at| self.session(at)).filter(|_| !self.read_only);
        sessions.extend(own.filter(|session| !self.left_behind.contains(session)));
        sessions
    }

    /// The session of a path; None if it was never connected.
    fn session(&self, at: usize) -> Option<LeftSession> {
        let known = |of: &[String]| of.get(at).filter(|text| !text.is_empty()).cloned();
        let (port, is_older) = (known(&self.ports), self.users.is_empty());
        if port.is_none() && !is_older {
            return None;
        }
        Some(LeftSession {
            url: self.urls.get(at)?.clone(),
            isid: self.isids.get(at)?.clone(),
            initiator: known(&self.initiators),
            port,
            user: self.users.get(at).cloned(),
        })
    }

    /// Records the login of a path, which sends no command before the record is written. `has_orphans`: the target
    /// may still execute commands of its earlier session.
    pub fn enter(&mut self, at: usize, session: LeftSession, has_orphans: bool) {
        let before = self.session(at);
        let LeftSession { isid, initiator, port, user, .. } = session;
        let port = port.unwrap_or_else(|| UNKNOWN_PORT.to_owned());
        let [initiator, user] = [initiator, user].map(Option::unwrap_or_default);
        let rows = [&mut self.isids, &mut self.initiators, &mut self.ports, &mut self.users];
        for (row, value) in rows.into_iter().zip([isid, initiator, port, user]) {
            if let Some(old) = row.get_mut(at) {
                *old = value;
            }
        }
        if has_orphans && before != self.session(at) {
            self.left_behind.extend(before.filter(|before| !self.left_behind.contains(before)));
        }
    }
}

/// A path to the target, as its process reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachedPath {
    /// Its URL, without secrets.
    pub url: String,
    /// With several paths, the state that path selection uses; `connected` or `lost` for a single one.
    pub state: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Number of reconnections.
    pub recoveries: u32,
}

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
        Ok(Attached { folder })
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
        Ok(LockedFolder {
            attached: self,
            _lock: lock_file::wait(&path).map_err(|e| cannot("lock", &path, &e))?,
        })
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
        if lock.is_some() {
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

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

fn cannot(what: &str, path: &Path, e: &io::Error) -> Diagnostic {
    let what = format!("cannot {what} {}: {}", path.display(), io_text(e));
    Diagnostic::new(what, "check the path and its permissions, or set LUNAR_RUN_DIR")
}

/// Creates and writes a file. First removes one that a killed process left. Fails if another process creates the path
/// meanwhile, and follows no link.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    _ = std::fs::remove_file(path);
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn sessions_of_a_record_are_those_that_may_have_written() {
        let killed = record("a");
        let [session] = &killed.sessions()[..] else { panic!("one path") };
        assert_eq!((&session.url, &session.isid), (&killed.urls[0], &killed.isids[0]));
        assert_eq!(session.initiator.as_ref(), Some(&killed.initiators[0]));
        assert_eq!(session.port.as_ref(), Some(&killed.ports[0]));
        assert_eq!(session.user.as_deref(), Some(""));
        let older = Record { initiators: Vec::new(), ports: Vec::new(), users: Vec::new(), ..killed.clone() };
        let text = serde_json::to_string(&older).unwrap();
        assert!(!["initiator", "port", "user"].iter().any(|key| text.contains(key)), "{text}");
        let [session] = &serde_json::from_str::<Record>(&text).unwrap().sessions()[..] else {
            panic!("one path")
        };
        assert_eq!((&session.initiator, &session.port, &session.user), (&None, &None, &None));
        let [session] = &killed.sessions()[..] else { panic!("one path") };
        let read_only = Record { read_only: true, ..record("a") };
        assert_eq!(read_only.sessions(), []);
        let left_behind = vec![session.clone()];
        let ended = Record { isids: Vec::new(), left_behind: left_behind.clone(), ..read_only };
        assert_eq!(ended.sessions(), left_behind);
        assert_eq!(
            Record { left_behind: left_behind.clone(), ..killed }.sessions(),
            left_behind,
            "each session once"
        );
        let text = serde_json::to_string(&ended).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), ended);
    }

    #[test]
    fn path_that_was_never_open_has_left_nothing() {
        let unopened = Record { ports: vec![String::new()], ..record("a") };
        assert_eq!(unopened.sessions(), []);
        let older = Record { users: Vec::new(), ..unopened };
        assert_eq!(older.sessions()[0].port, None, "the path may have been connected later");
    }

    #[test]
    fn path_that_moves_with_orphans_keeps_both_ports() {
        let mut kept = record("a");
        let [first] = &kept.sessions()[..] else { panic!("one path") };
        let first = first.clone();
        let at = |port: Option<&str>| LeftSession { port: port.map(str::to_owned), ..first.clone() };
        let second = at(Some("group:2,iqn.2026-11.org.example:a"));
        kept.enter(0, first.clone(), true);
        assert_eq!(kept.sessions(), std::slice::from_ref(&first), "the path kept its port");
        kept.enter(0, second.clone(), false);
        assert_eq!(kept.sessions(), std::slice::from_ref(&second), "no orphans at the first port");
        kept.enter(0, first.clone(), true);
        assert_eq!(kept.sessions(), [second.clone(), first.clone()]);
        kept.enter(0, at(None), true);
        assert_eq!(kept.sessions().last(), Some(&at(Some(UNKNOWN_PORT))));
        assert_eq!(kept.sessions().len(), 3);
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
