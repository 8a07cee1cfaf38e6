//! When commands that wait to be sent may go on waiting for others.

use super::*;

#[test]
fn commands_wait_for_others_only_while_the_target_has_more_to_do() {
    let mut peer = Peer::new(parameters());
    assert!(!peer.state.keeps_target_busy(), "there is nothing to do");
    let first: Vec<u32> = (0..8).map(|_| peer.read(512)).collect();
    assert!(!peer.state.keeps_target_busy(), "the target has none of them yet");
    peer.sent();
    assert!(peer.state.keeps_target_busy());
    for &tag in &first[..3] {
        peer.respond(tag, 0x82, 0, 512, &[]);
        peer.read(512);
    }
    assert!(peer.state.keeps_target_busy(), "five are with the target, three wait");
    peer.respond(first[3], 0x82, 0, 512, &[]);
    peer.read(512);
    assert!(!peer.state.keeps_target_busy(), "half of them wait");
    peer.sent();
    assert!(peer.state.keeps_target_busy(), "none waits any more");
}

#[test]
fn what_waits_is_not_kept_from_a_target_that_runs_out_of_work() {
    let mut peer = Peer::new(parameters());
    let tags: Vec<u32> = (0..2).map(|_| peer.read(512)).collect();
    peer.sent();
    tags.iter().for_each(|&tag| peer.respond(tag, 0x82, 0, 512, &[]));
    assert!(!peer.state.keeps_target_busy());
    peer.read(512);
    assert!(!peer.state.keeps_target_busy());
}

#[test]
fn a_connection_begins_with_nothing_that_waited_on_the_one_before() {
    let mut peer = Peer::new(parameters());
    peer.read(512);
    peer.state.disconnect(&Error::new(Kind::Lost, "gone"));
    peer.log_in(parameters());
    peer.sent();
    assert!(peer.state.keeps_target_busy(), "the command was sent again, and has left");
}
