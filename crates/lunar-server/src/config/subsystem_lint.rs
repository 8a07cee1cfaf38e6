//! NVMe subsystems of which no host can use a namespace.

use super::{Config, SubsystemConfig, Target};
use lunar_target::config::PortalProtocol;

/// One line for each subsystem that no portal of NVMe/TCP offers, and for each one without namespaces.
pub fn subsystem_lint(config: &Config) -> Vec<String> {
    let subsystems = config.targets.iter().filter_map(|target| Some((target, target.subsystem.as_ref()?)));
    subsystems.flat_map(|(target, own)| [unreachable(config, target), empty(target, own)]).flatten().collect()
}

fn unreachable(config: &Config, target: &Target) -> Option<String> {
    let groups = config.portal_groups.iter().filter(|group| target.portal_groups.contains(&group.tag));
    let mut portals = groups.flat_map(|group| &group.portals);
    let is_offered = portals.any(|portal| portal.transports.protocol == PortalProtocol::NvmeTcp);
    let line = || {
        format!(
            "no portal of NVMe/TCP offers {}; hint: add {{ listen = \"127.0.0.1:4420\", transport = [\"nvme-tcp\"] }} to \
             one of its portal groups",
            target.name
        )
    };
    (!is_offered).then(line)
}

fn empty(target: &Target, own: &SubsystemConfig) -> Option<String> {
    let line = || format!("{} has no namespace; hint: add [[subsystem.namespace]]", target.name);
    (target.luns.is_empty() && own.shared.is_empty()).then(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const NAMESPACE: &str = "[[subsystem.namespace]]\nnsid = 1\nbackend = \"null\"\nsize = \"1G\"\n";

    fn lines(transport: &str, keys: &str) -> Vec<String> {
        let source = format!(
            "[[portal_group]]\ntag = 1\nportals = [{{ listen = \"127.0.0.1:4420\", transport = [\"{transport}\"] }}]\n\
             [[portal_group]]\ntag = 2\nportals = [\"127.0.0.1:3260\"]\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n{keys}"
        );
        subsystem_lint(&parse(&source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap())
    }

    #[test]
    fn subsystem_without_an_nvme_portal_is_reported() {
        assert_eq!(lines("nvme-tcp", NAMESPACE), [""; 0]);
        for (transport, keys) in [("tcp", ""), ("nvme-discovery", ""), ("nvme-tcp", "portal_groups = [2]\n")]
        {
            let [line] = &lines(transport, &format!("{keys}{NAMESPACE}"))[..] else { panic!("one line") };
            assert!(
                line.starts_with("no portal of NVMe/TCP offers nqn.2026-11.org.example:a; hint: add "),
                "{line}"
            );
        }
    }

    #[test]
    fn subsystem_without_namespaces_is_reported() {
        let [line] = &lines("nvme-tcp", "")[..] else { panic!("one line") };
        assert!(line.starts_with("nqn.2026-11.org.example:a has no namespace; hint: add "), "{line}");
        let shared = "[[subsystem.namespace]]\nnsid = 1\ntarget = \"iqn.2026-11.org.example:t\"\nlun = 0\n\
            [[target]]\nname = \"iqn.2026-11.org.example:t\"\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1G\"\n";
        assert_eq!(lines("nvme-tcp", shared), [""; 0]);
    }
}
