//! Helpers of scenarios: the lab's tools, the servers that the guest uses, and the scenario in its guest.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::machine::{GuestKind, Lab, ScenarioId, ScenarioResult};

use interop::tool::{self, Tool};
use interop::{Server, TARGET};

const LIMIT: Duration = Duration::from_secs(600);
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
/// Packages that build siw for the guest's kernel, and programs of RDMA scenarios.
const RDMA_TOOLS: [Tool; 5] = [
    Tool { program: "gcc-12", package: "gcc-12" },
    Tool { program: "make", package: "make" },
    Tool { program: "strip", package: "binutils" },
    Tool { program: "rdma", package: "iproute2" },
    Tool { program: "sg_persist", package: "sg3-utils" },
];
/// The guest's address of the host's 127.0.0.1.
pub const HOST: &str = "10.0.2.2";

/// Waits for this test's turn in the lab. None: the lab is missing, and the reason is printed.
pub fn lab() -> Option<Lab> {
    lab_with(&[], GuestKind::Plain)
}

/// As [`lab`], with RDMA in the guest's kernel.
pub fn lab_of_rdma() -> Option<Lab> {
    lab_with(&RDMA_TOOLS, GuestKind::Rdma)
}

/// As [`lab`], with more tools, in a guest of this kind.
pub fn lab_with(more: &[Tool], kind: GuestKind) -> Option<Lab> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    if !is_root {
        println!("skipped: needs root, for the guest reads this machine's files");
        return None;
    }
    tool::have(&[&TOOLS, more].concat()).then(|| Lab::take(kind))
}

/// A server that advertises an address that the guest can reach, with a file as LUN 0.
pub fn server(portals: usize, tables: &str) -> Server {
    server_over(portals, "\"tcp\"", tables)
}

/// As [`server`], with these transports on its portals.
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

/// A scenario that runs in the guest.
pub struct Scenario {
    lab: Lab,
    job: ScenarioId,
    name: String,
}

impl Lab {
    /// Starts `scenario` against `server`, with more environment variables.
    pub fn against(self, server: &Server, scenario: &str, more: &[(&str, &str)]) -> Scenario {
        let portals: Vec<String> = server.portals().iter().map(|p| format!("{HOST}:{}", p.port())).collect();
        let all = portals.join(" ");
        let mut variables =
            vec![("PORTAL", portals[0].as_str()), ("PORTALS", &all), ("IQN", TARGET), ("LUN", "0")];
        variables.extend(more);
        self.alone(scenario, &variables)
    }

    /// Starts `scenario` with these environment variables.
    pub fn alone(mut self, scenario: &str, variables: &[(&str, &str)]) -> Scenario {
        let job = self.start(scenario, variables);
        Scenario { lab: self, job, name: scenario.into() }
    }
}

impl Scenario {
    /// Waits until the scenario asks for `what`, does it, and reports that to the scenario.
    pub fn when_asked(&mut self, what: &str, act: impl FnOnce()) {
        let end = Instant::now() + LIMIT;
        while !self.lab.share().join(format!("{what}.wanted")).exists() {
            let ended = self.lab.ended(&self.job).is_some() || Instant::now() > end;
            assert!(!ended, "the scenario ended before it asked for {what}:\n{}", self.lab.log(&self.job));
            thread::sleep(Duration::from_millis(50));
        }
        act();
        fs::write(self.lab.share().join(format!("{what}.done")), "").expect("answer the guest");
    }

    /// The folder that is `/lab` in the guest.
    pub fn share(&mut self) -> PathBuf {
        self.lab.share()
    }

    /// Waits for the scenario, which must end with PASS. Its guest may then run the next one.
    pub fn must_pass(mut self) -> Lab {
        let ended = self.lab.wait(&self.job, LIMIT);
        let log = self.lab.log(&self.job);
        let pass = format!("PASS {}", self.name);
        assert!(ended == ScenarioResult::Status(0) && log.contains(&pass), "{}: {ended:?}\n{log}", self.name);
        // Prints the time of each step.
        log.lines().filter(|line| line.starts_with("### ")).for_each(|step| println!("{step}"));
        self.lab.keep();
        self.lab
    }
}

/// The path of a crate's example program, which is built beside the program under test.
pub fn example(package: &str, name: &str) -> PathBuf {
    let bin = interop::lunar_bin().with_file_name("examples").join(name);
    let build = format!("cargo build -p {package} --example {name}");
    assert!(bin.exists(), "{} is missing; build it: {build}", bin.display());
    bin
}
