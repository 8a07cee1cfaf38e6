//! `lunar namespace`.

use super::lun::{self, add_next, added, resize};
use super::{Change, client, items, listed, show, source, subsystem, text};
use crate::args::{NamespaceAdd, NamespaceCommand, NamespacePlace, ServerArgs};
use crate::exit::Failure;
use lunar_admin::{Keys, rows};
use lunar_api::client::{Client, ServerAddress};
use lunar_proto::size;
use lunar_server::{Diagnostic, ErrorCode};
use serde_json::{Value, json};

/// The prefix of a medium that is a LUN of a target.
const LUN: &str = "lun:";

/// The resource of the namespaces of a subsystem.
pub(super) fn collection(nqn: &str) -> String {
    format!("{}/namespaces", subsystem::path(nqn))
}

fn path(NamespacePlace { subsystem, nsid }: &NamespacePlace) -> String {
    format!("{}/{nsid}", collection(subsystem))
}

/// The text to print.
pub fn namespace(command: NamespaceCommand) -> Result<String, Failure> {
    match command {
        NamespaceCommand::List { subsystem, server } => list(subsystem, &server),
        NamespaceCommand::Show { place, server } => show(&path(&place), &server),
        NamespaceCommand::Add(args) => add(args),
        NamespaceCommand::Set { place, keys, force, object } => {
            Change::of(&object)?.with_force(force).set(&path(&place), &keys.into_iter().collect())
        }
        NamespaceCommand::Resize { place, size, object } => resize(&path(&place), size, &object),
        NamespaceCommand::Remove { place, force, object } => {
            let change = Change::of(&object)?.with_force(force);
            change.done(&change.remove(&path(&place))?)
        }
    }
}

fn list(nqn: Option<String>, args: &ServerArgs) -> Result<String, Failure> {
    let client = client(args)?;
    let name = |one: Value| one["nqn"].as_str().map(str::to_owned);
    let subsystems = match nqn {
        Some(nqn) => vec![nqn],
        None => items(&client, subsystem::COLLECTION)?.into_iter().filter_map(name).collect(),
    };
    let mut namespaces = Vec::new();
    for nqn in subsystems {
        namespaces.extend(items(&client, &collection(&nqn))?);
    }
    table(&client, namespaces, args.json)
}

/// The text for namespaces. A table shows the backends of their LUNs and disks too.
pub(super) fn table(client: &Client, namespaces: Vec<Value>, as_json: bool) -> Result<String, Failure> {
    let names_other = |one: &Value| ["target", "disk"].iter().any(|key| !one["config"][key].is_null());
    let is_needed = !as_json && namespaces.iter().any(names_other);
    let objects = if is_needed { items(client, "/v1/objects")? } else { Vec::new() };
    let row = |one: &Value| {
        let config = &one["config"];
        let medium = match shared(config) {
            Some((target, lun)) => text(&format!("{LUN}{target}/{lun}").into()),
            None => lun::shown_medium(config),
        };
        [
            text(&one["subsystem"]),
            text(&one["nsid"]),
            backend(config, &objects),
            medium,
            one["capacity_bytes"].as_u64().map_or("-".into(), size::show),
            source(one),
        ]
    };
    let head = ["SUBSYSTEM", ">NSID", "BACKEND", "MEDIUM", ">SIZE", "SOURCE"];
    listed(namespaces, as_json, "no namespaces", head, row)
}

/// The LUN that is a namespace.
fn shared(config: &Value) -> Option<(&str, u64)> {
    Some((config["target"].as_str()?, config["lun"].as_u64()?))
}

/// The backend of a namespace, or that of its LUN or disk.
fn backend(config: &Value, objects: &[Value]) -> String {
    let is_lun = |one: &&Value| {
        one["kind"] == "lun" && one["target"] == config["target"] && one["lun"] == config["lun"]
    };
    let lun = shared(config).and_then(|_| objects.iter().find(is_lun));
    let config = lun.map_or(config, |lun| &lun["config"]);
    let is_disk = |one: &&Value| one["kind"] == "disk" && one["name"] == config["disk"];
    text(&objects.iter().find(is_disk).map_or(config, |disk| &disk["config"])["backend"])
}

