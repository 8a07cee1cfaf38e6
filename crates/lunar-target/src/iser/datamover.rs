//! The datamover over RDMA (RFC 7145 section 7). It sends the PDUs of a session as messages, RDMA Writes and RDMA
//! Reads, and passes received messages and data to the session as PDUs.

use super::deferred::DeferredPdus;
use crate::core::{InFlightData, InFlightReads};
use crate::iscsi::receive::{ReceiveError, ReceiveStatus, ReceivedData, ReceivedPdu};
use crate::iscsi::transport::{ConnectionPduHandler, Datamover};
use crate::rdma_receiver::{DeliveryHandler, RdmaDelivery, RdmaReceiver, broken};
use lunar_proto::window::precedes;
use lunar_rdma::{Endpoint, EndpointEvents, RemoteAddress};
use lunar_runtime::send_queue::Payload;
use lunar_runtime::{Buf, LocalBoxFuture, PeerState};
use lunar_wire::iscsi::flag::{self, STATUS};
use lunar_wire::iscsi::status::async_event;
use lunar_wire::iscsi::{BHS_LEN, Bhs, NONE, opcode, pdu, request, sense_segment};
use lunar_wire::iser::{self, AdvertisedBuffer, HEADER_LEN, IserHeader, OVERHEAD, SAFE_DATA_LEN};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;

/// Number of asynchronous messages for which initiators have receive buffers. Linux has two (ISER_MAX_RX_MISC_PDUS).
const MAX_EVENTS: usize = 2;

/// The memory that a command advertises.
#[derive(Clone, Copy, Debug)]
struct AdvertisedBuffers {
    read: Option<AdvertisedBuffer>,
    write: Option<AdvertisedBuffer>,
    /// Bytes of its unsolicited Data-Out.
    unsolicited: u32,
}

/// Data-Out that an RDMA Read fetches from the initiator.
struct RdmaRead {
    /// The header of the Data-Out that carries the data to the session.
    header: Bhs,
    /// Whether the data are placed in the buffer of their task.
    lands: bool,
}

#[derive(Default)]
struct DatamoverState {
    /// By Initiator Task Tag.
    tags: HashMap<u32, AdvertisedBuffers>,
    /// R2Ts whose RDMA Read has not begun.
    pending_r2ts: VecDeque<Bhs>,
    /// By the number of the RDMA Read.
    pending_reads: HashMap<u64, RdmaRead>,
    reads: u64,
    /// StatSNs of unacknowledged events.
    events: VecDeque<u32>,
    /// Responses that report the end of tasks, deferred while data of the tasks are in flight.
    deferred: DeferredPdus,
    /// Maximum number of commands of the session.
    max_tasks: usize,
}

/// The datamover of one connection.
pub struct IserDatamover {
    endpoint: Rc<dyn Endpoint>,
    receiver: RdmaReceiver,
    inner: RefCell<DatamoverState>,
    /// Whether responses invalidate the STags of their commands.
    invalidate: bool,
    /// Whether the advertised memory of a write begins with its first byte, instead of after its unsolicited data.
    starts_at_first_byte: bool,
}

impl IserDatamover {
    /// A connection that has logged in. `events`: events that arrived since.
    pub fn new(
        endpoint: Rc<dyn Endpoint>,
        events: EndpointEvents,
        longest: usize,
        invalidate: bool,
        starts_at_first_byte: bool,
    ) -> IserDatamover {
        let receiver = RdmaReceiver::new(endpoint.clone(), longest, events);
        IserDatamover { endpoint, receiver, inner: RefCell::default(), invalidate, starts_at_first_byte }
    }

    /// Sends a PDU, or performs the RDMA operation that it represents.
    fn send_pdu(&self, inner: &mut DatamoverState, header: Bhs, payload: Payload) {
        match header.opcode() {
            opcode::DATA_IN => self.data_in(inner, &header, payload),
            opcode::R2T => inner.pending_r2ts.push_back(header),
            opcode::SCSI_RESPONSE => {
                let tags = inner.tags.remove(&header.itt());
                let tag = tags.and_then(|tags| tags.read.or(tags.write)).filter(|_| self.invalidate);
                self.send_message(header, payload, tag.map(|tag| tag.stag));
            }
            _ => self.send_message(header, payload, None),
        }
    }

