//! `lunar bench`: one job on some targets.

pub mod args;
#[cfg(test)]
mod tests;

pub use args::Args;

use crate::document::Run;
use crate::job::Pace;
use crate::rounds::{highest_rate, until_steady};
use crate::{Document, Error, Job, Kind, Opening, Outcome, Rig, Target, Watch, words};
use std::time::Duration;

/// Opens the targets, runs the job, and tells what came of it.
///
/// # Errors
/// When the job or a target cannot be used as asked: nothing was measured.
pub fn run(args: &Args, watch: &Watch) -> Result<Document, Error> {
    let (targets, checks) = (args.on()?, args.checks());
    let job = checks.limit(args.job()?);
    args.bound()?;
    let mut rig = Rig::open(&targets, &args.opening(&job)?)?;
    check_amount(&job, &rig)?;
    let verification = checks.prepare(&mut rig, &job)?;
    let mut document = Document::new(title(&job, args.sessions));
    document.notes.extend(part_that_is_used(&rig, &job));
    if !checks.is_only {
        measure(args, &rig, &job, watch, &mut document)?;
        if !watch.is_ended() && targets.iter().any(|target| !matches!(target, Target::Null(_))) {
            document.notes.push(overhead(args, &job, rig.capacity()));
        }
    }
    if let Some(verification) = verification {
        verification.finish(&rig, &job, &mut document, watch)?;
    }
    rig.close();
    Ok(document)
}

/// Runs the job: once, in rounds, or at several rates.
fn measure(args: &Args, rig: &Rig, job: &Job, watch: &Watch, document: &mut Document) -> Result<(), Error> {
    match (args.steady, args.bound()?) {
        (Some(figure), _) => {
            let (runs, steady) = until_steady(rig, job, figure, args.rounds.into(), watch)?;
            document.runs = runs;
            document.notes.push(steady.to_string());
            document.steady = Some(steady);
        }
        (None, Some(bound)) => {
            let (runs, search) = highest_rate(rig, job, bound, watch)?;
            document.runs = runs;
            document.notes.push(search.to_string());
            document.search = Some(search);
        }
        (None, None) => document.runs = vec![one(rig, job, watch)?],
    }
    Ok(())
}

/// An amount is whole blocks, as lengths are: the rest of the last one would be read and written back, another work
/// than was asked for.
fn check_amount(job: &Job, rig: &Rig) -> Result<(), Error> {
    let block_size = rig.block_size();
    match job.amount.filter(|amount| !amount.is_multiple_of(block_size)) {
        None => Ok(()),
        Some(odd) => {
            let what = format!("--amount: {odd} bytes are no whole blocks of {block_size}");
            Err(Error::new(Kind::Invalid, what, "use a multiple of the target's blocks"))
        }
    }
}

/// Of targets that differ in size only so much is used as all of them have.
fn part_that_is_used(rig: &Rig, job: &Job) -> Option<String> {
    let least = rig.capacity();
    let is_less = job.span.is_none() && rig.facts().iter().any(|target| target.capacity > least);
    is_less
        .then(|| format!("the targets differ in size: of each, {least} bytes are used, as the smallest has"))
}

/// Time in which it is measured what measuring costs.
const OVERHEAD: Duration = Duration::from_millis(200);

/// What measuring itself costs, in words. That it is not known is no reason to lose what was measured.
fn overhead(args: &Args, job: &Job, capacity: u64) -> String {
    match overhead_us(args, job, capacity) {
        Ok(us) => format!(
            "overhead: measuring takes {us:.2} us of the CPU time of each command (the same work on null:)"
        ),
        Err(e) => format!("overhead: what measuring takes could not be measured: {}", e.what),
    }
}

/// What the same work costs where there is nothing to wait for and nothing to move: what is left is measuring.
/// Microseconds of CPU time of a command.
fn overhead_us(args: &Args, job: &Job, capacity: u64) -> Result<f64, Error> {
    let job = Job {
        time: Some(OVERHEAD),
        interval: OVERHEAD,
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
    Ok(outcome.cpu.client_s * 1e6 / outcome.ios().max(1) as f64)
}

/// One run of a job, labelled by what it does.
///
/// # Errors
/// As [`Rig::run`].
pub fn one(rig: &Rig, job: &Job, watch: &Watch) -> Result<Run, Error> {
    Ok(told_of(rig, job, rig.run(job, watch)?))
}

/// What is kept of a run, labelled by what it does.
pub(crate) fn told_of(rig: &Rig, job: &Job, outcome: Outcome) -> Run {
    let sessions = rig.sessions() / rig.facts().len().max(1);
    let label = title(job, sessions as u32);
    let told = [args::told(job, sessions), args::opened(&rig.opening)].concat();
    Run { label, job: told, targets: rig.facts(), outcome }
}

fn title(job: &Job, sessions: u32) -> String {
    let (work, sizes) = (words::of_rw(job.order, job.way), words::of_sizes(&job.sizes));
    format!("{work}, {sizes}, depth {}, {}", job.depth, count(sessions as usize, "session"))
}

/// A number and what it counts.
pub(crate) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
