//! `blast`: a neutral load generator for iSCSI and NVMe/TCP with a low cost, to compare targets with the same client.
//!
//! It has one thread per session, or per I/O queue. It sends all commands that the window and the depth allow in one call, and
//! processes all responses of one receive before the next send. It ignores the payload. It implements just
//! enough of RFC 7143 (one connection, error recovery level 0) and of NVMe/TCP, without code of the product.
#![forbid(unsafe_code)]

#[path = "../aligned.rs"]
mod aligned;
#[path = "../bytes.rs"]
mod bytes;
mod first;
mod hold;
mod iscsi;
mod job;
mod latency;
mod login;
mod nvme;
mod nvme_controller;
#[path = "../nvme_pdu.rs"]
mod nvme_pdu;
mod nvme_queue;
mod one_thread;
mod protocol;
mod report;
mod session;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
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

type SessionThread = JoinHandle<Result<CommandLatencies>>;

/// Starts one thread for each session, or one for all.
fn start(job: &BlastJob, mut sessions: Vec<BlastSession>, stop: &Arc<AtomicBool>) -> Vec<SessionThread> {
    let stop = || Arc::clone(stop);
    if job.one_thread {
        let stop = stop();
        return vec![std::thread::spawn(move || one_thread::run(&mut sessions, &stop))];
    }
    let start = |mut session: BlastSession| {
        let stop = stop();
        std::thread::spawn(move || session.run(&stop))
    };
    sessions.into_iter().map(start).collect()
}

/// Runs the load and prints the report; returns the number of failed commands.
fn measure(job: &Arc<BlastJob>) -> Result<u64> {
    ensure!(!job.first || (job.op == IoOp::Read && job.depth == 1), "--first is for reads at depth 1");
    let stop = Arc::new(AtomicBool::new(false));
    let open = |id| BlastSession::open(job, id).with_context(|| format!("session {id}"));
    let sessions = job.session_numbers().map(open).collect::<Result<Vec<_>>>()?;
    let sessions: Vec<BlastSession> = sessions.into_iter().flatten().collect();
    let counters: Vec<_> = sessions.iter().map(BlastSession::counters).collect();
    let threads = start(job, sessions, &stop);
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
