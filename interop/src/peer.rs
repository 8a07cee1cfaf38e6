//! Targets on loopback for the initiator: those of other projects, and Lunar's own. Each has the same three disks: one
//! without authentication, one that requires CHAP, and one that requires mutual CHAP.

use crate::tool::{self, Tool};
use crate::{Folder, Server};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// User and secret that [`CHAP`] and [`MUTUAL`] require.
pub const USER: (&str, &str) = ("ann", "annsecret12345");
/// User and secret that prove the identity of the target [`MUTUAL`].
pub const TARGET_USER: (&str, &str) = ("moon", "moonsecret1234");
/// The target without authentication.
pub const OPEN: &str = "iqn.2026-11.org.example:open";
/// The target that requires CHAP.
pub const CHAP: &str = "iqn.2026-11.org.example:chap";
/// The target that requires mutual CHAP.
pub const MUTUAL: &str = "iqn.2026-11.org.example:mutual";

const TARGETS: [&str; 3] = [OPEN, CHAP, MUTUAL];
/// Bytes of each disk.
pub const SIZE: u64 = 64 << 20;
const START: Duration = Duration::from_secs(30);
/// The programs that STGT needs.
pub const TGT: [Tool; 2] =
    [Tool { program: "tgtd", package: "tgt" }, Tool { program: "tgtadm", package: "tgt" }];
/// The program that istgt needs.
pub const ISTGT: [Tool; 1] = [Tool { program: "istgt", package: "istgt" }];

/// The process of a peer.
enum Process {
    Tgt(Child),
    Istgt(Child),
    Lunar(Box<Server>),
}

/// A running target. Dropping it kills its process.
pub struct Peer {
    process: Process,
    address: SocketAddr,
    /// The address of a second portal of the same targets.
    second: SocketAddr,
    dir: Folder,
}

impl Peer {
    /// STGT. If it is not installed: None, after printing `skipped`.
    pub fn tgt() -> Option<Peer> {
        tool::have(&TGT).then(|| Peer::foreign(|dir, ports| Process::Tgt(start_tgt(dir, ports))))
    }

    /// istgt. If it is not installed: None, after printing `skipped`.
    pub fn istgt() -> Option<Peer> {
        tool::have(&ISTGT).then(|| Peer::foreign(|dir, ports| Process::Istgt(start_istgt(dir, ports))))
    }

    /// Lunar's own target.
    pub fn lunar() -> Peer {
        let dir = disks();
        let server = Server::start_in(Folder::fresh(), &lunar_config(&dir));
        let (address, second) = (server.portals()[0], server.portals()[1]);
        Peer { process: Process::Lunar(Box::new(server)), address, second, dir }
    }

    fn foreign(start: impl FnOnce(&Folder, [u16; 2]) -> Process) -> Peer {
        let (dir, ports) = (disks(), [(); 2].map(|()| crate::ports::free()));
        let process = start(&dir, ports);
        let [address, second] = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        Peer { process, address, second, dir }
    }

    /// Its first portal.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its second portal.
    pub fn second(&self) -> SocketAddr {
        self.second
    }

    /// The LUN of the disk. STGT uses LUN 0 for a controller.
    pub fn lun(&self) -> u16 {
        matches!(self.process, Process::Tgt(_)).into()
    }

    /// Whether it offers CRC32C by default.
    pub fn has_digests(&self) -> bool {
        !matches!(self.process, Process::Tgt(_))
    }

    /// The URL of the disk of a target at a portal, for `user`, with these settings.
    pub fn url(&self, portal: SocketAddr, user: &str, target: &str, settings: &str) -> String {
        let at = if user.is_empty() { "" } else { "@" };
        format!("iscsi://{user}{at}{portal}/{target}/{}?{settings}", self.lun())
    }

    /// The URL of the disk of [`OPEN`] at the first portal.
    pub fn open(&self, settings: &str) -> String {
        self.url(self.address, "", OPEN, settings)
    }

