//! Connect, properties, and the life of a controller.

use super::{NQN, PRIVATE, controller, portal, queue, read, server};
use interop::nvme::{
    DISCOVERY, DNR, NvmeEntry, NvmeHostName, NvmeReply, NvmeWire, RawController, connect_data,
};
use interop::raw::patience;
use interop::scsi::pattern;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// The result of a Connect that was refused: the parameter is in the data.
const IN_DATA: u64 = 1 << 16;
const FORMAT: u16 = DNR | 0x180;
const PARAMETERS: u16 = DNR | 0x182;
const HOST: u16 = DNR | 0x184;
const SEQUENCE: u16 = DNR | 0x0c;

fn connect(address: SocketAddr, entry: &NvmeEntry, data: &[u8]) -> (NvmeWire, NvmeReply) {
    let mut wire = NvmeWire::begin(address, 0);
    let reply = wire.execute(entry, data);
    (wire, reply)
}

fn refused((mut wire, reply): (NvmeWire, NvmeReply), what: &str, status: u16, result: u64) {
    let shown = |(status, result): (u16, u64)| format!("{what}: status {status:#06x}, result {result:#x}");
    assert_eq!(shown((reply.status, reply.result & 0xffff_ffff)), shown((status, result)));
    wire.expect_close(patience());
}

#[test]
fn faulty_connect_is_refused_with_its_parameter() {
    let server = server();
    let host = NvmeHostName::new("stranger");
    let good = NvmeEntry::connect(0, 31, 0);
    let data = connect_data(&host, 0xffff, NQN);
    let changed = |at: usize, bytes: &[u8]| {
        let mut data = data.clone();
        data[at..at + bytes.len()].copy_from_slice(bytes);
        data
    };
    let unknown = connect_data(&host, 0xffff, "nqn.2026-11.org.example:none");
    let iqn = connect_data(&host, 0xffff, interop::TARGET);
    let nobody = NvmeHostName { nqn: String::new(), id: [0; 16] };
    let cases: [(&str, NvmeEntry, Vec<u8>, u16, u64); 13] = [
        ("unknown subsystem", good, unknown, PARAMETERS, IN_DATA | 256),
        ("a target of iSCSI", good, iqn, PARAMETERS, IN_DATA | 256),
        ("host not allowed", good, connect_data(&host, 0xffff, PRIVATE), HOST, IN_DATA | 512),
        ("subsystem without end", good, changed(256, &[b'a'; 256]), PARAMETERS, IN_DATA | 256),
        ("no subsystem", good, changed(256, &[0; 256]), PARAMETERS, IN_DATA | 256),
        ("host without end", good, changed(512, &[b'a'; 256]), HOST, IN_DATA | 512),
        ("no host", good, connect_data(&nobody, 0xffff, NQN), HOST, IN_DATA | 512),
        ("a static controller", good, connect_data(&host, 1, NQN), PARAMETERS, IN_DATA | 16),
        ("format", good.byte(40, 1), data.clone(), FORMAT, 40),
        ("one entry", NvmeEntry::connect(0, 0, 0), data.clone(), PARAMETERS, 44),
        ("more entries than MQES", NvmeEntry::connect(0, 1024, 0), data.clone(), PARAMETERS, 44),
        (
            "unknown controller",
            NvmeEntry::connect(1, 31, 0),
            connect_data(&host, 4711, NQN),
            PARAMETERS,
            IN_DATA | 16,
        ),
        ("no controller", NvmeEntry::connect(1, 31, 0), data.clone(), PARAMETERS, IN_DATA | 16),
    ];
    for (what, entry, data, status, result) in cases {
        refused(connect(portal(&server), &entry, &data), what, status, result);
    }
    let friend = connect_data(&NvmeHostName::new("friend"), 0xffff, PRIVATE);
    assert_eq!(connect(portal(&server), &good, &friend).1.status, 0);
}

