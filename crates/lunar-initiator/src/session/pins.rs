//! Logical units that have to stay what they are.

use super::Session;
use super::checks::{self, Seen};
use super::home::Home;
use super::machine::Online;
use crate::Error;
use std::rc::Rc;

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
    pub fn pin(self: &Rc<Self>, lun: u64, identity: Vec<u8>) {
        let is_new = self.identity(lun).as_ref() != Some(&identity);
        let mut all = self.pinned.borrow_mut();
        match all.iter_mut().find(|p| p.lun == lun) {
            Some(pinned) => (pinned.identity, pinned.stays) = (identity, true),
            None => all.push(Pinned { lun, identity, holders: 0, stays: true }),
        }
        drop(all);
        if is_new {
            self.look_with_others(lun);
        }
    }

    /// One more uses it as storage, until what comes back is dropped.
    ///
    /// # Errors
    /// When it had to be another one: those who use that are not to write on this.
    pub fn hold(self: &Rc<Self>, mut held: Held, identity: Vec<u8>) -> Result<Held, Error> {
        let lun = held.lun;
        let mut all = self.pinned.borrow_mut();
        match all.iter_mut().find(|p| p.lun == lun) {
            Some(pinned) if pinned.identity != identity => {
                drop(all);
                self.mark(lun, Seen::Changed(identity));
                return Err(checks::changed());
            }
            Some(pinned) => pinned.holders += 1,
            None => {
                all.push(Pinned { lun, identity, holders: 1, stays: false });
                drop(all);
                self.look_with_others(lun);
            }
        }
        held.counts = true;
        Ok(held)
    }

    /// While others are looked at, what is new may have been seen on the connection before.
    fn look_with_others(self: &Rc<Self>, lun: u64) {
        let machine = self.machine.borrow();
        let are_looked_at = machine.online == Online::Yes && !machine.unseen.is_empty();
        drop(machine);
        if are_looked_at {
            self.hold_back(lun);
        }
    }

    /// What it has to be.
    pub fn identity(&self, lun: u64) -> Option<Vec<u8>> {
        self.pinned.borrow().iter().find(|p| p.lun == lun).map(|p| p.identity.clone())
    }

    /// One less does. What nobody uses may become another one.
    pub fn let_go(self: &Rc<Self>, lun: u64) {
        let mut all = self.pinned.borrow_mut();
        let Some(at) = all.iter().position(|p| p.lun == lun) else { return };
        all[at].holders = all[at].holders.saturating_sub(1);
        if all[at].holders == 0 && !all[at].stays {
            all.remove(at);
            self.changed.borrow_mut().retain(|changed| *changed != lun);
            self.machine.borrow_mut().release(lun);
            self.flush_soon();
        }
    }
}
