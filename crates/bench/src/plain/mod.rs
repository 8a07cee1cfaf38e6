//! `lunar bench`: one job on some targets.

pub mod args;
#[cfg(test)]
mod tests;

pub use args::Args;

use crate::document::Run;
use crate::people::count;
use crate::{Document, Error, Job, Rig, Watch, overhead, rounds, words};

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
    let overhead = overhead(args, &job, &rig, &document, watch);
    document.notes.extend(overhead);
    document.notes.extend(Some(note).filter(|note| !note.is_empty()));
    if let Some(verification) = verification {
        verification.finish(&rig, &job, &mut document, watch)?;
    }
    rig.close();
    Ok(document)
}

/// The note on what measuring costs; none where nothing was measured, or that was ended.
fn overhead(args: &Args, job: &Job, rig: &Rig, document: &Document, watch: &Watch) -> Option<String> {
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
