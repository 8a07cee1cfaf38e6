//! `lunar status`, `reload` and `stop`, and `lunar session end`.

use super::{changed, client};
use crate::args::{AdminArgs, ReloadArgs, Stop};
use crate::client::{json, json_list};
use crate::exit::Failure;
use crate::output;
use crate::session::{gathered, servers};
use lunar_admin::{self as admin, rows};

use lunar_api::client::{
    ApplyRequest, Client, Method, Outcome, ProblemDetail, ServerAddress, ServerReport, StopReport,
};
use lunar_server::{Diagnostic, ErrorCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// The pause between two looks at a server whose process cannot be watched.
const PAUSE: Duration = Duration::from_millis(100);
/// Limit of a question to a server that ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server with its address.
#[derive(Serialize, ToSchema)]
pub struct ListedServer {
    server: String,
    #[serde(flatten)]
    report: ServerReport,
}

/// The text to print, and the failure of a server if another one responded.
pub fn status(args: &AdminArgs) -> Result<(String, Option<Failure>), Failure> {
    let servers = servers(&args.choice)?;
    let (reports, failure) =
        gathered(&servers, |server| Ok(Client::new(server, args.timeout).get("/v1/server")?))?;
    let listed =
        reports.into_iter().map(|(server, report)| ListedServer { server: server.to_string(), report });
    let listed: Vec<ListedServer> = listed.collect();
    let text = match args.json {
        true => json_list(&listed)?,
        false => listed.iter().map(shown).collect::<Vec<_>>().join("\n"),
    };
    Ok((text, failure))
}

fn shown(ListedServer { server, report }: &ListedServer) -> String {
    let trial = report.confirm_by.as_ref().map(|by| {
        let by = rows::shown(by);
        ("trial", format!("rolled back at {by} unless you run lunar apply --confirm"))
    });
    let file = report.config_file.as_deref().map_or("none".into(), rows::shown);
    let lines = [
        ("server", rows::shown(server)),
        ("version", rows::shown(&report.version)),
        ("process", report.process.to_string()),
        ("state", if report.stopping { "shuts down" } else { "serves" }.into()),
        ("uptime", rows::duration(report.uptime_s)),
        ("file", file),
        ("targets", report.targets.to_string()),
        ("LUNs", report.luns.to_string()),
    ];
    let nvme = [("subsystems", report.subsystems), ("namespaces", report.namespaces)];
    let nvme = nvme.into_iter().filter(|_| report.subsystems > 0);
    let counts = nvme.chain([("sessions", report.sessions)]).map(|(name, count)| (name, count.to_string()));
    let warnings = report.warnings.iter().map(|line| ("warning", rows::shown(line)));
    let lines: Vec<[String; 2]> = lines
        .into_iter()
        .chain(counts)
        .chain(trial)
        .chain(warnings)
        .map(|(name, value)| [name.to_owned(), value])
        .collect();
    rows::lines(&lines)
}

/// Reads the files of the server again, and applies them.
pub fn reload(ReloadArgs { force, server }: &ReloadArgs) -> Result<String, Failure> {
    let request = ApplyRequest { force: *force, ..ApplyRequest::default() };
    let report = client(server)?.post("/v1/config/apply", &request)?;
    changed(&report, server.json)
}

/// Asks a host to log out.
pub fn end_session(tsih: u16, args: &AdminArgs) -> Result<String, Failure> {
    let client = Client::new(&args.choice.one()?, args.timeout);
    let done = client.send::<Outcome>(Method::DELETE, &format!("/v1/sessions/{tsih}"), None, &Value::Null)?;
    outcome(&done.value, args.json)
}

/// The text for an operation that succeeded.
pub fn outcome(outcome: &Outcome, as_json: bool) -> Result<String, Failure> {
    if as_json { json(outcome) } else { Ok(output::success(outcome.result.clone() + "\n")) }
}

/// Stops a server, and waits for the end of its process. Returns the text to print, and the failure if data is lost.
pub fn stop(args: &Stop) -> Result<(String, Option<Failure>), Failure> {
    let end = Instant::now() + args.timeout;
    let server = args.choice.one()?;
    let process = server.socket().and_then(admin::listener);
    // Before the request, so that the number is not that of a later process.
    let watched = process.and_then(watch);
    let asked = Client::new(&server, args.timeout).post::<StopReport>("/v1/server/stop?wait=true", &());
    let asked = asked.map_err(Failure::from);
    let still_runs = || Failure::from(still_runs(process, args.timeout));
    let report = match asked {
        Err(failure) if failure.code() == ErrorCode::TimedOut && Instant::now() >= end => {
            return Err(still_runs());
        }
        // It has closed the connection without a response (a second signal, or the end of its machine), or it already
        // shuts down.
        Err(failure)
            if matches!(failure.code(), ErrorCode::Unreachable | ErrorCode::Other)
                && watched.is_some()
                && ends(watched.as_ref(), &server, end) =>
        {
            return Err(no_result(&failure.problems[0]).into());
        }
        asked => asked?,
    };
    if !ends(watched.as_ref(), &server, end) {
        return Err(still_runs());
    }
    let problems: Vec<Diagnostic> = report.problems.iter().map(lost).collect();
    let text = match args.json {
        true => json(&report)?,
        false if problems.is_empty() => output::success(report.result + "\n"),
        false => String::new(),
    };
    Ok((text, (!problems.is_empty()).then(|| problems.into())))
}

/// The error of data that a stopped server has lost.
fn lost(problem: &ProblemDetail) -> Diagnostic {
    Diagnostic::new(
        format!("the server has ended, and data is lost: {}", problem.detail),
        problem.hint.clone(),
    )
}

/// The error of a server that has ended, perhaps without all steps of a graceful shutdown.
fn no_result(problem: &Diagnostic) -> Diagnostic {
    let what = format!("the server has ended without a result: {}", problem.what);
    Diagnostic::new(what, "read the log of the server: a flush may be incomplete")
}

/// A descriptor of a process. None if the process is not visible here.
fn watch(process: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(process.try_into().ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until the process has ended, or else until it answers no more. False at the time `end`.
fn ends(process: Option<&OwnedFd>, server: &ServerAddress, end: Instant) -> bool {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let has_ended = match process {
            Some(process) => is_readable(process, left),
            None => !is_answered(server),
        };
        if has_ended || left.is_zero() {
            return has_ended;
        }
        if process.is_none() {
            std::thread::sleep(PAUSE.min(left));
        }
    }
}

fn is_answered(server: &ServerAddress) -> bool {
    match server.socket() {
        Some(socket) => admin::is_answered(socket),
        None => Client::new(server, PATIENCE).get::<ServerReport>("/v1/server").is_ok(),
    }
}

/// Whether a descriptor becomes readable in this time. A signal may end the wait early.
fn is_readable(descriptor: &OwnedFd, left: Duration) -> bool {
    let limit = Timespec::try_from(left).ok();
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], limit.as_ref()).is_ok_and(|ready| ready > 0)
}

