//! Commands that are under way, for their owners.

use super::errors::closed;
use super::home::{Home, Place};
use super::request::{CommandId, Mail, Name, Requests};
use super::task::Waiter;
use crate::{Command, Finished};
use lunar_block::range::Hold;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// How commands reach a session.
pub struct Address {
    /// On its own core.
    pub here: Place,
    /// From other cores.
    pub requests: Requests,
    /// Commands that came from other cores.
    sent: AtomicU64,
}

impl Address {
    /// That of a session that takes these requests.
    pub fn new(here: Place, requests: Requests) -> Address {
        Address { here, requests, sent: AtomicU64::new(0) }
    }
}

impl Home {
    /// The end of a command that was taken in here.
    pub fn pending(self: &Rc<Self>, tag: u32) -> Pending {
        Pending(Way::Here(self.clone(), tag))
    }
}

/// A command on its way. Dropping it gives the answer up, not the command.
pub struct Pending(Way);

impl Pending {
    /// What names the command for as long as it is not over.
    pub fn id(&self) -> CommandId {
        CommandId(match &self.0 {
            Way::Here(_, tag) => Name::Tag(*tag),
            Way::There(_, number, _) => Name::Number(*number),
            Way::Refused(_) | Way::Over => Name::Over,
        })
    }
}

enum Way {
    Here(Rc<Home>, u32),
    /// On another core. Of a write also what it holds: its owner bars that at once when it gives the answer up.
    There(flume::r#async::RecvFut<'static, Finished>, u64, Option<Hold>),
    Refused(Box<Finished>),
    Over,
}

/// Hands a command to its session.
#[inline]
pub fn submit(address: &Address, command: Command) -> Pending {
    if let Some(home) = address.here.home() {
        return Pending(match home.accept(command, Waiter::Unknown) {
            Ok(tag) => Way::Here(home, tag),
            Err(finished) => Way::Refused(finished),
        });
    }
    let (reply, answer) = flume::bounded(1);
    let number = address.sent.fetch_add(1, Ordering::Relaxed);
    let hold = command.hold.as_ref().map(Hold::again);
    let Err(refused) = address.requests.try_send(Mail::Command(command, reply, number)) else {
        return Pending(Way::There(answer.into_recv_async(), number, hold));
    };
    Pending(match *refused {
        Mail::Command(command, ..) => Way::Refused(Box::new((Err(closed()), command.data.into_buf()))),
        _ => Way::Over,
    })
}

impl Future for Pending {
    type Output = Finished;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let me = &mut self.get_mut().0;
        let finished = match me {
            Way::Here(home, tag) => match home.machine.borrow_mut().poll(*tag, cx.waker()) {
                Some(finished) => finished,
                None => return Poll::Pending,
            },
            Way::There(answer, ..) => match Pin::new(answer).poll(cx) {
                Poll::Ready(got) => got.unwrap_or_else(|_| (Err(closed()), None)),
                Poll::Pending => return Poll::Pending,
            },
            Way::Refused(_) | Way::Over => match std::mem::replace(me, Way::Over) {
                Way::Refused(finished) => *finished,
                _ => (Err(closed()), None),
            },
        };
        *me = Way::Over;
        Poll::Ready(finished)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        match &self.0 {
            Way::Here(home, tag) => home.machine.borrow_mut().tasks.abandon(*tag),
            // Its core learns of it later: newer writes of the same bytes must not pass it meanwhile.
            Way::There(_, _, Some(hold)) => hold.bar(),
            Way::There(..) | Way::Refused(_) | Way::Over => {}
        }
    }
}
