//! Locks on the state and the serial number of a unit, so that only one server uses them. Hosts take two disks with
//! one serial number for the same disk. Two servers with one state file would overwrite each other's state.
//!
//! Each lock is on a separate file, because state files are replaced by rename. Only the holder removes the file, and
//! a lock counts only while the file is at its path.

use super::{TRIAL, UnitName, can_create, of_lun, state_path};
use crate::config::{LunConfig, one_name};
use crate::{Diagnostic, ErrorCode, create_folder, identity, io_text};
use lunar_block::lock_file::{self, LockFile, has_no_locks};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Upper limit of the text in a lock file.
const MAX_TEXT_BYTES: u64 = 16 << 10;

/// A lock, held as long as its unit is served.
pub(super) struct StateLock {
    path: PathBuf,
    lock: LockFile,
}

/// All locks of a process, shared by the units before and after a reload.
#[derive(Default)]
pub(super) struct StateLocks(Mutex<BTreeMap<PathBuf, Weak<StateLock>>>);

/// A lock to take: its object, its file, and how to use another object.
struct LockRequest {
    what: String,
    path: PathBuf,
    remedy: &'static str,
}

impl StateLocks {
    /// Takes the locks of a unit. A lock that an open unit holds already is shared. Call [`sign`] once the new
    /// definition is in force.
    pub(super) fn take(
        &self,
        state_dir: &Path,
        name: &UnitName,
        lun: &LunConfig,
    ) -> Result<Vec<Arc<StateLock>>, Diagnostic> {
        let place = place(name, lun);
        wanted(state_dir, name, lun).into_iter().filter_map(|one| self.one(one, &place).transpose()).collect()
    }

    fn one(&self, wanted: LockRequest, place: &str) -> Result<Option<Arc<StateLock>>, Diagnostic> {
        let mut holds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Now and then: for each of many units, it would take long.
        if holds.len().is_power_of_two() {
            holds.retain(|_, hold| hold.strong_count() > 0);
        }
        if let Some(hold) = holds.get(&wanted.path).and_then(Weak::upgrade) {
            return Ok(Some(hold));
        }
        wanted.path.parent().map_or(Ok(()), create_folder)?;
        let hold = match LockFile::lock(&wanted.path) {
            Ok(Some(lock)) => Arc::new(StateLock { path: wanted.path.clone(), lock }),
            Ok(None) => return Err(wanted.refused(place)),
            // Other errors may be temporary, and another server could get the lock later.
            Err(e) if has_no_locks(&e) => {
                tracing::warn!("{}", wanted.unlocked(&e));
                return Ok(None);
            }
            Err(e) => return Err(wanted.unlockable(&e)),
        };
        hold.sign(place);
        holds.insert(wanted.path, Arc::downgrade(&hold));
        Ok(Some(hold))
    }
}

/// Writes the medium of a unit into its lock files.
pub(super) fn sign(holds: &[Arc<StateLock>], name: &UnitName, lun: &LunConfig) {
    let place = place(name, lun);
    holds.iter().for_each(|hold| hold.sign(&place));
}

/// A lock of a unit that another process holds.
pub(crate) struct LockConflict {
    /// The error that a server would report.
    pub(crate) problem: Diagnostic,
    /// The process, and its configuration file if known; None if the lock file names no process.
    pub(crate) by: Option<(u32, Option<PathBuf>)>,
    /// Whether the process serves the same unit from the same medium.
    pub(crate) is_same: bool,
}

/// The locks of a unit that other processes hold. Takes no lock.
pub(crate) fn held(state_dir: &Path, name: &UnitName, lun: &LunConfig) -> Vec<LockConflict> {
    let place = place(name, lun);
    let held = wanted(state_dir, name, lun).into_iter().filter(|one| lock_file::is_held(&one.path));
    let one = |wanted: LockRequest| {
        let signed = wanted.signed();
        let is_same = signed.as_ref().is_some_and(|(_, of)| *of == place);
        LockConflict {
            problem: wanted.refused(&place),
            by: signed.map(|(pid, _)| (pid, configuration(pid))),
            is_same,
        }
    };
    held.map(one).collect()
}

