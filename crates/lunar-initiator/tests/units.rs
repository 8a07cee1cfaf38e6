//! Several logical units of one session, against a scripted target: a missing or unverified one delays only its own
//! commands.
#![forbid(unsafe_code)]

mod common;

use common::{READ_10, is, run};
use interop::script::{HookAction, Script, ScriptConnection, Target};
use interop::{Pdu, op};
use lunar_block::Backend;
use lunar_initiator::{Error, ErrorCode, Event, Lun, Session, Url};
use lunar_runtime::Buf;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(40);
const INQUIRY: u8 = 0x12;
/// REPORTED LUNS DATA HAS CHANGED.
const LUNS_CHANGED: [u8; 3] = [6, 0x3f, 0x0e];

fn lun_of(pdu: &Pdu) -> u8 {
    pdu.bhs[9]
}

/// Responds as a target without this logical unit does.
fn is_missing(link: &mut ScriptConnection, pdu: &Pdu) -> HookAction {
    if is(pdu, INQUIRY) && pdu.bhs[33] & 1 == 0 {
        link.data_in(pdu, &[&[0x7f, 0, 6, 2, 31][..], &[0; 31]].concat());
    } else {
        link.check_condition(pdu, [5, 0x25, 0]);
    }
    HookAction::Done
}

/// Runs `work` with the first `count` logical units of a target.
fn with_units<T: Send + 'static, W: Future<Output = T> + 'static>(
    target: &Target,
    settings: &str,
    count: u16,
    work: impl FnOnce(Session, Vec<Arc<Lun>>) -> W + Send + 'static,
) -> T {
    let url = Url::parse(&target.url(settings)).expect("a URL");
    run(LIMIT, move || async move {
        let session = lunar_initiator::connect(&url).await.expect("a session");
        let mut luns = Vec::new();
        for number in 0..count {
            luns.push(Lun::open(&session, number).await.expect("a LUN"));
        }
        work(session, luns).await
    })
}

async fn read(lun: &Lun) -> io::Result<()> {
    lun.read(0, Buf::zeroed(512)).await.0
}

fn reads_of(target: &Target, lun: u8) -> usize {
    target.requests(op::SCSI).iter().filter(|pdu| is(pdu, READ_10) && lun_of(pdu) == lun).count()
}

/// The first read on LUN 0 reports REPORTED LUNS DATA HAS CHANGED. LUN 1 is then missing, until the test restores it.
fn unmapping(is_back: Arc<AtomicBool>) -> Target {
    let is_gone = AtomicBool::new(false);
    let script = Script::new().hook(move |link, pdu| {
        if is(pdu, READ_10) && lun_of(pdu) == 0 && !is_gone.swap(true, SeqCst) {
            link.check_condition(pdu, LUNS_CHANGED);
            return HookAction::Done;
        }
        let here = lun_of(pdu) != 1 || !is_gone.load(SeqCst) || is_back.load(SeqCst);
        if here || pdu.opcode() != op::SCSI { HookAction::Usual } else { is_missing(link, pdu) }
    });
    script.listen()
}

#[test]
fn lun_that_is_unmapped_fails_its_own_commands_and_no_others() {
    let target = unmapping(Arc::default());
    let (took, error, events, recoveries) =
        with_units(&target, "recovery_timeout=10", 2, |session, luns| async move {
            let (events, begun) = (session.events(), Instant::now());
            read(&luns[0]).await.expect("read");
            let took = begun.elapsed();
            let error = read(&luns[1]).await.expect_err("the logical unit is missing");
            let again = read(&luns[1]).await.expect_err("the logical unit is still missing");
            assert_eq!(again.to_string(), error.to_string(), "the error must be the same");
            read(&luns[0]).await.expect("read after the other LUN has timed out");
            (took, error, events.drain().collect::<Vec<_>>(), session.info().recoveries)
        });
    assert!(took < Duration::from_secs(8), "it waited for the missing LUN: {took:?}");
    let error = Error::of(&error).expect("an error of this crate");
    assert_eq!(error.code, ErrorCode::TimedOut);
    assert!(
        error.what.starts_with("LUN 1 of iqn") && error.what.contains("missing or reports no identity"),
        "{error}"
    );
    assert!(events.iter().all(|e| matches!(e, Event::UnitAttention { .. })), "{events:?}");
    assert_eq!(recoveries, 0, "the connection was never lost");
    assert_eq!(reads_of(&target, 1), 0, "nothing was sent to the unverified LUN");
}

/// Waiting commands are sent once the LUN is back. So are new ones after others have failed.
#[test]
fn lun_that_is_mapped_again_goes_on() {
    let is_back = Arc::new(AtomicBool::new(false));
    let target = unmapping(is_back.clone());
    with_units(&target, "recovery_timeout=20", 2, |_, luns| async move {
        read(&luns[0]).await.expect("read");
        let (mut waits, mut put_back) = (
            std::pin::pin!(read(&luns[1])),
            std::pin::pin!(async {
                compio::time::sleep(Duration::from_secs(1)).await;
                is_back.store(true, SeqCst);
                std::future::pending::<()>().await;
            }),
        );
        let ended = std::future::poll_fn(|cx| {
            let _ = put_back.as_mut().poll(cx);
            waits.as_mut().poll(cx)
        });
        ended.await.expect("read once the LUN is back");
    });
}

