//! `lunar router`: monitors and controls the routers of a running server. `lunar diff` and `lunar apply`: compare and change
//! its configuration.

use crate::args::{AdminArgs, Apply, RouterArgs, RouterCommand, RouterShowArgs};
use crate::client::{json, json_list};
use crate::exit::Failure;
use crate::objects::{self, outcome};
use crate::output;
use crate::session::{self, of_each, one, servers};
use lunar_admin::{self as admin, Difference, RouterAction, RouterReport, SessionReport};
use lunar_api::client::{
    ApplyRequest, ChangeReport, Client, DifferenceList, Outcome, RouterList, ServerAddress, segment,
};
use lunar_proto::duration::{self, NotationError};
use lunar_server::{Diagnostic, ErrorCode};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// The text to print.
pub fn router(command: RouterCommand) -> Result<String, Failure> {
    match command {
        RouterCommand::List(common) => {
            status_text(&RouterShowArgs { name: None, common }, admin::router::list)
        }
        RouterCommand::Show(which) => status_text(&which, show),
        RouterCommand::Stats(which) => status_text(&which, admin::router::stats),
        RouterCommand::Paths(which) => status_text(&which, admin::router::paths),
        RouterCommand::Sessions(which) => sessions(&which),
        RouterCommand::Drain(which) => control(which, RouterAction::Drain),
        RouterCommand::Resume(which) => control(which, RouterAction::Resume),
        RouterCommand::Failover(which) => control(which, RouterAction::Failover),
        RouterCommand::Eligible { which, may } if may == "on" => control(which, RouterAction::Eligible),
        RouterCommand::Eligible { which, .. } => control(which, RouterAction::Ineligible),
    }
}

/// The server that runs routers, or the router with this name. Other running servers are ignored.
fn routing(name: Option<&str>, common: &AdminArgs) -> Result<ServerAddress, Failure> {
    let all = servers(&common.choice)?;
    if all.len() == 1 {
        return Ok(one(all)?);
    }
    let is_meant = |router: &RouterReport| name.is_none_or(|name| router.name == name);
    let answers = of_each(&all, |path| routers(path, common.timeout));
    let (mut meant, mut failed) = (Vec::new(), Vec::new());
    for (path, answer) in all.iter().zip(answers) {
        match answer {
            Ok(routers) if routers.iter().any(is_meant) => meant.push(path.clone()),
            Ok(_) => {}
            Err(failure) => failed.push(failure),
        }
    }
    match failed.into_iter().next() {
        // The server that failed may be the one with the router.
        Some(failure) if meant.is_empty() => Err(failure),
        _ => Ok(one(if meant.is_empty() { all } else { meant })?),
    }
}

fn routers(server: &ServerAddress, timeout: Duration) -> Result<Vec<RouterReport>, Failure> {
    let list: RouterList = Client::new(server, timeout).get("/v1/routers")?;
    Ok(list.items)
}

fn status_text(which: &RouterShowArgs, text: fn(&[RouterReport]) -> String) -> Result<String, Failure> {
    let routers = chosen(which, &routing(which.name.as_deref(), &which.common)?)?;
    match which.common.json {
        true => json_list(&routers),
        false if routers.is_empty() => Ok("no routers\n".into()),
        false => Ok(text(&routers)),
    }
}

/// The router with the given name, or all routers.
fn chosen(which: &RouterShowArgs, server: &ServerAddress) -> Result<Vec<RouterReport>, Failure> {
    let all = routers(server, which.common.timeout)?;
    let Some(name) = &which.name else { return Ok(all) };
    let found: Vec<RouterReport> = all.into_iter().filter(|router| router.name == *name).collect();
    if found.is_empty() {
        let what = format!("router {name} does not exist");
        let problem = Diagnostic::new(what, "lunar router list shows the routers");
        return Err(problem.with_code(ErrorCode::NotFound).into());
    }
    Ok(found)
}

fn show(routers: &[RouterReport]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let texts: Vec<String> = routers.iter().map(|router| admin::router::show(router, now)).collect();
    texts.join("\n")
}

/// The sessions of the routers' targets.
fn sessions(which: &RouterShowArgs) -> Result<String, Failure> {
    let server = routing(which.name.as_deref(), &which.common)?;
    let routers = chosen(which, &server)?;
    let ours = |session: &SessionReport| {
        let targets = routers.iter().flat_map(|router| &router.targets);
        session.target.as_ref().is_some_and(|name| targets.into_iter().any(|target| target.name == *name))
    };
    let sessions: Vec<SessionReport> =
        session::sessions(&server, which.common.timeout)?.into_iter().filter(ours).collect();
    match which.common.json {
        true => json_list(&sessions),
        false if sessions.is_empty() => Ok("no sessions\n".into()),
        false => Ok(admin::table(&sessions)),
    }
}

