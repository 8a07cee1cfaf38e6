//! Folders for state, sockets and configuration of a user.

use lunar_config::Diagnostic;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder of state of the service.
const STATE: &str = "/var/lib/lunar";
/// The runtime folder of the service.
const RUN: &str = "/run/lunar";

/// The folder of state: `$XDG_STATE_HOME/lunar`, `/var/lib/lunar` for root and for its owner, or
/// `~/.local/state/lunar`.
pub fn state() -> Result<PathBuf, Diagnostic> {
    state_of(|name| std::env::var_os(name), is_of_service(STATE)).ok_or_else(|| {
        Diagnostic::new(
            "no state folder: neither XDG_STATE_HOME nor HOME is set",
            "set XDG_STATE_HOME, or state_dir in the configuration",
        )
    })
}

/// The runtime folder, for servers and attachments: `$LUNAR_RUN_DIR`, `/run/lunar` for root and for its owner,
/// `$XDG_RUNTIME_DIR/lunar`, or the folder of state. So root finds the service whatever its session sets, and the user
/// of the service uses the folder that systemd made.
pub fn run() -> Result<PathBuf, Diagnostic> {
    let hint =
        |problem| Diagnostic { hint: Some("set LUNAR_RUN_DIR to a folder of this user".into()), ..problem };
    run_of(|name| std::env::var_os(name), is_of_service(RUN)).map_or_else(|| state().map_err(hint), Ok)
}

/// The admin socket: `lunar.sock` in the folder of [`run`].
pub fn admin_socket() -> Result<PathBuf, Diagnostic> {
    let hint = |problem: Diagnostic| {
        let hint = problem.hint.unwrap_or_default();
        Diagnostic {
            hint: Some(format!("{hint}, or give the socket of the server with --socket")),
            ..problem
        }
    };
    Ok(run().map_err(hint)?.join("lunar.sock"))
}

/// The folder of the records of active attachments: `attached` in the folder of [`run`].
pub fn attached() -> Result<PathBuf, Diagnostic> {
    Ok(run()?.join("attached"))
}

/// Whether this user is root or owns a folder of the service.
fn is_of_service(folder: &str) -> bool {
    let user = rustix::process::geteuid();
    user.is_root() || std::fs::symlink_metadata(folder).is_ok_and(|found| found.uid() == user.as_raw())
}

fn run_of(env: impl Fn(&str) -> Option<OsString>, of_service: bool) -> Option<PathBuf> {
    let service = of_service.then(|| RUN.into());
    let session = || absolute(env("XDG_RUNTIME_DIR")).map(|folder| folder.join("lunar"));
    absolute(env("LUNAR_RUN_DIR")).or(service).or_else(session)
}

/// The directory of the journals of atomic writes.
pub fn atomic(state_dir: &Path) -> PathBuf {
    state_dir.join("atomic")
}

/// The admin socket of a further server: `lunar-PID.sock` in the directory of `first`, where another server listens.
pub fn second_admin_socket(first: &Path) -> PathBuf {
    first.with_file_name(format!("{SECOND}{}.sock", std::process::id()))
}

/// Prefix of the names of further admin sockets; the process id follows.
const SECOND: &str = "lunar-";

/// The further admin sockets in the directory of `first`, each with its process id.
pub(crate) fn second_admin_sockets(first: &Path) -> Vec<(PathBuf, u32)> {
    let folder = first.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    let pid = |name: &str| name.strip_prefix(SECOND)?.strip_suffix(".sock")?.parse().ok();
    let paths = folder.into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> =
        paths.filter_map(|path| Some((path.clone(), pid(path.file_name()?.to_str()?)?))).collect();
    found.sort();
    found
}

/// The folder of configuration: `$XDG_CONFIG_HOME/lunar`, `/etc/lunar` for root, or `~/.config/lunar`.
pub fn config() -> Result<PathBuf, Diagnostic> {
    let root = rustix::process::geteuid().is_root();
    config_of(|name| std::env::var_os(name), root).ok_or_else(|| {
        let what = "no configuration folder: neither XDG_CONFIG_HOME nor HOME is set";
        Diagnostic::new(what, "set XDG_CONFIG_HOME to a folder of this user")
    })
}

fn config_of(env: impl Fn(&str) -> Option<OsString>, root: bool) -> Option<PathBuf> {
    if let Some(folder) = absolute(env("XDG_CONFIG_HOME")) {
        return Some(folder.join("lunar"));
    }
    if root {
        return Some("/etc/lunar".into());
    }
    absolute(env("HOME")).map(|home| home.join(".config/lunar"))
}

fn state_of(env: impl Fn(&str) -> Option<OsString>, of_service: bool) -> Option<PathBuf> {
    if let Some(folder) = absolute(env("XDG_STATE_HOME")) {
        return Some(folder.join("lunar"));
    }
    if of_service {
        return Some(STATE.into());
    }
    absolute(env("HOME")).map(|home| home.join(".local/state/lunar"))
}

/// A relative path in a variable is ignored, as the XDG Base Directory Specification requires.
fn absolute(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_state_follows_the_environment() {
        let both = |name: &str| Some(if name == "HOME" { "/people/ann".into() } else { "/s".into() });
        let home = |name: &str| (name == "HOME").then(|| "/people/ann".into());
        assert_eq!(state_of(both, true), Some("/s/lunar".into()));
        assert_eq!(state_of(both, false), Some("/s/lunar".into()));
        assert_eq!(state_of(home, false), Some("/people/ann/.local/state/lunar".into()));
        assert_eq!(state_of(home, true), Some("/var/lib/lunar".into()));
        assert_eq!(state_of(|_| Some("relative".into()), false), None);
        assert_eq!(state_of(|_| None, false), None);
    }

    #[test]
    fn runtime_folder_depends_on_user_and_environment() {
        let xdg = |folder: &'static str| move |name: &str| (name == "XDG_RUNTIME_DIR").then(|| folder.into());
        for (env, of_root, of_others) in [
            (&xdg("/run/user/0") as &dyn Fn(&str) -> Option<OsString>, "/run/lunar", "/run/user/0/lunar"),
            (&xdg("/run/user/1000"), "/run/lunar", "/run/user/1000/lunar"),
            (&xdg("/tmp/x"), "/run/lunar", "/tmp/x/lunar"),
            (&|name| Some(if name == "LUNAR_RUN_DIR" { "/r" } else { "/x" }.into()), "/r", "/r"),
            (&|_| None, "/run/lunar", ""),
            (&|_| Some("relative".into()), "/run/lunar", ""),
        ] {
            let found = |root| run_of(env, root).unwrap_or_default();
            assert_eq!((found(true), found(false)), (of_root.into(), of_others.into()));
        }
    }

    #[test]
    fn folder_of_the_service_belongs_to_root_and_its_owner() {
        let user = rustix::process::geteuid();
        let own = std::env::temp_dir().join(format!("lunar-owner-{}", std::process::id()));
        std::fs::create_dir_all(&own).unwrap();
        assert!(is_of_service(own.to_str().unwrap()));
        std::fs::remove_dir(own).unwrap();
        assert_eq!(is_of_service("/"), user.is_root());
        assert_eq!(is_of_service("/nonexistent"), user.is_root());
    }

    #[test]
    fn folder_of_configuration_follows_the_environment() {
        let xdg = |name: &str| (name == "XDG_CONFIG_HOME").then(|| "/c".into());
        assert_eq!(config_of(xdg, true), Some("/c/lunar".into()));
        assert_eq!(config_of(|_| None, true), Some("/etc/lunar".into()));
    }
}
