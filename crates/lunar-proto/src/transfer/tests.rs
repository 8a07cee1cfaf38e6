//! Transfers written by hand, then by a conforming and by a random initiator.

use proptest::prelude::*;

use super::*;

/// A Data-Out by its DataSN, Buffer Offset, length and F bit.
fn pdu(data_sn: u32, offset: u32, len: u32, is_final: bool) -> DataOutSegment {
    DataOutSegment { data_sn, offset, len, is_final }
}

fn parameters(initial_r2t: bool, immediate_data: bool) -> Parameters {
    Parameters {
        initial_r2t,
        immediate_data,
        first_burst_length: 1024,
        max_burst_length: 2048,
        max_outstanding_r2t: 2,
        ..Parameters::default()
    }
}

fn accept(offset: u32) -> DataOutVerdict {
    DataOutVerdict::Accept { offset }
}

fn r2t(ttt_index: u16, r2t_sn: u32, offset: u32, len: u32) -> Option<R2t> {
    Some(R2t { ttt_index, r2t_sn, offset, len })
}

/// DAT-001, DAT-017, DAT-018, DAT-019, SN-007, SN-008.
#[test]
fn solicited_data_alone() {
    let mut w = DataOutSequencer::new(5000, 5000, 0, true, &parameters(true, false));
    assert_eq!([w.next_r2t(), w.next_r2t(), w.next_r2t()], [r2t(0, 0, 0, 2048), r2t(1, 1, 2048, 2048), None]);
    assert_eq!(w.take(Some(0), pdu(0, 0, 1024, false)), accept(0));
    assert_eq!(w.next_r2t(), None);
    assert_eq!(w.take(Some(0), pdu(1, 1024, 1024, true)), accept(1024));
    assert_eq!(w.next_r2t(), r2t(0, 2, 4096, 904));
    assert_eq!(w.take(Some(1), pdu(0, 2048, 2048, true)), accept(2048));
    assert!(!w.is_complete());
    assert_eq!(w.take(Some(0), pdu(0, 4096, 904, true)), accept(4096));
    assert_eq!((w.is_complete(), w.failure(), w.next_r2t(), w.r2ts()), (true, None, None, 3));
}

/// DAT-003, DAT-004, DAT-007: unsolicited data are not requested by R2T (DAT-029).
#[test]
fn unsolicited_data_first() {
    let mut w = DataOutSequencer::new(3000, 3000, 512, false, &parameters(false, true));
    assert_eq!(w.next_r2t(), None, "the rest of the first burst is on its way");
    assert_eq!(w.take(None, pdu(0, 512, 512, true)), accept(512));
    assert_eq!([w.next_r2t(), w.next_r2t()], [r2t(0, 0, 1024, 1976), None]);
    assert_eq!(w.take(Some(0), pdu(0, 1024, 1976, true)), accept(1024));
    assert!(w.is_complete() && w.failure().is_none());
}

#[test]
fn immediate_data_alone() {
    let w = DataOutSequencer::new(512, 512, 512, true, &parameters(true, true));
    assert!(w.is_complete() && w.failure().is_none());
    let w = DataOutSequencer::new(512, 512, 512, false, &parameters(false, true));
    assert!(w.is_complete() && w.failure().is_none(), "no F bit, but nothing can follow");
    let mut w = DataOutSequencer::new(2000, 2000, 512, true, &parameters(false, true));
    assert_eq!(w.next_r2t(), r2t(0, 0, 512, 1488), "F bit: the rest by R2T");
}

