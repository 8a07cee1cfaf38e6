//! Idle sessions, to measure their memory in a target.

use std::io::Read;

use anyhow::{Context, Result};

use crate::job::BlastJob;
use crate::login::BlastLogin;

/// Logs in, reports it, and keeps the sessions until standard input ends.
pub fn run(job: &BlastJob) -> Result<()> {
    let sessions: Vec<BlastLogin> = job
        .session_numbers()
        .map(|id| BlastLogin::open(job, id).with_context(|| format!("session {id}")))
        .collect::<Result<_>>()?;
    println!("held {}", sessions.len());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
