//! The hosts that a subsystem admits, and their secrets.

use super::NvmetImport;
use super::file::{NvmetConfig, NvmetHost, NvmetSubsystem};
use crate::nvme_steps::{is_host, is_secret};
use crate::{AdmittedHosts, ProvenHost};

impl NvmetImport {
    /// The hosts of a subsystem. Lunar has no subsystem with hosts that need a secret and hosts that need none: then
    /// only the former are admitted.
    pub(super) fn hosts(&mut self, file: &NvmetConfig, from: &NvmetSubsystem, place: &str) -> AdmittedHosts {
        let nqn = &from.nqn;
        if from.attr.is_set("allow_any_host") {
            self.0.notes.carried(place, format!("{nqn}: every host"));
            return AdmittedHosts::Every;
        }
        let (mut proven, mut others) = (Vec::new(), Vec::new());
        for (n, name) in from.allowed_hosts.iter().enumerate() {
            let place = format!("{place}.allowed_hosts[{n}]");
            let host = file.hosts.iter().find(|host| host.nqn == *name);
            let secret = host.map_or("", |host| host.dhchap.text("key"));
            if !is_host(name) {
                self.0.notes.lost(place, format!("the host {name:?}, which is no NQN of a host"));
            } else if host.is_none() {
                // Its secret is unknown, if it has one.
                self.0.notes.lost(place, format!("the host {name}, which is not among the hosts"));
            } else if from.allowed_hosts[..n].contains(name) {
                self.0.notes.changed(place, format!("the host {name}, which is given twice"));
            } else if secret.is_empty() {
                others.push((place, name.clone()));
            } else if !is_secret(secret) {
                self.0.notes.lost(place, format!("the host {name}, whose secret is malformed"));
            } else {
                let secret = Some(self.0.configuration.secret_file(name, "key", secret));
                self.0.notes.carried(place, format!("{nqn}: the host {name} with its secret"));
                proven.push(ProvenHost { nqn: name.clone(), secret, tls_key: None });
            }
        }
        for (place, name) in &others {
            match proven.is_empty() {
                true => self.0.notes.carried(place, format!("{nqn}: the host {name}")),
                false => {
                    let what =
                        format!("the host {name}, which has no secret, while others of {nqn} have one");
                    self.0.notes.lost(place, what);
                }
            }
        }
        match proven.is_empty() {
            true => AdmittedHosts::Named(others.into_iter().map(|(_, name)| name).collect()),
            false => AdmittedHosts::Proven(proven),
        }
    }

    /// The file with the secret of a subsystem. The kernel has one for each host, and Lunar one for the subsystem.
    pub(super) fn own_secret(
        &mut self,
        file: &NvmetConfig,
        from: &NvmetSubsystem,
        hosts: &AdmittedHosts,
        place: &str,
    ) -> Option<String> {
        let AdmittedHosts::Proven(hosts) = hosts else { return None };
        let is_proven = |host: &&NvmetHost| hosts.iter().any(|one| one.nqn == host.nqn);
        let own = |host: &NvmetHost| host.dhchap.text("ctrl_key").to_owned();
        let all = file.hosts.iter().filter(is_proven).map(|host| (&host.nqn, own(host)));
        let all: Vec<_> = all.filter(|(_, secret)| !secret.is_empty()).collect();
        let first = all.iter().find(|(_, secret)| is_secret(secret)).map(|(_, secret)| secret);
        for (host, secret) in all.iter().filter(|(_, secret)| Some(secret) != first) {
            let why = match is_secret(secret) {
                true => "a subsystem has one for all its hosts",
                false => "it is malformed",
            };
            self.0.notes.lost(place, format!("the secret of {} for {host}: {why}", from.nqn));
        }
        Some(self.0.configuration.secret_file(&from.nqn, "key", first?))
    }

    /// Reports hosts that no subsystem admits by name.
    pub(super) fn unused_hosts(&mut self, file: &NvmetConfig) {
        for (n, host) in file.hosts.iter().enumerate() {
            if !file.subsystems.iter().any(|one| one.allowed_hosts.contains(&host.nqn)) {
                let what = format!("the host {}, which no subsystem names", host.nqn);
                self.0.notes.lost(format!("hosts[{n}]"), what);
            }
        }
    }
}
