//! Tests of the results of requests.

use super::client::{Answer, Client};
use super::{MIB, Server, export, memory};
use lunar_block::filter::{self, FilterOp, IoCounters};
use lunar_block::{Backend, BackendInfo, BackendSpec, BufResult, LocalBoxFuture};
use lunar_nbd::server::ServerLimits;
use lunar_runtime::Buf;
use lunar_wire::be;
use lunar_wire::nbd::command::*;
use lunar_wire::nbd::command_flag::*;
use lunar_wire::nbd::{Errno, chunk};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const HOLE: u32 = 3;
const DATA: u32 = 0;

#[test]
fn written_bytes_are_read_in_both_reply_forms() {
    let server = Server::of(memory(64 * MIB));
    let pattern: Vec<u8> = (0..32 * MIB as u32).map(|i| (i / 7) as u8).collect();
    for mut client in [Client::simple(server.tcp(), "disk"), Client::structured(server.tcp(), "")] {
        for (offset, len) in [(0, 512), (512, 4096), (1024, 100 << 10), (MIB, 2 << 20), (32 * MIB, 32 << 20)]
        {
            assert_eq!(client.write_at(0, offset, &pattern[..len]), 0);
            assert!(client.read_at(offset, len) == pattern[..len], "{len} bytes at {offset}");
        }
        assert!(client.read_at(MIB, 2 << 20) == pattern[..2 << 20]);
        assert_eq!(client.write_at(FUA, 0, &[9; 512]), 0);
        assert_eq!(client.error_of(FLUSH, 0, 0, 0), 0);
        assert_eq!(client.error_of(TRIM, FUA, 0, 64 << 20), 0);
        assert_eq!(client.read_at(0, 4096), [0; 4096]);
    }
}

/// A client truncates the file in the tick of the coarse clock in which the server has read its size.
#[test]
fn write_after_truncation_never_grows_a_file() {
    let folder = interop::Folder::fresh();
    let path = |n: u32| folder.join(format!("{n}.img"));
    let disk = |n| {
        std::fs::File::create(path(n)).and_then(|file| file.set_len(MIB)).expect("a file");
        lunar_block::open(&BackendSpec::path(path(n))).expect("a disk")
    };
    let exports = (0..20).map(|n| export(&n.to_string(), disk(n))).collect();
    let server = Server::start(exports, ServerLimits::default());
    for n in 0..20 {
        let mut client = Client::simple(server.tcp(), &n.to_string());
        // Header and data are sent separately: Nagle's algorithm would delay the data by more than a tick.
        client.socket.set_nodelay(true).expect("an option");
        assert_eq!(client.write_at(0, MIB - 512, &[7; 512]), 0);
        let file = std::fs::File::options().write(true).open(path(n)).expect("a file");
        file.set_len(4096).expect("truncated");
        // An answer is valid for further receives for 100 microseconds (`lunar_runtime::Recheck`).
        let started_at = Instant::now();
        while started_at.elapsed() < Duration::from_micros(150) {
            std::hint::spin_loop();
        }
        assert_ne!(client.write_at(0, MIB - 512, &[8; 512]), 0);
        assert_eq!(file.metadata().expect("a file").len(), 4096);
        assert_eq!(client.write_at(0, 0, &[8; 512]), 0);
    }
}

