//! Requests of an admin queue to abort commands of an I/O queue.

/// A request to abort a command of an I/O queue.
#[derive(Debug)]
pub struct AbortRequest {
    /// The identifier of the command.
    pub id: u16,
    /// Receives whether the command was aborted, when it is over.
    pub reply: flume::Sender<bool>,
}

/// Where an I/O queue takes its requests.
pub type AbortSender = flume::Sender<AbortRequest>;
