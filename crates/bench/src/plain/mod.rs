//! `lunar bench`: one job on some targets.

pub mod args;
#[cfg(test)]
mod tests;

pub use args::Args;

use crate::document::Run;
use crate::job::Pace;
use crate::{Document, Error, Job, Opening, Rig, Target, Watch, rounds, words};
use std::time::Duration;

/// Opens the targets, runs the job, and tells what came of it.
///
/// # Errors
/// When the job or a target cannot be used as asked: nothing was measured.
pub fn run(args: &Args, watch: &Watch) -> Result<Document, Error> {
    let (targets, checks) = (args.on()?, args.checks());
    let job = checks.limit(args.job()?);
    let mut rig = Rig::open(&targets, &args.opening(&job)?)?;
    let verification = checks.prepare(&mut rig, &job)?;
    let mut document = Document::new(title(&job, args.sessions));
    let (runs, note) = match (args.steady, args.bound()?) {
        _ if checks.is_only => (Vec::new(), String::new()),
        (Some(figure), _) => rounds::until_steady(&rig, &job, figure, args.rounds.into(), watch)?,
        (None, Some(bound)) => rounds::highest_rate(&rig, &job, bound, watch)?,
        (None, None) => (vec![one(&rig, &job, watch)?], String::new()),
    };
    document.runs = runs;
    if !checks.is_only && !watch.is_ended() && targets.iter().any(|target| !matches!(target, Target::Null(_)))
    {
        document.notes.push(overhead(args, &job, rig.capacity())?);
    }
    document.notes.extend(Some(note).filter(|note| !note.is_empty()));
    if let Some(verification) = verification {
        verification.finish(&rig, &job, &mut document, watch)?;
    }
    rig.close();
    Ok(document)
}

/// Time in which it is measured what measuring costs.
const OVERHEAD: Duration = Duration::from_millis(200);

/// What the same work costs where there is nothing to wait for and nothing to move: what is left is measuring.
fn overhead(args: &Args, job: &Job, capacity: u64) -> Result<String, Error> {
    let job = Job {
        time: Some(OVERHEAD),
        amount: None,
        ramp: Duration::ZERO,
        pace: Pace::Closed,
        think: Duration::ZERO,
        compare: false,
        flush: false,
        ..job.clone()
    };
    let opening = Opening { create: None, target_pid: None, ..args.opening(&job)? };
    let rig = Rig::open(&[Target::Null(capacity)], &opening)?;
    let outcome = rig.run(&job, &Watch::default())?;
    rig.close();
    let us = outcome.cpu.client_s * 1e6 / outcome.ios().max(1) as f64;
    Ok(format!(
        "overhead: measuring takes {us:.2} us of the CPU time of each command (the same work on null:)"
    ))
}

/// One run of a job, labelled by what it does.
///
/// # Errors
/// As [`Rig::run`].
pub fn one(rig: &Rig, job: &Job, watch: &Watch) -> Result<Run, Error> {
    let outcome = rig.run(job, watch)?;
    let sessions = rig.sessions() / rig.facts().len().max(1);
    let label = title(job, sessions as u32);
    Ok(Run { label, job: args::told(job, sessions), targets: rig.facts(), outcome })
}

fn title(job: &Job, sessions: u32) -> String {
    let (work, sizes) = (words::of_rw(job.order, job.way), words::of_sizes(&job.sizes));
    format!("{work}, {sizes}, depth {}, {}", job.depth, count(sessions as usize, "session"))
}

/// A number and what it counts.
pub(crate) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
