//! CmdSN, StatSN, DataSN, R2TSN (RFC 7143 section 4.2.2).

use interop::check::before;
use interop::scsi::{READ, WRITE, cdb10, pattern, read10, write10};
use interop::{Login, NONE, Pdu, PduOutcome, Raw, Received, Server, config, op, shared};
use std::time::Duration;

const SLOW: u16 = 2;

fn narrow(commands: u32) -> Server {
    Server::start(&format!("[limits]\ncommands_per_session = {commands}\n{}", config::standard()))
}

fn slow_reads(raw: &mut Raw, count: usize) -> Vec<Pdu> {
    let reads: Vec<Pdu> = (0..count).map(|_| raw.command(SLOW, 0x80 | READ, &read10(0, 1), 512)).collect();
    raw.send_all(&reads);
    reads
}

/// CMD-003, CMD-013
#[test]
fn cmd_003_cmd_sn_wraps() {
    let server = shared();
    let mut raw = Login::new().cmd_sn(0xffff_fff0).on(server.portal());
    raw.clear_attentions(0);
    for _ in 0..64 {
        let read = raw.command(0, 0x80 | READ, &read10(0, 1), 512);
        let reply = raw.execute(&read, &[]);
        let last = reply.pdus.last().expect("a response");
        assert!(before(read.get32(24), last.exp_cmd_sn()), "a response acknowledges its command");
        reply.good();
    }
    assert!(raw.cmd_sn < 0x100);
}

/// CMD-005, CMD-006
#[test]
fn cmd_005_commands_run_in_the_order_of_cmd_sn() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let writes: Vec<Pdu> =
        (0..4).map(|i| raw.command(0, 0x80 | WRITE, &write10(2000, 1), 512).data(&[i as u8; 512])).collect();
    raw.send_all(&[writes[3].clone(), writes[1].clone(), writes[2].clone()]);
    raw.expect_silence();
    raw.ping();
    assert_eq!(raw.window.map(|w| w.0), Some(writes[0].get32(24)), "no gap in CmdSN is acknowledged");
    raw.send(&writes[0]);
    for write in &writes {
        let answer = raw.recv();
        assert_eq!((answer.tag(), answer.bhs[3]), (write.tag(), 0), "in the order of CmdSN");
    }
    assert_eq!(raw.window.map(|w| w.0), Some(raw.cmd_sn));
    assert_eq!(raw.read_blocks(0, 2000, 1), [3; 512]);
}

/// CMD-007
#[test]
fn cmd_007_commands_out_of_the_window_are_ignored() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let (expected, max) = raw.window.expect("a window");
    assert_eq!(expected, raw.cmd_sn);
    for cmd_sn in
        [expected.wrapping_sub(1), expected.wrapping_sub(1000), max.wrapping_add(1), max.wrapping_add(1000)]
    {
        let itt = raw.new_itt();
        let write = Pdu::new(op::SCSI).flags(0x80 | WRITE).itt(itt).ttt(512).cmd_sn(cmd_sn);
        raw.send(&write.bytes(32, &write10(2100, 1)).data(&[0xbb; 512]));
        raw.expect_silence();
        raw.ping();
        assert_eq!(raw.window.map(|w| w.0), Some(expected));
    }
    let first = raw.command(0, 0x80, &[0; 6], 0);
    let second = raw.command(0, 0x80, &[0; 6], 0);
    raw.send_all(&[second.clone(), second.clone()]);
    raw.send(&first);
    assert_eq!(raw.recv().tag(), first.tag());
    assert_eq!(raw.recv().tag(), second.tag());
    raw.expect_silence();
    assert_ne!(raw.read_blocks(0, 2100, 1), [0xbb; 512]);
}

