//! The object of a logical unit in a Ceph cluster.

use crate::object::VERSION;
use crate::store::{Store, Swap};
use crate::waiting::on_thread;
use crate::{NOTIFY_TIMEOUT, WATCH_TIMEOUT};
use lunar_block::{Notification, RbdBackend, SharedObject, Watch, WatchEvent};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time for which a fenced client is refused. A member whose process was paused ends before it uses an old client
/// again, so this need not be for ever.
pub const FENCE_S: u32 = 365 * 24 * 3600;

/// An address for a fence that hits no client.
const NO_CLIENT: &str = "192.0.2.1:0/1";

/// The key of the pool that has the state, in an object in the pool of the image. Absent: the same pool.
const POOL: &str = "pool";

/// A notification with its payload.
pub type Notified = (Notification, Vec<u8>);

/// The object, through the client of the image. Each operation has a thread of its own while it runs: it may wait for as
/// long as the cluster is away, and must not take the place of another one.
pub struct RadosStore {
    object: Arc<SharedObject>,
    watch: Watch,
    unhandled: Arc<Unhandled>,
    addresses: String,
}

/// Notifications that the member has not handled yet, by their numbers, with the times of their arrival.
type Unhandled = Mutex<BTreeMap<u64, Instant>>;

impl RadosStore {
    /// Opens the object, creates it if it is missing, and watches it. Notifications go to `notified`, which is closed when
    /// the watch has failed.
    ///
    /// # Errors
    /// Those of the cluster.
    pub async fn open(
        backend: Arc<RbdBackend>,
        pool: Option<String>,
        name: String,
        notified: flume::Sender<Notified>,
    ) -> io::Result<RadosStore> {
        on_thread(move || {
            check_pool(&backend.shared_object(None, &name)?, pool.as_deref())?;
            let of_pool = |e: io::Error| match &pool {
                Some(pool) => io::Error::new(e.kind(), format!("the pool {pool} of [gateway]: {e}")),
                None => e,
            };
            let object = Arc::new(backend.shared_object(pool.as_deref(), &name).map_err(of_pool)?);
            object.swap(&[], &[], &[]).map_err(of_pool)?;
            let sender = Mutex::new(Some(notified));
            let unhandled = Arc::new(Unhandled::default());
            let arrivals = unhandled.clone();
            let on_event = move |event| {
                let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
                match (event, &*sender) {
                    (WatchEvent::Notified { notification, payload }, Some(sender)) => {
                        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
                        arrivals.insert(notification.id, Instant::now());
                        _ = sender.send((notification, payload));
                    }
                    (WatchEvent::Lost(_), _) => *sender = None,
                    (WatchEvent::Notified { .. }, None) => {}
                }
            };
            let watch = object.watch(WATCH_TIMEOUT.as_secs() as u32, Box::new(on_event))?;
            let addresses = object.addresses()?;
            Ok(RadosStore { object, watch, unhandled, addresses })
        })
        .await
    }

    /// Checks that the user may fence clients, by the fence of an address that no client has (RFC 5737).
    ///
    /// # Errors
    /// It may not, or those of the cluster.
    pub async fn prove_fence(&self) -> io::Result<()> {
        let object = self.object.clone();
        let fenced = on_thread(move || object.blocklist(NO_CLIENT, 1)).await;
        fenced.map_err(|e| {
            let what = format!("the Ceph user may not fence other gateways: {e}; give it mon 'profile rbd'");
            io::Error::new(e.kind(), what)
        })
    }

    /// The member has handled a notification.
    pub fn handled(&self, notification: &Notification) {
        self.unhandled.lock().unwrap_or_else(PoisonError::into_inner).remove(&notification.id);
    }

    /// Acknowledges a notification.
    ///
    /// # Errors
    /// Those of the cluster.
    pub async fn acknowledge(&self, notification: Notification, payload: Vec<u8>) -> io::Result<()> {
        let object = self.object.clone();
        on_thread(move || object.acknowledge(&notification, &payload)).await
    }
}

impl Store for RadosStore {
    async fn read(&self) -> io::Result<BTreeMap<String, Vec<u8>>> {
        let object = self.object.clone();
        on_thread(move || object.read()).await
    }

    async fn swap(&self, swap: Swap) -> io::Result<bool> {
        let object = self.object.clone();
        on_thread(move || {
            let (expected, set) = (pairs(&swap.expected), pairs(&swap.set));
            let remove: Vec<&str> = swap.remove.iter().map(|key| &**key).collect();
            object.swap(&expected, &set, &remove)
        })
        .await
    }

    async fn notify(&self, payload: Vec<u8>) -> io::Result<Vec<Vec<u8>>> {
        let object = self.object.clone();
        on_thread(move || Ok(object.notify(&payload, NOTIFY_TIMEOUT.as_secs() as u32)?.acks)).await
    }

    async fn blocklist(&self, addresses: &str) -> io::Result<()> {
        let (object, addresses) = (self.object.clone(), addresses.to_owned());
        on_thread(move || object.blocklist(&addresses, FENCE_S)).await
    }

    async fn wait_for_latest_map(&self) -> io::Result<()> {
        let object = self.object.clone();
        on_thread(move || object.wait_for_latest_map()).await
    }

    fn addresses(&self) -> String {
        self.addresses.clone()
    }

    fn watch_age(&self) -> io::Result<Duration> {
        // A confirmation of the watch that has overtaken a notification says nothing about it.
        let age = self.watch.age()?;
        let unhandled = self.unhandled.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(unhandled.values().map(Instant::elapsed).fold(age, Duration::max))
    }
}

fn pairs(owned: &[(String, Vec<u8>)]) -> Vec<(&str, &[u8])> {
    owned.iter().map(|(key, value)| (&**key, &**value)).collect()
}

/// Checks that all servers of the image keep its state in the same pool. `home` is in the pool of the image.
fn check_pool(home: &SharedObject, pool: Option<&str>) -> io::Result<()> {
    let pool = pool.unwrap_or_default().as_bytes();
    // A state in the pool of the image has a version, and no other pool.
    let none: &[u8] = b"";
    let is_new = !pool.is_empty() && home.swap(&[(POOL, none), (VERSION, none)], &[(POOL, pool)], &[])?;
    let found = if is_new { pool.to_vec() } else { home.read()?.remove(POOL).unwrap_or_default() };
    if found == pool {
        return Ok(());
    }
    let shown = |pool: &[u8]| match pool {
        b"" => "the pool of the image".to_owned(),
        name => format!("the pool {}", String::from_utf8_lossy(name)),
    };
    let (found, pool) = (shown(&found), shown(pool));
    Err(io::Error::other(format!("the shared state of the image is in {found}, not in {pool}")))
}
