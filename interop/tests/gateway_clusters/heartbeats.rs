//! Hosts of a cluster file system: each one keeps its heartbeat by COMPARE AND WRITE, and all race for one lock.

use crate::hosts;
use interop::compare::{BLOCK, compare_and_write, differs_at, increment, number_in, with_number};
use interop::scsi::pattern;
use interop::{Raw, Server};

/// The block of the lock. The heartbeats of the hosts follow.
const LOCK: u32 = 1024;
/// Times that each host takes the lock.
const LOCKS: u64 = 60;

pub fn hosts_keep_their_locks(servers: &[Server; 3]) {
    let mut hosts = hosts(servers);
    let lost: u32 = std::thread::scope(|scope| {
        let mut own = LOCK + 1..;
        let racing = hosts.each_mut().map(|raw| {
            let own = own.next().expect("a block");
            scope.spawn(move || {
                let mut beats = 0;
                let lost = increment(raw, LOCK, LOCKS, |raw| {
                    beat(raw, own, beats);
                    beats += 1;
                });
                assert_eq!(number_in(&raw.read_blocks(0, own, 1)), beats);
                lost
            })
        });
        racing.map(|host| host.join().expect("no panic")).iter().sum()
    });
    assert!(lost > 0, "no race has happened");
    for raw in &mut hosts {
        assert_eq!(number_in(&raw.read_blocks(0, LOCK, 1)), 3 * LOCKS);
    }
    differences_are_found_through_each_gateway(&mut hosts);
}

/// Only its host changes a heartbeat, so it never differs.
fn beat(raw: &mut Raw, lba: u32, beats: u64) {
    let old = with_number(&[0; BLOCK], beats);
    compare_and_write(raw, lba, BLOCK, &old, &with_number(&old, beats + 1)).good();
}

/// A host changes a byte, and the others learn which one.
fn differences_are_found_through_each_gateway(hosts: &mut [Raw; 3]) {
    const LBA: u32 = 2048;
    let mut now = vec![0; BLOCK];
    for (round, index) in [0, 1, 7, 8, 255, 256, 510, BLOCK - 1].into_iter().enumerate() {
        let mut next = now.clone();
        next[index..].copy_from_slice(&pattern(BLOCK - index, round as u8 + 1));
        next[index] = now[index].wrapping_add(1);
        let writer = round % 3;
        compare_and_write(&mut hosts[writer], LBA, BLOCK, &now, &next).good();
        for raw in hosts.iter_mut() {
            differs_at(&compare_and_write(raw, LBA, BLOCK, &now, &[9; BLOCK]), index as u32);
            assert_eq!(raw.read_blocks(0, LBA, 1), next);
        }
        now = next;
    }
}
