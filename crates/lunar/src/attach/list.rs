//! `lunar attach list`: lists attachments and their state.

use super::launch::last_lines;
use super::open_attached;
use crate::client::{self, ClientArgs, json, json_list};
use crate::exit::{Exit, Failure};
use clap::Args;
use lunar_admin::{AttachmentReport, rows};
use lunar_proto::size;
use lunar_server::attached::{Attached, Record, State};
use lunar_server::folders;
use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Arguments of `lunar attach list`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  lunar attach list\n  lunar attach list disks-0\n  lunar attach list --json"
)]
pub struct ListArgs {
    /// Show details of this attachment, with the end of its log
    name: Option<String>,

    #[command(flatten)]
    common: ClientArgs,
}

/// Shown lines at the end of the log.
const LOG_LINES: usize = 10;

/// The text to print.
///
/// # Errors
/// [`Exit::NotFound`] if no attachment has this name; [`Exit::TimedOut`].
pub fn list(args: ListArgs) -> Result<String, Failure> {
    let all = all(&open_attached()?, args.name.as_deref(), args.common.timeout)?;
    let Some(name) = &args.name else {
        return if args.common.json { Ok(json_list(&all)?) } else { Ok(table(&all)) };
    };
    let Some(one) = all.first() else {
        let what = format!("\"{}\" is not attached", name.escape_debug());
        return Err(Failure::new(Exit::NotFound, what, "lunar attach list shows the attachments"));
    };
    if args.common.json { Ok(json(one)?) } else { Ok(details(one)) }
}

/// All attachments, or the one with this name, for the API. It creates no folder.
///
/// # Errors
/// [`Exit::NoAccess`] if this user cannot read them.
pub fn existing(name: Option<&str>) -> Result<Vec<AttachmentReport>, Failure> {
    // Without a folder, this user has attached nothing.
    let attached = folders::attached().ok().and_then(Attached::existing);
    attached.map_or(Ok(Vec::new()), |attached| all(&attached, name, None))
}

/// All attachments, or the one with this name. The time limit is for all of them together.
fn all(
    attached: &Attached,
    name: Option<&str>,
    limit: Option<Duration>,
) -> Result<Vec<AttachmentReport>, Failure> {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let records: Vec<(Record, bool)> = {
        let locked = attached.lock()?;
        let wanted = locked.all()?.into_iter().filter(|record| name.is_none_or(|name| name == record.name));
        wanted.map(|record| (locked.is_alive(&record.name), record)).map(|(alive, r)| (r, alive)).collect()
    };
    let report = |(mut record, is_alive): (Record, bool)| {
        let log = attached.file(&record.name, "log");
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let state = if is_alive { attached.ask(&record.name, left) } else { None };
        let state_name = state_name(&record, is_alive, state.as_ref());
        let (paths, users, waiting_writes) = match state {
            Some(State { size_bytes, paths, users, waiting_writes }) => {
                record.size_bytes = size_bytes;
                (paths, users, waiting_writes)
            }
            None => Default::default(),
        };
        AttachmentReport { record, state: state_name, paths, users, waiting_writes, log }
    };
    let report = records.into_iter().map(report).collect();
    match (end, limit) {
        (Some(end), Some(limit)) if Instant::now() > end => Err(client::late(limit, None)),
        _ => Ok(report),
    }
}

fn state_name(record: &Record, is_alive: bool, state: Option<&State>) -> &'static str {
    let Some(state) = state else {
        return match (is_alive, record.device.is_some()) {
            (false, _) if !record.left_behind.is_empty() => "unsettled",
            (false, _) => "ended",
            (true, false) => "starting",
            (true, true) => "silent",
        };
    };
    match state.paths.iter().filter(|path| path.connected).count() {
        0 => "lost",
        n if n < state.paths.len() => "degraded",
        _ => "attached",
    }
}

fn table(all: &[AttachmentReport]) -> String {
    if all.is_empty() {
        return "nothing is attached\n".into();
    }
    let head = ["NAME", "AS", "STATE", ">SIZE", "DEVICE", "URL"];
    let row = |report: &AttachmentReport| {
        let record = &report.record;
        let device = record.device.clone().unwrap_or_else(|| "-".into());
        let url = record.urls.first().cloned().unwrap_or_default();
        [
            record.name.clone(),
            record.how.name().into(),
            report.state.into(),
            size::show(record.size_bytes),
            device,
            url,
        ]
    };
    rows::table(head, all.iter().map(row))
}

