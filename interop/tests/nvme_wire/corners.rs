//! Corners of single commands: lengths of keys, places of data, refused reads of logs, identifiers, a fast reset.

use super::{NQN, config, controller, portal, queue, server, write};
use interop::nvme::{DNR, NvmeEntry, NvmeFrame, NvmeHostName, RawController, WireEvent};
use std::thread;
use std::time::{Duration, Instant};

/// A host that shortens its time-out and dies is noticed after the new one.
#[test]
fn shorter_keep_alive_takes_effect_at_once() {
    let server = server();
    let mut it = RawController::connect(portal(&server), &NvmeHostName::new("host"), NQN, 20_000);
    it.enable();
    it.admin.execute(&NvmeEntry::set_feature(0x0f, 1000), &[]).is(0);
    it.admin.expect_close(Duration::from_secs(6));
}

/// The descriptor has no place on the host.
#[test]
fn report_into_the_capsule_is_refused() {
    let server = server();
    let (_it, mut queue) = queue(&server, "host");
    let entry = NvmeEntry::new(0x0e, 1).dword(10, 15).dword(11, 1).in_capsule(64);
    let reply = queue.execute(&entry, &[0; 64]);
    assert!(reply.data.is_empty() && reply.status & DNR != 0, "{reply:x?}");
}

/// The key to preempt is not there, and must not count as 0, which preempts all registrants.
#[test]
fn preempt_without_its_key_is_refused() {
    let server = server();
    let (_one, mut one) = queue(&server, "one");
    let (_two, mut two) = queue(&server, "two");
    let all_registrants = 5 << 8;
    for (queue, key) in [(&mut one, 1u64), (&mut two, 2)] {
        let keys = [0, key].map(u64::to_le_bytes).concat();
        queue.execute(&NvmeEntry::new(0x0d, 1).in_capsule(16), &keys).is(0);
    }
    let keys = [1u64, 0].map(u64::to_le_bytes).concat();
    one.execute(&NvmeEntry::new(0x11, 1).dword(10, all_registrants).in_capsule(16), &keys).is(0);
    let preempt = NvmeEntry::new(0x11, 1).dword(10, 1 | all_registrants).in_capsule(8);
    one.execute(&preempt, &1u64.to_le_bytes()).is(DNR | 0x0f);
    write(&mut two, 0, &[1; 512]);
}

#[test]
fn register_without_its_new_key_is_refused() {
    let server = server();
    let (_it, mut queue) = queue(&server, "host");
    queue.execute(&NvmeEntry::new(0x0d, 1).in_capsule(8), &[0; 8]).is(DNR | 0x0f);
}

/// A request for a part behind the end of a log fails, and so does one for data in the capsule. Both lose none of its entries.
#[test]
fn refused_read_of_the_change_list_keeps_it() {
    let mut server = server();
    let mut it = controller(&server, "host");
    server.rewrite(&config("[[subsystem.namespace]]\nnsid = 3\nbackend = \"memory\"\nsize = \"8MiB\"\n"));
    server.said(&["reload", "--force"]);
    assert_eq!(it.admin.execute(&NvmeEntry::event(), &[]).result as u32 & 0xff, 2);
    it.admin.execute(&NvmeEntry::log(4, 4096).dword(12, 8192), &[]).is(DNR | 2);
    it.admin.execute(&NvmeEntry::log(4, 4096).in_capsule(4096), &[0; 4096]).is(DNR | 0x11);
    assert_eq!(it.admin.execute(&NvmeEntry::log(4, 4096), &[]).good()[..4], [3, 0, 0, 0]);
}

/// As on an I/O queue: the completion would belong to two commands.
#[test]
fn identifier_of_a_waiting_event_request_is_in_use() {
    let server = server();
    let mut it = controller(&server, "host");
    let request = NvmeFrame::command(&NvmeEntry::event().id(77), &[]);
    it.admin.send(&request);
    it.admin.send(&request);
    assert!(
        !matches!(it.admin.get(Duration::from_secs(1)), WireEvent::Nothing),
        "the second request was taken"
    );
}

