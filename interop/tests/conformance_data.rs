//! Data transfer and SCSI Response (RFC 7143 sections 11.3, 11.4, 11.7, 11.8, 13.11 to 13.19).

use interop::scsi::{READ, WRITE, cdb10, inquiry, pattern, read10, write10};
use interop::{Login, NONE, Pdu, PduOutcome, Raw, Received, Reply, Server, config, op, shared};
use std::time::Duration;

/// A write of `blocks` at `lba` sent without data, and its first R2T.
fn held_write(raw: &mut Raw, lba: u32, blocks: u16) -> (Pdu, Pdu) {
    let write = raw.command(0, 0x80 | WRITE, &write10(lba, blocks), blocks as u32 * 512);
    raw.send(&write);
    let r2t = raw.recv_for(write.tag());
    assert_eq!(r2t.opcode(), op::R2T, "{r2t:?}");
    (write, r2t)
}

fn answer_to(raw: &Raw, r2t: &Pdu, data_sn: u32, offset: u32, data: &[u8], flags: u8) -> Pdu {
    raw.data_out(r2t.tag(), r2t.transfer_tag(), data_sn, offset, data).flags(flags).bytes(8, &r2t.bhs[8..16])
}

/// Waits for the end of a task that must fail. Returns its sense, or `None` if the connection ended. Rejects and R2Ts
/// may come before.
fn failure(raw: &mut Raw, itt: u32) -> Option<u32> {
    loop {
        match raw.next_outcome() {
            PduOutcome::Rejected(reason) => assert!(matches!(reason, 4 | 9), "{reason}"),
            PduOutcome::Closed => return None,
            PduOutcome::Answered(pdu) if pdu.opcode() == op::R2T => raw.answer(&pdu, &[0; 65536]),
            PduOutcome::Answered(pdu) => {
                assert_eq!((pdu.opcode(), pdu.tag(), pdu.bhs[3]), (op::SCSI_RESPONSE, itt, 2), "{pdu:?}");
                return Some(interop::sense(&pdu.data[2..]));
            }
        }
    }
}

/// DAT-005, RSP-009
#[test]
fn dat_005_unsolicited_data_that_was_not_allowed() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No"), ("InitialR2T", "Yes")]);
    raw.write_blocks(0, 3000, &[1; 512]).good();
    let write = raw.command(0, 0x80 | WRITE, &write10(3000, 1), 512).data(&[2; 512]);
    raw.send(&write);
    assert!(matches!(failure(&mut raw, write.tag()), None | Some(0x0b_0c0c)), "immediate data");
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No"), ("InitialR2T", "Yes")]);
    assert_eq!(raw.read_blocks(0, 3000, 1), [1; 512]);
    let write = raw.command(0, WRITE, &write10(3000, 1), 512);
    let data = raw.data_out(write.tag(), NONE, 0, 0, &[3; 512]);
    raw.send_all(&[write.clone(), data]);
    let mut sense = None;
    for pdu in until_end(&mut raw, write.tag()) {
        assert!(!matches!((pdu.opcode(), pdu.bhs[3]), (op::SCSI_RESPONSE, 0)), "{pdu:?}");
        sense = pdu.data.get(2..).map(interop::sense).or(sense);
    }
    let mut raw = Raw::session(server.portal(), &[]);
    assert_eq!(raw.read_blocks(0, 3000, 1), [1; 512], "sense {sense:06x?}");
}

/// All PDUs up to the response of a task, the end of the connection, or 500 ms of silence.
fn until_end(raw: &mut Raw, itt: u32) -> Vec<Pdu> {
    let mut seen = Vec::new();
    while let Received::Pdu(pdu) = raw.get(Duration::from_millis(500)) {
        let end = pdu.opcode() == op::SCSI_RESPONSE && pdu.tag() == itt;
        seen.push(pdu);
        if end {
            break;
        }
    }
    seen
}

