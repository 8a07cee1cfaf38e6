//! `lunar host`: the hosts that an NVMe subsystem admits with a secret.

use super::chap::{NewSecret, no_random_number};
use super::{Change, client, items, listed, show, source, subsystem, text};
use crate::args::{HostCommand, HostPlace};
use crate::exit::Failure;
use lunar_admin::rows;
use lunar_api::client::segment;
use lunar_proto::nvme::auth::DhChapSecret;
use lunar_server::Diagnostic;
use serde_json::Value;

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
        HostCommand::Add { place, secret_file, change } => {
            let secret = NewSecret::of(secret_file.as_deref(), random_secret)?;
            secret.send(
                &change,
                |change, keys| change.create(&path(&place), keys),
                |text| lines(&place, text),
            )
        }
        HostCommand::Set { place, secret_file, change } => {
            let secret = NewSecret::of(secret_file.as_deref(), random_secret)?;
            secret.send(&change, |change, keys| change.merge(&path(&place), keys), |text| lines(&place, text))
        }
        HostCommand::Remove { place, force, change } => {
            let change = Change::new(&change)?.with_force(force);
            change.done(&change.remove(&path(&place))?)
        }
    }
}

/// The text for hosts.
pub(super) fn table(hosts: Vec<Value>, as_json: bool) -> Result<String, Failure> {
    let row = |one: &Value| [text(&one["nqn"]), text(&one["config"]["secret_file"]), source(one)];
    let none = "no hosts with secrets: allowed_hosts of the subsystem decides";
    listed(hosts, as_json, none, ["HOST", "SECRET FILE", "SOURCE"], row)
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
