//! Faults of a Ceph cluster that hosts see: a full pool, a lost watch, a deleted image.

use interop::ceph::CephCluster;
use interop::scsi::{Reply, write10};
use interop::{Login, Raw, Server};
use std::time::{Duration, Instant};

const BLOCK: usize = 512;
/// A block of another object than block 0.
const OTHER_OBJECT: u32 = 16384;
const MISCOMPARE: u32 = 0x0e_1d00;
const SPACE_ALLOCATION_FAILED: u32 = 0x07_2707;
const NOT_READY_INTERVENTION: u32 = 0x02_0403;
/// The limit of each wait.
const LIMIT: Duration = Duration::from_secs(60);

fn host(server: &Server) -> Raw {
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    raw
}

fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !until() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn create(cluster: &CephCluster, image: &str, features: &str) -> Server {
    let name = format!("rbd/{image}");
    cluster.rbd(&["create", "--size", "64M", "--image-feature", features, &name]);
    Server::start(&cluster.configuration(image, ""))
}

#[test]
fn faults_of_the_cluster_reach_hosts_as_sense_data() {
    let Some(cluster) = CephCluster::start() else { return };
    interop::raw::choose_patience(LIMIT);
    full_pool_fails_writes_until_there_is_space(&cluster);
    lost_watch_is_registered_again(&cluster);
    write_beyond_a_shrunk_image_fails(&cluster);
    image_without_header_is_not_ready(&cluster);
    removed_image_of_a_fenced_client_is_not_ready(&cluster);
    missing_keyring_is_not_a_deleted_image(&cluster);
}

/// Sets the ratio of used space at which the cluster is full.
fn set_full(cluster: &CephCluster, is_full: bool) {
    let ratios = if is_full { ["0.0000003", "0.0000002", "0.0000001"] } else { ["0.95", "0.9", "0.85"] };
    let names = ["set-full-ratio", "set-backfillfull-ratio", "set-nearfull-ratio"];
    names.iter().zip(ratios).for_each(|(name, ratio)| drop(cluster.ceph(&["osd", name, ratio])));
    wait("the pool", || cluster.ceph(&["health", "detail"]).contains("POOL_FULL") == is_full);
}

fn compare_and_write(raw: &mut Raw, lba: u32, old: u8, new: u8) -> Reply {
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    cdb[6..10].copy_from_slice(&lba.to_be_bytes());
    raw.write(0, &cdb, &[[old; BLOCK], [new; BLOCK]].concat())
}

fn unmap(raw: &mut Raw, lba: u8, blocks: u8) -> Reply {
    let mut list = [0; 24];
    (list[1], list[3], list[15], list[19]) = (22, 16, lba, blocks);
    raw.write(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list)
}

/// The second image has no lock yet when the pool becomes full. Writes that need no more space go on.
fn full_pool_fails_writes_until_there_is_space(cluster: &CephCluster) {
    let images = [("plain", "layering"), ("locked", "exclusive-lock,object-map,fast-diff")];
    let servers = images.map(|(image, features)| create(cluster, image, features));
    let mut hosts = servers.each_ref().map(host);
    hosts[0].write_blocks(0, 0, &[7; 2 * BLOCK]).good();
    set_full(cluster, true);
    // The OSD gets the map of the monitor a moment later.
    let mut lbas = 2..;
    wait("writes fail", || hosts[0].write_blocks(0, lbas.next().expect("a block"), &[8; BLOCK]).status != 0);
    for raw in &mut hosts {
        raw.write_blocks(0, OTHER_OBJECT, &[8; BLOCK]).check(SPACE_ALLOCATION_FAILED);
    }
    let raw = &mut hosts[0];
    compare_and_write(raw, OTHER_OBJECT, 0, 8).check(SPACE_ALLOCATION_FAILED);
    compare_and_write(raw, OTHER_OBJECT, 1, 8).check(MISCOMPARE);
    assert_eq!(raw.read_blocks(0, 0, 2), [7; 2 * BLOCK], "reads go on");
    assert_eq!(raw.read_blocks(0, OTHER_OBJECT, 1), [0; BLOCK], "no write has landed");
    raw.write_blocks(0, 1, &[6; BLOCK]).good();
    unmap(raw, 0, 1).good();
    assert_eq!(raw.read_blocks(0, 0, 2), [[0; BLOCK], [6; BLOCK]].concat());
    for server in &servers {
        let log = server.log();
        assert!(log.contains("no space left on device; hint: free space in the pool"), "{log}");
    }
    set_full(cluster, false);
    wait("writes succeed", || raw.write_blocks(0, OTHER_OBJECT, &[8; BLOCK]).status == 0);
    compare_and_write(raw, OTHER_OBJECT, 8, 9).good();
    for (raw, byte) in hosts.iter_mut().zip([9, 5]) {
        raw.write_blocks(0, OTHER_OBJECT + 1, &[5; BLOCK]).good();
        assert_eq!(raw.read_blocks(0, OTHER_OBJECT + u32::from(byte == 5), 1), [byte; BLOCK]);
    }
}

