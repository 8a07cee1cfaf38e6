//! Hosts of a subsystem, with their keys.

use super::SpdkImport;
use super::calls::Call;
use crate::nvme_steps::{is_host, is_secret, is_tls_key};
use crate::{AdmittedHosts, Found, ProvenHost};
use std::path::Path;

/// The first parts of keys.
const SECRET: &str = "DHHC-1";
const TLS_KEY: &str = "NVMeTLSkey-1";

fn is_key(kind: &str, text: &str) -> bool {
    if kind == TLS_KEY { is_tls_key(text) } else { is_secret(text) }
}

impl SpdkImport<'_> {
    /// Adds a host to its subsystem. If a host of a subsystem has a key, hosts without one are not admitted.
    pub(super) fn host(&mut self, call: &Call) {
        let (nqn, host, place) = (call.text("nqn"), call.text("host"), &call.place);
        let known = self.imported.configuration.subsystems.iter().position(|one| one.nqn == nqn);
        let Some(index) = known else {
            let what = format!("the host {host} of {nqn}, which is no subsystem");
            return self.imported.notes.lost(place, what);
        };
        if !is_host(host) {
            return self.imported.notes.lost(place, format!("the host {host:?}, which is no NQN of a host"));
        }
        if self.imported.configuration.subsystems[index].hosts == AdmittedHosts::Every {
            return self
                .imported
                .notes
                .changed(place, format!("{nqn}: every host, also without a key of {host}"));
        }
        if self.imported.configuration.subsystems[index].hosts.names(host) {
            return self
                .imported
                .notes
                .changed(place, format!("{nqn}: the host {host}, which is given twice"));
        }
        let names = ["dhchap_key", "psk", "dhchap_ctrlr_key"].map(|key| call.text(key));
        let [secret, tls_key, own] = names;
        let kinds = [(SECRET, "key", host), (TLS_KEY, "tls", host), (SECRET, "key", nqn)];
        let [secret, tls_key, own] = [(secret, kinds[0]), (tls_key, kinds[1]), (own, kinds[2])]
            .map(|(name, kind)| self.key(name, kind, place));
        let demands = names[..2].iter().any(|name| !name.is_empty());
        if demands && secret.is_none() == names[0].is_empty() && tls_key.is_none() == names[1].is_empty() {
            self.prove(index, ProvenHost { nqn: host.to_owned(), secret, tls_key }, own, place);
        } else if demands {
            self.imported.notes.lost(place, format!("{nqn}: the host {host}, whose key is not known"));
        } else {
            self.admit(index, host, place);
        }
    }

    /// Adds a host with keys.
    fn prove(&mut self, index: usize, host: ProvenHost, own: Option<String>, place: &str) {
        let subsystem = &mut self.imported.configuration.subsystems[index];
        let nqn = &subsystem.nqn;
        self.imported.notes.carried(place, format!("{nqn}: the host {} with its key", host.nqn));
        if own.is_some() && subsystem.secret.is_some() && own != subsystem.secret {
            let what = format!("the secret of {nqn} for {}: a subsystem has one for all its hosts", host.nqn);
            self.imported.notes.lost(place, what);
        }
        subsystem.secret = subsystem.secret.take().or(own);
        match &mut subsystem.hosts {
            AdmittedHosts::Proven(hosts) => hosts.push(host),
            AdmittedHosts::Named(names) => {
                for name in std::mem::take(names) {
                    let what = format!("{nqn}: the host {name}, which has no key, while others have one");
                    self.imported.notes.lost(place, what);
                }
                subsystem.hosts = AdmittedHosts::Proven(vec![host]);
            }
            AdmittedHosts::Every => {}
        }
    }

    /// Adds a host without keys.
    fn admit(&mut self, index: usize, host: &str, place: &str) {
        let subsystem = &mut self.imported.configuration.subsystems[index];
        let nqn = &subsystem.nqn;
        if let AdmittedHosts::Named(names) = &mut subsystem.hosts {
            self.imported.notes.carried(place, format!("{nqn}: the host {host}"));
            names.insert(host.to_owned());
        } else {
            let what = format!("{nqn}: the host {host}, which has no key, while others have one");
            self.imported.notes.lost(place, what);
        }
    }

    /// The file with a key, which is that of a keyring or, in older versions, the path of a file. None: there is none, or
    /// it cannot be read.
    fn key(
        &mut self,
        name: &str,
        (kind, extension, owner): (&str, &str, &str),
        place: &str,
    ) -> Option<String> {
        if name.is_empty() {
            return None;
        }
        let path = self.keys.get(name).map_or(name, String::as_str);
        let found = match (self.reader)(Path::new(path)) {
            Ok(Found::File(text)) if is_key(kind, text.trim()) => Ok(text.trim().to_owned()),
            Ok(_) => Err(format!("the file {path} has no valid key of the form {kind}:HH:BASE64:")),
            Err(e) => Err(format!("the key {path} cannot be read: {e}")),
        };
        match found {
            Ok(text) => Some(self.imported.configuration.secret_file(owner, extension, &text)),
            Err(why) => {
                self.imported.notes.lost(place, why);
                None
            }
        }
    }
}
