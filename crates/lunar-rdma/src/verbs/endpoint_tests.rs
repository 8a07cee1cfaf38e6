//! A connection over a fake device that records calls.
#![allow(unsafe_code)]

use super::endpoint::{EMPTY_ROUNDS, endpoint};
use super::fake::{FakeDevice, INLINE};
use super::ffi::{SEND_INLINE, SEND_SIGNALED, WR_RDMA_WRITE, WR_SEND};
use super::parts::ConnectionParts;
use super::shared::UNSHARED;
use crate::{Endpoint, EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use std::rc::Rc;
use std::time::Duration;

const READS: u8 = 4;

/// A connection with this number of posted receives of 100 bytes.
pub fn connection(fake: &'static FakeDevice, receives: usize) -> Rc<dyn Endpoint> {
    endpoint(ConnectionParts::new(fake.id(), (receives, 100)).unwrap(), READS).unwrap()
}

pub fn run<T>(work: impl Future<Output = T>) -> T {
    compio::runtime::Runtime::new().expect("a runtime").block_on(work)
}

/// Waits until a condition is true.
pub async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    compio::time::timeout(Duration::from_secs(10), wait)
        .await
        .expect("the condition must become true in time");
}

fn messages(events: &EndpointEvents) -> Vec<&[u8]> {
    let text = |event: &EndpointEvent| match event {
        EndpointEvent::Message(range, _) => events.bytes[range.clone()].to_vec().leak() as &[u8],
        other => panic!("{other:?}"),
    };
    events.list.iter().map(text).collect()
}

fn remote(offset: u64) -> RemoteAddress {
    RemoteAddress { stag: 7, offset }
}

#[test]
fn all_that_is_flushed_is_one_call() {
    run(async {
        let fake = FakeDevice::new();
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
        assert!(end.flush().unwrap() && fake.take_posts().is_empty(), "nothing is queued");
    });
}

#[test]
fn receive_memory_is_posted_and_returned_in_one_call() {
    run(async {
        let fake = FakeDevice::new();
        let end = connection(fake, 10);
        assert_eq!(fake.state().receives.iter().map(Vec::len).collect::<Vec<_>>(), [10]);
        (0..10).for_each(|n| fake.say(&[n]));
        let (mut events, batch) = (EndpointEvents::default(), lunar_runtime::current_batch());
        end.poll(&mut events);
        assert_ne!(lunar_runtime::current_batch(), batch, "a receive begins a batch");
        assert_eq!(messages(&events), (0..10).map(|n| [n]).collect::<Vec<_>>());
        assert_eq!(fake.state().receives.len(), 1, "no receive is posted again");
        end.receives(10, 100);
        assert_eq!(fake.state().receives.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10]);
    });
}

/// More receives are wanted than the device has slots. A batch of completions frees slots for a single post.
#[test]
fn batch_of_completions_frees_its_slots_at_once() {
    run(async {
        let fake = FakeDevice::new();
        fake.state().attr.max_qp_wr = 8;
        let end = connection(fake, 20);
        (0..8).for_each(|n| fake.say(&[n]));
        end.poll(&mut EndpointEvents::default());
        assert_eq!(fake.state().receives.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8]);
    });
}

#[test]
fn waiter_polls_arms_one_event_polls_again_and_sleeps() {
    run(async {
        let fake = FakeDevice::new();
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
        assert_eq!(fake.state().arms, 1, "a successful poll does not arm the queue");
    });
}

#[test]
fn ready_completion_arms_no_event() {
    run(async {
        let fake = FakeDevice::new();
        let end = connection(fake, 4);
        fake.say(b"hello");
        end.readable().await.unwrap();
        assert_eq!(fake.looks(), (1, 0));
    });
}

/// The completion arrives after the poll and before the arming, so it raises no event.
#[test]
fn completion_during_arming_is_not_missed() {
    run(async {
        let fake = FakeDevice::new();
        let end = connection(fake, 4);
        let come = fake.message(b"hello");
        fake.state().when_armed.push_back(come);
        end.readable().await.unwrap();
        let mut events = EndpointEvents::default();
        end.poll(&mut events);
        assert_eq!(messages(&events), [b"hello"]);
        assert_eq!(fake.state().arms, 1);
    });
}

