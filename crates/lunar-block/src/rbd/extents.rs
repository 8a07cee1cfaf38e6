//! The allocated ranges of an image.

use super::image::Image;
use crate::Extent;
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::ptr::null;

/// Objects that one call examines. Without the feature fast-diff, librbd asks the cluster for each.
const MAX_OBJECTS: u64 = 64;

/// Called by librbd for each range that was ever written.
///
/// # Safety
/// The argument is the list of `allocated`.
// SAFETY: the contract is above.
unsafe extern "C" fn found(offset: u64, len: usize, exists: c_int, list: *mut c_void) -> c_int {
    // SAFETY: by the contract; librbd calls this on one thread at a time, before `rbd_diff_iterate2` returns.
    let list = unsafe { &mut *list.cast::<Vec<Range<u64>>>() };
    if exists != 0 {
        list.push(offset..offset + len as u64);
    }
    0
}

/// The allocated ranges of a range, in whole objects where the image has fast-diff.
fn allocated(image: &Image, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let ((library, handle), mut list) = (image.parts(), Vec::<Range<u64>>::new());
    let (len, argument) = (range.end - range.start, (&raw mut list).cast());
    // SAFETY: the image is open, null stands for its creation, and the list outlives the call.
    let result =
        unsafe { (library.rbd_diff_iterate2)(handle, null(), range.start, len, 1, 1, found, argument) };
    image.client().checked(result)?;
    list.sort_unstable_by_key(|range| range.start);
    Ok(list)
}

/// The extents of a range, from its begin on, at most `max`. It may wait for the cluster.
pub fn extents(image: &Image, range: Range<u64>, max: usize) -> io::Result<Vec<Extent>> {
    image.client().admit()?;
    let limit = image.layout.object_bytes.saturating_mul(MAX_OBJECTS);
    let range = range.start..range.end.min(range.start.saturating_add(limit));
    Ok(cover(&range, allocated(image, &range)?, max))
}

/// The range as extents: those of the sorted list are mapped, and the others are not.
fn cover(range: &Range<u64>, mapped: Vec<Range<u64>>, max: usize) -> Vec<Extent> {
    let (mut at, mut all) = (range.start, Vec::new());
    let mut push = |until: u64, mapped: bool| {
        if until > at {
            all.push(Extent { offset: at, len: until - at, mapped });
            at = until;
        }
    };
    for part in mapped {
        push(part.start.min(range.end), false);
        push(part.end.min(range.end), true);
    }
    push(range.end, false);
    all.truncate(max);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_cover_the_range_without_a_gap() {
        let shown = |range: Range<u64>, mapped: &[Range<u64>], max| -> Vec<(u64, u64, bool)> {
            cover(&range, mapped.to_vec(), max).iter().map(|e| (e.offset, e.len, e.mapped)).collect()
        };
        assert_eq!(shown(10..50, &[], 9), [(10, 40, false)]);
        assert_eq!(shown(10..50, &[0..20, 30..60], 9), [(10, 10, true), (20, 10, false), (30, 20, true)]);
        assert_eq!(shown(10..50, &[10..20, 15..25], 9), [(10, 10, true), (20, 5, true), (25, 25, false)]);
        assert_eq!(shown(10..50, &[20..30, 40..50], 2), [(10, 10, false), (20, 10, true)]);
    }
}
