//! Memory to receive into.

const PAGE: usize = 4096;

/// Bytes that begin with a page, as what is received mostly does. Memory of an allocator begins a few bytes behind that,
/// and to there some processors (AMD's Zen 3) copy five times slower.
pub struct AlignedBuf {
    memory: Vec<u8>,
    first: usize,
    len: usize,
}

impl AlignedBuf {
    /// So many zeros.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let memory = vec![0; len + PAGE];
        let first = memory.as_ptr().align_offset(PAGE);
        AlignedBuf { memory, first, len }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.first..][..self.len]
    }
}
