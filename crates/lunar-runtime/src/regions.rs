//! A few large, permanent memory regions for pooled buffers. An RDMA device registers each region once, and every
//! buffer in it can then be used. Off until [`enable`]; from then on pools take their buffers from regions, up to
//! their limits.
//!
//! A region is as large as the largest buffer. A buddy system splits and joins its blocks, so that memory of one size
//! serves another.
#![allow(unsafe_code)]

use crate::Pool;
use crate::buf::{BufPage, PAGE};
use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a region.
pub const REGION: usize = Pool::MAX_BUFFER;
/// Alignment of a region: a huge page, if the kernel has one.
const ALIGN: usize = 2 << 20;
/// The number of block sizes: one page, then each twice the previous one, up to a region.
const ORDERS: usize = (REGION / PAGE).trailing_zeros() as usize + 1;

static IS_ON: AtomicBool = AtomicBool::new(false);
static REGIONS: Mutex<Regions> = Mutex::new(Regions::new());

/// Memory that is never freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its number, from 0.
    pub index: usize,
    /// Where it begins.
    pub at: NonNull<u8>,
}

// SAFETY: it is an address; the memory lives as long as the process.
unsafe impl Send for Region {}

/// Makes pools take new buffers from regions from now on.
pub fn enable() {
    IS_ON.store(true, Relaxed);
}

/// Whether pools take buffers from regions.
pub(crate) fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

fn regions() -> MutexGuard<'static, Regions> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block: the number of its region, and its first page there.
type Block = (usize, usize);

struct Regions {
    all: Vec<Region>,
    /// Free blocks, by order.
    free: [BTreeSet<Block>; ORDERS],
}

impl Regions {
    const fn new() -> Regions {
        Regions { all: Vec::new(), free: [const { BTreeSet::new() }; ORDERS] }
    }

    /// Takes a block of this order. All regions together have at most `limit` bytes, but at least one region exists.
    fn take(&mut self, order: usize, limit: usize) -> Option<Block> {
        let mut have = match (order..ORDERS).find(|order| !self.free[*order].is_empty()) {
            Some(order) => order,
            None => {
                self.grow(limit)?;
                ORDERS - 1
            }
        };
        let (index, first) = self.free[have].pop_first()?;
        while have > order {
            have -= 1;
            self.free[have].insert((index, first + (1 << have)));
        }
        Some((index, first))
    }

    fn grow(&mut self, limit: usize) -> Option<()> {
        if !self.all.is_empty() && (self.all.len() + 1).checked_mul(REGION)? > limit {
            return None;
        }
        let layout = Layout::from_size_align(REGION, ALIGN).ok()?;
        // SAFETY: the layout has a size. The memory is never freed.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let index = self.all.len();
        self.all.push(Region { index, at });
        self.free[ORDERS - 1].insert((index, 0));
        Some(())
    }

    /// Frees a block and joins it with its buddy while that is free.
    fn give(&mut self, mut order: usize, (index, mut first): Block) {
        while order < ORDERS - 1 && self.free[order].remove(&(index, first ^ (1 << order))) {
            first &= !(1 << order);
            order += 1;
        }
        self.free[order].insert((index, first));
    }
}

/// Pages of a region, freed on drop.
pub(crate) struct RegionPages {
    region: Region,
    /// The first page of the block in the region, and the binary logarithm of its number of pages. Small types,
    /// because buffers are moved often.
    first: u32,
    order: u32,
}

// SAFETY: the pages are owned exclusively, like a box.
unsafe impl Send for RegionPages {}
// SAFETY: as for `Send`.
unsafe impl Sync for RegionPages {}

/// 2^`order` pages of unspecified content; None if regions are off, or `limit` bytes of regions have no room.
pub(crate) fn cut(order: usize, limit: usize) -> Option<RegionPages> {
    if !is_on() || order >= ORDERS {
        return None;
    }
    let mut regions = regions();
    let (index, first) = regions.take(order, limit)?;
    Some(RegionPages { region: regions.all[index], first: first as u32, order: order as u32 })
}

impl RegionPages {
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    fn at(&self) -> *mut BufPage {
        // SAFETY: the block is within its region.
        unsafe { self.region.at.as_ptr().cast::<BufPage>().add(self.first as usize) }
    }

    pub(crate) fn pages(&self) -> &[BufPage] {
        // SAFETY: the block has this many pages, is initialized, and is owned exclusively.
        unsafe { std::slice::from_raw_parts(self.at(), 1 << self.order) }
    }

    pub(crate) fn pages_mut(&mut self) -> &mut [BufPage] {
        // SAFETY: as for `pages`, and `&mut` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.at(), 1 << self.order) }
    }
}

impl Drop for RegionPages {
    fn drop(&mut self) {
        regions().give(self.order as usize, (self.region.index, self.first as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_join_again() {
        let mut regions = Regions::new();
        let orders = [0, 3, 0, 1, 5, 2, 0, 12, 4];
        let blocks: Vec<_> = orders.map(|order| (order, regions.take(order, REGION).unwrap())).into();
        let mut spans: Vec<_> = blocks.iter().map(|(order, (_, at))| (*at, at + (1 << order))).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|two| two[0].1 <= two[1].0), "{spans:?}");
        assert!(blocks.iter().all(|(order, (_, at))| at % (1 << order) == 0));
        assert!(regions.take(ORDERS - 1, REGION).is_none(), "the region is split");
        blocks.into_iter().for_each(|(order, block)| regions.give(order, block));
        assert_eq!(regions.take(ORDERS - 1, REGION), Some((0, 0)), "the blocks have joined again");
    }

    #[test]
    fn regions_stay_within_the_limit_but_one_always_exists() {
        let mut regions = Regions::new();
        let whole = |regions: &mut Regions, limit| regions.take(ORDERS - 1, limit).map(|(index, _)| index);
        assert_eq!(whole(&mut regions, 0), Some(0));
        assert_eq!(whole(&mut regions, 2 * REGION - 1), None);
        assert_eq!(whole(&mut regions, 2 * REGION), Some(1));
        assert_eq!(whole(&mut regions, 2 * REGION), None);
    }
}
