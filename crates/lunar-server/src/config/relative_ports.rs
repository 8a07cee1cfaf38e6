//! `relative_ports` of a target: relative target port identifiers that differ from the tags of the portal groups.

use super::target::known_tag;
use lunar_config::{Diagnostics, Section, Value, invalid, kind, number};
use lunar_scsi::{TargetPort, TransportProtocol};
use lunar_target::config::PortalGroup;
use std::collections::BTreeMap;

/// Reads the key. `of_target`: the tags of the target.
pub(super) fn relative_ports(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    of_target: &[u16],
    groups: &[PortalGroup],
) -> BTreeMap<u16, u16> {
    let mut numbers = BTreeMap::new();
    let Some(value) = s.find("relative_ports") else { return numbers };
    let Some(table) = value.get_ref().as_table() else {
        kind(p, "relative_ports", value, "a map of portal groups", "write relative_ports = { 1 = 5 }");
        return numbers;
    };
    for (key, value) in table {
        let tag = p.check(&key.span(), portal_group(key.get_ref()));
        let tag = tag.and_then(|tag| known_tag(p, &key.span(), tag, of_target));
        if let (Some(tag), Some(number)) = (tag, number(p, "relative_ports", value, 1..=65535)) {
            numbers.insert(tag, number);
        }
    }
    let of_target = groups.iter().filter(|group| of_target.contains(&group.tag));
    check(p, value, of_target, &numbers);
    numbers
}

fn portal_group(text: &str) -> Result<u16, lunar_config::InvalidValue> {
    text.parse::<u16>().or_else(|_| {
        invalid(format!("\"{}\" is not a portal group", text.escape_debug()), "write its tag: { 1 = 5 }")
    })
}

/// Reports ports of a target with one identifier, and identifiers that SRP cannot have.
fn check<'a>(
    p: &mut Diagnostics<'_>,
    value: Value<'_>,
    groups: impl Iterator<Item = &'a PortalGroup>,
    numbers: &BTreeMap<u16, u16>,
) {
    let mut seen: BTreeMap<u16, TargetPort> = BTreeMap::new();
    for group in groups {
        let number = numbers.get(&group.tag).copied();
        for protocol in [TransportProtocol::Iscsi, TransportProtocol::Srp] {
            if !group.portals.iter().any(|portal| portal.transports.protocol.scsi() == protocol) {
                continue;
            }
            let port = TargetPort::new(protocol, group.tag, number);
            if protocol == TransportProtocol::Srp && number == Some(port.relative) {
                let what = format!(
                    "portal group {} has an SRP portal, whose relative identifier is 32768 plus a number",
                    group.tag
                );
                p.add(&value.span(), what, "write a number below 32768");
            } else if let Some(other) = seen.insert(port.relative, port) {
                let what = format!(
                    "the ports of portal groups {} and {} have the same relative identifier {}",
                    other.portal_group_tag, group.tag, port.relative
                );
                p.add(
                    &value.span(),
                    what,
                    "give each port of the target another number: the default is the tag",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;
    use crate::config::tests::problems;
    use std::path::Path;

    const GROUPS: &str = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:1\"]\n[[portal_group]]\ntag = 2\n\
        portals = [\"127.0.0.1:2\", { listen = \"127.0.0.1:3\", transport = [\"srp\"] }]\n";

    fn target(keys: &str) -> String {
        format!(
            "{GROUPS}[[target]]\nname = \"iqn.2026-11.org.example:t\"\n{keys}\n[[target.lun]]\nlun = 0\nbackend = \"null\"\n\
             size = \"1M\"\n"
        )
    }

    #[test]
    fn relative_ports_are_read_by_portal_group() {
        let good = |keys| parse(&target(keys), Path::new("t.toml")).unwrap();
        let config = good("relative_ports = { 1 = 2, 2 = 1 }");
        assert_eq!(config.targets[0].relative_ports, [(1, 2), (2, 1)].into());
        let config = good("portal_groups = [1]\nrelative_ports = { 1 = 65535 }");
        assert_eq!(config.targets[0].relative_ports, [(1, 65535)].into());
    }

    #[test]
    fn wrong_relative_ports_are_faults() {
        for (keys, wanted) in [
            (
                "relative_ports = { 1 = 2 }",
                "t.toml:9:18: the ports of portal groups 1 and 2 have the same relative identifier 2",
            ),
            (
                "relative_ports = { 1 = 32770 }",
                "t.toml:9:18: the ports of portal groups 1 and 2 have the same relative identifier 32770",
            ),
            (
                "relative_ports = { 2 = 32769 }",
                "t.toml:9:18: portal group 2 has an SRP portal, whose relative identifier is 32768 plus a number",
            ),
            ("relative_ports = { 3 = 1 }", "t.toml:9:20: unknown portal group 3"),
            ("relative_ports = { a = 1 }", "t.toml:9:20: \"a\" is not a portal group"),
            ("portal_groups = [1]\nrelative_ports = { 2 = 3 }", "t.toml:10:20: unknown portal group 2"),
        ] {
            let found = problems(&target(keys));
            assert_eq!(found.lines().next(), Some(wanted), "{keys}");
        }
        for keys in ["relative_ports = 5", "relative_ports = { 1 = 0 }"] {
            assert!(!problems(&target(keys)).is_empty(), "{keys}");
        }
    }
}
