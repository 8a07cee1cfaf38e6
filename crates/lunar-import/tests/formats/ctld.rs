//! Imports of `ctl.conf`, in both grammars.

use super::{disk_named, disk_of, has, notes, target};
use lunar_import::{DiskMedium, Imported, Outcome, ctld};

const CONF: &str = include_str!("../samples/ctld/ctl.conf");
const UCL: &str = include_str!("../samples/ctld/ctl.ucl");

fn import(text: &str) -> Imported {
    ctld(text).unwrap_or_else(|e| panic!("{e}"))
}

/// A target `iqn.2012-06.org.example:a` with a LUN and these keys, after other text.
fn with(before: &str, keys: &str) -> Imported {
    import(&format!("{before}\ntarget iqn.2012-06.org.example:a {{ lun 0 {{ path /a }} {keys} }}"))
}

#[test]
fn shared_lun_is_one_disk_with_its_identity() {
    let imported = import(CONF);
    let configuration = &imported.configuration;
    let disk = disk_named(configuration, "shared0");
    assert_eq!(disk.medium, DiskMedium::Device("/dev/zvol/tank/shared0".into()));
    assert!(
        disk.block_size == Some(4096) && disk.physical_block_size.is_none() && disk.thin && disk.write_cache
    );
    let identity = &disk.identity;
    assert_eq!(identity.serial.as_deref(), Some("EX-SHARED-0"));
    let id: String = format!("{:8}iSCSI Disk      EX-SHARED-0{:19}", "FreeBSD", "")
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        identity.designators,
        [format!("0201 0036 {id}"), "0103 0010 6589cfc000000f00d00000000000001a".to_owned()]
    );
    let shown = [&identity.vendor, &identity.product, &identity.revision].map(Option::as_deref);
    assert_eq!(shown, [Some("FreeBSD"), Some("iSCSI Disk"), Some("0123")]);
    assert_eq!(target(configuration, ":t0").luns[&0], target(configuration, ":t1").luns[&0]);
}

#[test]
fn own_lun_has_the_scsi_name_of_its_target() {
    let imported = import(CONF);
    let configuration = &imported.configuration;
    let plain = disk_of(configuration, ":t0", 1);
    assert_eq!(plain.identity.scsi_name.as_deref(), Some("iqn.2012-06.org.example:t0,lun,1"));
    assert_eq!((plain.identity.naa.as_deref(), plain.identity.serial.as_deref()), (None, None));
    assert_eq!(plain.identity.product.as_deref(), Some("CTLDISK"));
    assert_eq!(disk_of(configuration, ":t0", 2).medium, DiskMedium::Memory(1 << 30));
    let cd = disk_of(configuration, ":t0", 3);
    assert!(cd.cdrom && cd.read_only && cd.removable && !cd.thin);
    assert_eq!(cd.identity.product.as_deref(), Some("CTLCDROM"));
}

#[test]
fn settings_of_luns_are_carried() {
    let imported = with(
        "lun d { path /dev/da0 serial 0123456789abcdefXY device-id 0123456789abcdef option naa 0x5001517800000001\n\
         option eui 0x1 option readonly on option writecache off option pblocksize 4K option removable on }\n\
         lun null { backend ramdisk size 1M }",
        "lun 1 d lun 2 null",
    );
    let disk = disk_of(&imported.configuration, ":a", 1);
    assert!(disk.read_only && disk.removable && !disk.write_cache && !disk.thin);
    assert_eq!(disk.physical_block_size, Some(4096));
    let identity = &disk.identity;
    assert_eq!(identity.serial.as_deref(), Some("0123456789abcdef"));
    assert_eq!(identity.t10_id.as_deref(), Some("0123456789abcdef"));
    assert_eq!(identity.naa.as_deref(), Some("5001517800000001"));
    assert_eq!(identity.eui64.as_deref(), Some("1000000000000000"));
    assert_eq!(identity.scsi_name, None);
    assert_eq!(disk_of(&imported.configuration, ":a", 2).medium, DiskMedium::Null(1 << 20));
}

