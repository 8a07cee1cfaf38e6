//! The group of gateways in the form of the API.

use lunar_admin::gateway::{
    GatewayAction, GatewayChange, GatewayPort, GatewayState, SharedLun, SharedUnitFailure, SharedUnitPhase,
};
use lunar_admin::{ControlError, ControlErrorKind, GatewayReport, GroupReport, SharedUnitReport};
use lunar_gateway::{
    AccessChange, AccessChangeError, Gateway, GatewayStatus, MemberId, MemberPort, Phase, SharedUnitStatus,
    UnitFailure,
};
use lunar_server::{Diagnostic, ErrorCode};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// The report of a group. It has a row for this server even if no unit is shared.
pub fn group(status: &GatewayStatus) -> GroupReport {
    let ids = status.units.iter().flat_map(|unit| unit.members.keys().copied());
    let ids: BTreeSet<MemberId> = ids.chain([status.id]).collect();
    let mut units: Vec<SharedUnitReport> = status.units.iter().map(unit).collect();
    units.sort_by(|a, b| a.image.cmp(&b.image));
    GroupReport { gateways: ids.into_iter().map(|id| gateway(status, id)).collect(), units }
}

/// Changes the access of a gateway. Returns the text of the result.
pub fn change(gateway: Option<&Gateway>, change: &GatewayChange) -> Result<String, ControlError> {
    let GatewayChange { id, action, image } = change;
    let what = match action {
        GatewayAction::Drain => AccessChange::Drain,
        GatewayAction::Resume => AccessChange::Resume,
        GatewayAction::Activate => AccessChange::Activate,
    };
    let image = image.as_deref().map(|name| name.strip_prefix("rbd:").unwrap_or(name));
    let result = gateway.map_or(Err(AccessChangeError::NoImage), |own| own.change_access(*id, what, image));
    let count = result.map_err(|error| refused(*id, image, &error))?;
    let images = if count == 1 { "1 image".to_owned() } else { format!("{count} images") };
    let done = match action {
        GatewayAction::Drain => "hosts use other gateways for",
        GatewayAction::Resume => "hosts may use it again for",
        GatewayAction::Activate => "serves",
    };
    tracing::info!(name: "gateway.changed", gateway = id, action = action.name(), images = count, "the access has changed");
    Ok(format!("gateway {id}: {done} {images}"))
}

fn refused(id: MemberId, image: Option<&str>, error: &AccessChangeError) -> ControlError {
    let (what, hint, kind) = match error {
        AccessChangeError::NoImage => {
            let what = match image {
                Some(image) => format!("the server shares no image {}", image.escape_debug()),
                None => "the server shares no image".into(),
            };
            (what, "lunar gateway show shows the shared images", ControlErrorKind::NotFound)
        }
        AccessChangeError::NoMember => {
            let what = format!("gateway {id} serves none of these images");
            (what, "lunar gateway list shows the gateways", ControlErrorKind::NotFound)
        }
        AccessChangeError::NotPassive => {
            let what = "all gateways serve the shared images at the same time".into();
            (what, "to take a gateway out of use: lunar gateway drain ID", ControlErrorKind::Conflict)
        }
        AccessChangeError::OnlyMember(images) => {
            let what = format!("gateway {id} is the only one in use for {}", images.join(", "));
            (what, "start another gateway, or resume one that is drained", ControlErrorKind::Conflict)
        }
        AccessChangeError::Failed(images) => {
            let what = format!("gateway {id}: the access to {} has not changed", images.join(", "));
            (what, "try again; lunar gateway show shows the state", ControlErrorKind::Failed)
        }
    };
    let problem = Diagnostic::new(what, hint);
    match kind {
        ControlErrorKind::NotFound => ControlError::one(kind, problem.with_code(ErrorCode::NotFound)),
        _ => ControlError::one(kind, problem),
    }
}

fn gateway(status: &GatewayStatus, id: MemberId) -> GatewayReport {
    let of_member = || status.units.iter().filter_map(|unit| Some((unit, unit.members.get(&id)?)));
    let served = of_member().filter(|(_, member)| member.is_present);
    let serving_luns = served.map(|(unit, _)| unit.luns.len()).sum();
    let is_serving = status.units.is_empty() || of_member().any(|(_, member)| member.is_present);
    let ports: BTreeSet<GatewayPort> =
        of_member().flat_map(|(_, member)| member.ports.iter().map(port)).collect();
    GatewayReport {
        group: status.group.clone(),
        id,
        this_server: id == status.id,
        state: match is_serving {
            false => GatewayState::Away,
            true if status.units.iter().any(|unit| unit.drained.contains(&id)) => GatewayState::Drained,
            true => GatewayState::Serving,
        },
        luns: status.units.iter().map(|unit| unit.luns.len()).sum(),
        serving_luns,
        ports: ports.into_iter().collect(),
    }
}

