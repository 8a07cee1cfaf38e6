//! Connections over TCP.

use super::*;
use compio::runtime::{Runtime, spawn};
use lunar_runtime::Listener;
use lunar_runtime::send_queue::Payload;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

fn run<T>(body: impl Future<Output = T>) -> T {
    Runtime::new().expect("an event loop").block_on(body)
}

fn listener() -> (TcpListener, SocketAddr) {
    let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
    let address = bound.local_addr().expect("bound");
    (bound, address)
}

/// Both ends of a TCP connection, and the address of the second end.
async fn streams() -> (Stream, Stream, SocketAddr) {
    let (bound, address) = listener();
    let caller = Stream::connect(address).await.expect("connected");
    let (called, _) = bound.accept().expect("accepted");
    (caller, Stream::new(called).expect("a stream"), address)
}

/// Connects. `take` handles the request.
async fn call<T: 'static>(
    private: &[u8],
    options: Options,
    take: impl AsyncFnOnce(Box<dyn ConnectRequest>) -> T + 'static,
) -> (Result<ConnectedEndpoint, ConnectError>, T) {
    let (caller, called, address) = streams().await;
    let taken = spawn(async move {
        let asked = request(called, vec![], address, address, &Options { crc: false, ..options }).await;
        take(asked.expect("a request")).await
    });
    let connected = connect(caller, address, private, TERMS, &options).await;
    (connected, taken.await.expect("taken"))
}

async fn connected(options: Options) -> [Rc<dyn Endpoint>; 2] {
    let take = async |asked: Box<dyn ConnectRequest>| asked.accept(vec![], TERMS).await.expect("accepted");
    let (caller, called) = call(&[], options, take).await;
    [caller.expect("connected").0, called]
}

/// Polls and sends until this number of events has arrived, or the end of the connection.
async fn serve(end: &dyn Endpoint, events: usize) -> EndpointEvents {
    let mut into = EndpointEvents::default();
    loop {
        end.poll(&mut into);
        if into.list.len() >= events || matches!(into.list.last(), Some(EndpointEvent::End(_))) {
            return into;
        }
        match end.flush() {
            Ok(false) => lunar_runtime::either(end.readable(), end.writable()).await.expect("ready"),
            _ => end.readable().await.expect("readable"),
        }
    }
}

#[test]
fn megabyte_is_written_and_read_with_and_without_crcs() {
    for (crc, mss) in [(false, None), (true, None), (false, Some(1448)), (true, Some(1448))] {
        run(async {
            let [caller, called] = connected(Options { crc, mss, window: None }).await;
            let data = noise(1 << 20);
            let sink = called.expose(MemoryRegion::Sink(Buf::zeroed(data.len()))).unwrap();
            let source = called.expose(MemoryRegion::Source(Rc::new(buf(&data)))).unwrap();
            let other = called.clone();
            let serving = spawn(async move { serve(&*other, 9).await });
            caller.write(sink, Payload::Buf(buf(&data), data.len()));
            caller.send(b"written", Payload::Empty, Some(sink.stag));
            caller.read(7, source, Buf::zeroed(data.len()), 0, data.len());
            let into = serve(&*caller, 1).await;
            let [EndpointEvent::Read(7, read, Ok(()))] = &into.list[..] else { panic!("{:?}", into.list) };
            assert!(read[..] == data[..]);
            assert!(caller.take_moved() && caller.waiting() == 0);
            caller.close();
            let into = serving.await.expect("served");
            assert_eq!(messages(&into), [(&b"written"[..], Some(sink.stag))]);
            assert_eq!(end(&into), Some(None));
            assert!(sunk(called.revoke(sink.stag))[..] == data[..]);
        });
    }
}

/// The data exceed the socket buffers.
#[test]
fn reads_larger_than_socket_buffers_complete() {
    run(async {
        let [caller, called] = connected(Options::default()).await;
        let data = noise(8 << 20);
        let source = called.expose(MemoryRegion::Source(Rc::new(buf(&data)))).unwrap();
        (0..6).for_each(|id| caller.read(id, source, Buf::zeroed(data.len()), 0, data.len()));
        let polling = spawn(async move { end(&serve(&*called, usize::MAX).await) });
        let into = serve(&*caller, 6).await;
        for event in &into.list {
            assert!(matches!(event, EndpointEvent::Read(_, buf, Ok(())) if buf[..] == data[..]));
        }
        drop(caller);
        assert_eq!(polling.await.expect("polled"), Some(None));
    });
}

