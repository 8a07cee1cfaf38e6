//! Framing, header fields and digests (RFC 7143 sections 11, 13.1, 7.7, 7.8).

use interop::digest::crc32c;
use interop::scsi::{READ, WRITE, cdb10, inquiry, pattern, read10, write10};
use interop::{Login, NONE, Pdu, PduOutcome, Raw, Server, config, op, shared};

const CRC: &[(&str, &str)] = &[("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
/// An Extended CDB AHS for a 32-byte CDB, and an AHS with a bidirectional read length of 512 bytes.
const EXTENDED: [u8; 20] = [0, 17, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const BIDI: [u8; 8] = [0, 5, 2, 0, 0, 0, 2, 0];

/// FRM-001
#[test]
fn frm_001_integers_are_big_endian() {
    let server = shared();
    let login = Login::new().cmd_sn(0x0102_0304);
    let answer = login.connect(server.portal()).login(&login.request(1, Some(3)));
    assert_eq!(answer.bhs[28..32], [1, 2, 3, 4]);
}

/// FRM-002, FRM-007: the client checks each PDU that it receives. Here it receives each type that a test can request.
#[test]
fn frm_002_reserved_fields_are_zero_in_every_pdu() {
    let server = shared();
    let mut raw =
        Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", "512"), ("ImmediateData", "No")]);
    let mut seen = vec![op::LOGIN_RESPONSE];
    raw.ping();
    seen.push(op::NOP_IN);
    seen.extend(raw.read(0, &read10(0, 4), 2048).pdus.iter().map(Pdu::opcode));
    seen.extend(raw.write_blocks(0, 0, &[0; 1024]).pdus.iter().map(Pdu::opcode));
    raw.read(0, &read10(0xffff_ffff, 1), 512).check(0x05_2100);
    assert_eq!(raw.manage(2, 0), 0);
    seen.push(op::TMF_RESPONSE);
    seen.push(raw.text(&[("X-com.example.a", "b")]).opcode());
    let bad = raw.request(0x0a);
    raw.send(&bad);
    assert_eq!(raw.rejected(&bad), 5);
    let mut raw = Raw::session(server.portal(), &[]);
    seen.push(raw.logout(0, 0).opcode());
    for wanted in [0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31] {
        assert!(seen.contains(&wanted), "{wanted:#x} in {seen:02x?}");
    }
}

/// FRM-003
#[test]
fn frm_003_reserved_bits_of_requests_are_ignored() {
    let server = shared();
    let noise = |pdu: Pdu, byte1: u8, ranges: &[(usize, usize)]| {
        let pdu = pdu.clone().flags(pdu.bhs[1] | byte1);
        ranges.iter().fold(pdu, |p, (from, to)| p.bytes(*from, &vec![0xff; to - from]))
    };
    let login = Login::new().key("ImmediateData", "No");
    let mut raw = login.connect(server.portal());
    let request = noise(login.request(1, Some(3)), 0x30, &[(22, 24), (32, 48)]);
    login.finish(&mut raw, request).expect("a login");
    (0..3).for_each(|lun| raw.clear_attentions(lun));
    let ping = raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(b"x");
    assert_eq!(raw.ask(&noise(ping, 0x7f, &[(2, 4), (36, 48)])).data, b"x");
    let read = raw.command(0, 0x80 | READ, &read10(0, 1), 512);
    assert_eq!(raw.execute(&noise(read, 0x18, &[(2, 4)]), &[]).good().len(), 512);
    // A separate block: other tests write to the start of the shared disk at the same time.
    let write = raw.command(0, 0x80 | WRITE, &write10(3000, 1), 512);
    raw.send(&write);
    let r2t = raw.recv_for(write.tag());
    let data = raw.data_out(write.tag(), r2t.transfer_tag(), 0, 0, &[7; 512]).bytes(8, &r2t.bhs[8..16]);
    raw.send(&noise(data, 0x7f, &[(2, 4), (24, 28), (32, 36), (44, 48)]));
    raw.collect(write.tag(), &[]).good();
    assert_eq!(raw.read_blocks(0, 3000, 1), [7; 512]);
    let tmf = raw.tmf(2, 0, NONE, 0);
    assert_eq!(raw.ask(&noise(tmf, 0, &[(2, 4), (40, 48)])).bhs[2], 0);
    let text = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("X-com.example.a", "b")]);
    assert_eq!(raw.ask(&noise(text, 0x3f, &[(2, 4), (36, 48)])).opcode(), op::TEXT_RESPONSE);
    let logout = raw.request(op::LOGOUT | 0x40);
    assert_eq!(raw.ask(&noise(logout, 0, &[(2, 4), (8, 16), (22, 24), (32, 48)])).bhs[2], 0);
}

/// FRM-004
#[test]
fn frm_004_reserved_codes_are_errors() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let unknown_function = raw.tmf(100, 0, NONE, 0);
    if let PduOutcome::Answered(answer) = raw.outcome(&unknown_function) {
        assert!(matches!((answer.opcode(), answer.bhs[2]), (op::TMF_RESPONSE, 5 | 255)), "{answer:?}");
    }
    let mut raw = Raw::session(server.portal(), &[]);
    let snack = Pdu::new(op::SNACK).flags(0x89).itt(NONE).ttt(NONE);
    raw.outcome(&snack).refused(&[3, 4, 9]);
    let mut raw = Raw::session(server.portal(), &[]);
    let logout = raw.request(op::LOGOUT | 0x40).flags(0x85);
    if let PduOutcome::Answered(answer) = raw.outcome(&logout) {
        assert!(answer.opcode() == op::LOGOUT_RESPONSE && answer.bhs[2] != 0, "{answer:?}");
    }
}

