//! `lunar target`.

use super::{Change, client, items, listed, shown, source, text};
use super::{access, lun};
use crate::args::{ServerArgs, TargetCommand};
use crate::client::json;
use crate::exit::Failure;
use crate::output;
use lunar_admin::TargetAction;
use lunar_api::client::{AccessView, LunView, Outcome, TargetView, segment};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A target with its LUNs and access entries, in the form of the API.
#[derive(Serialize, ToSchema)]
pub struct TargetDetails {
    #[serde(flatten)]
    #[schema(value_type = TargetView)]
    target: Value,
    #[schema(value_type = Vec<LunView>)]
    luns: Vec<Value>,
    #[schema(value_type = Vec<AccessView>)]
    access: Vec<Value>,
}

/// The resource of a target.
pub(super) fn path(target: &str) -> String {
    format!("/v1/targets/{}", segment(target))
}

/// The text to print.
pub fn target(command: TargetCommand) -> Result<String, Failure> {
    match command {
        TargetCommand::List(args) => {
            let row = |one: &Value| {
                [text(&one["name"]), text(&one["state"]), text(&one["config"]["alias"]), source(one)]
            };
            let head = ["TARGET", "STATE", "ALIAS", "SOURCE"];
            listed(items(&client(&args)?, "/v1/targets")?, args.json, "no targets", head, row)
        }
        TargetCommand::Show { target, server } => show(&target, &server),
        TargetCommand::Add { target, keys, object } => {
            let change = Change::of(&object)?;
            change.done(&change.create(&path(&target), &keys.into_iter().collect())?)
        }
        TargetCommand::Set { target, keys, object } => {
            Change::of(&object)?.set(&path(&target), &keys.into_iter().collect())
        }
        TargetCommand::Promote { target, server } => control(target, TargetAction::Promote, &server),
        TargetCommand::Demote { target, server } => control(target, TargetAction::Demote, &server),
        TargetCommand::Remove { target, force, object } => {
            let change = Change::of(&object)?.with_force(force);
            change.done(&change.remove(&path(&target))?)
        }
    }
}

/// The result of an operation on a target.
#[derive(Serialize, ToSchema)]
pub struct TargetOutcome {
    target: String,
    result: String,
}

fn control(target: String, action: TargetAction, args: &ServerArgs) -> Result<String, Failure> {
    let Outcome { result } = client(args)?.post(&format!("{}/{}", path(&target), action.name()), &())?;
    match args.json {
        true => json(&TargetOutcome { target, result }),
        false => Ok(output::success(result + "\n")),
    }
}

fn show(target: &str, args: &ServerArgs) -> Result<String, Failure> {
    let client = client(args)?;
    let one: Value = client.get(&path(target))?;
    let luns = items(&client, &lun::collection(target))?;
    let access = items(&client, &access::collection(target))?;
    if args.json {
        return json(&TargetDetails { target: one, luns, access });
    }
    let (luns, access) = (lun::table(&client, luns, false)?, access::table(access, false)?);
    Ok(format!("{}\n{luns}\n{access}", shown(&one)))
}
