//! Hosts that are silent, that flood, or that leave in the middle: others go on, and the memory stays bounded.

use super::{NQN, controller, iscsi, portal, queue, read, server};
use interop::Server;
use interop::nvme::{NvmeEntry, NvmeFrame, NvmeHostName, NvmeWire, connect_data};
use interop::raw::patience;
use interop::scsi::pattern;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Writes and reads by iSCSI, each of which must end in time.
fn neighbour_works(server: &Server, rounds: u8) {
    let mut raw = iscsi(server);
    for round in 0..rounds {
        let (data, since) = (pattern(8192, round), Instant::now());
        raw.write_blocks(2, u32::from(round), &data).good();
        assert_eq!(raw.read_blocks(2, u32::from(round), 16), data);
        assert!(since.elapsed() < Duration::from_secs(2), "round {round}: {:?}", since.elapsed());
    }
}

/// Connections that stop at each stage: nothing, half an ICReq, no Connect, half a Connect, no Enable.
fn silent(server: &Server) -> Vec<NvmeWire> {
    let connect = NvmeFrame::command(
        &NvmeEntry::connect(0, 31, 0).id(1),
        &connect_data(&NvmeHostName::new("mute"), 0xffff, NQN),
    );
    let connect = connect.encode(false, false);
    (0..40usize)
        .map(|n| match n % 5 {
            0 => NvmeWire::open(portal(server)),
            1 => {
                let mut wire = NvmeWire::open(portal(server));
                wire.send_bytes(&NvmeFrame::ic_request(0).encode(false, false)[..64]);
                wire
            }
            2 => NvmeWire::begin(portal(server), 0),
            stage => {
                let mut wire = NvmeWire::begin(portal(server), 0);
                wire.send_bytes(&connect[..if stage == 3 { 600 } else { connect.len() }]);
                wire
            }
        })
        .collect()
}

/// Asks for as much as possible and reads nothing, until the connection or the test ends.
fn flood(server: &Server, host: &str, is_over: &AtomicBool) {
    let (_controller, mut queue) = queue(server, host);
    queue.stream.set_write_timeout(Some(Duration::from_millis(100))).expect("a time limit");
    let mut commands = Vec::new();
    for n in 0..120u16 {
        let large = if n % 2 == 0 { NvmeEntry::read(1, 0, 2048) } else { NvmeEntry::write(1, 0, 2048) };
        commands.extend(queue.encode(&NvmeFrame::command(&large.id(n), &[])));
    }
    queue.send_bytes(&commands);
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn silent_and_flooding_hosts_disturb_no_neighbour() {
    let server = server();
    neighbour_works(&server, 20);
    let before = server.rss_kib();
    let (is_over, silent) = (AtomicBool::new(false), silent(&server));
    thread::scope(|scope| {
        for n in 0..8 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || flood(server, &format!("flood-{n}"), is_over));
        }
        thread::sleep(Duration::from_millis(500));
        let (mut most, end) = (0, Instant::now() + Duration::from_secs(3));
        while Instant::now() < end {
            neighbour_works(&server, 50);
            most = most.max(server.rss_kib());
        }
        is_over.store(true, Ordering::Relaxed);
        println!("{before} KiB before, {most} KiB");
        // LUN 0 and LUN 2 take up to 72 MiB.
        assert!(most < before + (256 << 10), "{before} KiB before, {most} KiB");
    });
    drop(silent);
    let (_controller, mut queue) = queue(&server, "polite");
    read(&mut queue, 0, 2048);
}

/// Hosts that leave: in the middle of a capsule, of requested data, of a pair, and of a large read.
fn leave(server: &Server, round: u16) {
    let (_controller, mut queue) = queue(server, "leaver");
    let large = NvmeEntry::write(1, 0, 2048);
    match round % 5 {
        0 => {
            let capsule = NvmeFrame::command(&large.in_capsule(8192), &[1; 8192]);
            let bytes = queue.encode(&capsule);
            queue.send_bytes(&bytes[..4000]);
        }
        1 => {
            let id = queue.submit(&large, &[]);
            let tag = queue.recv_for(id).get16(10);
            let bytes = queue.encode(&NvmeFrame::host_data(4, id, tag, 0, &vec![1; 1 << 20]));
            queue.send_bytes(&bytes[..300_000]);
        }
        2 => {
            let half = NvmeEntry::blocks(5, 1, 0, 1).on_host(512).fused(1);
            queue.submit(&half, &[]);
            queue.submit(&NvmeEntry::write(1, 0, 1).fused(2), &[]);
            assert_eq!(queue.recv().kind(), interop::nvme::pdu::R2T);
        }
        3 => (0..16).for_each(|_| _ = queue.submit(&NvmeEntry::read(1, 0, 2048), &[])),
        _ => {
            queue.send_bytes(&[0x55; 4096]);
            assert_eq!(queue.recv().kind(), interop::nvme::pdu::TERM);
        }
    }
    let _ = queue.stream.shutdown(Shutdown::Both);
}

#[test]
fn hosts_that_leave_in_the_middle_cost_no_memory() {
    let server = server();
    let rounds = |from: u16, to: u16| (from..to).for_each(|round| leave(&server, round));
    rounds(0, 100);
    let before = server.rss_kib();
    rounds(100, 500);
    let after = server.rss_kib();
    println!("{before} KiB, then {after} KiB");
    assert!(after < before + (16 << 10), "{before} KiB, then {after} KiB");
    neighbour_works(&server, 20);
    // Their places are free.
    let new = controller(&server, "leaver");
    read(&mut new.queue(1), 0, 1);
}

/// A connection that sends no Connect ends, and a controller that is not enabled has no such limit.
#[test]
fn connection_without_connect_ends_after_the_time_limit() {
    let text = super::config("").replace("[session]", "[limits]\nlogin_timeout_s = 1\n[session]");
    let server = Server::start(&text);
    let mut idle = [NvmeWire::open(portal(&server)), NvmeWire::begin(portal(&server), 0)];
    let mut it = interop::nvme::RawController::connect(portal(&server), &NvmeHostName::new("slow"), NQN, 0);
    idle.iter_mut().for_each(|wire| wire.expect_close(patience()));
    it.enable();
}
