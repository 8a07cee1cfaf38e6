//! Errors of commands that use a faulty target: the cause, the hint, and the exit status.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use interop::command::{lunar, lunar_as};
use interop::script::{HookAction, Script};
use interop::{Folder, Server, config, shared};

fn url(portal: SocketAddr, lun: u16) -> String {
    format!("iscsi://{portal}/{}/{lun}", config::TARGET)
}

/// Checks that stderr has both texts, and returns the exit status.
fn ends(arguments: &[&str], what: &str, hint: &str) -> i32 {
    let (_, said, status) = lunar(arguments);
    let (report, advice) = said.split_once("\n  hint: ").unwrap_or_else(|| panic!("{arguments:?}: {said}"));
    assert!(report.contains(what) && advice.contains(hint), "{arguments:?}: {said}");
    status
}

/// A port that responds to the first bytes of each client with these words.
fn greeting(words: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]).and_then(|_| stream.write_all(words));
        }
    });
    address
}

#[test]
fn port_of_another_protocol_has_a_hint() {
    for words in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nBad Request"[..],
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\nmore than a header has, to be sure\r\n",
    ] {
        let portal = greeting(words).to_string();
        ends(&["ls", &portal], "unknown opcode", "check that host and port are those of an iSCSI portal");
    }
}

#[test]
fn refused_digest_hint_names_the_setting() {
    let target = Script::new().answer("HeaderDigest", "None").answer("DataDigest", "None").listen();
    let url = target.url("header_digest=crc32c&data_digest=crc32c");
    let status = ends(&["ls", &url], "Digest=None", "header_digest=crc32c,none");
    assert_eq!(status, 5);
    let url = target.url("header_digest=crc32c,none&data_digest=crc32c,none");
    assert_eq!(lunar(&["ls", &url]).2, 0, "the login with the hint's setting");
}

#[test]
fn invalid_target_name_is_reported_first() {
    let server = shared();
    let portal = server.portal();
    for command in ["ls", "info"] {
        let url = format!("iscsi://{portal}/nope/0");
        ends(&[command, &url], "", "\"nope\" is not a valid iSCSI name");
    }
    let url = format!("iscsi://{portal}/nope/0");
    for arguments in
        [&["pr", &url, "read-keys"][..], &["copy", &url, "null:1M"], &["scsi", &url, "000000000000"]]
    {
        ends(arguments, "", "\"nope\" is not a valid iSCSI name");
    }
}

#[test]
fn expired_timeout_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = silent.local_addr().expect("an address");
    let late = format!("{}?login_timeout=0.3", url(portal, 0));
    assert_eq!(
        ends(&["ls", &late, "--timeout", "60"], "the login did not complete within", "login_timeout="),
        8
    );
    // READ(6) gets no response. It is not retried, because a tape would move on.
    let target = Script::new().scsi(0x08, |_, _| HookAction::Done).listen();
    let read = |settings: &str, more: &[&str]| {
        let url = target.url(&format!("{settings}&logout_timeout=0.3"));
        let (_, said, status) = lunar(&[&["scsi", url.as_str(), "080000000800"], more].concat());
        assert_eq!(status, 8, "{said}");
        said
    };
    let taken = ["--in", "4096"];
    assert!(read("operation_timeout=0.1", &taken).contains("operation_timeout=TIME"));
    let stronger = "abort_timeout=0.2&lun_reset_timeout=0.2&target_reset_timeout=0.2&command_timeout=0.2";
    assert!(read(stronger, &taken).contains("command_timeout=TIME"));
    assert!(!read("operation_timeout=0.1", &taken).contains("--in BYTES"));
    assert!(read("operation_timeout=0.1", &[]).contains("add --in BYTES"));
}

#[test]
fn timed_out_command_names_the_pending_step() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = silent.local_addr().expect("an address");
    for url in
        [format!("iscsi://{portal}"), format!("iser://{portal}"), format!("srp://{portal}/0002c90300a0b0c0")]
    {
        let what = format!("waiting for the login to {portal}");
        assert_eq!(ends(&["ls", &url, "--timeout", "300ms"], &what, "--timeout"), 8, "{url}");
    }
    // TEST UNIT READY gets no response.
    let target = Script::new().scsi(0x00, |_, _| HookAction::Done).listen();
    let arguments = ["scsi", &target.url("logout_timeout=0.3"), "000000000000", "--timeout", "300ms"];
    assert_eq!(ends(&arguments, "to TEST UNIT READY", "--timeout"), 8);
}

