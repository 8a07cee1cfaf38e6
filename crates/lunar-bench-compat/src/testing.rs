//! Helpers for tests of emulated tools.

use crate::RunContext;
use lunar_bench::{Document, Error, RunHandle};
use lunar_block::Backend;
use lunar_nbd::server::{self, ListenAddress, NbdExport, ServerLimits};
use lunar_runtime::Cores;
use rustix::fs::{Advice, fadvise, fstatfs};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An NBD server for a disk; it stops on drop.
pub struct NbdServer {
    pub url: String,
    server: Option<server::NbdServer>,
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        // compio aborts the process if a panicking thread wakes one of its tasks, and a test may panic.
        let server = self.server.take();
        _ = std::thread::spawn(move || drop(server)).join();
    }
}

/// Serves a disk over NBD, so that no kernel block device is involved.
pub fn served(disk: Arc<dyn Backend>) -> NbdServer {
    let description = String::new();
    let export =
        NbdExport { name: "disk".into(), backend: disk, block_size: 512, read_only: false, description };
    let listen = [ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"))];
    let cores = Arc::new(Cores::one().expect("an event loop"));
    let server = server::serve(&listen, vec![export], cores, ServerLimits::default()).expect("served");
    NbdServer { url: server.addresses()[0].url("disk"), server: Some(server) }
}

/// Whether the last byte of a file is in the page cache, judged by whether reading it reaches the disk. The
/// check itself brings it there. RWF_NOWAIT is not reliable: it starts the read, and a fast disk completes it
/// before the kernel looks.
pub fn is_cached(path: &str) -> bool {
    let file = File::open(path).expect("a file");
    let end = file.metadata().expect("a length").len() - 1;
    let before = read_by_this_thread_bytes();
    file.read_exact_at(&mut [0], end).expect("readable");
    read_by_this_thread_bytes() == before
}

/// Bytes that the kernel read from disks for this thread.
fn read_by_this_thread_bytes() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").expect("counted");
    let of = counts.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("a line of reads");
    of.parse().expect("a number")
}

/// Drops a file from the page cache. Returns false, and prints `skipped`, if its file system is in memory.
pub fn dropped(path: &str) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    let file = File::open(path).expect("a file");
    if fstatfs(&file).expect("a file system").f_type == TMPFS {
        println!("skipped: needs a disk below {path} (set TMPDIR)");
        return false;
    }
    // Dirty pages cannot be dropped.
    std::fs::read(path).expect("readable");
    file.sync_all().expect("a disk");
    fadvise(&file, 0, None, Advice::DontNeed).expect("dropped");
    true
}

/// Runs an emulated tool; returns its document and output.
pub fn play(face: impl FnOnce(RunContext) -> Result<Document, Error>) -> Result<(Document, String), Error> {
    let (mut out, handle) = (Vec::new(), RunHandle::default());
    let document = face(RunContext { handle: &handle, out: &mut out })?;
    Ok((document, String::from_utf8(out).expect("text")))
}

/// A temporary folder for files of zeros, removed on drop.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn folder() -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("lunar-face-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        TempDir(dir)
    }

    /// Creates a file of this length; returns its path.
    pub fn file(&self, name: &str, len: u64) -> String {
        let path = self.0.join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(len)).expect("a file");
        path.to_str().expect("text").to_owned()
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").to_owned()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Replaces every date and every number with a point by `#`.
pub fn without_figures(text: &str) -> String {
    let mut shown = String::new();
    for word in text.split_inclusive(|c: char| !(c.is_ascii_digit() || ".".contains(c))) {
        let digits = word.trim_end_matches(|c: char| !(c.is_ascii_digit() || c == '.'));
        let is_figure = digits.contains('.') && digits.contains(|c: char| c.is_ascii_digit());
        shown.push_str(if is_figure && digits.trim_end_matches('.').contains('.') { "#" } else { digits });
        shown.push_str(&word[digits.len()..]);
    }
    shown
}