/// DAT-008, RSP-009
#[test]
fn dat_008_too_little_unsolicited_data() {
    let server = shared();
    let keys = [("InitialR2T", "No"), ("ImmediateData", "No"), ("FirstBurstLength", "4096")];
    let mut raw = Raw::session(server.portal(), &keys);
    let write = raw.command(0, WRITE, &write10(3100, 16), 8192);
    let data = raw.data_out(write.tag(), NONE, 0, 0, &[1; 3584]);
    raw.send_all(&[write.clone(), data]);
    assert!(matches!(failure(&mut raw, write.tag()), None | Some(0x0b_0c0d)));
}

/// DAT-008: too much unsolicited data, as immediate data, as Data-Out, and as their sum.
#[test]
fn dat_008_too_much_unsolicited_data() {
    let server = shared();
    let keys = [("InitialR2T", "No"), ("ImmediateData", "Yes"), ("FirstBurstLength", "4096")];
    for (immediate, more) in [(4608, 0), (0, 4608), (4096, 512)] {
        let mut raw = Raw::session(server.portal(), &keys);
        let flags = if more > 0 { WRITE } else { 0x80 | WRITE };
        let write = raw.command(0, flags, &write10(3100, 16), 8192).data(&vec![1; immediate]);
        raw.send(&write);
        if more > 0 {
            raw.send(&raw.data_out(write.tag(), NONE, 0, immediate as u32, &vec![1; more]));
        }
        assert!(
            matches!(failure(&mut raw, write.tag()), None | Some(0x0b_0c0c | 0x0b_0c0d)),
            "{immediate} + {more}"
        );
    }
}

/// DAT-004, DAT-007 seen from the target: immediate data, one unsolicited burst, then R2Ts.
#[test]
fn dat_008_right_unsolicited_data_is_taken() {
    let server = shared();
    let keys = [("InitialR2T", "No"), ("ImmediateData", "Yes"), ("FirstBurstLength", "4096")];
    let mut raw = Raw::session(server.portal(), &keys);
    let bytes = pattern(16384, 9);
    let write = raw.command(0, WRITE, &write10(3150, 32), 16384).data(&bytes[..1024]);
    let first = raw.data_out(write.tag(), NONE, 0, 1024, &bytes[1024..2048]).flags(0);
    let last = raw.data_out(write.tag(), NONE, 1, 2048, &bytes[2048..4096]);
    raw.send_all(&[write.clone(), first, last]);
    let reply = raw.collect(write.tag(), &bytes);
    assert_eq!(reply.r2ts()[0].get32(40), 4096, "the R2T asks for received data again");
    reply.good();
    assert!(raw.read_blocks(0, 3150, 32) == bytes);
}

/// DAT-017, KEY-017
#[test]
fn dat_017_open_r2ts_are_limited() {
    let server = shared();
    for limit in [1u32, 3, 8] {
        let keys =
            [("MaxOutstandingR2T", &*limit.to_string()), ("MaxBurstLength", "4096"), ("ImmediateData", "No")];
        let mut raw = Raw::session(server.portal(), &keys);
        let bytes = pattern(65536, limit as u8);
        let write = raw.command(0, 0x80 | WRITE, &write10(3200, 128), 65536);
        raw.send(&write);
        let mut open = Vec::new();
        while let Received::Pdu(r2t) = raw.get(Duration::from_millis(200)) {
            assert_eq!(r2t.opcode(), op::R2T);
            open.push(r2t);
        }
        assert!((1..=limit as usize).contains(&open.len()), "{} of {limit}", open.len());
        for r2t in &open {
            raw.answer(r2t, &bytes);
        }
        raw.collect(write.tag(), &bytes).good();
        assert!(raw.read_blocks(0, 3200, 128) == bytes);
    }
}

/// DAT-018, DAT-019, DAT-029
#[test]
fn dat_018_r2ts_cover_the_write_once_and_in_order() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxBurstLength", "4096"), ("ImmediateData", "No")]);
    let bytes = pattern(1 << 20, 4);
    let reply = raw.write_blocks(0, 3500, &bytes);
    let mut next = 0;
    for r2t in reply.r2ts() {
        assert_eq!(r2t.get32(40), next);
        assert!((1..=4096).contains(&r2t.get32(44)));
        next += r2t.get32(44);
    }
    assert_eq!(next, 1 << 20);
    reply.good();
    assert!(raw.read_blocks(0, 3500, 2048) == bytes);
}

