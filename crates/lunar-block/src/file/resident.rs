//! Whether a range of a file is in the page cache (cachestat(2), since Linux 6.5).
#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// The number of cachestat(2), on all architectures except Alpha.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[derive(Default)]
#[repr(C)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether all pages with these bytes are in the page cache. The data of some may still be on the way from the device.
///
/// # Errors
/// The kernel does not support the call for this file.
pub(super) fn is_resident(file: impl AsFd, offset: u64, len: u64) -> io::Result<bool> {
    let page = rustix::param::page_size() as u64;
    let first = offset / page * page;
    let pages = (offset + len).div_ceil(page) - first / page;
    let range = CachestatRange { offset: first, len: pages * page };
    let mut stat = Cachestat::default();
    // SAFETY: the kernel reads one `struct cachestat_range` and writes one `struct cachestat`, whose layouts these
    // types have. Both live during the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_fd().as_raw_fd(), &range, &mut stat, 0) };
    match result {
        0 => Ok(stat.cached >= pages),
        _ => Err(io::Error::last_os_error()),
    }
}
