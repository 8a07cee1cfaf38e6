//! A watch of an object: the cluster passes notifications to it.

use super::client::Pool;
use super::exit::on_closing_thread;
use super::omap::bytes;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A notification that its sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Its number in the cluster.
    pub id: u64,
    /// The watch that has received it.
    pub cookie: u64,
}

/// An event of a watch.
#[derive(Debug)]
pub enum WatchEvent {
    /// A client has sent a notification, and waits for [`SharedObject::acknowledge`](super::SharedObject::acknowledge).
    Notified {
        /// The notification.
        notification: Notification,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// The watch has failed: notifications may be lost until the object is watched again. The error of a fenced client
    /// is `ENOTCONN` here; its next operation fails with `ESHUTDOWN`.
    Lost(io::Error),
}

/// The function that takes the events of a watch.
pub(super) type OnEvent = Box<dyn Fn(WatchEvent) + Send + Sync>;

/// The argument of the callbacks.
struct Handler {
    pool: Arc<Pool>,
    on_event: OnEvent,
}

/// A watch of an object, until dropped.
pub struct Watch(Option<OpenWatch>);

struct OpenWatch {
    cookie: u64,
    /// librados uses it until the watch has ended.
    handler: Arc<Handler>,
}

/// Called by librados for each notification.
///
/// # Safety
/// The argument is the [`Handler`] of the watch, and the payload has this length.
// SAFETY: the contract is above.
unsafe extern "C" fn notified(
    argument: *mut c_void,
    id: u64,
    cookie: u64,
    _sender: u64,
    payload: *mut c_void,
    len: usize,
) {
    // SAFETY: by the contract.
    let (handler, payload) = unsafe { (&*argument.cast::<Handler>(), bytes(payload.cast(), len)) };
    let notification = Notification { id, cookie };
    (handler.on_event)(WatchEvent::Notified { notification, payload: payload.to_vec() });
}

/// Called by librados when the watch has failed.
///
/// # Safety
/// The argument is the [`Handler`] of the watch.
// SAFETY: the contract is above.
unsafe extern "C" fn lost(argument: *mut c_void, _cookie: u64, error: c_int) {
    // SAFETY: by the contract.
    let handler = unsafe { &*argument.cast::<Handler>() };
    if let Err(e) = handler.pool.client.checked(error) {
        (handler.on_event)(WatchEvent::Lost(e));
    }
}

impl Watch {
    pub(super) fn begin(
        pool: &Arc<Pool>,
        name: &CStr,
        timeout_s: u32,
        on_event: OnEvent,
    ) -> io::Result<Watch> {
        pool.client.admit()?;
        let (handler, library) = (Arc::new(Handler { pool: pool.clone(), on_event }), pool.client.library);
        let (argument, mut cookie) = (Arc::as_ptr(&handler).cast_mut().cast(), 0);
        // SAFETY: the pool is open, and the name is null-terminated. The handler stays until no callback uses it.
        let result = unsafe {
            (library.rados_watch3)(
                pool.handle,
                name.as_ptr(),
                &mut cookie,
                notified,
                lost,
                timeout_s,
                argument,
            )
        };
        if result < 0 {
            flush_callbacks(pool);
        }
        pool.client.checked(result)?;
        Ok(Watch(Some(OpenWatch { cookie, handler })))
    }

    /// The time since the cluster has confirmed the watch. While it works, that is about 1 s at most.
    ///
    /// # Errors
    /// The error of a watch that has failed.
    pub fn age(&self) -> io::Result<Duration> {
        let open = self.0.as_ref().expect("a watch is open until dropped");
        let pool = &open.handler.pool;
        // SAFETY: the watch is open.
        let age_ms = unsafe { (pool.client.library.rados_watch_check)(pool.handle, open.cookie) };
        Ok(Duration::from_millis(pool.client.checked(age_ms)?.unsigned_abs().into()))
    }
}

/// Waits until no callback of the client runs any more.
fn flush_callbacks(pool: &Pool) {
    // SAFETY: the client is connected.
    unsafe { (pool.client.library.rados_watch_flush)(pool.client.handle) };
}

impl OpenWatch {
    fn end(self) {
        let pool = &self.handler.pool;
        // SAFETY: the watch is open, and nothing uses it after this, even when the cluster refuses it.
        unsafe { (pool.client.library.rados_unwatch2)(pool.handle, self.cookie) };
        flush_callbacks(pool);
    }
}

impl Drop for Watch {
    /// The end of a watch waits for the cluster, and for the callbacks, one of which may drop it.
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            on_closing_thread("rados-unwatch", move || open.end());
        }
    }
}
