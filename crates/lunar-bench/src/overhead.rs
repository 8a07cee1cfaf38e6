//! The cost of measuring: a workload in this process on a disk that does nothing. No I/O is awaited and no data
//! moves, so the remaining CPU time is that of the benchmark itself.

use crate::job::{AccessPattern, ArrivalProcess, Job};
use crate::text_report::short;
use crate::{
    Document, Error, JobOutcome, OpenTargets, RunHandle, TargetOptions, TargetSpec, machine_load, words,
};
use lunar_block::BackendKind;
use std::io::Write;
use std::time::Duration;

/// The prefix of overhead notes.
const NOTE_PREFIX: &str = "overhead: ";
/// The duration of the measurement.
const TIME: Duration = Duration::from_millis(200);
/// The workload that represents tools and experiments, which run several.
const DEPTH: usize = 32;
const CAPACITY: u64 = 1 << 40;

/// Whether a note of a document reports the overhead.
pub fn is_note(note: &str) -> bool {
    note.starts_with(NOTE_PREFIX)
}

/// The overhead note of a job on targets of this capacity, opened with these options.
pub fn note_for_job(job: &Job, opening: TargetOptions, capacity: u64) -> String {
    note_text(cost(job, opening, capacity), "the same work on null:")
}

/// The overhead note of a job that ran on null disks: the run itself is the measurement.
pub fn note_for_null_run(outcome: &JobOutcome) -> String {
    note_text(Ok(cpu_us_per_io(outcome)), "this run, as it is on null:")
}

/// The overhead note of a document with several jobs.
pub fn note_for_many_jobs() -> String {
    let job = Job { order: AccessPattern::Random, depth: DEPTH, ..Job::default() };
    let work = format!("{}, {}", words::rw_word(job.order, job.direction), words::sizes_text(&job.sizes));
    let cost = cost(&job, TargetOptions::default(), CAPACITY);
    note_text(cost, &format!("{work}, depth {DEPTH}, on null:"))
}

/// Adds the note to the document of a compatibility mode and prints it as a comment, behind one of a busy machine. A
/// document without runs gets no note, nor does a run that the user ended.
///
/// # Errors
/// If the output fails.
pub fn add_note(
    document: &mut Document,
    handle: &RunHandle,
    out: Option<&mut dyn Write>,
) -> std::io::Result<()> {
    if document.runs.is_empty() || handle.is_ended() {
        return Ok(());
    }
    let note = note_for_many_jobs();
    let load = machine_load::note(&document.runs);
    let lines: String = load.iter().chain([&note]).map(|line| format!("# {line}\n")).collect();
    document.notes.push(note);
    out.map_or(Ok(()), |out| out.write_all(lines.as_bytes()).and_then(|()| out.flush()))
}

/// A failed measurement of the overhead does not discard the other results.
fn note_text(cpu_us_per_io: Result<f64, Error>, how: &str) -> String {
    match cpu_us_per_io {
        Ok(cpu_us_per_io) => {
            format!(
                "{NOTE_PREFIX}measuring takes {} µs of the CPU time of each command ({how})",
                short(cpu_us_per_io)
            )
        }
        Err(e) => format!("{NOTE_PREFIX}the cost of measuring is unknown: {}", e.what),
    }
}

/// CPU time of each command in microseconds.
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
    let opened = OpenTargets::open(&[TargetSpec::InProcess(BackendKind::Null, capacity)], &opening)?;
    let outcome = opened.run(&job, &RunHandle::default());
    opened.close();
    outcome.map(|outcome| cpu_us_per_io(&outcome))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn overhead_is_positive_and_below_a_millisecond() {
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
    fn note_reports_why_the_overhead_is_unknown() {
        let job = Job { sizes: vec![(8192, 1)], ..Job::default() };
        let note = note_for_job(&job, TargetOptions::default(), 4096);
        assert!(
            is_note(&note) && note.contains("the cost of measuring is unknown: commands of 8192 bytes"),
            "{note}"
        );
    }

    #[test]
    fn document_without_runs_or_ended_has_no_overhead_note() {
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
