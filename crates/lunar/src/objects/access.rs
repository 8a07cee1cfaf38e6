//! `lunar access`.

use super::{Change, client, items, listed, show, source, target, text};
use crate::args::{AccessCommand, EntryArgs};
use crate::exit::Failure;
use lunar_admin::Keys;
use serde_json::{Value, json};

/// The resource of the access entries of a target.
pub(super) fn collection(target: &str) -> String {
    format!("{}/access", target::path(target))
}

/// The text to print.
pub fn access(command: AccessCommand) -> Result<String, Failure> {
    match command {
        AccessCommand::List { target, server } => {
            table(items(&client(&server)?, &collection(&target))?, server.json)
        }
        AccessCommand::Show { target, index, server } => show(&path(&target, index), &server),
        AccessCommand::Add(args) => {
            let change = Change::of(&args.object)?;
            let at = args.at.map_or(String::new(), |at| format!("&at={at}"));
            let path = change.path(&collection(&args.target)) + &at;
            change.done(&change.client.post(&path, &entry(&args.entry))?)
        }
        AccessCommand::Set(args) => {
            let mut keys = entry(&args.entry);
            keys.extend(args.keys);
            Change::of(&args.object)?.set_this(&path(&args.target, args.index), &keys)
        }
        AccessCommand::Remove { target, index, force, object } => {
            let change = Change::of(&object)?.with_force(force);
            change.done(&change.remove(&path(&target, index))?)
        }
    }
}

fn path(target: &str, index: usize) -> String {
    format!("{}/{index}", collection(target))
}

/// The text for access entries.
pub(super) fn table(entries: Vec<Value>, as_json: bool) -> Result<String, Failure> {
    let row = |one: &Value| {
        let config = &one["config"];
        let or_all = |value: &Value| if value.is_null() { "all".into() } else { text(value) };
        let [initiators, luns] = ["initiators", "luns"].map(|key| or_all(&config[key]));
        let networks = networks(config);
        [text(&one["index"]), initiators, networks, text(&config["chap"]), luns, right(config), source(one)]
    };
    let head = [">INDEX", "INITIATORS", "NETWORKS", "CHAP", "LUNS", "ACCESS", "SOURCE"];
    listed(entries, as_json, "no access entries: all initiators have access", head, row)
}

/// The networks of an entry, and the portals if it has some.
fn networks(config: &Value) -> String {
    let networks = if config["networks"].is_null() { "all".into() } else { text(&config["networks"]) };
    match &config["portals"] {
        Value::Null => networks,
        portals => format!("{networks} at {}", text(portals)),
    }
}

/// The right of an entry in words.
fn right(config: &Value) -> String {
    match (&config["deny"], &config["read_only"]) {
        (Value::Bool(true), _) => "denied".into(),
        (_, Value::Bool(true)) => "read-only".into(),
        (_, luns @ Value::Array(_)) => format!("read-only: {}", text(luns)),
        _ => "read-write".into(),
    }
}

fn entry(args: &EntryArgs) -> Keys {
    let list = |list: &[String]| if list.is_empty() { Value::Null } else { json!(list) };
    let flag = |flag: bool| if flag { Value::Bool(true) } else { Value::Null };
    let keys = [
        ("initiators", list(&args.initiators)),
        ("networks", list(&args.networks)),
        ("portals", list(&args.portals)),
        ("chap", list(&args.chap)),
        ("mutual", json!(args.mutual)),
        ("luns", json!(args.luns)),
        ("read_only", flag(args.read_only)),
        ("deny", flag(args.deny)),
    ];
    let given = keys.into_iter().filter(|(_, value)| !value.is_null());
    given.map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parsed(line: &[&str]) -> Option<Keys> {
        let line = [&["lunar", "access", "add", "iqn.2026-11.org.example:a"], line].concat();
        match Cli::try_parse_from(line).ok()?.command {
            Command::Access(AccessCommand::Add(args)) => Some(entry(&args.entry)),
            _ => None,
        }
    }

    #[test]
    fn entry_has_only_the_keys_of_given_options() {
        let keys = |line: &[&str]| parsed(line).map(Value::Object);
        assert_eq!(keys(&[]), Some(json!({})));
        let line = ["--initiator", "iqn.a", "--initiator", "iqn.b", "--luns", "0=2", "--read-only"];
        let expected = json!({ "initiators": ["iqn.a", "iqn.b"], "luns": { "0": 2 }, "read_only": true });
        assert_eq!(keys(&line), Some(expected));
        assert_eq!(
            keys(&["--network", "::/0", "--portal", "192.0.2.1", "--deny"]),
            Some(json!({ "networks": ["::/0"], "portals": ["192.0.2.1"], "deny": true }))
        );
        assert_eq!(keys(&["--deny", "--read-only"]), None);
    }

    #[test]
    fn portals_of_an_entry_follow_its_networks() {
        assert_eq!(networks(&json!({})), "all");
        let both = json!({ "networks": ["192.0.2.0/24"], "portals": ["198.51.100.1", "::1"] });
        assert_eq!(networks(&both), "192.0.2.0/24 at 198.51.100.1,::1");
    }

    #[test]
    fn right_of_an_entry_in_words() {
        assert_eq!(right(&json!({ "deny": true })), "denied");
        assert_eq!(right(&json!({ "read_only": [1, 2] })), "read-only: 1,2");
        assert_eq!(right(&json!({})), "read-write");
    }
}
