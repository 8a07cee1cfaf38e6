//! The omap of the object that holds the state of a shared logical unit.
//!
//! | key | value |
//! |---|---|
//! | `version` | number of the last change, in decimal |
//! | `state` | the state after it, of [`lunar_scsi::Lu::shared_state`] |
//! | `log.VERSION` | JSON of a [`SharedChange`], for the last [`LOG_LEN`] changes |
//! | `member.ID` | JSON of a [`MemberRecord`], for each member that serves the logical unit |
//! | `ports.ID` | JSON of a list of [`MemberPort`], also of a member that is away |
//! | `access` | JSON of [`Access`] |

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Number of changes in the log. A member that missed more of them reports the registrations that it lost.
pub const LOG_LEN: u64 = 32;
pub const VERSION: &str = "version";
pub const STATE: &str = "state";
const MEMBER: &str = "member.";
const PORTS: &str = "ports.";
const LOG: &str = "log.";
pub const ACCESS: &str = "access";

/// Number of a member in its group, from 1 to 127.
pub type MemberId = u8;

/// The version of the protocol. Raise it when members of an older version would misunderstand this one.
pub const PROTOCOL: u32 = 1;

/// A member that serves the logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// A random number of this start.
    pub incarnation: u64,
    /// Addresses of its client of the cluster, for the blocklist.
    pub addresses: String,
    /// The name of its group.
    #[serde(default)]
    pub group: String,
    /// One member at a time serves the medium.
    #[serde(default)]
    pub passive: bool,
    /// Parts of the logical unit that hosts see, by their keys. They are the same on all members.
    #[serde(default)]
    pub unit: BTreeMap<String, String>,
    /// The version of the protocol that it speaks.
    #[serde(default)]
    pub protocol: u32,
    /// The member that fences it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced_by: Option<MemberId>,
}

impl MemberRecord {
    /// Whether both are of the same start of a member.
    pub fn is_same(&self, other: &MemberRecord) -> bool {
        self.incarnation == other.incarnation
    }
}

/// The access of members to the medium.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The member that serves the medium, where one at a time does. `None` during a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<MemberId>,
    /// The number of changes of it.
    #[serde(default)]
    pub epoch: u64,
    /// Members whose hosts are to use other ones.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub drained: BTreeSet<MemberId>,
}

/// A target port of a member. It outlasts the member: registrations with ALL_TG_PT include it, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberPort {
    /// Portal group tag.
    pub tag: u16,
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub relative: u16,
    /// Whether its protocol is SRP instead of iSCSI.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub srp: bool,
    /// The addresses of its portals, `host:port`.
    pub addresses: Vec<String>,
}

impl Access {
    /// Changes the active member.
    pub fn set(&mut self, active: Option<MemberId>) {
        self.active = active;
        self.epoch += 1;
    }
}

/// A change of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedChange {
    /// The member that made it.
    pub member: MemberId,
    /// Effects on nexuses of other members, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effects: String,
    /// Members that were fenced before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fenced: Vec<MemberId>,
    /// Members that it is about to fence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claimed: Vec<MemberId>,
}

/// The decoded omap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedView {
    pub version: u64,
    pub state: Vec<u8>,
    /// The changes, encoded.
    pub log: BTreeMap<u64, Vec<u8>>,
    pub members: BTreeMap<MemberId, MemberRecord>,
    pub ports: BTreeMap<MemberId, Vec<MemberPort>>,
    pub access: Access,
}

/// The key of a member.
pub fn member_key(id: MemberId) -> String {
    format!("{MEMBER}{id}")
}

/// The key of the ports of a member.
pub fn ports_key(id: MemberId) -> String {
    format!("{PORTS}{id}")
}

/// The key of a change. The digits have a fixed number, so that keys sort.
pub fn log_key(version: u64) -> String {
    format!("{LOG}{version:020}")
}

/// The value of `version`. An absent key compares as an empty value.
pub fn version_value(version: u64) -> String {
    if version == 0 { String::new() } else { version.to_string() }
}

impl SharedView {
    /// Decodes all keys. Unknown keys are ignored.
    ///
    /// # Errors
    /// A value is invalid.
    pub fn decode(omap: &BTreeMap<String, Vec<u8>>) -> io::Result<SharedView> {
        let mut view = SharedView::default();
        for (key, value) in omap {
            let invalid = || invalid(&format!("the key {key} of the shared state is invalid"));
            if key == VERSION {
                let text = str::from_utf8(value).map_err(|_| invalid())?;
                view.version = text.parse().map_err(|_| invalid())?;
            } else if key == STATE {
                view.state.clone_from(value);
            } else if key == ACCESS {
                view.access = serde_json::from_slice(value).map_err(|_| invalid())?;
            } else if let Some(id) = key.strip_prefix(MEMBER) {
                let record = serde_json::from_slice(value).map_err(|_| invalid())?;
                view.members.insert(id.parse().map_err(|_| invalid())?, record);
            } else if let Some(id) = key.strip_prefix(PORTS) {
                let ports = serde_json::from_slice(value).map_err(|_| invalid())?;
                view.ports.insert(id.parse().map_err(|_| invalid())?, ports);
            } else if let Some(version) = key.strip_prefix(LOG) {
                view.log.insert(version.parse().map_err(|_| invalid())?, value.clone());
            }
        }
        Ok(view)
    }

