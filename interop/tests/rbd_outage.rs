//! The OSD of a cluster does not answer for a while: hosts wait or get BUSY, and keep their sessions.

use interop::ceph::CephCluster;
use interop::gateways::{create_image, joins, session};
use interop::raw::Raw;
use interop::routed::until;
use interop::scsi::{READ, WRITE, pattern, read10, write10};
use interop::{Server, gateways};
use std::time::Duration;

const HOST: &str = "iqn.2026-11.org.example:host";
const OTHER: &str = "iqn.2026-11.org.example:other";
const BUSY: u8 = 8;
/// The monitors have an answer for a gateway in this time, and its watch is too old for commands.
const STALE: Duration = Duration::from_secs(9);

/// Sends a write of 4 KiB, and returns its task tag.
fn begin_write(raw: &mut Raw, seed: u8) -> u32 {
    let request = raw.command(0, 0x80 | WRITE, &write10(0, 8), 4096).data(&pattern(4096, seed));
    raw.send(&request);
    request.tag()
}

#[test]
fn sessions_outlast_an_osd_that_does_not_answer() {
    let Some(cluster) = CephCluster::start_with_lease(60) else { return };
    interop::raw::choose_patience(Duration::from_secs(60));
    create_image(&cluster);
    cluster.rbd(&["create", "--size", "16M", "disk"]);
    let alone = Server::start(&cluster.configuration("disk", ""));
    let [one, two] = gateways::start(&cluster);
    let (mut raw, mut a, mut b) = (session(&alone, HOST), session(&one, HOST), session(&two, OTHER));
    for raw in [&mut raw, &mut a, &mut b] {
        raw.write_blocks(0, 0, &pattern(4096, 1)).good();
    }
    let osd = cluster.pause_osd();
    let (late, write) = (begin_write(&mut raw, 2), begin_write(&mut a, 3));
    let read = b.command(0, 0x80 | READ, &read10(0, 8), 4096);
    b.send(&read);
    std::thread::sleep(STALE);
    let mut third = session(&two, HOST);
    assert_eq!(third.simple(0, &[0; 6]).status, BUSY, "a gateway whose state may be old");
    assert_eq!(raw.collect(late, &[]).status, BUSY, "a write without a gateway");
    assert_eq!(b.collect(read.tag(), &[]).status, BUSY, "a read through a gateway");
    drop(osd);
    // Another gateway could overtake a write that ended as BUSY.
    a.collect(write, &[]).good();
    raw.write_blocks(0, 0, &pattern(4096, 4)).good();
    assert_eq!(raw.read_blocks(0, 0, 8), pattern(4096, 4), "the late write has not come after it");
    for raw in [&mut a, &mut b, &mut third] {
        // A session that began meanwhile still has its first unit attention.
        let reply =
            until("a read", || Some(raw.read(0, &read10(0, 8), 4096)).filter(|reply| reply.status == 0));
        assert_eq!(reply.good(), pattern(4096, 3));
    }
    assert_eq!((joins(&one), joins(&two)), (1, 1), "no gateway has lost its place");
}
