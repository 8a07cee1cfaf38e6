//! The data mover of SRP: what a session queues as PDUs leaves as responses, RDMA Writes and RDMA Reads, and what comes
//! is handed to it as PDUs.

use super::asking::{About, Asking, reason, reason_of};
use super::login::IU_LEN;
use super::slots::{Coming, Kind, Slots};
use super::{answer, memory, request};
use crate::iscsi::carrier;
use crate::iscsi::connection::{Life, Session};
use crate::iscsi::held::Held;
use crate::iscsi::inlet::{Came, Inlet, broken};
use crate::iscsi::receive::{Arrived, Broken, Data, Received, Sink};
use crate::registry::{LOGGED_IN_AGAIN, Which};
use lunar_rdma::{Endpoint, Events, Piece};
use lunar_runtime::Buf;
use lunar_runtime::out::Payload;
use lunar_wire::iscsi::pdu::STATUS;
use lunar_wire::iscsi::{BHS_LEN, Bhs, NONE, opcode, request as pdu};
use lunar_wire::scsi::{Sense, Status};
use lunar_wire::srp::{Command, Descriptor, Error, FromInitiator, Response, TaskManagement, task_status};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// CmdSN and StatSN that sessions begin with.
pub const FIRST: u32 = 1;
/// Event of an Asynchronous Message that has sense data (RFC 7143 section 11.9.1).
const SCSI_EVENT: u8 = 0;
/// Where requests have their tag.
const TAG_AT: usize = 8;

struct State {
    slots: Slots,
    /// What was asked of the initiator.
    asking: Asking,
    /// The initiator has sent something, so it has room for what it is asked.
    heard: bool,
    /// What the initiator did for which the connection ends.
    fault: Option<u32>,
    /// CmdSN of the next command.
    cmd_sn: u32,
    /// R2Ts whose data is still to be read.
    asked: VecDeque<Bhs>,
    /// Where what is about to be read lies; kept for its memory.
    places: Vec<Piece>,
    /// Answers that wait until what they are about is at rest, and all that comes behind them.
    held: Held,
}

/// The data mover of one connection.
pub struct Mover {
    endpoint: Rc<dyn Endpoint>,
    inlet: Inlet,
    /// Where immediate data begins in a command, if there may be any.
    immediate_offset: Option<u16>,
    state: RefCell<State>,
}

impl Mover {
    /// A connection that was accepted with so many credits; `notifications` are those that requests of the target are
    /// to have.
    pub fn new(
        endpoint: Rc<dyn Endpoint>,
        credits: usize,
        immediate_offset: Option<u16>,
        notifications: u8,
    ) -> Mover {
        let state = State {
            slots: Slots::new(credits),
            asking: Asking::new(notifications),
            heard: false,
            fault: None,
            cmd_sn: FIRST,
            asked: VecDeque::new(),
            places: Vec::new(),
            held: Held::default(),
        };
        let inlet = Inlet::new(endpoint.clone(), IU_LEN, Events::default());
        Mover { endpoint, inlet, immediate_offset, state: RefCell::new(state) }
    }

    /// Sends a PDU, or what it stands for.
    fn put(&self, state: &mut State, header: Bhs, payload: Payload) {
        let itt = header.itt();
        match header.opcode() {
            opcode::DATA_IN => self.data_in(state, &header, payload),
            opcode::R2T => {
                state.slots.queue(itt, true);
                state.asked.push_back(header);
            }
            opcode::SCSI_RESPONSE => self.status(state, &header, payload.bytes()),
            opcode::TASK_MANAGEMENT_RESPONSE => {
                self.managed(state, itt, answer::task_management(header.0[2]));
            }
            opcode::REJECT => self.rejected(state, payload.bytes()),
            opcode::NOP_IN if itt == NONE => self.ping(state),
            opcode::ASYNC if header.0[36] == SCSI_EVENT => self.event(state, header.lun(), payload.bytes()),
            _ => {}
        }
    }

    fn send(&self, unit: &[u8]) {
        self.endpoint.send(unit, Payload::Empty, None);
    }

    /// Is the initiator there? It answers to credits, and none will do. One that does not answer what it was asked before
    /// is not asked again.
    fn ping(&self, state: &mut State) {
        if let Some(unit) = state.asking.credits(0) {
            self.send(&unit);
        }
    }

    /// An event that finds no room is left to the unit attention that stands for it, too.
    fn event(&self, state: &mut State, lun: u64, segment: &[u8]) {
        let sense = segment.get(2..).unwrap_or_default();
        if let Some(unit) = state.heard.then(|| state.asking.event(lun, sense)).flatten() {
            self.send(&unit);
        }
    }

