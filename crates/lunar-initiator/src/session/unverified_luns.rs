//! Logical units that accept no commands until their identity is checked. Their commands wait here, so that other
//! logical units are not delayed.

use crate::Error;
use std::time::{Duration, Instant};

/// The minimum time for an identity check, even with a shorter recovery timeout.
const MIN_CHECK_TIME: Duration = Duration::from_secs(5);

/// The unverified logical units of a session.
#[derive(Debug, Default)]
pub struct UnverifiedLuns {
    units: Vec<Unit>,
    /// The commands that wait for them, in order.
    apart: Vec<u32>,
    latest_check: u32,
}

/// An unverified logical unit.
#[derive(Debug)]
struct Unit {
    /// The eight bytes of its LUN.
    lun: u64,
    /// The start of the wait. Time without a connection is excluded.
    started_at: Instant,
    /// The check in progress on the current connection.
    check: Option<u32>,
    /// The result of the last failed check.
    found: Option<String>,
    /// The error of its commands, once the time limit has passed.
    over: Option<Error>,
}

impl UnverifiedLuns {
    /// Whether no logical unit is unverified.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Whether this logical unit is unverified.
    pub fn has(&self, lun: u64) -> bool {
        self.units.iter().any(|u| u.lun == lun)
    }

    fn unit(&mut self, lun: u64) -> Option<&mut Unit> {
        self.units.iter_mut().find(|u| u.lun == lun)
    }

    /// Adds a logical unit. Returns the id of the check to start, or None if a check is in progress.
    pub fn add(&mut self, lun: u64, now: Instant) -> Option<u32> {
        if !self.has(lun) {
            self.units.push(Unit { lun, started_at: now, check: None, found: None, over: None });
        }
        self.latest_check = self.latest_check.wrapping_add(1);
        let check = self.latest_check;
        let unit = self.unit(lun).filter(|u| u.check.is_none())?;
        // Time without a connection does not count.
        if unit.found.is_none() {
            unit.started_at = now;
        }
        unit.check = Some(check);
        Some(check)
    }

    /// Whether this check is still needed.
    pub fn wants(&self, lun: u64, check: u32) -> bool {
        self.units.iter().any(|u| u.lun == lun && u.check == Some(check))
    }

    /// Records a failed check. Returns true if the time limit has passed, so that no command waits for the next
    /// check.
    pub fn missed(&mut self, lun: u64, found: String) -> bool {
        self.unit(lun).is_some_and(|unit| {
            unit.found = Some(found);
            unit.over.is_some()
        })
    }

    /// The logical units whose time limit has just passed, with the result of the last check.
    pub fn late(&self, now: Instant, limit: Duration) -> Vec<(u64, String)> {
        let limit = |u: &Unit| if u.found.is_some() { limit } else { limit.max(MIN_CHECK_TIME) };
        let is_late =
            |u: &&Unit| u.check.is_some() && u.over.is_none() && now.duration_since(u.started_at) >= limit(u);
        let found = |u: &Unit| u.found.clone().unwrap_or_else(|| "the LUN does not answer".into());
        self.units.iter().filter(is_late).map(|u| (u.lun, found(u))).collect()
    }

    /// Ends the wait for a logical unit with this error.
    pub fn give_up(&mut self, lun: u64, error: Error) {
        if let Some(unit) = self.unit(lun) {
            unit.over = Some(error);
        }
    }

    /// The error for new commands to this logical unit, if any.
    #[inline]
    pub fn obstacle(&self, lun: u64) -> Option<Error> {
        self.units.iter().find(|u| u.lun == lun)?.over.clone()
    }

    /// Holds back a command.
    pub fn set_apart(&mut self, tag: u32) {
        self.apart.push(tag);
    }

    /// Removes waiting commands. `comes` decides which to release, and which have ended.
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

    /// Removes a logical unit. Returns true if it was missing.
    pub fn remove(&mut self, lun: u64) -> bool {
        let was_missing = self.unit(lun).is_some_and(|u| u.found.is_some() || u.over.is_some());
        self.units.retain(|u| u.lun != lun);
        was_missing
    }

    /// Discards the checks of a lost connection.
    pub fn end_checks(&mut self) {
        self.units.iter_mut().for_each(|u| u.check = None);
    }
}

/// The decision about a command that waits for its logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// Release it.
    Comes,
    /// Keep it waiting.
    Stays,
    /// Drop it: it has ended.
    Over,
}
