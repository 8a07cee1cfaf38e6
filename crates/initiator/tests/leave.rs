//! How a session leaves its target, and what it does until then.
#![forbid(unsafe_code)]

mod common;

use block::Backend;
use common::{READ_10, is, with_disk};
use initiator::Kind;
use interop::script::{Link, Script, Target, Turn};
use interop::{Pdu, op};
use net::Buf;
use std::time::Duration;
use wire::iscsi::request::Function;

/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(40);
const INQUIRY: u8 = 0x12;

/// The target requests a logout within so many seconds (RFC 7143 section 11.9.1).
fn ask_to_leave(link: &mut Link, within_s: u16) {
    link.send(Pdu::new(op::ASYNC).itt(interop::NONE).byte(36, 1).set16(42, within_s));
}

/// A ping of the target.
fn ping(link: &mut Link) {
    link.send(Pdu::new(op::NOP_IN).itt(interop::NONE).ttt(7));
}

/// What came on a connection, by opcode.
fn opcodes(target: &Target, link: usize) -> Vec<u8> {
    let here = target.seen().into_iter().filter(|s| s.link == link && s.full_feature);
    here.map(|s| s.pdu.opcode()).collect()
}

/// LGO-007: neither pings nor answers to those of the target follow, however long its own answer takes.
#[test]
fn lgo_007_nothing_follows_the_logout() {
    let target = Script::new().at(op::LOGOUT, |link, _| {
        ping(link);
        Turn::Done
    });
    let target = target.listen();
    let times = "logout_timeout=4&noop_interval=1&noop_timeout=10";
    let closed = with_disk(LIMIT, &target, times, |lun| async move { lun.session().close().await });
    assert_eq!(closed.expect_err("no answer").kind, Kind::TimedOut);
    assert_eq!(opcodes(&target, 0).last(), Some(&op::LOGOUT));
}

/// LGO-007 where the target asked for it: nor do text and task management, which are told so at once.
#[test]
fn lgo_007_nothing_follows_the_logout_on_demand() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| match pdu.opcode() {
        op::SCSI if link.number == 0 && is(pdu, READ_10) => {
            ask_to_leave(link, 10);
            Turn::Usual
        }
        op::LOGOUT if link.number == 0 => {
            ping(link);
            Turn::Done
        }
        _ => Turn::Usual,
    });
    let target = target.listen();
    let times = "logout_timeout=4&noop_interval=1&noop_timeout=10";
    let refused = with_disk(LIMIT, &target, times, |lun| async move {
        let session = lun.session();
        lun.read(0, Buf::zeroed(512)).await.0.expect("read");
        compio::time::sleep(Duration::from_secs(2)).await;
        let text = session.text(&[("X-org.lunar.route", "?")]).await.map(drop);
        let managed = session.manage(Function::LunReset, 0).await.map(drop);
        lun.read(0, Buf::zeroed(512)).await.0.expect("read on the next connection");
        [text, managed].map(|end| end.map_err(|e| e.kind))
    });
    assert_eq!(refused, [Err(Kind::Lost); 2]);
    assert_eq!(opcodes(&target, 0).last(), Some(&op::LOGOUT));
}

/// LGO-007, ASY-004: a logical unit that was not seen is not looked at again on a connection that is to be left.
#[test]
fn lgo_007_who_is_asked_to_leave_looks_for_nothing() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| match pdu.opcode() {
        op::SCSI if link.number == 0 && is(pdu, READ_10) => Turn::Close,
        op::SCSI if link.number == 1 && is(pdu, INQUIRY) => {
            if pdu.bhs[33] & 1 == 0 {
                ask_to_leave(link, 10);
            }
            link.check_condition(pdu, [5, 0x25, 0]);
            Turn::Done
        }
        op::LOGOUT if link.number == 1 => Turn::Done,
        _ => Turn::Usual,
    });
    let target = target.listen();
    with_disk(LIMIT, &target, "logout_timeout=2", |lun| async move {
        lun.read(0, Buf::zeroed(512)).await.0.expect("read on the third connection");
    });
    assert_eq!(opcodes(&target, 1), [op::SCSI, op::SCSI, op::LOGOUT]);
}
