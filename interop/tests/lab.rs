//! The Linux kernel's own initiator, in the guest of `interop/lab`, against the server on the host; and the kernel's
//! own target, against the commands.
//!
//! Each test boots one guest with one scenario. What a scenario asks the host for (killing the server,
//! growing its disk) it asks through a file in the folder that both see.
#![forbid(unsafe_code)]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use interop::tool::{self, Tool};
use interop::{Server, TARGET};

const TOOLS: [Tool; 10] = [
    Tool { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Tool { program: "busybox", package: "busybox-static" },
    Tool { program: "depmod", package: "kmod" },
    Tool { program: "cpio", package: "cpio" },
    Tool { program: "xz", package: "xz-utils" },
    Tool { program: "iscsiadm", package: "open-iscsi" },
    Tool { program: "multipath", package: "multipath-tools" },
    Tool { program: "mkfs.ext4", package: "e2fsprogs" },
    Tool { program: "mkfs.xfs", package: "xfsprogs" },
    Tool { program: "fio", package: "fio" },
];
const LIMIT: Duration = Duration::from_secs(600);
/// What the guest calls the host's 127.0.0.1.
const HOST: &str = "10.0.2.2";

/// One guest at a time: under emulation one fills the machine.
static ONE_GUEST: Mutex<()> = Mutex::new(());

/// The lab is there and this test's turn has come; None says what is missing.
fn lab() -> Option<MutexGuard<'static, ()>> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    if !is_root {
        println!("skipped: needs root, for the guest reads this machine's files");
        return None;
    }
    if !tool::have(&TOOLS) {
        return None;
    }
    let turn = ONE_GUEST.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let setup = tool::run(Command::new(lab_script()).arg("setup"), LIMIT);
    assert!(setup.ok(), "lab setup: {}", setup.said);
    Some(turn)
}

fn lab_script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/lab")
}

/// A server whose portals tell the guest an address that it can reach, with a file as LUN 0.
fn server(portals: usize, tables: &str) -> Server {
    let dir = interop::Folder::fresh();
    fs::write(dir.join("alice.secret"), "alice-secret-1234").expect("write a secret");
    fs::write(dir.join("lunar.secret"), "lunar-secret-5678").expect("write a secret");
    for name in ["alice.secret", "lunar.secret"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(dir.join(name), mode).expect("mode");
    }
    let portal = |port: &u16| format!("{{ listen = \"127.0.0.1:{port}\", advertise = \"{HOST}:{port}\" }}");
    let portals: Vec<String> = free_ports(portals).iter().map(portal).collect();
    let toml = format!(
        "[[portal_group]]\ntag = 1\nportals = [{}]\n[[target]]\nname = \"{TARGET}\"\n{tables}\n",
        portals.join(", ")
    );
    let disk = "[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"512MiB\"\n";
    let (keys, rest) = toml.split_at(toml.find("[[target.access]]").unwrap_or(toml.len()));
    Server::start_in(dir, &format!("{keys}{disk}{rest}"))
}

/// Ports that were free a moment ago: the advertised address needs them before the server starts.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    held.iter().map(|listener| listener.local_addr().expect("bound").port()).collect()
}

/// A guest that runs a scenario.
struct Guest {
    child: Child,
    dir: interop::Folder,
    scenario: String,
}

impl Guest {
    /// Boots a guest for `scenario` against `server`, with more environment variables.
    fn boot(server: &Server, scenario: &str, more: &[(&str, &str)]) -> Guest {
        let portals: Vec<String> = server.portals().iter().map(|p| format!("{HOST}:{}", p.port())).collect();
        let all = portals.join(" ");
        let mut variables =
            vec![("PORTAL", portals[0].as_str()), ("PORTALS", &all), ("IQN", TARGET), ("LUN", "0")];
        variables.extend(more);
        Guest::alone(scenario, &variables)
    }

    /// Boots a guest for `scenario`, with these environment variables.
    fn alone(scenario: &str, variables: &[(&str, &str)]) -> Guest {
        let dir = interop::Folder::fresh();
        let mut command = Command::new(lab_script());
        command.args(["run", "-t", &LIMIT.as_secs().to_string(), "-d"]).arg(&*dir);
        for (name, value) in variables {
            command.args(["-e", name]).env(name, value);
        }
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/scenarios").join(format!("{scenario}.sh"));
        let log = fs::File::create(dir.join("log")).expect("a log");
        let log2 = log.try_clone().expect("a log");
        command.arg("--").arg("bash").arg(script).stdin(Stdio::null()).stdout(log).stderr(log2);
        Guest { child: command.spawn().expect("start the lab"), dir, scenario: scenario.into() }
    }

    /// Waits until the scenario asks for `what`, does it, and says so.
    fn when_asked(&mut self, what: &str, act: impl FnOnce()) {
        let end = Instant::now() + LIMIT;
        while !self.dir.join("share").join(format!("{what}.wanted")).exists() {
            let ended = self.child.try_wait().expect("a child").is_some() || Instant::now() > end;
            assert!(!ended, "the guest ended before it asked for {what}:\n{}", self.log());
            thread::sleep(Duration::from_millis(50));
        }
        act();
        fs::write(self.dir.join("share").join(format!("{what}.done")), "").expect("answer the guest");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The scenario must end with PASS.
    fn must_pass(mut self) {
        let status = self.child.wait().expect("a child");
        let log = self.log();
        let pass = format!("PASS {}", self.scenario);
        assert!(status.success() && log.contains(&pass), "{}: {status}\n{log}", self.scenario);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // the script's own trap ends its QEMU
            let _ = Command::new("kill").arg(self.child.id().to_string()).status();
            let _ = self.child.wait();
        }
    }
}