#[test]
fn zeros_travel_as_holes_unless_one_chunk_is_asked_for() {
    let server = Server::of(memory(64 * MIB));
    let mut client = Client::structured(server.tcp(), "disk");
    client.write_at(0, 128 << 10, &[5; 64 << 10]);
    client.request(READ, 0, 0, 320 << 10);
    let chunks: Vec<Answer> = (0..3).map(|_| client.answer(0)).collect();
    let seen: Vec<_> = chunks.iter().map(|c| (c.chunk.as_ref().expect("a chunk").0, c.done)).collect();
    assert_eq!(seen, [(chunk::OFFSET_HOLE, false), (chunk::OFFSET_DATA, false), (chunk::OFFSET_HOLE, true)]);
    let last = &chunks[2].chunk.as_ref().expect("a chunk").1;
    assert_eq!((be::get64(last), be::get32(&last[8..])), (192 << 10, 128 << 10));
    client.request(READ, DF, 0, 320 << 10);
    let Answer { chunk: Some((chunk::OFFSET_DATA, payload)), done: true, .. } = client.answer(0) else {
        panic!("not a single data chunk")
    };
    assert_eq!(payload.len(), 8 + (320 << 10));
    client.request(READ, 0, 0, 0);
    assert_eq!(client.answer(0).chunk, Some((chunk::NONE, vec![])));
}

#[test]
fn null_disk_reads_zeros_in_both_forms() {
    let server = Server::of(
        lunar_block::open(&lunar_block::BackendSpec::sized(lunar_block::BackendKind::Null, 64 * MIB))
            .expect("a null backend"),
    );
    for mut client in [Client::simple(server.tcp(), "disk"), Client::structured(server.tcp(), "disk")] {
        for len in [512, 1 << 20, 3 << 20 | 512] {
            assert!(client.read_at(512, len).iter().all(|byte| *byte == 0));
        }
        assert_eq!(client.error_of(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 0, 512), 0);
    }
}

#[test]
fn block_status_reports_allocation_by_extent() {
    let server = Server::of(memory(64 * MIB));
    let mut client = Client::structured(server.tcp(), "disk");
    assert_eq!(client.status(0, 0, 64 << 20), [(64 << 20, HOLE)]);
    client.write_at(0, MIB, &[1; 2 << 20]);
    assert_eq!(client.status(0, 0, 64 << 20), [(1 << 20, HOLE), (2 << 20, DATA), (61 << 20, HOLE)]);
    assert_eq!(client.status(REQ_ONE, MIB, 64 << 10), [(64 << 10, DATA)]);
    assert_eq!(client.status(REQ_ONE, 0, 64 << 20), [(1 << 20, HOLE)]);
    assert_eq!(client.error_of(WRITE_ZEROES, 0, MIB, 1 << 20), 0);
    assert_eq!(client.status(0, MIB, 2 << 20), [(1 << 20, HOLE), (1 << 20, DATA)]);
    assert_eq!(client.error_of(BLOCK_STATUS, 0, 0, 0), Errno::Inval as u32);
    let mut simple = Client::simple(server.tcp(), "disk");
    assert_eq!(simple.error_of(BLOCK_STATUS, 0, 0, 512), Errno::Inval as u32);
}

#[test]
fn refused_write_is_read_past_and_the_next_request_is_served() {
    let mut disk = export("disk", memory(MIB));
    disk.block_size = 4096;
    let server = Server::start(vec![disk], ServerLimits::default());
    for mut client in [Client::simple(server.tcp(), "disk"), Client::structured(server.tcp(), "disk")] {
        let cases = [
            (MIB, 4096, Errno::NoSpc),
            (MIB - 4096, 8192, Errno::NoSpc),
            (512, 4096, Errno::Inval),
            (0, 512, Errno::Inval),
            (0, 40 << 20, Errno::NoSpc),
        ];
        for (offset, len, errno) in cases {
            assert_eq!(client.write_at(0, offset, &vec![1; len]), errno as u32, "{len} at {offset}");
        }
        assert_eq!(client.error_of(READ, 0, MIB, 4096), Errno::Inval as u32);
        assert_eq!(client.error_of(TRIM, 0, 512, 4096), Errno::Inval as u32);
        assert_eq!(client.error_of(0x77, 0, 0, 0), Errno::Inval as u32);
        assert_eq!(client.error_of(FLUSH, 1 << 9, 0, 0), Errno::Inval as u32);
        assert_eq!(client.write_at(0, 0, &[3; 4096]), 0);
        assert_eq!(client.read_at(0, 4096), [3; 4096]);
    }
}

