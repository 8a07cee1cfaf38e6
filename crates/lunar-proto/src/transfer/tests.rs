//! Transfers written by hand, then by a conforming and by a random initiator.

use proptest::prelude::*;

use super::*;

/// A segment by its number, offset, length, and whether it is the last of its sequence.
fn segment(number: u32, offset: u32, len: u32, is_final: bool) -> DataOutSegment {
    DataOutSegment { number: Some(number), offset, len, is_final }
}

fn rules(unsolicited: bool, immediate: bool) -> DataOutRules {
    DataOutRules {
        max_immediate: if immediate { 1024 } else { 0 },
        max_unsolicited: if unsolicited { 1024 } else { 0 },
        max_request: 2048,
        max_requests: 2,
        in_order: true,
    }
}

fn accept(offset: u32) -> DataOutVerdict {
    DataOutVerdict::Accept { offset }
}

fn request(index: u16, number: u32, offset: u32, len: u32) -> Option<DataOutRequest> {
    Some(DataOutRequest { index, number, offset, len })
}

/// DAT-001, DAT-017, DAT-018, DAT-019, SN-007, SN-008.
#[test]
fn solicited_data_alone() {
    let mut w = DataOutSequencer::new(5000, 5000, 0, false, &rules(false, false));
    assert_eq!(
        [w.next_request(), w.next_request(), w.next_request()],
        [request(0, 0, 0, 2048), request(1, 1, 2048, 2048), None]
    );
    assert_eq!(w.take(Some(0), segment(0, 0, 1024, false)), accept(0));
    assert_eq!(w.next_request(), None);
    assert_eq!(w.take(Some(0), segment(1, 1024, 1024, true)), accept(1024));
    assert_eq!(w.next_request(), request(0, 2, 4096, 904));
    assert_eq!(w.take(Some(1), segment(0, 2048, 2048, true)), accept(2048));
    assert!(!w.is_complete());
    assert_eq!(w.take(Some(0), segment(0, 4096, 904, true)), accept(4096));
    assert_eq!((w.is_complete(), w.failure(), w.next_request(), w.requests()), (true, None, None, 3));
}

/// DAT-003, DAT-004, DAT-007: unsolicited data are not requested (DAT-029).
#[test]
fn unsolicited_data_first() {
    let mut w = DataOutSequencer::new(3000, 3000, 512, true, &rules(true, true));
    assert_eq!(w.next_request(), None, "the rest of the first burst is on its way");
    assert_eq!(w.take(None, segment(0, 512, 512, true)), accept(512));
    assert_eq!([w.next_request(), w.next_request()], [request(0, 0, 1024, 1976), None]);
    assert_eq!(w.take(Some(0), segment(0, 1024, 1976, true)), accept(1024));
    assert!(w.is_complete() && w.failure().is_none());
}

#[test]
fn immediate_data_alone() {
    let w = DataOutSequencer::new(512, 512, 512, false, &rules(false, true));
    assert!(w.is_complete() && w.failure().is_none());
    let w = DataOutSequencer::new(512, 512, 512, true, &rules(true, true));
    assert!(w.is_complete() && w.failure().is_none(), "announced, but nothing can follow");
    let mut w = DataOutSequencer::new(2000, 2000, 512, false, &rules(true, true));
    assert_eq!(w.next_request(), request(0, 0, 512, 1488), "the rest is requested");
}

/// DAT-018, DAT-019: each request stays within one chunk, and none covers a chunk that is not allowed yet.
#[test]
fn request_does_not_cross_a_piece() {
    let mut w = DataOutSequencer::new(7000, 7000, 500, false, &rules(false, true));
    w.in_pieces(3000);
    assert_eq!((w.next_request(), w.arrived(), w.is_awaited()), (None, 500, false));
    w.allow(6000);
    assert_eq!([w.next_request(), w.next_request()], [request(0, 0, 500, 2048), request(1, 1, 2548, 452)]);
    assert_eq!(w.take(Some(1), segment(0, 2548, 452, true)), accept(2548));
    assert_eq!(
        (w.next_request(), w.arrived()),
        (request(1, 2, 3000, 2048), 500),
        "the first burst is missing"
    );
    assert_eq!(w.take(Some(0), segment(0, 500, 2048, true)), accept(500));
    assert_eq!((w.next_request(), w.arrived()), (request(0, 3, 5048, 952), 3000));
    assert_eq!(w.take(Some(1), segment(0, 3000, 2048, true)), accept(3000));
    assert_eq!(w.take(Some(0), segment(0, 5048, 952, true)), accept(5048));
    assert_eq!(
        (w.next_request(), w.arrived(), w.is_complete()),
        (None, 6000, false),
        "the last is not let in"
    );
    w.allow(9000);
    assert_eq!(w.next_request(), request(0, 4, 6000, 1000));
    assert_eq!(w.take(Some(0), segment(0, 6000, 1000, true)), accept(6000));
    assert_eq!((w.is_complete(), w.is_awaited(), w.arrived()), (true, false, 7000));
}