    /// The relative target port identifiers of these members.
    pub fn relative_ports(&self, members: &[MemberId]) -> Vec<u16> {
        let ports = members.iter().filter_map(|id| self.ports.get(id)).flatten();
        ports.map(|port| port.relative).collect()
    }

    /// The member with this portal group tag, or None.
    pub fn owner_of(&self, tag: u16) -> Option<MemberId> {
        let has = |ports: &Vec<MemberPort>| ports.iter().any(|port| port.tag == tag);
        self.ports.iter().find(|(_, ports)| has(ports)).map(|(id, _)| *id)
    }

    /// Whether this start of a member is there. Another member may have begun to fence it.
    pub fn has(&self, id: MemberId, record: &MemberRecord) -> bool {
        self.members.get(&id).is_some_and(|own| own.is_same(record))
    }

    /// Whether the hosts of a member are to use others. The last members serve although they are drained.
    pub fn is_drained(&self, id: MemberId) -> bool {
        let drained = &self.access.drained;
        drained.contains(&id) && self.members.keys().any(|other| !drained.contains(other))
    }

    /// The active member, unless it is away.
    pub fn active_member(&self) -> Option<MemberId> {
        self.access.active.filter(|id| self.members.contains_key(id))
    }

    /// The members that can serve the medium, without one.
    pub fn candidates(&self, except: Option<MemberId>) -> impl Iterator<Item = MemberId> {
        let can = move |id: &MemberId| !self.is_drained(*id) && Some(*id) != except;
        self.members.keys().copied().filter(can)
    }

    /// The changes after `since`, and whether none of them is missing.
    ///
    /// # Errors
    /// A change is invalid.
    pub fn changes_since(&self, since: u64) -> io::Result<(Vec<SharedChange>, bool)> {
        let change = |(version, bytes): (&u64, &Vec<u8>)| {
            let what = || invalid(&format!("the key {} of the shared state is invalid", log_key(*version)));
            serde_json::from_slice::<SharedChange>(bytes).map_err(|_| what())
        };
        let changes = self.log.range(since + 1..).map(change).collect::<io::Result<Vec<_>>>()?;
        let is_complete = changes.len() as u64 == self.version - since;
        Ok((changes, is_complete))
    }
}

impl SharedChange {
    /// A change with these effects.
    pub fn new(member: MemberId, effects: &[u8]) -> SharedChange {
        let effects = effects.iter().map(|byte| format!("{byte:02x}")).collect();
        SharedChange { member, effects, ..SharedChange::default() }
    }

    /// The effects as bytes.
    ///
    /// # Errors
    /// The text has other characters than hexadecimal digits.
    pub fn effects(&self) -> io::Result<Vec<u8>> {
        let digits = self.effects.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        digits.map(byte).collect::<Option<_>>().ok_or_else(|| invalid("the effects of a change are invalid"))
    }
}

pub fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn omap(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn omap_is_decoded_and_unknown_keys_are_ignored() {
        let view = SharedView::decode(&omap(&[
            (VERSION, "7"),
            (STATE, "s"),
            (&log_key(7), r#"{"member":2,"effects":"01ff"}"#),
            (&member_key(2), r#"{"incarnation":3,"addresses":"a","later":1}"#),
            (&ports_key(2), r#"[{"tag":513,"relative":513,"addresses":["10.0.0.2:3260"]}]"#),
            ("later", "x"),
        ]))
        .unwrap();
        assert_eq!((view.version, &view.state[..]), (7, &b"s"[..]));
        assert_eq!(view.members[&2].incarnation, 3);
        assert_eq!((view.ports[&2][0].tag, view.ports[&2][0].srp), (513, false));
        let (changes, is_complete) = view.changes_since(6).unwrap();
        assert_eq!((changes[0].effects().unwrap(), is_complete), (vec![1, 255], true));
        assert!(!view.changes_since(5).unwrap().1);
    }

    #[test]
    fn invalid_values_are_rejected() {
        for (key, value) in [
            (VERSION, "x"),
            (ACCESS, "1"),
            ("member.2", "{}"),
            ("member.x", "{}"),
            ("log.-", "{}"),
            ("ports.2", "{}"),
        ] {
            let error = SharedView::decode(&omap(&[(key, value)])).unwrap_err();
            assert_eq!(error.to_string(), format!("the key {key} of the shared state is invalid"));
        }
        let view = SharedView::decode(&omap(&[(VERSION, "1"), (&log_key(1), "[]")])).unwrap();
        assert!(view.changes_since(0).is_err());
        assert!(SharedChange { effects: "0g".into(), ..SharedChange::default() }.effects().is_err());
        assert!(SharedChange { effects: "é".into(), ..SharedChange::default() }.effects().is_err());
    }
}