#[test]
fn missing_lun_after_recovery_holds_back_no_other() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| match link.number {
        0 if is(pdu, READ_10) => HookAction::Close,
        1 if lun_of(pdu) == 1 && pdu.opcode() == op::SCSI => is_missing(link, pdu),
        _ => HookAction::Usual,
    });
    let target = target.listen();
    let (took, error, recoveries) =
        with_units(&target, "recovery_timeout=10", 2, |session, luns| async move {
            let started_at = Instant::now();
            read(&luns[0]).await.expect("read on the next connection");
            let (took, error) =
                (started_at.elapsed(), read(&luns[1]).await.expect_err("the logical unit is missing"));
            read(&luns[0]).await.expect("read after the other LUN has timed out");
            (took, error.to_string(), session.info().recoveries)
        });
    assert!(took < Duration::from_secs(8), "it waited for the missing LUN: {took:?}");
    assert!(error.contains("LUN 1 of iqn") && !error.contains("no connection"), "{error}");
    assert_eq!((recoveries, reads_of(&target, 1)), (1, 0));
}

/// The target responds only after all INQUIRYs have arrived: sequential checks would never complete.
#[test]
fn luns_of_a_session_are_looked_at_together() {
    const UNITS: usize = 8;
    let asked = Mutex::new(Vec::new());
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(move |link, pdu| {
        if link.number == 0 {
            return if is(pdu, READ_10) { HookAction::Close } else { HookAction::Usual };
        }
        let mut asked = asked.lock().expect("an unpoisoned lock");
        if !is(pdu, INQUIRY) || asked.len() == 2 * UNITS {
            return HookAction::Usual;
        }
        asked.push(pdu.clone());
        if asked.len() == 2 * UNITS {
            asked.iter().for_each(|pdu| _ = link.default_response(pdu));
        }
        HookAction::Done
    });
    let target = target.window(2 * UNITS as u32).listen();
    let times = "command_timeout=60&operation_timeout=60&recovery_timeout=60";
    with_units(&target, times, UNITS as u16, |_, luns| async move {
        for lun in &luns {
            read(lun).await.expect("read on the next connection");
        }
    });
}

/// The window is smaller than the number of checks: the others follow.
#[test]
fn many_luns_are_looked_at_within_the_window() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| {
        if link.number == 0 && is(pdu, READ_10) { HookAction::Close } else { HookAction::Usual }
    });
    let target = target.window(3).listen();
    with_units(&target, "", 20, |_, luns| async move {
        for lun in &luns {
            read(lun).await.expect("read on the next connection");
        }
    });
    let seen = target.seen();
    let looks = seen.iter().filter(|s| s.link == 1 && is(&s.pdu, INQUIRY) && s.pdu.bhs[34] == 0x83);
    let mut luns: Vec<u8> = looks.map(|s| lun_of(&s.pdu)).collect();
    luns.sort_unstable();
    luns.dedup();
    assert_eq!(luns.len(), 20);
}

/// With a recovery timeout of almost zero, commands have already failed. The event shows owners when to repeat them.
#[test]
fn missing_lun_is_reported_when_it_is_found() {
    let is_back = Arc::new(AtomicBool::new(false));
    let target = unmapping(is_back.clone());
    with_units(&target, "recovery_timeout=0.001", 2, |session, luns| async move {
        let events = session.events();
        read(&luns[0]).await.expect("read");
        read(&luns[1]).await.expect_err("the logical unit is missing");
        is_back.store(true, SeqCst);
        let address = luns[1].address();
        while events.recv_async().await.expect("the session is open") != (Event::Seen { lun: address }) {}
        read(&luns[1]).await.expect("read");
    });
}

/// Logins succeed, but no command does: the session has not recovered.
#[test]
fn target_that_takes_logins_alone_is_given_up_in_time() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| match link.number {
        0 if is(pdu, READ_10) => HookAction::Close,
        1.. if pdu.opcode() == op::SCSI => HookAction::Close,
        _ => HookAction::Usual,
    });
    let target = target.listen();
    let (took, error, recoveries) =
        with_units(&target, "recovery_timeout=2", 1, |session, luns| async move {
            let started_at = Instant::now();
            let error = read(&luns[0]).await.expect_err("no command gets a response");
            (started_at.elapsed(), error, session.info().recoveries)
        });
    assert_eq!(Error::of(&error).expect("an error of this crate").code, ErrorCode::TimedOut);
    assert!(took < Duration::from_secs(10) && recoveries == 0, "{took:?}, {recoveries}: {error}");
}
