//! The initiator's Datamover over RDMA (RFC 7145 section 7). The memory of a command is registered for the target
//! until the response arrives.

use crate::session::tag_map::TagMap;
use crate::session::task::{Data, Task};
use crate::session::transport::{self, DatamoverEvents};
use crate::{Error, ErrorCode};
use lunar_proto::parameters::Parameters;
use lunar_rdma::{Endpoint, EndpointEvents, LocalBoxFuture, MemoryRegion, RemoteAddress};
use lunar_runtime::iscsi::receive::{ReceiveError, ReceiveStatus, ReceivedData, ReceivedPdu};
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::flag::{OVERFLOW, UNDERFLOW};
use lunar_wire::iscsi::{Bhs, opcode, padded, request, sense_segment};
use lunar_wire::iser::{self, AdvertisedBuffer, IserHeader, LOGIN_LEN};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

#[derive(Default)]
struct State {
    /// The steering tags of commands, by Initiator Task Tag.
    lent: TagMap<u32>,
    /// Received events that are not handled yet.
    events: EndpointEvents,
}

/// The Datamover of one connection.
pub struct IserDatamover {
    endpoint: Rc<dyn Endpoint>,
    state: RefCell<State>,
}

impl IserDatamover {
    /// Starts the Datamover of a connection after login. `events` were received since the login.
    pub fn new(endpoint: Rc<dyn Endpoint>, events: EndpointEvents) -> IserDatamover {
        IserDatamover { endpoint, state: RefCell::new(State { events, ..State::default() }) }
    }

    fn lend(&self, itt: u32, memory: MemoryRegion) -> Result<RemoteAddress, Error> {
        let place = self.endpoint.expose(memory).map_err(|e| transport::cannot_lend(&e))?;
        self.state.borrow_mut().lent.insert(itt, place.stag);
        Ok(place)
    }

    /// Revokes the memory of a command.
    fn take_back(&self, itt: u32) -> Option<MemoryRegion> {
        let stag = self.state.borrow_mut().lent.remove(itt)?;
        self.endpoint.revoke(stag)
    }

    /// Delivers a PDU. Returns false if the session accepts no more.
    fn message(&self, session: &mut dyn DatamoverEvents, message: &[u8]) -> bool {
        let pdu = match iser::IserPdu::decode(message) {
            Ok(pdu) => pdu,
            Err(e) => return breaks(session, &e.to_string()),
        };
        if pdu.read.is_some() || pdu.write.is_some() {
            return breaks(
                session,
                "the target sent an iSER header with a steering tag, which only initiators may send",
            );
        }
        match pdu.bhs.opcode() {
            opcode::SCSI_RESPONSE => self.give_back(session, &pdu.bhs, pdu.data),
            opcode::DATA_IN | opcode::R2T => {
                return breaks(
                    session,
                    &format!(
                        "the target sent a {} PDU over iSER, where the data moves by RDMA",
                        opcode::name(pdu.bhs.opcode())
                    ),
                );
            }
            _ => {}
        }
        session.take_pdu(ReceivedPdu {
            header: pdu.bhs,
            ahs: pdu.ahs,
            data: ReceivedData::Bytes(pdu.data),
            intact: true,
            behind: &[],
        })
    }

    /// Returns the buffer of a completed command to the session. The residual count gives the number of bytes that
    /// were not filled.
    fn give_back(&self, session: &mut dyn DatamoverEvents, response: &Bhs, data: &[u8]) {
        if let Some(MemoryRegion::Sink(buf)) = self.take_back(response.itt()) {
            let residual = match response.flags() & (OVERFLOW | UNDERFLOW) {
                0 => None,
                OVERFLOW => Some(0),
                _ => Some(response.residual_count()),
            };
            let sense = sense_segment::undelimited(data);
            session.filled(response.itt(), buf, transport::unfilled(residual, response.scsi_status(), sense));
        }
    }
}

impl transport::Datamover for IserDatamover {
    fn push(&self, header: Bhs, payload: Payload) {
        let (head, payload) = message(IserHeader::PLAIN, header, &[], payload);
        self.endpoint.send(&head, payload, None);
    }

    fn command(&self, mut header: Bhs, task: &mut Task, p: &Parameters) -> Result<(), Error> {
        let (mut read, mut write, mut payload) = (None, None, Payload::Empty);
        let ahs = task.extended_cdb.as_ref().map_or(&[][..], |cdb| cdb.ahs());
        match &mut task.data {
            Data::None => {}
            Data::In(buf, _) => {
                request::set_read(&mut header, task.expected);
                let lent = buf.take().map(|buf| self.lend(task.tag, MemoryRegion::Sink(buf)));
                read = lent.transpose()?.map(advertised);
            }
            Data::Out(buf) => {
                // Linux counts the headers in the longest data segment that it accepts.
                let room = (p.target_recv_data_segment_length as usize).saturating_sub(ahs.len());
                let first = (p.first_burst_length as usize).min(room).min(buf.len());
                let immediate = if p.immediate_data { first } else { 0 };
                request::set_write(&mut header, task.expected, false);
                if immediate < buf.len() {
                    let place = self.lend(task.tag, MemoryRegion::Source(buf.clone()))?;
                    // As in Linux, the advertised memory begins after the immediate data.
                    write = Some(advertised(place.beyond(immediate as u64)));
                }
                if immediate > 0 {
                    payload = Payload::Part(buf.clone(), 0, immediate);
                }
            }
        }
        let (head, payload) = message(IserHeader::Control { write, read }, header, ahs, payload);
        self.endpoint.send(&head, payload, None);
        Ok(())
    }

    fn ended(&self, itt: u32) {
        // The command has ended: no owner waits for the data.
        drop(self.take_back(itt));
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
        let mut events = std::mem::take(&mut self.state.borrow_mut().events);
        if events.is_empty() {
            events.clear();
            self.endpoint.poll(&mut events);
        }
        let result = transport::messages(&*self.endpoint, &mut events, LOGIN_LEN, |message| {
            Ok(self.message(session, message))
        });
        self.state.borrow_mut().events = events;
        result
    }

    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.endpoint.readable()
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

fn advertised(place: RemoteAddress) -> AdvertisedBuffer {
    AdvertisedBuffer { stag: place.stag, offset: place.offset }
}

/// Fails the session after a protocol violation. Returns false.
fn breaks(session: &mut dyn DatamoverEvents, what: &str) -> bool {
    session.fail(Error::new(ErrorCode::ProtocolError, what));
    false
}

/// The message of a PDU: headers, data and padding.
pub fn message(header: IserHeader, mut bhs: Bhs, ahs: &[u8], payload: Payload) -> (Vec<u8>, Payload) {
    let len = payload.bytes().len();
    bhs.set_data_len(len);
    bhs.set_ahs_len(ahs.len());
    let head = [&header.encode()[..], bhs.as_bytes(), ahs].concat();
    let payload = match payload {
        Payload::Bytes(mut bytes) => {
            bytes.resize(padded(len), 0);
            Payload::Bytes(bytes)
        }
        // Other payloads stay unpadded; the receiver accepts that.
        other => other,
    };
    (head, payload)
}
