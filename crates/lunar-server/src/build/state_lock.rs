//! Locks on the state and the serial number of a unit, so that only one server uses them. Hosts take two disks with
//! one serial number for the same disk. Two servers with one state file would overwrite each other's state.
//!
//! The locks are names that a server claims in a folder of the state ([`Claims`]).

use super::saved_state::own_state_dir;
use super::{TRIAL, UnitName, can_create, of_lun, state_path};
use crate::config::{LunConfig, one_name};
use crate::{Diagnostic, ErrorCode, create_folder, identity, io_text};
use lunar_block::lock_file::{self, Claim, Claims, Holder, HolderTable, has_no_locks};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The locks of a unit, held as long as it is served.
pub(super) type UnitLocks = Arc<[Claim]>;

/// All locks of a process, by the folder of their lock files. The units before and after a reload share them.
#[derive(Default)]
pub(super) struct StateLocks(Mutex<BTreeMap<PathBuf, Claims>>);

/// A lock to take: its object, its name, and how to use another object.
struct LockRequest {
    what: String,
    name: String,
    remedy: &'static str,
}

impl StateLocks {
    /// Takes the locks of units. Call [`StateLocks::sign`] once their new definitions are in force.
    pub(super) fn take<'a>(
        &self,
        state_dir: &Path,
        luns: impl Iterator<Item = (&'a UnitName, &'a LunConfig)>,
    ) -> Vec<Result<UnitLocks, Diagnostic>> {
        let units: Vec<(&UnitName, &LunConfig)> = luns.collect();
        let folder_of = |at: &usize| own_state_dir(state_dir, units[*at].1);
        let folders: BTreeSet<&Path> = (0..units.len()).map(|at| folder_of(&at)).collect();
        let mut taken = Vec::new();
        for folder in folders {
            let places: Vec<usize> = (0..units.len()).filter(|at| folder_of(at) == folder).collect();
            let locks = self.take_in(folder, places.iter().map(|at| units[*at]));
            taken.extend(places.into_iter().zip(locks));
        }
        taken.sort_by_key(|(at, _)| *at);
        taken.into_iter().map(|(_, locks)| locks).collect()
    }

    /// Takes the locks of units that have their state in one folder.
    fn take_in<'a>(
        &self,
        state_dir: &Path,
        luns: impl Iterator<Item = (&'a UnitName, &'a LunConfig)>,
    ) -> Vec<Result<UnitLocks, Diagnostic>> {
        let units: Vec<_> =
            luns.map(|(name, lun)| (place(name, lun), wanted(state_dir, name, lun))).collect();
        let of_unit = |(place, locks): &(String, Vec<LockRequest>)| {
            locks.iter().map(|lock| (lock.name.clone(), place.clone())).collect::<Vec<_>>()
        };
        let names: Vec<_> = units.iter().flat_map(of_unit).collect();
        let folder = folder(state_dir);
        if let Err(problem) = names.first().map_or(Ok(()), |_| create_folder(&folder)) {
            return units.iter().map(|_| Err(problem.clone())).collect();
        }
        let mut results = match self.claim(&folder, &names) {
            Ok(results) => results.into_iter(),
            Err(e) if is_unprotected(&e) => {
                tracing::warn!("{}", unlocked(&folder, &e));
                return units.iter().map(|_| Ok(UnitLocks::default())).collect();
            }
            // Other errors may be temporary, and another server could get the lock later.
            Err(e) => return units.iter().map(|(_, locks)| unlockable_unit(&folder, locks, &e)).collect(),
        };
        let one = |(place, locks): &(String, Vec<LockRequest>)| {
            let results: Vec<_> = locks.iter().zip(results.by_ref()).collect();
            let claims =
                results.into_iter().map(|(lock, claim)| claim.map_err(|by| lock.refused(place, &by)));
            claims.collect()
        };
        units.iter().map(one).collect()
    }

    fn claim(&self, folder: &Path, names: &[(String, String)]) -> io::Result<Vec<Result<Claim, Holder>>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !claims.contains_key(folder) {
            claims.insert(folder.to_path_buf(), Claims::join(folder)?);
        }
        claims.get(folder).map_or(Ok(Vec::new()), |claims| claims.take(names))
    }

    /// Publishes the media of units whose definitions are in force. A failure is logged, and the locks stay valid.
    pub(super) fn sign<'a>(&self, units: impl Iterator<Item = (&'a UnitName, &'a LunConfig, &'a UnitLocks)>) {
        for (name, lun, locks) in units {
            let place = place(name, lun);
            locks.iter().for_each(|lock| lock.set_owner(place.clone()));
        }
        let claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for e in claims.values().filter_map(|claims| claims.publish().err()) {
            tracing::warn!("cannot write the lock file of this server: {}", io_text(&e));
        }
    }

    /// Closes the lock files in which no unit has a lock anymore: the volume of a folder may move to another server.
    pub(super) fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, claims| claims.has_names());
    }
}