/// Bytes in the socket count as in flight until TCP has acknowledged them or the socket is reset.
#[test]
fn writes_are_on_their_way_until_the_other_side_has_them() {
    run(async {
        for taken in [true, false] {
            let [caller, called] = connected(Options::default()).await;
            let data = noise(16 << 20);
            let sink = called.expose(MemoryRegion::Sink(Buf::zeroed(data.len()))).unwrap();
            assert!(caller.fence_done(caller.fence()));
            caller.write(sink, Payload::Buf(buf(&data), data.len()));
            let mark = caller.fence();
            assert!(!caller.flush().unwrap() && !caller.fence_done(mark));
            if taken {
                let polling = spawn(async move { serve(&*called, usize::MAX).await });
                while !caller.fence_done(mark) {
                    _ = caller.flush().unwrap();
                    lunar_runtime::yield_now().await;
                }
                drop(caller);
                polling.await.expect("polled");
            } else {
                caller.reset();
                assert!(caller.fence_done(mark));
            }
        }
    });
}

/// A connection whose socket buffers are full of written data.
async fn stuck() -> [Rc<dyn Endpoint>; 2] {
    let [caller, called] = connected(Options::default()).await;
    let sink = called.expose(MemoryRegion::Sink(Buf::zeroed(1 << 20))).unwrap();
    while caller.flush().unwrap() {
        caller.write(sink, Payload::Zeros(65536));
    }
    [caller, called]
}

/// The kernel still counts bytes that it will never send.
#[test]
fn failed_connection_has_nothing_in_flight() {
    run(async {
        let [caller, called] = stuck().await;
        let mark = caller.fence();
        assert!(!caller.fence_done(mark));
        called.reset();
        assert!(end(&serve(&*caller, usize::MAX).await).expect("the stream has ended").is_some());
        assert!(caller.fence_done(mark));
    });
}

/// The data are in the socket buffers of both ends.
#[test]
fn bytes_in_the_socket_are_not_delivered() {
    run(async {
        let [caller, _called] = stuck().await;
        let mark = caller.fence();
        caller.close();
        assert!(!caller.fence_done(mark), "the kernel is still sending the data");
    });
}

#[test]
fn private_data_travel_both_ways_and_so_do_the_facts() {
    run(async {
        for len in [0, 1, 4, 508, 509, 512] {
            let take = async move |asked: Box<dyn ConnectRequest>| {
                assert_eq!(asked.private(), noise(len));
                let terms = ConnParam { ird: 2, ord: 1, ..TERMS };
                asked.accept(noise(512 - len), terms).await.expect("accepted")
            };
            let (caller, called) = call(&noise(len), Options::default(), take).await;
            let (caller, private) = caller.expect("connected");
            assert_eq!(private, noise(512 - len));
            assert_eq!((caller.info().ord, called.info().ord), (2, 1));
            assert_eq!(caller.info().peer, called.info().local);
            assert!(caller.info().sends_invalidate && caller.info().provider == "iwarp");
        }
        let (caller, _called, address) = streams().await;
        let refused = connect(caller, address, &[0; 513], TERMS, &Options::default()).await;
        assert!(matches!(refused, Err(ConnectError::Io(e)) if e.kind() == io::ErrorKind::InvalidInput));
    });
}

#[test]
fn rejection_reaches_the_caller_with_private_data() {
    run(async {
        let reject = async |asked: Box<dyn ConnectRequest>| asked.reject(b"busy".to_vec()).await;
        let (refused, ()) = call(b"hello", Options::default(), reject).await;
        assert!(matches!(refused, Err(ConnectError::Rejected(why)) if why == b"busy"));
        let (refused, ()) = call(b"hello", Options::default(), async |asked| drop(asked)).await;
        assert!(matches!(refused, Err(ConnectError::Rejected(why)) if why.is_empty()));
    });
}

/// The reply to a client that sends these bytes and then nothing more, and the result of the request.
fn said(bytes: &[u8]) -> (Vec<u8>, io::Result<Vec<u8>>) {
    let (bound, address) = listener();
    let bytes = bytes.to_vec();
    let caller = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(&bytes).expect("sent");
        stream.shutdown(Shutdown::Write).expect("the socket is shut down");
        let mut heard = vec![];
        stream.read_to_end(&mut heard).expect("the stream ends");
        heard
    });
    let asked = run(async {
        let stream = Stream::new(bound.accept().expect("accepted").0).expect("a stream");
        let asked = request(stream, vec![], address, address, &Options::default()).await?;
        let private = asked.private().to_vec();
        asked.accept(b"yes".to_vec(), TERMS).await?;
        Ok(private)
    });
    (caller.join().expect("a caller"), asked)
}

