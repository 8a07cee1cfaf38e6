//! The pipe of a read whose owner sends the data on.

use lunar_runtime::PipedBytes;

/// The pipe of a read. Without it, the data are received into the buffer.
#[derive(Debug)]
pub enum TaskPipe {
    /// No data have arrived.
    Unused,
    /// The receiver has it.
    Lent,
    /// All data that have arrived.
    Holds(PipedBytes),
}
