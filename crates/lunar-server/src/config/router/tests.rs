//! Each fault in a router with its exact text, and the example that documents all keys.

use super::*;
use crate::config::lun::Source;
use crate::config::tests::{Folder, check_all, problems};
use crate::config::{Config, load, parse};

const PORTAL: &str = "[router.r1.upstream.a]\nurls = [\"iscsi://192.0.2.1\"]\n";
const MAP: &str = "[[router.r1.target]]\nmap = \"transparent\"\nupstream = \"a\"\naccess = \"all\"\n";

fn good(source: &str) -> Config {
    parse(source, Path::new("t.toml")).map_err(|list| list[0].to_string()).unwrap()
}

/// Faults of a router whose keys are on line 2, followed by its upstream and its target.
fn of_router(keys: &str) -> String {
    problems(&format!("[router.r1]\n{keys}\n{PORTAL}{MAP}"))
}

/// Faults of an unused upstream `a` whose keys are on line 2.
fn of_upstream(keys: &str) -> String {
    let other = PORTAL.replace(".a]", ".b]") + &MAP.replace("\"a\"", "\"b\"");
    problems(&format!("[router.r1.upstream.a]\n{keys}\n{other}"))
}

/// Faults of a target whose keys are on line 2. There are the upstreams `portal`, `target`, `lun`, `disk` and `tape`,
/// and the access list `lab`.
fn of_target(keys: &str) -> String {
    problems(&format!(
        "[[router.r1.target]]\n{keys}\n[router.r1.upstream]\nportal.urls = [\"iscsi://192.0.2.1\"]\n\
         target.urls = [\"iscsi://192.0.2.1/iqn.x:t\"]\nlun.urls = [\"iscsi://192.0.2.1/iqn.x:t/0\"]\n\
         disk.memory = \"1M\"\ntape = {{ sg = \"/dev/sg3\", mode = \"passthrough\" }}\n[access.lab]\n"
    ))
}

/// Faults of a failover pair whose keys are on line 2.
fn of_pair(keys: &str) -> String {
    problems(&format!("[router.r1.failover]\n{keys}\n{PORTAL}{MAP}"))
}

fn example() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/router.example.toml");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn router_of_nine_lines_has_defaults() {
    let config = good(&format!("{PORTAL}{MAP}"));
    assert!(config.targets.is_empty());
    assert_eq!(config.portal_groups[0].portals[0].listen.to_string(), "127.0.0.1:3260");
    let router = &config.routers[0];
    assert_eq!((router.name.as_str(), router.portal_groups.as_slice()), ("r1", &[1][..]));
    assert_eq!((router.path_loss_timeout, router.max_sessions), (Duration::from_secs(8), None));
    assert_eq!((router.iops, router.bytes_per_s, router.has_own_portals), (0, 0, false));
    let a = &router.upstreams["a"];
    assert_eq!((a.mode, a.policy, a.reach()), (Mode::Block, UpstreamPolicy::Failover, Reach::Portal));
    assert_eq!(router.targets[0].map, Map::Transparent { upstream: "a".into() });
    assert_eq!((router.targets[0].access.none, router.targets[0].access.entries.len()), (false, 0));
}

/// The tag of the portals of router r1. Hosts know its ports by it, so it must never change.
const R1: u16 = 29183;

#[test]
fn tag_of_own_portals_depends_on_the_router_only() {
    let router = |name: &str, more: &str| {
        format!("[router.r1]\nlisten = [\"10.0.0.5\"]\n{more}{PORTAL}{MAP}").replace("r1", name)
    };
    let tags = |source: &str| -> Vec<u16> { good(source).portal_groups.iter().map(|one| one.tag).collect() };
    let (one, other) = (router("r1", ""), router("r0", "").replace("10.0.0.5", "10.0.0.6"));
    let r0 = tags(&other)[0];
    assert_eq!((tags(&one), tags(&format!("{other}{one}"))), (vec![R1], vec![r0, R1]));
    let group = format!("[[portal_group]]\ntag = {R1}\nportals = [\"127.0.0.1:4000\"]\n");
    let taken = problems(&format!("{group}{one}"));
    assert!(
        taken.starts_with(&format!("t.toml:5:10: the tag of the portals of router r1 is taken: {R1}\n")),
        "{taken}"
    );
    let chosen = router("r2", &format!("portal_group = {R1}\n")).replace("10.0.0.5", "10.0.0.6");
    assert!(problems(&format!("{one}{chosen}")).contains("the tag of the portals of router r1 is taken"));
}

#[test]
fn own_portals_are_a_portal_group_of_their_own() {
    let group = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:4000\"]\n";
    let second =
        format!("[router.r2]\nlisten = [\"10.0.0.6\"]\nportal_group = 2\n{PORTAL}{MAP}").replace("r1", "r2");
    let config = good(&format!("{group}[router.r1]\nlisten = [\"10.0.0.5\"]\n{PORTAL}{MAP}{second}"));
    let groups: Vec<(u16, String)> =
        config.portal_groups.iter().map(|group| (group.tag, group.portals[0].listen.to_string())).collect();
    let wanted = [(1, "127.0.0.1:4000"), (R1, "10.0.0.5:3260"), (2, "10.0.0.6:3260")];
    assert_eq!(groups, wanted.map(|(tag, listen)| (tag, listen.to_owned())));
    assert_eq!([&config.routers[0].portal_groups, &config.routers[1].portal_groups], [&[R1], &[2]]);
}

