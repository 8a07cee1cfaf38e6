//! `lunar doctor` over RDMA: no findings about a healthy LUN, and a hint for each fault.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

const TARGET: &str = "iqn.2026-11.org.example:disks";
const CLOSED: &str = "iqn.2026-11.org.example:closed";

/// A server with a portal for each protocol. Its process and folder are removed on drop.
struct Server {
    child: Child,
    folder: PathBuf,
    /// Portals of plain iSCSI, of iSCSI and iSER, and of SRP.
    plain: String,
    iser: String,
    srp: String,
    /// The SRP identifier of the target, and that of a target whose access list rejects this initiator.
    id: String,
    closed: String,
}

fn config(folder: &std::path::Path) -> String {
    let disk = "[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"8M\"\n";
    format!(
        "[server]\nstate_dir = {folder:?}\nadmin_socket = {:?}\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\", \
         {{ listen = \"127.0.0.1:0\", transport = [\"tcp\", \"iser\"] }}, \
         {{ listen = \"127.0.0.1:0\", transport = [\"srp\"] }}]\n[[target]]\nname = \"{TARGET}\"\n{disk}\
         [[target]]\nname = \"{CLOSED}\"\n{disk}[[target.access]]\ninitiators = [\"iqn.2026-11.org.example:other\"]\n",
        folder.join("admin.sock"),
    )
}

