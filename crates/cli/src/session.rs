//! `lunar session`: what a running server tells of its sessions.

use crate::args::Session;
use crate::client::json;
use control::admin::{self, Session as Told};
use control::{Cause, Problem, folders};
use serde::Serialize;
use std::path::PathBuf;

/// The text to print.
pub fn session(command: Session) -> Result<String, Problem> {
    match command {
        Session::List(asked) if asked.json => json(&of_all(&servers(asked.socket.as_ref())?)?),
        Session::List(asked) => list_all(&servers(asked.socket.as_ref())?),
        Session::Show { id, asked } => {
            show(admin::sessions(&one(servers(asked.socket.as_ref())?)?)?, id, asked.json)
        }
    }
}

/// The sockets of the servers that are asked: at least one, whether it answers or not.
pub fn servers(socket: Option<&PathBuf>) -> Result<Vec<PathBuf>, Problem> {
    if let Some(path) = socket {
        return Ok(vec![path.clone()]);
    }
    let first = folders::admin_socket()?;
    let answering = admin::answering(&first);
    Ok(if answering.is_empty() { vec![first] } else { answering })
}

/// The server, if it is clear which is meant.
pub fn one(mut servers: Vec<PathBuf>) -> Result<PathBuf, Problem> {
    if servers.len() > 1 {
        let sockets: Vec<String> = servers.iter().map(|path| path.display().to_string()).collect();
        let what = format!("{} servers answer: {}", servers.len(), sockets.join(", "));
        return Err(Problem::new(what, "name one of them with --socket"));
    }
    Ok(servers.swap_remove(0))
}

/// A session with the admin socket of its server: TSIHs are those of one server.
#[derive(Serialize)]
struct Placed {
    server: PathBuf,
    #[serde(flatten)]
    session: Told,
}

/// The sessions of every server, for programs.
fn of_all(servers: &[PathBuf]) -> Result<Vec<Placed>, Problem> {
    let mut all = Vec::new();
    for server in servers {
        let sessions = admin::sessions(server)?.into_iter();
        all.extend(sessions.map(|session| Placed { server: server.clone(), session }));
    }
    Ok(all)
}

/// The sessions of every server.
fn list_all(servers: &[PathBuf]) -> Result<String, Problem> {
    let mut text = String::new();
    for path in servers {
        let sessions = list(&admin::sessions(path)?);
        match servers.len() {
            1 => text += &sessions,
            _ => text += &format!("[{}]\n{sessions}", path.display()),
        }
    }
    Ok(text)
}

fn list(sessions: &[Told]) -> String {
    if sessions.is_empty() { "no sessions\n".into() } else { admin::table(sessions) }
}

fn show(sessions: Vec<Told>, id: Option<u16>, as_json: bool) -> Result<String, Problem> {
    let Some(id) = id else {
        if as_json {
            return json(&sessions);
        }
        if sessions.is_empty() {
            return Ok(list(&sessions));
        }
        let texts: Vec<String> =
            sessions.iter().map(|one| format!("[session {}]\n{one}", one.tsih)).collect();
        return Ok(texts.join("\n"));
    };
    let Some(one) = sessions.into_iter().find(|one| one.tsih == id) else {
        return Err(Problem::new(
            format!("there is no session {id}"),
            "lunar session list tells which there are",
        )
        .because(Cause::NotFound));
    };
    if as_json { json(&one) } else { Ok(one.to_string()) }
}
