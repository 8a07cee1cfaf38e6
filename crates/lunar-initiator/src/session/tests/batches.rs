//! When queued commands may be delayed to form larger sends.

use super::*;

#[test]
fn commands_are_batched_only_while_the_target_is_busy() {
    let mut peer = Peer::new(parameters());
    assert!(!peer.state.keeps_target_busy(), "no command is in flight");
    let first: Vec<u32> = (0..8).map(|_| peer.read(512)).collect();
    assert!(!peer.state.keeps_target_busy(), "none is flushed yet");
    peer.sent();
    assert!(peer.state.keeps_target_busy());
    for &tag in &first[..3] {
        peer.respond(tag, 0x82, 0, 512, &[]);
        peer.read(512);
    }
    assert!(peer.state.keeps_target_busy(), "five are flushed, three are queued");
    peer.respond(first[3], 0x82, 0, 512, &[]);
    peer.read(512);
    assert!(!peer.state.keeps_target_busy(), "half of them are queued");
    peer.sent();
    assert!(peer.state.keeps_target_busy(), "all are flushed");
}

#[test]
fn queued_pdus_are_sent_when_the_target_runs_out_of_work() {
    let mut peer = Peer::new(parameters());
    let tags: Vec<u32> = (0..2).map(|_| peer.read(512)).collect();
    peer.sent();
    tags.iter().for_each(|&tag| peer.respond(tag, 0x82, 0, 512, &[]));
    assert!(!peer.state.keeps_target_busy());
    peer.read(512);
    assert!(!peer.state.keeps_target_busy());
}

#[test]
fn new_connection_starts_with_an_empty_send_queue() {
    let mut peer = Peer::new(parameters());
    peer.read(512);
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "gone"));
    peer.log_in(parameters());
    peer.sent();
    assert!(peer.state.keeps_target_busy(), "the command was resent and flushed");
}
