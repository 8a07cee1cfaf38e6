//! Verifies written data. Each unit that is written carries its owner, position and generation. A ledger knows
//! the valid generations of each unit; a journal makes the ledger survive the process.

mod journal;
mod ledger;
#[cfg(test)]
mod tests;
mod unit;

pub use ledger::WriteLedger;
pub(crate) use ledger::{UnitClaim, VerifyCounts};

use crate::document::JobRun;
use crate::job::{AccessPattern, ArrivalProcess, IoDirection};
use crate::run::check;
use crate::{Document, Error, ErrorKind, Job, OpenTargets, RunHandle, plain};
use journal::{JournalHeader, VerifyJournal};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Options of the verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// Stamp writes and read them back.
    pub is_on: bool,
    /// The file that keeps the ledger beyond the process.
    pub state: Option<PathBuf>,
    /// Write nothing; check everything in the file.
    pub is_only: bool,
}

/// A verification in progress.
pub(crate) struct Verification {
    ledgers: Vec<Arc<WriteLedger>>,
    state: Option<PathBuf>,
    notes: Vec<String>,
}

impl VerifyOptions {
    /// The job with these options: a check-only job reads.
    pub(crate) fn limit(&self, job: Job) -> Job {
        if self.is_only { Job { direction: IoDirection::Read, ..job } } else { job }
    }

    /// Attaches ledgers to the targets, if verification is on.
    ///
    /// # Errors
    /// If the job cannot be verified, or the file cannot be used.
    pub(crate) fn prepare(&self, opened: &mut OpenTargets, job: &Job) -> Result<Option<Verification>, Error> {
        if !self.is_on {
            return Ok(None);
        }
        let (ledgers, notes) = match &self.state {
            None => (self.fresh(opened, job)?, Vec::new()),
            Some(path) => {
                let (ledger, notes) = self.kept(path, opened, job)?;
                (vec![Arc::new(ledger)], notes)
            }
        };
        opened.attach_ledgers(&ledgers);
        Ok(Some(Verification { ledgers, state: self.state.clone(), notes }))
    }

    fn fresh(&self, opened: &OpenTargets, job: &Job) -> Result<Vec<Arc<WriteLedger>>, Error> {
        if !job.direction.writes() {
            return invalid(
                "--verify: the workload writes nothing that can be verified",
                "use a workload that writes, or --verify-state",
            );
        }
        let of = |measured: crate::document::MeasuredTarget| {
            WriteLedger::new(header(job, opened.capacity(), &measured.name)?, None)
                .map(Arc::new)
                .map_err(too_large)
        };
        opened.measured_targets().into_iter().map(of).collect()
    }

    /// Loads a ledger from a file, or creates it, with a note if the target has another name.
    fn kept(
        &self,
        path: &Path,
        opened: &OpenTargets,
        job: &Job,
    ) -> Result<(WriteLedger, Vec<String>), Error> {
        let [target] = &opened.measured_targets()[..] else {
            return invalid("--verify-state supports only one target", "run one command for each target");
        };
        let cannot = |e: io::Error| {
            let what = format!("{} cannot be used for --verify-state: {e}", path.display());
            Error::new(ErrorKind::Medium(e.kind().into()), what, "use another file")
        };
        let journal = VerifyJournal::open(path, !self.is_only).map_err(cannot)?;
        if journal.is_empty().map_err(cannot)? && !self.is_only {
            let header = header(job, opened.capacity(), &target.name)?;
            let ledger = WriteLedger::new(header.clone(), None).map_err(too_large)?;
            journal.begin(&header).map_err(cannot)?;
            ledger.set_journal(journal);
            return Ok((ledger, Vec::new()));
        }
        let unusable = |why: String| {
            let what = format!("{} cannot be used for --verify-state: {why}", path.display());
            Error::new(ErrorKind::Invalid, what, "use another file")
        };
        let (ledger, records) = WriteLedger::read(&mut journal.read().map_err(cannot)?).map_err(unusable)?;
        self.fits(ledger.header(), opened, job).map_err(unusable)?;
        let other = (ledger.header().target != target.name)
            .then(|| format!("{} was created for the target {}", path.display(), ledger.header().target));
        if !self.is_only {
            journal.cut(ledger.header(), records).map_err(cannot)?;
            ledger.set_journal(journal);
        }
        Ok((ledger, other.into_iter().collect()))
    }

    /// Checks that a file belongs to this target and job.
    fn fits(&self, kept: &JournalHeader, opened: &OpenTargets, job: &Job) -> Result<(), String> {
        let contents = format!(
            "the file covers blocks of {} bytes in {} bytes from offset {}",
            kept.unit, kept.span, kept.first
        );
        let capacity = opened.capacity();
        if kept.first + kept.span > capacity {
            return Err(format!("{contents}, but the target has only {capacity} bytes"));
        }
        if self.is_only {
            return Ok(());
        }
        let requested = header(job, capacity, &kept.target).map_err(|e| e.what)?;
        if (requested.unit, requested.first, requested.span) != (kept.unit, kept.first, kept.span) {
            let JournalHeader { unit, first, span, .. } = requested;
            return Err(format!(
                "{contents}, but the job uses blocks of {unit} bytes in {span} bytes from offset {first}"
            ));
        }
        Ok(())
    }
}

