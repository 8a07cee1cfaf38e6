//! Writes that the target takes in pieces: their R2Ts, initiators that violate them, and writes that end early.

use interop::scsi::{WRITE, pattern, write10};
use interop::{Pdu, PduOutcome, Raw, Received, Server, config, op};
use std::time::Duration;

/// Bytes of a piece, and of the long write.
const PIECE: usize = 1 << 20;
const LEN: usize = 5 * PIECE;
/// ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR.
const CRC: u32 = 0x0b_4705;
const ABORT_TASK: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(30);
/// Every byte of data that must not be stored.
const BAD: u8 = 6;

/// Enough R2Ts for two pieces.
const MANY: [(&str, &str); 2] = [("MaxOutstandingR2T", "8"), ("MaxBurstLength", "262144")];

/// A session without immediate data, and with these keys.
fn session(server: &Server, keys: &[(&str, &str)]) -> Raw {
    let mut raw = Raw::session(server.portal(), &[&[("ImmediateData", "No")], keys].concat());
    raw.clear_attentions(0);
    raw
}

/// Sends a write of [`LEN`] bytes from block 0 on, without its data.
fn announce(raw: &mut Raw) -> Pdu {
    let write = raw.command(0, 0x80 | WRITE, &write10(0, (LEN / 512) as u16), LEN as u32);
    raw.send(&write);
    write
}

fn end_of(r2t: &Pdu) -> usize {
    (r2t.get32(40) + r2t.get32(44)) as usize
}

/// Sends the first piece of a long write of `data`, and waits for an R2T beyond the second piece: the first one is
/// then stored. Returns the R2Ts that are still open.
fn first_piece(raw: &mut Raw, write: &Pdu, data: &[u8]) -> Vec<Pdu> {
    let mut open = Vec::new();
    loop {
        let r2t = raw.recv_for(write.tag());
        assert_eq!(r2t.opcode(), op::R2T, "{r2t:?}");
        match end_of(&r2t) {
            end if end <= PIECE => raw.answer(&r2t, data),
            end if end <= 2 * PIECE => open.push(r2t),
            _ => return [open, vec![r2t]].concat(),
        }
    }
}

/// Whether each piece of the medium starts with other data than zeros.
fn stored(server: &Server) -> [bool; 5] {
    let mut raw = session(server, &[]);
    [0, 1, 2, 3, 4].map(|n| raw.read_blocks(0, n * (PIECE / 512) as u32, 1) != [0; 512])
}

const FIRST: [bool; 5] = [true, false, false, false, false];

/// DAT-018, DAT-019, DAT-029, SN-008
#[test]
fn r2ts_cover_a_long_write_once_and_in_order() {
    let server = Server::start(&config::standard());
    for (burst, open) in [("65536", "1"), ("262144", "8"), ("1000000", "3"), ("16776192", "8")] {
        let keys = [("MaxBurstLength", burst), ("MaxOutstandingR2T", open), ("DataSequenceInOrder", "Yes")];
        let mut raw = session(&server, &keys);
        let data = pattern(LEN, open.len() as u8);
        let reply = raw.write_blocks(0, 0, &data);
        let mut next = 0;
        for (r2t, r2t_sn) in reply.r2ts().into_iter().zip(0..) {
            assert_eq!((r2t.get32(40) as usize, r2t.get32(36)), (next, r2t_sn), "{burst}");
            assert!(r2t.get32(44) > 0 && r2t.get32(44) <= burst.parse().expect("a number"));
            next = end_of(r2t);
        }
        assert_eq!(next, LEN);
        reply.good();
        assert!(raw.read_blocks(0, 0, (LEN / 512) as u16) == data, "{burst} {open}");
    }
}

