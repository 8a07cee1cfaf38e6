//! Commands that have arrived but were not handled when their connection ends, or when another session aborts them.

use crate::registry::{AbortScope, SessionMessage};
use crate::test_target::{run_ready, run_test};
use lunar_wire::scsi::cdb;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

const OLD: [u8; 512] = [1; 512];

#[test]
fn commands_before_end_do_not_begin_after_it() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        host.write(&cdb::write_10(0, 1, false), &OLD, OLD.len());
        host.end.close();
        while target.sessions() > 0 {
            lunar_runtime::yield_now().await;
        }
        assert_eq!(target.on_medium(0), 0);
    });
}

#[test]
fn reset_by_other_session_stops_older_commands() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let from = target.shared.registry.list().pop().expect("a session").1;
        let scope = AbortScope::units([target.disk()]);
        let message = |done| {
            let (scope, from, indeterminate) = (scope.clone(), from.clone(), Default::default());
            SessionMessage::Abort { scope, from: Some(from), indeterminate, done }
        };
        let mut received = pin!(target.shared.registry.broadcast(None, message));
        // The message must arrive first, because an arriving command wakes the datamover.
        assert!(poll_fn(|cx| Poll::Ready(received.as_mut().poll(cx).is_pending())).await);
        lunar_runtime::yield_now().await;
        host.write(&cdb::write_10(0, 1, false), &OLD, OLD.len());
        received.await;
        let then = target.on_medium(0);
        run_ready().await;
        assert_eq!((then, target.on_medium(0)), (0, 0));
    });
}
