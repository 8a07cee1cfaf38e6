//! A target that one of two servers has at a time: `lunar target promote` and `demote`, and the resource agent.

use interop::routed::until;
use interop::scsi::{designator, inquiry, pattern, read_keys, reserve_out};
use interop::tool;
use interop::two_servers::TwoServers;
use interop::{Folder, Login, Raw, Server, TARGET, lunar_bin};
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const APTPL: u8 = 1;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const EXCLUSIVE_REGISTRANTS: u8 = 6;
const CONFLICT: u8 = 0x18;
const SIGTERM: i32 = 15;
const OUT_OF_SERVICE: u16 = 0x0301;
const TIMED_OUT: i32 = 8;
const NOT_FOUND: i32 = 21;
const IN_USE: i32 = 28;
const ISID: [u8; 6] = [0x80, 0, 0, 9, 0, 1];
const BLOCKS: u16 = 256;

/// Two servers whose target is on standby.
struct Pair {
    servers: Vec<Server>,
    two: TwoServers,
}

impl Pair {
    /// None: not possible here, which is printed.
    fn start() -> Option<Pair> {
        let two = TwoServers::new()?;
        let servers = (0..2).map(|side| start(&two, side, "")).collect();
        Some(Pair { servers, two })
    }

    fn portal(&self, side: usize) -> SocketAddr {
        format!("{}:3260", self.two.address(side, 2)).parse().expect("an address")
    }

    fn login(&self, side: usize, name: &str) -> Result<Raw, u16> {
        // A host that logs in again has the same ISID, so its registrations count.
        let login = Login::new().isid(ISID).initiator(&format!("iqn.2026-11.org.example:{name}"));
        let raw = login.try_on(self.portal(side));
        raw.map(|mut raw| {
            raw.clear_attentions(0);
            raw
        })
    }

    fn session(&self, side: usize, name: &str) -> Raw {
        self.login(side, name).unwrap_or_else(|status| panic!("login of {name}: {status:#06x}"))
    }

    /// stdout and stderr, and the exit status.
    fn run(&self, side: usize, action: &str) -> (String, i32) {
        let ran = self.servers[side].asked(&["target", action, TARGET]);
        (ran.said, ran.status.and_then(|status| status.code()).expect("an exit status"))
    }

    fn done(&self, side: usize, action: &str, result: &str) {
        assert_eq!(self.run(side, action), (format!("target {TARGET}: {result}\n"), 0));
    }

    fn refused(&self, side: usize, action: &str, reasons: &[&str]) {
        let (said, status) = self.run(side, action);
        assert_eq!(status, 1, "{said}");
        reasons.iter().for_each(|reason| assert!(said.contains(reason), "{reason} is not in {said}"));
    }

