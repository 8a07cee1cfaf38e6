//! An object with keys and values that several clients share.

use super::client::{Pool, RadosClient, text};
use super::library::Library;
use super::notify_replies::NotifyReplies;
use super::omap::{self, WriteOperation, bytes};
use super::watch::{Notification, Watch, WatchEvent};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

/// The interval in seconds in which librados confirms its watches; the default is 5 s.
const CONFIRM_INTERVAL_S: &CStr = c"1";

/// An object of RADOS whose keys and values several clients share.
///
/// It uses the client of an image, so that the cluster fences both at once: all operations fail with `ESHUTDOWN` from
/// then on, and the image must be opened again. Operations block until the cluster answers; they wait while the OSD is
/// down.
pub struct SharedObject {
    pool: Arc<Pool>,
    name: CString,
}

/// A buffer that librados allocates.
struct RadosBuffer {
    library: &'static Library,
    start: *mut c_char,
    len: usize,
}

impl Drop for RadosBuffer {
    fn drop(&mut self) {
        // SAFETY: librados allocated it, or it is null.
        unsafe { (self.library.rados_buffer_free)(self.start) }
    }
}

impl RadosBuffer {
    fn new(library: &'static Library) -> RadosBuffer {
        RadosBuffer { library, start: null_mut(), len: 0 }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: librados allocated and filled this many bytes.
        unsafe { bytes(self.start, self.len) }
    }
}

