//! Session features that a router needs, against a scripted target: text keys, persistent discovery sessions, and the
//! abort of a single command.
#![forbid(unsafe_code)]

mod common;

use common::{READ_10, run};
use interop::script::{HookAction, Script, Target};
use interop::{Pdu, op};
use lunar_initiator::{
    Command, CommandResult, Completion, Direction, Discovery, Error, ErrorCode, Session, Url,
};
use lunar_runtime::{Buf, Cores};
use lunar_wire::scsi::cdb;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(30);
/// Byte 1 of an ABORT TASK request.
const ABORT_TASK: u8 = 0x81;

/// Runs `work` with a session that has completed a first command: further commands are sent at once.
fn with_session<T: Send + 'static, W: Future<Output = T> + 'static>(
    target: &Target,
    settings: &str,
    work: impl FnOnce(Session) -> W + Send + 'static,
) -> T {
    let url = Url::parse(&target.url(settings)).expect("a URL");
    run(LIMIT, move || async move { work(connect(&url).await).await })
}

async fn connect(url: &Url) -> Session {
    let session = lunar_initiator::connect(url).await.expect("a session");
    session.submit(ready()).await.0.expect("a response");
    session
}

fn ready() -> Command {
    Command::new(0, cdb::test_unit_ready(), Direction::None)
}

fn read() -> Command {
    Command::new(0, cdb::read_10(0, 1), Direction::In(Buf::zeroed(512)))
}

fn is_read(pdu: &Pdu) -> bool {
    pdu.opcode() == op::SCSI && pdu.bhs[32] == READ_10
}

fn aborts(target: &Target) -> Vec<Pdu> {
    target.requests(op::TMF).into_iter().filter(|pdu| pdu.bhs[1] == ABORT_TASK).collect()
}

/// Whether a command was aborted and its buffer returned.
fn is_aborted((result, buf): CommandResult) -> bool {
    result.is_err_and(|e| e.code == ErrorCode::Aborted) && buf.is_some_and(|b| b.len() == 512)
}

/// The responses to successive Text Requests. After the last one there are none.
enum Says {
    Keys(&'static [(&'static str, &'static str)]),
    Reject,
    Nothing,
    Close,
}

fn answering(says: Vec<Says>) -> Target {
    let at = AtomicUsize::new(0);
    let script = Script::new().at(op::TEXT, move |link, pdu| {
        match says.get(at.fetch_add(1, SeqCst)).unwrap_or(&Says::Nothing) {
            Says::Keys(keys) => {
                link.send(Pdu::new(op::TEXT_RESPONSE).itt(pdu.tag()).ttt(interop::NONE).keys(keys))
            }
            Says::Reject => link.send(Pdu::new(op::REJECT).byte(2, 4).itt(interop::NONE).data(&pdu.header())),
            Says::Nothing => {}
            Says::Close => return HookAction::Close,
        }
        HookAction::Done
    });
    script.listen()
}

const ASKED: [(&str, &str); 1] = [("X-org.lunar.route", "?")];

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

/// The result of a text request, with the error reduced to its code.
fn with_error_code(answer: Result<Vec<(String, String)>, Error>) -> Result<Vec<(String, String)>, ErrorCode> {
    answer.map_err(|e| e.code)
}

fn script() -> Vec<Says> {
    let known: &[(&str, &str)] = &[("X-org.lunar.route", "a,b")];
    let unknown: &[(&str, &str)] = &[("X-org.lunar.route", "NotUnderstood")];
    vec![Says::Keys(known), Says::Keys(unknown), Says::Reject, Says::Keys(known)]
}

fn answers() -> Vec<Result<Vec<(String, String)>, ErrorCode>> {
    let known = || Ok(vec![pair("X-org.lunar.route", "a,b")]);
    vec![known(), Ok(vec![pair("X-org.lunar.route", "NotUnderstood")]), Err(ErrorCode::Refused), known()]
}

#[test]
fn text_request_returns_the_answer() {
    let target = answering(script());
    let all = with_session(&target, "login_timeout=1", |session| async move {
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(with_error_code(session.text(&ASKED).await));
        }
        let late = with_error_code(session.text(&ASKED).await);
        let bad = with_error_code(session.text(&[("HeaderDigest", "None")]).await);
        let done = session.submit(read()).await.0.expect("the session is still usable").status;
        session.close().await.expect("a logout");
        (all, late, bad, done, with_error_code(session.text(&ASKED).await))
    });
    assert_eq!(
        all,
        (
            answers(),
            Err(ErrorCode::TimedOut),
            Err(ErrorCode::InvalidArgument),
            0,
            Err(ErrorCode::SessionClosed)
        )
    );
}

