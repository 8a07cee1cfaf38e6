//! The end of a process that has loaded librbd.
//!
//! The libraries destroy their global objects at exit, while their threads still use them: a process that has an image
//! open, or closes one, would crash. So objects that are being closed are awaited, and the destructors are left out.

use crate::locked;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How long an exit waits for objects that are being closed: a cluster that is down answers never.
const CLOSE: Duration = Duration::from_secs(10);

/// The number of images, watches and clients that are being closed.
static CLOSING: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// An object that is being closed, until dropped.
pub struct Closing(());

impl Closing {
    pub fn begin() -> Closing {
        *locked(&CLOSING) += 1;
        Closing(())
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        *locked(&CLOSING) -= 1;
        CLOSED.notify_all();
    }
}

// SAFETY: the declaration is that of the C library.
unsafe extern "C" {
    /// Registers a function that exit(3) calls with the status (on_exit(3)).
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

extern "C" fn leave(status: c_int, _: *mut c_void) {
    drop(CLOSED.wait_timeout_while(locked(&CLOSING), CLOSE, |closing| *closing > 0));
    // SAFETY: it has no preconditions. Rust has flushed its streams before exit(3).
    unsafe { libc::_exit(status) }
}

/// Registers the end of the process, after the libraries have registered theirs: the last one is called first.
pub fn register() {
    // SAFETY: the function lives as long as the process.
    unsafe { on_exit(leave, null_mut()) };
}