    /// Gives back the credits of commands that were aborted, if no answer is to come that could bring them.
    fn settle(&self, state: &mut State) {
        let owed = if state.asking.may() { state.slots.overdue() } else { None };
        if let Some(unit) = owed.and_then(|owed| state.asking.credits(owed)) {
            self.send(&unit);
        }
    }

    /// The initiator has answered a request.
    fn answered(&self, session: &mut Session, about: About, tag: u64) -> Result<bool, Broken> {
        if !self.state.borrow_mut().asking.answered(about, tag) {
            return Err(self.fault(reason::ANSWER, "an SRP response to a request that was not sent"));
        }
        session.pings.heard();
        Ok(true)
    }

    /// The connection ends for what the initiator did.
    fn fault(&self, reason: u32, what: impl Into<String>) -> Broken {
        self.state.borrow_mut().fault = Some(reason);
        broken(what)
    }

    fn data_in(&self, state: &mut State, header: &Bhs, payload: Payload) {
        if let Some(slot) = state.slots.get(header.itt()) {
            memory::write(&*self.endpoint, &slot.pieces, header.word(40) as usize, payload);
        }
        if header.flags() & STATUS != 0 {
            self.status(state, header, &[]);
        }
    }

    fn status(&self, state: &mut State, header: &Bhs, segment: &[u8]) {
        let writes = state.slots.get(header.itt()).is_some_and(|slot| slot.writes);
        self.answer(state, header.itt(), answer::command(header, segment, writes));
    }

    fn managed(&self, state: &mut State, itt: u32, status: u8) {
        self.answer(state, itt, Response { data: &[0, 0, 0, status], ..Response::default() });
    }

    /// The session does not take a request. Of others than these it gets none that it could reject.
    fn rejected(&self, state: &mut State, rejected: &[u8]) {
        let header = rejected.first_chunk::<BHS_LEN>().map(|header| Bhs(*header));
        match header.map(|header| (header.opcode(), header.itt())) {
            Some((opcode::SCSI_COMMAND, itt)) => {
                self.answer(state, itt, Response { status: Status::Busy as u8, ..Response::default() });
            }
            Some((opcode::TASK_MANAGEMENT, itt)) => self.managed(state, itt, task_status::FAILED),
            _ => self.endpoint.close(),
        }
    }

    /// Answers a request that has a slot.
    fn answer(&self, state: &mut State, itt: u32, response: Response<'_>) {
        let Some(slot) = state.slots.get(itt) else { return };
        let (tag, notifications) = (slot.tag, slot.notifications);
        // The slot is somebody else's from here on.
        state.asked.retain(|r2t| r2t.itt() != itt);
        let credits = state.slots.answer(itt);
        self.say(&Response { credits, tag, ..response }, notifications);
    }

    fn say(&self, response: &Response<'_>, notifications: u8) {
        let solicited = answer::is_solicited(notifications, response);
        let mut unit = Vec::with_capacity(Response::LEN + response.data.len() + response.sense.len());
        Response { solicited, ..*response }.encode(&mut unit);
        self.send(&unit);
    }

    /// Answers a request that the session does not get to see.
    fn refuse(&self, tag: u64, notifications: u8, response: Response<'_>) -> Result<bool, Broken> {
        let credits = self.state.borrow_mut().slots.at_once().ok_or_else(no_credit)?;
        self.say(&Response { credits, tag, ..response }, notifications);
        Ok(true)
    }

    fn refuse_command(&self, tag: u64, notifications: u8) -> Result<bool, Broken> {
        let (status, sense) =
            (Status::CheckCondition as u8, Sense::INVALID_FIELD_IN_COMMAND_IU.encode(false));
        self.refuse(tag, notifications, Response { status, sense: &sense, ..Response::default() })
    }
}

impl Mover {
    fn came(&self, session: &mut Session, came: Came<'_>) -> Result<bool, Broken> {
        match came {
            Came::Message(unit) => self.unit(session, unit),
            Came::Read(id, buf) => self.arrived(session, id as u32, buf),
        }
    }

    /// Takes an information unit.
    fn unit(&self, session: &mut Session, unit: &[u8]) -> Result<bool, Broken> {
        self.state.borrow_mut().heard = true;
        match FromInitiator::decode(unit, self.immediate_offset) {
            Ok(FromInitiator::Command(c)) if !request::is_served(&c) => {
                self.refuse_command(c.tag, c.notifications)
            }
            Ok(FromInitiator::Command(c)) => self.command(session, &c),
            Ok(FromInitiator::TaskManagement(asked)) => self.task_management(session, &asked),
            Ok(FromInitiator::Logout(_)) => Ok(false),
            Ok(FromInitiator::CreditResponse(tag)) => self.answered(session, About::Credits, tag),
            Ok(FromInitiator::AerResponse(tag)) => self.answered(session, About::Event, tag),
            // It is whole, and only asks for what there is not.
            Err(Error::Format(_) | Error::Attribute(_)) if unit.len() >= Command::LEN => {
                self.refuse_command(lunar_wire::be::get64(&unit[TAG_AT..]), unit[1])
            }
            Err(e) => Err(self.fault(reason_of(&e), e.to_string())),
        }
    }

