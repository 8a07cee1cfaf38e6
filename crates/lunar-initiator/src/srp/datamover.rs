//! The Datamover over SRP. The memory of a command is registered for the target until its response arrives.

use super::credits::Credits;
use super::requests::{self, BufferLocation};
use super::responses::DataDirection;
use crate::Error;
use crate::session::tag_map::TagMap;
use crate::session::task::{Data, Task};
use crate::session::transport::{self, DatamoverEvents};
use event_listener::Event;
use lunar_proto::parameters::Parameters;
use lunar_rdma::{Endpoint, EndpointEvents, LocalBoxFuture, MemoryRegion};
use lunar_runtime::iscsi::receive::{ReceiveError, ReceiveStatus};
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::status::{RejectReason, management_response};
use lunar_wire::iscsi::{Bhs, NONE, opcode, pdu};
use lunar_wire::srp::{self, IMMEDIATE_OFFSET};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// The maximum length of an information unit from the target. Even responses with the longest sense data are much
/// shorter.
pub const RECEIVE_LEN: usize = lunar_wire::srp::LINUX_IU_LEN;

/// The vendor-specific response code of a command that cannot be sent (RFC 7143 section 11.4.3).
const NOT_SENT: u8 = 0x80;
/// The limits that a login has negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedLimits {
    /// The maximum length of a sent information unit in bytes.
    pub it_iu_len: usize,
    /// Whether commands may contain immediate data.
    pub immediate: bool,
    /// The maximum number of requests in flight: each response has a posted receive.
    pub in_flight: usize,
}

impl NegotiatedLimits {
    /// The maximum length of immediate data in bytes.
    pub fn immediate_len(&self) -> usize {
        let room = self.it_iu_len.saturating_sub(IMMEDIATE_OFFSET.into());
        if self.immediate { room } else { 0 }
    }
}

/// The kind of a request.
#[derive(Clone, Copy)]
pub(super) enum SrpRequestKind {
    Command(DataDirection),
    Manage,
    Ping,
}

/// A request without a response.
pub(super) struct Open {
    /// The SRP tag.
    pub tag: u64,
    pub kind: SrpRequestKind,
    /// The steering tag of the registered memory.
    pub lent: Option<u32>,
    /// Whether the request was sent.
    pub sent: bool,
}

pub(super) struct State {
    pub credits: Credits,
    /// Requests without a response, by Initiator Task Tag.
    open: TagMap<Open>,
    /// Requests that wait for a credit, in order.
    pub waiting: VecDeque<(u32, Vec<u8>, Payload)>,
    /// PDUs generated locally for the session, with their data.
    pub ours: VecDeque<(Bhs, Vec<u8>)>,
    /// The number of replies to the target that were queued since the send queue was last empty.
    pub replies: u32,
    /// A reused buffer.
    events: EndpointEvents,
}

/// The Datamover of one connection.
pub struct SrpDatamover {
    pub(super) endpoint: Rc<dyn Endpoint>,
    agreed: NegotiatedLimits,
    state: RefCell<State>,
    /// Notified when a PDU was generated locally.
    bell: Event,
}

impl SrpDatamover {
    /// Creates the Datamover of a connection after login.
    pub fn new(endpoint: Rc<dyn Endpoint>, agreed: NegotiatedLimits, credits: Credits) -> SrpDatamover {
        let state = State {
            credits,
            open: TagMap::default(),
            waiting: VecDeque::new(),
            ours: VecDeque::new(),
            replies: 0,
            events: EndpointEvents::default(),
        };
        SrpDatamover { endpoint, agreed, state: RefCell::new(state), bell: Event::new() }
    }

    /// Joins the session of another channel. Must precede the first request.
    pub fn join(&self, session: &SrpDatamover) {
        self.with_state(|state| session.with_state(|first| state.credits.join(&first.credits)));
    }

    /// MaxCmdSN of the session.
    pub fn max_cmd_sn(&self) -> u32 {
        self.with_state(|state| state.credits.max_cmd_sn())
    }

    /// The number of commands that the channel can accept.
    pub fn room(&self) -> i64 {
        self.with_state(|state| state.credits.room())
    }