#[test]
fn default_portal_exists_only_if_used() {
    let own = format!("[router.r1]\nlisten = [\"10.0.0.5\"]\n{PORTAL}{MAP}");
    let portals = |config: Config| -> Vec<(u16, String)> {
        config.portal_groups.iter().map(|group| (group.tag, group.portals[0].listen.to_string())).collect()
    };
    let (ours, default) = ((R1, "10.0.0.5:3260".to_owned()), (1, "127.0.0.1:3260".to_owned()));
    assert_eq!(portals(good(&own)), std::slice::from_ref(&ours));
    let target = "[[target]]\nname = \"iqn.2026-11.org.example:t\"\n";
    let config = good(&format!("{own}{target}"));
    assert_eq!(config.targets[0].portal_groups, [1], "without the portal groups of routers");
    assert_eq!(portals(config), [default.clone(), ours]);
    let other = format!("{PORTAL}{MAP}").replace("r1", "r2");
    assert_eq!(portals(good(&format!("{own}{other}")))[0], default);
}

#[test]
fn problems_of_a_router() {
    check_all(
        of_router,
        &[
            ("", &[]),
            (
                "path_loss_timeout = 8",
                &[
                    "t.toml:2:1: unknown key `path_loss_timeout` in [router.NAME]",
                    "hint: did you mean `path_loss_timeout_s`?",
                ],
            ),
            (
                "path_loss_timeout_s = 301",
                &["t.toml:2:23: `path_loss_timeout_s` is out of range: 301", "hint: use 0 to 300"],
            ),
            ("max_sessions = 0", &["t.toml:2:16: `max_sessions` is out of range: 0", "hint: use 1 to 65535"]),
            ("iops = -1", &["t.toml:2:8: `iops` is out of range: -1", "hint: use 0 to 1000000000"]),
            (
                "bytes_per_s = true",
                &[
                    "t.toml:2:15: `bytes_per_s` must be a size, not a boolean",
                    "hint: write bytes_per_s = \"64MiB\"",
                ],
            ),
            (
                "mode = \"blocks\"",
                &["t.toml:2:8: unknown mode \"blocks\"", "hint: write \"block\" or \"passthrough\""],
            ),
            (
                "listen = []",
                &["t.toml:2:10: `listen` is empty", "hint: remove the key, or write [\"127.0.0.1:3260\"]"],
            ),
            (
                "listen = [\"host\"]",
                &[
                    "t.toml:2:11: \"host\" is not an address to listen on",
                    "hint: write a numeric address and a port: 127.0.0.1:3260, [::1]:3260 or 0.0.0.0:3260",
                ],
            ),
            (
                "listen = [\"10.0.0.5\", \"10.0.0.5:3260\"]",
                &[
                    "t.toml:2:23: the address 10.0.0.5:3260 is given twice",
                    "hint: the first is at 2:11; change or remove one of them",
                ],
            ),
            (
                "portal_group = 2",
                &[
                    "t.toml:2:16: `portal_group` requires portals of the router",
                    "hint: add `listen`, or remove `portal_group`",
                ],
            ),
            (
                "listen = [\"10.0.0.5\"]\nportal_group = 2\n[[portal_group]]\ntag = 2\nportals = [\"10.0.0.7\"]",
                &[
                    "t.toml:3:16: portal group tag 2 is given twice",
                    "hint: the first is at 5:7; change or remove one of them",
                ],
            ),
            (
                "listen = [\"127.0.0.1\"]\nportal_group = 1\n[[target]]\nname = \"iqn.2026-11.org.example:t\"",
                &[
                    "t.toml:2:10: the default portal already uses 127.0.0.1:3260",
                    "hint: add [[portal_group]] for the targets that have no portals of their own",
                    "t.toml:3:16: portal group 1 already belongs to the default portal",
                    "hint: add [[portal_group]] for the targets that have no portals of their own",
                ],
            ),
            (
                "[router.\"a b\"]",
                &[
                    "t.toml:2:9: \"a b\" is not a valid name",
                    "hint: use at most 48 letters, digits, '.', '_' and '-', starting with a letter or digit",
                    "t.toml:2:9: the router a b has no upstream",
                    "hint: add [router.a b.upstream.a]",
                    "t.toml:2:9: the router a b has no target",
                    "hint: add [[router.a b.target]] with a map",
                ],
            ),
        ],
    );
    check_all(
        problems,
        &[
            (
                "router = 3",
                &[
                    "t.toml:1:10: `router` must be a table of tables, not an integer",
                    "hint: write [router.NAME]",
                ],
            ),
            (
                "[router]\nr1 = 3",
                &["t.toml:2:6: `r1` must be a table, not an integer", "hint: write [router.NAME]"],
            ),
            (
                "access = 3",
                &[
                    "t.toml:1:10: `access` must be a table of tables, not an integer",
                    "hint: write [access.NAME]",
                ],
            ),
        ],
    );
}

