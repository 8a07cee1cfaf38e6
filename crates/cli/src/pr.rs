//! `lunar pr`: persistent reservations.

use crate::client::{self, Asked, json, run};
use crate::exit::{Exit, Failure};
use crate::info::pages;
use crate::tree::{self, Node};
use crate::unit::Unit;
use clap::{Args, ValueEnum};
use initiator::{Error, Kind};
use wire::scsi::cdb;
use wire::scsi::pr::{self, Parameters, Registration};

const EXAMPLES: &str = "\
Examples:
  lunar pr iscsi://127.0.0.1 read-full-status
  lunar pr iscsi://127.0.0.1 register --new-key 0xabc
  lunar pr iscsi://127.0.0.1 reserve --key 0xabc --type we-ro
  lunar pr iscsi://127.0.0.1 preempt --key 0xabc --new-key 0xdef --type we-ro
  lunar pr iscsi://127.0.0.1 register --key 0xabc --new-key 0

A registration belongs to our name and to the ISID of the session. lunar pr uses the same
ISID each time, unless the URL names one: isid=800000000001.";

/// The ISID of these commands, of the random format (RFC 7143 section 11.12.5).
const ISID: [u8; 6] = *b"\x80Lunar";

/// What to do, as sg_persist calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// The keys of all registrations
    ReadKeys,
    /// The reservation, if there is one
    ReadReservation,
    /// What is supported
    ReportCapabilities,
    /// Who is registered, and who holds the reservation
    ReadFullStatus,
    /// Register, change the key, or (--new-key 0) take the registration back
    Register,
    /// The same, whatever key is registered now
    RegisterIgnore,
    /// Reserve
    Reserve,
    /// Give the reservation back
    Release,
    /// Take back all registrations and the reservation
    Clear,
    /// Take another's registrations away, and the reservation if it is the holder
    Preempt,
    /// The same, and abort its commands
    PreemptAbort,
}
use Action::*;

/// What an action needs: service action, --key, --new-key, --type.
struct Needs {
    action: u8,
    key: bool,
    new_key: bool,
    kind: bool,
}

