//! What `lunar serve` asks of a target that runs.

use control::admin::Running;
use std::io;
use std::net::SocketAddr;
use target::setup::Setup;

/// A target that runs.
pub trait Server: Running {
    /// Where it listens, with portal group tags.
    fn portals(&self) -> Vec<(SocketAddr, u16)>;

    /// Replaces the configuration.
    fn reload(&self, setup: Setup);

    /// Takes no more commands, finishes those in flight, says goodbye, makes everything stable.
    fn stop(&self) -> io::Result<()>;
}
