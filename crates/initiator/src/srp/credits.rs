//! Credits of SRP as the command window of a session (SRP r16a section 5.4; RFC 7143 section 4.2.2).
//!
//! Each command and each task management function takes a credit, and answers give them back. One is kept for task
//! management, so that commands that hang can be aborted.

use proto::window::precedes;
use wire::iscsi::{Bhs, pdu};

/// CmdSN and StatSN of a connection's first PDUs.
pub const FIRST: u32 = 1;
/// No window is wider: more commands than a session ever sends.
const WIDEST: i64 = 4096;

/// What the target takes, and the numbers of the PDUs that are made of its answers.
#[derive(Debug)]
pub struct Credits {
    /// Requests that may be sent. Below zero if the target took back what was in use.
    left: i64,
    /// Those that are no commands'.
    kept: i64,
    /// CmdSN of the next command.
    cmd_sn: u32,
    /// MaxCmdSN, which never goes back.
    max_cmd_sn: u32,
    /// StatSN of the next answer.
    stat_sn: u32,
}

impl Credits {
    /// Those of a login.
    pub fn new(granted: u32) -> Credits {
        // Who has but one would never get to a command.
        let kept = i64::from(granted > 1);
        let left = i64::from(granted);
        let mut credits =
            Credits { left, kept, cmd_sn: FIRST, max_cmd_sn: FIRST.wrapping_sub(1), stat_sn: FIRST };
        credits.widen(0);
        credits
    }

    /// There is one.
    pub fn is_left(&self) -> bool {
        self.left > 0
    }

    /// There is one beside that which is kept for task management.
    pub fn is_spare(&self) -> bool {
        self.left > self.kept
    }

    /// A request leaves.
    pub fn take(&mut self) {
        self.left -= 1;
    }

    /// The target gives some, or takes some back.
    pub fn give(&mut self, credits: i32) {
        self.left = self.left.saturating_add(credits.into());
    }

    /// The session hands over the command of this CmdSN.
    pub fn command(&mut self, cmd_sn: u32) {
        self.cmd_sn = cmd_sn.wrapping_add(1);
    }

    /// MaxCmdSN.
    pub fn max_cmd_sn(&self) -> u32 {
        self.max_cmd_sn
    }

    /// Opens the window as far as credits go, `waiting` of which have owners already.
    fn widen(&mut self, waiting: usize) {
        let waiting = i64::try_from(waiting).unwrap_or(WIDEST);
        let room = self.left.saturating_sub(self.kept).saturating_sub(waiting).clamp(0, WIDEST) as u32;
        let max = self.cmd_sn.wrapping_add(room).wrapping_sub(1);
        if precedes(self.max_cmd_sn, max) {
            self.max_cmd_sn = max;
        }
    }

    /// The numbers of a PDU that is made here. An answer uses up its StatSN.
    pub fn stamp(&mut self, header: &mut Bhs, is_answer: bool, waiting: usize) {
        self.widen(waiting);
        pdu::stamp(header, self.stat_sn, self.cmd_sn, self.max_cmd_sn);
        self.stat_sn = self.stat_sn.wrapping_add(is_answer.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::iscsi::opcode;

    /// ExpCmdSN, MaxCmdSN and StatSN of the next answer.
    fn next(credits: &mut Credits, waiting: usize) -> [u32; 3] {
        let mut header = Bhs::new(opcode::SCSI_RESPONSE);
        credits.stamp(&mut header, true, waiting);
        [28, 32, 24].map(|at| header.word(at))
    }

    #[test]
    fn the_window_is_the_credits_but_one() {
        let mut credits = Credits::new(3);
        assert_eq!(credits.max_cmd_sn(), 2);
        for cmd_sn in [1, 2] {
            credits.command(cmd_sn);
            credits.take();
        }
        assert!(credits.is_left() && !credits.is_spare());
        credits.give(1);
        assert_eq!(next(&mut credits, 0), [3, 3, 1]);
        credits.give(2);
        assert_eq!(next(&mut credits, 1), [3, 4, 2], "one waits, and has its credit");
        assert_eq!(next(&mut credits, 0), [3, 5, 3]);
    }

    #[test]
    fn a_single_credit_is_for_commands() {
        assert_eq!([0, 1, 2].map(|n| Credits::new(n).max_cmd_sn()), [0, 1, 1]);
    }

    #[test]
    fn what_the_target_takes_back_is_not_given_twice() {
        let mut credits = Credits::new(8);
        credits.give(-10);
        assert_eq!(next(&mut credits, 0), [1, 7, 1], "the window never goes back");
        assert!(!credits.is_left());
        credits.give(3);
        assert!(credits.is_left(), "one of three");
        credits.give(i32::MAX);
        assert_eq!(next(&mut credits, 0)[1], 4096);
        assert_eq!(Credits::new(u32::MAX).max_cmd_sn(), 4096);
    }
}
