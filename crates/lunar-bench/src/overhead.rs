//! What measuring itself costs: work on a disk that does nothing, in this process. There is nothing to wait for and
//! nothing to move: what is left is measuring.

use crate::job::{AccessPattern, ArrivalProcess, Job};
use crate::text_report::short;
use crate::{Document, Error, JobOutcome, OpenTargets, RunHandle, TargetOptions, TargetSpec, words};
use std::io::Write;
use std::time::Duration;

/// How its notes begin.
const NOTE_PREFIX: &str = "overhead: ";
/// How long it is measured.
const TIME: Duration = Duration::from_millis(200);
/// Of the work that stands for that of tools and experiments, which do many kinds of it.
const DEPTH: usize = 32;
const CAPACITY: u64 = 1 << 40;

/// Whether a note of a document is one of these.
pub fn is_note(note: &str) -> bool {
    note.starts_with(NOTE_PREFIX)
}

/// The note of a job on targets of this capacity, opened like this.
pub fn note_for_job(job: &Job, opening: TargetOptions, capacity: u64) -> String {
    note_text(cost(job, opening, capacity), "the same work on null:")
}

/// The note of a job that ran on null disks: it was nothing else.
pub fn note_for_null_run(outcome: &JobOutcome) -> String {
    note_text(Ok(cpu_us_per_io(outcome)), "this run, as it is on null:")
}

/// The note of what has many jobs.
pub fn note_for_many_jobs() -> String {
    let job = Job { order: AccessPattern::Random, depth: DEPTH, ..Job::default() };
    let work = format!("{}, {}", words::rw_word(job.order, job.direction), words::sizes_text(&job.sizes));
    let cost = cost(&job, TargetOptions::default(), CAPACITY);
    note_text(cost, &format!("{work}, depth {DEPTH}, on null:"))
}

/// Adds the note to the document of a face, and prints it as faces print what a reader must know. One that measured
/// nothing has none, and one that was ended has no time for it; one that printed nothing goes on to do so.
///
/// # Errors
/// When it cannot be printed.
pub fn add_note(
    document: &mut Document,
    handle: &RunHandle,
    out: Option<&mut dyn Write>,
) -> std::io::Result<()> {
    if document.runs.is_empty() || handle.is_ended() {
        return Ok(());
    }
    let note = note_for_many_jobs();
    let printed = out.map_or(Ok(()), |out| writeln!(out, "# {note}").and_then(|()| out.flush()));
    document.notes.push(note);
    printed
}

/// A figure that could not be had is no reason to lose the others.
fn note_text(cpu_us_per_io: Result<f64, Error>, how: &str) -> String {
    match cpu_us_per_io {
        Ok(cpu_us_per_io) => {
            format!(
                "{NOTE_PREFIX}measuring takes {} us of the CPU time of each command ({how})",
                short(cpu_us_per_io)
            )
        }
        Err(e) => format!("{NOTE_PREFIX}what measuring takes could not be measured: {}", e.what),
    }
}

/// Microseconds of CPU time for each command.
fn cpu_us_per_io(outcome: &JobOutcome) -> f64 {
    outcome.cpu.client_s * 1e6 / outcome.ios().max(1) as f64
}

fn cost(job: &Job, opening: TargetOptions, capacity: u64) -> Result<f64, Error> {
    let job = Job {
        time: Some(TIME),
        interval: TIME,
        amount: None,
        commands: None,
        ramp: Duration::ZERO,
        pace: ArrivalProcess::Closed,
        think: Duration::ZERO,
        compare: false,
        flush: false,
        ..job.clone()
    };
    let opening = TargetOptions { create: None, target_pid: None, ..opening };
    let opened = OpenTargets::open(&[TargetSpec::Null(capacity)], &opening)?;
    let outcome = opened.run(&job, &RunHandle::default());
    opened.close();
    outcome.map(|outcome| cpu_us_per_io(&outcome))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn measuring_costs_something_and_not_much() {
        let note = note_for_many_jobs();
        assert!(is_note(&note) && note.contains("(randread, 4k, depth 32, on null:)"), "{note}");
        let cpu_us_per_io = note
            .split_whitespace()
            .nth(3)
            .and_then(|cpu_us_per_io| cpu_us_per_io.parse::<f64>().ok())
            .expect("a figure");
        assert!(cpu_us_per_io > 0.0 && cpu_us_per_io < 1000.0, "{note}");
    }

    #[test]
    fn what_cannot_be_measured_is_told_in_the_note() {
        let job = Job { sizes: vec![(8192, 1)], ..Job::default() };
        let note = note_for_job(&job, TargetOptions::default(), 4096);
        assert!(is_note(&note) && note.contains("could not be measured: commands of 8192 bytes"), "{note}");
    }

    #[test]
    fn a_document_without_runs_or_that_was_ended_has_none() {
        let (mut document, handle) = (sample::empty("nothing"), RunHandle::default());
        let mut said = Vec::new();
        add_note(&mut document, &handle, Some(&mut said)).expect("memory");
        assert!(document.notes.is_empty() && said.is_empty());
        document.runs.push(sample::run("x", 4096, true, 1e9, 0.0));
        add_note(&mut document, &handle, Some(&mut said)).expect("memory");
        let said = String::from_utf8(said).expect("text");
        assert_eq!(said, format!("# {}\n", document.notes[0]));
        handle.end();
        add_note(&mut document, &handle, None).expect("memory");
        assert_eq!(document.notes.len(), 1);
    }
}