/// FRM-005
#[test]
fn frm_005_pdus_whatever_the_segmentation() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), CRC);
    let pings: Vec<Pdu> =
        (0..20).map(|i| raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(&pattern(i * 3, i as u8))).collect();
    raw.send_all(&pings);
    for ping in &pings {
        assert_eq!(raw.recv_for(ping.tag()).data, ping.data);
    }
    let write = raw.command(0, 0x80 | WRITE, &write10(9, 1), 512).data(&pattern(512, 9));
    raw.send_slowly(&write.encode(true, true));
    raw.collect(write.tag(), &[]).good();
    assert_eq!(raw.read_blocks(0, 9, 1), pattern(512, 9));
}

/// FRM-006: the client checks in every PDU that padding is zero.
#[test]
fn frm_006_segments_are_padded_to_four_bytes() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let pings: Vec<Pdu> =
        (1..=5).map(|n| raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(&[0xa5; 5][..n])).collect();
    raw.send_all(&pings);
    for ping in &pings {
        assert_eq!(raw.recv_for(ping.tag()).data, ping.data);
    }
    let mut padded_with_ones = raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(b"a").encode(false, false);
    padded_with_ones[49..].fill(0xff);
    raw.send_bytes(&padded_with_ones);
    assert_eq!(raw.recv_op(op::NOP_IN).data, b"a");
    raw.ping();
}

/// FRM-008, REJ-006
#[test]
fn frm_008_opcodes_of_the_other_side_are_not_supported() {
    let server = shared();
    for opcode in [0x07, 0x0a, 0x1d, 0x21, 0x25, 0x3f] {
        let mut raw = Raw::session(server.portal(), &[]);
        let bad = raw.request(opcode | 0x40);
        raw.outcome(&bad).refused(&[5]);
    }
    let mut raw = Raw::session(server.portal(), &[]);
    let bad = raw.request(0x4a);
    raw.send(&bad);
    assert_eq!(raw.rejected(&bad), 5);
    raw.ping();
}

/// FRM-009
#[test]
fn frm_009_additional_headers_are_walked_in_any_order() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let mut variable = [0u8; 16];
    (variable[0], variable[7], variable[9]) = (0x7f, 24, 0x7e);
    for ahs in [[&EXTENDED[..], &BIDI].concat(), [&BIDI[..], &EXTENDED].concat(), EXTENDED.to_vec()] {
        let flags = if ahs.len() > EXTENDED.len() { 0x80 | READ | WRITE } else { 0x80 | WRITE };
        let command = raw.command(0, flags, &variable, 4).ahs(&ahs).data(b"data");
        let reply = raw.execute(&command, b"data");
        assert_eq!((reply.status, reply.sense() >> 16), (2, 5), "an unknown service action: {reply:?}");
        raw.ping();
    }
    let without = raw.command(0, 0x80 | READ | WRITE, &cdb10(0x53, 0, 1), 512).data(&[0; 512]);
    if let PduOutcome::Answered(answer) = raw.outcome(&without) {
        assert!(answer.opcode() == op::SCSI_RESPONSE && answer.bhs[3] == 2, "{answer:?}");
    }
}

