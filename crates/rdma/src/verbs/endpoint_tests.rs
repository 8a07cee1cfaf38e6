//! A connection over a device that counts how it is called.

use super::endpoint::{EMPTY_ROUNDS, endpoint};
use super::fake::{Fake, INLINE};
use super::ffi::{SEND_INLINE, SEND_SIGNALED, WR_RDMA_WRITE, WR_SEND};
use super::parts::Parts;
use crate::{Endpoint, Event, Events, Remote};
use net::out::Payload;
use std::rc::Rc;

const READS: u8 = 4;

/// A connection that takes so many messages of 100 bytes.
fn connection(fake: &'static Fake, receives: usize) -> Rc<dyn Endpoint> {
    endpoint(Parts::new(fake.id(), (receives, 100)).unwrap(), READS).unwrap()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    compio::runtime::Runtime::new().expect("a runtime").block_on(work)
}

fn messages(events: &Events) -> Vec<&[u8]> {
    let text = |event: &Event| match event {
        Event::Message(range, _) => events.bytes[range.clone()].to_vec().leak() as &[u8],
        other => panic!("{other:?}"),
    };
    events.list.iter().map(text).collect()
}

fn remote(offset: u64) -> Remote {
    Remote { stag: 7, offset }
}

#[test]
fn all_that_is_flushed_is_one_call() {
    run(async {
        let fake = Fake::new();
        let end = connection(fake, 4);
        for n in 0..20 {
            end.write(remote(n), Payload::Bytes(vec![1; 200]));
            end.send(&[2; 200], Payload::Empty, None);
        }
        assert!(end.flush().unwrap());
        let posts = fake.take_posts();
        assert_eq!((posts.len(), posts[0].len()), (1, 40));
        let kinds: Vec<_> = posts[0].iter().map(|one| (one.opcode, one.flags)).collect();
        assert_eq!(kinds, [(WR_RDMA_WRITE, 0), (WR_SEND, SEND_SIGNALED)].repeat(20));
        assert!(end.flush().unwrap() && fake.take_posts().is_empty(), "nothing is left");
    });
}

#[test]
fn memory_for_messages_is_given_in_one_call_and_given_back_in_one() {
    run(async {
        let fake = Fake::new();
        let end = connection(fake, 10);
        assert_eq!(fake.state().receives.iter().map(Vec::len).collect::<Vec<_>>(), [10]);
        (0..10).for_each(|n| fake.say(&[n]));
        let mut events = Events::default();
        end.poll(&mut events);
        assert_eq!(messages(&events), (0..10).map(|n| [n]).collect::<Vec<_>>());
        assert_eq!(fake.state().receives.len(), 1, "nobody wants more yet");
        end.receives(10, 100);
        assert_eq!(fake.state().receives.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10]);
    });
}

/// More is wanted than the device has room for: what comes makes room, all at once.
#[test]
fn what_comes_together_makes_room_together() {
    run(async {
        let fake = Fake::new();
        fake.state().attr.max_qp_wr = 8;
        let end = connection(fake, 20);
        (0..8).for_each(|n| fake.say(&[n]));
        end.poll(&mut Events::default());
        assert_eq!(fake.state().receives.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8]);
    });
}

#[test]
fn who_waits_looks_a_few_times_asks_for_one_event_looks_once_more_and_sleeps() {
    run(async {
        let fake = Fake::new();
        let end = connection(fake, 4);
        let waits = compio::runtime::spawn({
            let end = end.clone();
            async move { end.readable().await }
        });
        while fake.state().arms == 0 {
            compio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(fake.looks(), (EMPTY_ROUNDS + 1, 1));
        fake.say(b"hello");
        fake.ring();
        waits.await.unwrap_or_else(|_| panic!("the task ended")).unwrap();
        assert_eq!(fake.state().arms, 1, "who found something asks for nothing");
    });
}

#[test]
fn what_is_there_already_asks_for_no_event() {
    run(async {
        let fake = Fake::new();
        let end = connection(fake, 4);
        fake.say(b"hello");
        end.readable().await.unwrap();
        assert_eq!(fake.looks(), (1, 0));
    });
}

/// Its event is that of before: nobody would be woken.
#[test]
fn what_comes_while_an_event_is_asked_for_is_not_slept_over() {
    run(async {
        let fake = Fake::new();
        let end = connection(fake, 4);
        let come = fake.message(b"hello");
        fake.state().when_armed.push_back(come);
        end.readable().await.unwrap();
        let mut events = Events::default();
        end.poll(&mut events);
        assert_eq!(messages(&events), [b"hello"]);
        assert_eq!(fake.state().arms, 1);
    });
}

#[test]
fn short_messages_go_inline_as_far_as_the_device_takes_them() {
    for (most, least, want) in [(INLINE, 0, 80), (1000, 0, 128), (1000, 220, 220), (79, 0, 0)] {
        run(async move {
            let fake = Fake::new();
            fake.state().most_inline = most;
            fake.state().least_inline = least;
            let end = connection(fake, 4);
            let lens = [1, 76, 80, 81, 128, 129, 220, 221];
            lens.iter().for_each(|len| end.send(&vec![3; *len], Payload::Empty, None));
            end.flush().unwrap();
            let posts = fake.take_posts();
            for one in posts.iter().flatten() {
                let is_inline = one.flags & SEND_INLINE != 0;
                assert_eq!(is_inline, one.len <= want, "{} bytes of {want}", one.len);
            }
            assert_eq!(posts[0].len(), lens.len());
        });
    }
}
