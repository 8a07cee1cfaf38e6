//! Two gateways serve an image with an exclusive lock: one of them is active, the other on standby.

use interop::ceph::CephCluster;
use interop::gateways::{IMAGE, configuration, joins, session};
use interop::reserve::action::{PREEMPT, REGISTER, RESERVE};
use interop::reserve::attention::ACCESS_STATE_CHANGED;
use interop::reserve::kind::WRITE_EXCLUSIVE;
use interop::routed::until;
use interop::scsi::{Reply, pattern, read_keys, reserve_out};
use interop::{Raw, Server};
use std::time::Duration;

const A: &str = "iqn.2026-11.org.example:a";
const BUSY: u8 = 8;
const STANDBY: u32 = 0x02_04_0b;
const OPTIMIZED: u8 = 0;
const IN_STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;
/// The portal group tags of the gateways.
const TAGS: [u16; 2] = [0x101, 0x201];

/// The access states of the port groups of both gateways.
fn states(raw: &mut Raw) -> [u8; 2] {
    let report = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let data = loop {
        let reply = raw.read(0, &report, 256);
        // While a notification waits for a dead gateway, the state may be too old.
        if reply.sense() != ACCESS_STATE_CHANGED && reply.status != BUSY {
            break reply.good();
        }
    };
    let (mut at, mut found) = (4, [0xff; 2]);
    while at < data.len() {
        let tag = u16::from_be_bytes([data[at + 2], data[at + 3]]);
        let gateway = TAGS.iter().position(|known| *known == tag).expect("a known tag");
        found[gateway] = data[at] & 0xf;
        at += 8 + 4 * usize::from(data[at + 7]);
    }
    found
}

/// SET TARGET PORT GROUPS. Returns the status.
fn activate(raw: &mut Raw, gateway: usize) -> u8 {
    let [high, low] = TAGS[gateway].to_be_bytes();
    let set = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    raw.write(0, &set, &[0, 0, 0, 0, OPTIMIZED, 0, high, low]).status
}

/// The reply of a command after all unit attentions: changed ports of other gateways raise one a moment later.
fn settled(mut run: impl FnMut() -> Reply) -> Reply {
    loop {
        let reply = run();
        if reply.sense() >> 16 != 6 {
            return reply;
        }
    }
}

fn wait_for(raw: &mut Raw, wanted: [u8; 2]) {
    until("the access states", || {
        raw.clear_attentions(0);
        (states(raw) == wanted).then_some(())
    });
    raw.clear_attentions(0);
}

#[test]
fn one_gateway_at_a_time_serves_a_locked_image() {
    let Some(cluster) = CephCluster::start() else { return };
    interop::raw::choose_patience(Duration::from_secs(30));
    cluster.rbd(&["create", "--size", "64M", &format!("rbd/{IMAGE}")]);
    let mut one = Server::start(&configuration(&cluster, 1));
    let mut a = session(&one, A);
    wait_for(&mut a, [OPTIMIZED, 0xff]);
    let two = Server::start(&configuration(&cluster, 2));
    let mut b = session(&two, A);
    wait_for(&mut b, [OPTIMIZED, IN_STANDBY]);
    wait_for(&mut a, [OPTIMIZED, IN_STANDBY]);
    standby_refuses_the_medium_and_takes_reservations(&mut a, &mut b);
    host_chooses_the_gateway(&mut a, &mut b);
    administrator_chooses_the_gateway(&one, &two, &mut a, &mut b);
    active_gateway_is_killed(&mut one, &two, &mut b);
}

fn standby_refuses_the_medium_and_takes_reservations(a: &mut Raw, b: &mut Raw) {
    assert_eq!(settled(|| b.simple(0, &[0; 6])).sense(), STANDBY);
    assert_eq!(settled(|| b.write_blocks(0, 0, &pattern(4096, 1))).sense(), STANDBY);
    a.write_blocks(0, 0, &pattern(4096, 2)).good();
    reserve_out(b, 0, REGISTER, 0, 0, 0xb, 0).good();
    assert_eq!(read_keys(a, 0), [0xb]);
    reserve_out(b, 0, REGISTER, 0, 0xb, 0, 0).good();
}

