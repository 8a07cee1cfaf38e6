//! NVMe subsystems of which no host can use a namespace.

use super::{Config, SubsystemConfig, Target};
use lunar_target::config::{Portal, PortalProtocol};

/// One line for each subsystem that no portal of NVMe/TCP offers, for each one without namespaces, and for each one whose keys
/// of TLS do not match its portals.
pub fn subsystem_lint(config: &Config) -> Vec<String> {
    let subsystems = config.targets.iter().filter_map(|target| Some((target, target.subsystem.as_ref()?)));
    subsystems
        .flat_map(|(target, own)| {
            [unreachable(config, target), empty(target, own), without_tls(config, target, own)]
        })
        .flatten()
        .collect()
}

fn unreachable(config: &Config, target: &Target) -> Option<String> {
    let is_offered = portals(config, target).next().is_some();
    let line = || {
        format!(
            "no portal of NVMe/TCP offers {}; hint: add {{ listen = \"127.0.0.1:4420\", transport = [\"nvme-tcp\"] }} to \
             one of its portal groups",
            target.name
        )
    };
    (!is_offered).then(line)
}

/// The portals of NVMe/TCP that offer a subsystem.
fn portals<'a>(config: &'a Config, target: &'a Target) -> impl Iterator<Item = &'a Portal> {
    let groups = config.portal_groups.iter().filter(|group| target.portal_groups.contains(&group.tag));
    let portals = groups.flat_map(|group| &group.portals);
    portals.filter(|portal| portal.transports.protocol == PortalProtocol::NvmeTcp)
}

/// Keys of TLS without a portal that has TLS, or the reverse.
fn without_tls(config: &Config, target: &Target, own: &SubsystemConfig) -> Option<String> {
    let (name, mut portals) = (&target.name, portals(config, target).peekable());
    portals.peek()?;
    match (own.tls_keys.is_empty(), portals.any(|portal| portal.transports.tls)) {
        (false, false) => Some(format!(
            "{name} has hosts with a `tls_key_file`, and no portal with TLS offers it; hint: set tls = \"required\" of a portal \
             with transport = [\"nvme-tcp\"]"
        )),
        (true, true) => Some(format!(
            "a portal with TLS offers {name}, and no host has a key; hint: add `tls_key_file` to [[subsystem.host]]"
        )),
        _ => None,
    }
}

fn empty(target: &Target, own: &SubsystemConfig) -> Option<String> {
    let line = || format!("{} has no namespace; hint: add [[subsystem.namespace]]", target.name);
    (target.luns.is_empty() && own.shared.is_empty()).then(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::config::tests::Folder;
    use lunar_proto::nvme::tls::{TlsKey, TlsKeyHash};

    const NAMESPACE: &str = "[[subsystem.namespace]]\nnsid = 1\nbackend = \"null\"\nsize = \"1G\"\n";

    fn lines(transport: &str, keys: &str) -> Vec<String> {
        lines_of(&format!("transport = [\"{transport}\"]"), keys)
    }

    fn lines_of(portal: &str, keys: &str) -> Vec<String> {
        let source = format!(
            "[[portal_group]]\ntag = 1\nportals = [{{ listen = \"127.0.0.1:4420\", {portal} }}]\n\
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

    #[test]
    fn keys_of_tls_and_portals_without_the_other_are_reported() {
        let folder = Folder::new("tls-lint");
        let key = TlsKey::generate(TlsKeyHash::Sha256).expect("random numbers");
        let key = folder.file("host.key", &*key.to_text(), 0o600);
        let host = format!(
            "[[subsystem.host]]\nnqn = \"nqn.2026-11.org.example:h\"\ntls_key_file = \"{}\"\n{NAMESPACE}",
            key.display()
        );
        let (plain, tls) = ("transport = [\"nvme-tcp\"]", "transport = [\"nvme-tcp\"], tls = \"required\"");
        assert_eq!(lines_of(tls, &host), [""; 0]);
        for (portal, keys, expected) in [
            (plain, host.as_str(), "has hosts with a `tls_key_file`, and no portal with TLS offers it"),
            (tls, NAMESPACE, "and no host has a key"),
        ] {
            let [line] = &lines_of(portal, keys)[..] else { panic!("{portal}: one line") };
            assert!(line.contains(expected), "{line}");
        }
    }
}