/// The folder of the lock files: one for each server that uses the state folder.
fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("servers")
}

/// Whether the file system cannot hold claims, for a server that serves without them.
fn is_unprotected(e: &io::Error) -> bool {
    let is_full = matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    );
    has_no_locks(e) || is_full
}

fn unlocked(folder: &Path, e: &io::Error) -> String {
    let folder = folder.display();
    format!("the state and the serial numbers are not locked against other servers: {folder}: {}", io_text(e))
}

fn unlockable_unit(folder: &Path, locks: &[LockRequest], e: &io::Error) -> Result<UnitLocks, Diagnostic> {
    locks.first().map_or(Ok(UnitLocks::default()), |lock| Err(lock.unlockable(folder, e)))
}

/// A lock of a unit that another process holds.
pub(crate) struct LockConflict {
    /// The error that a server would report.
    pub(crate) problem: Diagnostic,
    /// The process, and its configuration file if known; None if the process cannot be identified.
    pub(crate) by: Option<(u32, Option<PathBuf>)>,
    /// Whether the process serves the same unit from the same medium.
    pub(crate) is_same: bool,
}

/// The locks that processes hold in a state folder.
pub(crate) struct HeldLocks<'a> {
    state_dir: &'a Path,
    table: HolderTable,
}

impl HeldLocks<'_> {
    /// Reads the locks. Takes no lock.
    pub(crate) fn of(state_dir: &Path) -> HeldLocks<'_> {
        HeldLocks { state_dir, table: HolderTable::of(&folder(state_dir)) }
    }

    /// The locks of a unit that processes hold.
    pub(crate) fn conflicts(&self, name: &UnitName, lun: &LunConfig) -> Vec<LockConflict> {
        let place = place(name, lun);
        let one = |wanted: LockRequest| {
            let by = self.table.holder(&wanted.name)?;
            let problem = wanted.refused(&place, &by);
            let is_same = by.owner == place;
            Some(LockConflict { problem, by: by.pid.map(|pid| (pid, configuration(pid))), is_same })
        };
        wanted(self.state_dir, name, lun).into_iter().filter_map(one).collect()
    }
}

/// The state files of those below `state_dir` that a server uses.
pub fn used_state_files<'a>(state_dir: &Path, files: impl Iterator<Item = &'a Path>) -> Vec<&'a Path> {
    let table = HolderTable::of(&folder(state_dir));
    files.filter(|file| table.holder(&state_lock_name(state_dir, file)).is_some()).collect()
}

/// Checks whether a server could take locks, and returns the warning that it would log. Leaves no file.
///
/// # Errors
/// Those of a server.
pub(crate) fn lockable(
    state_dir: &Path,
    name: &UnitName,
    lun: &LunConfig,
) -> Result<Option<String>, Diagnostic> {
    let folder = folder(state_dir);
    let Some(lock) = wanted(state_dir, name, lun).into_iter().next() else { return Ok(None) };
    can_create(&folder)?;
    match can_lock(&folder) {
        Err(e) if is_unprotected(&e) => Ok(Some(unlocked(&folder, &e))),
        other => other.map(|()| None).map_err(|e| lock.unlockable(&folder, &e)),
    }
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
    is_own.then(|| identity::serial_of(name, lun).trim().to_string())
}

/// Reports duplicate serial numbers, configured or derived: hosts take two disks with one serial number for the same
/// disk.
pub(crate) fn serial_twice(wanted: &BTreeMap<UnitName, &LunConfig>) -> Result<(), Vec<Diagnostic>> {
    // Derived serial numbers differ. Thousands of them take long.
    if wanted.values().all(|lun| lun.serial.is_none()) {
        return Ok(());
    }
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

/// A medium, by absolute path, and its unit, in one line.
fn place(name: &UnitName, lun: &LunConfig) -> String {
    let medium = match lun.source.path() {
        Some(path) => one_name(path).display().to_string(),
        None => lun.source.to_string(),
    };
    one_line(&format!("{medium}, {name}"))
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, "?")
}

fn wanted(state_dir: &Path, name: &UnitName, lun: &LunConfig) -> Vec<LockRequest> {
    if super::is_nameless(lun) {
        return Vec::new();
    }
    let state = state_path(state_dir, name, lun);
    let state = LockRequest {
        what: format!("the state {}", state.display()),
        name: state_lock_name(state_dir, &state),
        remedy: "set another state_dir, target name or LUN in this server",
    };
    let serial = serial(name, lun).map(|serial| LockRequest {
        what: format!("the serial number {serial}"),
        name: format!("serial {}", one_line(&serial)),
        remedy: "set another `serial` for this LUN",
    });
    std::iter::once(state).chain(serial).collect()
}

