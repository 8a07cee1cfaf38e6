//! The session state against a scripted target, PDU by PDU.

use super::command_window::CommandWindow;
use super::session_state::{Online, SessionState};
use super::task::Waiter;
use super::transport::TransportSender;
use crate::nexus::TargetPort;
use crate::{Command, CommandResult, Completion, Direction, Error, ErrorCode};
use lunar_proto::parameters::Parameters;
use lunar_runtime::Buf;
use lunar_runtime::iscsi::pdu_queue::Digests;
use lunar_runtime::iscsi::receive::{PduReceiver, encode};
use lunar_wire::iscsi::{BHS_LEN, Bhs, NONE, opcode, padded, pdu};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::{Sense, cdb};
use std::task::Waker;
use std::time::{Duration, Instant};

mod again;
mod batches;
mod demands;
mod late;
mod late_writes;
mod orphans;
mod parting;
mod parts;
mod piped_reads;
mod rows;
mod unverified_luns;

/// A logged-in session and the scripted target.
struct Peer {
    state: SessionState,
    receiver: PduReceiver,
    stat_sn: u32,
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
}

fn parameters() -> Parameters {
    Parameters {
        initial_r2t: false,
        first_burst_length: 1024,
        max_burst_length: 2048,
        max_xmit_data_segment_length: 512,
        max_recv_data_segment_length: 65536,
        ..Parameters::default()
    }
}

impl Peer {
    fn new(parameters: Parameters) -> Peer {
        let mut state = SessionState::new(128, Instant::now);
        state.port = Some(TargetPort::PortalGroup(1));
        let mut peer = Peer {
            receiver: PduReceiver::new(Digests::default(), 65536, Vec::new()),
            stat_sn: 7,
            exp_cmd_sn: 1,
            max_cmd_sn: 32,
            state: {
                state.now += Duration::from_secs(1);
                state
            },
        };
        peer.log_in(parameters);
        peer
    }

    fn log_in(&mut self, parameters: Parameters) {
        let command_window = CommandWindow {
            cmd_sn: self.exp_cmd_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
        };
        self.receiver = PduReceiver::new(Digests::default(), 65536, Vec::new());
        self.state.connect(parameters, command_window, self.stat_sn, TransportSender::default());
        self.state.online = Online::Yes;
        self.state.pump();
    }

    fn read(&mut self, len: usize) -> u32 {
        self.submit(cdb::read_10(0, 1), Direction::In(Buf::zeroed(len)))
    }

    fn write(&mut self, len: usize) -> u32 {
        let mut buf = Buf::zeroed(len);
        buf.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        self.submit(cdb::write_10(0, 1, false), Direction::Out(buf))
    }

    fn submit(&mut self, cdb: cdb::Cdb, data: Direction) -> u32 {
        self.state.submit(Command::new(1 << 48, cdb, data), Waiter::Unknown).expect("room")
    }

    /// The PDUs sent since the last call.
    fn sent(&mut self) -> Vec<(Bhs, Vec<u8>)> {
        let all = self.state.connection.out().take_bytes();
        self.state.settle();
        let (mut rest, mut pdus) = (&all[..], Vec::new());
        while !rest.is_empty() {
            let header = Bhs::from_bytes(rest[..BHS_LEN].try_into().expect("a header"));
            let len = header.data_len();
            pdus.push((header, rest[BHS_LEN..BHS_LEN + len].to_vec()));
            rest = &rest[BHS_LEN + padded(len)..];
        }
        pdus
    }

    fn say(&mut self, mut header: Bhs, data: &[u8], status: bool) {
        pdu::stamp(&mut header, if status { self.stat_sn } else { 0 }, self.exp_cmd_sn, self.max_cmd_sn);
        self.stat_sn = self.stat_sn.wrapping_add(status.into());
        self.bytes(&encode(Digests::default(), header, &[], data));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.receiver.feed(bytes, &mut self.state);
        assert!(end.is_ok(), "framing");
    }

    fn data_in(&mut self, tag: u32, offset: u32, data: &[u8], last: bool, status: Option<u8>) {
        let mut header = Bhs::new(opcode::DATA_IN);
        header.set_flags(u8::from(last) << 7 | u8::from(status.is_some()));
        header.set_scsi_status(status.unwrap_or(0));
        header.set_itt(tag);
        header.set_ttt(NONE);
        header.set_buffer_offset(offset);
        self.say(header, data, status.is_some());
    }

