//! Portals that come and go while the server runs, and the relative identifiers of their target ports.

use interop::scsi::{inquiry, read_keys, reserve_out};
use interop::tool::ToolOutput;
use interop::{Login, Raw, Server, TARGET, lunar_bin, ports};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

const LUN: &str = "[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"8MiB\"\n";
const INQUIRY_CHANGED: u32 = 0x06_3f_03;
const EXISTS: i32 = 15;
const IN_USE: i32 = 28;

fn config(groups: &[(u16, &str)], keys: &str) -> String {
    let group =
        |(tag, portal): &(u16, &str)| format!("[[portal_group]]\ntag = {tag}\nportals = [\"{portal}\"]\n");
    let groups: String = groups.iter().map(group).collect();
    format!("[session]\nnop_interval_s = 0\n{groups}[[target]]\nname = \"{TARGET}\"\n{keys}{LUN}")
}

fn server() -> Server {
    Server::start(&config(&[(1, "127.0.0.1:0")], ""))
}

/// stderr of a command that fails with this status and a hint.
fn fails(server: &Server, words: &[&str], status: i32) -> String {
    let socket = server.dir().join("admin.sock");
    let ran = Command::new(lunar_bin()).args(words).arg("--socket").arg(socket).output().expect("lunar runs");
    let err = String::from_utf8(ran.stderr).expect("text");
    assert_eq!(ran.status.code(), Some(status), "{words:?}: {err}");
    assert!(err.contains("\n  hint: "), "{err}");
    err
}

fn free(host: &str) -> SocketAddr {
    format!("{host}:{}", ports::free()).parse().expect("an address")
}

fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

/// The addresses of the target that discovery at a portal reports.
fn discovered(portal: SocketAddr) -> Vec<String> {
    let ran: ToolOutput = interop::script::lunar(&["discover", &portal.to_string()]);
    assert!(ran.ok(), "{}", ran.said);
    ran.said.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

/// The relative identifiers of all ports of the target (VPD page 88h).
fn ports_of(raw: &mut Raw) -> Vec<u16> {
    let page = raw.read(0, &inquiry(Some(0x88), 4096), 4096).good();
    let mut rest = &page[4..];
    let mut ports = Vec::new();
    while let [_, _, high, low, ..] = rest {
        ports.push(u16::from_be_bytes([*high, *low]));
        let transport = 8 + usize::from(u16::from_be_bytes([rest[6], rest[7]]));
        rest = &rest
            [transport + 4 + usize::from(u16::from_be_bytes([rest[transport + 2], rest[transport + 3]]))..];
    }
    ports
}

/// The relative identifier of the port of the session (VPD page 83h), and those of REPORT TARGET PORT GROUPS.
fn own_port(raw: &mut Raw) -> (u16, Vec<u16>) {
    let page = raw.read(0, &inquiry(Some(0x83), 4096), 4096).good();
    let mut rest = &page[4..];
    let mut own = 0;
    while let [_, kind, _, len, ..] = rest {
        if kind & 0x3f == 0x14 {
            own = u16::from_be_bytes([rest[6], rest[7]]);
        }
        rest = &rest[4 + usize::from(*len)..];
    }
    let groups = raw.read(0, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0], 4096).good();
    let mut rest = &groups[4..];
    let mut all = Vec::new();
    while rest.len() >= 8 {
        let count = usize::from(rest[7]);
        all.extend(rest[8..8 + 4 * count].chunks(4).map(|port| u16::from_be_bytes([port[2], port[3]])));
        rest = &rest[8 + 4 * count..];
    }
    (own, all)
}

