//! Imports of `scst.conf`.

use super::{disk_named, target};
use lunar_import::{Access, DiskMedium, Imported, Outcome, ReadOnly, scst};

const SIMPLE: &str = include_str!("../samples/scst/simple.conf");
const EVERYTHING: &str = include_str!("../samples/scst/everything.conf");

fn import(text: &str) -> Imported {
    scst(text).expect("it is a scst.conf")
}

/// The notes with an outcome, each with its place.
fn notes(imported: &Imported, outcome: Outcome) -> String {
    let notes = imported.notes.list().iter().filter(|note| note.outcome == outcome);
    notes.map(|note| format!("{}: {}\n", note.place, note.text)).collect()
}

/// The access entries of a target with two devices and some lines.
fn access(lines: &str) -> (Vec<Access>, Imported) {
    let text = format!(
        "HANDLER vdisk_fileio {{\nDEVICE a {{\nfilename /a\n}}\nDEVICE b {{\nfilename /b\n}}\n}}\n\
         TARGET_DRIVER iscsi {{\nenabled 1\nTARGET iqn.2026-11.org.example:t {{\nenabled 1\n{lines}\n}}\n}}\n"
    );
    let imported = import(&text);
    (imported.configuration.targets[0].access.clone(), imported)
}

#[test]
fn simple_file_keeps_the_default_identity() {
    let imported = import(SIMPLE);
    assert_eq!(notes(&imported, Outcome::Lost), "");
    let disk = disk_named(&imported.configuration, "disk1");
    assert_eq!(disk.medium, DiskMedium::File("/srv/scst/disk1.img".into()));
    assert!(!disk.write_cache && !disk.thin);
    let identity = &disk.identity;
    assert_eq!(identity.serial.as_deref(), Some("b8fdbd32"));
    assert_eq!(identity.t10_id.as_deref(), Some("b8fdbd32-disk1"));
    assert_eq!(identity.eui64.as_deref(), Some("6238666462643332"));
    assert_eq!(
        [&identity.vendor, &identity.product].map(Option::as_deref),
        [Some("SCST_FIO"), Some("disk1")]
    );
    let target = &imported.configuration.targets[0];
    assert!(target.access.is_empty() && !target.offline && target.luns.contains_key(&0));
}

#[test]
fn everything_keeps_the_identities() {
    let configuration = import(EVERYTHING).configuration;
    let default = disk_named(&configuration, "disk_default_ids");
    assert_eq!(default.identity.serial.as_deref(), Some("2afdab491a"));
    assert_eq!(default.identity.t10_id.as_deref(), Some("2afdab491a-disk_default_i"));
    assert_eq!(default.identity.eui64.as_deref(), Some("3261666461623439"));
    assert!(default.read_only && default.removable && default.direct);
    assert_eq!(default.block_size, Some(4096));
    let a = &disk_named(&configuration, "vol_a").identity;
    assert_eq!(a.naa.as_deref(), Some("6589cfc0000001d2f0a1b2c3d4e5f607"));
    assert_eq!((a.eui64.as_deref(), a.serial.as_deref()), (None, Some("8f2c1d00a1")));
    assert_eq!([&a.vendor, &a.product].map(Option::as_deref), [Some("EXAMPLE"), Some("Volume # A")]);
    let b = &disk_named(&configuration, "vol_b").identity;
    assert_eq!((b.serial.as_deref(), b.eui64.as_deref()), (Some("2ace379bae"), Some("0123456789abcdef")));
    assert_eq!(b.vendor.as_deref(), Some("SCST_BIO"));
}

#[test]
fn everything_keeps_hosts_and_users() {
    let configuration = import(EVERYTHING).configuration;
    let cluster = target(&configuration, ":cluster");
    assert_eq!(cluster.alias.as_deref(), Some("Cluster disks"));
    let [esx, spare, hidden, except, others] = cluster.access.as_slice() else {
        panic!("{:?}", cluster.access)
    };
    assert_eq!(
        (&esx.initiators[..], &esx.portals[..]),
        (&["iqn.1998-01.com.vmware:esx-*".to_owned()][..], &["192.0.2.10".to_owned()][..])
    );
    assert_eq!(spare.initiators, ["iqn.1998-01.com.vmware:esx-?-spare"]);
    assert!(spare.portals.is_empty() && spare.luns == esx.luns);
    assert_eq!((&esx.luns, &esx.read_only), (&Some([(0, 0), (1, 1)].into()), &ReadOnly::Luns([1].into())));
    assert_eq!(esx.chap, ["host-a", "host-b"]);
    assert!(hidden.deny && hidden.initiators == ["iqn.1991-05.com.microsoft:*"]);
    assert_eq!(
        (&except.initiators[..], &except.luns),
        (&["iqn.1998-01.com.vmware:*".into()][..], &Some([].into()))
    );
    assert_eq!((others.initiators.len(), &others.luns), (0, &Some([(5, 5)].into())));
    assert!(target(&configuration, ":off").offline);
    assert_eq!(configuration.discovery.chap, ["scout"]);
    assert!(configuration.discovery.mutual.is_some() && cluster.mutual.is_some());
    assert!(configuration.portal_groups.iter().any(|group| group.portals[0].listen == "192.0.2.10:3260"));
}

