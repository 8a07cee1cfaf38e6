//! A target that sends arbitrary information units.

use super::*;
use proptest::prelude::*;

/// Units that pass the first checks: a valid opcode, the tag of a request, and random bytes.
fn unit() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop::sample::select(vec![0xc1_u8, 0xc1, 0xc1, 0x81, 0x82, 0x80, 0x00]);
    (opcode, 0_u8..5, prop::collection::vec(any::<u8>(), 0..80), any::<bool>()).prop_map(
        |(opcode, tag, mut b, calm)| {
            b.insert(0, opcode);
            if let Some(place) = b.get_mut(8..16) {
                place.copy_from_slice(&[0, 0, 0, tag + 1, 0, 1, 0, tag]);
            }
            // Valid lengths are rare in random bytes.
            if calm && let Some(place) = b.get_mut(28..36) {
                place.fill(0);
            }
            b
        },
    )
}

proptest! {
    #[test]
    fn commands_end_once_with_buffers_for_any_target_input(
        units in prop::collection::vec(unit(), 0..24)
    ) {
        let mut peer = Peer::new(4, true);
        let tags = [peer.read(512), peer.write(&pattern(9000)), peer.test(), peer.write(&[1; 64])];
        for unit in units {
            drop(peer.sent());
            if peer.say(&unit).is_err() || peer.state.connection.fault().is_some() {
                break;
            }
            peer.state.ping();
        }
        let Peer { mut state, datamover, target, .. } = peer;
        drop((datamover, target));
        state.late_writes = crate::LateWrites::Risk;
        state.disconnect(&Error::new(crate::ErrorCode::ConnectionLost, "cut"));
        state.fail_queued(&Error::new(crate::ErrorCode::ConnectionLost, "over"), |_| true);
        for (tag, len) in tags.into_iter().zip([512, 9000, 0, 64]) {
            let (result, buf) = state.poll(tag, Waker::noop()).expect("the command has ended");
            prop_assert_eq!(buf.map_or(0, |buf| buf.len()), len);
            prop_assert!(result.is_err() || result.is_ok_and(|done| done.transferred <= len));
        }
    }
}