fn invalid<T>(what: impl Into<String>, hint: &'static str) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Invalid, what, hint))
}

fn too_large(what: String) -> Error {
    Error::new(ErrorKind::Invalid, what, "limit the span, as in --span 64G")
}

/// The header of a job's ledger, with a random owner.
fn header(job: &Job, capacity: u64, target: &str) -> Result<JournalHeader, Error> {
    let span = check(job, capacity)?;
    let unit = 1 << job.granule().trailing_zeros().min(unit::LONGEST.trailing_zeros());
    if unit < unit::SHORTEST {
        let what = format!("commands at multiples of {} bytes cannot be verified", job.granule());
        return invalid(what, "use multiples of 512 for --bs");
    }
    let stride = if let AccessPattern::Strided(stride) = job.order { stride } else { 0 };
    for (name, bytes) in [("offset", job.offset), ("amount", job.amount.unwrap_or(0)), ("stride", stride)] {
        if !bytes.is_multiple_of(unit) {
            let what =
                format!("--{name}: {bytes} bytes are not a multiple of the verified block of {unit} bytes");
            return invalid(what, "use a multiple of the verified block");
        }
    }
    let owner = getrandom::u64().map_err(|e| {
        Error::new(ErrorKind::System, format!("cannot get random numbers: {e}"), "check /dev/urandom")
    })?;
    Ok(JournalHeader { owner, unit: unit as u32, first: job.offset, span, target: target.into() })
}

impl Verification {
    /// Reads back all known units after the runs in `document`, and notes the result.
    ///
    /// # Errors
    /// As [`OpenTargets::run`].
    pub(crate) fn finish(
        self,
        opened: &OpenTargets,
        job: &Job,
        document: &mut Document,
        handle: &RunHandle,
    ) -> Result<(), Error> {
        document.runs.iter_mut().for_each(|run| self.add_options(&mut run.job));
        document.notes.extend(self.notes.iter().cloned());
        if document.ended_early().is_some() || handle.is_ended() {
            document.notes.push(self.left_out());
            return Ok(());
        }
        let run = self.read_back(opened, job, handle)?;
        let note = match &run.outcome.ended_early {
            None => self.found(),
            Some(why) => format!("verification failed: {why}"),
        };
        document.runs.push(run);
        document.notes.push(note);
        Ok(())
    }

    fn read_back(&self, opened: &OpenTargets, job: &Job, handle: &RunHandle) -> Result<JobRun, Error> {
        let job = self.reading(job);
        self.ledgers.iter().for_each(|ledger| ledger.rewind());
        let mut outcome = opened.read_back(&job, handle)?;
        if outcome.ended_early.is_none() {
            let left = self.blocks().saturating_sub(self.counts().iter().map(|c| c.sound + c.unsure).sum());
            outcome.ended_early = (left > 0).then(|| match left {
                1 => "1 block was not read back".to_owned(),
                _ => format!("{left} blocks were not read back"),
            });
        }
        let mut run = plain::labelled_run(opened, &job, outcome);
        run.label = "verify".into();
        self.add_options(&mut run.job);
        Ok(run)
    }

    /// The job that reads back: at full speed, with the lengths and the depth of the writing job.
    fn reading(&self, job: &Job) -> Job {
        let unit = self.ledgers.iter().map(|ledger| ledger.header().unit).max().unwrap_or(1);
        let longest = job.longest().max(unit) / unit * unit;
        Job {
            order: AccessPattern::Sequential,
            direction: IoDirection::Read,
            sizes: vec![(longest, 1)],
            time: None,
            amount: Some(self.ledgers.iter().map(|ledger| ledger.known_bytes()).sum()),
            ramp: Duration::ZERO,
            pace: ArrivalProcess::Closed,
            think: Duration::ZERO,
            fua: false,
            flush: false,
            offset: 0,
            span: None,
            ..job.clone()
        }
    }

    /// Adds the options of the verification to those of a job.
    fn add_options(&self, options: &mut Vec<(String, String)>) {
        options.retain(|(name, _)| name != "fill");
        options.push(("verify".into(), "yes".into()));
        let state = self.state.iter().map(|path| ("verify-state".into(), path.display().to_string()));
        options.extend(state);
    }

    fn blocks(&self) -> u64 {
        self.ledgers.iter().map(|ledger| ledger.known_bytes() / u64::from(ledger.header().unit)).sum()
    }

    fn counts(&self) -> Vec<VerifyCounts> {
        self.ledgers.iter().map(|ledger| ledger.counts()).collect()
    }

    fn left_out(&self) -> String {
        let later = match &self.state {
            Some(path) => format!("; to do so, use --verify-only --verify-state {}", path.display()),
            None => String::new(),
        };
        format!("written data was not read back{later}")
    }

    fn found(&self) -> String {
        let sum = |of: fn(&VerifyCounts) -> u64| self.counts().iter().map(of).sum::<u64>();
        let (sound, unsure, torn) = (sum(|c| c.sound), sum(|c| c.unsure), sum(|c| c.torn));
        let unsure = match unsure {
            0 => String::new(),
            n => format!("; {n} have an unacknowledged write, {torn} of them torn"),
        };
        format!("verified: {sound} blocks hold acknowledged data{unsure}")
    }
}
