//! One guest at a time, and the servers that it uses.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
/// What builds siw for the guest's kernel, and what RDMA scenarios run in it.
const RDMA_TOOLS: [Tool; 5] = [
    Tool { program: "gcc-12", package: "gcc-12" },
    Tool { program: "make", package: "make" },
    Tool { program: "strip", package: "binutils" },
    Tool { program: "rdma", package: "iproute2" },
    Tool { program: "sg_persist", package: "sg3-utils" },
];
const LIMIT: Duration = Duration::from_secs(600);
/// What the guest calls the host's 127.0.0.1.
const HOST: &str = "10.0.2.2";

/// One guest at a time: under emulation one fills the machine, and two take longer than one after the other.
static ONE_GUEST: Mutex<()> = Mutex::new(());

/// The lab is there and this test's turn has come; None says what is missing.
pub fn lab() -> Option<MutexGuard<'static, ()>> {
    lab_with(&[], "setup")
}

/// The same with RDMA in the guest's kernel.
pub fn lab_of_rdma() -> Option<MutexGuard<'static, ()>> {
    lab_with(&RDMA_TOOLS, "siw")
}

fn lab_with(more: &[Tool], what: &str) -> Option<MutexGuard<'static, ()>> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    if !is_root {
        println!("skipped: needs root, for the guest reads this machine's files");
        return None;
    }
    if !tool::have(&[&TOOLS, more].concat()) {
        return None;
    }
    let turn = ONE_GUEST.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let setup = tool::run(Command::new(lab_script()).arg(what), LIMIT);
    assert!(setup.ok(), "lab {what}: {}", setup.said);
    Some(turn)
}

fn lab_script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/lab")
}

/// A server whose portals tell the guest an address that it can reach, with a file as LUN 0.
pub fn server(portals: usize, tables: &str) -> Server {
    server_over(portals, "\"tcp\"", tables)
}

/// The same, whose portals take these transports.
pub fn server_over(portals: usize, transports: &str, tables: &str) -> Server {
    let dir = interop::Folder::fresh();
    fs::write(dir.join("alice.secret"), "alice-secret-1234").expect("write a secret");
    fs::write(dir.join("lunar.secret"), "lunar-secret-5678").expect("write a secret");
    for name in ["alice.secret", "lunar.secret"] {
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(dir.join(name), mode).expect("mode");
    }
    let portal = |port: u16| {
        let addresses = format!("listen = \"127.0.0.1:{port}\", advertise = \"{HOST}:{port}\"");
        format!("{{ {addresses}, transport = [{transports}] }}")
    };
    // The advertised address is needed before the server starts.
    let portals: Vec<String> = (0..portals).map(|_| portal(interop::ports::free())).collect();
    let toml = format!(
        "[[portal_group]]\ntag = 1\nportals = [{}]\n[[target]]\nname = \"{TARGET}\"\n{tables}\n",
        portals.join(", ")
    );
    let disk = "[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"512MiB\"\n";
    let (keys, rest) = toml.split_at(toml.find("[[target.access]]").unwrap_or(toml.len()));
    Server::start_in(dir, &format!("{keys}{disk}{rest}"))
}

/// A guest that runs a scenario.
pub struct Guest {
    child: Child,
    dir: interop::Folder,
    scenario: String,
}

impl Guest {
    /// Boots a guest for `scenario` against `server`, with more environment variables.
    pub fn boot(server: &Server, scenario: &str, more: &[(&str, &str)]) -> Guest {
        let portals: Vec<String> = server.portals().iter().map(|p| format!("{HOST}:{}", p.port())).collect();
        let all = portals.join(" ");
        let mut variables =
            vec![("PORTAL", portals[0].as_str()), ("PORTALS", &all), ("IQN", TARGET), ("LUN", "0")];
        variables.extend(more);
        Guest::alone(scenario, &variables)
    }

    /// Boots a guest for `scenario`, with these environment variables.
    pub fn alone(scenario: &str, variables: &[(&str, &str)]) -> Guest {
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
    pub fn when_asked(&mut self, what: &str, act: impl FnOnce()) {
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
    pub fn must_pass(mut self) {
        let status = self.child.wait().expect("a child");
        let log = self.log();
        let pass = format!("PASS {}", self.scenario);
        assert!(status.success() && log.contains(&pass), "{}: {status}\n{log}", self.scenario);
        // Where the time goes.
        log.lines().filter(|line| line.starts_with("### ")).for_each(|step| println!("{step}"));
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

/// A program of the examples of a crate, from the folder of the program that is tested.
pub fn example(package: &str, name: &str) -> PathBuf {
    let bin = interop::lunar_bin().with_file_name("examples").join(name);
    let build = format!("cargo build --release -p {package} --example {name}");
    assert!(bin.exists(), "{} is missing; build it: {build}", bin.display());
    bin
}