/// An AHS that does not fit into TotalAHSLength is a format error. The target must not read beyond it.
#[test]
fn frm_009_a_broken_additional_header_harms_no_other_session() {
    let server = shared();
    for ahs in [[0xff, 0xff, 1, 0], [0, 0, 0, 0], [0, 9, 2, 0], [0, 1, 77, 0]] {
        let mut raw = Raw::session(server.portal(), &[]);
        let command = raw.command(0, 0x80, &[0; 6], 0).ahs(&ahs);
        if let PduOutcome::Answered(answer) = raw.outcome(&command) {
            assert_eq!(answer.opcode(), op::SCSI_RESPONSE, "{answer:?}");
        }
        Raw::session(server.portal(), &[]).ping();
    }
}

/// FRM-011
#[test]
fn frm_011_luns_have_the_sam_form() {
    let more = "[[target.lun]]\nlun = 300\nbackend = \"null\"\nsize = \"1GiB\"\n";
    let server = Server::start(&config::with("", "", more));
    let mut raw = Raw::session(server.portal(), &[]);
    let list = raw.read(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], 1024).good();
    let luns: Vec<&[u8]> = list[8..].chunks(8).collect();
    assert!(luns.contains(&&[0, 1, 0, 0, 0, 0, 0, 0][..]), "{luns:02x?}");
    assert!(luns.contains(&&[0x41, 0x2c, 0, 0, 0, 0, 0, 0][..]), "{luns:02x?}");
    for lun in [1, 300] {
        raw.clear_attentions(lun);
        assert_eq!(raw.read(lun, &inquiry(None, 36), 36).good()[0] & 0xe0, 0, "LUN {lun}");
        assert_eq!(raw.read_blocks(lun, 0, 1).len(), 512);
    }
    assert_eq!(raw.read(299, &inquiry(None, 36), 36).good()[0], 0x7f);
}

/// FRM-013, FRM-016, KEY-001: the client parses every PDU after the last Login Response with the negotiated digests.
#[test]
fn frm_013_all_four_digest_combinations() {
    let server = shared();
    for header in ["None", "CRC32C"] {
        for data in ["None", "CRC32C"] {
            let mut raw = Raw::session(server.portal(), &[("HeaderDigest", header), ("DataDigest", data)]);
            assert_eq!((raw.header_digest, raw.data_digest), (header == "CRC32C", data == "CRC32C"));
            let bytes = pattern(40 * 512, 3);
            raw.write_blocks(0, 100, &bytes).good();
            assert!(raw.read_blocks(0, 100, 40) == bytes, "{header} {data}");
            raw.logout(0, 0);
            raw.expect_close();
        }
    }
}

/// FRM-014: the five CRC32C vectors of RFC 7143 on the wire.
#[test]
fn frm_014_crc32c_vectors_on_the_wire() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), CRC);
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    let vectors: [(&[u8], [u8; 4]); 4] = [
        (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (&up, [0x4e, 0x79, 0xdd, 0x46]),
        (&down, [0x5c, 0xdb, 0x3f, 0x11]),
    ];
    for (bytes, digest) in vectors {
        let ping = raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(bytes);
        assert_eq!(raw.ask(&ping).data, bytes);
        assert_eq!(raw.last_digests.1, Some(digest));
    }
    let mut raw = Login::new().with(CRC).cmd_sn(0x14).on(server.portal());
    let read = Pdu::new(op::SCSI).flags(0xc0).itt(0x1400_0000).ttt(0x400).cmd_sn(0x14).exp_stat_sn(0x18);
    let read = read.bytes(32, &read10(0, 2)).header();
    assert_eq!(crc32c(&read), [0x56, 0x3a, 0x96, 0xd9]);
    raw.send_bytes(&[&read[..], &[0x56, 0x3a, 0x96, 0xd9]].concat());
    assert!(matches!(raw.recv_for(0x1400_0000).opcode(), op::DATA_IN | op::SCSI_RESPONSE));
}

