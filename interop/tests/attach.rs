//! `lunar attach`, `lunar attach list` and `lunar detach` from the command line, with clients of other projects.
#![forbid(unsafe_code)]

use interop::routed::until;
use interop::server::Folder;
use interop::tool::{self, Tool, ToolOutput};
use interop::{Raw, Server, TARGET, json, lunar_bin};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const TOOLS: [Tool; 3] = [
    Tool { program: "nbdinfo", package: "libnbd-bin" },
    Tool { program: "nbdcopy", package: "libnbd-bin" },
    Tool { program: "qemu-io", package: "qemu-utils" },
];

/// A host with temporary folders. Dropping it removes them, and detaches everything.
struct Host(Folder);

impl Host {
    fn new() -> Host {
        Host(Folder::fresh())
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&*self.0).env("LUNAR_RUN_DIR", self.0.join("run"));
        command.env("XDG_CONFIG_HOME", self.0.join("config")).env("XDG_STATE_HOME", self.0.join("state"));
        command
    }

    fn lunar(&self, arguments: &[&str]) -> ToolOutput {
        tool::run(self.command(lunar_bin()).args(arguments), LIMIT)
    }

    /// Runs lunar, which must exit with this status. Returns its output.
    fn ends(&self, status: i32, arguments: &[&str]) -> String {
        let ran = self.lunar(arguments);
        let ended = ran.status.and_then(|status| status.code());
        assert_eq!(ended, Some(status), "lunar {}: {}", arguments.join(" "), ran.said);
        ran.said
    }

    /// Attaches a disk; returns the first line of stdout.
    fn attach(&self, arguments: &[&str]) -> String {
        let said = self.ends(0, &[&["attach"], arguments].concat());
        said.lines().next().unwrap_or_default().to_owned()
    }

    /// As [`Host::attach`], with this initiator name.
    fn attach_as(&self, initiator: &str, arguments: &[&str]) -> String {
        let mut command = self.command(lunar_bin());
        let ran = tool::run(command.arg("attach").args(arguments).env("LUNAR_INITIATOR", initiator), LIMIT);
        assert!(ran.status.is_some_and(|status| status.success()), "{}", ran.said);
        ran.said.lines().next().unwrap_or_default().to_owned()
    }

    /// The first value of a key in the output of `attach list NAME --json`.
    fn attached_value(&self, name: &str, key: &str) -> String {
        let said = self.ends(0, &["attach", "list", name, "--json"]);
        let line = said.lines().find_map(|line| line.trim().strip_prefix(&format!("\"{key}\": ")));
        let value = line.unwrap_or_else(|| panic!("no {key} in {said}"));
        value.trim_end_matches(',').trim_matches('"').to_owned()
    }

    /// Whether the attachment as a whole has this state, which follows the record in the JSON.
    fn is(&self, name: &str, state: &str) -> bool {
        self.ends(0, &["attach", "list", name, "--json"]).contains(&format!("\n  \"state\": \"{state}\""))
    }

    fn becomes(&self, name: &str, state: &str) {
        let end = Instant::now() + LIMIT;
        while !self.is(name, state) {
            assert!(Instant::now() < end, "never {state}: {}", self.ends(0, &["attach", "list", name]));
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn pid(&self, name: &str) -> u32 {
        self.attached_value(name, "pid").parse().expect("a number")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let listed = self.lunar(&["attach", "list"]).said;
        for name in listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()) {
            let _ = self.lunar(&["detach", name, "--force", "--timeout", "5"]);
            if thread::panicking() {
                let log = fs::read_to_string(self.path("run/attached").join(format!("{name}.log")));
                eprintln!("--- the log of {name} ---\n{}", log.unwrap_or_default());
            }
        }
    }
}

/// A server with a file of 64 MiB as LUN 0.
fn server() -> Server {
    with_portals("\"127.0.0.1:0\"")
}

fn with_portals(portals: &str) -> Server {
    Server::start(&configuration(portals))
}

fn configuration(portals: &str) -> String {
    format!(
        "[[portal_group]]\ntag = 1\nportals = [{portals}]\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"64MiB\"\n"
    )
}

fn url_at(portal: SocketAddr) -> String {
    format!("iscsi://{portal}/{TARGET}/0")
}

fn url(server: &Server) -> String {
    url_at(server.portal())
}

/// Writes pseudo-random bytes to a file, and returns its path.
fn pattern(host: &Host, mebibytes: usize) -> PathBuf {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(mebibytes << 20);
    while bytes.len() < mebibytes << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    let path = host.path("pattern");
    fs::write(&path, bytes).expect("write the pattern");
    path
}

/// Checks that nbdcopy reads this file from the URI.
fn must_read(host: &Host, uri: &str, wanted: &Path) {
    let copy = host.path("copy");
    let _ = fs::remove_file(&copy);
    tool::must("nbdcopy", &[uri, copy.to_str().expect("UTF-8")]);
    assert!(
        fs::read(&copy).expect("read") == fs::read(wanted).expect("read"),
        "nbdcopy read other bytes than were written"
    );
}

/// Writes a file to the URI in the background, with a flush at the end.
fn write(uri: &str, file: &Path) -> Child {
    let mut command = Command::new("nbdcopy");
    command.args(["--flush", "--connections=1", "--requests=4", "--request-size=65536"]);
    command.arg(file).arg(uri).stdin(Stdio::null()).spawn().expect("start nbdcopy")
}

fn must_end_well(mut child: Child) {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return assert!(status.success(), "{status}");
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the child does not end");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn nbd_clients_have_the_disk() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (server, host) = (server(), Host::new());
    let uri = host.attach(&[&url(&server)]);
    assert!(uri.starts_with("nbd+unix:///?socket="), "{uri}");
    assert!(tool::must("nbdinfo", &[&uri]).contains("export-size: 67108864"));
    let file = pattern(&host, 64);
    must_end_well(write(&uri, &file));
    must_read(&host, &uri, &file);
    assert!(fs::read(server.dir().join("disk.img")).expect("the disk") == fs::read(&file).expect("read"));
    for words in ["write -P 5 1M 512k", "read -P 5 1M 512k", "discard 1M 64k", "read -P 0 1M 64k", "flush"] {
        tool::must("qemu-io", &["-f", "raw", "-c", words, &uri]);
    }
    assert!(host.is("disks-0", "attached"));
    host.ends(0, &["detach", &uri]);
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
    assert!(
        !host.path("run/attached/disks-0.nbd").exists() && !host.path("run/attached/disks-0.json").exists()
    );
    host.ends(21, &["detach", "disks-0"]);
    host.ends(21, &["attach", "list", "disks-0"]);
}

#[test]
fn second_attach_of_a_disk_is_rejected() {
    let (server, host) = (server(), Host::new());
    let uri = host.attach(&[&url(&server), "--nbd", "127.0.0.1:0", "--read-only"]);
    assert!(uri.starts_with("nbd://127.0.0.1:") && !uri.contains(":0/"), "{uri}");
    assert!(host.ends(15, &["attach", &url(&server)]).contains("disks-0 as nbd://"));
    let said = host.ends(15, &["attach", &format!("{}?commands=3", url(&server)), "--name", "other"]);
    assert!(said.contains("disks-0 as nbd://"), "{said}");
    host.ends(15, &["attach", "iscsi://127.0.0.1:1/iqn.2026-11.org.example:x/0", "--name", "disks-0"]);
    if tool::have(&TOOLS) {
        assert!(tool::must("nbdinfo", &[&uri]).contains("is_read_only: true"));
    }
    host.ends(0, &["detach", &url(&server)]);
}

#[test]
fn detach_rejects_a_disk_in_use() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (server, host) = (server(), Host::new());
    let uri = host.attach(&[&url(&server)]);
    let words = ["-f", "raw", "-c", "read 0 4k", "-c", "sleep 60000", &uri];
    let mut client =
        Command::new("qemu-io").args(words).stdout(Stdio::null()).spawn().expect("start qemu-io");
    let end = Instant::now() + LIMIT;
    while !host.ends(0, &["attach", "list", "disks-0"]).contains("1 NBD client") {
        assert!(Instant::now() < end, "the client is not listed");
        thread::sleep(Duration::from_millis(50));
    }
    assert!(host.ends(28, &["detach", "disks-0"]).contains("1 NBD client"));
    assert!(host.is("disks-0", "attached"));
    host.ends(0, &["detach", "disks-0", "--force"]);
    client.kill().expect("end qemu-io");
    client.wait().expect("a child");
}

