//! The input and output of dd and similar tools: one disk that is read or written, or two.

use crate::{copy_disk::CopyDisk, refused};
use lunar_bench::document::MeasuredTarget;
use lunar_bench::job::IoDirection;
use lunar_bench::{Error, ErrorKind, OpenTargets, TargetOptions, TargetSpec};
use lunar_block::Backend;
use lunar_runtime::CoreSelection;
use std::fs::{self, File};
use std::io;
use std::sync::Arc;

/// The names of an empty end of a copy.
const NOTHING: [&str; 3] = ["/dev/null", ".", "/dev/zero"];

/// One end of a route.
#[derive(Clone, Debug)]
pub struct RouteEnd {
    /// The disk; None for zeros as input, or discarded output.
    pub target: Option<TargetSpec>,
    /// First byte.
    pub start: u64,
    /// Bypass the page cache of this host.
    pub direct: bool,
}

impl RouteEnd {
    /// Parses the name of an end.
    ///
    /// # Errors
    /// If the name is invalid. Standard input and output are not supported.
    pub fn named(key: &str, name: Option<&str>, start: u64, direct: bool) -> Result<RouteEnd, Error> {
        let target = match name {
            None | Some("-") => {
                let hint = "use a disk, /dev/zero to read from, or /dev/null to write to";
                return Err(refused(
                    format!("{key}= must name a file or a disk: standard input and output are not supported"),
                    hint,
                ));
            }
            Some(name) if NOTHING.contains(&name) => None,
            Some(name) => Some(TargetSpec::parse(name)?),
        };
        Ok(RouteEnd { target, start, direct })
    }
}

/// A route before it is opened.
#[derive(Clone, Debug)]
pub struct RoutePlan {
    /// The input.
    pub input: RouteEnd,
    /// The output.
    pub output: RouteEnd,
    /// The number of bytes; None for as many as possible.
    pub bytes: Option<u64>,
    /// A shorter input is not an error.
    pub until_end: bool,
    /// Write with FUA.
    pub fua: bool,
    /// Overwrite existing data.
    pub destroy: bool,
    /// The cores to run on.
    pub cores: CoreSelection,
}

impl RoutePlan {
    /// Whether both ends are disks.
    pub fn is_copy(&self) -> bool {
        self.input.target.is_some() && self.output.target.is_some()
    }
}

/// A route with both ends open.
pub struct OpenRoute {
    /// The targets of the job.
    pub opened: OpenTargets,
    /// The output of a copy.
    to: Option<OpenTargets>,
    /// The direction of the job.
    pub direction: IoDirection,
    /// The first byte of the job.
    pub offset: u64,
    /// The bytes to move.
    pub bytes: u64,
    /// The bytes of the input for which the output has no room.
    pub cut: u64,
    /// The distance from the end of the input to the start, if the start is past the end.
    pub past_end: u64,
}

impl OpenRoute {
    /// Opens both ends; `filter` may wrap each, and receives whether it is the output.
    ///
    /// # Errors
    /// If an end cannot be opened, both ends are empty, or an end is too short.
    pub fn open(
        plan: &RoutePlan,
        filter: &dyn Fn(&mut OpenTargets, &TargetSpec, bool) -> Result<(), Error>,
    ) -> Result<OpenRoute, Error> {
        let from = plan.input.target.as_ref().map(|target| open_end(plan, target, None)).transpose()?;
        let wanted =
            plan.bytes.or(from.as_ref().map(|opened| opened.capacity().saturating_sub(plan.input.start)));
        let size = wanted.map(|bytes| bytes.saturating_add(plan.output.start));
        let open = |target| open_end(plan, target, Some(size)).and_then(|to| grown(plan, target, to, size));
        let to = match plan.output.target.as_ref().map(open).transpose() {
            Ok(to) => to,
            Err(e) => {
                from.into_iter().for_each(OpenTargets::close);
                return Err(e);
            }
        };
        join(plan, filter, from, to)
    }

    /// The description of both ends.
    pub fn measured_targets(&self) -> Vec<MeasuredTarget> {
        let to = self.to.as_ref().map(OpenTargets::measured_targets).unwrap_or_default();
        self.opened.measured_targets().into_iter().chain(to).collect()
    }

    /// Logs out.
    pub fn close(self) {
        self.opened.close();
        self.to.into_iter().for_each(OpenTargets::close);
    }
}

