//! Actions on an NVMe namespace: Reservation Register, Acquire, Release and Report.

use super::{PrAction, PrOut, PrResults, PrStep, look_name};
use crate::client::{self, ClientArgs};
use crate::exit::{Exit, Failure};
use crate::host_id;
use crate::info::pages::{Fields, pr_key};
use crate::tree::Node;
use lunar_initiator::nvme::{
    NvmeDisk, NvmeNamespace, NvmePaths, NvmeRegistrant, NvmeReservations, NvmeUrl, ReservationChange,
    ReservationKind, uuid_text,
};
use lunar_initiator::{Error, ErrorCode};
use lunar_wire::scsi::pr::{ReserveOutParameters, type_name};

/// The purpose of the identifier of this host.
const PURPOSE: &str = "pr";
/// The bits of RESCAP with the names that they have in REPORT CAPABILITIES.
const CAPABILITIES: [(&str, u8); 7] = [
    ("persist_through_power_loss_capable", 0),
    ("write_exclusive", 1),
    ("exclusive_access", 2),
    ("write_exclusive_registrants_only", 3),
    ("exclusive_access_registrants_only", 4),
    ("write_exclusive_all_registrants", 5),
    ("exclusive_access_all_registrants", 6),
];

/// Executes the actions in order with one controller, up to the first failure. Of several paths, it is that of the best
/// one: a registration belongs to the host, which has one identifier on all paths.
///
/// # Errors
/// The failure of an action, or of the connection.
pub fn run(url: &str, asked: ClientArgs, steps: Vec<PrStep>) -> Result<PrResults, Failure> {
    if steps.iter().any(|step| step.order.as_ref().is_some_and(|order| order.parameters.all_ports)) {
        return Err(Failure::new(
            Exit::Invalid,
            "--all-ports has no meaning for NVMe",
            "leave it out: a host is registered at all controllers",
        ));
    }
    let url = url.parse::<NvmeUrl>()?.with_default("login_tries", "1")?;
    let url = host_id::identified(url, PURPOSE)?;
    client::run(asked, move || async move {
        let disk = NvmeDisk::open(&url).await?;
        let ended = match usable(&disk) {
            Ok(namespace) => perform(namespace, steps).await,
            Err(e) => Err(e.into()),
        };
        disk.close().await;
        ended
    })
}

/// The namespace on a path that accepts commands.
fn usable(disk: &NvmeDisk) -> Result<&NvmeNamespace, Error> {
    let Some(paths) = disk.paths() else { return Ok(disk.namespace()) };
    paths.best().map(|namespace| &**namespace).ok_or_else(|| unusable(paths))
}

fn unusable(paths: &NvmePaths) -> Error {
    let all = paths.joined().paths().into_iter().map(|(name, state, _)| format!("{name} is {state}"));
    let what = format!("no path accepts commands: {}", all.collect::<Vec<_>>().join(", "));
    Error::new(ErrorCode::Unreachable, what)
        .with_hint("lunar doctor URL examines each path; a failover of the storage changes their states")
}

async fn perform(namespace: &NvmeNamespace, steps: Vec<PrStep>) -> Result<PrResults, Failure> {
    let mut results = PrResults::new();
    for PrStep { action, order } in steps {
        match order {
            Some(order) => send(namespace, action, &order).await?,
            None => results.push((look_name(action), look(namespace, action).await?)),
        }
    }
    Ok(results)
}

async fn look(namespace: &NvmeNamespace, action: PrAction) -> Result<Fields, Error> {
    let state = namespace.reservations().await?;
    Ok(match action {
        PrAction::ReadKeys => {
            let keys = state.registrants.iter().map(|one| pr_key(one.key)).collect();
            vec![generation(&state), ("keys".into(), Node::List(keys))]
        }
        PrAction::ReadReservation => reservation(&state),
        PrAction::ReportCapabilities => capabilities(namespace.properties().identify.reservations, &state),
        _ => vec![
            generation(&state),
            (
                "registrations".into(),
                Node::List(state.registrants.iter().map(|one| entry(one, &state)).collect()),
            ),
        ],
    })
}

fn generation(state: &NvmeReservations) -> (String, Node) {
    ("generation".into(), Node::number(state.generation))
}

fn kind_name(kind: ReservationKind) -> &'static str {
    type_name(kind.scsi()).unwrap_or("reserved")
}

