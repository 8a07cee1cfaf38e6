use super::*;
use compio::driver::{DriverType, ProactorBuilder};
use compio::runtime::RuntimeBuilder;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Runs the test with each driver that is available here.
fn in_loops(body: impl AsyncFn()) {
    let mut polling = ProactorBuilder::new();
    polling.driver_type(DriverType::Poll);
    for proactor in [ProactorBuilder::new(), polling] {
        let runtime = RuntimeBuilder::new().with_proactor(proactor).build();
        runtime.expect("a runtime").block_on(body());
    }
}

/// Sends five bytes from a client and back, over any address family.
async fn echo(listener: Listener, client: Socket) {
    let (accepted, _) = listener.accept().await.expect("a connection");
    let stream = Stream::new(accepted).expect("a stream");
    let mut client = client;
    client.write_all(b"hello").expect("sent");
    stream.readable().await.expect("bytes");
    let mut bytes = [0; 8];
    assert_eq!(stream.receive(&mut bytes).expect("bytes"), Some(5));
    stream.send(&[IoSlice::new(&bytes[..5])], false).expect("sent");
    client.read_exact(&mut bytes[..5]).expect("an answer");
    assert_eq!(&bytes[..5], b"hello");
}

#[test]
fn both_families_carry_bytes() {
    in_loops(async || {
        let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let client = std::net::TcpStream::connect(bound.local_addr().expect("bound")).expect("connected");
        echo(Listener::new(bound).expect("a listener"), client.into()).await;
    });
    let path = std::env::temp_dir().join(format!("lunar-net-{}.sock", std::process::id()));
    in_loops(async || {
        let bound = Listener::bind_unix(&path).expect("bound");
        let client = UnixStream::connect(&path).expect("connected");
        echo(Listener::new(bound).expect("a listener"), client.into()).await;
    });
    std::fs::remove_file(path).expect("the socket");
}

/// A splice waits for data unless the socket itself is non-blocking.
#[test]
fn connected_sockets_are_non_blocking() {
    let path = std::env::temp_dir().join(format!("lunar-net-nb-{}.sock", std::process::id()));
    in_loops(async || {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let unix = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let over_tcp = Stream::connect(tcp.local_addr().expect("bound")).await.expect("connected");
        let over_unix = Stream::connect_unix(&path).await.expect("connected");
        for stream in [over_tcp, over_unix] {
            let flags = rustix::fs::fcntl_getfl(&stream.fd).expect("flags");
            assert!(flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
        }
        drop(unix);
        std::fs::remove_file(&path).expect("the socket");
    });
}

#[test]
fn each_receive_begins_a_batch() {
    in_loops(async || {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let stream = Stream::new(Socket::from(std::os::fd::OwnedFd::from(near))).expect("a stream");
        let mut bytes = [0; 4];
        let mut batches = vec![crate::current_batch()];
        far.write_all(&[1; 8]).expect("sent");
        assert_eq!(stream.receive(&mut bytes).expect("bytes"), Some(4));
        batches.push(crate::current_batch());
        assert_eq!(stream.receive_vectored(&mut [IoSliceMut::new(&mut bytes)]).expect("bytes"), Some(4));
        batches.push(crate::current_batch());
        assert_eq!(stream.receive(&mut bytes).expect("nothing"), None);
        assert!(batches.is_sorted_by(|a, b| a < b) && batches[2] == crate::current_batch(), "{batches:?}");
    });
}

#[test]
fn local_connection_is_not_paced() {
    let control = |socket: &dyn AsFd| rustix::net::sockopt::tcp_congestion(socket.as_fd()).expect("a name");
    in_loops(async || {
        let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let stream = Stream::connect(bound.local_addr().expect("bound")).await.expect("connected");
        let (accepted, _) = bound.accept().expect("a connection");
        assert_eq!([control(&stream.fd), control(&accepted)], ["reno", "reno"]);
        let anywhere = Listener::bind("0.0.0.0:0".parse().expect("an address")).expect("bound");
        let untouched = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        assert_eq!(control(&anywhere), control(&untouched));
    });
}

/// The peer sees a reset, and receives at most those unread bytes that are in its own buffer.
#[test]
fn reset_discards_unsent_bytes() {
    in_loops(async || {
        let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let stream = Stream::connect(bound.local_addr().expect("bound")).await.expect("connected");
        stream.reset_on_close(true).expect("an option");
        let (mut peer, _) = bound.accept().expect("a connection");
        let (part, mut sent) = (vec![7; 1 << 16], 0);
        while let Some(n) = stream.send(&[IoSlice::new(&part)], false).expect("the stream is open") {
            sent += n;
        }
        stream.reset();
        let (mut got, mut all) = (0, vec![0; 1 << 16]);
        let end = loop {
            match peer.read(&mut all) {
                Ok(0) => break None,
                Ok(n) => got += n,
                Err(e) => break Some(e.kind()),
            }
        };
        assert_eq!(end, Some(io::ErrorKind::ConnectionReset));
        assert!(got < sent, "{got} of {sent} bytes came");
    });
}

#[test]
fn send_all_to_slow_peer_sends_every_byte() {
    in_loops(async || {
        let (stream, mut peer) = connection();
        stream.set_window(64 << 10).expect("an option");
        let bytes: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_ne_bytes).collect();
        let wanted = bytes.len();
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let mut got = vec![0; wanted];
            peer.read_exact(&mut got).map(|()| got)
        });
        stream.send_all(&bytes).await.expect("a peer that reads");
        assert!(reader.join().expect("a thread").expect("all bytes") == bytes);
    });
}

