//! iSCSI names (RFC 7143 sections 4.2.7, 4.4.2).

use interop::command::lunar;
use interop::scsi::{inquiry, read10};
use interop::{Folder, INITIATOR, Login, Raw, Server, TARGET, config, shared};

/// NAM-001
#[test]
fn nam_001_names_of_223_bytes() {
    let name = |n: usize| format!("iqn.2026-11.org.example:{}", "a".repeat(n - 24));
    let server = Server::start(&config::standard().replace(TARGET, &name(223)));
    Login::new().target(&name(223)).initiator(&name(223)).on(server.portal()).ping();
    for login in [Login::new().target(&name(224)), Login::new().target(&name(223)).initiator(&name(224))] {
        let status = login.try_on(server.portal()).err();
        assert!(matches!(status, Some(0x0200 | 0x0203)), "{status:#06x?}");
    }
}

/// NAM-002, RFC 3722
#[test]
fn nam_002_spellings_of_one_name_are_folded() {
    let access = "[[target.access]]\ninitiators = [\"IQN.1993-08.org.debian:Host_?\"]\n";
    let server = Server::start(&(config::standard() + access));
    for initiator in ["iqn.1993-08.org.debian:host_1", "IQN.1993-08.ORG.DEBIAN:HOST_1"] {
        for target in [TARGET.to_owned(), TARGET.to_uppercase(), TARGET.replace("disks", "Disks")] {
            Login::new().initiator(initiator).target(&target).on(server.portal()).ping();
        }
    }
    let status = Login::new().target(&format!("{TARGET} ")).try_on(server.portal()).err();
    assert!(matches!(status, Some(0x0200 | 0x0203)), "{status:#06x?}");
    let status = Login::new().initiator("iqn.1993-08.org.debian:host_10").try_on(server.portal()).err();
    assert_eq!(status, Some(0x0202), "the pattern admits exactly one more character");
}

/// RFC 3722 sections 5 to 7, RFC 7143 section 11.13.5: Initiator Error.
#[test]
fn name_that_rfc_3722_prohibits_is_refused() {
    let server = Server::start(&config::standard());
    let head = "iqn.1993-08.org.debian:";
    for tail in ["a\u{202e}b", "a\u{200e}", "a b", "a\u{7}", "\u{1f600}", "\u{e000}", "a\u{3002}b", "\u{5d0}"]
    {
        let name = format!("{head}{tail}");
        let status = Login::new().initiator(&name).try_on(server.portal()).err();
        assert_eq!(status, Some(0x0200), "{name:?}");
    }
    let log = server.log();
    assert!(log.contains("not an iSCSI name: RFC 3722 prohibits '\\u{202e}'"), "{log}");
    assert!(!log.contains('\u{202e}'), "{log}");
    Login::new().initiator(&format!("{head}Host_1\u{ad}")).on(server.portal()).ping();
}

/// RFC 3722
#[test]
fn send_targets_names_a_target_in_capitals() {
    let answer = Raw::discovery(shared().portal(), &[]).text(&[("SendTargets", &TARGET.to_uppercase())]);
    assert!(answer.pairs().iter().any(|(key, value)| key == "TargetName" && value == TARGET));
}

/// A name that another target accepted is served as hosts know it.
#[test]
fn imported_name_with_an_underscore_is_served_as_it_is() {
    let name = "iqn.2026-11.org.example:disk_1";
    let folder = Folder::fresh();
    let path = |file: &str| folder.join(file).to_string_lossy().into_owned();
    let conf = format!("<target {name}>\nbacking-store /srv/none.img\n</target>\n");
    std::fs::write(folder.join("targets.conf"), conf).expect("a file");
    let (text, ..) = lunar(&["import", "tgt", &path("targets.conf")]);
    assert!(text.contains(&format!("name = \"{name}\"")), "{text}");
    std::fs::write(folder.join("lunar.toml"), text).expect("a file");
    let (_, said, status) = lunar(&["check", &path("lunar.toml")]);
    let warning = format!("warning: the target name {name} contains '_'");
    assert!(said.contains(&warning) && status == 0, "{status} {said}");
    let server = Server::start(&config::standard().replace(TARGET, name));
    Login::new().target(name).on(server.portal()).ping();
    let answer = Raw::discovery(server.portal(), &[]).text(&[("SendTargets", "All")]);
    assert!(answer.pairs().iter().any(|(key, value)| key == "TargetName" && value == name));
}

