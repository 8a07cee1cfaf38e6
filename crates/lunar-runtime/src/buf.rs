//! Buffers for I/O: page-aligned, initialized from the start, owned by the operation that uses them.

use crate::pool::PoolOrigin;
use crate::regions::{Region, RegionPages};
use compio::buf::{IoBuf, IoBufMut, SetLen};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::cell::OnceCell;
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use zerocopy::{FromZeros, IntoBytes};

/// Alignment and size granularity of a buffer in bytes, as O_DIRECT requires.
pub const PAGE: usize = 4096;

#[derive(Clone, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C, align(4096))]
pub(crate) struct BufPage([u8; PAGE]);

/// The memory of a buffer.
pub(crate) enum Pages {
    /// Allocated for this buffer.
    Own(Vec<BufPage>),
    /// Mapped for this buffer.
    Mapped(MappedPages),
    /// A part of a region.
    Cut(RegionPages),
}

/// A buffer of this size or more is mapped: the kernel zeroes each page when it is first touched.
const MAPPED: usize = 2 << 20;

/// An anonymous mapping, unmapped on drop.
pub(crate) struct MappedPages {
    at: NonNull<BufPage>,
    pages: usize,
}

#[allow(unsafe_code)]
// SAFETY: the mapping is owned exclusively, like a box.
unsafe impl Send for MappedPages {}
#[allow(unsafe_code)]
// SAFETY: as for `Send`.
unsafe impl Sync for MappedPages {}

#[allow(unsafe_code)]
impl MappedPages {
    fn new(pages: usize) -> io::Result<MappedPages> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; it overlaps no other memory.
        let at = unsafe { mmap_anonymous(null_mut(), pages * PAGE, access, MapFlags::PRIVATE) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MappedPages { at, pages })
    }

    fn pages(&self) -> &[BufPage] {
        // SAFETY: the mapping has this many pages, is zeroed, and is owned exclusively.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.pages) }
    }

    fn pages_mut(&mut self) -> &mut [BufPage] {
        // SAFETY: as for `pages`, and `&mut` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.pages) }
    }
}

#[allow(unsafe_code)]
impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference is left.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.pages * PAGE) };
    }
}

impl Pages {
    pub(crate) fn bytes_len(&self) -> usize {
        self.pages().len() * PAGE
    }

    #[inline]
    fn pages(&self) -> &[BufPage] {
        match self {
            Pages::Own(pages) => pages,
            Pages::Mapped(mapped) => mapped.pages(),
            Pages::Cut(cut) => cut.pages(),
        }
    }

    #[inline]
    fn pages_mut(&mut self) -> &mut [BufPage] {
        match self {
            Pages::Own(pages) => pages,
            Pages::Mapped(mapped) => mapped.pages_mut(),
            Pages::Cut(cut) => cut.pages_mut(),
        }
    }
}

/// Zeroed pages that hold `len` bytes.
pub(crate) fn pages(len: usize) -> Pages {
    if len >= MAPPED {
        return Pages::Mapped(MappedPages::new(len.div_ceil(PAGE)).expect("memory for a buffer"));
    }
    Pages::Own(BufPage::new_vec_zeroed(len.div_ceil(PAGE)).expect("memory for a buffer"))
}

/// Returns unused pages of the allocator to the kernel.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: it takes no pointer and locks what it accesses.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A page-aligned buffer. Derefs to its bytes. A pooled buffer returns its memory to its [`Pool`](crate::Pool) on
/// drop.
pub struct Buf {
    /// A pooled buffer takes its pages when it is first touched. A buffer that waits for data holds none, so few
    /// pages serve many buffers and stay warm in the cache.
    pages: OnceCell<Pages>,
    len: usize,
    home: Option<PoolOrigin>,
}

impl Buf {
    /// A buffer of `len` zero bytes that belongs to no pool.
    pub fn zeroed(len: usize) -> Self {
        Buf { pages: pages(len).into(), len, home: None }
    }

    /// A buffer with a copy of these bytes that belongs to no pool.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Buf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    pub(crate) fn pooled(len: usize, home: PoolOrigin) -> Self {
        Buf { pages: OnceCell::new(), len, home: Some(home) }
    }

    /// The length in bytes. Does not touch the memory.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn pages(&self) -> &Pages {
        self.pages.get_or_init(|| self.home.as_ref().map_or_else(|| pages(self.len), PoolOrigin::supply))
    }

    /// Counts a promised buffer ([`Pool::promise`](crate::Pool::promise)) as in use. False: the pool has no room now,
    /// and the buffer must not be touched.
    pub fn claim(&mut self) -> bool {
        self.home.as_mut().is_none_or(PoolOrigin::claim)
    }

    /// Whether it came from a pool and counts against its limit.
    pub fn is_pooled(&self) -> bool {
        self.home.is_some()
    }

    /// The allocated bytes.
    pub fn capacity(&self) -> usize {
        self.home.as_ref().map_or_else(|| self.pages().bytes_len(), PoolOrigin::bytes)
    }

    /// The region that the memory is a part of, if the pool takes its memory from regions.
    pub fn region(&self) -> Option<Region> {
        if let Pages::Cut(cut) = self.pages() { Some(cut.region()) } else { None }
    }

    /// Sets the length, within the capacity.
    ///
    /// # Panics
    /// When `len` is above the capacity.
    pub fn set_visible(&mut self, len: usize) {
        assert!(len <= self.capacity());
        self.len = len;
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.take_back(self.pages.take());
        }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf of {} bytes", self.len)
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.pages().pages().as_bytes()[..self.len]
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.pages();
        let pages = self.pages.get_mut().expect("the pages were allocated above");
        &mut pages.pages_mut().as_mut_bytes()[..self.len]
    }
}

impl IoBuf for Buf {
    fn as_init(&self) -> &[u8] {
        self
    }
}

impl SetLen for Buf {
    #[allow(unsafe_code)]
    // SAFETY: every byte of a Buf is initialized from the start, so any length within the capacity is valid.
    unsafe fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.len);
    }
}

impl IoBufMut for Buf {
    #[allow(unsafe_code)]
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: &mut [u8] = self;
        let (ptr, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: same pointer, length and lifetime; the event loop and the kernel write only initialized bytes.
        unsafe { std::slice::from_raw_parts_mut(ptr, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_aligned_and_zero() {
        let b = Buf::zeroed(5000);
        assert_eq!((b.len(), b.capacity()), (5000, 8192));
        assert_eq!(b.as_ptr() as usize % PAGE, 0);
        assert!(b.iter().all(|x| *x == 0));
    }

    /// Resident memory of this process in bytes.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
        statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * PAGE
    }

    #[test]
    fn large_buffer_takes_the_memory_that_is_touched() {
        let before = resident();
        let mut large: Vec<Buf> = (0..8).map(|_| Buf::zeroed(64 << 20)).collect();
        large.iter_mut().for_each(|buf| buf[5] = 1);
        assert!(resident() < before + (256 << 20), "{} bytes", resident() - before);
        assert_eq!((large[0][5], large[0][(64 << 20) - 1], large[0].as_ptr() as usize % PAGE), (1, 0, 0));
    }
}
