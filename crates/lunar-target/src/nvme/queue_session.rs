//! The life of an I/O queue, from its Connect to its end.

use super::aborts;
use super::connection::{ConnectionOwner, NvmeConnection};
use super::controllers::QueueGuard;
use super::dispatch::QueueDispatcher;
use super::queue::NvmeQueue;
use super::reauthenticate::Reauthentication;
use crate::access::LoginContext;
use crate::core::keepalive::KeepaliveConnection;
use crate::core::session_end::{self, SessionEnd};
use crate::core::{ItNexus, NexusParams, NexusState, messages};
use crate::server_state::ServerState;
use crate::session_entry::RegisteredSession;
use lunar_runtime::nvme::receive::NvmeReceiveError;
use lunar_runtime::{ReceiveStatus, SendPump};
use std::rc::Rc;
use std::sync::Arc;

/// Runs an I/O queue to its end, with its place and the entries of its submission queue.
pub async fn run(
    shared: &Arc<ServerState>,
    entered: RegisteredSession,
    login_context: LoginContext,
    connection: Rc<NvmeConnection>,
    place: (QueueGuard, u32),
) {
    let RegisteredSession { info, guard, messages, count, .. } = entered;
    let data_timeout = login_context.config.session.data_out_timeout;
    let reauthentication = Reauthentication::new(shared, place.0.controller(), info.address);
    let params =
        NexusParams { shared: shared.clone(), login_context, info, session_handle: guard.session_handle };
    let aborts = place.0.aborts();
    let front = NvmeQueue::new(connection.clone(), place, data_timeout, reauthentication);
    let nexus = ItNexus::new(params, front);
    nexus.state().front().set_nexus(&nexus);
    let owner: Rc<dyn ConnectionOwner> = nexus.clone();
    connection.set_owner(Rc::downgrade(&owner));
    drop(owner);
    lunar_runtime::spawn(messages::serve(Rc::downgrade(&nexus), messages));
    lunar_runtime::spawn(aborts::serve(Rc::downgrade(&nexus), aborts));
    let received = receive(&connection, &nexus).await;
    if let Err(NvmeReceiveError::Pdu { error, header }) = &received {
        connection.terminate(*error, header);
    }
    let broken = received.err().map(|e| e.to_string());
    session_end::end(nexus, connection, (guard, count), broken).await;
}

async fn receive(
    connection: &Rc<NvmeConnection>,
    nexus: &ItNexus<NvmeQueue>,
) -> Result<(), NvmeReceiveError> {
    let mut next = match connection.has_begun() {
        true => take(connection, nexus, ReceiveStatus::Full)?,
        false => ReceiveStatus::More,
    };
    while next != ReceiveStatus::End {
        SendPump::flush(connection);
        nexus.wait_for_room(connection.send_pump(), || connection.is_full()).await;
        if next != ReceiveStatus::Full {
            connection.stream().readable().await?;
        }
        next = take(connection, nexus, next)?;
    }
    Ok(())
}

/// Processes received PDUs, unless another core has ended the session. After `last` is full, these are the PDUs that were left
/// over.
#[inline]
fn take(
    connection: &NvmeConnection,
    nexus: &ItNexus<NvmeQueue>,
    last: ReceiveStatus,
) -> Result<ReceiveStatus, NvmeReceiveError> {
    let Some(_in_flight) = nexus.begin_receive() else {
        return Ok(ReceiveStatus::End);
    };
    let received = {
        let mut state = nexus.state();
        let mut dispatcher = QueueDispatcher::new(&mut state, connection);
        match last {
            ReceiveStatus::Full => connection.resume(&mut dispatcher),
            _ => connection.receive(&mut dispatcher),
        }
    };
    nexus.end_receive();
    received
}

impl SessionEnd for NvmeQueue {
    type Connection = NvmeConnection;

    fn open_connections(&self) -> Vec<Rc<NvmeConnection>> {
        vec![self.connection().clone()]
    }

    /// Halves of pairs, and commands whose data the front end collects, end without a completion.
    fn discard_unsubmitted(_: &mut NexusState<NvmeQueue>) {}

    fn queue_last_message(_: &ItNexus<NvmeQueue>, _: &NvmeConnection) {}

    async fn drained(_: &ItNexus<NvmeQueue>, connection: &Rc<NvmeConnection>) {
        connection.linger_if_terminated().await;
        SendPump::flushed(connection).await;
    }
}

/// A controller sends no pings: the host sends Keep Alive on its admin queue.
impl KeepaliveConnection<NvmeQueue> for NvmeConnection {
    fn take_heard(&self, _: &mut NexusState<NvmeQueue>) -> bool {
        true
    }

    fn ping(&self, _: &mut NexusState<NvmeQueue>) -> bool {
        false
    }

    fn ping_sent(&self) {}

    fn forget_ping(&self) {}

    fn close(&self) {
        NvmeConnection::close(self);
    }
}