#[test]
fn a_disk_with_and_without_digests() {
    let Some(_turn) = lab() else { return };
    let server = server(1, "");
    Guest::boot(&server, "disk", &[]).must_pass();
}

#[test]
fn a_disk_behind_mutual_chap() {
    let Some(_turn) = lab() else { return };
    let tables = "mutual = \"lunar\"\n[[target.access]]\nchap = [\"alice\"]\n\
        [[chap_user]]\nname = \"alice\"\nsecret_file = \"alice.secret\"\n\
        [[chap_user]]\nname = \"lunar\"\nsecret_file = \"lunar.secret\"\n";
    let server = server(1, tables);
    let chap = [
        ("CHAP", "alice alice-secret-1234"),
        ("CHAP_MUTUAL", "lunar lunar-secret-5678"),
        ("DIGESTS", "CRC32C"),
    ];
    Guest::boot(&server, "disk", &chap).must_pass();
}

#[test]
fn a_file_system_outlives_kill_9_of_the_server() {
    let Some(_turn) = lab() else { return };
    let mut server = server(1, "");
    let mut guest = Guest::boot(&server, "crash", &[("KILLS", "2")]);
    for kill in ["kill-1", "kill-2"] {
        guest.when_asked(kill, || {
            server.kill9();
            thread::sleep(Duration::from_secs(1));
            server.restart();
        });
    }
    guest.must_pass();
}

#[test]
fn a_larger_disk_is_seen() {
    let Some(_turn) = lab() else { return };
    let server = server(1, "");
    let mut guest = Guest::boot(&server, "resize", &[]);
    guest.when_asked("grow", || {
        let disk = fs::OpenOptions::new().write(true).open(server.dir().join("disk.img")).expect("the disk");
        disk.set_len(640 << 20).expect("grow the disk");
        server.signal(1);
    });
    guest.must_pass();
}

#[test]
fn multipath_over_two_portals() {
    let Some(_turn) = lab() else { return };
    let server = server(2, "");
    Guest::boot(&server, "multipath", &[]).must_pass();
}

#[test]
fn the_kernels_own_target() {
    let Some(_turn) = lab() else { return };
    let program = interop::lunar_bin();
    Guest::alone("lio", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

/// A program of the examples of a crate, from the folder of the program that is tested.
fn example(package: &str, name: &str) -> PathBuf {
    let bin = interop::lunar_bin().with_file_name("examples").join(name);
    let build = format!("cargo build --release -p {package} --example {name}");
    assert!(bin.exists(), "{} is missing; build it: {build}", bin.display());
    bin
}

#[test]
fn a_ublk_device_outlives_kill_9_of_its_process() {
    let Some(_turn) = lab() else { return };
    let program = example("export", "ublk");
    let program = program.to_str().expect("a path in UTF-8");
    Guest::alone("ublk", &[("UBLK", program)]).must_pass();
}

#[test]
fn commands_are_passed_to_the_kernels_scsi_devices() {
    let Some(_turn) = lab() else { return };
    let program = example("router", "sg");
    Guest::alone("sg", &[("SG", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn the_router_between_the_kernels_initiator_and_its_target() {
    let Some(_turn) = lab() else { return };
    let program = interop::lunar_bin();
    Guest::alone("router", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn an_attached_disk_outlives_its_process_and_its_target() {
    let Some(_turn) = lab() else { return };
    if !tool::have(&[Tool { program: "nbd-client", package: "nbd-client" }]) {
        return;
    }
    let mut server = server(1, "");
    let lunar = interop::lunar_bin();
    let mut guest = Guest::boot(&server, "attach", &[("LUNAR", lunar.to_str().expect("a path in UTF-8"))]);
    for kill in ["kill-1", "kill-2"] {
        guest.when_asked(kill, || {
            server.kill9();
            thread::sleep(Duration::from_secs(1));
            server.restart();
        });
    }
    guest.must_pass();
}

/// What the guest's programs need for soft RDMA devices, and the Debian packages that bring it.
const RDMA: [(&str, &str); 2] = [
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
];

/// Over soft RoCE, and over soft iWARP where the guest's kernel has it.
#[test]
fn the_verbs_provider_over_soft_devices() {
    let Some(_turn) = lab() else { return };
    if !tool::have(&[Tool { program: "rdma", package: "iproute2" }]) {
        return;
    }
    if let Some((_, package)) = RDMA.iter().find(|(file, _)| !Path::new(file).exists()) {
        return println!("skipped: needs rdma-core (apt-get install {package})");
    }
    let program = example("rdma", "verbs_loop");
    Guest::alone("verbs", &[("VERBS_LOOP", program.to_str().expect("a path in UTF-8"))]).must_pass();
}
