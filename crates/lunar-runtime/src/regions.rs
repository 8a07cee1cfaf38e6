//! Memory of buffers in a few large pieces that stay: what a device has to be told of once can then be used for every
//! buffer. Off until somebody asks for it; then pools cut their buffers from regions, up to their limits.
//!
//! A region is as large as the largest buffer. Within it blocks are halved and joined again (a buddy system), so that
//! what one size has given back serves another.
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
/// Where a region begins: at a huge page, if the kernel has one for it.
const ALIGN: usize = 2 << 20;
/// Sizes of blocks: a page, and each twice the one before, up to a region.
const ORDERS: usize = (REGION / PAGE).trailing_zeros() as usize + 1;

static IS_ON: AtomicBool = AtomicBool::new(false);
static REGIONS: Mutex<Regions> = Mutex::new(Regions::new());

/// Memory that stays for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its number, from 0.
    pub index: usize,
    /// Where it begins.
    pub at: NonNull<u8>,
}

// SAFETY: it only says where something is.
unsafe impl Send for Region {}

/// From now on buffers of pools are cut from regions.
pub fn enable() {
    IS_ON.store(true, Relaxed);
}

/// Buffers of pools are cut from regions.
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

    /// A block of this order; of regions there will be no more than `limit` bytes, but always one.
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

    /// A block is free again, and joined with its neighbour if that is, too.
    fn give(&mut self, mut order: usize, (index, mut first): Block) {
        while order < ORDERS - 1 && self.free[order].remove(&(index, first ^ (1 << order))) {
            first &= !(1 << order);
            order += 1;
        }
        self.free[order].insert((index, first));
    }
}

/// Pages of a region. Dropping them gives them back.
pub(crate) struct RegionPages {
    region: Region,
    /// Its first page there, and the binary logarithm of how many there are. Small: buffers are moved often.
    first: u32,
    order: u32,
}

// SAFETY: the pages are its own, as those of a box.
unsafe impl Send for RegionPages {}
// SAFETY: the same.
unsafe impl Sync for RegionPages {}

/// Two to the power of `order` pages, zeroed at first and later with whatever was in them; None if regions are not
/// used, or there is no room within `limit` bytes of them.
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
        // SAFETY: so many pages, initialized from the start, and nobody else's.
        unsafe { std::slice::from_raw_parts(self.at(), 1 << self.order) }
    }

    pub(crate) fn pages_mut(&mut self) -> &mut [BufPage] {
        // SAFETY: as for `pages`, and `&mut` sees to it that nobody looks.
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
        assert!(regions.take(ORDERS - 1, REGION).is_none(), "it is cut");
        blocks.into_iter().for_each(|(order, block)| regions.give(order, block));
        assert_eq!(regions.take(ORDERS - 1, REGION), Some((0, 0)), "it is whole again");
    }

    #[test]
    fn there_are_no_more_regions_than_the_limit_has_room_for_but_always_one() {
        let mut regions = Regions::new();
        let whole = |regions: &mut Regions, limit| regions.take(ORDERS - 1, limit).map(|(index, _)| index);
        assert_eq!(whole(&mut regions, 0), Some(0));
        assert_eq!(whole(&mut regions, 2 * REGION - 1), None);
        assert_eq!(whole(&mut regions, 2 * REGION), Some(1));
        assert_eq!(whole(&mut regions, 2 * REGION), None);
    }
}