/// DAT-017
#[test]
fn open_r2ts_of_a_long_write_are_limited() {
    let server = Server::start(&config::standard());
    for limit in [1, 3, 8] {
        let keys = [("MaxOutstandingR2T", &*limit.to_string()), ("MaxBurstLength", "262144")];
        let mut raw = session(&server, &keys);
        let data = pattern(LEN, limit as u8);
        let write = announce(&mut raw);
        let (mut open, mut sent) = (Vec::new(), 0);
        let answer = loop {
            // More R2Ts may arrive while some are open.
            let patience = if open.is_empty() { PATIENCE } else { Duration::from_millis(100) };
            match raw.get(patience) {
                Received::Pdu(pdu) if pdu.opcode() == op::R2T => open.push(pdu),
                Received::Pdu(pdu) => break pdu,
                other => {
                    assert!(!open.is_empty(), "{other:?}");
                    let first = open.remove(0);
                    sent = end_of(&first);
                    raw.answer(&first, &data);
                }
            }
            assert!(open.len() <= limit, "{} of {limit}", open.len());
            let ahead = open.last().map_or(0, end_of).saturating_sub(sent);
            assert!(ahead <= 2 * PIECE, "the target requests {ahead} bytes ahead");
        };
        assert_eq!((answer.tag(), answer.opcode(), answer.bhs[3]), (write.tag(), op::SCSI_RESPONSE, 0));
        assert!(raw.read_blocks(0, 0, (LEN / 512) as u16) == data, "{limit}");
    }
}

/// DAT-021: the order within a sequence, and of sequences.
#[test]
fn long_write_accepts_data_in_each_negotiated_order() {
    let server = Server::start(&config::standard());
    let keys = [("DataPDUInOrder", "No"), ("DataSequenceInOrder", "No"), ("MaxOutstandingR2T", "8")];
    let mut raw = session(&server, &keys);
    let data = pattern(LEN, 9);
    let write = announce(&mut raw);
    let mut open = first_piece(&mut raw, &write, &data);
    open.reverse();
    open.iter().for_each(|r2t| raw.answer(r2t, &data));
    raw.collect(write.tag(), &data).good();
    assert!(raw.read_blocks(0, 0, (LEN / 512) as u16) == data);
}

/// DAT-024, DAT-026, DAT-028: the first piece is stored, and no invalid data.
#[test]
fn invalid_data_of_a_long_write_is_not_stored() {
    let wrong: [(&str, &dyn Fn(Pdu) -> Pdu); 5] = [
        ("an offset in another piece", &|pdu: Pdu| pdu.set32(40, 3 * PIECE as u32)),
        ("an offset that was written", &|pdu: Pdu| pdu.set32(40, 512)),
        ("an offset that overflows", &|pdu: Pdu| pdu.set32(40, 0xffff_fe00)),
        ("a DataSN out of nowhere", &|pdu: Pdu| pdu.set32(36, 7)),
        ("the F bit too early", &|pdu: Pdu| pdu.flags(0x80)),
    ];
    for (what, spoil) in wrong {
        let server = Server::start(&config::standard());
        let mut raw = session(&server, &MANY);
        let data = vec![1; LEN];
        let write = announce(&mut raw);
        let open = first_piece(&mut raw, &write, &data);
        let bad = raw.data_out(write.tag(), open[0].transfer_tag(), 0, PIECE as u32, &[BAD; 512]);
        raw.send(&spoil(bad.flags(0).bytes(8, &open[0].bhs[8..16])));
        open.iter().for_each(|r2t| raw.answer(r2t, &data));
        // The target rejects the PDU and continues the task, or it ends the task.
        let status = loop {
            match raw.next_outcome() {
                PduOutcome::Rejected(reason) => assert!(matches!(reason, 4 | 9), "{what}: {reason}"),
                PduOutcome::Closed => break 2,
                PduOutcome::Answered(pdu) if pdu.opcode() == op::R2T => raw.answer(&pdu, &data),
                PduOutcome::Answered(pdu) => break pdu.bhs[3],
            }
        };
        assert!(status == 0 || stored(&server) == FIRST, "{what}: {status}");
        let medium = session(&server, &[]).read_blocks(0, 0, (LEN / 512) as u16);
        assert!(!medium.contains(&BAD), "{what}");
    }
}

