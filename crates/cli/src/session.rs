//! `lunar session`: what a running server tells of its sessions.

use crate::args::{Asked, Session};
use crate::client::json;
use control::admin::{self, Session as Told};
use control::{Problem, folders};

/// The text to print.
pub fn session(command: Session) -> Result<String, Problem> {
    match command {
        Session::List(asked) => {
            let sessions = ask(&asked)?;
            if asked.json { json(&sessions) } else { Ok(list(&sessions)) }
        }
        Session::Show { id, asked } => show(ask(&asked)?, id, asked.json),
    }
}

fn ask(asked: &Asked) -> Result<Vec<Told>, Problem> {
    let path = match &asked.socket {
        Some(path) => path.clone(),
        None => folders::admin_socket()?,
    };
    admin::sessions(&path)
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
        ));
    };
    if as_json { json(&one) } else { Ok(one.to_string()) }
}
