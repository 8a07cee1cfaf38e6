//! The parameter list of UNMAP (SBC-4 section 5.35.2).

use super::BitField;

/// UNMAP DATA LENGTH: the number of bytes that follow this field.
pub const DATA_LENGTH: BitField = BitField::bytes(0, 2);
/// UNMAP BLOCK DESCRIPTOR DATA LENGTH in bytes.
pub const DESCRIPTOR_DATA_LENGTH: BitField = BitField::bytes(2, 2);
/// Bytes before the block descriptors.
pub const HEADER_LEN: usize = 8;
/// Bytes of a block descriptor.
pub const DESCRIPTOR_LEN: usize = 16;

/// A block descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmapDescriptor {
    /// UNMAP LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// NUMBER OF LOGICAL BLOCKS.
    pub blocks: u32,
}

impl UnmapDescriptor {
    const LBA: BitField = BitField::bytes(0, 8);
    const BLOCKS: BitField = BitField::bytes(8, 4);

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; DESCRIPTOR_LEN] {
        let mut b = [0; DESCRIPTOR_LEN];
        Self::LBA.set(&mut b, self.lba);
        Self::BLOCKS.set(&mut b, self.blocks.into());
        b
    }

    fn decode(b: &[u8]) -> UnmapDescriptor {
        UnmapDescriptor { lba: Self::LBA.get(b), blocks: Self::BLOCKS.get_u32(b) }
    }
}

/// Encodes a list of a single descriptor.
pub(super) fn encode_one(descriptor: UnmapDescriptor) -> [u8; HEADER_LEN + DESCRIPTOR_LEN] {
    let mut b = [0; HEADER_LEN + DESCRIPTOR_LEN];
    DATA_LENGTH.set(&mut b, (HEADER_LEN - 2 + DESCRIPTOR_LEN) as u64);
    DESCRIPTOR_DATA_LENGTH.set(&mut b, DESCRIPTOR_LEN as u64);
    b[HEADER_LEN..].copy_from_slice(&descriptor.encode());
    b
}

/// The block descriptors of a list; `None` if the list is shorter than its header states. An incomplete descriptor at
/// the end is ignored.
pub fn descriptors(list: &[u8]) -> Option<impl ExactSizeIterator<Item = UnmapDescriptor>> {
    let rest = list.get(HEADER_LEN..)?.get(..DESCRIPTOR_DATA_LENGTH.get(list) as usize)?;
    Some(rest.chunks_exact(DESCRIPTOR_LEN).map(UnmapDescriptor::decode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_end_with_the_length_of_the_header() {
        let [first, second] = [(3, 4), (u64::MAX, 5)].map(|(lba, blocks)| UnmapDescriptor { lba, blocks });
        let mut list = [&[0, 38, 0, 32, 0, 0, 0, 0][..], &first.encode(), &second.encode()].concat();
        assert_eq!(list[8..24], [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0]);
        let all = |list: &[u8]| descriptors(list).map(|all| all.collect::<Vec<_>>());
        assert_eq!(all(&list), Some(vec![first, second]));
        (0..list.len()).for_each(|n| assert_eq!(all(&list[..n]), None, "{n} bytes"));
        list[3] = 31;
        assert_eq!(all(&list), Some(vec![first]), "the second descriptor is incomplete");
    }
}
