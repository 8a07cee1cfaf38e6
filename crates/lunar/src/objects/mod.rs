//! The commands that show and change the objects of a running server. They are clients of its API and of nothing else.

mod access;
pub mod chap;
mod disk;
mod host;
pub mod keys;
mod lun;
mod namespace;
mod nvme_secret;
mod portal;
pub mod server;
pub mod subsystem;
pub mod target;

pub use access::access;
pub use chap::chap;
pub use disk::disk;
pub use host::host;
pub use lun::lun;
pub use namespace::namespace;
pub use portal::portal;
pub use server::{end_session, outcome, reload, status, stop};
pub use subsystem::subsystem;
pub use target::target;

use crate::args::{ChangeArgs, ObjectArgs, ServerArgs};
use crate::client::{json, json_list};
use crate::exit::Failure;
use crate::output;
use lunar_admin::{Difference, Keys, rows};

use lunar_api::client::{ChangeReport, Client, Method, SIZE_KEYS, Tagged};
use lunar_proto::size;
use serde_json::Value;

/// The client of the chosen server.
fn client(args: &ServerArgs) -> Result<Client, Failure> {
    Ok(Client::new(&args.choice.one()?, args.timeout))
}

/// A change of an object.
struct Change<'a> {
    client: Client,
    args: &'a ChangeArgs,
    transient: bool,
    force: bool,
}

impl<'a> Change<'a> {
    fn new(args: &'a ChangeArgs) -> Result<Change<'a>, Failure> {
        Ok(Change { client: client(&args.server)?, args, transient: false, force: false })
    }

    fn of(args: &'a ObjectArgs) -> Result<Change<'a>, Failure> {
        Ok(Change { transient: args.transient, ..Change::new(&args.change)? })
    }

    fn with_force(self, force: bool) -> Change<'a> {
        Change { force, ..self }
    }

    /// The path of an object with the options of the change.
    fn path(&self, path: &str) -> String {
        let Change { args: ChangeArgs { dry_run, .. }, transient, force, .. } = self;
        format!("{path}?dry_run={dry_run}&transient={transient}&force={force}")
    }

    /// Creates an object, which must not exist.
    fn create(&self, path: &str, keys: &Keys) -> Result<ChangeReport, Failure> {
        Ok(self.client.create(&self.path(path), keys)?)
    }

    /// Changes some keys of an object, and leaves those alone that other administrators change meanwhile. A transient object
    /// stays transient.
    fn set(mut self, path: &str, keys: &Keys) -> Result<String, Failure> {
        self.read(path)?;
        self.done(&self.merge(path, keys)?)
    }

    /// As [`Change::set`], in the version of the moment: after another change, the path may be that of another object.
    fn set_this(mut self, path: &str, keys: &Keys) -> Result<String, Failure> {
        let version = self.read(path)?;
        let tagged = self.client.send(Method::PATCH, &self.path(path), Some(&version), keys)?;
        self.done(&tagged.value)
    }

    /// Reads an object that stays transient if it is. Returns its version.
    fn read(&mut self, path: &str) -> Result<String, Failure> {
        let Tagged { version, value } = self.client.get_tagged::<Value>(path)?;
        self.transient |= value["source"]["origin"] == "transient";
        Ok(version)
    }

    /// Changes some keys of an object, whatever its version.
    fn merge(&self, path: &str, keys: &Keys) -> Result<ChangeReport, Failure> {
        Ok(self.client.merge(&self.path(path), keys)?)
    }

    /// Removes an object in the version of the moment, so that no change of another administrator is lost.
    fn remove(&self, path: &str) -> Result<ChangeReport, Failure> {
        let Tagged { version, value: _ } = self.client.get_tagged::<Value>(path)?;
        let tagged = self.client.send(Method::DELETE, &self.path(path), Some(&version), &Value::Null)?;
        Ok(tagged.value)
    }

    /// Executes an action of an existing object, in the version of the moment.
    fn act(&self, path: &str, action: &str, body: Value) -> Result<ChangeReport, Failure> {
        let Tagged { version, value: _ } = self.client.get_tagged::<Value>(path)?;
        let path = self.path(&format!("{path}/{action}"));
        Ok(self.client.send(Method::POST, &path, Some(&version), &body)?.value)
    }

    /// The text for a change that succeeded. Its warnings go to stderr.
    fn done(&self, report: &ChangeReport) -> Result<String, Failure> {
        changed(report, self.args.server.json)
    }
}

/// The differences of a change, and whether they are in force.
fn changed(report: &ChangeReport, as_json: bool) -> Result<String, Failure> {
    warn(report);
    if as_json {
        return json(report);
    }
    let lines: String = report.changes.iter().map(|change| format!("{change}\n")).collect();
    let needs_restart = |change: &Difference| change.needs_restart;
    let end = match (report.dry_run, report.changes.iter().any(needs_restart)) {
        (true, _) => "dry run: nothing was changed",
        (false, true) => "saved; restart the server to apply the changes that need it",
        (false, false) => "applied",
    };
    let text = format!("{lines}{end}\n");
    Ok(if report.dry_run { text } else { output::success(text) })
}

/// Prints the warnings of a change.
pub fn warn(report: &ChangeReport) {
    report
        .warnings
        .iter()
        .for_each(|line| output::stderr_line(format_args!("warning: {}", rows::shown(line))));
}

/// The text for an object of a server.
fn show(path: &str, args: &ServerArgs) -> Result<String, Failure> {
    let one: Value = client(args)?.get(path)?;
    if args.json { json(&one) } else { Ok(shown(&one)) }
}

/// Objects of one kind.
fn items(client: &Client, collection: &str) -> Result<Vec<Value>, Failure> {
    let mut list: Value = client.get(collection)?;
    Ok(list.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default())
}

/// The text for objects, in the form of the API or as a table.
fn listed<const N: usize>(
    objects: Vec<Value>,
    as_json: bool,
    none: &str,
    head: [&str; N],
    row: impl Fn(&Value) -> [String; N],
) -> Result<String, Failure> {
    match as_json {
        true => json_list(&objects),
        false if objects.is_empty() => Ok(format!("{none}\n")),
        false => Ok(rows::table(head, objects.iter().map(row))),
    }
}

/// An object with its keys, one a line.
fn shown(object: &Value) -> String {
    let config = object["config"].as_object().into_iter().flatten();
    let identity = object.as_object().into_iter().flatten();
    let identity = identity.filter(|(key, _)| !matches!(key.as_str(), "config" | "source"));
    let lines = identity.chain(config).map(|(key, value)| [key.clone(), keyed(key, value)]);
    let lines: Vec<[String; 2]> = lines.chain([["source".into(), source(object)]]).collect();
    rows::lines(&lines)
}

/// The value of a key as text. The API has sizes in bytes.
fn keyed(key: &str, value: &Value) -> String {
    value.as_u64().filter(|_| SIZE_KEYS.contains(&key)).map_or_else(|| text(value), size::show)
}

/// A value as text, without control characters.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => rows::shown(text),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        other => rows::shown(&other.to_string()),
    }
}

