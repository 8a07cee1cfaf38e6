//! TLS 1.3 with pre-shared keys. The host's TLS is that of OpenSSL.

use super::portal;
use interop::nvme::{DNR, NvmeEntry, NvmeFrame, NvmeHostName, NvmeWire, RawController, connect_data};
use interop::raw::patience;
use interop::routed::until;
use interop::scsi::pattern;
use interop::tool::{Tool, have};
use interop::{Folder, Server};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;

const OPENSSL: [Tool; 1] = [Tool { program: "openssl", package: "openssl" }];
const HOST: &str = "h";
const SUBSYSTEM: &str = "nqn.2026-11.org.example:s";
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const NOT_ALLOWED: u16 = DNR | 0x184;
/// A key of the host. The PSKs below were derived from it with the HKDF of Python.
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
/// Identities of versions 0 and 1, and of discovery, each with its PSK.
const OLD: [&str; 2] = [
    "NVMe0R01 nqn.2026-11.org.example:h nqn.2026-11.org.example:s",
    "3958cecd950a563aefac976f148f13f37f59b171ab5c9d914af9dc97892a5922",
];
const NEW: [&str; 2] = [
    "NVMe1R01 nqn.2026-11.org.example:h nqn.2026-11.org.example:s U4dC6PKhFebJXE1vZDCjJLtZkkMefLTfpm8UgkLy1uw=",
    "2edada76115bb9720d5d803394b4f03eeaeb089adfd7d0ba9a0aa88f4f552c9b",
];
/// The PSK of libnvme before 1.16 for the identity of version 0.
const OF_OLDER_LIBNVME: [&str; 2] =
    [OLD[0], "a719a99d6830eb8b401dce0a45798500b4da4ffbe14f666549fdeb3611902de8"];
const OF_DISCOVERY: [&str; 2] = [
    "NVMe0R01 nqn.2026-11.org.example:h nqn.2014-08.org.nvmexpress.discovery",
    "3bb3990a5394937c85426f84e059f1d604ae61a232d88159508b288057b82a65",
];

/// A server with a portal with TLS, and one without.
struct Guarded {
    server: Server,
    folder: Folder,
}

fn guarded() -> Option<Guarded> {
    if !have(&OPENSSL) {
        return None;
    }
    let folder = Folder::fresh();
    write_key(&folder, KEY);
    Some(Guarded { server: Server::start(&config(&folder, true)), folder })
}

fn write_key(folder: &Folder, key: &str) {
    let path = folder.join("t.key");
    std::fs::write(&path, format!("{key}\n")).expect("a key");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
}

/// The configuration, with the host or with another one.
fn config(folder: &Folder, has_host: bool) -> String {
    let name = if has_host { HOST } else { "x" };
    format!(
        r#"
[limits]
login_timeout_s = 3
[[portal_group]]
tag = 1
portals = [
    {{ listen = "127.0.0.1:0", transport = ["nvme-tcp"], tls = "required" }},
    {{ listen = "127.0.0.1:0", transport = ["nvme-tcp"] }},
]
[[subsystem]]
nqn = "{SUBSYSTEM}"
[[subsystem.host]]
nqn = "nqn.2026-11.org.example:{name}"
tls_key_file = "{}"
[[subsystem.namespace]]
nsid = 1
backend = "memory"
size = "64MiB"
"#,
        folder.join("t.key").display()
    )
}

impl Guarded {
    /// An address where hosts connect without TLS, and OpenSSL goes on with this PSK and these options.
    fn tunnel(&self, [identity, psk]: [&str; 2], options: &[&str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut arguments =
            ["s_client", "-quiet", "-no_ign_eof", "-nocommands", "-connect"].map(str::to_owned).to_vec();
        arguments.push(portal(&self.server).to_string());
        if !psk.is_empty() {
            arguments.extend(["-psk_identity", identity, "-psk", psk].map(str::to_owned));
        }
        arguments.extend(options.iter().map(|option| option.to_string()));
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let other = socket.try_clone().expect("a file descriptor");
                let mut openssl = Command::new("openssl");
                openssl.args(&arguments).stdin(OwnedFd::from(socket)).stdout(OwnedFd::from(other));
                let mut openssl = openssl.stderr(Stdio::null()).spawn().expect("openssl");
                // The command has copies of the socket.
                thread::spawn(move || openssl.wait());
            }
        });
        address
    }

    fn host(&self) -> RawController {
        RawController::enabled(self.tunnel(OLD, &["-tls1_3"]), &NvmeHostName::new(HOST), SUBSYSTEM, 0)
    }

    fn wait_for_log(&self, expected: &str) {
        until(expected, || self.server.log().contains(expected).then_some(()));
    }

    /// The sessions, as the server shows them.
    fn sessions(&self) -> String {
        self.server.said(&["session", "list", "--json"])
    }
}

