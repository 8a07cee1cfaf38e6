//! The progress of a copy: finished pieces and unreadable ranges.

use crate::{CopyErrorCause, CopyFailure};
use std::collections::BTreeMap;
use std::ops::Range;

/// The limit of unreadable ranges, which bounds their list.
const MAX_BAD: usize = 1 << 16;

/// A set of ranges, in order, with adjacent ones merged.
#[derive(Default)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub(crate) fn add(&mut self, span: Range<u64>) {
        if span.is_empty() {
            return;
        }
        let (mut start, mut end) = (span.start, span.end);
        let touching = self.0.range(..=end).rev().take_while(|(_, last)| **last >= start);
        let touching: Vec<u64> = touching.map(|(first, _)| *first).collect();
        for first in touching {
            let last = self.0.remove(&first).unwrap_or(first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    /// The parts before an offset.
    pub(crate) fn before(&self, limit: u64) -> Vec<Range<u64>> {
        self.0.range(..limit).map(|(start, end)| *start..limit.min(*end)).collect()
    }
}

/// The result of one piece.
pub(crate) struct PieceResult {
    pub(crate) range: Range<u64>,
    /// The unreadable ranges.
    pub(crate) bad: Vec<Range<u64>>,
    pub(crate) failure: Option<CopyFailure>,
}

/// The progress of one copy.
pub(crate) struct CopyProgress {
    start: u64,
    done: RangeSet,
    bad: RangeSet,
    failure: Option<CopyFailure>,
}

impl CopyProgress {
    pub(crate) fn new(start: u64) -> CopyProgress {
        CopyProgress { start, done: RangeSet::default(), bad: RangeSet::default(), failure: None }
    }

    /// Records the result of a piece; false if no further piece may start.
    pub(crate) fn enter(&mut self, piece: PieceResult) -> bool {
        piece.bad.into_iter().for_each(|range| self.bad.add(range));
        match piece.failure {
            Some(failure) => self.fail(failure),
            None => self.done.add(piece.range.clone()),
        }
        if self.bad.0.len() > MAX_BAD {
            self.fail(CopyFailure::new(piece.range.start, CopyErrorCause::TooManyBad));
        }
        self.failure.is_none()
    }

    /// Of several failures, the one with the lowest offset is reported.
    pub(crate) fn fail(&mut self, failure: CopyFailure) {
        if self.failure.as_ref().is_none_or(|known| failure.offset < known.offset) {
            self.failure = Some(failure);
        }
    }

    /// Everything before this offset is done.
    pub(crate) fn prefix(&self) -> u64 {
        let last = self.done.0.range(..=self.start).next_back();
        last.map_or(self.start, |(_, end)| self.start.max(*end))
    }

    pub(crate) fn bad_before(&self, limit: u64) -> Vec<Range<u64>> {
        self.bad.before(limit)
    }

    pub(crate) fn take_failure(&mut self) -> Option<CopyFailure> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_are_the_bytes_that_were_added(
            list in proptest::collection::vec((0u64..200, 0u64..20), 0..40), limit in 0u64..220,
        ) {
            let (mut spans, mut bytes) = (RangeSet::default(), [false; 220]);
            for (start, len) in list {
                spans.add(start..start + len);
                (start..start + len).for_each(|at| bytes[at as usize] = true);
            }
            let kept = spans.before(limit);
            prop_assert!(kept.windows(2).all(|pair| pair[0].end < pair[1].start), "{kept:?}");
            for at in 0..220 {
                let is_in = kept.iter().any(|span| span.contains(&at));
                prop_assert_eq!(is_in, bytes[at as usize] && at < limit, "{}", at);
            }
        }
    }

    fn done(range: Range<u64>) -> PieceResult {
        PieceResult { range, bad: Vec::new(), failure: None }
    }

    #[test]
    fn prefix_has_no_gap() {
        let mut progress = CopyProgress::new(100);
        assert!(progress.enter(done(110..120)));
        assert_eq!(progress.prefix(), 100);
        assert!(progress.enter(done(100..110)));
        assert_eq!(progress.prefix(), 120);
        assert!(progress.enter(done(90..105)));
        assert_eq!(progress.prefix(), 120, "a range that overlaps the prefix does not change it");
    }

    #[test]
    fn first_failure_by_offset_is_reported() {
        let mut progress = CopyProgress::new(0);
        for offset in [50, 20, 30] {
            let failure = Some(CopyFailure::new(offset, CopyErrorCause::Differs));
            assert!(!progress.enter(PieceResult { failure, ..done(offset..offset + 5) }));
        }
        assert_eq!(progress.take_failure().expect("three").offset, 20);
    }

    #[test]
    fn list_of_unreadable_ranges_is_bounded() {
        let mut progress = CopyProgress::new(0);
        let bad = (0..=MAX_BAD as u64).map(|n| 2 * n..2 * n + 1).collect();
        assert!(!progress.enter(PieceResult { bad, ..done(0..1 << 20) }));
        assert!(matches!(progress.take_failure().expect("too many").cause, CopyErrorCause::TooManyBad));
    }
}