#[test]
fn everything_names_each_loss_with_its_line() {
    let imported = import(EVERYTHING);
    let lost = notes(&imported, Outcome::Lost);
    for part in [
        "line 13: cd_empty: a drive without a medium",
        "line 17: 3:0:0:1: a SCSI device",
        "line 21: 2:0:0:0: a SCSI device",
        "line 42: vol_b: active 0",
        "line 78: iscsi: iSNSServer 192.0.2.5",
        "iqn.2010-03.org.example:cluster: the portals 2001:db8::*",
        "f34b: a target of the driver ib_srpt; docs/rdma.md",
        "21:00:00:24:ff:00:00:01: a target of the driver qla2x00t",
        "the ALUA group dgroup1/local, which is preferred",
        "the ALUA group dgroup1/remote and its state nonoptimized",
        "the disk cd0, which is a LUN of no target",
    ] {
        assert!(lost.contains(part), "{part} is not in\n{lost}");
    }
    assert!(
        imported
            .notes
            .list()
            .iter()
            .all(|note| note.place.starts_with("line ") || note.place.contains("iscsi"))
    );
    let changed = notes(&imported, Outcome::Changed);
    for part in ["MaxSessions 8", "the rotation rate", "iscsi-scstd"] {
        assert!(changed.contains(part), "{part} is not in\n{changed}");
    }
}

#[test]
fn relative_port_is_kept_where_the_target_has_one_port() {
    let (_, imported) = access("allowed_portal 192.0.2.1\nrel_tgt_id 5\nLUN 0 a");
    assert_eq!(imported.configuration.targets[0].relative_ports, [(1, 5)].into());
    assert!(lunar_import::toml(&imported.configuration, "s").contains("\nrelative_ports = { 1 = 5 }\n"));
    assert!(notes(&imported, Outcome::Carried).contains("iqn.2026-11.org.example:t: rel_tgt_id 5"));
    let (_, imported) = access("rel_tgt_id 1\nLUN 0 a");
    assert!(imported.configuration.targets[0].relative_ports.is_empty(), "it is the tag");
    let (_, imported) = access("rel_tgt_id 0\nLUN 0 a");
    assert!(notes(&imported, Outcome::Changed).contains("rel_tgt_id 0: hosts see other"));
    // One address of two targets, so the first target is in two portal groups.
    let text = "TARGET_DRIVER iscsi {\nenabled 1\nTARGET iqn.a {\nenabled 1\nallowed_portal 192.0.2.1\n\
        allowed_portal 192.0.2.2\nrel_tgt_id 5\n}\nTARGET iqn.b {\nenabled 1\nallowed_portal 192.0.2.2\n}\n}\n";
    let imported = import(text);
    assert!(notes(&imported, Outcome::Changed).contains("iqn.a: rel_tgt_id 5: hosts see other"));
}

#[test]
fn groups_map_their_own_numbers() {
    let (access, imported) = access("LUN 0 a\nGROUP g {\nLUN 0 b\nLUN 7 a\nINITIATOR iqn.x:h\n}");
    assert_eq!(imported.configuration.targets[0].luns.len(), 2);
    assert_eq!(access[0].luns, Some([(0, 1), (7, 0)].into()));
    assert_eq!((access[1].initiators.len(), &access[1].luns), (0, &Some([(0, 0)].into())));
}

#[test]
fn target_without_luns_denies_every_host() {
    let (entries, _) = access("");
    assert!(entries.len() == 1 && entries[0].deny);
    let (entries, _) = access("GROUP g {\nLUN 0 a\nINITIATOR iqn.x:h\n}");
    assert_eq!(entries.len(), 1, "other hosts match no entry");
}

#[test]
fn several_negations_never_show_more() {
    let (entries, imported) =
        access("LUN 0 a\nGROUP g {\nLUN 0 b\nINITIATOR !iqn.x:h*\nINITIATOR !iqn.x:k*\n}");
    assert!(entries[0].deny && entries[0].initiators == ["iqn.x:h*"]);
    assert!(notes(&imported, Outcome::Lost).contains("cannot log in"));
    let (entries, _) = access(
        "LUN 0 a\nGROUP g {\nLUN 0 b\nINITIATOR !iqn.x:h\n}\nGROUP i {\nLUN 0 a\nINITIATOR !iqn.x:k\n}",
    );
    assert!(entries[0].deny && entries[0].initiators == ["iqn.x:h"]);
}

