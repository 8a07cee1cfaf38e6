//! The transport of sessions with targets.

use crate::{Error, ErrorKind, TargetSpec};
use lunar_initiator::options::Transport;

/// A transport of commands and data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TargetTransport {
    /// iSCSI over TCP
    #[default]
    Tcp,
    /// iSCSI over RDMA
    Iser,
    /// SCSI over RDMA
    Srp,
}

impl TargetTransport {
    /// The URL scheme.
    pub fn scheme(self) -> &'static str {
        self.carried().scheme()
    }

    fn carried(self) -> Transport {
        match self {
            TargetTransport::Tcp => Transport::Tcp,
            TargetTransport::Iser => Transport::Iser,
            TargetTransport::Srp => Transport::Srp,
        }
    }

    /// The same target over this transport. iSCSI and SRP targets have names of different formats.
    ///
    /// # Errors
    /// If the target has no sessions, or its name has the other format.
    pub fn to(self, target: TargetSpec) -> Result<TargetSpec, Error> {
        let wrong = |why: &str, hint: &'static str| {
            Error::new(
                ErrorKind::Invalid,
                format!("{target}: --transport {} {why}", self.carried().name()),
                hint,
            )
        };
        let TargetSpec::Lun(url) = &target else {
            return Err(wrong("applies only to iSCSI, iSER and SRP targets", "omit --transport"));
        };
        match (url.transport, self.carried()) {
            (Transport::Tcp | Transport::Iser, Transport::Srp) => Err(wrong(
                "needs an SRP target port, and the URL has an iSCSI name",
                "use srp://HOST[:PORT]/ID_EXT[:IOC_GUID]/LUN with the target's id_ext and ioc_guid",
            )),
            (Transport::Srp, Transport::Tcp | Transport::Iser) => Err(wrong(
                "needs an iSCSI name, and the URL has an SRP target port",
                "use iscsi://HOST[:PORT]/IQN/LUN; lunar ls iscsi://HOST[:PORT] lists the names",
            )),
            (_, transport) => {
                let mut url = url.clone();
                url.transport = transport;
                Ok(TargetSpec::Lun(url))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISCSI: &str = "iscsi://192.0.2.1/iqn.2026-11.org.example:a/0?commands=4";
    const SRP: &str = "srp://192.0.2.1/5c0f2813d1be3e7a/0";

    fn over(transport: TargetTransport, target: &str) -> Result<String, String> {
        let target = transport.to(TargetSpec::parse(target).expect("a target"));
        target.map(|target| target.to_string()).map_err(|e| format!("{}; {}", e.what, e.hint))
    }

    #[test]
    fn iscsi_url_converts_between_tcp_and_iser() {
        let iser = over(TargetTransport::Iser, ISCSI).expect("iSCSI supports iSER");
        assert_eq!(iser, "iser://192.0.2.1:3260/iqn.2026-11.org.example:a/0?commands=4");
        assert!(
            over(TargetTransport::Tcp, &iser).expect("and back").starts_with("iscsi://192.0.2.1:3260/iqn.")
        );
        assert!(
            over(TargetTransport::Srp, SRP)
                .expect("the transport is unchanged")
                .starts_with("srp://192.0.2.1:5555/5c0f2813d1be3e7a:")
        );
    }

    #[test]
    fn url_for_other_name_format_is_rejected_with_hint() {
        let e = over(TargetTransport::Srp, ISCSI).expect_err("not an SRP target");
        assert!(e.contains(": --transport srp needs") && e.contains("ID_EXT[:IOC_GUID]"), "{e}");
        for transport in [TargetTransport::Tcp, TargetTransport::Iser] {
            assert!(over(transport, SRP).expect_err("not an iSCSI target").contains("iscsi://HOST"));
        }
        assert!(over(TargetTransport::Tcp, "null:1M").expect_err("no sessions").contains("omit --transport"));
    }
}
