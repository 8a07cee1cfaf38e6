//! A session: the requests of one channel between two ports, and their responses (SRP r16a section 6).

use super::connection::SrpConnection;
use super::login::{IU_LEN, MAX_BURST};
use super::request_table::{RequestTable, SlotRead};
use super::target_requests::TargetRequests;
use super::{memory, response};
use crate::core::data_in::DataIn;
use crate::core::{
    CommandResponse, DataInProgress, DataOutId, DataRequest, FrontEnd, InFlightData, InFlightReads, ItNexus,
    NexusState, ScsiCommand, SessionPhase,
};
use crate::deferred_responses::DeferredResponses;
use crate::end_reason::EndReason;
use crate::registry::AbortScope;
use lunar_proto::transfer::{DataOutRules, DataOutSegment};
use lunar_proto::window::precedes;
use lunar_rdma::{Endpoint, RemoteRange};
use lunar_runtime::{Buf, ReceiveStatus, ReceivedData, SendPump};
use lunar_wire::scsi::{Sense, Status, op};
use lunar_wire::srp;
use std::collections::VecDeque;
use std::rc::Rc;

/// All data are requested, except immediate data.
const DATA_OUT_RULES: DataOutRules = DataOutRules {
    max_immediate: IU_LEN as u32,
    max_unsolicited: 0,
    max_request: MAX_BURST,
    max_requests: 1,
    in_order: true,
};

/// A command that waits for its descriptor table, or for an earlier command that does.
struct QueuedCommand {
    command: ScsiCommand,
    /// Immediate data.
    data: Buf,
    /// Whether its descriptor table has arrived.
    is_ready: bool,
    /// The scope of another session's task management function, if this command arrived before it.
    busy_scope: Option<AbortScope>,
}

/// A response that waits for the end of RDMA Reads, or for an earlier response that does.
struct DeferredResponse {
    tag: u32,
    response: response::PendingResponse,
}

/// A session, which is one channel of an I_T nexus. The core identifies a request by its slot number.
pub struct SrpSession {
    connection: Rc<SrpConnection>,
    slots: RequestTable,
    /// Requests of the target to the initiator.
    requests: TargetRequests,
    /// Position of the next command in the order of the initiator.
    sequence: u32,
    /// Commands that have not begun, in order.
    queue: VecDeque<QueuedCommand>,
    /// Requested data whose RDMA Read has not begun: tag and LUN field of the command, and the request.
    asked: VecDeque<(u32, u64, DataRequest)>,
    /// Scratch space for the addresses of a read.
    remote_ranges: Vec<RemoteRange>,
    deferred: DeferredResponses<DeferredResponse>,
}

impl SrpSession {
    /// The session of a connection. `notifications`: those that the initiator requests for requests of the target.
    pub fn new(connection: Rc<SrpConnection>, credits: usize, notifications: u8) -> SrpSession {
        SrpSession {
            connection,
            slots: RequestTable::new(credits),
            requests: TargetRequests::new(notifications),
            sequence: 1,
            queue: VecDeque::new(),
            asked: VecDeque::new(),
            remote_ranges: Vec::new(),
            deferred: DeferredResponses::default(),
        }
    }

    /// Its connection.
    pub fn connection(&self) -> &Rc<SrpConnection> {
        &self.connection
    }

    /// The unanswered requests of the initiator.
    pub fn slots_mut(&mut self) -> &mut RequestTable {
        &mut self.slots
    }

    /// Requests of the target to the initiator.
    pub fn requests_mut(&mut self) -> &mut TargetRequests {
        &mut self.requests
    }

    fn endpoint(&self) -> &dyn Endpoint {
        self.connection.endpoint()
    }

    /// Position of the next command in the order of the initiator.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Takes the position of a command.
    pub fn take_sequence(&mut self) -> u32 {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        sequence
    }

    /// Queues a command that waits for its descriptor table.
    pub fn queue_until_read(&mut self, command: ScsiCommand, busy_scope: Option<AbortScope>) {
        self.queue.push_back(QueuedCommand { command, data: Buf::zeroed(0), is_ready: false, busy_scope });
    }

    /// Records that the descriptor table of a command has arrived.
    pub fn mark_read(&mut self, tag: u32) {
        let queued = self.queue.iter_mut().find(|queued| queued.command.tag == tag);
        queued.into_iter().for_each(|queued| queued.is_ready = true);
    }

    /// Writes Data-In to the memory of a command.
    pub(super) fn send_data(&mut self, tag: u32, data: DataIn, offset: usize) {
        let endpoint = self.connection.endpoint();
        if let Some(slot) = self.slots.get(tag)
            && memory::write(endpoint, &slot.pieces, offset, data).is_err()
        {
            self.close();
        }
    }

    /// Answers a request, after its reads have ended, and after deferred responses.
    pub(super) fn answer(&mut self, tag: u32, response: response::PendingResponse) {
        if !self.deferred.must_defer(|| self.slots.is_busy_for(tag)) {
            return self.send_answer(tag, response);
        }
        self.defer(tag, response);
    }

