//! Comparing and writing in one step of the OSD, which has the object.

use super::image::{Image, Layout};
use super::library::Library;
use super::operation::{Operation, done};
use super::{IoEffect, RbdBackend, end_of};
use lunar_runtime::Buf;
use rustix::io::Errno;
use std::ffi::c_int;
use std::io;
use std::sync::Arc;

/// Bytes of the place for the offset of a difference.
const PLACE: usize = size_of::<u64>();
/// The result of a comparison that has found a difference.
const DIFFERS: isize = -(Errno::ILSEQ.raw_os_error() as isize);

/// The version of librbd (Ceph 18) that compares more than a sector.
const LONG: (c_int, c_int) = (1, 18);
/// The limit of older versions, in bytes.
const SECTOR: u32 = 512;

/// The longest comparison. It must be within one stripe unit. After a difference, librbd maps a range that begins up to
/// its length later, and ends the process if that range leaves the stripe unit: hence the half.
fn limit(layout: Layout, version: (c_int, c_int)) -> u32 {
    let half = u32::try_from(layout.stripe_unit_bytes / 2).unwrap_or(0);
    let longest = if version >= LONG { u32::MAX } else { SECTOR };
    half.min(longest)
}

fn version(library: &Library) -> (c_int, c_int) {
    let (mut major, mut minor, mut extra) = (0, 0, 0);
    // SAFETY: these are places for the result.
    unsafe { (library.rbd_version)(&mut major, &mut minor, &mut extra) };
    (major, minor)
}

/// The index of the first difference in a range of `len` bytes, from the offset that librbd reports: that of the stripe
/// unit (Ceph 16.2) or of the range, and the index. Multiples of `len` both.
fn index_of(reported: u64, len: usize) -> usize {
    (reported % len as u64) as usize
}

impl RbdBackend {
    pub(super) fn compare_limit(&self) -> u32 {
        let image = self.image();
        let (library, _) = image.parts();
        limit(image.layout, version(library))
    }

    /// Compares with the first half, and writes the second half or returns the index of the first difference.
    pub(super) async fn compare(&self, offset: u64, data: Buf) -> io::Result<Option<usize>> {
        let both = data.len();
        let len = both / 2;
        // librbd writes the place even if the operation was abandoned, so it is a part of the buffer.
        let mut buf = Buf::zeroed(both + PLACE);
        buf[..both].copy_from_slice(&data);
        let begin = |image: &Arc<Image>, buf| {
            Operation::begin(image, buf, |library, handle, memory, completion| {
                // SAFETY: the image is open. The memory has both halves and the place, aligned because a
                // half has at least 512 bytes, and stays until the operation has ended.
                unsafe {
                    let (new, place) = (memory.add(len), memory.add(both));
                    let begun = (library.rbd_aio_compare_and_write)(
                        handle,
                        offset,
                        len,
                        memory.cast(),
                        new.cast(),
                        completion,
                        place.cast(),
                        0,
                    );
                    begun as c_int
                }
            })
        };
        let (result, buf) = self.run(IoEffect::Change, end_of(offset, len), Some(buf), begin).await;
        match (result?, buf) {
            (DIFFERS, Some(buf)) => {
                let mut place = [0; PLACE];
                place.copy_from_slice(&buf[both..]);
                Ok(Some(index_of(u64::from_ne_bytes(place), len)))
            }
            (result, _) => done(result).map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_depends_on_stripe_unit_and_version() {
        let limits = |stripe_unit_bytes| {
            [(1, 16), (1, 18), (2, 0)]
                .map(|version| limit(Layout { object_bytes: 1 << 40, stripe_unit_bytes }, version))
        };
        for (unit, expected) in [
            (4 << 20, [512, 2 << 20, 2 << 20]),
            (4096, [512, 2048, 2048]),
            (512, [256; 3]),
            (1, [0; 3]),
            (1 << 40, [0; 3]),
        ] {
            assert_eq!(limits(unit), expected, "{unit}");
        }
    }

    #[test]
    fn index_is_the_part_within_the_range() {
        const OBJECT: u64 = 68 << 20;
        assert_eq!(index_of(OBJECT + 100, 4096), 100, "Ceph 16.2, for an offset of 4096 in the object");
        assert_eq!(index_of(OBJECT + 4096 + 100, 4096), 100);
        assert_eq!(index_of(OBJECT, 512), 0);
        assert_eq!(index_of(OBJECT + 511, 512), 511);
    }
}
