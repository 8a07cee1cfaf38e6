//! `lunar disk`.

use super::{Change, client, items, listed, lun, shown, source, text};
use crate::args::{DiskAdd, DiskCommand, ServerArgs};
use crate::client::json;
use crate::exit::Failure;
use lunar_api::client::{Client, segment};
use lunar_proto::size;
use serde_json::Value;

const COLLECTION: &str = "/v1/disks";

/// The resource of a disk.
pub(super) fn path(name: &str) -> String {
    format!("{COLLECTION}/{}", segment(name))
}

/// The text to print.
pub fn disk(command: DiskCommand) -> Result<String, Failure> {
    match command {
        DiskCommand::List(args) => list(&args),
        DiskCommand::Show { name, server } => show(&name, &server),
        DiskCommand::Add(args) => add(args),
        DiskCommand::Remove { name, object } => {
            let change = Change::of(&object)?;
            change.done(&change.remove(&path(&name))?)
        }
    }
}

fn list(args: &ServerArgs) -> Result<String, Failure> {
    let client = client(args)?;
    let (disks, luns) = (items(&client, COLLECTION)?, luns(&client)?);
    let row = |one: &Value| {
        let showing: Vec<&Value> = luns.iter().filter(|lun| shows(lun, &one["name"])).collect();
        let capacity = showing.first().and_then(|lun| lun["capacity_bytes"].as_u64());
        [
            text(&one["name"]),
            text(&one["config"]["backend"]),
            lun::shown_medium(&one["config"]),
            capacity.map_or("-".into(), size::show),
            showing.len().to_string(),
            source(one),
        ]
    };
    listed(disks, args.json, "no disks", ["DISK", "BACKEND", "MEDIUM", ">SIZE", ">LUNS", "SOURCE"], row)
}

fn show(name: &str, args: &ServerArgs) -> Result<String, Failure> {
    let client = client(args)?;
    let one: Value = client.get(&path(name))?;
    if args.json {
        return json(&one);
    }
    let luns = luns(&client)?.into_iter().filter(|lun| shows(lun, &one["name"])).collect();
    Ok(format!("{}\n{}", shown(&one), lun::table(&client, luns, false)?))
}

/// The LUNs of all targets.
fn luns(client: &Client) -> Result<Vec<Value>, Failure> {
    let objects = items(client, "/v1/objects")?;
    Ok(objects.into_iter().filter(|one| one["kind"] == "lun").collect())
}

fn shows(lun: &Value, disk: &Value) -> bool {
    lun["config"]["disk"] == *disk
}

fn add(args: DiskAdd) -> Result<String, Failure> {
    let change = Change::of(&args.object)?;
    let mut keys = lun::medium("disk", &args.medium, args.size.as_deref(), change.client.server())?;
    keys.extend(args.keys);
    change.done(&change.create(&path(&args.name), &keys)?)
}