/// Checks whether a server could take the locks of a unit, and returns the warnings that it would log. Leaves no
/// file.
///
/// # Errors
/// Those of a server.
pub(crate) fn lockable(
    state_dir: &Path,
    name: &UnitName,
    lun: &LunConfig,
) -> Result<Vec<String>, Diagnostic> {
    let mut notes = Vec::new();
    for wanted in wanted(state_dir, name, lun) {
        let Some(folder) = wanted.path.parent() else { continue };
        can_create(folder)?;
        match can_lock(folder) {
            Err(e) if has_no_locks(&e) => notes.push(wanted.unlocked(&e)),
            other => other.map_err(|e| wanted.unlockable(&e))?,
        }
    }
    Ok(notes)
}

/// Checks whether a file can be created and locked in this folder. A missing folder passes.
fn can_lock(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let path = folder.join(TRIAL.to_owned() + &std::process::id().to_string());
    let locked = lock_file::try_lock(&path).map(drop);
    _ = std::fs::remove_file(path);
    locked
}

/// Whether a unit has a lasting identity, which it locks. The locks show which server serves it.
pub(crate) fn has_identity(lun: &LunConfig) -> bool {
    !super::is_nameless(lun)
}

/// The serial number of a medium of this host; None if it does not last, or belongs to an upstream.
fn serial(name: &UnitName, lun: &LunConfig) -> Option<String> {
    let is_own = lun.source.lu_address().is_none() && !super::is_nameless(lun);
    is_own.then(|| identity::identity(name, lun).serial.trim().to_string())
}

/// Reports duplicate serial numbers, configured or derived: hosts take two disks with one serial number for the same
/// disk.
pub(crate) fn serial_twice(wanted: &BTreeMap<UnitName, &LunConfig>) -> Result<(), Vec<Diagnostic>> {
    let mut first = BTreeMap::new();
    for (name, lun) in wanted {
        let Some(serial) = serial(name, lun) else { continue };
        if let Some(other) = first.insert(serial.clone(), name) {
            let what = format!("{other} has the same serial number {serial}");
            return Err(vec![of_lun(
                name,
                Diagnostic::new(what, "set another `serial` for one of the two LUNs"),
            )]);
        }
    }
    Ok(())
}

/// A medium, by absolute path, and its unit.
fn place(name: &UnitName, lun: &LunConfig) -> String {
    let medium = match lun.source.path() {
        Some(path) => one_name(path).display().to_string(),
        None => lun.source.to_string(),
    };
    format!("{medium}, {name}")
}

fn wanted(state_dir: &Path, name: &UnitName, lun: &LunConfig) -> Vec<LockRequest> {
    if super::is_nameless(lun) {
        return Vec::new();
    }
    let state = state_path(state_dir, name, lun);
    let state = LockRequest {
        what: format!("the state {}", state.display()),
        path: state.with_extension("lock"),
        remedy: "set another state_dir, target name or LUN in this server",
    };
    let serial = serial(name, lun).map(|serial| LockRequest {
        what: format!("the serial number {serial}"),
        path: state_dir.join("lu/serials").join(identity::serial(&[&serial]) + ".lock"),
        remedy: "set another `serial` for this LUN",
    });
    std::iter::once(state).chain(serial).collect()
}

impl LockRequest {
    fn unlocked(&self, e: &io::Error) -> String {
        format!("{} is not locked against other servers: {}", self.what, io_text(e))
    }

    fn unlockable(&self, e: &io::Error) -> Diagnostic {
        let folder = self.path.parent().unwrap_or(&self.path).display();
        let what = format!("{} cannot be locked against other servers: {}", self.what, io_text(e));
        if lunar_runtime::descriptors::is_exhausted(e) {
            return Diagnostic::new(what, lunar_runtime::descriptors::HINT);
        }
        Diagnostic::new(
            what,
            format!("give the server write access to {folder}, or set another state_dir in [server]"),
        )
    }

