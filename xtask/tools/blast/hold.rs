//! Idle sessions: what they cost a target in memory.

use std::io::Read;

use anyhow::{Context, Result};

use crate::job::Job;
use crate::login::Login;

/// Logs in, says so, and keeps the sessions until standard input ends.
pub fn run(job: &Job) -> Result<()> {
    let sessions: Vec<Login> = (1..=job.sessions)
        .map(|id| Login::open(job, id).with_context(|| format!("session {id}")))
        .collect::<Result<_>>()?;
    println!("held {}", sessions.len());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