/// CMD-008, CMD-014, CMD-009: the client checks in every PDU that MaxCmdSN is not below ExpCmdSN - 1.
#[test]
fn cmd_008_immediate_commands_pass_a_closed_window() {
    let server = narrow(4);
    let mut raw = Raw::session(server.portal(), &[]);
    let reads = slow_reads(&mut raw, 4);
    raw.ping();
    let (expected, max) = raw.window.expect("a window");
    assert_eq!(max, expected.wrapping_sub(1), "the window is closed");
    let tmf = raw.tmf(1, SLOW, reads[3].tag(), reads[3].get32(24));
    let ping = raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(b"now");
    raw.send_all(&[tmf.clone(), ping.clone()]);
    assert_eq!(raw.recv_for(ping.tag()).data, b"now");
    assert_eq!(raw.recv_for(tmf.tag()).opcode(), op::TMF_RESPONSE);
    for read in &reads[..3] {
        raw.collect(read.tag(), &[]).good();
    }
}

/// CMD-012
#[test]
fn cmd_012_an_open_window_is_reported() {
    let server = narrow(2);
    let mut raw = Raw::session(server.portal(), &[]);
    for _ in 0..3 {
        for read in slow_reads(&mut raw, 2) {
            raw.collect(read.tag(), &[]).good();
        }
        let open = |raw: &Raw| raw.window.is_some_and(|(expected, max)| !before(max, expected));
        if !open(&raw) {
            let nop = raw.recv_op(op::NOP_IN);
            assert_eq!(nop.tag(), NONE);
            assert!(open(&raw));
        }
        raw.simple(0, &[0; 6]).good();
    }
}

/// SN-001, SN-003: the client checks StatSN in every PDU. Here it receives each kind that increments StatSN.
#[test]
fn sn_001_stat_sn_counts_each_status() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", "512")]);
    let start = raw.exp_stat_sn;
    raw.simple(0, &[0; 6]).good();
    raw.read_blocks(0, 0, 8);
    raw.read(0, &read10(0xffff_fff0, 8), 4096).check(0x05_2100);
    raw.ping();
    raw.manage(2, 0);
    raw.text(&[("X-com.example.a", "1")]);
    let bad = raw.request(0x4a);
    raw.send(&bad);
    raw.rejected(&bad);
    raw.logout(0, 0);
    assert_eq!(raw.exp_stat_sn.wrapping_sub(start), 8);
}

/// SN-002, NOP-006
#[test]
fn sn_002_r2t_and_nop_in_show_the_next_stat_sn() {
    let server = Server::start(&config::standard().replace("nop_interval_s = 0", "nop_interval_s = 1"));
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
    let before = raw.exp_stat_sn;
    let nop = raw.recv();
    assert_eq!((nop.opcode(), nop.tag(), nop.stat_sn()), (op::NOP_IN, NONE, before));
    assert_ne!(nop.transfer_tag(), NONE, "the ping requests a response");
    let pong = Pdu::new(op::NOP_OUT | 0x40).itt(NONE).ttt(nop.transfer_tag()).bytes(8, &nop.bhs[8..16]);
    raw.send(&pong.cmd_sn(raw.cmd_sn).exp_stat_sn(raw.exp_stat_sn));
    let reply = raw.write_blocks(0, 2200, &[2; 2048]);
    let stat_sn: Vec<u32> = reply.pdus.iter().map(Pdu::stat_sn).collect();
    assert!(stat_sn.len() >= 2 && stat_sn.iter().all(|sn| *sn == before), "{stat_sn:?}, not {before}");
    reply.good();
}

/// SN-006, SN-008
#[test]
fn sn_006_data_sn_and_r2t_sn_count_from_zero_per_command() {
    let server = shared();
    let keys = [("MaxBurstLength", "4096"), ("MaxRecvDataSegmentLength", "1024"), ("ImmediateData", "No")];
    let mut raw = Raw::session(server.portal(), &keys);
    for _ in 0..2 {
        let reply = raw.write_blocks(0, 2300, &pattern(32768, 1));
        let r2t_sn: Vec<u32> = reply.r2ts().iter().map(|r| r.get32(36)).collect();
        assert_eq!(r2t_sn, (0..8).collect::<Vec<u32>>());
        let reply = raw.read(0, &read10(2300, 64), 32768);
        let data = reply.pdus.iter().filter(|p| p.opcode() == op::DATA_IN);
        let data_sn: Vec<u32> = data.map(|p| p.get32(36)).collect();
        assert_eq!(data_sn, (0..data_sn.len() as u32).collect::<Vec<u32>>(), "over all bursts");
        assert!(data_sn.len() >= 32);
        assert!(reply.good() == pattern(32768, 1));
    }
}

