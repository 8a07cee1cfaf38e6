//! Memory of the initiator: maps parts of a command's data to the memory descriptors that contain them.

use crate::core::data_in::DataIn;
use lunar_rdma::{Endpoint, RemoteAddress};
use lunar_runtime::send_queue::MAX_ZEROS;
use lunar_wire::srp::MemoryDescriptor;
use std::io;
use std::ops::Range;

/// The addresses of `len` bytes of a command's data from `offset` on, each with the range of these bytes that it
/// holds.
pub fn remote_ranges(
    pieces: &[MemoryDescriptor],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (RemoteAddress, Range<usize>)> + use<'_> {
    let (mut before, mut done) = (offset, 0);
    pieces.iter().filter_map(move |piece| {
        let size = piece.len as usize;
        let skipped = before.min(size);
        before -= skipped;
        let start = done;
        done += (size - skipped).min(len - done);
        let place = remote(*piece).beyond(skipped as u64);
        (done > start).then_some((place, start..done))
    })
}

/// The start of the memory that a descriptor describes.
pub fn remote(piece: MemoryDescriptor) -> RemoteAddress {
    RemoteAddress { stag: piece.key, offset: piece.address }
}

/// Writes a part of a command's data to the initiator, from `offset` on.
///
/// # Errors
/// Pages of a file could not be read.
pub fn write(
    endpoint: &dyn Endpoint,
    pieces: &[MemoryDescriptor],
    offset: usize,
    data: DataIn,
) -> io::Result<()> {
    let len = data.len();
    match remote_ranges(pieces, offset, len).next() {
        Some((to, part)) if part.len() == len && len <= MAX_ZEROS => {
            endpoint.write(to, data.whole().in_memory()?);
        }
        _ => {
            let data = data.shared();
            for (to, part) in remote_ranges(pieces, offset, len) {
                for at in part.clone().step_by(MAX_ZEROS) {
                    let n = MAX_ZEROS.min(part.end - at);
                    endpoint.write(to.beyond((at - part.start) as u64), data.part(at, n).in_memory()?);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(key: u32, len: u32) -> MemoryDescriptor {
        MemoryDescriptor { address: 1000 * u64::from(key), key, len }
    }

    fn found(offset: usize, len: usize) -> Vec<(u32, u64, Range<usize>)> {
        let pieces = [piece(1, 10), piece(2, 0), piece(3, 5), piece(4, 100)];
        remote_ranges(&pieces, offset, len).map(|(at, part)| (at.stag, at.offset, part)).collect()
    }

    #[test]
    fn data_range_spans_several_pieces() {
        assert_eq!(found(0, 10), [(1, 1000, 0..10)]);
        assert_eq!(found(4, 20), [(1, 1004, 0..6), (3, 3000, 6..11), (4, 4000, 11..20)]);
        assert_eq!(found(12, 2), [(3, 3002, 0..2)]);
        assert_eq!(found(15, 1), [(4, 4000, 0..1)]);
        assert_eq!(found(200, 1), []);
    }
}
