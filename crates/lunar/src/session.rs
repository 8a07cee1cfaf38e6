//! `lunar session`: shows and ends the sessions of running servers.

use crate::args::{AdminArgs, ServerChoice, SessionCommand};
use crate::client::{json, json_list};
use crate::exit::Failure;
use crate::objects;
use lunar_admin::{self as admin, SessionReport};
use lunar_api::client::{Client, ServerAddress, SessionList};
use lunar_server::{Diagnostic, ErrorCode, folders, listeners};
use serde::Serialize;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread::ScopedJoinHandle;
use std::time::Duration;
use utoipa::ToSchema;

/// The text to print, and the failure of a server if another one responded.
pub fn session(command: SessionCommand) -> Result<(String, Option<Failure>), Failure> {
    match command {
        SessionCommand::List(common) => list_all(&servers(&common.choice)?, &common),
        SessionCommand::End { id, common } => Ok((objects::end_session(id, &common)?, None)),
        SessionCommand::Show { id, common } => {
            let server = common.choice.one()?;
            Ok((show(sessions(&server, common.timeout)?, id, common.json)?, None))
        }
    }
}

/// The sessions of a server.
///
/// # Errors
/// When no server answers.
pub fn sessions(server: &ServerAddress, timeout: Duration) -> Result<Vec<SessionReport>, Failure> {
    let list: SessionList = Client::new(server, timeout).get("/v1/sessions")?;
    Ok(list.items)
}

/// The servers to query: at least one, even if no server listens there.
pub fn servers(choice: &ServerChoice) -> Result<Vec<ServerAddress>, Diagnostic> {
    if let Some(remote) = choice.remote()? {
        return Ok(vec![remote]);
    }
    if let Some(path) = &choice.socket {
        return Ok(vec![path.clone().into()]);
    }
    let first = folders::admin_socket()?;
    let listening = admin::listening(&first);
    let sockets = if listening.is_empty() { vec![first] } else { listening };
    Ok(sockets.into_iter().map(ServerAddress::from).collect())
}

/// The only server; an error if several run.
pub fn one(mut servers: Vec<ServerAddress>) -> Result<ServerAddress, Diagnostic> {
    if servers.len() > 1 {
        let servers: Vec<String> = servers.iter().filter_map(ServerAddress::socket).map(described).collect();
        let what = format!("{} servers are running: {}", servers.len(), servers.join(", "));
        return Err(Diagnostic::new(what, "choose a server with --socket PATH"));
    }
    Ok(servers.swap_remove(0))
}

/// An admin socket, with the process of its server and the addresses on which that process listens.
fn described(socket: &Path) -> String {
    let Some(pid) = admin::listener(socket) else { return socket.display().to_string() };
    let addresses: Vec<String> = listeners::of_process(pid).iter().map(ToString::to_string).collect();
    let listens = if addresses.is_empty() { "" } else { ", listens on " };
    format!("{} (process {pid}{listens}{})", socket.display(), addresses.join(" and "))
}

/// A session with its server: TSIHs are those of one server.
#[derive(Serialize, ToSchema)]
pub struct ServerSession {
    server: String,
    #[serde(flatten)]
    session: SessionReport,
}

/// The responses of all servers. Queries run concurrently, so that a server that hangs does not delay the others.
pub fn of_each<T: Send>(
    servers: &[ServerAddress],
    ask: impl Fn(&ServerAddress) -> Result<T, Failure> + Sync,
) -> Vec<Result<T, Failure>> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let asked: Vec<_> = servers.iter().map(|server| scope.spawn(move || ask(server))).collect();
        let answer = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|e| resume_unwind(e));
        asked.into_iter().map(answer).collect()
    })
}

/// Responses, each with its server.
pub type ServerAnswers<'s, T> = Vec<(&'s ServerAddress, T)>;

/// The responses of the servers that answer, and the failure of the others.
///
/// # Errors
/// When no server answers.
pub fn gathered<T: Send>(
    servers: &[ServerAddress],
    ask: impl Fn(&ServerAddress) -> Result<T, Failure> + Sync,
) -> Result<(ServerAnswers<'_, T>, Option<Failure>), Failure> {
    let (mut answers, mut problems) = (ServerAnswers::new(), Vec::new());
    for (server, answer) in servers.iter().zip(of_each(servers, ask)) {
        match answer {
            Ok(answer) => answers.push((server, answer)),
            Err(failure) => problems.extend(failure.problems),
        }
    }
    match answers.is_empty() {
        true => Err(problems.into()),
        false => Ok((answers, (!problems.is_empty()).then(|| problems.into()))),
    }
}

/// The sessions of every server that responds.
fn list_all(servers: &[ServerAddress], common: &AdminArgs) -> Result<(String, Option<Failure>), Failure> {
    let (lists, failure) = gathered(servers, |path| sessions(path, common.timeout))?;
    let text = match common.json {
        true => json_list(&placed(lists))?,
        false => lists.iter().map(|(server, sessions)| listed(server, sessions, servers.len())).collect(),
    };
    Ok((text, failure))
}

/// The sessions with their servers, for JSON.
fn placed(lists: ServerAnswers<'_, Vec<SessionReport>>) -> Vec<ServerSession> {
    let of_one = |(server, sessions): (&ServerAddress, Vec<SessionReport>)| {
        let server = server.to_string();
        sessions.into_iter().map(move |session| ServerSession { server: server.clone(), session })
    };
    lists.into_iter().flat_map(of_one).collect()
}

fn listed(server: &ServerAddress, sessions: &[SessionReport], servers: usize) -> String {
    match servers {
        1 => list(sessions),
        _ => format!("[{server}]\n{}", list(sessions)),
    }
}

fn list(sessions: &[SessionReport]) -> String {
    if sessions.is_empty() { "no sessions\n".into() } else { admin::table(sessions) }
}

fn show(sessions: Vec<SessionReport>, id: Option<u16>, as_json: bool) -> Result<String, Failure> {
    let Some(id) = id else {
        if as_json {
            return json_list(&sessions);
        }
        if sessions.is_empty() {
            return Ok(list(&sessions));
        }
        let texts: Vec<String> =
            sessions.iter().map(|one| format!("[session {}]\n{one}", one.tsih)).collect();
        return Ok(texts.join("\n"));
    };
    let Some(one) = sessions.into_iter().find(|one| one.tsih == id) else {
        return Err(Diagnostic::new(
            format!("session {id} does not exist"),
            "lunar session list shows the sessions",
        )
        .with_code(ErrorCode::NotFound)
        .into());
    };
    if as_json { json(&one) } else { Ok(one.to_string()) }
}
