//! A Ceph cluster of one monitor and one OSD on this host, for tests of RBD. The processes end with the value.

use crate::config::TARGET;
use crate::server::Folder;
use crate::tool::{self, Tool};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TOOLS: [Tool; 4] = [
    Tool { program: "ceph-mon", package: "ceph-mon" },
    Tool { program: "ceph-osd", package: "ceph-osd" },
    Tool { program: "ceph", package: "ceph-common" },
    Tool { program: "rbd", package: "ceph-common" },
];
/// Bytes of the store, a sparse file.
const STORE_BYTES: u64 = 2 << 30;
/// The address of the daemons by default.
const LOCAL: &str = "127.0.0.1";
/// A placement group waits for the read lease of its killed OSD; the default is 16 s.
const READ_LEASE_S: u32 = 1;
/// A start takes 7 s on an idle machine.
const START: Duration = Duration::from_secs(120);

/// A running cluster with the pool `rbd`.
pub struct CephCluster {
    folder: Folder,
    monitor: Daemon,
    osd: Daemon,
}

/// A process that is killed on drop.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An OSD that SIGSTOP has stopped.
pub struct PausedOsd<'a>(&'a Daemon);

impl Drop for PausedOsd<'_> {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0.0), Signal::CONT).expect("the OSD lives");
    }
}

impl CephCluster {
    /// Starts a cluster. None: a program is missing, and the test is skipped.
    pub fn start() -> Option<CephCluster> {
        CephCluster::start_with_lease(READ_LEASE_S)
    }

    /// As [`CephCluster::start`], with another read lease. If a single OSD is stopped for longer than the lease, it never
    /// serves operations again; if it is killed, the next one waits for the end of the lease.
    pub fn start_with_lease(read_lease_s: u32) -> Option<CephCluster> {
        CephCluster::start_with(LOCAL, read_lease_s, STORE_BYTES)
    }

    /// As [`CephCluster::start_with_lease`], for long work: random writes of 4 KiB let the store grow by far more than the
    /// size of their image.
    pub fn start_large(read_lease_s: u32) -> Option<CephCluster> {
        CephCluster::start_with(LOCAL, read_lease_s, 16 * STORE_BYTES)
    }

    /// As [`CephCluster::start`], at an address of this host that others can reach.
    pub fn start_at(address: &str) -> Option<CephCluster> {
        CephCluster::start_with(address, READ_LEASE_S, STORE_BYTES)
    }

    fn start_with(address: &str, read_lease_s: u32, store_bytes: u64) -> Option<CephCluster> {
        if !tool::have(&TOOLS) {
            return None;
        }
        let folder = Folder::fresh();
        for part in ["mon", "osd", "run", "log"] {
            std::fs::create_dir(folder.join(part)).expect("a folder");
        }
        let [v2, v1] = [crate::ports::free(), crate::ports::free()];
        let monitors = format!("[v2:{address}:{v2},v1:{address}:{v1}]");
        let uuid = || std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a UUID");
        let (fsid, osd_uuid) = (uuid(), uuid());
        let file = folder.join("ceph.conf");
        let text = configuration(&folder, address, &monitors, fsid.trim(), (read_lease_s, store_bytes));
        write(&file, &text);
        make_keys(&folder);
        make_monitor(&folder, &monitors, fsid.trim());
        let monitor = daemon(&folder, "ceph-mon", "a");
        ceph(&folder, &["osd", "new", osd_uuid.trim(), "0"]);
        must(&folder, "ceph-osd", &["--mkfs", "-i", "0", "--osd-uuid", osd_uuid.trim()]);
        let osd = start_osd(&folder);
        ceph(&folder, &["osd", "pool", "create", "rbd", "8"]);
        ceph(&folder, &["osd", "pool", "application", "enable", "rbd", "rbd"]);
        Some(CephCluster { folder, monitor, osd })
    }

