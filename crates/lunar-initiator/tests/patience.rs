//! Timeouts, retries and redirections: resets and logouts without a response, logical units that are busy for a
//! while, redirected sessions, and IPv6 portals.
#![forbid(unsafe_code)]

mod common;

use common::{READ_10, WRITE_10, is, run, with_disk};
use interop::script::{HookAction, Script, Target};
use interop::{Pdu, op};
use lunar_block::Backend;
use lunar_initiator::command::TaskManagementFunction;
use lunar_initiator::multipath::{Multipath, MultipathOptions};
use lunar_initiator::{ErrorCode, Lun, Options, Url};
use lunar_runtime::Buf;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(60);
const COMPARE_AND_WRITE: u8 = 0x89;

/// The task management functions that a target has received, and the connection of each.
fn functions(target: &Target) -> Vec<(u8, usize)> {
    let all = target.seen().into_iter().filter(|s| s.pdu.opcode() == op::TMF);
    all.map(|s| (s.pdu.bhs[1] & 0x7f, s.link)).collect()
}

/// ABORT TASK, LOGICAL UNIT RESET and TARGET WARM RESET, each until its timeout, then a new session.
#[test]
fn unanswered_task_management_escalates_in_time() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| match pdu.opcode() {
        op::TMF => HookAction::Done,
        _ if link.number == 0 && is(pdu, READ_10) => HookAction::Done,
        _ => HookAction::Usual,
    });
    let target = target.listen();
    let started_at = Instant::now();
    let times = "command_timeout=1&abort_timeout=1&lun_reset_timeout=1&target_reset_timeout=1";
    let recoveries = with_disk(LIMIT, &target, times, |lun| async move {
        lun.read(0, Buf::zeroed(4096)).await.0.expect("read on the next connection");
        lun.session().info().recoveries
    });
    assert_eq!((functions(&target), recoveries), (vec![(1, 0), (5, 0), (6, 0)], 1));
    assert!(started_at.elapsed() < Duration::from_secs(30), "other timeouts were used");
}

/// A command that LOGICAL UNIT RESET has ended is resent on the same connection.
#[test]
fn reset_of_the_unit_ends_what_the_abort_does_not() {
    let reset = Arc::new(AtomicUsize::new(0));
    let target = Script::new().hook(move |_, pdu| match (pdu.opcode(), pdu.bhs[1] & 0x7f) {
        (op::TMF, 1) => HookAction::Done,
        (op::TMF, 5) => {
            reset.fetch_add(1, SeqCst);
            HookAction::Usual
        }
        _ if is(pdu, READ_10) && reset.load(SeqCst) == 0 => HookAction::Done,
        _ => HookAction::Usual,
    });
    let target = target.listen();
    let recoveries = with_disk(LIMIT, &target, "command_timeout=1&abort_timeout=1", |lun| async move {
        lun.read(0, Buf::zeroed(4096)).await.0.expect("read after the reset");
        lun.session().info().recoveries
    });
    assert_eq!((functions(&target), recoveries), (vec![(1, 0), (5, 0)], 0));
}

/// Options without any time limit.
fn endless(url: &Url) -> Options {
    let mut options = url.options().expect("options");
    let t = &mut options.timeouts;
    for limit in
        [&mut t.login, &mut t.logout, &mut t.noop_interval, &mut t.noop, &mut t.command, &mut t.abort]
    {
        *limit = Duration::MAX;
    }
    for limit in [&mut t.lun_reset, &mut t.target_reset, &mut t.recovery, &mut t.fast_io_fail, &mut t.pause] {
        *limit = Duration::MAX;
    }
    (t.busy, t.transition, t.operation) = (Duration::MAX, Some(Duration::MAX), Duration::MAX);
    options
}

#[test]
fn endless_time_limits_open_recover_and_close() {
    let lost = AtomicUsize::new(0);
    let script = Script::new().hook(move |_, pdu| match is(pdu, READ_10) && lost.fetch_add(1, SeqCst) == 0 {
        true => HookAction::Close,
        false => HookAction::Usual,
    });
    let target = script.listen();
    let url = Url::parse(&target.url("")).expect("a URL");
    run(LIMIT, move || async move {
        let (_, session) = lunar_initiator::connect_with(&url, &endless(&url)).await.expect("a session");
        let lun = Lun::open(&session, 0).await.expect("a LUN");
        let settings = MultipathOptions::default().with_check(Duration::MAX).with_queue(Duration::MAX);
        let joined = Multipath::join(vec![lun.clone()], settings).await.expect("a path");
        joined.read(0, Buf::zeroed(4096)).await.0.expect("read on the next connection");
        session.manage(TaskManagementFunction::LunReset, lun.address()).await.expect("a response");
        session.close().await.expect("closed");
    });
}

#[test]
fn logout_that_is_not_answered_ends_in_time() {
    let target = Script::new().at(op::LOGOUT, |_, _| HookAction::Done).listen();
    let started_at = Instant::now();
    let (closed, after) = with_disk(LIMIT, &target, "logout_timeout=1", |lun| async move {
        let closed = lun.session().close().await.map_err(|e| e.code);
        let after = lun.read(0, Buf::zeroed(4096)).await.0.is_err();
        (closed, after)
    });
    assert_eq!((closed, after), (Err(ErrorCode::TimedOut), true));
    assert!(started_at.elapsed() < Duration::from_secs(12), "the default timeout was used");
    assert_eq!(target.requests(op::LOGOUT).len(), 1);
}

