//! Imports of `saveconfig.json`. Identities are those that a running kernel reported.

use super::disk_named;
use lunar_import::{
    Configuration, DiskMedium, Imported, NewTarget, NewTransport, Outcome, ReadOnly, lio, toml,
};

const DEMO: &str = include_str!("../samples/demo-mode.json");
const EVERYTHING: &str = include_str!("../samples/everything.json");

fn import(text: &str) -> Imported {
    lio(text).expect("it is a saveconfig.json")
}

fn target<'a>(configuration: &'a Configuration, name: &str) -> &'a NewTarget {
    configuration
        .targets
        .iter()
        .find(|target| target.name == name)
        .unwrap_or_else(|| panic!("no target {name}"))
}

/// The lost objects.
fn lost(imported: &Imported) -> Vec<&str> {
    let lost = imported.notes.list().iter().filter(|note| note.outcome == Outcome::Lost);
    lost.map(|note| note.text.as_str()).collect()
}

#[test]
fn demo_mode_is_carried_whole() {
    let imported = import(DEMO);
    assert_eq!(lost(&imported), [""; 0]);
    let home = disk_named(&imported.configuration, "home");
    assert_eq!(home.medium, DiskMedium::File("/srv/iscsi/home.img".into()));
    assert!(home.write_cache);
    let identity = &home.identity;
    assert_eq!(identity.serial.as_deref(), Some("3f2d9c1a-7b54-4e60-9a11-0c5d8e7f6a21"));
    assert_eq!(identity.naa.as_deref(), Some("60014053f2d9c1a7b544e609a110c5d8"));
    assert_eq!(identity.t10_id.as_deref(), Some("home:3f2d9c1a-7b54-4e60-9a11-0c5d8e7f6a21"));
    assert_eq!([&identity.vendor, &identity.product].map(Option::as_deref), [Some("LIO-ORG"), Some("home")]);
    assert!(
        imported.configuration.targets.iter().all(|target| target.access.is_empty()),
        "every host may write"
    );
}

#[test]
fn everything_keeps_disks_hosts_and_users() {
    let imported = import(EVERYTHING);
    let configuration = &imported.configuration;
    let vm = disk_named(configuration, "vm_store");
    assert_eq!((vm.block_size, vm.identity.product.as_deref()), (Some(4096), Some("vm store")));
    let scratch = disk_named(configuration, "scratch");
    assert!(scratch.read_only && !scratch.write_cache);
    assert_eq!(scratch.identity.naa.as_deref(), Some("600140550cfd3766cc33a70000000000"));
    assert_eq!(disk_named(configuration, "sink").medium, DiskMedium::Null(1 << 40));
    let filer = target(configuration, "iqn.2019-04.org.example:filer.vm");
    assert_eq!(filer.luns.keys().copied().collect::<Vec<_>>(), [0, 3, 4, 5, 9, 10]);
    let [a, b, windows] = filer.access.as_slice() else { panic!("{:?}", filer.access) };
    assert_eq!(a.initiators, ["iqn.1998-01.com.vmware:esx-a-1a2b3c4d"]);
    assert_eq!((a.chap.as_slice(), a.mutual.as_deref()), (&["host-a".to_owned()][..], Some("filer")));
    assert_eq!(a.luns, Some([(0, 0), (1, 9), (2, 3)].into()));
    assert_eq!(a.read_only, ReadOnly::Luns([2].into()));
    assert_eq!(b.luns, Some([(0, 0)].into()), "the tape is lost");
    assert_eq!((windows.luns.as_ref().map(|luns| luns.len()), windows.chap.len()), (Some(0), 0));
    assert_eq!(configuration.discovery.chap, ["scout"]);
    let portals: Vec<_> = configuration.portal_groups.iter().flat_map(|group| &group.portals).collect();
    assert!(
        portals
            .iter()
            .any(|portal| portal.listen == "192.0.2.11:3260" && portal.transport == NewTransport::Iser)
    );
    assert!(
        portals
            .iter()
            .any(|portal| portal.listen == "[2001:db8::10]:3260" && portal.transport == NewTransport::Tcp)
    );
    let closed = target(configuration, "naa.5001405a1b2c3d4e");
    assert!(closed.access.len() == 1 && closed.access[0].deny, "no host may log in");
}

#[test]
fn everything_names_each_loss() {
    let imported = import(EVERYTHING);
    let lost = lost(&imported).join("\n");
    for part in [
        "/backstores/pscsi/tape0: a SCSI device",
        "/backstores/user/img7: the user backstore \"rbd/pool/img7;osd_op_timeout=30\"",
        "the ALUA state of group secondary",
        "LUN 7: /backstores/pscsi/tape0",
        "iqn.1998-01.com.vmware:esx-b-5e6f7a8b: LUN 7, which is LUN 7 of the target",
        "a disabled portal group",
        "naa.50014055e2f1a0b3: a target of the fabric \"loopback\"",
        "a target of the fabric \"qla2xxx\"",
        "the disk orphan, which is a LUN of no target",
    ] {
        assert!(lost.contains(part), "{part} is not in\n{lost}");
    }
    let changed = imported.notes.list().iter().filter(|note| note.outcome == Outcome::Changed);
    let changed: String = changed.map(|note| note.text.clone() + "\n").collect();
    for part in ["ErrorRecoveryLevel=2", "MaxConnections=2", "HeaderDigest=CRC32C demanded digests"] {
        assert!(changed.contains(part), "{part} is not in\n{changed}");
    }
}

