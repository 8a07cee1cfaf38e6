//! Commands that come too late. The kernel keeps what a connection has brought when the connection is over, so a core that
//! was held up may find commands of an initiator that has long gone, repeated them on another path, and written newer data.
//!
//! No command begins after the initiator has reset the connection, closed it without a logout, or logged in again; and none
//! that had arrived before a task management function of another session was carried out begins after that.

use super::command::Command;
use super::front_end::FrontEnd;
use super::lun_map::Found;
use super::nexus::{ItNexus, Life, State};
use super::task::Aborted;
use crate::fence::{self, Fence, InFlight};
use crate::registry::{CLOSED, LOGGED_IN_AGAIN, Which};
use crate::session::Info;
use lunar_wire::scsi::op;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// READ changes nothing, so nobody is harmed by one that begins late.
pub const READS: [u8; 4] = [op::READ_6, op::READ_10, op::READ_12, op::READ_16];

/// Whether a task had to wait before it could begin.
#[derive(Default)]
pub struct Waited(Cell<bool>);

impl Waited {
    /// It has waited for its data.
    pub fn for_data() -> Waited {
        Waited(Cell::new(true))
    }

    /// Does this, and takes note if it waits.
    pub async fn at<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let polled = work.as_mut().poll(cx);
            self.0.set(self.0.get() || polled.is_pending());
            polled
        })
        .await
    }
}

impl<F: FrontEnd> State<F> {
    /// Whether commands of this session that have arrived and were not taken yet belong before a function of another one. Those
    /// of other initiators do not: nobody has repeated them elsewhere.
    fn is_recalled(&mut self, which: &Which, from: &Info) -> bool {
        match which {
            Which::Units(_) => self.info.may_be_of_host(from),
            Which::Nexuses(list) => self.luns.used().any(|h| list.contains(&h.nexus.id())),
        }
    }

    /// Whether a function about these ends commands with this LUN field.
    pub fn is_about(&mut self, which: &Which, lun: u64) -> bool {
        match self.luns.find(lun) {
            Found::Unit(handle) => which.names(&handle.unit, handle.nexus.id()),
            Found::WellKnown | Found::Absent => false,
        }
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// Begins a task, which is under way while what comes back lives. None: it may not begin any more, and the session is over.
    pub(super) fn lets_begin(
        &self,
        c: &Command,
        serial: u64,
        waited: &Waited,
    ) -> Option<InFlight<Arc<Fence>>> {
        let mut state = self.state();
        if waited.0.get() {
            state.front.look_anew(c.connection);
        }
        let late = match state.life() {
            Life::Over => state.end().or(Some(CLOSED)),
            Life::Running | Life::Leaving => state.front.why_late(c.connection, None),
        };
        // The last question: from here on the end of the session waits for this task.
        let under_way = fence::enter(self.fence().clone());
        let why = match (late, under_way) {
            (None, Some(under_way)) => return Some(under_way),
            (Some(why), _) => why,
            (None, None) => LOGGED_IN_AGAIN,
        };
        state.is_over(why);
        state.abort(|task| task.serial == serial, Aborted::Silently, false);
        state.front.stop_receiving();
        None
    }

    /// Takes the commands that have arrived before a function of another session: they do not begin after it. They were in
    /// no task set, so they are not aborted but answered BUSY: an initiator that lives sends them again.
    pub(super) fn recall(self: &Rc<Self>, which: &Which, from: &Info) {
        let mut state = self.state();
        if state.life() == Life::Over || !state.is_recalled(which, from) {
            return;
        }
        let Err(why) = F::recall(&mut state, which) else { return };
        drop(state);
        self.end(why);
    }
}
