//! The differences between two configurations, as text for users.

mod settings;

use crate::config::Config;
use lunar_admin::{Change, Difference};
use lunar_target::config::TargetLimits;
use settings::{ConfigSettings, Setting};
use std::collections::BTreeSet;

/// All changes from `a` to `b`, in configuration order. Secrets are compared but never shown.
pub fn diff(a: &Config, b: &Config) -> Vec<Difference> {
    let (a, b) = (ConfigSettings::of(a, b), ConfigSettings::of(b, a));
    let places: BTreeSet<_> = a.0.keys().chain(b.0.keys()).collect();
    let mut differences = Vec::new();
    for place in places {
        let one = |change, needs_restart| Difference { place: place.names(), change, needs_restart };
        match (a.0.get(place), b.0.get(place)) {
            (Some(_), None) => differences.push(one(Change::Removed, place.needs_restart())),
            (None, Some(new)) => {
                let what = new.first().map_or(String::new(), |first| first.shown.clone());
                differences.push(one(Change::Added { what }, place.needs_restart()));
            }
            (Some(old), Some(new)) => {
                let changes = changes(old, new).into_iter();
                differences.extend(
                    changes
                        .map(|(needs_restart, change)| one(change, place.needs_restart() || needs_restart)),
                );
            }
            (None, None) => {}
        }
    }
    differences
}

/// The configuration in force when a process that runs `before` loads `new`. Settings that need a restart keep their
/// old values.
pub fn in_force(before: &Config, new: &Config) -> Config {
    Config {
        server: before.server.clone(),
        api: new.api.clone(),
        gateway: before.gateway.clone(),
        limits: limits_in_force(&before.limits, &new.limits),
        max_registrants: new.max_registrants,
        session: new.session.clone(),
        discovery: new.discovery.clone(),
        portal_groups: new.portal_groups.clone(),
        disks: new.disks.clone(),
        targets: new.targets.clone(),
        routers: new.routers.clone(),
        awaited: new.awaited.clone(),
        access_lists: new.access_lists.clone(),
        sources: new.sources.clone(),
    }
}

fn limits_in_force(before: &TargetLimits, new: &TargetLimits) -> TargetLimits {
    TargetLimits {
        connections: new.connections,
        connections_before_login: new.connections_before_login,
        login_timeout: new.login_timeout,
        sessions: new.sessions,
        sessions_per_initiator: new.sessions_per_initiator,
        discovery_sessions: new.discovery_sessions,
        discovery_timeout: new.discovery_timeout,
        commands_per_session: new.commands_per_session,
        text_bytes: new.text_bytes,
        memory: before.memory,
    }
}

/// The settings of a part that differ, each with whether it needs a restart.
fn changes(old: &[Setting], new: &[Setting]) -> Vec<(bool, Change)> {
    let find =
        |list: &[Setting], key| list.iter().find(|setting| setting.key == key).cloned().unwrap_or_default();
    let mut keys: Vec<&'static str> = old.iter().chain(new).map(|setting| setting.key).collect();
    let mut seen = BTreeSet::new();
    keys.retain(|key| seen.insert(*key));
    let pairs = keys.into_iter().map(|key| (key, find(old, key), find(new, key)));
    let differ = pairs.filter(|(_, old, new)| (&old.shown, &old.hidden) != (&new.shown, &new.hidden));
    let change = |(key, old, new): (&'static str, Setting, Setting)| {
        let secret = if old.shown == new.shown { " (with another secret)" } else { "" };
        let needs_restart = old.needs_restart || new.needs_restart;
        (needs_restart, Change::Changed { key: key.into(), from: old.shown, to: new.shown + secret })
    };
    differ.map(change).collect()
}

#[cfg(test)]
mod tests;