#[test]
fn connection_loss_during_a_text_request_is_an_error() {
    let target = answering(vec![Says::Close]);
    let (lost, done) = with_session(&target, "", |session| async move {
        let lost = with_error_code(session.text(&ASKED).await);
        (lost, session.submit(read()).await.0.expect("a response on the next connection").status)
    });
    assert_eq!((lost, done), (Err(ErrorCode::ConnectionLost), 0));
}

#[test]
fn discovery_session_stays_open_for_many_questions() {
    let target = answering(script());
    let url = Url::parse(&target.url("login_timeout=1")).expect("a URL");
    let all = run(LIMIT, move || async move {
        let options = url.options().expect("options");
        let mut discovery = Discovery::open(url.portal.clone(), &options).await.expect("a session");
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(with_error_code(discovery.text(&ASKED).await));
        }
        discovery.close().await.expect("the session has ended");
        all
    });
    // After a missing response the state of the connection is unknown, so it is closed.
    let want = [answers(), vec![Err(ErrorCode::TimedOut), Err(ErrorCode::ConnectionLost)]].concat();
    assert_eq!(all, want);
    assert!(target.requests(op::LOGOUT).is_empty(), "the connection was closed at the timeout");
}

#[test]
fn discovery_session_logs_out() {
    let target = answering(script());
    let url = Url::parse(&target.url("login_timeout=1")).expect("a URL");
    run(LIMIT, move || async move {
        let options = url.options().expect("options");
        let mut discovery = Discovery::open(url.portal.clone(), &options).await.expect("a session");
        discovery.text(&ASKED).await.expect("a response");
        discovery.close().await.expect("a logout");
    });
    assert_eq!(target.requests(op::LOGOUT).len(), 1);
}

/// A target that never responds to reads.
fn deaf() -> Script {
    Script::new().scsi(READ_10, |_, _| HookAction::Done)
}

#[test]
fn command_that_is_never_answered_is_aborted() {
    let target = deaf().listen();
    let (ended, other) = with_session(&target, "", |session| async move {
        let sent = session.submit(read());
        session.abort(sent.id()).await.expect("the target has aborted it");
        let again = session.abort(sent.id()).await;
        assert_eq!(again, Ok(()), "the command has ended");
        (is_aborted(sent.await), session.submit(ready()).await.0)
    });
    assert!(ended);
    assert_eq!(other.expect("the session is still usable").status, 0);
    let (aborts, reads) = (aborts(&target), target.requests(op::SCSI));
    let read = reads.iter().find(|pdu| is_read(pdu)).expect("a read");
    assert_eq!(aborts.len(), 1);
    assert_eq!((aborts[0].transfer_tag(), aborts[0].get32(32)), (read.tag(), read.get32(24)));
}

/// A session handle works on all cores.
#[test]
fn command_from_another_core_is_aborted_too() {
    let target = deaf().listen();
    let url = Url::parse(&target.url("")).expect("a URL");
    let home = Cores::one().expect("an event loop");
    let session = home.wait(0, move || async move { connect(&url).await }).expect("an event loop");
    let ended = run(LIMIT, move || async move {
        let (first, second) = (session.submit(read()), session.submit(read()));
        assert_ne!(first.id(), second.id());
        session.abort(first.id()).await.expect("the target has aborted it");
        let first = is_aborted(first.await);
        session.abort(second.id()).await.expect("the target has aborted it");
        first && is_aborted(second.await)
    });
    assert!(ended);
    assert_eq!(aborts(&target).len(), 2);
}

