//! `lunar apply`, permanently and on trial, and `lunar diff`: which changes stay, and which are rolled back.

use interop::scsi::{inquiry, pattern};
use interop::{Login, Raw, Server, TARGET, command};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const IN_USE: i32 = 28;

fn lun(number: u16, keys: &str) -> String {
    format!("[[target.lun]]\nlun = {number}\n{keys}\n")
}

fn memory(number: u16) -> String {
    lun(number, "backend = \"memory\"\nsize = \"8MiB\"")
}

fn file(number: u16, path: &Path) -> String {
    lun(number, &format!("backend = \"file\"\npath = \"{}\"\nsize = \"8MiB\"", path.display()))
}

fn configuration(target: &str, luns: &str) -> String {
    format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{target}\"\n{luns}"
    )
}

/// Runs a command with the server's admin socket. Returns its output and its exit status.
fn ask(server: &Server, arguments: &[&str]) -> (String, i32) {
    let socket = server.dir().join("admin.sock").display().to_string();
    let (out, err, status) = command::lunar(&[arguments, &["--socket", &socket]].concat());
    (out + &err, status)
}

/// Writes a changed copy of the served configuration, and returns its path.
fn changed(server: &Server, change: impl Fn(&str) -> String) -> String {
    let served = std::fs::read_to_string(server.dir().join("lunar.toml")).expect("the served configuration");
    let path = server.dir().join("new.toml");
    std::fs::write(&path, change(&served)).expect("written");
    path.display().to_string()
}

/// Applies, confirms or rolls back. Another configuration may take LUNs from hosts.
fn apply(server: &Server, arguments: &[&str]) -> String {
    let force: &[&str] =
        if arguments.first().is_some_and(|first| first.starts_with("--")) { &[] } else { &["--force"] };
    let (said, status) = ask(server, &[&["apply"], arguments, force].concat());
    assert_eq!(status, 0, "{arguments:?}: {said}");
    said
}

fn session(server: &Server) -> Raw {
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    raw
}