/// SET TARGET PORT GROUPS through the gateway on standby. The lock moves, and a second change must wait.
fn host_chooses_the_gateway(a: &mut Raw, b: &mut Raw) {
    until("the first change has settled", || (activate(b, 1) != BUSY).then_some(()));
    until("the unit attention", || (a.simple(0, &[0; 6]).sense() == ACCESS_STATE_CHANGED).then_some(()));
    assert_eq!(settled(|| a.write_blocks(0, 0, &pattern(4096, 3))).sense(), STANDBY);
    wait_for(b, [IN_STANDBY, OPTIMIZED]);
    assert_eq!(b.read_blocks(0, 0, 8), pattern(4096, 2));
    b.write_blocks(0, 0, &pattern(4096, 4)).good();
    assert_eq!(activate(a, 0), BUSY, "hosts must not pass the image to and fro");
    assert_eq!(activate(b, 1), 0, "it is active already");
    until("the change has settled", || (activate(a, 0) == 0).then_some(()));
    wait_for(a, [OPTIMIZED, IN_STANDBY]);
    assert_eq!(a.read_blocks(0, 0, 8), pattern(4096, 4));
    wait_for(b, [OPTIMIZED, IN_STANDBY]);
}

fn administrator_chooses_the_gateway(one: &Server, two: &Server, a: &mut Raw, b: &mut Raw) {
    assert_eq!(one.said(&["gateway", "failover", "2"]), "gateway 2: serves 1 image\n");
    wait_for(b, [IN_STANDBY, OPTIMIZED]);
    wait_for(a, [IN_STANDBY, OPTIMIZED]);
    // The active gateway passes the image on when it is drained.
    assert!(two.said(&["gateway", "drain"]).starts_with("gateway 2: hosts use other gateways"));
    wait_for(b, [OPTIMIZED, IN_STANDBY]);
    wait_for(a, [OPTIMIZED, IN_STANDBY]);
    a.write_blocks(0, 0, &pattern(4096, 4)).good();
    assert!(one.said(&["gateway", "list"]).contains("drained"));
    let shown = one.said(&["gateway", "show", "rbd/shared", "--json"]);
    assert!(shown.contains("\"active\": 1"), "{shown}");
    for (words, reason) in [
        (["gateway", "drain", "1"], "gateway 1 is the only one in use for rbd/shared"),
        (["gateway", "failover", "3"], "gateway 3 serves none of these images"),
    ] {
        let ran = one.asked(&words);
        assert!(!ran.ok() && ran.said.contains(reason), "{}", ran.said);
    }
    let resumed: serde_json::Value =
        serde_json::from_str(&one.said(&["gateway", "resume", "2", "--json"])).expect("JSON");
    assert_eq!(resumed["gateway"], 2);
}

/// The gateway on standby notices it, fences the other one, and takes the lock.
fn active_gateway_is_killed(one: &mut Server, two: &Server, b: &mut Raw) {
    reserve_out(b, 0, REGISTER, 0, 0, 0xb, 0).good();
    one.kill9();
    wait_for(b, [UNAVAILABLE, OPTIMIZED]);
    assert_eq!(b.read_blocks(0, 0, 8), pattern(4096, 4));
    b.write_blocks(0, 0, &pattern(4096, 5)).good();
    one.restart();
    let mut a = session(one, A);
    wait_for(&mut a, [IN_STANDBY, OPTIMIZED]);
    wait_for(b, [IN_STANDBY, OPTIMIZED]);
    assert_eq!(joins(two), 1, "it was never lost");
    // The state of reservations has survived.
    reserve_out(&mut a, 0, REGISTER, 0, 0, 0xa, 0).good();
    reserve_out(b, 0, RESERVE, WRITE_EXCLUSIVE, 0xb, 0, 0).good();
    reserve_out(&mut a, 0, PREEMPT, WRITE_EXCLUSIVE, 0xa, 0xb, 0).good();
}