impl Server {
    fn start(name: &str) -> Server {
        let folder = std::env::temp_dir().join(format!("lunar-doctor-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("lunar.toml");
        std::fs::write(&file, config(&folder)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunar"));
        command.args(["serve", "--config"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let banner: Vec<String> = lines.take_while(|line| line != "ready").collect();
        let after = |sign: &str, n: usize| {
            let mut rests = banner.iter().filter_map(|line| Some(line.split_once(sign)?.1));
            let rest = rests.nth(n).unwrap_or_else(|| panic!("no {sign} in {banner:?}"));
            rest.split(',').next().unwrap().to_owned()
        };
        let [plain, iser, srp] = [0, 1, 2].map(|n| after("listening on ", n));
        let (id, closed) = (after("id_ext=", 0), after("id_ext=", 1));
        Server { child, folder, plain, iser, srp, id, closed }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Exit status, and stdout with stderr.
fn doctor(args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunar"));
    command.arg("doctor").args(args).env_remove("LUNAR_LOG").stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout) + &text(stderr))
}

/// The report must have a `broken` finding with these words and this hint.
fn is_broken(args: &[&str], status: i32, what: &str, hint: &str) {
    let (ended, said) = doctor(args);
    let rest = said.split_once("broken: ").unwrap_or_else(|| panic!("{args:?}: nothing is broken: {said}")).1;
    let (said, advice) = rest.split_once("\n  hint: ").expect("a hint");
    assert!(ended == status && said.contains(what), "{args:?}: {ended}: {said}");
    assert!(advice.lines().next().is_some_and(|line| line.contains(hint)), "{args:?}: {advice}");
}

/// A portal that handles the first connection with `does`.
fn portal(does: impl FnOnce(std::net::TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || does(listener.accept().unwrap().0));
    address
}

#[test]
fn healthy_lun_over_iser_has_no_faults_that_are_none() {
    let server = Server::start("iser");
    let (status, said) = doctor(&[&format!("iser://{}/{TARGET}/0", server.iser)]);
    assert!(status == 0 && said.contains("transport iser/iwarp"), "{said}");
    assert!(said.contains("RDMAExtensions=Yes  -> Yes") && !said.contains("warning: Max"), "{said}");
    assert!(!said.contains("InitialR2T=Yes:") && !said.contains("digests"), "{said}");
    let (_, said) = doctor(&[&format!("iser://{}", server.iser), "--json"]);
    assert!(
        said.contains("\"carrier\": \"iser/iwarp\"") && said.contains("\"transport\": \"iser\""),
        "{said}"
    );
}

#[test]
fn doctor_over_srp_lists_login_parameters() {
    let server = Server::start("srp");
    let (status, said) = doctor(&[&format!("srp://{}/{}/0", server.srp, server.id)]);
    assert!(status == 0 && said.contains("transport srp/iwarp"), "{said}");
    for part in
        ["initiator port=0x", "immediate data=yes  -> yes", "-> credits=", "\n  1 LUN: 0\n", "LUN 0: 8 MiB"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn closed_port_is_unreachable() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    is_broken(
        &[&format!("iser://{gone}/{TARGET}/0")],
        4,
        "connection refused",
        "the target runs at this address",
    );
    is_broken(&[&format!("srp://{gone}/5c0f2813d1be3e7a/0")], 4, "connection refused", "the port is open");
}

#[test]
fn portal_of_another_protocol_is_recognized() {
    let server = Server::start("others");
    let Server { plain, iser, srp, id, .. } = &server;
    let at_plain = [&format!("iser://{plain}/{TARGET}/0"), "--timeout", "1"];
    is_broken(&at_plain, 8, "waiting for an RDMA connection", "use iscsi://");
    // The request of SRP is longer than the first PDU that the portal reads, so the portal rejects it at once.
    is_broken(
        &[&format!("srp://{plain}/{id}/0")],
        4,
        "closed the connection during the MPA handshake",
        "if the portal serves iSCSI over TCP, use iscsi://",
    );
    let silent = portal(|mut stream| while matches!(stream.read(&mut [0; 64]), Ok(1..)) {});
    let at_silent = [&format!("srp://{silent}/{id}/0"), "--timeout", "1"];
    is_broken(&at_silent, 8, "to the SRP login", "check that the portal accepts SRP");
    is_broken(&[&format!("iser://{srp}/{TARGET}/0")], 4, "the portal seems to serve SRP", "srp://HOST");
    is_broken(&[&format!("srp://{iser}/{id}/0")], 4, "the portal seems to serve iSER", "use iser://");
    let user = "ann%0123456789abcdef@";
    for user in ["", user] {
        let url = format!("iscsi://{user}{srp}/{TARGET}/0");
        is_broken(&[&url], 4, "the target closed the connection", "use nvme://, iser:// or srp://");
    }
}

#[test]
fn missing_srp_target_port_is_reported() {
    let server = Server::start("names");
    let Server { srp, id, .. } = &server;
    for name in ["0123456789abcdef", &format!("{id}:0123456789abcdef"), &format!("0123456789abcdef:{id}")] {
        let settings = "initiator_ext=0000000000000001&initiator_guid=0000000000000002";
        let url = format!("srp://{srp}/{name}/0?{settings}");
        is_broken(
            &[&url],
            21,
            "no such target port",
            "admit the initiator port 0x00000000000000010000000000000002",
        );
        let (_, said) = doctor(&[&url]);
        assert!(said.contains("login, request 1") && !said.contains("no response"), "{said}");
    }
    is_broken(&[&format!("srp://{srp}")], 7, "cannot report the targets", "id_ext and ioc_guid");
}

#[test]
fn rejection_by_an_access_list_is_reported() {
    let server = Server::start("closed");
    let url = format!("srp://{}/{}/0", server.srp, server.closed);
    is_broken(&[&url], 21, "or not for this initiator", "the access list of the target");
    is_broken(&[&format!("iser://{}/{CLOSED}/0", server.iser)], 5, "02/02", "initiator name");
}

#[test]
fn closed_or_rejected_connection_is_reported() {
    let closes = portal(|mut stream| drop(stream.read(&mut [0; 64])));
    is_broken(
        &[&format!("iser://{closes}/{TARGET}/0")],
        4,
        "closed the connection during the MPA handshake",
        "if its connection limit is reached",
    );
    let web = portal(|mut stream| {
        _ = stream.read(&mut [0; 64]);
        _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    is_broken(
        &[&format!("iser://{web}/{TARGET}/0")],
        4,
        "sent an MPA frame with a wrong key",
        "check host and port",
    );
    // An MPA reply of revision 2 that rejects, without a word (RFC 5044 section 7.1.1).
    let rejects = || {
        portal(|mut stream| {
            _ = stream.read(&mut [0; 1024]);
            _ = stream.write_all(b"MPA ID Rep Frame\x20\x02\0\0");
        })
    };
    is_broken(
        &[&format!("iser://{}/{TARGET}/0", rejects())],
        4,
        "rejected the RDMA connection",
        "see its log",
    );
    is_broken(
        &[&format!("srp://{}/5c0f2813d1be3e7a/0", rejects())],
        4,
        "without a reason",
        "portal serves SRP",
    );
}

#[test]
fn verbs_without_a_device_is_broken() {
    let server = Server::start("verbs");
    for url in [format!("iser://{}/{TARGET}/0", server.iser), format!("srp://{}/{}/0", server.srp, server.id)]
    {
        let (status, said) = doctor(&[&format!("{url}?provider=verbs")]);
        assert_eq!(status, 4, "{said}");
        let broken = said.split_once("broken: ").expect("a broken finding").1;
        assert!(broken.contains("RDMA") && broken.contains("\n  hint: "), "{said}");
        assert!(
            !said.contains("path MTU") && !said.contains("  transport "),
            "no network path is reported: {said}"
        );
    }
}
