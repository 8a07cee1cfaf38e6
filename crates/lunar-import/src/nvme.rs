//! The NVMe subsystems of a configuration.

use crate::Configuration;
use crate::configuration::{file_name, free_name};
use std::collections::{BTreeMap, BTreeSet};
use zeroize::Zeroizing;

/// An NVMe subsystem.
#[derive(Debug, Default, PartialEq)]
pub struct NewSubsystem {
    /// Its NQN.
    pub nqn: String,
    /// Serial number; None: the default.
    pub serial: Option<String>,
    /// Model number; None: the default.
    pub model: Option<String>,
    /// Tags of its portal groups.
    pub portal_groups: BTreeSet<u16>,
    /// Whether connections are refused.
    pub offline: bool,
    /// The hosts that may connect.
    pub hosts: AdmittedHosts,
    /// Name of the file with its secret, for hosts that ask for its proof.
    pub secret: Option<String>,
    /// Its namespaces by NSID.
    pub namespaces: BTreeMap<u16, NewNamespace>,
}

/// The hosts that may connect to a subsystem.
#[derive(Debug, Default, PartialEq)]
pub enum AdmittedHosts {
    /// Every host.
    #[default]
    Every,
    /// The hosts with these NQNs.
    Named(BTreeSet<String>),
    /// Hosts that must prove who they are.
    Proven(Vec<ProvenHost>),
}

impl AdmittedHosts {
    /// Whether a host is among those that are named.
    pub(crate) fn names(&self, host: &str) -> bool {
        match self {
            AdmittedHosts::Every => false,
            AdmittedHosts::Named(names) => names.contains(host),
            AdmittedHosts::Proven(hosts) => hosts.iter().any(|one| one.nqn == host),
        }
    }
}

/// A host with a secret, a key of TLS, or both.
#[derive(Debug, Default, PartialEq)]
pub struct ProvenHost {
    /// Its NQN.
    pub nqn: String,
    /// Name of the file with its secret for DH-HMAC-CHAP.
    pub secret: Option<String>,
    /// Name of the file with its key of TLS.
    pub tls_key: Option<String>,
}

/// A namespace.
#[derive(Debug, Default, PartialEq)]
pub struct NewNamespace {
    /// Index in [`Configuration::disks`].
    pub disk: usize,
    /// The values by which hosts identify it.
    pub identifiers: NamespaceIdentifiers,
}

/// The NGUID of a namespace that has none, as `lunar.toml` has it.
pub(crate) const NO_IDENTIFIER: &str = "none";

/// The values by which hosts identify a namespace. None: the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespaceIdentifiers {
    /// UUID with hyphens.
    pub uuid: Option<String>,
    /// NGUID, 32 hexadecimal digits, or `none`.
    pub nguid: Option<String>,
    /// EUI64, 16 hexadecimal digits.
    pub eui64: Option<String>,
}

/// A file with the secret of an NVMe host or subsystem.
#[derive(Debug, PartialEq)]
pub struct SecretFile {
    /// Its name in the folder of secrets.
    pub name: String,
    /// Its text.
    pub text: Zeroizing<String>,
}

impl Configuration {
    /// The name of the file with a secret of `nqn`, which is added if it is new.
    pub(crate) fn secret_file(&mut self, nqn: &str, extension: &str, text: &str) -> String {
        // The last part of an NQN is the part that differs, such as the UUID of a host.
        let short = file_name(nqn.rsplit(':').next().unwrap_or(nqn));
        let is_of = |file: &&SecretFile| file.name.starts_with(&short) && file.name.ends_with(extension);
        if let Some(file) = self.secret_files.iter().filter(is_of).find(|file| file.text.as_str() == text) {
            return file.name.clone();
        }
        let full = |word: &str| format!("{word}.{extension}");
        let is_free = |word: &str| self.secret_files.iter().all(|file| file.name != full(word));
        let name = full(&free_name(&short, is_free));
        self.secret_files.push(SecretFile { name: name.clone(), text: Zeroizing::new(text.to_owned()) });
        name
    }
}

impl NamespaceIdentifiers {
    /// Reads the identifiers as the kernel and SPDK write them. An identifier of zeros is absent.
    pub(crate) fn new(uuid: &str, nguid: &str, eui64: &str) -> NamespaceIdentifiers {
        let digits = |text: &str| -> String {
            let kept = text.chars().filter(|c| !matches!(c, '-' | ':'));
            kept.collect::<String>().to_ascii_lowercase()
        };
        let valid = |text: String, length: usize| {
            let is_hex = text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit());
            Some(text).filter(|text| is_hex && text.bytes().any(|b| b != b'0'))
        };
        let hyphened = |all: String| {
            let (a, b, c, d, e) = (&all[..8], &all[8..12], &all[12..16], &all[16..20], &all[20..]);
            format!("{a}-{b}-{c}-{d}-{e}")
        };
        NamespaceIdentifiers {
            uuid: valid(digits(uuid), 32).map(hyphened),
            nguid: valid(digits(nguid), 32),
            eui64: valid(digits(eui64), 16),
        }
    }

    /// These, without the default of an NGUID. nvmet has none by default, and hosts that connect again expect the same.
    pub(crate) fn without_default_nguid(self) -> NamespaceIdentifiers {
        NamespaceIdentifiers { nguid: self.nguid.or_else(|| Some(NO_IDENTIFIER.into())), ..self }
    }

    /// Each identifier with its name.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let all = [("uuid", &self.uuid), ("nguid", &self.nguid), ("eui64", &self.eui64)];
        all.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_read_in_each_spelling() {
        let nguid = "EF90689C6C46D44C89C14067801309A8";
        let read =
            NamespaceIdentifiers::new("D592CDF3-5d1c-44e0-8412-3fcf7d99df27", nguid, "0000000000000000");
        assert_eq!(read.uuid.as_deref(), Some("d592cdf3-5d1c-44e0-8412-3fcf7d99df27"));
        assert_eq!(read.nguid, Some(nguid.to_ascii_lowercase()));
        assert_eq!(read.eui64, None);
        let same = NamespaceIdentifiers::new("", "ef90689c-6c46-d44c-89c1-4067801309a8", "x");
        assert_eq!((same.uuid, same.nguid, same.eui64), (None, read.nguid, None));
    }

    #[test]
    fn secret_files_have_names_of_their_own() {
        let mut configuration = Configuration::default();
        let mut name = |nqn, text| configuration.secret_file(nqn, "key", text);
        assert_eq!(name("nqn.2026-11.org.example:ann", "one"), "ann.key");
        assert_eq!(name("nqn.2026-11.com.example:ann", "two"), "ann-2.key");
        assert_eq!(name("nqn.2026-11.com.example:ann", "two"), "ann-2.key");
        assert_eq!(configuration.secret_files.len(), 2);
    }
}
