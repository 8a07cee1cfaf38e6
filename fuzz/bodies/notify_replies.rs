//! The replies to a notification of Ceph. Input: their bytes.

use lunar_block::NotifyReplies;

/// Bytes of both numbers, of an acknowledgement without its payload, and of a missing watcher.
const LENGTHS: [usize; 3] = [8, 20, 16];

fn len(replies: &NotifyReplies) -> usize {
    let acks = replies.acks.iter().map(|payload| LENGTHS[1] + payload.len());
    LENGTHS[0] + acks.sum::<usize>() + LENGTHS[2] * replies.missing
}

pub fn run(input: &[u8]) {
    let Some(replies) = NotifyReplies::decode(input) else { return };
    let used = len(&replies);
    assert_eq!(NotifyReplies::decode(&input[..used]), Some(replies));
    assert_eq!(NotifyReplies::decode(&input[..used - 1]), None);
}
