//! Imports of `istgt.conf` and `auth.conf`.

use super::{disk_of, has, notes, target};
use lunar_import::{DiskMedium, Found, Imported, Outcome, istgt, no_files};
use std::io;
use std::path::Path;

const CONF: &str = include_str!("../samples/istgt/istgt.conf");
const AUTH: &str = include_str!("../samples/istgt/auth.conf");

fn files(path: &Path) -> io::Result<Found> {
    match path.to_str() {
        Some("auth.conf") => Ok(Found::File(AUTH.into())),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn import(text: &str) -> Imported {
    istgt(text, &files).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn luns_have_their_settings_and_identity() {
    let imported = import(CONF);
    let configuration = &imported.configuration;
    let first = disk_of(configuration, ":disk1", 0);
    assert_eq!(first.medium, DiskMedium::File("/tank/iscsi/disk1".into()));
    assert!(first.write_cache && !first.read_only);
    let identity = &first.identity;
    assert_eq!(identity.serial.as_deref(), Some("10000001"));
    assert_eq!(identity.naa.as_deref(), Some("3000000016546154"));
    assert_eq!(identity.t10_id.as_deref(), Some("iSCSI Disk      10000001"));
    let shown = [&identity.vendor, &identity.product, &identity.revision].map(Option::as_deref);
    assert_eq!(shown, [Some("EXAMPLE"), Some("iSCSI Disk"), Some("0123")]);
    let second = disk_of(configuration, ":disk1", 1);
    assert_eq!(second.identity.serial.as_deref(), Some("EX-VOL1"));
    assert!(!second.write_cache);
    let dvd = disk_of(configuration, ":dvd", 0);
    assert!(dvd.cdrom && dvd.read_only);
    assert_eq!(dvd.identity.serial.as_deref(), Some("10000002"));
    assert_eq!(dvd.identity.vendor.as_deref(), Some("FreeBSD"));
    let off = target(configuration, ":off");
    assert!(off.offline && disk_of(configuration, ":off", 0).read_only);
}

#[test]
fn serial_number_of_other_luns_has_the_lun() {
    let text = "[LogicalUnit7]\nTargetName a\nLUN2 Storage /a Auto\n";
    let imported = import(text);
    assert_eq!(disk_of(&imported.configuration, ":a", 2).identity.serial.as_deref(), Some("10000007L2"));
    assert_eq!(target(&imported.configuration, ":a").name, "iqn.2007-09.jp.ne.peach.istgt:a");
}

#[test]
fn naa_has_the_target_name_as_written() {
    let naa = |name: &str| {
        let text = format!("[LogicalUnit1]\nTargetName {name}\nLUN0 Storage /a Auto\n");
        let imported = import(&text);
        let end = name.to_lowercase();
        (
            disk_of(&imported.configuration, &end, 0).identity.naa.clone(),
            imported.configuration.targets[0].name.clone(),
        )
    };
    let (lower, upper) = (naa("iqn.2007-09.org.example:disk"), naa("iqn.2007-09.org.example:Disk"));
    assert_ne!(lower.0, upper.0);
    assert_eq!(lower.1, upper.1);
}

#[test]
fn initiator_groups_become_access_entries() {
    let imported = import(CONF);
    let configuration = &imported.configuration;
    let disk1 = target(configuration, ":disk1");
    assert_eq!(disk1.portal_groups, [1].into());
    let [denied, others] = disk1.access.as_slice() else { panic!("{:?}", disk1.access) };
    assert!(denied.deny && denied.networks.is_empty());
    assert_eq!(denied.initiators, ["iqn.1991-05.com.microsoft:moon"]);
    assert_eq!(others.networks, ["192.0.2.0/24", "2001:db8::/64"]);
    assert_eq!((others.chap.len(), others.mutual.as_deref()), (2, Some("filer")));
    assert!(target(configuration, ":dvd").access[1].chap.is_empty());
    let portals: Vec<(u16, usize)> =
        configuration.portal_groups.iter().map(|group| (group.tag, group.portals.len())).collect();
    assert_eq!(portals, [(1, 2), (3, 1)]);
}

#[test]
fn same_groups_on_all_portals_are_carried() {
    let same = CONF.replace("PortalGroup3 InitiatorGroup2", "PortalGroup3 InitiatorGroup1");
    assert_eq!(target(&import(&same).configuration, ":disk1").portal_groups, [1, 3].into());
}

#[test]
fn each_loss_has_its_line() {
    let imported = import(CONF);
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "line 8 LogFacility local7",
            "line 13 MaxSessions 16",
            "line 17 [UnitControl]",
            "line 44 iqn.2007-09.org.example.istgt:disk1: Mapping PortalGroup3 InitiatorGroup2: access entries count",
            "line 54 iqn.2007-09.org.example.istgt:disk1: LUN1 Option RPM 1",
            "line 68 iqn.2007-09.org.example.istgt:pass: LUN0 Device /dev/da0: a router serves SCSI devices",
        ],
    );
    has(
        &notes(&imported, Outcome::Changed),
        &["line 51 LUN0: the size 10GB", "line 50 iqn.2007-09.org.example.istgt:disk1: QueueDepth"],
    );
}

#[test]
fn group_without_counterpart_admits_no_host() {
    let text = "[PortalGroup1]\nPortal A 192.0.2.1:3260\n[InitiatorGroup1]\nInitiatorName ALL\nNetmask office\n\
                [InitiatorGroup2]\nInitiatorName iqn.*\n[LogicalUnit1]\nTargetName a\nMapping PortalGroup1 InitiatorGroup1\n\
                Mapping PortalGroup1 InitiatorGroup2\nMapping PortalGroup1 InitiatorGroup3\nMapping PortalGroup9 InitiatorGroup1\n\
                [LogicalUnit2]\nTargetName b\n";
    let imported = import(text);
    for end in [":a", ":b"] {
        let access = &target(&imported.configuration, end).access;
        assert!(access.len() == 1 && access[0].deny, "{access:?}");
    }
    assert!(target(&imported.configuration, ":b").offline);
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "line 5 InitiatorGroup1: Netmask office, which is no network",
            "line 7 iqn.2007-09.jp.ne.peach.istgt:a: the initiator \"iqn.*\"",
            "line 8 iqn.2007-09.jp.ne.peach.istgt:a: InitiatorGroup3, which the file does not have",
            "line 13 iqn.2007-09.jp.ne.peach.istgt:a: Mapping PortalGroup9 InitiatorGroup1: no such group",
        ],
    );
}