#[test]
fn read_only_export_is_not_written() {
    let mut disk = export("disk", memory(MIB));
    disk.read_only = true;
    let server = Server::start(vec![disk], ServerLimits::default());
    let mut client = Client::simple(server.tcp(), "disk");
    assert_eq!(client.write_at(0, 0, &[1; 512]), Errno::Perm as u32);
    assert_eq!(client.error_of(TRIM, 0, 0, 512), Errno::Perm as u32);
    assert_eq!(client.error_of(WRITE_ZEROES, 0, 0, 512), Errno::Perm as u32);
    assert_eq!(client.read_at(0, 512), [0; 512]);
}

#[test]
fn slow_request_blocks_no_other() {
    let slow = filter::delay(memory(MIB), Duration::from_millis(300), Duration::from_millis(100));
    let server = Server::of(slow);
    let mut client = Client::structured(server.tcp(), "disk");
    let read = client.request(READ, 0, 0, 512);
    let write = client.request(WRITE, 0, 4096, 512);
    client.write(&[1; 512]);
    let flush = client.request(FLUSH, 0, 0, 0);
    let order: Vec<u64> = (0..3).map(|_| client.answer(0).cookie).collect();
    assert_eq!(order, [flush, write, read]);
}

/// A backend whose first write takes 500 ms.
struct Stalled {
    medium: Arc<dyn Backend>,
    began: AtomicBool,
    landed: AtomicBool,
}

impl Stalled {
    fn on(medium: Arc<dyn Backend>) -> Stalled {
        Stalled { medium, began: AtomicBool::new(false), landed: AtomicBool::new(false) }
    }
}

impl Backend for Stalled {
    fn info(&self) -> BackendInfo {
        self.medium.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.medium.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let is_first = !self.began.swap(true, SeqCst);
            if is_first {
                compio::time::sleep(Duration::from_millis(500)).await;
            }
            let finished = self.medium.write(offset, buf, fua).await;
            self.landed.fetch_or(is_first, SeqCst);
            finished
        })
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.medium.flush()
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.medium.unmap(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.medium.write_zeroes(offset, len, unmap)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.medium.describe()
    }
}

/// Returns a server whose only client has gone during a write of ones.
fn bereft() -> (Arc<Stalled>, Server, Arc<IoCounters>) {
    let (medium, counters) = filter::stats(memory(MIB));
    let disk = Arc::new(Stalled::on(medium));
    let server = Server::of(disk.clone());
    let mut client = Client::simple(server.tcp(), "disk");
    client.request(WRITE, 0, 0, 512);
    client.write(&[1; 512]);
    wait_for(&disk.began);
    (disk, server, counters)
}