    fn respond(&mut self, tag: u32, flags: u8, status: u8, residual: u32, sense: &[u8]) {
        let mut header = pdu::scsi_response(tag, flags, 0, status);
        header.set_residual_count(residual);
        let data =
            if sense.is_empty() { vec![] } else { [&(sense.len() as u16).to_be_bytes()[..], sense].concat() };
        self.say(header, &data, true);
    }

    fn end(&mut self, tag: u32) -> Option<CommandResult> {
        self.state.poll(tag, Waker::noop())
    }

    fn done(&mut self, tag: u32) -> (Completion, Option<Buf>) {
        let (result, buf) = self.end(tag).expect("the command has ended");
        (result.expect("a response"), buf)
    }

    fn broken(&self) -> &Error {
        self.state.connection.fault().expect("the connection has failed")
    }
}

/// After a unit attention that may announce another logical unit, commands wait for an identity check.
#[test]
fn doubtful_lun_is_checked_before_more_is_sent() {
    let attention = |asc, ascq| Sense { key: 6, asc, ascq, ..Sense::CAPACITY_CHANGED }.encode(false);
    for (asc, ascq, holds) in [
        (0x29, 0, true),
        (0x29, 7, true),
        (0x28, 0, true),
        (0x3f, 3, true),
        (0x3f, 0x0e, true),
        (0x2a, 9, false),
    ] {
        let mut peer = Peer::new(parameters());
        let tag = peer.write(512);
        peer.sent();
        peer.respond(tag, 0, 2, 0, &attention(asc, ascq));
        let again = peer.write(512);
        assert_eq!(peer.sent().is_empty(), holds, "{asc:02x}/{ascq:02x}");
        assert_eq!((peer.state.to_check, peer.state.doubts), (holds, u64::from(holds)));
        let command = Command::new(1 << 48, cdb::inquiry(Some(0x83), 64), Direction::In(Buf::zeroed(64)));
        peer.state.submit_urgently(command, Waiter::Unknown).expect("room");
        assert_eq!(peer.sent().len(), 1, "the identity check is sent");
        peer.state.online = Online::Yes;
        peer.state.pump();
        assert_eq!(peer.sent().len(), usize::from(holds), "{again:08x}");
    }
}

/// An identity check precedes the commands that wait for it, also when it is resent.
#[test]
fn check_that_was_aborted_goes_first_again() {
    let mut peer = Peer::new(parameters());
    peer.state.online = Online::Checking;
    let write = peer.write(512);
    let command = Command::new(1 << 48, cdb::inquiry(Some(0x83), 64), Direction::In(Buf::zeroed(64)));
    let check = peer.state.submit_urgently(command, Waiter::Unknown).expect("room");
    assert_eq!(peer.sent().len(), 1);
    peer.state.ended_by_abort([check], "late");
    let sent = peer.sent();
    assert_eq!(sent.iter().map(|(h, _)| h.itt()).collect::<Vec<_>>(), [check]);
    // An identity check is valid on one connection: the next connection starts its own.
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    assert!(matches!(peer.end(check), Some((Err(_), _))) && peer.end(write).is_none());
}

/// The owner got a timeout error, and may have written newer data since.
#[test]
fn timed_out_command_is_not_resent_after_reconnect() {
    let mut peer = Peer::new(parameters());
    let late = peer.write(512);
    peer.sent();
    peer.state.tasks.expire(late, Error::new(ErrorCode::TimedOut, "late"));
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    peer.log_in(parameters());
    assert!(peer.sent().is_empty());
    assert_eq!(
        peer.end(late).expect("the command has ended").0.expect_err("the command has timed out").code,
        ErrorCode::TimedOut
    );
    assert_eq!(peer.state.tasks.count(), 0);
}