fn details(report: &AttachmentReport) -> String {
    let Record { name, how, device, size_bytes, read_only, recovery_timeout, pid, attached_at, .. } =
        &report.record;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let users = if report.users.is_empty() { "-".to_owned() } else { report.users.join(", ") };
    let mut rows = vec![
        ("name", name.clone()),
        ("as", how.name().to_owned()),
        ("device", device.clone().unwrap_or_else(|| "-".into())),
        ("state", report.state.to_owned()),
        ("size", format!("{} ({size_bytes} bytes)", size::show(*size_bytes))),
        ("read only", if *read_only { "yes" } else { "no" }.to_owned()),
        ("used by", users),
        ("writes in flight", report.waiting_writes.to_string()),
        ("recovery timeout", format!("{} s", recovery_timeout.as_secs_f64())),
        ("process", pid.to_string()),
        ("since", format!("{} s", now.saturating_sub(*attached_at))),
        ("identity", report.record.identity.clone()),
    ];
    if report.paths.is_empty() {
        rows.extend(report.record.urls.iter().map(|url| ("url", url.clone())));
    }
    if let Some(policy) = report.record.policy {
        rows.push(("policy", policy.name().into()));
    }
    for path in &report.paths {
        rows.push(("path", format!("{}: {}, reopened {} times", path.url, path.state, path.recoveries)));
    }
    for session in &report.record.left_behind {
        rows.push(("left behind", format!("writes of ISID {} at {}", session.isid, session.url)));
    }
    if let Some(failure) = &report.record.failure {
        rows.push(("failure", failure.clone()));
    }
    rows.push(("log", report.log.display().to_string()));
    let mut text = String::new();
    for (key, value) in rows {
        _ = writeln!(text, "{key:16}  {value}");
    }
    for line in last_lines(&report.log, LOG_LINES) {
        // The log may quote a target: remove control characters.
        let plain: String = line.chars().filter(|c| !c.is_control()).collect();
        _ = writeln!(text, "  {plain}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_server::attached::{AttachedPath, LeftSession};
    use lunar_server::config::attachment::How;
    use std::path::PathBuf;

    fn record(device: Option<&str>) -> Record {
        Record {
            name: "disks-0".into(),
            how: How::Nbd,
            device: device.map(str::to_owned),
            place: None,
            ublk_id: None,
            urls: vec!["iscsi://h:3260/iqn.2026-11.org.example:disks/0".into()],
            size_bytes: 1 << 30,
            identity: "01".into(),
            read_only: false,
            recovery_timeout: std::time::Duration::from_secs(120),
            policy: None,
            pid: 7,
            attached_at: 0,
            isids: Vec::new(),
            initiators: Vec::new(),
            ports: Vec::new(),
            users: Vec::new(),
            left_behind: Vec::new(),
            failure: None,
        }
    }

    fn state(connected: &[bool]) -> State {
        let path = |connected: &bool| AttachedPath {
            url: "u".into(),
            state: "s".into(),
            connected: *connected,
            recoveries: 0,
        };
        State {
            size_bytes: 1,
            paths: connected.iter().map(path).collect(),
            users: Vec::new(),
            waiting_writes: 0,
        }
    }

    #[test]
    fn one_word_says_how_it_is() {
        let there = record(Some("nbd://h"));
        assert_eq!(state_name(&there, false, None), "ended");
        let (url, isid) = (there.urls[0].clone(), "800000000001".into());
        let left = Record {
            left_behind: vec![LeftSession { url, isid, initiator: None, port: None, user: None }],
            ..there.clone()
        };
        assert_eq!(state_name(&left, false, None), "unsettled");
        assert_eq!(state_name(&left, true, None), "silent");
        assert_eq!(state_name(&record(None), true, None), "starting");
        assert_eq!(state_name(&there, true, Some(&state(&[true]))), "attached");
        assert_eq!(state_name(&there, true, Some(&state(&[true, false]))), "degraded");
        assert_eq!(state_name(&there, true, Some(&state(&[false]))), "lost");
    }

    #[test]
    fn json_has_each_key_once() {
        let record = Record { users: vec!["alice".into()], ..record(Some("nbd://h")) };
        let users = vec!["process 7".into()];
        let report = AttachmentReport {
            record,
            state: "attached",
            paths: Vec::new(),
            users,
            waiting_writes: 0,
            log: PathBuf::new(),
        };
        let text = json(&report).unwrap();
        assert_eq!(text.matches("\"users\":").count(), 1, "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["users"][0], &value["chap_users"][0]), (&"process 7".into(), &"alice".into()));
    }

    #[test]
    fn table_is_aligned() {
        let report = AttachmentReport {
            record: record(Some("nbd://h")),
            state: "attached",
            paths: Vec::new(),
            users: Vec::new(),
            waiting_writes: 0,
            log: PathBuf::new(),
        };
        assert_eq!(
            table(&[report]),
            "NAME     AS   STATE      SIZE  DEVICE   URL\n\
             disks-0  nbd  attached  1 GiB  nbd://h  iscsi://h:3260/iqn.2026-11.org.example:disks/0\n"
        );
        assert_eq!(table(&[]), "nothing is attached\n");
    }
}
