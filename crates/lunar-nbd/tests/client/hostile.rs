//! Tests of the client with faulty servers: every command must end with an error.

use super::{on_a_core, open, refused};
use lunar_block::Backend;
use lunar_wire::nbd::{
    ChunkHeader, OptionReply, REQUEST_LEN, SIMPLE_REPLY_LEN, SimpleReply, chunk, greeting, info, option,
    reply,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 20;

/// Starts a server for one client. Returns its URL and its thread.
fn server<T: Send + 'static>(
    script: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a bound port");
    let url = format!("nbd://{}/disk", listener.local_addr().expect("a bound address"));
    let thread = std::thread::spawn(move || {
        let (client, _) = listener.accept().expect("a connected client");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("the timeout is set");
        script(client)
    });
    (url, thread)
}

fn answer(option: u32, reply: u32, data: &[u8]) -> Vec<u8> {
    [&OptionReply { option, reply, len: data.len() as u32 }.encode()[..], data].concat()
}

/// Transmission flags with FLUSH, FUA, TRIM and WRITE_ZEROES, and the same without FLUSH.
const ALL: u16 = 0x6d;
const NO_FLUSH: u16 = 0x69;
/// NBD_CMD_FLAG_FUA.
const FUA: u16 = 1;

/// Executes the server's side of the handshake, with or without structured replies.
fn shake(client: &mut TcpStream, structured: bool) {
    shake_with(client, structured, ALL);
}

/// The same, with these transmission flags.
fn shake_with(client: &mut TcpStream, structured: bool, flags: u16) {
    client.write_all(&greeting(3)).expect("the greeting is sent");
    take(client, 4 + 16);
    if structured {
        client.write_all(&answer(option::STRUCTURED_REPLY, reply::ACK, b"")).expect("the reply is sent");
        take(client, 16 + 4 + 4 + 4 + 4 + 15);
        let context = [&7u32.to_be_bytes()[..], b"base:allocation"].concat();
        client
            .write_all(&answer(option::SET_META_CONTEXT, reply::META_CONTEXT, &context))
            .expect("the reply is sent");
        client.write_all(&answer(option::SET_META_CONTEXT, reply::ACK, b"")).expect("the reply is sent");
    } else {
        client
            .write_all(&answer(option::STRUCTURED_REPLY, reply::ERR_UNSUP, b""))
            .expect("the reply is sent");
    }
    take(client, 16 + 4 + 4 + 2 + 2);
    let size = [&info::EXPORT.to_be_bytes()[..], &SIZE.to_be_bytes(), &flags.to_be_bytes()].concat();
    client.write_all(&answer(option::GO, reply::INFO, &size)).expect("the reply is sent");
    client.write_all(&answer(option::GO, reply::ACK, b"")).expect("the reply is sent");
}

fn take(client: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    client.read_exact(&mut bytes).expect("the client sends all expected bytes");
    bytes
}

/// Receives a request. Returns its cookie.
fn cookie(client: &mut TcpStream) -> u64 {
    u64::from_be_bytes(take(client, REQUEST_LEN)[8..16].try_into().expect("eight bytes"))
}

fn part(kind: u16, done: bool, cookie: u64, body: &[u8]) -> Vec<u8> {
    let header = ChunkHeader { flags: done.into(), kind, cookie, len: body.len() as u32 };
    [&header.encode()[..], body].concat()
}

/// Returns the error of a 4 KiB read at 8 KiB. The server replies with `bytes(cookie)`, and then waits for the client
/// to close.
fn read_answered(structured: bool, bytes: impl FnOnce(u64) -> Vec<u8> + Send + 'static) -> String {
    let (url, thread) = server(move |mut client| {
        shake(&mut client, structured);
        let cookie = cookie(&mut client);
        let _ = client.write_all(&bytes(cookie));
        // Returns when the client closes.
        let _ = client.read(&mut [0; 64]);
    });
    let said = on_a_core(move || async move {
        let disk = open(&url).await;
        let (result, buf) = disk.read(8192, lunar_runtime::Buf::zeroed(4096)).await;
        assert_eq!(buf.len(), 4096);
        let said = result.expect_err("the client accepted an invalid reply").to_string();
        let later = disk.flush().await.expect_err("the connection is still open").to_string();
        assert_eq!(said, later);
        said
    });
    thread.join().expect("the server thread panicked");
    said
}

fn data(offset: u64, len: usize) -> Vec<u8> {
    [&offset.to_be_bytes()[..], &vec![1; len]].concat()
}

#[test]
fn answer_that_makes_no_sense_ends_the_connection() {
    type Answer = fn(u64) -> Vec<u8>;
    let cases: [(&str, Answer); 10] = [
        ("wrong magic", |_| vec![0; 64]),
        ("a cookie that no request has", |cookie| part(chunk::NONE, true, cookie + 1, b"")),
        ("a cookie that no request has", |cookie| part(chunk::NONE, true, cookie + (1 << 32), b"")),
        ("before all requested data arrived", |cookie| part(chunk::NONE, true, cookie, b"")),
        ("before all requested data arrived", |cookie| {
            part(chunk::OFFSET_DATA, true, cookie, &data(8192, 512))
        }),
        ("outside the requested range", |cookie| part(chunk::OFFSET_DATA, true, cookie, &data(0, 512))),
        ("outside the requested range", |cookie| part(chunk::OFFSET_DATA, true, cookie, &data(8192, 8192))),
        ("overlapping", |cookie| part(chunk::OFFSET_DATA, false, cookie, &data(8192, 512)).repeat(2)),
        ("an invalid type or length", |cookie| part(chunk::ERROR, true, cookie, &[1; 60_000])),
        ("simple reply", |cookie| SimpleReply { error: 0, cookie }.encode().to_vec()),
    ];
    for (words, bytes) in cases {
        let said = read_answered(true, bytes);
        assert!(said.contains("violates the protocol") && said.contains(words), "{words}: {said}");
    }
    let said = read_answered(false, |cookie| part(chunk::NONE, true, cookie, b""));
    assert!(said.contains("wrong magic"), "{said}");
}

