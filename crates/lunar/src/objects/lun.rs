//! `lunar lun`.

use super::{Change, client, disk, items, listed, show, source, target, text};
use crate::args::{LunAdd, LunCommand, LunPlace, ObjectArgs, ServerArgs};
use crate::exit::Failure;
use crate::router::path_on;
use lunar_admin::{Keys, rows};
use lunar_api::client::{ChangeReport, Client, ServerAddress};
use lunar_block::RbdLocation;
use lunar_proto::size;
use lunar_server::{Diagnostic, ErrorCode, lun_argument, remote_lun_argument};
use serde_json::{Value, json};
use std::path::Path;

/// Attempts to add an object at the lowest free number, which another administrator may take first.
const TRIES: usize = 64;

/// The prefix of a medium that is a disk of the server.
const DISK: &str = "disk:";

/// The resource of the LUNs of a target.
pub(super) fn collection(target: &str) -> String {
    format!("{}/luns", target::path(target))
}

fn path(LunPlace { target, lun }: &LunPlace) -> String {
    format!("{}/{lun}", collection(target))
}

/// The text to print.
pub fn lun(command: LunCommand) -> Result<String, Failure> {
    match command {
        LunCommand::List { target, server } => list(target, &server),
        LunCommand::Show { place, server } => show(&path(&place), &server),
        LunCommand::Add(args) => add(args),
        LunCommand::Set { place, keys, force, object } => {
            Change::of(&object)?.with_force(force).set(&path(&place), &keys.into_iter().collect())
        }
        LunCommand::Resize { place, size, object } => resize(&path(&place), size, &object),
        LunCommand::Move { place, new_target, new_lun, force, object } => {
            let change = Change::of(&object)?.with_force(force);
            let one: Value = change.client.get(&path(&place))?;
            let transient = change.transient || is_transient(&one);
            let to = json!({ "target": new_target, "lun": new_lun });
            let change = Change { transient, ..change };
            change.done(&change.act(&path(&place), "move", to)?)
        }
        LunCommand::Remove { place, force, object } => {
            let change = Change::of(&object)?.with_force(force);
            change.done(&change.remove(&path(&place))?)
        }
    }
}

/// Grows the medium of a LUN or namespace.
pub(super) fn resize(path: &str, size: String, args: &ObjectArgs) -> Result<String, Failure> {
    let change = Change::of(args)?;
    let path = owner_of_medium(&change.client, path)?;
    change.set(&path, &Keys::from_iter([("size".to_owned(), size.into())]))
}

/// The resource of the object whose medium a LUN or namespace shows.
fn owner_of_medium(client: &Client, path: &str) -> Result<String, Failure> {
    let one: Value = client.get(path)?;
    let config = &one["config"];
    match (config["disk"].as_str(), config["target"].as_str(), &config["lun"]) {
        (Some(name), ..) => Ok(disk::path(name)),
        (None, Some(target), lun) => owner_of_medium(client, &format!("{}/{lun}", collection(target))),
        _ => Ok(path.to_owned()),
    }
}

/// Whether a change of an object must be transient too.
fn is_transient(object: &Value) -> bool {
    object["source"]["origin"] == "transient"
}

fn list(target: Option<String>, args: &ServerArgs) -> Result<String, Failure> {
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
    table(&client, luns, args.json)
}

/// The text for LUNs. A table shows the backends of their disks too.
pub(super) fn table(client: &Client, luns: Vec<Value>, as_json: bool) -> Result<String, Failure> {
    let has_disk = !as_json && luns.iter().any(|one| !one["config"]["disk"].is_null());
    let disks = if has_disk { items(client, "/v1/disks")? } else { Vec::new() };
    let row = |one: &Value| {
        let config = &one["config"];
        let disk = disks.iter().find(|disk| disk["name"] == config["disk"]);
        let (target, lun) = (text(&one["target"]), text(&one["lun"]));
        [
            target,
            lun,
            text(&disk.map_or(config, |disk| &disk["config"])["backend"]),
            shown_medium(config),
            one["capacity_bytes"].as_u64().map_or("-".into(), size::show),
            source(one),
        ]
    };
    listed(luns, as_json, "no LUNs", ["TARGET", ">LUN", "BACKEND", "MEDIUM", ">SIZE", "SOURCE"], row)
}

fn add(args: LunAdd) -> Result<String, Failure> {
    let change = Change::of(&args.object)?;
    let mut keys = added(&args.target, &args.medium, args.size.as_deref(), change.client.server())?;
    keys.extend(args.keys);
    if let Some(lun) = args.lun {
        return change.done(&change.create(&path(&LunPlace { target: args.target, lun }), &keys)?);
    }
    change.done(&add_next(&change, &collection(&args.target), ("lun", 0), &keys)?)
}

/// Adds an object at the lowest free number. `key` has its number, and `first` is the lowest one.
pub(super) fn add_next(
    change: &Change<'_>,
    collection: &str,
    (key, first): (&str, u64),
    keys: &Keys,
) -> Result<ChangeReport, Failure> {
    let free = || -> Result<String, Failure> {
        let used: Vec<u64> =
            items(&change.client, collection)?.iter().filter_map(|one| one[key].as_u64()).collect();
        Ok(format!("{collection}/{}", lowest_free(first, &used)))
    };
    for _ in 1..TRIES {
        match change.create(&free()?, keys) {
            Err(failure) if failure.code() == ErrorCode::AlreadyExists => {}
            ended => return ended,
        }
    }
    change.create(&free()?, keys)
}