fn serial(raw: &mut Raw, lun: u16) -> Vec<u8> {
    raw.read(lun, &inquiry(Some(0x80), 255), 255).good()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A server with the memory LUNs 0 and 1, and a session that has written to LUN 1.
fn with_memory() -> (Server, Raw, Vec<u8>) {
    let server = Server::start(&configuration(TARGET, &(memory(0) + &memory(1))));
    let mut raw = session(&server);
    raw.clear_attentions(1);
    raw.write_blocks(1, 5, &pattern(512, 7)).good();
    let serial = serial(&mut raw, 1);
    (server, raw, serial)
}

fn is_as_before(raw: &mut Raw, before: &[u8]) {
    raw.clear_attentions(0);
    raw.clear_attentions(1);
    assert!(raw.read_blocks(1, 5, 1) == pattern(512, 7), "the data are back");
    assert_eq!(serial(raw, 1), before, "the disk was replaced");
}

#[test]
fn roll_back_restores_memory_removed_on_trial() {
    let (server, mut raw, before) = with_memory();
    let without = changed(&server, |text| text.replace(&memory(1), ""));
    apply(&server, &[&without, "--confirm-within", "1h"]);
    raw.clear_attentions(0);
    raw.simple(1, &[0; 6]).check(0x052500);
    let as_null = memory(1).replace("\"memory\"", "\"null\"");
    let other = changed(&server, |text| text.replace(&memory(1), &as_null));
    apply(&server, &[&other, "--confirm-within", "1h"]);
    raw.clear_attentions(0);
    raw.clear_attentions(1);
    assert_eq!(raw.read_blocks(1, 5, 1), [0; 512]);
    let smaller = memory(1).replace("8MiB", "4MiB");
    let other = changed(&server, |text| text.replace(&memory(1), &smaller));
    apply(&server, &[&other, "--confirm-within", "1h"]);
    apply(&server, &["--rollback"]);
    is_as_before(&mut raw, &before);
    let without = changed(&server, |text| text.replace(&memory(1), ""));
    apply(&server, &[&without, "--confirm-within", "1s"]);
    until("rolled back by itself", || server.log().matches("configuration is rolled back").count() == 2);
    is_as_before(&mut raw, &before);
}

#[test]
fn memory_is_dropped_once_its_removal_is_confirmed() {
    let (server, mut raw, before) = with_memory();
    let without = changed(&server, |text| text.replace(&memory(1), ""));
    apply(&server, &[&without, "--confirm-within", "1h"]);
    apply(&server, &["--confirm"]);
    let original = server.dir().join("lunar.toml").display().to_string();
    apply(&server, &[&original, "--confirm-within", "1h"]);
    raw.clear_attentions(0);
    raw.clear_attentions(1);
    assert_eq!(raw.read_blocks(1, 5, 1), [0; 512], "another disk");
    assert_ne!(serial(&mut raw, 1), before);
}

#[test]
fn trial_rejects_a_size_that_loses_memory() {
    let (server, mut raw, before) = with_memory();
    let other = memory(1).replace("8MiB", "4MiB");
    let smaller = changed(&server, |text| text.replace(&memory(1), &other));
    let (said, status) = ask(&server, &["apply", &smaller, "--confirm-within", "1h"]);
    assert!(
        status != 0 && said.contains("the memory disk has 8 MiB: a change to 4 MiB would lose its data"),
        "{said}"
    );
    is_as_before(&mut raw, &before);
}

#[test]
fn failed_roll_back_is_retried() {
    let server = Server::start(&configuration(TARGET, &(memory(0) + &file(1, Path::new("disk.img")))));
    let mut raw = session(&server);
    raw.clear_attentions(1);
    raw.write_blocks(1, 5, &pattern(512, 7)).good();
    let without = changed(&server, |text| text.replace(&file(1, Path::new("disk.img")), ""));
    apply(&server, &[&without, "--confirm-within", "1h"]);
    let disk = server.dir().join("disk.img");
    let mut other = Server::start(&configuration("iqn.2026-11.org.example:other", &file(0, &disk)));
    for _ in 0..2 {
        let (said, status) = ask(&server, &["apply", "--rollback"]);
        assert_eq!(status, IN_USE, "{said}");
        assert!(
            said.contains("disk.img") && said.contains("hint: the server retries automatically"),
            "{said}"
        );
    }
    other.stop();
    until("the LUN is back", || server.log().contains("configuration is rolled back"));
    raw.clear_attentions(0);
    raw.clear_attentions(1);
    assert!(raw.read_blocks(1, 5, 1) == pattern(512, 7));
    let failures = server.log().lines().filter(|line| line.contains("ERROR")).count();
    assert_eq!(failures, 1, "{}", server.log());
}

#[test]
fn change_that_needs_a_restart_stays_pending() {
    let mut server = Server::start(&configuration(TARGET, &memory(0)));
    let original =
        std::fs::read_to_string(server.dir().join("lunar.toml")).expect("the served configuration");
    let with_cores = original.replacen("[server]\n", "[server]\ncores = 1\n", 1);
    let diff = |server: &Server| ask(server, &["diff"]).0;
    std::fs::write(server.dir().join("lunar.toml"), &with_cores).expect("written");
    let line = "server: cores from all to 1 (needs a restart)\n";
    assert_eq!(diff(&server), line);
    server.signal(1);
    until("read again", || server.log().contains("lunar.toml reloaded"));
    assert!(server.log().contains(&format!("not applied: {}", line.trim_end())), "{}", server.log());
    assert_eq!(diff(&server), line, "after the reload");
    let said = apply(&server, &[]);
    assert!(said.starts_with(line), "{said}");
    assert_eq!(diff(&server), line, "after an apply");
    std::fs::write(server.dir().join("lunar.toml"), &original).expect("written");
    assert_eq!(diff(&server), "nothing would change\n", "the original configuration");
    std::fs::write(server.dir().join("lunar.toml"), &with_cores).expect("written");
    server.rewrite(&with_cores);
    server.restart();
    assert_eq!(diff(&server), "nothing would change\n", "after the restart");
}

#[test]
fn configuration_that_replaces_one_on_trial_is_logged() {
    let server = Server::start(&configuration(TARGET, &(memory(0) + &memory(1))));
    let without = changed(&server, |text| text.replace(&memory(1), ""));
    let ended = |by: &str| {
        let line = format!("{by} replaces the configuration on trial: the rollback is cancelled");
        server.log().lines().filter(|said| said.contains(&line)).count()
    };
    server.signal(1);
    until("read again", || server.log().matches("lunar.toml reloaded").count() == 1);
    assert_eq!(ended("lunar.toml"), 0, "nothing was on trial: {}", server.log());
    apply(&server, &[&without, "--confirm-within", "1h"]);
    server.signal(1);
    until("read again", || server.log().matches("lunar.toml reloaded").count() == 2);
    until("the trial ended", || ended("lunar.toml") == 1);
    apply(&server, &[&without, "--confirm-within", "1h"]);
    apply(&server, &[&without]);
    until("the trial ended", || ended("the applied configuration") == 1);
}