    /// Answers a request after all reads have ended. The response to a task management function returns the credits
    /// of the commands that it ended, and allows the initiator to reuse their memory.
    pub(super) fn defer(&mut self, tag: u32, response: response::PendingResponse) {
        self.slots.queue(tag, true);
        self.deferred.push(DeferredResponse { tag, response });
    }

    fn send_answer(&mut self, tag: u32, response: response::PendingResponse) {
        let Some(slot) = self.slots.get(tag) else { return };
        let (srp_tag, notifications) = (slot.tag, slot.notifications);
        // The slot may belong to another request from now on.
        self.asked.retain(|(of, ..)| *of != tag);
        let credits = self.slots.answer(tag);
        self.send_response(
            &srp::SrpResponse { credits, tag: srp_tag, ..response.as_response() },
            notifications,
        );
    }

    fn send_response(&self, response: &srp::SrpResponse<'_>, notifications: u8) {
        let solicited = response::is_solicited(notifications, response);
        let mut unit = Vec::with_capacity(srp::SrpResponse::LEN + response.data.len() + response.sense.len());
        srp::SrpResponse { solicited, ..*response }.encode(&mut unit);
        self.connection.send(&unit);
    }
}

/// Submits a command in order: now, or after commands that wait for their descriptor tables.
pub fn take_command(state: &mut NexusState<SrpSession>, command: ScsiCommand, data: &[u8]) {
    if state.front().queue.is_empty() {
        return begin(state, command, data);
    }
    let copy = Buf::copy_of(data);
    let busy_scope = state.busy_scope().cloned();
    state.front_mut().queue.push_back(QueuedCommand { command, data: copy, is_ready: true, busy_scope });
}

/// Submits the queued commands that are ready.
pub fn begin_queued(state: &mut NexusState<SrpSession>) {
    while state.phase() != SessionPhase::Ended
        && state.front().queue.front().is_some_and(|queued| queued.is_ready)
        && let Some(queued) = state.front_mut().queue.pop_front()
    {
        let QueuedCommand { command, data, busy_scope, .. } = queued;
        state.with_busy_scope(busy_scope, |state| begin(state, command, &data));
    }
    // Functions wait for the commands that precede them.
    state.notify();
}

/// Discards commands that have not begun, because their session ends or their initiator aborts them.
pub fn discard_queued(state: &mut NexusState<SrpSession>, is_meant: impl Fn(&ScsiCommand) -> bool) {
    let queue = std::mem::take(&mut state.front_mut().queue);
    let (ended, left) = queue.into_iter().partition(|queued| is_meant(&queued.command));
    state.front_mut().queue = left;
    let ended: VecDeque<QueuedCommand> = ended;
    ended.iter().for_each(|queued| state.discard(&queued.command));
}

fn begin(state: &mut NexusState<SrpSession>, command: ScsiCommand, data: &[u8]) {
    if !op::is_read(command.cdb())
        && let Some(why) = state.front().stale_reason(0)
    {
        state.end_with(why);
        return state.discard(&command);
    }
    if state.phase() == SessionPhase::LoggingOut {
        return state.refuse(&command, Status::Busy);
    }
    state.command(&command, ReceivedData::Bytes(data));
}

/// Sends deferred responses up to the first that must wait, and begins the requested reads.
pub fn prepare(state: &mut NexusState<SrpSession>) {
    release(state);
    fetch(state);
    let phase = state.phase();
    let session = state.front_mut();
    // Grant the credits of aborted commands, if no response will return them.
    let may_ask = phase != SessionPhase::Ended && session.requests.may();
    let owed = if may_ask { session.slots.overdue() } else { None };
    if let Some(unit) = owed.and_then(|owed| session.requests.credits(owed)) {
        session.connection.send(&unit);
    }
}

/// Sends the deferred responses that need not wait any longer.
pub fn release(state: &mut NexusState<SrpSession>) {
    forget_ended(state);
    let session = state.front_mut();
    while let Some(DeferredResponse { tag, response }) =
        session.deferred.pop_ready(|deferred| session.slots.is_busy_for(deferred.tag))
    {
        session.send_answer(tag, response);
        session.slots.queue(tag, false);
    }
}

/// Releases the slots of aborted commands, which get no response. The next response returns their credits.
fn forget_ended(state: &mut NexusState<SrpSession>) {
    if state.front().slots.commands() <= state.task_count() {
        return;
    }
    let mut slots = std::mem::take(&mut state.front_mut().slots);
    let is_queued = |tag| state.front().queue.iter().any(|queued| queued.command.tag == tag);
    slots.forget(|tag| state.has_task(tag) || is_queued(tag));
    state.front_mut().slots = slots;
}

