//! Actions on a logical unit: PERSISTENT RESERVE IN and OUT.

use super::{PrAction, PrOut, PrResults, PrStep, look_name};
use crate::error_hints::with_url_hint;
use crate::exit::{Exit, Failure};
use crate::info::pages;
use crate::open_lun::{OpenLun, is_rejected};
use crate::tree::{self, Node};
use crate::{client, output};
use lunar_initiator::{Error, ErrorCode};
use lunar_wire::scsi::cdb;
use lunar_wire::scsi::pr::{self, RegistrationDescriptor};

/// The ISID of these commands, of the random format (RFC 7143 section 11.12.5).
const ISID: [u8; 6] = *b"\x80Lunar";

/// Service actions of PERSISTENT RESERVE OUT.
const REGISTER: u8 = 0;
const REGISTER_AND_IGNORE: u8 = 6;

/// Executes the actions in order in one session, up to the first failure.
///
/// # Errors
/// The failure of an action, or of the login.
pub fn run(url: &str, asked: client::ClientArgs, steps: Vec<PrStep>) -> Result<PrResults, Failure> {
    let url = client::url(url)?;
    let whole = url.clone();
    let ended = client::run(asked, move || async move {
        let unit = OpenLun::open(&url, Some(ISID)).await?;
        let ended = perform(&unit, steps).await;
        unit.close().await;
        ended
    });
    ended.map_err(|failure| with_url_hint(&whole, failure))
}

async fn perform(unit: &OpenLun, steps: Vec<PrStep>) -> Result<PrResults, Failure> {
    let mut results = PrResults::new();
    for PrStep { action, order } in steps {
        match order {
            Some(order) => send(unit, order).await?,
            None => results.push((look_name(action), look(unit, action).await?)),
        }
    }
    Ok(results)
}

async fn ask(unit: &OpenLun, number: u8) -> Result<Vec<u8>, Error> {
    unit.read(cdb::persistent_reserve_in(number, u16::MAX), u16::MAX.into()).await
}

async fn look(unit: &OpenLun, action: PrAction) -> Result<pages::Fields, Error> {
    Ok(match action {
        PrAction::ReadKeys => pages::keys(&ask(unit, 0).await?),
        PrAction::ReadReservation => pages::reservation(&ask(unit, 1).await?),
        PrAction::ReportCapabilities => tree::read(pr::CAPABILITIES, &ask(unit, 2).await?),
        _ => match ask(unit, 3).await {
            Ok(b) => vec![
                ("generation".into(), Node::number(pr::generation(&b))),
                ("registrations".into(), pages::registrations(&b)),
            ],
            Err(e) if is_rejected(&e) => {
                output::stderr_line(format_args!(
                    "warning: READ FULL STATUS failed: {e}; keys and reservation are shown instead"
                ));
                [pages::keys(&ask(unit, 0).await?), pages::reservation(&ask(unit, 1).await?)].concat()
            }
            Err(e) => return Err(e),
        },
    })
}

async fn send(unit: &OpenLun, order: PrOut) -> Result<(), Failure> {
    let cdb = cdb::persistent_reserve_out(order.action, order.kind, pr::PARAMETERS_LEN as u32);
    match unit.write(cdb, &order.parameters.encode()).await {
        Ok(()) => Ok(()),
        Err(e) if e.code == ErrorCode::ReservationConflict => Err(conflict(unit, &order).await),
        Err(e) => Err(e.into()),
    }
}

/// RESERVATION CONFLICT: shows the holder and our own registration.
async fn conflict(unit: &OpenLun, order: &PrOut) -> Failure {
    let given = order.parameters.key;
    let registers = order.action == REGISTER_AND_IGNORE || order.action == REGISTER && given == 0;
    let results = match ask(unit, 3).await {
        Ok(b) => Ok(why(&pr::registrations(&b).collect::<Vec<_>>(), &unit.our_port(), given, registers)),
        Err(e) if is_rejected(&e) => why_by_keys(unit, given).await,
        Err(e) => Err(e),
    };
    let unknown =
        |e| ("reservation conflict".to_owned(), format!("the holder of the reservation cannot be read: {e}"));
    let (what, hint) = results.unwrap_or_else(unknown);
    Failure::new(Exit::NoAccess, what, hint)
}

