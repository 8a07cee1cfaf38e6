//! Detects a target that repeats a protocol violation. Commands then fail before the recovery timeout.

use crate::{Error, ErrorCode};

/// The number of equal consecutive violations after which commands fail.
const MAX: u32 = 3;

/// The last protocol violations without a successful command between them.
#[derive(Default)]
pub struct Violations {
    /// Their common text, without numbers.
    shape: String,
    count: u32,
}

impl Violations {
    /// Records the error of a connection. Returns true if the target repeats a violation.
    pub fn note(&mut self, why: &Error) -> bool {
        if why.code != ErrorCode::ProtocolError {
            *self = Violations::default();
            return false;
        }
        // Ignores tags and numbers, which vary.
        let shape: String = why.what.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
        let is_same = std::mem::replace(&mut self.shape, shape) == self.shape;
        self.count = if is_same { self.count + 1 } else { 1 };
        self.count >= MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_violation_in_a_row_counts() {
        let broke = |what: &str| Error::new(ErrorCode::ProtocolError, what);
        let mut violations = Violations::default();
        let mut note = |e: &Error| violations.note(e);
        assert!(!note(&broke("no tag 0000001a")) && !note(&broke("no tag 0000002b")));
        assert!(!note(&broke("another fault")) && !note(&broke("no tag 00000001")));
        assert!(!note(&broke("no tag 00000002")) && note(&broke("no tag 00000003")));
        assert!(!note(&Error::new(ErrorCode::ConnectionLost, "cut")) && !note(&broke("no tag 00000004")));
    }
}