#[test]
fn former_keys_are_rejected_with_the_new_key() {
    check_all(
        of_router,
        &[
            (
                "path = \"block\"",
                &[
                    "t.toml:2:1: unknown key `path` in [router.NAME]",
                    "hint: `path` was renamed: write `mode`",
                ],
            ),
            (
                "hold_s = 8",
                &[
                    "t.toml:2:1: unknown key `hold_s` in [router.NAME]",
                    "hint: `hold_s` was renamed: write `path_loss_timeout_s`",
                ],
            ),
            (
                "[router.r1.pair]\npeer = \"10.0.0.6\"",
                &[
                    "t.toml:2:12: unknown key `pair` in [router.NAME]",
                    "hint: `pair` was renamed: write `failover`",
                ],
            ),
            (
                "mode = \"pass\"",
                &["t.toml:2:8: unknown mode \"pass\"", "hint: \"pass\" was renamed: write \"passthrough\""],
            ),
        ],
    );
    let upstream = of_upstream("memory = \"1M\"\npath = \"block\"");
    assert!(upstream.contains("t.toml:3:1: unknown key `path` in [router.NAME.upstream.NAME]"), "{upstream}");
    assert!(upstream.contains("hint: `path` was renamed: write `mode`"), "{upstream}");
}

#[test]
fn problems_of_an_upstream() {
    let keys = "`urls`, `file`, `device`, `sg`, `null`, `memory`";
    let nowhere = format!("hint: add one of {keys}");
    let twice = format!("hint: keep one of {keys}");
    let own = "t.toml:3:10: a passthrough upstream keeps its own vendor, product and serial number";
    check_all(
        of_upstream,
        &[
            ("memory = \"1M\"", &[]),
            (
                "urls = [\"iscsi://h/iqn.x:a/0\", \"iscsi://g/iqn.x:b/1\"]\npolicy = \"alua\"\nidentity = \"naa.60014051234567890123456789ABCDEF\"\nvendor = \"ACME\"\nproduct = \"X\"\nserial = \"1\"",
                &[],
            ),
            ("", &["t.toml:1:1: the upstream has no source", &nowhere]),
            (
                "url = \"iscsi://h\"",
                &[
                    "t.toml:1:1: the upstream has no source",
                    &nowhere,
                    "t.toml:2:1: unknown key `url` in [router.NAME.upstream.NAME]",
                    "hint: did you mean `urls`?",
                ],
            ),
            ("null = \"1M\"\nfile = \"a.img\"", &["t.toml:3:8: the upstream has several sources", &twice]),
            (
                "urls = []",
                &[
                    "t.toml:2:8: `urls` is empty",
                    "hint: write urls = [\"iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0\"]",
                ],
            ),
            (
                "urls = [\"iscsi://h/iqn.x:a/0\", \"iscsi://g/iqn.x:a\"]",
                &[
                    "t.toml:2:32: this URL names a target, but the first URL names a LUN",
                    "hint: write URLs that are paths to the same portal, target or LUN",
                ],
            ),
            (
                "urls = [\"iscsi://h/iqn.x:a/0\", \"iscsi://g/iqn.x:a/0?initiator=iqn.x:b\"]",
                &[
                    "t.toml:2:32: the URL of this path has initiator=iqn.x:b, but that of the first path has no \
                     initiator=",
                    "hint: write the same initiator= in the URL of each path, or in none",
                ],
            ),
            (
                "urls = [\"iscsi://h\", \"iscsi://h:3260\"]",
                &[
                    "t.toml:2:22: the URL iscsi://h:3260 is given twice",
                    "hint: the first is at 2:9; change or remove one of them",
                ],
            ),
            (
                "urls = [\"iscsi://h/x/99999\"]",
                &["t.toml:2:9: \"99999\" in the URL is not a LUN", "hint: use a number from 0 to 16383"],
            ),
            (
                "memory = \"1\"",
                &["t.toml:2:10: `memory` is out of range: 1 bytes", "hint: use 4 KiB to 8191 PiB"],
            ),
            (
                "sg = \"/dev/sg3\"",
                &["t.toml:2:6: `sg` requires mode = \"passthrough\"", "hint: add mode = \"passthrough\""],
            ),
            (
                "file = \"a.img\"\nmode = \"passthrough\"",
                &[
                    "t.toml:2:8: a file does not support mode = \"passthrough\"",
                    "hint: write mode = \"block\"",
                ],
            ),
            (
                "device = \"/dev/sdb\"\nmode = \"passthrough\"",
                &[
                    "t.toml:2:10: a block device does not support mode = \"passthrough\"",
                    "hint: write mode = \"block\", or `sg` for a SCSI device",
                ],
            ),
            (
                "null = \"1M\"\nmode = \"passthrough\"",
                &["t.toml:2:8: null does not support mode = \"passthrough\"", "hint: write mode = \"block\""],
            ),
            (
                "memory = \"1M\"\nmode = \"passthrough\"",
                &[
                    "t.toml:2:10: memory does not support mode = \"passthrough\"",
                    "hint: write mode = \"block\"",
                ],
            ),
            (
                "null = \"1M\"\npolicy = \"alua\"",
                &["t.toml:3:10: `policy` requires `urls`", "hint: remove `policy`"],
            ),
            (
                "urls = [\"iscsi://h\"]\npolicy = \"aula\"",
                &["t.toml:3:10: unknown policy \"aula\"", "hint: did you mean \"alua\"?"],
            ),
            (
                "urls = [\"iscsi://h\"]\nlate_writes = \"never\"",
                &["t.toml:3:15: unknown late_writes \"never\"", "hint: write wait or risk"],
            ),
            (
                "null = \"1M\"\nlate_writes = \"wait\"",
                &["t.toml:3:15: `late_writes` requires `urls`", "hint: remove `late_writes`"],
            ),
            (
                "urls = [\"iscsi://h\"]\npolicy = \"\"",
                &[
                    "t.toml:3:10: unknown policy \"\"",
                    "hint: policies are failover, round-robin, least-queue, alua",
                ],
            ),
            (
                "urls = [\"iscsi://h\"]\npolicy = \"alua\"\nmode = \"passthrough\"",
                &[
                    "t.toml:3:10: `policy` uses several paths, but mode = \"passthrough\" uses one path at a time",
                    "hint: write policy = \"failover\", or mode = \"block\"",
                ],
            ),
            (
                "urls = [\"iscsi://h/iqn.x:a\"]\nidentity = \"naa.6001405123456789\"",
                &[
                    "t.toml:3:12: `identity` requires an upstream of one LUN",
                    "hint: add the LUN to the URLs, or remove the key",
                ],
            ),
            (
                "null = \"1M\"\nidentity = \"naa.6001405123456789\"",
                &[
                    "t.toml:3:12: `identity` requires an upstream of one LUN",
                    "hint: add the LUN to the URLs, or remove the key",
                ],
            ),
            (
                "urls = [\"iscsi://h/iqn.x:a/0\"]\nidentity = \"naa.600\"",
                &[
                    "t.toml:3:12: \"naa.600\" is not a LUN identity",
                    "hint: write the identity as `lunar ls` shows it: naa. and 16 or 32 hexadecimal digits, eui. and \
                     16, 24 or 32, uuid., or t10.",
                ],
            ),
            (
                "urls = [\"iscsi://h\"]\nserial = \"1\"",
                &[
                    "t.toml:3:10: `serial` requires an upstream of one LUN",
                    "hint: add the LUN to the URLs, or remove the key",
                ],
            ),
            (
                "urls = [\"iscsi://h\"]\nvendor = \"A\"\nmode = \"passthrough\"",
                &[own, "hint: remove the key, or write mode = \"block\""],
            ),
            (
                "urls = [\"iscsi://h\"]\nvendor = \"NINE CHAR\"",
                &[
                    "t.toml:3:10: \"NINE CHAR\" cannot be a vendor",
                    "hint: use 1 to 8 printable ASCII characters without leading or trailing spaces",
                ],
            ),
            (
                "file = \"a.img\"\n[router.r1.upstream.c]\nfile = \"./a.img\"",
                &[
                    "t.toml:4:8: ./a.img is given twice, line 2 and line 4",
                    "hint: remove one of the LUNs (one LUN serves many hosts), or set read_only = true in both",
                ],
            ),
        ],
    );
}

