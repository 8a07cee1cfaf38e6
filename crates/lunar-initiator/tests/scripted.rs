//! The library against a scripted target: changed and slow logical units, and abandoned connections.
#![forbid(unsafe_code)]

mod common;

use common::{READ_10, WRITE_10, is, with_disk};
use interop::script::{HookAction, Script, Target};
use interop::{Pdu, op};
use lunar_block::Backend;
use lunar_initiator::{Command, Direction, Error, ErrorCode, Event, Lun};
use lunar_runtime::Buf;
use lunar_wire::scsi::Sense;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(60);
const INQUIRY: u8 = 0x12;

fn writes(target: &Target) -> usize {
    target.requests(op::SCSI).iter().filter(|pdu| is(pdu, WRITE_10)).count()
}

fn kind(e: &io::Error) -> ErrorCode {
    Error::of(e).expect("an error of this crate").code
}

/// VPD page 83h of another logical unit.
const OTHER: [u8; 16] = [0, 0x83, 0, 12, 1, 3, 0, 8, 0x60, 9, 9, 9, 9, 9, 9, 9];

#[test]
fn lun_that_becomes_another_disk_is_not_written_on() {
    for sense in [[6, 0x3f, 0x0e], [6, 0x3f, 0x03], [6, 0x29, 0], [6, 0x28, 0]] {
        let is_other = AtomicBool::new(false);
        let target = Script::new().hook(move |link, pdu| {
            if is(pdu, WRITE_10) && !is_other.swap(true, SeqCst) {
                link.check_condition(pdu, sense);
                return HookAction::Done;
            }
            if is(pdu, INQUIRY) && pdu.bhs[33] == 1 && pdu.bhs[34] == 0x83 && is_other.load(SeqCst) {
                link.data_in(pdu, &OTHER);
                return HookAction::Done;
            }
            HookAction::Usual
        });
        let target = target.listen();
        let before = target.disk();
        let (kinds, now) = with_disk(LIMIT, &target, "", |lun| async move {
            let (mut kinds, events) = (Vec::new(), lun.session().events());
            for _ in 0..2 {
                let end = lun.write(0, Buf::zeroed(4096), false).await.0;
                kinds.push(kind(&end.expect_err("another logical unit")));
            }
            let now = events.try_iter().find_map(|event| match event {
                Event::Changed { identity, .. } => Some(identity),
                _ => None,
            });
            (kinds, now)
        });
        assert_eq!(kinds, [ErrorCode::IdentityMismatch; 2]);
        assert_eq!(now.as_deref(), Some(&OTHER[4..]), "the event reports the new identity");
        assert_eq!(writes(&target), 1, "no write after the unit attention");
        assert!(target.disk() == before);
    }
}

#[test]
fn lun_that_is_still_the_same_is_written_after_the_check() {
    let was_reported = AtomicBool::new(false);
    let target = Script::new().scsi(WRITE_10, move |link, pdu| {
        if was_reported.swap(true, SeqCst) {
            return HookAction::Usual;
        }
        link.check_condition(pdu, [6, 0x29, 0]);
        HookAction::Done
    });
    let target = target.listen();
    with_disk(LIMIT, &target, "", |lun| async move { lun.write(0, Buf::zeroed(4096), false).await.0 })
        .expect("written");
    let commands = target.requests(op::SCSI);
    let first = commands.iter().position(|pdu| is(pdu, WRITE_10)).expect("a write");
    let codes: Vec<u8> = commands[first..].iter().map(|pdu| pdu.bhs[32]).collect();
    assert_eq!(codes[..4], [WRITE_10, INQUIRY, INQUIRY, WRITE_10]);
}

