//! Descriptors that a service manager passed to this process: sd_listen_fds(3).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A descriptor, and the name that the service manager gave it.
#[derive(Debug)]
pub struct InheritedDescriptor {
    /// `FileDescriptorName=` of a socket unit, or FDNAME in the store of descriptors.
    pub name: String,
    /// The descriptor, closed on exec.
    pub fd: OwnedFd,
}

/// Takes the descriptors. Only the first call of the process returns any. It must precede all threads and the opening of
/// files: a wrong count in LISTEN_FDS would otherwise name descriptors of this program.
///
/// # Errors
/// LISTEN_FDS or LISTEN_FDNAMES is invalid, or a descriptor does not exist.
pub fn take() -> io::Result<Vec<InheritedDescriptor>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, SeqCst) {
        return Ok(Vec::new());
    }
    let found = sd_notify::listen_fds_with_names()?;
    Ok(found
        .map(|(fd, name)| {
            // SAFETY: the descriptor is open, because its flags were just set. It belongs to this process alone
            // (LISTEN_PID), and is taken once.
            #[allow(unsafe_code)]
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            InheritedDescriptor { name, fd }
        })
        .collect())
}
