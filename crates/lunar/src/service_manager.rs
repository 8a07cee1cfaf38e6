//! Messages to the service manager that started this process, such as systemd: sd_notify(3). Without one, nothing is
//! sent.

mod hand_over;
mod sockets;

pub use hand_over::{HandedState, hand_over};
pub use sockets::PortalSockets;

use lunar_server::inherited::InheritedDescriptor;
use sd_notify::NotifyState;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The sockets and the state that the service manager holds for this process.
pub fn inherited(inherited: io::Result<Vec<InheritedDescriptor>>) -> (PortalSockets, Option<HandedState>) {
    let mut inherited = inherited.unwrap_or_else(|e| {
        tracing::warn!(
            "cannot take the sockets of the service manager: {e}; hint: check LISTEN_FDS and LISTEN_FDNAMES"
        );
        Vec::new()
    });
    let state = HandedState::take(&mut inherited);
    (PortalSockets::new(inherited), state)
}

/// Whether a service manager receives messages.
pub fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty())
}

/// The time after which the service manager restarts a process that sends no [`NotifyState::Watchdog`].
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|time| !time.is_zero())
}

/// Reports that the service is ready.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Sends a message. It may block while the queue of the service manager is full.
pub fn notify(states: &[NotifyState<'_>]) {
    if is_there() {
        warn_once(sd_notify::notify(states));
    }
}

/// Puts a descriptor into the store of the service manager, which passes it to the next process of the service.
fn keep(name: &str, fd: BorrowedFd<'_>) {
    if is_there() {
        warn_once(sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(name)], &[fd]));
    }
}

/// Removes the descriptors with this name from the store.
fn forget(name: &str) {
    notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// Messages repeat every few seconds, so only the first failure is logged.
fn warn_once(sent: io::Result<()>) {
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);
    if let Err(e) = sent
        && !HAS_FAILED.swap(true, Relaxed)
    {
        tracing::warn!("cannot notify the service manager at NOTIFY_SOCKET: {e}");
    }
}
