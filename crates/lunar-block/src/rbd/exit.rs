//! The end of a process that has loaded librbd.
//!
//! The libraries destroy their global objects at exit, while their threads still use them: a process that has an image
//! open, or closes one, would crash. So objects that are being closed are awaited, and the destructors are left out.

use crate::locked;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex};
use std::thread::Builder;
use std::time::Duration;

/// How long an exit waits for objects that are being closed: a cluster that is down answers never.
const CLOSE: Duration = Duration::from_secs(10);

/// The number of images, watches and clients that are being closed.
static CLOSING: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// An object that is being closed, until dropped.
struct Closing(());

impl Closing {
    fn begin() -> Closing {
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

/// Runs the end of an object of the libraries on a thread: it may wait for the cluster. Without a thread, the object
/// stays until the process ends.
pub fn on_closing_thread(name: &str, close: impl FnOnce() + Send + 'static) {
    close_on(Builder::new().name(name.into()), close);
}

/// A thread that does not start drops its work. The object must not be a part of that: dropping it would free memory that
/// the libraries still use.
fn close_on(thread: Builder, close: impl FnOnce() + Send + 'static) {
    let (closing, close) = (Closing::begin(), ManuallyDrop::new(close));
    let work = move || {
        ManuallyDrop::into_inner(close)();
        drop(closing);
    };
    if let Err(e) = thread.spawn(work) {
        tracing::error!("no thread to close an object of Ceph, which stays open: {e}");
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn object_stays_when_no_thread_can_close_it() {
        let object = Arc::new(());
        let closes = |thread| {
            let held = object.clone();
            close_on(thread, move || drop(held));
        };
        closes(Builder::new().stack_size(1 << 60));
        assert_eq!(Arc::strong_count(&object), 2, "no thread has such a stack");
        closes(Builder::new());
        drop(CLOSED.wait_while(locked(&CLOSING), |closing| *closing > 0));
        assert_eq!(Arc::strong_count(&object), 2, "the other one is closed");
    }
}