    /// Whether a request with this tag has no response yet.
    pub fn has(&self, itt: u32) -> bool {
        self.with_state(|state| state.open.get(itt).is_some())
    }

    /// Whether any request has no response yet.
    pub fn is_busy(&self) -> bool {
        self.with_state(|state| !state.open.is_empty())
    }

    /// Accesses the state. The borrow ends before any call into the session.
    pub(super) fn with_state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.borrow_mut())
    }

    fn request(&self, itt: u32, open: Open, unit: Vec<u8>, payload: Payload) {
        self.with_state(|state| {
            state.open.insert(itt, open);
            state.waiting.push_back((itt, unit, payload));
            self.send_on(state);
            state.credits.note(state.waiting.len());
        });
    }

    /// Sends queued requests, as far as credits allow. Order matters: a task management function applies to the
    /// commands before it.
    pub(super) fn send_on(&self, state: &mut State) {
        while state.may_send(self.agreed.in_flight)
            && let Some((itt, unit, payload)) = state.waiting.pop_front()
        {
            if let Some(open) = state.open.get_mut(itt) {
                open.sent = true;
            }
            state.credits.take();
            self.endpoint.send(&unit, payload, None);
        }
    }

    /// Responds to a request of the session locally.
    pub(super) fn answer(&self, header: Bhs, data: Vec<u8>) {
        self.with_state(|state| state.ours.push_back((header, data)));
        self.bell.notify(usize::MAX);
    }

    /// Registers the data of a command, or selects them as immediate data.
    fn memory(&self, task: &mut Task) -> Result<BufferLocation, Error> {
        let (len, additional) = (task.expected, requests::additional_cdb(task).len());
        let (direction, memory) = match &mut task.data {
            Data::In(buf, _) if len > 0 => match buf.take() {
                Some(buf) => (DataDirection::In, MemoryRegion::Sink(buf)),
                None => return Ok(BufferLocation::None),
            },
            Data::Out(buf) if self.fits(buf.len(), additional) => {
                return Ok(BufferLocation::Here(buf.clone()));
            }
            Data::Out(buf) if len > 0 => (DataDirection::Out, MemoryRegion::Source(buf.clone())),
            _ => return Ok(BufferLocation::None),
        };
        let place = self.endpoint.expose(memory).map_err(|e| transport::cannot_lend(&e))?;
        Ok(BufferLocation::Lent(direction, place, len))
    }

    /// Whether a write of this length is sent as immediate data.
    fn fits(&self, len: usize, additional_cdb: usize) -> bool {
        // The length of the data follows the CDB.
        let before = srp::SrpCommand::LEN + additional_cdb + 4;
        len > 0 && len <= self.agreed.immediate_len() && before <= IMMEDIATE_OFFSET.into()
    }

    fn manage(&self, header: &Bhs) {
        let itt = header.itt();
        match requests::task_management(header) {
            Some(unit) => {
                let open = Open {
                    tag: requests::tag(itt, 0),
                    kind: SrpRequestKind::Manage,
                    lent: None,
                    sent: false,
                };
                self.request(itt, open, unit, Payload::Empty);
            }
            None => {
                self.answer(pdu::task_management_response(itt, management_response::UNSUPPORTED), Vec::new())
            }
        }
    }

    /// Pings the target if a credit is free. Otherwise commands are in flight, and their timeouts detect an
    /// unresponsive target.
    fn ping(&self, itt: u32) {
        let spare = self.with_state(|state| state.waiting.is_empty() && state.credits.is_spare());
        match requests::ping(itt) {
            Ok(unit) if spare => {
                let open =
                    Open { tag: requests::tag(itt, 0), kind: SrpRequestKind::Ping, lent: None, sent: false };
                self.request(itt, open, unit, Payload::Empty);
            }
            _ => self.answer(pdu::nop_in(0, itt, NONE), Vec::new()),
        }
    }
}

impl State {
    fn may_send(&self, max: usize) -> bool {
        self.credits.is_left() && self.open.len().saturating_sub(self.waiting.len()) < max
    }

