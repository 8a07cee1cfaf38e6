//! Logical units that take no commands until they are seen to be what they were. Those commands wait apart: the other
//! logical units go on.

use crate::Error;
use std::time::{Duration, Instant};

/// A look that has shown nothing yet is given so long, however little time for recovery there is.
const LOOK: Duration = Duration::from_secs(5);

/// All of a session.
#[derive(Debug, Default)]
pub struct UnverifiedLuns {
    units: Vec<Unit>,
    /// The commands that wait for them, in their order.
    apart: Vec<u32>,
    latest_look: u32,
}

/// One of them.
#[derive(Debug)]
struct Unit {
    /// The eight bytes of its LUN.
    lun: u64,
    /// Since when it is needed; while there is no connection, that is what is missing.
    since: Instant,
    /// The look that is under way, on the present connection.
    look: Option<u32>,
    /// What the last look found that did not show it.
    found: Option<String>,
    /// Its time is over: what its commands get.
    over: Option<Error>,
}

impl UnverifiedLuns {
    /// There is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// It is one of them.
    pub fn has(&self, lun: u64) -> bool {
        self.units.iter().any(|u| u.lun == lun)
    }

    fn unit(&mut self, lun: u64) -> Option<&mut Unit> {
        self.units.iter_mut().find(|u| u.lun == lun)
    }

    /// From now on it is one of them. What names the look at it that is to begin; None if one is under way.
    pub fn add(&mut self, lun: u64, now: Instant) -> Option<u32> {
        if !self.has(lun) {
            self.units.push(Unit { lun, since: now, look: None, found: None, over: None });
        }
        self.latest_look = self.latest_look.wrapping_add(1);
        let look = self.latest_look;
        let unit = self.unit(lun).filter(|u| u.look.is_none())?;
        // A time without a connection is none in which it was missing.
        if unit.found.is_none() {
            unit.since = now;
        }
        unit.look = Some(look);
        Some(look)
    }

    /// This look at it is still wanted.
    pub fn wants(&self, lun: u64, look: u32) -> bool {
        self.units.iter().any(|u| u.lun == lun && u.look == Some(look))
    }

    /// A check did not find it. True: its time is over, and no command waits for the next check.
    pub fn missed(&mut self, lun: u64, found: String) -> bool {
        self.unit(lun).is_some_and(|unit| {
            unit.found = Some(found);
            unit.over.is_some()
        })
    }

    /// Those whose time is over from now on, and what was found.
    pub fn late(&self, now: Instant, limit: Duration) -> Vec<(u64, String)> {
        let limit = |u: &Unit| if u.found.is_some() { limit } else { limit.max(LOOK) };
        let is_late =
            |u: &&Unit| u.look.is_some() && u.over.is_none() && now.duration_since(u.since) >= limit(u);
        let found = |u: &Unit| u.found.clone().unwrap_or_else(|| "it does not answer".into());
        self.units.iter().filter(is_late).map(|u| (u.lun, found(u))).collect()
    }

    /// Its time is over.
    pub fn give_up(&mut self, lun: u64, error: Error) {
        if let Some(unit) = self.unit(lun) {
            unit.over = Some(error);
        }
    }

    /// What keeps commands of this logical unit from being taken in.
    #[inline]
    pub fn obstacle(&self, lun: u64) -> Option<Error> {
        self.units.iter().find(|u| u.lun == lun)?.over.clone()
    }

    /// A command waits for its logical unit.
    pub fn set_apart(&mut self, tag: u32) {
        self.apart.push(tag);
    }

    /// Takes commands out that wait; `comes` says which, and whether one that stays is still there.
    pub fn take_apart(&mut self, mut comes: impl FnMut(u32) -> Apart) -> Vec<u32> {
        let mut back = Vec::new();
        self.apart.retain(|tag| match comes(*tag) {
            Apart::Comes => {
                back.push(*tag);
                false
            }
            Apart::Stays => true,
            Apart::Over => false,
        });
        back
    }

    /// It is none of them any more. True if it was missing.
    pub fn remove(&mut self, lun: u64) -> bool {
        let was_missing = self.unit(lun).is_some_and(|u| u.found.is_some() || u.over.is_some());
        self.units.retain(|u| u.lun != lun);
        was_missing
    }

    /// The looks were those of a connection that is gone.
    pub fn end_looks(&mut self) {
        self.units.iter_mut().for_each(|u| u.look = None);
    }
}

/// What becomes of a command that waits for its logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// Its turn comes.
    Comes,
    /// It goes on waiting.
    Stays,
    /// It has ended.
    Over,
}