/// DAT-021: any order if DataPDUInOrder=No was negotiated, otherwise an error.
#[test]
fn dat_021_data_out_in_reverse() {
    let server = shared();
    for offer in ["No", "Yes"] {
        let login = Login::new().with(&[("DataPDUInOrder", offer), ("ImmediateData", "No")]);
        let mut raw = login.connect(server.portal());
        let pairs = login.finish(&mut raw, login.request(1, Some(3))).expect("a login");
        raw.clear_attentions(0);
        let any_order = pairs.contains(&("DataPDUInOrder".into(), "No".into()));
        let (write, r2t) = held_write(&mut raw, 5600, 2);
        raw.send(&answer_to(&raw, &r2t, 0, 512, &[2; 512], 0));
        raw.send(&answer_to(&raw, &r2t, 1, 0, &[1; 512], 0x80));
        if any_order {
            raw.collect(write.tag(), &[]).good();
            assert_eq!(raw.read_blocks(0, 5600, 2), [[1; 512], [2; 512]].concat());
        } else {
            let sense = failure(&mut raw, write.tag());
            assert!(matches!(sense, None | Some(0x0b_0c0d | 0x0b_4705)), "{sense:06x?}");
        }
    }
}

/// DAT-023, REJ-010
#[test]
fn dat_023_data_out_of_an_unknown_task() {
    let server = shared();
    let wrong: [(&str, &dyn Fn(Pdu) -> Pdu); 2] = [
        ("TTT", &|pdu: Pdu| pdu.clone().ttt(pdu.transfer_tag() ^ 0x5555)),
        ("ITT", &|pdu: Pdu| pdu.itt(0xdead_0001)),
    ];
    for (what, spoil) in wrong {
        let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
        let (write, r2t) = held_write(&mut raw, 5700, 1);
        let good = answer_to(&raw, &r2t, 0, 0, &[5; 512], 0x80);
        let bad = spoil(good.clone());
        raw.send(&bad);
        match raw.get(Duration::from_millis(300)) {
            Received::Nothing => {}
            Received::Pdu(pdu) => {
                assert!(pdu.opcode() == op::REJECT && matches!(pdu.bhs[2], 4 | 9), "{what}: {pdu:?}")
            }
            Received::Closed => continue,
        }
        raw.send(&good);
        raw.collect(write.tag(), &[]).good();
        assert_eq!(raw.read_blocks(0, 5700, 1), [5; 512], "the task did not continue");
    }
}

/// DAT-023, DAT-024, DAT-028, REJ-010: a wrong field must not store data in other blocks.
#[test]
fn dat_024_data_out_with_wrong_fields() {
    let server = shared();
    let wrong: [(&str, &dyn Fn(Pdu) -> Pdu); 5] = [
        ("another LUN", &|pdu: Pdu| pdu.lun(1)),
        ("an offset beyond the R2T", &|pdu: Pdu| pdu.set32(40, 512)),
        ("an offset that overflows", &|pdu: Pdu| pdu.set32(40, 0xffff_fe00)),
        ("more than was asked for", &|pdu: Pdu| pdu.data(&[6; 1024])),
        ("a DataSN out of nowhere", &|pdu: Pdu| pdu.set32(36, 7)),
    ];
    for (what, spoil) in wrong {
        let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
        raw.write_blocks(0, 5800, &[1; 2048]).good();
        let (write, r2t) = held_write(&mut raw, 5801, 1);
        let bad = spoil(answer_to(&raw, &r2t, 0, 0, &[6; 512], 0x80));
        raw.send(&bad);
        for pdu in until_end(&mut raw, write.tag()) {
            assert!(!matches!((pdu.opcode(), pdu.bhs[3]), (op::SCSI_RESPONSE, 0)), "{what}: {pdu:?}");
        }
        let mut raw = Raw::session(server.portal(), &[]);
        let blocks = raw.read_blocks(0, 5800, 4);
        assert!(blocks[..512] == [1; 512] && blocks[1024..] == [1; 1024], "{what} changed other blocks");
    }
}