/// Describes the conflict by READ KEYS and READ RESERVATION, for targets that reject READ FULL STATUS.
async fn why_by_keys(unit: &OpenLun, given: u64) -> Result<(String, String), Error> {
    let (keys, held) = (ask(unit, 0).await?, ask(unit, 1).await?);
    let mut what = "reservation conflict".to_owned();
    if let Some(held) = pr::reservation(&held) {
        let kind = pr::type_name(held.kind).unwrap_or("of an unknown type");
        what += &format!("\n  held by a registrant with key {:#x}: {kind}", held.key);
    }
    if !pr::keys(&keys).any(|key| key == given) {
        what += &format!("\n  no registration has key {given:#x}");
    }
    let hint = "some targets, such as STGT, drop a registration when its session ends: give all actions in one \
        command, such as lunar pr URL register reserve --new-key KEY --type TYPE";
    Ok((what, hint.into()))
}

/// `registers`: the command would have registered this initiator for the first time.
fn why(all: &[RegistrationDescriptor], our_port: &str, given: u64, registers: bool) -> (String, String) {
    let mut what = "reservation conflict".to_owned();
    for one in all.iter().filter(|one| one.holds.is_some()) {
        let kind = one.holds.and_then(pr::type_name).unwrap_or("of an unknown type");
        what += &format!("\n  held by {} with key {:#x}: {kind}", one.initiator, one.key);
    }
    let ours = all.iter().find(|one| is(&one.initiator, our_port));
    match ours {
        None if our_other_isid(all, our_port).is_some() => {
            let isid = our_other_isid(all, our_port).unwrap_or_default();
            (
                what + "\n  the holder has this initiator name and another ISID",
                format!("add isid={isid} to the URL to act as the holder"),
            )
        }
        // Only the hosts of NVMe keep it from that.
        None if registers && !all.is_empty() => (
            what + "\n  this initiator cannot register now: NVMe hosts exclude SCSI initiators",
            "remove the registrations of NVMe hosts: lunar pr nvme://HOST/NQN/NAMESPACE read-full-status"
                .to_owned(),
        ),
        None => (
            what + "\n  this initiator is not registered",
            "register first: lunar pr URL register --new-key KEY".to_owned(),
        ),
        Some(one) if one.key != given => (
            format!("{what}\n  this initiator is registered with key {:#x}, not {given:#x}", one.key),
            "give the registered key: --key".into(),
        ),
        Some(_) => (what, "wait until the reservation is released, or preempt it".into()),
    }
}

/// Whether a registrant is this initiator. Over SRP some targets return our port as bytes of a TransportID, others as a
/// name.
fn is(registrant: &str, our_port: &str) -> bool {
    let is_srp = !our_port.contains(',');
    registrant.eq_ignore_ascii_case(our_port) || is_srp && registrant.to_ascii_lowercase().contains(our_port)
}

/// The ISID of the holder, if that has our name (SPC-5 section 7.6.4.6: NAME,i,0xISID).
fn our_other_isid<'a>(all: &'a [RegistrationDescriptor], our_port: &str) -> Option<&'a str> {
    const SIGN: &str = ",i,0x";
    let (us, _) = our_port.split_once(SIGN)?;
    let holders = all.iter().filter(|one| one.holds.is_some());
    let mut ports = holders.filter_map(|one| one.initiator.split_once(SIGN));
    ports.find(|(name, _)| name.eq_ignore_ascii_case(us)).map(|(_, isid)| isid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(initiator: &str, key: u64, holds: Option<u8>) -> RegistrationDescriptor {
        RegistrationDescriptor { key, holds, all_ports: false, port: 1, initiator: initiator.into() }
    }

    #[test]
    fn conflict_shows_holder_and_own_registration() {
        let all = [registered("iqn.a,i,0x80", 1, Some(5)), registered("iqn.b,i,0x80", 2, None)];
        let (what, hint) = why(&all, "iqn.c,i,0x80", 3, false);
        assert!(
            what.contains("held by iqn.a,i,0x80 with key 0x1: write exclusive, registrants only"),
            "{what}"
        );
        assert!(what.ends_with("this initiator is not registered") && hint.contains("register"), "{what}");
        assert!(why(&all, "IQN.B,i,0x80", 3, false).0.ends_with("with key 0x2, not 0x3"));
        assert!(why(&all, "iqn.b,i,0x80", 2, false).1.starts_with("wait"));
        let srp =
            [registered("0x0000800000000001AB,i,0x80", 1, Some(5)), registered("04000000ab02", 2, None)];
        assert!(why(&srp, "0000800000000001ab", 3, false).0.ends_with("with key 0x1, not 0x3"));
        assert!(why(&srp, "ab02", 2, false).1.starts_with("wait"));
        assert!(why(&all, "iqn.c,i,0x80", 0, true).0.ends_with("NVMe hosts exclude SCSI initiators"));
        let (what, hint) = why(&all, "iqn.a,i,0x81", 1, false);
        assert!(what.ends_with("another ISID") && hint.contains("isid=80 "), "{what}; {hint}");
    }
}
