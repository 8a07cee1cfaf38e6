//! `lunar pr`: persistent reservations.

use crate::client::{self, ClientArgs, json, run};
use crate::error_hints::with_url_hint;
use crate::exit::{Exit, Failure};
use crate::info::pages;
use crate::open_lun::{OpenLun, is_rejected};
use crate::output;
use crate::tree::{self, Node};
use clap::{Args, ValueEnum};
use lunar_initiator::{Error, ErrorCode};
use lunar_wire::scsi::cdb;
use lunar_wire::scsi::pr::{self, RegistrationDescriptor, ReserveOutParameters};

const EXAMPLES: &str = "\
Examples:
  lunar pr iscsi://127.0.0.1 read-full-status
  lunar pr iscsi://127.0.0.1 register --new-key 0xabc
  lunar pr iscsi://127.0.0.1 reserve --key 0xabc --type we-ro
  lunar pr iscsi://127.0.0.1 preempt --key 0xabc --new-key 0xdef --type we-ro
  lunar pr iscsi://127.0.0.1 register --key 0xabc --new-key 0
  lunar pr iscsi://127.0.0.1 register reserve read-keys --new-key 0xabc --type we-ro

Several actions run in order in one session; after register, the new key is used. Some targets, such as STGT, drop
a registration when its session ends: give them all actions in one command.

A registration belongs to an initiator name and the ISID of a session. lunar pr always uses the same ISID, unless
the URL has another one: isid=800000000001.";

/// The ISID of these commands, of the random format (RFC 7143 section 11.12.5).
const ISID: [u8; 6] = *b"\x80Lunar";

/// An action, as sg_persist calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrAction {
    /// List the keys of all registrations
    ReadKeys,
    /// Show the reservation
    ReadReservation,
    /// Show the supported reservation features
    ReportCapabilities,
    /// List the registered initiators and the holder of the reservation
    ReadFullStatus,
    /// Register, change the key, or (--new-key 0) unregister
    Register,
    /// Register without a check of the current key
    RegisterIgnore,
    /// Acquire the reservation
    Reserve,
    /// Release the reservation
    Release,
    /// Remove all registrations and the reservation
    Clear,
    /// Remove the registrations of another key, and take over its reservation
    Preempt,
    /// Preempt, and abort the commands of the preempted initiators
    PreemptAbort,
}
use PrAction::*;

/// The service action and the required options of an action.
struct PrRequirements {
    action: u8,
    key: bool,
    new_key: bool,
    kind: bool,
}

impl PrAction {
    /// The requirements of an action of PERSISTENT RESERVE OUT; None for others.
    fn out(self) -> Option<PrRequirements> {
        let needs = |action, key, new_key, kind| Some(PrRequirements { action, key, new_key, kind });
        match self {
            ReadKeys | ReadReservation | ReportCapabilities | ReadFullStatus => None,
            Register => needs(0, false, true, false),
            Reserve => needs(1, true, false, true),
            Release => needs(2, true, false, true),
            Clear => needs(3, true, false, false),
            Preempt => needs(4, true, true, true),
            PreemptAbort => needs(5, true, true, true),
            RegisterIgnore => needs(6, false, true, false),
        }
    }
}

/// Arguments of `lunar pr`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Pr {
    /// iscsi://HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...], or an iser:// or srp:// URL
    url: String,

    /// Actions, performed in this order in one session
    #[arg(value_enum, required = true, value_name = "ACTION")]
    actions: Vec<PrAction>,

    /// Registered key of this initiator, in hexadecimal digits
    #[arg(long, visible_alias = "param-rk", value_name = "KEY", value_parser = key)]
    key: Option<u64>,

    /// Key to register, or key to preempt
    #[arg(long, visible_alias = "param-sark", value_name = "KEY", value_parser = key)]
    new_key: Option<u64>,

    /// Reservation type: we, ea, we-ro, ea-ro, we-ar, ea-ar, or 1, 3, 5, 6, 7, 8 (write exclusive or exclusive
    /// access; ro: registrants only, ar: all registrants)
    #[arg(long = "type", visible_alias = "prout-type", value_name = "TYPE", value_parser = kind)]
    kind: Option<u8>,

    /// Persist through power loss (APTPL)
    #[arg(long, visible_alias = "param-aptpl")]
    aptpl: bool,

    /// Register at all ports of the target
    #[arg(long, visible_alias = "param-alltgpt")]
    all_ports: bool,

    #[command(flatten)]
    common: ClientArgs,
}

