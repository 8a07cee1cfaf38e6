//! An initiator that behaves like Linux: it logs in like Open-iSCSI, and then accepts 128 bytes of data per message,
//! like `ib_iser`.

use crate::test_target::NAME;
use lunar_rdma::mem::{EndpointOp, Faults};
use lunar_rdma::{Endpoint, EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::{Bhs, NONE, opcode};
use lunar_wire::iser::{
    AdvertisedBuffer, HEADER_LEN, IserHeader, IserPdu, LOGIN_LEN, OVERHEAD, SAFE_DATA_LEN,
};
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::{TaskAttribute, TaskManagementFunction};
use std::rc::Rc;

/// Size of its receive buffers in full feature phase, in bytes.
pub const ROOM: usize = OVERHEAD + SAFE_DATA_LEN;
/// Number of these buffers.
const RECEIVES: usize = 127;

/// The keys of its first request, as Open-iSCSI sends them.
pub const NAMES: &str = "InitiatorName=iqn.2026-11.org.example:host\nInitiatorAlias=host\n\
    TargetName=iqn.2026-11.org.example:disk\nSessionType=Normal\nAuthMethod=None\n";
/// The keys of the first request of a Discovery session.
pub const DISCOVERY: &str = "InitiatorName=iqn.2026-11.org.example:host\nInitiatorAlias=host\n\
    SessionType=Discovery\nAuthMethod=None\n";
/// The keys of its second request.
pub const KEYS: &str = "DefaultTime2Wait=2\nDefaultTime2Retain=0\nIFMarker=No\nOFMarker=No\nErrorRecoveryLevel=0\n\
    InitialR2T=No\nImmediateData=Yes\nMaxBurstLength=16776192\nFirstBurstLength=262144\nMaxOutstandingR2T=1\n\
    MaxConnections=1\nDataPDUInOrder=Yes\nDataSequenceInOrder=Yes\nRDMAExtensions=Yes\n\
    InitiatorRecvDataSegmentLength=262144\nTargetRecvDataSegmentLength=8192\n";

/// CSG, NSG and T of the two Login Requests.
const SECURITY: u8 = 0x81;
const OPERATIONAL: u8 = 0x87;

/// A message of the target.
#[derive(Debug)]
pub struct TargetMessage {
    /// Its header.
    pub bhs: Bhs,
    /// Its data.
    pub data: Vec<u8>,
    /// The STag that it invalidated.
    pub invalidated: Option<u32>,
}

impl TargetMessage {
    /// Flags and residual count of a response.
    pub fn residual(&self) -> (u8, u32) {
        (self.bhs.flags() & 0x06, self.bhs.residual_count())
    }

    /// SCSI status.
    pub fn status(&self) -> u8 {
        self.bhs.scsi_status()
    }
}

/// The initiator's end of a connection.
pub struct Host {
    /// The connection.
    pub end: Rc<dyn Endpoint>,
    /// The private data of the target's reply.
    pub private: Vec<u8>,
    /// Faults at the initiator and at the target.
    pub faults: [Rc<Faults>; 2],
    /// Resolves when the target has finished serving the connection.
    pub served: compio::runtime::JoinHandle<()>,
    events: EndpointEvents,
    room: usize,
    stat_sn: u32,
    /// CmdSN of the next command.
    pub cmd_sn: u32,
    /// Initiator Task Tag of the latest request.
    pub itt: u32,
}

impl Host {
    /// A new connection.
    pub fn new(
        end: Rc<dyn Endpoint>,
        private: Vec<u8>,
        faults: [Rc<Faults>; 2],
        served: compio::runtime::JoinHandle<()>,
    ) -> Host {
        let events = EndpointEvents::default();
        Host { end, private, faults, served, events, room: LOGIN_LEN, stat_sn: 0, cmd_sn: 1, itt: 0 }
    }

    /// The RDMA operations of the target since the last call.
    pub fn take_operations(&self) -> Vec<EndpointOp> {
        self.faults[1].take_log()
    }

    /// Sends bytes.
    pub fn send_bytes(&self, message: &[u8]) {
        self.end.send(message, Payload::Empty, None);
        // The target may have ended the connection because of it.
        let _ = self.end.flush();
    }

    /// Sends a PDU.
    pub fn send(&self, header: IserHeader, mut bhs: Bhs, data: &[u8]) {
        bhs.set_data_len(data.len());
        let mut message = [&header.encode()[..], bhs.as_bytes(), data].concat();
        message.resize(message.len().next_multiple_of(4), 0);
        self.send_bytes(&message);
    }

    /// Sends an immediate request.
    pub fn send_immediate(&self, mut bhs: Bhs, data: &[u8]) {
        request::stamp(&mut bhs, self.cmd_sn, self.stat_sn);
        self.send(IserHeader::PLAIN, bhs, data);
    }

    /// Receives the next message. None: the connection has ended.
    pub async fn next(&mut self) -> Option<TargetMessage> {
        while self.events.is_empty() {
            self.events.clear();
            let _ = self.end.readable().await;
            self.end.poll(&mut self.events);
        }
        match self.events.list.remove(0) {
            EndpointEvent::Message(range, invalidated) => Some(self.read_message(range, invalidated)),
            EndpointEvent::Read(..) => panic!("no RDMA Read"),
            EndpointEvent::End(_) => None,
        }
    }

    fn read_message(&mut self, range: std::ops::Range<usize>, invalidated: Option<u32>) -> TargetMessage {
        self.end.receives(1, self.room);
        let message = &self.events.bytes[range];
        assert_eq!(message[..HEADER_LEN], IserHeader::PLAIN.encode(), "a plain header");
        let pdu = IserPdu::decode(message).expect("a PDU");
        let (bhs, data) = (pdu.bhs, pdu.data.to_vec());
        assert!(!matches!(bhs.opcode(), opcode::DATA_IN | opcode::R2T), "Data-In and R2T move by RDMA");
        if bhs.opcode() != opcode::NOP_IN || bhs.itt() != NONE {
            let first = bhs.opcode() == opcode::LOGIN_RESPONSE && self.stat_sn == 0;
            assert!(first || bhs.stat_sn() == self.stat_sn, "StatSN");
            self.stat_sn = bhs.stat_sn().wrapping_add(1);
        }
        TargetMessage { bhs, data, invalidated }
    }

    /// Receives the next message, which must have this opcode.
    pub async fn receive(&mut self, kind: u8) -> TargetMessage {
        let received = self.next().await.expect("a live connection");
        assert_eq!(opcode::name(received.bhs.opcode()), opcode::name(kind), "{received:?}");
        received
    }

    /// Receives the response to a command.
    pub async fn answer(&mut self, itt: u32) -> TargetMessage {
        let received = self.receive(opcode::SCSI_RESPONSE).await;
        assert_eq!(received.bhs.itt(), itt);
        received
    }

    /// Waits for the end of the connection. Nothing may arrive before it.
    pub async fn expect_close(mut self) {
        if let Some(received) = self.next().await {
            panic!("{received:?}");
        }
        drop(self.end);
        self.served.await.expect("a clean end");
    }

    /// Sends a Login Request with these keys.
    pub fn send_login(&mut self, isid: u8, flags: u8, keys: &str) {
        let mut bhs = Bhs::new(opcode::LOGIN | 0x40);
        bhs.set_flags(flags);
        bhs.set_isid([0x80, 0, 0, 0, 0, isid]);
        bhs.set_itt(1);
        self.send_immediate(bhs, keys.replace('\n', "\0").as_bytes());
    }

    /// Receives a Login Response with status class 0. Returns its keys.
    pub async fn keys(&mut self) -> Vec<(String, String)> {
        let received = self.receive(opcode::LOGIN_RESPONSE).await;
        assert_eq!(
            received.bhs.login_status(),
            lunar_wire::iscsi::status::LoginStatus::SUCCESS,
            "{received:?}"
        );
        pairs(&received.data)
    }

    /// Logs in with these keys. Returns the keys of both responses.
    pub async fn negotiate(&mut self, isid: u8, names: &str, keys: &str) -> Vec<(String, String)> {
        self.send_login(isid, SECURITY, names);
        let mut said = self.keys().await;
        self.last_request(isid, keys);
        said.extend(self.keys().await);
        said
    }

    /// Posts the receive buffers, and sends the final Login Request.
    pub fn last_request(&mut self, isid: u8, keys: &str) {
        if !keys.contains("MaxRecv") {
            self.room = ROOM;
            self.end.receives(RECEIVES, ROOM);
        }
        self.send_login(isid, OPERATIONAL, keys);
    }

    /// Logs in as Open-iSCSI does.
    pub async fn log_in(&mut self, isid: u8) -> Vec<(String, String)> {
        assert!(NAMES.contains(NAME));
        self.negotiate(isid, NAMES, KEYS).await
    }

    /// Receives the unit attentions of a new session.
    pub async fn receive_attentions(&mut self) {
        for lun in [0, 1] {
            let mut bhs = self.command(&cdb::test_unit_ready());
            bhs.set_lun(lun << 48);
            self.send(IserHeader::PLAIN, bhs, &[]);
            let received = self.answer(bhs.itt()).await;
            assert_eq!((received.status(), received.data[2 + 2]), (2, 6), "UNIT ATTENTION");
        }
        self.take_operations();
    }

    /// The header of the next command, without data.
    pub fn command(&mut self, cdb: &Cdb) -> Bhs {
        self.itt += 1;
        let mut bhs = request::scsi_command(0, self.itt, TaskAttribute::Simple, cdb);
        request::stamp(&mut bhs, self.cmd_sn, self.stat_sn);
        self.cmd_sn += 1;
        bhs
    }

    /// Sends a command that reads up to `len` bytes into exposed memory. Returns its tag and the memory.
    pub fn read(&mut self, cdb: &Cdb, len: usize) -> (u32, RemoteAddress) {
        let place = self.end.expose(MemoryRegion::Sink(Buf::zeroed(len))).unwrap();
        let mut bhs = self.command(cdb);
        request::set_read(&mut bhs, len as u32);
        self.send(IserHeader::Control { write: None, read: Some(advertised(place)) }, bhs, &[]);
        (bhs.itt(), place)
    }

    /// Sends a command that writes `data`, of which `immediate` bytes are in the message. The advertised memory
    /// begins after those, as with Linux.
    pub fn write(&mut self, cdb: &Cdb, data: &[u8], immediate: usize) -> (u32, RemoteAddress) {
        let place = self.expose(data);
        (self.write_from(cdb, data, immediate, place.beyond(immediate as u64)), place)
    }

    /// Exposes bytes for RDMA Reads.
    pub fn expose(&self, data: &[u8]) -> RemoteAddress {
        let buf = Buf::copy_of(data);
        self.end.expose(MemoryRegion::Source(Rc::new(buf))).unwrap()
    }

    /// The same, with advertised memory that begins at `from`.
    pub fn write_from(&mut self, cdb: &Cdb, data: &[u8], immediate: usize, from: RemoteAddress) -> u32 {
        let mut bhs = self.command(cdb);
        request::set_write(&mut bhs, data.len() as u32, false);
        let write = (immediate < data.len()).then(|| advertised(from));
        self.send(IserHeader::Control { write, read: None }, bhs, &data[..immediate]);
        bhs.itt()
    }

    /// Revokes memory. Returns its content.
    pub fn revoke_memory(&self, place: RemoteAddress) -> Vec<u8> {
        match self.end.revoke(place.stag) {
            Some(MemoryRegion::Sink(buf)) => buf.to_vec(),
            Some(MemoryRegion::Source(buf)) => buf.to_vec(),
            None => panic!("exposed memory"),
        }
    }

    /// Reads blocks of the disk.
    pub async fn blocks(&mut self, lba: u32, count: u16) -> Vec<u8> {
        let (itt, place) = self.read(&cdb::read_10(lba, count), usize::from(count) * 512);
        let received = self.answer(itt).await;
        assert_eq!((received.status(), received.residual()), (0, (0, 0)), "{received:?}");
        self.revoke_memory(place)
    }

    /// Sends a task management function for LUN 0.
    pub fn manage(&mut self, function: TaskManagementFunction, task: Option<(u32, u32)>) -> u32 {
        self.itt += 1;
        self.send_immediate(request::task_management(0, self.itt, function, task), &[]);
        self.itt
    }

    /// Sends a ping.
    pub fn ping(&mut self, data: &[u8]) -> u32 {
        self.itt += 1;
        self.send_immediate(request::nop_out(0, self.itt, NONE), data);
        self.itt
    }

    /// Checks that the connection works.
    pub async fn expect_alive(&mut self) {
        let itt = self.ping(&[]);
        assert_eq!(self.receive(opcode::NOP_IN).await.bhs.itt(), itt);
    }
}

/// Converts an address to the form in which a command advertises it.
pub fn advertised(place: RemoteAddress) -> AdvertisedBuffer {
    AdvertisedBuffer { stag: place.stag, offset: place.offset }
}

/// The pairs of key text.
pub fn pairs(text: &[u8]) -> Vec<(String, String)> {
    let pairs = lunar_wire::iscsi::text::pairs(text).map(|pair| pair.expect("key text"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Bytes that depend on their offset.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 31 + i * 7) as u8).collect()
}