/// The reservation. Its key is 0 where all registrants hold it, as in READ RESERVATION.
fn reservation(state: &NvmeReservations) -> Fields {
    let mut fields = vec![("reserved".to_owned(), Node::flag(state.kind.is_some()))];
    if let Some(kind) = state.kind {
        let mut holders = state.registrants.iter().filter(|one| one.is_holder);
        let is_shared =
            matches!(kind, ReservationKind::WriteExclusiveAll | ReservationKind::ExclusiveAccessAll);
        let key = holders.next().filter(|_| !is_shared).map_or(0, |one| one.key);
        fields.push(("key".into(), pr_key(key)));
        fields.push(("type".into(), Node::text(kind_name(kind))));
    }
    fields
}

fn capabilities(supported: u8, state: &NvmeReservations) -> Fields {
    let mut fields: Fields =
        CAPABILITIES.map(|(name, bit)| (name.to_owned(), Node::flag(supported & 1 << bit != 0))).into();
    fields.insert(1, ("persist_through_power_loss_active".into(), Node::flag(state.persists)));
    fields
}

fn entry(one: &NvmeRegistrant, state: &NvmeReservations) -> Node {
    let mut fields = vec![
        ("host_id".to_owned(), Node::text(uuid_text(&one.host_id))),
        ("key".to_owned(), pr_key(one.key)),
    ];
    fields.extend(one.controller.map(|id| ("controller".to_owned(), Node::number(id))));
    fields.push(("holds_reservation".into(), Node::flag(one.is_holder)));
    let kind = state.kind.filter(|_| one.is_holder);
    fields.extend(kind.map(|kind| ("type".to_owned(), Node::text(kind_name(kind)))));
    Node::Map(fields)
}

/// The change that an action asks for.
fn change(action: PrAction, order: &PrOut) -> ReservationChange {
    let ReserveOutParameters { key, action_key, aptpl, .. } = order.parameters;
    let persists = aptpl.then_some(true);
    let kind = || ReservationKind::of_scsi(order.kind).expect("the command line requires one of the types");
    match action {
        PrAction::Register if action_key == 0 => ReservationChange::Unregister { key: Some(key) },
        PrAction::RegisterIgnore if action_key == 0 => ReservationChange::Unregister { key: None },
        PrAction::Register if key != 0 => {
            ReservationChange::Replace { key: Some(key), new_key: action_key, persists }
        }
        PrAction::Reserve => ReservationChange::Acquire { key, kind: kind() },
        PrAction::Release => ReservationChange::Release { key, kind: kind() },
        PrAction::Clear => ReservationChange::Clear { key },
        PrAction::Preempt | PrAction::PreemptAbort => ReservationChange::Preempt {
            key,
            preempted: action_key,
            kind: kind(),
            aborts: action == PrAction::PreemptAbort,
        },
        _ => ReservationChange::Register { key: action_key, persists },
    }
}

async fn send(namespace: &NvmeNamespace, action: PrAction, order: &PrOut) -> Result<(), Failure> {
    let is_conflict =
        |ended: &Result<(), Error>| ended.as_ref().is_err_and(|e| e.code == ErrorCode::ReservationConflict);
    let change = change(action, order);
    let mut ended = namespace.change_reservation(change).await;
    if let (PrAction::RegisterIgnore, ReservationChange::Register { key, persists }) = (action, change)
        && is_conflict(&ended)
    {
        // Register fails for a host that has another key, and Replace for one that has none.
        let replace = ReservationChange::Replace { key: None, new_key: key, persists };
        ended = namespace.change_reservation(replace).await;
    }
    if is_conflict(&ended) {
        return Err(conflict(namespace, change, order.parameters.key).await);
    }
    Ok(ended?)
}

/// Reservation conflict: shows the holder and our own registration.
async fn conflict(namespace: &NvmeNamespace, change: ReservationChange, given: u64) -> Failure {
    let id = namespace.controller().options().host_id.expect("the URL has an identifier");
    let (what, hint) = match namespace.reservations().await {
        Ok(state) => why(&state, id, change, given),
        Err(e) => {
            ("reservation conflict".to_owned(), format!("the holder of the reservation cannot be read: {e}"))
        }
    };
    Failure::new(Exit::NoAccess, what, hint)
}

