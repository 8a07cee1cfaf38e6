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

/// Alignment and granule of a buffer in bytes: what O_DIRECT asks for.
pub const PAGE: usize = 4096;

#[derive(Clone, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C, align(4096))]
pub(crate) struct BufPage([u8; PAGE]);

/// The memory of a buffer.
pub(crate) enum Pages {
    /// Of its own.
    Own(Vec<BufPage>),
    /// The same, of the system.
    Mapped(MappedPages),
    /// A part of a region.
    Cut(RegionPages),
}

/// Memory of this size or more is of the system, which zeroes it page by page when it is touched.
const MAPPED: usize = 2 << 20;

/// Memory of the system, which has it again when this is dropped.
pub(crate) struct MappedPages {
    at: NonNull<BufPage>,
    pages: usize,
}

#[allow(unsafe_code)]
// SAFETY: the pages are its own, as those of a box.
unsafe impl Send for MappedPages {}
#[allow(unsafe_code)]
// SAFETY: the same.
unsafe impl Sync for MappedPages {}

#[allow(unsafe_code)]
impl MappedPages {
    fn new(pages: usize) -> io::Result<MappedPages> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel finds room.
        let at = unsafe { mmap_anonymous(null_mut(), pages * PAGE, access, MapFlags::PRIVATE) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MappedPages { at, pages })
    }

    fn pages(&self) -> &[BufPage] {
        // SAFETY: so many pages, zeros from the start, and nobody else's.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.pages) }
    }

    fn pages_mut(&mut self) -> &mut [BufPage] {
        // SAFETY: as for `pages`, and `&mut` sees to it that nobody looks.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.pages) }
    }
}

#[allow(unsafe_code)]
impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody can look at it any more.
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

/// Has the allocator give back pages that nobody uses.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: it takes no pointer, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A page-aligned buffer. Derefs to its bytes. One that came from a [`Pool`](crate::Pool) goes back there.
pub struct Buf {
    /// Of a pool they are taken when they are first touched: who waits for data holds none, and few serve many, warm in
    /// the cache.
    pages: OnceCell<Pages>,
    len: usize,
    home: Option<PoolOrigin>,
}

impl Buf {
    /// A buffer of `len` zero bytes that belongs to no pool.
    pub fn zeroed(len: usize) -> Self {
        Buf { pages: pages(len).into(), len, home: None }
    }

    pub(crate) fn pooled(len: usize, home: PoolOrigin) -> Self {
        Buf { pages: OnceCell::new(), len, home: Some(home) }
    }

    /// Its bytes, none of which is touched by that.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn pages(&self) -> &Pages {
        self.pages.get_or_init(|| self.home.as_ref().map_or_else(|| pages(self.len), PoolOrigin::supply))
    }

    /// Counts what was promised ([`Pool::promise`](crate::Pool::promise)) as in use. False: there is no room in the pool
    /// now, and the buffer must not be touched.
    pub fn claim(&mut self) -> bool {
        self.home.as_mut().is_none_or(PoolOrigin::claim)
    }

    /// It came from a pool, and counts there.
    pub fn is_pooled(&self) -> bool {
        self.home.is_some()
    }

    /// Bytes that could be used without a new allocation.
    pub fn capacity(&self) -> usize {
        self.home.as_ref().map_or_else(|| self.pages().bytes_len(), PoolOrigin::bytes)
    }

    /// The region of memory that it is a part of, if it is one of a pool that cuts them from regions.
    pub fn region(&self) -> Option<Region> {
        if let Pages::Cut(cut) = self.pages() { Some(cut.region()) } else { None }
    }

    /// Shows `len` bytes of what is allocated.
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
        let pages = self.pages.get_mut().expect("they are there now");
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
        // SAFETY: same pointer, length and lifetime; the runtime and the kernel only ever write initialized
        // bytes.
        unsafe { std::slice::from_raw_parts_mut(ptr, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_zero() {
        let b = Buf::zeroed(5000);
        assert_eq!((b.len(), b.capacity()), (5000, 8192));
        assert_eq!(b.as_ptr() as usize % PAGE, 0);
        assert!(b.iter().all(|x| *x == 0));
    }

    /// Bytes of this process that lie in memory.
    fn resident() -> usize {
        let told = std::fs::read_to_string("/proc/self/statm").expect("statm");
        told.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * PAGE
    }

    #[test]
    fn a_large_buffer_takes_the_memory_that_is_touched() {
        let before = resident();
        let mut large: Vec<Buf> = (0..8).map(|_| Buf::zeroed(64 << 20)).collect();
        large.iter_mut().for_each(|buf| buf[5] = 1);
        assert!(resident() < before + (256 << 20), "{} bytes", resident() - before);
        assert_eq!((large[0][5], large[0][(64 << 20) - 1], large[0].as_ptr() as usize % PAGE), (1, 0, 0));
    }
}
