//! The keys of `[limits]`: connections before Connect, connections, controllers, queues and memory. A host that takes all that it
//! can leaves room for one at another address.

use super::{NQN, config, controller, portal, queue, read};
use interop::Server;
use interop::nvme::{
    DISCOVERY, DNR, NvmeEntry, NvmeFrame, NvmeHostName, NvmeReply, NvmeWire, RawController, connect_data, pdu,
};
use interop::raw::patience;
use interop::routed::until;
use interop::scsi::pattern;
use std::net::IpAddr;
use std::thread;

/// Connect: Controller Busy. The host may try again.
const BUSY: u16 = 0x181;
const PARAMETERS: u16 = DNR | 0x182;
/// An internal path error with the first retry delay: the host repeats the command.
const NO_MEMORY: u16 = 0x0b00;

/// A server with these keys of `[limits]`.
fn limited(limits: &str) -> Server {
    Server::start(&config("").replace("[session]", &format!("[limits]\n{limits}\n[session]")))
}

/// An address of this host.
fn address(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

/// A connection from an address that sends nothing.
fn silent(server: &Server, last: u8) -> NvmeWire {
    NvmeWire::open_from(address(last), portal(server))
}

/// Connects an admin queue from an address.
fn admin(server: &Server, last: u8, host: &NvmeHostName, subsystem: &str) -> (NvmeWire, NvmeReply) {
    let mut wire = silent(server, last).initialized(0);
    let reply = wire.execute(&NvmeEntry::connect(0, 31, 0), &connect_data(host, 0xffff, subsystem));
    (wire, reply)
}

/// The admin queue and the I/O queue of a host at 127.0.0.2, which the server must admit.
fn neighbour(server: &Server) -> [NvmeWire; 2] {
    let host = NvmeHostName::new("neighbour");
    let (mut wire, reply) = admin(server, 2, &host, NQN);
    assert_eq!(reply.status, 0, "a new address: {reply:x?}");
    wire.execute(&NvmeEntry::configure(0x46_0001), &[]).good();
    until("the controller is ready", || {
        let status = wire.execute(&NvmeEntry::property(0x1c, false), &[]).result;
        (status & 1 == 1).then_some(())
    });
    let mut queue = silent(server, 2).initialized(0);
    let data = connect_data(&host, reply.result as u16, NQN);
    queue.execute(&NvmeEntry::connect(1, 127, 0), &data).good();
    [wire, queue]
}

/// A host with one name and this identifier.
fn with_id(name: &str, id: u8) -> NvmeHostName {
    NvmeHostName { id: [id; 16], ..NvmeHostName::new(name) }
}

#[test]
fn connections_before_connect_leave_room_for_others() {
    let server = limited("connections_before_login = 8");
    let mut held: Vec<NvmeWire> = (0..3).map(|_| silent(&server, 1)).collect();
    held.extend((0..3).map(|_| silent(&server, 1).initialized(0)));
    silent(&server, 1).expect_close(patience());
    let [_admin, mut queue] = neighbour(&server);
    read(&mut queue, 0, 1);
    held.iter_mut().for_each(NvmeWire::expect_silence);
}

/// A new address takes the place of the oldest connection of the address with the most.
#[test]
fn full_table_before_connect_admits_a_new_address() {
    let server = limited("connections_before_login = 8");
    let mut greedy: Vec<NvmeWire> = (0..6).map(|_| silent(&server, 1).initialized(0)).collect();
    let mut others = [3, 4].map(|last| silent(&server, last).initialized(0));
    let [_admin, mut queue] = neighbour(&server);
    greedy.remove(0).expect_close(patience());
    read(&mut queue, 0, 1);
    let reason = "gave the slot of this connection to another address";
    until("the log", || server.log().contains(reason).then_some(()));
    others.iter_mut().for_each(NvmeWire::expect_silence);
}

#[test]
fn connected_queue_leaves_the_table_before_connect() {
    let server = limited("connections_before_login = 2");
    let it = controller(&server, "host");
    let mut queues: Vec<NvmeWire> = (1..=12).map(|number| it.queue(number)).collect();
    queues.iter_mut().for_each(|queue| _ = read(queue, 0, 1));
}

/// Each queue is a connection. A quarter of the table is for addresses with few of them.
#[test]
fn queues_of_one_address_leave_connections_to_others() {
    let server = limited("connections = 320");
    let greedy = ["one", "two", "three", "four"].map(|host| controller(&server, host));
    let mut queues: Vec<NvmeWire> =
        greedy.iter().flat_map(|it| (1..60).map(|number| it.queue(number))).collect();
    silent(&server, 1).expect_close(patience());
    let [_admin, mut queue] = neighbour(&server);
    read(&mut queue, 0, 1);
    queues.iter_mut().for_each(|queue| _ = read(queue, 0, 1));
}

/// Controllers count, and I/O queues do not. Without a proof a name counts by its address.
#[test]
fn controllers_of_one_host_are_limited() {
    let server = limited("sessions_per_initiator = 2");
    let mut held: Vec<RawController> =
        (1..=2).map(|id| RawController::enabled(portal(&server), &with_id("host", id), NQN, 0)).collect();
    let mut queues: Vec<NvmeWire> = (1..=4).map(|number| held[0].queue(number)).collect();
    let third = |last| admin(&server, last, &with_id("host", 3), NQN);
    let (mut refused, reply) = third(1);
    reply.is(BUSY);
    refused.expect_close(patience());
    let why = "the session limits of [limits] are used up";
    until("the log", || server.log().contains(why).then_some(()));
    assert_eq!(third(2).1.status, 0, "the same name at another address");
    read(&mut controller(&server, "other").queue(1), 0, 1);
    queues.iter_mut().for_each(|queue| _ = read(queue, 0, 1));
    drop(held.pop());
    until("the place of a controller that left", || (third(1).1.status == 0).then_some(()));
}

#[test]
fn controllers_of_one_address_leave_room_for_others() {
    for (limit, subsystem) in [("sessions = 8", NQN), ("discovery_sessions = 8", DISCOVERY)] {
        let server = limited(limit);
        let connect = |n, last| admin(&server, last, &NvmeHostName::new(&format!("host-{n}")), subsystem);
        let held: Vec<NvmeWire> = (0..6)
            .map(|n| {
                let (wire, reply) = connect(n, 1);
                assert_eq!(reply.status, 0, "{limit}: controller {n}");
                wire
            })
            .collect();
        connect(6, 1).1.is(BUSY);
        let (mut new, reply) = connect(7, 2);
        reply.is(0);
        for mut wire in held {
            wire.execute(&NvmeEntry::property(8, false), &[]).good();
        }
        new.execute(&NvmeEntry::property(8, false), &[]).good();
        // The other kind of controllers has places of its own.
        let other = if subsystem == NQN { DISCOVERY } else { NQN };
        admin(&server, 1, &NvmeHostName::new("host-6"), other).1.is(0);
    }
}

/// Set Features, CAP and Identify report the limits that Connect enforces.
#[test]
fn number_of_queues_and_entries_is_that_reported() {
    let server = limited("connections = 100");
    let mut it = controller(&server, "host");
    let wanted = 0xfffe_fffe;
    let granted = it.admin.execute(&NvmeEntry::set_feature(7, wanted), &[]).result;
    assert_eq!(granted, 63 << 16 | 63, "64 queues of each kind, 0-based");
    let entries = it.admin.execute(&NvmeEntry::property(0, true), &[]).result as u16;
    let page = it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
    assert_eq!((entries, page[514..516] == [0, 4]), (1023, true), "CAP.MQES and MAXCMD");
    let queues: Vec<NvmeWire> = (1..=64)
        .map(|number| {
            let (wire, reply) = it.try_queue(number, entries);
            assert_eq!(reply.status, 0, "queue {number}");
            wire
        })
        .collect();
    for (number, entries) in [(65, 31), (64, entries + 1)] {
        it.try_queue(number, entries).1.is(PARAMETERS);
    }
    queues.into_iter().for_each(|mut queue| _ = read(&mut queue, 0, 1));
}

/// `commands_per_session` is the window of iSCSI. The host chooses the entries of a queue.
#[test]
fn commands_per_session_does_not_limit_queues() {
    let server = limited("commands_per_session = 2");
    let (_it, mut queue) = queue(&server, "host");
    let ids: Vec<u16> = (0..127).map(|_| queue.submit(&NvmeEntry::read(2, 0, 1), &[])).collect();
    ids.into_iter().for_each(|id| assert_eq!(queue.collect(id, &[]).good().len(), 512));
}

/// A host that announces 60 writes of 1 MiB, and sends all but the last block of each one that is requested. Then it sends as many
/// writes with 8 KiB in the capsule to the slow disk. Returns its queue with the numbers of requests and of refusals.
fn hoard(server: &Server, n: u8) -> (RawController, NvmeWire, [usize; 2]) {
    let (it, mut queue) = queue(server, &format!("hoard-{n}"));
    let (mut counts, begun) = ([0; 2], vec![1; (1 << 20) - 512]);
    let ids: Vec<u16> = (0..60).map(|_| queue.submit(&NvmeEntry::write(1, 0, 2048), &[])).collect();
    for id in ids {
        let answer = queue.recv_for(id);
        if answer.kind() == pdu::R2T {
            counts[0] += 1;
            queue.send(&NvmeFrame::host_data(0, id, answer.get16(10), 0, &begun));
        } else {
            counts[1] += 1;
            assert_eq!(answer.get16(22) >> 1 & 0xfff, NO_MEMORY, "{answer:x?}");
        }
    }
    for _ in 0..60 {
        queue.submit(&NvmeEntry::blocks(1, 2, 0, 16).in_capsule(8192), &[2; 8192]);
    }
    (it, queue, counts)
}

/// Eight hosts at one address ask for seven times the memory.
#[test]
fn unfinished_writes_leave_memory_to_a_neighbour() {
    let server = limited("memory = \"64MiB\"");
    let before = server.rss_kib();
    let mut hoards: Vec<_> = thread::scope(|scope| {
        let server = &server;
        let all: Vec<_> = (0..8).map(|n| scope.spawn(move || hoard(server, n))).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    let counts = hoards.iter().fold([0, 0], |sum, (.., one)| [sum[0] + one[0], sum[1] + one[1]]);
    assert!(counts[0] > 160 && counts[1] > 160, "requests and refusals: {counts:?}");
    let [_admin, mut queue] = neighbour(&server);
    for round in 0..8 {
        let data = pattern(1 << 20, round);
        queue.execute(&NvmeEntry::write(1, 0, 2048), &data).good();
        assert!(read(&mut queue, 0, 2048) == data, "round {round}");
    }
    for (it, ..) in &mut hoards {
        it.admin.execute(&NvmeEntry::new(0x18, 0), &[]).good();
    }
    let after = server.rss_kib();
    println!("{counts:?}, {before} KiB before, {after} KiB");
    // The memory, the reserve for first buffers, and the rest of the process.
    assert!(after < before + (160 << 10), "{before} KiB before, {after} KiB");
}