#[test]
fn short_messages_go_inline_as_far_as_the_device_takes_them() {
    for (max, least, want) in [(INLINE, 0, 80), (1000, 0, 128), (1000, 220, 220), (79, 0, 0)] {
        run(async move {
            let fake = FakeDevice::new();
            fake.state().max_inline = max;
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

#[test]
fn failed_registration_leaves_the_connection_usable() {
    run(async {
        let fake = FakeDevice::new();
        let end = connection(fake, 4);
        let max = fake.state().regions + 1;
        fake.state().max_regions = max;
        let place = end.expose(MemoryRegion::Sink(Buf::zeroed(4096))).unwrap();
        let error = end.expose(MemoryRegion::Sink(Buf::zeroed(4096))).unwrap_err();
        assert!(error.to_string().contains("4096 bytes"), "{error}");
        end.send(b"still here", Payload::Empty, None);
        assert!(end.flush().unwrap());
        assert!(matches!(end.revoke(place.stag), Some(MemoryRegion::Sink(_))));
        assert!(
            end.expose(MemoryRegion::Source(Rc::new(Buf::zeroed(1)))).is_ok(),
            "the next registration succeeds"
        );
    });
}

/// The addresses and keys of all posted operations.
fn places(fake: &FakeDevice) -> Vec<(u64, u32)> {
    fake.take_posts().iter().flatten().map(|one| (one.addr, one.lkey)).collect()
}

#[test]
fn buffers_of_a_pool_are_made_known_once_and_not_copied() {
    run(async {
        let (fake, pool) = (FakeDevice::new(), lunar_runtime::Pool::new(1));
        let end = connection(fake, 4);
        let before = fake.state().registered;
        let bufs: Vec<Buf> = (0..4).map(|_| pool.try_get(64 << 10).expect("room")).collect();
        let want: Vec<u64> = bufs.iter().map(|buf| buf.as_ptr() as u64).collect();
        bufs.into_iter().for_each(|buf| end.write(remote(0), Payload::Buf(buf, 64 << 10)));
        assert!(end.flush().unwrap());
        let posted = places(fake);
        assert_eq!(posted.iter().map(|(at, _)| *at).collect::<Vec<_>>(), want);
        let regions: std::collections::HashSet<u32> = posted.iter().map(|(_, key)| *key).collect();
        assert_eq!(fake.state().registered - before, regions.len(), "each region is registered once");
        // Another connection of the device reuses the registrations.
        let other = connection(fake, 4);
        let known = fake.state().registered;
        other.read(1, remote(0), pool.try_get(64 << 10).expect("room"), 0, 64 << 10);
        other.flush().unwrap();
        assert!(fake.state().registered <= known + 1, "the region is registered already, or is a new one");
        assert!(regions.contains(&places(fake)[0].1) || fake.state().registered == known + 1);
    });
}

#[test]
fn zeros_of_all_connections_leave_from_one_place() {
    run(async {
        let fake = FakeDevice::new();
        let (one, other) = (connection(fake, 4), connection(fake, 4));
        // The memory of a bounce buffer is dirty before it is used for zeros.
        one.write(remote(0), Payload::Bytes(vec![7; 256 << 10]));
        one.flush().unwrap();
        fake.complete(&[fake.take_posts()[0][0].id]);
        one.poll(&mut EndpointEvents::default());
        for end in [&one, &other] {
            end.write(remote(0), Payload::Zeros((512 << 10) + 1));
            end.write(remote(0), Payload::Zeros(4096));
            assert!(end.flush().unwrap());
        }
        let posted: Vec<_> = fake.take_posts().into_iter().flatten().collect();
        let lens: Vec<_> = posted.iter().map(|one| one.len as usize).collect();
        assert_eq!(lens, [256 << 10, 256 << 10, 1, 4096].repeat(2));
        let place = posted[0].addr as *const u8;
        assert!(posted.iter().all(|one| one.addr == place as u64 && one.lkey == posted[0].lkey));
        // SAFETY: memory that a device would read now.
        let bytes = unsafe { std::slice::from_raw_parts(place, 256 << 10) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn unregistered_memory_is_copied() {
    run(async {
        let (fake, pool) = (FakeDevice::new(), lunar_runtime::Pool::new(1));
        let end = connection(fake, 4);
        // Allocates a bounce buffer before the device accepts no more regions.
        end.write(remote(0), Payload::Bytes(vec![1; 4096]));
        end.flush().unwrap();
        let max = fake.state().regions;
        fake.state().max_regions = max;
        let buf = pool.try_get(4096).expect("room");
        let at = buf.as_ptr() as u64;
        end.write(remote(0), Payload::Buf(buf, 4096));
        assert!(end.flush().unwrap());
        assert_ne!(places(fake)[1].0, at);
    });
}

/// An iWARP peer gets the key of the destination, and could write wherever this key is valid.
#[test]
fn reads_land_in_the_buffers_of_a_pool_but_not_on_iwarp() {
    for (fake, lands) in [(FakeDevice::new(), true), (FakeDevice::iwarp(), false)] {
        run(async move {
            let pool = lunar_runtime::Pool::new(1);
            let end = connection(fake, 4);
            let buf = pool.try_get(4096).expect("room");
            let at = buf.as_ptr() as u64;
            end.read(9, remote(0), buf, 100, 1000);
            end.flush().unwrap();
            let posted = fake.take_posts();
            assert_eq!(posted[0][0].addr == at + 100, lands);
            fake.complete(&[posted[0][0].id]);
            let mut events = EndpointEvents::default();
            end.poll(&mut events);
            assert!(
                matches!(&events.list[..], [EndpointEvent::Read(9, buf, Ok(()))] if buf.as_ptr() as u64 == at)
            );
        });
    }
}

#[test]
fn connections_beyond_a_number_share_their_memory_for_messages() {
    run(async {
        let fake = FakeDevice::new();
        let alone: Vec<_> = (0..UNSHARED).map(|_| connection(fake, 10)).collect();
        assert_eq!(fake.state().shares, 0);
        assert_eq!(fake.receives(), (UNSHARED, 0));
        let mut sharing: Vec<_> = (0..3).map(|_| connection(fake, 10)).collect();
        assert_eq!(fake.state().shares, 3);
        assert_eq!(fake.receives(), (UNSHARED, 3), "each connection adds its receives");
        let room: usize = fake.state().shared_receives.iter().map(Vec::len).sum();
        assert_eq!(room, 30);
        // The receives of a closed connection serve the next one.
        sharing.pop();
        until(|| fake.state().pairs_gone == 1).await;
        sharing.push(connection(fake, 10));
        assert_eq!(fake.receives(), (UNSHARED, 3));
        drop(alone);
        until(|| fake.state().pairs_gone == UNSHARED + 1).await;
        connection(fake, 10);
        assert_eq!(
            fake.receives(),
            (UNSHARED + 1, 3),
            "below the threshold a connection has its own receives"
        );
    });
}

/// A peer may send more messages than allowed, and find receives of others.
#[test]
fn each_completion_queue_has_room_for_the_shared_receives() {
    for (max_cqe, alone, sharing_room) in [(8192, 2048, 2024), (1000, 1000, 1000)] {
        run(async move {
            let fake = FakeDevice::new();
            fake.state().attr.max_cqe = max_cqe;
            let (_end, _alone) = sharing(fake, 4);
            let rooms = fake.state().rooms.clone();
            assert_eq!((rooms[0], rooms[UNSHARED]), (alone, sharing_room));
        });
    }
}

/// Without RNR, a message that finds no receive would end the connection.
#[test]
fn iwarp_and_devices_without_srq_share_no_receives() {
    for fake in [FakeDevice::iwarp(), FakeDevice::new()] {
        run(async move {
            fake.state().attr.max_srq = 0;
            let all: Vec<_> = (0..UNSHARED + 2).map(|_| connection(fake, 10)).collect();
            assert_eq!((fake.state().shares, all.len()), (0, UNSHARED + 2));
        });
    }
    run(async {
        let fake = FakeDevice::iwarp();
        let all: Vec<_> = (0..UNSHARED + 2).map(|_| connection(fake, 10)).collect();
        assert_eq!((fake.state().shares, all.len()), (0, UNSHARED + 2));
    });
}

/// A connection with the shared receive queue. The others have their own receives.
pub fn sharing(fake: &'static FakeDevice, receives: usize) -> (Rc<dyn Endpoint>, Vec<Rc<dyn Endpoint>>) {
    let alone = (0..UNSHARED).map(|_| connection(fake, 0)).collect();
    (connection(fake, receives), alone)
}

#[test]
fn shared_receive_is_reposted_once_its_message_is_taken() {
    run(async {
        let fake = FakeDevice::new();
        let (end, _alone) = sharing(fake, 4);
        (0..3).for_each(|n| fake.say(&[n]));
        let mut events = EndpointEvents::default();
        end.poll(&mut events);
        assert_eq!(messages(&events), [[0], [1], [2]]);
        assert_eq!(fake.state().shared_receives.iter().map(Vec::len).collect::<Vec<_>>(), [4, 3]);
        end.receives(3, 100);
        assert_eq!(fake.state().shared_receives.len(), 2, "the receives are already posted");
    });
}

#[test]
fn peer_over_its_limits_takes_no_receives_of_others() {
    for (count, len, why) in
        [(3, 100, "for which no receive buffer was posted"), (1, 101, "longer than its receive")]
    {
        run(async move {
            let fake = FakeDevice::new();
            let (end, _alone) = sharing(fake, 2);
            let _other = connection(fake, 2);
            (0..count).for_each(|_| fake.say(&vec![1; len]));
            let mut events = EndpointEvents::default();
            end.poll(&mut events);
            let Some(EndpointEvent::End(Some(reason))) = events.list.last() else { panic!("{events:?}") };
            assert!(reason.to_string().contains(why), "{reason}");
            drop(end);
            until(|| fake.state().pairs_gone == 1).await;
            assert_eq!(fake.free(), 4, "all receives are posted again");
        });
    }
}

/// Soft iWARP would end the connection on an inline Send with Invalidate.
#[test]
fn invalidating_send_is_inline_except_on_iwarp() {
    for (fake, want) in [(FakeDevice::new(), [true, true]), (FakeDevice::iwarp(), [true, false])] {
        run(async move {
            let end = connection(fake, 4);
            end.send(b"done", Payload::Empty, None);
            end.send(b"done", Payload::Empty, Some(5));
            end.flush().unwrap();
            let posts = fake.take_posts();
            let inline: Vec<_> = posts[0].iter().map(|one| one.flags & SEND_INLINE != 0).collect();
            assert_eq!(inline, want);
        });
    }
}
