//! A listener and a client in one process, over an RDMA device of this host: `verbs_loop ADDRESS`.
//!
//! For the guest of `interop/lab`, which has software RDMA devices. Each step prints its result. A failure panics.

use lunar_rdma::verbs::{self, Options, PendingRequest};
use lunar_rdma::{
    ConnParam, ConnectError, ConnectRequest, Endpoint, EndpointEvent, EndpointEvents, MemoryRegion,
    RemoteAddress,
};
use lunar_runtime::send_queue::Payload;
use lunar_runtime::{Buf, Pool};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

const TERMS: ConnParam = ConnParam { ord: 4, ird: 4, receives: (4, 8268) };
/// More than one piece, and not a multiple of the piece length.
const LONG: usize = (1 << 20) + 4321;
/// More connections than get receives of their own.
const CROWD: usize = 20;
/// More messages than the device's queues have slots.
const MANY: usize = 3000;
/// Messages in flight.
const OUTSTANDING: usize = 1000;

/// An endpoint, and its events that were not taken yet.
struct End {
    endpoint: Rc<dyn Endpoint>,
    come: RefCell<VecDeque<Come>>,
}

/// An event with the bytes of its message.
#[derive(Debug)]
enum Come {
    Message(Vec<u8>, Option<u32>),
    Read(u64, Result<Buf, String>),
    End(Option<String>),
}

impl End {
    fn new(endpoint: Rc<dyn Endpoint>) -> End {
        End { endpoint, come: RefCell::default() }
    }

    async fn next(&self) -> Come {
        loop {
            if let Some(come) = self.come.borrow_mut().pop_front() {
                return come;
            }
            self.endpoint.readable().await.expect("an open connection");
            let mut events = EndpointEvents::default();
            self.endpoint.poll(&mut events);
            let bytes = &events.bytes;
            let come = events.list.drain(..).map(|event| match event {
                EndpointEvent::Message(range, stag) => Come::Message(bytes[range].to_vec(), stag),
                EndpointEvent::Read(id, buf, result) => {
                    Come::Read(id, result.map(|()| buf).map_err(|e| e.to_string()))
                }
                EndpointEvent::End(reason) => Come::End(reason.map(|e| e.to_string())),
            });
            self.come.borrow_mut().extend(come);
        }
    }

    async fn message(&self) -> (Vec<u8>, Option<u32>) {
        match self.next().await {
            Come::Message(bytes, stag) => (bytes, stag),
            other => panic!("expected a message, got {other:?}"),
        }
    }

    fn say(&self, text: &[u8]) {
        self.endpoint.send(text, Payload::Empty, None);
        assert!(self.endpoint.flush().expect("sent"));
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 251 + n) as u8).collect()
}

fn main() {
    let addr: SocketAddr = std::env::args().nth(1).expect("an address").parse().expect("an address");
    for device in verbs::devices().unwrap_or_else(|e| panic!("{e}")) {
        println!("{} {} usable: {} {:?}", device.name, device.transport, device.is_usable, device.ports);
    }
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(addr));
    println!("PASS verbs_loop");
}

async fn run(addr: SocketAddr) {
    no_listener(addr).await;
    let mut listener = verbs::listen(addr, Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let addr = listener.local_addr();
    println!("listening at {addr}");
    rejected(&mut listener, addr).await;
    let (client, server) = pair(&mut listener, addr).await;
    messages(&client, &server).await;
    many(&client, &server).await;
    write_then_message(&client, &server).await;
    reads(&client, &server).await;
    pooled(&client, &server).await;
    invalidate(&client, &server).await;
    revoked(&client, &server).await;
    let (client, server) = pair(&mut listener, addr).await;
    ended(client, &server).await;
    let (client, server) = pair(&mut listener, addr).await;
    overrun(&client, &server).await;
    crowd(&mut listener, addr).await;
    on_another_core(listener, addr).await;
}

async fn no_listener(addr: SocketAddr) {
    match verbs::connect(addr, b"hello", TERMS).await {
        Err(ConnectError::Io(e)) => println!("no listener: {e}"),
        Err(ConnectError::Rejected(_)) => panic!("rejected without a listener"),
        Ok(_) => panic!("connected without a listener"),
    }
}

async fn both<A: 'static, B>(a: impl Future<Output = A> + 'static, b: impl Future<Output = B>) -> (A, B) {
    let a = compio::runtime::spawn(a);
    let b = b.await;
    (a.await.unwrap_or_else(|_| panic!("a task ended")), b)
}

