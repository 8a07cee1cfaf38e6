//! Demands of hosts on a controller, and habits of single hosts.

use super::{BLOCKS, NQN, config, controller, iscsi, portal, queue, read, server, write};
use interop::Server;
use interop::nvme::{DISCOVERY, NvmeEntry, NvmeFrame, NvmeHostName, NvmeWire, RawController};
use interop::scsi::pattern;

/// LOGICAL UNIT RESET.
const LUN_RESET: u8 = 5;
/// The log page of access states, and the flag that leaves the namespaces out (RGO).
const ACCESS: u8 = 0x0c;
const GROUPS_ONLY: u32 = 1 << 8;

fn number(page: &[u8], at: usize, len: usize) -> u64 {
    page[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Without one of these, Linux refuses the controller or a second path, warns, or does not use access states.
#[test]
fn identity_is_one_that_linux_accepts() {
    let server = server();
    let mut it = controller(&server, "host");
    let page = it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
    let field = |at, len| number(&page, at, len);
    assert_eq!(field(78, 2), u64::from(it.id), "CNTLID is that of Connect");
    let properties = [(8, false), (0, true)]
        .map(|(at, is_long)| it.admin.execute(&NvmeEntry::property(at, is_long), &[]).result);
    assert_eq!(field(80, 4), properties[0] & 0xffff_ffff, "VER is VS");
    assert_eq!(properties[1] >> 43 & 1, 0, "CAP: one command set needs no selection");
    assert_eq!((page[76], page[111]), (0x0b, 1), "CMIC and CNTRLTYPE");
    assert_eq!(field(96, 4) & 0x41, 0x41, "CTRATT: long identifiers, and Keep Alive by traffic");
    assert_eq!(field(96, 4) >> 15 & 1, 0, "CTRATT: no extended formats");
    assert_eq!((field(256, 2), page[512], page[513]), (0, 0x66, 0x44), "OACS, SQES and CQES");
    assert!(field(320, 2) > 0 && field(514, 2) > 0, "KAS and MAXCMD");
    let (all, seen, groups, largest) = (field(516, 4), field(540, 4), field(348, 4), field(344, 4));
    assert!((1..=all).contains(&seen) && groups == largest, "NN {all}, MNAN {seen}, groups {groups}");
    assert!(16 + 32 * groups + 4 * seen <= 4096 << page[77], "the access log is longer than MDTS");
    assert!(field(1792, 4) >= 4 && field(1796, 4) >= 1, "IOCCSZ and IORCSZ");
    assert_eq!((field(1800, 2), page[1803]), (0, 1), "ICDOFF and MSDBD");
    for (at, len) in [(4, 20), (24, 40), (64, 8)] {
        let text = String::from_utf8_lossy(&page[at..at + len]);
        assert!(!text.trim().is_empty() && text.is_ascii() && !text.contains(':'), "{text:?}");
    }
}

/// Linux takes a namespace without capacity for one that has gone, and refuses a second path to one that is not shared.
#[test]
fn namespace_is_one_that_linux_accepts() {
    let server = server();
    let mut it = controller(&server, "host");
    let page = it.admin.execute(&NvmeEntry::identify(0, 1), &[]).good();
    assert_eq!([0, 8, 16].map(|at| number(&page, at, 8)), [BLOCKS; 3], "NSZE, NCAP and NUSE");
    assert_eq!((page[25], page[26], page[30] & 1), (0, 0, 1), "NLBAF, FLBAS and NMIC");
    assert_eq!((number(&page, 42, 2), number(&page, 92, 4)), (0, 1), "NABO and ANAGRPID");
    assert_eq!((number(&page, 128, 2), page[130]), (0, 9), "MS and LBADS");
    let list = it.admin.execute(&NvmeEntry::identify(3, 1), &[]).good();
    assert_eq!((list[..2] == [2, 16], list[20..22] == [3, 16]), (true, true), "NGUID and UUID");
    assert_eq!((&list[4..20], &list[40..45]), (&page[104..120], &[4, 1, 0, 0, 0][..]), "NGUID and CSI");
}

/// A write of one block is atomic. Only the fused pair has a larger unit, which each namespace reports.
#[test]
fn atomic_units_of_writes_are_one_block() {
    let server = server();
    let mut it = controller(&server, "host");
    let page = it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
    assert_eq!([526, 528, 532].map(|at| number(&page, at, 2)), [0; 3], "AWUN, AWUPF and ACWU");
    for namespace in [1, 2] {
        let page = it.admin.execute(&NvmeEntry::identify(0, namespace), &[]).good();
        assert_eq!(page[24] >> 1 & 1, 1, "NSFEAT: the namespace has units of its own");
        assert_eq!([34, 36].map(|at| number(&page, at, 2)), [0; 2], "NAWUN and NAWUPF");
        assert_eq!([40, 42, 44].map(|at| number(&page, at, 2)), [0; 3], "no boundaries");
        assert_eq!(number(&page, 38, 2), 254, "NACWU");
    }
}

/// Linux drops the whole page if groups or namespaces do not ascend, or if a number is 0 or too large.
#[test]
fn access_log_is_one_that_linux_accepts() {
    let namespace =
        |nsid| format!("[[subsystem.namespace]]\nnsid = {nsid}\nbackend = \"null\"\nsize = \"1G\"\n");
    let server = Server::start(&config(&[1024, 9, 300].map(namespace).concat()));
    let mut it = controller(&server, "host");
    // The length that Linux computes from Identify.
    let len = 16 + 36 * 1024;
    let page = it.admin.execute(&NvmeEntry::log(ACCESS, len), &[]).good();
    assert_eq!(number(&page, 8, 2), 5);
    for (at, nsid) in [1, 2, 9, 300, 1024].into_iter().enumerate() {
        let group = &page[16 + 36 * at..][..36];
        let fields = [(0, 4), (4, 4), (32, 4)].map(|(at, len)| number(group, at, len));
        assert_eq!((fields, group[16]), ([nsid, 1, nsid], 1), "{group:x?}");
    }
    assert!(page[16 + 36 * 5..].iter().all(|byte| *byte == 0));
    let part = it.admin.execute(&NvmeEntry::log(ACCESS, 4096).dword(12, 16), &[]).good();
    assert_eq!(part, page[16..][..4096]);
    let dword = u32::from(ACCESS) | (len / 4 - 1) << 16 | GROUPS_ONLY;
    let bare = it.admin.execute(&NvmeEntry::log(ACCESS, len).dword(10, dword), &[]).good();
    assert_eq!([0, 1, 2, 3, 4].map(|at| number(&bare, 16 + 32 * at, 8)), [1, 2, 9, 300, 1024]);
}

/// Commands of pynvmeof without data have an SGL of zeros, and an offset of data.
#[test]
fn command_without_data_needs_no_descriptor() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    let run = |wire: &mut NvmeWire, entry: NvmeEntry| {
        let id = wire.take_id();
        let mut bytes = wire.encode(&NvmeFrame::command(&entry.sgl(0, 0, 0).id(id), &[]));
        bytes[3] = 72;
        wire.send_bytes(&bytes);
        wire.collect(id, &[]).is(0);
    };
    run(&mut it.admin, NvmeEntry::property(0x1c, false));
    run(&mut it.admin, NvmeEntry::new(0x18, 0));
    run(&mut queue, NvmeEntry::new(0, 1));
    run(&mut queue, NvmeEntry::blocks(8, 1, 0, 1));
}

/// Linux sends a page for one range, and 16 bytes where a release needs 8.
#[test]
fn longer_data_than_a_command_needs_are_taken() {
    let server = server();
    let (_it, mut queue) = queue(&server, "host");
    write(&mut queue, 0, &pattern(1024, 1));
    let mut ranges = [0; 4096];
    ranges[4] = 1;
    queue.execute(&NvmeEntry::new(9, 1).dword(11, 4).on_host(4096), &ranges).is(0);
    assert_eq!(read(&mut queue, 0, 2), [vec![0; 512], pattern(1024, 1)[512..].to_vec()].concat());
    assert_eq!(queue.reserve(0x0d, 0, [0, 5]), 0);
    assert_eq!(queue.reserve(0x11, 1 << 8, [5, 0]), 0);
    assert_eq!(queue.reserve(0x15, 1 << 8, [5, 0]), 0, "a release");
    assert_eq!(queue.reserve(0x15, 1, [5, 0]), 0, "a clear");
}

/// Linux asks for persistence with each registration.
#[test]
fn registration_that_asks_for_persistence_succeeds() {
    let server = server();
    let (_it, mut queue) = queue(&server, "host");
    assert_eq!(queue.reserve(0x0d, 3 << 30, [0, 5]), 0);
    let report = NvmeEntry::new(0x0e, 1).dword(10, 15).dword(11, 1).on_host(64);
    let report = queue.execute(&report, &[]).good();
    assert_eq!((report[5], report[9]), (1, 1), "registrants and PTPLS");
}

/// SCSI hosts are informed of resets and changed mode pages by an error of their next command. NVMe has no such error.
#[test]
fn attentions_of_scsi_fail_no_nvme_command() {
    let server = server();
    let (_it, mut queue) = queue(&server, "host");
    let mut raw = iscsi(&server);
    let mut witness = iscsi(&server);
    for _ in 0..3 {
        assert_eq!(raw.manage(LUN_RESET, 0), 0);
        assert_ne!(witness.read(0, &[0; 6], 0).status, 0, "a unit attention");
        read(&mut queue, 0, 1);
        write(&mut queue, 0, &[1; 512]);
    }
}

/// pynvmeof makes a new identifier for each connection, and closes without a shutdown.
#[test]
fn host_with_a_new_identifier_each_time_is_served() {
    let server = server();
    for round in 0..20 {
        let host = NvmeHostName { id: [round + 1; 16], ..NvmeHostName::new("host") };
        let it = RawController::enabled(portal(&server), &host, NQN, 0);
        read(&mut it.queue(1), 0, 1);
    }
}

/// `spdk_nvme_identify` reads each log page that LPA claims.
#[test]
fn log_page_of_effects_is_claimed_where_it_is() {
    let server = server();
    for (subsystem, is_there) in [(NQN, true), (DISCOVERY, false)] {
        let mut it = RawController::enabled(portal(&server), &NvmeHostName::new("host"), subsystem, 0);
        let claims = it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good()[261] & 2 != 0;
        let answers = it.admin.execute(&NvmeEntry::log(5, 4096), &[]).status == 0;
        assert_eq!((claims, answers), (is_there, is_there), "{subsystem}");
    }
}
