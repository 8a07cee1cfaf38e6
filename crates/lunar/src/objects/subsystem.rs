//! `lunar subsystem`.

use super::{Change, client, host, items, listed, namespace, shown, source, text};
use crate::args::{ServerArgs, SubsystemCommand};
use crate::client::json;
use crate::exit::Failure;
use lunar_api::client::{HostView, NamespaceItem, SubsystemView, segment};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A subsystem with its namespaces and hosts, in the form of the API.
#[derive(Serialize, ToSchema)]
pub struct SubsystemDetails {
    #[serde(flatten)]
    #[schema(value_type = SubsystemView)]
    subsystem: Value,
    #[schema(value_type = Vec<NamespaceItem>)]
    namespaces: Vec<Value>,
    #[schema(value_type = Vec<HostView>)]
    hosts: Vec<Value>,
}

/// The resource of all subsystems.
pub(super) const COLLECTION: &str = "/v1/subsystems";

/// The resource of a subsystem.
pub(super) fn path(nqn: &str) -> String {
    format!("{COLLECTION}/{}", segment(nqn))
}

/// The text to print.
pub fn subsystem(command: SubsystemCommand) -> Result<String, Failure> {
    match command {
        SubsystemCommand::List(args) => list(&args),
        SubsystemCommand::Show { subsystem, server } => show(&subsystem, &server),
        SubsystemCommand::Add { subsystem, keys, object } => {
            let change = Change::of(&object)?;
            change.done(&change.create(&path(&subsystem), &keys.into_iter().collect())?)
        }
        SubsystemCommand::Set { subsystem, keys, force, object } => {
            Change::of(&object)?.with_force(force).set(&path(&subsystem), &keys.into_iter().collect())
        }
        SubsystemCommand::Remove { subsystem, force, object } => {
            let change = Change::of(&object)?.with_force(force);
            change.done(&change.remove(&path(&subsystem))?)
        }
    }
}

fn list(args: &ServerArgs) -> Result<String, Failure> {
    let client = client(args)?;
    let subsystems = items(&client, COLLECTION)?;
    let objects = if args.json { Vec::new() } else { items(&client, "/v1/objects")? };
    let namespaces = |nqn: &Value| {
        let is_of = |one: &&Value| one["kind"] == "namespace" && one["subsystem"] == *nqn;
        objects.iter().filter(is_of).count().to_string()
    };
    let row = |one: &Value| {
        let [nqn, state, controllers] = ["nqn", "state", "controllers"].map(|key| text(&one[key]));
        [nqn, state, namespaces(&one["nqn"]), controllers, source(one)]
    };
    let head = ["SUBSYSTEM", "STATE", ">NAMESPACES", ">CONTROLLERS", "SOURCE"];
    listed(subsystems, args.json, "no subsystems", head, row)
}

fn show(nqn: &str, args: &ServerArgs) -> Result<String, Failure> {
    let client = client(args)?;
    let one: Value = client.get(&path(nqn))?;
    let namespaces = items(&client, &namespace::collection(nqn))?;
    let hosts = items(&client, &host::collection(nqn))?;
    if args.json {
        return json(&SubsystemDetails { subsystem: one, namespaces, hosts });
    }
    let (namespaces, hosts) = (namespace::table(&client, namespaces, false)?, host::table(hosts, false)?);
    Ok(format!("{}\n{namespaces}\n{hosts}", shown(&one)))
}
