//! Runs one copy on an event loop: open both ends, copy, verify, report.

use super::args::Args;
use super::ends::{CopyEnd, EndRole, Medium, open_end};
use super::journal::{CopyJournal, EndFingerprint, State};
use super::progress::{CopyPhase, ProgressFormat, ProgressReporter};
use super::report::{self, CopyReport, Summary};
use super::{prepare, progress, streams};
use crate::exit;
use lunar_block::offload::Offload;
use lunar_copy::{
    CopyErrorCause, CopyFailure, CopyJob, CopyMeter, CopyOutcome, CopySource, CopyStyle, GrowFn, StopFlag,
    copy, verify,
};
use lunar_initiator::ExtendedCopy;
use lunar_server::Diagnostic;
use std::fs::OpenOptions;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of a logout.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Executes the copy that the arguments describe.
///
/// # Errors
/// When nothing was copied. A failure after the first write is part of the report.
pub async fn run(args: Args, stop: Arc<StopFlag>) -> Result<CopyReport, exit::Failure> {
    let started_at = Instant::now();
    let copy = CopyRun::prepare(args, stop).await?;
    let sessions =
        [&copy.source, &copy.destination].map(|end| end.lun.as_ref().map(|lun| lun.session().clone()));
    let exports = [&copy.source, &copy.destination].map(|end| end.export.clone());
    let namespaces = [&copy.source, &copy.destination].map(|end| end.namespace.clone());
    let report = copy.perform(started_at).await;
    for session in sessions.into_iter().flatten() {
        // The data is flushed: a missing logout response does not matter.
        _ = compio::time::timeout(LOGOUT_TIMEOUT, session.close()).await;
    }
    for export in exports.into_iter().flatten() {
        export.close().await;
    }
    for namespace in namespaces.into_iter().flatten() {
        _ = compio::time::timeout(LOGOUT_TIMEOUT, namespace.close()).await;
    }
    Ok(report?)
}

/// A copy whose ends are open and checked.
struct CopyRun {
    args: Args,
    style: CopyStyle,
    checkpoint_bytes: Option<u64>,
    source: CopyEnd,
    /// The source; for a stream, the channel of its reader thread.
    from: CopySource,
    destination: CopyEnd,
    /// Copying by the target itself, if it supports that between both LUNs.
    offload: Option<Arc<dyn Offload>>,
    journal: Option<CopyJournal>,
    /// Start offset, from the journal, and the unreadable ranges before it.
    start: u64,
    bad: Vec<Range<u64>>,
    /// The journal holds the progress, so that `--resume` can continue.
    is_journal_current: bool,
    meter: Arc<CopyMeter>,
    stop: Arc<StopFlag>,
}

impl CopyRun {
    async fn prepare(args: Args, stop: Arc<StopFlag>) -> Result<CopyRun, exit::Failure> {
        let style = args.style().map_err(exit::invalid)?;
        let checkpoint_bytes = args.checkpoint_bytes().map_err(exit::invalid)?;
        let source = open_end(&args.source, EndRole::Source, args.raw).await?;
        prepare::arguments(&args, &source).map_err(exit::invalid)?;
        let journal = prepare::journal(&args);
        let state = match (&journal, checkpoint_bytes) {
            (Some(journal), Some(_)) => journal.read()?,
            _ => None,
        };
        let destination = prepare::destination(&args, &source, state.is_some(), journal.as_ref()).await?;
        prepare::ends(&args, &source, &destination)?;
        let from = match &source.medium {
            Medium::Disk(disk) => CopySource::Disk(disk.clone()),
            Medium::Stream(file) => {
                let stream = file.try_clone().and_then(|file| streams::reader(file, style.block));
                CopySource::Stream(stream.map_err(|e| no_stream(&source, &e))?)
            }
        };
        let offload = match args.no_offload {
            true => None,
            false => offload(&source, &destination).await,
        };
        let mut copy = CopyRun {
            args,
            style,
            checkpoint_bytes,
            source,
            from,
            destination,
            offload,
            journal,
            start: 0,
            bad: Vec::new(),
            is_journal_current: false,
            meter: Arc::default(),
            stop,
        };
        copy.begin(state).await?;
        Ok(copy)
    }

    async fn perform(mut self, started_at: Instant) -> Result<CopyReport, Diagnostic> {
        let outcome = match &self.destination.medium {
            Medium::Disk(_) => self.fill_disk().await?,
            Medium::Stream(_) => self.fill_stream().await?,
        };
        let copying = started_at.elapsed();
        self.end(outcome, started_at, copying).await
    }