/// The place of an object: its file and line, or `command line`, or `api` or `transient` if the API made it.
fn source(object: &Value) -> String {
    let source = &object["source"];
    match source["origin"].as_str() {
        Some("file") | None => format!("{}:{}", text(&source["file"]), source["line"]),
        Some(origin) => origin.replace('_', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_of_a_change_says_whether_it_is_in_force() {
        let report = |dry_run, needs_restart| {
            let change = lunar_admin::Change::Removed;
            let changes = vec![Difference { place: vec!["a".into()], change, needs_restart }];
            changed(&ChangeReport { version: "1".into(), changes, warnings: Vec::new(), dry_run }, false)
                .unwrap()
        };
        assert_eq!(report(false, false), "a: removed\napplied\n");
        assert_eq!(report(true, false), "a: removed\ndry run: nothing was changed\n");
        let restart =
            "a: removed (needs a restart)\nsaved; restart the server to apply the changes that need it\n";
        assert_eq!(report(false, true), restart);
    }

    #[test]
    fn object_shows_its_keys_and_its_place() {
        let source = json!({ "origin": "file", "file": "/etc/lunar.toml", "line": 3 });
        let config = json!({ "path": "a\u{1b}", "size": 65536 });
        let lun = json!({ "target": "iqn.a", "lun": 1, "config": config, "source": source });
        let text = shown(&lun);
        for line in ["size    64 KiB\n", "lun     1\n", "path    a\\u{1b}\n", "source  /etc/lunar.toml:3\n"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