    fn send_message(&self, header: Bhs, payload: Payload, invalidate: Option<u32>) {
        let (head, payload) = message(header, payload);
        self.endpoint.send(&head, payload, invalidate);
    }

    /// Writes Data-In to the advertised memory. Only a SCSI Response carries status (RFC 7145 section 7.3.5).
    fn data_in(&self, inner: &mut DatamoverState, header: &Bhs, payload: Payload) {
        let itt = header.itt();
        if let Some(place) = inner.tags.get(&itt).and_then(|tags| tags.read) {
            self.endpoint.write(remote(place).beyond(header.buffer_offset().into()), payload);
        }
        if header.flags() & STATUS != 0 {
            let mut response = pdu::scsi_response(
                itt,
                header.flags() & (flag::OVERFLOW | flag::UNDERFLOW),
                0,
                header.scsi_status(),
            );
            pdu::stamp(&mut response, header.stat_sn(), header.exp_cmd_sn(), header.max_cmd_sn());
            response.set_residual_count(header.residual_count());
            self.send_pdu(inner, response, Payload::Empty);
        }
    }

    /// Begins the RDMA Reads of queued R2Ts, except those whose task has ended.
    fn read(&self, inner: &mut DatamoverState, handler: &mut dyn ConnectionPduHandler) {
        while let Some(r2t) = inner.pending_r2ts.pop_front() {
            let (offset, len) = (r2t.buffer_offset(), r2t.desired_len());
            let burst = request::DataOutTags { lun: r2t.lun(), itt: r2t.itt(), ttt: r2t.ttt() };
            let mut header = request::data_out(burst, 0, offset, true, 0);
            header.set_data_len(len as usize);
            let Some(from) = inner.tags.get(&r2t.itt()).and_then(|tags| self.source(tags, offset)) else {
                continue;
            };
            if !handler.is_awaiting(r2t.itt(), r2t.ttt()) {
                continue;
            }
            let place = handler.place(&header);
            let lands = place.is_some();
            let (buf, at) = place.unwrap_or_else(|| (handler.buffer(len as usize), 0));
            inner.reads += 1;
            inner.pending_reads.insert(inner.reads, RdmaRead { header, lands });
            self.endpoint.read(inner.reads, from, buf, at, len as usize);
        }
    }

    /// The address at the initiator of byte `offset` of a command's Data-Out.
    fn source(&self, tags: &AdvertisedBuffers, offset: u32) -> Option<RemoteAddress> {
        let before = if self.starts_at_first_byte { 0 } else { tags.unsolicited };
        Some(remote(tags.write?).beyond(u64::from(offset.checked_sub(before)?)))
    }

    /// Sends deferred responses up to the first that must wait.
    fn release(&self) {
        let mut inner = self.inner.borrow_mut();
        while let Some((header, payload)) = inner.pop_ready() {
            self.send_pdu(&mut inner, header, payload);
        }
    }

    fn message(&self, handler: &mut dyn ConnectionPduHandler, message: &[u8]) -> io::Result<bool> {
        let pdu = iser::IserPdu::decode(message).map_err(|e| broken(e.to_string()))?;
        let has_event_room = self.inner.borrow_mut().acknowledged(pdu.bhs.exp_stat_sn());
        if has_event_room {
            handler.announce_unsent();
        }
        match pdu.bhs.opcode() {
            opcode::SCSI_COMMAND => self.record_memory(handler, &pdu)?,
            // It would be mistaken for data of an RDMA Read.
            opcode::DATA_OUT if pdu.bhs.ttt() != NONE => {
                return Err(broken(
                    "the initiator sent solicited Data-Out in an iSER message; RDMA is required",
                ));
            }
            _ => {}
        }
        Ok(handler.take(ReceivedPdu {
            header: pdu.bhs,
            ahs: pdu.ahs,
            data: ReceivedData::Bytes(pdu.data),
            intact: true,
            behind: &[],
        }))
    }