#[test]
fn doctor_blames_the_portal_that_refused() {
    let closed =
        config::with("", "", "[[target.access]]\ninitiators = [\"iqn.2026-11.org.example:other\"]\n");
    let server = Server::start(&closed);
    let there = server.portal();
    let target = Script::new().redirects_to(move |_| there.to_string()).listen();
    let (report, said, status) = lunar(&["doctor", &target.url("")]);
    assert!(
        report.contains(&format!("\nbroken: login to {there}: the target rejected the login: 02/02 ")),
        "{report}"
    );
    assert!(status == 21 || status == 5, "{status}: {report}");
    // The cause is reported once, with a hint.
    assert_eq!((report.matches("hint:").count() >= 1, said.contains("hint:")), (true, false), "{said}");
    assert!(said.lines().count() == 1 && said.ends_with("cannot be used: see the report\n"), "{said}");
}

#[test]
fn doctor_finds_a_slow_disk() {
    let server = shared();
    let (report, _, status) = lunar(&["doctor", &url(server.portal(), 2)]);
    assert_eq!(status, 0, "the LUN cannot be used: {report}");
    assert!(
        report.contains("\nwarning: a read of 4096 bytes takes 5") && report.contains("disk behind"),
        "{report}"
    );
    assert!(!report.contains("no problems found"), "{report}");
    let (report, ..) = lunar(&["doctor", &url(server.portal(), 0)]);
    assert!(!report.contains("a read of"), "{report}");
}

#[test]
fn copy_to_a_reserved_disk_has_its_exit_status() {
    let (server, dir) = (Server::start(&config::standard()), Folder::fresh());
    let (url, file) = (url(server.portal(), 0), dir.join("data").display().to_string());
    std::fs::write(&file, [7; 1 << 20]).expect("a file");
    let pr = |arguments: &[&str]| {
        let ran = lunar_as("iqn.2026-11.org.example:other", &[&["pr", url.as_str()][..], arguments].concat());
        assert_eq!(ran.2, 0, "{}", ran.1);
    };
    pr(&["register", "reserve", "--new-key", "abc", "--type", "ea"]);
    assert_eq!(ends(&["copy", &file, &url], "", "lunar pr URL read-full-status"), 13);
    pr(&["register-ignore", "clear", "--new-key", "abc"]);
    assert_eq!(lunar(&["copy", &file, &url]).2, 0);
}

/// The commands in flight at the time limit never end. The earlier progress is kept.
#[test]
fn interrupted_copy_can_be_resumed() {
    let dir = Folder::fresh();
    std::fs::write(dir.join("slow.img"), vec![7; 64 << 20]).expect("a file");
    let server = Server::start_in(
        dir,
        &config::with(
            "",
            "",
            "[[target.lun]]\nlun = 3\nbackend = \"file\"\npath = \"slow.img\"\n\
             filters = [{ kind = \"delay\", read_us = 4000000 }]\n",
        ),
    );
    let (url, copy) = (url(server.portal(), 3), server.dir().join("copy").display().to_string());
    let (_, said, status) = lunar(&["copy", &url, &copy, "--timeout", "5"]);
    assert!(status == 8 && said.contains("requests in flight do not end"), "{status}: {said}");
    assert!(said.contains("--resume to continue from the journal"), "{said}");
    let journal = std::fs::read_to_string(format!("{copy}.lunar-copy")).expect("a journal");
    assert!(!journal.contains("\"stable\":0,"), "{journal}");
    // Without a place for a journal, there is no such hint.
    let (_, said, status) = lunar(&["copy", &url, "null:64M", "--timeout", "1"]);
    assert!(status == 8 && said.contains("no progress was saved"), "{status}: {said}");
}

#[test]
fn unreachable_address_is_reported_with_its_source() {
    let away = "portals = [{ listen = \"127.0.0.1:0\", advertise = \"127.0.0.1:1\" }]";
    let server = Server::start(&config::standard().replace("portals = [\"127.0.0.1:0\"]", away));
    let portal = server.portal().to_string();
    let (what, url) =
        (format!("127.0.0.1:1, which the portal {portal} advertised: "), format!("iscsi://{portal}"));
    for arguments in [&["ls", &portal][..], &["info", &url], &["scsi", &url, "000000000000"]] {
        assert_eq!(ends(arguments, &what, &format!("configure {portal} to advertise")), 4, "{arguments:?}");
    }
    let (report, _, status) = lunar(&["doctor", &portal]);
    assert!(report.contains(&what) && status == 4, "{report}");
}
