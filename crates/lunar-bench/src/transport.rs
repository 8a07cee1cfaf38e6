//! What carries sessions with targets.

use crate::{Error, ErrorKind, TargetSpec};
use lunar_initiator::options::Transport as Carried;

/// What carries commands and data.
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
    /// The scheme of URLs.
    pub fn scheme(self) -> &'static str {
        self.carried().scheme()
    }

    fn carried(self) -> Carried {
        match self {
            TargetTransport::Tcp => Carried::Tcp,
            TargetTransport::Iser => Carried::Iser,
            TargetTransport::Srp => Carried::Srp,
        }
    }

    /// The same target, with sessions that this carries. Targets of iSCSI and of SRP have names of different kinds.
    ///
    /// # Errors
    /// When there are no sessions with such a target, or its name is of the other kind.
    pub fn to(self, target: TargetSpec) -> Result<TargetSpec, Error> {
        let wrong = |why: &str, hint: &str| {
            Error::new(
                ErrorKind::Invalid,
                format!("--transport {} of {target}: {why}", self.carried().name()),
                hint,
            )
        };
        let TargetSpec::Lun(url) = &target else {
            return Err(wrong("it has no sessions", "leave --transport out"));
        };
        match (url.transport, self.carried()) {
            (Carried::Tcp | Carried::Iser, Carried::Srp) => Err(wrong(
                "an iSCSI name is no target port of SRP",
                "write srp://HOST[:PORT]/ID_EXT[:IOC_GUID]/LUN, as the target tells its id_ext and ioc_guid",
            )),
            (Carried::Srp, Carried::Tcp | Carried::Iser) => Err(wrong(
                "a target port of SRP is no iSCSI name",
                "write iscsi://HOST[:PORT]/IQN/LUN; lunar ls iscsi://HOST[:PORT] lists names",
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
    fn a_name_of_iscsi_is_reached_over_tcp_and_over_iser() {
        let iser = over(TargetTransport::Iser, ISCSI).expect("it can be");
        assert_eq!(iser, "iser://192.0.2.1:3260/iqn.2026-11.org.example:a/0?commands=4");
        assert!(
            over(TargetTransport::Tcp, &iser).expect("and back").starts_with("iscsi://192.0.2.1:3260/iqn.")
        );
        assert!(
            over(TargetTransport::Srp, SRP)
                .expect("as it was")
                .starts_with("srp://192.0.2.1:5555/5c0f2813d1be3e7a:")
        );
    }

    #[test]
    fn what_has_a_name_of_another_kind_is_told_how_to_write_it() {
        let e = over(TargetTransport::Srp, ISCSI).expect_err("no port of SRP");
        assert!(e.contains("--transport srp of iscsi://") && e.contains("ID_EXT[:IOC_GUID]"), "{e}");
        for transport in [TargetTransport::Tcp, TargetTransport::Iser] {
            assert!(over(transport, SRP).expect_err("no iSCSI name").contains("iscsi://HOST"));
        }
        assert!(
            over(TargetTransport::Tcp, "null:1M").expect_err("no sessions").contains("leave --transport out")
        );
    }
}