fn key(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let read = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    read.ok_or_else(|| "a key has up to 16 hexadecimal digits, such as 0xabc".into())
}

fn kind(text: &str) -> Result<u8, String> {
    let is = |row: &&(u8, &str, &str)| row.2 == text || row.0.to_string() == text;
    let row = pr::TYPES.iter().find(is);
    row.map(|row| row.0).ok_or_else(|| "use we, ea, we-ro, ea-ro, we-ar, ea-ar, or 1, 3, 5, 6, 7, 8".into())
}

/// The text to print.
///
/// # Errors
/// [`Exit::NoAccess`] on a reservation conflict; the message names the holder.
pub fn pr(args: Pr) -> Result<String, Failure> {
    let url = client::url(&args.url)?;
    let (asked, steps) = (args.common, steps(&args)?);
    let whole = url.clone();
    let results = run(asked, move || async move {
        let unit = OpenLun::open(&url, Some(ISID)).await?;
        let ended = perform(&unit, steps).await;
        unit.close().await;
        ended
    });
    let mut results = results.map_err(|failure| with_url_hint(&whole, failure))?;
    let fields = match results.len() {
        1 => results.remove(0).1,
        _ => results.into_iter().map(|(name, fields)| (name, Node::Map(fields))).collect(),
    };
    Ok(if asked.json { json(&Node::Map(fields))? } else { tree::lines(&fields) })
}

/// Executes the actions in order, up to the first failure. Returns the results of those that read, by action.
async fn perform(unit: &OpenLun, steps: Vec<PrStep>) -> Result<Vec<(String, pages::Fields)>, Failure> {
    let mut results = Vec::new();
    for PrStep { action, order } in steps {
        match order {
            Some(order) => send(unit, order).await?,
            None => results.push((name(action), look(unit, action).await?)),
        }
    }
    Ok(results)
}

/// The name of an action on the command line, with underscores.
fn name(action: PrAction) -> String {
    let value = action.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().replace('-', "_"))
}

/// An action and the command that it sends; None for actions that read.
struct PrStep {
    action: PrAction,
    order: Option<PrOut>,
}

/// The parameters of PERSISTENT RESERVE OUT.
struct PrOut {
    action: u8,
    kind: u8,
    parameters: ReserveOutParameters,
}

/// The steps that the arguments describe.
fn steps(args: &Pr) -> Result<Vec<PrStep>, Failure> {
    let mut key = args.key;
    let mut registers = false;
    let mut steps = Vec::new();
    for &action in &args.actions {
        if registers && matches!(action, Register | RegisterIgnore | Preempt | PreemptAbort) {
            let what = "--new-key applies to one action only";
            return Err(Failure::new(Exit::Invalid, what, "run one command for each action"));
        }
        let order = action.out().map(|needs| order(args, key, &needs)).transpose()?;
        if matches!(action, Register | RegisterIgnore) {
            (key, registers) = (args.new_key, true);
        }
        steps.push(PrStep { action, order });
    }
    Ok(steps)
}

fn order(args: &Pr, key: Option<u64>, needs: &PrRequirements) -> Result<PrOut, Failure> {
    let missing = [
        (needs.key && key.is_none(), "--key", "give the registered key of this initiator"),
        (
            needs.new_key && args.new_key.is_none(),
            "--new-key",
            "add --new-key KEY, the key to register or to preempt",
        ),
        (needs.kind && args.kind.is_none(), "--type", "add a reservation type, such as --type we-ro"),
    ];
    if let Some((_, option, hint)) = missing.iter().find(|row| row.0) {
        return Err(Failure::new(Exit::Invalid, format!("{option} is missing"), *hint));
    }
    let parameters = ReserveOutParameters {
        key: key.unwrap_or(0),
        action_key: if needs.new_key { args.new_key.unwrap_or(0) } else { 0 },
        all_ports: args.all_ports,
        aptpl: args.aptpl,
    };
    Ok(PrOut { action: needs.action, kind: args.kind.unwrap_or(0), parameters })
}