    fn refused(&self, place: &str) -> Diagnostic {
        let (held, stop) = match self.signed() {
            // A copy of the configuration, or the same server started twice.
            Some((pid, of)) if of == place => {
                let command = command(pid).map_or(String::new(), |command| format!(" ({command})"));
                let what = format!(
                    "{} is in use by process {pid}{command}, which serves this LUN from the same medium",
                    self.what
                );
                let hint = format!("stop process {pid}, or {}", self.remedy);
                return Diagnostic::new(what, hint).with_code(ErrorCode::InUse);
            }
            Some((pid, of)) => {
                let command = command(pid).map_or(String::new(), |command| format!(" ({command})"));
                let held = format!("{} is in use by process {pid}{command} for {of}", self.what);
                (held, format!("stop process {pid}"))
            }
            None => (format!("{} is in use by another server", self.what), "stop the other server".into()),
        };
        let hint = format!("hosts cannot distinguish the two LUNs: {}, or {stop}", self.remedy);
        Diagnostic::new(format!("{held}; here it is for {place}"), hint).with_code(ErrorCode::InUse)
    }

    /// The process that holds it, and for which medium and unit.
    fn signed(&self) -> Option<(u32, String)> {
        let mut text = String::new();
        let file = File::open(&self.path).ok()?;
        file.take(MAX_TEXT_BYTES).read_to_string(&mut text).ok()?;
        let (pid, place) = text.split_once('\n')?;
        Some((pid.parse().ok()?, place.trim_end().to_owned()))
    }
}

/// The arguments of a process.
fn arguments(pid: u32) -> Option<Vec<String>> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|bytes| !bytes.is_empty())?;
    let text = String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
    Some(text.split('\0').map(str::to_owned).collect())
}

/// The command line of a process.
fn command(pid: u32) -> Option<String> {
    Some(arguments(pid)?.join(" ").chars().filter(|c| !c.is_control()).take(200).collect())
}

/// The configuration file of a running server, if this user can read its arguments.
pub(crate) fn configuration(pid: u32) -> Option<PathBuf> {
    let arguments = arguments(pid)?;
    let named = arguments.iter().find_map(|argument| argument.strip_prefix("--config="));
    let next =
        || arguments.iter().position(|argument| argument == "--config").and_then(|at| arguments.get(at + 1));
    let file = named.or_else(|| next().map(String::as_str))?;
    let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    folder.join(file).canonicalize().ok()
}

impl StateLock {
    /// Writes the process and the medium. A failure is logged, and the lock stays valid.
    fn sign(&self, place: &str) {
        if let Err(e) = self.lock.write_owner(format!("{}\n{place}\n", std::process::id())) {
            tracing::warn!("{}: {}", self.path.display(), io_text(&e));
        }
    }
}

