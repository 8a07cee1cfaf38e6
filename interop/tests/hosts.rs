//! Command sequences that hosts are known to use: ESXi, Windows failover clusters, Linux.

use interop::scsi::{READ, WRITE, inquiry, pattern, read_keys, read10, reserve_out, write10};
use interop::{INITIATOR, Login, NONE, Pdu, Raw, Server, config, op, shared};
use std::sync::{Arc, Barrier};
use std::thread;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const PREEMPT: u8 = 4;
const REGISTER_AND_IGNORE: u8 = 6;
/// Write exclusive, registrants only.
const REGISTRANTS: u8 = 5;
const APTPL: u8 = 1;
const CONFLICT: u8 = 0x18;
const SLOW: u16 = 2;

/// A session of a host with this name, without pending unit attentions.
fn host(server: &Server, name: &str) -> Raw {
    let mut raw = Login::new().initiator(&format!("{INITIATOR}.{name}")).on(server.portal());
    (0..3).for_each(|lun| raw.clear_attentions(lun));
    raw
}

/// COMPARE AND WRITE of one block.
fn compare_and_write(raw: &mut Raw, lba: u8, old: &[u8; 512], new: &[u8; 512]) -> interop::Reply {
    raw.write(0, &[0x89, 0, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, 1, 0, 0], &[&old[..], new].concat())
}

/// The VPD pages that ESXi reads before it offers a device, each at its short and its full length.
#[test]
fn esxi_reads_the_vital_product_data() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let listed = raw.read(0, &inquiry(Some(0), 255), 255).good();
    for page in [0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2] {
        assert!(listed[4..].contains(&page), "page {page:#x} in {listed:02x?}");
        let head = raw.read(0, &inquiry(Some(page), 4), 4).good();
        let length = 4 + u16::from_be_bytes([head[2], head[3]]);
        let whole = raw.read(0, &inquiry(Some(page), length), length as u32).good();
        assert_eq!((whole.len(), whole[1], &whole[..4]), (length as usize, page, &head[..]));
    }
    let device = raw.read(0, &inquiry(Some(0x83), 1024), 1024).good();
    assert!(
        device[4..].windows(2).any(|w| w[0] & 15 == 1 && w[1] & 0x3f == 3),
        "no NAA designator: {device:02x?}"
    );
    let limits = raw.read(0, &inquiry(Some(0xb0), 64), 64).good();
    assert!(limits[5] >= 1, "COMPARE AND WRITE is not offered");
}

/// While ESXi formats VMFS, it holds a RESERVE(6) reservation.
#[test]
fn esxi_reserves_while_it_formats() {
    let server = Server::start(&config::standard());
    let (mut a, mut b) = (host(&server, "esx1"), host(&server, "esx2"));
    a.simple(0, &[0x16, 0, 0, 0, 0, 0]).good();
    a.write_blocks(0, 0, &pattern(65536, 1)).good();
    assert_eq!(b.write_blocks(0, 0, &[0; 512]).status, CONFLICT);
    assert_eq!(b.simple(0, &[0x16, 0, 0, 0, 0, 0]).status, CONFLICT);
    b.read(0, &inquiry(None, 96), 96).good();
    b.simple(0, &[0x17, 0, 0, 0, 0, 0]).good();
    assert_eq!(b.write_blocks(0, 0, &[0; 512]).status, CONFLICT, "only the holder can release");
    a.simple(0, &[0x17, 0, 0, 0, 0, 0]).good();
    b.write_blocks(0, 0, &[0; 512]).good();
    b.simple(0, &[0x16, 0, 0, 0, 0, 0]).good();
    b.logout(0, 0);
    a.write_blocks(0, 0, &[1; 512]).good();
    b.expect_close();
}

