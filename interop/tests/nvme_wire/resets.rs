//! Resets and shutdowns of hosts that write CC again, or several changes at once, before the first one is over.

use super::{queue, read, server};
use interop::nvme::{NvmeEntry, NvmeFrame, RawController, pdu};
use interop::raw::patience;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// CC: disabled, enabled, enabled with a normal or an abrupt shutdown, and disabled with a shutdown.
const OFF: u32 = 0x46_0000;
const ON: u32 = 0x46_0001;
const SHUTDOWN: u32 = 0x46_4001;
const ABRUPT: u32 = 0x46_8001;
const OFF_AND_SHUTDOWN: u32 = 0x46_4000;

/// Waits until these bits of CSTS have this value.
fn status_becomes(it: &mut RawController, mask: u64, value: u64) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let status = it.admin.execute(&NvmeEntry::property(0x1c, false), &[]).result;
        if status & mask == value {
            return;
        }
        assert!(Instant::now() < end, "CSTS {status:#x}, and not {value:#x}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The shutdown waits for a read of 0.5 s.
#[test]
fn shutdown_that_is_written_again_completes() {
    for again in [SHUTDOWN, ABRUPT] {
        let server = server();
        let (mut it, mut queue) = queue(&server, "host");
        queue.submit(&NvmeEntry::read(2, 0, 1), &[]);
        read(&mut queue, 0, 1);
        for value in [SHUTDOWN, again] {
            it.admin.execute(&NvmeEntry::configure(value), &[]).good();
        }
        status_becomes(&mut it, 0xc, 8);
    }
}

#[test]
fn abort_completes_when_cc_is_written_again() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    let id = queue.submit(&NvmeEntry::read(2, 0, 1), &[]);
    read(&mut queue, 0, 1);
    let abort = it.admin.submit(&NvmeEntry::new(8, 0).dword(10, u32::from(id) << 16 | 1), &[]);
    it.admin.execute(&NvmeEntry::configure(ON), &[]).good();
    it.admin.collect(abort, &[]).is(0);
}

#[test]
fn reset_with_a_shutdown_ends_the_controller() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    it.admin.execute(&NvmeEntry::configure(OFF_AND_SHUTDOWN), &[]).good();
    queue.expect_close(patience());
    status_becomes(&mut it, 1, 0);
    it.enable();
    read(&mut it.queue(1), 0, 1);
}

/// Each change waits for a read of 0.5 s.
#[test]
fn many_changes_of_cc_cost_no_memory() {
    const ROUNDS: usize = 100_000;
    for (first, second) in [(SHUTDOWN, ON), (OFF, ON)] {
        let server = server();
        let (mut it, mut queue) = queue(&server, "host");
        let mut bytes = Vec::new();
        for value in [first, second].into_iter().cycle().take(2 * ROUNDS) {
            bytes.extend(it.admin.encode(&NvmeFrame::command(&NvmeEntry::configure(value).id(7), &[])));
        }
        let before = server.rss_kib();
        queue.submit(&NvmeEntry::read(2, 0, 1), &[]);
        read(&mut queue, 0, 1);
        let mut sender = it.admin.stream.try_clone().expect("a second handle");
        let most = thread::scope(|scope| {
            scope.spawn(move || sender.write_all(&bytes).expect("the connection stays"));
            let mut most = 0;
            for count in 0..2 * ROUNDS {
                assert_eq!(it.admin.recv().kind(), pdu::RESPONSE);
                if count % 1000 == 0 {
                    most = most.max(server.rss_kib());
                }
            }
            most
        });
        println!("{before} KiB before, {most} KiB");
        assert!(most < before + (16 << 10), "CC {first:#x}: {before} KiB before, {most} KiB");
        it.admin.execute(&NvmeEntry::configure(OFF), &[]).good();
        status_becomes(&mut it, 0xf, 0);
        it.enable();
        read(&mut it.queue(1), 0, 1);
    }
}