    fn state(&self, side: usize) -> String {
        let shown = self.servers[side].said(&["target", "show", TARGET, "--json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        shown["state"].as_str().expect("a state").to_owned()
    }

    /// Gives the media to one server, and promotes the target there.
    fn promote(&mut self, side: usize) {
        self.two.give(side);
        self.done(side, "promote", "promoted");
    }

    /// The files of the shared media that a server has open.
    fn opened(&self, side: usize) -> usize {
        self.two.opened_by(self.servers[side].pid()).len()
    }
}

/// Starts the server of a side. `lun`: further keys of its LUN.
fn start(two: &TwoServers, side: usize, lun: &str) -> Server {
    let dir = Folder::fresh();
    let (own, state, device) = (dir.display(), two.volume(side).join("state"), two.device(side));
    let toml = format!(
        "[server]\nstate_dir = \"{own}/local\"\nadmin_socket = \"{own}/admin.sock\"\n\
         [session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"0.0.0.0:3260\"]\n\
         [[target]]\nname = \"{TARGET}\"\nstandby = true\nstate_dir = \"{}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"device\"\npath = \"{device}\"\n{lun}\n",
        state.display()
    );
    two.start(side, dir, &toml)
}

/// The identity of the disk for hosts: its first designator and its serial number.
fn identity(raw: &mut Raw) -> (Vec<u8>, Vec<u8>) {
    (designator(raw, 0), raw.read(0, &inquiry(Some(0x80), 255), 255).good())
}

#[test]
fn target_moves_with_data_identity_and_registrations() {
    let Some(mut pair) = Pair::start() else { return };
    assert_eq!([0, 1].map(|side| pair.state(side)), ["standby", "standby"]);
    assert_eq!([0, 1].map(|side| pair.login(side, "host").err()), [Some(OUT_OF_SERVICE); 2]);
    pair.promote(0);
    pair.done(0, "promote", "is promoted already");
    assert_eq!([0, 1].map(|side| pair.state(side)), ["serving", "standby"]);
    assert_eq!(pair.login(1, "host").err(), Some(OUT_OF_SERVICE));

    let data = pattern(usize::from(BLOCKS) * 512, 7);
    let (mut host, mut other) = (pair.session(0, "host"), pair.session(0, "other"));
    host.write_blocks(0, 100, &data).good();
    reserve_out(&mut host, 0, REGISTER, 0, 0, 0xa, APTPL).good();
    reserve_out(&mut host, 0, RESERVE, EXCLUSIVE_REGISTRANTS, 0xa, 0, 0).good();
    assert_eq!(other.write_blocks(0, 0, &[1; 512]).status, CONFLICT);
    let before = identity(&mut host);
    host.write_blocks(0, 400, &data).good();
    drop((host, other));

    pair.done(0, "demote", "demoted");
    pair.done(0, "demote", "is on standby already");
    assert_eq!((pair.state(0), pair.opened(0)), ("standby".into(), 0));
    assert_eq!(pair.login(0, "host").err(), Some(OUT_OF_SERVICE));

    // Unmounting the volume fails if the first server has a file of it open.
    pair.promote(1);
    let (mut host, mut other) = (pair.session(1, "host"), pair.session(1, "other"));
    for lba in [100, 400] {
        assert_eq!(host.read_blocks(0, lba, BLOCKS), data);
    }
    assert_eq!(identity(&mut host), before);
    assert_eq!(read_keys(&mut host, 0), [0xa]);
    assert_eq!(other.write_blocks(0, 0, &[1; 512]).status, CONFLICT);
    host.write_blocks(0, 0, &data).good();
    let events = pair.servers[1].said(&["events"]);
    assert!(events.contains("target.promoted"), "{events}");
}

#[test]
fn sessions_are_asked_to_log_out_and_end() {
    let Some(mut pair) = Pair::start() else { return };
    pair.promote(0);
    let mut host = pair.session(0, "host");
    host.write_blocks(0, 0, &[5; 512]).good();
    let waiter = std::thread::spawn(move || host.until_close());
    pair.done(0, "demote", "demoted");
    let pdus = waiter.join().expect("a session");
    let asks = pdus.iter().filter(|pdu| pdu.bhs[0] & 0x3f == 0x32 && pdu.bhs[36] == 1).count();
    assert_eq!(asks, 1, "{pdus:?}");
    assert_eq!(pair.opened(0), 0);
}

#[test]
fn media_of_another_server_are_refused_with_the_reason() {
    let Some(mut pair) = Pair::start() else { return };
    let volume = pair.two.volume(0).join("state").display().to_string();
    pair.refused(0, "promote", &[&volume, "no such file or directory", "mount its volume first"]);
    pair.promote(1);
    // The first server now has a state folder, but may not write the device.
    std::fs::create_dir(pair.two.volume(0).join("state")).expect("a folder");
    pair.refused(0, "promote", &[pair.two.device(0), "read-only"]);
    assert_eq!((pair.state(0), pair.opened(0)), ("standby".into(), 0));
    assert_eq!(pair.login(0, "host").err(), Some(OUT_OF_SERVICE));
    let log = pair.servers[0].log();
    assert!(log.contains("cannot be promoted"), "{log}");
    std::fs::remove_dir_all(pair.two.volume(0).join("state")).expect("removed");
    let unknown = pair.servers[0].asked(&["target", "promote", "iqn.2026-11.org.example:none"]);
    assert_eq!(unknown.status.and_then(|status| status.code()), Some(NOT_FOUND), "{}", unknown.said);
}

#[test]
fn second_server_takes_over_from_a_killed_one() {
    let Some(mut pair) = Pair::start() else { return };
    pair.promote(0);
    let data = pattern(usize::from(BLOCKS) * 512, 9);
    let mut host = pair.session(0, "host");
    host.write_blocks(0, 0, &data).good();
    reserve_out(&mut host, 0, REGISTER, 0, 0, 0xb, APTPL).good();
    host.simple(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]).good();
    pair.servers[0].kill9();
    pair.promote(1);
    let mut host = pair.session(1, "host");
    assert_eq!((host.read_blocks(0, 0, BLOCKS), read_keys(&mut host, 0)), (data, vec![0xb]));
    // A restart begins on standby, whoever has the media.
    pair.servers[0] = start(&pair.two, 0, "");
    assert_eq!(pair.state(0), "standby");
}

/// The other server completes an atomic write that the first one had begun, from the journal in the state folder.
#[test]
fn interrupted_atomic_write_is_completed_by_the_other_server() {
    let Some(mut pair) = Pair::start() else { return };
    pair.promote(0);
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x9c, 8, 8);
    pair.session(0, "host").write(0, &cdb, &[1; 8 * 512]).good();
    pair.servers[0].kill9();
    let folder = pair.two.volume(0).join("state/atomic");
    let journal =
        std::fs::read_dir(folder).expect("a folder").next().expect("a journal").expect("a journal").path();
    let mut record = std::fs::read(&journal).expect("a record");
    assert_eq!(record[..8], [0; 8], "the record of a completed write is cleared");
    record[..8].copy_from_slice(b"LUNARWA2");
    std::fs::write(&journal, record).expect("a record");
    // The first server had written a half.
    let device = std::fs::File::options().write(true).open(pair.two.device(0)).expect("a device");
    device.write_all_at(&[0; 4 * 512], 12 * 512).and_then(|()| device.sync_all()).expect("written");
    drop(device);
    pair.promote(1);
    assert_eq!(pair.session(1, "host").read_blocks(0, 8, 8), [1; 8 * 512]);
}

