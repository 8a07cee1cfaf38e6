//! Writes the NVMe subsystems of a configuration.

use crate::write::Text;
use crate::{AdmittedHosts, Configuration, NewSubsystem, ProvenHost};
use std::collections::BTreeMap;

impl Text {
    pub(crate) fn subsystem(
        &mut self,
        subsystem: &NewSubsystem,
        configuration: &Configuration,
        shared: &BTreeMap<&str, usize>,
        secrets: &str,
    ) {
        let path = |name: &Option<String>| name.as_ref().map(|name| format!("{secrets}/{name}"));
        self.table("[[subsystem]]");
        self.text("nqn", Some(&subsystem.nqn));
        self.text("serial", subsystem.serial.as_ref());
        self.text("model", subsystem.model.as_ref());
        if !subsystem.portal_groups.is_empty() {
            self.numbers("portal_groups", &subsystem.portal_groups);
        }
        self.flag("offline", subsystem.offline, false);
        self.text("secret_file", path(&subsystem.secret).as_ref());
        match &subsystem.hosts {
            AdmittedHosts::Every => {}
            AdmittedHosts::Named(names) if names.is_empty() => self.key("allowed_hosts", "[]"),
            AdmittedHosts::Named(names) => {
                self.texts("allowed_hosts", &names.iter().cloned().collect::<Vec<_>>());
            }
            AdmittedHosts::Proven(hosts) => {
                for ProvenHost { nqn, secret, tls_key } in hosts {
                    self.table("[[subsystem.host]]");
                    self.text("nqn", Some(nqn));
                    self.text("secret_file", path(secret).as_ref());
                    self.text("tls_key_file", path(tls_key).as_ref());
                }
            }
        }
        for (nsid, namespace) in &subsystem.namespaces {
            self.table("[[subsystem.namespace]]");
            self.key("nsid", nsid);
            namespace.identifiers.named().for_each(|(key, value)| self.text(key, Some(value)));
            self.medium_or_name(namespace.disk, configuration, shared);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Configuration, Disk, DiskMedium, NamespaceIdentifiers, NewNamespace, NewSubsystem, toml};

    #[test]
    fn identifiers_stand_in_their_namespace() {
        let (uuid, nguid) = ("d592cdf3-5d1c-44e0-8412-3fcf7d99df27", "ef90689c6c46d44c89c14067801309a8");
        let identifiers = NamespaceIdentifiers::new(uuid, nguid, "");
        let mut configuration = Configuration::default();
        configuration.disks.push(Disk::new("a", DiskMedium::Null(512)));
        let namespaces = [(7, NewNamespace { disk: 0, identifiers })].into();
        configuration.subsystems.push(NewSubsystem {
            nqn: "nqn".into(),
            namespaces,
            ..NewSubsystem::default()
        });
        let text = toml(&configuration, "secrets");
        let keys = format!("nsid = 7\nuuid = \"{uuid}\"\nnguid = \"{nguid}\"\nbackend = \"null\"\n");
        assert!(text.contains(&keys), "{text}");
    }
}