#[test]
fn handshake_has_the_bytes_of_the_standard() {
    let (heard, asked) = said(b"MPA ID Req Frame\x10\x02\x00\x08\x00\x80\x00\x01\x80\0\0\0");
    assert_eq!(heard, b"MPA ID Rep Frame\x10\x02\x00\x07\x00\x04\x00\x04yes");
    assert_eq!(asked.expect("a request"), b"\x80\0\0\0");
    let (heard, _) = said(b"MPA ID Req Frame\x40\x01\x00\x00");
    assert_eq!(heard, b"MPA ID Rep Frame\x40\x01\x00\x03yes");
    let (heard, _) = said(b"MPA ID Req Frame\x50\x02\x00\x04\xc0\x01\xc0\x01");
    assert_eq!(heard, b"MPA ID Rep Frame\x50\x02\x00\x07\x80\x04\x80\x01yes");
}

#[test]
fn invalid_mpa_request_is_rejected() {
    let long = [&b"MPA ID Req Frame\x00\x01\x02\x01"[..], &[0; 513]].concat();
    for (said_to, reply) in [
        (&b"MPA ID Req Frame\x80\x01\x00\x00"[..], &b"MPA ID Rep Frame\x20\x01\x00\x00"[..]),
        (b"MPA ID Req Frame\x00\x03\x00\x00", b"MPA ID Rep Frame\x20\x02\x00\x00"),
        (&long, b"MPA ID Rep Frame\x20\x02\x00\x00"),
    ] {
        let (heard, asked) = said(said_to);
        assert_eq!((&heard[..], asked.is_err()), (reply, true));
    }
    for nonsense in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"MPA ID Rep Frame\0\x01\0\0", b"MPA ID", b""] {
        let (heard, asked) = said(nonsense);
        assert!(heard.is_empty() && asked.is_err());
    }
}

/// The result of a connect that gets this reply, and the request.
fn answered(reply: &[u8]) -> (Result<Vec<u8>, ConnectError>, Vec<u8>) {
    let (bound, address) = listener();
    let reply = reply.to_vec();
    let called = thread::spawn(move || {
        let mut stream = bound.accept().expect("accepted").0;
        let mut asked = vec![0; 26];
        stream.read_exact(&mut asked).expect("a request");
        stream.write_all(&reply).expect("sent");
        asked
    });
    let answer = run(async {
        let stream = Stream::connect(address).await.expect("connected");
        connect(stream, address, b"hi", TERMS, &Options { crc: true, ..Options::default() }).await
    });
    (answer.map(|(_, private)| private), called.join().expect("the thread panicked"))
}

#[test]
fn reply_of_either_mpa_revision_is_accepted() {
    let (answer, asked) = answered(b"MPA ID Rep Frame\x00\x01\x00\x02ok");
    assert_eq!(asked, b"MPA ID Req Frame\x50\x02\x00\x06\x00\x04\x00\x04hi");
    assert_eq!(answer.expect("connected"), b"ok");
    let (answer, _) = answered(b"MPA ID Rep Frame\x10\x02\x00\x06\x00\x01\x00\x01ok");
    assert_eq!(answer.expect("connected"), b"ok");
    let (answer, _) = answered(b"MPA ID Rep Frame\x20\x01\x00\x02no");
    assert!(matches!(answer, Err(ConnectError::Rejected(why)) if why == b"no"));
    for wrong in
        [&b"MPA ID Rep Frame\x80\x01\x00\x00"[..], b"MPA ID Rep Frame\x00\x09\x00\x00", b"MPA ", b"HTTP"]
    {
        assert!(matches!(answered(wrong).0, Err(ConnectError::Io(_))), "{wrong:?}");
    }
}