fn still_runs(process: Option<u32>, limit: Duration) -> Diagnostic {
    let limit = lunar_proto::duration::show(limit);
    let number = process.map_or(String::new(), |process| format!(" (process {process})"));
    let what = format!("the server still shuts down after {limit}{number}");
    let hint = "wait and see its log: it waits for hosts and disks, or keeps deleted files for 60 s";
    Diagnostic::new(what, hint).with_code(ErrorCode::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_shows_a_trial_with_its_deadline() {
        let report = ServerReport {
            version: "0.1.0".into(),
            process: 7,
            stopping: false,
            uptime_s: 61,
            config_file: Some("/etc/lunar.toml".into()),
            config_version: "1-1".into(),
            confirm_by: None,
            targets: 1,
            luns: 2,
            subsystems: 0,
            namespaces: 0,
            sessions: 0,
            warnings: Vec::new(),
        };
        let text = |report| shown(&ListedServer { server: "/run/lunar.sock".into(), report });
        let plain = text(report.clone());
        assert!(plain.starts_with("server    /run/lunar.sock\nversion   0.1.0\n"), "{plain}");
        let warned =
            text(ServerReport { warnings: vec!["LUN 0\u{1b}".into(), "b".into()], ..report.clone() });
        assert!(warned.ends_with("warning   LUN 0\\u{1b}\nwarning   b\n"), "{warned}");
        let stops = text(ServerReport { stopping: true, ..report.clone() });
        assert!(stops.contains("state     shuts down\n") && plain.contains("state     serves\n"), "{stops}");
        assert!(plain.contains("uptime    1m 1s\n") && !plain.contains("trial"), "{plain}");
        let tried = text(ServerReport { confirm_by: Some("2026-11-28T10:00:00Z".into()), ..report });
        assert!(tried.contains("trial     rolled back at 2026-11-28T10:00:00Z unless you run "), "{tried}");
    }
}