#[test]
fn reload_keeps_what_is_promoted_and_what_is_served() {
    let Some(mut pair) = Pair::start() else { return };
    pair.promote(0);
    let mut host = pair.session(0, "host");
    pair.servers[0].said(&["reload"]);
    assert_eq!(pair.state(0), "serving");
    host.write_blocks(0, 0, &[5; 512]).good();
    pair.servers[1].said(&["reload"]);
    assert_eq!(pair.state(1), "standby");
    // With another state folder, hosts would lose their reservations.
    let file = pair.servers[0].dir().join("lunar.toml");
    let text = std::fs::read_to_string(&file).expect("a configuration");
    std::fs::write(&file, text.replace("/state\"", "/other\"")).expect("a configuration");
    let ran = pair.servers[0].asked(&["reload"]);
    assert_eq!(ran.status.and_then(|status| status.code()), Some(IN_USE), "{}", ran.said);
    host.ping();
}

#[test]
fn check_of_media_leaves_out_targets_on_standby() {
    let dir = Folder::fresh();
    let checked = |standby: bool| {
        let file = dir.join("check.toml");
        let text = format!(
            "[server]\nstate_dir = \"{}\"\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
             [[target]]\nname = \"{TARGET}\"\nstandby = {standby}\n\
             [[target.lun]]\nlun = 0\nbackend = \"device\"\npath = \"/dev/lunar-missing\"\n",
            dir.display()
        );
        std::fs::write(&file, text).expect("a configuration");
        let arguments = ["check", "--media", "--user", "root", &file.display().to_string()];
        tool::run(Command::new(lunar_bin()).args(arguments), Duration::from_secs(60))
    };
    let (served, standby) = (checked(false), checked(true));
    assert!(!served.ok() && served.said.contains("/dev/lunar-missing: no such file"), "{}", served.said);
    assert!(standby.ok() && standby.said.contains("stay on this server"), "{}", standby.said);
}

