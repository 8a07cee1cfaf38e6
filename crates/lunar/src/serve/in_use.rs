//! Targets, LUNs and portals that hosts use, and that another configuration would take from them: one check for all changes.

use super::Service;
use crate::server::TargetServer;
use lunar_admin::{ControlError, ControlErrorKind, ObjectId, SessionReport};
use lunar_server::config::{Config, LunConfig, Target};
use lunar_server::{Diagnostic, ErrorCode};
use std::collections::BTreeMap;

/// Limit of the objects that an error names.
const MAX_SHOWN: usize = 10;

/// A target, a LUN or a portal that a change takes from hosts.
pub struct TakenObject {
    /// The object in words.
    name: String,
    /// The fate of it and of its users.
    fate: &'static str,
    /// The hosts that use it.
    users: Vec<String>,
}

impl TakenObject {
    fn fault(&self) -> String {
        format!("{} is in use by {}", self.name, self.users.join(" and "))
    }

    /// Logs that the change was made nevertheless.
    pub fn warn(&self) {
        let users = self.users.join(" and ");
        tracing::warn!("{} {} while in use by {users}", self.name, self.fate);
    }
}

impl<S: TargetServer> Service<S> {
    /// The objects that hosts use and would lose with this configuration.
    pub(super) fn taken(&self, new: &Config) -> Vec<TakenObject> {
        let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for session in self.server.sessions().into_iter().filter(|one| !is_queue(one)) {
            let host = host(&session);
            let Some(target) = session.target else { continue };
            users.entry(target).or_default().push(host);
        }
        let ids = self.whole.targets.iter().filter(|target| users.contains_key(&target.name));
        let ids: Vec<ObjectId> = ids.flat_map(|target| lost(target, &self.config, new)).collect();
        let taken = |id: &ObjectId| {
            let (ObjectId::Target(target)
            | ObjectId::Lun(target, _)
            | ObjectId::Subsystem(target)
            | ObjectId::Namespace(target, _)) = id
            else {
                return None;
            };
            let (name, fate) = (id.to_string(), "was removed, or is another disk now,");
            Some(TakenObject { name, fate, users: users.get(target)?.clone() })
        };
        ids.iter().filter_map(taken).chain(self.taken_portals(new, &ids)).collect()
    }

    /// A warning if the rules of access of another configuration end sessions.
    pub(super) fn excluded(&self, new: &Config) -> Option<String> {
        let handles = self.server.excluded(new);
        let sessions = self.server.sessions();
        let ended = sessions.iter().filter(|one| handles.contains(&one.tsih) && !is_queue(one));
        let hosts: Vec<String> = ended.map(host).collect();
        let what = match hosts.len() {
            0 => return None,
            1 => "1 session ends".to_owned(),
            count => format!("{count} sessions end"),
        };
        let shown = hosts[..hosts.len().min(MAX_SHOWN)].join(", ");
        Some(format!("{what}, because the rules of access exclude the host: {shown}"))
    }

    /// The portals that hosts use and would lose, or where they would find another target port. Hosts that lose their
    /// whole target anyway do not count.
    fn taken_portals(&self, new: &Config, lost: &[ObjectId]) -> impl Iterator<Item = TakenObject> {
        let stranded = self.server.stranded(&new.portal_groups);
        let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for session in self.server.sessions() {
            let Some(target) = &session.target else { continue };
            let number = |config| relative_port(config, target, session.portal_group);
            let is_stranded = stranded.contains(&session.tsih) || number(&self.config) != number(new);
            let is_lost = |id: &ObjectId| matches!(id, ObjectId::Target(name) | ObjectId::Subsystem(name) if name == target);
            if is_stranded && !lost.iter().any(is_lost) {
                let portal = format!("portal {} of portal group {}", session.portal, session.portal_group);
                users.entry(portal).or_default().push(host(&session));
            }
        }
        let fate = "was removed, or is another target port now,";
        users.into_iter().map(move |(name, users)| TakenObject { name, fate, users })
    }

    /// Checks that no host loses what it uses.
    pub(super) fn check_taken(&self, new: &Config) -> Result<(), ControlError> {
        let taken = self.taken(new);
        if taken.is_empty() {
            return Ok(());
        }
        let mut faults: Vec<String> = taken.iter().take(MAX_SHOWN).map(TakenObject::fault).collect();
        if taken.len() > MAX_SHOWN {
            faults.push(format!("{} more are in use", taken.len() - MAX_SHOWN));
        }
        let hint = "log the hosts out first, or use --force (force=true)";
        let problem = Diagnostic::new(faults.join("; "), hint).with_code(ErrorCode::InUse);
        Err(ControlError::one(ControlErrorKind::Conflict, problem))
    }
}