fn why(state: &NvmeReservations, id: [u8; 16], change: ReservationChange, given: u64) -> (String, String) {
    let mut what = "reservation conflict".to_owned();
    if let Some(kind) = state.kind {
        for one in state.registrants.iter().filter(|one| one.is_holder) {
            let (host, kind) = (uuid_text(&one.host_id), kind_name(kind));
            what += &format!("\n  held by host {host} with key {:#x}: {kind}", one.key);
        }
    }
    match state.registrants.iter().find(|one| one.host_id == id) {
        None if matches!(change, ReservationChange::Register { .. }) => (
            what + "\n  this host cannot register now: SCSI initiators exclude NVMe hosts",
            "remove the registrations and reservations of SCSI initiators: lunar pr iscsi://HOST/TARGET/LUN \
             read-full-status"
                .into(),
        ),
        None => (
            format!("{what}\n  this host, {}, is not registered", uuid_text(&id)),
            "register first: lunar pr URL register --new-key KEY; or add host_id= of the registrant to the URL, \
             unless a controller of that host is connected: the target may end it".into(),
        ),
        Some(one) if one.key != given => (
            format!("{what}\n  this host is registered with key {:#x}, not {given:#x}", one.key),
            "give the registered key: --key".into(),
        ),
        Some(_) => (what, "wait until the reservation is released, or preempt it".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(kind: Option<ReservationKind>) -> NvmeReservations {
        let one = |id, key, is_holder| NvmeRegistrant { host_id: [id; 16], key, controller: None, is_holder };
        let registrants = vec![one(1, 7, kind.is_some()), one(2, 8, false)];
        NvmeReservations { generation: 3, kind, persists: true, registrants }
    }

    fn order(kind: u8, key: u64, action_key: u64) -> PrOut {
        let parameters =
            ReserveOutParameters { key, action_key, aptpl: true, ..ReserveOutParameters::default() };
        PrOut { action: 0, kind, parameters }
    }

    #[test]
    fn action_becomes_the_change_of_the_same_meaning() {
        let (kind, persists) = (ReservationKind::WriteExclusiveRegistrants, Some(true));
        for (action, order, expected) in [
            (PrAction::Register, order(0, 0, 7), ReservationChange::Register { key: 7, persists }),
            (PrAction::RegisterIgnore, order(0, 6, 7), ReservationChange::Register { key: 7, persists }),
            (
                PrAction::Register,
                order(0, 6, 7),
                ReservationChange::Replace { key: Some(6), new_key: 7, persists },
            ),
            (PrAction::Register, order(0, 6, 0), ReservationChange::Unregister { key: Some(6) }),
            (PrAction::RegisterIgnore, order(0, 0, 0), ReservationChange::Unregister { key: None }),
            (PrAction::Reserve, order(5, 7, 0), ReservationChange::Acquire { key: 7, kind }),
            (PrAction::Release, order(5, 7, 0), ReservationChange::Release { key: 7, kind }),
            (PrAction::Clear, order(0, 7, 0), ReservationChange::Clear { key: 7 }),
            (
                PrAction::PreemptAbort,
                order(5, 7, 8),
                ReservationChange::Preempt { key: 7, preempted: 8, kind, aborts: true },
            ),
        ] {
            assert_eq!(change(action, &order), expected, "{action:?}");
        }
    }

    #[test]
    fn conflict_shows_the_holder_and_this_host() {
        let (acquire, register) = (
            ReservationChange::Acquire { key: 9, kind: ReservationKind::WriteExclusive },
            ReservationChange::Register { key: 9, persists: None },
        );
        let held = state(Some(ReservationKind::WriteExclusive));
        let (what, hint) = why(&held, [3; 16], acquire, 9);
        assert!(
            what.contains("held by host 01010101-0101-0101-0101-010101010101 with key 0x7: write exclusive")
        );
        assert!(what.ends_with("is not registered") && hint.contains("host_id="), "{what}: {hint}");
        assert!(why(&held, [2; 16], acquire, 9).0.ends_with("with key 0x8, not 0x9"));
        assert!(why(&held, [2; 16], acquire, 8).1.starts_with("wait"));
        assert!(why(&state(None), [3; 16], register, 0).0.ends_with("SCSI initiators exclude NVMe hosts"));
    }

    #[test]
    fn reservation_of_all_has_no_key() {
        for (kind, key) in [(ReservationKind::WriteExclusive, 7), (ReservationKind::WriteExclusiveAll, 0)] {
            assert_eq!(reservation(&state(Some(kind)))[1], ("key".into(), pr_key(key)));
        }
        assert_eq!(reservation(&state(None)), [("reserved".to_owned(), Node::flag(false))]);
    }
}
