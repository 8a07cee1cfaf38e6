//! Objects that several clients of a Ceph cluster share, on a cluster that the test starts.

use interop::ceph::CephCluster;
use lunar_block::{
    Backend, BackendSpec, Notification, NotifyReplies, RbdBackend, RbdLocation, SharedObject, Watch,
    WatchEvent,
};
use lunar_runtime::{Buf, Cores};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const OBJECT: &str = "state";
const SWAPS: u32 = 100;
const WATCH_TIMEOUT_S: u32 = 120;
/// The limit of each wait.
const LIMIT: Duration = Duration::from_secs(60);

/// Opens an image. One that does not exist is created with the usual features.
fn open(cluster: &CephCluster, image: &str) -> Arc<RbdBackend> {
    let location = RbdLocation::parse(&cluster.image(image)).expect("an image");
    let spec = BackendSpec { create: true, size: Some(8 << 20), ..BackendSpec::rbd(location) };
    Arc::new(RbdBackend::open(&spec).expect("an image"))
}

fn object(disk: &RbdBackend) -> SharedObject {
    disk.shared_object(None, OBJECT).expect("an object")
}

fn write(disk: &Arc<RbdBackend>) -> io::Result<()> {
    let (cores, disk) = (Cores::unbound().expect("an event loop"), disk.clone());
    let work = async move || disk.write(0, Buf::zeroed(4096), false).await.0;
    cores.wait(0, work).expect("an event loop")
}

/// A watch that outlives a stopped OSD, and its events.
fn watch(object: &SharedObject) -> (Watch, Receiver<WatchEvent>) {
    let (send, events) = channel();
    let watch =
        object.watch(WATCH_TIMEOUT_S, Box::new(move |event| drop(send.send(event)))).expect("a watch");
    (watch, events)
}

fn notified(events: &Receiver<WatchEvent>) -> (Notification, Vec<u8>) {
    match events.recv_timeout(LIMIT).expect("an event") {
        WatchEvent::Notified { notification, payload } => (notification, payload),
        WatchEvent::Lost(e) => panic!("the watch is lost: {e}"),
    }
}

fn is_fenced<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|e| e.raw_os_error() == Some(rustix::io::Errno::SHUTDOWN.raw_os_error()))
}

#[test]
fn objects_are_swapped_watched_and_fenced() {
    let Some(cluster) = CephCluster::start_with_lease(WATCH_TIMEOUT_S) else { return };
    cluster.rbd(&["create", "--size", "8M", "--image-feature", "layering", "rbd/shared"]);
    let (one, two) = (open(&cluster, "shared"), open(&cluster, "shared"));
    assert!(!one.has_exclusive_lock());
    assert!(open(&cluster, "usual").has_exclusive_lock());
    operations_are_atomic(&object(&one));
    objects_of_other_pools_are_reached(&cluster, &one);
    racing_swaps_lose_no_update(&object(&one), &object(&two));
    notifications_collect_acknowledgements(&object(&one), &object(&two));
    age_grows_while_the_osd_is_stopped(&cluster, &object(&one));
    fenced_client_loses_image_object_and_watch(&cluster, &one, &two);
}

fn operations_are_atomic(object: &SharedObject) {
    assert!(object.read().expect("no object").is_empty());
    assert_eq!(object.notify(b"", 1).expect_err("no object").kind(), io::ErrorKind::NotFound);
    let missing = object.watch(5, Box::new(|_| {})).err().expect("no object");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert!(!object.swap(&[("version", b"1")], &[("a", b"x")], &[]).expect("a swap"));
    assert!(object.read().expect("an object").is_empty());
    let long = vec![7; 64 << 10];
    let set: [(&str, &[u8]); 4] = [("version", b"1"), ("a", b"x"), ("b", b""), ("long", &long)];
    assert!(object.swap(&[("version", b"")], &set, &[]).expect("a swap"));
    assert!(!object.swap(&[("version", b"1"), ("a", b"y")], &[], &["a", "version"]).expect("a swap"));
    assert!(!object.swap(&[("version", b"")], &[("version", b"0")], &[]).expect("a swap"));
    let found = object.read().expect("an object");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b", "long", "version"]);
    assert!(found["a"] == b"x" && found["b"].is_empty() && found["long"] == long && found["version"] == b"1");
    let removed = ["a", "b", "long", "version", "never"];
    assert!(
        object
            .swap(&[("version", b"1"), ("a", b"x"), ("never", b"")], &[("n", b"0")], &removed)
            .expect("a swap")
    );
    let found = object.read().expect("an object");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [("n".to_owned(), b"0".to_vec())]);
    assert_eq!(
        object.swap(&[], &[("a\0b", b"")], &[]).expect_err("a zero").kind(),
        io::ErrorKind::InvalidInput
    );
}

fn objects_of_other_pools_are_reached(cluster: &CephCluster, disk: &RbdBackend) {
    let missing = disk.shared_object(Some("other"), OBJECT).err().expect("no pool");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    cluster.ceph(&["osd", "pool", "create", "other", "1"]);
    let other = disk.shared_object(Some("other"), OBJECT).expect("an object");
    assert!(other.swap(&[("n", b"")], &[("n", b"9")], &[]).expect("a swap"));
    assert_eq!(other.read().expect("an object")["n"], b"9");
    assert_eq!(object(disk).read().expect("an object")["n"], b"0");
}

/// Increments `n` until this client has done it [`SWAPS`] times. Returns the number of lost races.
fn increment(object: &SharedObject) -> u32 {
    let (mut done, mut lost) = (0, 0);
    while done < SWAPS {
        let old = object.read().expect("an object")["n"].clone();
        let number: u32 = String::from_utf8_lossy(&old).parse().expect("a number");
        let new = (number + 1).to_string();
        let swapped = object.swap(&[("n", &old)], &[("n", new.as_bytes())], &[]).expect("a swap");
        *(if swapped { &mut done } else { &mut lost }) += 1;
    }
    lost
}