#[test]
fn problems_of_a_mapping() {
    let name = "name = \"iqn.2026-11.org.example:t\"\naccess = \"all\"";
    let lun = |luns: &str| of_target(&format!("map = \"lun\"\n{name}\nlun = [{luns}]"));
    check_all(
        of_target,
        &[
            ("map = \"transparent\"\nupstream = \"portal\"\naccess = [\"lab\"]", &[]),
            (
                "",
                &[
                    "t.toml:1:1: [[router.NAME.target]] has no `access`",
                    "hint: add access = \"all\" (or \"none\", or the name of an [access.NAME])",
                    "t.toml:1:1: [[router.NAME.target]] has no `map`",
                    "hint: add map = \"transparent\" (or \"target\", \"lun\")",
                ],
            ),
            (
                "access = \"all\"\nmap = \"targets\"",
                &["t.toml:3:7: unknown map \"targets\"", "hint: did you mean \"target\"?"],
            ),
            (
                "access = \"all\"\nmap = \"transparent\"",
                &[
                    "t.toml:1:1: [[router.NAME.target]] has no `upstream`",
                    "hint: add upstream = the name of an upstream",
                ],
            ),
            (
                "access = \"all\"\nmap = \"transparent\"\nupstream = \"protal\"",
                &["t.toml:4:12: unknown upstream \"protal\"", "hint: did you mean \"portal\"?"],
            ),
            (
                "access = \"all\"\nmap = \"transparent\"\nupstream = \"portal\"\nname = \"iqn.2026-11.org.example:t\"",
                &[
                    "t.toml:5:8: `name` does not fit map = \"transparent\"",
                    "hint: the keys of this map are `upstream`",
                ],
            ),
            (
                "access = \"all\"\nmap = \"transparent\"\nupstream = \"target\"",
                &[
                    "t.toml:4:12: the upstream target is a target, but the mapping requires a portal",
                    "hint: use map = \"target\" for a target, or map = \"lun\" and `from` for a LUN of the target",
                ],
            ),
            (
                "access = \"all\"\nmap = \"target\"\nupstream = \"portal\"\nname = \"iqn.2026-11.org.example:t\"",
                &[
                    "t.toml:4:12: the upstream portal is a portal, but the mapping requires a target",
                    "hint: use map = \"transparent\" for a portal",
                ],
            ),
            (
                "access = \"all\"\nmap = \"target\"\nupstream = \"disk\"\nname = \"iqn.2026-11.org.example:t\"",
                &[
                    "t.toml:4:12: the upstream disk is a LUN of this host, but the mapping requires a target",
                    "hint: use map = \"lun\" for a LUN",
                ],
            ),
            (
                "access = \"all\"\nmap = \"target\"\nupstream = \"target\"",
                &[
                    "t.toml:1:1: [[router.NAME.target]] has no `name`",
                    "hint: add name = \"iqn.2026-11.org.example:disks\"",
                ],
            ),
            (
                "access = \"all\"\nmap = \"target\"\nupstream = \"target\"\nname = \"t\"\nlun = []",
                &[
                    "t.toml:5:8: \"t\" is not an iSCSI name",
                    "hint: a name looks like iqn.2026-11.org.example:disks, eui.02004567a425678d or \
                     naa.52004567ba64678d",
                    "t.toml:6:7: `lun` does not fit map = \"target\"",
                    "hint: the keys of this map are `name` and `upstream`",
                ],
            ),
            (
                "access = \"all\"\nmap = \"transparent\"\nupstream = \"portal\"\n[[router.r1.target]]\naccess = \"all\"\nmap = \"transparent\"\nupstream = \"portal\"",
                &[
                    "t.toml:8:12: the mapping of upstream portal is given twice",
                    "hint: the first is at 4:12; change or remove one of them",
                ],
            ),
            (
                "map = \"target\"\nupstream = \"target\"\naccess = \"none\"\nname = \"iqn.2026-11.org.example:t\"\n[[target]]\nname = \"iqn.2026-11.org.example:t\"",
                &[
                    "t.toml:5:8: target iqn.2026-11.org.example:t is given twice",
                    "hint: the first is at 7:8; change or remove one of them",
                ],
            ),
        ],
    );
    check_all(
        lun,
        &[
            (
                "{ lun = 0, upstream = \"lun\" }, { lun = 1, upstream = \"target\", from = 0 }, { lun = 2, upstream = \"disk\" }, { lun = 16383, upstream = \"tape\" }",
                &[],
            ),
            ("", &["t.toml:5:7: the target has no LUN", "hint: write lun = [{ lun = 0, upstream = \"a\" }]"]),
            (
                "3",
                &[
                    "t.toml:5:8: `lun` must be a list of tables, not an integer",
                    "hint: write lun = [{ lun = 0, upstream = \"a\" }]",
                ],
            ),
            (
                "{ lun = 0, upstream = \"portal\", from = 0 }",
                &[
                    "t.toml:5:30: the upstream portal is a portal, but the mapping requires a LUN, or a target and \
                     `from`",
                    "hint: use map = \"transparent\" for a portal",
                ],
            ),
            (
                "{ lun = 0, upstream = \"target\" }",
                &[
                    "t.toml:5:30: the upstream target is a target, but `from` does not name a LUN",
                    "hint: add from = 0",
                ],
            ),
            (
                "{ lun = 0, upstream = \"lun\", from = 0 }",
                &[
                    "t.toml:5:44: the upstream lun is a LUN, and `from` applies only to a target",
                    "hint: remove `from`",
                ],
            ),
            (
                "{ lun = 0, upstream = \"lun\" }, { lun = 0, upstream = \"disk\" }",
                &[
                    "t.toml:5:47: LUN 0 is given twice",
                    "hint: the first is at 5:16; change or remove one of them",
                ],
            ),
            (
                "{ lun = 0, upstream = \"disk\" }, { lun = 1, upstream = \"disk\" }",
                &[
                    "t.toml:5:62: the LUN of upstream disk is given twice",
                    "hint: the first is at 5:30; change or remove one of them",
                ],
            ),
            (
                "{ lun = 0, upstream = \"target\", from = 2 }, { lun = 1, upstream = \"target\", from = 2 }",
                &[
                    "t.toml:5:74: the LUN of upstream target, from 2, is given twice",
                    "hint: the first is at 5:30; change or remove one of them",
                ],
            ),
            (
                "{ upstream = \"disk\", to = 1 }",
                &[
                    "t.toml:5:8: lun = [{ lun = 0, upstream = \"a\" }] has no `lun`",
                    "hint: add lun = 0",
                    "t.toml:5:29: unknown key `to` in lun = [{ lun = 0, upstream = \"a\" }]",
                    "hint: known keys: lun, from, upstream",
                ],
            ),
            (
                "{ lun = 16384, upstream = \"disk\" }",
                &["t.toml:5:16: `lun` is out of range: 16384", "hint: use 0 to 16383"],
            ),
        ],
    );
}