/// SPC-5 section 4.4.7: a command that returned a deferred error was not executed.
#[test]
fn write_that_met_the_error_of_another_one_is_written() {
    let was_reported = AtomicBool::new(false);
    let target = Script::new().scsi(WRITE_10, move |link, pdu| {
        if was_reported.swap(true, SeqCst) {
            return HookAction::Usual;
        }
        // RECOVERED ERROR, deferred.
        let mut data = [0; 20];
        (data[1], data[2], data[4], data[9]) = (18, 0x71, 1, 10);
        link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x80).itt(pdu.tag()).byte(3, 2).data(&data));
        HookAction::Done
    });
    let target = target.listen();
    let mut buf = Buf::zeroed(4096);
    buf.fill(0xa5);
    with_disk(LIMIT, &target, "", |lun| async move { lun.write(0, buf, false).await.0 }).expect("written");
    assert_eq!(writes(&target), 2);
    assert!(target.disk()[..4096].iter().all(|b| *b == 0xa5), "the acknowledged data are on the disk");
}

/// Any command may return a deferred error. The next flush reports it: otherwise the writer would not learn of it.
#[test]
fn deferred_error_fails_one_flush() {
    let was_reported = AtomicBool::new(false);
    let target = Script::new().scsi(READ_10, move |link, pdu| {
        if was_reported.swap(true, SeqCst) {
            return HookAction::Usual;
        }
        // MEDIUM ERROR, write error, deferred.
        let mut data = [0; 20];
        (data[1], data[2], data[4], data[9], data[14]) = (18, 0x71, 3, 10, 0x0c);
        link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x80).itt(pdu.tag()).byte(3, 2).data(&data));
        HookAction::Done
    });
    let flushes = with_disk(LIMIT, &target.listen(), "", |lun| async move {
        lun.read(0, Buf::zeroed(4096)).await.0.expect("a retried read");
        [lun.flush().await, lun.flush().await]
    });
    let failure = flushes[0].as_ref().unwrap_err();
    assert!(failure.to_string().contains("is lost: deferred medium error"), "{failure}");
    let error = Error::of(failure).expect("an error of this crate");
    assert!(
        error.sense.is_some_and(|sense| !sense.deferred),
        "a deferred error would make hosts repeat the flush, which succeeds"
    );
    assert!(flushes[1].is_ok(), "a deferred error is reported once");
}

/// A starting target may accept logins before its LUNs exist.
#[test]
fn lun_that_is_added_after_the_login_is_waited_for() {
    let asked = AtomicUsize::new(0);
    let target = Script::new().hook(move |link, pdu| {
        if link.number == 0 {
            return if is(pdu, READ_10) { HookAction::Close } else { HookAction::Usual };
        }
        if !is(pdu, INQUIRY) || asked.load(SeqCst) >= 3 {
            return HookAction::Usual;
        }
        if pdu.bhs[33] & 1 == 1 {
            link.data_in(pdu, &OTHER);
        } else {
            asked.fetch_add(1, SeqCst);
            link.data_in(pdu, &[&[0x7f, 0, 6, 2, 31][..], &[0; 31]].concat());
        }
        HookAction::Done
    });
    let target = target.listen();
    let recoveries = with_disk(LIMIT, &target, "", |lun| async move {
        lun.read(0, Buf::zeroed(4096)).await.0.expect("read once the LUN exists");
        lun.session().info().recoveries
    });
    assert_eq!(recoveries, 1);
}

/// A LUN that was opened twice is checked once, and no longer after its last user is dropped.
#[test]
fn new_connection_checks_only_luns_in_use() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| {
        // The LBA is the number of the connection on which the read closes the connection.
        if is(pdu, READ_10) && usize::from(pdu.bhs[37]) == link.number {
            HookAction::Close
        } else {
            HookAction::Usual
        }
    });
    let target = target.listen();
    with_disk(LIMIT, &target, "", |lun| async move {
        let session = lun.session().clone();
        let other = Lun::open(&session, lun.number()).await.expect("the LUN opens twice");
        let read = |block| {
            let cdb = lunar_wire::scsi::cdb::read_10(block, 1);
            session.submit(Command::new(0, cdb, Direction::In(Buf::zeroed(512))))
        };
        read(0).await.0.expect("read on the second connection");
        drop(other);
        // The LUN rereads its properties after the reconnection: wait for that.
        compio::time::sleep(Duration::from_millis(300)).await;
        drop(lun);
        compio::time::sleep(Duration::from_millis(300)).await;
        read(1).await.0.expect("read on the third connection");
    });
    let seen = target.seen();
    let looks = |link| {
        let here = seen.iter().filter(|s| s.link == link && s.full_feature).map(|s| &s.pdu);
        here.take_while(|pdu| !is(pdu, READ_10)).filter(|pdu| is(pdu, INQUIRY) && pdu.bhs[34] == 0x83).count()
    };
    assert_eq!([1, 2].map(looks), [1, 0]);
}

