//! Commands with several paths to a namespace: portals of controllers that work, are dead or inaccessible, or lead elsewhere.

use interop::command::{CommandOutput, lunar};
use interop::{Raw, Server, TARGET, ports};
use std::net::TcpListener;

const NQN: &str = "nqn.2026-11.org.example:disks";
/// ASYMMETRIC ACCESS STATE.
const OPTIMIZED: u8 = 0;
const STANDBY: u8 = 2;

/// A subsystem in two portal groups, each with a portal of NVMe/TCP and one of iSCSI. Its namespace is a LUN.
struct TwoPortals {
    server: Server,
    /// The portals of NVMe/TCP.
    nvme: [String; 2],
}

impl TwoPortals {
    fn start() -> TwoPortals {
        let group = |tag: u8| {
            format!(
                "[[portal_group]]\ntag = {tag}\n\
                 portals = [{{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}, \"127.0.0.1:0\"]\n"
            )
        };
        let disk = format!(
            "[[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"16MiB\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\n[[subsystem.namespace]]\nnsid = 1\ntarget = \"{TARGET}\"\nlun = 0\n"
        );
        let server = Server::start(&[group(1), group(2), disk].concat());
        let nvme = [0, 2].map(|at| server.portals()[at].to_string());
        TwoPortals { server, nvme }
    }

    /// SET TARGET PORT GROUPS: the states of both portal groups.
    fn set_access(&self, states: [u8; 2]) {
        Raw::session(self.server.portals()[1], &[]).set_access(states);
    }

    fn both(&self) -> String {
        url(&[&self.nvme[0], &self.nvme[1]])
    }
}

/// The URL of the namespace with these portals.
fn url(portals: &[&str]) -> String {
    let (first, others) = portals.split_first().expect("a portal");
    let paths = if others.is_empty() { String::new() } else { format!("&paths={}", others.join(",")) };
    format!("nvme://{first}/{NQN}/1?host_nqn=nqn.2026-11.org.example:one{paths}")
}

/// The address of no server.
fn dead() -> String {
    format!("127.0.0.1:{}", ports::free())
}

/// The output of a command that succeeds. It may warn.
fn done((out, err, status): CommandOutput) -> String {
    assert_eq!(status, 0, "{out}{err}");
    out
}

/// The line that begins like this, after blanks.
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let found = text.lines().find(|line| line.trim_start().starts_with(start));
    found.unwrap_or_else(|| panic!("no line {start} in {text}")).trim()
}

#[test]
fn info_shows_paths_with_states_and_controllers() {
    let two = TwoPortals::start();
    let [one, other] = &two.nvme;
    for (states, best) in [([OPTIMIZED, STANDBY], one), ([STANDBY, OPTIMIZED], other), ([STANDBY; 2], one)] {
        two.set_access(states);
        let info = done(lunar(&["info", &two.both()]));
        assert_eq!(line(&info, "portal "), format!("portal     {best}"), "{info}");
        for (portal, state) in two.nvme.iter().zip(states) {
            let state = if state == OPTIMIZED { "optimized" } else { "standby" };
            let path = line(&info, &format!("portal {portal}, "));
            assert!(path.starts_with(&format!("portal {portal}, state {state}, controller ")), "{info}");
        }
    }
    let alone = done(lunar(&["info", &url(&[one]), "--json"]));
    assert!(!alone.contains("\"paths\""), "{alone}");
}

#[test]
fn info_and_ls_need_one_path_that_works() {
    let two = TwoPortals::start();
    let (live, dead) = (&two.nvme[0], dead());
    for portals in [[&dead, live], [live, &dead]] {
        let url = url(&portals.map(String::as_str));
        let (info, warned, status) = lunar(&["info", &url, "--json"]);
        assert_eq!(status, 0, "{info}{warned}");
        assert!(info.contains(&format!("\"portal\": \"{dead}\",\n      \"state\": \"missing\"")), "{info}");
        assert!(info.contains("\"state\": \"optimized\"") && warned.contains(&dead), "{info}{warned}");
        let listed = done(lunar(&["ls", &url]));
        assert!(listed.starts_with(&format!("{NQN} at {live}\n  namespace 1: disk, 16 MiB")), "{listed}");
    }
    let (_, warned, _) = lunar(&["ls", &url(&[&dead, live])]);
    assert!(warned.starts_with(&format!("warning: {NQN}: ")) && warned.contains(&dead), "{warned}");
    let none = url(&[&dead, &self::dead()]);
    for command in ["info", "ls"] {
        let (out, err, status) = lunar(&[command, &none]);
        assert!(status == 4 && out.is_empty() && err.contains(&dead), "{command}: {out}{err}");
    }
}