#[test]
fn problems_of_access_lists() {
    let run = |source: &str| problems(&format!("{source}\n{PORTAL}{MAP}"));
    check_all(
        run,
        &[
            (
                "[access.all]",
                &["t.toml:1:9: the access list name all is reserved", "hint: choose another name"],
            ),
            (
                "[access.lab]\nnetwork = []",
                &["t.toml:2:1: unknown key `network` in [access.NAME]", "hint: did you mean `networks`?"],
            ),
            (
                "[access.lab]\nnetworks = [\"10.0.0.1/24\"]\ninitiators = []",
                &[
                    "t.toml:2:13: the network 10.0.0.1/24 has host bits set beyond the prefix of 24",
                    "hint: write 10.0.0.0/24 for the network, or 10.0.0.1 for one address",
                    "t.toml:3:14: `initiators` is empty",
                    "hint: remove the key to match all",
                ],
            ),
            (
                "[access.lab]\nchap = [\"bob\"]",
                &["t.toml:2:9: unknown CHAP user \"bob\"", "hint: add [[chap_user]] with this name"],
            ),
        ],
    );
    let run =
        |access: &str| of_target(&format!("map = \"transparent\"\nupstream = \"portal\"\naccess = {access}"));
    check_all(
        run,
        &[
            ("\"lba\"", &["t.toml:4:10: unknown access list \"lba\"", "hint: did you mean \"lab\"?"]),
            (
                "\"missing\"",
                &["t.toml:4:10: unknown access list \"missing\"", "hint: add [access.NAME] with this name"],
            ),
            (
                "[\"all\"]",
                &["t.toml:4:11: unknown access list \"all\"", "hint: write access = \"all\" without a list"],
            ),
            (
                "[]",
                &[
                    "t.toml:4:10: `access` is empty",
                    "hint: write \"all\", \"none\", the name of an [access.NAME], or a list of names",
                ],
            ),
            (
                "true",
                &[
                    "t.toml:4:10: `access` must be a name or a list of names, not a boolean",
                    "hint: write \"all\", \"none\", the name of an [access.NAME], or a list of names",
                ],
            ),
        ],
    );
}

