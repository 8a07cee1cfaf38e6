//! Faults behind a router during verified writes: no acknowledged data are lost.

use crate::*;
use interop::scsi::{READ, pattern, read10};
use interop::{Relay, lunar_bin};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;

/// Size of the written range. It is small, so that blocks are overwritten often.
const SPAN: u64 = 2 << 20;
const BLOCKS: u64 = SPAN / 4096;
/// Bytes that the state grows by for each write.
const RECORD_LEN: u64 = 48;
/// The exit status of `lunar bench` after SIGTERM.
const TERMINATED: i32 = 143;
/// Ping settings that detect a dead peer soon.
const QUICK: &str = "?noop_interval=1&noop_timeout=1";

/// `lunar bench` on LUN 0 of T, with the state in the router's folder.
fn bench(router: &Server, more: &[&str]) -> Command {
    let mut command = Command::new(lunar_bin());
    command.args(["bench", "randwrite", &format!("iscsi://{}/{T}/0", router.portal())]);
    command.args(["--depth", "8", "--sessions", "2", "--span", "2m", "--destroy", "--verify"]);
    command.arg("--verify-state").arg(router.dir().join("verify.state")).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The number of blocks that hold acknowledged data.
fn verified(output: &Output) -> u64 {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{out}{err}");
    let note = out.lines().find_map(|line| line.strip_prefix("note: verified: "));
    let note = note.unwrap_or_else(|| panic!("nothing was verified: {out}{err}"));
    note.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

fn writes(router: &Server) -> u64 {
    std::fs::metadata(router.dir().join("verify.state")).map_or(0, |state| state.len() / RECORD_LEN)
}

/// Waits until this many more writes were acknowledged.
pub fn await_writes(router: &Server, count: u64) {
    let before = writes(router);
    until("writes go on", || (writes(router) >= before + count).then_some(()));
}

/// Starts writes, which run until `stop` and so outlast the fault.
fn begin(router: &Server) -> Child {
    let child = bench(router, &["--runtime", "600"]).spawn().expect("lunar runs");
    await_writes(router, BLOCKS);
    child
}

/// Stops the writes. Another process then reads back all acknowledged data.
fn stop(router: &Server, child: Child) {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("lunar bench runs");
    let output = child.wait_with_output().expect("lunar bench ends");
    assert_eq!(output.status.code(), Some(TERMINATED), "{output:?}");
    let read = bench(router, &["--verify-only"]).output().expect("lunar runs");
    assert!(verified(&read) > BLOCKS / 2);
}

/// Runs verified writes during `trouble`, and then reads back all data.
pub fn under_writes(router: &Server, trouble: impl FnOnce()) {
    drop(session(router.portal(), T, &[0]));
    let child = begin(router);
    trouble();
    stop(router, child);
}

fn one_disk() -> Server {
    storage_of(&target(A, &disk(0, "a0")))
}

fn a_lun(storage: &Server) -> String {
    url(storage, &format!("/{A}"))
}

fn via(relay: &Relay, query: &str) -> String {
    format!("iscsi://{}/{A}{query}", relay.address())
}

#[test]
fn upstream_restart_loses_no_data() {
    for mode in ["block", "passthrough"] {
        let mut storage = one_disk();
        let router = router_to(&a_lun(&storage), &format!("mode = \"{mode}\"\n"));
        under_writes(&router, || {
            for away in [0, 1500] {
                storage.kill9();
                sleep(Duration::from_millis(away));
                storage.restart();
                await_writes(&router, BLOCKS / 2);
            }
        });
    }
}

#[test]
fn router_restart_loses_no_data() {
    for mode in ["block", "passthrough"] {
        let storage = one_disk();
        let mut router = router_to(&a_lun(&storage), &format!("mode = \"{mode}\"\n"));
        drop(session(router.portal(), T, &[0]));
        let child = begin(&router);
        router.kill9();
        router.restart();
        await_writes(&router, BLOCKS / 2);
        stop(&router, child);
    }
}

#[test]
fn slow_upstream_causes_no_errors() {
    let slow = "filters = [{ kind = \"delay\", read_us = 20000, write_us = 50000 }]\n";
    for mode in ["block", "passthrough"] {
        let storage = storage_of(&target(A, &(disk(0, "a0") + slow)));
        let router = router_to(&a_lun(&storage), &format!("mode = \"{mode}\"\n"));
        under_writes(&router, || await_writes(&router, BLOCKS));
        assert!(!router.log().contains("no path to the upstream LUN works"), "{}", router.log());
    }
}

#[test]
fn silent_upstream_loses_no_data() {
    for mode in ["block", "passthrough"] {
        let storage = one_disk();
        let relay = Relay::to(storage.portal());
        let router = router_to(&via(&relay, QUICK), &format!("mode = \"{mode}\"\n"));
        under_writes(&router, || {
            relay.silence();
            sleep(Duration::from_secs(3));
            relay.restore();
            await_writes(&router, BLOCKS / 2);
        });
    }
}

#[test]
fn loss_of_one_of_two_paths_causes_no_errors() {
    for mode in ["block", "passthrough"] {
        let storage = one_disk();
        let relays = [(); 2].map(|()| Relay::to(storage.portal()));
        let [first, second] = [0, 1].map(|n: usize| via(&relays[n], QUICK));
        let urls = format!("[router.r1.upstream.a]\nurls = [\"{first}\", \"{second}\"]\n");
        let head = format!("mode = \"{mode}\"\n");
        let router = Server::start(&router_text(&head, &(urls + &map_target(T, "a"))));
        under_writes(&router, || {
            for relay in [&relays[0], &relays[1], &relays[0]] {
                relay.cut();
                await_writes(&router, BLOCKS / 2);
                relay.restore();
                until("the path is back", || (!has_path_that_is_down(&router)).then_some(()));
            }
        });
        assert!(!router.log().contains("commands fail"), "{}", router.log());
    }
}

/// Whether a path is down. In passthrough mode, each host has its own path, and none is reported.
pub fn has_path_that_is_down(router: &Server) -> bool {
    let paths = r1(router)["upstreams"][0]["paths"].as_array().cloned().unwrap_or_default();
    paths.iter().any(|path| path["state"] == "down")
}

/// Sends a READ; returns its sense and its duration.
fn timed_read(raw: &mut Raw) -> (u32, Duration) {
    let started_at = Instant::now();
    let command = raw.command(0, 0xc0, &interop::scsi::read10(0, 8), 4096);
    raw.send(&command);
    // It may take longer than other responses.
    let mut reply = None;
    while started_at.elapsed() < PATIENCE && reply.is_none() {
        if let interop::Received::Pdu(pdu) = raw.get(PATIENCE) {
            reply = (pdu.tag() == command.tag()).then_some(pdu);
        }
    }
    let reply = reply.expect("an answer");
    (interop::sense(reply.data.get(2..).unwrap_or_default()), started_at.elapsed())
}

/// The first response that is no unit attention.
fn settled_read(raw: &mut Raw) -> (u32, Duration) {
    loop {
        match timed_read(raw) {
            (sense, _) if sense >> 16 == 6 => {}
            other => return other,
        }
    }
}

/// Reads after the time-out, which fail without waiting for it again.
const READS_AFTER_LOSS: usize = 20;

#[test]
fn commands_fail_after_path_loss_timeout() {
    for mode in ["block", "passthrough"] {
        let mut storage = one_disk();
        let router = router_to(&a_lun(&storage), &format!("mode = \"{mode}\"\npath_loss_timeout_s = 2\n"));
        let mut raw = session(router.portal(), T, &[0]);
        raw.write_blocks(0, 0, &pattern(4096, 3)).good();
        storage.kill9();
        let (sense, took) = timed_read(&mut raw);
        assert_eq!(sense, TRANSITION, "{mode}: {sense:06x} after {took:?}");
        let in_time = Duration::from_millis(1500)..Duration::from_secs(20);
        assert!(in_time.contains(&took), "{mode}: {took:?}");
        let started_at = Instant::now();
        for _ in 0..READS_AFTER_LOSS {
            let (sense, _) = settled_read(&mut raw);
            assert_eq!(sense, TRANSITION, "{mode}: {sense:06x}");
        }
        // 40 s, if each waited for the time-out.
        assert!(started_at.elapsed() < Duration::from_secs(20), "{mode}: {:?}", started_at.elapsed());
        if mode == "block" {
            assert_eq!(r1(&router)["targets"][0]["luns"][0]["health"], "lost");
        }
        assert_eq!(r1(&router)["state"], "no path", "{mode}");
        storage.restart();
        until("it is served again", || (settled_read(&mut raw).0 == 0).then_some(()));
        assert_eq!(r1(&router)["state"], "serving", "{mode}");
        assert!(raw.read_blocks(0, 0, 8) == pattern(4096, 3));
    }
}

#[test]
fn slow_command_is_logged_with_its_lun() {
    let slow = "filters = [{ kind = \"delay\", read_us = 3000000, write_us = 0 }]\n";
    let storage = storage_of(&target(A, &(disk(0, "a0") + &disk(3, "a3") + slow)));
    let router = router_to(&url(&storage, &format!("/{A}?command_timeout=1")), "");
    let mut raw = session(router.portal(), T, &[0, 3]);
    let command = raw.command(3, 0x80 | READ, &read10(0, 8), 4096);
    raw.send(&command);
    let log = until("the warning", || {
        Some(router.log()).filter(|log| log.contains("a command exceeded command_timeout"))
    });
    let line = log.lines().find(|line| line.contains("a command exceeded command_timeout"));
    assert!(line.is_some_and(|line| line.contains("lun=3 ")), "{log}");
}

#[test]
fn replaced_upstream_disk_gets_no_commands() {
    for mode in ["block", "passthrough"] {
        let text = |name: &str| format!("{HEAD}{}", target(A, &disk(0, name)));
        let mut storage = Server::start(&text("first"));
        let router = router_to(&a_lun(&storage), &format!("mode = \"{mode}\"\n"));
        let mut raw = session(router.portal(), T, &[0]);
        raw.write_blocks(0, 0, &pattern(4096, 4)).good();
        storage.kill9();
        storage.rewrite(&text("second"));
        storage.restart();
        until("it is refused", || (settled_read(&mut raw).0 == MANUAL_INTERVENTION).then_some(()));
        let refused = raw.write_blocks(0, 0, &[1; 4096]);
        assert!(refused.status != 0, "{mode}: the write reached the wrong disk");
        let second = std::fs::read(storage.dir().join("second.img")).expect("the other disk");
        assert!(second.iter().all(|byte| *byte == 0), "{mode}: the second disk was written");
        let log = router.log();
        let line = log.lines().find(|line| line.contains("the path leads to another logical unit"));
        let line = line.unwrap_or_else(|| panic!("{mode}: {log}"));
        for field in ["router=", "upstream=", "target=", "lun=0", "path=", "was=", "now="] {
            assert!(line.contains(field), "{mode}: {field} is not in {line}");
        }
        if mode == "passthrough" {
            assert_eq!(r1(&router)["targets"][0]["luns"][0]["health"], "another");
        }
        storage.kill9();
        storage.rewrite(&text("first"));
        storage.restart();
        until("it is served again", || (settled_read(&mut raw).0 == 0).then_some(()));
        // Hosts also get the unit attention of the reset.
        std::thread::sleep(Duration::from_millis(800));
        assert_eq!(settled_read(&mut raw).0, 0);
        assert!(raw.read_blocks(0, 0, 8) == pattern(4096, 4));
    }
}

/// The exit status of a router whose upstream is killed after `work`.
fn status_after(mode: &str, work: impl FnOnce(&mut Raw)) -> Option<i32> {
    let mut storage = one_disk();
    let mut router = router_to(&a_lun(&storage), &format!("mode = \"{mode}\"\n"));
    let mut host = session(router.portal(), T, &[0]);
    work(&mut host);
    storage.kill9();
    router.signal(15);
    router.wait(Duration::from_secs(120)).code()
}

#[test]
fn stop_without_upstream_succeeds_without_writes() {
    for mode in ["block", "passthrough"] {
        let read = |host: &mut Raw| drop(host.read(0, &read10(0, 1), 512).good());
        assert_eq!(status_after(mode, read), Some(0), "{mode}");
    }
}

#[test]
fn stop_without_upstream_fails_with_unflushed_writes() {
    let write = |host: &mut Raw| drop(host.write_blocks(0, 0, &[1; 512]).good());
    assert_eq!(status_after("block", write), Some(1));
}