async fn rejected(listener: &mut verbs::Listener, addr: SocketAddr) {
    let (refused, ()) = both(verbs::connect(addr, b"let me in", TERMS), async {
        let pending = listener.next().await;
        assert_eq!(pending.private()[..9], *b"let me in");
        Box::new(pending).reject(b"no".to_vec()).await;
    })
    .await;
    match refused {
        Err(ConnectError::Rejected(private)) if private.starts_with(b"no") => {
            println!("rejected, with a word")
        }
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("connected"),
    }
}

async fn pair(listener: &mut verbs::Listener, addr: SocketAddr) -> (End, End) {
    let (client, server) = both(verbs::connect(addr, b"client", TERMS), async {
        let pending = listener.next().await;
        assert_eq!(pending.private()[..6], *b"client");
        Box::new(pending).accept(b"server".to_vec(), TERMS).await.unwrap_or_else(|e| panic!("{e}"))
    })
    .await;
    let (client, private) = client.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(private[..6], *b"server");
    println!("connected: {:?} and {:?}", client.info(), server.info());
    (End::new(client), End::new(server))
}

async fn messages(client: &End, server: &End) {
    client.endpoint.send(b"head and ", Payload::Bytes(b"payload".to_vec()), None);
    client.endpoint.send(&[], Payload::Empty, None);
    client.endpoint.send(&[7; 8268], Payload::Empty, None);
    assert!(client.endpoint.flush().expect("sent"));
    assert_eq!(server.message().await.0, b"head and payload");
    assert_eq!(server.message().await.0, b"");
    assert_eq!(server.message().await.0, [7; 8268]);
    server.say(b"answer");
    assert_eq!(client.message().await.0, b"answer");
    println!("messages, also of 0 and of 8268 bytes");
}

/// More messages than the device has slots, in both directions.
async fn many(client: &End, server: &End) {
    server.endpoint.receives(MANY, 64);
    let endpoint = client.endpoint.clone();
    let received = Rc::new(Cell::new(0));
    let seen = received.clone();
    let send = async move {
        for n in 0..MANY {
            // A device has fewer receive requests than messages, and ends a connection that exceeds them.
            while n - seen.get() >= OUTSTANDING {
                assert!(endpoint.flush().is_ok());
                lunar_runtime::yield_now().await;
            }
            endpoint.send(&(n as u32).to_be_bytes(), Payload::Empty, None);
            if n % 500 == 0 && !endpoint.flush().expect("sent") {
                endpoint.writable().await.expect("room in the send queue");
            }
        }
        if !endpoint.flush().expect("sent") {
            endpoint.writable().await.expect("room in the send queue");
        }
        assert_eq!(endpoint.waiting(), 0);
    };
    let receive = async {
        for n in 0..MANY {
            assert_eq!(server.message().await.0, (n as u32).to_be_bytes());
            received.set(n + 1);
        }
    };
    both(send, receive).await;
    assert!(client.endpoint.take_moved());
    println!("{MANY} messages");
}

async fn write_then_message(client: &End, server: &End) {
    let to = client.endpoint.expose(MemoryRegion::Sink(Buf::zeroed(LONG + 200))).expect("memory");
    server.endpoint.write(to.beyond(100), Payload::Bytes(pattern(LONG)));
    server.say(b"written");
    client.endpoint.receives(1, 64);
    assert_eq!(client.message().await.0, b"written");
    let Some(MemoryRegion::Sink(buf)) = client.endpoint.revoke(to.stag) else {
        panic!("the memory was not returned")
    };
    assert!(buf[100..100 + LONG] == pattern(LONG) && buf[..100] == [0; 100] && buf[100 + LONG..] == [0; 100]);
    assert!(client.endpoint.revoke(to.stag).is_none());
    println!("a write of {LONG} bytes, visible before the message behind it");
}

