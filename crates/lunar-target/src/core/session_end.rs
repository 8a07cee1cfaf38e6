//! The end of a session. Its order is the same for all transports, because other sessions rely on it.

use super::front_end::{FINAL_FLUSH_TIMEOUT, FrontEnd};
use super::keepalive::KeepaliveConnection;
use super::nexus::{ItNexus, NexusState};
use crate::end_reason::EndReason;
use crate::registry::SessionGuard;
use crate::server_state::ConnectionGuard;
use std::rc::Rc;

/// The transport's own steps at the end of a session.
pub trait SessionEnd: FrontEnd {
    /// A connection of the session.
    type Connection: KeepaliveConnection<Self>;

    /// The connections that are not closed.
    fn open_connections(&self) -> Vec<Rc<Self::Connection>>;

    /// Discards the received commands that were not submitted to the core. They get no response.
    fn discard_unsubmitted(state: &mut NexusState<Self>);

    /// Queues the last message of a connection, if the protocol has one. All tasks have ended.
    fn queue_last_message(nexus: &ItNexus<Self>, connection: &Self::Connection);

    /// Waits until the send queue of a connection is empty, or cannot be sent anymore.
    fn drained(nexus: &ItNexus<Self>, connection: &Rc<Self::Connection>) -> impl Future<Output = ()>;

    /// Whether async tasks of further connections still use the nexus. Override it if a session has several.
    fn is_in_use(&self) -> bool {
        false
    }
}

/// Ends a session whose first connection, `first`, receives no more: ends all tasks, closes every I_T_L nexus, sends
/// queued responses, and closes the connections. `broken`: the error of the connection, for the log.
pub async fn end<F: SessionEnd>(
    nexus: Rc<ItNexus<F>>,
    first: Rc<F::Connection>,
    (guard, count): (SessionGuard, ConnectionGuard),
    broken: Option<String>,
) {
    nexus.state().log_end(broken);
    F::discard_unsubmitted(&mut nexus.state());
    // Operations may wait for a cluster that is away. Hosts use another path when the connection has ended.
    if nexus.state().end_reason() == Some(EndReason::Fenced) {
        until_fenced(&nexus).await;
        nexus.state().front().open_connections().iter().for_each(|connection| connection.close());
    }
    nexus.end_tasks().await;
    close_all(&nexus).await;
    nexus.wait_until(|s| !s.front().is_in_use()).await;
    let waiting = nexus.state().take_waiting_for_end();
    // The order matters: those who wait for the end must find the registry entry free and the nexuses gone.
    drop((first, nexus));
    drop((guard, count));
    drop(waiting);
}

/// Waits until the operations of the session can harm no later ones of other servers.
async fn until_fenced<F: SessionEnd>(nexus: &ItNexus<F>) {
    let units: Vec<_> = nexus.state().lun_map().values().map(|view| view.unit.clone()).collect();
    for sharing in units.iter().filter_map(|unit| unit.sharing()) {
        sharing.until_fenced().await;
    }
}

/// Sends the last messages of a connection, within a limit, and closes it.
pub async fn close<F: SessionEnd>(nexus: &ItNexus<F>, connection: &Rc<F::Connection>) {
    F::queue_last_message(nexus, connection);
    let _ = compio::time::timeout(FINAL_FLUSH_TIMEOUT, F::drained(nexus, connection)).await;
    connection.close();
}

/// Closes all connections concurrently, so that several silent peers cost one limit.
async fn close_all<F: SessionEnd>(nexus: &ItNexus<F>) {
    let connections = nexus.state().front().open_connections();
    lunar_runtime::all(connections.iter().map(|connection| close(nexus, connection))).await;
}
