//! Where a user's state and sockets are.

use crate::Problem;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The folder of state: `$XDG_STATE_HOME/lunar`, `/var/lib/lunar` for root, or `~/.local/state/lunar`.
pub fn state() -> Result<PathBuf, Problem> {
    let root = rustix::process::geteuid().is_root();
    state_of(|name| std::env::var_os(name), root).ok_or_else(|| {
        Problem::new(
            "there is no folder to keep state in: neither XDG_STATE_HOME nor HOME is set",
            "set XDG_STATE_HOME, or state_dir in the configuration",
        )
    })
}

/// The admin socket: `$XDG_RUNTIME_DIR/lunar.sock`, `/run/lunar/lunar.sock` for root, or `lunar.sock` in the folder of state.
/// For root it is the same in a login as in a service.
pub fn admin_socket() -> Result<PathBuf, Problem> {
    let root = rustix::process::geteuid().is_root();
    match run_of(|name| std::env::var_os(name), root) {
        Some(folder) => Ok(folder.join("lunar.sock")),
        None => {
            let hint = |problem| Problem {
                hint: Some("name the socket of the server with --socket".into()),
                ..problem
            };
            Ok(state().map_err(hint)?.join("lunar.sock"))
        }
    }
}

/// The folder that a login of root has at `XDG_RUNTIME_DIR`, and no service.
const LOGIN_OF_ROOT: &str = "/run/user/0";

fn run_of(env: impl Fn(&str) -> Option<OsString>, root: bool) -> Option<PathBuf> {
    match absolute(env("XDG_RUNTIME_DIR")) {
        Some(folder) if !root || folder != Path::new(LOGIN_OF_ROOT) => Some(folder),
        _ if root => Some("/run/lunar".into()),
        _ => None,
    }
}

/// Where the atomic writes of a medium are recorded. By its path: it may be served under another name the next time.
pub(crate) fn journal(state_dir: &Path, medium: &Path) -> PathBuf {
    let path = std::path::absolute(medium).unwrap_or_else(|_| medium.to_path_buf());
    let (folder, file) = (path.parent(), path.file_name());
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    let path = folder.zip(file).map_or(path.clone(), |(folder, file)| folder.join(file));
    state_dir.join("atomic").join(format!("{:016x}.journal", hash(path.as_os_str().as_bytes())))
}

/// FNV-1a: the same for all time.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The admin socket of a server that finds the first place taken: `lunar-PID.sock` beside it.
pub fn second_admin_socket(first: &Path) -> PathBuf {
    first.with_file_name(format!("{SECOND}{}.sock", std::process::id()))
}

/// How the names of further admin sockets begin; the process follows.
const SECOND: &str = "lunar-";

/// The admin sockets beside the first, each with its process.
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
pub fn config() -> Result<PathBuf, Problem> {
    let root = rustix::process::geteuid().is_root();
    config_of(|name| std::env::var_os(name), root).ok_or_else(|| {
        let what = "there is no folder of configuration: neither XDG_CONFIG_HOME nor HOME is set";
        Problem::new(what, "set XDG_CONFIG_HOME to a folder of this user")
    })
}

/// The folder of what is attached now: `$LUNAR_RUN_DIR`, `/run/lunar/attached` for root,
/// `$XDG_RUNTIME_DIR/lunar/attached`, or `attached` in the folder of state. For root it is the same in a login as
/// in a service.
pub fn attached() -> Result<PathBuf, Problem> {
    let root = rustix::process::geteuid().is_root();
    match attached_of(|name| std::env::var_os(name), root) {
        Some(folder) => Ok(folder),
        None => {
            let hint = |problem| Problem {
                hint: Some("set LUNAR_RUN_DIR to a folder of this user".into()),
                ..problem
            };
            Ok(state().map_err(hint)?.join("attached"))
        }
    }
}

fn attached_of(env: impl Fn(&str) -> Option<OsString>, root: bool) -> Option<PathBuf> {
    if let Some(folder) = absolute(env("LUNAR_RUN_DIR")) {
        return Some(folder);
    }
    if root {
        return Some("/run/lunar/attached".into());
    }
    absolute(env("XDG_RUNTIME_DIR")).map(|folder| folder.join("lunar/attached"))
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

fn state_of(env: impl Fn(&str) -> Option<OsString>, root: bool) -> Option<PathBuf> {
    if let Some(folder) = absolute(env("XDG_STATE_HOME")) {
        return Some(folder.join("lunar"));
    }
    if root {
        return Some("/var/lib/lunar".into());
    }
    absolute(env("HOME")).map(|home| home.join(".local/state/lunar"))
}

/// A variable counts only when it is an absolute path, as the XDG base directory specification says.
fn absolute(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_medium_has_a_journal_of_its_own_for_all_time() {
        let name = |path: &str| journal(Path::new("/s"), Path::new(path));
        assert_eq!(name("/none/disk.img"), Path::new("/s/atomic/253f1a0dd7360889.journal"));
        assert_ne!(name("/none/disk.img"), name("/none/disk2.img"));
        assert_eq!(name("/usr/../tmp/disk.img"), name("/tmp/disk.img"));
    }

    #[test]
    fn the_folder_of_state_follows_the_environment() {
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
    fn admin_socket_of_root_is_the_same_in_login_and_service() {
        let at = |folder: &'static str| move |_: &str| Some(folder.into());
        assert_eq!(run_of(at("/run/user/0"), true), Some("/run/lunar".into()));
        assert_eq!(run_of(|_| None, true), Some("/run/lunar".into()));
        assert_eq!(run_of(at("/tmp/x"), true), Some("/tmp/x".into()));
        assert_eq!(run_of(at("/run/user/0"), false), Some("/run/user/0".into()));
        assert_eq!(run_of(|_| None, false), None);
    }

    #[test]
    fn attachments_of_root_are_in_one_place() {
        let login = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/0".into());
        let told = |name: &str| (name == "LUNAR_RUN_DIR").then(|| "/r".into());
        assert_eq!(attached_of(login, true), Some("/run/lunar/attached".into()));
        assert_eq!(attached_of(login, false), Some("/run/user/0/lunar/attached".into()));
        assert_eq!(attached_of(told, true), Some("/r".into()));
        assert_eq!(attached_of(|_| None, false), None);
        let xdg = |name: &str| (name == "XDG_CONFIG_HOME").then(|| "/c".into());
        assert_eq!(config_of(xdg, true), Some("/c/lunar".into()));
        assert_eq!(config_of(|_| None, true), Some("/etc/lunar".into()));
    }
}