/// DAT-025, KEY-013, DAT-033: the client checks in every Data-In that A is not set.
#[test]
fn dat_025_f_ends_each_burst() {
    let server = shared();
    let mut raw =
        Raw::session(server.portal(), &[("MaxBurstLength", "65536"), ("MaxRecvDataSegmentLength", "8192")]);
    let bytes = pattern(1 << 20, 6);
    raw.write_blocks(0, 6000, &bytes).good();
    let reply = raw.read(0, &read10(6000, 2048), 1 << 20);
    let data: Vec<&Pdu> = reply.pdus.iter().filter(|p| p.opcode() == op::DATA_IN).collect();
    let (mut burst, mut at) = (0, 0);
    for pdu in &data {
        assert_eq!(pdu.get32(40), at);
        at += pdu.data.len() as u32;
        burst += pdu.data.len();
        assert!(burst <= 65536 && (burst < 65536 || pdu.is_final()), "{burst}");
        burst = if pdu.is_final() { 0 } else { burst };
    }
    assert!(data.last().is_some_and(|p| p.is_final()) && reply.good() == bytes);
}

/// DAT-026, RSP-009
#[test]
fn dat_026_less_data_than_the_r2t_asked_for() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
    let (write, r2t) = held_write(&mut raw, 8100, 4);
    raw.send(&answer_to(&raw, &r2t, 0, 0, &[1; 1024], 0x80));
    assert!(matches!(failure(&mut raw, write.tag()), None | Some(0x0b_0c0d)));
}

/// DAT-026: too much data, in a second PDU.
#[test]
fn dat_026_more_data_than_the_r2t_asked_for() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
    raw.write_blocks(0, 8200, &[7; 2048]).good();
    let (write, r2t) = held_write(&mut raw, 8200, 2);
    raw.send(&answer_to(&raw, &r2t, 0, 0, &[8; 1024], 0));
    raw.send(&answer_to(&raw, &r2t, 1, 1024, &[8; 512], 0x80));
    assert!(matches!(failure(&mut raw, write.tag()), None | Some(0x0b_0c0d)));
    let mut raw = Raw::session(server.portal(), &[]);
    assert_eq!(raw.read_blocks(0, 8202, 2), [7; 1024]);
}

/// DAT-027
#[test]
fn dat_027_empty_data_out() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
    let (write, r2t) = held_write(&mut raw, 8300, 2);
    let parts = [(0, &[][..], 0), (0, &[1; 512], 0), (512, &[], 0), (512, &[2; 512], 0), (1024, &[], 0x80)];
    for (i, (offset, data, flags)) in parts.into_iter().enumerate() {
        raw.send(&answer_to(&raw, &r2t, i as u32, offset, data, flags));
    }
    raw.collect(write.tag(), &[]).good();
    assert_eq!(raw.read_blocks(0, 8300, 2), [[1; 512], [2; 512]].concat());
}

/// DAT-027: Data-Out whose lengths are not multiples of four.
#[test]
fn dat_027_odd_pieces() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No"), ("DataDigest", "CRC32C")]);
    let (write, r2t) = held_write(&mut raw, 8400, 1);
    let bytes = pattern(512, 7);
    for (i, at) in (0..512).step_by(37).enumerate() {
        let end = 512.min(at + 37);
        raw.send(&answer_to(
            &raw,
            &r2t,
            i as u32,
            at as u32,
            &bytes[at..end],
            if end == 512 { 0x80 } else { 0 },
        ));
    }
    raw.collect(write.tag(), &[]).good();
    assert!(raw.read_blocks(0, 8400, 1) == bytes);
}