fn racing_swaps_lose_no_update(one: &SharedObject, two: &SharedObject) {
    let lost = std::thread::scope(|scope| {
        let other = scope.spawn(|| increment(two));
        increment(one) + other.join().expect("no panic")
    });
    assert!(lost > 0, "no race has happened");
    assert_eq!(one.read().expect("an object")["n"], (2 * SWAPS).to_string().as_bytes());
}

fn notifications_collect_acknowledgements(one: &SharedObject, two: &SharedObject) {
    assert_eq!(one.notify(b"none", 5).expect("replies"), NotifyReplies::default());
    let (first, second) = (watch(one), watch(two));
    let replies = std::thread::scope(|scope| {
        let sender = scope.spawn(|| two.notify(b"both", 30).expect("replies"));
        for (object, events, name) in [(one, &first.1, "one"), (two, &second.1, "two")] {
            let (notification, payload) = notified(events);
            assert_eq!(payload, b"both");
            object.acknowledge(&notification, name.as_bytes()).expect("an acknowledgement");
        }
        sender.join().expect("no panic")
    });
    let mut acks = replies.acks;
    acks.sort();
    assert_eq!((acks, replies.missing), (vec![b"one".to_vec(), b"two".to_vec()], 0));
    let replies = std::thread::scope(|scope| {
        let sender = scope.spawn(|| one.notify(b"", 2).expect("replies"));
        let (notification, payload) = notified(&second.1);
        assert_eq!(payload, b"");
        two.acknowledge(&notification, b"").expect("an acknowledgement");
        sender.join().expect("no panic")
    });
    assert_eq!(replies, NotifyReplies { acks: vec![vec![]], missing: 1 }, "the first does not acknowledge");
    drop(first);
    let replies = std::thread::scope(|scope| {
        let sender = scope.spawn(|| one.notify(b"left", 30).expect("replies"));
        let (notification, _) = notified(&second.1);
        two.acknowledge(&notification, b"here").expect("an acknowledgement");
        sender.join().expect("no panic")
    });
    assert_eq!(replies.acks.iter().filter(|ack| *ack == b"here").count(), 1);
}

fn age_grows_while_the_osd_is_stopped(cluster: &CephCluster, object: &SharedObject) {
    let (watch, events) = watch(object);
    let wait = |until: &dyn Fn(Duration) -> bool| {
        let end = Instant::now() + LIMIT;
        while !watch.age().is_ok_and(until) {
            assert!(Instant::now() < end, "the age is {:?}", watch.age());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let stopped = cluster.pause_osd();
    wait(&|age| age > Duration::from_secs(4));
    drop(stopped);
    wait(&|age| age < Duration::from_secs(2));
    assert!(matches!(events.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout)));
}

fn fenced_client_loses_image_object_and_watch(
    cluster: &CephCluster,
    disk: &Arc<RbdBackend>,
    fenced: &Arc<RbdBackend>,
) {
    let object_of = |disk: &RbdBackend| object(disk);
    let (survivor, object) = (object_of(disk), object_of(fenced));
    let (watch, events) = watch(&object);
    write(fenced).expect("a write");
    assert!(!fenced.is_fenced());
    let addresses = object.addresses().expect("addresses");
    assert_ne!(addresses, survivor.addresses().expect("addresses"));
    let whole_host = survivor.blocklist("127.0.0.1:0/0", 60).expect_err("a host");
    assert_eq!(whole_host.kind(), io::ErrorKind::InvalidInput);
    survivor.blocklist(&addresses, 600).expect("the client is fenced");
    survivor.wait_for_latest_map().expect("a map");
    // The OSD has the map before it executes these, object by object.
    survivor.read().expect("an object");
    write(disk).expect("a write");
    assert!(is_fenced(&object.swap(&[], &[("n", b"0")], &[])) && fenced.is_fenced());
    assert!(is_fenced(&object.read()));
    assert!(is_fenced(&write(fenced)));
    assert!(is_fenced(&object.notify(b"", 1)));
    let lost = loop {
        match events.recv_timeout(LIMIT).expect("the watch is lost") {
            WatchEvent::Lost(e) => break e,
            WatchEvent::Notified { .. } => {}
        }
    };
    assert!(watch.age().is_err(), "{lost}");
    assert_eq!(survivor.read().expect("an object")["n"], (2 * SWAPS).to_string().as_bytes());
    drop(watch);
    cluster.ceph(&["osd", "blocklist", "rm", &addresses]);
    survivor.wait_for_latest_map().expect("a map");
    assert!(is_fenced(&object.read()) && is_fenced(&write(fenced)), "a fenced client is never used again");
    fenced.reopen().expect("a new client");
    assert!(!fenced.is_fenced() && is_fenced(&object.read()));
    write(fenced).expect("a write");
    assert!(object_of(fenced).swap(&[], &[("n", b"0")], &[]).expect("a swap"));
    drop(object);
    fenced_client_is_shut_down();
}

/// The ends of its watch and of its connection do not wait for a cluster that refuses them.
fn fenced_client_is_shut_down() {
    let running = || -> usize {
        let names = ["rados-unwatch", "rbd-close", "rados-shutdown"];
        names.iter().map(|name| interop::stopped_thread::threads(std::process::id(), name).len()).sum()
    };
    let end = Instant::now() + LIMIT;
    while running() > 0 {
        assert!(Instant::now() < end, "threads that close objects still run");
        std::thread::sleep(Duration::from_millis(10));
    }
}