/// Waits for the end of a connection, which may be a reset.
fn expect_end(mut socket: TcpStream) {
    socket.set_read_timeout(Some(patience())).expect("a time limit");
    loop {
        match socket.read(&mut [0; 4096]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) => return assert_eq!(e.kind(), ErrorKind::ConnectionReset),
        }
    }
}

/// Reads one block.
fn works(controller: &RawController) {
    let mut queue = controller.queue(1);
    assert_eq!(queue.execute(&NvmeEntry::read(1, 0, 1), &[]).good().len(), 512);
}

#[test]
fn host_with_its_key_moves_data_over_tls() {
    let Some(guarded) = guarded() else { return };
    for psk in [OLD, NEW, OF_OLDER_LIBNVME] {
        let at = guarded.tunnel(psk, &["-tls1_3"]);
        let controller = RawController::enabled(at, &NvmeHostName::new(HOST), SUBSYSTEM, 3);
        let mut queue = controller.queue(1);
        let data = pattern(16 << 20, psk[0].len() as u8);
        for (at, part) in data.chunks(1 << 20).enumerate() {
            queue.execute(&NvmeEntry::write(1, at as u64 * 2048, 2048), part).good();
        }
        for (at, part) in data.chunks(1 << 20).enumerate() {
            let read = queue.execute(&NvmeEntry::read(1, at as u64 * 2048, 2048), &[]).good();
            assert!(read == part, "MiB {at} differs");
        }
        let shown = guarded.sessions();
        assert!(shown.contains(psk[0]) && shown.contains("\"TLS_AES_128_GCM_SHA256\""), "{shown}");
        drop((queue, controller));
        until("the end", || (!guarded.sessions().contains(psk[0])).then_some(()));
    }
}

#[test]
fn handshake_without_the_right_key_is_refused() {
    let Some(guarded) = guarded() else { return };
    let wrong = OLD[1].replace("39", "38");
    let unknown = OLD[0].replace(":h", ":y");
    for (psk, option, expected) in [
        ([OLD[0], &wrong], "-tls1_3", "the key of the host is not that of its identity"),
        ([&unknown, OLD[1]], "-tls1_3", "example:y nqn.2026-11.org.example:s\\\" is unknown here"),
        (["", ""], "-tls1_3", "the host offers no PSK"),
        (["", ""], "-tls1_2", "no handshake of TLS: "),
    ] {
        let mut wire = NvmeWire::open(guarded.tunnel(psk, &[option]));
        wire.send(&NvmeFrame::ic_request(0));
        wire.expect_close(patience());
        guarded.wait_for_log(expected);
    }
    works(&guarded.host());
}

#[test]
fn host_without_tls_at_its_portal_is_named() {
    let Some(guarded) = guarded() else { return };
    let [tls, plain] = guarded.server.portals() else { panic!("two portals") };
    let ic_request = NvmeFrame::ic_request(0).encode(false, false);
    let hello = [&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[7; 506]].concat();
    for (address, first, expected) in [
        (tls, &ic_request[..], "the host uses no TLS, and this portal demands it"),
        (tls, &[0x43; 48], "the initiator speaks iSCSI"),
        (tls, b"GET / HTTP/1.0\r\n\r\n", "the host does not begin with TLS"),
        (tls, &hello, "no handshake of TLS: "),
        (plain, &hello, "the host begins with TLS, and this portal has none"),
    ] {
        let mut socket = TcpStream::connect(address).expect("connect");
        socket.write_all(first).expect("it is open");
        guarded.wait_for_log(expected);
        expect_end(socket);
    }
    works(&guarded.host());
}

#[test]
fn stalled_handshakes_end_and_disturb_no_neighbour() {
    let Some(guarded) = guarded() else { return };
    let stalled: Vec<TcpStream> = (0..12)
        .map(|n| {
            let mut socket = TcpStream::connect(portal(&guarded.server)).expect("connect");
            socket.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252][..n % 9]).expect("it is open");
            socket
        })
        .collect();
    works(&guarded.host());
    // After the time of a login.
    stalled.into_iter().for_each(expect_end);
    works(&guarded.host());
}