/// A server that is stopped for longer than the time-out of its watch does not see that the image is resized.
fn lost_watch_is_registered_again(cluster: &CephCluster) {
    cluster.set_of_osd("osd_client_watch_timeout", "2");
    let server = create(cluster, "watched", "layering");
    cluster.set_of_osd("osd_client_watch_timeout", "30");
    let mut raw = host(&server);
    let grow = |size: &str| {
        drop(cluster.rbd(&["resize", "--no-progress", "--size", size, "rbd/watched"]));
    };
    server.pause();
    wait("the watch is lost", || cluster.watchers("watched").is_empty());
    grow("80M");
    server.resume();
    for (size_mib, next) in [(80u32, "96M"), (96, "112M")] {
        wait("the new size", || server.log().contains(&format!("to {} bytes", size_mib << 20)));
        raw.clear_attentions(0);
        let last = (size_mib << 20) / BLOCK as u32 - 1;
        raw.write_blocks(0, last, &[3; BLOCK]).good();
        assert_eq!(raw.read_blocks(0, last, 1), [3; BLOCK]);
        grow(next);
    }
    assert_eq!(cluster.watchers("watched").len(), 1);
}

/// librbd reports success for such a write, and writes nothing. The server reads the new size up to 1 s later.
fn write_beyond_a_shrunk_image_fails(cluster: &CephCluster) {
    let server = create(cluster, "shrunk", "layering");
    let mut raw = host(&server);
    for (size_mib, next) in [(64u32, "48M"), (48, "32M"), (32, "16M")] {
        raw.clear_attentions(0);
        let last = (size_mib << 20) / BLOCK as u32 - 1;
        wait("writes succeed", || raw.write(0, &write10(last, 1), &[4; BLOCK]).status == 0);
        cluster.rbd(&["resize", "--no-progress", "--allow-shrink", "--size", next, "rbd/shrunk"]);
        assert_ne!(raw.write(0, &write10(last, 1), &[5; BLOCK]).status, 0, "nothing was written");
    }
}

fn is_not_ready(server: &Server, raw: &mut Raw) {
    wait("the image is missed", || server.log().contains("the image was deleted while it is served; hint:"));
    raw.read(0, &interop::scsi::read10(0, 1), BLOCK as u32).check(NOT_READY_INTERVENTION);
    raw.write_blocks(0, 0, &[1; BLOCK]).check(NOT_READY_INTERVENTION);
    raw.simple(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]).check(NOT_READY_INTERVENTION);
    let mut get_lba_status = [0; 16];
    (get_lba_status[0], get_lba_status[1], get_lba_status[13]) = (0x9e, 0x12, 24);
    raw.read(0, &get_lba_status, 24).check(NOT_READY_INTERVENTION);
    assert_eq!(server.log().matches("the image was deleted while").count(), 1);
}

fn image_without_header_is_not_ready(cluster: &CephCluster) {
    let server = create(cluster, "headless", "layering");
    let mut raw = host(&server);
    raw.write_blocks(0, 0, &[1; BLOCK]).good();
    let info = cluster.rbd(&["info", "rbd/headless"]);
    let id = info.lines().find_map(|line| line.trim().strip_prefix("id: ")).expect("an identifier");
    cluster.rados(&["-p", "rbd", "rm", &format!("rbd_header.{id}")]);
    is_not_ready(&server, &mut raw);
}

/// Then an image with the same name is another one.
fn removed_image_of_a_fenced_client_is_not_ready(cluster: &CephCluster) {
    for is_new in [false, true] {
        let server = create(cluster, "removed", "layering");
        let mut raw = host(&server);
        raw.write_blocks(0, 0, &[1; BLOCK]).good();
        cluster.ceph(&["osd", "blocklist", "add", &cluster.watchers("removed")[0]]);
        cluster.rbd(&["rm", "--no-progress", "rbd/removed"]);
        if is_new {
            cluster.rbd(&["create", "--size", "64M", "--image-feature", "layering", "rbd/removed"]);
        }
        // BUSY until the image was opened again in vain.
        wait("the write ends", || raw.write(0, &write10(0, 1), &[1; BLOCK]).status != 8);
        is_not_ready(&server, &mut raw);
        if is_new {
            let log = server.log();
            assert!(log.contains("another image has its name"), "{log}");
            cluster.rbd(&["rm", "--no-progress", "rbd/removed"]);
        }
    }
}

/// The fenced client is replaced when the keyring is there again.
fn missing_keyring_is_not_a_deleted_image(cluster: &CephCluster) {
    let keyring = cluster.conf().with_file_name("client.lunar.keyring");
    let aside = keyring.with_extension("aside");
    let server = create(cluster, "unkeyed", "layering");
    let mut raw = host(&server);
    raw.write_blocks(0, 0, &[1; BLOCK]).good();
    std::fs::rename(&keyring, &aside).expect("a keyring");
    cluster.ceph(&["osd", "blocklist", "add", &cluster.watchers("unkeyed")[0]]);
    wait("the image is not opened", || {
        assert_ne!(raw.write(0, &write10(0, 1), &[2; BLOCK]).status, 2, "BUSY, not NOT READY");
        server.log().contains("cannot be opened again: cannot connect to the cluster")
    });
    std::fs::rename(&aside, &keyring).expect("a keyring");
    wait("the image is opened", || raw.write(0, &write10(0, 1), &[3; BLOCK]).status == 0);
    assert_eq!(raw.read_blocks(0, 0, 1), [3; BLOCK]);
}