#[test]
fn problems_of_a_pair() {
    let good = "peer = \"10.0.0.6\"\ngroup = 3\n";
    let of_good = |rest: &str| of_pair(&format!("{good}{rest}"));
    check_all(
        of_good,
        &[
            ("prefer = true\nkey = 0xfedcba9876543210\ninitiator = \"iqn.2026-11.x:fence\"", &[]),
            (
                "initiator = \"fence\"",
                &[
                    "t.toml:4:13: \"fence\" is not an iSCSI name",
                    "hint: a name looks like iqn.2026-11.org.example:disks, eui.02004567a425678d or \
                     naa.52004567ba64678d",
                ],
            ),
            ("key = 0", &["t.toml:4:7: `key` is out of range: 0", "hint: use 1 to 18446744073709551615"]),
            (
                "[router.r1.upstream.b]\nsg = \"/dev/sg0\"\nmode = \"passthrough\"",
                &[
                    "t.toml:1:1: the upstream b has mode = \"passthrough\", and failover requires mode = \"block\"",
                    "hint: remove [router.NAME.failover], or write mode = \"block\"",
                ],
            ),
            (
                "[router.r1.upstream.b]\ndevice = \"/dev/sdb\"",
                &[
                    "t.toml:1:1: the upstream b is local to this host, and failover requires storage that both \
                     routers reach",
                    "hint: remove [router.NAME.failover], or write `urls`",
                ],
            ),
            (
                "[[portal_group]]\ntag = 3\nportals = [\"10.0.0.5\"]",
                &[
                    "t.toml:3:9: this server has a portal group with the tag of the peer: 3",
                    "hint: use different portal group tags on the two routers",
                ],
            ),
        ],
    );
    check_all(
        of_pair,
        &[
            (
                "",
                &[
                    "t.toml:1:1: [router.NAME.failover] has no `peer`",
                    "hint: add peer = \"192.0.2.9:3260\"",
                    "t.toml:1:1: [router.NAME.failover] has no `group`",
                    "hint: add group = 2",
                ],
            ),
            (
                "peer = \"a b\"\ngroup = 2",
                &[
                    "t.toml:2:8: portal \"a b\": invalid host name or address \"a b\" (IPv6 needs brackets)",
                    "hint: write a host name or an address, and a port: 192.0.2.9:3260 or [2001:db8::9]:3260",
                ],
            ),
            (
                "peer = \"h,3\"\ngroup = 2",
                &[
                    "t.toml:2:8: portal \"h,3\": portal group tag not allowed",
                    "hint: write the tag as `group`",
                ],
            ),
        ],
    );
}