/// The status and the body of a request to the API of a server.
fn request(server: &Server, method: &str, path: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    let text = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("a request is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

#[test]
fn api_shows_attachments_and_detaches_them() {
    if !tool::have(&TOOLS) {
        return;
    }
    let host = Host::new();
    let prelude = format!("export LUNAR_RUN_DIR={}", host.path("run").display());
    let server = Server::start_by_shell(&configuration("\"127.0.0.1:0\""), &prelude, "");
    assert_eq!(request(&server, "GET", "/v1/attachments"), (200, "{\"items\":[]}".into()));
    let uri = host.attach(&[&url(&server)]);
    let mut client = Client::to(&uri);
    client.write(0);
    assert_eq!(client.answer(), 0);
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let of_command = value(&host.ends(0, &["attach", "list", "--json"]));
    let (status, listed) = request(&server, "GET", "/v1/attachments");
    assert_eq!((status, &value(&listed)), (200, &of_command));
    let (status, one) = request(&server, "GET", "/v1/attachments/disks-0");
    assert_eq!((status, &value(&one)), (200, &of_command["items"][0]));
    let (status, problem) = request(&server, "DELETE", "/v1/attachments/disks-0");
    assert!(status == 409 && problem.contains("disks-0 is in use: 1 NBD client"), "{status} {problem}");
    assert!(host.is("disks-0", "attached"));
    let (status, problem) = request(&server, "PUT", "/v1/attachments/disks-0");
    assert!(status == 405 && problem.contains("run lunar attach on the host"), "{status} {problem}");
    let (status, done) = request(&server, "DELETE", "/v1/attachments/disks-0?force=true");
    assert_eq!((status, &*done), (200, "{\"result\":\"disks-0 is detached\"}"));
    assert_eq!(value(&host.ends(0, &["attach", "list", "--json"])), serde_json::json!({ "items": [] }));
    for method in ["GET", "DELETE"] {
        let (status, problem) = request(&server, method, "/v1/attachments/disks-0");
        assert!(status == 404 && problem.contains("lunar attach list"), "{method} {status} {problem}");
    }
    let log = server.log();
    assert!(log.contains("detach disks-0, also if it is in use: requested by"), "{log}");
}

#[test]
fn service_sees_attachments_of_root_and_leaves_them() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let (host, target) = (Host::new(), server());
    let run = host.path("run");
    fs::create_dir(&run).expect("a folder");
    fs::copy(lunar_bin(), host.path("lunar")).expect("a copy of lunar");
    let root = host.path("").display().to_string();
    let prelude = format!(
        "folder=$(dirname \"$1\"); chown -R 65534:65534 \"$folder\" {root}/run; chmod 755 {root}; \
         export LUNAR_RUN_DIR={root}/run\n\
         exec setpriv --reuid=65534 --regid=65534 --clear-groups {root}/lunar serve --config \"$1\""
    );
    let server = Server::start_by_shell(&configuration("\"127.0.0.1:0\""), &prelude, "");
    host.attach(&[&url(&target)]);
    let (status, one) = request(&server, "GET", "/v1/attachments/disks-0");
    assert!(status == 200 && one.contains("\"state\":\"attached\""), "{status} {one}");
    let (status, problem) = request(&server, "DELETE", "/v1/attachments/disks-0?force=true");
    assert!(status == 403 && problem.contains("run lunar detach on the host"), "{status} {problem}");
    assert!(host.is("disks-0", "attached"));
    host.ends(0, &["detach", "disks-0"]);
}

/// An NBD client that only sends writes (the NBD protocol, "Fixed newstyle" and "Transmission").
struct Client(UnixStream);

impl Client {
    fn to(uri: &str) -> Client {
        let path = uri.split("socket=").nth(1).expect("a socket");
        let mut stream = UnixStream::connect(path).expect("a server");
        stream.read_exact(&mut [0; 18]).expect("the greeting");
        // Fixed newstyle, no zeroes; IHAVEOPT, EXPORT_NAME with an empty name.
        let words = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &[0, 0, 0, 1], &[0; 4]].concat();
        stream.write_all(&words).expect("an option");
        stream.read_exact(&mut [0; 10]).expect("the export");
        Client(stream)
    }

    /// Sends a write of the n-th block of 4 KiB.
    fn write(&mut self, block: u64) {
        self.write_bytes(block, 7);
    }

    /// Sends a write of this byte to the n-th block of 4 KiB.
    fn write_bytes(&mut self, block: u64, byte: u8) {
        let header =
            [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1][..], &block.to_be_bytes(), &(block << 12).to_be_bytes()];
        let request = [&header.concat()[..], &4096_u32.to_be_bytes(), &[byte; 4096]].concat();
        self.0.write_all(&request).expect("a request");
    }

    /// The error of the next answer.
    fn answer(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).expect("an answer");
        u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"))
    }
}

#[test]
fn forced_detach_fails_and_counts_waiting_writes() {
    for paths in [1, 2] {
        let (server, host) = (server(), Host::new());
        let wires: Vec<_> = (0..paths).map(|_| CuttableProxy::to(server.portal())).collect();
        let urls: Vec<String> = wires.iter().map(|wire| url_at(wire.address)).collect();
        let more = urls[1..].iter().flat_map(|url| ["--path", url]);
        let words: Vec<&str> = [&*urls[0], "--recovery-timeout", "20m"].into_iter().chain(more).collect();
        let uri = host.attach(&words);
        let mut client = Client::to(&uri);
        client.write(0);
        assert_eq!(client.answer(), 0);
        assert!(host.ends(28, &["detach", "disks-0"]).contains("1 NBD client"), "the client lives");
        wires.iter().for_each(|wire| wire.cut());
        // Writes from here on reach no target.
        host.becomes("disks-0", "lost");
        (1..4).for_each(|block| client.write(block));
        let end = Instant::now() + LIMIT;
        while host.attached_value("disks-0", "waiting_writes") != "3" {
            assert!(Instant::now() < end, "the writes never came");
        }
        // The client is gone, so the answers reach no process.
        drop(client);
        let said = host.ends(8, &["detach", "disks-0", "--timeout", "1"]);
        assert!(said.contains("with 3 writes in flight"), "{said}");
        let said = host.ends(1, &["detach", "disks-0", "--force", "--timeout", "10m"]);
        assert!(said.contains("3 writes were not stored") && !said.contains("is killed"), "{said}");
        let log = fs::read_to_string(host.path("run/attached/disks-0.log")).expect("a log");
        assert!(log.contains("pending I/O fails"), "{log}");
        assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
    }
}

/// Writes block 0 over a proxy that holds the write back, and cuts the proxy: the attachment gets this state. The target may
/// receive the write at any time.
fn leave_a_write(host: &Host, wire: &CuttableProxy, uri: &str, byte: u8, state: &str) {
    let mut client = Client::to(uri);
    client.write_bytes(0, 7);
    assert_eq!(client.answer(), 0);
    wire.becomes_quiet();
    wire.hold();
    client.write_bytes(0, byte);
    let end = Instant::now() + LIMIT;
    while wire.held() < 4096 {
        assert!(Instant::now() < end, "the write was never sent");
        thread::sleep(Duration::from_millis(10));
    }
    wire.cut();
    host.becomes("disks-0", state);
    assert_eq!(host.attached_value("disks-0", "waiting_writes"), "1");
}

