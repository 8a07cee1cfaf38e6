use super::*;
use crate::config::parse;
use crate::config::tests::Folder;
use std::path::Path;

const BASE: &str = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:3260\"]\n[[target]]\n\
    name = \"iqn.2026-11.org.example:t\"\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"1G\"\n\
    [router.r1.upstream.a]\nurls = [\"iscsi://192.0.2.1/iqn.x:t\"]\n[[router.r1.target]]\nmap = \"lun\"\n\
    name = \"iqn.2026-11.org.example:m\"\naccess = \"lab\"\nlun = [{ lun = 0, upstream = \"a\", from = 3 }]\n\
    [access.lab]\nnetworks = [\"10.0.0.0/24\"]\n";

fn config(source: &str) -> Config {
    parse(source, Path::new("t.toml")).map_err(|list| list[0].to_string()).unwrap()
}

/// The reported changes from one file to another.
fn lines(a: &str, b: &str) -> Vec<String> {
    diff(&config(a), &config(b)).iter().map(Difference::to_string).collect()
}

/// The reported changes after a text of the file is replaced.
fn replaced(from: &str, to: &str) -> Vec<String> {
    assert!(BASE.contains(from), "{from}");
    lines(BASE, &BASE.replacen(from, to, 1))
}

#[test]
fn equal_settings_are_not_listed() {
    assert_eq!(lines(BASE, BASE), [""; 0]);
}

#[test]
fn standby_and_its_folder_are_settings_of_the_target() {
    let lun = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1G\"\n";
    let of = |keys: &str| format!("[[target]]\nname = \"iqn.2026-11.org.example:t\"\n{keys}{lun}");
    let changes = lines(&of(""), &of("standby = true\nstate_dir = \"/srv/state\"\n"));
    let target = "target iqn.2026-11.org.example:t";
    let expected = ["standby from false to true", "state_dir from none to /srv/state"];
    assert_eq!(changes, expected.map(|change| format!("{target}: {change}")));
}

#[test]
fn changed_setting_shows_old_and_new_value() {
    let cases = [
        ("127.0.0.1:3260", "127.0.0.1:3261", "portal group 1: portals from 127.0.0.1:3260 to 127.0.0.1:3261"),
        (
            "size = \"1G\"",
            "size = \"2G\"",
            "target iqn.2026-11.org.example:t: LUN 0: source from memory, 1 GiB to memory, 2 GiB",
        ),
        (
            "\"memory\"",
            "\"null\"",
            "target iqn.2026-11.org.example:t: LUN 0: source from memory, 1 GiB to null, 1 GiB",
        ),
        (
            "lun = 0\nbackend",
            "lun = 0\nread_only = true\nbackend",
            "target iqn.2026-11.org.example:t: LUN 0: read_only from false to true",
        ),
        (
            ":t\"\n[[target.lun]]",
            ":t\"\nalias = \"T\"\n[[target.lun]]",
            "target iqn.2026-11.org.example:t: alias from none to T",
        ),
        (
            "[router.r1.upstream.a]",
            "[router.r1]\npath_loss_timeout_s = 3\n[router.r1.upstream.a]",
            "router r1: path_loss_timeout_s from 8 to 3",
        ),
        (
            "[router.r1.upstream.a]",
            "[router.r1.failover]\npeer = \"10.0.0.6\"\ngroup = 9\nprefer = true\ninitiator = \"iqn.2026-11.x:f\"\n[router.r1.upstream.a]",
            "router r1: failover from none to peer 10.0.0.6:3260 in portal group 9, this one preferred, reserved as iqn.2026-11.x:f",
        ),
        (
            "192.0.2.1/",
            "192.0.2.2/",
            "router r1: upstream a: source from iscsi://192.0.2.1:3260/iqn.x:t to iscsi://192.0.2.2:3260/iqn.x:t",
        ),
        (
            "iqn.x:t\"]",
            "iqn.x:t\"]\npolicy = \"alua\"",
            "router r1: upstream a: policy from failover to alua",
        ),
        (
            "from = 3",
            "from = 4",
            "router r1: target iqn.2026-11.org.example:m: LUN 0: source from LUN 3 of upstream a to LUN 4 of upstream a",
        ),
        (
            "10.0.0.0/24",
            "10.0.1.0/24",
            "router r1: target iqn.2026-11.org.example:m: entries of its access lists from 10.0.0.0/24 to 10.0.1.0/24",
        ),
    ];
    for (from, to, line) in cases {
        assert_eq!(replaced(from, to), [line], "{to}");
    }
    let limits = format!(
        "[limits]\nsessions = 7\nmemory = \"64M\"\n[session]\nnop_interval_s = 0\n[server]\ncores = 1\nbusy_poll_us = 50\n{BASE}"
    );
    assert_eq!(
        lines(BASE, &limits),
        [
            "server: cores from all to 1 (needs a restart)",
            "server: busy_poll_us from 0 to 50 (needs a restart)",
            "limits: sessions from 2048 to 7",
            "limits: memory from 1 GiB to 64 MiB (needs a restart)",
            "session: nop_interval_s from 30 to 0",
        ]
    );
}