/// DAT-030: Data-In has a status only if it is GOOD, which the client checks in every Data-In. Sense comes in a SCSI
/// Response.
#[test]
fn dat_030_sense_comes_in_a_response() {
    let errors = config::standard().replace(
        "size = \"64MiB\"",
        "size = \"64MiB\"\nfilters = [{ kind = \"error\", rate = 1.0, op = \"read\" }]",
    );
    let server = Server::start(&errors);
    let mut raw = Raw::session(server.portal(), &[]);
    let reply = raw.read(0, &read10(0, 8), 4096);
    assert_eq!(reply.pdus.last().map(Pdu::opcode), Some(op::SCSI_RESPONSE));
    assert_eq!((reply.status, reply.sense() >> 8), (2, 0x03_11), "MEDIUM ERROR, unrecovered read error");
    raw.write_blocks(0, 0, &[1; 512]).good();
}

/// A command whose flags name the wrong direction moves no data, and its residual is the whole expected length.
#[test]
fn wrong_direction_has_a_residual_of_all_data() {
    const UNDERFLOW: u8 = 2;
    let server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    raw.write_blocks(0, 0, &[7; 4096]).good();
    for (flag, cdb, status) in [(WRITE, read10(0, 8), 0), (READ, write10(0, 8), 2)] {
        let command = raw.command(0, 0x80 | flag, &cdb, 4096);
        let reply = raw.execute(&command, &[1; 4096]);
        assert_eq!((reply.status, reply.flags & 6, reply.residual), (status, UNDERFLOW, 4096), "{reply:?}");
        assert!(reply.data.is_empty());
    }
    assert_eq!(raw.read_blocks(0, 0, 8), [7; 4096]);
}

/// DAT-035
#[test]
fn dat_035_an_early_error_waits_for_the_data() {
    let server = shared();
    let keys = [("InitialR2T", "No"), ("ImmediateData", "No"), ("FirstBurstLength", "1024")];
    let mut raw = Raw::session(server.portal(), &keys);
    let write = raw.command(0, WRITE, &write10(0xffff_fff0, 2), 1024);
    raw.send(&write);
    raw.expect_silence();
    raw.send(&raw.data_out(write.tag(), NONE, 0, 0, &[1; 512]).flags(0));
    raw.expect_silence();
    raw.send(&raw.data_out(write.tag(), NONE, 1, 512, &[1; 512]));
    raw.collect(write.tag(), &[]).check(0x05_2100);
}

fn residual(reply: &Reply) -> (u8, u32) {
    (reply.flags, reply.residual)
}

const OVER: u8 = 4;
const UNDER: u8 = 2;

/// RSP-001, RSP-002, RSP-003, RSP-004, RSP-006
#[test]
fn rsp_001_residuals_of_reads() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let over = raw.read(0, &read10(0, 16), 4096);
    assert_eq!((residual(&over), over.data.len(), over.status), ((OVER, 4096), 4096, 0));
    let under = raw.read(0, &read10(0, 4), 4096);
    assert_eq!((residual(&under), under.data.len(), under.status), ((UNDER, 2048), 2048, 0));
    let exact = raw.read(0, &read10(0, 8), 4096);
    assert_eq!((residual(&exact), exact.data.len()), ((0, 0), 4096));
    let inquiry = raw.read(0, &inquiry(None, 96), 255);
    assert_eq!(residual(&inquiry), (UNDER, 255 - inquiry.data.len() as u32));
    let short = raw.read(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], 16);
    assert_eq!((residual(&short), short.data.len()), ((0, 0), 16), "cut by the allocation length");
    let roomy = raw.read(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], 64);
    assert_eq!((residual(&roomy), roomy.data.len()), ((UNDER, 48), 16));
    let nothing = raw.read(0, &[0; 6], 512);
    assert_eq!((residual(&nothing), nothing.status), ((UNDER, 512), 0), "TEST UNIT READY has no data");
    let zero = raw.read(0, &read10(0, 1), 0);
    assert_eq!((residual(&zero), zero.data.len()), ((OVER, 512), 0), "an expected length of 0");
}