#[test]
fn failed_flush_is_reported_and_the_medium_is_closed() {
    let Some(mut pair) = Pair::start() else { return };
    pair.servers[0].kill9();
    let fails = "filters = [{ kind = \"error\", rate = 1.0, op = \"flush\" }]";
    pair.servers[0] = start(&pair.two, 0, fails);
    pair.promote(0);
    pair.session(0, "host").write_blocks(0, 0, &[5; 512]).good();
    pair.refused(0, "demote", &["is on standby, but writes that were not flushed are lost: LUN 0: "]);
    assert_eq!((pair.state(0), pair.opened(0)), ("standby".into(), 0));
    pair.done(0, "demote", "is on standby already");
}

#[test]
fn target_that_is_always_served_cannot_be_demoted() {
    let server = Server::start(&interop::config::standard());
    for action in ["promote", "demote"] {
        let ran = server.asked(&["target", action, TARGET]);
        assert_eq!(ran.status.and_then(|status| status.code()), Some(1), "{}", ran.said);
        assert!(
            ran.said.contains("is always served\n  hint: set standby = true of the target"),
            "{}",
            ran.said
        );
    }
}

/// Runs an action of the resource agent for a target of a server.
fn agent(server: &Server, target: &str, action: &str) -> i32 {
    agent_within(server, target, action, 60)
}

/// As [`agent`], with the time-out that the cluster manager has for the action.
fn agent_within(server: &Server, target: &str, action: &str, limit_s: u32) -> i32 {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/ocf/lunar-target");
    let mut command = Command::new("sh");
    command.arg(agent).arg(action).env("OCF_RESKEY_lunar", lunar_bin());
    command.env("OCF_RESKEY_target", target).env("OCF_RESKEY_socket", server.dir().join("admin.sock"));
    command.env("OCF_RESKEY_CRM_meta_timeout", (limit_s * 1000).to_string());
    let ran = tool::run(&mut command, Duration::from_secs(60));
    println!("{action} {target}: {}", ran.said);
    ran.status.and_then(|status| status.code()).expect("an exit status")
}

const OCF_SUCCESS: i32 = 0;
const OCF_ERR_GENERIC: i32 = 1;
const OCF_ERR_ARGS: i32 = 2;
const OCF_ERR_UNIMPLEMENTED: i32 = 3;
const OCF_ERR_CONFIGURED: i32 = 6;
const OCF_NOT_RUNNING: i32 = 7;

#[test]
fn resource_agent_returns_the_statuses_of_ocf() {
    let Some(mut pair) = Pair::start() else { return };
    let act = |pair: &Pair, action: &str| agent(&pair.servers[0], TARGET, action);
    assert_eq!(act(&pair, "meta-data"), OCF_SUCCESS);
    assert_eq!(act(&pair, "migrate_to"), OCF_ERR_UNIMPLEMENTED);
    assert_eq!(act(&pair, "validate-all"), OCF_SUCCESS);
    assert_eq!(act(&pair, "monitor"), OCF_NOT_RUNNING);
    assert_eq!(act(&pair, "start"), OCF_ERR_GENERIC, "the volume is not mounted");
    pair.two.give(0);
    for _ in 0..2 {
        assert_eq!((act(&pair, "start"), act(&pair, "monitor")), (OCF_SUCCESS, OCF_SUCCESS));
    }
    pair.session(0, "host").write_blocks(0, 0, &[5; 512]).good();
    for _ in 0..2 {
        assert_eq!((act(&pair, "stop"), act(&pair, "monitor")), (OCF_SUCCESS, OCF_NOT_RUNNING));
    }
    assert_eq!(pair.opened(0), 0);
    let unknown = "iqn.2026-11.org.example:none";
    for (action, status) in [
        ("start", OCF_ERR_ARGS),
        ("monitor", OCF_ERR_ARGS),
        ("validate-all", OCF_ERR_ARGS),
        ("stop", OCF_SUCCESS),
    ] {
        assert_eq!(agent(&pair.servers[0], unknown, action), status, "{action}");
    }
    assert_eq!(agent(&pair.servers[0], "", "start"), OCF_ERR_CONFIGURED);
    pair.servers[0].kill9();
    assert_eq!((act(&pair, "monitor"), act(&pair, "stop")), (OCF_NOT_RUNNING, OCF_SUCCESS));
    assert_eq!(act(&pair, "start"), OCF_ERR_GENERIC, "no server runs");
}

