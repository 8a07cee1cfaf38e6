//! Tests of the server with faulty clients: it must still serve other clients.

use super::client::Client;
use super::{MIB, Server, export, memory};
use lunar_block::filter;
use lunar_nbd::server::ServerLimits;
use lunar_wire::nbd::{OptionHeader, Request, command, option, reply};
use std::io::Write;
use std::time::{Duration, Instant};

/// Checks that the server serves another client.
fn is_well(server: &Server) {
    let mut other = Client::structured(server.tcp(), "disk");
    assert_eq!(other.write_at(0, 4096, &[7; 8192]), 0);
    assert_eq!(other.read_at(4096, 8192), [7; 8192]);
    other.request(command::DISC, 0, 0, 0);
    assert!(other.is_closed());
}

/// Waits until no connection is open.
fn all_gone(server: &Server) {
    let end = Instant::now() + Duration::from_secs(20);
    while server.handle.connections() > 0 {
        assert!(Instant::now() < end, "a connection stays open");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn request(command: u16, len: u32) -> Vec<u8> {
    Request { flags: 0, command, cookie: 1, offset: 0, len }.encode().to_vec()
}

#[test]
fn wrong_magic_ends_that_connection_alone() {
    let server = Server::of(memory(64 * MIB));
    let mut bystander = Client::simple(server.tcp(), "disk");
    let mut client = Client::simple(server.tcp(), "disk");
    let mut bytes = request(command::READ, 512);
    bytes[0] ^= 1;
    client.write(&bytes);
    assert!(client.is_closed());
    assert_eq!(bystander.read_at(0, 512), [0; 512]);
    let mut client = Client::connect(server.tcp());
    client.write(&[0; 16]);
    assert!(client.is_closed());
    drop(bystander);
    is_well(&server);
    all_gone(&server);
}

#[test]
fn half_of_anything_may_come_before_the_end() {
    let server = Server::of(memory(64 * MIB));
    let mut write = request(command::WRITE, 1 << 20);
    write.resize(write.len() + (1 << 19), 1);
    for bytes in [&request(command::READ, 512)[..27], &write, &write[..100], &[]] {
        let mut client = Client::simple(server.tcp(), "disk");
        client.write(bytes);
    }
    let mut client = Client::connect(server.tcp());
    client.write(&OptionHeader { option: option::GO, len: 60_000 }.encode());
    drop(client);
    drop(std::net::TcpStream::connect(server.tcp()).expect("the client connects"));
    is_well(&server);
    all_gone(&server);
    let mut client = Client::simple(server.tcp(), "disk");
    assert_eq!(client.read_at(0, 512), [0; 512], "an incomplete write was executed");
}

#[test]
fn giant_lengths_take_no_memory() {
    let server = Server::of(memory(64 * MIB));
    let before = peak_kib();
    let mut reader = Client::structured(server.tcp(), "disk");
    assert_ne!(reader.error_of(command::READ, 0, 0, u32::MAX), 0);
    let mut writers: Vec<Client> = (0..20).map(|_| Client::simple(server.tcp(), "disk")).collect();
    for writer in &mut writers {
        writer.write(&request(command::WRITE, u32::MAX));
        writer.write(&[1; 4096]);
    }
    let mut haggler = Client::connect(server.tcp());
    haggler.write(&OptionHeader { option: option::LIST, len: u32::MAX }.encode());
    haggler.write(&[0; 4096]);
    is_well(&server);
    let after = peak_kib();
    let most = [2 << 20, 512 << 10];
    let is_bounded = (0..2).all(|n| after[n] - before[n] < most[n]);
    assert!(is_bounded, "virtual and resident memory grew from {before:?} to {after:?} KiB");
}

/// The peaks of virtual and of resident memory of this process, which contains the server. Other tests, which run at
/// the same time, add less than half of one length.
fn peak_kib() -> [u64; 2] {
    let status = std::fs::read_to_string("/proc/self/status").expect("the state of this process");
    ["VmPeak:", "VmHWM:"].map(|key| {
        let value = status.lines().find_map(|line| line.strip_prefix(key)).expect(key);
        value.trim().trim_end_matches(" kB").parse().expect("a number")
    })
}

#[test]
fn flood_of_options_is_ended() {
    let server = Server::of(memory(64 * MIB));
    let mut client = Client::connect(server.tcp());
    let flood = OptionHeader { option: option::LIST, len: 0 }.encode().repeat(1 << 16);
    // The server may close while the client sends, or while it receives.
    let _ = client.socket.write_all(&flood);
    let _ = std::io::copy(&mut client.socket, &mut std::io::sink());
    assert!(client.is_closed());
    is_well(&server);
    all_gone(&server);
}

#[test]
fn option_that_is_too_long_is_refused_and_another_follows() {
    let server = Server::of(memory(64 * MIB));
    let mut client = Client::connect(server.tcp());
    assert_eq!(client.ask(option::LIST, &vec![0; 1 << 20])[0].0, reply::ERR_TOO_BIG);
    assert_eq!(client.ask(option::STARTTLS, &[])[0].0, reply::ERR_POLICY);
    assert_eq!(client.ask(option::LIST, &[])[0], (reply::SERVER, b"\0\0\0\x04disk".to_vec()));
}

#[test]
fn client_that_chooses_no_export_is_disconnected() {
    let limits = ServerLimits { handshake: Duration::from_secs(1), ..ServerLimits::default() };
    let server = Server::start(vec![export("disk", memory(64 * MIB))], limits);
    let mut client = Client::connect(server.tcp());
    assert!(client.is_closed());
    is_well(&server);
}

#[test]
fn connections_are_counted_and_bounded() {
    let limits = ServerLimits { connections: 2, ..ServerLimits::default() };
    let server = Server::start(vec![export("disk", memory(64 * MIB))], limits);
    let first = Client::simple(server.tcp(), "disk");
    let second = Client::simple(server.tcp(), "disk");
    assert_eq!(server.handle.connections(), 2);
    let mut third = std::net::TcpStream::connect(server.tcp()).expect("the client connects");
    assert_eq!(
        std::io::Read::read(&mut third, &mut [0; 18]).unwrap_or(0),
        0,
        "the server accepted too many connections"
    );
    drop((first, second));
    all_gone(&server);
    is_well(&server);
}

/// Clients with large requests that receive no replies must not use all buffers.
#[test]
fn client_that_reads_no_replies_blocks_no_other() {
    let slow = filter::delay(memory(64 * MIB), Duration::from_millis(1), Duration::ZERO);
    let limits = ServerLimits { memory: 64 << 20, ..ServerLimits::default() };
    let server = Server::start(vec![export("disk", slow)], limits);
    let mut other = Client::simple(server.tcp(), "disk");
    assert_eq!(other.write_at(0, 0, &vec![1; 32 << 20]), 0);
    let greedy: Vec<Client> = (0..4)
        .map(|_| {
            let mut client = Client::simple(server.tcp(), "disk");
            client.write(&request(command::READ, 32 << 20).repeat(200));
            client
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(other.read_at(0, 65536), [1; 65536]);
    }
    drop(greedy);
    drop(other);
    all_gone(&server);
}
