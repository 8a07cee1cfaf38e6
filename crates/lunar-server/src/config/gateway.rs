//! `[gateway]`: this server is one of several that serve the same images of RBD.

use super::{Config, LunConfig};
use lunar_block::BackendKind;
use lunar_config::{Diagnostics, Section, word};
use lunar_target::config::{Portal, PortalGroup};
use std::ops::Range;

/// A portal group tag has the number of the member in its upper byte.
const TAGS: u16 = 255;

/// The place of this server in a group of gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// The name of the group.
    pub group: String,
    /// The number of this server in the group, from 1 to 127.
    pub id: u8,
    /// The pool of the objects with the shared state. None: that of the image.
    pub pool: Option<String>,
}

/// A section `[gateway]`, and where it is.
pub(super) type FoundGateway = (GatewayConfig, Range<usize>);

/// Reads `[gateway]`. None if it is missing or has a fault.
pub(super) fn gateway(p: &mut Diagnostics<'_>, root: &mut Section<'_>) -> Option<FoundGateway> {
    let is_there = root.find("gateway").is_some();
    let mut s = root.section(p, "gateway", "[gateway]");
    let at = s.at.clone();
    for (key, example) in [("group", "\"gw\""), ("id", "1")] {
        if is_there && s.find(key).is_none() {
            s.missing(p, key, example);
        }
    }
    let group = s.parsed(p, "group", |text| word(text).map(|()| text.to_owned()));
    let id = s.number(p, "id", 1..=127);
    let pool = s.parsed(p, "pool", |text| word(text).map(|()| text.to_owned()));
    s.done(p);
    Some((GatewayConfig { group: group?, id: id?, pool }, at))
}

/// Checks a configuration with `[gateway]`, and gives its portal groups tags that no other member has.
pub(super) fn apply(p: &mut Diagnostics<'_>, config: Config, found: Option<FoundGateway>) -> Config {
    let Some((gateway, at)) = found else { return config };
    for (what, hint) in faults(&config) {
        p.add(&at, what, hint);
    }
    let id = u16::from(gateway.id);
    let of_group = |tag: u16| id << 8 | tag & TAGS;
    let portal_groups = config.portal_groups.into_iter();
    let portal_groups =
        portal_groups.map(|group| PortalGroup { tag: of_group(group.tag), ..group }).collect();
    let mut targets = config.targets;
    for target in &mut targets {
        target.portal_groups.iter_mut().for_each(|tag| *tag = of_group(*tag));
        let ports = std::mem::take(&mut target.relative_ports).into_iter();
        target.relative_ports = ports.map(|(tag, port)| (of_group(tag), of_group(port))).collect();
        target.redirects.iter_mut().for_each(|one| one.portal_group_tag = of_group(one.portal_group_tag));
    }
    Config { gateway: Some(gateway), portal_groups, targets, ..config }
}

/// The faults of a configuration with `[gateway]`, each with its fix.
fn faults(config: &Config) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    if let Some(router) = config.routers.first() {
        let what = format!("a gateway has no routers, but there is [router.{}]", router.name);
        faults.push((what, "run the router as a server of its own".to_owned()));
    }
    for group in &config.portal_groups {
        if group.tag > TAGS {
            let what = format!("the tag {} of a portal group of a gateway is more than {TAGS}", group.tag);
            faults.push((what, "write a smaller tag: Lunar adds 256 times the `id` to it".to_owned()));
        }
        let has_no_address =
            |portal: &&Portal| portal.listen.ip().is_unspecified() && portal.advertise.is_none();
        if let Some(portal) = group.portals.iter().find(has_no_address) {
            let what = format!(
                "the portal {} of a gateway has no address that other gateways could report",
                portal.listen
            );
            faults.push((what, "write the address of this host, or add `advertise`".to_owned()));
        }
    }
    for target in &config.targets {
        let ports = target.relative_ports.values().any(|port| *port > TAGS);
        if ports {
            let what = format!("a relative port of {} is more than {TAGS}", target.name);
            faults.push((what, "write a smaller number: Lunar adds 256 times the `id` to it".to_owned()));
        }
        let (shared, own): (Vec<_>, Vec<_>) = target.luns.iter().partition(|(_, lun)| is_shared(lun));
        if let (Some(_), Some((number, _))) = (shared.first(), own.first()) {
            let what =
                format!("LUN {number} of {} is not an image of RBD, but others of its LUNs are", target.name);
            faults.push((what, "move it to a target of its own, which only this gateway serves".to_owned()));
        }
    }
    faults
}

