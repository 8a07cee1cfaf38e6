//! `lunar gateway`: shows the group of gateways of a running server, and the images that it shares.

use crate::args::{AdminArgs, GatewayCommand};
use crate::client::json_list;
use crate::exit::Failure;
use lunar_admin::{SharedUnitReport, gateway};
use lunar_api::client::{Client, GatewayList, SharedUnitList};
use lunar_server::{Diagnostic, ErrorCode};
use std::time::{SystemTime, UNIX_EPOCH};

/// The text to print.
pub fn gateway(command: GatewayCommand) -> Result<String, Failure> {
    match command {
        GatewayCommand::List(common) => list(&common),
        GatewayCommand::Show { image, common } => show(image.as_deref(), &common),
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
