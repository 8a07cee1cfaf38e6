//! A connection in full feature phase: its receive loop and its information units (SRP r16a section 6).

use super::login::IU_LEN;
use super::request_table::{SlotKind, SlotRead};
use super::session::{self, SrpSession};
use super::target_requests::{RequestKind, reason, reason_of};
use super::{memory, request, response};
use crate::core::keepalive::{self, KeepaliveConnection};
use crate::core::session_end::{self, SessionEnd};
use crate::core::{
    DataOutResult, Function, FunctionRefusal, FunctionRequest, InFlightData, InFlightReads, ItNexus,
    MAX_QUEUED_BYTES, ManagementResponse, NexusParams, NexusState, ScsiCommand, SendPosition, SessionPhase,
    messages,
};
use crate::end_reason::EndReason;
use crate::rdma_receiver::{DeliveryHandler, RdmaDelivery, RdmaReceiver, broken};
use crate::server_state::ServerState;
use crate::session_entry::RegisteredSession;
use lunar_rdma::{Endpoint, EndpointEvents};
use lunar_runtime::send_queue::Payload;
use lunar_runtime::{Buf, ReceiveStatus, ReceivedData, SendPump, SendSide};
use lunar_scsi::CommandError;
use lunar_wire::scsi::{Sense, Status};
use lunar_wire::srp::{FromInitiator, MemoryDescriptor, SrpCommand, SrpError, TaskManagement, task_status};
use std::cell::{Cell, OnceCell};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A tag that no command has.
const NO_TAG: u32 = u32::MAX;

/// A connection. It lives on the core of its session.
pub struct SrpConnection {
    nexus: OnceCell<Weak<ItNexus<SrpSession>>>,
    endpoint: Rc<dyn Endpoint>,
    receiver: RdmaReceiver,
    /// Offset of immediate data in a command, if they were negotiated.
    immediate_offset: Option<u16>,
    /// Whether something was received since the last check.
    heard: Cell<bool>,
    /// The logout reason for a fault of the initiator.
    fault: Cell<Option<u32>>,
    pump: SendPump,
}

/// Runs a session from the end of its login to its own end.
pub async fn run(
    shared: &Arc<ServerState>,
    entered: RegisteredSession,
    login_context: crate::access::LoginContext,
    session: impl FnOnce(Rc<SrpConnection>) -> SrpSession,
    conn: SrpConnection,
) {
    let RegisteredSession { info, guard, messages, count, .. } = entered;
    let conn = Rc::new(conn);
    let params =
        NexusParams { shared: shared.clone(), login_context, info, session_handle: guard.session_handle };
    let nexus = ItNexus::new(params, session(conn.clone()));
    let _ = conn.nexus.set(Rc::downgrade(&nexus));
    lunar_runtime::spawn(messages::serve(Rc::downgrade(&nexus), messages));
    lunar_runtime::spawn(keepalive::run(Rc::downgrade(&nexus), Rc::downgrade(&conn)));
    let received = conn.receive_all(&nexus).await;
    session_end::end(nexus, conn, (guard, count), received.err().map(|e| e.to_string())).await;
}

impl SrpConnection {
    /// An accepted connection.
    pub fn new(endpoint: Rc<dyn Endpoint>, immediate_offset: Option<u16>) -> SrpConnection {
        let receiver = RdmaReceiver::new(endpoint.clone(), IU_LEN, EndpointEvents::default());
        SrpConnection {
            nexus: OnceCell::new(),
            endpoint,
            receiver,
            immediate_offset,
            heard: Cell::default(),
            fault: Cell::default(),
            pump: SendPump::default(),
        }
    }

    /// The RDMA endpoint.
    pub fn endpoint(&self) -> &dyn Endpoint {
        &*self.endpoint
    }

    /// Queues an information unit.
    pub fn send(&self, unit: &[u8]) {
        self.endpoint.send(unit, Payload::Empty, None);
    }

    /// Whether the send queue is too long to receive more.
    pub fn is_full(&self) -> bool {
        self.endpoint.waiting() > MAX_QUEUED_BYTES
    }

    /// The reason why requests are stale.
    pub fn stale_reason(&self) -> Option<EndReason> {
        self.receiver.ends().then_some(EndReason::ConnectionReset)
    }

    /// Stops receiving. Queued information units are still sent.
    pub fn stop_receiving(&self) {
        self.pump.wake();
        self.receiver.stop();
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.receiver.close();
    }