/// More concurrent RDMA Reads than the peer allows.
async fn reads(client: &End, server: &End) {
    let source = Buf::copy_of(&pattern(LONG));
    let source = Rc::new(source);
    let from = client.endpoint.expose(MemoryRegion::Source(source.clone())).expect("memory");
    for id in 0..10u64 {
        server.endpoint.read(id, from.beyond(id), Buf::zeroed(LONG), 10, LONG - 10);
    }
    client.endpoint.receives(1, 64);
    server.say(b"while it reads");
    assert_eq!(client.message().await.0, b"while it reads");
    for _ in 0..10 {
        match server.next().await {
            Come::Read(id, Ok(buf)) => {
                let at = id as usize;
                assert!(buf[10..] == source[at..at + LONG - 10] && buf[..10] == [0; 10], "{id}");
            }
            other => panic!("expected a read, got {other:?}"),
        }
    }
    assert!(matches!(client.endpoint.revoke(from.stag), Some(MemoryRegion::Source(_))));
    println!("ten reads of {} bytes, {} at a time", LONG - 10, server.endpoint.info().ord);
}

/// Pool buffers, which the device uses in place: a page, and more than one piece.
async fn pooled(client: &End, server: &End) {
    let pool = Pool::new(1);
    for len in [1, 4096, LONG] {
        let buf = || pool.try_get(len).expect("room in the pool");
        let mut data = buf();
        assert!(data.region().is_some(), "the buffer is in a registered region");
        data.copy_from_slice(&pattern(len));
        let to = client.endpoint.expose(MemoryRegion::Sink(Buf::zeroed(len))).expect("memory");
        server.endpoint.write(to, Payload::Buf(data, len));
        client.endpoint.receives(1, 64);
        server.say(b"written");
        assert_eq!(client.message().await.0, b"written");
        let Some(MemoryRegion::Sink(written)) = client.endpoint.revoke(to.stag) else {
            panic!("the memory was not returned")
        };
        assert!(written[..] == pattern(len));
        let from = client.endpoint.expose(MemoryRegion::Source(Rc::new(written))).expect("memory");
        for id in 0..3 {
            server.endpoint.read(id, from, buf(), 0, len);
        }
        assert!(server.endpoint.flush().is_ok());
        for _ in 0..3 {
            match server.next().await {
                Come::Read(_, Ok(buf)) => assert!(buf[..] == pattern(len)),
                other => panic!("expected a read, got {other:?}"),
            }
        }
        client.endpoint.revoke(from.stag).expect("the memory");
    }
    println!("buffers of a pool");
}

/// More connections than get receives of their own, at both ends.
async fn crowd(listener: &mut verbs::Listener, addr: SocketAddr) {
    let mut pairs = Vec::new();
    for _ in 0..CROWD {
        pairs.push(pair(listener, addr).await);
    }
    for turn in 0..20u32 {
        for (n, (client, server)) in pairs.iter().enumerate() {
            let text = [turn.to_be_bytes(), (n as u32).to_be_bytes()].concat();
            client.say(&text);
            assert_eq!(server.message().await.0, text);
            server.endpoint.receives(1, 8268);
            server.say(&text);
            assert_eq!(client.message().await.0, text);
            client.endpoint.receives(1, 8268);
        }
    }
    // The end of one connection takes no receives from the others.
    let (client, server) = pairs.pop().expect("a pair");
    client.say(b"last words");
    drop(client);
    end(&server).await;
    let (client, server) = &pairs[CROWD - 2];
    client.say(b"still here");
    assert_eq!(server.message().await.0, b"still here");
    println!("{CROWD} connections at a time");
}

