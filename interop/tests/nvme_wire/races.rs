//! Connects, resets and ends that run at the same time.

use super::{NQN, config, controller, portal, queue, read, server};
use interop::Server;
use interop::nvme::{NvmeEntry, NvmeFrame, NvmeHostName, NvmeWire, RawController, WireEvent, connect_data};
use interop::raw::patience;
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The status of a command with this identifier. None: the connection has ended.
fn status(wire: &mut NvmeWire, entry: &NvmeEntry, capsule: &[u8]) -> Option<u16> {
    let id = wire.take_id();
    wire.send(&NvmeFrame::command(&entry.id(id), capsule));
    loop {
        match wire.get(patience()) {
            WireEvent::Pdu(frame) if frame.get16(20) == id => return Some(frame.get16(22) >> 1),
            WireEvent::Pdu(_) => {}
            WireEvent::Closed => return None,
            WireEvent::Nothing => panic!("no answer and no end"),
        }
    }
}

#[test]
fn racing_connects_of_a_host_leave_one_controller() {
    let server = server();
    let data = connect_data(&NvmeHostName::new("host"), 0xffff, NQN);
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..12 {
                    let mut wire = NvmeWire::begin(portal(&server), 0);
                    if status(&mut wire, &NvmeEntry::connect(0, 31, 0), &data) == Some(0) {
                        all.lock().expect("no panic").push(wire);
                    }
                }
            });
        }
    });
    let mut all = all.into_inner().expect("no panic");
    assert!(all.len() > 12, "most are admitted for a while: {}", all.len());
    let version = NvmeEntry::property(8, false);
    let alive = all.iter_mut().filter_map(|wire| status(wire, &version, &[])).count();
    assert_eq!(alive, 1);
    let list = server.said(&["session", "list"]);
    assert_eq!(list.matches("nqn.2026-11.org.example:host").count(), 1, "{list}");
}

/// I/O queues connect and read while their controller is reset again and again.
#[test]
fn queues_that_connect_during_resets_are_ended_or_work() {
    let server = server();
    let mut it = controller(&server, "host");
    let (id, is_over) = (it.id, AtomicBool::new(false));
    let data = connect_data(&it.host, id, NQN);
    thread::scope(|scope| {
        let connectors: Vec<_> = (1..4u16)
            .map(|queue| {
                let (server, data, is_over) = (&server, &data, &is_over);
                scope.spawn(move || {
                    let mut served = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let mut wire = NvmeWire::begin(portal(server), 0);
                        let connected = status(&mut wire, &NvmeEntry::connect(queue, 31, 0), data);
                        // Otherwise: refused, because the controller is not ready, or ended at once.
                        assert!(matches!(connected, Some(0 | 0x400c) | None), "{connected:x?}");
                        while connected == Some(0) && status(&mut wire, &NvmeEntry::new(0, 1), &[]) == Some(0)
                        {
                            served += 1;
                        }
                    }
                    served
                })
            })
            .collect();
        for _ in 0..100 {
            it.admin.execute(&NvmeEntry::configure(0x46_0000), &[]).good();
            while it.admin.execute(&NvmeEntry::property(0x1c, false), &[]).result & 1 != 0 {}
            it.enable();
            thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        it.admin.execute(&NvmeEntry::configure(0x46_0000), &[]).good();
        let served: Vec<u32> = connectors.into_iter().map(|one| one.join().expect("it ends")).collect();
        assert!(served.iter().all(|count| *count > 0), "{served:?}");
    });
    while it.admin.execute(&NvmeEntry::property(0x1c, false), &[]).result & 1 != 0 {}
    it.enable();
    (1..4).for_each(|queue| _ = read(&mut it.queue_again(queue), 0, 1));
}

/// A host that leaves while its controller ends other queues, and comes back at once.
#[test]
fn host_that_reconnects_at_once_finds_its_queues_free() {
    let server = server();
    for _ in 0..60 {
        let it: RawController = controller(&server, "host");
        let mut queues: Vec<NvmeWire> = (1..5).map(|queue| it.queue(queue)).collect();
        for queue in &mut queues {
            (0..8).for_each(|_| _ = queue.submit(&NvmeEntry::read(1, 0, 256), &[]));
        }
    }
    let list = server.said(&["session", "list"]);
    assert!(list.matches("nqn.2026-11.org.example:host").count() <= 5, "{list}");
}

/// Whether a new host gets a controller. False: all connections are in use.
fn is_admitted(server: &Server, host: &str) -> bool {
    let mut wire = NvmeWire::open(portal(server));
    wire.send(&NvmeFrame::ic_request(0));
    let is_open = matches!(wire.get(patience()), WireEvent::Pdu(_));
    let data = connect_data(&NvmeHostName::new(host), 0xffff, NQN);
    is_open && status(&mut wire, &NvmeEntry::connect(0, 31, 0), &data) == Some(0)
}

/// While the medium does not answer, a host gives up one Connect after the other. They must not use up all connections.
#[test]
fn connect_that_waits_ends_with_its_host() {
    let limits = "[limits]\nconnections = 6\nconnections_before_login = 6\n[session]";
    let text = config("").replace("[session]", limits).replace("read_us = 500000", "read_us = 60000000");
    let server = Server::start(&text);
    let (_it, mut queue) = queue(&server, "host");
    queue.submit(&NvmeEntry::read(2, 0, 1), &[]);
    read(&mut queue, 0, 1);
    let data = connect_data(&NvmeHostName::new("host"), 0xffff, NQN);
    for _ in 0..3 {
        let mut wire = NvmeWire::begin(portal(&server), 0);
        wire.submit(&NvmeEntry::connect(0, 31, 0), &data);
        wire.expect_silence();
    }
    let end = Instant::now() + Duration::from_secs(20);
    while !is_admitted(&server, "other") {
        assert!(Instant::now() < end, "the places of hosts that left are not free");
        thread::sleep(Duration::from_millis(100));
    }
}

/// The Connect was late: the host has given it up, and has connected again.
#[test]
fn connect_of_a_host_that_left_ends_no_controller() {
    let server = server();
    let mut it = controller(&server, "host");
    let data = connect_data(&NvmeHostName::new("host"), 0xffff, NQN);
    for _ in 0..5 {
        let mut wire = NvmeWire::begin(portal(&server), 0);
        // The end of the connection comes in the segment with the Connect.
        rustix::net::sockopt::set_tcp_cork(&wire.stream, true).expect("a socket");
        wire.submit(&NvmeEntry::connect(0, 31, 0), &data);
        wire.stream.shutdown(Shutdown::Write).expect("a socket");
        while matches!(wire.get(patience()), WireEvent::Pdu(_)) {}
    }
    it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
}