/// FRM-005: Data-In are received regardless of how the byte stream is split.
#[test]
fn data_come_in_whatever_the_pieces() {
    for step in [1, 47, 48, 1000, 1 << 20] {
        let mut peer = Peer::new(parameters());
        let tag = peer.read(60_000);
        let data: Vec<u8> = (0..60_000u32).map(|i| (i * 7) as u8).collect();
        let piece = |offset: usize, len: usize, last: bool| {
            let mut header = Bhs::new(opcode::DATA_IN);
            header.set_flags(u8::from(last) * 0x81);
            header.set_itt(tag);
            header
                .set_data_sn([0, 20_000, 20_100].iter().position(|o| *o == offset).expect("a piece") as u32);
            header.set_buffer_offset(offset as u32);
            pdu::stamp(&mut header, if last { 7 } else { 0 }, 2, 32);
            encode(Digests::default(), header, &[], &data[offset..offset + len])
        };
        let all = [piece(0, 20_000, false), piece(20_000, 100, false), piece(20_100, 39_900, true)].concat();
        all.chunks(step).for_each(|c| peer.bytes(c));
        let (done, buf) = peer.done(tag);
        assert_eq!((done.status, done.transferred), (0, 60_000), "steps of {step}");
        assert_eq!(buf.expect("the buffer")[..], data[..]);
    }
}

/// DAT-004, DAT-013, DAT-015, DAT-020, DAT-022, DAT-025, SN-007: immediate and unsolicited data, and the data of each
/// R2T in full.
#[test]
fn write_sends_what_it_may_and_then_what_it_is_asked_for() {
    let mut peer = Peer::new(parameters());
    let tag = peer.write(4096);
    let sent = peer.sent();
    let shape: Vec<(u8, usize, u32, bool)> = sent
        .iter()
        .map(|(h, d)| {
            (h.opcode(), d.len(), if h.opcode() == 5 { h.buffer_offset() } else { 0 }, h.is_final())
        })
        .collect();
    assert_eq!(shape, [(1, 512, 0, false), (5, 512, 512, true)], "immediate data, then unsolicited data");
    assert_eq!(sent[0].0.edtl(), 4096);
    assert_eq!((sent[1].0.lun(), sent[1].0.ttt()), (0, NONE), "no Target Transfer Tag, hence no LUN");
    peer.say(pdu::r2t(1 << 48, tag, 77, 0, 1024, 2048), &[], false);
    let sent = peer.sent();
    let command_window: Vec<_> =
        sent.iter().map(|(h, _)| (h.data_sn(), h.buffer_offset(), h.ttt(), h.lun() >> 48)).collect();
    assert_eq!(command_window, [(0, 1024, 77, 1), (1, 1536, 77, 1), (2, 2048, 77, 1), (3, 2560, 77, 1)]);
    assert_eq!(sent.iter().map(|(h, _)| h.is_final()).collect::<Vec<_>>(), [false, false, false, true]);
    assert!(
        sent.iter()
            .all(|(h, d)| d.iter().enumerate().all(|(i, b)| *b == (h.buffer_offset() as usize + i) as u8))
    );
    peer.say(pdu::r2t(0, tag, 78, 1, 3072, 1024), &[], false);
    assert_eq!(peer.sent().len(), 2);
    peer.respond(tag, 0, 0, 0, &[]);
    let (done, buf) = peer.done(tag);
    assert_eq!((done.transferred, buf.map(|b| b.len())), (4096, Some(4096)));
}

#[test]
fn negotiated_keys_decide_unsolicited_data() {
    for (initial_r2t, immediate_data, pdus) in
        [(true, true, vec![512]), (true, false, vec![0]), (false, false, vec![0, 512, 512])]
    {
        let mut peer = Peer::new(Parameters { initial_r2t, immediate_data, ..parameters() });
        peer.write(4096);
        let lens: Vec<usize> = peer.sent().iter().map(|(_, d)| d.len()).collect();
        assert_eq!(lens, pdus, "InitialR2T {initial_r2t}, ImmediateData {immediate_data}");
    }
}

/// RSP-008: sense data arrive with the status.
#[test]
fn early_answer_waits_until_the_buffer_has_left() {
    let mut peer = Peer::new(parameters());
    let tag = peer.write(4096);
    let sense = Sense::WRITE_PROTECTED.encode(false);
    peer.respond(tag, 0, 2, 0, &sense);
    assert!(peer.end(tag).is_none(), "parts of the buffer are still queued");
    peer.sent();
    let (done, buf) = peer.done(tag);
    assert_eq!((done.sense(), buf.is_some()), (Some(Sense::WRITE_PROTECTED), true));
}