/// A host that does not wait for the end of a reset gets a controller that becomes ready, or one that says it failed.
#[test]
fn enable_behind_disable_is_not_lost() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    queue.submit(&NvmeEntry::read(2, 0, 1), &[]);
    it.admin.submit(&NvmeEntry::configure(0x46_0000), &[]);
    it.admin.submit(&NvmeEntry::configure(0x46_0001), &[]);
    // The reset waits for the read, which takes 0.5 s.
    thread::sleep(Duration::from_secs(1));
    let end = Instant::now() + Duration::from_secs(3);
    while it.admin.execute(&NvmeEntry::property(0x1c, false), &[]).result & 3 == 0 {
        assert!(Instant::now() < end, "CC says enabled, CSTS neither ready nor failed");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Hosts over fabrics have identifiers of 128 bits.
#[test]
fn host_identifier_of_64_bits_is_refused() {
    let server = server();
    let mut it = controller(&server, "host");
    let feature = |dword, len| NvmeEntry::new(0x0a, 0).dword(10, 0x81).dword(11, dword).on_host(len);
    it.admin.execute(&feature(0, 8), &[]).is(DNR | 2);
    it.admin.execute(&feature(0, 16), &[]).is(DNR | 2);
    assert_eq!(it.admin.execute(&feature(1, 16), &[]).good(), it.host.id);
}

/// A host that gets MORE finds the reason in the error log.
#[test]
fn only_failures_of_a_controller_refer_to_its_error_log() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    for admin in
        [it.admin.execute(&NvmeEntry::identify(1, 0), &[]), it.admin.execute(&NvmeEntry::new(0x42, 0), &[])]
    {
        assert_eq!(admin.more, admin.status != 0, "{admin:x?}");
    }
    for entry in [NvmeEntry::read(1, 0, 8), NvmeEntry::new(0, 1), NvmeEntry::new(0x42, 1)] {
        let reply = queue.execute(&entry, &[]);
        assert_eq!(reply.more, reply.status != 0, "{reply:x?}");
    }
    let log = it.admin.execute(&NvmeEntry::log(1, 128), &[]).good();
    assert_eq!((log[0], log[64]), (2, 1), "an entry for each failure");
    // There is no controller yet, and so no log.
    let refused = RawController::try_connect(
        portal(&server),
        &NvmeHostName::new("host"),
        "nqn.2026-11.org.example:none",
    );
    assert!(refused.status != 0 && !refused.more, "{refused:x?}");
}

/// NSID and the first block, for commands that the target refuses at once, executes, or collects data for.
#[test]
fn error_log_shows_namespace_and_block() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    let behind = u64::from(u32::MAX) + 77;
    let ranges = NvmeEntry::new(9, 1).dword(11, 4).on_host(16);
    let beyond = [&[0; 4][..], &1u32.to_le_bytes(), &behind.to_le_bytes()].concat();
    let cases: [(NvmeEntry, &[u8], (u32, u64)); 5] = [
        (NvmeEntry::read(1, behind, 8), &[], (1, behind)),
        (NvmeEntry::write(1, behind, 8), &[3; 4096], (1, behind)),
        (NvmeEntry::read(3, 5, 8), &[], (3, 5)),
        (NvmeEntry::write(1, 6, 8).on_host(512), &[], (1, 6)),
        (ranges, &beyond, (1, 0)),
    ];
    for (count, (entry, data, place)) in cases.into_iter().enumerate() {
        let reply = queue.execute(&entry, data);
        assert!(reply.more, "the log has more about it: {reply:x?}");
        let log = it.admin.execute(&NvmeEntry::log(1, 64), &[]).good();
        let number = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!((number(0), log[8], number(16)), (count as u64 + 1, 1, place.1), "{entry:x?}");
        assert_eq!((number(12) as u16 >> 1, number(24) as u32), (reply.status, place.0), "{entry:x?}");
    }
}