#[test]
fn send_all_to_closed_peer_fails() {
    in_loops(async || {
        let (stream, peer) = connection();
        stream.set_window(64 << 10).expect("an option");
        drop(peer);
        assert!(stream.send_all(&vec![0; 1 << 20]).await.is_err());
    });
}

#[test]
fn deserted_socket_is_replaced_and_nothing_else() {
    let path = std::env::temp_dir().join(format!("lunar-net-{}.deserted", std::process::id()));
    drop(Listener::bind_unix(&path).expect("the first"));
    let alive = Listener::bind_unix(&path).expect("the first listener is closed");
    let taken = Listener::bind_unix(&path).expect_err("a listener is active");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    drop(alive);
    std::fs::remove_file(&path).expect("the socket");
    std::fs::write(&path, "kept").expect("a file");
    Listener::bind_unix(&path).expect_err("the path is a regular file");
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "kept");
    std::fs::remove_file(path).expect("the file");
}

/// Both ends of a connection over loopback; the first is on this core.
fn connection() -> (Stream, TcpStream) {
    let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
    let peer = TcpStream::connect(bound.local_addr().expect("bound")).expect("connected");
    let (accepted, _) = bound.accept().expect("a connection");
    (Stream::new(accepted).expect("a stream"), peer)
}

/// Waits until the stream is readable, and panics after a timeout.
async fn readable(stream: &Stream) {
    let wait = compio::time::timeout(Duration::from_secs(10), stream.readable());
    wait.await.expect("readable in time").expect("the stream is open");
}

async fn is_quiet(stream: &Stream) -> bool {
    compio::time::timeout(Duration::from_millis(20), stream.readable()).await.is_err()
}

#[test]
fn readiness_remains_after_a_partial_receive() {
    in_loops(async || {
        let (stream, mut peer) = connection();
        let mut bytes = [0; 4];
        for round in 0..3 {
            peer.write_all(&[round; 10]).expect("sent");
            for want in [4, 4, 2] {
                readable(&stream).await;
                assert_eq!(stream.receive(&mut bytes).expect("bytes"), Some(want));
            }
            assert!(
                !stream.is_readable(),
                "a short receive shows that nothing is left, without a system call"
            );
            assert_eq!(stream.receive(&mut bytes).expect("the stream is open"), None);
            assert!(is_quiet(&stream).await, "round {round}");
        }
        peer.write_all(&[7; 8]).expect("sent");
        readable(&stream).await;
        let (mut one, mut two) = ([0; 5], [0; 3]);
        let mut both = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        assert_eq!(stream.receive_vectored(&mut both).expect("bytes"), Some(8));
        peer.write_all(&[8]).expect("sent");
        readable(&stream).await;
        assert_eq!(stream.receive(&mut bytes).expect("bytes"), Some(1));
        // The receive filled its buffer, so the poll may have reported the ninth byte already.
        assert_eq!(stream.receive(&mut bytes).expect("the stream is open"), None);
        if !is_quiet(&stream).await {
            assert_eq!(stream.receive(&mut bytes).expect("the stream is open"), None);
            assert!(is_quiet(&stream).await);
        }
    });
}