/// A LUN that led to another logical unit on one connection may be restored on the next.
#[test]
fn lun_that_is_back_is_used_again() {
    let target = Script::new().hook(|link, pdu| {
        if link.number == 0 && is(pdu, READ_10) {
            return HookAction::Close;
        }
        if link.number == 1 && is(pdu, INQUIRY) && pdu.bhs[33] & 1 == 1 {
            link.data_in(pdu, &OTHER);
            return HookAction::Done;
        }
        // On the second connection, the first NOP-Out closes it.
        if link.number == 1 && pdu.opcode() == op::NOP_OUT { HookAction::Close } else { HookAction::Usual }
    });
    let target = target.listen();
    let kind = with_disk(LIMIT, &target, "noop_interval=1", |lun| async move {
        let kind = kind(&lun.read(0, Buf::zeroed(4096)).await.0.expect_err("another logical unit"));
        while lun.read(0, Buf::zeroed(4096)).await.0.is_err() {
            compio::time::sleep(Duration::from_millis(50)).await;
        }
        kind
    });
    assert_eq!(kind, ErrorCode::IdentityMismatch);
}

/// A logout request applies to its connection only, not to the next.
#[test]
fn target_that_closes_after_a_logout_request_is_not_left_again() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| {
        if link.number > 0 || !is(pdu, READ_10) {
            return HookAction::Usual;
        }
        link.send(Pdu::new(op::ASYNC).itt(interop::NONE).byte(36, 1).set16(42, 10));
        // The request is handled while the command is in flight.
        std::thread::sleep(Duration::from_millis(300));
        HookAction::Close
    });
    let target = target.listen();
    let recoveries = with_disk(LIMIT, &target, "logout_timeout=1", |lun| async move {
        lun.read(0, Buf::zeroed(4096)).await.0.expect("read on the next connection");
        compio::time::sleep(Duration::from_secs(2)).await;
        lun.session().info().recoveries
    });
    assert_eq!(recoveries, 1);
    let logouts = target.seen().into_iter().filter(|s| s.link == 1 && s.pdu.opcode() == op::LOGOUT).count();
    assert!(logouts <= 1 && target.seen().iter().all(|s| s.link <= 1), "only the logout at the end");
}

/// The unsent data of an abandoned connection are discarded: the target sees a reset instead of all data.
#[test]
fn given_up_write_is_not_delivered_later() {
    const LEN: usize = 256 << 10;
    let (sender, receiver) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let target =
        Script::new().answer("InitialR2T", "No").answer("ImmediateData", "Yes").hook(move |link, pdu| {
            if !is(pdu, WRITE_10) || link.number > 0 {
                return HookAction::Usual;
            }
            // Reads only long after the initiator has dropped the connection.
            std::thread::sleep(Duration::from_secs(4));
            let mut rest = Vec::new();
            let end = link.stream.read_to_end(&mut rest).map_err(|e| e.kind());
            sender.lock().expect("an unpoisoned lock").send(end.map(drop)).expect("the test waits");
            HookAction::Close
        });
    let target = target.listen();
    let settings = format!("noop_interval=1&noop_timeout=1&first_burst_length={LEN}");
    let written = with_disk(LIMIT, &target, &settings, |lun| async move {
        lun.write(0, Buf::zeroed(LEN), false).await.0.expect("written on the next connection");
        lun.session().info().recoveries
    });
    assert_eq!(written, 1);
    assert_eq!(
        receiver.recv_timeout(LIMIT).expect("the target's connection ends"),
        Err(io::ErrorKind::ConnectionReset)
    );
}