    /// Restores the progress of an interrupted copy, or starts a new journal.
    async fn begin(&mut self, state: Option<State>) -> Result<(), exit::Failure> {
        let Some(journal) = &self.journal else { return Ok(()) };
        match state {
            Some(state) => {
                state.check(&self.fingerprints(), journal.path())?;
                (self.start, self.bad) = (state.stable, state.unreadable);
                self.check_last_block().await
            }
            None if self.checkpoint_bytes.is_some() => {
                journal.save(&self.fingerprints(), 0, &[]).map_err(|e| {
                    Diagnostic::new(
                        format!("cannot write the journal {}: {e}", journal.path().display()),
                        "choose another path with --journal FILE",
                    )
                    .with_code(lunar_server::ErrorCode::from(e.kind()))
                    .into()
                })
            }
            // This copy makes the journal of an earlier one invalid.
            None => journal.remove().map_err(|e| {
                Diagnostic::new(
                    format!("cannot remove the old journal {}: {e}", journal.path().display()),
                    "remove the file",
                )
                .into()
            }),
        }
    }

    /// Checks that the last block before the start offset is equal at both ends.
    async fn check_last_block(&self) -> Result<(), exit::Failure> {
        let Some(mut job) = self.job(None) else { return Ok(()) };
        job.range = self.start.saturating_sub(self.style.block)..self.start;
        job.meter = Arc::default();
        match verify(job, &self.bad).await.failure {
            None => Ok(()),
            Some(failure) if matches!(failure.cause, CopyErrorCause::Differs) => {
                let what = format!("data copied before differs from the source at offset {}", failure.offset);
                Err(Diagnostic::new(what, "to start over, remove the journal").into())
            }
            Some(failure) => Err(exit::Failure {
                exit: report::exit_of(&failure),
                problems: vec![report::failed(self.names(), &failure, None)],
            }),
        }
    }

    fn names(&self) -> (&str, &str) {
        (&self.source.name, &self.destination.name)
    }

    fn fingerprints(&self) -> (EndFingerprint, EndFingerprint) {
        (EndFingerprint::of(&self.source), EndFingerprint::of(&self.destination))
    }

    fn progress(&self, what: &'static str, start: u64, meter: &Arc<CopyMeter>) -> ProgressReporter {
        let phase = CopyPhase { what, start, total: self.source.size(), meter: meter.clone() };
        ProgressReporter::start(ProgressFormat::suitable(self.args.progress), phase)
    }

    /// The job for [`copy`] and [`verify`]; None if the destination is a stream.
    fn job(&self, grow: Option<GrowFn>) -> Option<CopyJob> {
        let destination = self.destination.as_disk()?.clone();
        let end = self.source.size().unwrap_or_else(|| destination.info().capacity);
        Some(CopyJob {
            source: self.from.clone(),
            destination,
            range: self.start..end,
            style: self.style,
            zeroed: self.destination.zeroed,
            grow,
            offload: self.offload.clone(),
            meter: self.meter.clone(),
            stop: self.stop.clone(),
        })
    }

    async fn fill_disk(&mut self) -> Result<CopyOutcome, Diagnostic> {
        let grow = match (&self.from, &self.destination) {
            (CopySource::Stream(_), CopyEnd { file: Some(path), .. }) => Some(grow(path, &self.destination)?),
            _ => None,
        };
        let Some(job) = self.job(grow) else { return Err(no_disk(&self.destination)) };
        let _progress = self.progress(progress::COPIED, self.start, &self.meter);
        let (fingerprints, before) = (self.fingerprints(), std::mem::take(&mut self.bad));
        let journal = self.journal.as_ref().filter(|_| matches!(self.from, CopySource::Disk(_)));
        let (required, mut kept) = (self.checkpoint_bytes.is_some(), false);
        let mut outcome = copy(job, self.checkpoint_bytes, |stable, bad| {
            let Some(journal) = journal else { return Ok(()) };
            let saved = journal.save(&fingerprints, stable, &[&before, bad].concat());
            kept = saved.is_ok();
            if required { saved } else { Ok(()) }
        })
        .await;
        outcome.bad = [before, outcome.bad].concat();
        self.is_journal_current = kept;
        Ok(outcome)
    }

