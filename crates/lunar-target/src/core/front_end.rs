//! The boundary to the transports: the transport protocol services of SAM-5 section 5.4, as a trait.

use super::command::ScsiCommand;
use super::data_in::DataIn;
use super::nexus::{ItNexus, NexusState};
use super::response::{CommandResponse, DataInProgress};
use super::transfer::DataRequest;
use crate::end_reason::EndReason;
use crate::registry::AbortScope;
use lunar_proto::transfer::DataOutRules;
use lunar_wire::scsi::Sense;
use std::rc::Rc;
use std::time::Duration;

/// Bytes in the send queue above which the target stops receiving.
pub const MAX_QUEUED_BYTES: usize = 16 << 20;
/// How long the last responses of a session may take to leave.
pub const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The transport's side of an I_T nexus: a session. It belongs to the [`NexusState`] of its nexus.
pub trait FrontEnd: Sized + 'static {
    /// The rules for the Data-Out of commands.
    fn data_out_rules(&self) -> DataOutRules;

    /// Whether the front end fetches data itself (RDMA Read), so that the buffer of a task must exist first.
    fn fetches_data(&self) -> bool;

    /// Whether Data-Out must have exactly the length that the CDB needs. Otherwise excess data are ignored.
    fn requires_exact_data(&self) -> bool {
        false
    }

    /// Requests a part of a command's Data-Out from the initiator.
    fn request_data(&mut self, c: &ScsiCommand, request: DataRequest);

    /// Sends a part of a command's Data-In, after the parts in `sent`. More parts follow. Returns the new progress.
    fn data_in(&mut self, c: &ScsiCommand, data: DataIn, sent: DataInProgress) -> DataInProgress;

    /// Sends the rest of a command's Data-In, and its response.
    fn respond(&mut self, c: &ScsiCommand, response: CommandResponse);

    /// Releases the place of a command that has ended, with or without a response: the initiator may send another
    /// one.
    fn release(&mut self, c: &ScsiCommand);

    /// Whether this connection sends pages of files without a copy ([`DataIn::Pages`]).
    fn takes_pages(&self, _connection: u16) -> bool {
        false
    }

    /// Whether the send queue is so long that the target stops receiving.
    fn is_full(&self) -> bool;

    /// The reason why commands of this connection are stale: their initiator has left the session.
    fn stale_reason(&self, connection: u16) -> Option<EndReason>;

    /// Makes the next [`FrontEnd::stale_reason`] query the kernel for this connection.
    fn recheck_peer(&self, connection: u16);

    /// Processes the commands that have arrived, so that they come before a task management function of another
    /// session. Commands within `scope` end with BUSY.
    ///
    /// # Errors
    /// The reason why the session ends.
    fn drain_received(state: &mut NexusState<Self>, scope: &AbortScope) -> Result<(), EndReason>;

    /// Whether every command before this position in the initiator's order has arrived, or never will.
    fn has_received(&self, sequence: u32) -> bool;

    /// The data in flight, if data of ended tasks could still change memory of the initiator.
    fn in_flight_data(&self) -> Vec<Rc<dyn InFlightData>>;

    /// Aborted tasks of this session wait for the data that were requested. Override it if an initiator may be exempt
    /// from sending these data.
    fn waits_for_data(&self) -> bool {
        true
    }

    /// Reports that another session terminates tasks of this LUN field. Override it if the protocol has a message for
    /// it. Sessions whose tasks wait for requested data report nothing.
    fn report_termination(&mut self, _lun: u64) {}

    /// Reports an event of the logical unit with this LUN field. False: the initiator has no receive buffer for it.
    fn report_event(&mut self, lun: u64, event: Sense) -> bool;

    /// Reports that the target, or the initiator's access to it, was removed.
    fn report_gone(&mut self) {}

    /// Requests that the initiator log out within this many seconds. False: no request was sent, and the session ends
    /// at once. Override it if initiators answer such a request.
    fn request_logout(&mut self, _time_s: u16) -> bool {
        false
    }

    /// Sends as much of the send queue as possible.
    fn flush(nexus: &Rc<ItNexus<Self>>);

    /// Flushes after all other work that is ready, so that responses of several tasks are sent together.
    fn flush_soon(nexus: &Rc<ItNexus<Self>>);

    /// Waits until the send queue is empty, or cannot be sent anymore.
    fn flushed(nexus: &Rc<ItNexus<Self>>) -> impl Future<Output = ()>;

    /// Stops receiving: the session is over. Queued responses are still sent.
    fn stop_receiving(&self);

    /// Closes the connections.
    fn close(&self);
}

/// Data in flight between buffers of tasks and memory of the initiator (RFC 5047).
pub trait InFlightData {
    /// Bytes in the send queue, including the buffers that it holds.
    fn waiting(&self) -> usize;

    /// The reads from the initiator that have begun so far, and the responses that wait for them.
    fn reads(&self) -> InFlightReads;

    /// Whether these reads have ended, and no response waits for them.
    fn have_ended(&self, reads: InFlightReads) -> bool;

    /// A fence after everything that was sent and written so far.
    fn fence(&self) -> u64;

    /// Whether everything before this fence has arrived.
    fn fence_done(&self, fence: u64) -> bool;

    /// Closes the connection, and discards all data in flight.
    fn reset(&self);
}

/// A point in the sequence of reads from the initiator, and of responses that wait for them.
#[derive(Clone, Copy, Debug, Default)]
pub struct InFlightReads {
    /// The number of the latest read.
    pub latest: u64,
    /// Responses that were deferred so far.
    pub deferred: u64,
}
