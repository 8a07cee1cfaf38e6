//! `lunar detach`: ends an attachment, and removes what a dead process left of one.

use super::claim::{left_behind, same_disk};
use super::export::failed;
use super::{absolute, namespace, open_attached, unfinished_writes};
use crate::client::json;
use crate::exit::{Exit, Failure};
use crate::output::{self, count};
use clap::Args;
use lunar_admin::DetachRequest;
use lunar_block::users;
use lunar_initiator::nvme;
use lunar_server::attached::{Attached, Record, State};
use lunar_server::config::attachment;
use lunar_server::{Diagnostic, folders};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::Serialize;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

const EXAMPLES: &str = "\
Examples:
  lunar detach disks-0
  lunar detach /dev/ublkb0
  lunar detach disks-0 --force     even if it is mounted or has clients";

/// Arguments of `lunar detach`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Detach {
    /// Name, device, file or folder of the attachment, or URL of the LUN
    #[arg(value_name = "NAME|DEVICE|DIR|URL")]
    attachment: String,

    /// Detach even if it is in use. I/O that waits for an unreachable target fails; a process that does not end in
    /// time is killed
    #[arg(long)]
    force: bool,

    /// Detach even if the target might still execute writes of it. Use this if the target was restarted since, or
    /// is gone for good
    #[arg(long)]
    forget: bool,

    /// Fail after this time (60, 60s, 2m)
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = lunar_proto::duration::positive)]
    timeout: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A detached attachment, for `--json`.
#[derive(Serialize, ToSchema)]
pub struct DetachReport {
    name: String,
    device: Option<String>,
    /// The process did not end in time, and was killed.
    killed: bool,
}

/// The time limit of a client of the API.
const API_TIMEOUT: Duration = Duration::from_secs(60);
/// The fix where another user attached the disk.
const OTHER_USER: &str = "run lunar detach on the host as the user who attached the disk";
/// Interval of checks whether a process has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Limit for the kernel to end a killed process.
const KILLED: Duration = Duration::from_secs(5);

/// The text to print.
///
/// # Errors
/// [`Exit::NotFound`], [`Exit::InUse`], [`Exit::TimedOut`]; [`Exit::General`] if not all data could be flushed.
pub fn detach(args: Detach) -> Result<String, Failure> {
    let limit = Instant::now().checked_add(args.timeout);
    let attached = open_attached()?;
    let (record, is_alive) = find(&attached, &args.attachment)?;
    let end = if is_alive { end(&attached, &record, &args, limit)? } else { ProcessEnd::before() };
    let killed = is_alive && end.killed;
    finish(&attached, &record, &args, (!end.killed, limit))?;
    if let Some(late) = end.late_writes(&record, args.forget) {
        output::stderr_line(format_args!("warning: {late}"));
    }
    let name = record.name.clone();
    let text = match args.json {
        true => json(&DetachReport { name: record.name, device: record.device, killed })?,
        false => output::success(format!("{name} is detached\n")),
    };
    if killed {
        output::stdout(text)?;
        let hint = "check the last writes, or repeat them";
        let what = format!("{name}: the process of the attachment was killed; writes in flight may be lost");
        return Err(Diagnostic::new(what, hint).into());
    }
    Ok(text)
}

/// Detaches a disk for a client of the API.
///
/// # Errors
/// As [`detach`]; [`Exit::NoAccess`] for an attachment of another user.
pub fn detach_for(request: &DetachRequest) -> Result<String, Failure> {
    let attached = Attached::existing(folders::attached()?).ok_or_else(|| request.absent())?;
    let name = &request.name;
    let found = {
        let locked = attached.lock()?;
        locked.record(name).map(|record| (record, locked.is_alive(name)))
    };
    let (record, is_alive) = found.ok_or_else(|| request.absent())?;
    attached.check_writable().map_err(|problem| Diagnostic { hint: Some(OTHER_USER.into()), ..problem })?;
    let args = Detach {
        attachment: name.clone(),
        force: request.force,
        forget: false,
        timeout: API_TIMEOUT,
        json: true,
    };
    let limit = Instant::now().checked_add(args.timeout);
    let end = if is_alive { end(&attached, &record, &args, limit)? } else { ProcessEnd::before() };
    finish(&attached, &record, &args, (!end.killed, limit))?;
    let how = match is_alive && end.killed {
        true => "; its process was killed, and writes in flight may be lost",
        false => "",
    };
    let late = end.late_writes(&record, args.forget).map_or(String::new(), |late| format!("; {}", late.what));
    Ok(format!("{name} is detached{how}{late}"))
}

