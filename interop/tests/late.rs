//! A stalled server still has data in its sockets after the sessions have ended, or after another session has aborted their
//! commands. It must not write them over newer data.

use interop::scsi::{WRITE, write10};
use interop::{Login, Raw, Server, config, op};
use std::net::Shutdown;
use std::time::{Duration, Instant};

const OLD: [u8; 512] = [1; 512];
const NEW: [u8; 512] = [2; 512];
const LUN_RESET: u8 = 5;

fn of_isid(number: u8) -> Login {
    Login::new().isid([0x80, 0, 0, 0, 0, number])
}

fn write(raw: &mut Raw, data: &[u8]) {
    let write = raw.command(0, 0x80 | WRITE, &write10(0, 1), 512).data(data);
    raw.send(&write);
}

fn reset(raw: Raw) {
    rustix::net::sockopt::set_socket_linger(&raw.stream, Some(Duration::ZERO)).expect("a socket");
}

/// A server, a session, and a session of another initiator.
fn with_two_hosts() -> (Server, Raw, Raw) {
    let server = Server::start(&config::standard());
    let mut raw = of_isid(1).on(server.portal());
    let mut other = of_isid(2).initiator("iqn.2026-11.org.example:other").on(server.portal());
    [&mut raw, &mut other].into_iter().for_each(|raw| raw.clear_attentions(0));
    (server, raw, other)
}

/// Waits for the end of a session.
fn has_ended(server: &Server) {
    let end = Instant::now() + Duration::from_secs(10);
    while !server.log().contains("session ended") {
        assert!(Instant::now() < end, "no session has ended in\n{}", server.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The contents of block 0 after a session with writes in its socket has ended. `leave` ends it, and returns what must stay
/// open.
fn left_in_the_socket(leave: impl FnOnce(Raw) -> Option<Raw>) -> Vec<u8> {
    let (server, mut raw, mut other) = with_two_hosts();
    server.pause();
    (0..3).for_each(|_| write(&mut raw, &OLD));
    let left = leave(raw);
    server.resume();
    has_ended(&server);
    drop(left);
    other.read_blocks(0, 0, 1)
}

#[test]
fn writes_before_a_reset_do_not_land_after_it() {
    let left = left_in_the_socket(|raw| {
        reset(raw);
        None
    });
    assert_eq!(left, [0; 512]);
}

#[test]
fn writes_before_a_close_without_logout_do_not_land() {
    let left = left_in_the_socket(|raw| {
        raw.stream.shutdown(Shutdown::Write).expect("a socket");
        Some(raw)
    });
    assert_eq!(left, [0; 512]);
}

#[test]
fn writes_before_logout_and_close_are_executed() {
    let left = left_in_the_socket(|mut raw| {
        let logout = raw.request(op::LOGOUT | 0x40).flags(0x80);
        raw.send(&logout);
        raw.stream.shutdown(Shutdown::Write).expect("a socket");
        Some(raw)
    });
    assert_eq!(left, OLD);
}

#[test]
fn data_before_a_connection_reset_is_not_stored() {
    let (server, mut raw, mut other) = with_two_hosts();
    let write = raw.command(0, 0x80 | WRITE, &write10(0, 1), 512);
    raw.send(&write);
    let r2t = raw.recv_for(write.tag());
    server.pause();
    let data = raw.data_out(r2t.tag(), r2t.transfer_tag(), 0, 0, &OLD);
    raw.send(&data);
    reset(raw);
    server.resume();
    has_ended(&server);
    assert_eq!(other.read_blocks(0, 0, 1), [0; 512]);
}

#[test]
fn writes_of_a_session_do_not_land_behind_its_next_login() {
    let server = Server::start(&config::standard());
    let mut raw = of_isid(1).on(server.portal());
    raw.clear_attentions(0);
    let mut next = Raw::connect(server.portal());
    server.pause();
    (0..3).for_each(|_| write(&mut raw, &OLD));
    let login = of_isid(1).request(1, Some(3));
    next.send(&login);
    server.resume();
    assert_eq!(next.recv_op(op::LOGIN_RESPONSE).status(), 0);
    next.clear_attentions(0);
    next.write_blocks(0, 0, &NEW).good();
    next.ping();
    assert_eq!(next.read_blocks(0, 0, 1), NEW);
}

#[test]
fn writes_of_a_session_do_not_land_behind_a_reset_by_another() {
    let server = Server::start(&config::standard());
    let (mut one, mut other) = (of_isid(1).on(server.portal()), of_isid(2).on(server.portal()));
    [&mut one, &mut other].into_iter().for_each(|raw| raw.clear_attentions(0));
    server.pause();
    (0..3).for_each(|_| write(&mut one, &OLD));
    let function = other.tmf(LUN_RESET, 0, 0xffff_ffff, 0);
    other.send(&function);
    server.resume();
    assert_eq!(other.recv_for(function.tag()).bhs[2], 0);
    other.clear_attentions(0);
    other.write_blocks(0, 0, &NEW).good();
    one.ping();
    assert_eq!(other.read_blocks(0, 0, 1), NEW);
}