#[test]
fn portal_groups_keep_tags_and_redirects() {
    let imported = import(CONF);
    let configuration = &imported.configuration;
    let groups: Vec<(u16, Vec<&str>)> = configuration
        .portal_groups
        .iter()
        .map(|group| (group.tag, group.portals.iter().map(|portal| portal.listen.as_str()).collect()))
        .collect();
    let portals = vec!["0.0.0.0:3260", "[::]:3261"];
    assert_eq!(groups, [(7, portals), (257, vec!["192.0.2.10:3262"])]);
    let t0 = target(configuration, ":t0");
    assert_eq!((&t0.portal_groups, t0.alias.as_deref()), (&[7, 257].into(), Some("Shared with the cluster")));
    assert_eq!(t0.redirects, [(257, "192.0.2.20".to_owned())]);
    assert_eq!(target(configuration, ":t1").portal_groups, [7].into());
    assert!(!configuration.discovery.disabled && configuration.discovery.chap.is_empty());
}

#[test]
fn auth_groups_become_access_entries() {
    let imported = import(CONF);
    let configuration = &imported.configuration;
    let [entry] = &target(configuration, ":t0").access[..] else { panic!("one entry") };
    assert_eq!(entry.networks, ["192.0.2.0/24", "2001:db8::/64"]);
    assert_eq!((entry.chap.len(), entry.mutual.as_deref(), entry.deny), (2, Some("filer"), false));
    let [entry] = &target(configuration, ":t1").access[..] else { panic!("one entry") };
    assert_eq!((entry.chap[0].as_str(), &entry.mutual), ("user1", &None));
    let [entry] = &target(configuration, ":closed").access[..] else { panic!("one entry") };
    assert!(entry.deny);
}

#[test]
fn each_loss_has_its_line() {
    let imported = import(CONF);
    let lost = notes(&imported, Outcome::Lost);
    has(
        &lost,
        &[
            "line 6 isns-server 192.0.2.5: Lunar does not register",
            "line 29 portal group pg0: dscp af11",
            "line 39 portal group other-node",
            "line 52 lun shared0: option rpm 1",
            "line 63 lun 1: the serial number and the device identifier",
            "line 90 naa.50015178f369f092: a target with the ports isp0",
        ],
    );
    let changed = notes(&imported, Outcome::Changed);
    has(
        &changed,
        &[
            "line 4 timeout 60",
            "line 36 portal group pg-away: redirect 192.0.2.20: a host is redirected after its login",
            "line 65 lun 1: size 40G: the LUN has the size of its medium",
            "line 70 lun 2: option capacity 128M",
        ],
    );
    assert!(!format!("{lost}{changed}").contains("password"), "no secrets");
}

#[test]
fn file_in_ucl_is_read() {
    let imported = import(UCL);
    let configuration = &imported.configuration;
    let disk = disk_named(configuration, "shared0");
    assert_eq!(disk.identity.naa.as_deref(), Some("6589cfc000000f00d00000000000001a"));
    assert_eq!((disk.block_size, disk.identity.vendor.as_deref()), (Some(4096), Some("FreeBSD")));
    let [t0, t1] = [":t0", ":t1"].map(|end| target(configuration, end));
    assert_eq!((t0.luns[&0], t0.alias.as_deref(), t1.access.len()), (t1.luns[&0], Some("Shared"), 0));
    assert_eq!(t0.portal_groups, [7].into());
    let [entry] = &t0.access[..] else { panic!("one entry") };
    assert_eq!((entry.chap[0].as_str(), entry.mutual.as_deref()), ("esx", Some("filer")));
    assert_eq!(entry.networks.len(), 2);
    assert_eq!(disk_of(configuration, ":t0", 1).medium, DiskMedium::File("/tank/files/plain.img".into()));
    has(
        &notes(&imported, Outcome::Changed),
        &["line 39 lun 1: size 42949672960: the LUN has the size of its medium"],
    );
}

#[test]
fn rule_without_counterpart_admits_no_host() {
    for (before, keys) in [
        ("", ""),
        ("", "auth-group none-such"),
        ("", "auth-group no-access"),
        ("", "initiator-name iqn.2012-06.org.example:h"),
        ("", "auth-type none initiator-name host*"),
        ("", "auth-type none initiator-portal office"),
        ("", "auth-type chap"),
        ("", "auth-type mystery"),
        ("auth-group default { auth-type deny }", ""),
        ("auth-group g { }", "auth-group g"),
    ] {
        let imported = with(before, keys);
        let access = &target(&imported.configuration, ":a").access;
        assert!(access.len() == 1 && access[0].deny, "{before} {keys}: {access:?}");
    }
    let chap = with("", "auth-type none chap u 0123456789abc");
    assert_eq!(target(&chap.configuration, ":a").access[0].chap, ["u"], "users are never dropped");
    for open in [with("", "auth-type none"), with("auth-group default { auth-type none }", "")] {
        assert!(target(&open.configuration, ":a").access.is_empty());
    }
}

