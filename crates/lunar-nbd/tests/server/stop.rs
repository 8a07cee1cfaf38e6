//! Tests of the start and the shutdown of a server.

use super::client::Client;
use super::{MIB, Server, export, memory};
use lunar_block::filter;
use lunar_nbd::server::{ListenAddress, ServerLimits, serve};
use lunar_runtime::Cores;
use lunar_wire::nbd::{Errno, command};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn stop_finishes_what_is_in_flight_and_flushes() {
    let (disk, counters) = filter::stats(memory(MIB));
    let server = Server::of(filter::delay(disk, Duration::from_millis(500), Duration::ZERO));
    let socket = server.dir.join("nbd.sock");
    let mut idle = Client::simple(server.tcp(), "disk");
    let mut haggling = Client::connect(server.tcp());
    let mut client = Client::simple(server.tcp(), "disk");
    let read = client.request(command::READ, 0, 0, 512);
    let flush = client.request(command::FLUSH, 0, 0, 0);
    assert_eq!(client.answer(0).cookie, flush, "the flush is answered first, so both requests have arrived");
    let Server { handle, dir } = server;
    let stopped = std::thread::spawn(move || handle.stop());
    assert!(idle.is_closed() && haggling.is_closed());
    let late = client.request(command::READ, 0, 0, 512);
    let refused = client.answer(0);
    assert_eq!((refused.cookie, refused.error), (late, Errno::Shutdown as u32));
    let answer = client.answer(512);
    assert_eq!((answer.cookie, answer.error), (read, 0));
    assert!(client.is_closed());
    stopped.join().expect("the stopping thread panicked").expect("the server stops");
    assert_eq!(counters.total().flushes, 2);
    assert!(!socket.exists() && dir.exists());
}

#[test]
fn unix_socket_serves_and_goes_with_the_server() {
    let server = Server::of(memory(MIB));
    let path = server.dir.join("nbd.sock");
    let mut socket = UnixStream::connect(&path).expect("the client connects");
    let mut greeting = [0; 18];
    std::io::Read::read_exact(&mut socket, &mut greeting).expect("a greeting");
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    let taken = server.handle.addresses()[1].clone();
    let cores = Arc::new(Cores::start(&[0]).expect("an event loop"));
    let again = serve(&[taken], vec![export("x", memory(MIB))], cores, ServerLimits::default());
    assert!(again.is_err_and(|e| e.to_string().contains("nbd.sock")));
    let Server { handle, dir: _dir } = server;
    drop(handle);
    assert!(!path.exists());
}

#[test]
fn exports_that_cannot_be_offered_are_refused() {
    let cores = Arc::new(Cores::start(&[0]).expect("an event loop"));
    let listen = [ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"))];
    let with = |block_size| {
        let mut export = export("x", memory(MIB));
        export.block_size = block_size;
        export
    };
    let cases = [vec![], vec![with(512), with(512)], vec![with(0)], vec![with(768)], vec![with(1 << 17)]];
    for exports in cases {
        let served = serve(&listen, exports, cores.clone(), ServerLimits::default());
        assert!(served.is_err_and(|e| e.kind() == std::io::ErrorKind::InvalidInput));
    }
}
