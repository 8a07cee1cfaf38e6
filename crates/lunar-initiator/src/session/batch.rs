//! Many commands of one owner on the session's own core. A future for each would cost more than the command itself.

use super::completions::Completions;
use super::local_session::LocalSession;
use super::request::{CommandId, CommandKey};
use super::task::Waiter;
use crate::{Command, CommandResult};
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Commands whose results are polled one by one. Dropping the batch discards the results, but does not abort the
/// commands.
pub struct Batch {
    local: Rc<LocalSession>,
    ends: Rc<Completions>,
    /// The tags of commands in flight, indexed by the owner's number.
    in_flight: Vec<Option<u32>>,
}

impl Batch {
    pub(super) fn new(local: Rc<LocalSession>) -> Batch {
        Batch { local, ends: Rc::default(), in_flight: Vec::new() }
    }

    /// The approximate time, without a system call.
    pub(crate) fn about_now(&self) -> Instant {
        self.local.state.borrow().now
    }

    /// Sends a command. The owner identifies it by a small number, unique among its commands in flight.
    ///
    /// # Errors
    /// The result of the command, when it cannot be sent.
    #[inline]
    pub fn submit(&mut self, name: u32, command: Command) -> Result<(), Box<CommandResult>> {
        let index = name as usize;
        if index >= self.in_flight.len() {
            self.in_flight.resize(index + 1, None);
        }
        debug_assert_eq!(self.in_flight[index], None, "two commands in flight have the number {name}");
        self.in_flight[index] = Some(self.local.accept(command, Waiter::Among(self.ends.clone(), name))?);
        Ok(())
    }

    /// The id of a command in flight, by the owner's number.
    pub fn id(&self, name: u32) -> Option<CommandId> {
        let tag = *self.in_flight.get(name as usize)?;
        tag.map(|tag| CommandId(CommandKey::Tag(tag)))
    }

    /// Polls the next result: the owner's number, and the result as [`super::Session::submit`] returns it.
    #[inline(always)]
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(u32, CommandResult)> {
        loop {
            let Poll::Ready((name, tag)) = self.ends.poll(cx) else { return Poll::Pending };
            self.in_flight[name as usize] = None;
            if let Some(finished) = self.local.state.borrow_mut().tasks.take(tag) {
                return Poll::Ready((name, finished));
            }
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_flight = self.in_flight.iter().flatten().count();
        f.debug_struct("Batch").field("in_flight", &in_flight).finish_non_exhaustive()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let mut state = self.local.state.borrow_mut();
        self.in_flight.iter().flatten().for_each(|tag| state.tasks.abandon(*tag));
    }
}