fn wait_for(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

#[test]
fn late_write_of_a_gone_client_undoes_no_newer_write() {
    let (disk, server, _) = bereft();
    let mut client = Client::simple(server.tcp(), "disk");
    assert_eq!(client.write_at(0, 0, &[2; 512]), 0);
    wait_for(&disk.landed);
    assert_eq!(client.read_at(0, 512), [2; 512]);
}

#[test]
fn queued_requests_of_a_gone_client_are_dropped() {
    let (_disk, server, counters) = bereft();
    let mut client = Client::simple(server.tcp(), "disk");
    client.request(WRITE, 0, 0, 512);
    client.write(&[2; 512]);
    drop(client);
    let mut client = Client::simple(server.tcp(), "disk");
    assert_eq!(client.write_at(0, 0, &[3; 512]), 0);
    assert_eq!(client.read_at(0, 512), [3; 512]);
    assert_eq!(counters.total().writes, 2);
}

/// The server has not noticed that the client has gone, since it receives nothing while the maximum number of
/// requests is in flight.
#[test]
fn late_write_of_a_gone_busy_client_undoes_no_newer_write() {
    let disk = Arc::new(Stalled::on(memory(MIB)));
    let server = Server::start(
        vec![export("disk", disk.clone())],
        ServerLimits { requests: 1, ..ServerLimits::default() },
    );
    let mut client = Client::simple(server.tcp(), "disk");
    for _ in 0..3 {
        client.request(WRITE, 0, 0, 512);
        client.write(&[1; 512]);
    }
    wait_for(&disk.began);
    drop(client);
    let mut client = Client::simple(server.tcp(), "disk");
    assert_eq!(client.write_at(0, 0, &[2; 512]), 0);
    wait_for(&disk.landed);
    assert_eq!(client.read_at(0, 512), [2; 512]);
}

/// Its READs wait for buffers, which are all in use by replies that the client does not receive.
#[test]
fn reads_of_a_client_that_has_gone_keep_no_other_waiting() {
    let server = Server::of(memory(64 * MIB));
    let mut stuck = Client::simple(server.tcp(), "disk");
    for _ in 0..4 {
        stuck.request(READ, 0, 0, 32 << 20);
    }
    stuck.half_close();
    std::thread::sleep(Duration::from_millis(200));
    let mut client = Client::simple(server.tcp(), "disk");
    assert_eq!(client.write_at(0, 0, &[2; 512]), 0);
}

#[test]
fn many_requests_are_in_flight_and_each_is_answered_once() {
    let slow = filter::delay(memory(MIB), Duration::from_millis(5), Duration::from_millis(1));
    let server =
        Server::start(vec![export("disk", slow)], ServerLimits { requests: 7, ..ServerLimits::default() });
    let mut client = Client::simple(server.tcp(), "disk");
    let mut sent: Vec<u64> = (0..500).map(|i| client.request(READ, 0, i % 100 * 512, 512)).collect();
    let mut seen: Vec<u64> = sent.iter().map(|_| client.answer(512).cookie).collect();
    sent.sort_unstable();
    seen.sort_unstable();
    assert_eq!(sent, seen);
}

#[test]
fn backend_error_is_reported_and_the_connection_continues() {
    let server = Server::of(filter::error(memory(MIB), FilterOp::Read, 1.0, Some(1)));
    for mut client in [Client::simple(server.tcp(), "disk"), Client::structured(server.tcp(), "disk")] {
        assert_eq!(client.error_of(READ, 0, 0, 512), Errno::Io as u32);
        assert_eq!(client.write_at(0, 0, &[1; 512]), 0);
    }
}

#[test]
fn fast_zero_is_refused_where_it_would_be_none() {
    let server = Server::of(memory(MIB));
    let mut client = Client::simple(server.tcp(), "disk");
    assert_eq!(client.error_of(WRITE_ZEROES, FAST_ZERO, 0, 4096), 0);
    assert_eq!(client.error_of(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 0, 4096), Errno::NotSup as u32);
    assert_eq!(client.error_of(WRITE_ZEROES, NO_HOLE, 0, 4096), 0);
    assert_eq!(client.error_of(CACHE, 0, 0, 4096), 0);
}

#[test]
fn fua_reaches_the_backend() {
    let (disk, counters) = filter::stats(memory(MIB));
    let server = Server::of(disk);
    let mut client = Client::simple(server.tcp(), "disk");
    let flushes = || counters.total().flushes;
    assert_eq!(client.error_of(WRITE_ZEROES, 0, 0, 4096), 0);
    assert_eq!(flushes(), 0);
    assert_eq!(client.error_of(WRITE_ZEROES, FUA, 0, 4096), 0);
    assert_eq!(flushes(), 1);
    assert_eq!(client.error_of(TRIM, FUA, 0, 4096), 0);
    assert_eq!(flushes(), 2);
    assert_eq!(client.error_of(FLUSH, 0, 0, 0), 0);
    assert_eq!(flushes(), 3);
}
