//! Commands without a response: aborted, late, or outstanding when the connection is lost.

use super::*;

/// After the response to ABORT TASK, the target may no longer use the memory.
#[test]
fn memory_is_revoked_when_an_abort_is_answered() {
    for reads in [true, false] {
        let mut peer = Peer::new(parameters());
        let tag = if reads { peer.read(65536) } else { peer.write(65536) };
        let got = peer.one();
        assert!(peer.state.abort(tag, &Error::new(ErrorCode::Aborted, "on demand")).is_some());
        let place = remote(got.read.or(got.write));
        // Until the response, the target may use the memory.
        if reads {
            assert!(peer.fill(place, &[1; 512]));
        } else {
            assert!(peer.fetch(place, 512).is_some());
        }
        peer.state.ended_by_abort([tag], "aborted");
        let (result, buf) = peer.end(tag).expect("the command has ended");
        assert_eq!(result.expect_err("aborted").code, ErrorCode::Aborted);
        assert_eq!(buf.expect("the buffer is returned").len(), 65536);
        assert!(if reads { !peer.fill(place, &[1]) } else { peer.fetch(place, 1).is_none() });
    }
}

#[test]
fn aborted_command_is_resent_with_its_own_memory() {
    for reads in [true, false] {
        let mut peer = Peer::new(parameters());
        let tag = if reads { peer.read(65536) } else { peer.write(65536) };
        let first = peer.one();
        peer.state.ended_by_abort([tag], "late");
        assert!(peer.end(tag).is_none(), "the command ended instead of being resent");
        let again = peer.one();
        assert_eq!((again.bhs.itt(), again.bhs.cmd_sn()), (tag, first.bhs.cmd_sn() + 1));
        let places = [&first, &again].map(|got| remote(got.read.or(got.write)));
        assert_ne!(places[0].stag, places[1].stag);
        if reads {
            assert!(peer.fill(places[1], &pattern(65536)));
        } else {
            let rest = peer.fetch(places[1], 65536 - 8192).expect("the memory is registered");
            assert!(rest == pattern(65536)[8192..]);
        }
        peer.respond(tag, 0, 0, 0, &[]);
        assert!(peer.done(tag).1 == pattern(65536));
        assert!(if reads { !peer.fill(places[0], &[1]) } else { peer.fetch(places[0], 1).is_none() });
    }
}

/// The owner gets the timeout error, but the target may still use the memory, which stays registered until the
/// response.
#[test]
fn late_command_keeps_its_memory_until_the_target_ends_it() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(4096);
    let place = remote(peer.one().read);
    peer.state.tasks.expire(tag, Error::new(ErrorCode::TimedOut, "late"));
    let (result, buf) = peer.end(tag).expect("the command has ended for its owner");
    assert_eq!(
        (result.expect_err("the command has timed out").code, buf.map(|b| b.len())),
        (ErrorCode::TimedOut, Some(4096))
    );
    assert!(peer.fill(place, &pattern(4096)), "the memory is no longer registered");
    peer.respond(tag, 0, 0, 0, &[]);
    assert!(peer.state.connection.fault().is_none() && peer.state.tasks.count() == 0);
    assert!(!peer.fill(place, &[1]));
}

#[test]
fn connection_loss_returns_every_buffer() {
    for reads in [true, false] {
        let mut peer = Peer::new(parameters());
        // A command that is not repeatable ends with its connection.
        let cdb = cdb::compare_and_write(0, 1, false);
        let buf = Buf::zeroed(65536);
        let tag = peer.submit(cdb, if reads { Direction::In(buf) } else { Direction::Out(buf) });
        peer.one();
        let held = peer.datamover.clone();
        peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        assert!(peer.end(tag).is_none(), "ended while the target may still execute it");
        peer.reconnect();
        let (result, buf) = peer.end(tag).expect("the command has ended");
        assert_eq!(
            (result.expect_err("the connection is lost").code, buf.map(|b| b.len())),
            (ErrorCode::ConnectionLost, Some(65536))
        );
        drop(held);
    }
}

#[test]
fn repeatable_command_is_resent_after_reconnect() {
    for reads in [true, false] {
        let mut peer = Peer::new(parameters());
        let tag = if reads { peer.read(65536) } else { peer.write(65536) };
        peer.one();
        peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        peer.reconnect();
        let got = peer.one();
        let place = remote(got.read.or(got.write));
        match reads {
            true => assert!(peer.fill(place, &pattern(65536))),
            false => assert!(
                peer.fetch(place, 65536 - 8192).expect("the memory is registered") == pattern(65536)[8192..]
            ),
        }
        peer.respond(tag, 0, 0, 0, &[]);
        assert!(peer.done(tag).1 == pattern(65536));
    }
}

/// Two iWARP endpoints connected by TCP.
async fn by_tcp() -> [Rc<dyn Endpoint>; 2] {
    let bound = lunar_runtime::Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
    let address = bound.local_addr().expect("bound");
    let stream = lunar_runtime::Stream::connect(address).await.expect("connected");
    let called = lunar_runtime::Stream::new(bound.accept().expect("accepted").0).expect("a stream");
    let options = lunar_rdma::iwarp::Options::default();
    let answer = compio::runtime::spawn(async move {
        let asked =
            lunar_rdma::iwarp::request(called, vec![], address, address, &options).await.expect("a request");
        asked.accept(vec![], TERMS).await.expect("accepted")
    });
    let (ours, _) =
        lunar_rdma::iwarp::connect(stream, address, &[], TERMS, &options).await.expect("connected");
    [ours, answer.await.expect("answered")]
}

/// An abandoned connection must be reset. Otherwise the kernel could send its buffered data after newer writes on the
/// next connection.
#[test]
fn given_up_write_is_not_delivered_later() {
    const LEN: usize = 16 << 20;
    compio::runtime::Runtime::new().expect("an event loop").block_on(async {
        let [ours, target] = by_tcp().await;
        let sink = target.expose(lunar_rdma::MemoryRegion::Sink(Buf::zeroed(LEN))).expect("room");
        ours.write(sink, Payload::Buf(Buf::zeroed(LEN), LEN));
        assert!(!ours.flush().expect("a connection"), "the socket buffers took the whole write");
        TransportHandle::Datamover(Rc::new(IserDatamover::new(ours, EndpointEvents::default()))).reset();
        let mut events = EndpointEvents::default();
        while events.list.is_empty() {
            target.readable().await.expect("a readable endpoint");
            target.poll(&mut events);
        }
        let [EndpointEvent::End(Some(e))] = &events.list[..] else { panic!("{:?}", events.list) };
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

/// A device may refuse to register more memory.
#[test]
fn command_without_registered_memory_frees_its_cmd_sn() {
    for reads in [true, false] {
        let mut peer = Peer::new(parameters());
        peer.faults.fail_next_expose.set(true);
        let tag = if reads { peer.read(65536) } else { peer.write(65536) };
        let error = peer.end(tag).expect("the command has ended").0.expect_err("an error");
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.what.contains("no memory to register"), "{error}");
        assert!(peer.sent().is_empty() && peer.state.connection.fault().is_none() && peer.state.is_idle());
        let next = peer.read(65536);
        let got = peer.one();
        assert_eq!(got.bhs.cmd_sn(), 1);
        assert!(peer.fill(remote(got.read), &pattern(65536)));
        peer.respond(next, 0, 0, 0, &[]);
        assert!(peer.done(next).1 == pattern(65536));
    }
}
