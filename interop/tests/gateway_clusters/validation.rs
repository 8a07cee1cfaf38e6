//! The steps with which failover clusters validate a disk: the nodes register keys that they ignore before, one of them
//! reserves with Write Exclusive - Registrants Only, and the others challenge it.

use crate::{hosts, key};
use interop::reserve::action::{CLEAR, PREEMPT, REGISTER, REGISTER_AND_IGNORE, RELEASE, RESERVE};
use interop::reserve::attention::{REGISTRATIONS_PREEMPTED, RESERVATIONS_PREEMPTED, RESERVATIONS_RELEASED};
use interop::reserve::kind::REGISTRANTS_ONLY;
use interop::reserve::{RESERVATION_CONFLICT, generation, holder};
use interop::scsi::{pattern, read_keys, reserve_out};
use interop::{Raw, Reply, Server};
use std::sync::Barrier;

/// The block that each node tries to write.
const SECTOR: u32 = 11;
/// Rounds in which two nodes preempt at once.
const RACES: usize = 24;

fn out(node: &mut Raw, action: u8, key: u64, action_key: u64) -> Reply {
    reserve_out(node, 0, action, REGISTRANTS_ONLY, key, action_key, 0)
}

fn conflicts(reply: Reply) {
    assert_eq!((reply.status, reply.sense()), (RESERVATION_CONFLICT, 0));
}

/// The node writes the sector, and the other one reads it.
fn writes(node: &mut Raw, other: &mut Raw, seed: u8) {
    node.write_blocks(0, SECTOR, &pattern(512, seed)).good();
    assert_eq!(other.read_blocks(0, SECTOR, 1), pattern(512, seed));
}

/// The node may read the sector, but not write it.
fn only_reads(node: &mut Raw) {
    let before = node.read_blocks(0, SECTOR, 1);
    conflicts(node.write_blocks(0, SECTOR, &pattern(512, 0xff)));
    assert_eq!(node.read_blocks(0, SECTOR, 1), before);
}

fn attention(node: &mut Raw, expected: u32) {
    node.simple(0, &[0; 6]).check(expected);
}

pub fn persistent_reservations(servers: &[Server; 3]) {
    let mut nodes = hosts(servers);
    for owner in 0..3 {
        for challenger in (0..3).filter(|node| *node != owner) {
            let [a, b] = nodes.get_disjoint_mut([owner, challenger]).expect("two nodes");
            let before = generation(a, 0);
            unregistered_node_is_refused(a, key(owner), b, key(challenger));
            registered_node_writes_and_preempts(a, key(owner), b, key(challenger));
            reservation_is_released_and_cleared(a, key(owner), b, key(challenger));
            // Each of these changes counts: seven registrations, a preemption, and CLEAR.
            assert_eq!([generation(a, 0), generation(b, 0)], [before + 9; 2]);
        }
    }
    keys_of_all_nodes_are_listed(&mut nodes);
    preempting_nodes_are_serialized(&mut nodes);
}

fn unregistered_node_is_refused(a: &mut Raw, own: u64, b: &mut Raw, other: u64) {
    assert_eq!((read_keys(a, 0), holder(b, 0)), (Vec::new(), None));
    out(a, REGISTER_AND_IGNORE, 0, own).good();
    assert_eq!(read_keys(b, 0), [own]);
    out(a, RESERVE, own, 0).good();
    for node in [&mut *a, &mut *b] {
        assert_eq!(holder(node, 0), Some((own, REGISTRANTS_ONLY)));
    }
    for (action, action_key) in [(RESERVE, 0), (RELEASE, 0), (CLEAR, 0), (PREEMPT, own)] {
        conflicts(out(b, action, other, action_key));
    }
    writes(a, b, 1);
    only_reads(b);
    assert_eq!(holder(a, 0), Some((own, REGISTRANTS_ONLY)));
}

