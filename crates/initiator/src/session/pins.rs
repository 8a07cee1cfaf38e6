//! Logical units that have to stay what they are.

use super::Session;
use super::home::Home;
use super::recover::{self, Seen};
use crate::Error;

/// A logical unit that has to stay what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The eight bytes of its LUN.
    pub lun: u64,
    /// What VPD page 83h tells of it.
    pub identity: Vec<u8>,
    /// How many use it as storage: for as long as one does, it is pinned.
    holders: usize,
    /// It was pinned for the life of the session.
    stays: bool,
}

/// One who uses a logical unit as storage.
pub struct Held {
    session: Session,
    lun: u64,
    /// It was counted.
    counts: bool,
}

impl Held {
    /// One that is not counted yet.
    pub fn new(session: &Session, lun: u64) -> Held {
        Held { session: session.clone(), lun, counts: false }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.counts {
            self.session.let_go(self.lun);
        }
    }
}

impl Home {
    /// From now on it has to be this one, in place of what it had to be before.
    pub fn pin(&self, lun: u64, identity: Vec<u8>) {
        let mut all = self.pinned.borrow_mut();
        match all.iter_mut().find(|p| p.lun == lun) {
            Some(pinned) => (pinned.identity, pinned.stays) = (identity, true),
            None => all.push(Pinned { lun, identity, holders: 0, stays: true }),
        }
    }

    /// One more uses it as storage, until what comes back is dropped.
    ///
    /// # Errors
    /// When it had to be another one: those who use that are not to write on this.
    pub fn hold(&self, mut held: Held, identity: Vec<u8>) -> Result<Held, Error> {
        let lun = held.lun;
        let mut all = self.pinned.borrow_mut();
        match all.iter_mut().find(|p| p.lun == lun) {
            Some(pinned) if pinned.identity != identity => {
                drop(all);
                self.mark(lun, Seen::Changed(identity));
                return Err(recover::changed());
            }
            Some(pinned) => pinned.holders += 1,
            None => all.push(Pinned { lun, identity, holders: 1, stays: false }),
        }
        held.counts = true;
        Ok(held)
    }

    /// All that has to stay what it is was among these.
    pub fn are_all_pins(&self, seen: &[Pinned]) -> bool {
        let is_seen = |p: &Pinned| seen.iter().any(|s| s.lun == p.lun && s.identity == p.identity);
        self.pinned.borrow().iter().all(is_seen)
    }

    /// It still has to be this one.
    pub fn is_pinned(&self, lun: u64, identity: &[u8]) -> bool {
        self.pinned.borrow().iter().any(|p| p.lun == lun && p.identity == identity)
    }

    /// One less does. What nobody uses may become another one.
    pub fn let_go(&self, lun: u64) {
        let mut all = self.pinned.borrow_mut();
        let Some(at) = all.iter().position(|p| p.lun == lun) else { return };
        all[at].holders = all[at].holders.saturating_sub(1);
        if all[at].holders == 0 && !all[at].stays {
            all.remove(at);
            self.changed.borrow_mut().retain(|changed| *changed != lun);
        }
    }
}
