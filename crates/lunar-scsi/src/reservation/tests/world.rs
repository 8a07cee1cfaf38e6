//! A logical unit with a few nexuses, driven by scripts. A line is `NEXUS VERB ARGUMENTS -> OUTCOME`.
//!
//! A nexus is an initiator (a letter), its portal group (a digit, by default 1), and `'` for another ISID. A
//! lower-case letter is an SRP initiator, which uses the SRP port of its group. `@USER` is the CHAP user. Keys are
//! hexadecimal.
//!
//! Outcomes: `good`; the plans `save`, `abort A B`, `abort A B save`; `conflict`; sense data such as `5/26/00`,
//! followed by `@20.3` or `@c2.3` for a field pointer (byte and bit) into the parameter list or the CDB; the content
//! of a report.

use crate::testing::{disk, run, run_with};
use crate::{
    InitiatorPort, Lu, LuSettings, Nexus, NexusId, NexusPorts, Op, Plan, PlanResult, TargetPort, TargetPorts,
    TransportProtocol,
};
use lunar_wire::be;
use lunar_wire::scsi::{Sense, Status, op};
use lunar_wire::srp::PortId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The logical unit and its nexuses by name.
pub(super) struct TestTarget {
    pub(super) lu: Arc<Lu>,
    pub(super) nexuses: BTreeMap<String, Nexus>,
}

/// The ports of the target: each of two portal groups has an iSCSI port and an SRP port.
fn ports() -> TargetPorts {
    let group = |group| {
        [TransportProtocol::Iscsi, TransportProtocol::Srp]
            .map(|protocol| TargetPort::new(protocol, group, None))
    };
    TargetPorts::new([group(1), group(2)].concat())
}

/// The SRP port of a lower-case letter.
fn srp(name: &str) -> Option<PortId> {
    let letter = name.bytes().next().filter(u8::is_ascii_lowercase)?;
    Some(PortId::new(0xaaaa, letter.into()))
}

/// The ports of a nexus with this name.
pub(super) fn port(name: &str) -> Arc<NexusPorts> {
    let (name, user) = name.split_once('@').unwrap_or((name, ""));
    let tag = name.chars().find_map(|c| c.to_digit(10)).unwrap_or(1);
    let iscsi = || InitiatorPort::Iscsi {
        name: format!("iqn.2026-11.org.example:{}", name[..1].to_ascii_lowercase()),
        isid: [0x80, 0, 0, 0, 0, name.ends_with('\'') as u8],
    };
    let initiator = srp(name).map_or_else(iscsi, InitiatorPort::Srp);
    let own = TargetPort::new(initiator.protocol(), tag as u16, None);
    Arc::new(NexusPorts {
        initiator,
        user: user.into(),
        target: "iqn.2026-11.org.example:disk".into(),
        own,
        ports: ports(),
    })
}

/// The TransportID of a nexus: for iSCSI format 01b, or 00b after a `*`; for SRP its port.
pub(super) fn transport_id(name: &str) -> Vec<u8> {
    if let Some(PortId(port)) = srp(name) {
        return [&[4, 0, 0, 0, 0, 0, 0, 0][..], &port].concat();
    }
    let (format, text) = match name.strip_prefix('*') {
        Some(letter) => (0x05, port(letter).initiator.name().into_owned()),
        None => (
            0x45,
            format!("{},i,0x{:012x}", port(name).initiator.name(), name.ends_with('\'') as u64 | 0x80 << 40),
        ),
    };
    let mut id = vec![format, 0, 0, 0];
    id.extend_from_slice(text.as_bytes());
    id.push(0);
    id.resize(id.len().next_multiple_of(4), 0);
    id[3] = (id.len() - 4) as u8;
    id
}

/// The CDB of PERSISTENT RESERVE OUT.
pub(super) fn out_cdb(action: u8, scope_and_type: u8, len: u32) -> Vec<u8> {
    let mut cdb = vec![op::PERSISTENT_RESERVE_OUT, action, scope_and_type, 0, 0, 0, 0, 0, 0, 0];
    be::put32(&mut cdb[5..], len);
    cdb
}

/// The basic parameter list with `flags` in byte 20.
pub(super) fn basic(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    list
}

/// The parameter list of REGISTER AND MOVE.
pub(super) fn moving(key: u64, action_key: u64, flags: u8, tag: u16, id: &[u8]) -> Vec<u8> {
    let mut list = basic(key, action_key, 0);
    list[17] = flags;
    be::put16(&mut list[18..], tag);
    be::put32(&mut list[20..], id.len() as u32);
    list.extend_from_slice(id);
    list
}

/// The Data-In of PERSISTENT RESERVE IN.
pub(super) fn read(nexus: &mut Nexus, action: u8) -> Result<Vec<u8>, PlanResult> {
    match run(nexus, &[op::PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0]) {
        Ok(Plan::Data(data)) => Ok(data),
        other => Err(other),
    }
}