#[test]
fn portals_of_hosts_are_carried() {
    let lines = "per_portal_acl 1\nLUN 0 a\nGROUP esx {\nLUN 0 b\nINITIATOR esx-*\\#10.0.0.*\n\
                 INITIATOR iqn.x:k\\#192.0.2.1\nINITIATOR esx-*\\#192.0.2.1\nINITIATOR iqn.x:h*\n\
                 INITIATOR iqn.x:never\nINITIATOR iqn.x:some\\#10.0.0.?\n}\n\
                 GROUP others {\nLUN 0 a\nINITIATOR !iqn.x:guest*\\#10.0.0.*\n}";
    let (entries, imported) = access(lines);
    let shown: Vec<String> = entries
        .iter()
        .map(|one| {
            let deny = if one.deny { " deny" } else { "" };
            format!("{} at {}{deny}", one.initiators.join(" "), one.portals.join(" "))
        })
        .collect();
    assert_eq!(
        shown,
        [
            "esx-* at 10.0.0.0/24",
            "iqn.x:k esx-* at 192.0.2.1",
            "iqn.x:h* at ",
            "iqn.x:some at  deny",
            "iqn.x:guest* at 10.0.0.0/24",
            " at ",
        ]
    );
    let lost = notes(&imported, Outcome::Lost);
    assert!(lost.contains("INITIATOR iqn.x:never: no initiator name can match"), "{lost}");
    assert!(lost.contains("INITIATOR iqn.x:some#10.0.0.?: the portal is no address"), "{lost}");
}

#[test]
fn host_at_two_portals_has_one_entry() {
    let lines = "per_portal_acl 1\nGROUP g {\nLUN 0 a\nINITIATOR iqn.x:h\\#192.0.2.1\nINITIATOR iqn.x:h\\#192.0.2.2\n}\n\
                 GROUP h {\nLUN 0 b\nINITIATOR iqn.x:h\\#192.0.2.3\n}";
    let (entries, imported) = access(lines);
    assert_eq!(
        entries.iter().map(|one| one.portals.join(" ")).collect::<Vec<_>>(),
        ["192.0.2.1 192.0.2.2", "192.0.2.3"]
    );
    let changed = notes(&imported, Outcome::Changed);
    assert!(!changed.contains("also matches"), "no host is in both groups: {changed}");
}

#[test]
fn portal_pattern_limits_access() {
    let (entries, imported) = access("allowed_portal 10.0.0.*\nLUN 0 a\nLUN 1 b");
    assert_eq!((entries.len(), &entries[0].portals[..]), (1, &["10.0.0.0/24".to_owned()][..]));
    let target = &imported.configuration.targets[0];
    assert!(!target.offline && imported.configuration.portal_groups[0].portals[0].listen == "0.0.0.0:3260");
}

#[test]
fn groups_with_common_hosts_are_reported() {
    let (_, imported) =
        access("GROUP g {\nLUN 0 a\nINITIATOR iqn.x:*\n}\nGROUP h {\nLUN 0 b\nINITIATOR iqn.x:h\n}");
    let changed = notes(&imported, Outcome::Changed);
    assert!(changed.contains("iqn.x:h of group h also matches iqn.x:* of group g"), "{changed}");
}

#[test]
fn target_without_enabled_is_offline() {
    let offline = import(&SIMPLE.replace("\t\tenabled 1\n", ""));
    assert!(offline.configuration.targets[0].offline);
    let driver = import(&SIMPLE.replacen("\tenabled 1\n", "", 1));
    assert!(driver.configuration.targets[0].offline);
}

#[test]
fn invalid_values_are_reported_with_their_line() {
    let text = "setup_id 0xzz\nfoo bar\nHANDLER vdisk_fileio {\nDEVICE a {\nfilename /a\nblocksize 1024\n}\n\
                DEVICE b {\nfilename /b\nnaa_id 0x9\nwhat 7\n}\nDEVICE c\n}\nHANDLER x {\nDEVICE d\n}\n\
                TARGET_DRIVER iscsi {\nTARGET iqn.2026-11.org.example:t {\nLUN x b\nLUN 1 none\nLUN 99999 b\n}\n}\n";
    let lost = notes(&import(text), Outcome::Lost);
    for part in [
        "line 1: the setup_id \"0xzz\"",
        "line 2: foo bar",
        "line 4: a: blocks of \"1024\" bytes",
        "line 10: b: naa_id \"0x9\"",
        "line 11: b: what 7",
        "line 13: c: the device has no filename",
        "line 16: d: the unknown handler \"x\"",
        "LUN x b: the number is not between",
        "LUN 1 none: the file has no such device",
        "LUN 99999 b: the number is not between",
    ] {
        assert!(lost.contains(part), "{part} is not in\n{lost}");
    }
}

#[test]
fn truncated_and_foreign_files_are_rejected() {
    for text in ["", "{}", "<target>", "a\n}", "[HANDLER vdisk]"] {
        scst(text).expect_err(text);
    }
    for end in (0..EVERYTHING.len()).filter(|end| EVERYTHING.is_char_boundary(*end)) {
        if let Err(e) = scst(&EVERYTHING[..end]) {
            assert!(!e.what.is_empty() && !e.hint.is_empty());
        }
    }
}
