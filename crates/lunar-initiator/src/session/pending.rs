//! Commands in flight, as seen by their owners.

use super::errors::closed;
use super::local_session::LocalSession;
use super::request::{CommandId, CommandKey, SessionHandle, SessionRequest};
use super::task::Waiter;
use crate::{Command, CommandResult};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::{Buf, PipedBytes};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

impl LocalSession {
    /// Creates the future for a command from this core.
    pub fn pending(self: &Rc<Self>, tag: u32) -> Pending {
        Pending(PendingState::Local(self.clone(), tag))
    }
}

/// A command in flight. Dropping it discards the result, but does not abort the command.
pub struct Pending(PendingState);

impl Pending {
    /// The id of the command, until it ends.
    pub fn id(&self) -> CommandId {
        CommandId(match &self.0 {
            PendingState::Local(_, tag) => CommandKey::Tag(*tag),
            PendingState::Remote(_, number, _) => CommandKey::Number(*number),
            PendingState::Rejected(_) | PendingState::Done => CommandKey::Over,
        })
    }

    /// Waits for the result. Passes parts of the data of a long read to `take` before the command ends, in order. The
    /// result contains the rest of the buffer: its bytes follow those of the parts. If the command is sent again, only
    /// the bytes after the parts are received again. Over RDMA, from another core, or beside other commands in flight,
    /// all data come with the result.
    // Public for the routers of Lunar, which forward data that have arrived.
    #[doc(hidden)]
    pub async fn in_parts(mut self, mut take: impl FnMut(Buf)) -> CommandResult {
        if let PendingState::Local(local, tag) = &self.0 {
            local.state.borrow_mut().make_parts(*tag);
        }
        poll_fn(|cx| {
            while let Some(part) = self.take_part() {
                take(part);
            }
            Pin::new(&mut self).poll(cx)
        })
        .await
    }

    /// Waits for the result of a read whose data may stay in a pipe. If there is a pipe, it has all data, and those of
    /// the buffer are undefined.
    pub(crate) async fn or_piped(mut self) -> (CommandResult, Option<PipedBytes>) {
        let PendingState::Local(local, tag) = &self.0 else { return (self.await, None) };
        let (local, tag) = (local.clone(), *tag);
        local.state.borrow_mut().permit_pipe(tag);
        poll_fn(|cx| {
            let piped = local.state.borrow_mut().take_pipe(tag);
            Pin::new(&mut self).poll(cx).map(|result| (result, piped))
        })
        .await
    }

    fn take_part(&self) -> Option<Buf> {
        let PendingState::Local(local, tag) = &self.0 else { return None };
        local.state.borrow_mut().take_part(*tag)
    }
}

enum PendingState {
    Local(Rc<LocalSession>, u32),
    /// A command from another core: the reply, its number, and the range lock of a write. The lock becomes exclusive
    /// if the owner drops this.
    Remote(flume::r#async::RecvFut<'static, CommandResult>, u64, Option<RangeLock>),
    Rejected(Box<CommandResult>),
    Done,
}

/// Submits a command to its session. `sent` numbers the commands from other cores.
#[inline]
pub fn submit(session: &SessionHandle, sent: &AtomicU64, command: Command) -> Pending {
    if let Some(local) = session.local() {
        return Pending(match local.accept(command, Waiter::Unknown) {
            Ok(tag) => PendingState::Local(local, tag),
            Err(finished) => PendingState::Rejected(finished),
        });
    }
    let (reply, response) = flume::bounded(1);
    let number = sent.fetch_add(1, Ordering::Relaxed);
    let hold = command.hold.as_ref().map(RangeLock::add_holder);
    let Err(refused) = session.try_send(SessionRequest::Command(command, reply, number)) else {
        return Pending(PendingState::Remote(response.into_recv_async(), number, hold));
    };
    Pending(match *refused {
        SessionRequest::Command(command, ..) => {
            PendingState::Rejected(Box::new((Err(closed()), command.data.into_buf())))
        }
        _ => PendingState::Done,
    })
}

impl Future for Pending {
    type Output = CommandResult;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CommandResult> {
        let me = &mut self.get_mut().0;
        let finished = match me {
            PendingState::Local(local, tag) => match local.state.borrow_mut().poll(*tag, cx.waker()) {
                Some(finished) => finished,
                None => return Poll::Pending,
            },
            PendingState::Remote(response, ..) => match Pin::new(response).poll(cx) {
                Poll::Ready(got) => got.unwrap_or_else(|_| (Err(closed()), None)),
                Poll::Pending => return Poll::Pending,
            },
            PendingState::Rejected(_) | PendingState::Done => match std::mem::replace(me, PendingState::Done)
            {
                PendingState::Rejected(finished) => *finished,
                _ => (Err(closed()), None),
            },
        };
        *me = PendingState::Done;
        Poll::Ready(finished)
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.id()).finish()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        match &self.0 {
            PendingState::Local(local, tag) => local.state.borrow_mut().tasks.abandon(*tag),
            // The core of the session learns of the drop later. Until then, newer writes to the same bytes must wait.
            PendingState::Remote(_, _, Some(hold)) => hold.make_exclusive(),
            PendingState::Remote(..) | PendingState::Rejected(_) | PendingState::Done => {}
        }
    }
}
