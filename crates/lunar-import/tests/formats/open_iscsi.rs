//! Imports of open-iscsi's records.

use super::{has, notes};
use lunar_import::{Found, Imported, NewAttachment, Outcome, open_iscsi};
use std::path::{Path, PathBuf};
use std::{fs, io};

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/open-iscsi")
}

/// Imports a file or folder of the samples.
fn import(part: &str) -> Imported {
    let root = samples().join(part);
    let reader = move |path: &Path| {
        let path = if path.as_os_str().is_empty() { root.clone() } else { root.join(path) };
        if path.is_dir() {
            let names =
                fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            return Ok(Found::Folder(names.collect::<io::Result<_>>()?));
        }
        fs::read_to_string(path).map(Found::File)
    };
    open_iscsi(&reader).unwrap_or_else(|e| panic!("{e}"))
}

/// Imports one record for 192.0.2.10 with these keys.
fn with(keys: &str) -> Imported {
    let text = format!("node.name = iqn.2019-04.org.example:a\nnode.conn[0].address = 192.0.2.10\n{keys}");
    open_iscsi(&|_| Ok(Found::File(text.clone()))).unwrap_or_else(|e| panic!("{e}"))
}

fn named<'a>(imported: &'a Imported, name: &str) -> &'a NewAttachment {
    let mut all = imported.configuration.attachments.iter();
    all.find(|attachment| attachment.name == name).unwrap_or_else(|| panic!("no attachment {name}"))
}

fn toml(imported: &Imported, name: &str) -> String {
    named(imported, name).toml(&imported.configuration, "secrets")
}

#[test]
fn folder_without_an_end_is_rejected() {
    let fault = |reader: lunar_import::Reader<'_>| open_iscsi(reader).expect_err("too much").what;
    // Links to the folder itself.
    let links: Vec<String> = (0..37).map(|n| n.to_string()).collect();
    assert!(fault(&|_: &Path| Ok(Found::Folder(links.clone()))).contains("more than 100000 entries"));
    let large = "#".repeat(33 << 20);
    let files = |path: &Path| match path.as_os_str().is_empty() {
        true => Ok(Found::Folder(links.clone())),
        false => Ok(Found::File(large.clone())),
    };
    assert!(fault(&files).contains("64 MiB"));
}

#[test]
fn records_of_a_target_are_paths_of_one_attachment() {
    let imported = import("");
    assert_eq!(imported.configuration.attachments.len(), 2);
    let credentials = "password_file=secrets/host-a.secret&target_user=filer&target_password_file=secrets/filer.secret\
                       &auth=md5&initiator=iqn.1993-08.org.debian:01:0123456789ab";
    assert_eq!(
        toml(&imported, "filer.vm"),
        format!(
            "url = \"iscsi://host-a@192.0.2.10:3260/iqn.2019-04.org.example:filer.vm?{credentials}\"\n\
             paths = [\"iscsi://host-a@[2001:db8::10]:3260/iqn.2019-04.org.example:filer.vm?{credentials}\"]\n\
             ublk = true\n"
        )
    );
    assert_eq!(
        toml(&imported, "storage.disk1"),
        "url = \"iser://storage.example.org:3260/iqn.2006-09.org.example:storage.disk1?provider=verbs&\
         initiator=iqn.1993-08.org.debian:01:0123456789ab\"\nublk = true\n"
    );
    let secrets: Vec<(&str, Option<&str>)> = imported
        .configuration
        .chap_users
        .iter()
        .map(|user| (user.id.as_str(), user.secret.as_ref().map(|secret| secret.as_str())))
        .collect();
    assert_eq!(secrets, [("host-a", Some("host-a-password1")), ("filer", Some("host-a-mutual-pw1"))]);
}

#[test]
fn report_names_startup_and_what_is_not_carried() {
    let imported = import("");
    has(
        &notes(&imported, Outcome::Carried),
        &[
            "1/default:4 iqn.2019-04.org.example:filer.vm: 2 paths, systemctl enable lunar-attach@filer.vm",
            "example.org,3260:4 iqn.2006-09.org.example:storage.disk1: 1 path, started by hand: systemctl start",
        ],
    );
    has(
        &notes(&imported, Outcome::Changed),
        &[
            "iscsid.conf its values are defaults of new records only",
            "1/eth1:6 the initiator name iqn.1993-08.org.example:01:eth1: all paths to a disk use",
            "1/default:2 iqn.2019-04.org.example:filer.vm: its LUN",
        ],
    );
    let lost = notes(&imported, Outcome::Lost);
    has(&lost, &["1/eth1:7 iface.net_ifacename = eth1", "iscsid.conf:11 the CHAP user of discovery"]);
    assert_eq!(lost.lines().count(), 2, "{lost}");
}