/// The name of the lock of a state file.
fn state_lock_name(state_dir: &Path, file: &Path) -> String {
    let file = file.strip_prefix(state_dir).unwrap_or(file);
    format!("state {}", one_line(&file.display().to_string()))
}

impl LockRequest {
    fn unlockable(&self, folder: &Path, e: &io::Error) -> Diagnostic {
        let what = format!("{} cannot be locked against other servers: {}", self.what, io_text(e));
        if lunar_runtime::descriptors::is_exhausted(e) {
            return Diagnostic::new(what, lunar_runtime::descriptors::HINT);
        }
        let folder = folder.display();
        Diagnostic::new(
            what,
            format!("give the server write access to {folder}, or set another state_dir in [server]"),
        )
    }

    fn refused(&self, place: &str, by: &Holder) -> Diagnostic {
        let Some(pid) = by.pid else {
            let held = format!("{} is in use by another server", self.what);
            return self.conflict(place, &held, "stop the other server");
        };
        let command = command(pid).map_or(String::new(), |command| format!(" ({command})"));
        let held = format!("{} is in use by process {pid}{command}", self.what);
        // A copy of the configuration, or the same server started twice.
        if by.owner == place {
            let hint = format!("stop process {pid}, or {}", self.remedy);
            let what = format!("{held}, which serves this LUN from the same medium");
            return Diagnostic::new(what, hint).with_code(ErrorCode::InUse);
        }
        self.conflict(place, &format!("{held} for {}", by.owner), &format!("stop process {pid}"))
    }

    fn conflict(&self, place: &str, held: &str, stop: &str) -> Diagnostic {
        let hint = format!("hosts cannot distinguish the two LUNs: {}, or {stop}", self.remedy);
        Diagnostic::new(format!("{held}; here it is for {place}"), hint).with_code(ErrorCode::InUse)
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

    fn take(folder: &Folder, target: &str, number: u16, lun: &LunConfig) -> Result<UnitLocks, Diagnostic> {
        // Separate locks, as those of another process.
        take_by(&StateLocks::default(), folder, &UnitName::Lun(target.into(), number), lun)
    }

    fn take_by(
        locks: &StateLocks,
        folder: &Folder,
        name: &UnitName,
        lun: &LunConfig,
    ) -> Result<UnitLocks, Diagnostic> {
        locks.take(&folder.0, std::iter::once((name, lun))).remove(0)
    }

    fn refused(result: Result<UnitLocks, Diagnostic>) -> Diagnostic {
        result.expect_err("another server holds the lock")
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
        let files = std::fs::read_dir(folder.0.join("servers")).unwrap().count();
        assert_eq!(files, 0, "the holder removes the file");
    }

    #[test]
    fn process_shares_its_own_locks() {
        let folder = Folder::new("hold-share");
        let (locks, name) = (StateLocks::default(), UnitName::Lun(TARGET.into(), 0));
        let before = take_by(&locks, &folder, &name, &lun("/a.img", None)).ok().unwrap();
        let after = take_by(&locks, &folder, &name, &lun("/b.img", None)).ok().unwrap();
        drop(before);
        let held_for = || refused(take(&folder, TARGET, 0, &lun("/c.img", None))).what;
        assert!(
            held_for().contains(" for /a.img, LUN 0"),
            "the new definition is not in force yet: {}",
            held_for()
        );
        locks.sign(std::iter::once((&name, &lun("/b.img", None), &after)));
        assert!(held_for().contains(" for /b.img, LUN 0"), "{}", held_for());
    }

    #[test]
    fn lock_that_cannot_be_taken_is_refused() {
        let folder = Folder::new("hold-none");
        std::fs::create_dir_all(folder.0.join("servers/0.lock")).unwrap();
        let problem = refused(take(&folder, TARGET, 0, &lun("/a.img", Some("1"))));
        assert!(
            problem.what.contains("0.state cannot be locked against other servers: "),
            "{}",
            problem.what
        );
    }

    #[test]
    fn used_state_files_are_those_of_held_locks() {
        let folder = Folder::new("hold-used");
        let locks = take(&folder, TARGET, 0, &lun("/a.img", Some("1"))).ok().unwrap();
        let files = [0, 1].map(|number| folder.0.join(format!("lu/{TARGET}/{number}.state")));
        let used = || used_state_files(&folder.0, files.iter().map(PathBuf::as_path));
        assert_eq!(used(), [files[0].as_path()]);
        drop(locks);
        assert_eq!(used(), Vec::<&Path>::new());
    }

    #[test]
    fn memory_without_a_serial_holds_nothing() {
        let folder = Folder::new("hold-memory");
        let lun = LunConfig::new(Source::Memory { size: 4096 }, PeripheralDeviceType::Disk);
        assert!(take(&folder, TARGET, 0, &lun).ok().unwrap().is_empty());
        assert!(!folder.0.join("lu").exists());
    }
}
