//! `lunar lun`.

use super::{Change, client, items, listed, shown, source, target, text};
use crate::args::{LunAdd, LunCommand, LunPlace, ServerArgs};
use crate::client::json;
use crate::router::path_on;
use lunar_admin::Keys;
use lunar_api::client::{ChangeReport, ServerAddress};
use lunar_proto::size;
use lunar_server::{Diagnostic, ErrorCode, lun_argument, remote_lun_argument};
use serde_json::{Value, json};

/// Attempts to add a LUN at the lowest free number, which another administrator may take first.
const TRIES: usize = 64;

/// The resource of the LUNs of a target.
pub(super) fn collection(target: &str) -> String {
    format!("{}/luns", target::path(target))
}

fn path(LunPlace { target, lun }: &LunPlace) -> String {
    format!("{}/{lun}", collection(target))
}

/// The text to print.
pub fn lun(command: LunCommand) -> Result<String, Diagnostic> {
    match command {
        LunCommand::List { target, server } => list(target, &server),
        LunCommand::Show { place, server } => {
            let one: Value = client(&server)?.get(&path(&place))?;
            if server.json { json(&one) } else { Ok(shown(&one)) }
        }
        LunCommand::Add(args) => add(args),
        LunCommand::Resize { place, size, object } => {
            let change = Change::of(&object)?;
            let one: Value = change.client.get(&path(&place))?;
            // It stays what it is.
            let transient = change.transient || one["source"]["origin"] == "transient";
            let change = Change { transient, ..change };
            let keys = Keys::from_iter([("size".to_owned(), size.into())]);
            change.done(&change.patch(&path(&place), &keys)?)
        }
        LunCommand::Remove { place, force, object } => {
            let change = Change::of(&object)?.with_force(force);
            change.done(&change.remove(&path(&place))?)
        }
    }
}

fn list(target: Option<String>, args: &ServerArgs) -> Result<String, Diagnostic> {
    let client = client(args)?;
    let name = |one: Value| one["name"].as_str().map(str::to_owned);
    let targets = match target {
        Some(target) => vec![target],
        None => items(&client, "/v1/targets")?.into_iter().filter_map(name).collect(),
    };
    let mut luns = Vec::new();
    for target in targets {
        luns.extend(items(&client, &collection(&target))?);
    }
    table(luns, args.json)
}

/// The text for LUNs.
pub(super) fn table(luns: Vec<Value>, as_json: bool) -> Result<String, Diagnostic> {
    let row = |one: &Value| {
        let config = &one["config"];
        let medium = ["path", "disk"].map(|key| &config[key]).into_iter().find(|value| !value.is_null());
        let (target, lun) = (text(&one["target"]), text(&one["lun"]));
        [
            target,
            lun,
            text(&config["backend"]),
            medium.map_or("-".into(), text),
            one["capacity_bytes"].as_u64().map_or("-".into(), size::show),
            source(one),
        ]
    };
    listed(luns, as_json, "no LUNs", ["TARGET", ">LUN", "BACKEND", "MEDIUM", ">SIZE", "SOURCE"], row)
}

fn add(args: LunAdd) -> Result<String, Diagnostic> {
    let change = Change::of(&args.object)?;
    let mut keys = medium(&args, change.client.server())?;
    keys.extend(args.keys);
    if let Some(lun) = args.lun {
        return change.done(&change.create(&path(&LunPlace { target: args.target, lun }), &keys)?);
    }
    change.done(&add_next(&change, &args.target, &keys)?)
}

/// Adds a LUN at the lowest free number.
fn add_next(change: &Change<'_>, target: &str, keys: &Keys) -> Result<ChangeReport, Diagnostic> {
    for _ in 1..TRIES {
        match change.create(&next(change, target)?, keys) {
            Err(problem) if problem.code == ErrorCode::AlreadyExists => {}
            ended => return ended,
        }
    }
    change.create(&next(change, target)?, keys)
}

/// The resource of the lowest free LUN.
fn next(change: &Change<'_>, target: &str) -> Result<String, Diagnostic> {
    let luns = items(&change.client, &collection(target))?;
    let lun = lowest_free(&luns.iter().filter_map(|one| one["lun"].as_u64()).collect::<Vec<_>>());
    Ok(format!("{}/{lun}", collection(target)))
}

fn lowest_free(used: &[u64]) -> u64 {
    (0..).find(|lun| !used.contains(lun)).unwrap_or_default()
}

/// The keys of the medium. The serial number does not derive from the LUN: another medium at the number of a former one
/// is another logical unit.
fn medium(args: &LunAdd, server: &ServerAddress) -> Result<Keys, Diagnostic> {
    let of_argument = if server.socket().is_some() { lun_argument } else { remote_lun_argument };
    let lun = of_argument(&args.target, &args.medium, args.size.as_deref())?;
    let mut keys = Keys::new();
    let mut set = |key: &str, value: Value| _ = keys.insert(key.to_owned(), value);
    if let Some(kind) = lun.source.kind() {
        set("backend", kind.name().into());
    }
    if let Some(path) = lun.source.path() {
        set("path", path_on(server, path)?.into());
    }
    if let Some(size) = lun.source.size() {
        set("size", size.into());
    }
    if lun.removable {
        set("kind", json!("cdrom"));
    }
    set("serial", lun.serial.map_or_else(random_serial, Ok)?.into());
    Ok(keys)
}

fn random_serial() -> Result<String, Diagnostic> {
    let random = getrandom::u64();
    random.map(|random| format!("{random:016x}")).map_err(|e| super::chap::no_random(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use std::path::PathBuf;

    fn keys(line: &[&str]) -> Keys {
        let line = [&["lunar", "lun", "add", "iqn.2026-11.org.example:a"], line].concat();
        match Cli::try_parse_from(line).expect("a command line").command {
            Command::Lun(LunCommand::Add(args)) => {
                medium(&args, &PathBuf::from("/s").into()).expect("a medium")
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lowest_free_lun_fills_a_gap() {
        assert_eq!([lowest_free(&[]), lowest_free(&[0, 1]), lowest_free(&[0, 2])], [0, 2, 1]);
    }

    #[test]
    fn medium_has_the_forms_of_serve() {
        let null = keys(&["null:1M"]);
        assert_eq!((&null["backend"], &null["size"]), (&json!("null"), &json!(1 << 20)));
        assert_ne!(keys(&["null:1M"])["serial"], null["serial"]);
        let file = keys(&["missing.img", "--size", "1M"]);
        assert_eq!((&file["backend"], &file["size"]), (&json!("file"), &json!(1 << 20)));
        assert!(file["path"].as_str().is_some_and(|path| path.starts_with('/')), "{file:?}");
        assert_eq!(keys(&["missing.img", "--size", "2M"])["serial"], file["serial"]);
    }
}
