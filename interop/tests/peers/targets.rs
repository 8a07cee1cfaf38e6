//! The commands that use targets, against targets of other projects, and Lunar's own. They must end soon: with
//! `--timeout`, a command that waits too long exits with another status.

use std::process::Command;
use std::time::Duration;

use interop::peer::{CHAP, MUTUAL, OPEN, SIZE, TARGET_USER, USER};
use interop::tool::{ToolOutput, run};
use interop::{Peer, lunar_bin};

const DIGESTS: &str = "header_digest=crc32c&data_digest=crc32c";

/// Runs `lunar` with these arguments.
fn lunar(arguments: &[&str]) -> ToolOutput {
    let mut command = Command::new(lunar_bin());
    command.args(arguments).env_remove("LUNAR_LOG");
    run(&mut command, Duration::from_secs(90))
}

fn good(arguments: &[&str]) -> String {
    let ran = lunar(arguments);
    assert!(ran.ok(), "{arguments:?}: {:?}\n{}", ran.status, ran.said);
    ran.said
}

/// Checks the exit status and the message of a command. The time limit leaves no time for many login retries.
fn fails(status: i32, words: &str, arguments: &[&str]) {
    let ran = lunar(&[arguments, &["--timeout", "10"]].concat());
    assert_eq!(ran.status.and_then(|s| s.code()), Some(status), "{arguments:?}: {}", ran.said);
    assert!(ran.said.contains(words) && ran.said.contains("\n  hint: "), "{arguments:?}: {}", ran.said);
}

/// USER%PASSWORD, and the settings that name the target's user.
fn credentials() -> (String, String) {
    let ((user, password), (target, target_password)) = (USER, TARGET_USER);
    (format!("{user}%{password}"), format!("target_user={target}&target_password={target_password}"))
}

fn target_is_discovered_and_accepts_logins(peer: &Peer) {
    let portal = peer.address().to_string();
    let (user, mutual) = credentials();
    let found = good(&["discover", &portal]);
    for target in [OPEN, CHAP, MUTUAL] {
        assert!(found.lines().any(|l| l == format!("{portal},1 {target}")), "{target}: {found}");
    }
    let ls = |user: &str, target: &str, settings: &str| {
        let listed = good(&["ls", &peer.url(peer.address(), user, target, settings)]);
        assert!(listed.contains(&format!("LUN {}: disk, 64 MiB", peer.lun())), "{listed}");
    };
    ls("", OPEN, "");
    ls(&user, CHAP, "");
    ls(&user, CHAP, "auth=md5");
    ls(&user, MUTUAL, &mutual);
    if peer.has_digests() {
        ls("", OPEN, DIGESTS);
        ls(&user, MUTUAL, &format!("{mutual}&{DIGESTS}"));
    }
    good(&["doctor", &peer.open("")]);
}

fn faults_have_their_exit_status(peer: &Peer) {
    let (user, mutual) = credentials();
    let ls = |status, words, user: &str, target: &str, settings: &str| {
        fails(status, words, &["ls", &peer.url(peer.address(), user, target, settings)]);
    };
    ls(24, "02/01", "ann%wrong-secret-1", CHAP, "");
    ls(24, "", "", CHAP, "");
    ls(24, "wrong CHAP response of the target", &user, MUTUAL, &mutual.replace("moonsecret", "sunsecret"));
    ls(21, "02/03", "", "iqn.2026-11.org.example:none", "");
    let url = peer.open("").replace(&format!("/{}?", peer.lun()), "/7?");
    fails(21, "LUN 7: the target has no such logical unit", &["ls", &url]);
}

fn copy_is_verified(peer: &Peer) {
    let dir = interop::Folder::fresh();
    let source = dir.join("source.img").display().to_string();
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    std::fs::write(&source, (0..SIZE / 8).flat_map(word).collect::<Vec<u8>>()).expect("a source");
    let digests = if peer.has_digests() { DIGESTS } else { "" };
    let said = good(&["copy", "--verify", "--force", &source, &peer.open(digests)]);
    assert!(said.contains("verified"), "{said}");
    let back = dir.join("back.img").display().to_string();
    good(&["copy", &peer.open(""), &back]);
    assert!(std::fs::read(&source).expect("read") == std::fs::read(&back).expect("read"), "the copy differs");
}

fn commands_work_with(peer: &Peer) {
    target_is_discovered_and_accepts_logins(peer);
    faults_have_their_exit_status(peer);
    copy_is_verified(peer);
}

/// STGT forgets a registration with its session, and has no READ FULL STATUS.
fn is_reserved_in_one_session(peer: &Peer) {
    let url = peer.open("");
    good(&["pr", &url, "register", "--new-key", "0xabc"]);
    let reserve = ["pr", &url, "reserve", "--key", "0xabc", "--type", "we"];
    fails(13, "drop a registration when its session ends", &reserve);
    let said =
        good(&["pr", &url, "register", "reserve", "read-full-status", "--new-key", "0xabc", "--type", "we"]);
    assert!(
        said.contains("reserved") && said.contains("0x0000000000000abc") && said.contains("write exclusive"),
        "{said}"
    );
}

#[test]
fn commands_work_with_stgt() {
    if let Some(peer) = Peer::tgt() {
        commands_work_with(&peer);
        // STGT uses digests only if it is configured to.
        fails(5, "HeaderDigest=None", &["ls", &peer.open(DIGESTS)]);
        let url = peer.url(peer.address(), &credentials().0, CHAP, "auth=sha-256");
        fails(5, "the target may not support the offered CHAP algorithms", &["ls", &url]);
        is_reserved_in_one_session(&peer);
    }
}

#[test]
fn commands_work_with_istgt() {
    if let Some(peer) = Peer::istgt() {
        commands_work_with(&peer);
        let output = good(&["pr", &peer.open(""), "register", "read-full-status", "--new-key", "0xabc"]);
        assert!(output.contains("initiator") && output.contains(" iqn."), "{output}");
        let user = credentials().0;
        // For a target that has a CHAP user, istgt admits only initiators that request mutual CHAP.
        fails(24, "02/01", &["ls", &peer.url(peer.address(), &user, MUTUAL, "")]);
    }
}

#[test]
fn commands_work_with_lunar_itself() {
    commands_work_with(&Peer::lunar());
}

#[test]
fn closed_portal_is_reported_at_once() {
    let url = "iscsi://127.0.0.1:1/iqn.2026-11.org.example:none/0";
    fails(4, "refused", &["discover", "127.0.0.1:1"]);
    fails(4, "refused", &["ls", url]);
    fails(4, "refused", &["scsi", url, "00 00 00 00 00 00"]);
    fails(4, "refused", &["copy", url, "null:1M"]);
}
