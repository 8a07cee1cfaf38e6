//! The data mover over RDMA (RFC 7145 section 7): what a session queues as PDUs leaves as messages, RDMA Writes and
//! RDMA Reads, and what comes is handed to it as PDUs.

use crate::iscsi::carrier;
use crate::iscsi::connection::Session;
use crate::iscsi::held::Held;
use crate::iscsi::inlet::{Came, Inlet, broken};
use crate::iscsi::receive::{Arrived, Broken, Data, Received, Sink};
use lunar_proto::window::precedes;
use lunar_rdma::{Endpoint, Events, Remote, Wait};
use lunar_runtime::out::Payload;
use lunar_wire::iscsi::pdu::STATUS;
use lunar_wire::iscsi::{BHS_LEN, Bhs, NONE, opcode, pdu, request};
use lunar_wire::iser::{self, Advertised, HEADER_LEN, Header, OVERHEAD, SAFE_DATA_LEN};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;

const RESIDUAL: u8 = 0x06;
/// Events that initiators have room for beside answers: Linux has it for two (ISER_MAX_RX_MISC_PDUS).
const EVENTS: usize = 2;
/// Event of the Asynchronous Message that ends tasks (RFC 7143 section 11.9.1).
const TASK_TERMINATION: u8 = 5;

/// The memory that a command advertises.
#[derive(Clone, Copy, Debug)]
struct Tags {
    read: Option<Advertised>,
    write: Option<Advertised>,
    /// Bytes of its Data-Out that did not wait to be asked for.
    unsolicited: u32,
}

/// Data-Out that is being read from the initiator.
struct Coming {
    /// The header of the Data-Out that it will be.
    header: Bhs,
    /// It goes straight into the buffer of its task.
    lands: bool,
}

#[derive(Default)]
struct State {
    /// By Initiator Task Tag.
    tags: HashMap<u32, Tags>,
    /// R2Ts whose data is still to be read.
    asked: VecDeque<Bhs>,
    /// By the number of the RDMA Read.
    coming: HashMap<u64, Coming>,
    reads: u64,
    /// StatSNs of events that the initiator has not acknowledged.
    events: VecDeque<u32>,
    /// What waits behind the end of tasks, whose data must not come any more when it is told.
    held: Held,
    /// Commands that the session may have.
    most_tasks: usize,
}

/// The data mover of one connection.
pub struct Mover {
    endpoint: Rc<dyn Endpoint>,
    inlet: Inlet,
    state: RefCell<State>,
    /// Responses end the rights to the buffers of their commands.
    invalidate: bool,
    /// Memory that is advertised for a write begins with its first byte, and not behind its unsolicited data.
    whole: bool,
}

impl Mover {
    /// A connection that has logged in, and what has come on it since.
    pub fn new(
        endpoint: Rc<dyn Endpoint>,
        events: Events,
        longest: usize,
        invalidate: bool,
        whole: bool,
    ) -> Mover {
        let inlet = Inlet::new(endpoint.clone(), longest, events);
        Mover { endpoint, inlet, state: RefCell::default(), invalidate, whole }
    }

    /// Sends a PDU, or what it stands for.
    fn put(&self, state: &mut State, header: Bhs, payload: Payload) {
        match header.opcode() {
            opcode::DATA_IN => self.data_in(state, &header, payload),
            opcode::R2T => state.asked.push_back(header),
            opcode::SCSI_RESPONSE => {
                let tags = state.tags.remove(&header.itt());
                let tag = tags.and_then(|tags| tags.read.or(tags.write)).filter(|_| self.invalidate);
                self.say(header, payload, tag.map(|tag| tag.stag));
            }
            _ => self.say(header, payload, None),
        }
    }

    fn say(&self, header: Bhs, payload: Payload, invalidate: Option<u32>) {
        let (head, payload) = message(header, payload);
        self.endpoint.send(&head, payload, invalidate);
    }

    /// Data goes where the command has said; there is no status but that of a response (RFC 7145 section 7.3.5).
    fn data_in(&self, state: &mut State, header: &Bhs, payload: Payload) {
        let itt = header.itt();
        if let Some(place) = state.tags.get(&itt).and_then(|tags| tags.read) {
            self.endpoint.write(remote(place).beyond(header.word(40).into()), payload);
        }
        if header.flags() & STATUS != 0 {
            let mut response = pdu::scsi_response(itt, header.flags() & RESIDUAL, 0, header.0[3]);
            pdu::stamp(&mut response, header.word(24), header.word(28), header.word(32));
            response.set_word(44, header.word(44));
            self.put(state, response, Payload::Empty);
        }
    }

