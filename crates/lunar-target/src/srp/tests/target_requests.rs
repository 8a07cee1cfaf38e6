//! Requests of the target: pings, events and logout.

use super::test_target::{Host, HostResponse, command, run_ready};
use super::{TestTarget, on_core};
use crate::config::AccessRule;
use crate::end_reason::EndReason;
use crate::registry::SessionMessage;
use lunar_wire::scsi::cdb;
use lunar_wire::srp::{Aer, CreditRequest, aer_response, credit_response};
use std::time::Duration;

/// A timeout that is longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// A host that has sent something. The target sends no requests before that.
async fn host_that_sent(target: &TestTarget) -> Host {
    let mut host = target.host(1, false).await;
    assert_eq!(
        host.execute(&command(1, &cdb::test_unit_ready())).await,
        HostResponse::check(1, (6, 0x29, 0))
    );
    host
}

async fn asked(host: &mut Host) -> CreditRequest {
    CreditRequest::decode(&host.receive().await.expect("a ping")).expect("a request")
}

#[test]
fn silent_initiator_is_pinged() {
    on_core(async move || {
        let target = TestTarget::with_ping_timeout(LONG);
        let mut host = host_that_sent(&target).await;
        let first = asked(&mut host).await;
        assert_eq!(first.credits, 0);
        host.send_unit(&credit_response(first.tag));
        // The target answers commands before the timeout of the ping.
        assert_eq!(host.execute(&command(2, &cdb::test_unit_ready())).await, HostResponse::good(2));
        assert_eq!(target.shared.registry.list().len(), 1);
    });
}

#[test]
fn initiator_that_answers_pings_stays() {
    on_core(async move || {
        let target = TestTarget::with_ping_timeout(Duration::from_secs(1));
        let mut host = host_that_sent(&target).await;
        let mut tags = Vec::new();
        for _ in 0..2 {
            let request = asked(&mut host).await;
            tags.push(request.tag);
            host.send_unit(&credit_response(request.tag));
        }
        assert_eq!((tags, target.shared.registry.list().len()), (vec![1, 2], 1));
    });
}

#[test]
fn initiator_that_ignores_ping_is_dropped() {
    on_core(async move || {
        let target = TestTarget::with_ping_timeout(Duration::from_millis(1));
        let mut host = host_that_sent(&target).await;
        assert_eq!(asked(&mut host).await.credits, 0);
        host.expect_close().await;
        while !target.shared.registry.list().is_empty() {
            run_ready().await;
        }
    });
}

#[test]
fn ended_session_gets_logout() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        let ended = target.shared.registry.end(|_| true, EndReason::ServerStop).await;
        assert_eq!(ended, 1);
        host.expect_logout(0).await;
    });
}

#[test]
fn server_stop_answers_commands_before_logout() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        host.send(&command(2, &cdb::test_unit_ready()));
        run_ready().await;
        target.shared.registry.broadcast(None, |done| SessionMessage::Stop { done }).await;
        assert_eq!(host.answer().await, HostResponse::good(2));
        host.expect_logout(0).await;
    });
}

#[test]
fn events_are_sent_one_at_a_time_if_configured() {
    let anybody = AccessRule { aen: true, ..AccessRule::default() };
    on_core(async move || {
        let target = TestTarget::with(|target| target.access = vec![anybody]);
        let mut host = target.host(1, false).await.receive_attentions().await;
        let unit = target.shared.config().targets.values().next().expect("a target").luns[&0].clone();
        let changes = || target.shared.registry.send_each(|_| Some(SessionMessage::Attention(unit.clone())));
        changes();
        let received = host.receive().await.expect("an event");
        let event = Aer::decode(&received).expect("an event");
        assert_eq!((event.lun, event.sense.len(), &event.sense[12..14]), (0, 18, &[0x2a, 0x09][..]));
        // The first event is unanswered.
        changes();
        host.expect_silence().await;
        host.send_unit(&aer_response(event.tag));
        run_ready().await;
        changes();
        assert_eq!(
            Aer::decode(&host.receive().await.expect("an event")).map(|next| next.tag),
            Ok(event.tag + 1)
        );
    });
}