    /// The configuration file.
    pub fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// The argument for an image of the pool, as the user of a gateway.
    pub fn image(&self, name: &str) -> String {
        format!("rbd:rbd/{name}:id=lunar:conf={}", self.conf().display())
    }

    /// A configuration of a server whose LUN 0 is an image of the pool. `keys` are more keys of the LUN.
    pub fn configuration(&self, image: &str, keys: &str) -> String {
        format!(
            "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\n[[target]]\nname = \"{TARGET}\"\n\n[[target.lun]]\nlun = 0\n\
             backend = \"rbd\"\npool = \"rbd\"\nimage = \"{image}\"\nuser = \"lunar\"\nceph_conf = \"{}\"\n{keys}\n",
            self.conf().display()
        )
    }

    /// Runs `rbd` as the administrator, and returns its output.
    pub fn rbd(&self, arguments: &[&str]) -> String {
        must(&self.folder, "rbd", arguments)
    }

    /// Runs `rados` as the administrator, and returns its output.
    pub fn rados(&self, arguments: &[&str]) -> String {
        must(&self.folder, "rados", arguments)
    }

    /// Runs `ceph` as the administrator, and returns its output.
    pub fn ceph(&self, arguments: &[&str]) -> String {
        ceph(&self.folder, arguments)
    }

    /// Sets an option of the running OSD.
    pub fn set_of_osd(&self, option: &str, value: &str) {
        let socket = self.folder.join("run/osd.0.asok").display().to_string();
        tool::must("ceph", &["--admin-daemon", &socket, "config", "set", option, value]);
    }

    /// Sets an option of all clients that start later.
    pub fn set_of_clients(&self, option: &str, value: &str) {
        let text = std::fs::read_to_string(self.conf()).expect("the configuration");
        // The section of clients is the last one.
        write(&self.conf(), &format!("{text}{option} = {value}\n"));
    }

    /// The addresses of the clients that have an image of the pool open.
    pub fn watchers(&self, image: &str) -> Vec<String> {
        let said = self.rbd(&["status", &format!("rbd/{image}")]);
        let watcher = |line: &str| Some(line.trim().strip_prefix("watcher=")?.split(' ').next()?.to_owned());
        said.lines().filter_map(watcher).collect()
    }