    async fn receive_all(self: &Rc<Self>, nexus: &ItNexus<SrpSession>) -> io::Result<()> {
        let mut next = self.take_some(nexus)?;
        while next != ReceiveStatus::End {
            SendPump::flush(self);
            nexus.wait_for_room(&self.pump, || self.is_full()).await;
            if next != ReceiveStatus::Full {
                self.receiver.readable().await?;
            }
            next = self.take_some(nexus)?;
        }
        Ok(())
    }

    /// Processes received information units, unless another core has ended the session.
    fn take_some(&self, nexus: &ItNexus<SrpSession>) -> io::Result<ReceiveStatus> {
        let Some(_in_flight) = nexus.begin_receive() else {
            return Ok(ReceiveStatus::End);
        };
        let received = self.receiver.receive(&mut IuDispatcher { state: &mut nexus.state(), conn: self });
        nexus.end_receive();
        received
    }

    /// Processes everything received.
    ///
    /// # Errors
    /// The connection has failed, or the received data are invalid.
    pub fn take_arrived(&self, state: &mut NexusState<SrpSession>) -> io::Result<ReceiveStatus> {
        self.receiver.receive_arrived(&mut IuDispatcher { state, conn: self })
    }

    /// Sends a logout. Linux initiators only log it, and wait for the end of the connection, which follows.
    fn send_logout(&self, state: &mut NexusState<SrpSession>) {
        let reason_of = |end| match end {
            EndReason::Reinstated => reason::ANOTHER_LOGIN,
            _ => reason::NONE,
        };
        let reason = self.fault.get().or(state.end_reason().map(reason_of));
        let unit = reason.and_then(|reason| state.front_mut().requests_mut().logout(reason));
        unit.iter().for_each(|unit| self.send(unit));
    }

    /// The error of a connection that ends because the initiator violated the protocol. `reason`: the logout reason.
    fn fault(&self, reason: u32, what: impl Into<String>) -> io::Error {
        self.fault.set(Some(reason));
        broken(what)
    }
}

impl SessionEnd for SrpSession {
    type Connection = SrpConnection;

    fn open_connections(&self) -> Vec<Rc<SrpConnection>> {
        vec![self.connection().clone()]
    }

    fn discard_unsubmitted(state: &mut NexusState<SrpSession>) {
        session::discard_queued(state, |_| true);
    }

    fn queue_last_message(nexus: &ItNexus<SrpSession>, connection: &SrpConnection) {
        connection.send_logout(&mut nexus.state());
    }

    /// Responses that wait for RDMA Reads are dropped. Unlike iSCSI, SRP has no logout response: the disconnection of
    /// the channel ends its requests and its RDMA operations, so the initiator can reuse the memory.
    async fn drained(_: &ItNexus<SrpSession>, connection: &Rc<SrpConnection>) {
        SendPump::flushed(connection).await;
    }
}

impl SendSide for SrpConnection {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    fn try_flush(&self) -> io::Result<bool> {
        let nexus = self.nexus.get().and_then(Weak::upgrade);
        nexus.iter().for_each(|nexus| session::prepare(&mut nexus.state()));
        let flushed = self.endpoint.flush()?;
        // An endpoint has no places: responses count as sent when its queue is empty.
        let end = || SendPosition { sent: 0, end: u64::MAX };
        nexus.iter().for_each(|nexus| nexus.responses().flushed(flushed, end));
        Ok(flushed)
    }

    async fn writable(&self) -> io::Result<()> {
        self.endpoint.writable().await
    }

    fn lost(&self, _: io::Error) {
        if let Some(nexus) = self.nexus.get().and_then(Weak::upgrade) {
            nexus.responses().lost();
            nexus.lost();
        }
        self.close();
    }

    /// Flushing also begins reads, which do not wait for sends.
    fn flushes_while_blocked(&self) -> bool {
        true
    }
}

/// A ping is a credit request for zero credits, which the initiator must answer. No ping is sent before the
/// initiator's first message: iWARP requires that the initiator sends first (RFC 5044 section 7.1), and on one of
/// several channels it may never do so. Nor is there a second ping before the answer.
impl KeepaliveConnection<SrpSession> for SrpConnection {
    fn take_heard(&self, _: &mut NexusState<SrpSession>) -> bool {
        self.heard.take() | self.endpoint.take_moved()
    }

    fn ping(&self, state: &mut NexusState<SrpSession>) -> bool {
        let requests = state.front_mut().requests_mut();
        if !requests.has_heard() {
            return false;
        }
        requests.credits(0).iter().for_each(|unit| self.send(unit));
        true
    }

    fn ping_sent(&self) {
        self.endpoint.take_moved();
    }

    fn forget_ping(&self) {}

    fn close(&self) {
        SrpConnection::close(self);
    }
}

impl InFlightData for SrpConnection {
    fn waiting(&self) -> usize {
        self.endpoint.waiting()
    }