/// FRM-018, FRM-019
#[test]
fn bad_digest_in_the_middle_ends_a_long_write() {
    let server = Server::start(&config::standard());
    let mut raw =
        session(&server, &[&MANY[..], &[("DataDigest", "CRC32C"), ("HeaderDigest", "None")]].concat());
    let data = vec![1; LEN];
    let write = announce(&mut raw);
    let open = first_piece(&mut raw, &write, &data);
    let bad = raw.data_out(write.tag(), open[0].transfer_tag(), 0, PIECE as u32, &[BAD; 512]);
    let bad = bad.flags(0).bytes(8, &open[0].bhs[8..16]);
    let mut bytes = bad.encode(false, true);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    raw.send_bytes(&bytes);
    assert_eq!(raw.rejected(&bad), 2);
    let rest = &data[..open[0].get32(44) as usize - 512];
    for (part, n) in rest.chunks(raw.send_max).zip(0..) {
        let at = PIECE + 512 + n as usize * raw.send_max;
        let pdu = raw.data_out(write.tag(), open[0].transfer_tag(), n + 1, at as u32, part);
        let is_last = at + part.len() == end_of(&open[0]);
        raw.send(&pdu.flags(if is_last { 0x80 } else { 0 }).bytes(8, &open[0].bhs[8..16]));
    }
    open[1..].iter().for_each(|r2t| raw.answer(r2t, &data));
    raw.collect(write.tag(), &data).check(CRC);
    raw.ping();
    assert_eq!(stored(&server), FIRST);
}

#[test]
fn aborted_long_write_stores_no_more() {
    let server = Server::start(&config::standard());
    let mut raw = session(&server, &MANY);
    let data = vec![1; LEN];
    let write = announce(&mut raw);
    let open = first_piece(&mut raw, &write, &data);
    let abort = raw.tmf(ABORT_TASK, 0, write.tag(), write.get32(24));
    raw.send(&abort);
    let answer = raw.recv_for(abort.tag());
    assert_eq!((answer.opcode(), answer.bhs[2]), (op::TMF_RESPONSE, 0));
    open.iter().for_each(|r2t| raw.answer(r2t, &data));
    raw.ping();
    assert_eq!(stored(&server), FIRST);
}

#[test]
fn lost_connection_stops_a_long_write() {
    let server = Server::start(&config::standard());
    let mut raw = session(&server, &MANY);
    let data = vec![1; LEN];
    let write = announce(&mut raw);
    let open = first_piece(&mut raw, &write, &data);
    server.pause();
    open.iter().take(1).for_each(|r2t| raw.answer(r2t, &data[..end_of(r2t)]));
    rustix::net::sockopt::set_socket_linger(&raw.stream, Some(Duration::ZERO)).expect("a socket");
    drop(raw);
    server.resume();
    interop::routed::until("the log", || server.log().contains("session ended").then_some(()));
    assert_eq!(stored(&server), FIRST);
}

/// A server with a `data_out_timeout_s` of 1, and with these keys of the disk.
fn impatient(disk: &str) -> Server {
    let text = config::standard().replace("nop_interval_s = 0", "nop_interval_s = 0\ndata_out_timeout_s = 1");
    Server::start(&text.replacen("size = \"64MiB\"", &format!("size = \"64MiB\"\n{disk}"), 1))
}

#[test]
fn long_write_whose_data_stop_ends_its_session() {
    let server = impatient("");
    let mut raw = session(&server, &MANY);
    let data = vec![1; LEN];
    let write = announce(&mut raw);
    let open = first_piece(&mut raw, &write, &data);
    assert!(!open.is_empty());
    raw.until_close();
    let message = "the initiator did not send the data of a write in time";
    interop::routed::until("the log", || server.log().contains(message).then_some(()));
    assert_eq!(stored(&server), FIRST);
}

/// The session continues although the medium takes longer than `data_out_timeout_s`.
#[test]
fn slow_medium_does_not_end_the_session() {
    let server = impatient("filters = [{ kind = \"delay\", write_us = 1500000 }]");
    let mut raw = session(&server, &MANY);
    let data = pattern(3 * PIECE, 5);
    raw.write_blocks(0, 0, &data).good();
    assert!(raw.read_blocks(0, 0, (3 * PIECE / 512) as u16) == data);
}
