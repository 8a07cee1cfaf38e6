//! Gateways and the logical units that they share, as text and JSON.

use super::rows::{self, duration, shown, utc};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The group of gateways, as one of them sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupReport {
    /// Its members, by number.
    pub gateways: Vec<GatewayReport>,
    /// The logical units that this server shares, in the order of the configuration.
    pub units: Vec<SharedUnitReport>,
}

/// A gateway of the group of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GatewayReport {
    /// The name of its group.
    pub group: String,
    /// Its number in the group.
    pub id: u8,
    /// Whether it is the server that answers.
    pub this_server: bool,
    /// Whether it serves shared LUNs.
    pub state: GatewayState,
    /// The shared LUNs of the server that answers.
    pub luns: usize,
    /// Of these LUNs, those that it serves.
    pub serving_luns: usize,
    /// Its target ports, also while it is away.
    pub ports: Vec<GatewayPort>,
}

/// A change of the access of a gateway to its images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayChange {
    /// Its number.
    pub id: u8,
    /// The operation.
    pub action: GatewayAction,
    /// One image; None: all.
    pub image: Option<String>,
}

/// A control operation on a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayAction {
    /// Let its hosts use other gateways.
    Drain,
    /// Let hosts use it again.
    Resume,
    /// Let it serve the images that one gateway at a time serves.
    Activate,
}

impl GatewayAction {
    /// The word of the API.
    pub fn name(self) -> &'static str {
        match self {
            GatewayAction::Drain => "drain",
            GatewayAction::Resume => "resume",
            GatewayAction::Activate => "activate",
        }
    }
}

/// The state of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum GatewayState {
    /// It serves at least one shared LUN, or there are none.
    Serving,
    /// Its hosts are to use other gateways.
    Drained,
    /// It serves none: it was stopped, fenced or has not joined yet.
    #[default]
    Away,
}

/// A target port of a gateway: the portals of one portal group, for one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct GatewayPort {
    /// Its portal group tag.
    pub portal_group: u16,
    /// Its relative target port identifier.
    pub relative_port: u16,
    /// `iscsi` or `srp`.
    pub protocol: String,
    /// The addresses of its portals, with port numbers.
    pub portals: Vec<String>,
}

/// A logical unit that this server shares with other gateways.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SharedUnitReport {
    /// Pool, namespace and name of its image.
    pub image: String,
    /// The name of the object with the shared state.
    pub object: String,
    /// The LUNs that show it.
    pub luns: Vec<SharedLun>,
    /// The phase of this server as a member.
    pub phase: SharedUnitPhase,
    /// When it joined (RFC 3339). Before that: when it was lost, or when the server started.
    #[serde(with = "crate::rfc3339::seconds")]
    #[schema(value_type = String)]
    pub since: u64,
    /// The version of the state that this server has installed; 0 before it has joined.
    pub version: u64,
    /// Seconds since the cluster last confirmed the watch of this server; null without a watch.
    pub watch_age_s: Option<f64>,
    /// The numbers of the gateways that serve it, also of this server.
    pub gateways: Vec<u8>,
    /// The gateway that serves the medium, where one at a time does; null where all do.
    pub active: Option<u8>,
    /// The number of times that this server has joined.
    pub joins: u64,
    /// The number of times that this server was lost after it had joined.
    pub losses: u64,
    /// Changes of the state that this server has published.
    pub publishes: u64,
    /// The last loss, or the last attempt to join that failed.
    pub last_failure: Option<SharedUnitFailure>,
    /// Registrations of persistent reservations.
    pub registrations: usize,
    /// Whether there is a persistent reservation.
    pub reserved: bool,
    /// The initiator that holds the reservation; null without one, and if all registrants hold it.
    pub holder: Option<String>,
}

/// A LUN that shows a shared logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedLun {
    /// Its target.
    pub target: String,
    /// Its number.
    pub lun: u16,
}

/// The phase of a member of a shared logical unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SharedUnitPhase {
    /// It has not joined: commands end with BUSY, and logins are refused.
    #[default]
    Joining,
    /// It serves commands.
    Serving,
    /// The cluster has not confirmed its watch for a while: commands end with BUSY.
    Stale,
    /// It was fenced, or an operation failed. It joins again with a new client.
    Lost,
}

/// The word of the JSON output.
impl fmt::Display for SharedUnitPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SharedUnitPhase::Joining => "joining",
            SharedUnitPhase::Serving => "serving",
            SharedUnitPhase::Stale => "stale",
            SharedUnitPhase::Lost => "lost",
        })
    }
}

/// A loss, or an attempt to join that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedUnitFailure {
    /// The reason.
    pub reason: String,
    /// When it happened (RFC 3339).
    #[serde(with = "crate::rfc3339::seconds")]
    #[schema(value_type = String)]
    pub at: u64,
}

impl SharedUnitReport {
    /// Whether it has the image with this name, with or without `rbd:`.
    pub fn has_image(&self, name: &str) -> bool {
        self.image == name.strip_prefix("rbd:").unwrap_or(name)
    }
}

/// All gateways, one a line.
pub fn list(gateways: &[GatewayReport]) -> String {
    let row = |gateway: &GatewayReport| {
        let GatewayReport { luns, serving_luns, .. } = gateway;
        let count = if luns == serving_luns { luns.to_string() } else { format!("{serving_luns} of {luns}") };
        let state = match gateway.state {
            GatewayState::Serving => "serving",
            GatewayState::Drained => "drained",
            GatewayState::Away => "away",
        };
        let this = if gateway.this_server { "yes" } else { "no" };
        [
            gateway.id.to_string(),
            this.into(),
            state.into(),
            count,
            portals(&gateway.ports),
            shown(&gateway.group),
        ]
    };
    rows::table([">ID", "THIS SERVER", "STATE", ">LUNS", "PORTALS", "GROUP"], gateways.iter().map(row))
}