#[test]
fn residuals_say_how_much_was_moved() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    peer.data_in(tag, 0, &[1; 100], true, None);
    peer.respond(tag, 0x02, 0, 412, &[]);
    assert_eq!(peer.done(tag).0.transferred, 100);
    let tag = peer.read(512);
    peer.data_in(tag, 0, &[1; 512], true, None);
    peer.respond(tag, 0x04, 0, 1000, &[]);
    let done = peer.done(tag).0;
    assert_eq!((done.transferred, done.overflow), (512, 1000));
    let tag = peer.read(512);
    peer.data_in(tag, 0, &[1; 100], true, None);
    peer.respond(tag, 0, 0, 0, &[]);
    assert!(peer.broken().what.contains("100 bytes of 512 arrived"), "missing data must be an error");
}

/// FRM-024, SN-005, SN-010, SN-014, DAT-014, DAT-024, DAT-028, REJ-012: one protocol violation each.
#[test]
fn protocol_violation_ends_the_connection_harmlessly() {
    type Hostile = fn(&mut Peer, u32, u32);
    let hostile: [(&str, Hostile); 19] = [
        ("beyond the buffer", |p, r, _| p.data_in(r, 512, &[1; 512], true, None)),
        ("beyond 32 bits", |p, r, _| p.data_in(r, u32::MAX - 3, &[1; 8], true, None)),
        ("out of order", |p, r, _| p.data_in(r, 256, &[1; 8], true, None)),
        ("data for an unknown tag", |p, _, _| p.data_in(0x7777_0001, 0, &[1; 8], true, None)),
        ("data for a write", |p, _, w| p.data_in(w, 0, &[1; 8], true, None)),
        ("an R2T for a read", |p, r, _| p.say(pdu::r2t(0, r, 1, 0, 0, 8), &[], false)),
        ("an R2T beyond the buffer", |p, _, w| p.say(pdu::r2t(0, w, 1, 0, 4000, 200), &[], false)),
        ("an R2T for too much", |p, _, w| p.say(pdu::r2t(0, w, 1, 0, 0, 4096), &[], false)),
        ("an R2T for nothing", |p, _, w| p.say(pdu::r2t(0, w, 1, 0, 0, 0), &[], false)),
        ("an R2T out of turn", |p, _, w| p.say(pdu::r2t(0, w, 1, 5, 0, 8), &[], false)),
        ("an R2T for another LUN", |p, _, w| p.say(pdu::r2t(9 << 48, w, 1, 0, 0, 8), &[], false)),
        ("a part that was lost", |p, r, _| {
            let mut header = Bhs::new(opcode::DATA_IN);
            header.set_itt(r);
            header.set_r2t_sn(1);
            p.say(header, &[1; 8], false);
        }),
        ("more parts than came", |p, r, _| {
            let mut header = pdu::scsi_response(r, 0, 0, 0);
            header.set_r2t_sn(1);
            p.say(header, &[], true);
        }),
        ("a NOP-In with both tags", |p, _, _| {
            p.state.ping();
            let tag = p.state.controls[0].tag;
            p.say(pdu::nop_in(0, tag, 5), &[], true);
        }),
        ("a negotiation that is reset", |p, r, _| {
            let mut header = Bhs::new(opcode::SCSI_COMMAND);
            header.set_itt(r);
            p.say(pdu::reject(0x0b), header.as_bytes(), true);
        }),
        ("an R2T without a tag", |p, _, w| p.say(pdu::r2t(0, w, NONE, 0, 0, 8), &[], false)),
        ("a status for an unknown tag", |p, _, _| p.respond(0x7777_0001, 0, 0, 0, &[])),
        ("a lost answer", |p, r, _| {
            p.stat_sn += 1;
            p.respond(r, 0, 0, 0, &[]);
        }),
        ("sense data longer than their segment", |p, r, _| {
            let mut header = pdu::scsi_response(r, 0, 0, 2);
            header.set_residual_count(0);
            p.say(header, &[0, 200, 0x70], true);
        }),
    ];
    for (name, act) in hostile {
        let mut peer = Peer::new(parameters());
        let (r, w) = (peer.read(512), peer.write(4096));
        act(&mut peer, r, w);
        assert_eq!(peer.broken().code, ErrorCode::ProtocolError, "{name}");
        assert!(peer.end(r).is_none() && peer.end(w).is_none(), "{name}: neither command may complete");
    }
}

