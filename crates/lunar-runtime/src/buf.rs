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
use std::sync::Arc;
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
    /// A part of a buffer that was split.
    Part(SplitPart),
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
            Pages::Part(part) => part.pages(),
        }
    }

    #[inline]
    fn pages_mut(&mut self) -> &mut [BufPage] {
        match self {
            Pages::Own(pages) => pages,
            Pages::Mapped(mapped) => mapped.pages_mut(),
            Pages::Cut(cut) => cut.pages_mut(),
            Pages::Part(part) => part.pages_mut(),
        }
    }
}

/// The memory of a buffer that was split. It returns to its pool when all parts are dropped.
struct SplitPages {
    pages: Option<Pages>,
    home: Option<PoolOrigin>,
}

impl Drop for SplitPages {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.take_back(self.pages.take());
        }
    }
}

/// Adjacent pages of a buffer that was split. No two parts overlap, and nothing else accesses these pages.
pub(crate) struct SplitPart {
    whole: Arc<SplitPages>,
    at: NonNull<BufPage>,
    pages: usize,
}

#[allow(unsafe_code)]
// SAFETY: the pages are owned exclusively, like a box.
unsafe impl Send for SplitPart {}
#[allow(unsafe_code)]
// SAFETY: as for `Send`.
unsafe impl Sync for SplitPart {}

#[allow(unsafe_code)]
impl SplitPart {
    /// All pages of a buffer.
    fn of(mut pages: Pages, home: Option<PoolOrigin>) -> SplitPart {
        let all = pages.pages_mut();
        let (at, count) = (NonNull::from(&mut *all).cast(), all.len());
        SplitPart { whole: Arc::new(SplitPages { pages: Some(pages), home }), at, pages: count }
    }

    /// The first `count` pages, and the others.
    fn split(self, count: usize) -> (SplitPart, SplitPart) {
        assert!(count <= self.pages);
        // SAFETY: `count` is within the part.
        let second = unsafe { self.at.add(count) };
        let rest = SplitPart { whole: self.whole.clone(), at: second, pages: self.pages - count };
        (SplitPart { pages: count, ..self }, rest)
    }

    fn pages(&self) -> &[BufPage] {
        // SAFETY: the part has this many pages, which are initialized and owned exclusively. `whole` keeps them.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.pages) }
    }

    fn pages_mut(&mut self) -> &mut [BufPage] {
        // SAFETY: as for `pages`, and `&mut` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.pages) }
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
        match self.pages.get() {
            Some(Pages::Part(part)) => part.whole.home.is_some(),
            _ => self.home.is_some(),
        }
    }

    /// The allocated bytes.
    pub fn capacity(&self) -> usize {
        self.home.as_ref().map_or_else(|| self.pages().bytes_len(), PoolOrigin::bytes)
    }

    /// The region that the memory is a part of, if the pool takes its memory from regions.
    pub fn region(&self) -> Option<Region> {
        match self.pages() {
            Pages::Cut(cut) => Some(cut.region()),
            Pages::Part(part) => match &part.whole.pages {
                Some(Pages::Cut(cut)) => Some(cut.region()),
                _ => None,
            },
            Pages::Own(_) | Pages::Mapped(_) => None,
        }
    }

    /// Sets the length, within the capacity.
    ///
    /// # Panics
    /// When `len` is above the capacity.
    pub fn set_visible(&mut self, len: usize) {
        assert!(len <= self.capacity());
        self.len = len;
    }

    /// Splits off the whole pages among the first `len` bytes, without a copy. The memory counts as in use until both
    /// buffers are dropped.
    ///
    /// # Panics
    /// When `len` is above the length.
    pub fn split_front(&mut self, len: usize) -> Buf {
        assert!(len <= self.len);
        let len = len / PAGE * PAGE;
        self.pages();
        let whole = match self.pages.take().expect("the pages were allocated above") {
            Pages::Part(part) => part,
            pages => SplitPart::of(pages, self.home.take()),
        };
        let (front, rest) = whole.split(len / PAGE);
        self.pages = Pages::Part(rest).into();
        self.len -= len;
        Buf { pages: Pages::Part(front).into(), len, home: None }
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

    #[test]
    fn split_buffer_counts_until_its_last_part_is_dropped() {
        let pool = crate::Pool::new(1 << 30);
        let mut rest = pool.try_get(5 * PAGE + 7).expect("room");
        rest.iter_mut().enumerate().for_each(|(i, b)| *b = (i / PAGE) as u8);
        let (at, used) = (rest.as_ptr() as usize, pool.used());
        let parts = [2 * PAGE, 9, PAGE + 1].map(|len| rest.split_front(len));
        let spans = parts.each_ref().map(|part| (part.as_ptr() as usize - at, part.len(), part.capacity()));
        assert_eq!(spans, [(0, 2 * PAGE, 2 * PAGE), (2 * PAGE, 0, 0), (2 * PAGE, PAGE, PAGE)]);
        assert_eq!(
            (rest.as_ptr() as usize - at, rest.len(), rest.capacity()),
            (3 * PAGE, 2 * PAGE + 7, 5 * PAGE)
        );
        rest.fill(9);
        assert!(parts[0][PAGE..].iter().all(|b| *b == 1) && parts[2].iter().all(|b| *b == 2));
        assert!(rest.is_pooled() && parts.iter().all(Buf::is_pooled));
        drop(rest);
        let [first, empty, last] = parts;
        std::thread::spawn(move || drop(first)).join().expect("the part is dropped");
        assert_eq!(pool.used(), used, "a part is left");
        drop([empty, last]);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn part_of_a_buffer_without_a_pool_outlives_the_rest() {
        let mut rest = Buf::copy_of(&[5; 2 * PAGE]);
        let front = rest.split_front(PAGE);
        drop(rest);
        assert!(front.iter().all(|b| *b == 5) && !front.is_pooled() && front.len() == PAGE);
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
