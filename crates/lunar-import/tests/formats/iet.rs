//! Imports of `ietd.conf` and its access lists.

use super::{disk_of, has, notes, target};
use lunar_import::{Access, DiskMedium, Found, Imported, Outcome, iet, no_files};
use std::io;
use std::path::Path;

const CONF: &str = include_str!("../samples/iet/ietd.conf");
const ALLOW: &str = include_str!("../samples/iet/initiators.allow");
const DENY: &str = include_str!("../samples/iet/initiators.deny");
const TARGETS: &str = include_str!("../samples/iet/targets.allow");

fn import(text: &str, lists: &[(&str, &str)]) -> Imported {
    let reader = |path: &Path| {
        let found = lists.iter().find(|(name, _)| path == Path::new(name));
        found.map(|(_, text)| Found::File((*text).into())).ok_or(io::ErrorKind::NotFound.into())
    };
    iet(text, &reader).unwrap_or_else(|e| panic!("{e}"))
}

fn sample() -> Imported {
    let lists =
        [("initiators.allow", ALLOW), ("/etc/iet/initiators.deny", DENY), ("/etc/targets.allow", TARGETS)];
    import(CONF, &lists)
}

/// The access entries of a target with one LUN and these lists.
fn access(lists: &[(&str, &str)]) -> Vec<Access> {
    let mut imported = import("Target iqn.2006-09.org.example:a\n", lists);
    imported.configuration.targets.remove(0).access
}

#[test]
fn luns_have_their_settings_and_identity() {
    let imported = sample();
    let configuration = &imported.configuration;
    let first = disk_of(configuration, ":storage.disk1", 0);
    assert_eq!(first.medium, DiskMedium::Device("/dev/vg0/disk1".into()));
    assert!(!first.write_cache && first.direct);
    assert_eq!(first.identity.serial.as_deref(), Some("   EX-DISK1-0001"));
    assert_eq!(first.identity.designators, ["0101 0018 49455400000000006469736b312d69640000000000000000"]);
    let second = disk_of(configuration, ":storage.disk1", 1);
    assert!(second.write_cache && second.identity.designators.is_empty());
    assert!(disk_of(configuration, ":storage.disk1", 5).read_only);
    assert_eq!(disk_of(configuration, ":storage.null", 0).medium, DiskMedium::Null(1 << 30));
    let continued = disk_of(configuration, ":storage.continued", 0);
    assert!(continued.identity.designators[0].ends_with("30313233343536373839616263646566"));
    let disk1 = target(configuration, ":storage.disk1");
    assert_eq!((disk1.alias.as_deref(), disk1.mutual.as_deref()), (Some("Disk1"), Some("filer-2")));
    assert_eq!(configuration.discovery.chap, ["scout"]);
}

#[test]
fn lists_become_access_entries() {
    let imported = sample();
    let configuration = &imported.configuration;
    let [networks, names, denied, others] = target(configuration, ":storage.disk1").access.as_slice() else {
        panic!("{:?}", target(configuration, ":storage.disk1").access)
    };
    assert_eq!(networks.networks, ["192.0.2.0/24", "2001:db8:1::/64"]);
    assert_eq!((names.initiators.len(), names.initiators[0].as_str()), (4, "*:mscs1-1.example.org"));
    assert!(denied.deny && denied.networks == ["192.0.2.66"]);
    assert!([networks, names, others].iter().all(|entry| !entry.deny && entry.chap == ["host-a", "host-b"]));
    assert!(target(configuration, ":storage.null").access.is_empty(), "every host");
    let [allowed, denied, others] = target(configuration, ":storage.continued").access.as_slice() else {
        panic!("three entries")
    };
    assert_eq!((allowed.networks.as_slice(), denied.deny), (&["192.0.2.0/24".to_owned()][..], true));
    assert_eq!(*others, Access::default());
}

#[test]
fn targets_are_on_the_listed_addresses() {
    let imported = sample();
    let groups = &imported.configuration.portal_groups;
    let portals: Vec<&str> =
        groups.iter().flat_map(|group| &group.portals).map(|p| p.listen.as_str()).collect();
    assert_eq!(portals, ["192.0.2.10:3260", "[2001:db8:1::10]:3260"]);
    has(&notes(&imported, Outcome::Changed), &["the portal 0.0.0.0:3260: only the single addresses"]);
    let imported = import(CONF, &[("targets.allow", "iqn.2006-09.org.example:storage.null 192.0.2.x\n")]);
    assert!(imported.configuration.targets.iter().all(|target| target.offline));
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "targets.allow:1 iqn.2006-09.org.example:storage.null: the portals in 192.0.2.x, which is no network",
        ],
    );
}

