//! The response to a command, which the core passes to a front end.

use super::data_in::DataIn;

/// The difference between the bytes that a command transfers and those that the initiator expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// None.
    None,
    /// This many bytes more than expected.
    Overflow(u32),
    /// This many bytes fewer than expected.
    Underflow(u32),
}

impl Residual {
    /// The residual of a command that transfers `actual` bytes.
    #[inline]
    pub fn new(expected: u32, actual: u64) -> Residual {
        let expected = u64::from(expected);
        match actual.cmp(&expected) {
            std::cmp::Ordering::Equal => Residual::None,
            std::cmp::Ordering::Greater => {
                Residual::Overflow(u32::try_from(actual - expected).unwrap_or(u32::MAX))
            }
            std::cmp::Ordering::Less => Residual::Underflow((expected - actual) as u32),
        }
    }
}

/// The progress of a command's Data-In.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataInProgress {
    /// Bytes that were sent.
    pub bytes: usize,
    /// Parts that were sent, as the front end counts them.
    pub parts: u32,
}

/// The response to a command.
pub struct CommandResponse {
    /// Status code.
    pub status: u8,
    /// Sense data; empty if there are none.
    pub sense: Vec<u8>,
    /// Residual count.
    pub residual: Residual,
    /// The rest of the Data-In, which is sent before the status.
    pub data: DataIn,
    /// Data-In that was sent before.
    pub sent: DataInProgress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residual_is_overflow_or_underflow() {
        assert_eq!(Residual::new(512, 512), Residual::None);
        assert_eq!(Residual::new(512, 4096), Residual::Overflow(3584));
        assert_eq!(Residual::new(255, 96), Residual::Underflow(159));
        assert_eq!(Residual::new(0, u64::MAX), Residual::Overflow(u32::MAX));
    }
}
