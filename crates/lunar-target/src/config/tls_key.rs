//! Keys of TLS for NVMe hosts.

use super::TargetNode;
use lunar_proto::nvme::auth::{AuthNames, InvalidSecret};
use lunar_proto::nvme::tls::{TlsKey, TlsKeyLabels, TlsPsk, TlsPskVersion};
use lunar_wire::nvme::{DISCOVERY_NQN, Nqn};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The key of a host for TLS with a subsystem, and the PSKs that follow from it.
#[derive(Clone, Debug, PartialEq)]
pub struct NvmeTlsKey {
    /// The key.
    pub key: TlsKey,
    /// The file that holds it.
    pub file: PathBuf,
    /// The PSKs for the subsystem and for discovery, with identities of both versions and labels of both forms.
    psks: Vec<TlsPsk>,
}

impl NvmeTlsKey {
    /// The key of a host for a subsystem, from this file.
    ///
    /// # Errors
    /// A name is no NQN, or it has a blank.
    pub fn new(key: TlsKey, file: PathBuf, host: &str, subsystem: &str) -> Result<NvmeTlsKey, InvalidSecret> {
        let nqn = |text| Nqn::new(text).map_err(|_| InvalidSecret("a name is no NQN"));
        let mut psks = Vec::new();
        for subsystem in [subsystem, DISCOVERY_NQN] {
            let names = AuthNames { host: nqn(host)?, subsystem: nqn(subsystem)? };
            for labels in [TlsKeyLabels::Standard, TlsKeyLabels::Libnvme115] {
                psks.push(key.psk_with(labels, &names, TlsPskVersion::One)?);
                // Long names have no identity of version 0.
                psks.extend(key.psk_with(labels, &names, TlsPskVersion::Zero));
            }
        }
        Ok(NvmeTlsKey { key, file, psks })
    }

    /// The identities of its PSKs.
    fn identities(&self) -> BTreeSet<&str> {
        self.psks.iter().map(|psk| psk.identity.as_str()).collect()
    }

    /// The PSKs with this identity, which differ by the labels of their derivation.
    pub(crate) fn psks<'a>(&'a self, identity: &'a [u8]) -> impl Iterator<Item = &'a TlsPsk> {
        self.psks.iter().filter(move |psk| psk.identity.as_bytes() == identity)
    }
}

/// The hosts with keys of TLS by the identities of their PSKs, so that a handshake looks at its own host only.
#[derive(Default)]
pub struct TlsIdentities(OnceLock<HashMap<String, Vec<TlsHost>>>);

/// A host with a key, as the names of its subsystem and of itself.
type TlsHost = (String, String);

impl TlsIdentities {
    /// The hosts of these targets with this identity: several have that of discovery. The first call makes the map.
    pub(crate) fn hosts(&self, targets: &BTreeMap<String, TargetNode>, identity: &[u8]) -> &[TlsHost] {
        let all = self.0.get_or_init(|| all_hosts(targets));
        let hosts = str::from_utf8(identity).ok().and_then(|identity| all.get(identity));
        hosts.map_or(&[], Vec::as_slice)
    }
}

fn all_hosts(targets: &BTreeMap<String, TargetNode>) -> HashMap<String, Vec<TlsHost>> {
    let mut all: HashMap<String, Vec<TlsHost>> = HashMap::new();
    for (name, target) in targets {
        for (host, key) in target.subsystem.iter().flat_map(|own| &own.tls_keys) {
            for identity in key.identities() {
                all.entry(identity.to_owned()).or_default().push((name.clone(), host.clone()));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SubsystemSettings;
    use crate::test_target::config;
    use lunar_proto::nvme::tls::TlsKeyHash;

    const NAMES: [&str; 2] = ["nqn.2026-11.org.example:a", "nqn.2026-11.org.example:b"];

    /// A subsystem with keys for these hosts.
    fn subsystem(name: &str, hosts: &[&str]) -> (String, TargetNode) {
        let key = |host: &&str| {
            let key = TlsKey::generate(TlsKeyHash::Sha256).expect("random numbers");
            ((*host).to_owned(), NvmeTlsKey::new(key, "t.key".into(), host, name).expect("a key"))
        };
        let settings = SubsystemSettings::new(name, None, None);
        let settings = SubsystemSettings { tls_keys: hosts.iter().map(key).collect(), ..settings };
        let (_, target) = config().targets.pop_first().expect("a target");
        (name.to_owned(), TargetNode { name: name.to_owned(), subsystem: Some(settings), ..target })
    }

    #[test]
    fn identity_leads_to_its_hosts_alone() {
        let [one, other] = ["nqn.2026-11.org.example:one", "nqn.2026-11.org.example:other"];
        let targets: BTreeMap<String, TargetNode> =
            [subsystem(NAMES[0], &[one, other]), subsystem(NAMES[1], &[one])].into();
        let all = TlsIdentities::default();
        let hosts = |identity: &str| all.hosts(&targets, identity.as_bytes()).to_vec();
        let pair = |name: &str, host: &str| (name.to_owned(), host.to_owned());
        for (name, host) in [(NAMES[0], one), (NAMES[0], other), (NAMES[1], one)] {
            assert_eq!(hosts(&format!("NVMe0R01 {host} {name}")), [pair(name, host)]);
        }
        // A host has one name of discovery, and a key for each subsystem.
        let of_discovery = hosts(&format!("NVMe0R01 {one} {DISCOVERY_NQN}"));
        assert_eq!(of_discovery, NAMES.map(|name| pair(name, one)));
        for unknown in
            [format!("NVMe0R01 {other} {}", NAMES[1]), format!("NVMe0R02 {one} {}", NAMES[0]), String::new()]
        {
            assert!(hosts(&unknown).is_empty(), "{unknown}");
        }
        assert!(all.hosts(&targets, b"\xff").is_empty());
    }
}