/// Sends a PERSISTENT RESERVE OUT.
pub(super) fn send(nexus: &mut Nexus, action: u8, scope_and_type: u8, list: &[u8]) -> PlanResult {
    run_with(nexus, &out_cdb(action, scope_and_type, list.len() as u32), list)
}

fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap_or_else(|_| panic!("{word} is no number"))
}

impl TestTarget {
    /// A disk with these nexuses. Their POWER ON attentions are cleared.
    pub(super) fn new(names: &str) -> TestTarget {
        TestTarget::with(disk(), None, names)
    }

    /// Like [`TestTarget::new`], with other settings and with saved state.
    pub(super) fn with(settings: LuSettings, saved: Option<&[u8]>, names: &str) -> TestTarget {
        let lu = Arc::new(Lu::new(settings, saved).unwrap());
        let mut world = TestTarget { lu, nexuses: BTreeMap::new() };
        names.split_whitespace().for_each(|name| world.attach(name));
        world
    }

    pub(super) fn attach(&mut self, name: &str) {
        let mut nexus = self.lu.attach(port(name), false);
        assert_eq!(run(&mut nexus, &[0; 6]), crate::testing::fails(Sense::POWER_ON));
        self.nexuses.insert(name.into(), nexus);
    }

    /// Runs a script. Every line must have its stated outcome.
    pub(super) fn play(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (what, wanted) = line.split_once("->").unwrap_or_else(|| panic!("no outcome: {line}"));
            let words: Vec<&str> = what.split_whitespace().collect();
            let outcome = self.line(words[0], words[1], &words[2..]);
            assert_eq!(outcome, wanted.trim(), "{line}");
        }
    }

    fn line(&mut self, name: &str, verb: &str, words: &[&str]) -> String {
        match verb {
            "logout" => drop(self.nexuses.remove(name)),
            "login" => self.attach(name),
            "reset" => self.lu.reset(),
            _ => {
                let nexus = self.nexuses.get_mut(name).unwrap_or_else(|| panic!("no nexus {name}"));
                return match report(nexus, verb) {
                    Some(text) => text,
                    None => {
                        let answer = command(nexus, verb, words);
                        self.outcome(answer)
                    }
                };
            }
        }
        "done".into()
    }

    fn names(&self, ids: &[NexusId]) -> String {
        let named = self.nexuses.iter().filter(|(_, nexus)| ids.contains(&nexus.id()));
        named.map(|(name, _)| format!(" {name}")).collect()
    }

    fn outcome(&self, answer: PlanResult) -> String {
        match crate::testing::commit(&self.lu, answer) {
            Ok((Plan::Done, true)) => "save".into(),
            Ok((Plan::Done | Plan::Read { .. } | Plan::Write { .. } | Plan::Data(_), _)) => "good".into(),
            Ok((Plan::Op(op), kept)) => match *op {
                Op::Preempt { victims } => {
                    format!("abort{}{}", self.names(&victims), if kept { " save" } else { "" })
                }
                _ => "good".into(),
            },
            Ok(other) => panic!("{other:?}"),
            Err(f) if f.status == Status::ReservationConflict => "conflict".into(),
            Err(f) => sense(f.sense.unwrap()),
        }
    }
}

fn sense(s: Sense) -> String {
    let mut text = format!("{:x}/{:02x}/{:02x}", s.key, s.asc, s.ascq);
    if let Some([flags, high, low]) = s.specific {
        let cdb = if flags & 0x40 != 0 { "c" } else { "" };
        text += &format!("@{cdb}{}", u16::from_be_bytes([high, low]));
        if flags & 8 != 0 {
            text += &format!(".{}", flags & 7);
        }
    }
    text
}