#[test]
fn stop_between_two_pieces_completes_the_write() {
    let mut w = DataOutSequencer::new(7000, 7000, 0, false, &rules(false, true));
    w.in_pieces(2000);
    w.allow(2000);
    assert_eq!([w.next_request(), w.next_request()], [request(0, 0, 0, 2000), None]);
    w.stop();
    assert!(!w.is_complete());
    assert_eq!(w.take(Some(0), segment(0, 0, 2000, true)), accept(0));
    w.allow(4000);
    assert_eq!((w.is_complete(), w.next_request()), (true, None));
}

/// Unsolicited data beyond the length that the CDB needs are accepted, but not requested.
#[test]
fn cdb_needs_less_than_expected() {
    let mut w = DataOutSequencer::new(4096, 600, 0, true, &rules(true, true));
    assert_eq!(w.take(None, segment(0, 0, 1024, true)), accept(0));
    assert!(w.is_complete() && w.next_request().is_none());
    let mut w = DataOutSequencer::new(4096, 8192, 0, false, &rules(false, true));
    assert_eq!([w.next_request(), w.next_request()], [request(0, 0, 0, 2048), request(1, 1, 2048, 2048)]);
    let w = DataOutSequencer::new(4096, 0, 0, false, &rules(false, true));
    assert!(w.is_complete());
}

/// DAT-005, DAT-006: commands that violate the rules.
#[test]
fn forbidden_unsolicited_data() {
    for (immediate_len, has_unsolicited, p, want, complete) in [
        (512, false, rules(false, false), DataOutFailure::Unexpected, true),
        (0, true, rules(false, true), DataOutFailure::Unexpected, false),
        (1025, false, rules(true, true), DataOutFailure::Amount, true),
        (1025, true, rules(true, true), DataOutFailure::Amount, false),
    ] {
        let mut w = DataOutSequencer::new(4096, 4096, immediate_len, has_unsolicited, &p);
        assert_eq!((w.failure(), w.is_complete(), w.next_request()), (Some(want), complete, None));
        if !complete {
            // DAT-035: the response waits for the end of the announced data.
            assert_eq!(w.take(None, segment(0, 0, 512, false)), DataOutVerdict::Discard);
            assert!(!w.is_complete());
            assert_eq!(w.take(None, segment(1, 512, 512, true)), DataOutVerdict::Discard);
            assert!(w.is_complete());
        }
    }
    let w = DataOutSequencer::new(100, 100, 101, false, &rules(true, true));
    assert_eq!(w.failure(), Some(DataOutFailure::Amount), "more than expected");
    let mut w = DataOutSequencer::new(4096, 4096, 0, false, &rules(false, true));
    assert_eq!(w.take(None, segment(0, 0, 512, true)), DataOutVerdict::Discard);
    assert_eq!(w.failure().map(DataOutFailure::additional_sense), Some((0x0c, 0x0c)));
}

