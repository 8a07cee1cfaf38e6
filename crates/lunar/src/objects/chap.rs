//! `lunar chap`.

use super::{Change, client, items, listed, nvme_secret, show, source, text};
use crate::args::{ChangeArgs, ChapCommand};
use crate::client::json;
use crate::exit::Failure;
use lunar_admin::{Keys, rows};
use lunar_api::client::{ChangeReport, segment};
use lunar_proto::chap::MAX_SECRET_TEXT_BYTES;
use lunar_server::Diagnostic;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use utoipa::ToSchema;

/// The characters of a random secret. None of them begins hexadecimal notation (0x), and none needs quotation marks.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz123456789._+";

/// Characters of a random secret: 96 bits, as RFC 7143 section 9.2.1 recommends. Some initiators allow no more than 16.
const SECRET_CHARS: usize = 16;

/// The result of a change of a secret for JSON: a random one is shown once.
#[derive(Serialize, ToSchema)]
pub struct UserSecret<'r> {
    #[serde(flatten)]
    report: &'r ChangeReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'r str>,
}

fn path(user: &str) -> String {
    format!("/v1/chap-users/{}", segment(user))
}

/// The text to print.
pub fn chap(command: ChapCommand) -> Result<String, Failure> {
    match command {
        ChapCommand::List(args) => {
            let row = |one: &Value| {
                let config = &one["config"];
                [text(&one["id"]), text(&config["name"]), text(&config["secret_file"]), source(one)]
            };
            let head = ["USER", "NAME", "SECRET FILE", "SOURCE"];
            listed(items(&client(&args)?, "/v1/chap-users")?, args.json, "no CHAP users", head, row)
        }
        ChapCommand::Show { user, server } => show(&path(&user), &server),
        ChapCommand::Add { user, nvme, secret_file, change } => {
            if let Some(owner) = nvme.nvme {
                return nvme_secret::add(&user, owner, &nvme);
            }
            let secret = NewSecret::of(secret_file.as_deref(), random_secret)?;
            let create = |change: &Change<'_>, keys: &Keys| change.create(&path(&user), keys);
            secret.send(&change, create, |secret| client_lines(&user, secret))
        }
        ChapCommand::Set { user, secret_file, change } => {
            let secret = NewSecret::of(secret_file.as_deref(), random_secret)?;
            let merge = |change: &Change<'_>, keys: &Keys| change.merge(&path(&user), keys);
            secret.send(&change, merge, |secret| client_lines(&user, secret))
        }
        ChapCommand::Remove { user, change } => {
            let change = Change::new(&change)?;
            change.done(&change.remove(&path(&user))?)
        }
    }
}

/// The new secret of an object.
pub(super) struct NewSecret {
    text: String,
    /// Whether it is in no file of the user, who must see it.
    is_random: bool,
}

impl NewSecret {
    /// The secret of the file, or a random one.
    pub(super) fn of(
        file: Option<&Path>,
        random: impl FnOnce() -> Result<String, Diagnostic>,
    ) -> Result<NewSecret, Diagnostic> {
        Ok(NewSecret { text: file.map_or_else(random, from_file)?, is_random: file.is_none() })
    }

    /// Sends a change with the secret. `lines` makes the text for the host.
    pub(super) fn send(
        &self,
        args: &ChangeArgs,
        send: impl FnOnce(&Change<'_>, &Keys) -> Result<ChangeReport, Failure>,
        lines: impl FnOnce(&str) -> String,
    ) -> Result<String, Failure> {
        let change = Change::new(args)?;
        let keys = Keys::from_iter([("secret".to_owned(), self.text.as_str().into())]);
        let report = send(&change, &keys)?;
        let shown = (self.is_random && !args.dry_run).then_some(self.text.as_str());
        let text = change.done(&report)?;
        if args.server.json {
            return json(&UserSecret { report: &report, secret: shown });
        }
        Ok(text + &shown.map_or(String::new(), lines))
    }
}

/// The lines for the configuration of the client.
fn client_lines(user: &str, secret: &str) -> String {
    format!(
        "\nThe secret is shown only now. Open-iscsi takes it in /etc/iscsi/iscsid.conf:\n\n\
         node.session.auth.authmethod = CHAP\n\
         node.session.auth.username = {}\n\
         node.session.auth.password = {secret}\n",
        rows::shown(user)
    )
}

/// The secret of a file, which only this user may read.
fn from_file(path: &Path) -> Result<String, Diagnostic> {
    let bytes = lunar_runtime::host::secret_file(path, MAX_SECRET_TEXT_BYTES, None)
        .map_err(|refused| Diagnostic::new(refused.what, refused.hint))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| {
        let what = format!("the secret {} is not UTF-8", path.display());
        Diagnostic::new(what, "write it as 0x and hexadecimal digits")
    })?;
    Ok(text.to_owned())
}

fn random_secret() -> Result<String, Diagnostic> {
    let mut bytes = [0; SECRET_CHARS];
    getrandom::fill(&mut bytes).map_err(|e| no_random_number(&e))?;
    Ok(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 64)])).collect())
}

/// The error of a system without random numbers.
pub(super) fn no_random_number(e: &dyn std::fmt::Display) -> Diagnostic {
    Diagnostic::new(format!("the system has no random numbers: {e}"), "check /dev/urandom")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_secrets_differ_and_are_no_hexadecimal() {
        let secrets: std::collections::BTreeSet<String> =
            (0..100).map(|_| random_secret().unwrap()).collect();
        assert_eq!(secrets.len(), 100);
        assert!(secrets.iter().all(|secret| secret.len() == SECRET_CHARS && !secret.contains('0')));
    }

    #[test]
    fn lines_of_the_client_name_user_and_secret() {
        let lines = client_lines("al\u{1b}ice", "hidden");
        assert!(lines.ends_with("username = al\\u{1b}ice\nnode.session.auth.password = hidden\n"), "{lines}");
    }
}