    fn command(&self, session: &mut Session, c: &Command<'_>) -> Result<bool, Broken> {
        let data = request::data(c);
        let table = request::table(&data);
        let room = table.map(|table| session.pool.try_get(table.len as usize));
        if let Some(None) = room {
            let busy = Response { status: Status::Busy as u8, ..Response::default() };
            return self.refuse(c.tag, c.notifications, busy);
        }
        let mut state = self.state.borrow_mut();
        let cmd_sn = state.cmd_sn;
        let taken = state.slots.take(Kind::Command(cmd_sn), c.tag, c.notifications);
        let itt = taken.ok_or_else(no_credit)?;
        // Also of one that waits for its table: those behind it wait for it.
        state.cmd_sn = cmd_sn.wrapping_add(1);
        let (header, ahs) = request::command(c, itt, cmd_sn);
        if let Some(slot) = state.slots.get(itt) {
            slot.writes = request::writes(c);
            if let (Some(table), Some(Some(buf))) = (table, room) {
                let len = table.len as usize;
                self.endpoint.read(itt.into(), memory::remote(table), buf, 0, len);
                let recalled = session.recalling.clone();
                state.slots.begin(itt, Coming::Table { header, ahs, len, recalled });
                return Ok(true);
            }
            request::pieces(&data, &mut slot.pieces);
        }
        drop(state);
        let bytes = if let lunar_wire::srp::Data::Immediate(bytes) = data { bytes } else { &[] };
        Ok(session.take(Arrived { header, ahs: &ahs, data: Data::Bytes(bytes), intact: true, behind: &[] }))
    }

    fn task_management(&self, session: &mut Session, asked: &TaskManagement) -> Result<bool, Broken> {
        let mut state = self.state.borrow_mut();
        let (task, cmd_sn) = (state.slots.command(asked.task_tag), state.cmd_sn);
        let taken = state.slots.take(Kind::Function, asked.tag, asked.notifications);
        let itt = taken.ok_or_else(no_credit)?;
        let Some(header) = request::task_management(asked, itt, task, cmd_sn) else {
            self.managed(&mut state, itt, task_status::NOT_SUPPORTED);
            return Ok(true);
        };
        drop(state);
        Ok(session.take(Arrived { header, ahs: &[], data: Data::Bytes(&[]), intact: true, behind: &[] }))
    }

    /// What was being read for a request has come.
    fn arrived(&self, session: &mut Session, itt: u32, buf: Buf) -> Result<bool, Broken> {
        let coming = self.state.borrow_mut().slots.came(itt);
        let more = match coming {
            Some(Coming::Table { header, ahs, len, recalled }) => {
                self.table(itt, header.word20(), &buf[..len])?;
                let command =
                    Arrived { header, ahs: &ahs, data: Data::Bytes(&[]), intact: true, behind: &[] };
                session.take_kept(command, recalled)
            }
            Some(Coming::Data { header, lands }) if session.awaits(itt, header.word20()) => {
                let data = if lands { Data::Landed(buf) } else { Data::Buf(buf) };
                session.take(Arrived { header, ahs: &[], data, intact: true, behind: &[] })
            }
            _ => true,
        };
        self.release(session);
        Ok(more)
    }

    /// The descriptors of a command, for so many bytes of data, are here.
    fn table(&self, itt: u32, said: u32, table: &[u8]) -> Result<(), Broken> {
        let pieces = || table.as_chunks().0.iter().map(Descriptor::decode);
        let sum = pieces().map(|piece| u64::from(piece.len)).sum();
        if u64::from(said) != sum {
            return Err(self.fault(reason::NONE, Error::Total { said, sum }.to_string()));
        }
        if let Some(slot) = self.state.borrow_mut().slots.get(itt) {
            slot.pieces.extend(pieces());
        }
        Ok(())
    }

