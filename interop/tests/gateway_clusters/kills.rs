//! Gateways that end without warning, while hosts of the others go on.

use crate::{host, hosts, key};
use interop::ceph::CephCluster;
use interop::gateways::{fenced, session_of, shared_state};
use interop::reserve::action::{CLEAR, PREEMPT, REGISTER_AND_IGNORE, RESERVE};
use interop::reserve::attention::ACCESS_STATE_CHANGED;
use interop::reserve::flag::APTPL;
use interop::reserve::kind::REGISTRANTS_ONLY;
use interop::reserve::{RESERVATION_CONFLICT, holder};
use interop::scsi::{pattern, read_keys, reserve_out};
use interop::{Raw, Server};
use std::sync::atomic::{AtomicBool, Ordering};

/// The blocks of the host that goes on writing.
const STREAM: u32 = 4096;
/// The last block that it may use.
const STREAM_END: u32 = 131_000;
/// The block that the host of a killed gateway has written.
const LAST_WORDS: u32 = 100;

/// The host of each gateway holds the reservation in turn. Its gateway is killed. The host of a second one goes on writing,
/// and that of a third one takes the reservation: its change meets the dead gateway, and fences it.
pub fn each_gateway_is_killed_in_turn(cluster: &CephCluster, servers: &mut [Server; 3]) {
    let mut nodes = hosts(servers);
    for (number, node) in nodes.iter_mut().enumerate() {
        reserve_out(node, 0, REGISTER_AND_IGNORE, 0, 0, key(number), 0).good();
    }
    let mut stranger = session_of(&servers[1], &host(7));
    let (mut victim, mut next) = (0, STREAM);
    reserve_out(&mut nodes[victim], 0, RESERVE, REGISTRANTS_ONLY, key(victim), 0, 0).good();
    for round in 0..3 {
        let [writer, heir] = [(victim + 1) % 3, (victim + 2) % 3];
        let before = fenced(cluster);
        let last_words = pattern(512, round);
        nodes[victim].write_blocks(0, LAST_WORDS + u32::from(round), &last_words).good();
        let ends = AtomicBool::new(false);
        let [writing, other] = nodes.get_disjoint_mut([writer, heir]).expect("two nodes");
        next = std::thread::scope(|scope| {
            let stream = scope.spawn(|| write_until(writing, next, &ends));
            servers[victim].kill9();
            let took = reserve_out(other, 0, PREEMPT, REGISTRANTS_ONLY, key(heir), key(victim), 0);
            let listed = shared_state(cluster).contains_key(&format!("member.{}", victim + 1));
            servers[victim].restart();
            nodes_rejoin(&servers[victim], victim, heir);
            ends.store(true, Ordering::Relaxed);
            let next = stream.join().expect("no write fails");
            took.good();
            assert!(!listed, "the killed gateway is a member");
            next
        });
        assert!(fenced(cluster) > before, "the killed gateway is on the blocklist");
        nodes[victim] = session_of(&servers[victim], &host(victim));
        reserve_out(&mut nodes[victim], 0, REGISTER_AND_IGNORE, 0, 0, key(victim), 0).good();
        for (number, node) in nodes.iter_mut().enumerate() {
            node.clear_attentions(0);
            assert_eq!(read_keys(node, 0), [key(0), key(1), key(2)], "host {number}");
            assert_eq!(holder(node, 0), Some((key(heir), REGISTRANTS_ONLY)));
            assert_eq!(node.read_blocks(0, LAST_WORDS + u32::from(round), 1), last_words);
        }
        // The gateway of the stranger may be the one that was killed.
        if victim == 1 {
            stranger = session_of(&servers[1], &host(7));
        }
        stranger.clear_attentions(0);
        assert_eq!(stranger.write_blocks(0, 0, &[0; 512]).status, RESERVATION_CONFLICT);
        victim = heir;
    }
    nodes.iter_mut().for_each(|node| verify(node, next));
    reserve_out(&mut nodes[victim], 0, CLEAR, 0, key(victim), 0, 0).good();
}

/// The host of the killed gateway logs in again. It has lost its registration, and may only read.
fn nodes_rejoin(server: &Server, victim: usize, heir: usize) {
    let mut node = session_of(server, &host(victim));
    assert!(!read_keys(&mut node, 0).contains(&key(victim)));
    assert_eq!(holder(&mut node, 0), Some((key(heir), REGISTRANTS_ONLY)));
    assert_eq!(node.write_blocks(0, 0, &[0; 512]).status, RESERVATION_CONFLICT);
}

/// Writes block after block. Returns the first block that it has not written.
fn write_until(node: &mut Raw, from: u32, ends: &AtomicBool) -> u32 {
    let mut next = from;
    while !ends.load(Ordering::Relaxed) && next < STREAM_END {
        let reply = node.write_blocks(0, next, &content(next));
        // The ports of the killed gateway become unavailable, and active again.
        if reply.sense() == ACCESS_STATE_CHANGED {
            continue;
        }
        reply.good();
        next += 1;
    }
    assert!(next > from, "nothing was written");
    next
}

fn content(lba: u32) -> Vec<u8> {
    let mut block = pattern(512, lba as u8);
    block[..4].copy_from_slice(&lba.to_be_bytes());
    block
}

fn verify(node: &mut Raw, end: u32) {
    for lba in (STREAM..end).step_by(128) {
        let blocks = (end - lba).min(128);
        let expected: Vec<u8> = (lba..lba + blocks).flat_map(content).collect();
        assert!(
            node.read_blocks(0, lba, blocks as u16) == expected,
            "an acknowledged write from {lba} is lost"
        );
    }
}

pub fn power_loss_of_all_keeps_registrations(servers: &mut [Server; 3]) {
    let mut nodes = hosts(servers);
    for (number, node) in nodes.iter_mut().enumerate() {
        reserve_out(node, 0, REGISTER_AND_IGNORE, 0, 0, key(number), APTPL).good();
    }
    reserve_out(&mut nodes[1], 0, RESERVE, REGISTRANTS_ONLY, key(1), 0, 0).good();
    servers.iter_mut().for_each(Server::kill9);
    servers.iter_mut().for_each(Server::restart);
    for mut node in hosts(servers) {
        // The gateways have joined one after the other.
        node.clear_attentions(0);
        assert_eq!(read_keys(&mut node, 0), [key(0), key(1), key(2)]);
        assert_eq!(holder(&mut node, 0), Some((key(1), REGISTRANTS_ONLY)));
        node.write_blocks(0, 0, &[1; 512]).good();
    }
    let mut stranger = session_of(&servers[0], &host(7));
    assert_eq!(stranger.write_blocks(0, 0, &[0; 512]).status, RESERVATION_CONFLICT);
}
