//! References to pages of the page cache.

use super::*;
use lunar_runtime::piped_bytes::PipedPart;

const LEN: usize = 1 << 20;

/// A file whose first half was written, and is in the page cache. The second half was never read.
fn half_cached(name: &str, zero_copy: bool) -> (FileBackend, Vec<u8>, std::path::PathBuf) {
    let path = std::env::temp_dir().join(format!("lunar-pages-{name}-{}", std::process::id()));
    let content: Vec<u8> = (0..LEN / 2).map(|at| (at >> 9) as u8 ^ at as u8).collect();
    std::fs::write(&path, &content).expect("a file");
    std::fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(LEN as u64))
        .expect("longer");
    let spec = BackendSpec { zero_copy, ..BackendSpec::path(&path) };
    (FileBackend::open(&spec).expect("a file"), content, path)
}

fn bytes(pages: PipedBytes) -> Vec<u8> {
    PipedPart::from(pages).copy().expect("pages")
}

#[test]
fn cached_pages_have_the_bytes_of_the_range() {
    let (file, content, path) = half_cached("bytes", true);
    for (offset, len) in [(0, LEN / 2), (512, 65_536), (4096, 4096), (1536, 100_000)] {
        let pages = file.cached_pages(offset as u64, len).expect("they are cached");
        assert!(bytes(pages) == content[offset..offset + len], "{len} bytes at {offset}");
    }
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn range_that_is_not_cached_has_no_pages() {
    let (file, _, path) = half_cached("cold", true);
    let half = LEN as u64 / 2;
    assert!(!file.misses.is_recent());
    assert!(file.cached_pages(half, 65_536).is_none());
    assert!(file.misses.is_recent(), "the next ranges are probed at more places");
    assert!(file.cached_pages(half - 4096, 8192).is_none(), "one page is missing");
    assert!(file.cached_pages(half - 4096, 4096).is_some());
    assert!(file.cached_pages(LEN as u64 - 4096, 8192).is_none(), "beyond the end");
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn pages_need_zero_copy_and_the_page_cache() {
    let (file, _, path) = half_cached("off", false);
    assert!(file.cached_pages(0, 65_536).is_none());
    drop(file);
    let direct = BackendSpec { zero_copy: true, direct: true, ..BackendSpec::path(&path) };
    // A file system without O_DIRECT cannot have such a disk at all.
    if let Ok(file) = FileBackend::open(&direct) {
        assert!(file.cached_pages(0, 65_536).is_none());
    }
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn file_system_without_nowait_gives_no_pages() {
    let (file, _, path) = half_cached("waits", true);
    assert!(file.cached_pages(0, 65_536).is_some());
    file.can.try_read.store(false, Relaxed);
    assert!(file.cached_pages(0, 65_536).is_none(), "taking them could wait");
    std::fs::remove_file(path).expect("a file");
}