/// NAM-003
#[test]
fn nam_003_types_of_names() {
    for name in [
        "eui.02004567A425678D",
        "naa.52004567BA64678D",
        "naa.62004567BA64678D0123456789ABCDEF",
        "iqn.2001-04.com.a",
    ] {
        let name = name.to_lowercase();
        let server = Server::start(&config::standard().replace(TARGET, &name));
        Login::new().target(&name).on(server.portal()).ping();
    }
    for name in [
        "disks",
        "iqn.2026-13.org.example:a",
        "eui.02004567A425678",
        "naa.52004567BA64678",
        "iqn.2026-11.org:a b",
    ] {
        let said = Server::refused(&Folder::fresh(), &config::standard().replace(TARGET, name));
        assert!(said.contains("lunar.toml"), "the message does not name the file: {said}");
    }
    let server = shared();
    for name in
        ["host", "iqn.2026-11", "eui.123", "naa.zz004567BA64678D", "", "iqn.2026-11.org.example:a\u{7}"]
    {
        let status = Login::new().initiator(name).try_on(server.portal()).err();
        assert!(status.is_some_and(|s| s >> 8 == 2), "{name:?}: {status:#06x?}");
    }
}

/// NAM-004
#[test]
fn nam_004_the_name_is_configurable() {
    let name = "iqn.2026-11.org.example:another-name";
    let server = Server::start(&config::standard().replace(TARGET, name));
    let answer = Raw::discovery(server.portal(), &[]).text(&[("SendTargets", "All")]);
    let names: Vec<String> =
        answer.pairs().into_iter().filter(|(k, _)| k == "TargetName").map(|(_, v)| v).collect();
    assert_eq!(names, [name]);
    Login::new().target(name).on(server.portal()).ping();
}

/// NAM-005
#[test]
fn nam_005_scsi_port_names() {
    let server = shared();
    let login = Login::new().isid([0x80, 0x12, 0x34, 0x56, 0xab, 0xcd]);
    let mut raw = login.on(server.portal());
    raw.clear_attentions(0);
    let page = raw.read(0, &inquiry(Some(0x83), 1024), 1024).good();
    let port = format!("{TARGET},t,0x0001");
    let designators = descriptors(&page[4..]);
    let named = |association: u8, name: &str| {
        let wanted = [name.as_bytes(), &vec![0; name.len().next_multiple_of(4) - name.len()]].concat();
        let ended = [name.as_bytes(), &vec![0; (name.len() + 1).next_multiple_of(4) - name.len()]].concat();
        designators.iter().any(|(a, t, v)| (*a, *t) == (association, 8) && (*v == wanted || *v == ended))
    };
    assert!(named(1, &port), "the target port {port} in {designators:?}");
    register(&mut raw, 0x1234);
    let status = raw.read(0, &[0x5e, 3, 0, 0, 0, 0, 0, 4, 0, 0], 1024).good();
    let text = String::from_utf8_lossy(&status);
    let initiator = format!("{INITIATOR},i,0x80123456abcd\0");
    assert!(text.to_lowercase().contains(&initiator), "{initiator} in {text:?}");
    raw.read(0, &read10(0, 1), 512).good();
    register(&mut raw, 0);
}

/// PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY.
fn register(raw: &mut Raw, key: u64) {
    let mut parameters = [0; 24];
    parameters[8..16].copy_from_slice(&key.to_be_bytes());
    raw.write(0, &[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], &parameters).good();
}

/// Association, type and value of each designator.
fn descriptors(mut page: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
    let mut all = Vec::new();
    while page.len() >= 4 {
        let end = 4 + page[3] as usize;
        all.push(((page[1] >> 4) & 3, page[1] & 15, page[4..end].to_vec()));
        page = &page[end..];
    }
    all
}
