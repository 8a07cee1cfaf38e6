//! Shared code of the tests in this directory.
#![allow(dead_code, reason = "each test takes what it needs")]

use compio::driver::{DriverType, ProactorBuilder};
use compio::runtime::{Runtime, RuntimeBuilder};
use lunar_block::{BackendKind, BackendSpec};
use lunar_runtime::Buf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A buffer with these bytes.
pub fn filled(bytes: &[u8]) -> Buf {
    Buf::copy_of(bytes)
}

/// The available runtimes: io_uring may be forbidden.
pub fn runtimes() -> Vec<Runtime> {
    let make = |kind| {
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(kind);
        let made = RuntimeBuilder::new().with_proactor(proactor).build();
        made.inspect_err(|e| println!("skipped: {kind:?}: {e}")).ok()
    };
    [DriverType::Poll, DriverType::IoUring].into_iter().filter_map(make).collect()
}

/// A file in the directory `LUNAR_TEST_FOLDER`, or else in cargo's temporary directory, removed on drop.
pub struct Scratch(pub std::path::PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}.img", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::var_os("LUNAR_TEST_FOLDER").unwrap_or(env!("CARGO_TARGET_TMPDIR").into());
        Scratch(std::path::Path::new(&folder).join(name))
    }

    /// The specification of a file of `size` bytes, which the open creates.
    pub fn spec(&self, size: u64) -> BackendSpec {
        BackendSpec { create: true, size: Some(size), kind: BackendKind::File, ..BackendSpec::path(&self.0) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
