//! Log lines about sessions, at the default level.

use interop::scsi::reserve_out;
use interop::{Chap, Folder, Login, Raw, Server, TARGET, config, json};
use serde_json::Value;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::time::{Duration, Instant};

const SECRET: &[u8] = b"alice's secret 1";

/// Waits for a line with all of these words.
fn says(server: &Server, words: &[&str]) {
    let end = Instant::now() + Duration::from_secs(5);
    while !server.log().lines().any(|line| words.iter().all(|word| line.contains(word))) {
        assert!(Instant::now() < end, "{words:?} is not in\n{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn session_end_is_logged_with_its_reason() {
    let server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    raw.logout(0, 0);
    raw.expect_close();
    says(&server, &["session ended", "reason=\"logout\"", "tsih=1"]);
    Raw::session(server.portal(), &[]).cut();
    says(&server, &["session ended", "reason=\"the initiator closed the connection\""]);
    let login = Login::new();
    let (first, second) = (login.on(server.portal()), login.on(server.portal()));
    says(&server, &["session ended", "reason=\"the initiator logged in again\""]);
    drop((first, second));
}

#[test]
fn login_is_logged_with_its_chap_user() {
    let dir = Folder::fresh();
    let file = dir.join("alice.secret");
    fs::write(&file, SECRET).expect("a secret");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set its mode");
    let user = "[[target.access]]\nchap = [\"alice\"]\n\
                [[chap_user]]\nname = \"alice\"\nsecret_file = \"alice.secret\"\n";
    let server = Server::start_in(dir, &config::with("", "", user));
    drop(Chap::login(&Login::new(), server.portal(), 5, "alice", SECRET).expect("alice"));
    says(&server, &["logged in", "user=\"alice\""]);
}

#[test]
fn rejection_names_key_value_and_rule() {
    let server = Server::start(&config::standard());
    let login = Login::new().key("MaxBurstLength", "\x1b[1m12");
    assert_eq!(login.try_on(server.portal()).err(), Some(0x0200));
    says(
        &server,
        &["login refused", "MaxBurstLength=\\u{1b}[1m12: the value must be a number from 512 to 16777215"],
    );
    assert!(!server.log().contains('\x1b'), "a control character reaches the log");
}

#[test]
fn garbage_is_logged_and_a_flood_is_counted() {
    let server = Server::start(&config::standard());
    for _ in 0..40 {
        let mut raw = Raw::connect(server.portal());
        raw.send_bytes(b"GET / HTTP/1.1\r\nHost: there, and some more of it to fill a header\r\n\r\n");
        raw.until_close();
    }
    says(&server, &["connection closed before login", "peer=127.0.0.1:", "reason="]);
    let lines = server.log().matches("connection closed before login").count();
    assert!(lines <= 20, "{lines} lines for 40 connections");
    Raw::session(server.portal(), &[]).ping();
}

#[test]
fn rejected_connection_is_logged() {
    let limits = config::with("", "", "[limits]\nconnections_before_login = 2\n");
    let server = Server::start(&limits);
    let waiting = [Raw::connect(server.portal()), Raw::connect(server.portal())];
    Raw::connect(server.portal()).until_close();
    says(&server, &["connection closed before login", "`connections_before_login` of [limits]"]);
    drop(waiting);
}

#[test]
fn changed_size_is_logged() {
    let file = "[[target.lun]]\nlun = 7\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"\n";
    let server = Server::start(&config::with("", "", file));
    let disk = fs::File::options().write(true).open(server.dir().join("disk.img")).expect("open the disk");
    disk.set_len(2 << 20).expect("grow the disk");
    says(&server, &["LUN 7 of iqn.2026-11.org.example:disks changed its size to 2097152 bytes"]);
}

#[test]
fn restored_reservations_are_logged_at_start() {
    const APTPL: u8 = 1;
    let mut server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    raw.clear_attentions(0);
    reserve_out(&mut raw, 0, 0, 0, 0, 0xabc, APTPL).good();
    reserve_out(&mut raw, 0, 1, 1, 0xabc, 0, 0).good();
    server.restart();
    says(&server, &["LUN 0", "restored 1 registration and a reservation from", "0.state"]);
}

/// Stderr is a pipe that is not read; the server itself keeps it open.
const UNREAD: &str = "mkfifo \"$1.pipe\"; exec 3<>\"$1.pipe\"";

/// The pipe of [`UNREAD`], in non-blocking mode.
fn pipe(server: &Server) -> fs::File {
    let mut options = fs::File::options();
    options.read(true).write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    options.open(server.dir().join("lunar.toml.pipe")).expect("the shell creates it")
}

/// Fills the pipe.
fn fill(mut pipe: &fs::File) {
    for part in [[b'.'; 4096].as_slice(), b"."] {
        while pipe.write(part).is_ok() {}
    }
    assert_eq!(pipe.write(b".").expect_err("no room").kind(), ErrorKind::WouldBlock);
}

#[test]
fn unread_stderr_does_not_block_the_server() {
    let mut server = Server::start_by_shell(&config::standard(), UNREAD, "2>&3");
    let mut pipe = pipe(&server);
    let mut before = Raw::session(server.portal(), &[]);
    fill(&pipe);
    // Each session adds two lines to the log.
    for n in 0..4 {
        let mut raw = Login::new().isid([0x80, 0, 0, 2, 0, n]).on(server.portal());
        raw.logout(0, 0);
        raw.expect_close();
    }
    before.ping();
    drop(before);
    assert_eq!(server.stop().code(), Some(0));
    let mut left = vec![0; 1 << 20];
    let len = pipe.read(&mut left).expect("what the pipe holds");
    assert!(left[len - 64..len].iter().all(|byte| *byte == b'.'), "the server wrote to the full pipe");
}

#[test]
fn log_lines_wait_until_stderr_is_read() {
    let server = Server::start_by_shell(&config::standard(), UNREAD, "2>&3");
    let mut pipe = pipe(&server);
    fill(&pipe);
    Login::new().isid([0x80, 0, 0, 2, 0, 1]).on(server.portal()).logout(0, 0);
    let (mut text, end) = (String::new(), Instant::now() + Duration::from_secs(10));
    while !text.contains("session ended") {
        assert!(Instant::now() < end, "{text}");
        let mut part = [0; 4096];
        match pipe.read(&mut part) {
            Ok(len) => text += &String::from_utf8_lossy(&part[..len]),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let (first, last) = (text.find("logged in").expect("a line"), text.find("session ended"));
    assert!(Some(first) < last, "{text}");
}

#[test]
fn full_stderr_does_not_block_the_server() {
    let mut server = Server::start_by_shell(&config::standard(), "", "2>/dev/full");
    Raw::session(server.portal(), &[]).ping();
    server.rewrite("this is no configuration");
    server.signal(1);
    for n in 0..3 {
        Login::new().isid([0x80, 0, 0, 2, 0, n]).on(server.portal()).ping();
    }
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn journal_gets_priorities_and_no_times() {
    let journal = "JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); export JOURNAL_STREAM";
    let mut server = Server::start_by_shell(&config::standard(), journal, "");
    drop(Raw::session(server.portal(), &[]));
    server.rewrite("this is no configuration");
    server.signal(1);
    says(&server, &["configuration is unchanged"]);
    let log = server.log();
    assert!(
        log.lines().any(|line| line.starts_with("<6> INFO lunar_target") && line.contains("logged in")),
        "{log}"
    );
    assert!(log.lines().any(|line| line.starts_with("<3>ERROR lunar::serve")), "{log}");
    let other = Server::start_by_shell(&config::standard(), "JOURNAL_STREAM=1:2; export JOURNAL_STREAM", "");
    drop(Raw::session(other.portal(), &[]));
    says(&other, &["logged in"]);
    assert!(!other.log().lines().any(|line| line.starts_with('<')), "{}", other.log());
}

#[test]
fn json_log_has_one_object_with_fields_a_line() {
    let server = Server::start_by_shell(&config::standard(), "", "--log-format json");
    drop(Raw::session(server.portal(), &[]));
    says(&server, &["\"message\":\"logged in\"", "\"level\":\"INFO\"", "\"tsih\":1", "\"timestamp\":\"20"]);
    says(&server, &["session ended", "\"module\":\"lunar_target"]);
    let log = server.log();
    log.lines().for_each(json::assert_unique_keys);
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let of_target = lines.filter(|line| line["target"] == TARGET && line["tsih"] == 1).count();
    assert_eq!(of_target, 2, "a login and the end of its session: {log}");
}