#[test]
fn folder_or_record_can_be_imported_alone() {
    let nodes = import("nodes");
    assert_eq!(nodes.configuration.attachments.len(), 2);
    assert!(toml(&nodes, "filer.vm").contains("initiator=iqn.1993-08"), "the name is beside nodes");
    let record = import("nodes/iqn.2019-04.org.example:filer.vm/192.0.2.10,3260,1/default");
    assert_eq!(named(&record, "filer.vm").paths.len(), 1);
    has(&notes(&record, Outcome::Carried), &["line 4 iqn.2019-04.org.example:filer.vm: 1 path"]);
}

#[test]
fn settings_that_differ_become_keys() {
    let imported = with(
        "node.session.nr_sessions = 2\nnode.session.timeo.replacement_timeout = 30\nnode.session.cmds_max = 256\n\
         node.session.err_timeo.lu_reset_timeout = 10\nnode.conn[0].iscsi.DataDigest = CRC32C\n\
         node.conn[0].port = 3261\nnode.session.auth.chap_algs = SHA256",
    );
    let url = "iscsi://192.0.2.10:3261/iqn.2019-04.org.example:a?commands=256&lun_reset_timeout=10&data_digest=crc32c";
    let expected = format!("url = \"{url}\"\npaths = [\"{url}\"]\nublk = true\nrecovery_timeout = 30\n");
    assert_eq!(toml(&imported, "a"), expected);
}

#[test]
fn special_recovery_times_are_kept() {
    let time = |value: &str| {
        let imported = with(&format!("node.session.timeo.replacement_timeout = {value}"));
        (named(&imported, "a").recovery_timeout, notes(&imported, Outcome::Changed).contains("thirty days"))
    };
    assert_eq!([time("120"), time("0"), time("x")], [(None, false), (Some(0), false), (None, false)]);
    assert_eq!(time("-1"), (Some(2_592_000), true));
}

#[test]
fn mutual_chap_is_never_dropped() {
    const USER: &str = "node.session.auth.username = u\nnode.session.auth.password = short\n";
    for (keys, secret) in [
        ("username_in = t\nnode.session.auth.password_in = other", Some("other")),
        ("username_in = t\nnode.session.auth.password_in = short", None),
        ("username_in = t\nnode.session.auth.password_in = ********", None),
        ("username_in = t", None),
        ("password_in = other", Some("other")),
    ] {
        let imported = with(&format!("{USER}node.session.auth.{keys}"));
        let [host, target] = &imported.configuration.chap_users[..] else { panic!("two users") };
        assert_eq!(host.secret.as_ref().map(|secret| secret.as_str()), Some("short"), "as the target has it");
        assert_eq!(target.secret.as_ref().map(|secret| secret.as_str()), secret, "{keys}");
        assert_eq!(imported.notes.has_lost(), secret.is_none() || keys.starts_with("password"), "{keys}");
        assert!(toml(&imported, "a").contains("&target_user="));
    }
}

#[test]
fn record_that_cannot_be_used_is_lost() {
    for (keys, what) in [
        ("iface.transport_name = bnx2i", "line 3 iqn.2019-04.org.example:a: the transport bnx2i"),
        ("node.conn[0].address = a b", "line 3 the portal \"a b\""),
        ("node.conn[0].port = 0", "line 2 the portal \"192.0.2.10\""),
        ("node.conn[0].address = <empty>", "line 3 iqn.2019-04.org.example:a: the record has no address"),
        ("node.name = disks", "line 3 \"disks\", which is no iSCSI name"),
    ] {
        let imported = with(keys);
        assert!(imported.configuration.attachments.is_empty(), "{keys}");
        has(&notes(&imported, Outcome::Lost), &[what]);
    }
    let user = with("node.session.auth.username = a@b\nnode.session.auth.password = c");
    has(&notes(&user, Outcome::Lost), &["line 3 the CHAP user \"a@b\", which a URL cannot have"]);
}

#[test]
fn folder_without_records_is_rejected() {
    for file in ["", "InitiatorName=iqn.1993-08.org.debian:01:a", "node.name = <empty>"] {
        let e = open_iscsi(&|_| Ok(Found::File(file.into()))).expect_err(file);
        assert!(e.what.contains("no record") && e.hint.contains("/etc/iscsi"), "{e}");
    }
    let e = open_iscsi(&|_| Err(io::ErrorKind::PermissionDenied.into())).expect_err("denied");
    assert!(e.what.starts_with("cannot read the file: "), "{e}");
}
