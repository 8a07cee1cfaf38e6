//! Deferred errors: acknowledged writes that the storage reported as lost. The storage reports a loss to one session
//! of one core. The hosts of every core get it once, with their next flush.

use lunar_initiator::Error;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Sense keys MEDIUM ERROR and HARDWARE ERROR (SPC-5 section 4.4.8).
const BROKEN: [u8; 2] = [3, 4];

/// The number of losses, and the last reported one.
#[derive(Default)]
pub struct DeferredErrors(Mutex<(u64, Option<Error>)>);

/// The last loss that was reported to the hosts of a core.
#[derive(Default)]
pub struct LastReported(AtomicU64);

impl DeferredErrors {
    /// The state of a core that is used from now on.
    pub fn since_now(&self) -> LastReported {
        LastReported(AtomicU64::new(self.with(|(count, _)| *count)))
    }

    /// Adds a loss that no host has received.
    pub fn add(&self, loss: Error) {
        self.with(|(count, last)| (*count, *last) = (*count + 1, Some(loss)));
    }

    /// Handles a failed flush on a core, whose hosts received the error. If data may be lost, the hosts of other
    /// cores get it too.
    pub fn add_failed(&self, flush: &io::Error, last_reported: &LastReported) {
        let is_lost = |e: &&Error| e.sense.is_some_and(|sense| BROKEN.contains(&sense.key));
        if let Some(e) = Error::of(flush).filter(is_lost) {
            self.add(e.clone());
            self.take_unreported(last_reported);
        }
    }

    /// The loss that the hosts of a core have not received yet.
    pub fn take_unreported(&self, last_reported: &LastReported) -> Option<Error> {
        self.with(
            |(count, last)| if last_reported.0.swap(*count, Relaxed) == *count { None } else { last.clone() },
        )
    }

    fn with<T>(&self, does: impl FnOnce(&mut (u64, Option<Error>)) -> T) -> T {
        does(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_initiator::ErrorCode;
    use lunar_wire::scsi::Sense;

    fn failure(key: u8) -> Error {
        let sense = Sense { key, ..Sense::NOT_READY_STANDBY };
        Error::new(ErrorCode::Refused, "the storage reported a lost write").with_sense(Some(sense))
    }

    #[test]
    fn hosts_of_each_core_hear_of_a_loss_once() {
        let deferred = DeferredErrors::default();
        let [one, two] = [deferred.since_now(), deferred.since_now()];
        deferred.add(failure(3));
        assert!(deferred.take_unreported(&one).is_some());
        assert!(deferred.take_unreported(&one).is_none());
        assert!(
            deferred.take_unreported(&deferred.since_now()).is_none(),
            "nothing was written on the new core"
        );
        assert!(deferred.take_unreported(&two).is_some());
    }

    #[test]
    fn failed_flush_of_one_core_is_reported_on_all_cores() {
        let deferred = DeferredErrors::default();
        let [one, two] = [deferred.since_now(), deferred.since_now()];
        deferred.add_failed(&failure(2).into(), &one);
        assert!(deferred.take_unreported(&two).is_none(), "NOT READY is not a loss");
        deferred.add_failed(&failure(4).into(), &one);
        assert!(deferred.take_unreported(&one).is_none(), "that core has reported the failure");
        assert!(deferred.take_unreported(&two).is_some());
    }
}