/// The portals with their portal group tags, in the form of SendTargets.
fn portals(ports: &[GatewayPort]) -> String {
    let of_port = |port: &GatewayPort| {
        let tag = port.portal_group;
        port.portals.iter().map(|portal| format!("{},{tag}", shown(portal))).collect::<Vec<_>>()
    };
    let all: Vec<String> = ports.iter().flat_map(of_port).collect();
    if all.is_empty() { "-".into() } else { all.join(" ") }
}

/// Everything about a shared logical unit.
pub fn show(unit: &SharedUnitReport, now: u64) -> String {
    let since = duration(now.saturating_sub(unit.since));
    let mut rows = vec![
        ("object", shown(&unit.object)),
        ("LUNs", joined(unit.luns.iter().map(|one| format!("{} of {}", one.lun, shown(&one.target))))),
        ("gateways", joined(unit.gateways.iter().map(u8::to_string))),
        ("active", unit.active.map_or("all".into(), |id| id.to_string())),
        ("version", unit.version.to_string()),
        ("watch", unit.watch_age_s.map_or("none".into(), |age_s| format!("confirmed {age_s:.1} s ago"))),
        ("registrations", unit.registrations.to_string()),
        ("reservation", reservation(unit)),
        ("joins", unit.joins.to_string()),
        ("losses", unit.losses.to_string()),
        ("publishes", unit.publishes.to_string()),
    ];
    rows.extend(unit.last_failure.as_ref().map(|failure| ("last failure", described(failure))));
    let rows: Vec<[String; 2]> = rows.into_iter().map(|(name, value)| [format!("  {name}"), value]).collect();
    format!("image {}: {}, for {since}\n{}", shown(&unit.image), unit.phase, rows::lines(&rows))
}

fn joined(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

fn reservation(unit: &SharedUnitReport) -> String {
    match &unit.holder {
        Some(holder) => format!("held by {}", shown(holder)),
        None if unit.reserved => "held by all registrants".into(),
        None => "none".into(),
    }
}

fn described(failure: &SharedUnitFailure) -> String {
    format!("{}: {}", utc(failure.at), shown(&failure.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(tag: u16) -> GatewayPort {
        let portals = vec![format!("192.0.2.{}:3260", tag >> 8)];
        GatewayPort { portal_group: tag, relative_port: tag, protocol: "iscsi".into(), portals }
    }

    fn unit() -> SharedUnitReport {
        SharedUnitReport {
            image: "rbd/disk1".into(),
            object: "lunar.lu.1".into(),
            luns: vec![SharedLun { target: "iqn.2026-11.org.example:ceph".into(), lun: 3 }],
            phase: SharedUnitPhase::Serving,
            since: 1_795_343_400,
            version: 17,
            watch_age_s: Some(0.25),
            gateways: vec![1, 2],
            joins: 2,
            losses: 1,
            publishes: 4,
            registrations: 3,
            ..SharedUnitReport::default()
        }
    }

    #[test]
    fn gateways_are_listed_with_their_portals() {
        let (group, luns) = ("gw".to_owned(), 2);
        let one = GatewayReport {
            group: group.clone(),
            id: 1,
            this_server: true,
            state: GatewayState::Serving,
            luns,
            serving_luns: 2,
            ports: vec![port(257), port(258)],
        };
        let two = GatewayReport { group, id: 12, luns, ports: vec![port(3073)], ..GatewayReport::default() };
        let expected = "ID  THIS SERVER  STATE      LUNS  PORTALS                                GROUP\n \
             1  yes          serving       2  192.0.2.1:3260,257 192.0.2.1:3260,258  gw\n\
            12  no           away     0 of 2  192.0.2.12:3260,3073                   gw\n";
        assert_eq!(list(&[one, two]), expected);
    }

    #[test]
    fn shared_unit_is_shown_with_its_last_failure() {
        let text = show(&unit(), 1_795_343_460);
        assert!(
            text.starts_with("image rbd/disk1: serving, for 1m 0s\n  object         lunar.lu.1\n"),
            "{text}"
        );
        for line in [
            "  LUNs           3 of iqn.2026-11.org.example:ceph\n",
            "  gateways       1, 2\n",
            "  active         all\n",
            "  watch          confirmed 0.2 s ago\n",
            "  reservation    none\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.ends_with("  publishes      4\n"), "{text}");
        let failure = SharedUnitFailure { reason: "fenced\u{1b}".into(), at: 1_795_343_400 };
        let lost = SharedUnitReport {
            phase: SharedUnitPhase::Lost,
            watch_age_s: None,
            reserved: true,
            last_failure: Some(failure),
            ..unit()
        };
        let text = show(&lost, 1_795_343_460);
        assert!(text.starts_with("image rbd/disk1: lost, for 1m 0s\n"), "{text}");
        assert!(text.contains("  watch          none\n"), "{text}");
        assert!(text.contains("  reservation    held by all registrants\n"), "{text}");
        assert!(text.ends_with("  last failure   2026-11-22T10:30:00Z: fenced\\u{1b}\n"), "{text}");
        let held = SharedUnitReport { holder: Some("iqn.h".into()), reserved: true, ..unit() };
        assert!(show(&held, 0).contains("  reservation    held by iqn.h\n"));
    }

    #[test]
    fn image_is_found_with_and_without_its_prefix() {
        assert!(unit().has_image("rbd/disk1") && unit().has_image("rbd:rbd/disk1"));
        assert!(!unit().has_image("disk1"));
    }
}