    async fn fill_stream(&mut self) -> Result<CopyOutcome, Diagnostic> {
        let Medium::Stream(file) = &self.destination.medium else { return Err(no_disk(&self.destination)) };
        let stream = file.try_clone().and_then(streams::writer);
        let (out, written) = stream.map_err(|e| no_stream(&self.destination, &e))?;
        let _progress = self.progress(progress::COPIED, 0, &self.meter);
        let range = 0..self.source.size().unwrap_or(u64::MAX);
        let (meter, stop) = (self.meter.clone(), self.stop.clone());
        let mut outcome = lunar_copy::stream(self.from.clone(), range, self.style, out, meter, stop).await;
        // A pipe without a reader may block the writer forever: a stop ends the wait.
        match self.stop.or(written.recv_async()).await {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(e))) => {
                let failure = CopyFailure { offset: outcome.stable, cause: CopyErrorCause::Write(e) };
                (outcome.complete, outcome.failure) = (false, outcome.failure.or(Some(failure)));
            }
            Some(Err(_)) | None => outcome.complete = false,
        }
        Ok(outcome)
    }

    /// Verifies if requested, removes the journal, and makes the report.
    async fn end(
        self,
        outcome: CopyOutcome,
        started_at: Instant,
        copying: Duration,
    ) -> Result<CopyReport, Diagnostic> {
        let mut summary = Summary {
            source: self.source.name.clone(),
            destination: self.destination.name.clone(),
            complete: outcome.complete,
            bytes: outcome.stable,
            resumed_at: self.start,
            ..Summary::default()
        };
        summary.count(&self.meter);
        summary.left_out(&outcome.bad);
        let (end, problem) = match outcome.complete {
            true => self.conclude(&outcome, &mut summary).await?,
            false => self.interrupted(&outcome),
        };
        summary.seconds = started_at.elapsed().as_secs_f64();
        Ok(CopyReport { line: summary.line(copying), summary, problem, end })
    }

    async fn conclude(
        &self,
        outcome: &CopyOutcome,
        summary: &mut Summary,
    ) -> Result<(report::CopyStatus, Option<Diagnostic>), Diagnostic> {
        self.truncate_if_empty(outcome.stable)?;
        let compared = match self.args.verify {
            true => self.compare(&outcome.bad).await,
            false => None,
        };
        if let Some(journal) = &self.journal {
            // A later --resume must not skip data of a source that changed since.
            let path = journal.path().display();
            _ = journal.remove().inspect_err(|e| tracing::warn!("cannot remove the journal {path}: {e}"));
        }
        summary.verified = match &compared {
            Some(CopyOutcome { complete: true, .. }) => Some(true),
            Some(CopyOutcome {
                failure: Some(CopyFailure { cause: CopyErrorCause::Differs, .. }), ..
            }) => Some(false),
            _ => None,
        };
        Ok(match compared {
            Some(CopyOutcome { failure: Some(failure), .. }) => {
                (report::CopyStatus::of(&failure), Some(report::failed(self.names(), &failure, None)))
            }
            Some(CopyOutcome { complete: false, .. }) => {
                let what = "interrupted: all data are copied and flushed, but not all are verified";
                (report::CopyStatus::Stopped, Some(Diagnostic::new(what, "run the copy again with --verify")))
            }
            _ if !summary.unreadable.is_empty() => (
                report::CopyStatus::Incomplete,
                Some(report::left_out(&self.source.name, &summary.unreadable)),
            ),
            _ => (report::CopyStatus::Complete, None),
        })
    }

    async fn compare(&self, bad: &[Range<u64>]) -> Option<CopyOutcome> {
        let mut job = self.job(None)?;
        (job.range.start, job.meter) = (0, Arc::default());
        let _progress = self.progress(progress::COMPARED, 0, &job.meter);
        Some(verify(job, bad).await)
    }

    /// Truncates the file if the stream was empty: while open, a file has at least one byte.
    fn truncate_if_empty(&self, bytes: u64) -> Result<(), Diagnostic> {
        let CopyEnd { file: Some(path), created: true, name, .. } = &self.destination else { return Ok(()) };
        if bytes > 0 {
            return Ok(());
        }
        let cut = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
        cut.map_err(|e| {
            Diagnostic::new(
                format!("cannot truncate {name}: {e}"),
                "truncate the destination, because the source is empty",
            )
        })
    }

    fn interrupted(&self, outcome: &CopyOutcome) -> (report::CopyStatus, Option<Diagnostic>) {
        let resume_hint = match (self.is_journal_current, self.checkpoint_bytes) {
            (true, None) => Some("repeat the command with --resume to continue"),
            (true, Some(_)) => Some("repeat the command to continue"),
            (false, _) => None,
        };
        if let Some(failure) = &outcome.failure {
            return (
                report::CopyStatus::of(failure),
                Some(report::failed(self.names(), failure, resume_hint)),
            );
        }
        let what = format!("interrupted: {} copied and flushed", progress::size(outcome.stable));
        let hint = resume_hint.unwrap_or("no progress was saved: see --resume and --journal");
        (report::CopyStatus::Stopped, Some(Diagnostic::new(what, hint)))
    }
}

