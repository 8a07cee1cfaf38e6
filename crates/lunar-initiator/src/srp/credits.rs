//! SRP credits as the command window of a session (SRP r16a section 5.4; RFC 7143 section 4.2.2).
//!
//! Each command and each task management function takes a credit. Responses return credits. One credit is reserved
//! for task management, so that unresponsive commands can be aborted.

use lunar_proto::window::precedes;
use lunar_wire::iscsi::{Bhs, pdu};
use std::cell::RefCell;
use std::rc::Rc;

/// The CmdSN and StatSN of the first PDUs of a connection.
pub const FIRST: u32 = 1;
/// The maximum window, larger than the number of commands that a session sends.
const WIDEST: i64 = 4096;

/// The command window of a session, and the sequence numbers of converted responses. All channels share it.
#[derive(Debug)]
struct Window {
    /// CmdSN of the next command.
    cmd_sn: u32,
    /// MaxCmdSN, which never decreases.
    max_cmd_sn: u32,
    /// StatSN of the next response.
    stat_sn: u32,
    /// The number of commands that each channel can accept.
    rooms: Vec<i64>,
}

impl Window {
    fn new(room: i64) -> Window {
        let (max_cmd_sn, rooms) = (FIRST.wrapping_sub(1), vec![room]);
        Window { cmd_sn: FIRST, max_cmd_sn, stat_sn: FIRST, rooms }
    }

    /// Opens the window to the number of commands that all channels can accept.
    fn widen(&mut self) {
        let room = self.rooms.iter().sum::<i64>().clamp(0, WIDEST) as u32;
        let max = self.cmd_sn.wrapping_add(room).wrapping_sub(1);
        if precedes(self.max_cmd_sn, max) {
            self.max_cmd_sn = max;
        }
    }
}

/// The credits of one channel.
#[derive(Debug)]
pub struct Credits {
    /// Available credits. Negative if the target has revoked credits in use.
    left: i64,
    /// Credits reserved for task management.
    kept: i64,
    window: Rc<RefCell<Window>>,
    /// The index of the channel in the window.
    channel: usize,
}

impl Credits {
    /// The credits that a login has granted.
    pub fn new(granted: u32) -> Credits {
        // With a single credit none is reserved: otherwise no command could be sent.
        let (left, kept) = (i64::from(granted), i64::from(granted > 1));
        let window = Rc::new(RefCell::new(Window::new(0)));
        let credits = Credits { left, kept, window, channel: 0 };
        credits.note(0);
        credits.window.borrow_mut().widen();
        credits
    }

    /// Joins the window of a session as a further channel.
    pub fn join(&mut self, session: &Credits) {
        self.window = session.window.clone();
        self.channel = {
            let rooms = &mut self.window.borrow_mut().rooms;
            rooms.push(0);
            rooms.len() - 1
        };
        self.note(0);
        self.window.borrow_mut().widen();
    }

    /// Whether a credit is available.
    pub fn is_left(&self) -> bool {
        self.left > 0
    }

    /// Whether a credit other than the reserved one is available.
    pub fn is_spare(&self) -> bool {
        self.left > self.kept
    }

    /// Takes one credit.
    pub fn take(&mut self) {
        self.left -= 1;
    }

    /// Adds or removes credits at the request of the target.
    pub fn give(&mut self, credits: i32) {
        self.left = self.left.saturating_add(credits.into());
    }

    /// Records that the session has submitted the command with this CmdSN.
    pub fn command(&mut self, cmd_sn: u32) {
        self.window.borrow_mut().cmd_sn = cmd_sn.wrapping_add(1);
    }

    /// MaxCmdSN of the session.
    pub fn max_cmd_sn(&self) -> u32 {
        self.window.borrow().max_cmd_sn
    }

    /// The number of commands that the channel can accept, as of the last update.
    pub fn room(&self) -> i64 {
        self.window.borrow().rooms[self.channel]
    }

    /// Updates that number. `waiting` requests are queued and will take credits.
    pub fn note(&self, waiting: usize) {
        let waiting = i64::try_from(waiting).unwrap_or(WIDEST);
        let room = self.left.saturating_sub(self.kept).saturating_sub(waiting).clamp(0, WIDEST);
        self.window.borrow_mut().rooms[self.channel] = room;
    }

    /// Sets the sequence numbers of a generated PDU. A response advances StatSN.
    pub fn stamp(&mut self, header: &mut Bhs, is_answer: bool, waiting: usize) {
        self.note(waiting);
        let mut window = self.window.borrow_mut();
        window.widen();
        pdu::stamp(header, window.stat_sn, window.cmd_sn, window.max_cmd_sn);
        window.stat_sn = window.stat_sn.wrapping_add(is_answer.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::iscsi::opcode;

    /// ExpCmdSN, MaxCmdSN and StatSN of the next response.
    fn next(credits: &mut Credits, waiting: usize) -> [u32; 3] {
        let mut header = Bhs::new(opcode::SCSI_RESPONSE);
        credits.stamp(&mut header, true, waiting);
        [header.exp_cmd_sn(), header.max_cmd_sn(), header.stat_sn()]
    }

    #[test]
    fn window_is_the_credits_but_one() {
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
        assert_eq!(next(&mut credits, 1), [3, 4, 2], "a credit is set aside for the queued request");
        assert_eq!(next(&mut credits, 0), [3, 5, 3]);
    }

    #[test]
    fn window_of_a_session_is_that_of_all_its_channels() {
        let mut first = Credits::new(3);
        let mut second = Credits::new(5);
        second.join(&first);
        assert_eq!((first.max_cmd_sn(), second.max_cmd_sn()), (6, 6));
        assert_eq!((first.room(), second.room()), (2, 4));
        for (credits, cmd_sn) in [(&mut second, 1), (&mut first, 2)] {
            credits.command(cmd_sn);
            credits.take();
            credits.note(0);
        }
        first.give(1);
        assert_eq!(next(&mut first, 0), [3, 7, 1]);
        second.give(1);
        assert_eq!(next(&mut second, 1), [3, 7, 2], "a request is queued on the second channel");
        assert_eq!(next(&mut second, 0), [3, 8, 3]);
    }

    #[test]
    fn single_credit_is_for_commands() {
        assert_eq!([0, 1, 2].map(|n| Credits::new(n).max_cmd_sn()), [0, 1, 1]);
    }

    #[test]
    fn credit_taken_back_by_the_target_is_not_given_twice() {
        let mut credits = Credits::new(8);
        credits.give(-10);
        assert_eq!(next(&mut credits, 0), [1, 7, 1], "MaxCmdSN never decreases");
        assert!(!credits.is_left());
        credits.give(3);
        assert!(credits.is_left(), "two of the three new credits cover the deficit");
        credits.give(i32::MAX);
        assert_eq!(next(&mut credits, 0)[1], 4096);
        assert_eq!(Credits::new(u32::MAX).max_cmd_sn(), 4096);
    }
}
