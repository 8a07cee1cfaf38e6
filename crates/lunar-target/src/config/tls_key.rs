//! Keys of TLS for NVMe hosts.

use lunar_proto::nvme::auth::{AuthNames, InvalidSecret};
use lunar_proto::nvme::tls::{TlsKey, TlsKeyLabels, TlsPsk, TlsPskVersion};
use lunar_wire::nvme::{DISCOVERY_NQN, Nqn};
use std::path::PathBuf;

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

    /// The PSKs with this identity, which differ by the labels of their derivation.
    pub(crate) fn psks<'a>(&'a self, identity: &'a [u8]) -> impl Iterator<Item = &'a TlsPsk> {
        self.psks.iter().filter(move |psk| psk.identity.as_bytes() == identity)
    }
}
