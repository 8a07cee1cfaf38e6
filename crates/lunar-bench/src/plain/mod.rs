//! `lunar bench`: one job on some targets.

pub mod args;
#[cfg(test)]
mod tests;

pub use args::Args;

use crate::document::JobRun;
use crate::rounds::{highest_rate, until_steady};
use crate::text_report::count;
use crate::{Document, Error, ErrorKind, Job, JobOutcome, OpenTargets, RunHandle, overhead, words};

/// Opens the targets, runs the job, and returns the results.
///
/// # Errors
/// If the job or a target cannot be used; nothing was measured then.
pub fn run(args: &Args, handle: &RunHandle) -> Result<Document, Error> {
    let (targets, checks) = (args.target_specs()?, args.verify_options());
    let job = checks.limit(args.job()?);
    _ = (args.until_steady()?, args.bound()?);
    let mut opened = OpenTargets::open(&targets, &args.target_options(&job)?)?;
    check_amount(&job, &opened)?;
    let verification = checks.prepare(&mut opened, &job)?;
    let mut document = Document::new(title(&job, args.sessions));
    document.notes.extend(part_that_is_used(&opened, &job));
    if !checks.is_only {
        measure(args, &opened, &job, handle, &mut document)?;
        let overhead = overhead(args, &job, &opened, &document, handle);
        document.notes.extend(overhead);
    }
    if let Some(verification) = verification {
        verification.finish(&opened, &job, &mut document, handle)?;
    }
    opened.close();
    Ok(document)
}

/// Runs the job once, in rounds, or at several rates.
fn measure(
    args: &Args,
    opened: &OpenTargets,
    job: &Job,
    handle: &RunHandle,
    document: &mut Document,
) -> Result<(), Error> {
    match (args.until_steady()?, args.bound()?) {
        (Some((figure, rounds)), _) => {
            let (runs, steady) = until_steady(opened, job, figure, rounds, handle)?;
            document.runs = runs;
            document.notes.push(steady.to_string());
            document.steady = Some(steady);
        }
        (None, Some(bound)) => {
            let (runs, search) = highest_rate(opened, job, bound, handle)?;
            document.runs = runs;
            document.notes.push(search.to_string());
            document.search = Some(search);
        }
        (None, None) => document.runs = vec![one(opened, job, handle)?],
    }
    Ok(())
}

/// Checks that an amount is whole blocks. For a partial block, the initiator would have to read, modify and
/// write: another workload than requested.
fn check_amount(job: &Job, opened: &OpenTargets) -> Result<(), Error> {
    let block_size = opened.block_size();
    match job.amount.filter(|amount| !amount.is_multiple_of(block_size)) {
        None => Ok(()),
        Some(odd) => {
            let what = format!("--amount: {odd} bytes are not a multiple of the block size {block_size}");
            Err(Error::new(ErrorKind::Invalid, what, "use a multiple of the block size"))
        }
    }
}

/// The note that targets of different sizes are used up to the smallest one.
fn part_that_is_used(opened: &OpenTargets, job: &Job) -> Option<String> {
    let least = opened.capacity();
    let is_less =
        job.span.is_none() && opened.measured_targets().iter().any(|target| target.capacity > least);
    is_less.then(|| {
        format!("the targets differ in size: the job uses {least} bytes of each, the size of the smallest")
    })
}

/// The overhead note; none if nothing was measured, or if the user ended the run.
fn overhead(
    args: &Args,
    job: &Job,
    opened: &OpenTargets,
    document: &Document,
    handle: &RunHandle,
) -> Option<String> {
    let last = document.runs.last().filter(|_| !handle.is_ended())?;
    let opening = args.target_options(job).ok()?;
    Some(match opened.is_null() {
        true => overhead::note_for_null_run(&last.outcome),
        false => overhead::note_for_job(job, opening, opened.capacity()),
    })
}

/// Runs a job once; the label describes the job.
///
/// # Errors
/// As [`OpenTargets::run`].
pub fn one(opened: &OpenTargets, job: &Job, handle: &RunHandle) -> Result<JobRun, Error> {
    Ok(labelled_run(opened, job, opened.run(job, handle)?))
}

/// A run with a label that describes the job.
pub fn labelled_run(opened: &OpenTargets, job: &Job, outcome: JobOutcome) -> JobRun {
    let sessions = opened.sessions() / opened.measured_targets().len().max(1);
    let label = title(job, sessions as u32);
    let options = [args::job_words(job, sessions), args::option_words(&opened.options)].concat();
    JobRun { label, job: options, targets: opened.measured_targets(), outcome }
}

fn title(job: &Job, sessions: u32) -> String {
    let (work, sizes) = (words::rw_word(job.order, job.direction), words::sizes_text(&job.sizes));
    format!("{work}, {sizes}, depth {}, {}", job.depth, count(sessions as usize, "session"))
}