/// ESXi uses COMPARE AND WRITE for heartbeats and locks. Of the hosts that race for a lock, exactly one gets it each
/// time.
#[test]
fn esxi_locks_by_compare_and_write() {
    let server = Server::start(&config::standard());
    let mut first = host(&server, "esx");
    compare_and_write(&mut first, 8, &[0; 512], &[1; 512]).good();
    assert_eq!(first.read_blocks(0, 8, 1), [1; 512]);
    let mut nearly = [1; 512];
    nearly[100] = 2;
    let miscompare = compare_and_write(&mut first, 8, &nearly, &[3; 512]);
    assert_eq!((miscompare.status, miscompare.sense()), (2, 0x0e_1d00));
    assert_eq!(miscompare.sense[3..7], 100u32.to_be_bytes(), "the offset of the difference");
    assert_eq!(first.read_blocks(0, 8, 1), [1; 512]);
    let barrier = Arc::new(Barrier::new(4));
    let race = |mut raw: Raw, barrier: Arc<Barrier>, me: u8| {
        move || {
            let mut won = 0;
            for round in 0..20 {
                barrier.wait();
                let got = compare_and_write(&mut raw, 16 + round, &[0; 512], &[me; 512]);
                assert!(got.status == 0 || got.sense() == 0x0e_1d00);
                won += (got.status == 0) as u32;
            }
            won
        }
    };
    let hosts =
        (1..=4).map(|me| thread::spawn(race(host(&server, &format!("esx{me}")), barrier.clone(), me)));
    let hosts: Vec<_> = hosts.collect();
    let wins: u32 = hosts.into_iter().map(|t| t.join().expect("a host")).sum();
    assert_eq!(wins, 20, "one winner per round");
}

/// Under load, ESXi aborts slow tasks one by one, and keeps the session.
#[test]
fn esxi_aborts_tasks_under_load() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let bytes = pattern(512, 3);
    for _ in 0..2 {
        let writes: Vec<Pdu> = (0..16)
            .map(|i| raw.command(SLOW, 0x80 | WRITE, &write10(100 + i, 1), 512).data(&bytes))
            .collect();
        raw.send_all(&writes);
        let aborts: Vec<Pdu> = writes.iter().map(|w| raw.tmf(1, SLOW, w.tag(), w.get32(24))).collect();
        raw.send_all(&aborts);
        for abort in &aborts {
            let answer = raw.recv_for(abort.tag());
            assert!(answer.opcode() == op::TMF_RESPONSE && matches!(answer.bhs[2], 0 | 1), "{answer:?}");
        }
        raw.ping();
    }
    raw.write_blocks(SLOW, 100, &bytes).good();
    assert!(raw.read_blocks(SLOW, 100, 1) == bytes);
}

/// VMFS zeroes and unmaps blocks.
#[test]
fn esxi_zeroes_and_unmaps() {
    let server = Server::start(&config::standard());
    let mut raw = host(&server, "esx");
    raw.write_blocks(0, 0, &pattern(4096 * 512, 1)).good();
    let zero = raw.write(0, &[0x93, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 8, 0, 0, 0], &[0; 512]);
    assert_eq!(zero.status, 0, "WRITE SAME(16) of one mebibyte: {:06x}", zero.sense());
    assert!(raw.read_blocks(0, 16, 2048).iter().all(|b| *b == 0));
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend_from_slice(&3000u64.to_be_bytes());
    list.extend_from_slice(&[0, 0, 0, 64, 0, 0, 0, 0]);
    raw.write(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list).good();
    raw.read_blocks(0, 3000, 64);
    let all = pattern(4096 * 512, 1);
    assert!(
        raw.read_blocks(0, 0, 16) == all[..16 * 512]
            && raw.read_blocks(0, 3064, 8) == all[3064 * 512..3072 * 512]
    );
}

