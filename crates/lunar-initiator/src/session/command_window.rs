//! CmdSN and the command window of an initiator (RFC 7143 section 4.2.2).

use lunar_proto::window::precedes;
use lunar_wire::iscsi::Bhs;

/// CmdSN, ExpCmdSN and MaxCmdSN of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandWindow {
    /// CmdSN of the next command.
    pub cmd_sn: u32,
    /// The latest ExpCmdSN of the target.
    pub exp_cmd_sn: u32,
    /// The latest MaxCmdSN of the target.
    pub max_cmd_sn: u32,
}

impl CommandWindow {
    /// Whether the target accepts another command.
    #[inline]
    pub fn window_is_open(&self) -> bool {
        !precedes(self.max_cmd_sn, self.cmd_sn)
    }

    /// The number of commands from ExpCmdSN on that the target accepts.
    pub fn window(&self) -> u32 {
        let window = self.max_cmd_sn.wrapping_sub(self.exp_cmd_sn).wrapping_add(1);
        if (window as i32) < 0 { 0 } else { window }
    }

    /// Allocates the CmdSN of a command.
    #[inline]
    pub fn next_cmd_sn(&mut self) -> u32 {
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.wrapping_add(1);
        cmd_sn
    }

    /// Updates ExpCmdSN and MaxCmdSN from a PDU. Contradictory values are ignored, and neither number moves backwards
    /// (RFC 7143 section 4.2.2.1).
    #[inline]
    pub fn update_window(&mut self, header: &Bhs) {
        let (exp, max) = (header.exp_cmd_sn(), header.max_cmd_sn());
        if precedes(max, exp.wrapping_sub(1)) {
            return;
        }
        if precedes(self.exp_cmd_sn, exp) && !precedes(self.cmd_sn, exp) {
            self.exp_cmd_sn = exp;
        }
        if precedes(self.max_cmd_sn, max) {
            self.max_cmd_sn = max;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::iscsi::{opcode, pdu};

    fn nop_in(stat_sn: u32, exp: u32, max: u32) -> Bhs {
        let mut header = Bhs::new(opcode::NOP_IN);
        pdu::stamp(&mut header, stat_sn, exp, max);
        header
    }

    /// CMD-010: older or contradictory values change nothing.
    #[test]
    fn window_opens_and_never_closes_backwards() {
        let mut n = CommandWindow { cmd_sn: 5, exp_cmd_sn: 5, max_cmd_sn: 4 };
        assert!(!n.window_is_open());
        assert_eq!(n.window(), 0);
        n.update_window(&nop_in(0, 5, 6));
        assert_eq!(n.window(), 2);
        assert!(n.window_is_open());
        assert_eq!((n.next_cmd_sn(), n.next_cmd_sn(), n.window_is_open()), (5, 6, false));
        n.update_window(&nop_in(0, 6, 5));
        assert_eq!((n.exp_cmd_sn, n.max_cmd_sn), (6, 6));
        n.update_window(&nop_in(0, 9, 4));
        assert_eq!((n.exp_cmd_sn, n.max_cmd_sn), (6, 6), "an invalid window is ignored");
    }

    /// CMD-003: CmdSN uses serial number arithmetic.
    #[test]
    fn numbers_run_on_through_the_wrap() {
        let mut n = CommandWindow { cmd_sn: u32::MAX, exp_cmd_sn: u32::MAX, max_cmd_sn: u32::MAX };
        assert_eq!(n.next_cmd_sn(), u32::MAX);
        assert!(!n.window_is_open());
        n.update_window(&nop_in(0, 0, 3));
        assert!(n.window_is_open());
        assert_eq!((n.cmd_sn, n.exp_cmd_sn, n.max_cmd_sn), (0, 0, 3));
    }
}
