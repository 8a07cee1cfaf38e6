//! Logical units that take no commands until they are seen to be what they were. Those commands wait apart: the other
//! logical units go on.

use super::machine::Machine;
use super::task::State;
use crate::Error;
use std::time::{Duration, Instant};

/// A look that has shown nothing yet is given so long, however little time for recovery there is.
const LOOK: Duration = Duration::from_secs(5);

/// All of a session.
#[derive(Debug, Default)]
pub struct Unseen {
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

impl Unseen {
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

    /// A look at it did not show it. True: its time is over, so that nobody waits for the next one.
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

    /// The looks were those of a connection that is gone.
    pub fn end_looks(&mut self) {
        self.units.iter_mut().for_each(|u| u.look = None);
    }
}

impl Machine {
    /// A command whose turn has come waits for its logical unit. False: it need not.
    #[inline]
    pub(super) fn is_set_apart(&mut self, tag: u32) -> bool {
        if self.unseen.is_empty() {
            return false;
        }
        let waits = self.tasks.get(tag).is_some_and(|t| !t.urgent && self.unseen.has(t.lun));
        if waits {
            self.unseen.apart.push(tag);
        }
        waits
    }

    /// A logical unit takes commands again, in their order. True if it was missing.
    pub fn release(&mut self, lun: u64) -> bool {
        let was_missing = self.unseen.unit(lun).is_some_and(|u| u.found.is_some() || u.over.is_some());
        self.unseen.units.retain(|u| u.lun != lun);
        self.bring_back(|l| l == lun);
        self.pump();
        was_missing
    }

    /// Commands that were set apart wait before those whose turn has not come.
    pub(super) fn bring_back(&mut self, which: impl Fn(u64) -> bool) {
        let mut back = Vec::new();
        self.unseen.apart.retain(|tag| {
            let task = self.tasks.get(*tag).filter(|t| t.state == State::Queued);
            let comes = task.as_ref().is_some_and(|t| which(t.lun));
            back.extend(comes.then_some(*tag));
            task.is_some() && !comes
        });
        back.into_iter().rev().for_each(|tag| self.queue_first(tag));
    }
}
