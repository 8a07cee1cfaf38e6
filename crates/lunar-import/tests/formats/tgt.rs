//! Imports of `targets.conf`. Identities are those that a running tgtd reported, and those that its rules give.

use super::{disk_of, has, notes, target};
use lunar_import::{DiskMedium, Found, Imported, NewTransport, Outcome, no_files, tgt, toml};
use std::io;
use std::path::Path;

const TARGETS: &str = include_str!("../samples/tgt/targets.conf");
const ISER: &str = include_str!("../samples/tgt/root/etc/tgt/conf.d/iser.conf");
const DUMP: &str = include_str!("../samples/tgt/dump.conf");

/// The folder of includes.
fn files(path: &Path) -> io::Result<Found> {
    match path.to_str() {
        Some("/etc/tgt/conf.d") => Ok(Found::Folder(vec!["iser.conf".into(), "README".into()])),
        Some("/etc/tgt/conf.d/iser.conf") => Ok(Found::File(ISER.into())),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn import(text: &str) -> Imported {
    tgt(text, &files).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn stores_are_numbered_by_path() {
    let imported = import(TARGETS);
    let configuration = &imported.configuration;
    let paths = |end| -> Vec<(u16, String)> {
        let luns = target(configuration, end).luns.iter();
        luns.map(|(lun, disk)| (*lun, configuration.disks[*disk].name.clone())).collect()
    };
    let plain = [(1, "lv_a"), (2, "lv_b"), (3, "lv_c"), (4, "sdq")].map(|(lun, name)| (lun, name.to_owned()));
    assert_eq!(paths(":plain"), plain);
    let mixed = [(1, "aio.img"), (2, "debian.iso"), (3, "NONE_null"), (15, "with_space.img")];
    assert_eq!(paths(":mixed"), mixed.map(|(lun, name)| (lun, name.to_owned())));
}

#[test]
fn identity_has_the_number_of_the_target() {
    let imported = import("<target iqn.2012-06.org.example:one>\nbacking-store /dev/vg0/a\n</target>");
    let identity = &disk_of(&imported.configuration, ":one", 1).identity;
    assert_eq!(identity.serial.as_deref(), Some(format!("{:30}beaf11", "").as_str()));
    assert_eq!(
        identity.designators[1..],
        ["0103 0008 3000000100000001", "0103 0010 60000000000000000e00000000010001"]
    );
    let shown = [&identity.vendor, &identity.product, &identity.revision].map(Option::as_deref);
    assert_eq!(shown, [Some("IET"), Some("VIRTUAL-DISK"), Some("0001")]);
    let imported = import(TARGETS);
    let plain = disk_of(&imported.configuration, ":plain", 1);
    assert_eq!(plain.identity.designators[1], "0103 0008 3000000a00000001", "it follows controller_tid 9");
}

#[test]
fn settings_of_a_store_are_carried() {
    let imported = import(TARGETS);
    let configuration = &imported.configuration;
    let own = disk_of(configuration, ":mixed", 15);
    assert_eq!(own.medium, DiskMedium::File("/srv/iscsi/with space.img".into()));
    assert_eq!((own.block_size, own.write_cache, own.thin), (Some(4096), false, false));
    let identity = &own.identity;
    assert_eq!(identity.serial.as_deref().map(str::trim), Some("EX-SERIAL-0077"));
    assert_eq!(identity.product.as_deref(), Some("Fast Disk"));
    assert_eq!(identity.designators[2], "0103 0010 60000000000000000000000000beaf77");
    let iso = disk_of(configuration, ":mixed", 2);
    assert!(iso.cdrom && iso.read_only);
    let aio = disk_of(configuration, ":mixed", 1);
    assert!(aio.direct && aio.thin && aio.write_cache);
    assert_eq!(disk_of(configuration, ":mixed", 3).medium, DiskMedium::Null(1 << 40));
    assert_eq!(disk_of(configuration, ":plain", 4).identity.vendor, None, "the disk has its own");
}

#[test]
fn address_and_name_are_entries_of_their_own() {
    let imported = import(TARGETS);
    let configuration = &imported.configuration;
    let mixed = target(configuration, ":mixed");
    assert!(mixed.offline);
    assert_eq!(mixed.mutual.as_deref(), Some("filer-2"), "discovery has another secret");
    let [networks, names] = mixed.access.as_slice() else { panic!("{:?}", mixed.access) };
    assert_eq!(networks.networks, ["192.0.2.0/24", "2001:db8::/64"]);
    assert_eq!(names.initiators, ["iqn.1994-05.com.redhat:client1"]);
    assert!([networks, names].iter().all(|entry| entry.chap == ["host-a", "host-b"]));
    assert_eq!(configuration.discovery.chap, ["scout"]);
    assert!(target(configuration, ":rdma").access.is_empty());
    assert!(
        configuration.portal_groups[0].portals.iter().all(|portal| portal.transport == NewTransport::Iser)
    );
}

#[test]
fn each_loss_has_its_line() {
    let imported = import(TARGETS);
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "line 17 /dev/sdq: vendor, product",
            "line 9 all targets: iSNSServerIP 192.0.2.5",
            "line 45 iqn.2012-06.org.example:mixed: LUN 5, pool/image: the store type \"rbd\" with \"conf=",
            "line 49 iqn.2012-06.org.example:mixed: LUN 4, /srv/vtl/T00001: the store type \"ssc\"",
            "line 53 /srv/vtl/T00001: mode_page",
        ],
    );
    has(
        &notes(&imported, Outcome::Changed),
        &["line 64 iqn.2012-06.org.example:mixed: InitialR2T No", "the portals"],
    );
    has(
        &notes(&imported, Outcome::Carried),
        &["/etc/tgt/conf.d/iser.conf:3 iqn.2012-06.org.example:rdma: LUN 1"],
    );
}

#[test]
fn dump_needs_secrets_and_numbers() {
    let imported = import(DUMP);
    let configuration = &imported.configuration;
    assert!(configuration.chap_users.iter().all(|user| user.secret.is_none()));
    assert_eq!(configuration.chap_users.len(), 2);
    let access = &target(configuration, ":plain").access;
    assert_eq!(access[0].networks, ["192.0.2.7", "2001:db8::7"]);
    assert_eq!(access[1].initiators, ["iqn.1994-05.com.redhat:client1"]);
    has(&notes(&imported, Outcome::Lost), &["line 7 the CHAP secret of \"host-a\", which tgt-admin --dump"]);
    has(
        &notes(&imported, Outcome::Changed),
        &["a dump has no LUN numbers", "line 11 2001:db8::7: an address"],
    );
}

#[test]
fn unknown_access_rules_admit_no_host() {
    let text = "<target iqn.2012-06.org.example:a>\nbacking-store /dev/a\ninitiator-address storage.example.org\n\
                initiator-name iqn.*\n</target>";
    let imported = import(text);
    let access = &target(&imported.configuration, ":a").access;
    assert!(access.len() == 1 && access[0].deny, "{access:?}");
    has(
        &notes(&imported, Outcome::Lost),
        &["line 3 access from \"storage.example.org\"", "line 4 access of \"iqn.*\""],
    );
}

#[test]
fn medium_of_two_targets_is_one_disk() {
    let one = |name: &str, keys: &str| {
        format!(
            "<target iqn.2012-06.org.example:{name}>\n<backing-store /dev/a>\n{keys}</backing-store>\n</target>\n"
        )
    };
    let imported = import(&(one("a", "") + &one("b", "")));
    assert_eq!(toml(&imported.configuration, "secrets").matches("disk = \"a\"").count(), 2);
    has(&notes(&imported, Outcome::Lost), &["line 6 the device /dev/a: the settings and the identity"]);
    let imported = import(&(one("a", "") + &one("b", "readonly 1\n")));
    assert!(target(&imported.configuration, ":b").luns.is_empty(), "its hosts could write");
    has(&notes(&imported, Outcome::Lost), &["another target can write to it"]);
}

#[test]
fn same_serial_number_is_given_once() {
    let target = |tid: u16, lun: u16| {
        format!(
            "<target iqn.2012-06.org.example:t{tid}>\ncontroller_tid {tid}\n<backing-store /dev/{tid}>\nlun {lun}\n\
             </backing-store>\n</target>\n"
        )
    };
    let imported = import(&(target(1, 11) + &target(11, 1)));
    assert_eq!(disk_of(&imported.configuration, ":t11", 1).identity.serial, None);
    has(&notes(&imported, Outcome::Lost), &["the serial number \"beaf111\", which another disk has already"]);
}

#[test]
fn missing_includes_are_reported() {
    let target = "<target iqn.2012-06.org.example:a>\n</target>\n";
    let e = tgt(&format!("include /etc/tgt/one.conf\n{target}"), &no_files).expect_err("no file");
    assert!(
        e.what.starts_with("line 1: cannot read /etc/tgt/one.conf: ") && e.hint.contains("--root"),
        "{e}"
    );
    let imported = tgt(&format!("include /etc/tgt/conf.d/*.conf\n{target}"), &no_files).expect("a target");
    has(
        &notes(&imported, Outcome::Lost),
        &["line 1 include /etc/tgt/conf.d/*.conf: the folder cannot be read"],
    );
    let again = |_: &Path| Ok(Found::File("include /a".into()));
    let e = tgt("include /a", &again).expect_err("no end");
    assert_eq!(e.what, "/a:1: include /a: too many files include each other");
}

#[test]
fn foreign_and_truncated_files_are_rejected() {
    for (text, what) in [
        ("", "the file and its includes have no <target>"),
        ("{\"targets\": 7}", "the file and its includes have no <target>"),
        ("<target a>\nlun 1\n", "line 1: <target a> has no </target>"),
        ("</target>", "line 1: </target> closes no block"),
        ("<target a>\n<backing-store b>\n</target>", "line 3: </target> closes no block"),
    ] {
        assert_eq!(tgt(text, &files).expect_err(text).what, what);
    }
}

#[test]
fn same_designators_of_two_disks_are_given_once() {
    let target = |name: &str, keys: &str| {
        format!(
            "<target iqn.2012-06.org.example:{name}>\n{keys}<backing-store /dev/{name}>\nscsi_sn {name}\n\
             </backing-store>\n</target>\n"
        )
    };
    let all = target("a", "controller_tid 2\n") + &target("b", "") + &target("c", "controller_tid 3\n");
    let imported = import(&all);
    assert!(!disk_of(&imported.configuration, ":b", 1).identity.designators.is_empty());
    assert!(disk_of(&imported.configuration, ":c", 1).identity.designators.is_empty());
    has(&notes(&imported, Outcome::Lost), &["the designators of disk c, which disk b has too"]);
}

#[test]
fn flag_without_a_value_is_set() {
    let text =
        "<target iqn.2012-06.org.example:a>\n<backing-store /dev/a>\nreadonly\n</backing-store>\n</target>\n";
    assert!(disk_of(&import(text).configuration, ":a", 1).read_only);
}
