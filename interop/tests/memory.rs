//! Memory that runs out: one client that holds it does not block others, and commands that wait for memory can be
//! ended.

use interop::scsi::{READ, WRITE, pattern, read10, write10};
use interop::{Login, Pdu, Raw, Received, Server, TARGET, op};
use std::time::{Duration, Instant};

const LIMIT_MIB: u64 = 64;
/// LOGICAL UNIT RESET, and its response on success.
const LUN_RESET: u8 = 5;
const COMPLETE: u8 = 0;
/// TASK SET FULL.
const FULL: u8 = 0x28;

/// A server with memory for two of the largest commands, a disk that is larger, and no keepalive.
fn server() -> Server {
    Server::start(&format!(
        "[limits]\nmemory = \"{LIMIT_MIB}MiB\"\n[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\n\
         portals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\n\
         backend = \"memory\"\nsize = \"256MiB\"\n"
    ))
}

fn session(server: &Server, last: u8) -> Raw {
    let mut raw = login(last).on(server.portal());
    raw.clear_attentions(0);
    raw
}

fn login(last: u8) -> Login {
    Login::new().isid([0x80, 0, 0, 1, 0, last])
}

/// A session of another initiator, from its own address.
fn stranger(server: &Server, n: u8) -> Raw {
    let name = format!("iqn.2026-11.org.example:host{n}");
    let mut raw = login(9).initiator(&name).source([127, 0, 1, n].into()).on(server.portal());
    raw.clear_attentions(0);
    raw
}

/// Sends four WRITE AND VERIFY(10) of 8 MiB, which the target buffers as a whole, with no data or with their first
/// bytes. Returns the responses.
fn announces(raw: &mut Raw, begins: bool) -> Vec<Pdu> {
    const BLOCKS: u16 = 16384;
    let announced = |n: u32, raw: &mut Raw| {
        let mut cdb = write10(n * 16384, BLOCKS);
        cdb[0] = 0x2e;
        let write = raw.command(0, 0x80 | WRITE, &cdb, u32::from(BLOCKS) * 512);
        raw.send(&write);
        let answer = raw.recv_for(write.tag());
        if begins && answer.opcode() == op::R2T {
            let data = raw.data_out(write.tag(), answer.transfer_tag(), 0, answer.get32(40), &[1; 512]);
            raw.send(&data.flags(0).bytes(8, &answer.bhs[8..16]));
        }
        answer
    };
    (0..4).map(|n| announced(n, raw)).collect()
}

/// Reads and writes with commands of the largest size.
fn moves_much(raw: &mut Raw) {
    raw.read(0, &large_read(), 32 << 20).good();
    raw.write_blocks(0, 0, &pattern(16384 * 512, 3)).good();
    assert!(raw.read_blocks(0, 0, 16384) == pattern(16384 * 512, 3));
}

#[test]
fn announced_writes_without_data_take_no_memory() {
    let server = server();
    // A server touches some of its memory only after its start.
    let before = interop::routed::until("the memory of the start is in use", || {
        let before = server.rss_kib();
        std::thread::sleep(Duration::from_millis(300));
        (server.rss_kib() == before).then_some(before)
    });
    let mut hoards: Vec<Raw> = (0..4).map(|n| stranger(&server, n)).collect();
    for hoard in &mut hoards {
        let asked = announces(hoard, false).iter().filter(|answer| answer.opcode() == op::R2T).count();
        assert!(asked >= 3, "{asked}");
    }
    let grown = server.rss_kib().saturating_sub(before) / 1024;
    assert!(grown < 8, "{grown} MiB for announcements");
    moves_much(&mut session(&server, 2));
}