/// Checks that a newer write of block 0 remains after the target has received the old one.
fn newer_writes_stay(server: &Server, wire: &CuttableProxy, uri: &str) {
    let mut client = Client::to(uri);
    client.write_bytes(0, 9);
    assert_eq!(client.answer(), 0);
    let block = || fs::read(server.dir().join("disk.img")).expect("the disk")[..4096].to_vec();
    assert!(block() == [9; 4096], "the newer write was not stored");
    wire.deliver();
    let end = Instant::now() + LIMIT;
    while !wire.is_over() && block() == [9; 4096] {
        assert!(Instant::now() < end, "the target neither takes the old write nor ends its connection");
        thread::sleep(Duration::from_millis(10));
    }
    let (byte, is_over) = (block()[0], wire.is_over());
    assert!(
        block() == [9; 4096],
        "block 0 begins with {byte}: the old write landed on the newer one ({is_over})"
    );
}

#[test]
fn writes_left_by_force_do_not_overwrite_newer_ones() {
    let (server, host) = (server(), Host::new());
    let wire = CuttableProxy::to(server.portal());
    let url = url_at(wire.address);
    let uri = host.attach(&[&url, "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    let said = host.ends(1, &["detach", "disks-0", "--force", "--timeout", "10m"]);
    assert!(said.contains("1 write failed; the target may still execute 1 of them"), "{said}");
    assert!(!said.contains("not stored") && said.contains("lunar detach disks-0 --forget"), "{said}");
    assert!(host.is("disks-0", "unsettled"));
    // While the target is away, no command drops the unfinished writes by accident.
    for words in [&["detach", "disks-0"][..], &["detach", "disks-0", "--force"]] {
        let said = host.ends(4, words);
        assert!(said.contains("cannot detach disks-0: its target may still execute"), "{said}");
    }
    host.ends(4, &["attach", &format!("{url}?login_tries=1"), "--name", "other"]);
    assert!(host.is("disks-0", "unsettled"), "a failed attach changed the record");
    let said =
        host.ends(15, &["attach", "iscsi://127.0.0.1:1/iqn.2026-11.org.example:x/0", "--name", "disks-0"]);
    assert!(said.contains("disks-0 has unfinished writes at"), "{said}");
    wire.mend();
    let uri = host.attach(&[&url, "--name", "other"]);
    host.ends(21, &["attach", "list", "disks-0"]);
    newer_writes_stay(&server, &wire, &uri);
    host.ends(0, &["detach", "other"]);
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
}

#[test]
fn paths_under_different_names_are_refused() {
    let (server, host) = (server(), Host::new());
    let named = |name: &str| format!("{}?initiator=iqn.2026-11.org.example:{name}", url(&server));
    let said = host.ends(7, &["attach", &named("one"), "--path", &named("other")]);
    assert!(
        said.contains("initiator=iqn.2026-11.org.example:other, but that of the first path has"),
        "{said}"
    );
    host.attach(&[&named("one"), "--path", &named("one")]);
    host.ends(0, &["detach", "disks-0"]);
}

#[test]
fn detach_replaces_the_session_of_a_killed_process() {
    let (server, host) = (server(), Host::new());
    let wire = CuttableProxy::to(server.portal());
    let url = url_at(wire.address);
    let uri = host.attach(&[&url, "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    tool::must("kill", &["-9", &host.pid("disks-0").to_string()]);
    host.becomes("disks-0", "ended");
    host.ends(4, &["attach", &format!("{url}?login_tries=1")]);
    assert!(host.is("disks-0", "unsettled"), "a failed attach changed the record");
    wire.mend();
    host.ends(0, &["detach", "disks-0"]);
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
    let uri = host.attach(&[&url]);
    newer_writes_stay(&server, &wire, &uri);
    host.ends(0, &["detach", "disks-0"]);
}

const NQN: &str = "nqn.2026-11.org.example:disks";

/// A server with a file of 64 MiB as namespace 1.
fn nvme_server() -> Server {
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [{{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}]\n\
         [[subsystem]]\nnqn = \"{NQN}\"\n\
         [[subsystem.namespace]]\nnsid = 1\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"64MiB\"\n"
    ))
}

fn nvme_url(portal: SocketAddr) -> String {
    format!("nvme://{portal}/{NQN}/1")
}

#[test]
fn namespace_is_attached_like_a_lun() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (server, host) = (nvme_server(), Host::new());
    let url = nvme_url(server.portal());
    let uri = host.attach(&[&format!("{url}?data_digest=crc32c"), "--save"]);
    assert!(tool::must("nbdinfo", &[&uri]).contains("export-size: 67108864"));
    let file = pattern(&host, 64);
    must_end_well(write(&uri, &file));
    must_read(&host, &uri, &file);
    assert!(fs::read(server.dir().join("disk.img")).expect("the disk") == fs::read(&file).expect("read"));
    for words in ["write -P 5 1M 512k", "read -P 5 1M 512k", "discard 1M 64k", "read -P 0 1M 64k", "flush"] {
        tool::must("qemu-io", &["-f", "raw", "-c", words, &uri]);
    }
    assert!(host.is("disks-1", "attached"));
    assert!(host.attached_value("disks-1", "identity").starts_with("uuid."));
    assert!(host.ends(15, &["attach", &url, "--name", "other"]).contains("already attached"));
    for more in [&["--path", "iscsi://127.0.0.1"][..], &["--late-writes", "wait"], &["--policy", "failover"]]
    {
        host.ends(7, &[&["attach", url.as_str(), "--name", "other"], more].concat());
    }
    host.ends(0, &["detach", &url]);
    host.attach(&["disks-1"]);
    host.ends(0, &["detach", "disks-1"]);
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
}

/// ASYMMETRIC ACCESS STATE. To an NVMe host, standby is inaccessible.
const OPTIMIZED: u8 = 0;
const STANDBY: u8 = 2;

/// A namespace in two portal groups, each behind a proxy.
struct TwoGroups {
    server: Server,
    wires: [CuttableProxy; 2],
}

impl TwoGroups {
    fn start() -> TwoGroups {
        let group = |tag: u8| {
            format!(
                "[[portal_group]]\ntag = {tag}\n\
                 portals = [{{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}, \"127.0.0.1:0\"]\n"
            )
        };
        let disks = format!(
            "[[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\n\
             size = \"64MiB\"\n[[subsystem]]\nnqn = \"{NQN}\"\n[[subsystem.namespace]]\nnsid = 1\n\
             target = \"{TARGET}\"\nlun = 0\n"
        );
        let server = Server::start(&[group(1), group(2), disks].concat());
        let wires = [0, 2].map(|at| CuttableProxy::to(server.portals()[at]));
        TwoGroups { server, wires }
    }

    /// The URL of both paths.
    fn url(&self) -> String {
        let [first, second] = &self.wires;
        format!("{}?paths={}", nvme_url(first.address), second.address)
    }

    fn set_access(&self, states: [u8; 2]) {
        Raw::session(self.server.portals()[1], &[]).set_access(states);
    }

    /// Waits until `attach list` shows these states of the paths.
    fn become_shown(&self, host: &Host, states: [&str; 2]) {
        let rows = [0, 1].map(|at| format!("{}: {}, ", nvme_url(self.wires[at].address), states[at]));
        until(&format!("{states:?}"), || {
            let said = host.ends(0, &["attach", "list", "disks-1"]);
            rows.iter().all(|row| said.contains(row)).then_some(())
        });
    }

    fn block(&self, at: u64) -> Vec<u8> {
        let disk = fs::read(self.server.dir().join("disk.img")).expect("the disk");
        disk[at as usize * 4096..][..4096].to_vec()
    }
}

#[test]
fn namespace_on_two_paths_follows_access_and_loss() {
    let (paths, host) = (TwoGroups::start(), Host::new());
    paths.set_access([STANDBY, OPTIMIZED]);
    let uri = host.attach(&[&paths.url(), "--recovery-timeout", "20m"]);
    paths.become_shown(&host, ["standby", "optimized"]);
    assert!(host.is("disks-1", "attached"), "a path without access is connected");
    let mut client = Client::to(&uri);
    let mut next = 0;
    let mut stores = |paths: &TwoGroups| {
        next += 1;
        client.write_bytes(next, next as u8);
        assert_eq!(client.answer(), 0, "write {next}");
        assert_eq!(paths.block(next), [next as u8; 4096]);
    };
    stores(&paths);
    paths.set_access([OPTIMIZED, STANDBY]);
    paths.become_shown(&host, ["optimized", "standby"]);
    stores(&paths);
    paths.set_access([OPTIMIZED, OPTIMIZED]);
    for at in [0, 1] {
        paths.wires[at].cut();
        stores(&paths);
        host.becomes("disks-1", "degraded");
        paths.wires[at].mend();
        host.becomes("disks-1", "attached");
        paths.become_shown(&host, ["optimized"; 2]);
        stores(&paths);
    }
    // The other path is no use: the write waits for the lost one.
    paths.set_access([STANDBY, OPTIMIZED]);
    paths.become_shown(&host, ["standby", "optimized"]);
    paths.wires[1].cut();
    client.write_bytes(9, 9);
    paths.become_shown(&host, ["standby", "down"]);
    assert_eq!(host.attached_value("disks-1", "waiting_writes"), "1");
    paths.wires[1].mend();
    assert_eq!(client.answer(), 0, "it waited");
    assert_eq!(paths.block(9), [9; 4096]);
    drop(client);
    paths.wires[0].cut();
    host.becomes("disks-1", "degraded");
    let said = host.ends(0, &["detach", &nvme_url(paths.wires[1].address)]);
    let lost = format!("the connection to {} is lost, and the target may", nvme_url(paths.wires[0].address));
    assert!(said.contains(&lost) && said.contains("attach the namespace again in the same way"), "{said}");
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
    let log = fs::read_to_string(host.path("run/attached/disks-1.log")).expect("a log");
    let lost = format!("the path {} is lost: its target may still", nvme_url(paths.wires[0].address));
    assert!(log.contains(&lost), "{log}");
}

#[test]
fn namespace_attaches_on_the_path_that_works() {
    let (paths, host) = (TwoGroups::start(), Host::new());
    paths.wires[0].cut();
    host.attach(&[&paths.url(), "--policy", "failover", "--save"]);
    paths.become_shown(&host, ["missing", "optimized"]);
    assert!(host.is("disks-1", "degraded"));
    for url in paths.wires.iter().map(|wire| nvme_url(wire.address)) {
        assert!(host.ends(15, &["attach", &url, "--name", "other"]).contains("already attached"));
    }
    paths.wires[0].mend();
    host.becomes("disks-1", "attached");
    kill(&host, "disks-1", "ended");
    host.attach(&["disks-1"]);
    assert_eq!(host.attached_value("disks-1", "policy"), "failover");
    paths.become_shown(&host, ["optimized"; 2]);
    host.ends(0, &["detach", "disks-1"]);
    let twice = format!("{}?paths={}", nvme_url(paths.wires[0].address), paths.wires[0].address);
    let said = host.ends(7, &["attach", &twice, "--name", "twice"]);
    assert!(said.contains("have the same portal"), "{said}");
}

/// The write that was left on the lost path is over when the path is back: the new controller has ended the old one.
#[test]
fn late_write_of_a_lost_path_is_dropped_by_its_return() {
    let (paths, host) = (TwoGroups::start(), Host::new());
    paths.set_access([STANDBY, OPTIMIZED]);
    let url = paths.url() + "&keep_alive=0&io_queues=1";
    let uri = host.attach(&[&url, "--name", "disks-0", "--recovery-timeout", "20m"]);
    let wire = &paths.wires[1];
    leave_a_write(&host, wire, &uri, 8, "degraded");
    wire.mend();
    host.becomes("disks-0", "attached");
    newer_writes_stay(&paths.server, wire, &uri);
    host.ends(0, &["detach", "disks-0"]);
}

/// The target of Lunar ends the old controller before it admits the new one of the same host.
#[test]
fn late_writes_of_a_killed_nvme_host_are_dropped() {
    let (server, host) = (nvme_server(), Host::new());
    let wire = CuttableProxy::to(server.portal());
    // Without Keep Alive, only the new controller ends the old one. The proxy sees the last connection.
    let url = nvme_url(wire.address) + "?keep_alive=0&io_queues=1";
    let uri = host.attach(&[&url, "--name", "disks-0", "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    kill(&host, "disks-0", "ended");
    wire.mend();
    let uri = host.attach(&["disks-0"]);
    newer_writes_stay(&server, &wire, &uri);
    host.ends(0, &["detach", "disks-0"]);
}

#[test]
fn detach_of_a_killed_nvme_host_warns_of_late_writes() {
    let (server, host) = (nvme_server(), Host::new());
    let wire = CuttableProxy::to(server.portal());
    let url = nvme_url(wire.address) + "?keep_alive=0&io_queues=1";
    let uri = host.attach(&[&url, "--name", "disks-0", "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    kill(&host, "disks-0", "ended");
    let said = host.ends(0, &["detach", "disks-0"]);
    assert!(
        said.contains("its process was killed, and the target may still execute its last writes"),
        "{said}"
    );
    assert!(said.contains("attach the namespace again in the same way"), "{said}");
    wire.mend();
    host.attach(&[&url, "--name", "disks-0"]);
    assert!(!host.ends(0, &["detach", "disks-0"]).contains("may still"), "all connections are there");
}

#[test]
fn forced_detach_of_a_lost_namespace_names_its_writes() {
    let (server, host) = (nvme_server(), Host::new());
    let wire = CuttableProxy::to(server.portal());
    let url = nvme_url(wire.address) + "?keep_alive=0&io_queues=1";
    let uri = host.attach(&[&url, "--name", "disks-0", "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    let said = host.ends(1, &["detach", "disks-0", "--force"]);
    assert!(said.contains("1 write failed; the target may still execute them"), "{said}");
    wire.mend();
    host.attach(&[&url, "--name", "disks-0"]);
    host.ends(0, &["detach", "disks-0"]);
}

/// The initiator name is part of a nexus: the same ISID under another name does not replace the old session.
#[test]
fn writes_of_an_old_name_do_not_overwrite_newer_ones() {
    for is_killed in [false, true] {
        let (server, host) = (server(), Host::new());
        let wire = CuttableProxy::to(server.portal());
        let url = url_at(wire.address);
        let [old, new] = ["old", "new"].map(|name| format!("iqn.2026-11.org.example:{name}"));
        let uri = host.attach_as(&old, &[&url, "--recovery-timeout", "20m"]);
        leave_a_write(&host, &wire, &uri, 8, "lost");
        if is_killed {
            tool::must("kill", &["-9", &host.pid("disks-0").to_string()]);
            host.becomes("disks-0", "ended");
        } else {
            host.ends(1, &["detach", "disks-0", "--force", "--timeout", "10m"]);
        }
        wire.mend();
        let uri = host.attach_as(&new, &[&url]);
        newer_writes_stay(&server, &wire, &uri);
        let log = fs::read_to_string(host.path("run/attached/disks-0.log")).expect("a log");
        assert!(
            !log.contains("the initiator resets the logical unit"),
            "a login under the old name ends the old session without a reset: {log}"
        );
    }
}

/// A server with its disk behind two portal groups, and their portals.
fn with_two_groups() -> (Server, [SocketAddr; 2]) {
    let second = "[[portal_group]]\ntag = 2\nportals = [\"127.0.0.1:0\"]\n";
    let server = Server::start(&format!("{second}{}", configuration("\"127.0.0.1:0\"")));
    let &[there, here] = server.portals() else { panic!("two portals") };
    (server, [there, here])
}

/// Kills the process, and waits until the attachment has this state.
fn kill(host: &Host, name: &str, state: &str) {
    tool::must("kill", &["-9", &host.pid(name).to_string()]);
    host.becomes(name, state);
}

/// Attaches again. Only a reset ends the old writes, and it must not replace the new session.
fn a_reset_ends_what_was_left(host: &Host, server: &Server, wire: &CuttableProxy, url: &str) {
    let uri = host.attach(&[url]);
    newer_writes_stay(server, wire, &uri);
    let log = fs::read_to_string(host.path("run/attached/disks-0.log")).expect("a log");
    assert!(log.contains("the initiator resets the logical unit"), "{log}");
    let output = host.ends(0, &["attach", "list", "disks-0"]);
    assert!(output.contains("reopened 0 times"), "its own session was replaced: {output}");
}

/// One URL may lead to several target ports, if a name has several addresses.
#[test]
fn login_at_another_target_port_proves_nothing() {
    let (host, (server, [there, here])) = (Host::new(), with_two_groups());
    let wire = CuttableProxy::to(here);
    let url = url_at(wire.address);
    let uri = host.attach(&[&url, "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    kill(&host, "disks-0", "ended");
    wire.lead_to(there);
    wire.mend();
    a_reset_ends_what_was_left(&host, &server, &wire, &url);
}

#[test]
fn record_has_the_port_of_a_path_that_opened_later() {
    let (host, (server, [there, here])) = (Host::new(), with_two_groups());
    let [first, later] = [here, there].map(CuttableProxy::to);
    later.cut();
    let url = url_at(later.address);
    let uri = host.attach(&[&url_at(first.address), "--path", &url, "--recovery-timeout", "20m"]);
    later.mend();
    host.becomes("disks-0", "attached");
    first.cut();
    host.becomes("disks-0", "degraded");
    leave_a_write(&host, &later, &uri, 8, "lost");
    kill(&host, "disks-0", "ended");
    later.lead_to(here);
    later.mend();
    a_reset_ends_what_was_left(&host, &server, &later, &url);
}

#[test]
fn record_has_the_port_of_a_session_that_moved() {
    let (host, (server, [there, here])) = (Host::new(), with_two_groups());
    let wire = CuttableProxy::to(here);
    let url = url_at(wire.address);
    let uri = host.attach(&[&url, "--recovery-timeout", "20m"]);
    wire.cut();
    host.becomes("disks-0", "lost");
    wire.lead_to(there);
    wire.mend();
    host.becomes("disks-0", "attached");
    leave_a_write(&host, &wire, &uri, 8, "lost");
    kill(&host, "disks-0", "ended");
    wire.lead_to(here);
    wire.mend();
    a_reset_ends_what_was_left(&host, &server, &wire, &url);
}

#[test]
fn record_keeps_the_port_of_orphans() {
    let (host, (server, [there, here])) = (Host::new(), with_two_groups());
    let wire = CuttableProxy::to(here);
    let url = url_at(wire.address);
    let patient = format!("{url}?fast_io_fail_timeout=10m");
    let uri = host.attach(&[&patient, "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    wire.lead_to(there);
    wire.mend();
    host.becomes("disks-0", "attached");
    kill(&host, "disks-0", "unsettled");
    a_reset_ends_what_was_left(&host, &server, &wire, &url);
}

/// A target may have one nexus for each CHAP user of one name and ISID.
#[test]
fn login_of_another_user_proves_nothing() {
    let host = Host::new();
    let user = |name: &str| {
        fs::write(host.path(&format!("{name}.secret")), format!("secret of {name}")).expect("a file");
        let file = host.path(&format!("{name}.secret")).display().to_string();
        tool::must("chmod", &["600", &file]);
        format!("[[chap_user]]\nname = \"{name}\"\nsecret_file = \"{file}\"\n")
    };
    let access = "[[target.access]]\nchap = [\"alice\", \"bob\"]\n";
    let server =
        Server::start(&[&configuration("\"127.0.0.1:0\""), access, &user("alice"), &user("bob")].concat());
    let wire = CuttableProxy::to(server.portal());
    let url = |name: &str| {
        let file = host.path(&format!("{name}.secret"));
        url_at(wire.address).replace("//", &format!("//{name}@"))
            + &format!("?password_file={}", file.display())
    };
    let uri = host.attach(&[&url("alice"), "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    kill(&host, "disks-0", "ended");
    wire.mend();
    a_reset_ends_what_was_left(&host, &server, &wire, &url("bob"));
}

#[test]
fn reset_ends_writes_left_on_a_lost_path() {
    let (server, host) = (server(), Host::new());
    let wire = CuttableProxy::to(server.portal());
    let uri = host.attach(&[&url_at(wire.address), "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    // SIGTERM, as systemd sends it. The file is that of `detach --force`, so the process does not wait for the
    // target.
    let pid = host.pid("disks-0");
    fs::write(host.path("run/attached/disks-0.force"), "").expect("a file");
    tool::must("kill", &["-TERM", &pid.to_string()]);
    host.becomes("disks-0", "unsettled");
    // The same disk at another address: only the identity shows that it is the same.
    let uri = host.attach(&[&url(&server), "--name", "other"]);
    host.ends(21, &["attach", "list", "disks-0"]);
    let log = fs::read_to_string(host.path("run/attached/other.log")).expect("a log");
    assert!(log.contains("the initiator resets the logical unit"), "{log}");
    newer_writes_stay(&server, &wire, &uri);
}

#[test]
fn forget_drops_writes_left_behind() {
    let (server, host) = (server(), Host::new());
    let wire = CuttableProxy::to(server.portal());
    let uri = host.attach(&[&url_at(wire.address), "--recovery-timeout", "20m"]);
    leave_a_write(&host, &wire, &uri, 8, "lost");
    host.ends(1, &["detach", "disks-0", "--force", "--timeout", "10m"]);
    host.ends(1, &["detach", "disks-0", "--forget"]);
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
}

#[test]
fn writes_that_waited_are_logged_with_their_counts() {
    let (server, host) = (server(), Host::new());
    let wire = CuttableProxy::to(server.portal());
    let uri = host.attach(&[&format!("{}?login_timeout=500ms", url_at(wire.address))]);
    let mut client = Client::to(&uri);
    server.pause();
    (0..2).for_each(|block| client.write(block));
    let end = Instant::now() + LIMIT;
    while host.attached_value("disks-0", "waiting_writes") != "2" {
        assert!(Instant::now() < end, "the writes never came");
    }
    wire.cut();
    let logs = |words: &str| {
        while !fs::read_to_string(host.path("run/attached/disks-0.log")).expect("a log").contains(words) {
            assert!(Instant::now() < end, "{words} is not in the log");
            thread::sleep(Duration::from_millis(50));
        }
    };
    logs("writes wait until the target can no longer execute");
    server.resume();
    wire.mend();
    logs("the writes that waited for the end of a lost session have ended");
    logs("failed=0");
    assert_eq!((client.answer(), client.answer()), (0, 0));
}

#[test]
fn target_that_is_killed_under_io_loses_nothing() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (mut server, host) = (server(), Host::new());
    let uri = host.attach(&[&url(&server)]);
    let file = pattern(&host, 64);
    for _ in 0..3 {
        let writer = write(&uri, &file);
        thread::sleep(Duration::from_millis(40));
        server.kill9();
        thread::sleep(Duration::from_millis(300));
        server.restart();
        must_end_well(writer);
    }
    must_read(&host, &uri, &file);
    assert!(host.attached_value("disks-0", "recoveries").parse::<u32>().expect("a number") >= 1);
}

#[test]
fn network_that_stays_away_fails_io_until_it_is_back() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (mut server, host) = (server(), Host::new());
    let uri = host.attach(&[&url(&server), "--recovery-timeout", "1"]);
    let io = || tool::run(Command::new("qemu-io").args(["-f", "raw", "-c", "write -P 9 0 1M", &uri]), LIMIT);
    assert!(io().ok());
    server.kill9();
    host.becomes("disks-0", "lost");
    let ran = io();
    assert!(!ran.ok() && ran.status.is_some(), "a signal ended it, or it succeeded: {}", ran.said);
    server.restart();
    host.becomes("disks-0", "attached");
    let ran = io();
    assert!(ran.ok(), "{}", ran.said);
}

/// A proxy in front of a portal that a test can cut.
struct CuttableProxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
}

struct ProxyState {
    to: Mutex<SocketAddr>,
    is_cut: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
    bytes: std::sync::atomic::AtomicU64,
    held: Mutex<Option<HeldBytes>>,
}

/// Bytes that are held back from the target, and the connection to the target, which stays open.
#[derive(Default)]
struct HeldBytes {
    bytes: Vec<u8>,
    to: Option<TcpStream>,
    is_delivered: bool,
    /// Whether the target has responded to the delivered bytes, or has ended the connection.
    is_over: bool,
}

impl CuttableProxy {
    fn to(to: SocketAddr) -> CuttableProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (is_cut, sockets) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(ProxyState {
            to: Mutex::new(to),
            is_cut,
            sockets,
            bytes: 0.into(),
            held: Mutex::default(),
        });
        let cut = shared.clone();
        thread::spawn(move || listener.incoming().flatten().for_each(|from| cut.join(from)));
        CuttableProxy { address, shared }
    }

    fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
        let held = self.shared.held.lock().expect("no thread panics while it holds the lock");
        let kept = held.as_ref().and_then(|held| held.to.as_ref()?.local_addr().ok());
        for socket in self.shared.sockets.lock().expect("no thread panics while it holds the lock").drain(..)
        {
            if kept.is_none() || socket.local_addr().ok() != kept {
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }

    /// Forwards new connections to this address.
    fn lead_to(&self, to: SocketAddr) {
        *self.shared.to.lock().expect("no thread panics while it holds the lock") = to;
    }

    fn mend(&self) {
        self.shared.is_cut.store(false, Ordering::SeqCst);
    }

    fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }

    /// Waits until nothing was transferred for a second.
    fn becomes_quiet(&self) {
        let mut bytes = None;
        while bytes.replace(self.bytes()) != Some(self.bytes()) {
            thread::sleep(Duration::from_secs(1));
        }
    }

    /// Holds all further data of the latest connection, until they are delivered.
    fn hold(&self) {
        let [.., _, to] = &self.shared.sockets.lock().expect("no thread panics while it holds the lock")[..]
        else {
            panic!("no connection")
        };
        let to = Some(to.try_clone().expect("a socket"));
        *self.shared.held.lock().expect("no thread panics while it holds the lock") =
            Some(HeldBytes { to, ..HeldBytes::default() });
    }

    fn held(&self) -> usize {
        self.shared
            .held
            .lock()
            .expect("no thread panics while it holds the lock")
            .as_ref()
            .map_or(0, |held| held.bytes.len())
    }

    /// Sends the held bytes. The target may have ended the connection.
    fn deliver(&self) {
        let mut held = self.shared.held.lock().expect("no thread panics while it holds the lock");
        let Some(HeldBytes { bytes, to: Some(to), is_delivered, .. }) = &mut *held else {
            panic!("nothing is held")
        };
        let _ = to.write_all(bytes);
        *is_delivered = true;
    }

    /// Whether the target has responded to the delivered bytes, or has ended the connection.
    fn is_over(&self) -> bool {
        self.shared
            .held
            .lock()
            .expect("no thread panics while it holds the lock")
            .as_ref()
            .is_some_and(|held| held.is_over)
    }
}

impl ProxyState {
    /// Whether the held bytes belong to this socket.
    fn is_held(&self, socket: &TcpStream) -> bool {
        let held = self.held.lock().expect("no thread panics while it holds the lock");
        let to = held.as_ref().and_then(|held| held.to.as_ref()?.local_addr().ok());
        to.is_some() && to == socket.local_addr().ok()
    }

    /// Stores the bytes if this socket is held.
    fn holds(&self, to: &TcpStream, bytes: &[u8]) -> bool {
        let holds = self.is_held(to);
        if let Some(held) =
            self.held.lock().expect("no thread panics while it holds the lock").as_mut().filter(|_| holds)
        {
            held.bytes.extend_from_slice(bytes);
        }
        holds
    }

    /// Records that the target has sent data.
    fn hears(&self, from: &TcpStream) {
        let is_held = self.is_held(from);
        if let Some(held) =
            self.held.lock().expect("no thread panics while it holds the lock").as_mut().filter(|_| is_held)
        {
            held.is_over |= held.is_delivered;
        }
    }

    /// Closes both sides after one has closed, except the side of a target whose bytes are held.
    fn end(&self, from: &TcpStream, to: &TcpStream) {
        if self.is_held(to) {
            return;
        }
        if self.is_held(from)
            && let Some(held) = self.held.lock().expect("no thread panics while it holds the lock").as_mut()
        {
            held.is_over = true;
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn join(self: &Arc<Self>, from: TcpStream) {
        let there = *self.to.lock().expect("no thread panics while it holds the lock");
        let Ok(to) = TcpStream::connect(there) else { return };
        if self.is_cut.load(Ordering::SeqCst) {
            return;
        }
        let copies = [(&from, &to), (&to, &from)].map(|(a, b)| (a.try_clone(), b.try_clone()));
        self.sockets.lock().expect("no thread panics while it holds the lock").extend([from, to]);
        for (a, b) in copies {
            let (mut a, mut b, cut) = (a.expect("a socket"), b.expect("a socket"), self.clone());
            thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(n @ 1..) = a.read(&mut buffer) {
                    cut.bytes.fetch_add(n as u64, Ordering::SeqCst);
                    cut.hears(&a);
                    if !cut.holds(&b, &buffer[..n]) && b.write_all(&buffer[..n]).is_err() && !cut.is_held(&a)
                    {
                        break;
                    }
                }
                cut.end(&a, &b);
            });
        }
    }
}

#[test]
fn path_cut_during_a_write_loses_no_data() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (server, host) = (with_portals("\"127.0.0.1:0\", \"127.0.0.1:0\""), Host::new());
    let [a, b] = [0, 1].map(|n| CuttableProxy::to(server.portals()[n]));
    let uri = host.attach(&[&url_at(a.address), "--path", &url_at(b.address)]);
    assert!(host.is("disks-0", "attached"));
    let file = pattern(&host, 64);
    for wire in [&a, &b] {
        let (before, writer) = (wire.bytes(), write(&uri, &file));
        let end = Instant::now() + LIMIT;
        while wire.bytes() < before + (1 << 20) {
            assert!(Instant::now() < end, "this path carries no I/O");
            thread::yield_now();
        }
        wire.cut();
        must_end_well(writer);
        host.becomes("disks-0", "degraded");
        must_read(&host, &uri, &file);
        wire.mend();
        host.becomes("disks-0", "attached");
    }
    let said = host.ends(0, &["attach", "list", "disks-0"]);
    assert_eq!(said.matches("\npath ").count(), 2, "{said}");
    host.ends(0, &["detach", "disks-0"]);
}

#[test]
fn each_path_is_shown_by_its_url() {
    let both = "{ listen = \"127.0.0.1:0\", transport = [\"tcp\", \"iser\"] }";
    let (server, host) = (with_portals(both), Host::new());
    let iser = url(&server).replacen("iscsi", "iser", 1);
    host.attach(&[&url(&server), "--path", &iser]);
    let output = host.ends(0, &["attach", "list", "disks-0"]);
    assert!(
        output.contains(&format!("{}: ", url(&server))) && output.contains(&format!("{iser}: ")),
        "{output}"
    );
}

#[test]
fn one_path_is_enough_and_another_disk_is_no_path() {
    let (server, other, host) = (server(), Server::start(&interop::config::standard()), Host::new());
    let wire = CuttableProxy::to(server.portal());
    wire.cut();
    host.attach(&[&url(&server), "--path", &format!("{}?login_tries=1", url_at(wire.address))]);
    assert!(host.is("disks-0", "degraded"));
    assert!(host.ends(0, &["attach", "list", "disks-0"]).contains("missing"));
    wire.mend();
    host.becomes("disks-0", "attached");
    host.ends(0, &["detach", "disks-0"]);
    let another = url(&other).replace("/0", "/1");
    let said = host.ends(1, &["attach", &url(&server), "--path", &another]);
    assert!(
        said.contains("different logical units") && said.contains("each --path must lead to the same LUN"),
        "{said}"
    );
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
}

#[test]
fn file_by_fuse() {
    let has_fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !has_fuse || !tool::have(&[Tool { program: "fusermount3", package: "fuse3" }]) {
        return println!("skipped: needs /dev/fuse");
    }
    let (server, host) = (server(), Host::new());
    fs::create_dir(host.path("d")).expect("a folder");
    let file = host.attach(&[&url(&server), "--fuse", "d"]);
    assert_eq!(Path::new(&file), host.path("d/disks-0"));
    let bytes = fs::read(pattern(&host, 8)).expect("read");
    let mut open = fs::File::options().read(true).write(true).open(&file).expect("open");
    open.write_all(&bytes).and_then(|()| open.sync_all()).expect("write");
    assert!(fs::read(&file).expect("read")[..8 << 20] == bytes);
    assert!(fs::read(server.dir().join("disk.img")).expect("the disk")[..8 << 20] == bytes);
    assert!(host.ends(28, &["detach", "d"]).contains(&format!("process {}", std::process::id())));
    drop(open);
    host.ends(0, &["detach", "d"]);
    assert!(!Path::new(&file).exists());
}

#[test]
fn killed_process_is_reported_and_cleared() {
    let (server, host) = (server(), Host::new());
    for again in ["attach", "detach"] {
        host.attach(&[&url(&server)]);
        let pid = host.pid("disks-0");
        tool::must("kill", &["-9", &pid.to_string()]);
        host.becomes("disks-0", "ended");
        match again {
            "attach" => assert!(host.attach(&["disks-0"]).starts_with("nbd+unix:")),
            _ => assert!(host.ends(0, &["detach", "disks-0"]).contains("is detached")),
        }
        let _ = host.lunar(&["detach", "disks-0"]);
    }
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
}

fn that_cannot_flush() -> Server {
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         filters = [{{ kind = \"error\", rate = 1.0, op = \"flush\" }}]\n"
    ))
}

/// Writes of a killed process may not be stable: a flush of the next process must reach the target.
#[test]
fn flush_after_a_kill_reaches_the_target() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (server, host) = (that_cannot_flush(), Host::new());
    let flush = |uri: &str| {
        let io = std::process::Command::new("qemu-io").args(["-f", "raw", "-c", "flush", uri]).output();
        !io.expect("qemu-io").status.success()
    };
    let uri = host.attach(&[&url(&server)]);
    assert!(!flush(&uri), "a flush without writes failed");
    tool::must("kill", &["-9", &host.pid("disks-0").to_string()]);
    host.becomes("disks-0", "ended");
    assert!(flush(&host.attach(&["disks-0"])), "the flush did not reach the target");
}

/// Another program may unmount the file without a flush. The process then flushes, and reports a failure.
#[test]
fn file_unmounted_by_others_is_flushed() {
    if !Path::new("/dev/fuse").exists() {
        return println!("skipped: needs /dev/fuse");
    }
    let (server, host) = (that_cannot_flush(), Host::new());
    fs::create_dir(host.path("d")).expect("a folder");
    let file = host.attach(&[&url(&server), "--fuse", "d"]);
    fs::File::options().write(true).open(&file).and_then(|mut f| f.write_all(&[7; 4096])).expect("write");
    tool::must("umount", &[host.path("d").to_str().expect("a path")]);
    host.becomes("disks-0", "ended");
    let output = host.ends(0, &["attach", "list", "--json"]);
    assert!(output.contains("cannot flush all data"), "{output}");
    json::assert_unique_keys(&output);
}

/// Unmounts with fusermount3, as a user without root does.
#[test]
fn file_that_is_unmounted_from_outside_ends_its_attachment() {
    if !Path::new("/dev/fuse").exists() || !tool::have(&[Tool { program: "fusermount3", package: "fuse3" }]) {
        return println!("skipped: needs /dev/fuse");
    }
    let (server, host) = (server(), Host::new());
    fs::create_dir(host.path("d")).expect("a folder");
    let file = host.attach(&[&url(&server), "--fuse", "d"]);
    fs::File::options().write(true).open(&file).and_then(|mut f| f.write_all(&[7; 4096])).expect("write");
    let pid = host.pid("disks-0");
    tool::must("fusermount3", &["-u", host.path("d").to_str().expect("a path")]);
    let end = Instant::now() + LIMIT;
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(Instant::now() < end, "the process lives on: {}", host.ends(0, &["attach", "list"]));
        thread::sleep(Duration::from_millis(20));
    }
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
    let log = fs::read_to_string(host.path("run/attached/disks-0.log")).expect("a log");
    assert!(log.contains("another process unmounted the FUSE mount"), "{log}");
    assert!(fs::read(server.dir().join("disk.img")).expect("the disk").starts_with(&[7; 4096]));
}

/// The process appears in process lists with the name of its program.
#[test]
fn process_has_the_name_of_its_program() {
    let (server, host) = (server(), Host::new());
    host.attach(&[&url(&server)]);
    let proc = PathBuf::from(format!("/proc/{}", host.pid("disks-0")));
    let line = fs::read_to_string(proc.join("cmdline")).expect("the process lives");
    assert!(line.starts_with("lunar\0attach\0--handed\0disks-0\0"), "{line:?}");
    let program = lunar_bin().file_name().expect("a name").to_string_lossy().into_owned();
    assert_eq!(fs::read_to_string(proc.join("comm")).expect("the process lives").trim_end(), program);
}

#[test]
fn secret_is_in_no_argument_record_or_log() {
    const SECRET: &str = "a-secret-never-printed";
    let (server, host) = (server(), Host::new());
    let url = url(&server).replace("iscsi://", &format!("iscsi://ann%{SECRET}@"));
    host.attach(&[&url, "--save"]);
    let pid = host.pid("disks-0");
    for file in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).expect("the process lives");
        assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{file}");
    }
    for file in ["disks-0.json", "disks-0.log"] {
        let text = fs::read_to_string(host.path("run/attached").join(file)).expect("a file");
        assert!(!text.contains(SECRET), "{file}: {text}");
    }
    let saved = host.path("config/lunar/attach/disks-0.toml");
    assert!(fs::read_to_string(&saved).expect("saved").contains(SECRET));
    assert_eq!(fs::metadata(&saved).expect("saved").permissions().mode() & 0o777, 0o600);
    host.ends(0, &["detach", "disks-0"]);
    host.attach(&["disks-0"]);
    host.ends(0, &["detach", "disks-0"]);
    fs::set_permissions(&saved, fs::Permissions::from_mode(0o644)).expect("mode");
    assert!(host.ends(1, &["attach", "disks-0"]).contains("chmod 0600"));
}

#[test]
fn attach_saved_attaches_all() {
    let (server, host) = (server(), Host::new());
    host.ends(21, &["attach", "--all"]);
    host.ends(21, &["attach", "data"]);
    host.attach(&[&url(&server), "--name", "data", "--save"]);
    host.ends(0, &["detach", "data"]);
    let folder = host.path("config/lunar/attach");
    fs::write(folder.join("more.toml"), format!("url = \"{}\"\nnbd = \"127.0.0.1:0\"\n", url(&server)))
        .expect("write");
    assert!(host.ends(0, &["attach", "--all"]).contains("more is already attached as data"));
    assert!(host.is("data", "attached"));
    fs::write(folder.join("more.toml"), "url = \"iscsi://h\"\nulbk = true\n").expect("write");
    let said = host.ends(1, &["attach", "--all"]);
    assert!(
        said.contains("more.toml:2:1: unknown key `ulbk`") && said.contains("did you mean `ublk`?"),
        "{said}"
    );
    host.ends(7, &["attach", "data", "--read-only"]);
    let other = url(&server).replace("/0", "/1");
    let said = host.ends(15, &["attach", &other, "--name", "data", "--save"]);
    assert!(said.contains("data already exists with other settings"), "{said}");
    host.ends(0, &["detach", "data"]);
    // An attached disk does not hide the failure of another one.
    fs::remove_file(folder.join("more.toml")).expect("remove");
    let dead = format!("url = \"iscsi://127.0.0.1:1/{TARGET}/0?login_tries=1\"\n");
    fs::write(folder.join("a.toml"), dead).expect("write");
    host.attach(&[&url(&server), "--name", "z"]);
    let said = host.ends(4, &["attach", "--all"]);
    assert!(
        said.contains("a: login to 127.0.0.1:1: ") && said.contains("data is already attached as z"),
        "{said}"
    );
}

#[test]
fn failure_leaves_nothing_behind() {
    let (server, host) = (server(), Host::new());
    let dead = format!("iscsi://127.0.0.1:1/{TARGET}/0?login_tries=1");
    host.ends(4, &["attach", &dead, "--save", "--name", "a1"]);
    assert!(!host.path("config/lunar/attach/a1.toml").exists(), "the failed attachment was saved");
    assert!(!host.path("run/attached/a1.log").exists(), "the log of a failed attachment is left");
    host.attach(&[&url(&server), "--name", "a1"]);
    let log = || fs::read_to_string(host.path("run/attached/a1.log")).expect("a log");
    // The line is written after the command has its answer.
    until("the log of a1", || log().contains("a1 is attached").then_some(()));
    let before = log();
    assert!(before.contains("a1 is attached"), "{before}");
    host.ends(15, &["attach", &dead, "--name", "a1"]);
    assert_eq!(log(), before, "the log of another attachment changed");
    host.ends(0, &["detach", "a1"]);
    host.ends(4, &["attach", &dead, "--name", "a1"]);
    assert!(log().starts_with(&before), "the log of an earlier attachment is lost");
}

#[test]
fn detach_after_a_flush_succeeds_without_target() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (mut server, host) = (server(), Host::new());
    let io = |words: &str, uri: &str| {
        tool::must("qemu-io", &["-f", "raw", "-c", words, uri]);
    };
    let uri = host.attach(&[&url(&server), "--recovery-timeout", "1"]);
    io("write -P 9 0 1M", &uri); // qemu-io flushes when it closes
    io("read -P 9 0 1M", &uri);
    server.kill9();
    host.becomes("disks-0", "lost");
    host.ends(0, &["detach", "disks-0"]);
}

#[test]
fn absent_target_is_reported_while_waiting() {
    let (server, host) = (server(), Host::new());
    let dead = format!("iscsi://127.0.0.1:1/{TARGET}/0");
    let said = host.ends(8, &["attach", &dead, "--timeout", "2"]);
    assert!(said.contains("warning: login to 127.0.0.1:1: connection refused; trying again\n"), "{said}");
    assert!(said.contains("in time: login to 127.0.0.1:1: connection refused\n"), "{said}");
    // A dead path must not delay the attachment, although it is retried for longer than the time limit.
    host.attach(&[&dead, "--path", &url(&server), "--timeout", "10", "--name", "b"]);
    assert!(host.is("b", "degraded"));
}

#[test]
fn messages_have_their_form_and_time() {
    let (server, host) = (server(), Host::new());
    host.attach(&[&url(&server)]);
    assert!(host.attached_value("disks-0", "identity").starts_with("naa."), "as lunar ls prints it");
    let at = host.attached_value("disks-0", "attached_at");
    assert!(at.starts_with("20") && at.ends_with('Z') && at.len() == "2026-11-28T10:00:00Z".len(), "{at}");
    host.ends(0, &["attach", "list", "--timeout", "3"]);
    let pid = host.pid("disks-0").to_string();
    tool::must("kill", &["-STOP", &pid]);
    host.ends(8, &["attach", "list", "--timeout", "1"]);
    // With --force it is killed at the time limit.
    // Its commands in flight are unknown.
    let output = host.ends(1, &["detach", "disks-0", "--timeout", "2", "--force", "--json"]);
    assert!(output.contains("\"name\": \"disks-0\"") && output.contains("\"killed\": true"), "{output}");
    host.attach(&[&url(&server)]);
    tool::must("kill", &["-HUP", &host.pid("disks-0").to_string()]);
    assert!(host.is("disks-0", "attached"), "SIGHUP means nothing to it");
    let output = host.ends(0, &["detach", "disks-0", "--json"]);
    assert!(output.contains("\"killed\": false"), "{output}");
}

#[test]
fn foreground_notifies_systemd_and_stops_gracefully() {
    let (server, host) = (server(), Host::new());
    let manager = UnixDatagram::bind(host.path("notify")).expect("a socket");
    manager.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut command = host.command(lunar_bin());
    command.args(["attach", "--foreground", &url(&server)]).env("NOTIFY_SOCKET", host.path("notify"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start lunar");
    let mut word = [0; 64];
    let len = manager.recv(&mut word).expect("a notification");
    assert_eq!(&word[..len], b"READY=1\n");
    assert_eq!(host.pid("disks-0"), child.id());
    let sessions = || {
        tool::run(
            host.command(lunar_bin())
                .args(["session", "list", "--json", "--socket"])
                .arg(server.dir().join("admin.sock")),
            LIMIT,
        )
        .said
    };
    assert!(sessions().contains("\"tsih\""), "{}", sessions());
    tool::must("kill", &["-TERM", &child.id().to_string()]);
    assert!(child.wait().expect("a child").success());
    assert!(!sessions().contains("\"tsih\""), "not logged out: {}", sessions());
    assert!(host.ends(0, &["attach", "list"]).contains("nothing is attached"));
}

#[test]
fn failures_have_their_status() {
    let host = Host::new();
    let dead = format!("iscsi://127.0.0.1:1/{TARGET}/0");
    host.ends(4, &["attach", &format!("{dead}?login_tries=1")]);
    host.ends(8, &["attach", &dead, "--timeout", "1"]);
    host.ends(7, &["attach", "iscsi://h/no%0aname/0"]);
    host.ends(7, &["attach", &dead, "--name", "a/b"]);
    host.ends(7, &["attach", &dead, "--nbd", "nowhere"]);
    host.ends(2, &["attach", &dead, "--nbd", "unix:/x", "--ublk"]);
    let server = server();
    host.ends(21, &["attach", &format!("iscsi://{}/{TARGET}/7", server.portal())]);
    assert!(host.ends(1, &["attach", &url(&server), "--fuse", "not-there"]).contains("not-there"));
    fs::create_dir_all(host.path("full/of")).expect("folders");
    assert!(
        host.ends(1, &["attach", &url(&server), "--fuse", "full"]).contains("full: the folder is not empty")
    );
    let busy = server.portal().to_string();
    assert!(host.ends(28, &["attach", &url(&server), "--nbd", &busy]).contains("the address is in use"));
    assert!(host.ends(0, &["attach", "list", "--json"]).contains("\"items\": []"));
}

#[test]
fn grown_disk_is_shown_to_new_clients() {
    if !tool::have(&TOOLS) {
        return;
    }
    let (server, host) = (server(), Host::new());
    let uri = host.attach(&[&url(&server)]);
    let disk = fs::File::options().write(true).open(server.dir().join("disk.img")).expect("the disk");
    disk.set_len(96 << 20).expect("grow the disk");
    server.signal(1);
    let end = Instant::now() + LIMIT;
    while !tool::must("nbdinfo", &["--size", &uri]).contains("100663296") {
        assert!(Instant::now() < end, "the new capacity is never reported");
        thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(host.attached_value("disks-0", "size_bytes"), "100663296");
}

#[test]
fn systemd_accepts_the_unit_file() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/lunar-attach@.service");
    let text = fs::read_to_string(&unit).expect("the unit");
    for line in
        ["Type=notify", "ExecStart=/usr/bin/lunar attach --foreground %i", "After=network-online.target"]
    {
        assert!(text.lines().any(|l| l == line), "no line {line}");
    }
    if !tool::have(&[Tool { program: "systemd-analyze", package: "systemd" }]) {
        return;
    }
    // The path of the tested program replaces that in the unit.
    let folder = Folder::fresh();
    let here = folder.join("lunar-attach@.service");
    let lunar = lunar_bin().display().to_string();
    fs::write(&here, text.replace("/usr/bin/lunar", &lunar)).expect("write the unit");
    let instance = folder.join("lunar-attach@data.service");
    fs::copy(&here, &instance).expect("copy the unit");
    let ran = tool::run(Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&instance), LIMIT);
    assert!(ran.ok() && !ran.said.contains("lunar-attach"), "{}", ran.said);
}
