//! A gateway in a network namespace of its own, whose links to the cluster and to its hosts are cut.

use crate::{PATIENCE, host, key};
use interop::ceph::CephCluster;
use interop::gateways::{
    configuration, configuration_at, create_image, fenced, joins, session_of, wait_for_join,
};
use interop::namespace::Namespace;
use interop::reserve::RESERVATION_CONFLICT;
use interop::reserve::action::{CLEAR, PREEMPT_AND_ABORT, REGISTER_AND_IGNORE, RESERVE};
use interop::reserve::kind::WRITE_EXCLUSIVE;
use interop::routed::until;
use interop::scsi::{READ, WRITE, pattern, read_keys, reserve_out, write10};
use interop::{Folder, Raw, Received, Server, op};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The links of the namespace.
const TO_THE_CLUSTER: usize = 0;
const TO_THE_HOSTS: usize = 1;

pub fn run() {
    let namespace = match Namespace::new(2) {
        Ok(namespace) => namespace,
        Err(what) => return println!("skipped: needs root with network namespaces: {}", what.trim()),
    };
    let Some(cluster) = CephCluster::start_at(&namespace.address(TO_THE_CLUSTER, 1)) else { return };
    interop::raw::choose_patience(PATIENCE);
    create_image(&cluster);
    let portal = format!("\"{}:0\"", namespace.address(TO_THE_HOSTS, 2));
    let toml = configuration_at(&cluster, 1, &portal);
    let cut = Server::start_by(namespace.command(), Folder::fresh(), &toml);
    let other = Server::start(&configuration(&cluster, 2));
    [&cut, &other].into_iter().for_each(wait_for_join);
    let (mut a, mut b) = (session_of(&cut, &host(0)), session_of(&other, &host(1)));
    for (number, raw) in [&mut a, &mut b].into_iter().enumerate() {
        reserve_out(raw, 0, REGISTER_AND_IGNORE, 0, 0, key(number), 0).good();
    }
    cut_from_its_hosts_it_stays_a_member(&cluster, &namespace, &cut, &mut a, &mut b);
    cut_from_the_cluster_it_ends_its_sessions(&cluster, &namespace, &cut, a, &mut b);
    operations_of_an_ended_session_do_not_take_place(&namespace, &cut, &other, &mut b);
}

/// A write of 8 blocks at 0, which is sent now.
fn begin_write(raw: &mut Raw, seed: u8) -> u32 {
    let request = raw.command(0, 0x80 | WRITE, &write10(0, 8), 4096);
    let request = request.data(&pattern(4096, seed));
    raw.send(&request);
    request.tag()
}

fn cut_from_its_hosts_it_stays_a_member(
    cluster: &CephCluster,
    namespace: &Namespace,
    cut: &Server,
    a: &mut Raw,
    b: &mut Raw,
) {
    let before = (fenced(cluster), joins(cut));
    namespace.cut(TO_THE_HOSTS);
    let write = begin_write(a, 1);
    for new in [0xbb, key(1)] {
        reserve_out(b, 0, REGISTER_AND_IGNORE, 0, 0, new, 0).good();
        assert_eq!(read_keys(b, 0), [key(0), new]);
    }
    b.write_blocks(0, 8, &pattern(4096, 2)).good();
    namespace.restore(TO_THE_HOSTS);
    a.collect(write, &[]).good();
    assert_eq!(a.read_blocks(0, 0, 16), [pattern(4096, 1), pattern(4096, 2)].concat());
    assert_eq!((fenced(cluster), joins(cut)), before, "the gateway was fenced");
}

