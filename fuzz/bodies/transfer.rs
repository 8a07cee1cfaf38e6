//! The data transfer of a write. Input: a byte of flags, then the expected, the wanted and the immediate length as
//! two bytes each. For each segment: a byte with its tag and two flags (the last one, without a number), its number
//! as a byte, its offset and length as two bytes each.

use lunar_proto::transfer::{DataOutRules, DataOutSegment, DataOutSequencer, DataOutVerdict};

pub fn run(input: &[u8]) {
    let [switches, e1, e0, w1, w0, i1, i0, rest @ ..] = input else { return };
    let on = |bit: u8| switches >> bit & 1 != 0;
    let rules = DataOutRules {
        max_immediate: if on(1) { 1024 } else { 0 },
        max_unsolicited: if on(0) { 0 } else { 1024 },
        max_request: 4096,
        max_requests: 1 + u16::from(switches >> 6),
        in_order: on(2),
    };
    let [expected, wanted, immediate] =
        [[*e1, *e0], [*w1, *w0], [*i1, *i0]].map(u16::from_be_bytes).map(u32::from);
    let mut sequencer = DataOutSequencer::new(expected, wanted, immediate, !on(3), &rules);
    let mut got = vec![false; expected as usize];
    got.iter_mut().take(immediate as usize).for_each(|b| *b = true);
    for part in rest.chunks_exact(6) {
        while let Some(request) = sequencer.next_request() {
            assert!(request.len > 0 && request.len <= 4096);
            assert!(request.offset + request.len <= expected.min(wanted));
            assert!(request.index < rules.max_requests);
        }
        let [offset, len] = [[part[2], part[3]], [part[4], part[5]]].map(u16::from_be_bytes).map(u32::from);
        let number = (part[0] & 0x40 == 0).then_some(part[1].into());
        let segment = DataOutSegment { number, offset, len, is_final: part[0] & 0x80 != 0 };
        let tag = u16::from(part[0] & 7).checked_sub(1);
        if let DataOutVerdict::Accept { offset } = sequencer.take(tag, segment) {
            got[offset as usize..][..len as usize].fill(true);
        }
    }
    if sequencer.is_complete() && sequencer.failure().is_none() {
        assert!(got.iter().take(wanted as usize).all(|b| *b), "complete although a byte is missing");
    }
}