#[test]
fn write_answered_before_its_data_left_keeps_its_buffer() {
    let (url, thread) = server(|mut client| {
        shake(&mut client, false);
        let cookie = cookie(&mut client);
        client.write_all(&SimpleReply { error: 28, cookie }.encode()).expect("the reply is sent");
        std::thread::sleep(Duration::from_millis(100));
        take(&mut client, SIZE as usize).iter().all(|byte| *byte == 9)
    });
    on_a_core(move || async move {
        let disk = open(&url).await;
        let mut buf = lunar_runtime::Buf::zeroed(SIZE as usize);
        buf.fill(9);
        let (result, mut buf) = disk.write(0, buf, false).await;
        assert_eq!(result.expect_err("the write succeeded").kind(), std::io::ErrorKind::StorageFull);
        assert!(buf.iter().all(|byte| *byte == 9));
        buf.fill(0);
    });
    assert!(
        thread.join().expect("the server thread panicked"),
        "the sent data differs from the written data"
    );
}

/// Data must be stable when a flush has ended, even if the server does not support FLUSH.
#[test]
fn server_without_flush_is_asked_for_fua() {
    let (url, thread) = server(|mut client| {
        shake_with(&mut client, false, NO_FLUSH);
        // A WRITE with its data, and a WRITE_ZEROES.
        [512, 0].map(|data| {
            let request = take(&mut client, REQUEST_LEN);
            take(&mut client, data);
            let cookie = u64::from_be_bytes(request[8..16].try_into().expect("eight bytes"));
            client.write_all(&SimpleReply { error: 0, cookie }.encode()).expect("the reply is sent");
            u16::from_be_bytes([request[4], request[5]]) & FUA
        })
    });
    on_a_core(move || async move {
        let disk = open(&url).await;
        disk.write(0, lunar_runtime::Buf::zeroed(512), false).await.0.expect("the write succeeds");
        disk.write_zeroes(0, 512, false).await.expect("WRITE_ZEROES succeeds");
        disk.flush().await.expect("the flush succeeds");
    });
    assert_eq!(thread.join().expect("the server thread panicked"), [FUA; 2]);
}

#[test]
fn server_that_does_not_read_is_disconnected() {
    let (url, thread) = server(|mut client| {
        shake(&mut client, false);
        take(&mut client, REQUEST_LEN);
    });
    let said = on_a_core(move || async move {
        let disk = open(&url).await;
        let many = (0..64).map(|_| disk.write(0, lunar_runtime::Buf::zeroed(SIZE as usize), false));
        let ended = futures_util::future::join_all(many).await;
        ended
            .into_iter()
            .map(|(result, _)| result.expect_err("the write succeeded").to_string())
            .collect::<Vec<_>>()
    });
    assert!(said.iter().all(|said| said.contains("is lost")), "{said:?}");
    thread.join().expect("the server thread panicked");
}

#[test]
fn flood_of_answers_does_not_grow_the_process() {
    let said = read_answered(true, |cookie| {
        let flood = (0..4096u64).rev().step_by(2);
        flood.flat_map(|at| part(chunk::OFFSET_DATA, false, cookie, &data(8192 + at, 1))).collect()
    });
    assert!(said.contains("out of order"), "{said}");
}

#[test]
fn non_nbd_peer_is_reported() {
    for (bytes, words) in [
        (&b"SSH-2.0-OpenSSH\r\n"[..], "begin with an NBD greeting"),
        (b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0", "old handshake"),
        (b"", "the handshake failed: the server closed the connection"),
    ] {
        let (url, thread) = server(move |mut client| client.write_all(bytes).expect("the bytes are sent"));
        let (what, _) = refused(&url);
        assert!(what.contains(words), "{what}");
        thread.join().expect("the server thread panicked");
    }
    let silent = TcpListener::bind("127.0.0.1:0").expect("a bound port");
    let url = format!("nbd://{}/", silent.local_addr().expect("a bound address"));
    drop(silent);
    assert!(refused(&url).0.contains("refused"));
}

#[test]
fn silent_server_times_out() {
    let (url, thread) = server(|mut client| drop(client.read(&mut [0; 1])));
    let started_at = Instant::now();
    let (what, _) = refused(&url);
    assert_eq!(what, "the NBD server did not answer within 15 s");
    assert!(started_at.elapsed() < Duration::from_secs(60));
    thread.join().expect("the server thread panicked");
}

#[test]
fn server_that_requires_tls_is_reported_with_a_hint() {
    let (url, thread) = server(|mut client| {
        client.write_all(&greeting(3)).expect("the greeting is sent");
        take(&mut client, 4 + 16);
        let refuse = |option| answer(option, reply::ERR_TLS_REQD, b"first TLS, \x1b[31mplease");
        client.write_all(&refuse(option::STRUCTURED_REPLY)).expect("the reply is sent");
        take(&mut client, 16 + 4 + 4 + 2 + 2);
        client.write_all(&refuse(option::GO)).expect("the reply is sent");
        take(&mut client, SIMPLE_REPLY_LEN) == b"IHAVEOPT\0\0\0\x02\0\0\0\0"
    });
    let (what, hint) = refused(&url);
    assert!(what.contains("the server requires TLS (first TLS,  [31mplease)"), "{what}");
    assert!(hint.contains("TLS is not supported"), "{hint}");
    assert!(thread.join().expect("the server thread panicked"), "the client did not send NBD_OPT_ABORT");
}