/// TMF-014: the response to the command was in flight when the abort was sent.
#[test]
fn answer_that_overtakes_the_abort_counts() {
    let held = Mutex::new(None);
    let target = Script::new().hook(move |link, pdu| {
        if is_read(pdu) {
            *held.lock().expect("an unpoisoned lock") = Some(pdu.clone());
            return HookAction::Done;
        }
        if pdu.opcode() == op::TMF
            && let Some(read) = held.lock().expect("an unpoisoned lock").take()
        {
            link.data_in(&read, &[7; 512]);
            link.send(Pdu::new(op::TMF_RESPONSE).itt(pdu.tag()).byte(2, 1));
            return HookAction::Done;
        }
        HookAction::Usual
    });
    let target = target.listen();
    let (result, buf) = with_session(&target, "", |session| async move {
        let sent = session.submit(read());
        session.abort(sent.id()).await.expect("the command has ended");
        sent.await
    });
    assert_eq!(result.expect("a response to this command").status, 0);
    assert!(buf.expect("its buffer").iter().all(|b| *b == 7));
}

/// The owner gets a result and the buffer in time, however the target responds to ABORT TASK.
#[test]
fn abort_refused_or_ignored_by_the_target_still_ends() {
    for (refuses, kind) in [(true, ErrorCode::Refused), (false, ErrorCode::TimedOut)] {
        let target = Script::new().hook(move |link, pdu| match pdu.opcode() {
            op::SCSI if is_read(pdu) => HookAction::Done,
            op::TMF if refuses => {
                link.send(Pdu::new(op::TMF_RESPONSE).itt(pdu.tag()).byte(2, 255));
                HookAction::Done
            }
            op::TMF => HookAction::Done,
            _ => HookAction::Usual,
        });
        let target = target.listen();
        let (aborted, ended) = with_session(&target, "abort_timeout=1", |session| async move {
            let sent = session.submit(read());
            let aborted = session.abort(sent.id()).await;
            (aborted.expect_err("the abort fails").code, is_aborted(sent.await))
        });
        assert_eq!((aborted, ended), (kind, true));
    }
}

#[test]
fn command_aborted_during_connection_loss_is_not_resent() {
    let target = Script::new().hook(|_, pdu| match pdu.opcode() {
        op::SCSI if is_read(pdu) => HookAction::Done,
        op::TMF => HookAction::Close,
        _ => HookAction::Usual,
    });
    let target = target.listen();
    let (ended, ready) = with_session(&target, "", |session| async move {
        let sent = session.submit(read());
        session.abort(sent.id()).await.expect("the command has ended");
        (is_aborted(sent.await), session.submit(ready()).await.0)
    });
    assert!(ended && ready.is_ok_and(|done| done.status == 0));
    assert_eq!(target.requests(op::SCSI).iter().filter(|pdu| is_read(pdu)).count(), 1);
}

/// The window permits one command, so the others are queued.
#[test]
fn abort_of_a_queued_command_lets_the_next_report_its_wait() {
    let target = deaf().window(1).listen();
    let (first, second, third) = with_session(&target, "", |session| async move {
        let done: Completion = session.submit(ready()).await.0.expect("a response");
        assert_eq!(done.queued, Duration::ZERO, "the command was not queued");
        let (first, second, third) =
            (session.submit(read()), session.submit(read()), session.submit(ready()));
        session.abort(second.id()).await.expect("the command has ended");
        let second = is_aborted(second.await);
        compio::time::sleep(Duration::from_millis(50)).await;
        session.abort(first.id()).await.expect("the target has aborted it");
        (is_aborted(first.await), second, third.await.0.expect("a response").queued)
    });
    assert!(first && second && third >= Duration::from_millis(50), "{first} {second} {third:?}");
    assert_eq!(aborts(&target).len(), 1);
    assert_eq!(target.requests(op::SCSI).iter().filter(|pdu| is_read(pdu)).count(), 1);
}