/// SN-009, DAT-032, RSP-007: the device has no bidirectional commands. A received one ends with a SCSI Response. Its
/// two residuals match the two lengths if they are present.
#[test]
fn sn_009_bidirectional_commands_end_with_a_scsi_response() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let bidi = raw.command(0, 0x80 | READ | WRITE, &cdb10(0x53, 0, 2), 1024);
    let reply = raw.execute(&bidi.ahs(&[0, 5, 2, 0, 0, 0, 2, 0]).data(&[1; 1024]), &[1; 1024]);
    let last = reply.pdus.last().expect("a response");
    assert_eq!((last.opcode(), reply.sense()), (op::SCSI_RESPONSE, 0x05_2000));
    assert!(last.bhs[1] & 0x04 == 0 && last.bhs[1] & 0x10 == 0, "no overflow: {last:?}");
    assert!(last.bhs[1] & 0x02 == 0 || reply.residual == 1024, "{last:?}");
    assert!(last.bhs[1] & 0x08 == 0 || last.get32(40) == 512, "{last:?}");
}

/// SN-010
#[test]
fn sn_010_a_gap_in_data_sn_is_an_error() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
    raw.write_blocks(0, 2400, &[0x11; 1024]).good();
    let write = raw.command(0, 0x80 | WRITE, &write10(2400, 2), 1024);
    raw.send(&write);
    let r2t = raw.recv_for(write.tag());
    for (data_sn, offset, flags) in [(0, 0, 0), (2, 512, 0x80)] {
        let data = raw.data_out(write.tag(), r2t.transfer_tag(), data_sn, offset, &[0x22; 512]);
        raw.send(&data.flags(flags).bytes(8, &r2t.bhs[8..16]));
    }
    loop {
        match raw.next_outcome() {
            PduOutcome::Rejected(_) => {}
            PduOutcome::Closed => break,
            PduOutcome::Answered(answer) => {
                assert_eq!((answer.opcode(), answer.bhs[3]), (op::SCSI_RESPONSE, 2), "{answer:?}");
                break raw.ping();
            }
        }
    }
}

/// SN-013: in every SCSI Response the client compares ExpDataSN with the Data-In PDUs it saw.
#[test]
fn sn_013_exp_data_sn_counts_data_in() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", "512")]);
    let write = raw.write_blocks(0, 2500, &pattern(65536, 2));
    assert_eq!(write.pdus.last().map(|p| p.get32(36)), Some(0), "a write");
    raw.read(0, &read10(0xffff_fff0, 8), 4096).check(0x05_2100);
    let long = raw.read(0, &read10(2500, 16), 16384);
    assert_eq!((long.flags, long.residual, long.pdus.len() >= 16), (2, 8192, true));
}

/// CMD-009: the window stays valid while many commands are in flight.
#[test]
fn cmd_009_the_window_under_load() {
    let server = narrow(32);
    let mut raw = Raw::session(server.portal(), &[]);
    let mut open = Vec::new();
    for _ in 0..2000 {
        let (_, max) = raw.window.expect("a window");
        if before(max, raw.cmd_sn) || open.len() == 32 {
            let itt: u32 = open.remove(0);
            assert_eq!(raw.collect(itt, &[]).good().len(), 512);
        } else {
            let read = raw.command(0, 0x80 | READ, &read10(0, 1), 512);
            raw.send(&read);
            open.push(read.tag());
        }
    }
    for itt in open {
        raw.collect(itt, &[]).good();
    }
    assert!(matches!(raw.get(Duration::ZERO), Received::Nothing));
}
