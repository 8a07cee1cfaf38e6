//! SPDK's NVMe/TCP target on loopback. Its disk is a file, so data outlive its process.

use crate::{Folder, ports, tool};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The subsystem. Namespace 1 is a file of [`SIZE`] bytes with blocks of 512 bytes; namespace 3 has blocks of 4096 bytes.
pub const NQN: &str = "nqn.2026-11.org.example:spdk";
/// Bytes of namespace 1.
pub const SIZE: u64 = 64 << 20;
/// Namespace 1.
const UUID: &str = "1d3f3ffb-4b8c-4e0c-9f8e-6a4c7c2d9a10";
const START: Duration = Duration::from_secs(60);
/// Memory in MiB: huge pages need root and a setting of the kernel.
const MEMORY: [&str; 3] = ["--no-huge", "-s", "512"];

/// Whether these programs of SPDK are in PATH. If not, prints `skipped: needs ...`.
pub fn have(programs: &[&str]) -> bool {
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| !tool::is_installed(program)).collect();
    if !missing.is_empty() {
        println!("skipped: needs {} of SPDK (docs/testing.md)", missing.join(", "));
    }
    missing.is_empty()
}

/// A program of SPDK's host that uses a subsystem at a portal.
pub fn host(program: &str, portal: SocketAddr, subsystem: &str) -> Command {
    let mut command = Command::new(program);
    let id =
        format!("trtype:TCP adrfam:IPv4 traddr:{} trsvcid:{} subnqn:{subsystem}", portal.ip(), portal.port());
    command.args(MEMORY).args(["--iova-mode", "va", "-r", &id]);
    command
}

/// A running `nvmf_tgt`. Dropping it kills its process.
pub struct Spdk {
    child: Child,
    portals: [SocketAddr; 3],
    dir: Folder,
}