#[test]
fn names_of_connect_are_those_of_the_identity() {
    let Some(guarded) = guarded() else { return };
    let host = NvmeHostName::new(HOST);
    let tls = guarded.tunnel(OLD, &["-tls1_3"]);
    RawController::try_connect(tls, &NvmeHostName::new("other"), SUBSYSTEM).is(NOT_ALLOWED);
    RawController::try_connect(tls, &host, DISCOVERY).is(NOT_ALLOWED);
    guarded.wait_for_log("the names are not those of the identity of TLS");
    let plain = guarded.server.portals()[1];
    RawController::try_connect(plain, &host, SUBSYSTEM).is(NOT_ALLOWED);
    guarded.wait_for_log("the host has a key of TLS, and this portal has none");
    // An I/O queue without TLS of a controller with TLS.
    let controller = guarded.host();
    let mut wire = NvmeWire::begin(plain, 0);
    let data = connect_data(&host, controller.id, SUBSYSTEM);
    wire.execute(&NvmeEntry::connect(1, 31, 0), &data).is(NOT_ALLOWED);
}

/// The port, the demand for TLS (TREQ) and the security (SECTYPE) of each subsystem that discovery shows.
fn discovered(at: SocketAddr, host: &str) -> Vec<(String, u8, u8)> {
    let mut controller = RawController::connect(at, &NvmeHostName::new(host), DISCOVERY, 0);
    controller.enable();
    let page = controller.admin.execute(&NvmeEntry::log(0x70, 4096), &[]).good();
    let entries = page[1024..].chunks_exact(1024).filter(|entry| entry[2] == 2);
    let port =
        |entry: &[u8]| String::from_utf8_lossy(&entry[32..64]).trim_end_matches([' ', '\0']).to_owned();
    entries.map(|entry| (port(entry), entry[3] & 3, entry[768])).collect()
}

#[test]
fn discovery_shows_the_portals_that_suit_the_host() {
    let Some(guarded) = guarded() else { return };
    let [secure, plain] = [0, 1].map(|at| guarded.server.portals()[at]);
    let expected = [(secure.port().to_string(), 1, 2)];
    assert_eq!(discovered(guarded.tunnel(OF_DISCOVERY, &["-tls1_3"]), HOST), expected);
    assert_eq!(discovered(plain, HOST), expected);
    // For a subsystem without keys, it is the other portal.
    let open = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:open\"\n";
    let server = Server::start(&format!("{}{open}", config(&guarded.folder, true)));
    let plain = server.portals()[1];
    assert_eq!(discovered(plain, "other"), [(plain.port().to_string(), 0, 0)]);
}

#[test]
fn host_that_leaves_in_the_middle_of_a_write_is_forgotten() {
    let Some(guarded) = guarded() else { return };
    let controller = guarded.host();
    let mut queue = controller.queue(1);
    let id = queue.submit(&NvmeEntry::write(1, 0, 2048), &[]);
    let request = queue.recv_for(id);
    let data = vec![0x5a; 1 << 20];
    let frame = NvmeFrame::host_data(4, request.get16(8), request.get16(10), 0, &data);
    queue.send_bytes(&queue.encode(&frame)[..300_000]);
    drop((queue, controller));
    until("the end", || (!guarded.sessions().contains("NVMe0R01")).then_some(()));
    let controller = guarded.host();
    let mut queue = controller.queue(1);
    assert_eq!(queue.execute(&NvmeEntry::read(1, 0, 1), &[]).good(), [0; 512]);
}

#[test]
fn end_of_the_server_ends_hosts_with_tls() {
    let Some(mut guarded) = guarded() else { return };
    let mut controller = guarded.host();
    let mut queue = controller.queue(1);
    assert!(guarded.server.stop().success());
    queue.expect_close(patience());
    controller.admin.expect_close(patience());
}

/// A reload that demands TLS comes between the start of a connection without TLS and its Connect.
#[test]
fn connection_from_before_the_demand_is_refused() {
    let folder = Folder::fresh();
    write_key(&folder, KEY);
    let with_tls = config(&folder, true);
    let mut server = Server::start(&with_tls.replace(", tls = \"required\"", ""));
    let mut wire = NvmeWire::begin(portal(&server), 0);
    server.rewrite(&with_tls);
    server.said(&["reload"]);
    let data = connect_data(&NvmeHostName::new("other"), 0xffff, DISCOVERY);
    wire.execute(&NvmeEntry::connect(0, 31, 0), &data).is(DNR | 0x182);
}

#[test]
fn host_whose_key_was_removed_is_ended() {
    let Some(mut guarded) = guarded() else { return };
    let mut controller = guarded.host();
    let without = config(&guarded.folder, false);
    guarded.server.rewrite(&without);
    guarded.server.said(&["reload"]);
    controller.admin.expect_close(patience());
    let mut wire = NvmeWire::open(guarded.tunnel(OLD, &["-tls1_3"]));
    wire.send(&NvmeFrame::ic_request(0));
    wire.expect_close(patience());
    guarded.wait_for_log("example:s\\\" is unknown here");
}