#[test]
fn password_is_kept_in_a_file_of_its_owner() {
    let folder = Folder::new("router-secret");
    let text = format!("{PORTAL}{MAP}").replace("iscsi://", "iscsi://bob%hidden@");
    let problems = load(&folder.file("lunar.toml", &text, 0o644)).unwrap_err();
    assert_eq!(problems.len(), 1);
    let message = problems[0].to_string().replace(&format!("{}/", folder.0.display()), "");
    assert_eq!(
        message,
        "lunar.toml:2:9: the URL holds a secret, but other users can access the file: mode 0644\n  \
         hint: run chmod 0600 lunar.toml, or keep the secret in a password_file="
    );
    let config = load(&folder.file("lunar.toml", &text, 0o600)).map_err(|list| list[0].to_string()).unwrap();
    let shown = format!("{:?} {}", config.routers, config.routers[0].upstreams["a"].location());
    assert!(!shown.contains("hidden") && shown.contains("bob@"), "{shown}");
    let twice = text.replace("\"]\n", "\", \"iscsi://bob%hidden@192.0.2.1\"]\n");
    let problems = load(&folder.file("lunar.toml", twice, 0o600)).unwrap_err();
    assert!(
        problems[0].what.ends_with("is given twice") && !problems[0].to_string().contains("hidden"),
        "{}",
        problems[0]
    );
    let file = text.replace("%hidden@192.0.2.1", "@192.0.2.1?password_file=bob.secret");
    let config = load(&folder.file("lunar.toml", file, 0o644)).map_err(|list| list[0].to_string()).unwrap();
    let UpstreamSource::Remote { urls } = &config.routers[0].upstreams["a"].source else { panic!() };
    assert!(urls[0].secret_text().contains(&format!("password_file={}/bob.secret", folder.0.display())));
}

#[test]
fn upstream_reach_follows_its_url() {
    let source = |keys: &str| {
        let config = good(&format!("[router.r1.upstream.x]\n{keys}\n{PORTAL}{MAP}"));
        config.routers[0].upstreams["x"].clone()
    };
    assert_eq!(
        source("file = \"a.img\"").source,
        UpstreamSource::Local(Source::File { path: "a.img".into(), size: None })
    );
    assert_eq!(
        source("device = \"/dev/sdb\"").source,
        UpstreamSource::Local(Source::Device { path: "/dev/sdb".into() })
    );
    assert_eq!(source("null = \"1M\"").location(), "null, 1 MiB");
    let tape = source("sg = \"/dev/sg3\"\nmode = \"passthrough\"\nidentity = \"naa.6001405123456789\"");
    assert_eq!(
        (tape.mode, tape.reach(), tape.location().as_str()),
        (Mode::Passthrough, Reach::Local, "/dev/sg3")
    );
    assert_eq!(tape.identity.as_deref(), Some("naa.6001405123456789"));
    let lun = source(
        "urls = [\"iscsi://h/iqn.x:a/7\"]\nidentity = \"NAA.6001405123456789\""
            .replace("NAA", "naa")
            .as_str(),
    );
    assert_eq!(
        (lun.reach(), lun.identity.as_deref()),
        (Reach::Lun("iqn.x:a", 7), Some("naa.6001405123456789"))
    );
    assert_eq!(lun.location(), "iscsi://h:3260/iqn.x:a/7");
}

#[test]
fn subsystem_is_a_target_and_a_namespace_a_lun() {
    let upstream = |url: &str| {
        let config = good(&format!("[router.r1.upstream.x]\nurls = [\"{url}\"]\n{PORTAL}{MAP}"));
        config.routers[0].upstreams["x"].clone()
    };
    let nqn = "nqn.2026-11.org.example:d";
    assert_eq!(upstream(&format!("nvme://h/{nqn}")).reach(), Reach::Target(nqn));
    let one = upstream(&format!("nvme://h/{nqn}/7?queue_len=32"));
    assert_eq!((one.reach(), one.mode), (Reach::Lun(nqn, 6), Mode::Block));
    assert_eq!(one.location(), format!("nvme://h:4420/{nqn}/7"));
}

#[test]
fn nvme_upstream_faults_have_positions_and_hints() {
    let nqn = "nqn.2026-11.org.example:d";
    let faults = |keys: &str| of_upstream(&keys.replace("NQN", nqn));
    check_all(
        faults,
        &[
            (
                "urls = [\"nvme://h\"]",
                &[
                    "t.toml:2:9: nvme://h:8009 names no subsystem",
                    "hint: write nvme://HOST/NQN or nvme://HOST/NQN/NSID; `lunar ls nvme://HOST` lists the subsystems",
                ],
            ),
            (
                "urls = [\"nvme://h/NQN/16385\"]",
                &[
                    "t.toml:2:9: namespace 16385 cannot be a LUN",
                    "hint: name a namespace by its number, from 1 to 16384",
                ],
            ),
            (
                "urls = [\"nvme://h/NQN/eui.0707070707070707\"]",
                &[
                    "t.toml:2:9: namespace eui.0707070707070707 cannot be a LUN",
                    "hint: name a namespace by its number, from 1 to 16384",
                ],
            ),
            (
                "urls = [\"nvme://h/NQN?paths=i\"]",
                &[
                    "t.toml:2:9: `paths=` does not apply to an upstream",
                    "hint: write a URL in `urls` for each path",
                ],
            ),
            (
                "urls = [\"nvme://h/NQN?host_id=7d3f1a52-90c4-4b61-8a0e-2f6c5b1d9e70\"]",
                &[
                    "t.toml:2:9: `host_id=` does not apply to an upstream: each core has a controller of its own",
                    "hint: remove `host_id=`; the target may use host_nqn=",
                ],
            ),
            (
                "urls = [\"nvme://h/NQN\", \"nvme://i/NQNx\"]",
                &[
                    "t.toml:2:47: the URLs of an upstream name different subsystems",
                    "hint: write an upstream for each subsystem: the paths of one have the same NQN",
                ],
            ),
            (
                "urls = [\"nvme://h/NQN\", \"iscsi://h/iqn.x:a\"]",
                &[
                    "t.toml:2:47: an upstream cannot have nvme:// URLs and URLs of SCSI targets",
                    "hint: write an upstream for each of them",
                ],
            ),
            (
                "urls = [\"nvme://h/NQN\"]\nmode = \"passthrough\"",
                &[
                    "t.toml:2:8: an NVMe namespace does not support mode = \"passthrough\"",
                    "hint: write mode = \"block\"",
                ],
            ),
            (
                "urls = [\"nvme://h/NQN\"]\nlate_writes = \"wait\"",
                &[
                    "t.toml:3:15: `late_writes` does not apply to nvme:// URLs: NVMe has no proof that a write has ended",
                    "hint: remove `late_writes`",
                ],
            ),
        ],
    );
    let pair = "[router.r1.failover]\npeer = \"h\"\ngroup = 2\n";
    let upstream = PORTAL.replace("iscsi://192.0.2.1", &format!("nvme://h/{nqn}"));
    let name = "name = \"iqn.2026-11.org.example:t\"";
    let map = MAP.replace("\"transparent\"", &format!("\"target\"\n{name}"));
    assert!(
        good(&format!("{pair}{upstream}{map}")).routers[0].failover.is_some(),
        "a pair takes NVMe storage"
    );
}