/// FRM-008, LOG-004: invalid opcodes, including a Login Response.
#[test]
fn opcodes_that_do_not_belong_here_end_the_connection() {
    for opcode in [0x00, 0x01, 0x03, 0x10, 0x23, 0x24, 0x27, 0x3e] {
        let mut peer = Peer::new(parameters());
        peer.say(Bhs::new(opcode), &[], true);
        assert_eq!(peer.broken().code, ErrorCode::ProtocolError, "{opcode:02x}");
    }
}

/// CMD-001, CMD-004, CMD-011: commands are sent in order, and none beyond MaxCmdSN.
#[test]
fn window_holds_commands_back() {
    let mut peer = Peer::new(parameters());
    let tags: Vec<u32> = (0..40).map(|_| peer.read(512)).collect();
    assert_eq!(peer.sent().len(), 32);
    (peer.exp_cmd_sn, peer.max_cmd_sn) = (33, 35);
    peer.data_in(tags[0], 0, &[0; 512], true, Some(0));
    let cmd_sns: Vec<u32> = peer.sent().iter().map(|(h, _)| h.cmd_sn()).collect();
    assert_eq!(cmd_sns, [33, 34, 35]);
}

/// REC-001, REC-002, RSP-010: commands are resent in the next session, or fail.
#[test]
fn lost_connection_repeats_what_may_be_repeated_in_its_order() {
    let mut peer = Peer::new(parameters());
    let (a, b) = (peer.read(512), peer.write(512));
    let once = peer.submit(cdb::compare_and_write(0, 1, false), Direction::Out(Buf::zeroed(1024)));
    peer.sent();
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    assert!([a, b, once].into_iter().all(|tag| peer.end(tag).is_none()), "the target may still execute them");
    (peer.exp_cmd_sn, peer.max_cmd_sn, peer.stat_sn) = (1, 32, 100);
    peer.log_in(parameters());
    let (result, buf) = peer.end(once).expect("the command has ended");
    assert_eq!(
        (result.expect_err("an unknown outcome").code, buf.map(|b| b.len())),
        (ErrorCode::ConnectionLost, Some(1024))
    );
    let again: Vec<(u32, u32)> = peer.sent().iter().map(|(h, _)| (h.itt(), h.cmd_sn())).collect();
    assert_eq!(again, [(a, 1), (b, 2)]);
    peer.data_in(a, 0, &[5; 512], true, Some(0));
    peer.respond(b, 0, 0, 0, &[]);
    assert_eq!(peer.done(a).1.map(|b| b[0]), Some(5));
    assert_eq!(peer.done(b).0.status, 0);
}

#[test]
fn segment_landing_during_connection_loss_is_read_again() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(60_000);
    let mut header = Bhs::new(opcode::DATA_IN);
    header.set_itt(tag);
    let bytes = encode(Digests::default(), header, &[], &vec![9; 60_000]);
    peer.bytes(&bytes[..30_000]);
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    (peer.exp_cmd_sn, peer.max_cmd_sn) = (1, 32);
    peer.log_in(parameters());
    peer.data_in(tag, 0, &vec![3; 60_000], true, Some(0));
    let (_, buf) = peer.done(tag);
    assert!(buf.expect("a buffer").iter().all(|b| *b == 3));
}

#[test]
fn command_that_kills_every_connection_ends() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    for _ in 0..10 {
        peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        (peer.exp_cmd_sn, peer.max_cmd_sn) = (1, 32);
        peer.log_in(parameters());
    }
    assert_eq!(
        peer.end(tag).expect("the command has ended").0.expect_err("the connection is lost").code,
        ErrorCode::ConnectionLost
    );
}

#[test]
fn timed_out_owner_gets_an_error_and_late_data_harm_nothing() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    assert!(peer.end(tag).is_none());
    peer.state.tasks.expire(tag, Error::new(ErrorCode::TimedOut, "late"));
    let (result, buf) = peer.end(tag).expect("the command has ended");
    assert_eq!(
        (result.expect_err("the command has timed out").code, buf.map(|b| b.len())),
        (ErrorCode::TimedOut, Some(512))
    );
    assert_eq!(peer.state.tasks.count(), 1, "the target still has the command");
    peer.data_in(tag, 0, &[1; 512], true, Some(0));
    assert!(peer.state.connection.fault().is_none());
    assert_eq!(peer.state.tasks.count(), 0);
}

