//! The tasks of a session: requests from other cores, timers, and connections.

use super::local_session::LocalSession;
use super::request::{SessionCore, SessionRequest};
use super::task::Waiter;
use super::{error_handler, identity_checks, logout, owner_requests, recovery};
use crate::connect::Connected;
use std::rc::Rc;

/// Starts the tasks of a session.
pub fn start(core: SessionCore, connected: Connected) {
    let local = core.registration.value();
    lunar_runtime::spawn(handle_requests(local.clone(), core.requests));
    lunar_runtime::spawn(error_handler::watch(local.clone()));
    lunar_runtime::spawn(recovery::live(core.registration, connected));
}

/// Handles requests from other cores. Closes the session when all handles are dropped.
async fn handle_requests(local: Rc<LocalSession>, requests: flume::Receiver<SessionRequest>) {
    while let Ok(request) = requests.recv_async().await {
        match request {
            // The owner dropped the command before it arrived here.
            SessionRequest::Command(_, reply, _) if reply.is_disconnected() => {}
            SessionRequest::Command(command, reply, number) => {
                if let Err(finished) = local.accept(command, Waiter::There(reply.clone(), number)) {
                    // The caller may have stopped waiting.
                    let _ = reply.send(*finished);
                }
            }
            SessionRequest::Manage(function, lun, reply) => {
                lunar_runtime::spawn(error_handler::manage(local.clone(), function, lun, reply));
            }
            SessionRequest::Abort(command, reply) => {
                lunar_runtime::spawn(owner_requests::abort(local.clone(), command, reply));
            }
            SessionRequest::Text(question, reply) => {
                lunar_runtime::spawn(owner_requests::text(local.clone(), question, reply));
            }
            SessionRequest::ResetAbandoned(reply) => {
                local.reset_abandoned();
                // The caller may have stopped waiting.
                let _ = reply.send(());
            }
            SessionRequest::GiveUp => {
                local.gives_up.set(true);
                local.bell.notify(usize::MAX);
            }
            SessionRequest::Changed(lun, now) => {
                local.mark(lun, identity_checks::IdentityCheck::Changed(now))
            }
            SessionRequest::VerifyAgain(lun, reply) => {
                lunar_runtime::spawn(identity_checks::verify_again(local.clone(), lun, reply));
            }
            SessionRequest::Orphans(lun, reply) => {
                let orphans = local.state.borrow_mut().orphans(lun);
                // The caller may have stopped waiting.
                let _ = reply.send(orphans.map(|(_, started_at)| started_at.elapsed()));
            }
            SessionRequest::Prove(proof, reply) => {
                local.prove(proof);
                // The caller may have stopped waiting.
                let _ = reply.send(());
            }
            SessionRequest::Pin(lun, identity) => local.pin(lun, identity),
            SessionRequest::Hold(held, identity, reply) => {
                // If the caller has stopped waiting, the hold is dropped with the reply.
                let _ = reply.send(local.hold(held, identity));
            }
            SessionRequest::ReleaseHold(lun) => local.release_hold(lun),
            SessionRequest::Close(reply) => {
                let local = local.clone();
                // The caller may have stopped waiting.
                let close = async move { drop(reply.send(logout::close(&local).await)) };
                // Spawned: requests during the logout must fail at once.
                lunar_runtime::spawn(close);
            }
        }
    }
    // No caller waits for the result.
    let _ = logout::close(&local).await;
}
