//! Calls to the connection manager, and its events.

use super::endpoint_tests::{connection, run, until};
use super::fake::{FakeDevice, FakeId};
use super::ffi::*;
use super::listener::{Listener, Options, listen};
use super::{PendingRequest, connect};
use crate::{ConnParam, ConnectError, ConnectRequest, EndpointEvent, EndpointEvents};
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;

const TERMS: ConnParam = ConnParam { ord: 64, ird: 1, receives: (4, 100) };

fn said(kind: c_int) -> FakeId {
    FakeId { kind, ..FakeId::default() }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn portal(fake: &'static FakeDevice, text: &str) -> Listener {
    fake.install();
    listen(at(text), Options::default()).unwrap()
}

/// Queues a connection request on the event channel with this index, and receives it.
async fn request(
    fake: &'static FakeDevice,
    listener: &mut Listener,
    number: usize,
    depths: (u8, u8),
) -> PendingRequest {
    fake.queue_event(number, FakeId { private: b"let me in", depths, ..said(CONNECT_REQUEST) });
    listener.next().await
}

#[test]
fn portal_listens_again_when_its_device_or_address_returns() {
    for kind in [DEVICE_REMOVAL, ADDR_CHANGE] {
        run(async move {
            let fake = FakeDevice::new();
            let mut listener = portal(fake, "192.0.2.1:3260");
            fake.state().manager.is_gone = true;
            fake.queue_event(0, said(kind));
            // Each attempt creates a channel. None may leak.
            let gone = async {
                until(|| fake.state().manager.queues() > 3).await;
                assert_eq!(fake.held(), (0, 0));
                fake.state().manager.is_gone = false;
            };
            let waits = async {
                listener.next().await;
            };
            lunar_runtime::either(waits, gone).await;
            let back = async { until(|| fake.state().manager.listens.len() == 2).await };
            let waits = async {
                listener.next().await;
            };
            lunar_runtime::either(waits, back).await;
            let listens = fake.state().manager.listens.clone();
            assert_eq!(listens[0], listens[1], "the same address and options");
            assert_eq!(fake.held(), (1, 1));
            let queue = fake.state().manager.queues() - 1;
            let pending = request(fake, &mut listener, queue, (1, 1)).await;
            assert_eq!(pending.private(), b"let me in");
        });
    }
}

#[test]
fn other_portals_do_not_hear_of_a_device_that_is_gone() {
    run(async {
        let fake = FakeDevice::new();
        let mut gone = portal(fake, "192.0.2.1:3260");
        let mut other = portal(fake, "192.0.2.2:3260");
        fake.state().manager.is_gone = true;
        fake.queue_event(0, said(DEVICE_REMOVAL));
        let waits = async {
            gone.next().await;
        };
        lunar_runtime::either(waits, async { until(|| fake.held() == (1, 1)).await }).await;
        request(fake, &mut other, 1, (1, 1)).await;
    });
}

/// Otherwise the second listener would find the port in use.
#[test]
fn portals_of_both_families_stand_side_by_side() {
    let fake = FakeDevice::new();
    run(async {
        let all = ["0.0.0.0:3260", "[::]:3260"].map(|text| portal(fake, text));
        assert_eq!(all.map(|listener| listener.local_addr()), [at("0.0.0.0:3260"), at("[::]:3260")]);
        let options =
            fake.state().manager.listens.iter().map(|(_, options)| options.clone()).collect::<Vec<_>>();
        // The kernel always limits an IPv4 address to IPv4.
        assert_eq!(options, [vec![OPTION_ID_REUSEADDR], vec![OPTION_ID_REUSEADDR, OPTION_ID_AFONLY]]);
    });
}

#[test]
fn accepted_connection_has_the_common_limits() {
    // The requested limits (reads of the peer, reads of this end), and the granted ones.
    for (asked, granted) in [((128, 1), (1, 1)), ((0, 200), (0, 16)), ((16, 0), (1, 0))] {
        run(async move {
            let fake = FakeDevice::new();
            let mut listener = portal(fake, "192.0.2.1:3260");
            let pending = request(fake, &mut listener, 0, asked).await;
            let end = Box::new(pending).accept(b"welcome".to_vec(), TERMS).await.unwrap();
            let (param, private) = fake.state().manager.params[0].clone();
            assert_eq!((param.responder_resources, param.initiator_depth), granted);
            assert_eq!((param.retry_count, param.rnr_retry_count), (7, 7), "RNR is retried without limit");
            assert_eq!((&private[..], end.info().ord), (&b"welcome"[..], granted.1.into()));
        });
    }
}

#[test]
fn dropped_request_is_rejected() {
    run(async {
        let fake = FakeDevice::new();
        let mut listener = portal(fake, "192.0.2.1:3260");
        drop(request(fake, &mut listener, 0, (1, 1)).await);
        let pending = request(fake, &mut listener, 0, (1, 1)).await;
        Box::new(pending).reject(b"no".to_vec()).await;
        assert_eq!(fake.state().manager.rejects, [b"".to_vec(), b"no".to_vec()]);
        assert_eq!(fake.held(), (1, 1), "rejected requests leave nothing behind");
    });
}

/// Connects to a listener that responds with this event.
async fn connected(fake: &'static FakeDevice, answer: FakeId) -> Result<(u16, Vec<u8>), ConnectError> {
    fake.install();
    let answered = async {
        until(|| !fake.state().manager.params.is_empty()).await;
        fake.queue_event(0, answer);
        std::future::pending().await
    };
    let connected = lunar_runtime::either(connect(at("192.0.2.1:3260"), b"let me in", TERMS), answered).await;
    connected.map(|(end, private)| (end.info().ord, private))
}

#[test]
fn connect_requests_device_limits_and_uses_the_grant() {
    run(async {
        let fake = FakeDevice::new();
        let answer = FakeId { private: b"welcome", depths: (1, 3), ..said(ESTABLISHED) };
        assert_eq!(connected(fake, answer).await.unwrap(), (3, b"welcome".to_vec()));
        let (param, private) = fake.state().manager.params[0].clone();
        assert_eq!((param.responder_resources, param.initiator_depth), (1, 16));
        assert_eq!((param.retry_count, param.rnr_retry_count, &private[..]), (7, 7, &b"let me in"[..]));
    });
}

#[test]
fn failed_connect_reports_the_reason() {
    run(async {
        let rejected = FakeId { status: 28, private: b"no room", ..said(REJECTED) };
        let words = connected(FakeDevice::new(), rejected).await.unwrap_err();
        assert!(matches!(words, ConnectError::Rejected(words) if words == b"no room"));
        let kinds = [
            (REJECTED, 8, io::ErrorKind::ConnectionRefused),
            (UNREACHABLE, -libc::ETIMEDOUT, io::ErrorKind::TimedOut),
            (DEVICE_REMOVAL, 0, io::ErrorKind::Other),
        ];
        for (kind, status, want) in kinds {
            let fake = FakeDevice::new();
            let refused = connected(fake, FakeId { status, ..said(kind) }).await.unwrap_err();
            assert!(matches!(&refused, ConnectError::Io(e) if e.kind() == want), "{kind}: {refused}");
            assert_eq!(fake.held(), (0, 0));
        }
    });
}

#[test]
fn connection_manager_event_ends_the_connection() {
    let rows = [
        (DISCONNECTED, 0, true),
        (TIMEWAIT_EXIT, 0, true),
        (DISCONNECTED, -libc::ECONNRESET, false),
        (DEVICE_REMOVAL, 0, false),
        (ADDR_CHANGE, 0, false),
    ];
    for (kind, status, is_orderly) in rows {
        run(async move {
            let fake = FakeDevice::new();
            let end = connection(fake, 4);
            fake.queue_event(0, said(ESTABLISHED));
            fake.queue_event(0, FakeId { status, ..said(kind) });
            end.readable().await.unwrap();
            let mut events = EndpointEvents::default();
            end.poll(&mut events);
            assert!(
                matches!(&events.list[..], [EndpointEvent::End(reason)] if reason.is_none() == is_orderly),
                "{kind}"
            );
            // A device can only be removed once nothing uses it.
            drop(end);
            until(|| fake.held() == (0, 0)).await;
        });
    }
}