#[test]
fn portal_group_with_another_auth_group_is_lost() {
    let groups = "portal-group p { listen 192.0.2.1 }\nportal-group q { listen 192.0.2.2 }\n";
    let imported = with(groups, "portal-group p no-authentication portal-group q auth-group no-access");
    let target = target(&imported.configuration, ":a");
    assert_eq!(target.portal_groups, [257].into());
    assert!(target.access.is_empty());
    has(
        &notes(&imported, Outcome::Lost),
        &["line 4 iqn.2012-06.org.example:a: portal group q: access entries"],
    );
}

#[test]
fn discovery_is_disabled_unless_all_portals_permit_it() {
    let group = |name: &str, auth: &str| {
        format!("portal-group {name} {{ listen 127.0.0.1:{name} discovery-auth-group {auth} }}\n")
    };
    let users = "auth-group users { chap scout 0123456789abc }\nauth-group some { auth-type none initiator-portal \
                 192.0.2.1 }\n";
    let discovery = |a: &str, b: &str| {
        let before = format!("{users}{}{}", group("1", a), group("2", b));
        with(&before, "auth-type none portal-group 1 portal-group 2").configuration.discovery
    };
    assert_eq!(discovery("users", "users").chap, ["scout"]);
    assert!(!discovery("no-authentication", "no-authentication").disabled);
    for (a, b) in [("users", "no-authentication"), ("default", "default"), ("some", "some")] {
        assert!(discovery(a, b).disabled, "{a} {b}");
    }
}

#[test]
fn target_without_portals_is_offline() {
    for (groups, keys) in [
        ("portal-group p { listen filer }", "portal-group p"),
        ("portal-group p { foreign listen 192.0.2.1 }", "portal-group p"),
        ("portal-group p { listen 192.0.2.1 redirect \"a b\" }", "portal-group p"),
        ("", "portal-group none-such"),
        ("", "redirect \"a b\""),
    ] {
        let imported = with(groups, keys);
        assert!(target(&imported.configuration, ":a").offline, "{groups} {keys}");
    }
    let redirected = with("", "redirect filer.example.org:3260");
    assert_eq!(target(&redirected.configuration, ":a").redirects.len(), 1);
}

#[test]
fn disk_that_cannot_be_served_is_lost() {
    let imported = with(
        "lun p { path /p device-type processor }\nlun b { path /b blocksize 1K }\nlun u { path /u }\nlun r { backend \
         ramdisk }\nlun s { backend passthrough }\nlun u { path /v }",
        "lun 1 p lun 2 b lun 3 none lun x u lun 0 { path /c }",
    );
    assert_eq!(target(&imported.configuration, ":a").luns.len(), 1);
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "line 1 lun p: the device type \"processor\"",
            "line 2 lun b: a block size of 1K",
            "line 4 lun r: it has no size",
            "line 5 lun s: the backend \"passthrough\" has no counterpart",
            "line 6 lun u, which is above already",
            "line 7 iqn.2012-06.org.example:a: lun 1 p: the disk is lost",
            "lun 3 none: the file does not have it",
            "lun x u: the number is not valid",
            "LUN 0, the file /c: the number is given twice",
            "line 3 the disk u, which is a LUN of no target",
        ],
    );
}

#[test]
fn secret_in_a_wrong_place_is_not_shown() {
    let imported = with("chap \"ann\" \"hidden-secret\"\nlun p { path /p }", "lun 1 p");
    has(&notes(&imported, Outcome::Lost), &["chap ann"]);
    assert!(!notes(&imported, Outcome::Lost).contains("hidden-secret"));
    let e = ctld("auth-group a { chap ann hidden-secret \"hidden-secret\" }").expect_err("an odd text");
    assert!(!e.what.contains("hidden-secret"), "{e}");
}

#[test]
fn foreign_file_is_rejected() {
    for text in ["", "debug 1", "{\"targets\": []}", "[Global]\nx = 1"] {
        assert!(ctld(text).is_err(), "{text}");
    }
    assert_eq!(ctld("portal-group a { }").expect_err("none").what, "the file has no target");
}