async fn ask(unit: &OpenLun, number: u8) -> Result<Vec<u8>, Error> {
    unit.read(cdb::persistent_reserve_in(number, u16::MAX), u16::MAX.into()).await
}

async fn look(unit: &OpenLun, action: PrAction) -> Result<pages::Fields, Error> {
    Ok(match action {
        ReadKeys => pages::keys(&ask(unit, 0).await?),
        ReadReservation => pages::reservation(&ask(unit, 1).await?),
        ReportCapabilities => tree::read(pr::CAPABILITIES, &ask(unit, 2).await?),
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
        Err(e) if e.code == ErrorCode::ReservationConflict => Err(conflict(unit, order.parameters.key).await),
        Err(e) => Err(e.into()),
    }
}

/// RESERVATION CONFLICT: shows the holder and our own registration.
async fn conflict(unit: &OpenLun, given: u64) -> Failure {
    let results = match ask(unit, 3).await {
        Ok(b) => Ok(why(&pr::registrations(&b).collect::<Vec<_>>(), &unit.our_port(), given)),
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

fn why(all: &[RegistrationDescriptor], our_port: &str, given: u64) -> (String, String) {
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

    #[test]
    fn keys_and_types_are_read() {
        assert_eq!((key("0xabc"), key("ABC"), key("0")), (Ok(0xabc), Ok(0xabc), Ok(0)));
        assert!(["", "0x", "+1", "0x11111111111111111", "g"].iter().all(|text| key(text).is_err()));
        assert_eq!((kind("we-ro"), kind("8"), kind("ea")), (Ok(5), Ok(8), Ok(3)));
        assert!(["2", "0", "WE", "wero"].iter().all(|text| kind(text).is_err()));
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        pr: Pr,
    }

    #[test]
    fn after_register_the_new_key_is_ours() {
        use clap::Parser;
        let steps = |line: &str| steps(&Line::parse_from(line.split(' ')).pr);
        let all = steps("pr iscsi://h register reserve read-keys --new-key abc --type we").unwrap();
        let sent = |n: usize| all[n].order.as_ref().map(|order| order.parameters);
        let parameters =
            |key, action_key| ReserveOutParameters { key, action_key, ..ReserveOutParameters::default() };
        assert_eq!(sent(0), Some(parameters(0, 0xabc)));
        assert_eq!(sent(1), Some(parameters(0xabc, 0)));
        assert_eq!((sent(2), name(all[2].action).as_str()), (None, "read_keys"));
        for line in ["pr u reserve --type we", "pr u register preempt --new-key 1 --type we --key 2"] {
            assert_eq!(steps(line).err().map(|failure| failure.exit), Some(Exit::Invalid), "{line}");
        }
    }

    fn registered(initiator: &str, key: u64, holds: Option<u8>) -> RegistrationDescriptor {
        RegistrationDescriptor { key, holds, all_ports: false, port: 1, initiator: initiator.into() }
    }

    #[test]
    fn conflict_shows_holder_and_own_registration() {
        let all = [registered("iqn.a,i,0x80", 1, Some(5)), registered("iqn.b,i,0x80", 2, None)];
        let (what, hint) = why(&all, "iqn.c,i,0x80", 3);
        assert!(
            what.contains("held by iqn.a,i,0x80 with key 0x1: write exclusive, registrants only"),
            "{what}"
        );
        assert!(what.ends_with("this initiator is not registered") && hint.contains("register"), "{what}");
        assert!(why(&all, "IQN.B,i,0x80", 3).0.ends_with("with key 0x2, not 0x3"));
        assert!(why(&all, "iqn.b,i,0x80", 2).1.starts_with("wait"));
        let srp =
            [registered("0x0000800000000001AB,i,0x80", 1, Some(5)), registered("04000000ab02", 2, None)];
        assert!(why(&srp, "0000800000000001ab", 3).0.ends_with("with key 0x1, not 0x3"));
        assert!(why(&srp, "ab02", 2).1.starts_with("wait"));
        let (what, hint) = why(&all, "iqn.a,i,0x81", 1);
        assert!(what.ends_with("another ISID") && hint.contains("isid=80 "), "{what}; {hint}");
    }
}