/// The configured relative identifier of a target port.
fn relative_port(config: &Config, target: &str, group: u16) -> Option<u16> {
    config.target(target)?.relative_ports.get(&group).copied()
}

/// Whether it is an I/O queue. The admin queue stands for the others of its controller.
fn is_queue(session: &SessionReport) -> bool {
    session.nvme.as_ref().is_some_and(|nvme| nvme.queue > 0)
}

fn host(session: &SessionReport) -> String {
    format!("{} at {}", session.initiator.escape_debug(), session.initiator_address)
}

/// The target or subsystem if `new` lacks it, or else its units that `new` lacks or shows as another disk. Of a target of
/// a router, only the mapping counts: its LUNs depend on the upstreams.
fn lost(target: &Target, before: &Config, new: &Config) -> Vec<ObjectId> {
    let name = &target.name;
    if let Some(router) = &target.router {
        let is_mapped = maps(new, router, name) || !maps(before, router, name);
        let is_there = new.routers.iter().any(|one| one.name == *router) && is_mapped;
        return if is_there { Vec::new() } else { vec![ObjectId::Target(name.clone())] };
    }
    let Some(after) = new.target(name) else { return vec![target.id()] };
    let shared = target.subsystem.iter().flat_map(|subsystem| subsystem.shared.keys());
    let is_lost = |number: &&u16| !keeps(**number, (target, before), (after, new));
    target.luns.keys().chain(shared).filter(is_lost).map(|number| target.unit_id(*number)).collect()
}

/// Whether hosts find the same disk at this number of a target or subsystem in another configuration.
fn keeps(number: u16, (target, before): (&Target, &Config), (after, new): (&Target, &Config)) -> bool {
    if target.given_ids(number) != after.given_ids(number) {
        return false;
    }
    let is_same_lun = shared_lun(target, number) == shared_lun(after, number);
    match (unit(before, target, number), unit(new, after, number)) {
        (Some(a), Some(b)) if a.disk.is_some() && a.disk == b.disk => is_same_disk(a, b),
        (Some(a), Some(b)) => is_same_lun && is_same_disk(a, b) && (a.disk == b.disk || names_medium(a)),
        // The LUN of a router.
        (None, None) => is_same_lun,
        _ => false,
    }
}

/// The LUN of a target that is a namespace.
fn shared_lun(target: &Target, number: u16) -> Option<&(String, u16)> {
    target.subsystem.as_ref()?.shared.get(&number)
}

/// The logical unit at a number of a target or subsystem. None: there is none, or it is one of a router.
fn unit<'c>(config: &'c Config, target: &'c Target, number: u16) -> Option<&'c LunConfig> {
    target.luns.get(&number).or_else(|| {
        let (name, lun) = shared_lun(target, number)?;
        config.target(name)?.luns.get(lun)
    })
}

/// Whether a router has a mapping with this name of a target.
fn maps(config: &Config, router: &str, name: &str) -> bool {
    let routers = config.routers.iter().filter(|one| one.name == router);
    routers.flat_map(|one| &one.targets).any(|mapping| mapping.map.name() == Some(name))
}

/// Whether a path or an image names its medium. Another disk, of the same kind, is another medium otherwise.
fn names_medium(lun: &LunConfig) -> bool {
    lun.source.path().is_some() || lun.source.image().is_some()
}

/// Whether hosts find the same disk: the same medium under the same identity.
fn is_same_disk(a: &LunConfig, b: &LunConfig) -> bool {
    let medium = |lun: &LunConfig| (lun.source.kind(), lun.kind);
    let is_same_medium =
        medium(a) == medium(b) && a.source.path() == b.source.path() && a.source.image() == b.source.image();
    let state = |lun: &LunConfig| (lun.state_name.clone(), lun.state_dir.clone());
    // Hosts address blocks: with another size, each of their commands would reach other data.
    is_same_medium
        && a.block_size == b.block_size
        && a.serial == b.serial
        && a.identity == b.identity
        && state(a) == state(b)
}

#[cfg(test)]
mod tests;