/// The keys of an image of RBD.
fn image_keys(
    image: &RbdLocation,
    server: &ServerAddress,
    set: &mut impl FnMut(&str, Value),
) -> Result<(), Diagnostic> {
    let names =
        [("pool", Some(&image.pool)), ("image", Some(&image.image)), ("snapshot", image.snapshot.as_ref())];
    let rest = [
        ("namespace", Some(&image.namespace)),
        ("user", image.user.as_ref()),
        ("cluster", image.cluster.as_ref()),
    ];
    for (key, name) in names.into_iter().chain(rest) {
        name.filter(|name| !name.is_empty()).into_iter().for_each(|name| set(key, name.as_str().into()));
    }
    for (key, file) in [("ceph_conf", &image.conf), ("keyring", &image.keyring)] {
        if let Some(file) = file {
            set(key, path_on(server, file)?.into());
        }
    }
    Ok(())
}

/// The medium of a LUN in a table: its disk, its image or its path.
pub(super) fn shown_medium(config: &Value) -> String {
    match (config["disk"].as_str(), config["image"].as_str()) {
        (Some(name), _) => text(&format!("{DISK}{name}").into()),
        (None, Some(image)) => {
            let [pool, namespace] =
                ["pool", "namespace"].map(|key| config[key].as_str().unwrap_or_default().to_owned());
            let image = RbdLocation { pool, namespace, image: image.into(), ..RbdLocation::default() };
            text(&image.to_string().into())
        }
        (None, None) => text(&config["path"]),
    }
}

fn lowest_free(first: u64, used: &[u64]) -> u64 {
    (first..).find(|lun| !used.contains(lun)).unwrap_or_default()
}

/// The keys of a new LUN or namespace of `owner`: those of its medium, or the name of its disk.
pub(super) fn added(
    owner: &str,
    text: &str,
    size: Option<&str>,
    server: &ServerAddress,
) -> Result<Keys, Diagnostic> {
    let invalid =
        |what: String, hint: String| Err(Diagnostic::new(what, hint).with_code(ErrorCode::InvalidArgument));
    match (text.strip_prefix(DISK), text.strip_prefix("disk=")) {
        (Some(name), _) if size.is_some() => {
            let what = format!("--size has no effect on the disk {}, which exists", rows::shown(name));
            invalid(what, "remove --size, and grow the disk with lunar lun resize".into())
        }
        (Some(name), _) => Ok(Keys::from_iter([("disk".to_owned(), name.into())])),
        (_, Some(name)) if !Path::new(text).exists() => {
            let name = rows::shown(name);
            invalid(format!("disk={name} is a key, and no medium"), format!("write {DISK}{name}"))
        }
        _ => medium(owner, text, size, server),
    }
}

/// The keys of a medium of `owner`, a target, a subsystem or `disk`. The serial number does not derive from the LUN or the name of the
/// disk: another medium in the place of a former one is another logical unit.
pub(super) fn medium(
    owner: &str,
    text: &str,
    size: Option<&str>,
    server: &ServerAddress,
) -> Result<Keys, Diagnostic> {
    let of_argument = if server.socket().is_some() { lun_argument } else { remote_lun_argument };
    let lun = of_argument(owner, text, size)?;
    let mut keys = Keys::new();
    let mut set = |key: &str, value: Value| _ = keys.insert(key.to_owned(), value);
    if let Some(kind) = lun.source.kind() {
        set("backend", kind.name().into());
    }
    if let Some(path) = lun.source.path() {
        set("path", path_on(server, path)?.into());
    }
    if let Some(image) = lun.source.image() {
        image_keys(image, server, &mut set)?;
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
    random.map(|random| format!("{random:016x}")).map_err(|e| super::chap::no_random_number(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use std::path::PathBuf;

    fn result(line: &[&str]) -> Result<Keys, Diagnostic> {
        let line = [&["lunar", "lun", "add", "iqn.2026-11.org.example:a"], line].concat();
        match Cli::try_parse_from(line).expect("a command line").command {
            Command::Lun(LunCommand::Add(args)) => {
                added(&args.target, &args.medium, args.size.as_deref(), &PathBuf::from("/s").into())
            }
            other => panic!("{other:?}"),
        }
    }

    fn keys(line: &[&str]) -> Keys {
        result(line).expect("a medium")
    }

    #[test]
    fn disk_of_the_server_is_a_medium_without_other_keys() {
        assert_eq!(keys(&["disk:data"]), Keys::from_iter([("disk".to_owned(), json!("data"))]));
        let fault = |line: &[&str]| result(line).expect_err("a fault").to_string();
        assert!(fault(&["disk:data", "--size", "1M"]).contains("--size has no effect on the disk data"));
        assert!(fault(&["disk=data"]).ends_with("hint: write disk:data"));
    }

    #[test]
    fn lowest_free_lun_fills_a_gap() {
        assert_eq!([lowest_free(0, &[]), lowest_free(0, &[0, 1]), lowest_free(0, &[0, 2])], [0, 2, 1]);
        assert_eq!([lowest_free(1, &[]), lowest_free(1, &[1, 3])], [1, 2]);
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
        let [image, same, other] =
            ["rbd:rbd/a", "rbd:rbd/a:id=lunar", "rbd:rbd/b"].map(|image| keys(&[image]));
        assert_eq!(image["serial"], same["serial"], "gateways of one image need no agreement");
        assert_ne!(image["serial"], other["serial"]);
    }
}
