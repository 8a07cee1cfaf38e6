//! COMPARE AND WRITE of an image of Ceph RBD that two servers serve at once.

use interop::ceph::CephCluster;
use interop::compare::{BLOCK, compare_and_write, differs_at, increment, number_in};
use interop::scsi::inquiry;
use interop::{Login, Raw, Server};
use std::time::Duration;

/// The first block of the second object.
const SECOND_OBJECT: u32 = (4 << 20) / BLOCK as u32;
/// Increments of each host.
const INCREMENTS: u64 = 100;

fn host(server: &Server) -> Raw {
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    raw
}

#[test]
fn two_servers_compare_and_write_one_image() {
    let Some(cluster) = CephCluster::start() else { return };
    interop::raw::choose_patience(Duration::from_secs(60));
    cluster.rbd(&["create", "--size", "64M", "--image-feature", "layering", "rbd/disk"]);
    let servers = [(); 2].map(|()| Server::start(&cluster.configuration("disk", "")));
    let mut hosts = servers.each_ref().map(host);
    only_one_block_is_compared(&mut hosts[0]);
    differences_have_their_index(&mut hosts[0]);
    blocks_at_the_border_of_objects_are_compared(&mut hosts[0]);
    racing_hosts_lose_no_increment(hosts);
    clone_is_compared_with_its_parent(&cluster);
    other_layouts_are_compared_by_the_server(&cluster);
}

/// ORWRITE cannot be one step, and does not exist.
fn only_one_block_is_compared(raw: &mut Raw) {
    let limits = raw.read(0, &inquiry(Some(0xb0), 64), 64).good();
    assert_eq!(limits[5], 1, "MAXIMUM COMPARE AND WRITE LENGTH");
    compare_and_write(raw, 0, BLOCK, &[0; 2 * BLOCK], &[1; 2 * BLOCK]).check(0x05_2400);
    let or_write = [0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    raw.write(0, &or_write, &[1; BLOCK]).check(0x05_2000);
    assert_eq!(raw.read_blocks(0, 0, 2), [0; 2 * BLOCK]);
}

fn differences_have_their_index(raw: &mut Raw) {
    for (round, lba) in [0, 9, SECOND_OBJECT, SECOND_OBJECT + 9].into_iter().enumerate() {
        let [old, new] = [0, 7].map(|byte| [byte; BLOCK]);
        for index in [0, 1, 100 + round, BLOCK - 1] {
            let mut wrong = old;
            wrong[index..].fill(5);
            differs_at(&compare_and_write(raw, lba, BLOCK, &wrong, &new), index as u32);
        }
        assert_eq!(raw.read_blocks(0, lba, 1), old);
        compare_and_write(raw, lba, BLOCK, &old, &new).good();
        differs_at(&compare_and_write(raw, lba, BLOCK, &old, &new), 0);
        assert_eq!(raw.read_blocks(0, lba, 1), new);
    }
}

fn blocks_at_the_border_of_objects_are_compared(raw: &mut Raw) {
    let border = 2 * SECOND_OBJECT;
    let around = [1, 2].map(|byte| [byte; BLOCK]).concat();
    for (lba, block) in (border - 1..).zip(around.chunks(BLOCK)) {
        compare_and_write(raw, lba, BLOCK, &[0; BLOCK], block).good();
        let mut wrong = block.to_vec();
        wrong[BLOCK - 1] = 9;
        differs_at(&compare_and_write(raw, lba, BLOCK, &wrong, block), BLOCK as u32 - 1);
    }
    assert_eq!(raw.read_blocks(0, border - 1, 2), around);
}

fn racing_hosts_lose_no_increment(mut hosts: [Raw; 2]) {
    const LBA: u32 = 100;
    let lost: u32 = std::thread::scope(|scope| {
        let racing = hosts.each_mut().map(|raw| scope.spawn(|| increment(raw, LBA, INCREMENTS, |_| {})));
        racing.map(|host| host.join().expect("no panic")).iter().sum()
    });
    assert!(lost > 0, "no race has happened");
    for mut raw in hosts {
        assert_eq!(number_in(&raw.read_blocks(0, LBA, 1)), 2 * INCREMENTS);
    }
}

fn clone_is_compared_with_its_parent(cluster: &CephCluster) {
    cluster.rbd(&["snap", "create", "--no-progress", "rbd/disk@base"]);
    cluster.rbd(&["clone", "--rbd-default-clone-format", "2", "rbd/disk@base", "rbd/clone"]);
    let server = Server::start(&cluster.configuration("clone", ""));
    let mut raw = host(&server);
    differs_at(&compare_and_write(&mut raw, 9, BLOCK, &[0; BLOCK], &[8; BLOCK]), 0);
    compare_and_write(&mut raw, 9, BLOCK, &[7; BLOCK], &[8; BLOCK]).good();
    assert_eq!(raw.read_blocks(0, 8, 3), [[0; BLOCK], [8; BLOCK], [0; BLOCK]].concat());
}

/// librbd 1.16 compares one sector at most. At a difference, it would end the process for the image of short stripes.
fn other_layouts_are_compared_by_the_server(cluster: &CephCluster) {
    let four_k = ["create", "--size", "1M", "--object-size", "4K", "rbd/4k"];
    let stripes = ["--object-size", "64K", "--stripe-unit", "512", "--stripe-count", "2", "rbd/stripes"];
    cluster.rbd(&four_k);
    cluster.rbd(&[&["create", "--size", "1M"], &stripes[..]].concat());
    for (image, block, keys) in [("4k", 4096, "block_size = 4096"), ("stripes", BLOCK, "")] {
        let server = Server::start(&cluster.configuration(image, keys));
        let mut raw = host(&server);
        let (old, mut wrong, new) = (vec![0; block], vec![0; block], vec![7; block]);
        wrong[100..].fill(5);
        differs_at(&compare_and_write(&mut raw, 1, block, &wrong, &new), 100);
        compare_and_write(&mut raw, 1, block, &old, &new).good();
        differs_at(&compare_and_write(&mut raw, 1, block, &wrong, &new), 0);
    }
}
