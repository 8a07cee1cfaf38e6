//! `lunar bench`: one job on some targets.

pub mod args;
#[cfg(test)]
mod tests;

pub use args::Args;

use crate::document::Run;
use crate::rounds::{highest_rate, until_steady};
use crate::text_report::count;
use crate::{Document, Error, Job, Kind, OpenTargets, Outcome, Watch, overhead, words};

/// Opens the targets, runs the job, and tells what came of it.
///
/// # Errors
/// When the job or a target cannot be used as asked: nothing was measured.
pub fn run(args: &Args, watch: &Watch) -> Result<Document, Error> {
    let (targets, checks) = (args.on()?, args.checks());
    let job = checks.limit(args.job()?);
    _ = (args.until_steady()?, args.bound()?);
    let mut rig = OpenTargets::open(&targets, &args.opening(&job)?)?;
    check_amount(&job, &rig)?;
    let verification = checks.prepare(&mut rig, &job)?;
    let mut document = Document::new(title(&job, args.sessions));
    document.notes.extend(part_that_is_used(&rig, &job));
    if !checks.is_only {
        measure(args, &rig, &job, watch, &mut document)?;
        let overhead = overhead(args, &job, &rig, &document, watch);
        document.notes.extend(overhead);
    }
    if let Some(verification) = verification {
        verification.finish(&rig, &job, &mut document, watch)?;
    }
    rig.close();
    Ok(document)
}

/// Runs the job: once, in rounds, or at several rates.
fn measure(
    args: &Args,
    rig: &OpenTargets,
    job: &Job,
    watch: &Watch,
    document: &mut Document,
) -> Result<(), Error> {
    match (args.until_steady()?, args.bound()?) {
        (Some((figure, rounds)), _) => {
            let (runs, steady) = until_steady(rig, job, figure, rounds, watch)?;
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
fn check_amount(job: &Job, rig: &OpenTargets) -> Result<(), Error> {
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
fn part_that_is_used(rig: &OpenTargets, job: &Job) -> Option<String> {
    let least = rig.capacity();
    let is_less = job.span.is_none() && rig.facts().iter().any(|target| target.capacity > least);
    is_less
        .then(|| format!("the targets differ in size: of each, {least} bytes are used, as the smallest has"))
}

/// The note on what measuring costs; none where nothing was measured, or that was ended.
fn overhead(args: &Args, job: &Job, rig: &OpenTargets, document: &Document, watch: &Watch) -> Option<String> {
    let last = document.runs.last().filter(|_| !watch.is_ended())?;
    let opening = args.opening(job).ok()?;
    Some(match rig.is_null() {
        true => overhead::of_itself(&last.outcome),
        false => overhead::of_job(job, opening, rig.capacity()),
    })
}

/// One run of a job, labelled by what it does.
///
/// # Errors
/// As [`OpenTargets::run`].
pub fn one(rig: &OpenTargets, job: &Job, watch: &Watch) -> Result<Run, Error> {
    Ok(told_of(rig, job, rig.run(job, watch)?))
}

/// What is kept of a run, labelled by what it does.
pub fn told_of(rig: &OpenTargets, job: &Job, outcome: Outcome) -> Run {
    let sessions = rig.sessions() / rig.facts().len().max(1);
    let label = title(job, sessions as u32);
    let told = [args::told(job, sessions), args::opened(&rig.opening)].concat();
    Run { label, job: told, targets: rig.facts(), outcome }
}

fn title(job: &Job, sessions: u32) -> String {
    let (work, sizes) = (words::of_rw(job.order, job.way), words::of_sizes(&job.sizes));
    format!("{work}, {sizes}, depth {}, {}", job.depth, count(sessions as usize, "session"))
}