/// FRM-015
#[test]
fn frm_015_what_each_digest_covers() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), CRC);
    let mut variable = [0u8; 16];
    (variable[0], variable[7], variable[9]) = (0x7f, 24, 0x7e);
    let command = raw.command(0, 0x80, &variable, 0).ahs(&EXTENDED);
    assert_eq!(raw.execute(&command, &[]).sense() >> 16, 5);
    let odd = raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(b"odd");
    assert_eq!(raw.ask(&odd).data, b"odd");
    assert_eq!(raw.last_digests.1, Some(crc32c(b"odd\0")));
    let empty = raw.request(op::NOP_OUT | 0x40).ttt(NONE);
    assert!(raw.ask(&empty).data.is_empty());
    assert_eq!(raw.last_digests.1, None);
    raw.simple(0, &[0; 6]).good();
}

/// FRM-017
#[test]
fn frm_017_a_bad_header_digest_ends_the_connection() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), CRC);
    raw.write_blocks(0, 200, &[1; 512]).good();
    let write = raw.command(0, 0x80 | WRITE, &write10(200, 1), 512).data(&[2; 512]);
    let mut bytes = write.encode(true, true);
    bytes[48] ^= 1;
    raw.send_bytes(&bytes);
    raw.expect_close();
    let mut raw = Raw::session(server.portal(), &[]);
    assert_eq!(raw.read_blocks(0, 200, 1), [1; 512]);
}

/// FRM-018, FRM-019, REJ-003, REJ-014
#[test]
fn frm_018_a_bad_data_digest_of_data_out() {
    let server = shared();
    for bad in 0..3u32 {
        let mut raw = Raw::session(server.portal(), &[CRC, &[("ImmediateData", "No")]].concat());
        let write = raw.command(0, 0x80 | WRITE, &write10(300, 3), 3 * 512);
        raw.send(&write);
        let r2t = raw.recv_for(write.tag());
        for i in 0..3u32 {
            let data = raw.data_out(write.tag(), r2t.transfer_tag(), i, i * 512, &[i as u8; 512]);
            let data = data.bytes(8, &r2t.bhs[8..16]).flags(if i == 2 { 0x80 } else { 0 });
            let mut bytes = data.encode(true, true);
            let last = bytes.len() - 1;
            bytes[last] ^= (i == bad) as u8;
            raw.send_bytes(&bytes);
            if i == bad {
                assert_eq!(raw.rejected(&data), 2);
            }
            if i < 2 {
                raw.expect_silence();
            }
        }
        raw.collect(write.tag(), &[]).check(0x0b_4705);
        raw.ping();
    }
}

/// FRM-020, CMD-019
#[test]
fn frm_020_a_bad_data_digest_of_a_command_leaves_a_gap() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), CRC);
    let write = raw.command(0, 0x80 | WRITE, &write10(400, 1), 512).data(&[4; 512]);
    let mut bytes = write.encode(true, true);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    raw.send_bytes(&bytes);
    assert_eq!(raw.rejected(&write), 2);
    assert_eq!(raw.window.map(|w| w.0), Some(write.get32(24)), "ExpCmdSN");
    let later = raw.command(0, 0x80, &[0; 6], 0);
    raw.send(&later);
    raw.expect_silence();
    raw.execute(&write, &[]).good();
    raw.collect(later.tag(), &[]).good();
    assert_eq!(raw.read_blocks(0, 400, 1), [4; 512]);
}

/// FRM-024, DAT-010, DAT-011
#[test]
fn frm_024_a_format_error_ends_the_session() {
    let server = shared();
    for (flags, expected, cdb) in
        [(0, 512, read10(0, 1)), (0x80, 512, read10(0, 1)), (READ, 512, read10(0, 1))]
    {
        let mut raw = Raw::session(server.portal(), &[]);
        let bad = raw.command(0, flags, &cdb, expected);
        raw.outcome(&bad).refused(&[4, 9]);
        Raw::session(server.portal(), &[]).ping();
    }
}

/// FRM-025: the client checks in every PDU that no data segment exceeds its own MaxRecvDataSegmentLength.
#[test]
fn frm_025_each_side_obeys_the_others_segment_length() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", "512"), ("InitialR2T", "No")]);
    assert_eq!(raw.send_max, 262144);
    let bytes = pattern(65536, 5);
    raw.write_blocks(0, 500, &bytes).good();
    assert!(raw.read_blocks(0, 500, 128) == bytes);
    let too_long = raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(&vec![0; raw.send_max + 4]);
    if let PduOutcome::Answered(answer) = raw.outcome(&too_long) {
        assert!(answer.data.len() <= 512);
    }
}
