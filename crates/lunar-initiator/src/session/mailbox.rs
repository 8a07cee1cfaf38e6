//! The tasks of a session: its mailbox, its clock, and its connections.

use super::home::Home;
use super::request::Mail;
use super::task::Waiter;
use super::{checks, demand, escalate, leave, recover};
use crate::connect::Connected;
use std::rc::Rc;

/// Starts the tasks of a session.
pub fn start(home: Rc<Home>, connected: Connected, inbox: flume::Receiver<Mail>) {
    lunar_runtime::spawn(mail(home.clone(), inbox));
    lunar_runtime::spawn(escalate::watch(home.clone()));
    lunar_runtime::spawn(recover::live(home, connected));
}

/// Takes what comes from other cores. When all handles are gone, the session ends.
async fn mail(home: Rc<Home>, inbox: flume::Receiver<Mail>) {
    while let Ok(mail) = inbox.recv_async().await {
        match mail {
            // Its owner has gone before it came.
            Mail::Command(_, reply, _) if reply.is_disconnected() => {}
            Mail::Command(command, reply, number) => {
                if let Err(finished) = home.accept(command, Waiter::There(reply.clone(), number)) {
                    // Who has stopped to wait does not want it.
                    let _ = reply.send(*finished);
                }
            }
            Mail::Manage(function, lun, reply) => {
                lunar_runtime::spawn(escalate::manage(home.clone(), function, lun, reply));
            }
            Mail::Abort(command, reply) => {
                lunar_runtime::spawn(demand::abort(home.clone(), command, reply));
            }
            Mail::Text(question, reply) => {
                lunar_runtime::spawn(demand::text(home.clone(), question, reply));
            }
            Mail::GiveUpStrays(reply) => {
                home.give_up_strays();
                // Who has stopped to wait does not want it.
                let _ = reply.send(());
            }
            Mail::GiveUp => {
                home.gives_up.set(true);
                home.bell.notify(usize::MAX);
            }
            Mail::Changed(lun, now) => home.mark(lun, checks::Seen::Changed(now)),
            Mail::LookAgain(lun, reply) => {
                lunar_runtime::spawn(checks::look_again(home.clone(), lun, reply));
            }
            Mail::Orphans(lun, reply) => {
                let orphans = home.machine.borrow_mut().orphans(lun);
                // Who has stopped to wait does not want it.
                let _ = reply.send(orphans.map(|(_, since)| since.elapsed()));
            }
            Mail::Prove(proof, reply) => {
                home.prove(proof);
                // Who has stopped to wait does not want it.
                let _ = reply.send(());
            }
            Mail::Pin(lun, identity) => home.pin(lun, identity),
            Mail::Hold(held, identity, reply) => {
                // Who has stopped to wait drops it with the answer.
                let _ = reply.send(home.hold(held, identity));
            }
            Mail::LetGo(lun) => home.let_go(lun),
            Mail::Close(reply) => {
                let home = home.clone();
                // Who has stopped to wait does not want it.
                let close = async move { drop(reply.send(leave::close(&home).await)) };
                // What comes meanwhile is to hear at once that it is too late.
                lunar_runtime::spawn(close);
            }
        }
    }
    // Nobody waits for this one.
    let _ = leave::close(&home).await;
}