/// The target requests a logout but does not respond to it: the connection is replaced.
#[test]
fn unanswered_requested_logout_reconnects_in_time() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| {
        if link.number == 0 && is(pdu, READ_10) {
            link.send(Pdu::new(op::ASYNC).itt(interop::NONE).byte(36, 1).set16(42, 10));
            return HookAction::Usual;
        }
        if link.number == 0 && pdu.opcode() == op::LOGOUT { HookAction::Done } else { HookAction::Usual }
    });
    let target = target.listen();
    let started_at = Instant::now();
    let recoveries = with_disk(LIMIT, &target, "logout_timeout=1", |lun| async move {
        for _ in 0..2 {
            lun.read(0, Buf::zeroed(4096)).await.0.expect("read");
        }
        lun.session().info().recoveries
    });
    assert_eq!(recoveries, 1);
    assert!(started_at.elapsed() < Duration::from_secs(12), "the default timeout was used");
}

/// BUSY and TASK SET FULL: the command is retried with growing pauses until it succeeds.
#[test]
fn unit_that_is_busy_for_a_while_is_written_on_in_the_end() {
    for status in [0x08, 0x28] {
        let asked = AtomicUsize::new(0);
        let target = Script::new().scsi(WRITE_10, move |link, pdu| {
            if asked.fetch_add(1, SeqCst) >= 4 {
                return HookAction::Usual;
            }
            let len = pdu.get32(20);
            link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x82).itt(pdu.tag()).byte(3, status).set32(44, len));
            HookAction::Done
        });
        let target = target.answer("InitialR2T", "Yes").answer("ImmediateData", "No").listen();
        let mut buf = Buf::zeroed(4096);
        buf.fill(0xa5);
        with_disk(LIMIT, &target, "", |lun| async move { lun.write(0, buf, false).await.0 })
            .expect("written");
        let writes = target.requests(op::SCSI).iter().filter(|pdu| is(pdu, WRITE_10)).count();
        assert_eq!(writes, 5, "{status:02x}");
        assert!(target.disk()[..4096].iter().all(|b| *b == 0xa5), "{status:02x}");
        assert!(functions(&target).is_empty());
    }
}

#[test]
fn target_is_reached_over_ipv6() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        println!("skipped: needs IPv6");
        return;
    };
    let target = Script::new().listen_with(listener);
    let portal = with_disk(LIMIT, &target, "", |lun| async move {
        lun.read(0, Buf::zeroed(4096)).await.0.expect("read");
        lun.session().info().portal
    });
    assert_eq!((portal.host.as_str(), portal.to_string()), ("::1", target.address().to_string()));
    let url = Url::parse(&format!("iscsi://{}?login_tries=1", target.address())).expect("a URL");
    let found = run(LIMIT, move || async move {
        let options = url.options().expect("options");
        lunar_initiator::discover(url.portal.clone(), &options).await.expect("its targets")
    });
    let [one] = &found[..] else { panic!("{found:?}") };
    assert_eq!((one.addresses[0].host.as_str(), one.addresses[0].port), ("::1", target.address().port()));
}

/// LOG-038 in a discovery session: the request is sent to the portal of the redirection.
#[test]
fn discovery_session_is_sent_elsewhere() {
    let there = Script::new().listen();
    let place = format!("{},1", there.address());
    let here = Script::new().redirects_to(move |_| place.clone()).listen();
    let url = Url::parse(&format!("iscsi://{}?login_tries=1", here.address())).expect("a URL");
    let found = run(LIMIT, move || async move {
        let options = url.options().expect("options");
        lunar_initiator::discover(url.portal.clone(), &options).await.expect("its targets")
    });
    assert_eq!(found[0].addresses[0].port, there.address().port());
    assert_eq!((here.requests(op::TEXT).len(), there.requests(op::TEXT).len()), (0, 1));
}

/// Both run concurrently. If COMPARE AND WRITE were sent between the read and the write of the partial write, its
/// change would be lost.
#[test]
fn compare_and_write_waits_for_the_write_of_a_part_of_its_block() {
    let target = Script::new().listen();
    with_disk(LIMIT, &target, "", |lun| async move {
        let part = lun.write(100, Buf::zeroed(50), false);
        let compared = lun.compare_and_write(0, Buf::zeroed(1024));
        let (mut part, mut compared) = (std::pin::pin!(part), std::pin::pin!(compared));
        let (mut written, mut ended) = (false, false);
        std::future::poll_fn(|cx| {
            written = written || part.as_mut().poll(cx).is_ready();
            ended = ended || compared.as_mut().poll(cx).is_ready();
            if written && ended { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    });
    let of_interest = [READ_10, WRITE_10, COMPARE_AND_WRITE];
    let codes = target.seen().into_iter().filter(|s| s.pdu.opcode() == op::SCSI).map(|s| s.pdu.bhs[32]);
    let seen: Vec<u8> = codes.filter(|code| of_interest.contains(code)).collect();
    assert_eq!(seen, of_interest);
}
