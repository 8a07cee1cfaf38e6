//! A target that repeats one violation of the protocol: commands do not wait until the time for recovery is over.

use crate::{Error, ErrorCode};

/// So many times in a row, and it is taken to go on.
const MOST: u32 = 3;

/// The latest violations of the protocol, with no command answered in between.
#[derive(Default)]
pub struct Violations {
    /// What they have in common.
    shape: String,
    count: u32,
}

impl Violations {
    /// Takes note of why a connection ended, or could not be made. True: the target repeats itself.
    pub fn note(&mut self, why: &Error) -> bool {
        if why.code != ErrorCode::ProtocolError {
            *self = Violations::default();
            return false;
        }
        // Tags and numbers differ each time.
        let shape: String = why.what.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
        let is_same = std::mem::replace(&mut self.shape, shape) == self.shape;
        self.count = if is_same { self.count + 1 } else { 1 };
        self.count >= MOST
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
