//! The admin socket of a running server: one JSON object per line in each direction.
//!
//! The crate has the messages, the client that commands use, and the server side ([`Admin`]).
#![forbid(unsafe_code)]

mod code;
mod connect;
mod difference;
pub mod folders;
mod parameters;
pub mod router;
mod rows;
mod session;

pub use difference::{Change, Difference};
pub use parameters::Parameters;
pub use router::RouterReport;
pub use session::{Counters, SessionReport, Srp, table};

use connect::{connect, is_answered};
use lunar_config::{Diagnostic, ErrorCode, io_text};
use rustix::fs::Access;
use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A request to the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// All sessions.
    Sessions {},
    /// All SCSI routing instances.
    Routers {},
    /// Control one routing instance.
    Router {
        /// Its name.
        name: String,
        /// The operation.
        action: RouterAction,
    },
    /// Compare another configuration with the current one.
    Diff {
        /// Its file; None: the server's own.
        file: Option<PathBuf>,
    },
    /// Apply another configuration.
    Apply {
        /// Its file; None: the server's own.
        file: Option<PathBuf>,
        /// Seconds until an unconfirmed configuration is rolled back; None: no rollback.
        confirm_within_s: Option<u64>,
    },
    /// Keep the applied configuration.
    Confirm {},
    /// Roll back the applied configuration now.
    Rollback {},
}

/// A control operation on a SCSI routing instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterAction {
    /// Reject logins and ask hosts to log out; in a failover pair, the peer takes over.
    Drain,
    /// Serve again after [`RouterAction::Drain`].
    Resume,
    /// Switch the active router of a failover pair.
    Failover,
    /// Allow this router to become active in its failover pair.
    Eligible,
    /// Forbid this router to become active in its failover pair.
    Ineligible,
}

/// A response of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// All sessions.
    Sessions(Vec<SessionReport>),
    /// All SCSI routing instances.
    Routers(Vec<RouterReport>),
    /// The differences between two configurations.
    Differences(Vec<Difference>),
    /// Success, with a message for the user.
    Done(String),
    /// Failure.
    Error {
        /// The fault.
        what: String,
        /// The fix.
        hint: String,
        /// Error code, by its stable name.
        #[serde(default, with = "code")]
        code: ErrorCode,
    },
}

/// Interface of the server for the admin socket.
pub trait ServerControl: Send + Sync + 'static {
    /// All sessions.
    fn sessions(&self) -> Vec<SessionReport>;

    /// Executes any other request. It may take long; the client limits its own wait.
    fn ask(&self, request: Request) -> Response;
}

/// Maximum length of a request.
const MAX_REQUEST_BYTES: usize = 4096;
/// Maximum length of a response.
const MAX_RESPONSE_BYTES: usize = 256 << 20;
/// Time for a client to send its request; other clients wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// Maximum number of pending requests, including those whose clients are gone.
const MAX_WAITING: usize = 16;

