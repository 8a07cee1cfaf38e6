//! Shares of addresses and names in the tables of connections and sessions: a full table must not lock out other hosts.

use interop::{Chap, Folder, Login, Raw, Server, config};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;

const SECRET: &[u8] = b"alice's secret 1";
const OUT_OF_RESOURCES: u16 = 0x0302;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A server whose first target requires CHAP of alice. Every initiator may discover.
fn guarded(limits: &str) -> Server {
    let dir = Folder::fresh();
    let file = dir.join("alice.secret");
    fs::write(&file, SECRET).expect("a secret");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set its mode");
    let tables = format!(
        "[[target.access]]\nchap = [\"alice\"]\n[limits]\n{limits}\n\
         [[chap_user]]\nname = \"alice\"\nsecret_file = \"alice.secret\"\n{}",
        config::target(OPEN, "")
    );
    Server::start_in(dir, &config::with("", "", &tables))
}

/// A target without an access list.
const OPEN: &str = "iqn.2026-11.org.example:open";

fn alice(server: &Server) -> Result<Raw, u16> {
    Chap::login(&Login::new().source(ELSEWHERE), server.portal(), 5, "alice", SECRET)
}

/// Opens sessions with different ISIDs until a login fails.
fn fill(server: &Server, login: &Login) -> Vec<Raw> {
    let isid = |n: u8| [0x80, 0, 0, 7, 0, n];
    (0..200).map_while(|n| login.clone().isid(isid(n)).try_on(server.portal()).ok()).collect()
}

#[test]
fn discovery_takes_no_session_of_a_host_with_chap() {
    let server = guarded("sessions = 4\nsessions_per_initiator = 1\ndiscovery_sessions = 16\n");
    let held = fill(&server, &Login::discovery());
    assert_eq!(held.len(), 12, "one address leaves a quarter to others");
    let refused = Login::discovery().isid([0x80, 0, 0, 8, 0, 0]).try_on(server.portal()).err();
    assert_eq!(refused, Some(OUT_OF_RESOURCES));
    Login::discovery().source(ELSEWHERE).isid([0x80, 0, 0, 8, 0, 1]).on(server.portal());
    alice(&server).expect("discovery sessions do not count").ping();
}

#[test]
fn claimed_name_takes_no_session_of_a_user() {
    let server = guarded("sessions_per_initiator = 1\n");
    let open = Login::new().target(OPEN);
    let mut claimed = open.on(server.portal());
    assert_eq!(
        open.clone().isid([0x80, 0, 0, 8, 0, 1]).try_on(server.portal()).err(),
        Some(OUT_OF_RESOURCES)
    );
    let mut user = alice(&server).expect("a CHAP user has a separate limit");
    let again = Login::new().source(ELSEWHERE).isid([0x80, 0, 0, 8, 0, 2]);
    let status = Chap::login(&again, server.portal(), 5, "alice", SECRET).err();
    assert_eq!(status, Some(OUT_OF_RESOURCES), "the limit of the user");
    open.source(ELSEWHERE).isid([0x80, 0, 0, 8, 0, 3]).on(server.portal()).ping();
    claimed.ping();
    user.ping();
}

#[test]
fn sessions_of_one_address_leave_room_for_others() {
    let server = guarded("sessions = 8\n");
    let mut held = fill(&server, &Login::new().target(OPEN));
    assert_eq!(held.len(), 6);
    alice(&server).expect("a new address").ping();
    held.iter_mut().for_each(Raw::ping);
}

#[test]
fn silent_connections_of_one_address_leave_room_for_others() {
    let server = guarded("connections_before_login = 8\n");
    let silent: Vec<Raw> = (0..6).map(|_| Raw::connect_from(HERE, server.portal())).collect();
    Raw::connect_from(HERE, server.portal()).expect_close();
    alice(&server).expect("a new address").ping();
    drop(silent);
}

/// The login table is full. A new address replaces the oldest login of the address with the most logins.
#[test]
fn full_login_table_admits_a_new_address() {
    let server = guarded("connections_before_login = 8\n");
    let mut greedy: Vec<Raw> = (0..6).map(|_| Raw::connect_from(HERE, server.portal())).collect();
    let mut others = [3, 4].map(|n| Raw::connect_from(IpAddr::from([127, 0, 0, n]), server.portal()));
    let mut user = alice(&server).expect("a new address");
    greedy.remove(0).expect_close();
    user.ping();
    let reason = "gave the slot of this connection to another address";
    interop::routed::until("the log", || server.log().contains(reason).then_some(()));
    greedy.iter_mut().chain(&mut others).for_each(Raw::expect_silence);
}

#[test]
fn closed_connections_free_their_entries() {
    let server = guarded("connections_before_login = 3\n");
    for _ in 0..20 {
        drop([(); 3].map(|()| Raw::connect_from(ELSEWHERE, server.portal())));
        alice(&server).expect("closed connections hold no entry").ping();
    }
}

/// In /proc/net/tcp, timer 2 of a connection without data in flight is keepalive.
#[test]
fn discovery_session_uses_tcp_keepalive() {
    let server = guarded("");
    let raw = Raw::discovery(server.portal(), &[]);
    let port = |address: std::net::SocketAddr| format!(":{:04X}", address.port());
    let ends = (port(server.portal()), port(raw.stream.local_addr().expect("an address")));
    interop::routed::until("keepalive", || {
        let table = fs::read_to_string("/proc/net/tcp").expect("Linux has it");
        let is_asked = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words[1].ends_with(&ends.0) && words[2].ends_with(&ends.1) && words[5].starts_with("02:")
        };
        table.lines().skip(1).any(is_asked).then_some(())
    });
}

#[test]
fn idle_discovery_session_is_ended() {
    let mut server = guarded("discovery_timeout_s = 1\n");
    let mut raw = Raw::discovery(server.portal(), &[]);
    raw.text(&[("SendTargets", "All")]);
    raw.expect_close();
    assert!(server.lives());
}