/// DAT-008, DAT-023, DAT-026, SN-010 on a sequence of 2048 bytes.
#[test]
fn wrong_data_outs() {
    let reject = DataOutVerdict::Invalid;
    for (index, segment, verdict, failure) in [
        (Some(0), segment(0, 0, 1024, true), DataOutVerdict::Discard, Some((0x0c, 0x0d))),
        (Some(0), segment(0, 0, 2049, true), DataOutVerdict::Discard, Some((0x0c, 0x0d))),
        (Some(0), segment(1, 0, 1024, false), DataOutVerdict::Discard, Some((0x47, 0x05))),
        (Some(0), segment(0, 512, 512, false), reject, None),
        (Some(0), segment(0, 4096, 512, false), reject, None),
        (Some(0), segment(0, u32::MAX, 512, false), reject, None),
        (Some(1), segment(0, 0, 512, true), reject, None),
        (Some(0), segment(0, 0, 0, false), accept(0), None),
    ] {
        let mut w = DataOutSequencer::new(2048, 2048, 0, false, &rules(false, false));
        w.next_request().unwrap();
        assert_eq!(w.take(index, segment), verdict, "{segment:?}");
        assert_eq!(w.failure().map(DataOutFailure::additional_sense), failure, "{segment:?}");
        assert_eq!(w.is_complete(), failure.is_some() && segment.is_final);
    }
    let mut w = DataOutSequencer::new(2048, 2048, 0, true, &rules(true, false));
    assert_eq!(w.take(None, segment(0, 0, 512, true)), DataOutVerdict::Discard, "half of the first burst");
    assert_eq!(w.failure(), Some(DataOutFailure::Amount));
}

/// A protocol without segment numbers: the offsets give the order, and the last segment the amount.
#[test]
fn segments_without_numbers_follow_their_offsets() {
    let unnumbered = |offset, len, is_final| DataOutSegment { number: None, offset, len, is_final };
    let mut w = DataOutSequencer::new(2048, 2048, 0, false, &rules(false, false));
    w.next_request().unwrap();
    assert_eq!(w.take(Some(0), unnumbered(0, 512, false)), accept(0));
    assert_eq!(w.take(Some(0), unnumbered(1024, 512, false)), DataOutVerdict::Invalid);
    assert_eq!(w.take(Some(0), unnumbered(512, 512, false)), accept(512));
    assert_eq!((w.failure(), w.is_complete()), (None, false));
    assert_eq!(w.take(Some(0), unnumbered(1024, 512, true)), DataOutVerdict::Discard);
    assert_eq!((w.failure(), w.is_complete()), (Some(DataOutFailure::Amount), true));
}

/// DAT-027: an empty segment may end its sequence.
#[test]
fn empty_segment_may_end_its_sequence() {
    let mut w = DataOutSequencer::new(2048, 2048, 0, false, &rules(false, false));
    w.next_request().unwrap();
    assert_eq!(w.take(Some(0), segment(0, 0, 2048, false)), accept(0));
    assert!(!w.is_complete());
    assert_eq!(w.take(Some(0), segment(1, 2048, 0, true)), accept(2048));
    assert!(w.is_complete() && w.failure().is_none());
}

/// DAT-035: after an early error nothing more is requested, and the data of earlier requests are awaited.
#[test]
fn stopped_write_awaits_requested_data() {
    let mut w = DataOutSequencer::new(8192, 8192, 0, false, &rules(false, false));
    w.next_request().unwrap();
    w.stop();
    assert_eq!((w.next_request(), w.is_complete()), (None, false));
    assert_eq!(w.take(Some(0), segment(0, 0, 2048, true)), accept(0));
    assert!(w.is_complete());
}

/// DAT-021: any order, but each byte once, and a bounded number of separate ranges.
#[test]
fn data_out_of_order() {
    let p = DataOutRules { in_order: false, ..rules(false, false) };
    let mut w = DataOutSequencer::new(2048, 2048, 0, false, &p);
    w.next_request().unwrap();
    assert_eq!(w.take(Some(0), segment(0, 1024, 512, false)), accept(1024));
    assert_eq!(w.take(Some(0), segment(1, 0, 512, false)), accept(0));
    let reject = DataOutVerdict::Invalid;
    for (offset, len) in [(256, 512), (0, 2048), (1535, 1), (511, 2)] {
        assert_eq!(w.take(Some(0), segment(2, offset, len, false)), reject);
    }
    assert_eq!(w.take(Some(0), segment(2, 512, 512, false)), accept(512));
    assert_eq!(w.take(Some(0), segment(3, 1536, 512, true)), accept(1536));
    assert!(w.is_complete() && w.failure().is_none());

    let mut w = DataOutSequencer::new(2048, 2048, 0, false, &p);
    w.next_request().unwrap();
    for n in 0..PIECES as u32 {
        assert_eq!(w.take(Some(0), segment(n, 2 * n, 1, false)), accept(2 * n));
    }
    assert_eq!(w.take(Some(0), segment(PIECES as u32, 2 * PIECES as u32, 1, false)), reject);
}