    /// Begins to read what was asked for, unless its task has gone.
    fn read(&self, state: &mut State, session: &mut Session) {
        while let Some(r2t) = state.asked.pop_front() {
            let (itt, offset, len) = (r2t.itt(), r2t.word(40), r2t.word(44));
            state.slots.queue(itt, false);
            if !session.awaits(itt, r2t.word20()) {
                continue;
            }
            let burst = pdu::Burst { lun: r2t.lun(), itt, ttt: r2t.word20() };
            let mut header = pdu::data_out(burst, 0, offset, true, 0);
            header.set_data_len(len as usize);
            let place = session.place(&header);
            let lands = place.is_some();
            let (buf, at) = place.unwrap_or_else(|| (session.buffer(len as usize), 0));
            let State { slots, places, .. } = &mut *state;
            let Some(slot) = slots.get(itt) else { continue };
            places.clear();
            places.extend(
                memory::places(&slot.pieces, offset as usize, len as usize)
                    .map(|(at, part)| (at, part.len())),
            );
            self.endpoint.gather(itt.into(), places, buf, at);
            slots.begin(itt, Coming::Data { header, lands });
        }
    }

    /// Sends what has waited, up to what still waits.
    fn release(&self, session: &Session) {
        let mut state = self.state.borrow_mut();
        // Commands that were aborted get no answer: their credits go with the next one.
        if state.slots.commands() > session.tasks.len() {
            state.slots.forget(|itt| session.is_known(itt));
        }
        while let Some((header, payload)) = state.let_go() {
            let itt = header.itt();
            self.put(&mut state, header, payload);
            state.slots.queue(itt, false);
        }
    }
}

impl State {
    fn is_busy_for(&mut self, header: &Bhs) -> bool {
        is_busy(&mut self.slots, header)
    }

    fn hold(&mut self, header: Bhs, payload: Payload) {
        self.slots.queue(header.itt(), true);
        self.held.hold(header, payload);
    }

    /// The first of what is held, if it need not wait any more.
    fn let_go(&mut self) -> Option<(Bhs, Payload)> {
        let State { held, slots, .. } = self;
        held.let_go(|header| is_busy(slots, header))
    }
}

/// It tells that tasks have ended while data of some may still come: who hears it uses their memory for something else.
fn is_busy(slots: &mut Slots, header: &Bhs) -> bool {
    match header.opcode() {
        opcode::TASK_MANAGEMENT_RESPONSE => slots.is_reading(),
        opcode::SCSI_RESPONSE => slots.get(header.itt()).is_some_and(|slot| slot.coming.is_some()),
        _ => false,
    }
}

impl carrier::Mover for Mover {
    fn inlet(&self) -> &Inlet {
        &self.inlet
    }

    fn push(&self, header: Bhs, payload: Payload) {
        let mut state = self.state.borrow_mut();
        // The answer to a task management function brings the credits of the commands that it has ended.
        let later = header.opcode() == opcode::TASK_MANAGEMENT_RESPONSE;
        if later || !state.held.is_empty() || state.is_busy_for(&header) {
            state.hold(header, payload);
            if state.held.is_too_much(state.slots.credits()) {
                self.endpoint.close();
            }
            return;
        }
        self.put(&mut state, header, payload);
    }

    /// The first word is the initiator's, as iWARP demands it (RFC 5044 section 7.1). A channel of several may never say one.
    fn may_speak(&self) -> bool {
        self.state.borrow().heard
    }

    fn flush(&self, session: &mut Session) -> io::Result<bool> {
        self.release(session);
        let mut state = self.state.borrow_mut();
        self.read(&mut state, session);
        if session.life != Life::Over {
            self.settle(&mut state);
        }
        self.endpoint.flush()
    }

    fn receive(&self, session: &mut Session) -> Result<Received, Broken> {
        self.inlet.receive(session, |session, came| self.came(session, came))
    }

    /// Those whose table is being read.
    fn recall(&self, session: &mut Session, which: &Which) {
        self.state.borrow_mut().slots.recall(which, |lun| session.is_about(which, lun));
    }

    fn coming(&self) -> carrier::Coming {
        let state = self.state.borrow();
        carrier::Coming { latest_read: state.slots.latest_read(), held: state.held.mark() }
    }

    fn has_come(&self, before: carrier::Coming) -> bool {
        let state = self.state.borrow();
        let has_ended = self.inlet.has_ended();
        has_ended || state.held.has_passed(before.held) && !state.slots.reads_up_to(before.latest_read)
    }

    fn notifies(&self) -> bool {
        false
    }

    /// Linux's initiators only log it, and wait for the end of the connection, which follows.
    fn farewell(&self, why: Option<&'static str>) {
        let mut state = self.state.borrow_mut();
        let ours = |why| if why == LOGGED_IN_AGAIN { reason::ANOTHER_LOGIN } else { reason::NONE };
        let reason = state.fault.or(why.map(ours)).filter(|_| state.heard);
        if let Some(unit) = reason.and_then(|reason| state.asking.logout(reason)) {
            self.send(&unit);
        }
    }
}

fn no_credit() -> Broken {
    broken("more SRP requests than it has credits for")
}