#[test]
fn added_portal_listens_and_removed_one_refuses() {
    let server = server();
    let (old, new) = (server.portal(), free("127.0.0.2"));
    let mut host = Login::new().on(old);
    host.clear_attentions(0);
    assert_eq!(ports_of(&mut host), [1]);
    let dry = server.said(&["portal", "add", "2", &new.to_string(), "--dry-run"]);
    assert!(dry.contains("portal group 2: added") && refuses(new), "{dry}");
    let said = server.said(&["portal", "add", "2", &new.to_string()]);
    assert!(said.contains("portal group 2: added") && said.ends_with("applied\n"), "{said}");
    assert_eq!(discovered(new), [format!("{old},1"), format!("{new},2")]);
    let mut second = Login::new().on(new);
    second.clear_attentions(0);
    host.simple(0, &[0; 6]).check(INQUIRY_CHANGED);
    assert_eq!([ports_of(&mut host), ports_of(&mut second)], [[1, 2], [1, 2]]);
    assert_eq!([own_port(&mut host), own_port(&mut second)], [(1, vec![1, 2]), (2, vec![1, 2])]);
    fails(&server, &["portal", "add", "2", "127.0.0.3:3260"], EXISTS);

    let refused = fails(&server, &["portal", "remove", "2"], IN_USE);
    let user = format!("portal {new} of portal group 2 is in use by iqn.2026-11.org.example:");
    assert!(refused.contains(&user) && refused.contains("--force"), "{refused}");
    second.ping();
    server.said(&["portal", "remove", "2", "--force"]);
    assert!(refuses(new), "the socket is closed at once");
    // The host is asked to log out (RFC 7143 section 11.9, event 1).
    assert_eq!(second.recv_op(0x32).bhs[36], 1);
    second.logout(0, 0);
    assert_eq!(discovered(old), [format!("{old},1")]);
    host.simple(0, &[0; 6]).check(INQUIRY_CHANGED);
    assert_eq!(ports_of(&mut host), [1]);
    // A free portal needs no force, and its port can be used again.
    server.said(&["portal", "add", "3", &new.to_string()]);
    server.said(&["portal", "remove", "3"]);
    assert!(refuses(new));
}

#[test]
fn portal_that_cannot_listen_changes_nothing() {
    let mut server = server();
    let (old, good) = (server.portal(), free("127.0.0.2"));
    let other = TcpListener::bind("127.0.0.3:0").expect("a port");
    let taken = other.local_addr().expect("an address");
    let err = fails(&server, &["portal", "add", "2", &good.to_string(), &taken.to_string()], IN_USE);
    assert!(err.contains(&format!("cannot listen on {taken}")), "{err}");
    assert!(refuses(good) && server.said(&["portal", "list"]).lines().count() == 2);
    let files = std::fs::read_dir(server.dir().join("lunar.d/api")).map(|files| files.flatten().count());
    assert_eq!(files.unwrap_or_default(), 0, "nothing is saved");
    // No portal is taken away for a change that fails, and no other part of it takes effect.
    let mut host = Login::new().on(old);
    let groups = [(1, good.to_string()), (2, taken.to_string())];
    let groups = groups.each_ref().map(|(tag, portal)| (*tag, portal.as_str()));
    server.rewrite(&config(&groups, "alias = \"later\"\n"));
    let err = fails(&server, &["reload"], IN_USE);
    assert!(err.contains(&format!("portal {old} of portal group 1 is in use")), "{err}");
    let err = fails(&server, &["reload", "--force"], IN_USE);
    assert!(err.contains(&format!("cannot listen on {taken}")), "{err}");
    assert!(refuses(good));
    host.ping();
    drop(other);
    server.said(&["reload", "--force"]);
    assert!(refuses(old));
    Login::new().on(good);
    Login::new().on(taken);
}