    /// Records the memory that a command advertises.
    fn record_memory(&self, handler: &dyn ConnectionPduHandler, pdu: &iser::IserPdu<'_>) -> io::Result<()> {
        let (flags, edtl) = (pdu.bhs.flags(), pdu.bhs.edtl() as usize);
        let (reads, writes) = (flags & flag::READ != 0, flags & flag::WRITE != 0);
        if (reads && edtl > 0 && pdu.read.is_none())
            || (writes && edtl > pdu.data.len() && pdu.write.is_none())
        {
            return Err(broken("the initiator sent a command without a steering tag for its data"));
        }
        let mut inner = self.inner.borrow_mut();
        inner.max_tasks = handler.max_tasks();
        // Remove entries of tasks that ended without a response. The session does not know the new command yet.
        if inner.tags.len() >= 2 * inner.max_tasks {
            let DatamoverState { tags, deferred, .. } = &mut *inner;
            let is_known = |itt: u32| handler.has_task(itt) || handler.is_held(itt);
            tags.retain(|itt, _| is_known(*itt) || deferred.names(*itt));
        }
        // A command whose tag is in use will be rejected, and the other command keeps its memory.
        if !handler.has_task(pdu.bhs.itt()) {
            let tags =
                AdvertisedBuffers { read: pdu.read, write: pdu.write, unsolicited: pdu.data.len() as u32 };
            inner.tags.insert(pdu.bhs.itt(), tags);
        }
        Ok(())
    }

    fn arrived(&self, handler: &mut dyn ConnectionPduHandler, id: u64, buf: Buf) -> bool {
        let Some(RdmaRead { header, lands }) = self.inner.borrow_mut().pending_reads.remove(&id) else {
            return true;
        };
        let data = if lands { ReceivedData::Placed(buf) } else { ReceivedData::Buf(buf) };
        let is_awaited = handler.is_awaiting(header.itt(), header.ttt());
        let more =
            !is_awaited || handler.take(ReceivedPdu { header, ahs: &[], data, intact: true, behind: &[] });
        self.release();
        more
    }
}

impl DatamoverState {
    /// Handles an acknowledgement of every StatSN before this one. Returns whether an event is among them.
    fn acknowledged(&mut self, exp_stat_sn: u32) -> bool {
        let before = self.events.len();
        while self.events.front().is_some_and(|stat_sn| precedes(*stat_sn, exp_stat_sn)) {
            self.events.pop_front();
        }
        self.events.len() < before
    }

    /// The first deferred response, if it need not wait any longer.
    fn pop_ready(&mut self) -> Option<(Bhs, Payload)> {
        let DatamoverState { deferred, pending_reads, .. } = self;
        deferred.pop_ready(|header| is_busy(pending_reads, header))
    }
}

/// Whether a response must wait because it reports the end of tasks whose data may still arrive. An initiator that
/// receives it reuses their memory.
fn is_busy(pending_reads: &HashMap<u64, RdmaRead>, header: &Bhs) -> bool {
    match header.opcode() {
        opcode::TASK_MANAGEMENT_RESPONSE | opcode::LOGOUT_RESPONSE => !pending_reads.is_empty(),
        opcode::ASYNC => header.async_event() == async_event::TASK_TERMINATION && !pending_reads.is_empty(),
        opcode::SCSI_RESPONSE => {
            pending_reads.values().any(|pending_reads| pending_reads.header.itt() == header.itt())
        }
        _ => false,
    }
}

/// Passes the received messages and data to the session.
struct PduAdapter<'a> {
    datamover: &'a IserDatamover,
    handler: &'a mut dyn ConnectionPduHandler,
}

