//! Logical units whose identity must not change.

/// A logical unit with a pinned identity.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pinned {
    /// The eight bytes of the LUN.
    lun: u64,
    /// The identity, from VPD page 83h.
    identity: Vec<u8>,
    /// The number of users. The logical unit stays pinned while there is one.
    holders: usize,
    /// Whether the logical unit is pinned for the lifetime of the session.
    stays: bool,
}

/// The pinned logical units of a session.
#[derive(Debug, Default)]
pub struct PinnedLuns(Vec<Pinned>);

/// The result of [`PinnedLuns::hold`].
#[derive(Debug, PartialEq, Eq)]
pub enum Hold {
    /// It was not pinned before.
    First,
    /// It was pinned to the same identity.
    Again,
    /// It is pinned to another identity.
    Mismatch(Vec<u8>),
}

impl PinnedLuns {
    fn get(&mut self, lun: u64) -> Option<&mut Pinned> {
        self.0.iter_mut().find(|pinned| pinned.lun == lun)
    }

    /// The LUNs.
    pub fn luns(&self) -> Vec<u64> {
        self.0.iter().map(|pinned| pinned.lun).collect()
    }

    /// The pinned identity.
    pub fn identity(&self, lun: u64) -> Option<&Vec<u8>> {
        self.0.iter().find(|pinned| pinned.lun == lun).map(|pinned| &pinned.identity)
    }

    /// Pins a LUN to this identity for the lifetime of the session. Replaces an earlier identity. Returns true if it
    /// has changed.
    pub fn pin(&mut self, lun: u64, identity: Vec<u8>) -> bool {
        let is_new = self.identity(lun) != Some(&identity);
        match self.get(lun) {
            Some(pinned) => (pinned.identity, pinned.stays) = (identity, true),
            None => self.0.push(Pinned { lun, identity, holders: 0, stays: true }),
        }
        is_new
    }

    /// Adds a user. Users of another identity must not write to this logical unit.
    pub fn hold(&mut self, lun: u64, identity: Vec<u8>) -> Hold {
        match self.get(lun) {
            Some(pinned) if pinned.identity != identity => return Hold::Mismatch(identity),
            Some(pinned) => pinned.holders += 1,
            None => {
                self.0.push(Pinned { lun, identity, holders: 1, stays: false });
                return Hold::First;
            }
        }
        Hold::Again
    }

    /// Removes a user. Returns true if the logical unit is no longer pinned.
    pub fn release(&mut self, lun: u64) -> bool {
        let Some(pinned) = self.get(lun) else { return false };
        pinned.holders = pinned.holders.saturating_sub(1);
        let is_over = pinned.holders == 0 && !pinned.stays;
        self.0.retain(|pinned| !is_over || pinned.lun != lun);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_unit_stays_until_its_last_user_has_gone() {
        let mut units = PinnedLuns::default();
        assert_eq!((units.hold(1, vec![7]), units.hold(1, vec![7])), (Hold::First, Hold::Again));
        assert_eq!(units.hold(1, vec![8]), Hold::Mismatch(vec![8]));
        assert!(!units.release(1) && units.release(1) && units.luns().is_empty());
        assert!(!units.release(1), "the logical unit has no user");
    }

    #[test]
    fn unit_pinned_for_the_session_stays_without_users() {
        let mut units = PinnedLuns::default();
        assert!(units.pin(1, vec![7]) && !units.pin(1, vec![7]) && units.pin(1, vec![9]));
        assert_eq!(units.hold(1, vec![9]), Hold::Again);
        assert!(!units.release(1));
        assert_eq!((units.luns(), units.identity(1)), (vec![1], Some(&vec![9])));
    }
}
