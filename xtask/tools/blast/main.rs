//! `blast`: a neutral iSCSI load generator with a low cost, to compare targets with the same client.
//!
//! It has one thread per session. It sends all commands that the window and the depth allow in one call, and
//! processes all responses of one receive before the next send. It ignores the payload. It implements just
//! enough of RFC 7143 (one connection, error recovery level 0), without code of the product.
#![forbid(unsafe_code)]

#[path = "../aligned.rs"]
mod aligned;
#[path = "../bytes.rs"]
mod bytes;
mod first;
mod hold;
mod job;
mod latency;
mod login;
mod report;
mod session;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use job::{BlastJob, IoOp};
use report::CounterSample;
use session::{BlastSession, CommandLatencies};

/// The time for logins and the first commands before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let job = Arc::new(BlastJob::parse());
    let outcome = if job.hold { hold::run(&job).map(|()| 0) } else { measure(&job) };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("blast: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the load and prints the report; returns the number of failed commands.
fn measure(job: &Arc<BlastJob>) -> Result<u64> {
    ensure!(!job.first || (job.op == IoOp::Read && job.depth == 1), "--first is for reads at depth 1");
    let stop = Arc::new(AtomicBool::new(false));
    let mut counters = Vec::new();
    let mut threads = Vec::new();
    for id in 1..=job.sessions {
        let mut session = BlastSession::open(Arc::clone(job), id).with_context(|| format!("session {id}"))?;
        counters.push(session.counters());
        let stop = Arc::clone(&stop);
        threads.push(std::thread::spawn(move || session.run(&stop)));
    }
    std::thread::sleep(WARM_UP);
    let before = CounterSample::take(job.pid, &counters);
    std::thread::sleep(Duration::from_secs(job.seconds));
    let after = CounterSample::take(job.pid, &counters);
    stop.store(true, Ordering::Relaxed);
    let mut times = CommandLatencies::default();
    for thread in threads {
        times.add(&thread.join().expect("a session's thread does not panic")?);
    }
    println!("{}", report::line(job, &before, &after, &times));
    Ok(after.errors)
}
