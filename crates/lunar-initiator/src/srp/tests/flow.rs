//! Credits, and requests of the target.

use super::*;
use crate::session::Event;
use lunar_wire::srp::{Aer, CreditRequest, TargetLogout};

#[test]
fn commands_wait_for_credits_and_one_is_kept() {
    let mut peer = Peer::new(3, true);
    let tags = [(); 4].map(|()| peer.test());
    let units = peer.sent();
    assert_eq!(units.len(), 2);
    peer.good(command(&units[1]).tag);
    assert!(peer.end(tags[1]).is_some() && peer.end(tags[0]).is_none());
    assert_eq!(command(&peer.one()).tag as u32, tags[2]);
    // The credit of an aborted command returns with a later response.
    peer.answer(SrpResponse { tag: command(&units[0]).tag, credits: 2, ..SrpResponse::default() });
    assert_eq!(command(&peer.one()).tag as u32, tags[3]);
    let tag = peer.test();
    assert_eq!(command(&peer.one()).tag as u32, tag, "the credit of the aborted command is used");
    peer.test();
    assert!(peer.sent().is_empty());
}

#[test]
fn answers_that_give_no_credit_close_the_window() {
    let mut peer = Peer::new(2, true);
    let tag = peer.test();
    let unit = peer.one();
    peer.answer(SrpResponse { tag: command(&unit).tag, credits: 0, ..SrpResponse::default() });
    peer.done(tag);
    peer.test();
    assert!(peer.sent().is_empty());
}

#[test]
fn credit_request_is_answered_and_opens_the_window() {
    let mut peer = Peer::new(1, true);
    let tags = [(); 3].map(|()| peer.test());
    assert_eq!(peer.sent().len(), 1);
    let request = CreditRequest { solicited: false, credits: 1, tag: 0x0102_0304_0506_0708 };
    assert!(matches!(peer.say(&request.encode()), Ok(ReceiveStatus::More)));
    let units = peer.sent();
    assert_eq!(units.len(), 2);
    assert_eq!(units[0], [0x41, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(command(&units[1]).tag as u32, tags[1]);
}

#[test]
fn event_is_answered_and_reported() {
    let mut peer = Peer::new(8, true);
    let sense = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 9, 0, 0, 0, 0];
    let mut unit = Vec::new();
    Aer { solicited: false, credits: 0, tag: 5, lun: LUN, sense: &sense }.encode(&mut unit);
    assert!(matches!(peer.say(&unit), Ok(ReceiveStatus::More)));
    assert_eq!(peer.one(), [0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    let events = std::mem::take(&mut peer.state.events);
    let [Event::UnitAttention { lun: LUN, sense }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((sense.key, sense.asc, sense.ascq), (6, 0x2a, 9), "CAPACITY DATA HAS CHANGED");
    unit.clear();
    Aer { solicited: false, credits: 0, tag: 6, lun: LUN, sense: &[] }.encode(&mut unit);
    assert!(matches!(peer.say(&unit), Ok(ReceiveStatus::More)));
    assert!(peer.one()[15] == 6 && peer.state.events.is_empty(), "a reply, but no event");
}

#[test]
fn logout_of_the_target_ends_the_connection() {
    let mut peer = Peer::new(8, true);
    let end = peer.say(&TargetLogout { solicited: false, reason: 3, tag: 1 }.encode());
    assert!(matches!(end, Err(ReceiveError::Io(e)) if e.to_string().contains("reason 0x3")));
}

#[test]
fn answer_to_no_request_gives_its_credits_and_is_passed_over() {
    let mut peer = Peer::new(2, true);
    let tag = peer.test();
    let sent = command(&peer.one()).tag;
    for stray in [0, sent + 1, sent ^ 1 << 32, u64::MAX] {
        peer.good(stray);
    }
    assert!(peer.end(tag).is_none());
    (0..4).for_each(|_| assert_ne!(peer.test(), tag));
    assert_eq!(peer.sent().len(), 4, "one credit for each response");
    peer.good(sent);
    peer.done(tag);
}

/// The number of requests in flight is limited by the posted receives, not only by credits.
#[test]
fn there_is_a_receive_for_each_answer() {
    let mut options = options();
    options.commands = 4;
    let mut peer = Peer::of(&options, &granted(4096, true));
    (0..20)
        .for_each(|_| drop(peer.state.manage(lunar_wire::scsi::TaskManagementFunction::LunReset, LUN, None)));
    let sent = peer.sent();
    assert_eq!(sent.len(), 4 + 8);
    peer.good(super::manage::managed(&sent[0]).tag);
    assert_eq!(peer.sent().len(), 1);
}

#[test]
fn target_that_asks_and_does_not_listen_is_given_up() {
    let mut peer = Peer::new(8, true);
    let request = CreditRequest { solicited: false, credits: 0, tag: 1 }.encode();
    // Nothing is flushed, so the replies stay queued.
    let end = (0..5000).find_map(|_| peer.say(&request).err());
    assert!(matches!(end, Some(ReceiveError::Io(e)) if e.to_string().contains("does not read")));
}

/// A device may refuse to register more memory.
#[test]
fn command_without_registered_memory_takes_no_credit() {
    for reads in [true, false] {
        let mut peer = Peer::new(2, false);
        peer.faults.fail_next_expose.set(true);
        let tag = if reads { peer.read(4096) } else { peer.write(&pattern(4096)) };
        let error = peer.failed(tag);
        assert!(error.what.contains("no memory to register"), "{error}");
        assert!(peer.sent().is_empty() && peer.state.connection.fault().is_none() && peer.state.is_idle());
        let next = peer.test();
        let unit = peer.one();
        peer.good(command(&unit).tag);
        peer.done(next);
    }
}