/// The attachment that the argument names, and whether its process is alive.
fn find(attached: &Attached, what: &str) -> Result<(Record, bool), Failure> {
    let locked = attached.lock()?;
    let all = locked.all()?;
    let meant: Vec<&Record> = all.iter().filter(|record| is_meant(record, what)).collect();
    match meant[..] {
        [record] => Ok((record.clone(), locked.is_alive(&record.name))),
        [] => {
            let what = format!("\"{}\" is not attached", what.escape_debug());
            Err(Failure::new(Exit::NotFound, what, "lunar attach list shows the attachments"))
        }
        _ => {
            let names: Vec<&str> = meant.iter().map(|record| record.name.as_str()).collect();
            let what = format!("\"{}\" names several attachments", what.escape_debug());
            Err(Failure::new(Exit::Invalid, what, format!("choose one of: {}", names.join(", "))))
        }
    }
}

fn is_meant(record: &Record, what: &str) -> bool {
    let path = absolute(Path::new(what)).display().to_string();
    let is_place = [&record.device, &record.place].into_iter().flatten().any(|it| *it == what || *it == path);
    let is_left = record.ublk_id.is_some_and(|id| path == format!("/dev/ublkb{id}"));
    let is_lun = what.contains("://") || attachment::is_image(what);
    let is_url = is_lun && same_disk(&record.urls, &[what.to_owned()]);
    record.name == what || is_place || is_left || is_url
}

/// How the process of an attachment has ended.
struct ProcessEnd {
    /// It was killed, or ended by a fault.
    killed: bool,
    /// The URLs of paths that were lost.
    lost: Vec<String>,
}

impl ProcessEnd {
    /// The end of a process whose record was left.
    fn before() -> ProcessEnd {
        ProcessEnd { killed: true, lost: Vec::new() }
    }

    /// Why the target may still execute writes to a namespace, which nothing has ended.
    fn late_writes(&self, record: &Record, is_forgotten: bool) -> Option<Diagnostic> {
        let has_written = record.device.is_some() && !record.read_only;
        if !has_written || is_forgotten || !is_namespace(record) {
            return None;
        }
        let why = match (self.killed, &self.lost[..]) {
            (true, _) => "its process was killed".to_owned(),
            (false, []) => return None,
            (false, lost) => format!("the connection to {} is lost", lost.join(" and to ")),
        };
        let what = format!("{}: {why}, and the target may still execute its last writes", record.name);
        Some(namespace::late_writes(what))
    }
}

fn is_namespace(record: &Record) -> bool {
    record.urls.iter().any(|url| nvme::is_url(url))
}

/// Ends the process, and waits for its end.
fn end(
    attached: &Attached,
    record: &Record,
    args: &Detach,
    limit: Option<Instant>,
) -> Result<ProcessEnd, Failure> {
    // Before anything changes.
    check_right(record)?;
    // The question may take at most half of the time.
    let asks = !args.force || is_namespace(record);
    let state = asks.then(|| attached.ask(&record.name, left(limit) / 2)).flatten();
    let waiting = match (args.force, &state) {
        (true, _) => attached.force(&record.name).map(|()| 0)?,
        (false, Some(state)) => unused(record, state)?,
        (false, None) => 0,
    };
    let paths = state.iter().flat_map(|state| &state.paths);
    let lost = paths.filter(|path| namespace::is_lost(path)).map(|path| path.url.clone()).collect();
    signal(attached, record, Signal::TERM)?;
    if wait_until_over(attached, &record.name, left(limit))? {
        return Ok(ProcessEnd { killed: false, lost });
    }
    if !args.force {
        let time = humantime::format_duration(args.timeout);
        let writes = match waiting {
            0 => String::new(),
            _ => format!(" with {} in flight", count(waiting as usize, "write")),
        };
        let what = format!("process {} of {} has not ended within {time}{writes}", record.pid, record.name);
        let hint = "the process waits for I/O in flight: check the network, raise --timeout, or use --force";
        return Err(Failure::new(Exit::TimedOut, what, hint));
    }
    output::stderr_line(format_args!(
        "process {} does not end and is killed; writes in flight may be lost or executed later",
        record.pid
    ));
    signal(attached, record, Signal::KILL)?;
    wait_until_over(attached, &record.name, KILLED)?;
    Ok(ProcessEnd { killed: true, lost })
}

/// Returns the number of writes in flight.
///
/// # Errors
/// When a program uses it.
fn unused(record: &Record, state: &State) -> Result<u64, Failure> {
    match state.users.is_empty() {
        true => Ok(state.waiting_writes),
        false => Err(in_use(record, &state.users)),
    }
}

/// The remaining time.
fn left(limit: Option<Instant>) -> Duration {
    limit.map_or(Duration::MAX, |limit| limit.saturating_duration_since(Instant::now()))
}

fn in_use(record: &Record, users: &[String]) -> Failure {
    let what = format!("{} is in use: {}", record.name, users.join(", "));
    Failure::new(Exit::InUse, what, "unmount the disk, or end its users; --force detaches the disk anyway")
}

/// Sends a signal to its process, which runs as long as its lock is held.
fn signal(attached: &Attached, record: &Record, signal: Signal) -> Result<(), Failure> {
    let locked = attached.lock()?;
    let pid = i32::try_from(record.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|_| locked.is_alive(&record.name)) else { return Ok(()) };
    kill_process(pid, signal).map_err(|e| no_right(record, e))
}