/// A receive stops at urgent data, which has no meaning here. The data behind it must not wait for the next bytes.
#[test]
fn data_behind_urgent_data_is_received() {
    in_loops(async || {
        let (stream, mut peer) = connection();
        peer.write_all(&[1; 100]).expect("sent");
        rustix::net::send(&peer, b"!", SendFlags::OOB).expect("sent");
        peer.write_all(&[2; 100]).expect("sent");
        readable(&stream).await;
        let (mut bytes, mut got) = ([0; 4096], 0);
        got += stream.receive(&mut bytes).expect("the stream is open").unwrap_or(0);
        peer.write_all(&[3; 100]).expect("sent");
        while got < 300 {
            readable(&stream).await;
            got += stream.receive(&mut bytes).expect("the stream is open").unwrap_or(0);
        }
        assert_eq!(got, 300);
    });
}

#[test]
fn end_of_stream_is_reported_repeatedly_after_the_data() {
    in_loops(async || {
        for apart in [false, true] {
            let (stream, mut peer) = connection();
            peer.write_all(b"last").expect("sent");
            if apart {
                readable(&stream).await;
            }
            drop(peer);
            let mut bytes = [0; 16];
            for want in [4, 0, 0] {
                readable(&stream).await;
                assert_eq!(stream.receive(&mut bytes).expect("bytes"), Some(want), "apart: {apart}");
            }
        }
    });
}

#[test]
fn waiter_is_woken_by_a_reset_and_a_local_shutdown() {
    let ends: [fn(&Stream, &TcpStream); 3] = [
        |_, peer| SockRef::from(peer).set_linger(Some(Duration::ZERO)).expect("an option"),
        |stream, _| stream.shutdown(Shutdown::Read),
        |stream, _| stream.reset(),
    ];
    in_loops(async || {
        for (n, end) in ends.iter().enumerate() {
            let (stream, peer) = connection();
            assert!(is_quiet(&stream).await);
            end(&stream, &peer);
            if n == 0 {
                drop(peer);
            }
            readable(&stream).await;
            let received = stream.receive(&mut [0; 16]);
            assert!(!matches!(received, Ok(None)), "end {n}: {received:?}");
        }
    });
}

#[test]
fn stream_that_is_dropped_while_it_waits_is_closed() {
    in_loops(async || {
        let (stream, mut peer) = connection();
        assert!(is_quiet(&stream).await);
        drop(stream);
        compio::time::sleep(Duration::from_millis(1)).await;
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
        assert_eq!(peer.read(&mut [0; 1]).expect("an end"), 0);
    });
}

#[test]
fn busy_peer_does_not_starve_other_tasks() {
    in_loops(async || {
        let (stream, mut peer) = connection();
        let (other, mut its_peer) = connection();
        peer.write_all(&[0; 1000]).expect("sent");
        its_peer.write_all(&[1]).expect("sent");
        let heard = std::rc::Rc::new(std::cell::Cell::new(false));
        let is_heard = heard.clone();
        let task = compio::runtime::spawn(async move {
            readable(&other).await;
            is_heard.set(true);
        });
        let mut waits = 0;
        while !heard.get() {
            readable(&stream).await;
            assert_eq!(stream.receive(&mut [0; 1]).expect("bytes"), Some(1));
            waits += 1;
            assert!(waits < 900, "the other task never ran");
        }
        task.await.expect("it ends");
    });
}

/// Both ends of an open connection of either family, with five unread bytes at the first end.
async fn unread(path: Option<&std::path::Path>) -> (Stream, Socket) {
    let (accepted, mut client) = match path {
        None => {
            let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
            let client = TcpStream::connect(bound.local_addr().expect("bound")).expect("connected");
            (Socket::from(bound.accept().expect("a connection").0), Socket::from(client))
        }
        Some(path) => {
            let bound = Listener::bind_unix(path).expect("bound");
            let client = UnixStream::connect(path).expect("connected");
            (Socket::from(bound.accept().expect("a connection").0), Socket::from(client))
        }
    };
    let stream = Stream::new(accepted).expect("a stream");
    client.write_all(b"hello").expect("sent");
    assert_eq!((stream.peer_state(), stream.unread()), (PeerState::Open, 5));
    (stream, client)
}

