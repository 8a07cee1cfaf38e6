//! Requests that are no commands: pings, task management, logout.

use crate::Error;
use std::time::Instant;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// Are you there?
    Ping,
    /// A task management function.
    TaskManagement,
    /// The end of the session.
    Logout,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct ControlRequest {
    /// Its tag.
    pub tag: u32,
    /// What it asks for.
    pub asked: ControlKind,
    /// When it was sent, or seen to leave behind other bytes.
    pub since: Instant,
    /// What has left, in bytes, when it has.
    pub end: u64,
    /// Takes the response code; the error is that of a lost connection, or of a rejected request.
    pub reply: flume::Sender<Result<u8, Error>>,
}

/// What waits for the answer of a request.
pub type ControlAnswer = flume::Receiver<Result<u8, Error>>;

impl ControlRequest {
    /// Hands the answer over.
    pub fn tell(self, answer: Result<u8, Error>) {
        // The caller may wait no longer.
        let _ = self.reply.send(answer);
    }
}