/// DAT-018, DAT-019: each R2T stays within one chunk, and no R2T covers a chunk that is not allowed yet.
#[test]
fn r2t_does_not_cross_a_piece() {
    let mut w = DataOutSequencer::new(7000, 7000, 500, true, &parameters(true, true));
    w.in_pieces(3000);
    assert_eq!((w.next_r2t(), w.arrived(), w.is_awaited()), (None, 500, false));
    w.allow(6000);
    assert_eq!([w.next_r2t(), w.next_r2t()], [r2t(0, 0, 500, 2048), r2t(1, 1, 2548, 452)]);
    assert_eq!(w.take(Some(1), pdu(0, 2548, 452, true)), accept(2548));
    assert_eq!((w.next_r2t(), w.arrived()), (r2t(1, 2, 3000, 2048), 500), "the first burst is missing");
    assert_eq!(w.take(Some(0), pdu(0, 500, 2048, true)), accept(500));
    assert_eq!((w.next_r2t(), w.arrived()), (r2t(0, 3, 5048, 952), 3000));
    assert_eq!(w.take(Some(1), pdu(0, 3000, 2048, true)), accept(3000));
    assert_eq!(w.take(Some(0), pdu(0, 5048, 952, true)), accept(5048));
    assert_eq!((w.next_r2t(), w.arrived(), w.is_complete()), (None, 6000, false), "the last is not let in");
    w.allow(9000);
    assert_eq!(w.next_r2t(), r2t(0, 4, 6000, 1000));
    assert_eq!(w.take(Some(0), pdu(0, 6000, 1000, true)), accept(6000));
    assert_eq!((w.is_complete(), w.is_awaited(), w.arrived()), (true, false, 7000));
}

#[test]
fn stop_between_two_pieces_completes_the_write() {
    let mut w = DataOutSequencer::new(7000, 7000, 0, true, &parameters(true, true));
    w.in_pieces(2000);
    w.allow(2000);
    assert_eq!([w.next_r2t(), w.next_r2t()], [r2t(0, 0, 0, 2000), None]);
    w.stop();
    assert!(!w.is_complete());
    assert_eq!(w.take(Some(0), pdu(0, 0, 2000, true)), accept(0));
    w.allow(4000);
    assert_eq!((w.is_complete(), w.next_r2t()), (true, None));
}

/// Unsolicited data beyond the length that the CDB needs are accepted, but not requested by R2T.
#[test]
fn cdb_needs_less_than_expected() {
    let mut w = DataOutSequencer::new(4096, 600, 0, false, &parameters(false, true));
    assert_eq!(w.take(None, pdu(0, 0, 1024, true)), accept(0));
    assert!(w.is_complete() && w.next_r2t().is_none());
    let mut w = DataOutSequencer::new(4096, 8192, 0, true, &parameters(true, true));
    assert_eq!([w.next_r2t(), w.next_r2t()], [r2t(0, 0, 0, 2048), r2t(1, 1, 2048, 2048)]);
    let w = DataOutSequencer::new(4096, 0, 0, true, &parameters(true, true));
    assert!(w.is_complete());
}

/// DAT-005, DAT-006: commands that violate the negotiated values.
#[test]
fn forbidden_unsolicited_data() {
    for (immediate_len, is_final, p, want, complete) in [
        (512, true, parameters(true, false), DataOutFailure::Unexpected, true),
        (0, false, parameters(true, true), DataOutFailure::Unexpected, false),
        (1025, true, parameters(false, true), DataOutFailure::Amount, true),
        (1025, false, parameters(false, true), DataOutFailure::Amount, false),
    ] {
        let mut w = DataOutSequencer::new(4096, 4096, immediate_len, is_final, &p);
        assert_eq!((w.failure(), w.is_complete(), w.next_r2t()), (Some(want), complete, None));
        if !complete {
            // DAT-035: the response waits for the end of the announced data.
            assert_eq!(w.take(None, pdu(0, 0, 512, false)), DataOutVerdict::Discard);
            assert!(!w.is_complete());
            assert_eq!(w.take(None, pdu(1, 512, 512, true)), DataOutVerdict::Discard);
            assert!(w.is_complete());
        }
    }
    let w = DataOutSequencer::new(100, 100, 101, true, &parameters(false, true));
    assert_eq!(w.failure(), Some(DataOutFailure::Amount), "more than expected");
    let mut w = DataOutSequencer::new(4096, 4096, 0, true, &parameters(true, true));
    assert_eq!(w.take(None, pdu(0, 0, 512, true)), DataOutVerdict::Discard);
    assert_eq!(w.failure().map(DataOutFailure::additional_sense), Some((0x0c, 0x0c)));
}