    /// Removes the request of a response.
    pub fn close(&mut self, tag: u64) -> Option<(u32, Open)> {
        let itt = tag as u32;
        let is_it = self.open.get(itt).is_some_and(|open| open.tag == tag && open.sent);
        is_it.then(|| self.open.remove(itt)).flatten().map(|open| (itt, open))
    }
}

impl transport::Datamover for SrpDatamover {
    fn push(&self, header: Bhs, _: Payload) {
        match (header.opcode(), header.itt()) {
            (opcode::TASK_MANAGEMENT, _) => self.manage(&header),
            // A NOP-Out without a tag is a reply, but no target pings over SRP.
            (opcode::NOP_OUT, NONE) => {}
            (opcode::NOP_OUT, itt) => self.ping(itt),
            (opcode::LOGOUT, itt) => self.answer(pdu::logout_response(itt, 0, 0, 0), Vec::new()),
            _ => self.answer(pdu::reject(RejectReason::Unsupported as u8), header.as_bytes().to_vec()),
        }
    }

    fn command(&self, header: Bhs, task: &mut Task, _: &Parameters) -> Result<(), Error> {
        let (itt, memory) = (task.tag, self.memory(task)?);
        self.with_state(|state| state.credits.command(header.cmd_sn()));
        let unit = requests::command(&header, task, &memory, IMMEDIATE_OFFSET);
        let len = |unit: &Vec<u8>| unit.len() + memory.immediate_len();
        let Some(unit) = unit.ok().filter(|unit| len(unit) <= self.agreed.it_iu_len) else {
            memory.lent().map(|stag| self.endpoint.revoke(stag));
            self.answer(pdu::scsi_response(itt, 0, NOT_SENT, 0), Vec::new());
            return Ok(());
        };
        let kind = SrpRequestKind::Command(memory.direction());
        let open = Open { tag: requests::tag(itt, header.cmd_sn()), kind, lent: memory.lent(), sent: false };
        let payload = match memory {
            BufferLocation::Here(buf) => {
                let len = buf.len();
                Payload::Part(buf, 0, len)
            }
            BufferLocation::None | BufferLocation::Lent(..) => Payload::Empty,
        };
        self.request(itt, open, unit, payload);
        Ok(())
    }

    fn ended(&self, itt: u32) {
        self.with_state(|state| {
            let Some(open) = state.open.remove(itt) else { return };
            if !open.sent {
                state.waiting.retain(|(waiting, ..)| *waiting != itt);
            }
            // The command has ended: no owner waits for the data.
            drop(open.lent.map(|stag| self.endpoint.revoke(stag)));
            self.send_on(state);
            state.credits.note(state.waiting.len());
        });
    }

    fn waiting(&self) -> usize {
        self.endpoint.waiting()
    }

    fn take_moved(&self) -> bool {
        self.endpoint.take_moved()
    }

    fn flush(&self) -> io::Result<bool> {
        self.endpoint.flush()
    }

    fn receive(&self, session: &mut dyn DatamoverEvents) -> Result<ReceiveStatus, ReceiveError> {
        if !self.deliver_ours(session) {
            return Ok(ReceiveStatus::End);
        }
        let mut events = self.with_state(|state| std::mem::take(&mut state.events));
        self.endpoint.poll(&mut events);
        let result =
            transport::messages(&*self.endpoint, &mut events, RECEIVE_LEN, |unit| self.unit(session, unit));
        self.with_state(|state| state.events = events);
        result
    }

    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async {
            let rung = self.bell.listen();
            let has_ours = self.with_state(|state| !state.ours.is_empty());
            if has_ours {
                return Ok(());
            }
            let ours = async {
                rung.await;
                Ok(())
            };
            lunar_runtime::either(ours, self.endpoint.readable()).await
        })
    }

    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.endpoint.writable()
    }

    fn close(&self) {
        self.endpoint.close();
    }

    fn reset(&self) {
        self.endpoint.reset();
    }

    fn reset_on_close(&self, reset: bool) -> io::Result<()> {
        self.endpoint.reset_on_close(reset)
    }
}