/// If the target buffered these writes as a whole, they would need more memory than there is.
#[test]
fn long_writes_hold_a_few_pieces_each() {
    const BLOCKS: u16 = 16384;
    let server = server();
    let before = server.rss_kib();
    let mut data = vec![0; usize::from(BLOCKS) * 512];
    let begins = |n: u8| {
        let mut raw = stranger(&server, n);
        let write =
            raw.command(0, 0x80 | WRITE, &write10(u32::from(n) * 16384, BLOCKS), u32::from(BLOCKS) * 512);
        raw.send(&write);
        let r2t = raw.recv_for(write.tag());
        assert_eq!(r2t.opcode(), op::R2T);
        raw.answer(&r2t, &data);
        (raw, write.tag())
    };
    let mut all: Vec<(Raw, u32)> = (0..16).map(begins).collect();
    all.iter_mut().for_each(|(raw, _)| raw.ping());
    let grown = server.rss_kib().saturating_sub(before) / 1024;
    // 2 MiB for each write, 16 MiB that the disk holds now, and 8 MiB for the rest.
    assert!(grown < 2 * 16 + 16 + 8, "{grown} MiB for {} writes", all.len());
    for ((raw, tag), n) in all.iter_mut().zip(1..) {
        data.fill(n);
        raw.collect(*tag, &data).good();
    }
    assert!(all[15].0.read_blocks(0, 16384 * 15 + 16383, 1) == [16; 512]);
}

#[test]
fn sessions_of_one_initiator_share_their_memory() {
    let server = server();
    let mut hoards: Vec<Raw> = (1..5).map(|n| session(&server, n)).collect();
    let answers: Vec<Pdu> = hoards.iter_mut().flat_map(|hoard| announces(hoard, true)).collect();
    assert!(answers.iter().any(|answer| answer.opcode() == op::SCSI_RESPONSE && answer.bhs[3] == FULL));
    hoards.iter_mut().for_each(Raw::ping);
    moves_much(&mut stranger(&server, 22));
}

/// Writes of 64 KiB with their first bytes, in sessions of one address that each have another initiator name.
#[test]
fn small_buffers_of_one_address_leave_room_for_others() {
    let server = server();
    let hold = |n: u8| {
        let mut raw = login(n).initiator(&format!("iqn.2026-11.org.example:claimed{n}")).on(server.portal());
        raw.clear_attentions(0);
        (0..96).for_each(|_| begins_small(&mut raw));
        raw
    };
    let mut hoards: Vec<Raw> = (0..12).map(hold).collect();
    moves_much(&mut stranger(&server, 22));
    hoards.iter_mut().for_each(Raw::ping);
}

/// Sends a write of 64 KiB, and its first block if the target requests data.
fn begins_small(raw: &mut Raw) {
    let write = raw.command(0, 0x80 | WRITE, &write10(0, 128), 128 * 512);
    raw.send(&write);
    let answer = raw.recv_for(write.tag());
    if answer.opcode() == op::R2T {
        drips(raw, &answer, 0, 0, &[1; 512]);
    }
}

/// Sends a part of the data of an R2T, without F. Returns false if the connection is closed.
fn drips(raw: &mut Raw, r2t: &Pdu, sn: u32, offset: u32, data: &[u8]) -> bool {
    let part = raw.data_out(r2t.tag(), r2t.transfer_tag(), sn, offset, data);
    let bytes = part.flags(0).bytes(8, &r2t.bhs[8..16]).encode(false, false);
    std::io::Write::write_all(&mut raw.stream, &bytes).is_ok()
}

/// Memory was available when the command arrived, but is not when its data arrive.
#[test]
fn data_without_memory_end_the_write_with_task_set_full() {
    let server = server();
    let mut late = stranger(&server, 21);
    let r2t = announces(&mut late, false).remove(0);
    let mut hoards: Vec<Raw> = (0..2).map(|n| stranger(&server, n)).collect();
    for hoard in &mut hoards {
        announces(hoard, true);
        hoard.ping();
    }
    late.write_blocks(0, 100_000, &[3; 512]).good();
    let data = vec![9; 16384 * 512];
    late.answer(&r2t, &data);
    let end = late.collect(r2t.tag(), &data);
    assert_eq!((end.status, end.r2ts().len()), (FULL, 0), "{:?}", end.pdus);
    drop(hoards);
    assert_eq!(late.read_blocks(0, 0, 1), [0; 512], "none of its data are stored");
}

#[test]
fn write_without_data_ends_its_session() {
    let keys = "nop_interval_s = 0\ndata_out_timeout_s = 1";
    let text = interop::config::standard().replace("nop_interval_s = 0", keys);
    let server = Server::start(&text);
    let (mut silent, mut other) = (session(&server, 1), session(&server, 2));
    let r2t = held_write(&mut silent);
    // Other commands do not extend the time limit.
    assert_eq!(silent.read_blocks(0, 0, 1), [0; 512]);
    assert!(matches!(silent.get(Duration::from_secs(30)), Received::Closed), "{r2t:?}");
    let message = "the initiator did not send the data of a write in time";
    interop::routed::until("the log", || server.log().contains(message).then_some(()));
    other.write_blocks(0, 0, &[2; 512]).good();
    other.ping();
}