    /// Begins to read what was asked for, unless its task has gone.
    fn read(&self, state: &mut State, session: &mut Session) {
        while let Some(r2t) = state.asked.pop_front() {
            let (offset, len) = (r2t.word(40), r2t.word(44));
            let burst = request::Burst { lun: r2t.lun(), itt: r2t.itt(), ttt: r2t.word20() };
            let mut header = request::data_out(burst, 0, offset, true, 0);
            header.set_data_len(len as usize);
            let Some(from) = state.tags.get(&r2t.itt()).and_then(|tags| self.source(tags, offset)) else {
                continue;
            };
            if !session.awaits(r2t.itt(), r2t.word20()) {
                continue;
            }
            let place = session.place(&header);
            let lands = place.is_some();
            let (buf, at) = place.unwrap_or_else(|| (session.buffer(len as usize), 0));
            state.reads += 1;
            state.coming.insert(state.reads, Coming { header, lands });
            self.endpoint.read(state.reads, from, buf, at, len as usize);
        }
    }

    /// Where this byte of a command's Data-Out lies at the initiator.
    fn source(&self, tags: &Tags, offset: u32) -> Option<Remote> {
        let before = if self.whole { 0 } else { tags.unsolicited };
        Some(remote(tags.write?).beyond(u64::from(offset.checked_sub(before)?)))
    }

    /// Sends what has waited, up to what still waits.
    fn release(&self) {
        let mut state = self.state.borrow_mut();
        while let Some((header, payload)) = state.let_go() {
            self.put(&mut state, header, payload);
        }
    }

    fn came(&self, session: &mut Session, came: Came<'_>) -> Result<bool, Broken> {
        match came {
            Came::Message(message) => self.message(session, message),
            Came::Read(id, buf) => Ok(self.arrived(session, id, buf)),
        }
    }

    fn message(&self, session: &mut Session, message: &[u8]) -> Result<bool, Broken> {
        let pdu = iser::Pdu::decode(message).map_err(|e| broken(e.to_string()))?;
        self.state.borrow_mut().acknowledged(pdu.bhs.word(28));
        match pdu.bhs.opcode() {
            opcode::SCSI_COMMAND => self.note(session, &pdu)?,
            // It would pass for the data that is being read.
            opcode::DATA_OUT if pdu.bhs.word20() != NONE => {
                return Err(broken("a Data-Out that was asked for comes by RDMA, and not in a message"));
            }
            _ => {}
        }
        Ok(session.take(Arrived {
            header: pdu.bhs,
            ahs: pdu.ahs,
            data: Data::Bytes(pdu.data),
            intact: true,
            behind: &[],
        }))
    }

    /// Takes note of the memory that a command advertises.
    fn note(&self, session: &Session, pdu: &iser::Pdu<'_>) -> Result<(), Broken> {
        let (flags, edtl) = (pdu.bhs.flags(), pdu.bhs.word20() as usize);
        let (reads, writes) = (flags & 0x40 != 0, flags & 0x20 != 0);
        if (reads && edtl > 0 && pdu.read.is_none())
            || (writes && edtl > pdu.data.len() && pdu.write.is_none())
        {
            return Err(broken("a command that advertises no memory for its data"));
        }
        let mut state = self.state.borrow_mut();
        state.most_tasks = session.most_tasks();
        // Those of tasks that ended without a response. The session does not know this command yet.
        if state.tags.len() >= 2 * session.most_tasks() {
            let State { tags, held, .. } = &mut *state;
            tags.retain(|itt, _| session.is_known(*itt) || held.names(*itt));
        }
        // One whose tag is that of another will be rejected; that one keeps its memory.
        if !session.tasks.contains_key(&pdu.bhs.itt()) {
            let tags = Tags { read: pdu.read, write: pdu.write, unsolicited: pdu.data.len() as u32 };
            state.tags.insert(pdu.bhs.itt(), tags);
        }
        Ok(())
    }

    fn arrived(&self, session: &mut Session, id: u64, buf: lunar_runtime::Buf) -> bool {
        let Some(Coming { header, lands }) = self.state.borrow_mut().coming.remove(&id) else { return true };
        let data = if lands { Data::Landed(buf) } else { Data::Buf(buf) };
        let is_awaited = session.awaits(header.itt(), header.word20());
        let more = !is_awaited || session.take(Arrived { header, ahs: &[], data, intact: true, behind: &[] });
        self.release();
        more
    }
}

