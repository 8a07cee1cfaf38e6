//! The command window of a session: ExpCmdSN and MaxCmdSN (RFC 7143 section 4.2.2.1, arithmetic of RFC 1982).

use std::collections::VecDeque;

/// The treatment of a request, by its CmdSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmdSnVerdict {
    /// Process it: its CmdSN is ExpCmdSN. Then call [`CmdWindow::next_held`] until it returns `None`.
    Deliver,
    /// Hold it until [`CmdWindow::next_held`] returns its CmdSN.
    Hold,
    /// Drop it without a response: it is outside the window, or a duplicate.
    Ignore,
}

/// The state of a CmdSN at or above ExpCmdSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CmdSnState {
    Awaited,
    Held,
    /// An ABORT TASK consumed it.
    Plugged,
}

/// Orders the non-immediate requests of a session, and computes MaxCmdSN. The caller holds requests that arrive out
/// of order, at most as many as the window is wide.
#[derive(Debug)]
pub struct CmdWindow {
    exp: u32,
    max: u32,
    depth: u32,
    /// Number of non-immediate tasks that were delivered and have not ended.
    live: u32,
    /// Slot n is CmdSN `exp` + n; never longer than the window.
    slots: VecDeque<CmdSnState>,
}

/// Whether `a` is before `b` in serial number arithmetic (RFC 1982).
#[inline]
pub fn precedes(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl CmdWindow {
    /// The window of a new session. `cmd_sn` is the CmdSN of the leading login, `depth` the maximum number of
    /// concurrent tasks, 1 to 65535.
    pub fn new(cmd_sn: u32, depth: u32) -> Self {
        let depth = depth.clamp(1, 0xffff);
        CmdWindow { exp: cmd_sn, max: cmd_sn.wrapping_add(depth - 1), depth, live: 0, slots: VecDeque::new() }
    }

    /// The maximum number of concurrent tasks.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// ExpCmdSN: all requests before it have arrived.
    #[inline]
    pub fn exp_cmd_sn(&self) -> u32 {
        self.exp
    }

    /// MaxCmdSN: no request above it is accepted. It never decreases.
    #[inline]
    pub fn max_cmd_sn(&self) -> u32 {
        self.max
    }

    /// Processes the CmdSN of a request. Immediate requests are outside the order: they are always delivered, and do
    /// not count as live.
    #[inline]
    pub fn receive(&mut self, cmd_sn: u32, immediate: bool) -> CmdSnVerdict {
        if immediate {
            return CmdSnVerdict::Deliver;
        }
        match self.slot(cmd_sn) {
            Some(CmdSnState::Awaited) => {}
            _ => return CmdSnVerdict::Ignore,
        }
        if cmd_sn == self.exp {
            self.live += 1;
            self.advance();
            return CmdSnVerdict::Deliver;
        }
        self.mark(cmd_sn, CmdSnState::Held);
        CmdSnVerdict::Hold
    }

    /// The CmdSN of the next held request, which counts as live from now on.
    pub fn next_held(&mut self) -> Option<u32> {
        loop {
            match self.slots.front()? {
                CmdSnState::Awaited => return None,
                CmdSnState::Plugged => self.advance(),
                CmdSnState::Held => {
                    let cmd_sn = self.exp;
                    self.live += 1;
                    self.advance();
                    return Some(cmd_sn);
                }
            }
        }
    }

    /// Processes ABORT TASK for an unknown task: consumes its CmdSN (RFC 7143 section 11.6.1). Returns false if the
    /// CmdSN is below ExpCmdSN or above MaxCmdSN. The caller drops a held request of this CmdSN, and then calls
    /// [`CmdWindow::next_held`].
    pub fn plug(&mut self, ref_cmd_sn: u32) -> bool {
        if self.slot(ref_cmd_sn).is_none() {
            return false;
        }
        self.mark(ref_cmd_sn, CmdSnState::Plugged);
        if ref_cmd_sn == self.exp {
            self.advance();
        }
        true
    }

    /// Ends a delivered non-immediate task. Returns whether this opened the window.
    #[inline]
    pub fn finished(&mut self) -> bool {
        let before = self.max;
        self.live = self.live.saturating_sub(1);
        self.widen();
        self.max != before
    }

    /// Number of non-immediate tasks that were delivered and have not ended.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// The state of a CmdSN; `None` outside the window.
    #[inline]
    fn slot(&self, cmd_sn: u32) -> Option<CmdSnState> {
        if precedes(cmd_sn, self.exp) || precedes(self.max, cmd_sn) {
            return None;
        }
        let n = cmd_sn.wrapping_sub(self.exp) as usize;
        Some(self.slots.get(n).copied().unwrap_or(CmdSnState::Awaited))
    }

    /// Sets the state of a CmdSN in the window.
    fn mark(&mut self, cmd_sn: u32, slot: CmdSnState) {
        let n = cmd_sn.wrapping_sub(self.exp) as usize;
        if self.slots.len() <= n {
            self.slots.resize(n + 1, CmdSnState::Awaited);
        }
        self.slots[n] = slot;
    }

    #[inline]
    fn advance(&mut self) {
        self.slots.pop_front();
        self.exp = self.exp.wrapping_add(1);
        self.widen();
    }

    /// Recomputes MaxCmdSN = ExpCmdSN - 1 + depth - live. It never decreases.
    #[inline]
    fn widen(&mut self) {
        let room = self.depth.saturating_sub(self.live);
        let max = self.exp.wrapping_sub(1).wrapping_add(room);
        if precedes(self.max, max) {
            self.max = max;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CMD-003, CMD-009: a window across the wrap of CmdSN.
    #[test]
    fn commands_in_order_use_and_reopen_the_window() {
        let mut w = CmdWindow::new(0xffff_fffe, 4);
        assert_eq!((w.exp_cmd_sn(), w.max_cmd_sn()), (0xffff_fffe, 1));
        for sn in [0xffff_fffe, 0xffff_ffff, 0, 1] {
            assert_eq!(w.receive(sn, false), CmdSnVerdict::Deliver);
            assert_eq!((w.next_held(), w.exp_cmd_sn(), w.max_cmd_sn()), (None, sn.wrapping_add(1), 1));
        }
        assert_eq!(w.receive(2, false), CmdSnVerdict::Ignore, "the window is closed");
        assert_eq!(w.receive(2, true), CmdSnVerdict::Deliver, "immediate requests pass it (CMD-008)");
        assert!(w.finished());
        assert_eq!((w.max_cmd_sn(), w.live()), (2, 3));
        assert_eq!(w.receive(2, false), CmdSnVerdict::Deliver);
    }

    /// CMD-005, CMD-006, CMD-007.
    #[test]
    fn commands_out_of_order_wait() {
        let mut w = CmdWindow::new(10, 8);
        assert_eq!([12, 11, 12, 18, 9].map(|sn| w.receive(sn, false)), {
            use CmdSnVerdict::*;
            [Hold, Hold, Ignore, Ignore, Ignore]
        });
        assert_eq!((w.exp_cmd_sn(), w.next_held()), (10, None));
        assert_eq!(w.receive(10, false), CmdSnVerdict::Deliver);
        assert_eq!([w.next_held(), w.next_held(), w.next_held()], [Some(11), Some(12), None]);
        assert_eq!((w.exp_cmd_sn(), w.live()), (13, 3));
    }

    /// CMD-019, A-17.
    #[test]
    fn abort_task_plugs_a_hole() {
        let mut w = CmdWindow::new(10, 8);
        assert_eq!([11, 13].map(|sn| w.receive(sn, false)), [CmdSnVerdict::Hold; 2]);
        assert!(w.plug(12) && w.plug(10) && w.plug(13));
        assert_eq!([w.next_held(), w.next_held()], [Some(11), None]);
        assert_eq!((w.exp_cmd_sn(), w.max_cmd_sn(), w.live()), (14, 20, 1));
        assert!(!w.plug(13), "below the window");
        assert!(!w.plug(21), "beyond the window");
        assert_eq!(w.receive(10, false), CmdSnVerdict::Ignore);
    }

    proptest! {
        /// For any input, ExpCmdSN and MaxCmdSN never decrease, MaxCmdSN >= ExpCmdSN - 1, the number of held and live
        /// tasks stays below the depth, and deliveries are in order.
        #[test]
        fn any_input_keeps_invariants(start: u32, depth in 1u32..20, ops in prop::collection::vec((0u8..4, -3i32..24), 0..200)) {
            let mut w = CmdWindow::new(start, depth);
            let mut delivered: Option<u32> = None;
            for (op, near) in ops {
                let (exp, max) = (w.exp_cmd_sn(), w.max_cmd_sn());
                let sn = exp.wrapping_add_signed(near);
                let mut out = vec![];
                match op {
                    0 | 1 => out.extend((w.receive(sn, false) == CmdSnVerdict::Deliver).then_some(sn)),
                    2 => drop(w.plug(sn)),
                    _ => drop(w.finished()),
                }
                out.extend(std::iter::from_fn(|| w.next_held()));
                for sn in out {
                    prop_assert!(delivered.is_none_or(|d| precedes(d, sn)));
                    delivered = Some(sn);
                }
                prop_assert!(!precedes(w.exp_cmd_sn(), exp) && !precedes(w.max_cmd_sn(), max));
                prop_assert!(!precedes(w.max_cmd_sn(), w.exp_cmd_sn().wrapping_sub(1)));
                prop_assert!(w.slots.len() <= depth as usize && w.live() <= depth);
            }
        }
    }
}