fn add(args: NamespaceAdd) -> Result<String, Failure> {
    let change = Change::of(&args.object)?;
    let mut keys = medium(&args, change.client.server())?;
    keys.extend(args.keys);
    if let Some(nsid) = args.nsid {
        let place = NamespacePlace { subsystem: args.subsystem, nsid };
        return change.done(&change.create(&path(&place), &keys)?);
    }
    change.done(&add_next(&change, &collection(&args.subsystem), ("nsid", 1), &keys)?)
}

/// The keys of a new namespace: those of its medium, or the name of its LUN or disk.
fn medium(args: &NamespaceAdd, server: &ServerAddress) -> Result<Keys, Diagnostic> {
    let (text, size) = (args.medium.as_str(), args.size.as_deref());
    let Some(name) = text.strip_prefix(LUN) else { return added(&args.subsystem, text, size, server) };
    let invalid =
        |what: String, hint: &str| Err(Diagnostic::new(what, hint).with_code(ErrorCode::InvalidArgument));
    let place = name.rsplit_once('/').and_then(|(target, lun)| Some((target, lun.parse::<u16>().ok()?)));
    match place {
        _ if size.is_some() => {
            let what = format!("--size has no effect on the LUN {}, which exists", rows::shown(name));
            invalid(what, "remove --size, and grow the LUN with lunar lun resize")
        }
        Some((target, lun)) => {
            Ok(Keys::from_iter([("target".to_owned(), target.into()), ("lun".to_owned(), json!(lun))]))
        }
        None => invalid(
            format!("{} names no LUN", rows::shown(text)),
            "write lun:TARGET/LUN, such as lun:iqn.2026-11.org.example:disks/0",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use std::path::PathBuf;

    fn keys(line: &[&str]) -> Result<Keys, String> {
        let line = [&["lunar", "namespace", "add", "nqn.2026-11.org.example:a"], line].concat();
        match Cli::try_parse_from(line).expect("a command line").command {
            Command::Namespace(NamespaceCommand::Add(args)) => {
                medium(&args, &PathBuf::from("/s").into()).map_err(|e| e.to_string())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn medium_is_a_lun_a_disk_or_its_own() {
        let lun = keys(&["lun:iqn.2026-11.org.example:a/3"]).map(Value::Object);
        assert_eq!(lun, Ok(json!({ "target": "iqn.2026-11.org.example:a", "lun": 3 })));
        assert_eq!(keys(&["disk:data"]).map(Value::Object), Ok(json!({ "disk": "data" })));
        assert_eq!(keys(&["null:1M"]).expect("keys")["backend"], "null");
        for (line, fault) in [
            (&["lun:iqn.a"][..], "lun:iqn.a names no LUN"),
            (&["lun:iqn.a/x"], "lun:iqn.a/x names no LUN"),
            (&["lun:iqn.a/0", "--size", "1M"], "--size has no effect on the LUN iqn.a/0"),
        ] {
            assert!(keys(line).expect_err("a fault").starts_with(fault), "{line:?}");
        }
    }

    #[test]
    fn backend_is_that_of_the_lun_and_of_its_disk() {
        let objects = [
            json!({ "kind": "lun", "target": "iqn.a", "lun": 0, "config": { "backend": "null" } }),
            json!({ "kind": "lun", "target": "iqn.a", "lun": 1, "config": { "disk": "d" } }),
            json!({ "kind": "disk", "name": "d", "config": { "backend": "file" } }),
        ];
        let of = |config: Value| backend(&config, &objects);
        assert_eq!(of(json!({ "target": "iqn.a", "lun": 0 })), "null");
        assert_eq!(of(json!({ "target": "iqn.a", "lun": 1 })), "file");
        assert_eq!(of(json!({ "disk": "d" })), "file");
        assert_eq!(of(json!({ "backend": "memory" })), "memory");
        assert_eq!(of(json!({ "target": "iqn.routed", "lun": 1 })), "-");
    }
}
