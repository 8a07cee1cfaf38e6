//! Media whose path does not respond.

use super::test_target::{TestTarget, memory, on_core};
use crate::server;
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture, MissingMedium};
use lunar_runtime::Buf;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A blocked check ends after this time, so that the test fails instead of hanging.
const LIMIT: Duration = Duration::from_secs(10);

/// A memory disk, and a function that runs at each check of its path.
struct PathWatchedDisk(Arc<dyn Backend>, Box<dyn Fn() + Send + Sync>);

fn watched(look: impl Fn() + Send + Sync + 'static) -> Arc<dyn Backend> {
    Arc::new(PathWatchedDisk(memory(), Box::new(look)))
}

impl Backend for PathWatchedDisk {
    fn missing(&self) -> Option<MissingMedium> {
        (self.1)();
        None
    }

    fn info(&self) -> BackendInfo {
        self.0.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.0.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.0.write(offset, buf, fua)
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.0.describe()
    }
}

#[test]
fn blocked_path_check_blocks_no_other() {
    on_core(|| async {
        static IS_STUCK: AtomicBool = AtomicBool::new(false);
        static HAS_FAILED: AtomicBool = AtomicBool::new(false);
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let stuck = watched(move || {
            let released = released.lock().expect("one look");
            IS_STUCK.store(!HAS_FAILED.load(SeqCst), SeqCst);
            if IS_STUCK.load(SeqCst) && released.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                HAS_FAILED.store(true, SeqCst);
            }
            IS_STUCK.store(false, SeqCst);
        });
        let (looks, seen) = flume::unbounded();
        let other = watched(move || _ = looks.send(IS_STUCK.load(SeqCst)));
        let target = TestTarget::with_media([stuck, other]);
        lunar_runtime::spawn(server::refresh(target.shared.clone()));
        assert!(seen.recv_async().await.expect("a look"), "the check waited for the other path");
        drop(release);
    });
}