/// The result of a connect that gets these replies to successive requests, and the requests.
fn asked_again(replies: [&'static [u8]; 2]) -> (Result<Vec<u8>, ConnectError>, Vec<Vec<u8>>) {
    let (bound, address) = listener();
    let called = thread::spawn(move || {
        let answer = |reply: &[u8]| {
            let mut stream = bound.accept().expect("accepted").0;
            let mut asked = vec![0; 20];
            stream.read_exact(&mut asked).expect("a request");
            let mut rest = vec![0; usize::from(asked[19])];
            stream.read_exact(&mut rest).expect("the rest of the request");
            stream.write_all(reply).expect("sent");
            [asked, rest].concat()
        };
        replies.map(answer).to_vec()
    });
    let answer = run(async {
        let stream = Stream::connect(address).await.expect("connected");
        connect(stream, address, b"hi", TERMS, &Options::default()).await
    });
    (answer.map(|(_, private)| private), called.join().expect("the thread panicked"))
}

#[test]
fn peer_of_mpa_revision_1_is_asked_in_it() {
    let first_no: [&[u8]; 2] = [b"", b"MPA ID Rep Frame\x20\x01\x00\x00"];
    for no in first_no {
        let (answer, asked) = asked_again([no, b"MPA ID Rep Frame\x00\x01\x00\x02ok"]);
        assert_eq!(answer.expect("connected"), b"ok");
        let want: [&[u8]; 2] =
            [b"MPA ID Req Frame\x10\x02\x00\x06\x00\x04\x00\x04hi", b"MPA ID Req Frame\x00\x01\x00\x02hi"];
        assert_eq!(asked, want);
        let (answer, _) = asked_again([no, b"MPA ID Rep Frame\x20\x01\x00\x02no"]);
        assert!(matches!(answer, Err(ConnectError::Rejected(why)) if why == b"no"));
        // A peer that does not speak MPA fails the first request already.
        let (answer, _) = asked_again([no, b""]);
        assert!(matches!(answer, Err(ConnectError::Io(_))) == no.is_empty());
    }
}

#[test]
fn retried_connection_keeps_its_socket_options() {
    run(async {
        let (_bound, address) = listener();
        let first = Stream::connect(address).await.expect("connected");
        first.set_window(40_000).expect("TCP");
        let options = Options { window: Some(40_000), ..Options::default() };
        let second = dial(address, &options).await.expect("connected");
        let buffers = |stream: &Stream| (stream.route().receive_buffer, stream.route().send_buffer);
        assert_eq!(buffers(&first), buffers(&second));
    });
}

#[test]
fn bytes_read_ahead_may_end_anywhere_in_the_request() {
    let whole = [&b"MPA ID Req Frame\x00\x01\x00\x02hi"[..], &send(SEND, b"first")].concat();
    run(async {
        for cut in [0, 1, 16, 20, 22, 23, whole.len() - 1, whole.len()] {
            let (caller, called, address) = streams().await;
            caller.send(&[io::IoSlice::new(&whole[cut..])], false).expect("sent");
            let asked = request(called, whole[..cut].to_vec(), address, address, &Options::default()).await;
            let asked = asked.expect("a request");
            assert_eq!(asked.private(), b"hi");
            let called = asked.accept(vec![], TERMS).await.expect("accepted");
            called.readable().await.expect("readable");
            let into = serve(&*called, 1).await;
            assert_eq!(messages(&into), [(&b"first"[..], None)], "cut at {cut}");
        }
    });
}

#[test]
fn responder_waits_for_the_first_frame_before_it_sends() {
    run(async {
        let [caller, called] = connected(Options::default()).await;
        called.send(b"answer", Payload::Empty, None);
        assert!(!called.flush().expect("open"));
        let other = called.clone();
        let waiting = spawn(async move { other.writable().await });
        caller.send(b"question", Payload::Empty, None);
        assert!(caller.flush().expect("open"));
        assert_eq!(messages(&serve(&*called, 1).await), [(&b"question"[..], None)]);
        waiting.await.expect("the task panicked").expect("the socket is writable");
        assert_eq!(messages(&serve(&*caller, 1).await), [(&b"answer"[..], None)]);
    });
}

#[test]
fn fault_sends_a_terminate_message() {
    run(async {
        let [caller, called] = connected(Options { crc: true, ..Options::default() }).await;
        caller.read(1, RemoteAddress { stag: 77, offset: 0 }, Buf::zeroed(4), 0, 4);
        caller.flush().expect("open");
        assert!(end(&serve(&*called, 1).await).expect("the stream has ended").is_some());
        assert!(called.flush().is_err());
        let into = serve(&*caller, 2).await;
        assert!(matches!(&into.list[0], EndpointEvent::Read(1, _, Err(_))));
        let why = end(&into).expect("the stream has ended").expect("a reason for the end");
        assert!(why.contains("RDMA Read with an invalid steering tag"), "{why}");
    });
}

/// The fault is detected while the peer does not read but keeps sending.
#[test]
fn terminate_reaches_a_peer_that_stopped_reading() {
    run(async {
        let [caller, called] = connected(Options::default()).await;
        let (len, nowhere) = (16 << 20, RemoteAddress { stag: 77, offset: 0 });
        let sink = caller.expose(MemoryRegion::Sink(Buf::zeroed(len))).unwrap();
        caller.send(b"first", Payload::Empty, None);
        caller.flush().expect("open");
        assert_eq!(messages(&serve(&*called, 1).await).len(), 1);
        called.write(sink, Payload::Buf(Buf::zeroed(len), len));
        assert!(!called.flush().expect("open"), "the socket buffers took the whole write");
        let other = called.clone();
        let waiting = spawn(async move { other.writable().await });
        lunar_runtime::yield_now().await;
        caller.write(nowhere, Payload::Zeros(1 << 20));
        caller.flush().expect("open");
        assert!(end(&serve(&*called, 1).await).expect("the stream has ended").is_some());
        assert!(called.waiting() == 0, "unsent messages are dropped");
        waiting.await.expect("the task panicked").expect("the wait succeeds");
        drop(called);
        let why =
            end(&serve(&*caller, 1).await).expect("the stream has ended").expect("a reason for the end");
        assert!(why.contains("the peer terminated the RDMA connection"), "{why}");
    });
}

#[test]
fn dropping_an_end_ends_the_other_and_closing_wakes_who_waits() {
    run(async {
        let [caller, called] = connected(Options::default()).await;
        drop(caller);
        assert_eq!(end(&serve(&*called, 1).await), Some(None));
        let [caller, called] = connected(Options::default()).await;
        let other = called.clone();
        let waiting = spawn(async move { serve(&*other, 1).await });
        caller.send(b"question", Payload::Empty, None);
        lunar_runtime::yield_now().await;
        called.close();
        assert_eq!(end(&waiting.await.expect("served")), Some(None));
    });
}

/// Otherwise a loop that waits for readiness would spin.
#[test]
fn ended_connection_is_not_readable() {
    run(async {
        for by_itself in [false, true] {
            let [caller, called] = connected(Options::default()).await;
            if by_itself {
                called.close()
            } else {
                caller.close()
            }
            called.readable().await.expect("the end is readable");
            assert_eq!(end(&serve(&*called, 1).await), Some(None));
            let e = called.readable().await.expect_err("the connection has ended");
            assert_eq!(e.kind(), io::ErrorKind::NotConnected);
        }
    });
}

/// Otherwise the kernel could send its buffered data after newer data on another connection.
#[test]
fn reset_discards_undelivered_data() {
    run(async {
        let [caller, called] = connected(Options::default()).await;
        let len = 16 << 20;
        let sink = called.expose(MemoryRegion::Sink(Buf::zeroed(len))).unwrap();
        caller.write(sink, Payload::Buf(Buf::zeroed(len), len));
        assert!(!caller.flush().expect("a connection"), "the socket buffers took the whole write");
        caller.reset();
        assert!(caller.flush().is_err());
        let into = serve(&*called, 1).await;
        let [EndpointEvent::End(Some(e))] = &into.list[..] else { panic!("{:?}", into.list) };
        assert_eq!(e.kind(), io::ErrorKind::ConnectionReset);
    });
}

/// The same at the exit of the process, or when the endpoint is dropped.
#[test]
fn connection_may_be_reset_by_its_end() {
    run(async {
        let [caller, called] = connected(Options::default()).await;
        caller.reset_on_close(true).expect("TCP");
        caller.send(b"a word", Payload::Empty, None);
        caller.flush().expect("a connection");
        drop(caller);
        called.readable().await.expect("a readable endpoint");
        let mut into = EndpointEvents::default();
        loop {
            called.poll(&mut into);
            if let Some(EndpointEvent::End(e)) = into.list.last() {
                assert_eq!(e.as_ref().map(io::Error::kind), Some(io::ErrorKind::ConnectionReset));
                return;
            }
            called.readable().await.expect("a readable endpoint");
        }
    });
}
