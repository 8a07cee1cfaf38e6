//! Objects of the configuration: what the files say, and where.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use utoipa::ToSchema;

/// The keys of an object, as in `lunar.toml`.
pub type Keys = Map<String, Value>;

/// The objects of a configuration.
pub type Document = BTreeMap<ObjectId, ConfigObject>;

/// The identity of an object that the API can create, change and delete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectId {
    /// A portal group, by its tag.
    PortalGroup(u16),
    /// A CHAP user, by its identifier or name.
    ChapUser(String),
    /// A disk that LUNs of several targets may show, by its name.
    Disk(String),
    /// A target, by its name.
    Target(String),
    /// A LUN of a target.
    Lun(String, u16),
    /// An access entry of a target, by its place in the list.
    Access(String, usize),
    /// An NVMe subsystem, by its NQN.
    Subsystem(String),
    /// A namespace of a subsystem, by its NSID.
    Namespace(String, u16),
    /// A host with a secret that a subsystem admits, by the NQNs of both.
    Host(String, String),
}

impl ObjectId {
    /// The array of tables in which the object stands.
    pub fn array(&self) -> &'static str {
        match self {
            ObjectId::PortalGroup(_) => "portal_group",
            ObjectId::ChapUser(_) => "chap_user",
            ObjectId::Disk(_) => "disk",
            ObjectId::Target(_) => "target",
            ObjectId::Lun(..) => "lun",
            ObjectId::Access(..) => "access",
            ObjectId::Subsystem(_) => "subsystem",
            ObjectId::Namespace(..) => "namespace",
            ObjectId::Host(..) => "host",
        }
    }

    /// The target of a LUN or an access entry, or the subsystem of a namespace or a host.
    pub fn parent(&self) -> Option<ObjectId> {
        match self {
            ObjectId::Lun(target, _) | ObjectId::Access(target, _) => Some(ObjectId::Target(target.clone())),
            ObjectId::Namespace(nqn, _) | ObjectId::Host(nqn, _) => Some(ObjectId::Subsystem(nqn.clone())),
            _ => None,
        }
    }

    /// The keys that identify the object.
    pub fn keys(&self) -> Keys {
        let pairs: Vec<(&str, Value)> = match self {
            ObjectId::PortalGroup(tag) => vec![("tag", (*tag).into())],
            // The name may differ from the identifier, and stands among the other keys.
            ObjectId::ChapUser(id) => vec![("id", id.as_str().into())],
            ObjectId::Disk(name) | ObjectId::Target(name) => vec![("name", name.as_str().into())],
            ObjectId::Lun(target, lun) => vec![("target", target.as_str().into()), ("lun", (*lun).into())],
            ObjectId::Access(target, _) => vec![("target", target.as_str().into())],
            ObjectId::Subsystem(nqn) => vec![("nqn", nqn.as_str().into())],
            ObjectId::Namespace(nqn, nsid) => {
                vec![("subsystem", nqn.as_str().into()), ("nsid", (*nsid).into())]
            }
            ObjectId::Host(nqn, host) => {
                vec![("subsystem", nqn.as_str().into()), ("nqn", host.as_str().into())]
            }
        };
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// The object in words: `LUN 0 of iqn.2026-11.org.example:disks`.
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectId::PortalGroup(tag) => write!(f, "portal group {tag}"),
            ObjectId::ChapUser(id) => write!(f, "CHAP user {}", id.escape_debug()),
            ObjectId::Disk(name) => write!(f, "disk {}", name.escape_debug()),
            ObjectId::Target(name) => write!(f, "target {}", name.escape_debug()),
            ObjectId::Lun(target, lun) => write!(f, "LUN {lun} of {}", target.escape_debug()),
            ObjectId::Access(target, at) => write!(f, "access entry {at} of {}", target.escape_debug()),
            ObjectId::Subsystem(nqn) => write!(f, "subsystem {}", nqn.escape_debug()),
            ObjectId::Namespace(nqn, nsid) => write!(f, "namespace {nsid} of {}", nqn.escape_debug()),
            ObjectId::Host(nqn, host) => {
                write!(f, "host {} of {}", host.escape_debug(), nqn.escape_debug())
            }
        }
    }
}

/// An object of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigObject {
    /// Its keys, without those that identify it.
    pub keys: Keys,
    /// Its place.
    pub source: ObjectSource,
}

/// The place of an object of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectSource {
    /// The writer of the file.
    pub origin: ObjectOrigin,
    /// The file; empty for the command line.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// The line, from 1; 0 for the command line.
    pub line: usize,
}

/// The writer of a file of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObjectOrigin {
    /// An administrator. The API does not change the object.
    File,
    /// The API.
    Api,
    /// The API, until the next start of the server. The file does not exist.
    Transient,
    /// The arguments of a server without a file. The API does not change the object.
    #[serde(rename = "command_line")]
    CommandLine,
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectChange {
    /// The object.
    pub id: ObjectId,
    /// The change.
    pub action: ObjectAction,
    /// The version of the configuration for which the change is meant; None: any.
    pub version: Option<String>,
    /// Checks the change and reports its effects, without changing anything.
    pub dry_run: bool,
    /// Keeps the object until the next start only.
    pub transient: bool,
    /// Deletes or moves an object that hosts use, or replaces its medium.
    pub force: bool,
}

