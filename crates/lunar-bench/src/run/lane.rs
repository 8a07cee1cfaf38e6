//! The lanes of a session. Each has at most one command in flight.

use crate::data_pattern::DataPattern;
use crate::job::Job;
use crate::offsets::NextCommand;
use crate::verify::UnitClaim;
use lunar_runtime::Buf;
use std::time::Instant;

/// The content of a buffer before a verified read: no stamped unit consists of it.
const POISON: u8 = 0xa5;

/// The activity of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// Has no command.
    Idle,
    /// Its command is not due yet.
    Due,
    /// The disk has its command.
    InFlight,
    /// Takes no further command.
    Ended,
}

/// The pattern and the buffer of a lane, and its command.
pub struct Lane {
    pub state: LaneState,
    /// The number of commands in a row that completed at once.
    pub at_once: u32,
    pub command: NextCommand,
    /// The units of the command, if the job verifies.
    pub claim: Option<UnitClaim>,
    /// Whether the command is charged to the amount.
    pub is_taken: bool,
    /// When the command was due.
    pub due: Instant,
    /// When it was submitted: the time, and the number of the poll.
    pub started_at: Instant,
    pub begun_in: u64,
    content: DataPattern,
    /// None while the disk has it.
    buf: Option<Buf>,
}

/// Creates the lanes of a session. Touches the memory of their buffers.
pub fn lanes(job: &Job, index: usize) -> Vec<Lane> {
    (0..job.lanes()).map(|lane| Lane::new(job, (index * 2 * job.depth + lane) as u64)).collect()
}

impl Lane {
    fn new(job: &Job, number: u64) -> Lane {
        let ((content, buf), now) = (DataPattern::new(job, number), Instant::now());
        Lane {
            state: LaneState::Idle,
            at_once: 0,
            command: NextCommand { read: true, offset: 0, len: 0 },
            claim: None,
            is_taken: false,
            due: now,
            started_at: now,
            begun_in: 0,
            content,
            buf: Some(buf),
        }
    }

    /// Prepares the buffer for the command. Before a read that will be checked, the buffer must not contain valid
    /// data: otherwise a target that returns nothing would pass.
    #[inline]
    pub fn prepare(&mut self) -> Result<Buf, String> {
        let NextCommand { read, offset, len } = self.command;
        let mut buf = self.buf.take().expect("a lane without a command has its buffer");
        buf.set_visible(len as usize);
        match &mut self.claim {
            Some(_) if read => buf.fill(POISON),
            Some(claim) => claim.begin(&mut buf)?,
            None if read => self.content.before_read(offset, &mut buf),
            None => self.content.before_write(offset, &mut buf),
        }
        Ok(buf)
    }

    /// Takes the buffer back after the command. With `is_done`, checks the data of a read, or acknowledges a write in
    /// the ledger. Frees the units.
    #[inline]
    pub fn finish(&mut self, buf: Buf, is_done: bool) -> Result<(), String> {
        self.state = LaneState::Idle;
        let checked = if is_done { self.check(&buf) } else { Ok(()) };
        self.buf = Some(buf);
        self.claim = None;
        checked
    }

    fn check(&mut self, buf: &[u8]) -> Result<(), String> {
        let NextCommand { read, offset, .. } = self.command;
        match (&self.claim, read) {
            (Some(claim), true) => claim.check(buf),
            (Some(claim), false) => claim.acknowledge(),
            (None, true) => match self.content.first_mismatch(offset, buf) {
                Some(at) => Err(format!("byte {at} differs from the data written")),
                None => Ok(()),
            },
            (None, false) => Ok(()),
        }
    }
}