/// Asks for the keys until the session ends. Returns the number of answers with the key of host 0 to questions after it was
/// preempted.
fn old_answers(raw: &mut Raw, is_preempted: &AtomicBool) -> usize {
    let mut old = 0;
    loop {
        let was_preempted = is_preempted.load(Ordering::SeqCst);
        let question = raw.command(0, 0x80 | READ, &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0], 256);
        raw.send(&question);
        match raw.get(PATIENCE) {
            Received::Closed => return old,
            Received::Nothing => panic!("the session of a cut gateway does not end"),
            // Other PDUs have the status BUSY.
            Received::Pdu(pdu) if pdu.opcode() == op::DATA_IN => {
                let has_key = pdu.data[8..].chunks(8).any(|listed| listed == key(0).to_be_bytes());
                old += usize::from(was_preempted && has_key);
            }
            Received::Pdu(_) => {}
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The host of the cut gateway gets no answer to its write. After the other host has preempted it, the gateway does not
/// report its old keys any more either. When the cut ends, the write does not arrive.
fn cut_from_the_cluster_it_ends_its_sessions(
    cluster: &CephCluster,
    namespace: &Namespace,
    cut: &Server,
    mut a: Raw,
    b: &mut Raw,
) {
    let before = fenced(cluster);
    let mut asking = session_of(cut, &host(2));
    namespace.cut(TO_THE_CLUSTER);
    begin_write(&mut a, 3);
    let is_preempted = AtomicBool::new(false);
    let old_answers = std::thread::scope(|scope| {
        let asked = scope.spawn(|| old_answers(&mut asking, &is_preempted));
        reserve_out(b, 0, PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, key(1), key(0), 0).good();
        is_preempted.store(true, Ordering::SeqCst);
        asked.join().expect("no panic")
    });
    assert_eq!(old_answers, 0, "answers of the cut gateway after the end of PREEMPT AND ABORT");
    assert!(fenced(cluster) > before, "the cut gateway is on the blocklist");
    b.clear_attentions(0);
    reserve_out(b, 0, RESERVE, WRITE_EXCLUSIVE, key(1), 0, 0).good();
    b.write_blocks(0, 0, &pattern(4096, 4)).good();
    a.expect_close();
    namespace.restore(TO_THE_CLUSTER);
    until("the cut gateway joins again", || (joins(cut) == 2).then_some(()));
    let mut a = session_of(cut, &host(0));
    assert_eq!(a.write_blocks(0, 0, &pattern(4096, 5)).status, RESERVATION_CONFLICT);
    b.clear_attentions(0);
    for raw in [&mut a, &mut *b] {
        assert_eq!(raw.read_blocks(0, 0, 8), pattern(4096, 4), "the write of the cut gateway has arrived");
        assert_eq!(read_keys(raw, 0), [key(1)]);
    }
    reserve_out(b, 0, CLEAR, 0, key(1), 0, 0).good();
}

/// No host changes a reservation, so that no gateway asks the cut one. A host whose session has ended repeats its commands on
/// another path, and goes on. Its former commands must not take place after that.
fn operations_of_an_ended_session_do_not_take_place(
    namespace: &Namespace,
    cut: &Server,
    other: &Server,
    b: &mut Raw,
) {
    let (mut a, mut moves) = (session_of(cut, &host(0)), session_of(cut, &host(2)));
    for (raw, key) in [(&mut moves, key(2)), (&mut *b, key(1))] {
        reserve_out(raw, 0, REGISTER_AND_IGNORE, 0, 0, key, 0).good();
    }
    let before = joins(cut);
    namespace.cut(TO_THE_CLUSTER);
    begin_write(&mut a, 6);
    let list = [key(2).to_be_bytes(), key(1).to_be_bytes(), [0; 8]].concat();
    let preempt = [0x5f, PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, 0, 0, 0, 0, 0, 24, 0];
    let preempt = moves.command(0, 0x80 | WRITE, &preempt, 24).data(&list);
    moves.send(&preempt);
    a.expect_close();
    moves.expect_close();
    let mut again = session_of(other, &host(0));
    for seed in [6, 7] {
        again.write_blocks(0, 0, &pattern(4096, seed)).good();
    }
    namespace.restore(TO_THE_CLUSTER);
    until("the cut gateway joins again", || (joins(cut) > before).then_some(()));
    let mut a = session_of(cut, &host(0));
    let is_overwritten = a.read_blocks(0, 0, 8) != pattern(4096, 7);
    let keys = read_keys(&mut a, 0);
    assert!(!is_overwritten && keys == [key(1), key(2)], "overwritten: {is_overwritten}; keys: {keys:x?}");
}