impl State {
    /// The initiator waits for this StatSN next: it has all before it.
    fn acknowledged(&mut self, exp_stat_sn: u32) {
        while self.events.front().is_some_and(|stat_sn| precedes(*stat_sn, exp_stat_sn)) {
            self.events.pop_front();
        }
    }

    fn is_busy_for(&self, header: &Bhs) -> bool {
        is_busy(&self.coming, header)
    }

    /// The first of what is held, if it need not wait any more.
    fn let_go(&mut self) -> Option<(Bhs, Payload)> {
        let State { held, coming, .. } = self;
        held.let_go(|header| is_busy(coming, header))
    }
}

/// It tells that tasks have ended while data of some may still come: who hears it uses their memory for something else.
fn is_busy(coming: &HashMap<u64, Coming>, header: &Bhs) -> bool {
    match header.opcode() {
        opcode::TASK_MANAGEMENT_RESPONSE | opcode::LOGOUT_RESPONSE => !coming.is_empty(),
        opcode::ASYNC => header.0[36] == TASK_TERMINATION && !coming.is_empty(),
        opcode::SCSI_RESPONSE => coming.values().any(|coming| coming.header.itt() == header.itt()),
        _ => false,
    }
}

impl carrier::Mover for Mover {
    fn inlet(&self) -> &Inlet {
        &self.inlet
    }

    fn push(&self, header: Bhs, payload: Payload) {
        let mut state = self.state.borrow_mut();
        if header.opcode() == opcode::ASYNC {
            state.events.push_back(header.word(24));
        }
        if state.held.is_empty() && !state.is_busy_for(&header) {
            return self.put(&mut state, header, payload);
        }
        state.held.hold(header, payload);
        if state.held.is_too_much(state.most_tasks) {
            self.endpoint.close();
        }
    }

    fn takes_event(&self) -> bool {
        self.state.borrow().events.len() < EVENTS
    }

    fn flush(&self, session: &mut Session) -> io::Result<bool> {
        self.read(&mut self.state.borrow_mut(), session);
        self.endpoint.flush()
    }

    fn receive(&self, session: &mut Session) -> Result<Received, Broken> {
        self.inlet.receive(session, |session, came| self.came(session, came))
    }

    fn coming(&self) -> carrier::Coming {
        let state = self.state.borrow();
        carrier::Coming { latest_read: state.reads, held: state.held.mark() }
    }

    fn has_come(&self, before: carrier::Coming) -> bool {
        let state = self.state.borrow();
        let has_ended = self.inlet.has_ended();
        has_ended
            || state.held.has_passed(before.held) && !state.coming.keys().any(|id| *id <= before.latest_read)
    }

    fn settled<'a>(&'a self, session: &'a RefCell<Session>) -> Wait<'a, ()> {
        Box::pin(async {
            while !self.state.borrow().held.is_empty() {
                if self.inlet.comes().await.is_err() {
                    return;
                }
                let take = |session: &mut Session, came: Came<'_>| self.came(session, came);
                if self.inlet.take(&mut session.borrow_mut(), take).is_err() {
                    return;
                }
            }
        })
    }
}

fn remote(place: Advertised) -> Remote {
    Remote { stag: place.stag, offset: place.offset }
}

/// The message of a PDU: its head, and its data with padding. Of sense data more than what initiators take is cut off.
pub fn message(mut header: Bhs, payload: Payload) -> ([u8; OVERHEAD], Payload) {
    let mut data = payload.bytes().to_vec();
    if header.opcode() == opcode::SCSI_RESPONSE && data.len() > SAFE_DATA_LEN {
        data.truncate(SAFE_DATA_LEN);
        data[..2].copy_from_slice(&(SAFE_DATA_LEN as u16 - 2).to_be_bytes());
    }
    header.set_data_len(data.len());
    data.resize(lunar_wire::iscsi::padded(data.len()), 0);
    let mut head = [0; OVERHEAD];
    head[..HEADER_LEN].copy_from_slice(&Header::PLAIN.encode());
    head[HEADER_LEN..HEADER_LEN + BHS_LEN].copy_from_slice(&header.0);
    (head, if data.is_empty() { Payload::Empty } else { Payload::Bytes(data) })
}
