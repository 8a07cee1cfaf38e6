//! `blast`: a neutral iSCSI load generator that costs little, to compare targets with one and the same
//! client.
//!
//! One thread per session. All commands that the window and the depth allow go out in one send, and all
//! answers that one receive brought are taken before the next send. Payload is neither looked at nor kept. It
//! speaks just enough RFC 7143 (one connection, error recovery level 0) and no code of the product.
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

/// Time for the logins and the first commands before measuring begins.
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

/// Runs the load and prints the report; the number of commands that failed.
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
