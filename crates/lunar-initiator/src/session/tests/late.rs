//! When the time limits of commands and pings run.

use super::*;

#[test]
fn timeout_of_queued_bytes_runs_only_while_none_leave() {
    let mut peer = Peer::new(parameters());
    let start = peer.state.now;
    let at = |s| start + Duration::from_secs(s);
    let sent_at = |peer: &mut Peer, tag| peer.state.tasks.get(tag).expect("the task exists").sent;
    let first = peer.write(512);
    peer.state.ping();
    peer.state.check_send_progress(at(1));
    assert_eq!(
        (sent_at(&mut peer, first), peer.state.oldest_ping()),
        (start, Some(start)),
        "nothing was sent"
    );
    peer.sent();
    peer.state.check_send_progress(at(2));
    assert_eq!((sent_at(&mut peer, first), peer.state.oldest_ping()), (at(2), Some(at(2))), "both were sent");
    let second = peer.write(4096);
    peer.sent();
    peer.state.check_send_progress(at(3));
    assert_eq!(
        (sent_at(&mut peer, first), peer.state.oldest_ping()),
        (at(2), Some(at(2))),
        "only later bytes were sent"
    );
    assert_eq!(sent_at(&mut peer, second), at(3));
    peer.say(pdu::r2t(1 << 48, second, 77, 0, 1024, 2048), &[], false);
    peer.sent();
    peer.state.check_send_progress(at(4));
    assert_eq!((sent_at(&mut peer, first), sent_at(&mut peer, second)), (at(2), at(4)), "its data were sent");
}