fn some_rules() -> impl Strategy<Value = DataOutRules> {
    (any::<[bool; 3]>(), 1u32..3000, 1u32..3000, 1u16..5).prop_map(|(b, first, max, open)| DataOutRules {
        max_immediate: if b[1] { first.min(max) } else { 0 },
        max_unsolicited: if b[0] { 0 } else { first.min(max) },
        max_request: max,
        max_requests: open,
        in_order: b[2],
    })
}

proptest! {
    /// Each byte of a conforming initiator's write is accepted once, whatever the lengths.
    #[test]
    fn every_byte_is_written_once(p in some_rules(), edtl in 0u32..20000, immediate in 0u32..3000, step in 1u32..900) {
        let immediate = immediate.min(p.max_immediate).min(edtl);
        let first = p.max_unsolicited.min(edtl);
        let has_unsolicited = p.max_unsolicited > 0 && immediate < edtl;
        let mut w = DataOutSequencer::new(edtl, edtl, immediate, has_unsolicited, &p);
        let mut got = vec![0u8; edtl as usize];
        got[..immediate as usize].fill(1);
        let mut work = vec![];
        if has_unsolicited && immediate < first {
            work.push((None, immediate, first - immediate));
        }
        loop {
            let open_before = work.len();
            work.extend(std::iter::from_fn(|| w.next_request()).map(|r| (Some(r.index), r.offset, r.len)));
            prop_assert!(work.len() <= open_before.max(p.max_requests.into()));
            if work.is_empty() {
                break;
            }
            let (index, start, len) = work.remove(0);
            prop_assert!(len > 0 && len <= p.max_request);
            let mut parts: Vec<_> = (0..len).step_by(step as usize).map(|at| (start + at, step.min(len - at))).collect();
            if !p.in_order && parts.len() <= PIECES {
                parts.reverse();
            }
            for (n, (offset, len)) in parts.iter().enumerate() {
                let segment = segment(n as u32, *offset, *len, n + 1 == parts.len());
                prop_assert_eq!(w.take(index, segment), accept(*offset));
                got[*offset as usize..][..*len as usize].iter_mut().for_each(|b| *b += 1);
            }
        }
        prop_assert!(w.is_complete() && w.failure().is_none());
        prop_assert!(got.iter().all(|&b| b == 1));
    }

    /// For any input: accepted data lie within the expected length, and a complete transfer has received every byte.
    #[test]
    fn random_input_does_not_panic(
        p in some_rules(),
        edtl in 0u32..5000,
        wanted in 0u32..6000,
        immediate in 0u32..3000,
        has_unsolicited: bool,
        segments in prop::collection::vec(
            (0u16..4, prop::option::of(0u32..4), 0u32..5000, 0usize..3000, any::<bool>()),
            0..60,
        ),
    ) {
        let mut w = DataOutSequencer::new(edtl, wanted, immediate, has_unsolicited, &p);
        let mut got = vec![false; edtl as usize];
        got.iter_mut().take(immediate as usize).for_each(|b| *b = true);
        for (index, number, offset, len, is_final) in segments {
            w.next_request();
            let index = index.checked_sub(1);
            let segment = DataOutSegment { number, offset, len: len as u32, is_final };
            let expected = w.accepts(index, segment);
            let verdict = w.take(index, segment);
            prop_assert_eq!(matches!(verdict, DataOutVerdict::Accept { .. }), expected);
            if let DataOutVerdict::Accept { offset } = verdict {
                prop_assert!(offset as usize + len <= edtl as usize);
                got[offset as usize..][..len].fill(true);
            }
            prop_assert!(w.open.len() <= usize::from(p.max_requests) + 1);
            prop_assert!(w.open.iter().all(|s| s.pieces.len() <= PIECES));
        }
        if w.is_complete() && w.failure().is_none() {
            prop_assert!(got.iter().take(wanted as usize).all(|b| *b));
        }
    }
}