/// Cluster validation: register, reserve for registrants, and test which nodes may write.
#[test]
fn windows_cluster_registers_and_reserves() {
    let server = Server::start(&config::standard());
    let (mut a, mut b, mut stranger) =
        (host(&server, "node-a"), host(&server, "node-b"), host(&server, "node-c"));
    reserve_out(&mut a, 0, REGISTER_AND_IGNORE, 0, 0, 0xa, 0).good();
    reserve_out(&mut b, 0, REGISTER, 0, 0, 0xb, 0).good();
    assert_eq!(read_keys(&mut stranger, 0), [0xa, 0xb]);
    assert_eq!(
        reserve_out(&mut stranger, 0, RESERVE, REGISTRANTS, 0xc, 0, 0).status,
        CONFLICT,
        "not registered"
    );
    reserve_out(&mut a, 0, RESERVE, REGISTRANTS, 0xa, 0, 0).good();
    assert_eq!(reserve_out(&mut b, 0, RESERVE, REGISTRANTS, 0xb, 0, 0).status, CONFLICT, "held by another");
    reserve_out(&mut a, 0, RESERVE, REGISTRANTS, 0xa, 0, 0).good();
    a.write_blocks(0, 0, &[1; 512]).good();
    b.write_blocks(0, 0, &[2; 512]).good();
    assert_eq!(stranger.write_blocks(0, 0, &[3; 512]).status, CONFLICT);
    assert_eq!(stranger.read_blocks(0, 0, 1), [2; 512]);
    assert_eq!(reserve_out(&mut a, 0, REGISTER, 0, 0xbad, 0xc, 0).status, CONFLICT, "a wrong key");
    reserve_out(&mut a, 0, RELEASE, REGISTRANTS, 0xa, 0, 0).good();
    b.simple(0, &[0; 6]).check(0x06_2a04);
    stranger.write_blocks(0, 0, &[3; 512]).good();
    reserve_out(&mut a, 0, REGISTER, 0, 0xa, 0, 0).good();
    assert_eq!(read_keys(&mut b, 0), [0xb]);
}

/// A disk behind two targets is one disk: the same identity, data and reservations.
#[test]
fn disk_behind_two_targets_has_one_set_of_reservations() {
    const OTHER: &str = "iqn.2026-11.org.example:other";
    let disk = "[[disk]]\nname = \"d\"\nbackend = \"memory\"\nsize = \"1MiB\"\nserial = \"shared\"\n";
    let lun = |number: u8| format!("[[target.lun]]\nlun = {number}\ndisk = \"d\"\n");
    let other = format!("[[target]]\nname = \"{OTHER}\"\n{}", lun(7));
    let server = Server::start(&config::with("", "", &format!("{}{other}{disk}", lun(3))));
    let mut a = host(&server, "node-a");
    let mut b = Login::new().initiator(&format!("{INITIATOR}.node-b")).target(OTHER).on(server.portal());
    a.clear_attentions(3);
    b.clear_attentions(7);
    let [of_a, of_b] = [a.read(3, &inquiry(Some(0x83), 255), 255), b.read(7, &inquiry(Some(0x83), 255), 255)]
        .map(|page| page.good()[4..40].to_vec());
    assert_eq!(of_a, of_b, "the designators of the logical unit");
    a.write_blocks(3, 0, &[1; 512]).good();
    assert_eq!(b.read_blocks(7, 0, 1), [1; 512]);
    reserve_out(&mut a, 3, REGISTER, 0, 0, 0xa, 0).good();
    assert_eq!(read_keys(&mut b, 7), [0xa]);
    reserve_out(&mut a, 3, RESERVE, REGISTRANTS, 0xa, 0, 0).good();
    assert_eq!(b.write_blocks(7, 0, &[2; 512]).status, CONFLICT);
    assert_eq!(b.read_blocks(7, 0, 1), [1; 512]);
    reserve_out(&mut a, 3, REGISTER, 0, 0xa, 0, 0).good();
    b.clear_attentions(7);
    b.write_blocks(7, 0, &[2; 512]).good();
}

/// Two nodes preempt each other at the same moment: one survives, with the reservation.
#[test]
fn windows_cluster_nodes_race_to_preempt() {
    let server = Server::start(&config::standard());
    for round in 0..10 {
        let (mut a, mut b) = (host(&server, "node-a"), host(&server, "node-b"));
        reserve_out(&mut a, 0, REGISTER_AND_IGNORE, 0, 0, 0xa, 0).good();
        reserve_out(&mut b, 0, REGISTER_AND_IGNORE, 0, 0, 0xb, 0).good();
        let holder = if round % 2 == 0 { (&mut a, 0xa) } else { (&mut b, 0xb) };
        reserve_out(holder.0, 0, RESERVE, REGISTRANTS, holder.1, 0, 0).good();
        let barrier = Arc::new(Barrier::new(2));
        let attack = |mut raw: Raw, own: u64, other: u64| {
            let barrier = barrier.clone();
            move || {
                barrier.wait();
                let mut preempt = || reserve_out(&mut raw, 0, PREEMPT, REGISTRANTS, own, other, 0);
                let status = match preempt() {
                    attention if attention.sense() >> 16 == 6 => preempt().status,
                    reply => reply.status,
                };
                (raw, status)
            }
        };
        let (a, b) = (thread::spawn(attack(a, 0xa, 0xb)), thread::spawn(attack(b, 0xb, 0xa)));
        let ((mut a, of_a), (mut b, of_b)) = (a.join().expect("node a"), b.join().expect("node b"));
        assert!(matches!((of_a, of_b), (0, CONFLICT) | (CONFLICT, 0)), "{of_a:#x} {of_b:#x}");
        let (winner, key) = if of_a == 0 { (&mut a, 0xa) } else { (&mut b, 0xb) };
        winner.clear_attentions(0);
        assert_eq!(read_keys(winner, 0), [key]);
        winner.write_blocks(0, 0, &[key as u8; 512]).good();
        reserve_out(winner, 0, RELEASE, REGISTRANTS, key, 0, 0).good();
        reserve_out(winner, 0, REGISTER, 0, key, 0, 0).good();
    }
}