/// The result of an operation on a router.
#[derive(Serialize, ToSchema)]
pub struct RouterOutcome {
    router: String,
    result: String,
}

fn control(which: RouterArgs, action: RouterAction) -> Result<String, Failure> {
    let server = routing(Some(&which.name), &which.common)?;
    let router = which.name.clone();
    let path = format!("/v1/routers/{}/{}", segment(&which.name), action.name());
    let done: Outcome = Client::new(&server, which.common.timeout).post(&path, &())?;
    let result = done.result;
    match which.common.json {
        true => json(&RouterOutcome { router, result }),
        false => Ok(output::success(result + "\n")),
    }
}

/// The changes that a configuration would make, or those since an entry of the history.
pub fn diff(file: Option<&Path>, since: Option<&str>, common: &AdminArgs) -> Result<String, Failure> {
    let server = common.choice.one()?;
    let mut path = "/v1/config/diff".to_owned();
    if let Some(file) = file {
        path += &format!("?file={}", segment(&path_on(&server, file)?));
    } else if let Some(since) = since {
        path += &format!("?since={}", segment(since));
    }
    let list: DifferenceList = Client::new(&server, common.timeout).get(&path)?;
    let differences = list.items;
    match common.json {
        true => json_list(&differences),
        false if differences.is_empty() && since.is_some() => Ok("nothing has changed\n".into()),
        false if differences.is_empty() => Ok("nothing would change\n".into()),
        false => Ok(differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("\n") + "\n"),
    }
}

/// Applies a configuration, or confirms or rolls back the applied one.
pub fn apply(args: &Apply) -> Result<String, Failure> {
    let client = Client::new(&args.choice.one()?, args.timeout);
    let ended = |path: &str| outcome(&client.post(path, &())?, args.json);
    match (args.confirm, args.rollback) {
        (true, _) => ended("/v1/config/confirm"),
        (_, true) => ended("/v1/config/rollback"),
        _ => {
            let request = ApplyRequest {
                file: args.file.as_deref().map(|file| path_on(client.server(), file)).transpose()?,
                confirm_within_s: within(args),
                force: args.force,
                dry_run: args.dry_run,
            };
            let report: ChangeReport = client.post("/v1/config/apply", &request)?;
            objects::warn(&report);
            let text = applied(&report, args);
            match (args.json, report.dry_run) {
                (true, _) => json(&report),
                (false, true) => Ok(text),
                (false, false) => Ok(output::success(text)),
            }
        }
    }
}

/// The changes of an applied configuration, and what the user may do next.
fn applied(report: &ChangeReport, args: &Apply) -> String {
    let mut text: String = report.changes.iter().map(|change| format!("{change}\n")).collect();
    text += &match within(args) {
        _ if report.dry_run => "dry run: nothing was changed".to_owned(),
        Some(seconds) => {
            format!("applied; the change is rolled back in {seconds} s unless you run lunar apply --confirm")
        }
        None if args.file.is_none() => "applied".to_owned(),
        None => {
            let hint = "to keep the change after a restart, write it to the configuration file of the server";
            format!("applied; {hint}")
        }
    };
    text + "\n"
}

/// The value of `--confirm-within`.
pub fn confirm_within(text: &str) -> Result<Duration, NotationError> {
    duration::within(text, Duration::from_millis(1)..=Duration::from_secs(86400))
}

/// The time to confirm, in whole seconds.
fn within(args: &Apply) -> Option<u64> {
    args.confirm_within.map(whole_seconds)
}

/// A time in whole seconds, rounded up.
pub fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The path of a file for a server. Files of another host have absolute paths.
pub fn path_on(server: &ServerAddress, file: &Path) -> Result<String, Diagnostic> {
    if server.socket().is_none() && file.is_relative() {
        let what = format!("the path {} is not absolute", file.display());
        let problem = Diagnostic::new(what, format!("give the path of the file on the host of {server}"));
        return Err(problem.with_code(ErrorCode::InvalidArgument));
    }
    absolute(file)
}

/// An absolute path, because the server may have another working directory.
fn absolute(file: &Path) -> Result<String, Diagnostic> {
    let path = std::path::absolute(file).map_err(|e| {
        Diagnostic::new(
            format!("cannot make the path {} absolute: {e}", file.display()),
            "give the absolute path of the file",
        )
    })?;
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Diagnostic::new(format!("the path {} is not UTF-8", path.display()), "rename the file")
    })
}
