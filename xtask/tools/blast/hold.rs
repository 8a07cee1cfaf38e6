//! Idle sessions, to measure their memory in a target.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::job::BlastJob;
use crate::session::BlastSession;

/// Logs in, reports it, and keeps the sessions until standard input ends.
pub fn run(job: &Arc<BlastJob>) -> Result<()> {
    let open = |id| BlastSession::open(job, id).with_context(|| format!("session {id}"));
    let sessions = job.session_numbers().map(open).collect::<Result<Vec<_>>>()?;
    println!("held {}", sessions.len());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