#[test]
fn subsystem_of_this_server_is_no_upstream() {
    let nqn = "nqn.2026-11.org.example:own";
    let own = format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:3260\", {{ listen = \"0.0.0.0:4420\", transport = [\"nvme-tcp\"] }}]\n\
         [[subsystem]]\nnqn = \"{nqn}\"\n"
    );
    let faults =
        |url: &str| problems(&format!("{own}[router.r1.upstream.x]\nurls = [\"{url}\"]\n{PORTAL}{MAP}"));
    for place in ["127.0.0.1", "localhost:4420", "[::1]"] {
        let found = faults(&format!("nvme://{place}/{nqn}"));
        assert!(
            found.contains(&format!("this server itself serves {nqn} at 0.0.0.0:4420")),
            "{place}: {found}"
        );
    }
    for url in [
        format!("nvme://192.0.2.7/{nqn}"),
        format!("nvme://127.0.0.1:4421/{nqn}"),
        format!("nvme://127.0.0.1/{nqn}2"),
    ] {
        let found = faults(&url);
        assert!(!found.contains("this server itself"), "{url}: {found}");
    }
}

#[test]
fn example_is_good_and_has_everything() {
    let config = parse(&example(), Path::new("docs/router.example.toml"));
    let config = config.map_err(|list| list.iter().map(|p| format!("{p}\n")).collect::<String>()).unwrap();
    let maps: Vec<&str> =
        config.routers.iter().flat_map(|r| r.targets.iter().map(|t| t.map.kind())).collect();
    assert!(["transparent", "target", "lun"].iter().all(|map| maps.contains(map)), "{maps:?}");
    assert!(config.routers.iter().any(|router| router.failover.is_some()));
    assert!(
        config.routers.iter().any(|router| router.upstreams.values().any(|u| u.mode == Mode::Passthrough))
    );
    let plain = good(&format!("{PORTAL}{MAP}")).routers.remove(0);
    let first = &config.routers[0];
    assert_eq!(
        (first.path_loss_timeout, first.iops, first.bytes_per_s),
        (plain.path_loss_timeout, plain.iops, plain.bytes_per_s)
    );
}

/// All known keys are in the example.
#[test]
fn example_has_every_key() {
    let known = [
        "listen",
        "portal_group",
        "mode",
        "path_loss_timeout_s",
        "max_sessions",
        "iops",
        "bytes_per_s",
        "urls",
        "file",
        "device",
        "sg",
        "null",
        "memory",
        "policy",
        "late_writes",
        "identity",
        "vendor",
        "product",
        "serial",
        "map",
        "upstream",
        "access",
        "name",
        "lun",
        "from",
        "peer",
        "group",
        "prefer",
        "key",
        "initiator",
        "networks",
        "initiators",
        "chap",
        "read_only",
    ];
    let text = example();
    known
        .iter()
        .for_each(|key| assert!(text.contains(&format!("{key} = ")), "docs/router.example.toml lacks {key}"));
}

/// Every text gives a configuration or faults, and never a panic.
#[test]
fn broken_examples_never_panic() {
    let text = example();
    let check = |text: &str| _ = parse(text, Path::new("t.toml")).map_err(|list| list[0].to_string());
    for (at, c) in text.char_indices() {
        check(&text[..at]);
        for other in ["\"", "0", "[", "=", "\u{0}", "ü"] {
            if c.is_ascii_punctuation() || c.is_ascii_digit() {
                check(&format!("{}{other}{}", &text[..at], &text[at + c.len_utf8()..]));
            }
        }
    }
}
