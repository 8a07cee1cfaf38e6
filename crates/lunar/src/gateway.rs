//! `lunar gateway`: shows the group of gateways of a running server and the images that it shares, and changes the access of
//! a gateway to them.

use crate::args::{AdminArgs, ChosenGateway, GatewayCommand};
use crate::client::{json, json_list};
use crate::exit::Failure;
use crate::output;
use lunar_admin::gateway::GatewayAction;
use lunar_admin::{SharedUnitReport, gateway};
use lunar_api::client::{Client, GatewayList, Outcome, SharedUnitList, segment};
use lunar_server::{Diagnostic, ErrorCode};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// The text to print.
pub fn gateway(command: GatewayCommand) -> Result<String, Failure> {
    match command {
        GatewayCommand::List(common) => list(&common),
        GatewayCommand::Show { image, common } => show(image.as_deref(), &common),
        GatewayCommand::Drain(chosen) => change(GatewayAction::Drain, &chosen, None),
        GatewayCommand::Resume(chosen) => change(GatewayAction::Resume, &chosen, None),
        GatewayCommand::Failover { image, gateway } => {
            change(GatewayAction::Activate, &gateway, image.as_deref())
        }
    }
}

fn client(common: &AdminArgs) -> Result<Client, Failure> {
    Ok(Client::new(&common.choice.one()?, common.timeout))
}

fn list(common: &AdminArgs) -> Result<String, Failure> {
    let list: GatewayList = client(common)?.get("/v1/gateways")?;
    match common.json {
        true => json_list(&list.items),
        false if list.items.is_empty() => Ok("no gateways: the server has no [gateway]\n".into()),
        false => Ok(gateway::list(&list.items)),
    }
}

/// The result of a change.
#[derive(Serialize, ToSchema)]
pub struct GatewayOutcome {
    gateway: u8,
    result: String,
}

fn change(action: GatewayAction, chosen: &ChosenGateway, image: Option<&str>) -> Result<String, Failure> {
    let client = client(&chosen.common)?;
    let gateway = chosen.id.map_or_else(|| own(&client), Ok)?;
    let mut path = format!("/v1/gateways/{gateway}/{}", action.name());
    if let Some(image) = image {
        path = format!("{path}?image={}", segment(image));
    }
    let Outcome { result } = client.post(&path, &())?;
    match chosen.common.json {
        true => json(&GatewayOutcome { gateway, result }),
        false => Ok(output::success(result + "\n")),
    }
}

/// The number of the server itself.
fn own(client: &Client) -> Result<u8, Failure> {
    let list: GatewayList = client.get("/v1/gateways")?;
    let own = list.items.iter().find(|gateway| gateway.this_server).map(|gateway| gateway.id);
    own.ok_or_else(|| {
        let what = "the server is no gateway: it has no [gateway]";
        Diagnostic::new(what, "docs/ceph.md has an example").with_code(ErrorCode::NotFound).into()
    })
}

fn show(image: Option<&str>, common: &AdminArgs) -> Result<String, Failure> {
    let list: SharedUnitList = client(common)?.get("/v1/shared-units")?;
    let units = chosen(list.items, image)?;
    if common.json {
        return json_list(&units);
    }
    if units.is_empty() {
        return Ok("no shared images\n".into());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let texts: Vec<String> = units.iter().map(|unit| gateway::show(unit, now)).collect();
    Ok(texts.join("\n"))
}

/// The logical units of this image, or all.
fn chosen(
    mut units: Vec<SharedUnitReport>,
    image: Option<&str>,
) -> Result<Vec<SharedUnitReport>, Diagnostic> {
    let Some(image) = image else { return Ok(units) };
    units.retain(|unit| unit.has_image(image));
    if units.is_empty() {
        let what = format!("the server shares no image {}", image.escape_debug());
        let problem = Diagnostic::new(what, "lunar gateway show shows the shared images");
        return Err(problem.with_code(ErrorCode::NotFound));
    }
    Ok(units)
}
