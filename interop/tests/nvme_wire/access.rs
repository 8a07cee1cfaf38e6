//! Access of hosts: portals, subsystems, networks, write protection.

use super::{NQN, PRIVATE, config, controller, iscsi, portal, read, server};
use interop::nvme::{
    DISCOVERY, DNR, NvmeEntry, NvmeHostName, NvmeReply, NvmeWire, RawController, connect_data, pdu,
};
use interop::raw::patience;
use interop::scsi::pattern;
use interop::{Server, TARGET};
use std::net::SocketAddr;

const PARAMETERS: u16 = DNR | 0x182;
const HOST: u16 = DNR | 0x184;
const WRITE_PROTECTED: u16 = DNR | 0x20;
const IN_DATA: u32 = 1 << 16;
/// A subsystem with LUN 0 of the target.
const SAME_DISK: &str =
    "[[subsystem.namespace]]\nnsid = 1\ntarget = \"iqn.2026-11.org.example:disks\"\nlun = 0\n";

fn connect(address: SocketAddr, host: &str, subsystem: &str) -> NvmeReply {
    let data = connect_data(&NvmeHostName::new(host), 0xffff, subsystem);
    NvmeWire::begin(address, 0).execute(&NvmeEntry::connect(0, 31, 0), &data)
}

pub fn subsystem(name: &str, keys: &str) -> String {
    format!(
        "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:{name}\"\nportal_groups = [1]\n{keys}\n{SAME_DISK}"
    )
}

#[test]
fn read_only_subsystem_reads_and_does_not_write() {
    assert!(SAME_DISK.contains(TARGET));
    let server = Server::start(&config(&subsystem("archive", "read_only = true")));
    let data = pattern(512, 1);
    let mut raw = iscsi(&server);
    raw.write_blocks(0, 0, &data).good();
    let archive = "nqn.2026-11.org.example:archive";
    let mut it = RawController::enabled(portal(&server), &NvmeHostName::new("host"), archive, 0);
    assert_eq!(it.admin.execute(&NvmeEntry::identify(0, 1), &[]).good()[99] & 1, 1, "NSATTR");
    let mut queue = it.queue(1);
    for entry in [
        NvmeEntry::write(1, 0, 1),
        NvmeEntry::write(1, 0, 1).in_capsule(512),
        NvmeEntry::blocks(8, 1, 0, 1),
        NvmeEntry::new(9, 1).dword(11, 4).in_capsule(512),
    ] {
        queue.execute(&entry, &[1; 512]).is(WRITE_PROTECTED);
    }
    queue.execute(&NvmeEntry::blocks(5, 1, 0, 1).in_capsule(512), &data).is(0);
    assert_eq!(read(&mut queue, 0, 1), data);
    raw.write_blocks(0, 0, &pattern(512, 2)).good();
    assert_eq!(read(&mut queue, 0, 1), pattern(512, 2));
}

#[test]
fn network_and_portal_group_decide_who_connects() {
    let far = subsystem("far", "networks = [\"10.9.0.0/16\"]");
    let near =
        subsystem("near", "networks = [\"127.0.0.0/8\"]\nallowed_hosts = [\"nqn.2026-11.org.example:ho*\"]");
    let closed = subsystem("closed", "allowed_hosts = []");
    let elsewhere = subsystem("elsewhere", "").replace("[1]", "[2]");
    let server = Server::start(&config(&[far, near, closed, elsewhere].concat()));
    for (name, host, status, offset) in [
        ("far", "host", HOST, IN_DATA | 512),
        ("near", "host", 0, 0),
        ("near", "guest", HOST, IN_DATA | 512),
        ("closed", "host", HOST, IN_DATA | 512),
        ("elsewhere", "host", PARAMETERS, IN_DATA | 256),
    ] {
        let reply = connect(portal(&server), host, &format!("nqn.2026-11.org.example:{name}"));
        let result = if status == 0 { 0 } else { reply.result as u32 };
        assert_eq!((reply.status, result), (status, offset), "{host} at {name}: {reply:x?}");
    }
}

#[test]
fn portal_of_discovery_has_no_subsystems() {
    let more = "[[portal_group]]\ntag = 3\nportals = [{ listen = \"127.0.0.1:0\", transport = [\"nvme-discovery\"] }]\n";
    let server = Server::start(&config(more));
    let discovery = *server.portals().last().expect("portals");
    assert_eq!(connect(discovery, "host", NQN).status, PARAMETERS);
    let mut it = RawController::enabled(discovery, &NvmeHostName::new("host"), DISCOVERY, 0);
    let page = it.admin.execute(&NvmeEntry::log(0x70, 4096), &[]).good();
    assert_eq!(page[8], 2, "the portal itself, and the subsystem at its own portal");
    let field = |at: usize| {
        let text = String::from_utf8_lossy(&page[at..at + 32]).into_owned();
        text.trim_end_matches([' ', '\0']).to_owned()
    };
    assert_eq!(field(1024 + 32), discovery.port().to_string());
    assert_eq!(field(2048 + 32), portal(&server).port().to_string());
}