#[test]
fn disk_of_two_targets_is_written_once() {
    let two = EVERYTHING.replacen(
        "\"luns\": [],\n          \"node_acls\": [],\n          \"parameters\"",
        "\"luns\": [{\"index\": 1, \"storage_object\": \"/backstores/fileio/vm store\"}],\n          \"node_acls\": [],\n          \"parameters\"",
        1,
    );
    assert_ne!(two, EVERYTHING);
    let text = toml(&import(&two).configuration, "secrets");
    assert_eq!(text.matches("path = \"/srv/iscsi/vm store.img\"").count(), 1, "{text}");
    assert_eq!(text.matches("disk = \"vm_store\"").count(), 2, "{text}");
}

#[test]
fn short_secret_is_replaced_and_reported() {
    let short = EVERYTHING.replace("host-a-password1", "short");
    let imported = import(&short);
    let user = imported.configuration.chap_users.iter().find(|user| user.name == "host-a").expect("the user");
    assert_eq!(user.secret, None);
    assert!(
        lost(&imported)
            .iter()
            .any(|what| what.starts_with("the CHAP secret of \"host-a\", which has 5 bytes"))
    );
}

#[test]
fn mutual_secret_of_a_host_is_replaced_and_reported() {
    let same = EVERYTHING.replace("host-a-mutual-pw1", "host-a-password1");
    let imported = import(&same);
    let access = &target(&imported.configuration, "iqn.2019-04.org.example:filer.vm").access[0];
    let mutual = access.mutual.as_ref().expect("a user");
    let user = imported.configuration.chap_users.iter().find(|user| user.id == *mutual).expect("the user");
    assert_eq!(user.secret, None);
    assert!(lost(&imported).contains(&"the CHAP secret of \"filer\", which is also that of a host"));
}

#[test]
fn one_name_with_two_secrets_is_two_users() {
    let same = EVERYTHING.replace("\"chap_userid\": \"host-b\"", "\"chap_userid\": \"host-a\"");
    let imported = import(&same);
    let access = &target(&imported.configuration, "iqn.2019-04.org.example:filer.vm").access;
    assert_eq!([&access[0].chap, &access[1].chap], [&["host-a".to_owned()], &["host-a-2".to_owned()]]);
}

#[test]
fn empty_and_foreign_files_are_rejected() {
    let empty = lio(include_str!("../samples/empty.json")).expect_err("nothing to import");
    assert_eq!(empty.what, "the file has no storage object and no target");
    for text in ["", "{", "7", "<target>", "{\"targets\": 7}"] {
        let error = lio(text).expect_err(text);
        assert!(error.what.starts_with("the file is no saveconfig.json: "), "{error}");
    }
}

#[test]
fn hand_written_file_may_lack_keys() {
    let text = r#"{"storage_objects": [{"plugin": "block", "name": "a", "dev": "/dev/sdb", "wwn": "1", "attributes": {"block_size": "4096"}},
        {"plugin": "ramdisk"}], "targets": [{"fabric": "iscsi", "wwn": "iqn.x:a", "tpgs": [{"luns": [{"storage_object": "/backstores/block/a"}],
        "attributes": {"generate_node_acls": "1"}, "portals": [{"ip_address": "::0"}]}]}]}"#;
    let imported = import(text);
    assert_eq!(lost(&imported), ["/backstores/ramdisk/: the size is not in the file"]);
    let configuration = &imported.configuration;
    assert_eq!(disk_named(configuration, "a").block_size, Some(4096));
    assert_eq!(
        configuration.targets[0].access[0].read_only,
        ReadOnly::All,
        "demo mode is read-only by default"
    );
    let portals: Vec<_> =
        configuration.portal_groups[0].portals.iter().map(|portal| &portal.listen).collect();
    assert_eq!(portals, ["0.0.0.0:3260", "[::]:3260"]);
}

/// A target with two portal groups of one disk; each has these keys.
fn two_groups(first: &str, second: &str) -> Imported {
    let group = |tag: u8, keys: &str| {
        format!(r#"{{"tag": {tag}, "luns": [{{"storage_object": "/backstores/block/a"}}], {keys}}}"#)
    };
    import(&format!(
        r#"{{"storage_objects": [{{"plugin": "block", "name": "a", "dev": "/dev/a", "wwn": "1"}}],
        "targets": [{{"fabric": "iscsi", "wwn": "iqn.x:a", "tpgs": [{}, {}]}}]}}"#,
        group(1, first),
        group(2, second)
    ))
}

#[test]
fn portal_group_with_other_access_is_lost_with_its_portals() {
    let open = r#""attributes": {"generate_node_acls": 1, "demo_mode_write_protect": 0},
        "portals": [{"ip_address": "192.0.2.1"}]"#;
    let other = r#""portals": [{"ip_address": "198.51.100.1"}]"#;
    for second in [
        format!(r#""attributes": {{"generate_node_acls": 1}}, {other}"#),
        format!(
            r#""attributes": {{"generate_node_acls": 1, "demo_mode_write_protect": 0}},
            "chap_userid": "u", "chap_password": "a long password", {other}"#
        ),
    ] {
        let imported = two_groups(open, &second);
        let listen: Vec<_> =
            imported.configuration.portal_groups.iter().flat_map(|group| &group.portals).collect();
        assert!(listen.iter().all(|portal| portal.listen == "192.0.2.1:3260"), "{listen:?}");
        assert!(lost(&imported)[0].contains("a portal group with other LUNs or another access list"));
    }
}

#[test]
fn target_without_portals_is_offline() {
    let imported = two_groups(r#""attributes": {}"#, r#""attributes": {}"#);
    assert!(imported.configuration.targets[0].offline);
}

#[test]
fn credentials_without_the_attribute_demand_chap() {
    let acl =
        r#""node_acls": [{"node_wwn": "iqn.x:h", "chap_userid": "u", "chap_password": "a long password"}]"#;
    let imported = two_groups(acl, acl);
    assert_eq!(imported.configuration.targets[0].access[0].chap, ["u"]);
}