impl Action {
    /// What is sent out; None for those that read.
    fn out(self) -> Option<Needs> {
        let needs = |action, key, new_key, kind| Some(Needs { action, key, new_key, kind });
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
    /// iscsi://HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...]
    url: String,

    /// What to do
    #[arg(value_enum)]
    action: Action,

    /// The key that we are registered with, in hexadecimal digits
    #[arg(long, visible_alias = "param-rk", value_name = "KEY", value_parser = key)]
    key: Option<u64>,

    /// The key to be registered, or that of who is to be preempted
    #[arg(long, visible_alias = "param-sark", value_name = "KEY", value_parser = key)]
    new_key: Option<u64>,

    /// we, ea, we-ro, ea-ro, we-ar, ea-ar, or 1, 3, 5, 6, 7, 8: write exclusive or exclusive access, for the
    /// holder, for registrants only, for all registrants
    #[arg(long = "type", visible_alias = "prout-type", value_name = "TYPE", value_parser = kind)]
    kind: Option<u8>,

    /// Keep it through power loss
    #[arg(long, visible_alias = "param-aptpl")]
    aptpl: bool,

    /// Register at all ports of the target
    #[arg(long, visible_alias = "param-alltgpt")]
    all_ports: bool,

    #[command(flatten)]
    asked: Asked,
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
    row.map(|row| row.0).ok_or_else(|| "it is we, ea, we-ro, ea-ro, we-ar, ea-ar, or 1, 3, 5, 6, 7, 8".into())
}

/// The text to print.
///
/// # Errors
/// [`Exit::NoAccess`] with who holds the reservation when it is refused.
pub fn pr(args: Pr) -> Result<String, Failure> {
    let url = client::url(&args.url)?;
    let order = args.action.out().map(|needs| order(&args, needs)).transpose()?;
    let (asked, action) = (args.asked, args.action);
    let facts = run(asked, move || async move {
        let unit = Unit::open(&url, Some(ISID)).await?;
        let ended = match order {
            Some(order) => send(&unit, order).await,
            None => look(&unit, action).await.map_err(Failure::from),
        };
        unit.close().await;
        ended
    })?;
    Ok(if asked.json { json(&Node::Map(facts))? } else { tree::lines(&facts) })
}

/// What is sent.
struct Order {
    action: u8,
    kind: u8,
    parameters: Parameters,
}

fn order(args: &Pr, needs: Needs) -> Result<Order, Failure> {
    let missing = [
        (needs.key && args.key.is_none(), "--key", "it is the key that we are registered with"),
        (needs.new_key && args.new_key.is_none(), "--new-key", "see lunar pr --help"),
        (needs.kind && args.kind.is_none(), "--type", "such as --type we-ro"),
    ];
    if let Some((_, option, hint)) = missing.iter().find(|row| row.0) {
        return Err(Failure::new(Exit::Invalid, format!("{option} is missing"), *hint));
    }
    let parameters = Parameters {
        key: args.key.unwrap_or(0),
        action_key: args.new_key.unwrap_or(0),
        all_ports: args.all_ports,
        aptpl: args.aptpl,
    };
    Ok(Order { action: needs.action, kind: args.kind.unwrap_or(0), parameters })
}

async fn look(unit: &Unit, action: Action) -> Result<pages::Facts, Error> {
    let number = match action {
        ReadKeys => 0,
        ReadReservation => 1,
        ReportCapabilities => 2,
        _ => 3,
    };
    let b = unit.read(cdb::persistent_reserve_in(number, u16::MAX), u16::MAX.into()).await?;
    Ok(match action {
        ReadKeys => pages::keys(&b),
        ReadReservation => pages::reservation(&b),
        ReportCapabilities => tree::read(pr::CAPABILITIES, &b),
        _ => vec![
            ("generation".into(), Node::number(pr::generation(&b))),
            ("registrations".into(), pages::registrations(&b)),
        ],
    })
}

async fn send(unit: &Unit, order: Order) -> Result<pages::Facts, Failure> {
    let cdb = cdb::persistent_reserve_out(order.action, order.kind, pr::PARAMETERS_LEN as u32);
    match unit.write(cdb, &order.parameters.encode()).await {
        Ok(()) => Ok(Vec::new()),
        Err(e) if e.kind == Kind::Reserved => Err(conflict(unit, order.parameters.key).await),
        Err(e) => Err(e.into()),
    }
}

/// RESERVATION CONFLICT: who holds it, and who we are to the logical unit.
async fn conflict(unit: &Unit, given: u64) -> Failure {
    let cdb = cdb::persistent_reserve_in(3, u16::MAX);
    let all: Vec<Registration> = match unit.read(cdb, u16::MAX.into()).await {
        Ok(b) => pr::registrations(&b).collect(),
        Err(e) => {
            return Failure::new(
                Exit::NoAccess,
                "reservation conflict",
                format!("nor can it be told why: {e}"),
            );
        }
    };
    let (what, hint) = why(&all, &unit.our_port(), given);
    Failure::new(Exit::NoAccess, what, hint)
}

fn why(all: &[Registration], our_port: &str, given: u64) -> (String, &'static str) {
    let mut what = "reservation conflict".to_owned();
    for one in all.iter().filter(|one| one.holds.is_some()) {
        let kind = one.holds.and_then(pr::type_name).unwrap_or("of an unknown type");
        what += &format!("\n  held by {} with key {:#x}: {kind}", one.initiator, one.key);
    }
    let ours = all.iter().find(|one| one.initiator.eq_ignore_ascii_case(our_port));
    match ours {
        None => (what + "\n  we are not registered", "lunar pr URL register --new-key KEY registers us"),
        Some(one) if one.key != given => (
            format!("{what}\n  we are registered with key {:#x}, not {given:#x}", one.key),
            "give that key: --key",
        ),
        Some(_) => (what, "wait until it is released, or preempt it"),
    }
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

    fn registered(initiator: &str, key: u64, holds: Option<u8>) -> Registration {
        Registration { key, holds, all_ports: false, port: 1, initiator: initiator.into() }
    }

    #[test]
    fn a_conflict_says_who_holds_it_and_who_we_are() {
        let all = [registered("iqn.a,i,0x80", 1, Some(5)), registered("iqn.b,i,0x80", 2, None)];
        let (what, hint) = why(&all, "iqn.c,i,0x80", 3);
        assert!(
            what.contains("held by iqn.a,i,0x80 with key 0x1: write exclusive, registrants only"),
            "{what}"
        );
        assert!(what.ends_with("we are not registered") && hint.contains("register"), "{what}");
        assert!(why(&all, "IQN.B,i,0x80", 3).0.ends_with("with key 0x2, not 0x3"));
        assert!(why(&all, "iqn.b,i,0x80", 2).1.starts_with("wait"));
    }
}