/// `spdk_nvme_perf` sends no name.
#[test]
fn host_without_a_name_is_named_by_its_identifier() {
    let server = server();
    let nameless = NvmeHostName { nqn: String::new(), ..NvmeHostName::new("nameless") };
    let mut it = RawController::enabled(portal(&server), &nameless, NQN, 0);
    let mut queue = it.queue(1);
    assert_eq!(read(&mut queue, 0, 1).len(), 512);
    let private = connect_data(&nameless, 0xffff, PRIVATE);
    refused(
        connect(portal(&server), &NvmeEntry::connect(0, 31, 0), &private),
        "a subsystem with a list of hosts",
        HOST,
        IN_DATA | 512,
    );
    let digits: String = nameless.id.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-");
    let named = NvmeHostName { nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{name}"), ..nameless };
    assert_eq!(RawController::try_connect(portal(&server), &named, NQN).status, 0);
    it.admin.expect_close(patience());
}

#[test]
fn first_command_must_be_a_whole_connect() {
    let server = server();
    let data = connect_data(&NvmeHostName::new("host"), 0xffff, NQN);
    let short = NvmeEntry::connect(0, 31, 0).in_capsule(1020);
    let lie = NvmeEntry::connect(0, 31, 0).in_capsule(1028);
    for (what, entry, data, status) in [
        ("Identify", NvmeEntry::identify(1, 0), &[][..], SEQUENCE),
        ("Property Get", NvmeEntry::property(0, true), &[], SEQUENCE),
        ("short data", short, &data[..1020], DNR | 0x0f),
        ("length that lies", lie, &data, DNR | 0x0f),
        ("data to be asked for", NvmeEntry::connect(0, 31, 0).on_host(1024), &[], DNR | 0x0f),
    ] {
        refused(connect(portal(&server), &entry, data), what, status, 0);
    }
}

#[test]
fn faulty_connect_of_an_io_queue_is_refused() {
    let server = server();
    let mut owner = RawController::connect(portal(&server), &NvmeHostName::new("owner"), NQN, 0);
    refused(owner.try_queue(1, 31), "not enabled", SEQUENCE, 0);
    owner.enable();
    let first = owner.queue(1);
    refused(owner.try_queue(1, 31), "in use", SEQUENCE, 0);
    refused(owner.try_queue(u16::MAX, 31), "no such queue", PARAMETERS, 42);
    refused(owner.try_queue(2, 0), "one entry", PARAMETERS, 44);
    // The number of queues is fixed while one is connected.
    owner.admin.execute(&NvmeEntry::set_feature(7, 0), &[]).is(SEQUENCE);
    drop(first);
    let granted = settled(|| owner.admin.execute(&NvmeEntry::set_feature(7, 0), &[]));
    assert_eq!((granted.status, granted.result), (0, 0), "one queue of each kind");
    refused(owner.try_queue(2, 31), "above the number of queues", PARAMETERS, 42);

    let entry = NvmeEntry::connect(1, 31, 0);
    let foreign = connect_data(&NvmeHostName::new("thief"), owner.id, NQN);
    refused(connect(portal(&server), &entry, &foreign), "controller of another host", HOST, IN_DATA | 512);
    let other = connect_data(&owner.host, owner.id, PRIVATE);
    refused(connect(portal(&server), &entry, &other), "another subsystem", PARAMETERS, IN_DATA | 256);
    read(&mut owner.queue(1), 0, 1);
}

/// Repeats a command until it ends with success, for a second at most.
fn settled(mut command: impl FnMut() -> NvmeReply) -> NvmeReply {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        let reply = command();
        if reply.status == 0 || Instant::now() > end {
            return reply;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn commands_wait_for_the_enabled_controller() {
    let server = server();
    let mut it = RawController::connect(portal(&server), &NvmeHostName::new("early"), NQN, 0);
    for entry in
        [NvmeEntry::identify(1, 0), NvmeEntry::event(), NvmeEntry::set_feature(7, 0), NvmeEntry::new(0x18, 0)]
    {
        it.admin.execute(&entry, &[]).is(SEQUENCE);
    }
    it.enable();
    let identity = it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
    assert_eq!(u16::from_le_bytes([identity[78], identity[79]]), it.id, "CNTLID");
    assert_eq!(&identity[768..768 + NQN.len()], NQN.as_bytes());
    it.admin.execute(&NvmeEntry::new(0x18, 0), &[]).is(0);
    it.admin.execute(&NvmeEntry::new(0x7f, 8), &[]).is(DNR | 0x185);
    it.admin.execute(&NvmeEntry::connect(0, 31, 0), &connect_data(&it.host, 0xffff, NQN)).is(SEQUENCE);
    it.admin.execute(&NvmeEntry::new(0xc5, 0), &[]).is(DNR | 1);
}

#[test]
fn unknown_properties_are_invalid_fields() {
    let server = server();
    let mut it = RawController::connect(portal(&server), &NvmeHostName::new("host"), NQN, 0);
    let capabilities = it.admin.execute(&NvmeEntry::property(0, true), &[]);
    assert_eq!(
        (capabilities.status, capabilities.result & 0xffff, capabilities.result >> 37 & 1),
        (0, 1023, 1)
    );
    assert_eq!(it.admin.execute(&NvmeEntry::property(8, false), &[]).result, 0x1_0400, "VS");
    let set = |offset| NvmeEntry::configure(1).dword(11, offset);
    for (what, entry) in [
        ("offset", NvmeEntry::property(0x24, false)),
        ("far offset", NvmeEntry::property(u32::MAX, true)),
        ("CAP with 4 bytes", NvmeEntry::property(0, false)),
        ("CC with 8 bytes", NvmeEntry::property(0x14, true)),
        ("reserved size", NvmeEntry::property(8, false).byte(40, 2)),
        ("CAP is read only", set(0)),
        ("CSTS is read only", set(0x1c)),
        ("unknown fabrics command", NvmeEntry::new(0x7f, 0x77)),
    ] {
        println!("{what}");
        it.admin.execute(&entry, &[]).is(DNR | 2);
    }
}

#[test]
fn bad_configuration_fails_the_controller_until_it_is_disabled() {
    let server = server();
    for bad in [0x45_0001, 0x36_0001, 0x46_0081, 0x46_0801, 0x46_0011] {
        let mut it = RawController::connect(portal(&server), &NvmeHostName::new("host"), NQN, 0);
        it.admin.execute(&NvmeEntry::configure(bad), &[]).good();
        assert_eq!(
            it.admin.execute(&NvmeEntry::property(0x1c, false), &[]).result & 3,
            2,
            "CSTS of CC {bad:#x}"
        );
        it.admin.execute(&NvmeEntry::identify(1, 0), &[]).is(SEQUENCE);
    }
}

fn status_becomes(it: &mut RawController, mask: u64, value: u64) {
    let end = Instant::now() + patience();
    loop {
        let status = it.admin.execute(&NvmeEntry::property(0x1c, false), &[]).result;
        if status & mask == value {
            return;
        }
        assert!(Instant::now() < end, "CSTS {status:#x}, and not {value:#x}");
    }
}

#[test]
fn reset_and_shutdown_end_the_io_queues() {
    let server = server();
    let (mut it, mut first) = queue(&server, "host");
    it.admin.execute(&NvmeEntry::configure(0x46_0000), &[]).good();
    status_becomes(&mut it, 1, 0);
    first.expect_close(patience());
    it.enable();
    let mut first = it.queue(1);
    read(&mut first, 0, 1);
    // Shutdown, normal.
    it.admin.execute(&NvmeEntry::configure(0x46_4001), &[]).good();
    status_becomes(&mut it, 0xc, 8);
    first.expect_close(patience());
    refused(it.try_queue(1, 31), "shut down", SEQUENCE, 0);
    // A reset begins anew.
    it.admin.execute(&NvmeEntry::configure(0x46_0000), &[]).good();
    status_becomes(&mut it, 0xd, 0);
    it.enable();
    read(&mut it.queue(1), 0, 1);
}

#[test]
fn disconnect_ends_one_io_queue() {
    let server = server();
    let (it, mut first) = queue(&server, "host");
    let mut second = it.queue(2);
    first.execute(&NvmeEntry::new(0x7f, 8), &[]).is(0);
    first.expect_close(patience());
    drop(first);
    read(&mut second, 0, 1);
    read(&mut it.queue_again(1), 0, 1);
}

/// A write of the lost controller must not fall on newer data.
#[test]
fn new_connect_of_a_host_ends_its_old_controller_first() {
    let server = server();
    let (mut old, mut queue) = queue(&server, "host");
    let (early, late) = (pattern(512, 1), pattern(512, 2));
    queue.submit(&NvmeEntry::blocks(1, 2, 3, 1).in_capsule(512), &early);
    thread::sleep(Duration::from_millis(100));
    let new = controller(&server, "host");
    assert_ne!(new.id, old.id);
    old.admin.expect_close(patience());
    while let interop::nvme::WireEvent::Pdu(frame) = queue.get(patience()) {
        assert_eq!(frame.kind(), interop::nvme::pdu::RESPONSE);
    }
    let mut queue = new.queue(1);
    queue.execute(&NvmeEntry::blocks(1, 2, 3, 1).in_capsule(512), &late).good();
    thread::sleep(Duration::from_millis(700));
    assert_eq!(queue.execute(&NvmeEntry::read(2, 3, 1), &[]).good(), late);
    // A controller of another host, and one of discovery, end nothing.
    let _other = controller(&server, "other");
    let _discovery = RawController::enabled(portal(&server), &new.host, DISCOVERY, 0);
    read(&mut queue, 0, 1);
}

#[test]
fn keep_alive_that_stops_ends_the_controller() {
    let server = server();
    let mut it = RawController::connect(portal(&server), &NvmeHostName::new("host"), NQN, 2000);
    it.enable();
    let mut queue = it.queue(1);
    // Any command is a sign of life, on any queue.
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(500));
        read(&mut queue, 0, 1);
    }
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(500));
        it.admin.execute(&NvmeEntry::new(0x18, 0), &[]).is(0);
    }
    let since = Instant::now();
    it.admin.expect_close(Duration::from_secs(20));
    queue.expect_close(patience());
    assert!(since.elapsed() > Duration::from_millis(1900), "{:?}", since.elapsed());
}

/// Also of a controller that was never enabled.
#[test]
fn keep_alive_counts_from_connect_on() {
    let server = server();
    let mut it = RawController::connect(portal(&server), &NvmeHostName::new("host"), NQN, 500);
    it.admin.expect_close(Duration::from_secs(10));
    let mut without = RawController::connect(portal(&server), &NvmeHostName::new("other"), NQN, 0);
    thread::sleep(Duration::from_millis(2500));
    without.enable();
}