/// On a slow link, the time limits of requests start only when the data before them have been sent.
#[test]
fn on_a_slow_line_nothing_is_late_that_waits_to_leave() {
    const LEN: usize = 512 << 10;
    let target = Script::new().answer("InitialR2T", "No").answer("ImmediateData", "Yes");
    let target = target.at(op::DATA_OUT, |_, _| {
        std::thread::sleep(Duration::from_millis(45));
        HookAction::Usual
    });
    let target = target.listen();
    let times = "noop_interval=1&noop_timeout=4&command_timeout=4";
    let settings = format!("{times}&window=16384&max_burst_length={LEN}&first_burst_length={LEN}");
    let recoveries = with_disk(LIMIT, &target, &settings, |lun| async move {
        lun.write(0, Buf::zeroed(LEN), false).await.0.expect("written");
        lun.session().info().recoveries
    });
    assert_eq!((recoveries, target.requests(op::TMF).len()), (0, 0));
    assert!(!target.requests(op::NOP_OUT).is_empty(), "a ping was sent");
}

/// The attempts of an operation and the pauses between them share one deadline.
#[test]
fn unit_that_stays_busy_fails_at_the_operation_timeout() {
    for status in [0x08, 0x28] {
        let target = Script::new().scsi(READ_10, move |link, pdu| {
            link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x82).itt(pdu.tag()).byte(3, status).set32(44, 4096));
            HookAction::Done
        });
        let target = target.listen();
        let started_at = Instant::now();
        let late = with_disk(LIMIT, &target, "operation_timeout=2", |lun| async move {
            kind(&lun.read(0, Buf::zeroed(4096)).await.0.expect_err("the operation times out"))
        });
        assert_eq!(late, ErrorCode::TimedOut, "{status:02x}");
        assert!(
            started_at.elapsed() < Duration::from_secs(20),
            "{status:02x}: the limit for busy logical units was used"
        );
    }
}

/// These statuses mean that nothing was done. Zeros in two partial blocks are two commands.
#[test]
fn status_of_second_command_reports_begun_operation() {
    for (status, failing) in [0x08, 0x18, 0x28, 0x30].into_iter().flat_map(|s| [(s, 0), (s, 1)]) {
        let count = AtomicUsize::new(0);
        let target = Script::new().scsi(WRITE_10, move |link, pdu| {
            if count.fetch_add(1, SeqCst) < failing {
                return HookAction::Usual;
            }
            link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x82).itt(pdu.tag()).byte(3, status));
            HookAction::Done
        });
        let target = target.listen();
        let end = with_disk(LIMIT, &target, "operation_timeout=1", |lun| async move {
            lun.write_zeroes(100, 1024, false).await.expect_err("the status stays")
        });
        let e = Error::of(&end).expect("an error of this crate");
        let wanted =
            if failing == 0 { (Some(status), None) } else { (Some(2), Some(Sense::COMMAND_ABORTED)) };
        assert_eq!((e.status, e.sense), wanted, "{status:02x}, command {failing}");
    }
}

#[test]
fn repeated_unit_attentions_end_with_the_operation_timeout() {
    let target = Script::new().scsi(READ_10, |link, pdu| {
        std::thread::sleep(Duration::from_millis(800));
        // COMMANDS CLEARED BY ANOTHER INITIATOR.
        link.check_condition(pdu, [6, 0x2f, 0]);
        HookAction::Done
    });
    let target = target.listen();
    let late = with_disk(LIMIT, &target, "operation_timeout=2", |lun| async move {
        kind(&lun.read(0, Buf::zeroed(4096)).await.0.expect_err("the operation times out"))
    });
    assert_eq!(late, ErrorCode::TimedOut);
    assert!(target.requests(op::SCSI).iter().filter(|pdu| is(pdu, READ_10)).count() < 6);
}