#[test]
fn wildcard_and_address_of_a_port_are_exchanged_under_a_session() {
    let mut server = server();
    let one = server.portal();
    let beside = SocketAddr::new([127, 0, 0, 9].into(), one.port());
    let mut host = Login::new().on(one);
    for (portal, others) in [("0.0.0.0", true), ("127.0.0.1", false), ("0.0.0.0", true)] {
        let portal = format!("{portal}:{}", one.port());
        server.rewrite(&config(&[(1, &portal)], ""));
        server.said(&["reload"]);
        assert_eq!(!refuses(beside), others, "{portal}");
        host.ping();
        assert_eq!(discovered(one), [format!("{one},1")]);
    }
    // The address of the session is not among the portals any more.
    server.rewrite(&config(&[(1, &beside.to_string())], ""));
    let err = fails(&server, &["reload"], IN_USE);
    assert!(err.contains(&format!("portal {one} of portal group 1 is in use by ")), "{err}");
    host.ping();
}

#[test]
fn transient_portal_and_trial_end_as_they_say() {
    let mut server = server();
    let (old, new) = (server.portal(), free("127.0.0.2"));
    server.said(&["portal", "add", "2", &new.to_string(), "--transient"]);
    server.said(&["reload"]);
    Login::new().on(new);
    server.restart();
    assert!(refuses(new), "it lived until the next start");
    let text = config(&[(1, &new.to_string())], "");
    server.rewrite(&text);
    let file = server.dir().join("lunar.toml").display().to_string();
    server.said(&["apply", &file, "--confirm-within", "600s"]);
    assert!(refuses(old));
    server.said(&["apply", "--rollback"]);
    assert!(refuses(new));
    Login::new().on(old);
}

#[test]
fn session_follows_a_change_of_its_portal_group() {
    let mut server = server();
    let portal = server.portal();
    let mut host = Login::new().on(portal);
    server.rewrite(&config(&[(5, &portal.to_string())], ""));
    let err = fails(&server, &["reload"], IN_USE);
    assert!(err.contains(&format!("portal {portal} of portal group 1 is in use by ")), "{err}");
    server.said(&["reload", "--force"]);
    assert_eq!(host.recv_op(0x32).bhs[36], 1);
    let mut again = Login::new().isid([0x40, 0, 1, 0x37, 0, 9]).on(portal);
    again.clear_attentions(0);
    assert_eq!(own_port(&mut again), (5, vec![5]));
}

#[test]
fn relative_ports_reach_hosts_and_reservations() {
    let (one, two) = (free("127.0.0.1"), free("127.0.0.1"));
    let (one_at, two_at) = (one.to_string(), two.to_string());
    let both = [(1, one_at.as_str()), (2, two_at.as_str())];
    let keys = "relative_ports = { 1 = 7, 2 = 1 }\n";
    let mut server = Server::start(&config(&both, keys));
    let mut host = Login::new().on(two);
    host.clear_attentions(0);
    assert_eq!((own_port(&mut host), ports_of(&mut host)), ((1, vec![7, 1]), vec![7, 1]));
    reserve_out(&mut host, 0, 0, 0, 0, 0xabc, 0).good();
    assert_eq!(read_keys(&mut host, 0), [0xabc]);
    let full = host.read(0, &[0x5e, 3, 0, 0, 0, 0, 0, 1, 0, 0], 256).good();
    assert_eq!(full[8 + 18..8 + 20], [0, 1], "the relative identifier of the registrant's port");
    // The port that stays keeps its number when another one goes.
    let none = "portal_groups = [2]\nrelative_ports = { 2 = 1 }\n";
    server.rewrite(&config(&both, none));
    server.said(&["reload"]);
    host.simple(0, &[0; 6]).check(INQUIRY_CHANGED);
    assert_eq!(own_port(&mut host), (1, vec![1]));
    // Another number is another port to hosts.
    server.rewrite(&config(&both, "relative_ports = { 1 = 7, 2 = 2 }\n"));
    fails(&server, &["reload"], IN_USE);
    server.said(&["reload", "--force"]);
    assert_eq!(host.recv_op(0x32).bhs[36], 1);
    let clash = config(&both, "relative_ports = { 1 = 2 }\n");
    server.rewrite(&clash);
    let err = fails(&server, &["reload"], 1);
    assert!(err.contains("the ports of portal groups 1 and 2 have the same relative identifier 2"), "{err}");
}
