//! A disk for tests of this crate and of the crates above it.

use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_runtime::{Buf, Cores};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Runs a future on a core to its end.
pub fn run_on_core<W: UnitFuture + 'static>(work: impl FnOnce() -> W + Send + 'static) {
    Cores::one().expect("a core").wait(0, work).expect("the core runs");
}

/// A future without a value.
pub trait UnitFuture: std::future::Future<Output = ()> {}
impl<F: std::future::Future<Output = ()>> UnitFuture for F {}

/// A disk in memory that records its requests.
pub struct RecordingDisk {
    bytes: Mutex<Vec<u8>>,
    reads: Mutex<Vec<(u64, usize)>>,
    writes: Mutex<Vec<(u64, usize)>>,
    /// The number of writes with FUA.
    fua: AtomicUsize,
    flushes: AtomicUsize,
    /// The duration of a flush.
    flush_ms: AtomicU64,
    /// Reads of this range fail.
    bad: Mutex<Range<u64>>,
    now: AtomicUsize,
    max: AtomicUsize,
}

impl RecordingDisk {
    pub fn new(capacity: usize) -> Arc<RecordingDisk> {
        Arc::new(RecordingDisk {
            bytes: Mutex::new(vec![0; capacity]),
            reads: Mutex::default(),
            writes: Mutex::default(),
            fua: AtomicUsize::new(0),
            flushes: AtomicUsize::new(0),
            flush_ms: AtomicU64::new(0),
            bad: Mutex::default(),
            now: AtomicUsize::new(0),
            max: AtomicUsize::new(0),
        })
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().expect("not poisoned").clone()
    }

    pub fn set(&self, bytes: &[u8]) {
        self.bytes.lock().expect("not poisoned")[..bytes.len()].copy_from_slice(bytes);
    }

    pub fn reads(&self) -> Vec<(u64, usize)> {
        self.reads.lock().expect("not poisoned").clone()
    }

    pub fn writes(&self) -> Vec<(u64, usize)> {
        self.writes.lock().expect("not poisoned").clone()
    }

    pub fn stable_writes(&self) -> usize {
        self.fua.load(Ordering::Relaxed)
    }

    pub fn flush_in(&self, ms: u64) {
        self.flush_ms.store(ms, Ordering::Relaxed);
    }

    pub fn spoil(&self, bytes: Range<u64>) {
        *self.bad.lock().expect("not poisoned") = bytes;
    }

    fn is_bad(&self, offset: u64, len: usize) -> bool {
        let bad = self.bad.lock().expect("not poisoned");
        bad.start < offset + len as u64 && offset < bad.end
    }

    pub fn flushes(&self) -> usize {
        self.flushes.load(Ordering::Relaxed)
    }

    pub fn max_in_flight(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    async fn take_a_moment(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.max.fetch_max(now, Ordering::Relaxed);
        compio::time::sleep(Duration::from_millis(2)).await;
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Backend for RecordingDisk {
    fn info(&self) -> BackendInfo {
        let capacity = self.bytes.lock().expect("not poisoned").len() as u64;
        BackendInfo {
            capacity,
            read_only: false,
            unmap: false,
            null: false,
            remote: false,
            write_through: false,
        }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            self.reads.lock().expect("not poisoned").push((offset, buf.len()));
            self.take_a_moment().await;
            if self.is_bad(offset, buf.len()) {
                return (Err(io::Error::other("a scratch")), buf);
            }
            let bytes = self.bytes.lock().expect("not poisoned");
            let Some(there) = bytes.get(offset as usize..offset as usize + buf.len()) else {
                return (Err(io::Error::other("behind the end")), buf);
            };
            buf.copy_from_slice(there);
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            self.fua.fetch_add(usize::from(fua), Ordering::Relaxed);
            self.writes.lock().expect("not poisoned").push((offset, buf.len()));
            self.take_a_moment().await;
            let mut bytes = self.bytes.lock().expect("not poisoned");
            let Some(there) = bytes.get_mut(offset as usize..offset as usize + buf.len()) else {
                return (Err(io::Error::other("behind the end")), buf);
            };
            there.copy_from_slice(&buf);
            (Ok(()), buf)
        })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let pause = Duration::from_millis(self.flush_ms.load(Ordering::Relaxed));
        Box::pin(async move {
            compio::time::sleep(pause).await;
            Ok(())
        })
    }

    fn unmap(&self, _offset: u64, _len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}