/// Copying by the target itself, if it supports that between both LUNs.
async fn offload(source: &CopyEnd, destination: &CopyEnd) -> Option<Arc<dyn Offload>> {
    let (from, to) = (source.lun.as_ref()?, destination.lun.as_ref()?);
    match ExtendedCopy::between(from, to).await {
        Ok(offload) => Some(Arc::new(offload)),
        Err(e) => {
            tracing::info!("the copy runs without offload: {e}");
            None
        }
    }
}

/// Extends a file as the data of a stream arrives. Existing data beyond the end of the stream is not changed.
fn grow(path: &Path, end: &CopyEnd) -> Result<GrowFn, Diagnostic> {
    let file = OpenOptions::new().write(true).open(path);
    let file = file.map_err(|e| {
        Diagnostic::new(
            format!("cannot open {} for writing: {e}", end.name),
            "check the permissions of the file",
        )
    })?;
    let Some(disk) = end.as_disk().cloned() else { return Err(no_disk(end)) };
    Ok(Box::new(move |len| {
        if len > disk.info().capacity {
            file.set_len(len)?;
            disk.refresh();
        }
        Ok(())
    }))
}

fn no_disk(end: &CopyEnd) -> Diagnostic {
    Diagnostic::new(format!("{} is a stream", end.name), "give a file, a block device or a LUN")
}

fn no_stream(end: &CopyEnd, e: &std::io::Error) -> Diagnostic {
    Diagnostic::new(format!("{}: {e}", end.name), crate::error_hints::process_limits(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use lunar_block::filter::{FilterOp, error};
    use lunar_block::{Backend, BackendKind, BackendSpec};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn memory() -> Arc<dyn Backend> {
        lunar_block::open(&BackendSpec::sized(BackendKind::Memory, 1 << 20)).expect("memory")
    }

    /// Copies from a disk whose reads all fail.
    async fn from_broken(options: &[&str]) -> CopyReport {
        let words = ["copy", "broken", "sound"].iter().chain(options);
        let args = Line::parse_from(words).args;
        let full = memory();
        let mut ones = lunar_runtime::Buf::zeroed(1 << 20);
        ones.fill(1);
        full.write(0, ones, false).await.0.expect("memory");
        let source = CopyEnd::disk("broken", "a".into(), error(full, FilterOp::Read, 1.0, None));
        let copy = CopyRun {
            style: args.style().expect("defaults"),
            checkpoint_bytes: None,
            from: CopySource::Disk(source.as_disk().expect("a disk").clone()),
            source,
            destination: CopyEnd::disk("sound", "b".into(), memory()),
            offload: None,
            args,
            journal: None,
            start: 0,
            bad: Vec::new(),
            is_journal_current: false,
            meter: Arc::default(),
            stop: Arc::default(),
        };
        copy.perform(Instant::now()).await.expect("a report")
    }

    #[test]
    fn unreadable_range_ends_the_copy_or_is_listed() {
        compio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let report = from_broken(&[]).await;
            assert_eq!(
                (report.end, report.summary.complete),
                (report::CopyStatus::Failed(exit::Exit::General), false)
            );
            let problem = report.problem.expect("a problem");
            assert_eq!(
                problem.to_string(),
                "broken to sound: cannot read the source: input/output error at offset 0\n  \
                 hint: --skip-errors copies the rest and writes zeros for unreadable ranges"
            );
            let report = from_broken(&["--skip-errors", "--verify"]).await;
            assert_eq!((report.end, report.summary.complete), (report::CopyStatus::Incomplete, true));
            assert_eq!(report.summary.unreadable, [report::UnreadableRange { offset: 0, len: 1 << 20 }]);
            let message = report.problem.expect("a list").what;
            assert!(message.ends_with("\n  offset 0, 1048576 bytes"), "{message}");
        });
    }
}
