//! Checks before the first write, and the path of the journal.

use super::args::Args;
use super::ends::{CopyEnd, EndRole, is_path, open_end, same};
use super::journal::CopyJournal;
use crate::exit::{Exit, Failure, invalid};
use lunar_server::Diagnostic;
use std::path::Path;

/// Rejects arguments that are invalid whatever the destination is.
pub fn arguments(args: &Args, source: &CopyEnd) -> Result<(), Diagnostic> {
    let to_stdout = args.destination == "-";
    // An empty file is read as a stream, but can be read again.
    let is_empty = std::fs::metadata(&args.source).is_ok_and(|found| found.is_file() && found.len() == 0);
    let from_stream = source.size().is_none() && !is_empty;
    let refusals = [
        (args.json && to_stdout, "--json conflicts with a copy to stdout", "remove --json"),
        (
            from_stream && args.checkpoint_bytes()?.is_some(),
            "--resume conflicts with a source that is a stream",
            "remove --resume, or copy from a file",
        ),
        (from_stream && args.verify, "--verify conflicts with a source that is a stream", "remove --verify"),
        (from_stream && args.exact, "--exact conflicts with a source that is a stream", "remove --exact"),
        (
            same(&args.source, &args.destination),
            "source and destination are the same medium",
            "choose another destination",
        ),
    ];
    refused(&refusals)
}

/// Checks the open ends, before the first write.
pub fn ends(args: &Args, source: &CopyEnd, destination: &CopyEnd) -> Result<(), Failure> {
    let null = destination.as_disk().is_some_and(|disk| disk.info().null);
    let to_stream = destination.size().is_none();
    let refusals = [
        (
            to_stream && args.checkpoint_bytes()?.is_some(),
            "--resume conflicts with a destination that is a stream",
            "remove --resume, or copy to a file",
        ),
        (
            (to_stream || null) && args.verify,
            "--verify conflicts with a destination that cannot be read back",
            "remove --verify",
        ),
    ];
    refused(&refusals).map_err(invalid)?;
    let (Some(from), Some(to)) = (source.size(), destination.size()) else { return Ok(()) };
    let sizes = format!("{} has {from} bytes, {} has {to}", source.name, destination.name);
    match () {
        () if to < from => Err(Diagnostic::new(
            format!("{sizes}: the destination is too small; nothing was written"),
            "choose or create a larger destination",
        )
        .into()),
        () if to > from && args.exact => Err(Diagnostic::new(
            format!("{sizes}, and --exact is set; nothing was written"),
            "without --exact, the rest of the destination stays unchanged",
        )
        .into()),
        () => Ok(()),
    }
}

fn refused(refusals: &[(bool, &str, &str)]) -> Result<(), Diagnostic> {
    match refusals.iter().find(|(applies, ..)| *applies) {
        Some((_, what, hint)) => Err(Diagnostic::new(*what, *hint)),
        None => Ok(()),
    }
}

/// The journal of --journal, or the default one next to a destination file.
pub fn journal(args: &Args) -> Option<CopyJournal> {
    if let Some(path) = &args.journal {
        return Some(CopyJournal::at(path.clone()));
    }
    let path = Path::new(&args.destination);
    let may_be_file = match std::fs::metadata(path) {
        Ok(found) => found.is_file(),
        Err(_) => is_path(&args.destination),
    };
    may_be_file.then(|| CopyJournal::beside(path))
}

pub async fn destination(
    args: &Args,
    source: &CopyEnd,
    resumed: bool,
    journal: Option<&CopyJournal>,
) -> Result<CopyEnd, Failure> {
    if args.checkpoint_bytes()?.is_some() && journal.is_none() {
        let what = format!("the copy to {} has no default journal", args.destination);
        return Err(Failure::new(Exit::Invalid, what, "add --journal FILE"));
    }
    if resumed && is_path(&args.destination) && !Path::new(&args.destination).exists() {
        let what = format!("{} does not exist any more: the copy cannot be resumed", args.destination);
        return Err(Diagnostic::new(what, "to start over, remove the journal").into());
    }
    let side = EndRole::Destination { size: source.size().unwrap_or(1), overwrite: args.force || resumed };
    let resumable = !resumed && journal.is_some_and(CopyJournal::exists);
    // The interrupted copy may have written an image header.
    let raw = args.raw || resumed;
    open_end(&args.destination, side, raw).await.map_err(|failure| Failure {
        problems: failure.problems.into_iter().map(|problem| with_resume(problem, resumable)).collect(),
        ..failure
    })
}

fn with_resume(problem: Diagnostic, resumable: bool) -> Diagnostic {
    let hint = problem.hint.map(|hint| match resumable {
        true => format!("{hint}; --resume continues the interrupted copy"),
        false => hint,
    });
    Diagnostic { hint, ..problem }
}