/// A server that shuts down has its media until its flush has ended.
#[test]
fn stopping_server_counts_as_stopped_after_its_end_only() {
    let Some(mut pair) = Pair::start() else { return };
    pair.promote(0);
    pair.session(0, "host").write_blocks(0, 0, &[5; 512]).good();
    let frozen = pair.two.freeze();
    pair.servers[0].signal(SIGTERM);
    let status = |pair: &Pair| pair.servers[0].said(&["status", "--json"]);
    until("the server shuts down", || status(&pair).contains("\"stopping\": true").then_some(()));
    pair.refused(0, "demote", &["the server is shutting down"]);
    assert_eq!(agent_within(&pair.servers[0], TARGET, "stop", 8), OCF_ERR_GENERIC);
    assert_ne!(pair.opened(0), 0, "the medium is still open");
    drop(frozen);
    assert_eq!(agent(&pair.servers[0], TARGET, "stop"), OCF_SUCCESS);
    assert!(!pair.servers[0].lives(), "it has closed its media");
}

/// Longer than a change of the configuration waits for running commands.
const SLOW: Duration = Duration::from_secs(12);

#[test]
fn slow_flush_delays_the_demotion_until_it_ends() {
    let Some(mut pair) = Pair::start() else { return };
    pair.promote(0);
    pair.session(0, "host").write_blocks(0, 0, &[5; 512]).good();
    let frozen = pair.two.freeze();
    std::thread::scope(|scope| {
        let demotion = scope.spawn(|| pair.done(0, "demote", "demoted"));
        std::thread::sleep(SLOW);
        drop(frozen);
        demotion.join().expect("it is demoted");
    });
    assert_eq!((pair.state(0), pair.opened(0)), ("standby".into(), 0));
}

#[test]
fn medium_that_never_answers_fails_the_stop() {
    let Some(mut pair) = Pair::start() else { return };
    pair.promote(0);
    let mut host = pair.session(0, "host");
    host.write_blocks(0, 0, &[5; 512]).good();
    let frozen = pair.two.freeze();
    let flush = host.command(0, 0x80, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0);
    host.send(&flush);
    assert_eq!(agent_within(&pair.servers[0], TARGET, "stop", 30), OCF_ERR_GENERIC);
    // It is promoted as long as the medium is in use.
    until("the target accepts logins", || pair.login(0, "other").ok());
    let log = pair.servers[0].log();
    assert!(log.contains("is still promoted: the flush of its media did not end within"), "{log}");
    assert_ne!(pair.opened(0), 0);
    drop(frozen);
    assert_eq!(agent(&pair.servers[0], TARGET, "stop"), OCF_SUCCESS);
    assert_eq!((pair.state(0), pair.opened(0)), ("standby".into(), 0));
}

/// The cluster manager has given up: it must not find a target promoted that it counts as stopped.
#[test]
fn promotion_of_a_client_that_gave_up_is_dropped() {
    let Some(mut pair) = Pair::start() else { return };
    pair.promote(0);
    pair.session(0, "host").write_blocks(0, 0, &[5; 512]).good();
    let frozen = pair.two.freeze();
    std::thread::scope(|scope| {
        let demotion = scope.spawn(|| pair.done(0, "demote", "demoted"));
        let requests = || pair.servers[0].log().matches("demote target").count();
        until("the demotion is in progress", || (requests() == 1).then_some(()));
        let ran = pair.servers[0].asked(&["target", "promote", TARGET, "--timeout", "500ms"]);
        assert_eq!(ran.status.and_then(|status| status.code()), Some(TIMED_OUT), "{}", ran.said);
        drop(frozen);
        demotion.join().expect("it is demoted");
    });
    until("the promotion is dropped", || pair.servers[0].log().contains("waits no longer").then_some(()));
    assert_eq!((pair.state(0), pair.opened(0)), ("standby".into(), 0));
}