/// The change in words, without values: they may hold secrets.
impl fmt::Display for ObjectChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            ObjectAction::Create(_) => "create",
            ObjectAction::Insert(_) => "insert",
            ObjectAction::Replace(_) => "replace",
            ObjectAction::Merge(_) => "change",
            ObjectAction::Delete => "delete",
            ObjectAction::Move(_) => "move",
        };
        write!(f, "{action} {}", self.id)?;
        if let ObjectAction::Move(to) = &self.action {
            write!(f, " to {to}")?;
        }
        f.write_str(if self.dry_run { " (dry run)" } else { "" })
    }
}

/// The kind of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectAction {
    /// Creates the object, which must not exist.
    Create(Keys),
    /// Creates an access entry at this place of the list. The entries from there on move by one.
    Insert(Keys),
    /// Replaces the keys of the object, which must exist.
    Replace(Keys),
    /// Replaces some keys; null removes a key (RFC 7396).
    Merge(Keys),
    /// Deletes the object.
    Delete,
    /// Moves a LUN to this one, which must not exist. It stays the same logical unit.
    Move(ObjectId),
}

/// The configuration in force, for readers.
#[derive(Clone, Debug, Default)]
pub struct ConfigSnapshot {
    /// Its version. Each change makes another one, and no other process has the same.
    pub version: String,
    /// The file that the server was started with; None if it was started without a file.
    pub file: Option<PathBuf>,
    /// Its objects.
    pub objects: std::sync::Arc<Document>,
    /// The names of the targets that are on standby now.
    pub standby: BTreeSet<String>,
    /// Of these, the names of those whose media are not closed yet.
    pub closing: BTreeSet<String>,
    /// The number of targets that are served, with those of routers.
    pub targets: usize,
    /// The number of their LUNs.
    pub luns: usize,
    /// The number of NVMe subsystems that are served.
    pub subsystems: usize,
    /// The number of their namespaces.
    pub namespaces: usize,
    /// Faults of the configuration that do not prevent its use.
    pub warnings: Vec<String>,
    /// Whether the server shuts down.
    pub stopping: bool,
    /// When the configuration on trial is rolled back, in seconds since 1970; None if none is on trial.
    pub confirm_by: Option<u64>,
    /// End of the validity of the certificate of the API, in seconds since 1970; None without HTTPS.
    pub certificate_not_after: Option<u64>,
    /// The latest reload; None if there was none.
    pub last_reload: Option<ReloadOutcome>,
}

/// Whether hosts can use a target or a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TargetState {
    /// It is served.
    Serving,
    /// It waits to be promoted: its media are closed, and it rejects logins.
    Standby,
    /// It is demoted, but its media are still open: no other server may have them.
    Closing,
    /// It rejects logins, as its key `offline` demands.
    Offline,
}

impl ConfigSnapshot {
    /// The state of a subsystem. It waits for the targets whose LUNs are its namespaces.
    pub fn subsystem_state(&self, nqn: &str, object: &ConfigObject) -> TargetState {
        let namespaces =
            self.objects.iter().filter(|(id, _)| matches!(id, ObjectId::Namespace(of, _) if of == nqn));
        let mut targets = namespaces.filter_map(|(_, namespace)| namespace.keys.get("target")?.as_str());
        match object.keys.get("offline") {
            Some(Value::Bool(true)) => TargetState::Offline,
            _ if targets.any(|target| self.standby.contains(target)) => TargetState::Standby,
            _ => TargetState::Serving,
        }
    }

    /// The state of a target.
    pub fn target_state(&self, name: &str, object: &ConfigObject) -> TargetState {
        match object.keys.get("offline") {
            _ if self.closing.contains(name) => TargetState::Closing,
            _ if self.standby.contains(name) => TargetState::Standby,
            Some(Value::Bool(true)) => TargetState::Offline,
            _ => TargetState::Serving,
        }
    }
}

/// The outcome of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReloadOutcome {
    /// Whether the configuration was applied.
    pub is_success: bool,
    /// When, in seconds since 1970.
    pub at: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_names_itself_in_words_and_keys() {
        let lun = ObjectId::Lun("iqn.a".into(), 3);
        assert_eq!((lun.to_string(), lun.array()), ("LUN 3 of iqn.a".into(), "lun"));
        assert_eq!(serde_json::to_string(&lun.keys()).unwrap(), "{\"lun\":3,\"target\":\"iqn.a\"}");
        assert_eq!(lun.parent(), Some(ObjectId::Target("iqn.a".into())));
        let namespace = ObjectId::Namespace("nqn.a".into(), 7);
        assert_eq!((namespace.to_string(), namespace.array()), ("namespace 7 of nqn.a".into(), "namespace"));
        assert_eq!(serde_json::to_string(&namespace.keys()).unwrap(), "{\"nsid\":7,\"subsystem\":\"nqn.a\"}");
        assert_eq!(namespace.parent(), Some(ObjectId::Subsystem("nqn.a".into())));
        let hostile = ObjectId::Disk("a\u{1b}[2J".into()).to_string();
        assert_eq!(hostile, "disk a\\u{1b}[2J");
    }
}