/// The length of a payload as librados takes it.
fn payload_len(payload: &[u8]) -> io::Result<c_int> {
    c_int::try_from(payload.len()).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

/// The addresses in a text: one, or several with commas, with or without brackets around them. An address without the
/// number of its client is refused: it stands for all clients of a host.
fn split_addresses(list: &str) -> io::Result<Vec<CString>> {
    let list = list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(list);
    let address = |address: &str| {
        let nonce = address.rsplit_once('/').and_then(|(_, nonce)| nonce.parse::<u32>().ok());
        if nonce.unwrap_or(0) > 0 {
            return text(address);
        }
        let what = format!("blocklist: the address {address:?} has no number of a client");
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    };
    list.split(',').map(str::trim).map(address).collect()
}

impl SharedObject {
    /// The object of this name, which may not exist.
    pub(super) fn open(
        client: &Arc<RadosClient>,
        pool: &str,
        namespace: &str,
        name: &str,
    ) -> io::Result<SharedObject> {
        client.set(c"objecter_tick_interval", CONFIRM_INTERVAL_S)?;
        Ok(SharedObject { pool: Arc::new(Pool::open(client.clone(), pool, namespace)?), name: text(name)? })
    }

    fn client(&self) -> &RadosClient {
        &self.pool.client
    }

    /// All keys with their values, as of one point in time; empty if the object does not exist.
    ///
    /// # Errors
    /// Those of the cluster; `InvalidData` for more than 1024 keys, and for a key that is not UTF-8.
    pub fn read(&self) -> io::Result<BTreeMap<String, Vec<u8>>> {
        match omap::read(&self.pool, &self.name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            other => other,
        }
    }

    /// Creates the object if it is missing, compares values, sets keys, and removes keys, all in one operation. In a
    /// comparison, an absent key equals an empty value. False if a comparison has failed; nothing has changed then.
    ///
    /// # Errors
    /// Those of the cluster; `InvalidInput` for a key with a zero byte. After an error, the change may have happened.
    pub fn swap(
        &self,
        expected: &[(&str, &[u8])],
        set: &[(&str, &[u8])],
        remove: &[&str],
    ) -> io::Result<bool> {
        let operation = WriteOperation::new(self.client().library);
        expected.iter().try_for_each(|(key, value)| operation.compare(key, value))?;
        set.iter().try_for_each(|(key, value)| operation.set(key, value))?;
        remove.iter().try_for_each(|key| operation.remove(key))?;
        operation.run(&self.pool, &self.name)
    }

    /// Watches the object, which must exist. The cluster drops the watch of a client from which it hears nothing for
    /// `timeout_s`. Events arrive on a thread of librados. The callback must not block, and must not call this object.
    ///
    /// # Errors
    /// Those of the cluster; `NotFound` if the object does not exist.
    pub fn watch(
        &self,
        timeout_s: u32,
        on_event: Box<dyn Fn(WatchEvent) + Send + Sync>,
    ) -> io::Result<Watch> {
        Watch::begin(&self.pool, &self.name, timeout_s, on_event)
    }

    /// Sends a payload to all watchers, and waits until all have acknowledged it or the time-out has passed, which is
    /// no error.
    ///
    /// # Errors
    /// Those of the cluster; `NotFound` if the object does not exist.
    pub fn notify(&self, payload: &[u8], timeout_s: u32) -> io::Result<NotifyReplies> {
        self.client().admit()?;
        let (library, len) = (self.client().library, payload_len(payload)?);
        let mut replies = RadosBuffer::new(library);
        let (start, timeout_ms) = (payload.as_ptr().cast(), u64::from(timeout_s) * 1000);
        let (pool, name) = (self.pool.handle, self.name.as_ptr());
        // SAFETY: the pool is open, the name is null-terminated, the payload has this length, and the buffer is empty.
        let result = unsafe {
            (library.rados_notify2)(pool, name, start, len, timeout_ms, &mut replies.start, &mut replies.len)
        };
        match self.client().checked(result) {
            Err(e) if e.kind() != io::ErrorKind::TimedOut || replies.start.is_null() => Err(e),
            _ => NotifyReplies::decode(replies.bytes()).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "the replies to a notification are truncated")
            }),
        }
    }

    /// Acknowledges a notification. Its sender receives the payload.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn acknowledge(&self, notification: &Notification, payload: &[u8]) -> io::Result<()> {
        self.client().admit()?;
        let Notification { id, cookie } = *notification;
        let (pool, name, len) = (self.pool.handle, self.name.as_ptr(), payload_len(payload)?);
        let start = payload.as_ptr().cast();
        // SAFETY: the pool is open, the name is null-terminated, and the payload has this length.
        let result = unsafe { (self.client().library.rados_notify_ack)(pool, name, id, cookie, start, len) };
        self.client().checked(result).map(drop)
    }

    /// The addresses of this client, as [`SharedObject::blocklist`] takes them.
    ///
    /// # Errors
    /// When the client has none, or they are not UTF-8.
    pub fn addresses(&self) -> io::Result<String> {
        let mut text = RadosBuffer::new(self.client().library);
        // SAFETY: the client is connected, and the buffer is empty.
        let result = unsafe { (text.library.rados_getaddrs)(self.client().handle, &mut text.start) };
        self.client().checked(result)?;
        if text.start.is_null() {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the Ceph client has no address"));
        }
        // SAFETY: librados has returned a null-terminated text.
        let addresses = unsafe { CStr::from_ptr(text.start) };
        let addresses = addresses.to_str().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(addresses.to_owned())
    }

    /// Fences the client with these addresses, each with the number of its client, for `expire_s`. An OSD refuses that
    /// client once it has the new map of the cluster. It has the map before it executes an operation of a client that
    /// has returned from [`SharedObject::wait_for_latest_map`] since.
    ///
    /// # Errors
    /// Those of the cluster; `InvalidInput` for an address that stands for a whole host.
    pub fn blocklist(&self, addresses: &str, expire_s: u32) -> io::Result<()> {
        let client = self.client();
        client.admit()?;
        for address in split_addresses(addresses)? {
            let start = address.as_ptr().cast_mut();
            // SAFETY: the client is connected, and the address is null-terminated; librados does not change it.
            let result = unsafe { (client.library.rados_blocklist_add)(client.handle, start, expire_s) };
            client.checked(result)?;
        }
        Ok(())
    }

    /// Waits until this client has the latest map of the cluster. Its later operations come after all those of clients
    /// that the map fences.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn wait_for_latest_map(&self) -> io::Result<()> {
        let client = self.client();
        // SAFETY: the client is connected.
        client.checked(unsafe { (client.library.rados_wait_for_latest_osdmap)(client.handle) }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_the_number_of_a_client_are_refused() {
        let split = |list: &str| -> Result<Vec<String>, io::ErrorKind> {
            let addresses = split_addresses(list).map_err(|e| e.kind())?;
            Ok(addresses.iter().map(|address| address.to_str().expect("text").to_owned()).collect())
        };
        let owned = |list: &[&str]| Ok(list.iter().map(|address| address.to_string()).collect());
        assert_eq!(split("127.0.0.1:0/7"), owned(&["127.0.0.1:0/7"]));
        assert_eq!(split("[::1]:0/7"), owned(&["[::1]:0/7"]));
        assert_eq!(
            split("[v2:10.0.0.1:0/7,v1:10.0.0.1:0/7]"),
            owned(&["v2:10.0.0.1:0/7", "v1:10.0.0.1:0/7"])
        );
        assert_eq!(split("[::1]:0/7, [::2]:0/8"), owned(&["[::1]:0/7", "[::2]:0/8"]));
        for bad in ["", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:0/0", "127.0.0.1:0/x", "10.0.0.0/8,", "[::1]"]
        {
            assert_eq!(split(bad), Err(io::ErrorKind::InvalidInput), "{bad}");
        }
    }
}
