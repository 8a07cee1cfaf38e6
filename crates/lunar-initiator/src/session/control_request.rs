//! Requests other than SCSI commands: NOP-Out, task management, logout.

use crate::Error;
use std::time::Instant;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// NOP-Out.
    Ping,
    /// A task management function.
    TaskManagement,
    /// Logout.
    Logout,
}

/// A request that waits for its response.
#[derive(Debug)]
pub struct ControlRequest {
    /// The Initiator Task Tag.
    pub tag: u32,
    /// The kind.
    pub kind: ControlKind,
    /// The start of the time limit: the time when the request was queued or, later, when bytes before it were last
    /// being sent.
    pub started_at: Instant,
    /// The number of bytes sent on the connection up to the end of this request.
    pub end: u64,
    /// Receives the response code, or the error of a lost connection or a rejected request.
    pub reply: flume::Sender<Result<u8, Error>>,
}

/// The receiver of the response to a request.
pub type ControlResponse = flume::Receiver<Result<u8, Error>>;

impl ControlRequest {
    /// Delivers the response.
    pub fn complete(self, response: Result<u8, Error>) {
        // The caller may have stopped waiting.
        let _ = self.reply.send(response);
    }
}