fn registered_node_writes_and_preempts(a: &mut Raw, own: u64, b: &mut Raw, other: u64) {
    out(b, REGISTER_AND_IGNORE, 0, other).good();
    conflicts(out(b, RESERVE, other, 0));
    writes(b, a, 2);
    // Only the holder can release.
    out(b, RELEASE, other, 0).good();
    assert_eq!(holder(b, 0), Some((own, REGISTRANTS_ONLY)));
    // Another key, with the old one, and back without it. A wrong one is refused.
    conflicts(out(b, REGISTER, own, 0xdead));
    out(b, REGISTER, other, 0xdead).good();
    out(b, REGISTER_AND_IGNORE, 0, other).good();
    out(b, REGISTER, other, 0).good();
    only_reads(b);
    out(b, REGISTER, 0, other).good();
    out(b, PREEMPT, other, own).good();
    attention(a, REGISTRATIONS_PREEMPTED);
    assert_eq!((read_keys(a, 0), holder(a, 0)), (vec![other], Some((other, REGISTRANTS_ONLY))));
    writes(b, a, 3);
    only_reads(a);
}

fn reservation_is_released_and_cleared(a: &mut Raw, own: u64, b: &mut Raw, other: u64) {
    out(a, REGISTER_AND_IGNORE, 0, own).good();
    writes(a, b, 4);
    out(b, RELEASE, other, 0).good();
    attention(a, RESERVATIONS_RELEASED);
    assert_eq!(holder(a, 0), None);
    // Another node may reserve now.
    out(a, RESERVE, own, 0).good();
    assert_eq!(holder(b, 0), Some((own, REGISTRANTS_ONLY)));
    out(b, CLEAR, other, 0).good();
    attention(a, RESERVATIONS_PREEMPTED);
    assert_eq!((read_keys(a, 0), holder(a, 0)), (Vec::new(), None));
    writes(a, b, 5);
}

fn keys_of_all_nodes_are_listed(nodes: &mut [Raw; 3]) {
    std::thread::scope(|scope| {
        for (number, node) in nodes.iter_mut().enumerate() {
            scope.spawn(move || out(node, REGISTER_AND_IGNORE, 0, key(number)).good());
        }
    });
    for node in nodes.iter_mut() {
        assert_eq!(read_keys(node, 0), [key(0), key(1), key(2)]);
    }
}

/// Two nodes preempt the holder at once: the first one gets the reservation, and the key is gone for the second one.
fn preempting_nodes_are_serialized(nodes: &mut [Raw; 3]) {
    let mut owner = 0;
    out(&mut nodes[owner], RESERVE, key(owner), 0).good();
    for _ in 0..RACES {
        let challengers = [(owner + 1) % 3, (owner + 2) % 3];
        let before = generation(&mut nodes[owner], 0);
        let barrier = &Barrier::new(2);
        let raced = nodes.get_disjoint_mut(challengers).expect("two nodes");
        let statuses = std::thread::scope(|scope| {
            let mut number = challengers.into_iter();
            let threads = raced.map(|node| {
                let own = key(number.next().expect("two numbers"));
                scope.spawn(move || {
                    barrier.wait();
                    out(node, PREEMPT, own, key(owner)).status
                })
            });
            threads.map(|thread| thread.join().expect("no panic"))
        });
        let winner = statuses.iter().position(|status| *status == 0).expect("one is the first");
        assert_eq!(statuses[1 - winner], RESERVATION_CONFLICT);
        let [winner, loser] = [challengers[winner], challengers[1 - winner]];
        attention(&mut nodes[owner], REGISTRATIONS_PREEMPTED);
        only_reads(&mut nodes[owner]);
        for node in nodes.iter_mut() {
            assert_eq!(holder(node, 0), Some((key(winner), REGISTRANTS_ONLY)));
            assert_eq!(generation(node, 0), before + 1);
        }
        let [won, lost] = nodes.get_disjoint_mut([winner, loser]).expect("two nodes");
        writes(lost, won, 6);
        out(&mut nodes[owner], REGISTER_AND_IGNORE, 0, key(owner)).good();
        owner = winner;
    }
    out(&mut nodes[owner], CLEAR, key(owner), 0).good();
}