fn port(port: &MemberPort) -> GatewayPort {
    GatewayPort {
        portal_group: port.tag,
        relative_port: port.relative,
        protocol: if port.srp { "srp" } else { "iscsi" }.into(),
        portals: port.addresses.clone(),
    }
}

fn unit(status: &SharedUnitStatus) -> SharedUnitReport {
    let present = status.members.iter().filter(|(_, member)| member.is_present);
    let lun = |(target, lun): &(String, u16)| SharedLun { target: target.clone(), lun: *lun };
    let failure =
        |failure: &UnitFailure| SharedUnitFailure { reason: failure.reason.clone(), at: unix_s(failure.at) };
    SharedUnitReport {
        image: status.image.clone(),
        object: status.object.clone(),
        luns: status.luns.iter().map(lun).collect(),
        phase: phase(status.phase),
        since: unix_s(status.since),
        version: status.version,
        watch_age_s: status.watch_age.map(|age| age.as_secs_f64()),
        gateways: present.map(|(id, _)| *id).collect(),
        active: status.active,
        joins: status.joins,
        losses: status.losses,
        publishes: status.publishes,
        last_failure: status.last_failure.as_ref().map(failure),
        registrations: status.registrations,
        reserved: status.is_reserved,
        holder: status.holder.clone(),
    }
}

fn phase(phase: Phase) -> SharedUnitPhase {
    match phase {
        Phase::Joining => SharedUnitPhase::Joining,
        Phase::Serving => SharedUnitPhase::Serving,
        Phase::Stale => SharedUnitPhase::Stale,
        Phase::Lost => SharedUnitPhase::Lost,
    }
}

fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_gateway::MemberStatus;
    use std::time::Duration;

    fn member(is_present: bool, tag: u16) -> MemberStatus {
        let addresses = vec![format!("192.0.2.{tag}:3260")];
        MemberStatus { is_present, ports: vec![MemberPort { tag, relative: tag, srp: false, addresses }] }
    }

    /// A unit with this server as the member 1, and two others.
    fn status(image: &str, present: [bool; 3]) -> SharedUnitStatus {
        SharedUnitStatus {
            active: None,
            drained: BTreeSet::new(),
            image: image.into(),
            object: format!("lunar.lu.{image}"),
            luns: vec![("iqn.t".into(), 0)],
            phase: Phase::Serving,
            since: UNIX_EPOCH + Duration::from_secs(5),
            version: 7,
            watch_age: Some(Duration::from_millis(500)),
            members: [1, 2, 3].map(|id| (id, member(present[usize::from(id) - 1], u16::from(id)))).into(),
            joins: 2,
            losses: 1,
            publishes: 3,
            last_failure: Some(UnitFailure {
                reason: "fenced".into(),
                at: UNIX_EPOCH + Duration::from_secs(4),
            }),
            registrations: 1,
            is_reserved: true,
            holder: Some("iqn.h".into()),
        }
    }

    #[test]
    fn gateway_serves_if_it_serves_one_unit() {
        let units = vec![status("p/b", [true, true, false]), status("p/a", [true, false, false])];
        let report = group(&GatewayStatus { group: "gw".into(), id: 1, units });
        let rows: Vec<_> = report
            .gateways
            .iter()
            .map(|one| (one.id, one.this_server, one.state, one.serving_luns))
            .collect();
        let (serving, away) = (GatewayState::Serving, GatewayState::Away);
        assert_eq!(rows, [(1, true, serving, 2), (2, false, serving, 1), (3, false, away, 0)]);
        assert_eq!((report.gateways[2].luns, report.gateways[2].ports.len()), (2, 1));
        let images: Vec<&str> = report.units.iter().map(|unit| &*unit.image).collect();
        assert_eq!((images, &report.units[1].gateways), (vec!["p/a", "p/b"], &vec![1, 2]));
        let unit = &report.units[0];
        let failure = unit.last_failure.as_ref().expect("a failure");
        assert_eq!((unit.since, unit.watch_age_s, &*failure.reason, failure.at), (5, Some(0.5), "fenced", 4));
    }

    #[test]
    fn gateway_without_shared_units_is_in_the_list() {
        let report = group(&GatewayStatus { group: "gw".into(), id: 3, units: Vec::new() });
        assert_eq!((report.gateways.len(), report.gateways[0].id, report.units.len()), (1, 3, 0));
        assert_eq!(report.gateways[0].state, GatewayState::Serving);
    }
}