    fn reads(&self) -> InFlightReads {
        let nexus = self.nexus.get().and_then(Weak::upgrade);
        nexus.map(|nexus| nexus.state().reads_now()).unwrap_or_default()
    }

    fn have_ended(&self, before: InFlightReads) -> bool {
        let nexus = self.nexus.get().and_then(Weak::upgrade);
        let have_ended = |nexus: Rc<ItNexus<SrpSession>>| nexus.state().have_ended(before);
        self.receiver.has_ended() || nexus.is_none_or(have_ended)
    }

    fn fence(&self) -> u64 {
        self.endpoint.fence()
    }

    fn fence_done(&self, fence: u64) -> bool {
        self.endpoint.fence_done(fence)
    }

    fn reset(&self) {
        self.receiver.reset();
    }
}

/// The handler of a connection's received information units.
struct IuDispatcher<'a> {
    state: &'a mut NexusState<SrpSession>,
    conn: &'a SrpConnection,
}

impl DeliveryHandler for IuDispatcher<'_> {
    fn take(&mut self, delivery: RdmaDelivery<'_>) -> io::Result<bool> {
        self.conn.heard.set(true);
        match delivery {
            RdmaDelivery::Message(unit) => self.unit(unit),
            RdmaDelivery::Read(id, buf) => self.read(id as u32, buf),
        }
    }

    fn is_full(&self) -> bool {
        self.state.is_full()
    }
}

fn no_credit() -> io::Error {
    broken("the initiator sent more SRP requests than it has credits")
}