/// The same key from two nodes is two registrations, and PREEMPT removes both.
#[test]
fn windows_cluster_keys_are_per_nexus() {
    let server = Server::start(&config::standard());
    let (mut a, mut b, mut c) = (host(&server, "node-a"), host(&server, "node-b"), host(&server, "node-c"));
    reserve_out(&mut a, 0, REGISTER, 0, 0, 7, 0).good();
    reserve_out(&mut b, 0, REGISTER, 0, 0, 7, 0).good();
    reserve_out(&mut c, 0, REGISTER, 0, 0, 8, 0).good();
    assert_eq!(read_keys(&mut c, 0), [7, 7, 8]);
    reserve_out(&mut c, 0, PREEMPT, REGISTRANTS, 8, 7, 0).good();
    assert_eq!(read_keys(&mut c, 0), [8]);
    for node in [&mut a, &mut b] {
        node.simple(0, &[0; 6]).check(0x06_2a05);
        assert_eq!(reserve_out(node, 0, RESERVE, REGISTRANTS, 7, 0, 0).status, CONFLICT);
    }
}

/// After a power loss, registrations with APTPL still exist for the same nodes.
#[test]
fn windows_cluster_reservations_survive_power_loss() {
    let mut server = Server::start(&config::standard());
    let login = |name: &str, last: u8| {
        Login::new().isid([0x80, 0, 0, 1, 0, last]).initiator(&format!("{INITIATOR}.{name}"))
    };
    let (node_a, node_b, other) = (login("node-a", 1), login("node-b", 2), login("node-c", 3));
    let on = |server: &Server, login: &Login| {
        let mut raw = login.on(server.portal());
        raw.clear_attentions(0);
        raw
    };
    let (mut a, mut b) = (on(&server, &node_a), on(&server, &node_b));
    reserve_out(&mut a, 0, REGISTER, 0, 0, 0xa, APTPL).good();
    reserve_out(&mut b, 0, REGISTER, 0, 0, 0xb, APTPL).good();
    reserve_out(&mut a, 0, RESERVE, REGISTRANTS, 0xa, 0, 0).good();
    for _ in 0..2 {
        server.kill9();
        server.restart();
        let (mut a, mut b, mut c) = (on(&server, &node_a), on(&server, &node_b), on(&server, &other));
        assert_eq!(read_keys(&mut c, 0), [0xa, 0xb]);
        assert_eq!(c.write_blocks(0, 0, &[1; 512]).status, CONFLICT);
        a.write_blocks(0, 0, &[2; 512]).good();
        b.write_blocks(0, 0, &[3; 512]).good();
    }
    let mut a = on(&server, &node_a);
    reserve_out(&mut a, 0, REGISTER, 0, 0xa, 0xaa, 0).good();
    server.kill9();
    server.restart();
    assert!(read_keys(&mut on(&server, &other), 0).is_empty(), "the last registration had no APTPL");
}

