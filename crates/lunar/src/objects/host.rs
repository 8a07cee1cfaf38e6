//! `lunar host`: the hosts that an NVMe subsystem admits with a secret.

use super::chap::{NewSecret, no_random_number};
use super::{Change, client, items, listed, show, source, subsystem, text};
use crate::args::{ChangeArgs, HostCommand, HostPlace};
use crate::exit::Failure;
use lunar_admin::{Keys, rows};
use lunar_api::client::{ChangeReport, segment};
use lunar_block::shell_word;
use lunar_proto::nvme::auth::DhChapSecret;
use lunar_server::{Diagnostic, ErrorCode};
use serde_json::Value;
use std::path::Path;

/// The resource of the hosts of a subsystem.
pub(super) fn collection(nqn: &str) -> String {
    format!("{}/hosts", subsystem::path(nqn))
}

fn path(HostPlace { subsystem, host }: &HostPlace) -> String {
    format!("{}/{}", collection(subsystem), segment(host))
}

/// The text to print.
pub fn host(command: HostCommand) -> Result<String, Failure> {
    match command {
        HostCommand::List { subsystem, server } => {
            table(items(&client(&server)?, &collection(&subsystem))?, server.json)
        }
        HostCommand::Show { place, server } => show(&path(&place), &server),
        HostCommand::Add { place, secret_file, tls_key_file, change } => {
            let create = |change: &Change<'_>, keys: &Keys| change.create(&path(&place), keys);
            send(&place, secret_file.as_deref(), tls_key_file, &change, create)
        }
        HostCommand::Set { place, secret_file, tls_key_file, change } => {
            let merge = |change: &Change<'_>, keys: &Keys| change.merge(&path(&place), keys);
            send(&place, secret_file.as_deref(), tls_key_file, &change, merge)
        }
        HostCommand::Remove { place, force, change } => {
            let change = Change::new(&change)?.with_force(force);
            change.done(&change.remove(&path(&place))?)
        }
    }
}

/// Sends a change with a secret, with the file of a key for TLS, or with both. Without any option, the secret is random.
fn send(
    place: &HostPlace,
    secret_file: Option<&Path>,
    tls_key_file: Option<String>,
    args: &ChangeArgs,
    send: impl FnOnce(&Change<'_>, &Keys) -> Result<ChangeReport, Failure>,
) -> Result<String, Failure> {
    let tls = tls_key_file.map(|file| ("tls_key_file".to_owned(), file.into()));
    if tls.is_some() && secret_file.is_none() {
        let change = Change::new(args)?;
        return change.done(&send(&change, &Keys::from_iter(tls))?);
    }
    let with_tls =
        |change: &Change<'_>, keys: &Keys| send(change, &keys.clone().into_iter().chain(tls).collect());
    NewSecret::of(secret_file, random_secret).map_err(|fault| missing(fault, place, secret_file))?.send(
        args,
        with_tls,
        |text| lines(place, text),
    )
}

/// The error of a file that is not there: that of a CHAP user would have another form.
fn missing(fault: Diagnostic, place: &HostPlace, file: Option<&Path>) -> Diagnostic {
    let Some(file) = file.filter(|file| !file.exists()) else { return fault };
    let (host, file) = (shell_word(place.host.as_ref()), shell_word(file));
    let hint = format!("make it: lunar chap add --nvme {host} --output {file}");
    Diagnostic::new(fault.what, hint).with_code(ErrorCode::NotFound)
}

/// The text for hosts.
pub(super) fn table(hosts: Vec<Value>, as_json: bool) -> Result<String, Failure> {
    let row = |one: &Value| {
        let config = &one["config"];
        [text(&one["nqn"]), text(&config["secret_file"]), text(&config["tls_key_file"]), source(one)]
    };
    let none = "no hosts with secrets: allowed_hosts of the subsystem decides";
    listed(hosts, as_json, none, ["HOST", "SECRET FILE", "TLS KEY FILE", "SOURCE"], row)
}

fn random_secret() -> Result<String, Diagnostic> {
    let secret = DhChapSecret::generate(None).map_err(|e| no_random_number(&e))?;
    Ok(secret.to_text().to_string())
}

/// The command of the host.
fn lines(HostPlace { subsystem, host }: &HostPlace, secret: &str) -> String {
    let [subsystem, host] = [subsystem, host].map(|name| rows::shown(name));
    format!(
        "\nThe secret is shown only now. The host connects with it:\n\n\
         nvme connect -t tcp -a ADDR -s 4420 -n {subsystem} -q {host} -S \"{secret}\"\n"
    )
}