/// Checks that this process may end that of the attachment.
fn check_right(record: &Record) -> Result<(), Failure> {
    let Some(pid) = i32::try_from(record.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    match test_kill_process(pid) {
        Err(e @ Errno::PERM) => Err(no_right(record, e)),
        _ => Ok(()),
    }
}

fn no_right(record: &Record, e: Errno) -> Failure {
    Failure::new(Exit::NoAccess, format!("cannot end process {}: {e}", record.pid), OTHER_USER)
}

/// Waits for the end of the process; false after the time limit.
fn wait_until_over(attached: &Attached, name: &str, limit: Duration) -> Result<bool, Failure> {
    let end = Instant::now().checked_add(limit);
    loop {
        if !attached.lock()?.is_alive(name) {
            return Ok(true);
        }
        if end.is_some_and(|end| Instant::now() > end) {
            return Ok(false);
        }
        sleep(CHECK_INTERVAL);
    }
}

/// Removes what the process left: a block device and the record. The record stays while the target may still execute
/// writes of it.
fn finish(
    attached: &Attached,
    record: &Record,
    args: &Detach,
    (ends_now, limit): (bool, Option<Instant>),
) -> Result<(), Failure> {
    let locked = attached.lock()?;
    let left = locked.record(&record.name).filter(|_| !locked.is_alive(&record.name));
    let Some(left) = left else { return Ok(()) };
    if let Some(id) = left_behind(&locked, &left)? {
        let used = users::of_device(Path::new(&format!("/dev/ublkb{id}")));
        if !used.is_empty() && !args.force {
            return Err(in_use(&left, &used));
        }
        lunar_host::ublk::UblkDevice::remove(id).map_err(failed)?;
    }
    drop(locked);
    let is_owed = !left.sessions().is_empty() && !args.forget;
    match (is_owed, &left.failure) {
        // The process has just tried to end these writes, and failed.
        (true, Some(what)) if ends_now => Err(kept(attached, &left, what)),
        (true, _) => {
            let _alive = unfinished_writes::end_of_record(attached, &left, self::left(limit).max(KILLED))?;
            attached.lock()?.clear(&left.name);
            Ok(())
        }
        (false, _) => forget(attached, &left),
    }
}

/// Removes the record of a process that is gone.
///
/// # Errors
/// The failure that the process recorded when it ended.
fn forget(attached: &Attached, record: &Record) -> Result<(), Failure> {
    let locked = attached.lock()?;
    // Another process may have taken the name since.
    if !locked.is_alive(&record.name) {
        locked.clear(&record.name);
    }
    let Some(what) = &record.failure else { return Ok(()) };
    let log = attached.file(&record.name, "log");
    let hint = format!("the last writes may be lost; the log of the attachment is {}", log.display());
    Err(Diagnostic::new(format!("{}: {what}", record.name), hint).into())
}

/// The error for a record that stays because the target may still execute writes.
fn kept(attached: &Attached, record: &Record, what: &str) -> Failure {
    let log = attached.file(&record.name, "log");
    let hint = format!(
        "{}; the log of the attachment is {}",
        unfinished_writes::HINT.replace("NAME", &record.name),
        log.display()
    );
    Diagnostic::new(format!("{}: {what}", record.name), hint).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detach_warns_of_late_writes_to_a_namespace() {
        const NVME: &str = "nvme://h/nqn.2026-11.org.example:a/1";
        let record = |url: &str, device: Option<&str>, read_only: bool| -> Record {
            let record = serde_json::json!({
                "name": "a", "how": "nbd", "device": device, "place": null, "ublk_id": null, "urls": [url],
                "size_bytes": 0, "identity": "", "read_only": read_only, "recovery_timeout_s": 1.0, "pid": 1,
                "attached_at": "2026-11-30T00:00:00Z",
            });
            serde_json::from_value(record).expect("a record")
        };
        let written = record(NVME, Some("nbd://h"), false);
        let lost = |urls: &[&str]| ProcessEnd {
            killed: false,
            lost: urls.iter().map(|url| (*url).into()).collect(),
        };
        let late =
            |end: ProcessEnd, record: &Record, forget| end.late_writes(record, forget).map(|late| late.what);
        let killed = late(ProcessEnd::before(), &written, false).expect("a warning");
        assert_eq!(killed, "a: its process was killed, and the target may still execute its last writes");
        let lost_paths = late(lost(&["nvme://b", "nvme://c"]), &written, false).expect("a warning");
        assert!(lost_paths.contains("the connection to nvme://b and to nvme://c is lost"), "{lost_paths}");
        assert_eq!(late(lost(&[]), &written, false), None);
        assert_eq!(late(ProcessEnd::before(), &written, true), None, "--forget");
        for other in [
            record(NVME, Some("nbd://h"), true),
            record(NVME, None, false),
            record("iscsi://h/iqn.2026-11.org.example:a/0", Some("nbd://h"), false),
        ] {
            assert_eq!(late(ProcessEnd::before(), &other, false), None, "{other:?}");
        }
    }
}
