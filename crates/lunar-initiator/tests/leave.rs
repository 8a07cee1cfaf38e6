//! How a session logs out, and what it does until then.
#![forbid(unsafe_code)]

mod common;

use common::{READ_10, is, run, with_disk};
use interop::script::{HookAction, Script, ScriptConnection, Target};
use interop::{Pdu, op};
use lunar_block::Backend;
use lunar_initiator::{Command, Direction, ErrorCode, Session, Url};
use lunar_runtime::{Buf, Cores};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::cdb;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(40);
const INQUIRY: u8 = 0x12;

/// Sends a logout request with a limit in seconds (RFC 7143 section 11.9.1).
fn ask_to_leave(link: &mut ScriptConnection, within_s: u16) {
    link.send(Pdu::new(op::ASYNC).itt(interop::NONE).byte(36, 1).set16(42, within_s));
}

/// Sends a ping of the target.
fn ping(link: &mut ScriptConnection) {
    link.send(Pdu::new(op::NOP_IN).itt(interop::NONE).ttt(7));
}

/// The opcodes of the PDUs received on a connection.
fn opcodes(target: &Target, link: usize) -> Vec<u8> {
    let here = target.seen().into_iter().filter(|s| s.link == link && s.full_feature);
    here.map(|s| s.pdu.opcode()).collect()
}

/// LGO-007: after the logout request, neither pings nor replies to pings are sent, however late the response.
#[test]
fn lgo_007_nothing_follows_the_logout() {
    let target = Script::new().at(op::LOGOUT, |link, _| {
        ping(link);
        HookAction::Done
    });
    let target = target.listen();
    let times = "logout_timeout=4&noop_interval=1&noop_timeout=10";
    let closed = with_disk(LIMIT, &target, times, |lun| async move { lun.session().close().await });
    assert_eq!(closed.expect_err("no logout response").code, ErrorCode::TimedOut);
    assert_eq!(opcodes(&target, 0).last(), Some(&op::LOGOUT));
}

/// LGO-007 after a logout request of the target: text and task management requests are not sent, and fail at once.
#[test]
fn lgo_007_nothing_follows_the_logout_on_demand() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| match pdu.opcode() {
        op::SCSI if link.number == 0 && is(pdu, READ_10) => {
            ask_to_leave(link, 10);
            HookAction::Usual
        }
        op::LOGOUT if link.number == 0 => {
            ping(link);
            HookAction::Done
        }
        _ => HookAction::Usual,
    });
    let target = target.listen();
    let times = "logout_timeout=4&noop_interval=1&noop_timeout=10";
    let refused = with_disk(LIMIT, &target, times, |lun| async move {
        let session = lun.session();
        lun.read(0, Buf::zeroed(512)).await.0.expect("read");
        compio::time::sleep(Duration::from_secs(2)).await;
        let text = session.text(&[("X-org.lunar.route", "?")]).await.map(drop);
        let managed = session.manage(TaskManagementFunction::LunReset, 0).await.map(drop);
        lun.read(0, Buf::zeroed(512)).await.0.expect("read on the next connection");
        [text, managed].map(|end| end.map_err(|e| e.code))
    });
    assert_eq!(refused, [Err(ErrorCode::ConnectionLost); 2]);
    assert_eq!(opcodes(&target, 0).last(), Some(&op::LOGOUT));
}

/// LGO-007, ASY-004: a failed identity check is not repeated on a connection that is logging out.
#[test]
fn lgo_007_logout_request_starts_no_identity_check() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| match pdu.opcode() {
        op::SCSI if link.number == 0 && is(pdu, READ_10) => HookAction::Close,
        op::SCSI if link.number == 1 && is(pdu, INQUIRY) => {
            if pdu.bhs[33] & 1 == 0 {
                ask_to_leave(link, 10);
            }
            link.check_condition(pdu, [5, 0x25, 0]);
            HookAction::Done
        }
        op::LOGOUT if link.number == 1 => HookAction::Done,
        _ => HookAction::Usual,
    });
    let target = target.listen();
    with_disk(LIMIT, &target, "logout_timeout=2", |lun| async move {
        lun.read(0, Buf::zeroed(512)).await.0.expect("read on the third connection");
    });
    assert_eq!(opcodes(&target, 1), [op::SCSI, op::SCSI, op::LOGOUT]);
}