    /// Kills its process with SIGKILL.
    pub fn kill9(&mut self) {
        match &mut self.process {
            Process::Tgt(child) | Process::Istgt(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Process::Lunar(server) => server.kill9(),
        }
    }

    /// Kills it if necessary, and starts it again with the same portals and disks.
    pub fn restart(&mut self) {
        self.kill9();
        let ports = [self.address.port(), self.second.port()];
        match &mut self.process {
            Process::Tgt(child) => *child = start_tgt(&self.dir, ports),
            Process::Istgt(child) => *child = start_istgt(&self.dir, ports),
            Process::Lunar(server) => server.restart(),
        }
    }

    /// Changes the identity of the disk of [`OPEN`]. STGT reports the change to no initiator.
    ///
    /// # Panics
    /// If the peer is not STGT.
    pub fn replace_disk(&self) {
        assert!(matches!(self.process, Process::Tgt(_)), "only STGT can do that");
        let unit = ["--op", "update", "--mode", "logicalunit", "--tid", "1", "--lun", "1"];
        tgtadm(&self.dir, &[&unit[..], &["--params", "scsi_id=another,scsi_sn=another"]].concat());
    }

    /// Enlarges the disk of [`OPEN`]. False: the target needs a restart for it.
    pub fn grow(&self, size: u64) -> bool {
        let path = disk(&self.dir, OPEN);
        fs::File::options().write(true).open(&path).and_then(|f| f.set_len(size)).expect("a larger disk");
        match &self.process {
            Process::Tgt(_) => {
                for change in ["online=0", &format!("path={path}"), "online=1"] {
                    let unit = ["--mode", "logicalunit", "--tid", "1", "--lun", "1"];
                    tgtadm(&self.dir, &[&["--op", "update"], &unit[..], &["-P", change]].concat());
                }
                true
            }
            Process::Istgt(_) => false,
            Process::Lunar(server) => {
                server.signal(1);
                true
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// A folder with an empty disk for each target.
fn disks() -> Folder {
    let dir = Folder::fresh();
    for target in TARGETS {
        let file = fs::File::create(disk(&dir, target)).expect("a disk");
        file.set_len(SIZE).expect("a disk");
    }
    dir
}

fn disk(dir: &Folder, target: &str) -> String {
    let name = target.rsplit(':').next().expect("a part");
    dir.join(format!("{name}.img")).display().to_string()
}

fn secret(path: &str, text: &str) {
    fs::write(path, text).expect("write a secret");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set its mode");
}

fn spawn(command: &mut Command, log: &str) -> Child {
    let log = fs::File::options().create(true).append(true).open(log).expect("a log");
    let log2 = log.try_clone().expect("a log");
    command.stdin(Stdio::null()).stdout(log).stderr(log2).spawn().expect("the program starts")
}

/// Waits until `is_ready` returns true.
fn until(what: &str, is_ready: impl Fn() -> bool) {
    let end = Instant::now() + START;
    while !is_ready() {
        assert!(Instant::now() < end, "{what} is not ready");
        sleep(Duration::from_millis(20));
    }
}

fn ipc(dir: &Folder) -> String {
    dir.join("tgt").display().to_string()
}

fn tgtadm(dir: &Folder, arguments: &[&str]) {
    let all = [&["-C", "1", "--lld", "iscsi"], arguments].concat();
    let mut command = Command::new("tgtadm");
    let ran = tool::run(command.args(&all).env("TGT_IPC_SOCKET", ipc(dir)), START);
    assert!(ran.ok(), "tgtadm {}: {}", arguments.join(" "), ran.said);
}

fn start_tgt(dir: &Folder, ports: [u16; 2]) -> Child {
    let mut command = Command::new("tgtd");
    command.args(["-f", "-C", "1"]).env("TGT_IPC_SOCKET", ipc(dir));
    let portals = ports.map(|port| format!("portal=127.0.0.1:{port}")).join(",");
    command.args(["--iscsi", &portals]);
    let child = spawn(&mut command, &dir.join("log").display().to_string());
    let show = ["-C", "1", "--lld", "iscsi", "--op", "show", "--mode", "target"];
    let socket = ipc(dir);
    until("tgtd", || tool::run(Command::new("tgtadm").args(show).env("TGT_IPC_SOCKET", &socket), START).ok());
    for (user, password) in [USER, TARGET_USER] {
        let account = ["--op", "new", "--mode", "account", "--user", user, "--password", password];
        tgtadm(dir, &account);
    }
    for (at, target) in TARGETS.iter().enumerate() {
        let tid = (at + 1).to_string();
        let on = ["--tid", &tid];
        let unit = ["--lun", "1", "-b", &disk(dir, target)];
        tgtadm(dir, &[&["--op", "new", "--mode", "target", "-T", target], &on[..]].concat());
        tgtadm(dir, &[&["--op", "new", "--mode", "logicalunit"], &on[..], &unit[..]].concat());
        tgtadm(
            dir,
            &[
                &["--op", "update", "--mode", "logicalunit", "--lun", "1", "-P", "thin_provisioning=1"],
                &on[..],
            ]
            .concat(),
        );
        let bind = |more: &[&str]| tgtadm(dir, &[&["--op", "bind"], &on[..], more].concat());
        if *target != OPEN {
            bind(&["--mode", "account", "--user", USER.0]);
        }
        if *target == MUTUAL {
            bind(&["--mode", "account", "--user", TARGET_USER.0, "--outgoing"]);
        }
        // This must be last: before it, no initiator is admitted.
        bind(&["--mode", "target", "-I", "ALL"]);
    }
    child
}

fn start_istgt(dir: &Folder, ports: [u16; 2]) -> Child {
    let auth = dir.join("auth.conf").display().to_string();
    let ((user, password), (moon, moons)) = (USER, TARGET_USER);
    let groups = format!(
        "[AuthGroup1]\n  Auth \"{user}\" \"{password}\"\n\
         [AuthGroup2]\n  Auth \"{user}\" \"{password}\" \"{moon}\" \"{moons}\"\n"
    );
    secret(&auth, &groups);
    let mut conf = format!(
        "[Global]\n  NodeBase \"iqn.2026-11.org.example\"\n  PidFile {0}/istgt.pid\n  AuthFile {auth}\n  \
         MediaDirectory {0}\n  Timeout 30\n  NopInInterval 20\n  DiscoveryAuthMethod Auto\n  MaxSessions 16\n  \
         MaxConnections 4\n  MaxR2T 32\n  MaxOutstandingR2T 16\n  DefaultTime2Wait 2\n  DefaultTime2Retain 60\n  \
         FirstBurstLength 262144\n  MaxBurstLength 1048576\n  MaxRecvDataSegmentLength 262144\n  InitialR2T Yes\n  \
         ImmediateData Yes\n  DataPDUInOrder Yes\n  DataSequenceInOrder Yes\n  ErrorRecoveryLevel 0\n\
         [UnitControl]\n  AuthMethod Auto\n  AuthGroup AuthGroup1\n\
         [PortalGroup1]\n  Portal A 127.0.0.1:{1}\n  Portal B 127.0.0.1:{2}\n\
         [InitiatorGroup1]\n  InitiatorName \"ALL\"\n  Netmask 127.0.0.1\n",
        dir.display(),
        ports[0],
        ports[1]
    );
    for (n, (target, method)) in TARGETS.iter().zip(["None", "CHAP", "CHAP Mutual"]).enumerate() {
        conf += &format!(
            "[LogicalUnit{0}]\n  TargetName {target}\n  Mapping PortalGroup1 InitiatorGroup1\n  AuthMethod {method}\n  \
             AuthGroup AuthGroup{1}\n  UseDigest Auto\n  UnitType Disk\n  LUN0 Storage {2} Auto\n",
            n + 1,
            n.max(1),
            disk(dir, target)
        );
    }
    let file = dir.join("istgt.conf").display().to_string();
    fs::write(&file, conf).expect("write istgt.conf");
    let child =
        spawn(Command::new("istgt").args(["-D", "-q", "-c", &file]), &dir.join("log").display().to_string());
    until("istgt", || TcpStream::connect(("127.0.0.1", ports[1])).is_ok());
    child
}

fn lunar_config(dir: &Folder) -> String {
    let mut toml = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n".to_owned();
    for target in TARGETS {
        let mutual = if target == MUTUAL { "mutual = \"moon\"\n" } else { "" };
        toml += &format!("[[target]]\nname = \"{target}\"\n{mutual}");
        toml += &format!(
            "[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"{}\"\nthin = true\n",
            disk(dir, target)
        );
        if target != OPEN {
            toml += "[[target.access]]\nchap = [\"ann\"]\n";
        }
    }
    for (user, password) in [USER, TARGET_USER] {
        let file = dir.join(format!("{user}.secret")).display().to_string();
        secret(&file, password);
        toml += &format!("[[chap_user]]\nname = \"{user}\"\nsecret_file = \"{file}\"\n");
    }
    toml
}