    /// Stops the OSD, which keeps its connections, until the value is dropped; see [`CephCluster::start_with_lease`].
    pub fn pause_osd(&self) -> PausedOsd<'_> {
        crate::server::pause(&self.osd.0);
        PausedOsd(&self.osd)
    }

    /// Kills the OSD.
    pub fn kill_osd(&mut self) {
        let _ = self.osd.0.kill();
        let _ = self.osd.0.wait();
    }

    /// Starts the OSD after [`CephCluster::kill_osd`].
    pub fn start_osd(&mut self) {
        self.osd = start_osd(&self.folder);
    }

    /// The process of the monitor.
    pub fn monitor_pid(&self) -> u32 {
        self.monitor.0.id()
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn configuration(
    folder: &Path,
    address: &str,
    monitors: &str,
    fsid: &str,
    (read_lease_s, store_bytes): (u32, u64),
) -> String {
    let dir = folder.display();
    // The lease is a part of the grace of heartbeats, which is 20 s.
    let read_lease = f64::from(read_lease_s) / 20.0;
    format!(
        "[global]\nfsid = {fsid}\nmon_host = {monitors}\npublic_addr = {address}\n\
         cluster_addr = {address}\nms_bind_ipv6 = false\nrun_dir = {dir}/run\npid_file =\n\
         admin_socket = {dir}/run/$name.asok\nlog_file = {dir}/log/$name.log\ncrash_dir = {dir}/log\n\
         osd_pool_default_size = 1\nosd_pool_default_min_size = 1\nosd_pool_default_pg_autoscale_mode = off\n\
         osd_crush_chooseleaf_type = 0\n\
         [mon]\nmon_data = {dir}/mon\nkeyring = {dir}/mon/keyring\nmon_allow_pool_size_one = true\n\
         mon_cluster_log_file = {dir}/log/cluster.log\nauth_allow_insecure_global_id_reclaim = false\n\
         mon_data_avail_warn = 2\nmon_data_avail_crit = 1\npaxos_propose_interval = 0.05\npaxos_min_wait = 0.01\n\
         [osd]\nosd_data = {dir}/osd\nkeyring = {dir}/osd/keyring\nosd_objectstore = bluestore\n\
         bluestore_block_size = {store_bytes}\nosd_memory_target = 939524096\nosd_crush_initial_weight = 1\n\
         osd_pool_default_read_lease_ratio = {read_lease}\n\
         [client]\nkeyring = {dir}/$name.keyring\nadmin_socket =\nlog_file =\n"
    )
}

/// All keys are in the keyring with which the monitor is made, so that none is added later.
fn make_keys(folder: &Folder) {
    let keys = folder.join("keys");
    let keys = keys.to_str().expect("text");
    let users: [(&str, &str, &[&str]); 4] = [
        ("mon.", "", &["--cap", "mon", "allow *"]),
        ("client.admin", "client.admin.keyring", &["--cap", "mon", "allow *", "--cap", "osd", "allow *"]),
        ("osd.0", "osd/keyring", &["--cap", "mon", "allow profile osd", "--cap", "osd", "allow *"]),
        (
            "client.lunar",
            "client.lunar.keyring",
            &["--cap", "mon", "profile rbd", "--cap", "osd", "profile rbd"],
        ),
    ];
    tool::must("ceph-authtool", &["-C", keys]);
    for (user, file, rights) in users {
        tool::must("ceph-authtool", &[&[keys, "-n", user, "--gen-key"], rights].concat());
        // The monitor stores its own, in a folder that must be empty.
        if file.is_empty() {
            continue;
        }
        let key = tool::must("ceph-authtool", &[keys, "-n", user, "-p"]);
        write(&folder.join(file), &format!("[{user}]\n\tkey = {}\n", key.trim()));
    }
}

fn make_monitor(folder: &Folder, monitors: &str, fsid: &str) {
    let (map, keys) = (folder.join("monmap"), folder.join("keys"));
    let (map, keys) = (map.to_str().expect("text"), keys.to_str().expect("text"));
    tool::must("monmaptool", &["--create", "--clobber", "--fsid", fsid, "--addv", "a", monitors, map]);
    must(folder, "ceph-mon", &["--mkfs", "-i", "a", "--monmap", map, "--keyring", keys]);
}

fn conf(folder: &Folder) -> String {
    folder.join("ceph.conf").display().to_string()
}

fn must(folder: &Folder, program: &str, arguments: &[&str]) -> String {
    tool::must(program, &[&["-c", &conf(folder)], arguments].concat())
}

fn ceph(folder: &Folder, arguments: &[&str]) -> String {
    must(folder, "ceph", arguments)
}

fn daemon(folder: &Folder, program: &str, id: &str) -> Daemon {
    let mut command = Command::new(program);
    command.args(["-f", "-i", id, "-c", &conf(folder)]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Daemon(command.spawn().unwrap_or_else(|e| panic!("cannot run {program}: {e}")))
}

/// Starts the OSD, and waits until the monitor knows it: a client that comes earlier waits for 10 s.
fn start_osd(folder: &Folder) -> Daemon {
    let osd = daemon(folder, "ceph-osd", "0");
    let socket = folder.join("run/osd.0.asok").display().to_string();
    let end = Instant::now() + START;
    loop {
        let mut status = Command::new("ceph");
        let ran = tool::run(status.args(["--admin-daemon", &socket, "status"]), START);
        if ran.said.contains("\"state\": \"active\"") {
            return osd;
        }
        assert!(Instant::now() < end, "the OSD does not start: {}", ran.said);
        std::thread::sleep(Duration::from_millis(100));
    }
}