/// Waits until the cached state of the peer has expired.
fn grow_old(stream: &Stream) {
    std::thread::sleep(Duration::from_millis(1));
    stream.recheck_peer();
}

#[test]
fn reset_is_seen_before_the_bytes_that_came_before_it() {
    in_loops(async || {
        let (stream, client) = unread(None).await;
        client.set_linger(Some(Duration::ZERO)).expect("a socket");
        drop(client);
        grow_old(&stream);
        assert_eq!((stream.peer_state(), &stream.peek(3)[..]), (PeerState::Reset, &b"hel"[..]));
        assert_eq!(stream.receive(&mut [0; 8]).expect("bytes"), Some(5));
        assert_eq!((stream.peer_state(), stream.received()), (PeerState::Reset, 5));
    });
}

#[test]
fn close_is_seen_before_the_bytes_that_came_before_it() {
    let path = std::env::temp_dir().join(format!("lunar-net-close-{}.sock", std::process::id()));
    in_loops(async || {
        for path in [None, Some(path.as_path())] {
            let (stream, client) = unread(path).await;
            client.shutdown(Shutdown::Write).expect("a socket");
            grow_old(&stream);
            assert_eq!((stream.peer_state(), &stream.peek(8)[..]), (PeerState::Closed, &b"hello"[..]));
            drop(client);
            assert_eq!(stream.peer_state(), PeerState::Closed);
        }
    });
    std::fs::remove_file(path).expect("the socket");
}

#[test]
fn peer_state_is_cached_until_the_next_receive() {
    in_loops(async || {
        let (stream, mut client) = unread(None).await;
        client.write_all(b"more").expect("sent");
        assert_eq!(stream.receive(&mut [0; 4]).expect("bytes"), Some(4));
        client.shutdown(Shutdown::Write).expect("a socket");
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(stream.peer_state(), PeerState::Closed);
    });
}

#[test]
fn end_of_a_peer_is_noticed_behind_a_full_pipe() {
    in_loops(async || {
        let (peer, socket) = UnixStream::pair().expect("sockets");
        let stream = Stream::new(std::os::fd::OwnedFd::from(socket)).expect("a stream");
        let mut piped = crate::PipedBytes::empty().expect("a pipe");
        assert!(matches!(stream.receive_piped(&mut piped, 10), Ok(PipeReceive::Nothing)));
        assert_eq!(piped.push(&vec![1; crate::piped_bytes::MAX_PIPED]), crate::piped_bytes::MAX_PIPED);
        drop(peer);
        assert!(matches!(stream.receive_piped(&mut piped, 10), Ok(PipeReceive::Full)));
        stream.readable().await.expect("the end");
        assert_eq!(stream.receive(&mut [0; 8]).expect("the end"), Some(0));
    });
}

#[test]
fn wildcard_is_bound_beside_own_addresses_only() {
    let one = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
    let port = one.local_addr().expect("bound").port();
    let at = |host: &str| SocketAddr::new(host.parse().expect("an address"), port);
    let taken =
        |result: io::Result<TcpListener>| result.err().map(|e| e.kind()) == Some(io::ErrorKind::AddrInUse);
    assert!(taken(Listener::bind_beside(at("0.0.0.0"), &[])), "another server has the port");
    let all = Listener::bind_beside(at("0.0.0.0"), &[&one]).expect("bound");
    // From then on, no one else gets the port.
    assert!(taken(Listener::bind(at("0.0.0.0"))) && taken(Listener::bind(at("127.0.0.1"))));
    drop(one);
    let one = Listener::bind_beside(at("127.0.0.1"), &[&all]).expect("bound");
    drop(all);
    assert!(std::net::TcpStream::connect(at("127.0.0.2")).is_err());
    assert!(std::net::TcpStream::connect(one.local_addr().expect("bound")).is_ok());
}
