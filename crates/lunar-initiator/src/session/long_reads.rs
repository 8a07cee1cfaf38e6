//! Long reads: their owner may take data while the rest arrives.

use super::session_state::SessionState;
use super::task::{Data, Waiter};
use lunar_runtime::Buf;
use lunar_wire::iscsi::Bhs;

/// Only longer reads have parts.
const LONG: u32 = 256 << 10;
/// Bytes that stay in the buffer when the first part is split off in the middle of a Data-In.
const SPARE: usize = 4096;

impl SessionState {
    /// Splits data off the buffer of a long read for its owner from now on.
    pub fn make_parts(&mut self, tag: u32) {
        if self.may_split()
            && let Some(task) = self.tasks.get(tag).filter(|task| task.expected > LONG)
        {
            task.parts = Some(Box::default());
        }
    }

    /// Takes the next part of a read.
    pub fn take_part(&mut self, tag: u32) -> Option<Buf> {
        self.tasks.get(tag)?.parts.as_mut()?.take()
    }

    /// Splits the first part off a buffer of which `filled` bytes have arrived, in the middle of a Data-In. Returns
    /// the number of filled bytes at which to try again.
    pub fn split_first(&mut self, header: &Bhs, buf: &mut Buf, filled: usize) -> usize {
        let task = self.may_split().then(|| self.tasks.sent(header.itt())).flatten();
        let Some(task) = task.filter(|task| matches!(task.data, Data::In(None, _))) else {
            return usize::MAX;
        };
        let Some(parts) = task.parts.as_mut().filter(|parts| parts.split() == 0) else { return usize::MAX };
        let wanted = parts.least() + SPARE;
        if filled < wanted {
            return wanted;
        }
        parts.split_off(buf, filled);
        self.part_is_ready(header.itt(), true);
        usize::MAX
    }

    /// Splits off a part after a whole Data-In, if enough data have arrived. The last part goes with the response.
    pub(super) fn split_next(&mut self, tag: u32) {
        let Some(task) = self.may_split().then(|| self.tasks.get(tag)).flatten() else { return };
        let (Some(parts), Data::In(Some(buf), received)) = (&mut task.parts, &mut task.data) else { return };
        let (is_first, filled) = (parts.split() == 0, (*received as usize).saturating_sub(parts.split()));
        if filled >= parts.least() && *received < task.expected {
            parts.split_off(buf, filled);
            self.part_is_ready(tag, is_first);
        }
    }

    /// Whether a read may have parts: its data arrive in order, and no other command is in flight. Data of others keep
    /// the owner busy meanwhile, and each part costs time.
    fn may_split(&self) -> bool {
        self.is_in_order() && self.in_flight() <= 1
    }

    fn part_is_ready(&mut self, tag: u32, is_first: bool) {
        self.has_first_part |= is_first;
        if let Some(Waiter::Here(waker)) = self.tasks.get(tag).map(|task| &task.waiter) {
            waker.wake_by_ref();
        }
    }
}