impl DeliveryHandler for PduAdapter<'_> {
    fn take(&mut self, delivery: RdmaDelivery<'_>) -> io::Result<bool> {
        match delivery {
            RdmaDelivery::Message(message) => self.datamover.message(self.handler, message),
            RdmaDelivery::Read(id, buf) => Ok(self.datamover.arrived(self.handler, id, buf)),
        }
    }

    fn is_full(&self) -> bool {
        self.handler.is_full()
    }
}

impl InFlightData for IserDatamover {
    fn waiting(&self) -> usize {
        self.endpoint.waiting()
    }

    fn reads(&self) -> InFlightReads {
        let inner = self.inner.borrow();
        inner.deferred.mark(inner.reads)
    }

    fn have_ended(&self, before: InFlightReads) -> bool {
        let inner = self.inner.borrow();
        let reads_up_to = |number| inner.pending_reads.keys().any(|id| *id <= number);
        self.receiver.has_ended() || inner.deferred.has_passed(before, reads_up_to)
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

impl Datamover for IserDatamover {
    fn push(&self, header: Bhs, payload: Payload) {
        let mut inner = self.inner.borrow_mut();
        if header.opcode() == opcode::ASYNC {
            inner.events.push_back(header.stat_sn());
        }
        if !inner.deferred.must_defer(|| is_busy(&inner.pending_reads, &header)) {
            return self.send_pdu(&mut inner, header, payload);
        }
        inner.deferred.push(header, payload);
        if inner.deferred.is_over_limit(inner.max_tasks) {
            self.endpoint.close();
        }
    }

    fn can_send_event(&self) -> bool {
        self.inner.borrow().events.len() < MAX_EVENTS
    }

    fn flush(&self, handler: &mut dyn ConnectionPduHandler) -> io::Result<bool> {
        self.read(&mut self.inner.borrow_mut(), handler);
        self.endpoint.flush()
    }

    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.endpoint.writable()
    }

    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.receiver.readable()
    }

    fn receive(&self, handler: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError> {
        Ok(self.receiver.receive(&mut PduAdapter { datamover: self, handler })?)
    }

    fn receive_arrived(&self, handler: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError> {
        Ok(self.receiver.receive_arrived(&mut PduAdapter { datamover: self, handler })?)
    }

    fn readable_after_stop(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.receiver.wait_for_event())
    }

    fn receive_after_stop(
        &self,
        handler: &mut dyn ConnectionPduHandler,
    ) -> Result<ReceiveStatus, ReceiveError> {
        Ok(self.receiver.take(&mut PduAdapter { datamover: self, handler })?)
    }

    fn has_deferred(&self) -> bool {
        !self.inner.borrow().deferred.is_empty()
    }

    fn take_moved(&self) -> bool {
        self.endpoint.take_moved()
    }

    /// RDMA has no half-closed connections.
    fn peer_state(&self) -> PeerState {
        if self.receiver.ends() { PeerState::Reset } else { PeerState::Open }
    }

    fn recheck_peer(&self) {
        self.endpoint.recheck_peer();
    }

    fn stop_receiving(&self) {
        self.receiver.stop();
    }

    fn close(&self) {
        self.receiver.close();
    }
}

fn remote(place: AdvertisedBuffer) -> RemoteAddress {
    RemoteAddress { stag: place.stag, offset: place.offset }
}

/// The message of a PDU: its headers, and its data with padding. Sense data are cut to the length that initiators
/// accept.
pub fn message(mut header: Bhs, payload: Payload) -> ([u8; OVERHEAD], Payload) {
    let mut data = payload.bytes().to_vec();
    if header.opcode() == opcode::SCSI_RESPONSE {
        sense_segment::truncate(&mut data, SAFE_DATA_LEN);
    }
    header.set_data_len(data.len());
    data.resize(lunar_wire::iscsi::padded(data.len()), 0);
    let mut head = [0; OVERHEAD];
    head[..HEADER_LEN].copy_from_slice(&IserHeader::PLAIN.encode());
    head[HEADER_LEN..HEADER_LEN + BHS_LEN].copy_from_slice(header.as_bytes());
    (head, if data.is_empty() { Payload::Empty } else { Payload::Bytes(data) })
}