/// Opens one end. `output` is Some for an output; its inner value is the size of a file to create.
fn open_end(
    plan: &RoutePlan,
    target: &TargetSpec,
    output: Option<Option<u64>>,
) -> Result<OpenTargets, Error> {
    check_file(target, output)?;
    let end = if output.is_some() { &plan.output } else { &plan.input };
    let opening = TargetOptions {
        direct: end.direct,
        write: output.is_some(),
        destroy: plan.destroy,
        create: output.flatten(),
        cores: plan.cores.clone(),
        ..TargetOptions::default()
    };
    OpenTargets::open(std::slice::from_ref(target), &opening)
}

/// Checks that a file exists and is not empty. The hints name operands of the emulated tool.
fn check_file(target: &TargetSpec, output: Option<Option<u64>>) -> Result<(), Error> {
    let TargetSpec::Path(path) = target else { return Ok(()) };
    let (kind, what) = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => (io::ErrorKind::NotFound, "the file does not exist"),
        Ok(found) if found.is_file() && found.len() == 0 => {
            (io::ErrorKind::InvalidInput, "the file is empty")
        }
        _ => return Ok(()),
    };
    let hint = match output {
        // The file will be created.
        Some(Some(_)) => return Ok(()),
        Some(None) => "set its size with count=, or create it first (truncate -s SIZE FILE)",
        None => "check the path after if=",
    };
    Err(Error::new(ErrorKind::Medium(kind.into()), format!("{}: {what}", path.display()), hint))
}

/// Extends an output file to the size of the copy. Whether it may be overwritten was checked when it was
/// opened.
fn grown(
    plan: &RoutePlan,
    target: &TargetSpec,
    to: OpenTargets,
    size: Option<u64>,
) -> Result<OpenTargets, Error> {
    let (TargetSpec::Path(path), Some(size)) = (target, size.filter(|size| *size > to.capacity())) else {
        return Ok(to);
    };
    if !path.is_file() {
        return Ok(to);
    }
    to.close();
    let file = File::options().write(true).open(path).and_then(|file| file.set_len(size));
    file.map_err(|e| {
        refused(
            format!("cannot extend {} to {size} bytes: {e}", path.display()),
            "free space, or use a smaller count",
        )
    })?;
    open_end(&RoutePlan { destroy: true, ..plan.clone() }, target, Some(None))
}

fn join(
    plan: &RoutePlan,
    filter: &dyn Fn(&mut OpenTargets, &TargetSpec, bool) -> Result<(), Error>,
    mut from: Option<OpenTargets>,
    mut to: Option<OpenTargets>,
) -> Result<OpenRoute, Error> {
    for (opened, end, is_output) in [(&mut from, &plan.input, false), (&mut to, &plan.output, true)] {
        if let (Some(opened), Some(target)) = (opened, &end.target) {
            filter(opened, target, is_output)?;
        }
    }
    let room = |opened: &Option<OpenTargets>, end: &RouteEnd| {
        opened.as_ref().map(|opened| opened.capacity().saturating_sub(end.start))
    };
    let (left, right) = (room(&from, &plan.input), room(&to, &plan.output));
    let past_end = from.as_ref().map_or(0, |opened| plan.input.start.saturating_sub(opened.capacity()));
    let cut = left
        .zip(right)
        .filter(|_| plan.bytes.is_none())
        .map_or(0, |(left, right)| left.saturating_sub(right));
    let wanted =
        plan.bytes.map(|bytes| if plan.until_end { bytes.min(left.unwrap_or(bytes)) } else { bytes });
    let bytes = match (wanted, left.into_iter().chain(right).min()) {
        (Some(bytes), Some(room)) if bytes > room => {
            let what = format!(
                "count= requests {bytes} bytes, but only {room} bytes are available after skip= and seek="
            );
            return Err(refused(what, "use a smaller count="));
        }
        (bytes, room) => bytes.or(room).unwrap_or(0),
    };
    let (start, seek) = (plan.input.start, plan.output.start);
    let (opened, to, direction, offset) = match (from, to) {
        (None, None) => {
            return Err(refused(
                "neither if= nor of= is the URL of a disk",
                "use a URL for one of them, such as iscsi://...",
            ));
        }
        (None, Some(to)) => (to, None, IoDirection::Write, seek),
        (Some(from), None) => (from, None, IoDirection::Read, start),
        (Some(mut from), Some(to)) => {
            let fua = plan.fua;
            let disk = to
                .disk(0)
                .ok_or_else(|| refused("the output disk (of=) is already closed", "run the command again"))?;
            from.wrap(|_, from| -> Arc<dyn Backend> {
                Arc::new(CopyDisk { from, to: disk.clone(), start: (start, seek), fua })
            });
            (from, Some(to), IoDirection::Read, start)
        }
    };
    Ok(OpenRoute { opened, to, direction, offset, bytes, cut, past_end })
}
