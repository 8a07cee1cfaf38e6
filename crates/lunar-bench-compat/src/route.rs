//! From an input to an output, as dd and its kin know them: a disk that is read, one that is written, or both.

use crate::{copy_disk::CopyDisk, refused};
use lunar_bench::document::MeasuredTarget;
use lunar_bench::job::IoDirection;
use lunar_bench::{Error, ErrorKind, OpenTargets, TargetOptions, TargetSpec};
use lunar_block::Backend;
use lunar_runtime::CoreSelection;
use std::fs::{self, File};
use std::io;
use std::sync::Arc;

/// What stands for nothing at the end of a copy.
const NOTHING: [&str; 3] = ["/dev/null", ".", "/dev/zero"];

/// One end.
#[derive(Clone, Debug)]
pub struct RouteEnd {
    /// The disk; none where zeros come from or bytes vanish.
    pub target: Option<TargetSpec>,
    /// First byte.
    pub start: u64,
    /// Pass the page cache of this host by.
    pub direct: bool,
}

impl RouteEnd {
    /// The end of this name.
    ///
    /// # Errors
    /// When it cannot be understood; standard input and output are not there.
    pub fn named(key: &str, name: Option<&str>, start: u64, direct: bool) -> Result<RouteEnd, Error> {
        let target = match name {
            None | Some("-") => {
                let hint = "name a disk, or /dev/zero to read from, or /dev/null to write to";
                return Err(refused(
                    format!("{key}= must be named: there is no standard input or output"),
                    hint,
                ));
            }
            Some(name) if NOTHING.contains(&name) => None,
            Some(name) => Some(TargetSpec::parse(name)?),
        };
        Ok(RouteEnd { target, start, direct })
    }
}

/// How a route is opened.
#[derive(Clone, Debug)]
pub struct RoutePlan {
    /// What is read.
    pub input: RouteEnd,
    /// What is written.
    pub output: RouteEnd,
    /// Bytes, if they are known; otherwise as many as there are.
    pub bytes: Option<u64>,
    /// Where the input has fewer, those are enough.
    pub until_end: bool,
    /// Writes are stable when they are acknowledged.
    pub fua: bool,
    /// Data that is there may be overwritten.
    pub destroy: bool,
    /// Where it runs.
    pub cores: CoreSelection,
}

impl RoutePlan {
    /// Bytes go from a disk to a disk: neither are they zeros, nor do they vanish.
    pub fn is_copy(&self) -> bool {
        self.input.target.is_some() && self.output.target.is_some()
    }
}

/// Both ends, open.
pub struct OpenRoute {
    /// What a job runs on.
    pub opened: OpenTargets,
    /// The output of a copy.
    to: Option<OpenTargets>,
    /// The way of the job.
    pub direction: IoDirection,
    /// First byte of the job.
    pub offset: u64,
    /// Bytes that it moves.
    pub bytes: u64,
    /// Bytes of the input, behind those, for which the output has no room.
    pub cut: u64,
    /// Bytes between the end of the input and where it was to begin, behind that.
    pub past_end: u64,
}

impl OpenRoute {
    /// Opens both ends; `filter` puts something before each, told whether it is the output.
    ///
    /// # Errors
    /// When an end cannot be opened, there are none, or it has not so many bytes.
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

    /// What both ends are.
    pub fn facts(&self) -> Vec<MeasuredTarget> {
        let to = self.to.as_ref().map(OpenTargets::facts).unwrap_or_default();
        self.opened.facts().into_iter().chain(to).collect()
    }

    /// Logs out.
    pub fn close(self) {
        self.opened.close();
        self.to.into_iter().for_each(OpenTargets::close);
    }
}

/// `output`: it is written, and made with this many bytes if there is no such file.
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

/// A file that is not there, or in which nothing is, is no disk. What helps are the operands of a face.
fn check_file(target: &TargetSpec, output: Option<Option<u64>>) -> Result<(), Error> {
    let TargetSpec::Path(path) = target else { return Ok(()) };
    let (kind, what) = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => (io::ErrorKind::NotFound, "there is no such file"),
        Ok(found) if found.is_file() && found.len() == 0 => (io::ErrorKind::InvalidInput, "it is empty"),
        _ => return Ok(()),
    };
    let hint = match output {
        // It is made.
        Some(Some(_)) => return Ok(()),
        Some(None) => "say how large it becomes with count=, or make it before (truncate -s SIZE FILE)",
        None => "check the path after if=",
    };
    Err(Error::new(ErrorKind::Medium(kind.into()), format!("{}: {what}", path.display()), hint))
}

/// An output that is a file grows to what is to be written. Whether it may be was looked at when it was opened.
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
        refused(format!("{}: it cannot grow: {e}", path.display()), "make room, or use a smaller count")
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
            let what = format!("{bytes} bytes are wanted, and there is room for {room} behind skip or seek");
            return Err(refused(what, "use a smaller count"));
        }
        (bytes, room) => bytes.or(room).unwrap_or(0),
    };
    let (start, seek) = (plan.input.start, plan.output.start);
    let (opened, to, direction, offset) = match (from, to) {
        (None, None) => {
            return Err(refused("neither if= nor of= is a disk", "name one, such as iscsi://..."));
        }
        (None, Some(to)) => (to, None, IoDirection::Write, seek),
        (Some(from), None) => (from, None, IoDirection::Read, start),
        (Some(mut from), Some(to)) => {
            let fua = plan.fua;
            let disk = to.disk(0).ok_or_else(|| refused("the output is gone", "open it again"))?;
            from.wrap(|_, from| -> Arc<dyn Backend> {
                Arc::new(CopyDisk { from, to: disk.clone(), start: (start, seek), fua })
            });
            (from, Some(to), IoDirection::Read, start)
        }
    };
    Ok(OpenRoute { opened, to, direction, offset, bytes, cut, past_end })
}