#[test]
fn doctor_judges_each_path() {
    let two = TwoPortals::start();
    let [one, other] = &two.nvme;
    let report = done(lunar(&["doctor", &two.both()]));
    for portal in &two.nvme {
        assert!(
            line(&report, &format!("{portal}: optimized, controller ")).contains(", round trip "),
            "{report}"
        );
    }
    assert!(report.contains(&format!("\nthe path through {one}\n")), "{report}");
    assert!(report.ends_with("\nno problems found\n"), "{report}");

    two.set_access([STANDBY, OPTIMIZED]);
    let report = done(lunar(&["doctor", &two.both()]));
    assert!(line(&report, &format!("{one}: ")).contains(": standby, controller "), "{report}");
    assert!(
        report.contains(&format!("\nnote: path {one}: namespace 1 takes no commands through {one}")),
        "{report}"
    );
    assert!(
        report.contains(&format!("\nthe path through {other}\n")) && report.contains("\n  reads of"),
        "{report}"
    );
    assert!(!report.contains("only the path"), "{report}");

    two.set_access([OPTIMIZED; 2]);
    let dead = dead();
    let report = done(lunar(&["doctor", &url(&[&dead, other])]));
    assert_eq!(line(&report, &format!("{dead}: ")), format!("{dead}: missing"));
    assert!(report.contains(&format!("\nwarning: path {dead}: ")), "{report}");
    assert!(report.contains(&format!("\nwarning: only the path {other} leads to the namespace")), "{report}");
}

#[test]
fn doctor_has_time_for_each_path() {
    let two = TwoPortals::start();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (mute, live) = (silent.local_addr().expect("an address").to_string(), &two.nvme[1]);
    let report = done(lunar(&["doctor", &url(&[&mute, live]), "--timeout", "8s"]));
    assert!(report.contains(&format!("\nwarning: path {mute}: timed out after ")), "{report}");
    assert!(report.contains(&format!(": waiting for the answer of {mute} ")), "{report}");
    line(&report, &format!("{live}: optimized, "));
}

#[test]
fn doctor_of_unusable_paths_has_the_status_of_the_cause() {
    let (two, stranger) = (TwoPortals::start(), TwoPortals::start());
    let (report, err, status) = lunar(&["doctor", &url(&[&dead(), &dead()])]);
    assert!(status == 4 && err.ends_with("cannot be used: see the report\n"), "{report}{err}");
    assert_eq!(report.matches("\nbroken: path 127.0.0.1:").count(), 2, "{report}");

    two.set_access([STANDBY; 2]);
    let (report, _, status) = lunar(&["doctor", &two.both()]);
    assert!(status == 4 && report.matches(": its state is standby (ANA)\n").count() == 2, "{report}");

    two.set_access([OPTIMIZED; 2]);
    // The same name, but another disk.
    let elsewhere = url(&[&two.nvme[0], &stranger.nvme[0]]);
    let (report, _, status) = lunar(&["doctor", &elsewhere, "--json"]);
    assert!(status == 1 && report.contains("\"usable\": false"), "{report}");
    assert!(report.contains("the paths do not lead to one namespace: "), "{report}");
    for command in [&["info", &elsewhere][..], &["pr", &elsewhere, "read-keys"]] {
        let (_, err, status) = lunar(command);
        assert!(status != 0 && err.contains("lead to different"), "{command:?}: {status} {err}");
    }
}

#[test]
fn pr_acts_once_through_any_path_that_works() {
    let two = TwoPortals::start();
    let [one, other] = &two.nvme;
    let pr = |url: &str, arguments: &[&str]| lunar(&[&["pr", url][..], arguments].concat());
    done(pr(&url(&[&dead(), one]), &["register", "--new-key", "0xabc"]));
    two.set_access([STANDBY, OPTIMIZED]);
    done(pr(&two.both(), &["reserve", "--key", "abc", "--type", "we-ro"]));
    let state = done(pr(&two.both(), &["read-full-status", "read-keys"]));
    assert_eq!(state.matches("host id ").count(), 1, "one host on all paths: {state}");
    assert!(line(&state, "keys").ends_with("  0x0000000000000abc"), "{state}");
    done(pr(&url(&[other]), &["release", "--key", "abc", "--type", "we-ro"]));

    two.set_access([STANDBY; 2]);
    let (_, err, status) = pr(&two.both(), &["read-keys"]);
    assert!(status == 4 && err.contains("no path accepts commands") && err.contains("is standby"), "{err}");
    assert!(err.contains("hint: lunar doctor URL"), "{err}");
    two.set_access([OPTIMIZED; 2]);
    done(pr(&url(&[one, &dead()]), &["clear", "--key", "abc"]));
    assert!(done(pr(&two.both(), &["read-keys"])).contains("keys        none"));
}

#[test]
fn paths_of_a_discovery_service_are_refused() {
    for command in ["discover", "ls"] {
        let (_, err, status) = lunar(&[command, "nvme://127.0.0.1?paths=127.0.0.2"]);
        assert!(status == 7 && err.contains("does not apply to a discovery service"), "{command}: {err}");
        assert!(err.contains("\n  hint: ask each service"), "{command}: {err}");
    }
}
