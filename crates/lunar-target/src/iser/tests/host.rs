//! An initiator as Linux plays it: Open-iSCSI logs in, ib_iser has room for 128 bytes of data after that.

use super::test_target::NAME;
use lunar_rdma::mem::{EndpointOp, Faults};
use lunar_rdma::{Endpoint, EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::out::Payload;
use lunar_wire::iscsi::request::{self, TaskAttribute, TaskManagementFunction};
use lunar_wire::iscsi::{Bhs, NONE, opcode};
use lunar_wire::iser::{
    AdvertisedBuffer, HEADER_LEN, IserHeader, IserPdu, LOGIN_LEN, OVERHEAD, SAFE_DATA_LEN,
};
use lunar_wire::scsi::cdb::{self, Cdb};
use std::rc::Rc;

/// Bytes of its receives in full feature phase.
pub const ROOM: usize = OVERHEAD + SAFE_DATA_LEN;
/// So many of them.
const RECEIVES: usize = 127;

/// The keys of its first request, as Open-iSCSI says them.
pub const NAMES: &str = "InitiatorName=iqn.2026-11.org.example:host\nInitiatorAlias=host\n\
    TargetName=iqn.2026-11.org.example:disk\nSessionType=Normal\nAuthMethod=None\n";
/// The same of a Discovery session.
pub const DISCOVERY: &str = "InitiatorName=iqn.2026-11.org.example:host\nInitiatorAlias=host\n\
    SessionType=Discovery\nAuthMethod=None\n";
/// The keys of its second request.
pub const KEYS: &str = "DefaultTime2Wait=2\nDefaultTime2Retain=0\nIFMarker=No\nOFMarker=No\nErrorRecoveryLevel=0\n\
    InitialR2T=No\nImmediateData=Yes\nMaxBurstLength=16776192\nFirstBurstLength=262144\nMaxOutstandingR2T=1\n\
    MaxConnections=1\nDataPDUInOrder=Yes\nDataSequenceInOrder=Yes\nRDMAExtensions=Yes\n\
    InitiatorRecvDataSegmentLength=262144\nTargetRecvDataSegmentLength=8192\n";

/// CSG, NSG and T of the two requests.
const SECURITY: u8 = 0x81;
const OPERATIONAL: u8 = 0x87;

/// A message of the target.
#[derive(Debug)]
pub struct TargetMessage {
    /// Its header.
    pub bhs: Bhs,
    /// Its data.
    pub data: Vec<u8>,
    /// The tag that it ended.
    pub invalidated: Option<u32>,
}

impl TargetMessage {
    /// Flags and residual count of a response.
    pub fn residual(&self) -> (u8, u32) {
        (self.bhs.flags() & 0x06, self.bhs.word(44))
    }

    /// SCSI status.
    pub fn status(&self) -> u8 {
        self.bhs.0[3]
    }
}

/// The initiator's end of a connection.
pub struct Host {
    /// The connection.
    pub end: Rc<dyn Endpoint>,
    /// What the target said with it.
    pub private: Vec<u8>,
    /// What goes wrong at this side and at that of the target.
    pub faults: [Rc<Faults>; 2],
    /// Ends when the target is done with it.
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
    /// A connection that was made.
    pub fn new(
        end: Rc<dyn Endpoint>,
        private: Vec<u8>,
        faults: [Rc<Faults>; 2],
        served: compio::runtime::JoinHandle<()>,
    ) -> Host {
        let events = EndpointEvents::default();
        Host { end, private, faults, served, events, room: LOGIN_LEN, stat_sn: 0, cmd_sn: 1, itt: 0 }
    }

    /// What the target did since this was asked last.
    pub fn did(&self) -> Vec<EndpointOp> {
        self.faults[1].take_log()
    }

    /// Sends bytes.
    pub fn say_bytes(&self, message: &[u8]) {
        self.end.send(message, Payload::Empty, None);
        // The target may have ended the connection for it.
        let _ = self.end.flush();
    }

    /// Sends a PDU.
    pub fn say(&self, header: IserHeader, mut bhs: Bhs, data: &[u8]) {
        bhs.set_data_len(data.len());
        let mut message = [&header.encode()[..], &bhs.0, data].concat();
        message.resize(message.len().next_multiple_of(4), 0);
        self.say_bytes(&message);
    }

    /// Sends a request outside the order of CmdSN.
    pub fn ask(&self, mut bhs: Bhs, data: &[u8]) {
        request::stamp(&mut bhs, self.cmd_sn, self.stat_sn);
        self.say(IserHeader::PLAIN, bhs, data);
    }

    /// The next message; None when the connection is over.
    pub async fn next(&mut self) -> Option<TargetMessage> {
        while self.events.is_empty() {
            self.events.clear();
            let _ = self.end.readable().await;
            self.end.poll(&mut self.events);
        }
        match self.events.list.remove(0) {
            EndpointEvent::Message(range, invalidated) => Some(self.read_message(range, invalidated)),
            EndpointEvent::Read(..) => panic!("it reads nothing"),
            EndpointEvent::End(_) => None,
        }
    }

    fn read_message(&mut self, range: std::ops::Range<usize>, invalidated: Option<u32>) -> TargetMessage {
        self.end.receives(1, self.room);
        let message = &self.events.bytes[range];
        assert_eq!(message[..HEADER_LEN], IserHeader::PLAIN.encode(), "a target says no more");
        let pdu = IserPdu::decode(message).expect("a PDU");
        let (bhs, data) = (pdu.bhs, pdu.data.to_vec());
        assert!(!matches!(bhs.opcode(), opcode::DATA_IN | opcode::R2T), "they go by RDMA");
        if bhs.opcode() != opcode::NOP_IN || bhs.itt() != NONE {
            let first = bhs.opcode() == opcode::LOGIN_RESPONSE && self.stat_sn == 0;
            assert!(first || bhs.word(24) == self.stat_sn, "StatSN");
            self.stat_sn = bhs.word(24).wrapping_add(1);
        }
        TargetMessage { bhs, data, invalidated }
    }

    /// The next message, which is to be of this kind.
    pub async fn told(&mut self, kind: u8) -> TargetMessage {
        let told = self.next().await.expect("the connection goes on");
        assert_eq!(opcode::name(told.bhs.opcode()), opcode::name(kind), "{told:?}");
        told
    }

    /// The answer to a command.
    pub async fn answer(&mut self, itt: u32) -> TargetMessage {
        let told = self.told(opcode::SCSI_RESPONSE).await;
        assert_eq!(told.bhs.itt(), itt);
        told
    }

    /// The connection ends, and nothing comes before that.
    pub async fn over(mut self) {
        if let Some(told) = self.next().await {
            panic!("{told:?}");
        }
        drop(self.end);
        self.served.await.expect("it ends well");
    }

    /// Says keys in a Login Request.
    pub fn log_in_with(&mut self, isid: u8, flags: u8, keys: &str) {
        let mut bhs = Bhs::new(opcode::LOGIN | 0x40);
        bhs.0[1] = flags;
        bhs.0[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, isid]);
        bhs.set_word(16, 1);
        self.ask(bhs, keys.replace('\n', "\0").as_bytes());
    }

    /// The keys of the next Login Response, which is to be one of class 0.
    pub async fn keys(&mut self) -> Vec<(String, String)> {
        let told = self.told(opcode::LOGIN_RESPONSE).await;
        assert_eq!(told.bhs.0[36..38], [0, 0], "{told:?}");
        pairs(&told.data)
    }

    /// Logs in with these keys, and gives those of both responses.
    pub async fn negotiate(&mut self, isid: u8, names: &str, keys: &str) -> Vec<(String, String)> {
        self.log_in_with(isid, SECURITY, names);
        let mut said = self.keys().await;
        self.last_request(isid, keys);
        said.extend(self.keys().await);
        said
    }

    /// Sends the last Login Request, and has its receives ready before that.
    pub fn last_request(&mut self, isid: u8, keys: &str) {
        if !keys.contains("MaxRecv") {
            self.room = ROOM;
            self.end.receives(RECEIVES, ROOM);
        }
        self.log_in_with(isid, OPERATIONAL, keys);
    }

    /// Logs in as Open-iSCSI does.
    pub async fn log_in(&mut self, isid: u8) -> Vec<(String, String)> {
        assert!(NAMES.contains(NAME));
        self.negotiate(isid, NAMES, KEYS).await
    }

    /// Hears what there is to tell first.
    pub async fn ready(&mut self) {
        for lun in [0, 1] {
            let mut bhs = self.command(&cdb::test_unit_ready());
            bhs.set_lun(lun << 48);
            self.say(IserHeader::PLAIN, bhs, &[]);
            let told = self.answer(bhs.itt()).await;
            assert_eq!((told.status(), told.data[2 + 2]), (2, 6), "UNIT ATTENTION");
        }
        self.did();
    }

    /// The header of the next command, without data.
    pub fn command(&mut self, cdb: &Cdb) -> Bhs {
        self.itt += 1;
        let mut bhs = request::scsi_command(0, self.itt, TaskAttribute::Simple, cdb);
        request::stamp(&mut bhs, self.cmd_sn, self.stat_sn);
        self.cmd_sn += 1;
        bhs
    }

    /// Sends a command that reads up to `len` bytes to memory that is lent for it.
    pub fn read(&mut self, cdb: &Cdb, len: usize) -> (u32, RemoteAddress) {
        let place = self.end.expose(MemoryRegion::Sink(Buf::zeroed(len))).unwrap();
        let mut bhs = self.command(cdb);
        request::set_read(&mut bhs, len as u32);
        self.say(IserHeader::Control { write: None, read: Some(advertised(place)) }, bhs, &[]);
        (bhs.itt(), place)
    }

    /// Sends a command that writes `data`, so much of it with the command. What it lends begins behind that, as Linux
    /// has it.
    pub fn write(&mut self, cdb: &Cdb, data: &[u8], immediate: usize) -> (u32, RemoteAddress) {
        let place = self.lend(data);
        (self.write_from(cdb, data, immediate, place.beyond(immediate as u64)), place)
    }

    /// Lends bytes to be read.
    pub fn lend(&self, data: &[u8]) -> RemoteAddress {
        let mut buf = Buf::zeroed(data.len());
        buf.copy_from_slice(data);
        self.end.expose(MemoryRegion::Source(Rc::new(buf))).unwrap()
    }

    /// The same with memory that begins here.
    pub fn write_from(&mut self, cdb: &Cdb, data: &[u8], immediate: usize, from: RemoteAddress) -> u32 {
        let mut bhs = self.command(cdb);
        request::set_write(&mut bhs, data.len() as u32, false);
        let write = (immediate < data.len()).then(|| advertised(from));
        self.say(IserHeader::Control { write, read: None }, bhs, &data[..immediate]);
        bhs.itt()
    }

    /// Takes memory back.
    pub fn take_back(&self, place: RemoteAddress) -> Vec<u8> {
        match self.end.revoke(place.stag) {
            Some(MemoryRegion::Sink(buf)) => buf.to_vec(),
            Some(MemoryRegion::Source(buf)) => buf.to_vec(),
            None => panic!("it was lent"),
        }
    }

    /// Reads blocks of the disk.
    pub async fn blocks(&mut self, lba: u32, count: u16) -> Vec<u8> {
        let (itt, place) = self.read(&cdb::read_10(lba, count), usize::from(count) * 512);
        let told = self.answer(itt).await;
        assert_eq!((told.status(), told.residual()), (0, (0, 0)), "{told:?}");
        self.take_back(place)
    }

    /// Asks for a task management function on LUN 0.
    pub fn manage(&mut self, function: TaskManagementFunction, task: Option<(u32, u32)>) -> u32 {
        self.itt += 1;
        self.ask(request::task_management(0, self.itt, function, task), &[]);
        self.itt
    }

    /// Asks whether it lives.
    pub fn ping(&mut self, data: &[u8]) -> u32 {
        self.itt += 1;
        self.ask(request::nop_out(0, self.itt, NONE), data);
        self.itt
    }

    /// The connection is in order.
    pub async fn goes_on(&mut self) {
        let itt = self.ping(&[]);
        assert_eq!(self.told(opcode::NOP_IN).await.bhs.itt(), itt);
    }
}

/// As a command advertises it.
pub fn advertised(place: RemoteAddress) -> AdvertisedBuffer {
    AdvertisedBuffer { stag: place.stag, offset: place.offset }
}

/// The pairs of key text.
pub fn pairs(text: &[u8]) -> Vec<(String, String)> {
    let pairs = lunar_wire::iscsi::text::pairs(text).map(|pair| pair.expect("key text"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Bytes that tell where they are.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 31 + i * 7) as u8).collect()
}
