//! The values that the blocks of a disk may hold while they are written and read at the same time.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// A block whose writes have consecutive generations. At most one is in progress at a time; any number of reads are.
#[derive(Debug, Default)]
pub struct WrittenBlock {
    /// The newest generation that a write has acknowledged, or that a read has shown.
    shown: AtomicU64,
    /// The newest generation whose write has begun.
    begun: AtomicU64,
}

impl WrittenBlock {
    /// Begins a write; returns its generation.
    pub fn begin_write(&self) -> u64 {
        self.begun.fetch_add(1, SeqCst) + 1
    }

    /// The write of this generation was acknowledged.
    pub fn acknowledge(&self, generation: u64) {
        self.shown.fetch_max(generation, SeqCst);
    }

    /// Begins a read; returns the oldest generation that it may show.
    pub fn begin_read(&self) -> u64 {
        self.shown.load(SeqCst)
    }

    /// Ends a read that has shown a generation.
    ///
    /// # Errors
    /// The generation is not admissible.
    pub fn end_read(&self, oldest: u64, generation: u64) -> Result<(), String> {
        let newest = self.begun.load(SeqCst);
        if !(oldest..=newest).contains(&generation) {
            return Err(format!("generation {generation} is not one of {oldest} to {newest}"));
        }
        self.acknowledge(generation);
        Ok(())
    }
}

/// The contents of a block: it repeats its number and the generation. Generation 0 stands for zeros.
pub fn contents(number: u64, generation: u64) -> Vec<u8> {
    match generation {
        0 => vec![0; BLOCK_BYTES],
        _ => [number.to_be_bytes(), generation.to_be_bytes()].concat().repeat(BLOCK_BYTES / 16),
    }
}

/// The generation that a block shows.
///
/// # Errors
/// The block is torn, or has the contents of another one.
pub fn generation(number: u64, block: &[u8]) -> Result<u64, String> {
    let generation = u64::from_be_bytes(block[8..16].try_into().expect("8 bytes"));
    let differs = |(one, other): (&[u8], &[u8])| one != other;
    match block.chunks(16).zip(contents(number, generation).chunks(16)).position(differs) {
        None => Ok(generation),
        Some(at) => Err(format!("byte {} does not belong to generation {generation}", at * 16)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_since_the_acknowledged_one_are_admissible() {
        let block = WrittenBlock::default();
        let first = block.begin_write();
        assert_eq!([0, first].map(|shown| block.end_read(0, shown)), [Ok(()), Ok(())]);
        block.acknowledge(first);
        let oldest = block.begin_read();
        assert!(block.end_read(oldest, 0).is_err(), "lost or stale");
        assert!(block.end_read(oldest, 2).is_err(), "never written");
        block.begin_write();
        assert_eq!(block.end_read(oldest, 2), Ok(()), "begun while the read was in progress");
    }

    #[test]
    fn generation_that_was_shown_does_not_go_away() {
        let block = WrittenBlock::default();
        let generation = block.begin_write();
        assert_eq!(block.end_read(0, generation), Ok(()));
        assert!(block.end_read(block.begin_read(), 0).is_err());
    }

    #[test]
    fn torn_block_is_detected() {
        assert_eq!(generation(7, &contents(7, 3)), Ok(3));
        assert_eq!(generation(7, &contents(7, 0)), Ok(0));
        let torn = [&contents(7, 3)[..2048], &contents(7, 4)[2048..]].concat();
        assert_eq!(generation(7, &torn), Err("byte 2048 does not belong to generation 3".into()));
        assert!(generation(8, &contents(7, 3)).is_err());
    }
}