/// ASY-004: the logout request is sent within Parameter3 seconds, even with commands in flight. These are resent
/// afterwards.
#[test]
fn asy_004_logout_is_sent_within_the_targets_time() {
    for (within_s, max) in [(0, 5000), (4, 4000)] {
        let times = Arc::new(Mutex::new(Vec::new()));
        let kept = times.clone();
        let target = Script::new().answer("DefaultTime2Wait", "0").hook(move |link, pdu| {
            let note = || kept.lock().expect("an unpoisoned lock").push(Instant::now());
            match pdu.opcode() {
                // The read gets no response on this connection.
                op::SCSI if link.number == 0 && is(pdu, READ_10) => {
                    ask_to_leave(link, within_s);
                    note();
                    HookAction::Done
                }
                op::LOGOUT if link.number == 0 => {
                    note();
                    HookAction::Usual
                }
                _ => HookAction::Usual,
            }
        });
        let target = target.listen();
        with_disk(LIMIT, &target, "", |lun| async move { lun.read(0, Buf::zeroed(512)).await.0 })
            .expect("read on the next connection");
        let times = times.lock().expect("an unpoisoned lock");
        let took = times[1] - times[0];
        assert!(took <= Duration::from_millis(max), "{within_s} s: {took:?}");
    }
}

fn read(session: &Session) -> lunar_initiator::Pending {
    session.submit(Command::new(0, cdb::read_10(0, 1), Direction::In(Buf::zeroed(512))))
}

/// Reads until an error. Returns the number of successful reads, and the error.
async fn read_on(session: Session) -> (usize, ErrorCode) {
    let mut done = 0;
    loop {
        match read(&session).await.0 {
            Ok(_) => done += 1,
            Err(e) => return (done, e.code),
        }
    }
}

/// Commands submitted during a close are rejected. Earlier ones complete.
#[test]
fn close_ends_also_where_commands_keep_coming() {
    let target = Script::new().scsi(READ_10, |_, _| {
        std::thread::sleep(Duration::from_millis(40));
        HookAction::Usual
    });
    let target = target.listen();
    let (took, closed, readers) = with_disk(LIMIT, &target, "logout_timeout=6", |lun| async move {
        let session = lun.session().clone();
        let readers: Vec<_> = (0..4).map(|_| compio::runtime::spawn(read_on(session.clone()))).collect();
        compio::time::sleep(Duration::from_millis(300)).await;
        let started_at = Instant::now();
        let closed = session.close().await;
        let took = started_at.elapsed();
        let mut ends = Vec::new();
        for reader in readers {
            ends.push(reader.await.expect("the task panicked"));
        }
        (took, closed, ends)
    });
    assert_eq!(closed, Ok(()));
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(readers.iter().all(|(done, kind)| *done > 0 && *kind == ErrorCode::SessionClosed), "{readers:?}");
}

/// The window permits one command: the others are queued when the close begins.
#[test]
fn command_accepted_before_close_completes() {
    let target = Script::new().window(1).scsi(READ_10, |_, _| {
        std::thread::sleep(Duration::from_millis(60));
        HookAction::Usual
    });
    let target = target.listen();
    let (closed, ends) = with_disk(LIMIT, &target, "", |lun| async move {
        let session = lun.session();
        let before: Vec<_> = (0..5).map(|_| read(session)).collect();
        let closed = session.close().await;
        let mut ends = Vec::new();
        for pending in before {
            ends.push(pending.await.0.map(|done| done.status));
        }
        (closed, ends)
    });
    assert_eq!((closed, ends), (Ok(()), vec![Ok(0); 5]));
}

/// Rejected at once, also on another core, and not only after the logout response. A second close returns the same
/// result.
#[test]
fn request_to_a_closing_session_is_refused_at_once() {
    let target = Script::new().at(op::LOGOUT, |_, _| HookAction::Done).listen();
    let url = Url::parse(&target.url("logout_timeout=4")).expect("a URL");
    let home = Cores::one().expect("an event loop");
    let open = move || async move { lunar_initiator::connect(&url).await.expect("a session") };
    let session = home.wait(0, open).expect("an event loop");
    let (waits, late, closed) = run(LIMIT, move || async move {
        let closing = {
            let session = session.clone();
            compio::runtime::spawn(async move { session.close().await })
        };
        compio::time::sleep(Duration::from_millis(300)).await;
        let late = read(&session).await.0.map(|done| done.status).map_err(|e| e.code);
        let waits = !closing.is_finished();
        let again = session.close().await.map_err(|e| e.code);
        (waits, late, [closing.await.expect("the task panicked").map_err(|e| e.code), again])
    });
    assert_eq!((late, closed), (Err(ErrorCode::SessionClosed), [Err(ErrorCode::TimedOut); 2]));
    assert!(waits, "the read waited for the logout");
    assert_eq!(target.requests(op::LOGOUT).len(), 1);
}