/// RSP-005
#[test]
fn rsp_005_residuals_of_writes() {
    let server = shared();
    for keys in [&[][..], &[("ImmediateData", "No")]] {
        let mut raw = Raw::session(server.portal(), keys);
        raw.write_blocks(0, 8500, &[0; 4096]).good();
        let over = raw.write(0, &write10(8500, 4), &[1; 1024]);
        assert_eq!(residual(&over), (OVER, 1024), "the CDB requires more than was sent");
        over.check(0x05_0e03);
        let under = raw.write(0, &write10(8504, 2), &[2; 2048]);
        assert_eq!((residual(&under), under.status), ((UNDER, 1024), 0), "the CDB requires less");
        let stored = raw.read_blocks(0, 8500, 8);
        assert_eq!(stored, [&[0; 2048][..], &[2; 1024], &[0; 1024]].concat());
    }
}

/// RSP-008
#[test]
fn rsp_008_sense_comes_with_check_condition() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let reply = raw.read(0, &read10(0xffff_ffff, 1), 512);
    let response = reply.pdus.last().expect("a response");
    let length = response.get32(4) as usize & 0xff_ffff;
    assert_eq!(u16::from_be_bytes([response.data[0], response.data[1]]) as usize, length - 2);
    assert!(reply.sense.len() >= 18 && reply.sense[0] & 0x7f == 0x70, "fixed format by default");
    reply.check(0x05_2100);
    raw.simple(0, &[0xff; 6]).check(0x05_2000);
    let mut sense_data = raw.read(0, &[3, 0, 0, 0, 252, 0], 252).good();
    sense_data.resize(18, 0);
    assert_eq!(interop::sense(&sense_data), 0, "nothing is left for REQUEST SENSE");
}

/// RSP-011
#[test]
fn rsp_011_reservation_conflict_passes_unchanged() {
    let server = Server::start(&config::standard());
    let mut owner = Raw::session(server.portal(), &[]);
    let mut other = Raw::session(server.portal(), &[]);
    owner.simple(0, &[0x16, 0, 0, 0, 0, 0]).good();
    let reply = other.read(0, &read10(0, 1), 512);
    assert_eq!((reply.response, reply.status, reply.sense.len()), (0, 0x18, 0));
    assert_eq!(other.write_blocks(0, 0, &[1; 512]).status, 0x18);
    owner.simple(0, &[0x17, 0, 0, 0, 0, 0]).good();
    other.read_blocks(0, 0, 1);
}

/// RSP-012
#[test]
fn rsp_012_naca_is_refused_or_establishes_aca() {
    let server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    let mut cdb = read10(0xffff_ffff, 1);
    cdb[9] = 4;
    let sense = raw.read(0, &cdb, 512).sense();
    if sense == 0x05_2100 {
        assert_eq!(raw.simple(0, &[0; 6]).status, 0x30, "ACA ACTIVE");
        assert_eq!(raw.manage(3, 0), 0, "CLEAR ACA");
    } else {
        assert_eq!(sense, 0x05_2400, "INVALID FIELD IN CDB");
    }
    raw.simple(0, &[0; 6]).good();
}

/// DAT-011: any direction is accepted if the command has no data.
#[test]
fn dat_011_directions_without_data() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    for flags in [0x80, 0x80 | READ, 0x80 | WRITE] {
        let command = raw.command(0, flags, &[0; 6], 0);
        raw.execute(&command, &[]).good();
    }
}

/// DAT-024: a command in the wrong direction moves no data, and does not disturb other commands.
#[test]
fn dat_024_the_wrong_direction() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    raw.write_blocks(0, 8600, &[9; 512]).good();
    let write_as_read = raw.command(0, 0x80 | READ, &write10(8600, 1), 512);
    assert!(raw.execute(&write_as_read, &[]).data.iter().all(|b| *b == 0));
    let read_as_write = raw.command(0, 0x80 | WRITE, &cdb10(0x28, 8600, 1), 512).data(&[1; 512]);
    assert!(raw.execute(&read_as_write, &[1; 512]).data.is_empty());
    raw.ping();
    assert_eq!(raw.read_blocks(0, 8600, 1), [9; 512]);
}
