//! Reads whose data are in a pipe.

use super::client::Client;
use super::{MIB, Server, export, memory};
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture, PipedResult};
use lunar_nbd::server::ServerLimits;
use lunar_runtime::{Buf, PipedBytes};
use lunar_wire::nbd::chunk;
use lunar_wire::nbd::command::*;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const KIB: usize = 1 << 10;

/// A disk that passes data in pipes, after this many reads have begun.
struct PipedDisk {
    medium: Arc<dyn Backend>,
    waits_for: usize,
    begun: AtomicUsize,
    piped: AtomicUsize,
}

impl PipedDisk {
    fn new(waits_for: usize) -> Arc<PipedDisk> {
        let (begun, piped) = Default::default();
        Arc::new(PipedDisk { medium: memory(16 * MIB), waits_for, begun, piped })
    }
}

impl Backend for PipedDisk {
    fn info(&self) -> BackendInfo {
        self.medium.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.medium.read(offset, buf)
    }
    fn read_piped(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, PipedResult> {
        Box::pin(async move {
            self.begun.fetch_add(1, SeqCst);
            while self.begun.load(SeqCst) < self.waits_for {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
            let (result, buf) = self.medium.read(offset, buf).await;
            if offset == 0 {
                return (Err(io::Error::other("the first block is bad")), buf);
            }
            let piped =
                PipedBytes::empty().and_then(|mut piped| (piped.push(&buf) == buf.len()).then_some(piped));
            self.piped.fetch_add(usize::from(piped.is_some()), SeqCst);
            match piped {
                Some(piped) => (result.map(|()| Some(piped)), Buf::zeroed(buf.len())),
                None => (result.map(|()| None), buf),
            }
        })
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.medium.write(offset, buf, fua)
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

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8).collect()
}

#[test]
fn data_in_a_pipe_are_sent_in_both_reply_forms() {
    let disk = PipedDisk::new(0);
    let server = Server::of(disk.clone());
    let data = pattern(2 << 20);
    for mut client in [Client::simple(server.tcp(), "disk"), Client::structured(server.tcp(), "disk")] {
        assert_eq!(client.write_at(0, MIB, &data), 0);
        for (offset, len) in [(0, 128 * KIB), (512, 256 * KIB), (4096, 300 * KIB), (0, 1 << 20), (0, 2 << 20)]
        {
            assert!(client.read_at(MIB + offset as u64, len) == data[offset..offset + len], "{len} bytes");
        }
        assert_ne!(client.error_of(READ, 0, 0, 256 << 10), 0);
        assert!(client.read_at(MIB, 64 * KIB) == data[..64 * KIB]);
    }
    assert_eq!(disk.piped.load(SeqCst), 2 * 4, "2 MiB do not fit in a pipe");
}

#[test]
fn data_in_a_pipe_are_one_chunk() {
    let server = Server::of(PipedDisk::new(0));
    let mut client = Client::structured(server.tcp(), "disk");
    client.request(READ, 0, MIB, 256 << 10);
    let answer = client.answer(0);
    let (kind, payload) = answer.chunk.expect("a chunk");
    assert_eq!((kind, payload.len(), answer.done), (chunk::OFFSET_DATA, 8 + 256 * KIB, true));
}

/// All reads hold their data before the client receives the first reply.
#[test]
fn client_that_reads_late_gets_data_of_more_reads_than_pipes() {
    const READS: usize = 100;
    let disk = PipedDisk::new(READS);
    let limits = ServerLimits { requests: READS, ..ServerLimits::default() };
    let server = Server::start(vec![export("disk", disk.clone())], limits);
    let data = pattern(READS * 1024 + 128 * KIB);
    let mut client = Client::simple(server.tcp(), "disk");
    assert_eq!(client.write_at(0, MIB, &data), 0);
    let place = |n: usize| n * 1024;
    let cookies: Vec<u64> =
        (0..READS).map(|n| client.request(READ, 0, MIB + place(n) as u64, 128 << 10)).collect();
    while disk.begun.load(SeqCst) < READS {
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..READS {
        let answer = client.answer(0);
        let n = cookies.iter().position(|cookie| *cookie == answer.cookie).expect("a request");
        assert!(client.read(128 * KIB) == data[place(n)..place(n) + 128 * KIB], "read {n}");
    }
    let piped = disk.piped.load(SeqCst);
    assert!((1..READS).contains(&piped), "{piped} reads had a pipe");
    // A client that goes with data in pipes takes none of them away for good.
    (0..READS).for_each(|n| _ = client.request(READ, 0, MIB + place(n) as u64, 128 << 10));
    drop(client);
    let mut client = Client::simple(server.tcp(), "disk");
    assert!(client.read_at(MIB, 128 * KIB) == data[..128 * KIB]);
}