/// The access states that the admin queue reports are those of its portal group.
#[test]
fn io_queue_uses_the_portal_group_of_its_controller() {
    let more =
        "[[portal_group]]\ntag = 3\nportals = [{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }]\n";
    let server = Server::start(&config(more));
    let host = NvmeHostName::new("host");
    let it = RawController::enabled(portal(&server), &host, NQN, 0);
    let data = connect_data(&host, it.id, NQN);
    for (address, status) in [(*server.portals().last().expect("portals"), PARAMETERS), (portal(&server), 0)]
    {
        let reply = NvmeWire::begin(address, 0).execute(&NvmeEntry::connect(1, 31, 0), &data);
        assert_eq!(reply.status, status, "{reply:x?}");
    }
}

/// The second server refers back to the first, and to a service that does not exist.
#[test]
fn referrals_are_shown_and_followed() {
    let referring = |to: &[String]| format!("[discovery]\nnvme_referrals = {to:?}\n");
    let own = |name: &str| config("").replace(NQN, &format!("nqn.2026-11.org.example:{name}"));
    let mut far = Server::start(&own("far"));
    let to_far = [portal(&far).to_string()];
    let near = Server::start(&(referring(&to_far) + &own("near")));
    let to_others = [portal(&near).to_string(), "127.0.0.1:1".to_owned()];
    far.rewrite(&(referring(&to_others) + &own("far")));
    far.said(&["reload"]);
    let mut it = RawController::enabled(portal(&near), &NvmeHostName::new("host"), DISCOVERY, 0);
    let page = it.admin.execute(&NvmeEntry::log(0x70, 4096), &[]).good();
    let last = &page[1024 * usize::from(page[8])..][..1024];
    assert_eq!(last[2], 1, "SUBTYPE of a referral");
    let field = |at: usize, len: usize| {
        let text = String::from_utf8_lossy(&last[at..at + len]).into_owned();
        text.trim_end_matches([' ', '\0']).to_owned()
    };
    assert_eq!(field(32, 32), portal(&far).port().to_string());
    assert_eq!(field(256, 256), DISCOVERY);
    let (found, notes, _) = interop::command::lunar(&["discover", &format!("nvme://{}", portal(&near))]);
    for name in ["near", "far"] {
        assert!(found.contains(&format!("nqn.2026-11.org.example:{name}")), "{name}: {found} {notes}");
    }
    assert!(notes.contains("127.0.0.1:1"), "the dead service: {notes}");
}

#[test]
fn host_that_loses_its_access_is_logged_out() {
    let mut server = server();
    let address = portal(&server);
    let mut friend = RawController::enabled(address, &NvmeHostName::new("friend"), PRIVATE, 0);
    let mut other = controller(&server, "friend");
    let mut queue = friend.queue(1);
    queue.execute(&NvmeEntry::read(1, 0, 1), &[]).good();
    server.rewrite(&config("").replace("example:friend\"", "example:enemy\""));
    server.said(&["reload", "--force"]);
    queue.expect_close(patience());
    friend.admin.expect_close(patience());
    assert_eq!(connect(address, "friend", PRIVATE).status, HOST);
    other.admin.execute(&NvmeEntry::new(0x18, 0), &[]).is(0);
}

/// Controllers of a host in two subsystems, and of two hosts with one name, live side by side.
#[test]
fn connect_ends_no_controller_of_another_host_or_subsystem() {
    let server = server();
    let host = NvmeHostName::new("friend");
    let first = RawController::enabled(portal(&server), &host, NQN, 0);
    let mut queue = first.queue(1);
    let second = RawController::enabled(portal(&server), &host, PRIVATE, 0);
    let mut other = second.queue(1);
    let namesake = NvmeHostName { id: [9; 16], ..host };
    let third = RawController::enabled(portal(&server), &namesake, NQN, 0);
    assert!(first.id != second.id && first.id != third.id && second.id != third.id);
    for queue in [&mut queue, &mut other, &mut third.queue(1)] {
        read(queue, 0, 1);
    }
}

/// Without flow control, the last data say that the command has succeeded.
#[test]
fn queue_without_flow_control_gets_no_completion_after_data() {
    let server = server();
    let it = controller(&server, "host");
    let mut queue = NvmeWire::begin(portal(&server), 0);
    let data = connect_data(&it.host, it.id, NQN);
    let connected = queue.execute(&NvmeEntry::connect(1, 127, 0).byte(46, 4), &data);
    assert_eq!((connected.status, connected.head), (0, Some(0xffff)));
    let id = queue.submit(&NvmeEntry::read(1, 0, 8), &[]);
    let frame = queue.recv_for(id);
    assert_eq!((frame.kind(), frame.flags(), frame.data.len()), (pdu::DATA, pdu::LAST | pdu::SUCCESS, 4096));
    queue.expect_silence();
    queue.execute(&NvmeEntry::write(1, 0, 1), &[0; 512]).is(0);
    queue.execute(&NvmeEntry::read(1, u64::MAX, 1), &[]).is(DNR | 0x80);
}