impl IuDispatcher<'_> {
    fn session(&mut self) -> &mut SrpSession {
        self.state.front_mut()
    }

    /// Processes an information unit.
    fn unit(&mut self, unit: &[u8]) -> io::Result<bool> {
        self.session().requests_mut().hear();
        match FromInitiator::decode(unit, self.conn.immediate_offset) {
            Ok(FromInitiator::Command(c)) if !request::is_served(&c) => {
                self.refuse_command(c.tag, c.notifications)
            }
            Ok(FromInitiator::Command(c)) => self.command(&c),
            Ok(FromInitiator::TaskManagement(asked)) => self.task_management(&asked),
            Ok(FromInitiator::Logout(_)) => Ok(false),
            Ok(FromInitiator::CreditResponse(tag)) => self.answered(RequestKind::Credits, tag),
            Ok(FromInitiator::AerResponse(tag)) => self.answered(RequestKind::Event, tag),
            Err(e) => match (&e, SrpCommand::tag_and_notifications(unit)) {
                // The unit is complete, but requests an unsupported feature.
                (SrpError::Format(_) | SrpError::Attribute(_), Some((tag, notifications))) => {
                    self.refuse_command(tag, notifications)
                }
                _ => Err(self.conn.fault(reason_of(&e), e.to_string())),
            },
        }
    }

    /// Processes the response to a request of the target.
    fn answered(&mut self, kind: RequestKind, tag: u64) -> io::Result<bool> {
        if !self.session().requests_mut().answered(kind, tag) {
            return Err(self
                .conn
                .fault(reason::ANSWER, "the initiator sent an SRP response without a request"));
        }
        Ok(true)
    }

    fn refuse_command(&mut self, tag: u64, notifications: u8) -> io::Result<bool> {
        self.refuse(tag, notifications, Sense::INVALID_FIELD_IN_COMMAND_IU)
    }

    /// Answers a command whose data are not used.
    fn refuse(&mut self, tag: u64, notifications: u8, failure: impl Into<CommandError>) -> io::Result<bool> {
        let session = self.session();
        let sequence = session.sequence();
        let tag = session
            .slots_mut()
            .take(SlotKind::Command(sequence), tag, notifications)
            .ok_or_else(no_credit)?;
        session.take_sequence();
        self.state.refuse(&ScsiCommand::to_refuse(tag, sequence), failure);
        Ok(true)
    }

    fn is_over(&self) -> bool {
        self.state.phase() == SessionPhase::Ended
    }

    fn command(&mut self, c: &SrpCommand<'_>) -> io::Result<bool> {
        let data = request::data(c);
        let table = request::table(&data);
        let room = table.map(|table| self.state.pool().try_get(table.len as usize));
        if let Some(None) = room {
            return self.refuse(c.tag, c.notifications, Status::Busy);
        }
        let conn = self.conn;
        let session = self.session();
        let sequence = session.sequence();
        let tag = session.slots_mut().take(SlotKind::Command(sequence), c.tag, c.notifications);
        let tag = tag.ok_or_else(no_credit)?;
        // A command that waits for its descriptor table also takes its position, so that later commands wait for it.
        session.take_sequence();
        let command = request::command(c, tag, sequence);
        let Some(slot) = session.slots_mut().get(tag) else { return Ok(true) };
        slot.writes = request::writes(c);
        if let (Some(table), Some(Some(buf))) = (table, room) {
            let (len, declared_len) = (table.len as usize, command.expected_len);
            conn.endpoint.read(tag.into(), memory::remote(table), buf, 0, len);
            session.slots_mut().begin(tag, SlotRead::Table { len, declared_len });
            let busy_scope = self.state.busy_scope().cloned();
            self.session().queue_until_read(command, busy_scope);
            return Ok(true);
        }
        request::pieces(&data, &mut slot.pieces);
        if self.is_over() {
            return Ok(false);
        }
        let bytes = if let lunar_wire::srp::DataBuffer::Immediate(bytes) = data { bytes } else { &[] };
        session::take_command(self.state, command, bytes);
        Ok(!self.is_over())
    }

    fn task_management(&mut self, asked: &TaskManagement) -> io::Result<bool> {
        let session = self.session();
        let (task, sequence) = (session.slots_mut().command(asked.task_tag), session.sequence());
        let tag = session
            .slots_mut()
            .take(SlotKind::Function, asked.tag, asked.notifications)
            .ok_or_else(no_credit)?;
        // A command that is not in the table cannot arrive later, because messages arrive in order.
        let task = task.map_or(NO_TAG, |(tag, _)| tag);
        let Some(function) = request::function(asked, task) else {
            session.answer(tag, response::PendingResponse::function(task_status::NOT_SUPPORTED));
            return Ok(true);
        };
        if self.is_over() {
            return Ok(false);
        }
        if let Some(why) = self.conn.stale_reason() {
            self.state.end_with(why);
            return Ok(false);
        }
        self.begin_function(tag, FunctionRequest { function, lun: asked.lun, sequence });
        Ok(true)
    }

    fn begin_function(&mut self, tag: u32, request: FunctionRequest) {
        let begun = self.state.begin_function(request, move |state, managed| {
            reply(state, tag, request.function, managed);
        });
        let refusal = match begun {
            Ok(()) => return,
            Err(FunctionRefusal::Answered(refusal)) => response::PendingResponse::managed(refusal),
            Err(FunctionRefusal::TooMany) => response::PendingResponse::function(task_status::FAILED),
        };
        self.session().defer(tag, refusal);
    }

    /// Processes a completed RDMA Read of a request.
    fn read(&mut self, tag: u32, buf: Buf) -> io::Result<bool> {
        match self.session().slots_mut().take_read(tag) {
            Some(SlotRead::Table { len, declared_len }) => {
                self.table(tag, declared_len, &buf[..len])?;
                self.session().mark_read(tag);
                session::begin_queued(self.state);
            }
            Some(SlotRead::Data { origin, segment, lands }) => {
                let is_awaited = origin
                    .transfer_tag
                    .is_some_and(|transfer| self.state.is_awaiting(origin.task_tag, transfer));
                if is_awaited && !self.is_over() {
                    let data = if lands { ReceivedData::Placed(buf) } else { ReceivedData::Buf(buf) };
                    if self.state.receive_data(origin, segment, data, true) == DataOutResult::Accepted {
                        self.state.progress(origin.task_tag);
                    }
                }
            }
            None => {}
        }
        session::release(self.state);
        Ok(!self.is_over())
    }

    /// Processes the descriptor table of a command. `declared_len`: the data length in the command, in bytes.
    fn table(&mut self, tag: u32, declared_len: u32, table: &[u8]) -> io::Result<()> {
        let pieces = || table.as_chunks().0.iter().map(MemoryDescriptor::decode);
        let sum = pieces().map(|piece| u64::from(piece.len)).sum();
        if u64::from(declared_len) != sum {
            return Err(self
                .conn
                .fault(reason::NONE, SrpError::Total { said: declared_len, sum }.to_string()));
        }
        if let Some(slot) = self.session().slots_mut().get(tag) {
            slot.pieces.extend(pieces());
        }
        Ok(())
    }
}

/// Sends the response to a function that has ended.
fn reply(state: &mut NexusState<SrpSession>, tag: u32, function: Function, managed: ManagementResponse) {
    if let (ManagementResponse::NoSuchTask, Function::AbortTask { tag }) = (managed, function) {
        session::discard_queued(state, |queued| queued.tag == tag);
        session::begin_queued(state);
    }
    // The commands that followed may have ended the session.
    if state.phase() != SessionPhase::Ended {
        state.front_mut().defer(tag, response::PendingResponse::managed(managed));
    }
}
