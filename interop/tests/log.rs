//! What the log says of those who come and go, at its usual level.

use interop::scsi::reserve_out;
use interop::{Login, Raw, Server, config};
use std::fs;
use std::time::{Duration, Instant};

/// Waits for a line with all of these words.
fn says(server: &Server, words: &[&str]) {
    let end = Instant::now() + Duration::from_secs(5);
    while !server.log().lines().any(|line| words.iter().all(|word| line.contains(word))) {
        assert!(Instant::now() < end, "{words:?} is not in\n{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_session_ends_with_its_reason() {
    let server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    raw.logout(0, 0);
    raw.expect_close();
    says(&server, &["session ended", "reason=\"logout\"", "tsih=1"]);
    Raw::session(server.portal(), &[]).cut();
    says(&server, &["session ended", "reason=\"the initiator closed the connection\""]);
    let login = Login::new();
    let (first, second) = (login.on(server.portal()), login.on(server.portal()));
    says(&server, &["session ended", "reason=\"its initiator logged in again\""]);
    drop((first, second));
}

#[test]
fn a_refusal_names_key_value_and_rule() {
    let server = Server::start(&config::standard());
    let login = Login::new().key("MaxBurstLength", "\x1b[1m12");
    assert_eq!(login.try_on(server.portal()).err(), Some(0x0200));
    says(&server, &["login refused", "MaxBurstLength=\\u{1b}[1m12: a number of 512 to 16777215"]);
    assert!(!server.log().contains('\x1b'), "it would steer a terminal");
}

#[test]
fn garbage_is_told_and_a_flood_of_it_is_counted() {
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
fn who_finds_no_place_is_told() {
    let limits = config::with("", "", "[limits]\nconnections_before_login = 2\n");
    let server = Server::start(&limits);
    let waiting = [Raw::connect(server.portal()), Raw::connect(server.portal())];
    Raw::connect(server.portal()).until_close();
    says(&server, &["connection closed before login", "`connections_before_login` of [limits]"]);
    drop(waiting);
}

#[test]
fn another_size_is_told() {
    let file = "[[target.lun]]\nlun = 7\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"\n";
    let server = Server::start(&config::with("", "", file));
    let disk = fs::File::options().write(true).open(server.dir().join("disk.img")).expect("made");
    disk.set_len(2 << 20).expect("grows");
    says(&server, &["LUN 7 of iqn.2026-11.org.example:disks has another size now: 2097152 bytes"]);
}

#[test]
fn what_may_keep_hosts_out_after_a_start_is_told() {
    const APTPL: u8 = 1;
    let mut server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    raw.clear_attentions(0);
    reserve_out(&mut raw, 0, 0, 0, 0, 0xabc, APTPL).good();
    reserve_out(&mut raw, 0, 1, 1, 0xabc, 0, 0).good();
    server.restart();
    says(&server, &["LUN 0", "restored 1 registration and a reservation from", "0.state"]);
}