/// DAT-008, DAT-023, DAT-026, SN-010 on a sequence of 2048 bytes.
#[test]
fn wrong_data_outs() {
    let reject = DataOutVerdict::Invalid;
    for (index, segment, verdict, failure) in [
        (Some(0), pdu(0, 0, 1024, true), DataOutVerdict::Discard, Some((0x0c, 0x0d))),
        (Some(0), pdu(0, 0, 2049, true), DataOutVerdict::Discard, Some((0x0c, 0x0d))),
        (Some(0), pdu(1, 0, 1024, false), DataOutVerdict::Discard, Some((0x47, 0x05))),
        (Some(0), pdu(0, 512, 512, false), reject, None),
        (Some(0), pdu(0, 4096, 512, false), reject, None),
        (Some(0), pdu(0, u32::MAX, 512, false), reject, None),
        (Some(1), pdu(0, 0, 512, true), reject, None),
        (Some(0), pdu(0, 0, 0, false), accept(0), None),
    ] {
        let mut w = DataOutSequencer::new(2048, 2048, 0, true, &parameters(true, false));
        w.next_r2t().unwrap();
        assert_eq!(w.take(index, segment), verdict, "{segment:?}");
        assert_eq!(w.failure().map(DataOutFailure::additional_sense), failure, "{segment:?}");
        assert_eq!(w.is_complete(), failure.is_some() && segment.is_final);
    }
    let mut w = DataOutSequencer::new(2048, 2048, 0, false, &parameters(false, false));
    assert_eq!(w.take(None, pdu(0, 0, 512, true)), DataOutVerdict::Discard, "half of the first burst");
    assert_eq!(w.failure(), Some(DataOutFailure::Amount));
}

/// DAT-027: an empty Data-Out may carry the F bit alone.
#[test]
fn empty_data_out_may_carry_the_final_bit() {
    let mut w = DataOutSequencer::new(2048, 2048, 0, true, &parameters(true, false));
    w.next_r2t().unwrap();
    assert_eq!(w.take(Some(0), pdu(0, 0, 2048, false)), accept(0));
    assert!(!w.is_complete());
    assert_eq!(w.take(Some(0), pdu(1, 2048, 0, true)), accept(2048));
    assert!(w.is_complete() && w.failure().is_none());
}

/// DAT-035: after an early error no R2T is sent, and the data of earlier R2Ts are awaited.
#[test]
fn stopped_write_awaits_requested_data() {
    let mut w = DataOutSequencer::new(8192, 8192, 0, true, &parameters(true, false));
    w.next_r2t().unwrap();
    w.stop();
    assert_eq!((w.next_r2t(), w.is_complete()), (None, false));
    assert_eq!(w.take(Some(0), pdu(0, 0, 2048, true)), accept(0));
    assert!(w.is_complete());
}

/// DAT-021: any order, but each byte once, and a bounded number of separate ranges.
#[test]
fn data_out_of_order() {
    let p = Parameters { data_pdu_in_order: false, ..parameters(true, false) };
    let mut w = DataOutSequencer::new(2048, 2048, 0, true, &p);
    w.next_r2t().unwrap();
    assert_eq!(w.take(Some(0), pdu(0, 1024, 512, false)), accept(1024));
    assert_eq!(w.take(Some(0), pdu(1, 0, 512, false)), accept(0));
    let reject = DataOutVerdict::Invalid;
    for (offset, len) in [(256, 512), (0, 2048), (1535, 1), (511, 2)] {
        assert_eq!(w.take(Some(0), pdu(2, offset, len, false)), reject);
    }
    assert_eq!(w.take(Some(0), pdu(2, 512, 512, false)), accept(512));
    assert_eq!(w.take(Some(0), pdu(3, 1536, 512, true)), accept(1536));
    assert!(w.is_complete() && w.failure().is_none());

    let mut w = DataOutSequencer::new(2048, 2048, 0, true, &p);
    w.next_r2t().unwrap();
    for n in 0..PIECES as u32 {
        assert_eq!(w.take(Some(0), pdu(n, 2 * n, 1, false)), accept(2 * n));
    }
    assert_eq!(w.take(Some(0), pdu(PIECES as u32, 2 * PIECES as u32, 1, false)), reject);
}

