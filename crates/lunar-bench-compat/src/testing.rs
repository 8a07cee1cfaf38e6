//! What tests of faces use.

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

/// A disk that others know by an URL, as long as this is there.
pub struct NbdServer {
    pub url: String,
    server: Option<server::NbdServer>,
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        // compio ends the process when one of its tasks is woken by a thread that panics, as that of a test may.
        let server = self.server.take();
        _ = std::thread::spawn(move || drop(server)).join();
    }
}

/// Serves a disk by NBD: no kernel stands before it.
pub fn served(disk: Arc<dyn Backend>) -> NbdServer {
    let description = String::new();
    let export =
        NbdExport { name: "disk".into(), backend: disk, block_size: 512, read_only: false, description };
    let listen = [ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"))];
    let cores = Arc::new(Cores::one().expect("an event loop"));
    let server = server::serve(&listen, vec![export], cores, ServerLimits::default()).expect("served");
    NbdServer { url: server.addresses()[0].url("disk"), server: Some(server) }
}

/// Whether the page cache holds the last byte of a file: whether to read it asks the disk for nothing. To ask brings it
/// there. (RWF_NOWAIT does not tell: it begins to read, and a fast disk has answered before the kernel looks.)
pub fn is_cached(path: &str) -> bool {
    let file = File::open(path).expect("a file");
    let end = file.metadata().expect("a length").len() - 1;
    let before = read_by_this_thread_bytes();
    file.read_exact_at(&mut [0], end).expect("readable");
    read_by_this_thread_bytes() == before
}

/// What this thread has had the kernel fetch from disks.
fn read_by_this_thread_bytes() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").expect("counted");
    let of = counts.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("a line of reads");
    of.parse().expect("a number")
}

/// Drops what the page cache holds of a file; false, and `skipped`, where files are nowhere else.
pub fn dropped(path: &str) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    let file = File::open(path).expect("a file");
    if fstatfs(&file).expect("a file system").f_type == TMPFS {
        println!("skipped: needs a disk below {path} (set TMPDIR)");
        return false;
    }
    // What is on its way would not be dropped, nor what is not on the disk yet.
    std::fs::read(path).expect("readable");
    file.sync_all().expect("a disk");
    fadvise(&file, 0, None, Advice::DontNeed).expect("dropped");
    true
}

/// Runs a face; gives its document and what it printed.
pub fn play(face: impl FnOnce(RunContext) -> Result<Document, Error>) -> Result<(Document, String), Error> {
    let (mut out, handle) = (Vec::new(), RunHandle::default());
    let document = face(RunContext { handle: &handle, out: &mut out })?;
    Ok((document, String::from_utf8(out).expect("text")))
}

/// A file of zeros in a folder of its own, removed on drop.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn folder() -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("lunar-face-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        TempDir(dir)
    }

    /// The path of a file of this length, as text.
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

/// A text in which every number with a point, and every date, is `#`: what a run measured.
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