/// The commands with which the Linux disk driver probes a disk.
#[test]
fn linux_probes_a_disk() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let short = raw.read(0, &inquiry(None, 36), 36).good();
    assert_eq!((short.len(), short[0], short[2] >= 5), (36, 0, true));
    let whole = raw.read(0, &inquiry(None, short[4] as u16 + 5), short[4] as u32 + 5).good();
    assert_eq!(whole.len(), short[4] as usize + 5);
    for page in raw.read(0, &inquiry(Some(0), 255), 255).good().split_off(4) {
        let data = raw.read(0, &inquiry(Some(page), 0xffff), 0xffff).good();
        assert_eq!((data[1], data.len()), (page, 4 + u16::from_be_bytes([data[2], data[3]]) as usize));
    }
    let capacity = raw.read(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8).good();
    assert_eq!(capacity, [&131071u32.to_be_bytes()[..], &512u32.to_be_bytes()].concat());
    let long = raw.read(0, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 32).good();
    assert_eq!((&long[..8], &long[8..12]), (&131071u64.to_be_bytes()[..], &512u32.to_be_bytes()[..]));
    let header = raw.read(0, &[0x1a, 0, 0x3f, 0, 4, 0], 4).good();
    assert_eq!(header[2] & 0x80, 0, "not write protected");
    let caching = raw.read(0, &[0x1a, 8, 8, 0, 255, 0], 255).good();
    assert_eq!((caching[4] & 0x3f, caching[6] & 4), (8, 4), "the write cache is on");
    raw.simple(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]).good();
    raw.read_blocks(0, 0, 8);
    let unknown = raw.read(0, &inquiry(Some(0xd0), 255), 255);
    unknown.check(0x05_2400);
}

/// multipathd: ALUA, and one key over two paths.
#[test]
fn linux_multipath_uses_alua_and_reservations() {
    let server = Server::start(&config::standard());
    let (mut one, mut two, mut other) =
        (host(&server, "linux"), host(&server, "linux"), host(&server, "other"));
    let same = |raw: &mut Raw| raw.read(0, &inquiry(Some(0x83), 1024), 1024).good();
    assert_eq!(same(&mut one), same(&mut two), "both paths show one device");
    assert_ne!(one.read(0, &inquiry(None, 36), 36).good()[5] & 0x30, 0, "TPGS");
    let groups = one.read(0, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256).good();
    let length = u32::from_be_bytes([groups[0], groups[1], groups[2], groups[3]]) as usize;
    assert_eq!((groups.len(), groups[4] & 15), (length + 4, 0), "active, optimized");
    let capabilities = one.read(0, &[0x5e, 2, 0, 0, 0, 0, 0, 0, 8, 0], 8).good();
    assert_eq!(
        (capabilities[1], capabilities[3] & 0x80),
        (8, 0x80),
        "the length is 8, and the type mask is valid"
    );
    for path in [&mut one, &mut two] {
        reserve_out(path, 0, REGISTER_AND_IGNORE, 0, 0, 0x123abc, 0).good();
    }
    reserve_out(&mut one, 0, RESERVE, REGISTRANTS, 0x123abc, 0, 0).good();
    one.write_blocks(0, 0, &[1; 512]).good();
    two.write_blocks(0, 0, &[2; 512]).good();
    assert_eq!(other.write_blocks(0, 0, &[3; 512]).status, CONFLICT);
    one.cut();
    two.write_blocks(0, 0, &[4; 512]).good();
    assert_eq!(other.write_blocks(0, 0, &[3; 512]).status, CONFLICT, "a lost path keeps the reservation");
}

/// Two paths to one device see the same data, and commands of a failed path can be retried on the other.
#[test]
fn linux_multipath_fails_over() {
    let two_portals = config::standard().replace("\"127.0.0.1:0\"", "\"127.0.0.1:0\", \"127.0.0.1:0\"");
    let server = Server::start(&two_portals);
    let mut paths: Vec<Raw> = server.portals().iter().map(|p| Raw::session(*p, &[])).collect();
    let mut second = paths.pop().expect("two portals");
    let mut first = paths.pop().expect("two portals");
    first.write_blocks(0, 0, &[1; 512]).good();
    assert_eq!(second.read_blocks(0, 0, 1), [1; 512]);
    let read = first.command(SLOW, 0x80 | READ, &read10(0, 1), 512);
    first.send(&read);
    first.cut();
    second.read_blocks(SLOW, 0, 1);
    let quiet = Pdu::new(op::NOP_OUT | 0x40).itt(NONE).ttt(NONE).cmd_sn(second.cmd_sn);
    second.send(&quiet.exp_stat_sn(second.exp_stat_sn));
    second.expect_silence();
}
