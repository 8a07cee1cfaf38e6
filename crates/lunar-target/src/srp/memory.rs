//! The memory of the initiator: which of its pieces a part of a command's data lies in.

use lunar_rdma::{Endpoint, Remote};
use lunar_runtime::out::Payload;
use lunar_wire::srp::Descriptor;
use std::ops::Range;
use std::rc::Rc;

/// Where the `len` bytes of a command's data from `offset` on lie: a place, and the part of the bytes that is there.
pub fn places(
    pieces: &[Descriptor],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (Remote, Range<usize>)> + use<'_> {
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

/// Where a descriptor begins.
pub fn remote(piece: Descriptor) -> Remote {
    Remote { stag: piece.key, offset: piece.address }
}

/// Writes a part of a command's data, from `offset` on, to the initiator.
pub fn write(endpoint: &dyn Endpoint, pieces: &[Descriptor], offset: usize, payload: Payload) {
    let len = payload.bytes().len();
    match places(pieces, offset, len).next() {
        Some((to, part)) if part.len() == len => endpoint.write(to, payload),
        _ => {
            let shared = Shared::from(payload);
            places(pieces, offset, len).for_each(|(to, part)| endpoint.write(to, shared.part(part)));
        }
    }
}

/// A payload that goes to several places.
enum Shared {
    Zeros,
    Bytes(Vec<u8>),
    /// From this byte of it on.
    Buf(Rc<lunar_runtime::Buf>, usize),
}

impl From<Payload> for Shared {
    fn from(payload: Payload) -> Shared {
        match payload {
            Payload::Empty | Payload::Zeros(_) => Shared::Zeros,
            Payload::Bytes(bytes) => Shared::Bytes(bytes),
            Payload::Buf(buf, _) => Shared::Buf(Rc::new(buf), 0),
            Payload::Part(buf, at, _) => Shared::Buf(buf, at),
        }
    }
}

impl Shared {
    fn part(&self, part: Range<usize>) -> Payload {
        match self {
            Shared::Zeros => Payload::Zeros(part.len()),
            Shared::Bytes(bytes) => Payload::Bytes(bytes[part].to_vec()),
            Shared::Buf(buf, at) => Payload::Part(buf.clone(), at + part.start, part.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(key: u32, len: u32) -> Descriptor {
        Descriptor { address: 1000 * u64::from(key), key, len }
    }

    fn found(offset: usize, len: usize) -> Vec<(u32, u64, Range<usize>)> {
        let pieces = [piece(1, 10), piece(2, 0), piece(3, 5), piece(4, 100)];
        places(&pieces, offset, len).map(|(at, part)| (at.stag, at.offset, part)).collect()
    }

    #[test]
    fn a_part_of_the_data_lies_in_several_pieces() {
        assert_eq!(found(0, 10), [(1, 1000, 0..10)]);
        assert_eq!(found(4, 20), [(1, 1004, 0..6), (3, 3000, 6..11), (4, 4000, 11..20)]);
        assert_eq!(found(12, 2), [(3, 3002, 0..2)]);
        assert_eq!(found(15, 1), [(4, 4000, 0..1)]);
        assert_eq!(found(200, 1), []);
    }
}