fn command(nexus: &mut Nexus, verb: &str, words: &[&str]) -> PlanResult {
    let number = |i: usize| hex(words.get(i).unwrap_or_else(|| panic!("{verb} needs more arguments")));
    let simple = |nexus: &mut Nexus, action, action_key, kind: u64| {
        send(nexus, action, kind as u8, &basic(number(0), action_key, 0))
    };
    match verb {
        "tur" => run(nexus, &[0; 6]),
        "inquiry" => run(nexus, &[op::INQUIRY, 0, 0, 0, 36, 0]),
        "capacity" => run(nexus, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        "luns" => run(nexus, &[op::REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        "sense" => run(nexus, &[op::REQUEST_SENSE, 0, 0, 0, 18, 0]),
        "start" => run(nexus, &[op::START_STOP_UNIT, 0, 0, 0, 1, 0]),
        "stop" => run(nexus, &[op::START_STOP_UNIT, 0, 0, 0, 0, 0]),
        "mode" => run(nexus, &[op::MODE_SENSE_6, 0, 0x3f, 0, 4, 0]),
        "read" => run(nexus, &[op::READ_10, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
        "write" => run(nexus, &[op::WRITE_10, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
        "reserve6" => run(nexus, &[op::RESERVE_6, 0, 0, 0, 0, 0]),
        "release6" => run(nexus, &[op::RELEASE_6, 0, 0, 0, 0, 0]),
        "reserve10" => run(nexus, &[op::RESERVE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        "release10" => run(nexus, &[op::RELEASE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        "reserve6for" => run(nexus, &[op::RESERVE_6, 0x10, 0, 0, 0, 0]),
        "register" => register(nexus, 0, words),
        "ignore" => register(nexus, 6, words),
        "reserve" => simple(nexus, 1, 0, number(1)),
        "release" => simple(nexus, 2, 0, number(1)),
        "clear" => simple(nexus, 3, 0, 0),
        "preempt" => simple(nexus, 4, number(1), number(2)),
        "abort" => simple(nexus, 5, number(1), number(2)),
        "move" => {
            let flags = has(words, "aptpl") | has(words, "unreg") << 1;
            let list = moving(number(0), number(1), flags, relative(words), &transport_id(words[2]));
            send(nexus, 7, 0, &list)
        }
        _ => panic!("{verb} is no verb"),
    }
}

/// The relative identifier of the target port that `move` names: that of the nexus, or the number after `through`.
fn relative(words: &[&str]) -> u16 {
    match words {
        [.., "through", number] => hex(number) as u16,
        _ => port(words[2]).own.relative,
    }
}

fn has(words: &[&str], word: &str) -> u8 {
    words.contains(&word) as u8
}

/// `register KEY NEW [aptpl] [all] [for NEXUS...]`
fn register(nexus: &mut Nexus, action: u8, words: &[&str]) -> PlanResult {
    let flags = has(words, "aptpl") | has(words, "all") << 2 | has(words, "for") << 3;
    let mut list = basic(hex(words[0]), hex(words[1]), flags);
    if let Some(at) = words.iter().position(|w| *w == "for") {
        let ids: Vec<u8> = words[at + 1..].iter().flat_map(|name| transport_id(name)).collect();
        list.extend_from_slice(&(ids.len() as u32).to_be_bytes());
        list.extend_from_slice(&ids);
    }
    send(nexus, action, 0, &list)
}

/// `keys`: the keys. `held`: key and type, or none. `generation`. `status`: for each registrant key, `*` and type if
/// it is a holder, port, and name; sorted by name, SRP last.
fn report(nexus: &mut Nexus, verb: &str) -> Option<String> {
    let action = match verb {
        "keys" | "generation" => 0,
        "held" => 1,
        "status" => 3,
        _ => return None,
    };
    let data = match read(nexus, action) {
        Ok(data) => data,
        Err(Err(f)) if f.status == Status::ReservationConflict => return Some("conflict".into()),
        Err(other) => panic!("{other:?}"),
    };
    assert_eq!(be::get32(&data[4..]) as usize, data.len() - 8);
    Some(match verb {
        "keys" => {
            let mut keys: Vec<u64> = data[8..].chunks(8).map(be::get64).collect();
            keys.sort();
            keys.iter().map(|k| format!("{k:x}")).collect::<Vec<_>>().join(" ")
        }
        "generation" => format!("{}", be::get32(&data)),
        "held" if data.len() == 8 => "none".into(),
        "held" => format!("{:x} {:x}", be::get64(&data[8..]), data[21]),
        _ => status(&data[8..]).join(", "),
    })
}

fn status(mut rest: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let len = be::get32(&rest[20..]) as usize;
        let (letter, other) = who(&rest[24..24 + len]);
        let holder = if rest[12] & 1 != 0 { format!("*{}", rest[13]) } else { String::new() };
        let port = be::get16(&rest[18..]);
        assert_eq!(port & 0x8000 != 0, letter.is_ascii_lowercase());
        found.push(format!("{letter}{}{other}={:x}{holder}", port & 0x7fff, be::get64(rest)));
        rest = &rest[24 + len..];
    }
    found.sort_by_key(|one| one.starts_with(|c: char| c.is_ascii_lowercase()));
    found
}

/// The letter of a TransportID, and the mark of another ISID.
fn who(id: &[u8]) -> (char, &'static str) {
    if id[0] == 4 {
        assert_eq!((id.len(), &id[8..16]), (24, &[0, 0, 0, 0, 0, 0, 0xaa, 0xaa][..]));
        return (id[23] as char, "");
    }
    let text = std::str::from_utf8(&id[4..]).unwrap().trim_end_matches('\0');
    let (name, isid) = text.split_once(",i,0x").unwrap();
    (name.chars().last().unwrap().to_ascii_uppercase(), if isid.ends_with('1') { "'" } else { "" })
}
