//! The boundary to the transports: the transport protocol services of SAM-5 section 5.4, as a trait.

use super::command::ScsiCommand;
use super::data_in::DataIn;
use super::nexus::{ItNexus, State};
use super::response::{DataInProgress, Response};
use super::transfer::DataRequest;
use crate::end_reason::EndReason;
use crate::registry::AbortScope;
use lunar_proto::transfer::DataOutSequencer;
use lunar_wire::scsi::Sense;
use std::rc::Rc;
use std::time::Duration;

/// While so many bytes wait to be sent, nothing is received.
pub const MAX_WAITING: usize = 16 << 20;
/// Task management functions of a session that may be unanswered at a time.
pub const MAX_FUNCTIONS: usize = 16;
/// How long the last answers of a session may take to leave.
pub const LAST_ANSWERS: Duration = Duration::from_secs(3);

/// A session of a transport: the side of an I_T nexus that speaks its protocol. It belongs to the [`State`] of its nexus.
pub trait FrontEnd: Sized + 'static {
    /// Most bytes of Data-Out that may come with a command.
    fn immediate_limit(&self) -> u32;

    /// How the Data-Out of a command comes, which wants so many bytes and has brought so many.
    fn sequencer(&self, c: &ScsiCommand, wanted: u32, immediate: u32) -> DataOutSequencer;

    /// It fetches data by itself, into the memory that they are for: that has to be there before.
    fn fetches_data(&self) -> bool;

    /// Asks the initiator for a part of a command's Data-Out.
    fn request_data(&mut self, c: &ScsiCommand, transfer: DataRequest);

    /// Sends a part of a command's Data-In behind what was `sent`; more follows. Returns what has been sent then.
    fn data_in(&mut self, c: &ScsiCommand, data: DataIn, sent: DataInProgress) -> DataInProgress;

    /// Sends the rest of a command's Data-In, and its end.
    fn respond(&mut self, c: &ScsiCommand, response: Response);

    /// A command has ended, with or without a response: the initiator may send another one.
    fn release(&mut self, c: &ScsiCommand);

    /// So much waits to be sent that nothing more is taken.
    fn is_full(&self) -> bool;

    /// Why commands of this connection may not begin any more: its initiator has gone. `behind` was received and is not taken
    /// yet; None: that is with the receiver.
    fn stale_reason(&self, connection: u16, behind: Option<&[u8]>) -> Option<EndReason>;

    /// What [`FrontEnd::stale_reason`] has found for this connection holds no longer.
    fn look_anew(&self, connection: u16);

    /// Has the commands that have arrived and were not taken yet come behind a function of another session about these.
    ///
    /// # Errors
    /// Why the session is over.
    fn drain_received(state: &mut State<Self>, scope: &AbortScope) -> Result<(), EndReason>;

    /// Every command before this place in the order of its initiator has arrived, or never will.
    fn has_received(&self, sequence: u32) -> bool;

    /// What data are on their way, where data of tasks that have ended could still change memory of the initiator.
    fn in_flight_data(&self) -> Vec<Rc<dyn InFlightData>>;

    /// Aborted tasks of this session wait for the data that they asked for.
    fn waits_for_data(&self) -> bool;

    /// Reports that another session ends tasks of this LUN field, where the protocol has words for it.
    fn report_termination(&mut self, lun: u64);

    /// Reports an event of the logical unit with this LUN field; false if there is no room for it.
    fn report_event(&mut self, lun: u64, event: Sense) -> bool;

    /// Reports that the target, or the access to it, is gone.
    fn report_gone(&mut self);

    /// Asks the initiator to log out within so many seconds; false where it cannot be asked.
    fn request_logout(&mut self, time_s: u16) -> bool;

    /// Sends what waits, as far as it can.
    fn flush(nexus: &Rc<ItNexus<Self>>);

    /// The same after whatever else is ready to run: answers of several tasks leave together.
    fn flush_soon(nexus: &Rc<ItNexus<Self>>);

    /// Waits until all that waits has left, or cannot any more.
    fn flushed(nexus: &Rc<ItNexus<Self>>) -> impl Future<Output = ()>;

    /// Nothing more is received: the session is over. What is queued still goes.
    fn stop_receiving(&self);

    /// The connections are cut.
    fn close(&self);
}

/// What moves data between buffers of tasks and the memory of the initiator (RFC 5047).
pub trait InFlightData {
    /// Bytes that wait, and what holds them.
    fn waiting(&self) -> usize;

    /// Reads from the initiator, and what waits for their end, as of now.
    fn reads(&self) -> InFlightReads;

    /// Whether these have ended, and nothing waits for them any more.
    fn have_ended(&self, reads: InFlightReads) -> bool;

    /// A fence behind what was sent and written so far.
    fn fence(&self) -> u64;

    /// Nothing from before this fence is on its way any more.
    fn fence_done(&self, fence: u64) -> bool;

    /// Ends the connection, and throws away what is on its way.
    fn reset(&self);
}

/// Reads from the memory of the initiator, and what waits for their end, at some time.
#[derive(Clone, Copy, Debug, Default)]
pub struct InFlightReads {
    /// The number of the latest read.
    pub latest: u64,
    /// How many responses had ever been deferred.
    pub deferred: u64,
}