/// Begins the requested reads, except those whose task has ended.
fn fetch(state: &mut NexusState<SrpSession>) {
    while let Some((tag, lun, request)) = state.front_mut().asked.pop_front() {
        state.front_mut().slots.queue(tag, false);
        if !state.is_awaiting(tag, request.transfer_tag) {
            continue;
        }
        let DataRequest { offset, len, .. } = request;
        let transfer_tag = Some(request.transfer_tag);
        let origin = DataOutId { connection: 0, task_tag: tag, lun, transfer_tag };
        let segment = DataOutSegment { number: None, offset, len, is_final: true };
        let place = state.placement_buffer(origin, segment);
        let lands = place.is_some();
        let (buf, at) = place.unwrap_or_else(|| (state.buffer(len as usize), 0));
        let SrpSession { slots, remote_ranges, connection, .. } = state.front_mut();
        let Some(slot) = slots.get(tag) else { continue };
        remote_ranges.clear();
        remote_ranges.extend(
            memory::remote_ranges(&slot.pieces, offset as usize, len as usize)
                .map(|(at, part)| (at, part.len())),
        );
        connection.endpoint().gather(tag.into(), remote_ranges, buf, at);
        slots.begin(tag, SlotRead::Data { origin, segment, lands });
    }
}

impl FrontEnd for SrpSession {
    fn data_out_rules(&self) -> DataOutRules {
        DATA_OUT_RULES
    }

    fn fetches_data(&self) -> bool {
        true
    }

    fn request_data(&mut self, c: &ScsiCommand, request: DataRequest) {
        self.slots.queue(c.tag, true);
        self.asked.push_back((c.tag, c.lun, request));
    }

    fn data_in(&mut self, c: &ScsiCommand, data: DataIn, sent: DataInProgress) -> DataInProgress {
        let len = data.len();
        self.send_data(c.tag, data, sent.bytes);
        DataInProgress { bytes: sent.bytes + len, parts: sent.parts + 1 }
    }

    fn respond(&mut self, c: &ScsiCommand, mut response: CommandResponse) {
        let data = std::mem::replace(&mut response.data, DataIn::None);
        if data.len() > 0 {
            self.send_data(c.tag, data, response.sent.bytes);
        }
        let writes = self.slots.get(c.tag).is_some_and(|slot| slot.writes);
        self.answer(c.tag, response::PendingResponse::command(response, writes));
    }

    /// Nothing to do: the response returns the credit. Without a response, [`release`] finds the command.
    fn release(&mut self, _: &ScsiCommand) {}

    fn is_full(&self) -> bool {
        self.connection.is_full()
    }

    fn stale_reason(&self, _: u16) -> Option<EndReason> {
        self.connection.stale_reason()
    }

    fn recheck_peer(&self, _: u16) {
        self.endpoint().recheck_peer();
    }

    fn drain_received(state: &mut NexusState<SrpSession>, scope: &AbortScope) -> Result<(), EndReason> {
        let mut queue = std::mem::take(&mut state.front_mut().queue);
        for queued in queue.iter_mut().filter(|queued| state.is_covered(scope, queued.command.lun)) {
            queued.busy_scope = Some(scope.clone());
        }
        state.front_mut().queue = queue;
        let connection = state.front().connection.clone();
        match state.with_busy_scope(Some(scope.clone()), |state| connection.take_arrived(state)) {
            Ok(ReceiveStatus::More | ReceiveStatus::Full) => Ok(()),
            Ok(ReceiveStatus::End) => Err(EndReason::ConnectionClosed),
            Err(_) => Err(EndReason::ConnectionLost),
        }
    }

    fn has_received(&self, sequence: u32) -> bool {
        !self.queue.iter().any(|queued| precedes(queued.command.sequence, sequence))
    }

    fn in_flight_data(&self) -> Vec<Rc<dyn InFlightData>> {
        vec![self.connection.clone()]
    }

    /// An event that the initiator has no room for is left to its unit attention.
    fn report_event(&mut self, lun: u64, event: Sense) -> bool {
        let sense = event.encode(false);
        let unit = self.requests.event(lun, &sense);
        unit.iter().for_each(|unit| self.connection.send(unit));
        unit.is_some()
    }

    fn flush(nexus: &Rc<ItNexus<SrpSession>>) {
        let connection = nexus.state().front().connection.clone();
        SendPump::flush(&connection);
    }

    fn flush_soon(nexus: &Rc<ItNexus<SrpSession>>) {
        let connection = nexus.state().front().connection.clone();
        SendPump::flush_soon(&connection);
    }

    async fn flushed(nexus: &Rc<ItNexus<SrpSession>>) {
        let connection = nexus.state().front().connection.clone();
        SendPump::flushed(&connection).await;
    }

    fn stop_receiving(&self) {
        self.connection.stop_receiving();
    }

    fn close(&self) {
        self.connection.close();
    }
}

impl NexusState<SrpSession> {
    /// The RDMA Reads that have begun so far, and the responses that were deferred so far.
    pub(super) fn reads_now(&self) -> InFlightReads {
        let session = self.front();
        session.deferred.mark(session.slots.latest_read())
    }

    /// Whether these reads have ended, and the responses that waited for them were sent.
    pub(super) fn have_ended(&self, reads: InFlightReads) -> bool {
        let session = self.front();
        session.deferred.has_passed(reads, |number| session.slots.reads_up_to(number))
    }
}