#[test]
fn networks_of_targets_limit_access() {
    let lists = [
        ("initiators.allow", "ALL 198.51.100.0/24\n"),
        ("targets.allow", "iqn.2006-09.org.example:a 192.0.2.0/24, [2001:db8:1::10]\n"),
    ];
    let imported = import("Target iqn.2006-09.org.example:a\n", &lists);
    let [target] = &imported.configuration.targets[..] else { panic!("one target") };
    let [entry] = &target.access[..] else { panic!("{:?}", target.access) };
    assert!(!target.offline && !entry.deny && entry.networks == ["198.51.100.0/24"]);
    assert_eq!(entry.portals, ["192.0.2.0/24", "2001:db8:1::10"]);
    let portals = &imported.configuration.portal_groups[0].portals;
    assert_eq!(
        portals.iter().map(|portal| &*portal.listen).collect::<Vec<_>>(),
        ["0.0.0.0:3260", "[::]:3260"]
    );
    has(&notes(&imported, Outcome::Carried), &["targets.allow", "initiators.allow"]);
}

#[test]
fn list_that_the_server_never_read_has_no_effect() {
    let imported = import(CONF, &[("targets.deny", "ALL ALL\n"), ("initiators.allow", "ALL ALL\n")]);
    assert!(
        imported
            .configuration
            .targets
            .iter()
            .all(|target| !target.offline && target.access.iter().all(|one| !one.deny))
    );
    has(&notes(&imported, Outcome::Changed), &["targets.deny this file, which IET does not read"]);
}

#[test]
fn each_loss_has_its_line() {
    let imported = sample();
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "line 2 all targets: isnsserver 192.0.2.5",
            "line 12 iqn.2006-09.org.example:storage.disk1: LUN 1: the designator",
            "line 13 iqn.2006-09.org.example:storage.disk1: LUN 5: the designator",
            "line 22 iqn.2006-09.org.example:storage.disk1: wthreads 16",
            "line 28 iqn.2006-09.org.example:storage.null: maxsessions 4",
        ],
    );
    has(
        &notes(&imported, Outcome::Changed),
        &["line 20 iqn.2006-09.org.example:storage.disk1: nopinterval 30"],
    );
}

#[test]
fn missing_list_has_the_effect_of_iet() {
    assert!(access(&[]).is_empty());
    has(&notes(&import(CONF, &[]), Outcome::Lost), &["initiators.allow and initiators.deny were not found"]);
    let denied = [Access { deny: true, ..Access::default() }];
    assert_eq!(access(&[("initiators.allow", "iqn.2006-09.org.example:b ALL\n")]), denied);
    assert!(access(&[("initiators.deny", "iqn.2006-09.org.example:b ALL\n")]).is_empty());
    assert_eq!(access(&[("initiators.deny", "ALL ALL\n")]), denied);
    assert!(access(&[("initiators.deny", "ALL ALL\n"), ("initiators.allow", "ALL ALL\n")]).is_empty());
}

#[test]
fn unknown_rule_admits_no_host() {
    let lists = [("initiators.allow", "ALL (a|b).*\n")];
    assert!(access(&lists).iter().all(|entry| entry.deny));
    let imported = import("Target iqn.2006-09.org.example:a\n", &lists);
    has(
        &notes(&imported, Outcome::Lost),
        &["initiators.allow:1 iqn.2006-09.org.example:a: the rule \"(a|b).*\""],
    );
    let [known, others] = &access(&[("initiators.deny", "ALL 192.0.2.1, (a|b).*\n")])[..] else {
        panic!("two")
    };
    assert!(known.deny && others.deny && others.networks.is_empty());
}

#[test]
fn unreadable_list_and_foreign_file_are_rejected() {
    let denied = |_: &Path| Err(io::ErrorKind::PermissionDenied.into());
    let e = iet(CONF, &denied).expect_err("an unknown list");
    assert!(e.what.starts_with("cannot read initiators.allow: "), "{e}");
    for text in ["", "Lun 0 Path=/a", "{}"] {
        assert_eq!(iet(text, &no_files).expect_err(text).what, "the file has no Target");
    }
}

#[test]
fn invalid_lun_is_lost_with_its_line() {
    let text = "Target iqn.2006-09.org.example:a\nLun x Path=/a\nLun 1 Type=nullio\nLun 2 Type=tape,Path=/b\n\
                Lun 3 Path=/c,Extra=1\nLun 3 Path=/d\nLun 4\nLun 16384 Path=/e\nLun 5 Type=nullio,Sectors=99999999999999999999\n";
    let imported = import(text, &[]);
    assert_eq!(imported.configuration.disks.len(), 1);
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "line 2 iqn.2006-09.org.example:a: Lun x Path=/a: no valid number",
            "line 3 iqn.2006-09.org.example:a: LUN 1: it has no Sectors",
            "line 4 iqn.2006-09.org.example:a: LUN 2: the type \"tape\" has no counterpart",
            "line 5 iqn.2006-09.org.example:a: LUN 3: extra=1",
            "line 6 iqn.2006-09.org.example:a: LUN 3, the file /d: the number is given twice",
            "line 7 iqn.2006-09.org.example:a: LUN 4: it has no Path",
            "line 8 iqn.2006-09.org.example:a: LUN 16384, the file /e: the LUN number is above 16383",
            "line 9 iqn.2006-09.org.example:a: LUN 5: Sectors=99999999999999999999 is no size",
        ],
    );
}