impl Spdk {
    /// Starts it, with parameters of the transport beside the default ones. If it is not installed: None, after printing
    /// `skipped`.
    pub fn start(transport: Value) -> Option<Spdk> {
        have(&["nvmf_tgt"]).then(|| {
            let dir = Folder::fresh();
            let disk = File::create(dir.join("disk.img")).expect("a disk");
            disk.set_len(SIZE).expect("a disk");
            let portals = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], ports::free())));
            let config = config(&dir.join("disk.img"), transport, &portals).to_string();
            fs::write(dir.join("spdk.json"), config).expect("a configuration");
            let child = spawn(&dir);
            Spdk { child, portals, dir }
        })
    }

    /// Its portals of NVMe/TCP.
    pub fn portals(&self) -> [SocketAddr; 2] {
        [self.portals[0], self.portals[1]]
    }

    /// Its portal of discovery.
    pub fn discovery(&self) -> SocketAddr {
        self.portals[2]
    }

    /// The URL of a namespace at the first portal, with these settings.
    pub fn url(&self, namespace: u32, settings: &str) -> String {
        format!("nvme://{}/{NQN}/{namespace}?{settings}", self.portals[0])
    }

    /// Calls a method of its JSON-RPC, and returns the result.
    pub fn call(&self, method: &str, params: Value) -> Value {
        let answer =
            ask(&self.dir, method, params).unwrap_or_else(|e| panic!("{method}: {e}\n{}", self.log()));
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Sets the access state of all namespaces at a portal: `optimized`, `non_optimized` or `inaccessible`.
    pub fn set_access(&self, portal: SocketAddr, state: &str) {
        let params = json!({"nqn": NQN, "listen_address": address(portal), "ana_state": state});
        self.call("nvmf_subsystem_listener_set_ana_state", params);
    }

    /// Its output.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Kills it with SIGKILL.
    pub fn kill9(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it, and starts it again with the same portals and disks.
    pub fn restart(&mut self) {
        self.kill9();
        self.child = spawn(&self.dir);
    }
}

impl Drop for Spdk {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn address(portal: SocketAddr) -> Value {
    let (ip, port) = (portal.ip().to_string(), portal.port().to_string());
    json!({"trtype": "TCP", "adrfam": "IPv4", "traddr": ip, "trsvcid": port})
}

fn step(method: &str, params: Value) -> Value {
    json!({"method": method, "params": params})
}

/// The configuration: a list of calls.
fn config(disk: &std::path::Path, transport: Value, portals: &[SocketAddr; 3]) -> Value {
    let disks = [
        step("bdev_aio_create", json!({"name": "file", "filename": disk, "block_size": 512, "uuid": UUID})),
        step("bdev_malloc_create", json!({"name": "memory", "num_blocks": 4096, "block_size": 4096})),
    ];
    let mut parameters = json!({"trtype": "TCP"});
    for (key, value) in transport.as_object().into_iter().flatten() {
        parameters[key] = value.clone();
    }
    let subsystem =
        json!({"nqn": NQN, "serial_number": "SPDK-7", "allow_any_host": true, "ana_reporting": true});
    let namespace = |disk: &str, nsid: u32| {
        step("nvmf_subsystem_add_ns", json!({"nqn": NQN, "namespace": {"bdev_name": disk, "nsid": nsid}}))
    };
    let listener = |nqn: &str, portal: &SocketAddr| {
        step("nvmf_subsystem_add_listener", json!({"nqn": nqn, "listen_address": address(*portal)}))
    };
    let nvmf = [
        step("nvmf_create_transport", parameters),
        step("nvmf_create_subsystem", subsystem),
        namespace("file", 1),
        namespace("memory", 3),
        listener(NQN, &portals[0]),
        listener(NQN, &portals[1]),
        listener(crate::nvme::DISCOVERY, &portals[2]),
    ];
    json!({"subsystems": [{"subsystem": "bdev", "config": disks}, {"subsystem": "nvmf", "config": nvmf}]})
}

fn socket(dir: &Folder) -> PathBuf {
    dir.join("rpc.sock")
}

fn spawn(dir: &Folder) -> Child {
    // A lock of the killed process would remain with the path.
    let _ = fs::remove_file(socket(dir));
    let log = File::options().create(true).append(true).open(dir.join("log")).expect("a log");
    let mut command = Command::new("nvmf_tgt");
    command.args(MEMORY).args(["-u", "-m", "0x1", "--interrupt-mode", "--iova-mode", "va"]);
    // Several targets share a core.
    command.args(["--disable-cpumask-locks", "-r"]);
    command.arg(socket(dir)).arg("-c").arg(dir.join("spdk.json"));
    let errors = log.try_clone().expect("a log");
    let mut child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("nvmf_tgt starts");
    let end = Instant::now() + START;
    // Before the whole configuration is there, the call fails.
    while !ask(dir, "framework_wait_init", json!({})).is_ok_and(|answer| answer["error"].is_null()) {
        let log = || fs::read_to_string(dir.join("log")).unwrap_or_default();
        assert!(child.try_wait().expect("a child").is_none(), "nvmf_tgt has ended:\n{}", log());
        assert!(Instant::now() < end, "nvmf_tgt is not ready:\n{}", log());
        sleep(Duration::from_millis(20));
    }
    child
}

/// Calls a method, and returns the whole answer.
fn ask(dir: &Folder, method: &str, params: Value) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(socket(dir))?;
    stream.set_read_timeout(Some(START))?;
    let mut request = json!({"jsonrpc": "2.0", "id": 1, "method": method});
    if params.as_object().is_some_and(|params| !params.is_empty()) {
        request["params"] = params;
    }
    stream.write_all(request.to_string().as_bytes())?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut chunk)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => answer.extend_from_slice(&chunk[..n]),
        }
        // The answer has no length, but it is one value.
        if let Ok(whole) = serde_json::from_slice(&answer) {
            return Ok(whole);
        }
    }
}