#[test]
fn required_chap_without_users_admits_no_host() {
    let text = "[LogicalUnit1]\nTargetName a\nAuthMethod CHAP\nAuthGroup AuthGroup5\n";
    let imported = import(text);
    let [user] = &imported.configuration.chap_users[..] else { panic!("one user") };
    assert_eq!(user.secret, None);
    has(
        &notes(&imported, Outcome::Lost),
        &["line 1 the users of \"AuthGroup5\", which the files do not have"],
    );
}

#[test]
fn missing_auth_file_and_foreign_file_are_rejected() {
    let e = istgt(CONF, &no_files).expect_err("no users");
    assert!(e.what.starts_with("cannot read AuthFile auth.conf: ") && e.hint.contains("--root"), "{e}");
    for text in ["", "[LogicalUnitX]", "{}"] {
        assert_eq!(istgt(text, &no_files).expect_err(text).what, "the file has no [LogicalUnit1]");
    }
}

#[test]
fn deny_that_is_no_name_closes_the_group() {
    let conf = CONF.replace("\"!iqn.", "\"!x.");
    assert_ne!(conf, CONF);
    let imported = import(&conf);
    let denies_all = |entry: &lunar_import::Access| entry.deny && entry.initiators.is_empty();
    assert!(imported.configuration.targets.iter().any(|target| target.access.last().is_some_and(denies_all)));
}