/// Only soft iWARP lets a message invalidate the tags of regions that user space registered. Its library does not report
/// the invalidated tag, so this checks only the message.
async fn invalidate(client: &End, server: &End) {
    if !server.endpoint.info().provider.contains("siw") {
        return println!("no invalidation: the device supports it only for kernel memory");
    }
    let to = client.endpoint.expose(MemoryRegion::Sink(Buf::zeroed(64))).expect("memory");
    client.endpoint.receives(1, 64);
    server.endpoint.write(to, Payload::Bytes(vec![5; 64]));
    server.endpoint.send(b"done", Payload::Empty, Some(to.stag));
    assert!(server.endpoint.flush().expect("sent"));
    assert_eq!(client.message().await.0, b"done");
    let Some(MemoryRegion::Sink(buf)) = client.endpoint.revoke(to.stag) else {
        panic!("the memory was not returned")
    };
    assert_eq!(buf[..], [5; 64]);
    println!("a message that ends a steering tag");
}

/// An RDMA Write to revoked memory ends the connection at both ends, including its RDMA Reads.
async fn revoked(client: &End, server: &End) {
    let to = client.endpoint.expose(MemoryRegion::Sink(Buf::zeroed(4096))).expect("memory");
    let Some(MemoryRegion::Sink(buf)) = client.endpoint.revoke(to.stag) else {
        panic!("the memory was not returned")
    };
    server.endpoint.write(to, Payload::Bytes(vec![9; 4096]));
    server.endpoint.read(77, to, Buf::zeroed(8), 0, 8);
    server.say(b"never seen");
    let (here, there) = (end(client).await, end(server).await);
    assert_eq!(buf[..], [0; 4096]);
    println!("a write to memory that was taken back: the one says {here:?}, the other {there:?}");
}

/// Waits for the end. Only failed reads may precede it.
async fn end(one: &End) -> Option<String> {
    loop {
        match one.next().await {
            Come::End(reason) => return reason,
            Come::Read(_, Err(_)) => {}
            Come::Message(bytes, _) if bytes == b"last words" => {}
            other => panic!("expected the end, got {other:?}"),
        }
    }
}

async fn ended(client: End, server: &End) {
    server.endpoint.read(5, RemoteAddress { stag: 0, offset: 0 }, Buf::zeroed(8), 8, 0);
    assert!(matches!(server.next().await, Come::Read(5, Ok(_))), "an empty read");
    client.say(b"last words");
    assert_eq!(server.message().await.0, b"last words");
    drop(client);
    println!("dropped: the other says {:?}", end(server).await);
    assert!(server.endpoint.flush().is_err() && server.endpoint.readable().await.is_err());
    server.endpoint.close();
}

/// More messages than posted receives.
async fn overrun(client: &End, server: &End) {
    for _ in 0..TERMS.receives.0 {
        client.say(b"last words");
    }
    client.say(&[1; 9000]);
    for _ in 0..TERMS.receives.0 {
        assert_eq!(server.message().await.0, b"last words");
    }
    // Some devices retry a message without a receive forever (RNR). Then it is too long for the receive that is
    // posted.
    server.endpoint.receives(1, 64);
    let (here, there) = (end(server).await, end(client).await);
    println!("a message too many and too long: the one says {here:?}, the other {there:?}");
}

/// A request may be accepted on another core than that of the listener.
async fn on_another_core(mut listener: verbs::Listener, addr: SocketAddr) {
    let (client, thread) = both(verbs::connect(addr, b"client", TERMS), async {
        let pending = listener.next().await;
        std::thread::spawn(move || serve(pending))
    })
    .await;
    let client = End::new(client.unwrap_or_else(|e| panic!("{e}")).0);
    client.say(b"ping");
    assert_eq!(client.message().await.0, b"ping");
    drop(client);
    thread.join().expect("the other core");
    println!("accepted on another core");
}

fn serve(pending: PendingRequest) {
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let endpoint = Box::new(pending).accept(Vec::new(), TERMS).await.unwrap_or_else(|e| panic!("{e}"));
        let server = End::new(endpoint);
        let ping = server.message().await.0;
        server.say(&ping);
        end(&server).await;
    });
}
