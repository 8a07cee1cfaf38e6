//! The data transfer of a write. Input: a byte of flags, then EDTL, the wanted length and the immediate length as two
//! bytes each. For each Data-Out: a byte with its tag and F bit, DataSN as a byte, Buffer Offset and length as two
//! bytes each.

use lunar_proto::parameters::Parameters;
use lunar_proto::transfer::{DataOutSegment, DataOutSequencer, DataOutVerdict};

pub fn run(input: &[u8]) {
    let [switches, e1, e0, w1, w0, i1, i0, rest @ ..] = input else { return };
    let on = |bit: u8| switches >> bit & 1 != 0;
    let parameters = Parameters {
        initial_r2t: on(0),
        immediate_data: on(1),
        data_pdu_in_order: on(2),
        max_outstanding_r2t: 1 + u16::from(switches >> 6),
        first_burst_length: 1024,
        max_burst_length: 4096,
        ..Parameters::default()
    };
    let [edtl, wanted, immediate] =
        [[*e1, *e0], [*w1, *w0], [*i1, *i0]].map(u16::from_be_bytes).map(u32::from);
    let mut sequencer = DataOutSequencer::new(edtl, wanted, immediate, on(3), &parameters);
    let mut got = vec![false; edtl as usize];
    got.iter_mut().take(immediate as usize).for_each(|b| *b = true);
    for pdu in rest.chunks_exact(6) {
        while let Some(r2t) = sequencer.next_r2t() {
            assert!(r2t.len > 0 && r2t.len <= 4096 && r2t.offset + r2t.len <= edtl.min(wanted));
            assert!(r2t.ttt_index < parameters.max_outstanding_r2t);
        }
        let [offset, len] = [[pdu[2], pdu[3]], [pdu[4], pdu[5]]].map(u16::from_be_bytes).map(u32::from);
        let segment = DataOutSegment { data_sn: pdu[1].into(), offset, len, is_final: pdu[0] & 0x80 != 0 };
        let tag = u16::from(pdu[0] & 7).checked_sub(1);
        if let DataOutVerdict::Accept { offset } = sequencer.take(tag, segment) {
            got[offset as usize..][..len as usize].fill(true);
        }
    }
    if sequencer.is_complete() && sequencer.failure().is_none() {
        assert!(got.iter().take(wanted as usize).all(|b| *b), "complete although a byte is missing");
    }
}