/// Whether the members of a group share the state of this LUN.
pub(crate) fn is_shared(lun: &LunConfig) -> bool {
    lun.source.kind() == Some(BackendKind::Rbd)
}

#[cfg(test)]
mod tests {
    use crate::config::parse;
    use crate::config::tests::problems;
    use std::path::Path;

    const GATEWAY: &str = "[gateway]\ngroup = \"gw\"\nid = 3\n";
    const PORTAL: &str = "[[portal_group]]\ntag = 2\nportals = [\"10.0.0.3:3260\"]\n";
    const TARGET: &str = "[[target]]\nname = \"iqn.2026-11.org.example:t\"\nrelative_ports = { 2 = 7 }\n[[target.lun]]\n\
        lun = 0\nbackend = \"rbd\"\npool = \"rbd\"\nimage = \"a\"\n";

    #[test]
    fn tags_and_ports_have_the_number_of_the_member() {
        let config =
            parse(&format!("{GATEWAY}pool = \"state\"\n{PORTAL}{TARGET}"), Path::new("t.toml")).unwrap();
        assert_eq!(config.portal_groups[0].tag, 3 * 256 + 2);
        let target = &config.targets[0];
        assert_eq!(target.portal_groups, [3 * 256 + 2]);
        assert_eq!(target.relative_ports, [(3 * 256 + 2, 3 * 256 + 7)].into());
        let gateway = config.gateway.unwrap();
        assert_eq!((&*gateway.group, gateway.id, gateway.pool.as_deref()), ("gw", 3, Some("state")));
        assert!(parse(&format!("{PORTAL}{TARGET}"), Path::new("t.toml")).unwrap().gateway.is_none());
    }

    #[test]
    fn section_of_the_example_is_good() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lunar.example.toml");
        let text = std::fs::read_to_string(example).unwrap();
        let section = &text[text.find("# [gateway]").unwrap()..];
        let section = section.split("\n\n").next().unwrap().replace("# [", "[").replace("\n# ", "\n");
        let config = parse(&format!("{section}\n{PORTAL}{TARGET}"), Path::new("t.toml")).unwrap();
        assert_eq!(config.gateway.map(|gateway| gateway.pool), Some(Some("rbd".to_owned())));
    }

    #[test]
    fn wrong_gateways_are_faults() {
        let with = |portal: &str, rest: &str| format!("{GATEWAY}{portal}{TARGET}{rest}");
        for (text, wanted) in [
            (format!("[gateway]\nid = 3\n{PORTAL}{TARGET}"), "t.toml:1:1: [gateway] has no `group`"),
            (
                format!("[gateway]\ngroup = \"g\"\nid = 128\n{PORTAL}{TARGET}"),
                "t.toml:3:6: `id` is out of range: 128",
            ),
            (
                with("[[portal_group]]\ntag = 2\nportals = [\"0.0.0.0:3260\"]\n", ""),
                "t.toml:1:1: the portal 0.0.0.0:3260 of a gateway has no address that other gateways could report",
            ),
            (
                with(&format!("{PORTAL}[[portal_group]]\ntag = 256\nportals = [\"10.0.0.3:3261\"]\n"), ""),
                "t.toml:1:1: the tag 256 of a portal group of a gateway is more than 255",
            ),
            (
                with(PORTAL, "[[target.lun]]\nlun = 1\nbackend = \"null\"\nsize = \"1M\"\n"),
                "t.toml:1:1: LUN 1 of iqn.2026-11.org.example:t is not an image of RBD, but others of its LUNs are",
            ),
            (
                with(
                    PORTAL,
                    "[router.r1.upstream.a]\nurls = [\"iscsi://10.0.0.9/iqn.2026-11.org.example:x\"]\n",
                ),
                "t.toml:1:1: a gateway has no routers, but there is [router.r1]",
            ),
        ] {
            assert_eq!(problems(&text).lines().next(), Some(wanted), "{text}");
        }
    }
}