/// Data-Outs without data, or with one byte each.
#[test]
fn slow_data_out_ends_its_session() {
    let keys = "nop_interval_s = 0\ndata_out_timeout_s = 1";
    let text = interop::config::standard().replace("nop_interval_s = 0", keys);
    let server = Server::start(&text);
    for bytes in [0, 1] {
        let mut raw = session(&server, 1);
        let r2t = held_write(&mut raw);
        let end = Instant::now() + Duration::from_secs(60);
        let mut sn = 0;
        while drips(&mut raw, &r2t, sn, sn * bytes, &[1][..bytes as usize]) {
            assert!(Instant::now() < end, "{sn} Data-Outs of {bytes} bytes keep the session");
            sn += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let message = "the initiator did not send the data of a write in time";
    interop::routed::until("the log", || (server.log().matches(message).count() == 2).then_some(()));
}

/// Sends a write without its data, and returns the R2T.
fn held_write(raw: &mut Raw) -> Pdu {
    let write = raw.command(0, 0x80 | WRITE, &write10(0, 64), 64 * 512);
    raw.send(&write);
    let r2t = raw.recv_for(write.tag());
    assert_eq!(r2t.opcode(), op::R2T);
    r2t
}

/// READ(16) of 32 MiB.
fn large_read() -> [u8; 16] {
    [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
}

/// An ORDERED READ of 32 MiB waits behind a write without data, and in front of writes that hold the rest of the
/// memory. `room` is its Expected Data Transfer Length, for which the target allocates a buffer.
fn all_go_on(room: u32) {
    let server = server();
    let (mut a, mut b) = (session(&server, 1), session(&server, 2));
    let first = held_write(&mut a);
    let ordered = a.request(op::SCSI).flags(0x80 | READ | 2).lun(0).set32(20, room).bytes(32, &large_read());
    a.send(&ordered);
    let behind: Vec<Pdu> =
        (0..16).map(|n| a.command(0, 0x80 | WRITE, &write10(200_000 + n * 4096, 4096), 4096 * 512)).collect();
    a.send_all(&behind);
    a.answer(&first, &[7; 64 * 512]);
    let data = vec![9; 4096 * 512];
    let end = Instant::now() + Duration::from_secs(60);
    let mut left = behind.len() + 2;
    while left > 0 {
        assert!(Instant::now() < end, "{left} commands are not answered");
        match a.get(Duration::from_secs(30)) {
            Received::Pdu(pdu) if pdu.opcode() == op::R2T => a.answer(&pdu, &data),
            Received::Pdu(pdu) if pdu.opcode() == op::SCSI_RESPONSE || pdu.bhs[1] & 1 != 0 => {
                let status = pdu.bhs[3];
                assert!(status == 0 || status == FULL, "{pdu:?}");
                left -= 1;
            }
            Received::Pdu(_) => {}
            other => panic!("{left} commands are not answered: {other:?}"),
        }
    }
    assert_eq!(b.read_blocks(0, 0, 1), [7; 512]);
}

#[test]
fn ordered_read_with_a_large_buffer_blocks_no_command() {
    all_go_on(512);
}

#[test]
fn ordered_read_without_memory_blocks_no_command() {
    all_go_on(32 << 20);
}

/// A session that requests more data than it receives: the data fill the sockets, and then all memory of the session.
fn glutton(server: &Server) -> Raw {
    let mut raw = session(server, 1);
    let reads: Vec<Pdu> = (0..12).map(|_| raw.command(0, 0x80 | READ, &large_read(), 32 << 20)).collect();
    raw.send_all(&reads);
    std::thread::sleep(Duration::from_millis(500));
    raw
}

#[test]
fn reset_ends_commands_that_wait_for_memory() {
    let server = server();
    let (_glutton, mut other) = (glutton(&server), session(&server, 2));
    let started_at = Instant::now();
    assert_eq!(other.manage(LUN_RESET, 0), COMPLETE);
    assert!(started_at.elapsed() < Duration::from_secs(15), "it took {:?}", started_at.elapsed());
}

#[test]
fn session_that_reads_nothing_can_be_reinstated() {
    let server = server();
    let _glutton = glutton(&server);
    let mut again = login(1).on(server.portal());
    again.clear_attentions(0);
    assert_eq!(again.read_blocks(0, 0, 1), [0; 512]);
}

/// Commands that wait for a missing CmdSN hold memory of the pool, up to the limit of a session.
#[test]
fn data_of_early_commands_are_bounded() {
    const SEGMENT: usize = 8 << 20;
    let config = format!(
        "[limits]\nmemory = \"{LIMIT_MIB}MiB\"\n[session]\nnop_interval_s = 0\nmax_recv_data_segment_length = {SEGMENT}\n\
         [[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n[[target.lun]]\n\
         lun = 0\nbackend = \"memory\"\nsize = \"256MiB\"\n"
    );
    let server = Server::start(&config);
    let (mut greedy, mut other) = (session(&server, 1), session(&server, 2));
    greedy.take_cmd_sn();
    let data = vec![1; SEGMENT];
    for n in 0..8 {
        let write = greedy.command(0, 0x80 | WRITE, &write10(n * 16384, 16384), SEGMENT as u32).data(&data);
        greedy.send(&write);
    }
    assert!(matches!(greedy.get(Duration::from_secs(10)), Received::Closed));
    assert_eq!(other.read_blocks(0, 0, 1), [0; 512]);
    assert!(server.log().contains("too much data waits"), "{}", server.log());
}

#[test]
fn unread_nop_in_data_is_bounded() {
    let server = server();
    let before = server.rss_kib();
    let silent: Vec<Raw> = (0..16).map(|n| echoes(&server, n)).collect();
    let grown = server.rss_kib().saturating_sub(before) / 1024;
    assert!(grown < 2 * 16 + LIMIT_MIB, "{grown} MiB for {} connections", silent.len());
}

/// Sends NOP-Outs of 256 KiB until the target receives no more, and reads no response.
fn echoes(server: &Server, last: u8) -> Raw {
    let mut raw = login(last).key("MaxRecvDataSegmentLength", "262144").on(server.portal());
    let ping =
        raw.request(op::NOP_OUT | 0x40).set32(20, interop::NONE).data(&vec![1; raw.send_max.min(256 << 10)]);
    let bytes = ping.encode(false, false);
    raw.stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a time-out");
    use std::io::Write;
    for _ in 0..64 {
        if raw.stream.write_all(&bytes).is_err() {
            break;
        }
    }
    raw
}

/// The memory of a load returns to the system after the load.
#[test]
fn memory_is_returned_after_a_load() {
    const LEFT_KIB: u64 = 24 << 10;
    let server = Server::start(&(interop::config::standard() + "[server]\ncores = 2\n"));
    session(&server, 0).read_blocks(0, 0, 1);
    let before = server.rss_kib();
    // Sessions that receive no data hold buffers of one size after the other, which fragments the allocator's memory.
    for blocks in [128, 512, 1024, 2048, 4096] {
        let crowd: Vec<Raw> = (1..=16).map(|n| takes_nothing(&server, n, blocks)).collect();
        let end = Instant::now() + Duration::from_secs(60);
        while server.rss_kib() < before + (64 << 10) && blocks >= 1024 {
            assert!(Instant::now() < end, "{} KiB with {blocks} blocks", server.rss_kib());
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(crowd);
    }
    let max = server.rss_kib();
    let end = Instant::now() + Duration::from_secs(60);
    while server.rss_kib() > before + LEFT_KIB {
        let now = server.rss_kib();
        assert!(Instant::now() < end, "KiB: {before} before, {max} with a load, {now} since");
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("KiB: {before} before, {max} with a load, {} since", server.rss_kib());
}

/// A session that requests 12 MiB, and receives nothing.
fn takes_nothing(server: &Server, last: u8, blocks: u16) -> Raw {
    let mut raw = session(server, last);
    let len = u32::from(blocks) * 512;
    let reads: Vec<Pdu> = (0..(12 << 20) / len)
        .map(|n| raw.command(0, 0x80 | READ, &read10(n * u32::from(blocks), blocks), len))
        .collect();
    raw.send_all(&reads);
    raw
}
