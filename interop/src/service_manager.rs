//! A service manager as sd_notify(3) and sd_listen_fds(3) describe it: receives messages, and stores descriptors.

use crate::server::{Folder, Server};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time limit of a message.
const LIMIT: Duration = Duration::from_secs(60);

/// While a descriptor is inheritable, no other process may start.
static INHERITABLE: Mutex<()> = Mutex::new(());

/// The manager. A thread receives messages, so that no service waits for a full queue.
pub struct ServiceManager {
    dir: Folder,
    messages: Receiver<Notification>,
}

/// A message: its lines, and the descriptors that came with it.
#[derive(Debug)]
pub struct Notification {
    pub lines: Vec<String>,
    pub fds: Vec<OwnedFd>,
}

impl Notification {
    /// Whether it contains this line.
    pub fn has(&self, line: &str) -> bool {
        self.lines.iter().any(|has| has == line)
    }

    /// The value of a variable.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

impl ServiceManager {
    /// Binds the socket.
    pub fn start() -> ServiceManager {
        let dir = Folder::fresh();
        let socket = UnixDatagram::bind(dir.join("notify")).expect("a socket");
        let (send, messages) = channel();
        std::thread::spawn(move || while send.send(receive(&socket)).is_ok() {});
        ServiceManager { dir, messages }
    }

    /// Starts a server of this manager, with these descriptors and their names, and with more variables.
    pub fn server(&self, toml: &str, passed: &[(&str, &OwnedFd)], variables: &str) -> Server {
        self.try_server(toml, passed, variables).unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`server`](Self::server), with the reason if the server does not start.
    pub fn try_server(
        &self,
        toml: &str,
        passed: &[(&str, &OwnedFd)],
        variables: &str,
    ) -> Result<Server, String> {
        let notify = self.dir.join("notify");
        let mut prelude = format!("export NOTIFY_SOCKET={} {variables}", notify.display());
        let _inheritable = INHERITABLE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut inheritable = Vec::new();
        if !passed.is_empty() {
            let (names, fds): (Vec<_>, Vec<_>) = passed.iter().copied().unzip();
            let mut redirections = String::new();
            for (number, fd) in fds.into_iter().enumerate() {
                let fd = fcntl_dupfd_cloexec(fd, 200).expect("a descriptor");
                fcntl_setfd(&fd, FdFlags::empty()).expect("a flag");
                let source = fd.as_raw_fd();
                redirections += &format!(" {}<&{source} {source}<&-", number + 3);
                inheritable.push(fd);
            }
            let (count, names) = (names.len(), names.join(":"));
            // Descriptors above 9 need bash.
            prelude += &format!(
                "\nexport LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES='{names}'\n\
                 exec bash -c 'exec \"$0\" serve --config \"$1\"{redirections}' \"$0\" \"$1\""
            );
        }
        Server::try_by_shell(toml, &prelude, "")
    }

    /// The next message within this time.
    pub fn next_within(&self, time: Duration) -> Option<Notification> {
        self.messages.recv_timeout(time).ok()
    }

    /// Skips messages up to the first with a line that begins so.
    pub fn until(&self, beginning: &str) -> Notification {
        let (end, mut skipped) = (Instant::now() + LIMIT, Vec::new());
        loop {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no message {beginning}, but {skipped:?}");
            let Some(message) = self.next_within(left) else { continue };
            if message.lines.iter().any(|line| line.starts_with(beginning)) {
                return message;
            }
            skipped.extend(message.lines);
        }
    }
}

fn receive(socket: &UnixDatagram) -> Notification {
    let (mut bytes, mut space) = ([0; 4096], [MaybeUninit::uninit(); 256]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes_of = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg(socket.as_fd(), &mut bytes_of, &mut control, RecvFlags::CMSG_CLOEXEC);
    let len = message.expect("a message").bytes;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
    Notification { lines: text.lines().map(str::to_owned).collect(), fds }
}