fn some_parameters() -> impl Strategy<Value = Parameters> {
    (any::<[bool; 3]>(), 1u32..3000, 1u32..3000, 1u16..5).prop_map(|(b, first, max, open)| Parameters {
        initial_r2t: b[0],
        immediate_data: b[1],
        data_pdu_in_order: b[2],
        first_burst_length: first.min(max),
        max_burst_length: max,
        max_outstanding_r2t: open,
        ..Parameters::default()
    })
}

proptest! {
    /// Each byte of a conforming initiator's write is accepted once, whatever the lengths.
    #[test]
    fn every_byte_is_written_once(p in some_parameters(), edtl in 0u32..20000, immediate in 0u32..3000, step in 1u32..900) {
        let first = p.first_burst_length.min(edtl);
        let immediate = if p.immediate_data { immediate.min(first) } else { 0 };
        let is_final = p.initial_r2t || immediate == edtl;
        let mut w = DataOutSequencer::new(edtl, edtl, immediate, is_final, &p);
        let mut got = vec![0u8; edtl as usize];
        got[..immediate as usize].fill(1);
        let mut work = vec![];
        if !is_final && immediate < first {
            work.push((None, immediate, first - immediate));
        }
        loop {
            let open_before = work.len();
            work.extend(std::iter::from_fn(|| w.next_r2t()).map(|r| (Some(r.ttt_index), r.offset, r.len)));
            prop_assert!(work.len() <= open_before.max(p.max_outstanding_r2t.into()));
            if work.is_empty() {
                break;
            }
            let (index, start, len) = work.remove(0);
            prop_assert!(len > 0 && len <= p.max_burst_length);
            let mut parts: Vec<_> = (0..len).step_by(step as usize).map(|at| (start + at, step.min(len - at))).collect();
            if !p.data_pdu_in_order && parts.len() <= PIECES {
                parts.reverse();
            }
            for (n, (offset, len)) in parts.iter().enumerate() {
                let segment = pdu(n as u32, *offset, *len, n + 1 == parts.len());
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
        p in some_parameters(),
        edtl in 0u32..5000,
        wanted in 0u32..6000,
        immediate in 0u32..3000,
        is_final: bool,
        pdus in prop::collection::vec((0u16..4, 0u32..4, 0u32..5000, 0usize..3000, any::<bool>()), 0..60),
    ) {
        let mut w = DataOutSequencer::new(edtl, wanted, immediate, is_final, &p);
        let mut got = vec![false; edtl as usize];
        got.iter_mut().take(immediate as usize).for_each(|b| *b = true);
        for (index, data_sn, offset, len, is_final) in pdus {
            w.next_r2t();
            let index = index.checked_sub(1);
            let segment = pdu(data_sn, offset, len as u32, is_final);
            let expected = w.accepts(index, segment);
            let verdict = w.take(index, segment);
            prop_assert_eq!(matches!(verdict, DataOutVerdict::Accept { .. }), expected);
            if let DataOutVerdict::Accept { offset } = verdict {
                prop_assert!(offset as usize + len <= edtl as usize);
                got[offset as usize..][..len].fill(true);
            }
            prop_assert!(w.open.len() <= usize::from(p.max_outstanding_r2t) + 1);
            prop_assert!(w.open.iter().all(|s| s.pieces.len() <= PIECES));
        }
        if w.is_complete() && w.failure().is_none() {
            prop_assert!(got.iter().take(wanted as usize).all(|b| *b));
        }
    }
}
