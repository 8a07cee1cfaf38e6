use super::{GRACE, INBOUND_DRAIN};
use crate::verbs::endpoint_tests::{connection, run, sharing, until};
use crate::verbs::fake::FakeDevice;
use crate::verbs::ffi::EVENT_QP_LAST_WQE_REACHED;
use crate::{Endpoint, EndpointEvent, EndpointEvents, RemoteAddress};
use lunar_runtime::send_queue::Payload;
use std::rc::Rc;
use std::time::Instant;

/// Sends a message that does not complete yet. Returns its id.
fn said(fake: &FakeDevice, end: &Rc<dyn Endpoint>) -> u64 {
    end.send(b"the last word", Payload::Empty, None);
    assert!(end.flush().unwrap());
    fake.take_posts()[0][0].id
}

fn disconnects(fake: &FakeDevice) -> usize {
    fake.state().disconnects
}

fn gone(fake: &FakeDevice) -> usize {
    fake.state().pairs_gone
}

/// Waits for a few polls of the device.
async fn looked(fake: &FakeDevice) {
    let looks = fake.looks().0;
    until(|| fake.looks().0 > looks + 10).await;
}

fn come(end: &Rc<dyn Endpoint>) -> Vec<EndpointEvent> {
    let mut events = EndpointEvents::default();
    end.poll(&mut events);
    events.list
}

#[test]
fn last_message_arrives_before_the_disconnect() {
    for is_dropped in [true, false] {
        run(async move {
            let fake = FakeDevice::new();
            let end = connection(fake, 4);
            let word = said(fake, &end);
            let kept = match is_dropped {
                true => {
                    drop(end);
                    None
                }
                false => {
                    end.close();
                    assert!(
                        matches!(&come(&end)[..], [EndpointEvent::End(None)]),
                        "a local close is reported at once"
                    );
                    assert!(end.flush().is_err());
                    Some(end)
                }
            };
            looked(fake).await;
            assert_eq!((disconnects(fake), gone(fake)), (0, 0));
            fake.complete(&[word]);
            until(|| gone(fake) == 1).await;
            assert!(disconnects(fake) > 0);
            drop(kept);
        });
    }
}

#[test]
fn undelivered_message_is_waited_for_a_bounded_time() {
    run(async {
        let fake = FakeDevice::new();
        let end = connection(fake, 4);
        let word = said(fake, &end);
        let started_at = Instant::now();
        drop(end);
        until(|| disconnects(fake) > 0).await;
        assert!(started_at.elapsed() >= GRACE);
        fake.flush(&[word]);
        until(|| gone(fake) == 1).await;
    });
}

#[test]
fn reset_waits_for_no_message() {
    run(async {
        let fake = FakeDevice::new();
        let end = connection(fake, 4);
        said(fake, &end);
        end.reset();
        assert_eq!(disconnects(fake), 1);
        // A connection that was closed before is disconnected at once too.
        let other = connection(fake, 4);
        said(fake, &other);
        other.close();
        assert_eq!(disconnects(fake), 1);
        other.reset();
        assert_eq!(disconnects(fake), 2);
        // So is one with `reset_on_close`.
        let last = connection(fake, 4);
        said(fake, &last);
        last.reset_on_close(true).unwrap();
        drop(last);
        assert_eq!(disconnects(fake), 3);
    });
}

/// The device may write into the buffer until it has reported the end of the read.
#[test]
fn read_buffer_returns_when_the_device_releases_it() {
    for ends in [true, false] {
        run(async move {
            let fake = FakeDevice::new();
            let end = connection(fake, 4);
            let buf = lunar_runtime::Pool::new(1).try_get(4096).expect("room");
            end.read(9, RemoteAddress { stag: 7, offset: 0 }, buf, 0, 4096);
            end.flush().unwrap();
            let read = fake.take_posts()[0][0].id;
            end.close();
            assert!(come(&end).is_empty() && disconnects(fake) == 1);
            if ends {
                fake.flush(&[read]);
            }
            // Otherwise the pair is destroyed after a while, and the device can no longer write.
            end.readable().await.unwrap();
            assert!(matches!(&come(&end)[..], [EndpointEvent::Read(9, _, Err(_)), EndpointEvent::End(None)]));
            assert_eq!(gone(fake), 1);
            // Nothing is posted to a destroyed pair.
            end.receives(4, 100);
            end.send(b"x", Payload::Empty, None);
            assert!(end.flush().is_err());
            drop(end);
            assert_eq!(gone(fake), 1);
        });
    }
}

/// Destroying a pair discards its completions.
#[test]
fn memory_that_is_shared_is_taken_back_before_the_pair_goes() {
    run(async {
        let fake = FakeDevice::new();
        let (end, _alone) = sharing(fake, 4);
        let _other = connection(fake, 4);
        (0..2).for_each(|n| fake.say(&[n]));
        let read = lunar_runtime::Pool::new(1).try_get(4096).expect("room");
        end.read(9, RemoteAddress { stag: 7, offset: 0 }, read, 0, 4096);
        end.flush().unwrap();
        drop(end);
        assert_eq!(disconnects(fake), 1);
        looked(fake).await;
        // A message that was in flight at the disconnect.
        let late = fake.message(b"late").wr_id;
        fake.flush(&[late]);
        fake.flush(&[fake.take_posts()[0][0].id]);
        until(|| gone(fake) == 1).await;
        assert_eq!(fake.free(), 8);
    });
}

#[test]
fn device_with_last_wqe_event_is_not_waited_for() {
    for reports_last_wqe in [true, false] {
        run(async move {
            let fake = FakeDevice::new();
            let (end, _alone) = sharing(fake, 4);
            let started_at = Instant::now();
            drop(end);
            let pair = *fake.state().pairs.last().unwrap();
            if reports_last_wqe {
                fake.raise_async_event(pair, EVENT_QP_LAST_WQE_REACHED);
            }
            until(|| gone(fake) == 1).await;
            assert_eq!(started_at.elapsed() < INBOUND_DRAIN, reports_last_wqe);
        });
    }
}

#[test]
fn shared_receives_of_a_closing_connection_are_reused() {
    run(async {
        let fake = FakeDevice::new();
        let (end, _alone) = sharing(fake, 4);
        let _other = connection(fake, 4);
        (0..3).for_each(|n| fake.say(&[n]));
        drop(end);
        until(|| gone(fake) == 1).await;
        assert_eq!(fake.free(), 8);
    });
}

#[test]
fn ending_loop_delivers_the_last_message() {
    let fake = FakeDevice::new();
    let (word, end) = std::sync::mpsc::channel();
    let device = std::thread::spawn(move || {
        let word = end.recv().expect("the id of the message");
        std::thread::sleep(super::POLL_INTERVAL * 20);
        assert_eq!(disconnects(fake), 0);
        fake.complete(&[word]);
    });
    run(async {
        let end = connection(fake, 4);
        word.send(said(fake, &end)).unwrap();
    });
    device.join().unwrap();
    assert_eq!(gone(fake), 1);
}
