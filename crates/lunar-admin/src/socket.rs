//! The admin socket: its path, its listener, and the users that may connect.

use crate::connect::{connect, is_answered};
use crate::folders;
use lunar_config::{Diagnostic, ErrorCode, io_text};
use rustix::fs::Access;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit of a connection to a server that hangs.
const PATIENCE: Duration = Duration::from_secs(2);

/// A listening admin socket, mode 0600. Dropping it removes the socket.
pub struct AdminSocket {
    path: PathBuf,
    /// Device and inode of the socket.
    file: Option<(u64, u64)>,
    /// The listener.
    pub listener: UnixListener,
}

impl AdminSocket {
    /// Listens at `path`. A dead socket is replaced.
    ///
    /// # Errors
    /// Those of [`can_bind`], and of the system.
    pub fn bind(path: &Path) -> Result<AdminSocket, Diagnostic> {
        can_bind(path)?;
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(cannot(path, &e)),
            _ => {}
        }
        // Until the mode is set, only the check of credentials excludes other users.
        let listener = UnixListener::bind(path).map_err(|e| cannot(path, &e))?;
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, mode).map_err(|e| cannot(path, &e))?;
        Ok(AdminSocket { path: path.to_path_buf(), file: file_at(path), listener })
    }

    /// Listens at `first`. If another server listens there, listens at [`folders::second_admin_socket`] instead.
    /// Removes sockets of dead processes.
    ///
    /// # Errors
    /// Those of [`AdminSocket::bind`].
    pub fn bind_beside(first: &Path) -> Result<AdminSocket, Diagnostic> {
        for (path, pid) in folders::second_admin_sockets(first) {
            // The process of another user may be hidden (ProtectProc= of systemd), so its socket is asked too.
            let is_hidden = !Path::new(&format!("/proc/{pid}")).exists();
            if Path::new("/proc/self").exists() && is_hidden && !is_answered(&path) {
                // A leftover socket is harmless.
                _ = std::fs::remove_file(path);
            }
        }
        match AdminSocket::bind(first) {
            Ok(socket) => Ok(socket),
            Err(problem) if !is_answered(first) => Err(problem),
            Err(_) => AdminSocket::bind(&folders::second_admin_socket(first)),
        }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // Another server may have replaced the socket.
        if self.file.is_some() && file_at(&self.path) == self.file {
            _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of a file.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn cannot(path: &Path, e: &io::Error) -> Diagnostic {
    Diagnostic::new(
        format!("cannot listen on the admin socket {}: {}", path.display(), io_text(e)),
        "set admin_socket in the configuration to a path that this user can create",
    )
}

/// Checks that a server can listen at this path, without changes.
///
/// # Errors
/// The error that a server would report.
pub fn can_bind(path: &Path) -> Result<(), Diagnostic> {
    if is_answered(path) {
        let problem = Diagnostic::new(
            format!("another server uses the admin socket {}", path.display()),
            "stop that server, or set admin_socket in the configuration to another path",
        );
        return Err(problem.with_code(ErrorCode::InUse));
    }
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
        return Err(Diagnostic::new(
            format!("the path of the admin socket {} is a file, not a socket", path.display()),
            "move the file away, or set admin_socket in the configuration to another path",
        ));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let may = rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK);
    may.map_err(|e| cannot(path, &e.into()))
}

/// The process that listens at this path.
pub fn listener(path: &Path) -> Option<u32> {
    let socket = connect(path, PATIENCE).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
    peer.pid.as_raw_nonzero().get().try_into().ok()
}

/// Only the server's user and root may send requests.
pub fn may_ask(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// The admin sockets with a live server, even a hanging one: `first`, and the others in its folder.
pub fn listening(first: &Path) -> Vec<PathBuf> {
    let others = folders::second_admin_sockets(first).into_iter().map(|(path, _)| path);
    std::iter::once(first.to_path_buf()).chain(others).filter(|path| is_answered(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use interop::Folder;

    #[test]
    fn only_the_own_user_and_root_may_ask() {
        assert!(may_ask(1000, 1000));
        assert!(may_ask(0, 1000));
        assert!(!may_ask(1001, 1000));
        assert!(!may_ask(1000, 0));
    }

    #[test]
    fn socket_in_use_is_left_alone_and_a_dead_one_replaced() {
        let folder = Folder::fresh();
        let path = folder.join("lunar.sock");
        let message = |result: Result<AdminSocket, Diagnostic>| {
            result.err().unwrap().to_string().replace(&format!("{}/", folder.display()), "")
        };
        drop(UnixListener::bind(&path).unwrap());
        let first = AdminSocket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            message(AdminSocket::bind(&path)),
            "another server uses the admin socket lunar.sock\n  \
             hint: stop that server, or set admin_socket in the configuration to another path"
        );
        drop(first);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(
            message(AdminSocket::bind(&path)),
            "the path of the admin socket lunar.sock is a file, not a socket\n  \
             hint: move the file away, or set admin_socket in the configuration to another path"
        );
        assert_eq!(
            message(AdminSocket::bind(&folder.join("none/lunar.sock"))),
            "cannot listen on the admin socket none/lunar.sock: no such file or directory\n  \
             hint: set admin_socket in the configuration to a path that this user can create"
        );
    }

    #[test]
    fn replaced_socket_is_left_alone_on_drop() {
        let folder = Folder::fresh();
        let path = folder.join("lunar.sock");
        let first = AdminSocket::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = AdminSocket::bind(&path).unwrap();
        drop(first);
        assert!(is_answered(&path));
    }
}
