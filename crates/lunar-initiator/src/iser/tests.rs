//! The session over RDMA, against a scripted target.

use super::IserDatamover;
use crate::nexus::TargetPort;
use crate::session::command_window::CommandWindow;
use crate::session::session_state::{Online, SessionState};
use crate::session::task::Waiter;
use crate::session::transport::{Datamover as _, TransportHandle, TransportSender};
use crate::{Command, CommandResult, Completion, Direction, Error, ErrorCode};
use lunar_proto::parameters::Parameters;
use lunar_rdma::mem::{self, Faults};
use lunar_rdma::{ConnParam, Endpoint, EndpointEvent, EndpointEvents, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::iscsi::receive::{ReceiveError, ReceiveStatus};
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::{Bhs, NONE, opcode, pdu};
use lunar_wire::iser::{self, AdvertisedBuffer, IserHeader, LOGIN_LEN, OVERHEAD};
use lunar_wire::scsi::{Sense, cdb};
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

mod ends;
mod login;

const TERMS: ConnParam = ConnParam { ord: 8, ird: 8, receives: (64, LOGIN_LEN) };

/// The parameters that LIO negotiates.
fn parameters() -> Parameters {
    Parameters { rdma_extensions: true, first_burst_length: 65536, ..Parameters::default() }
}

/// A message from the session.
#[derive(Debug)]
struct Got {
    write: Option<AdvertisedBuffer>,
    read: Option<AdvertisedBuffer>,
    bhs: Bhs,
    ahs: Vec<u8>,
    data: Vec<u8>,
}

/// A logged-in session and the scripted target.
struct Peer {
    state: SessionState,
    datamover: Rc<IserDatamover>,
    end: Rc<dyn Endpoint>,
    /// Faults to inject at the session's end.
    faults: Rc<Faults>,
    stat_sn: u32,
}

impl Peer {
    fn new(parameters: Parameters) -> Peer {
        let mut state = SessionState::new(32, Instant::now);
        state.port = Some(TargetPort::PortalGroup(1));
        let (datamover, end, faults) = connection();
        let mut peer = Peer { state, datamover, end, faults, stat_sn: 7 };
        peer.begin(parameters);
        peer
    }

    /// Gives the session a new connection.
    fn reconnect(&mut self) {
        (self.datamover, self.end, self.faults) = connection();
        self.begin(parameters());
    }

    fn begin(&mut self, parameters: Parameters) {
        let command_window = CommandWindow { cmd_sn: 1, exp_cmd_sn: 1, max_cmd_sn: 64 };
        self.state.connect(
            parameters,
            command_window,
            self.stat_sn,
            TransportSender::Datamover(self.datamover.clone()),
        );
        self.state.online = Online::Yes;
        self.state.pump();
    }

    fn submit(&mut self, cdb: cdb::Cdb, data: Direction) -> u32 {
        self.state.submit(Command::new(1 << 48, cdb, data), Waiter::Unknown).expect("room")
    }

    fn read(&mut self, len: usize) -> u32 {
        self.submit(cdb::read_10(0, 1), Direction::In(Buf::zeroed(len)))
    }

    fn write(&mut self, len: usize) -> u32 {
        let buf = Buf::copy_of(&pattern(len));
        self.submit(cdb::write_10(0, 1, false), Direction::Out(buf))
    }

    /// The messages sent since the last call.
    fn sent(&mut self) -> Vec<Got> {
        self.datamover.flush().expect("a connection");
        self.state.settle();
        let mut events = EndpointEvents::default();
        self.end.poll(&mut events);
        self.end.receives(events.list.len(), LOGIN_LEN);
        let messages = events.list.iter().map(|event| match event {
            EndpointEvent::Message(range, None) => &events.bytes[range.clone()],
            other => panic!("{other:?}"),
        });
        messages.map(got).collect()
    }

    /// The only message sent since the last call.
    fn one(&mut self) -> Got {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// Sends a PDU to the session, which handles it.
    fn say(&mut self, mut bhs: Bhs, data: &[u8], invalidate: Option<u32>) -> ReceiveStatus {
        let has_status = !matches!(bhs.opcode(), opcode::DATA_IN | opcode::R2T);
        let next = self.state.command_window.cmd_sn;
        pdu::stamp(&mut bhs, self.stat_sn, next, next + 63);
        self.stat_sn += u32::from(has_status);
        bhs.set_data_len(data.len());
        self.bytes(&[&IserHeader::PLAIN.encode()[..], bhs.as_bytes(), data].concat(), invalidate)
    }

    fn bytes(&mut self, message: &[u8], invalidate: Option<u32>) -> ReceiveStatus {
        self.end.send(message, Payload::Empty, invalidate);
        self.end.flush().expect("a connection");
        self.datamover.receive(&mut self.state).unwrap_or_else(|_| panic!("a connection"))
    }

    /// Sends a SCSI Response.
    fn respond(&mut self, tag: u32, flags: u8, status: u8, residual: u32, sense: &[u8]) -> ReceiveStatus {
        let mut bhs = pdu::scsi_response(tag, flags, 0, status);
        bhs.set_residual_count(residual);
        self.say(bhs, sense, None)
    }

    fn fill(&self, to: RemoteAddress, bytes: &[u8]) -> bool {
        self.end.write(to, Payload::Bytes(bytes.to_vec()));
        self.end.flush().is_ok()
    }

    /// The data of an RDMA Read. None if the read terminates the connection.
    fn fetch(&self, from: RemoteAddress, len: usize) -> Option<Vec<u8>> {
        self.end.read(1, from, Buf::zeroed(len), 0, len);
        let _ = self.end.flush();
        let mut events = EndpointEvents::default();
        self.end.poll(&mut events);
        match events.list.remove(0) {
            EndpointEvent::Read(1, buf, result) => result.ok().map(|()| buf.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, tag: u32) -> Option<CommandResult> {
        self.state.poll(tag, Waker::noop())
    }

    fn done(&mut self, tag: u32) -> (Completion, Vec<u8>) {
        let (result, buf) = self.end(tag).expect("the command has ended");
        (result.expect("a response"), buf.expect("its buffer").to_vec())
    }
}

fn connection() -> (Rc<IserDatamover>, Rc<dyn Endpoint>, Rc<Faults>) {
    let faults = Rc::<Faults>::default();
    let (ours, end) = mem::pair(TERMS, TERMS, [faults.clone(), Rc::default()]);
    (Rc::new(IserDatamover::new(ours, EndpointEvents::default())), end, faults)
}

fn got(message: &[u8]) -> Got {
    let pdu = iser::IserPdu::decode(message).expect("a PDU");
    Got { write: pdu.write, read: pdu.read, bhs: pdu.bhs, ahs: pdu.ahs.to_vec(), data: pdu.data.to_vec() }
}

fn remote(place: Option<AdvertisedBuffer>) -> RemoteAddress {
    let AdvertisedBuffer { stag, offset } = place.expect("memory");
    RemoteAddress { stag, offset }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn read_lends_its_memory_and_has_it_back_with_the_answer() {
    for invalidates in [false, true] {
        let mut peer = Peer::new(parameters());
        let tag = peer.read(4096);
        let got = peer.one();
        assert_eq!((got.bhs.itt(), got.bhs.flags(), got.bhs.edtl()), (tag, 0xc1, 4096));
        assert!(got.write.is_none() && got.data.is_empty() && got.ahs.is_empty());
        let place = remote(got.read);
        assert!(peer.fill(place, &pattern(4096)));
        let invalidate = invalidates.then_some(place.stag);
        assert_eq!(peer.say(pdu::scsi_response(tag, 0, 0, 0), &[], invalidate), ReceiveStatus::More);
        let (completion, buf) = peer.done(tag);
        assert_eq!((completion.status, completion.transferred, buf), (0, 4096, pattern(4096)));
        assert!(!peer.fill(place, &[1]), "the memory is still registered");
    }
}

#[test]
fn write_sends_8192_bytes_and_registers_the_rest() {
    let small = Parameters { target_recv_data_segment_length: 4096, ..parameters() };
    let burst = Parameters { first_burst_length: 1024, ..parameters() };
    let none = Parameters { immediate_data: false, ..parameters() };
    for (p, len, want) in [
        (parameters(), 65536, 8192),
        (parameters(), 8192, 8192),
        (parameters(), 512, 512),
        (small, 65536, 4096),
        (burst, 65536, 1024),
        (none, 65536, 0),
    ] {
        let mut peer = Peer::new(p);
        let tag = peer.write(len);
        let got = peer.one();
        assert_eq!((got.bhs.flags(), got.bhs.edtl()), (0xa1, len as u32), "F and W");
        assert!(got.read.is_none() && got.data == pattern(len)[..want], "{len} {want}");
        assert_eq!(got.write.is_some(), want < len);
        if let Some(place) = got.write {
            let rest = peer.fetch(remote(Some(place)), len - want);
            assert!(rest.expect("the memory is registered") == pattern(len)[want..]);
        }
        peer.respond(tag, 0, 0, 0, &[]);
        let (completion, buf) = peer.done(tag);
        assert_eq!((completion.transferred, buf), (len, pattern(len)));
    }
}

#[test]
fn write_is_not_lent_any_more_once_it_is_answered() {
    let mut peer = Peer::new(parameters());
    let tag = peer.write(65536);
    let place = remote(peer.one().write);
    peer.respond(tag, 0, 0, 0, &[]);
    assert!(peer.fetch(place, 1).is_none());
}

/// The decoder accepts data with and without padding.
#[test]
fn data_of_any_length_makes_a_message_that_is_a_pdu() {
    for len in 1..20 {
        let mut peer = Peer::new(parameters());
        peer.write(len);
        assert_eq!(peer.one().data, pattern(len));
    }
    let mut peer = Peer::new(parameters());
    for len in 3..20 {
        let question = [b"X-a=", &vec![b'a'; len][..], b"\0"].concat();
        drop(peer.state.start_text(question.clone()));
        let asked = peer.sent();
        if let [got] = &asked[..] {
            assert_eq!(got.data, question);
            let mut bhs = Bhs::new(opcode::TEXT_RESPONSE);
            bhs.set_itt(got.bhs.itt());
            bhs.set_ttt(NONE);
            peer.say(bhs, b"X-a=1\0", None);
        }
    }
}

#[test]
fn long_cdb_travels_in_front_of_immediate_data() {
    let mut peer = Peer::new(parameters());
    let cdb: Vec<u8> = (0..32).collect();
    let buf = Buf::copy_of(&pattern(600));
    let command = Command::long(0, &cdb, Direction::Out(buf)).expect("a command");
    peer.state.submit(command, Waiter::Unknown).expect("room");
    let got = peer.one();
    assert_eq!((got.ahs, got.data), (request::extended_cdb(&cdb[16..]), pattern(600)));
}

#[test]
fn unfilled_memory_is_a_residual() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(4096);
    let place = remote(peer.one().read);
    assert!(peer.fill(place, &pattern(1000)));
    peer.respond(tag, 0x02, 0, 3096, &[]);
    let (completion, buf) = peer.done(tag);
    assert_eq!((completion.transferred, completion.overflow, buf.len()), (1000, 0, 4096));
    assert!(buf[..1000] == pattern(1000) && buf[1000..].iter().all(|b| *b == 0));
    let tag = peer.read(512);
    peer.one();
    peer.respond(tag, 0x04, 0, 99, &[]);
    let (completion, _) = peer.done(tag);
    assert_eq!((completion.transferred, completion.overflow), (512, 99));
    // A residual count above the buffer length is invalid.
    let tag = peer.read(512);
    peer.one();
    assert_eq!(peer.respond(tag, 0x02, 0, 513, &[]), ReceiveStatus::End);
    assert_eq!(
        peer.state.connection.fault().expect("the connection has failed").code,
        ErrorCode::ProtocolError
    );
}

#[test]
fn check_condition_keeps_sense_data_with_or_without_padding() {
    let sense = Sense::INVALID_FIELD_IN_CDB.encode(false);
    for (cut, pad) in [(18, 0), (18, 1), (18, 4), (17, 0), (17, 3)] {
        let mut peer = Peer::new(parameters());
        let tag = peer.read(4096);
        peer.one();
        let data = [&[0, cut][..], &sense[..usize::from(cut)]].concat();
        let mut bhs = pdu::scsi_response(tag, 0x02, 0, 2);
        bhs.set_residual_count(4096);
        bhs.set_data_len(data.len());
        pdu::stamp(&mut bhs, peer.stat_sn, 1, 64);
        let message = [&IserHeader::PLAIN.encode()[..], bhs.as_bytes(), &data, &vec![0; pad]].concat();
        assert_eq!(peer.bytes(&message, None), ReceiveStatus::More);
        let (completion, _) = peer.done(tag);
        assert_eq!((completion.status, &completion.sense[..]), (2, &sense[..usize::from(cut)]));
    }
}

/// The rest of the buffer has its previous contents.
#[test]
fn failure_without_a_residual_has_brought_nothing() {
    let mut peer = Peer::new(parameters());
    for (status, key, transferred) in
        [(2, Some(3), 0), (2, Some(0xb), 0), (2, None, 0), (8, None, 0), (2, Some(0), 512), (2, Some(1), 512)]
    {
        let tag = peer.read(512);
        peer.one();
        let sense = key.map(|key| [&[0, 18][..], &Sense::new(key, 0x11, 0).encode(false)].concat());
        peer.respond(tag, 0, status, 0, &sense.unwrap_or_default());
        assert_eq!(peer.done(tag).0.transferred, transferred, "{status} {key:?}");
    }
    let tag = peer.read(512);
    peer.one();
    let sense = [&[0, 18][..], &Sense::new(3, 0x11, 0).encode(false)].concat();
    peer.respond(tag, 0x02, 2, 112, &sense);
    assert_eq!(peer.done(tag).0.transferred, 400, "buffer length minus residual");
}

#[test]
fn data_in_and_r2t_in_messages_break_the_protocol() {
    let mut data_in = Bhs::new(opcode::DATA_IN);
    data_in.set_ttt(NONE);
    for (mut bhs, reads) in [(data_in, true), (pdu::r2t(1 << 48, 0, 1, 0, 8192, 4096), false)] {
        let mut peer = Peer::new(parameters());
        let tag = if reads { peer.read(512) } else { peer.write(65536) };
        peer.one();
        bhs.set_itt(tag);
        let data = if reads { vec![0; 512] } else { vec![] };
        assert_eq!(peer.say(bhs, &data, None), ReceiveStatus::End);
        let error = peer.state.connection.take_fault().expect("the connection has failed");
        assert_eq!(error.code, ErrorCode::ProtocolError, "{error}");
        assert!(peer.sent().is_empty() && peer.end(tag).is_none());
    }
}

#[test]
fn messages_that_are_no_pdus_of_a_target_break_the_protocol() {
    let place = Some(AdvertisedBuffer { stag: 1, offset: 0 });
    let nop = pdu::nop_in(0, NONE, 5);
    let whole = |header: IserHeader| [&header.encode()[..], nop.as_bytes()].concat();
    let mut long = whole(IserHeader::PLAIN);
    long[iser::HEADER_LEN + 7] = 4;
    let mut more = whole(IserHeader::PLAIN);
    more.extend([0; 5]);
    let mut ahs = whole(IserHeader::PLAIN);
    ahs[iser::HEADER_LEN + 4] = 1;
    for message in [
        vec![],
        whole(IserHeader::PLAIN)[..OVERHEAD - 1].to_vec(),
        whole(IserHeader::Control { write: place, read: None }),
        whole(IserHeader::Control { write: None, read: place }),
        whole(IserHeader::HelloReply { reject: false, versions: (10, 10), ord: 1 }),
        long,
        more,
        [ahs, vec![0; 4]].concat(),
    ] {
        let mut peer = Peer::new(parameters());
        assert_eq!(peer.bytes(&message, None), ReceiveStatus::End, "{message:?}");
        assert_eq!(
            peer.state.connection.take_fault().expect("the connection has failed").code,
            ErrorCode::ProtocolError
        );
    }
}

/// Each message consumes a receive, which is posted again.
#[test]
fn session_takes_more_messages_than_it_has_receives() {
    let mut peer = Peer::new(parameters());
    for _ in 0..3 * TERMS.receives.0 {
        let tag = peer.read(512);
        let place = remote(peer.one().read);
        assert!(peer.fill(place, &[7; 512]));
        assert_eq!(peer.respond(tag, 0, 0, 0, &[]), ReceiveStatus::More);
        assert_eq!(peer.done(tag).1, [7; 512]);
    }
}

#[test]
fn pings_and_logout_are_answered_as_over_tcp() {
    let mut peer = Peer::new(parameters());
    peer.state.ping();
    let got = peer.one();
    assert_eq!((got.bhs.opcode(), got.data.len()), (opcode::NOP_OUT, 0), "LIO accepts no ping data");
    peer.say(pdu::nop_in(0, got.bhs.itt(), NONE), &[], None);
    assert!(peer.state.oldest_ping().is_none());
    let answer = peer.state.log_out();
    let got = peer.one();
    peer.say(pdu::logout_response(got.bhs.itt(), 0, 2, 0), &[], None);
    assert_eq!(answer.try_recv(), Ok(Ok(0)));
}

/// Also with InitialR2T=No: the target reads all data beyond the immediate data by RDMA.
#[test]
fn no_data_out_is_ever_sent() {
    let p = Parameters { initial_r2t: false, first_burst_length: 65536, ..parameters() };
    let mut peer = Peer::new(p);
    peer.write(1 << 20);
    let sent = peer.sent();
    assert!(sent.iter().all(|got| got.bhs.opcode() == opcode::SCSI_COMMAND && got.bhs.is_final()));
}

#[test]
fn end_of_the_connection_is_seen() {
    let mut peer = Peer::new(parameters());
    peer.end.close();
    assert!(matches!(peer.datamover.receive(&mut peer.state), Ok(ReceiveStatus::End)));
    let (datamover, end, _) = connection();
    end.write(RemoteAddress { stag: 1, offset: 0 }, Payload::Zeros(1));
    assert!(end.flush().is_err());
    assert!(matches!(datamover.receive(&mut peer.state), Err(ReceiveError::Io(_))));
}