#[test]
fn added_and_removed_parts_are_listed() {
    let more = "[[portal_group]]\ntag = 2\nportals = [\"127.0.0.1:3262\"]\n[[target]]\nname = \"iqn.2026-11.org.example:u\"\nalias = \"U\"\n\
        portal_groups = [1]\n[[target.lun]]\nlun = 7\nbackend = \"null\"\nsize = \"1T\"\n";
    let changes = lines(BASE, &format!("{BASE}{more}"));
    assert_eq!(
        changes,
        [
            "portal group 2: added: 127.0.0.1:3262",
            "target iqn.2026-11.org.example:t: portal_groups from 1 to 1, 2",
            "target iqn.2026-11.org.example:u: added: U",
            "target iqn.2026-11.org.example:u: LUN 7: added: null, 1 TiB",
            "router r1: portal_groups from 1 to 1, 2",
        ]
    );
    let back = lines(&format!("{BASE}{more}"), BASE);
    assert!(back.contains(&"target iqn.2026-11.org.example:u: removed".into()), "{back:?}");
    assert!(back.contains(&"target iqn.2026-11.org.example:u: LUN 7: removed".into()), "{back:?}");
    let upstream =
        replaced("[[router.r1.target]]", "[router.r1.upstream.b]\nmemory = \"1M\"\n[[router.r1.target]]");
    assert_eq!(upstream, ["router r1: upstream b: added: memory, 1 MiB"]);
}

#[test]
fn access_difference_shows_granted_access() {
    let entries = "[[target.access]]\ninitiators = [\"iqn.a:*\"]\nportals = [\"192.0.2.1\"]\n\
                   luns = { 0 = 0 }\nread_only = true\n[[target.access]]\n";
    let changes = replaced("[router", &format!("{entries}[router"));
    let line = "target iqn.2026-11.org.example:t: access from everybody to iqn.a:* at 192.0.2.1/32 LUNs 0 = 0 \
                read-only; everybody";
    assert_eq!(changes, [line]);
    let changes = replaced("access = \"lab\"", "access = \"none\"");
    assert_eq!(changes[0], "router r1: target iqn.2026-11.org.example:m: access from lab to none");
}

#[test]
fn access_of_a_subsystem_names_all_hosts_or_none() {
    let of = |keys: &str| format!("[[subsystem]]\nnqn = \"nqn.2026-11.org.example:s\"\n{keys}");
    let within = of("networks = [\"10.0.0.0/8\"]\n");
    for (keys, shown) in [
        ("", "all hosts"),
        ("read_only = true\n", "all hosts read-only"),
        ("allowed_hosts = []\n", "no host"),
        ("allowed_hosts = [\"nqn.x\"]\n", "nqn.x"),
    ] {
        let expected = format!("subsystem nqn.2026-11.org.example:s: access from 10.0.0.0/8 to {shown}");
        assert_eq!(lines(&within, &of(keys)), [expected]);
    }
}

#[test]
fn secrets_are_compared_and_not_shown() {
    let folder = Folder::new("diff-secret");
    let with = |secret: &str, password: &str| {
        folder.file("bob.secret", secret, 0o600);
        let users =
            "[[chap_user]]\nname = \"bob\"\nsecret_file = \"bob.secret\"\n[discovery]\nchap = [\"bob\"]\n";
        let text = format!("{users}{BASE}chap = [\"bob\"]\n")
            .replace("iscsi://", &format!("iscsi://eve%{password}@"));
        parse(&text, &folder.0.join("t.toml")).map_err(|list| list[0].to_string()).unwrap()
    };
    let (a, b) = (with("the first secret", "hidden1"), with("the other secret", "hidden2"));
    let changes: Vec<String> = diff(&a, &b).iter().map(Difference::to_string).collect();
    let text = format!("{changes:?} {}", serde_json::to_string(&diff(&a, &b)).unwrap());
    assert!(!text.contains("hidden") && !text.contains("the first") && !text.contains("the other"), "{text}");
    assert_eq!(changes.len(), 3, "{changes:?}");
    assert_eq!(changes[0], "discovery: chap from bob to bob (with another secret)");
    assert!(
        changes[1].starts_with("router r1: upstream a: source from iscsi://eve@192.0.2.1"),
        "{changes:?}"
    );
    assert!(changes[2].contains("as bob (with another secret)"), "{changes:?}");
}

#[test]
fn discovered_luns_are_no_difference() {
    use crate::routes::{Found, expand};
    let config = config(BASE);
    assert_eq!(diff(&config, &expand(&config, &Found::default()).unwrap()), []);
}

#[test]
fn difference_as_json() {
    let list = diff(&config(BASE), &config(&BASE.replace("from = 3", "from = 4")));
    assert_eq!(
        serde_json::to_value(&list[0]).unwrap(),
        serde_json::json!({
            "place": ["router r1", "target iqn.2026-11.org.example:m", "LUN 0"],
            "change": "changed", "key": "source", "from": "LUN 3 of upstream a", "to": "LUN 4 of upstream a",
            "needs_restart": false,
        })
    );
}

#[test]
fn restart_setting_stays_different_until_restart() {
    let before = config(&format!("[server]\ncores = 1\n{BASE}"));
    let text = "127.0.0.1:3260".to_owned();
    let after = BASE.replace(&text, "127.0.0.1:3261").replace("\"memory\"", "\"null\"");
    let after = config(&format!("[server]\ncores = 2\n[limits]\nmemory = \"64MiB\"\nsessions = 7\n{after}"));
    let force = in_force(&before, &after);
    assert_eq!(diff(&before, &after).len(), 5);
    assert!(diff(&before, &force).iter().all(|one| !one.needs_restart));
    assert!(diff(&force, &after).iter().all(|one| one.needs_restart));
    assert_eq!((diff(&before, &force).len(), diff(&force, &after).len()), (3, 2));
}