/// The owner may repeat the write on another path.
#[test]
fn write_that_is_late_comes_back_with_its_data() {
    let mut peer = Peer::new(parameters());
    let tag = peer.write(512);
    peer.sent();
    peer.state.tasks.expire(tag, Error::new(crate::ErrorCode::TimedOut, "late"));
    let (result, buf) = peer.end(tag).expect("the command has ended for its owner");
    let expected: Vec<u8> = (0..512).map(|i| i as u8).collect();
    assert!(result.is_err() && buf.expect("a buffer")[..] == expected);
}

/// NOP-003, NOP-005: pings in both directions.
#[test]
fn pings_are_answered_and_asked() {
    let mut peer = Peer::new(parameters());
    peer.say(pdu::nop_in(3 << 48, NONE, 0x55), &[], false);
    let sent = peer.sent();
    assert_eq!((sent[0].0.opcode(), sent[0].0.itt(), sent[0].0.ttt()), (opcode::NOP_OUT, NONE, 0x55));
    assert_eq!((sent[0].0.immediate(), sent[0].0.lun(), sent[0].1.len()), (true, 3 << 48, 0));
    peer.state.ping();
    let tag = peer.sent()[0].0.itt();
    assert!(peer.state.oldest_ping().is_some());
    peer.say(pdu::nop_in(0, tag, NONE), &[], true);
    assert!(peer.state.oldest_ping().is_none() && peer.state.connection.fault().is_none());
}

#[test]
fn task_management_response_reaches_its_caller() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    peer.sent();
    let answer = peer.state.manage(TaskManagementFunction::AbortTask, 1 << 48, Some((tag, 1)));
    let (header, _) = peer.sent().remove(0);
    assert_eq!((header.referenced_task_tag(), header.ref_cmd_sn(), header.immediate()), (tag, 1, true));
    peer.say(pdu::task_management_response(header.itt(), 0), &[], true);
    assert_eq!(answer.try_recv(), Ok(Ok(0)));
    peer.state.ended_by_abort([tag], "aborted");
    assert_eq!(peer.sent()[0].0.itt(), tag, "a repeatable command is resent");
}

#[test]
fn reject_ends_the_command_that_it_names() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    let (header, _) = peer.sent().remove(0);
    peer.say(pdu::reject(0x09), header.as_bytes(), true);
    assert_eq!(
        peer.end(tag).expect("the command has ended").0.expect_err("rejected").code,
        ErrorCode::ProtocolError
    );
    assert!(peer.state.connection.fault().is_none());
    peer.say(pdu::reject(0x04), &[1, 2, 3], true);
    assert_eq!(peer.broken().code, ErrorCode::ProtocolError, "a Reject without a complete header");
}

/// ASY-004: no new command is sent to a target that has requested a logout.
#[test]
fn target_that_wants_us_to_leave_gets_no_more_commands() {
    let mut peer = Peer::new(parameters());
    peer.say(pdu::async_message(0, 1, [0, 0, 5]), &[], true);
    assert!(peer.state.connection.is_logout_asked());
    peer.read(512);
    assert!(peer.sent().is_empty());
}

/// The target did not execute a command that crossed its logout request. The command is resent on the next
/// connection, even if it is not repeatable.
#[test]
fn command_rejected_before_a_logout_is_resent() {
    let mut peer = Peer::new(parameters());
    let once = peer.submit(cdb::compare_and_write(0, 1, false), Direction::Out(Buf::zeroed(1024)));
    let (header, _) = peer.sent().remove(0);
    peer.say(pdu::reject(0x0c), header.as_bytes(), true);
    assert!(
        peer.state.connection.is_logout_asked()
            && peer.state.connection.fault().is_none()
            && peer.end(once).is_none()
    );
    let sent = peer.sent();
    assert!(sent.iter().all(|(h, _)| h.opcode() == opcode::NOP_OUT), "no command is sent on this connection");
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "left"));
    peer.log_in(parameters());
    assert_eq!(peer.sent()[0].0.itt(), once);
}

#[test]
fn asynchronous_unit_attentions_are_reported() {
    let mut peer = Peer::new(parameters());
    let sense = Sense::LUNS_CHANGED.encode(false);
    let data = [&(sense.len() as u16).to_be_bytes()[..], &sense].concat();
    peer.say(pdu::async_message(1 << 48, 0, [0; 3]), &data, true);
    let event = super::Event::UnitAttention { lun: 1 << 48, sense: Sense::LUNS_CHANGED };
    assert_eq!(peer.state.events, [event]);
}
