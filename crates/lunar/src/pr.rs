//! `lunar pr`: persistent reservations.

mod lun;
mod namespace;

use crate::client::{ClientArgs, json};
use crate::exit::{Exit, Failure};
use crate::info::pages;
use crate::tree::{self, Node};
use clap::{Args, ValueEnum};
use lunar_initiator::nvme;
use lunar_wire::scsi::pr::{self, ReserveOutParameters};

const EXAMPLES: &str = "\
Examples:
  lunar pr iscsi://127.0.0.1 read-full-status
  lunar pr iscsi://127.0.0.1 register --new-key 0xabc
  lunar pr iscsi://127.0.0.1 reserve --key 0xabc --type we-ro
  lunar pr iscsi://127.0.0.1 preempt --key 0xabc --new-key 0xdef --type we-ro
  lunar pr iscsi://127.0.0.1 register --key 0xabc --new-key 0
  lunar pr iscsi://127.0.0.1 register reserve read-keys --new-key 0xabc --type we-ro
  lunar pr nvme://127.0.0.1/nqn.2026-11.org.example:disks/1 read-full-status

Several actions run in order in one session; after register, the new key is used. Some targets, such as STGT, drop
a registration when its session ends: give them all actions in one command.

A registration belongs to an initiator name and the ISID of a session. lunar pr always uses the same ISID, unless
the URL has another one: isid=800000000001. With NVMe, it belongs to the name and the identifier of the host. lunar pr
always uses the same identifier, unless the URL has another one: host_id=UUID.";

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
    /// iscsi://HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...], an iser:// or srp:// URL, or nvme://HOST[:PORT]/NQN[/NAMESPACE]
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

    /// Reservation type: we, ea, we-ro, ea-ro, we-ar, ea-ar, or the numbers of SCSI 1, 3, 5, 6, 7, 8 (write exclusive
    /// or exclusive access; ro: registrants only, ar: all registrants)
    #[arg(long = "type", visible_alias = "prout-type", value_name = "TYPE", value_parser = kind)]
    kind: Option<u8>,

    /// Persist through power loss (APTPL; NVMe: CPTPL)
    #[arg(long, visible_alias = "param-aptpl")]
    aptpl: bool,

    /// Register at all ports of the target (SCSI)
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
    let steps = steps(&args)?;
    let run = if nvme::is_url(&args.url) { namespace::run } else { lun::run };
    let mut results = run(&args.url, args.common, steps)?;
    let fields = match results.len() {
        1 => results.remove(0).1,
        _ => results.into_iter().map(|(name, fields)| (name, Node::Map(fields))).collect(),
    };
    Ok(if args.common.json { json(&Node::Map(fields))? } else { tree::lines(&fields) })
}

/// The results of the actions that read, by action.
type PrResults = Vec<(String, pages::Fields)>;

/// The name of an action on the command line, with underscores.
fn look_name(action: PrAction) -> String {
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
        assert_eq!((sent(2), look_name(all[2].action).as_str()), (None, "read_keys"));
        for line in ["pr u reserve --type we", "pr u register preempt --new-key 1 --type we --key 2"] {
            assert_eq!(steps(line).err().map(|failure| failure.exit), Some(Exit::Invalid), "{line}");
        }
    }
}