/// The admin socket of a running server. Dropping it removes the socket.
pub struct Admin {
    path: PathBuf,
    /// Device and inode of the socket
    file: Option<(u64, u64)>,
    listener: UnixListener,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Listens at `path`, mode 0600. A dead socket is replaced.
    pub fn start(path: &Path, server: Arc<dyn ServerControl>) -> Result<Admin, Diagnostic> {
        let listener = bind(path)?;
        let ours = listener.try_clone().map_err(|e| cannot(path, &e))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, waiting) = (stop.clone(), Arc::new(()));
        let serve = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                match stream.and_then(|stream| answer(stream, &server, &waiting)) {
                    Ok(()) => {}
                    Err(e) => {
                        tracing::debug!("admin socket: {e}");
                        // A lasting error, such as no free descriptor, must not make this loop spin.
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(serve);
        let thread = thread.map_err(|e| cannot(path, &e))?;
        Ok(Admin {
            path: path.to_path_buf(),
            file: file_at(path),
            listener: ours,
            stop,
            thread: Some(thread),
        })
    }
}

impl Admin {
    /// Listens at `first`. If another server listens there, listens at [`folders::second_admin_socket`] instead.
    /// Removes sockets of dead processes.
    pub fn start_beside(first: &Path, server: Arc<dyn ServerControl>) -> Result<Admin, Diagnostic> {
        for (path, pid) in folders::second_admin_sockets(first) {
            if Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists() {
                // A leftover socket is harmless.
                _ = std::fs::remove_file(path);
            }
        }
        match Admin::start(first, server.clone()) {
            Ok(admin) => Ok(admin),
            Err(problem) if !is_answered(first) => Err(problem),
            Err(_) => Admin::start(&folders::second_admin_socket(first), server),
        }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // A connection wakes the thread. Without one, the thread ends with the process.
        if rustix::net::shutdown(&self.listener, Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            _ = thread.join();
        }
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

fn bind(path: &Path) -> Result<UnixListener, Diagnostic> {
    can_bind(path)?;
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(cannot(path, &e)),
        _ => {}
    }
    // Until the mode is set, only the check of credentials excludes other users.
    let listener = UnixListener::bind(path).map_err(|e| cannot(path, &e))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(|e| cannot(path, &e))?;
    Ok(listener)
}

/// Only the server's user and root may send requests.
fn may_ask(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// Answers the one request of a connection. A slow request runs on its own thread, which holds a clone of `waiting`.
fn answer(mut stream: UnixStream, server: &Arc<dyn ServerControl>, waiting: &Arc<()>) -> io::Result<()> {
    let response = match asked(&mut stream)? {
        Ok(Request::Sessions {}) => Response::Sessions(server.sessions()),
        // The accepting thread holds one reference.
        Ok(request) if Arc::strong_count(waiting) <= MAX_WAITING => {
            return ask_beside(stream, server.clone(), request, waiting.clone());
        }
        Ok(_) => busy(),
        Err(refused) => refused,
    };
    send(stream, &response)
}

/// Reads the request; `Err` is the response to an invalid one.
fn asked(stream: &mut UnixStream) -> io::Result<Result<Request, Response>> {
    let peer = rustix::net::sockopt::socket_peercred(&*stream)?.uid.as_raw();
    if !may_ask(peer, rustix::process::geteuid().as_raw()) {
        let hint = "run as the server's user or as root";
        return Ok(Err(refused(format!("user {peer} is not allowed to use the admin socket"), hint)));
    }
    let Some(line) = line(stream, MAX_REQUEST_BYTES, Instant::now() + PATIENCE)? else {
        let what = "the request is not a line of at most 4096 bytes";
        return Ok(Err(refused(what, "send one JSON object and a newline")));
    };
    let invalid = |e| refused(format!("invalid request: {e}"), "send {\"command\":\"sessions\"}");
    Ok(serde_json::from_slice(&line).map_err(invalid))
}

fn ask_beside(
    stream: UnixStream,
    server: Arc<dyn ServerControl>,
    request: Request,
    waiting: Arc<()>,
) -> io::Result<()> {
    let ask = move || {
        let response = server.ask(request);
        drop(waiting);
        _ = send(stream, &response).inspect_err(|e| tracing::debug!("admin socket: {e}"));
    };
    std::thread::Builder::new().name("admin-ask".into()).spawn(ask).map(drop)
}

fn busy() -> Response {
    let what = format!("the server rejects the request, because {MAX_WAITING} requests are pending");
    Diagnostic::new(what, "check the process of the server, and repeat the command later")
        .with_code(ErrorCode::TimedOut)
        .into()
}

fn send(mut stream: UnixStream, response: &Response) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = serde_json::to_vec(response)?;
    bytes.push(b'\n');
    stream.write_all(&bytes)
}

fn refused(what: impl Into<String>, hint: &str) -> Response {
    Response::Error { what: what.into(), hint: hint.into(), code: ErrorCode::Other }
}

impl From<Diagnostic> for Response {
    fn from(problem: Diagnostic) -> Response {
        let (what, hint) = (problem.what, problem.hint.unwrap_or_default());
        Response::Error { what, hint, code: problem.code }
    }
}

/// Reads a line; None if it is longer than `max` bytes.
fn line(stream: &mut UnixStream, max: usize, until: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let n = match stream.read(&mut part) {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if let Some(end) = part[..n].iter().position(|byte| *byte == b'\n') {
            bytes.extend_from_slice(&part[..end]);
            return Ok((bytes.len() <= max).then_some(bytes));
        }
        bytes.extend_from_slice(&part[..n]);
        if n == 0 || bytes.len() > max {
            return Ok(None);
        }
    }
}

/// The admin sockets with a live server, even a hanging one: `first`, and the others in its folder.
pub fn listening(first: &Path) -> Vec<PathBuf> {
    let others = folders::second_admin_sockets(first).into_iter().map(|(path, _)| path);
    std::iter::once(first.to_path_buf()).chain(others).filter(|path| is_answered(path)).collect()
}

/// Asks the server at `path` for its sessions.
pub fn sessions(path: &Path, timeout: Duration) -> Result<Vec<SessionReport>, Diagnostic> {
    match request(path, &Request::Sessions {}, timeout)? {
        Response::Sessions(sessions) => Ok(sessions),
        _ => Err(strange()),
    }
}

/// Asks the server at `path` for its SCSI routing instances.
pub fn routers(path: &Path, timeout: Duration) -> Result<Vec<RouterReport>, Diagnostic> {
    match request(path, &Request::Routers {}, timeout)? {
        Response::Routers(routers) => Ok(routers),
        _ => Err(strange()),
    }
}

/// Requests the differences that another configuration would make.
pub fn diff(path: &Path, file: Option<PathBuf>, timeout: Duration) -> Result<Vec<Difference>, Diagnostic> {
    match request(path, &Request::Diff { file }, timeout)? {
        Response::Differences(differences) => Ok(differences),
        _ => Err(strange()),
    }
}

/// Sends a control request to the server at `path`, and returns its message.
pub fn execute(path: &Path, what: &Request, timeout: Duration) -> Result<String, Diagnostic> {
    match request(path, what, timeout)? {
        Response::Done(said) => Ok(said),
        _ => Err(strange()),
    }
}

fn strange() -> Diagnostic {
    Diagnostic::new(
        "unexpected response from the admin socket of the server",
        "restart the server, which may have another version",
    )
}

fn request(path: &Path, request: &Request, timeout: Duration) -> Result<Response, Diagnostic> {
    match ask(path, request, timeout).map_err(|e| no_answer(path, request, timeout, &e))? {
        Response::Error { what, hint, code } => Err(Diagnostic::new(what, hint).with_code(code)),
        response => Ok(response),
    }
}

fn no_answer(path: &Path, request: &Request, timeout: Duration, e: &io::Error) -> Diagnostic {
    let path = path.display();
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Diagnostic::new(
            format!("no server answers at {path}"),
            "start a server with lunar serve, or give the socket of a server with --socket",
        )
        .with_code(ErrorCode::Unreachable),
        ErrorKind::PermissionDenied => Diagnostic::new(
            format!("the server at {path} belongs to another user"),
            "run as that user or as root",
        )
        .with_code(ErrorCode::PermissionDenied),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            let what = format!(
                "no answer from the server at {path} within {}",
                lunar_proto::duration::show(timeout)
            );
            let hint = "check the process of the server, which is stopped or overloaded, or raise --timeout";
            let later = match request {
                Request::Sessions {} | Request::Routers {} | Request::Diff { .. } => "",
                _ => "; the server may still execute the request",
            };
            Diagnostic::new(what, format!("{hint}{later}")).with_code(ErrorCode::TimedOut)
        }
        _ => Diagnostic::new(
            format!("the server at {path} does not answer: {}", io_text(e)),
            "read the log of the server",
        )
        .with_code(ErrorCode::Unreachable),
    }
}

fn ask(path: &Path, request: &Request, timeout: Duration) -> io::Result<Response> {
    let until = Instant::now() + timeout;
    let mut stream = connect(path, timeout)?;
    let mut bytes = serde_json::to_vec(request)?;
    bytes.push(b'\n');
    stream.write_all(&bytes)?;
    let line = line(&mut stream, MAX_RESPONSE_BYTES, until)?;
    Ok(serde_json::from_slice(&line.ok_or(ErrorKind::UnexpectedEof)?)?)
}

#[cfg(test)]
mod folder;
#[cfg(test)]
mod tests;