/// The target may still execute the late write.
#[test]
fn write_after_a_late_write_uses_another_connection() {
    let target = Script::new()
        .answer("DefaultTime2Wait", "0")
        .scsi(WRITE_10, |link, _| if link.number == 0 { HookAction::Done } else { HookAction::Usual });
    let target = target.listen();
    let late = with_disk(LIMIT, &target, "operation_timeout=4&command_timeout=30", |lun| async move {
        let late = lun.write(0, Buf::zeroed(4096), false).await.0.expect_err("no response");
        lun.write(0, Buf::zeroed(4096), false).await.0.expect("written");
        kind(&late)
    });
    assert_eq!(late, ErrorCode::TimedOut);
    let seen = target.seen();
    let links = seen.iter().filter(|s| s.full_feature && is(&s.pdu, WRITE_10)).map(|s| s.link);
    assert_eq!(links.collect::<Vec<_>>(), [0, 1]);
}

/// The command is not retried until the recovery timeout.
#[test]
fn repeated_violation_ends_commands_early() {
    let target = Script::new().answer("DefaultTime2Wait", "0").scsi(READ_10, |link, _| {
        link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x80).itt(0xdead));
        HookAction::Done
    });
    let target = target.listen();
    let errors = with_disk(LIMIT, &target, "recovery_timeout=600&operation_timeout=600", |lun| async move {
        let cdb = lunar_wire::scsi::cdb::read_10(0, 1);
        let read = || lun.session().submit(Command::new(0, cdb, Direction::In(Buf::zeroed(512))));
        [read().await.0.expect_err("a protocol violation"), read().await.0.expect_err("a protocol violation")]
    });
    assert_eq!(errors.each_ref().map(|e| e.code), [ErrorCode::ProtocolError; 2], "{errors:?}");
    assert!(errors[0].what.contains("repeats a protocol violation"), "{errors:?}");
}

#[test]
fn violation_repeated_in_login_ends_commands_early() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| match pdu.opcode() {
        op::LOGIN if link.number > 0 => {
            link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x80).itt(pdu.tag()));
            HookAction::Done
        }
        _ if is(pdu, READ_10) => HookAction::Close,
        _ => HookAction::Usual,
    });
    let target = target.listen();
    let error = with_disk(LIMIT, &target, "recovery_timeout=600&operation_timeout=600", |lun| async move {
        let cdb = lunar_wire::scsi::cdb::read_10(0, 1);
        let read = Command::new(0, cdb, Direction::In(Buf::zeroed(512)));
        lun.session().submit(read).await.0.expect_err("the login fails")
    });
    assert_eq!(error.code, ErrorCode::ProtocolError, "{error}");
}

/// A login proves that the target no longer executes the write. Until then the owner gets no result.
#[test]
fn write_met_by_violations_ends_with_a_proof() {
    let target = Script::new().answer("DefaultTime2Wait", "0").scsi(WRITE_10, |link, _| {
        link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x80).itt(0xdead));
        HookAction::Done
    });
    let target = target.listen();
    let error = with_disk(LIMIT, &target, "recovery_timeout=600&operation_timeout=600", |lun| async move {
        let cdb = lunar_wire::scsi::cdb::write_10(0, 1, false);
        let write = Command::new(0, cdb, Direction::Out(Buf::zeroed(512)));
        lun.session().submit(write).await.0.expect_err("a protocol violation")
    });
    assert_eq!(error.code, ErrorCode::ConnectionLost, "{error}");
    let seen = target.seen();
    let last = seen.iter().rposition(|s| is(&s.pdu, WRITE_10)).expect("a write");
    assert!(seen[last..].iter().any(|s| s.pdu.opcode() == op::LOGIN), "a login must follow the last write");
}