impl Drop for StateLock {
    fn drop(&mut self) {
        self.lock.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;
    use crate::config::tests::Folder;
    use lunar_scsi::PeripheralDeviceType;

    const TARGET: &str = "iqn.2026-11.org.example:d";

    fn lun(path: &str, serial: Option<&str>) -> LunConfig {
        let source = Source::File { path: path.into(), size: None };
        LunConfig { serial: serial.map(Into::into), ..LunConfig::new(source, PeripheralDeviceType::Disk) }
    }

    fn take(
        folder: &Folder,
        target: &str,
        number: u16,
        lun: &LunConfig,
    ) -> Result<Vec<Arc<StateLock>>, Diagnostic> {
        // Separate locks, as those of another process.
        StateLocks::default().take(&folder.0, &UnitName::Lun(target.into(), number), lun)
    }

    fn refused(result: Result<Vec<Arc<StateLock>>, Diagnostic>) -> Diagnostic {
        result.err().expect("another server holds the lock")
    }

    #[test]
    fn second_server_of_a_state_hears_both_places() {
        let folder = Folder::new("hold-state");
        let first = take(&folder, TARGET, 0, &lun("/a.img", Some("1"))).ok().unwrap();
        assert_eq!(first.len(), 2);
        let problem = refused(take(&folder, TARGET, 0, &lun("/b.img", Some("2"))));
        let process = format!("in use by process {} (", std::process::id());
        let parts =
            ["0.state is ", &process, "for /a.img, LUN 0 of iqn", "here it is for /b.img, LUN 0 of iqn"];
        assert!(parts.iter().all(|part| problem.what.contains(part)), "{}", problem.what);
        assert_eq!(problem.code, ErrorCode::InUse);
        drop(first);
        take(&folder, TARGET, 0, &lun("/b.img", Some("2"))).ok().unwrap();
    }

    #[test]
    fn copy_of_a_configuration_is_named_as_the_same_lun() {
        let folder = Folder::new("hold-copy");
        let disk = lun("/a.img", Some("1"));
        let first = take(&folder, TARGET, 0, &disk).ok().unwrap();
        let problem = refused(take(&folder, TARGET, 0, &disk));
        assert!(problem.what.ends_with(", which serves this LUN from the same medium"), "{}", problem.what);
        assert!(!problem.what.contains("here it is"), "{}", problem.what);
        assert!(problem.hint.unwrap().starts_with(&format!("stop process {}, or ", std::process::id())));
        drop(first);
    }

    #[test]
    fn serial_belongs_to_one_server_whatever_the_target() {
        let folder = Folder::new("hold-serial");
        let first = take(&folder, TARGET, 0, &lun("/a.img", Some("1"))).ok().unwrap();
        let problem = refused(take(&folder, "iqn.2026-11.org.example:e", 3, &lun("/b.img", Some("1 "))));
        assert!(problem.what.starts_with("the serial number 1 is in use by process "), "{}", problem.what);
        assert!(problem.hint.unwrap().contains("another `serial`"));
        let other = take(&folder, "iqn.2026-11.org.example:e", 3, &lun("/b.img", None)).ok().unwrap();
        drop((first, other));
        let files = std::fs::read_dir(folder.0.join("lu/serials")).unwrap().count();
        assert_eq!(files, 0, "the holder removes the file");
    }

    #[test]
    fn process_shares_its_own_locks() {
        let folder = Folder::new("hold-share");
        let (holds, name) = (StateLocks::default(), UnitName::Lun(TARGET.into(), 0));
        let before = holds.take(&folder.0, &name, &lun("/a.img", None)).ok().unwrap();
        let after = holds.take(&folder.0, &name, &lun("/b.img", None)).ok().unwrap();
        assert!(before.iter().zip(&after).all(|(a, b)| Arc::ptr_eq(a, b)));
        drop(before);
        let held_for = || refused(take(&folder, TARGET, 0, &lun("/c.img", None))).what;
        assert!(
            held_for().contains(" for /a.img, LUN 0"),
            "the new definition is not in force yet: {}",
            held_for()
        );
        sign(&after, &name, &lun("/b.img", None));
        assert!(held_for().contains(" for /b.img, LUN 0"), "{}", held_for());
    }

    #[test]
    fn lock_that_cannot_be_taken_is_refused() {
        let folder = Folder::new("hold-none");
        std::fs::create_dir_all(folder.0.join("lu").join(TARGET).join("0.lock")).unwrap();
        let problem = refused(take(&folder, TARGET, 0, &lun("/a.img", Some("1"))));
        assert!(
            problem.what.contains("0.state cannot be locked against other servers: "),
            "{}",
            problem.what
        );
    }

    #[test]
    fn memory_without_a_serial_holds_nothing() {
        let folder = Folder::new("hold-memory");
        let lun = LunConfig::new(Source::Memory { size: 4096 }, PeripheralDeviceType::Disk);
        assert!(take(&folder, TARGET, 0, &lun).ok().unwrap().is_empty());
        assert!(!folder.0.join("lu").exists());
    }
}
