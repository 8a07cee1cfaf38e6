//! Descriptors of the buffers of READ BUFFER (SPC-5 section 6.18).

use super::BitField;

/// The descriptor of a data buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferDescriptor {
    /// OFFSET BOUNDARY as a power of two; 0 allows any byte.
    pub offset_boundary: u8,
    /// BUFFER CAPACITY in bytes, at most 24 bits.
    pub buffer_capacity: u32,
}

impl BufferDescriptor {
    /// Bytes of the descriptor.
    pub const LEN: usize = 4;
    const OFFSET_BOUNDARY: BitField = BitField::bytes(0, 1);
    const BUFFER_CAPACITY: BitField = BitField::bytes(1, 3);

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        Self::OFFSET_BOUNDARY.set(&mut b, self.offset_boundary.into());
        Self::BUFFER_CAPACITY.set(&mut b, self.buffer_capacity.into());
        b
    }
}

/// The descriptor of the echo buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoBufferDescriptor {
    /// EBOS: another nexus may overwrite the echo buffer, and its reader is notified.
    pub ebos: bool,
    /// BUFFER CAPACITY in bytes, at most 13 bits.
    pub buffer_capacity: u16,
}

impl EchoBufferDescriptor {
    /// Bytes of the descriptor.
    pub const LEN: usize = 4;
    const EBOS: BitField = BitField::flag(0, 0);
    const BUFFER_CAPACITY: BitField = BitField::bits(2, 4, 13);

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        Self::EBOS.set(&mut b, self.ebos.into());
        Self::BUFFER_CAPACITY.set(&mut b, self.buffer_capacity.into());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_descriptors_lie_as_in_the_standard() {
        let data = BufferDescriptor { offset_boundary: 9, buffer_capacity: 0x01_0203 };
        assert_eq!(data.encode(), [9, 1, 2, 3]);
        let echo = EchoBufferDescriptor { ebos: true, buffer_capacity: 0x1234 };
        assert_eq!(echo.encode(), [1, 0, 0x12, 0x34]);
    }
}
