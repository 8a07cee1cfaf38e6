//! The interfaces of the protocol to the cluster and to the logical unit.

use crate::object::{MemberId, SharedView};
use lunar_scsi::{Lu, NexusId};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// ESHUTDOWN: the cluster has fenced this client.
pub const FENCED: i32 = 108;

/// Whether the cluster has fenced the client of this operation.
pub fn is_fenced(error: &io::Error) -> bool {
    error.raw_os_error() == Some(FENCED)
}

/// The object of a logical unit, through a client of the cluster that also performs its I/O. Operations wait for the
/// cluster as long as it takes.
pub trait Store {
    /// All keys of the object; none if it does not exist.
    fn read(&self) -> impl Future<Output = io::Result<BTreeMap<String, Vec<u8>>>>;
    /// Compares keys, and then sets and removes keys, in one operation. An absent key compares as an empty value.
    /// Returns false if a comparison failed, and nothing has changed then.
    fn swap(&self, swap: Swap) -> impl Future<Output = io::Result<bool>>;
    /// Sends a payload to all watchers, and returns those acknowledgements that arrive within
    /// [`NOTIFY_TIMEOUT`](crate::NOTIFY_TIMEOUT).
    fn notify(&self, payload: Vec<u8>) -> impl Future<Output = io::Result<Vec<Vec<u8>>>>;
    /// Fences a client: its operations fail from now on.
    fn blocklist(&self, addresses: &str) -> impl Future<Output = io::Result<()>>;
    /// Waits until this client has the latest map. Its later operations reach only servers that know all fences.
    fn wait_for_latest_map(&self) -> impl Future<Output = io::Result<()>>;
    /// The addresses of this client, for [`Store::blocklist`].
    fn addresses(&self) -> String;
    /// The time since the cluster last confirmed the watch of this client, or since the oldest notification arrived that is
    /// not handled yet.
    ///
    /// # Errors
    /// The watch is lost.
    fn watch_age(&self) -> io::Result<Duration>;
}

/// The arguments of [`Store::swap`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// Keys and the values that they must have.
    pub expected: Vec<(String, Vec<u8>)>,
    /// Keys and their new values.
    pub set: Vec<(String, Vec<u8>)>,
    /// Keys to remove.
    pub remove: Vec<String>,
}

/// The logical unit of this member.
pub trait Unit {
    /// Its device server.
    fn lu(&self) -> &Arc<Lu>;
    /// Aborts the tasks of these nexuses, or of all nexuses if `victims` is `None`. Returns when none of them can
    /// change the medium any more.
    fn abort(&self, victims: Option<Vec<NexusId>>) -> impl Future<Output = ()>;
    /// Members, their ports or their access may have changed. `is_active`: operations of the medium may begin here.
    fn follow_members(&self, view: &SharedView, is_active: bool);
    /// Whether one member at a time serves the medium.
    fn is_passive(&self) -> bool;
    /// Takes the medium: no other client has it after this.
    ///
    /// # Errors
    /// Those of the cluster.
    fn take_medium(&self) -> impl Future<Output = io::Result<()>>;
    /// Gives the medium up. Operations do not begin any more; it waits for the end of those in flight.
    ///
    /// # Errors
    /// Those of the cluster.
    fn give_medium(&self) -> impl Future<Output = io::Result<()>>;
    /// The snapshot of the image that it serves.
    fn snapshot(&self) -> Option<String> {
        None
    }
    /// This member has published a change.
    fn published(&self) {}
    /// This member has fenced others.
    fn fenced(&self, _: &[MemberId]) {}
    /// Another member serves the medium now.
    fn activated(&self, _: MemberId) {}
}
