//! The servers under test: `floor` and Lunar, each on a free port and pinned to the client's core.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::ceph::{Cluster, POOL};
use super::load::IdleSessions;

/// The CPU core to which all programs are pinned.
pub const CORE: &str = "0";
/// The cores of the rows of two cores, which both programs share.
pub const TWO_CORES: &str = "0,1";
/// The name of the target
pub const TARGET: &str = "iqn.2026-11.org.example:bench";
/// The time limit of a start
pub const START: Duration = Duration::from_secs(120);
const AGAIN: Duration = Duration::from_millis(100);
/// The kernel's USER_HZ, the unit of times in /proc/PID/stat.
const TICKS_PER_S: f64 = 100.0;

/// A running server; killed on drop, with its folder removed.
#[derive(Debug)]
pub struct BenchServer {
    pub(super) child: Child,
    pub(super) dir: PathBuf,
    /// Its portal
    pub portal: SocketAddr,
    /// The name of its target, or of its NVMe subsystem
    pub target: String,
    /// The first LUN
    pub lun: u16,
    /// The cores to which it and its clients are pinned
    pub cores: &'static str,
}

impl BenchServer {
    /// The URL of its first LUN, or of its first namespace.
    pub fn url(&self) -> String {
        if self.is_nvme() {
            return format!("nvme://{}/{}/1", self.portal, self.target);
        }
        format!("iscsi://{}/{}/{}", self.portal, self.target, self.lun)
    }

    /// The path of its admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.dir.join("admin.sock")
    }

    /// Replaces the target in the configuration file of Lunar.
    pub fn rewrite(&self, backing: Backing) -> Result<()> {
        let config = head(&self.dir) + &target(backing);
        Ok(std::fs::write(self.dir.join("lunar.toml"), config)?)
    }

    /// Whether it is a server of NVMe/TCP.
    pub fn is_nvme(&self) -> bool {
        self.target.starts_with("nqn.")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The CPU seconds that it has used (proc(5), fields 14 and 15 of stat).
    pub fn cpu_s(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).context("no CPU time");
        Ok((ticks(11)? + ticks(12)?) / TICKS_PER_S)
    }

    /// Its resident memory in MiB.
    pub fn resident_mib(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A new folder for a server.
pub fn fresh_dir(name: &str) -> Result<PathBuf> {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("lunar-bench-{}-{number}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// A program on the core of all programs.
pub fn pinned(program: &Path) -> Command {
    pinned_to(CORE, program)
}

/// A program on these cores.
pub fn pinned_to(cores: &str, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", cores]).arg(program);
    command
}

/// Starts `floor`.
pub fn floor(program: &Path) -> Result<BenchServer> {
    start_floor(program, &[])
}

/// Starts `floor` as the least router in front of another server's target.
pub fn relay(program: &Path, upstream: &BenchServer) -> Result<BenchServer> {
    let mut relay = start_floor(program, &["--relay", &upstream.portal.to_string()])?;
    (relay.target, relay.lun) = (upstream.target.clone(), upstream.lun);
    Ok(relay)
}

/// Starts `floor` for NVMe/TCP; it takes any name of a subsystem.
pub fn nvme_floor(program: &Path, subsystem: &str) -> Result<BenchServer> {
    let mut floor = start_floor(program, &["--nvme"])?;
    floor.target = subsystem.into();
    Ok(floor)
}

fn start_floor(program: &Path, options: &[&str]) -> Result<BenchServer> {
    let dir = fresh_dir("floor")?;
    let mut child = pinned(program).arg("127.0.0.1:0").args(options).stdout(Stdio::piped()).spawn()?;
    let (portal, _) = wait_listening(&mut child, |_| true)?;
    Ok(BenchServer { child, dir, portal, target: TARGET.into(), lun: 0, cores: CORE })
}

/// The LUNs of Lunar's target.
#[derive(Clone, Copy, Debug)]
pub enum Backing<'a> {
    /// A number of null LUNs
    Null(u32),
    /// One file, in the page cache
    File(&'a Path),
    /// The same, whose pages are sent without a copy
    ZeroCopyFile(&'a Path),
    /// Images of a Ceph cluster
    Rbd(&'a Cluster, &'a [String]),
}

impl Backing<'_> {
    /// The program on its cores: librbd has threads of its own, which use all.
    fn command(self, program: &Path) -> Command {
        if matches!(self, Backing::Rbd(..)) { Command::new(program) } else { pinned(program) }
    }
}

/// Starts Lunar and waits until it is ready.
pub fn lunar(program: &Path, backing: Backing) -> Result<BenchServer> {
    let dir = fresh_dir("lunar")?;
    let config = head(&dir) + &target(backing);
    serve(backing.command(program), dir, &config)
}

/// Starts Lunar with a null LUN and a portal that also accepts iSER.
pub fn lunar_with_iser(program: &Path) -> Result<BenchServer> {
    let dir = fresh_dir("iser")?;
    let portal = "{ listen = \"127.0.0.1:0\", transport = [\"tcp\", \"iser\"] }";
    let config = head(&dir).replacen("\"127.0.0.1:0\"", portal, 1) + &target(Backing::Null(1));
    serve(pinned(program), dir, &config)
}

/// Starts Lunar as a router in front of another server's LUN, and waits until the LUN is available. `mode` is
/// `block` or `passthrough`.
pub fn routed(program: &Path, blast: &Path, upstream: &BenchServer, mode: &str) -> Result<BenchServer> {
    let dir = fresh_dir("router")?;
    let config = head(&dir) + &router(&upstream.url(), mode);
    let server = serve(pinned(program), dir, &config)?;
    let end = Instant::now() + START;
    while let Err(error) = IdleSessions::try_open(blast, &server) {
        ensure!(Instant::now() < end, "the router has no LUN: {error:#}");
        std::thread::sleep(AGAIN);
    }
    Ok(server)
}

/// Starts Lunar on these cores, with options instead of a configuration.
pub fn lunar_with_options(cores: &'static str, program: &Path, options: &[&str]) -> Result<BenchServer> {
    let dir = fresh_dir("lunar")?;
    let mut command = pinned_to(cores, program);
    command.arg("serve").args(options).env("XDG_STATE_HOME", &dir).env("LUNAR_RUN_DIR", &dir);
    let mut server = start(command, dir)?;
    server.cores = cores;
    Ok(server)
}

fn serve(mut command: Command, dir: PathBuf, config: &str) -> Result<BenchServer> {
    let file = dir.join("lunar.toml");
    std::fs::write(&file, config)?;
    command.args(["serve", "--config"]).arg(&file);
    start(command, dir)
}

fn start(mut command: Command, dir: PathBuf) -> Result<BenchServer> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    let (portal, _) = wait_listening(&mut child, |line| line == "ready")?;
    Ok(BenchServer { child, dir, portal, target: TARGET.into(), lun: 0, cores: CORE })
}

fn head(dir: &Path) -> String {
    format!(
        "[server]\nstate_dir = \"{0}\"\nadmin_socket = \"{0}/admin.sock\"\n[session]\nnop_interval_s = 0\n\
         [[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n",
        dir.display()
    )
}

fn router(url: &str, mode: &str) -> String {
    format!(
        "[router.bench]\nmode = \"{mode}\"\n[router.bench.upstream.disk]\nurls = [\"{url}\"]\n\
         [[router.bench.target]]\nmap = \"lun\"\nname = \"{TARGET}\"\naccess = \"all\"\n\
         lun = [{{ lun = 0, upstream = \"disk\" }}]\n"
    )
}

fn target(backing: Backing) -> String {
    let mut text = format!("[[target]]\nname = \"{TARGET}\"\n");
    match backing {
        Backing::Null(luns) => (0..luns).for_each(|lun| {
            text += &format!("[[target.lun]]\nlun = {lun}\nbackend = \"null\"\nsize = \"1TiB\"\n");
        }),
        Backing::File(path) => text += &file(path),
        Backing::ZeroCopyFile(path) => text += &(file(path) + "zero_copy = true\n"),
        Backing::Rbd(cluster, images) => images.iter().enumerate().for_each(|(lun, image)| {
            text += &format!(
                "[[target.lun]]\nlun = {lun}\nbackend = \"rbd\"\npool = \"{POOL}\"\nimage = \"{image}\"\n\
                 ceph_conf = \"{}\"\n",
                cluster.conf().display()
            );
        }),
    }
    text
}

fn file(path: &Path) -> String {
    format!("[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"{}\"\n", path.display())
}

/// Reads the output of a server until `ready`; returns its address and all lines. A thread reads the rest.
fn wait_listening(child: &mut Child, ready: impl Fn(&str) -> bool) -> Result<(SocketAddr, Vec<String>)> {
    let stdout = child.stdout.take().context("piped")?;
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
    });
    let end = Instant::now() + START;
    let (mut portal, mut said) = (None, Vec::new());
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(line) = lines.recv_timeout(left) else {
            bail!("the server is not ready; its output: {said:?}")
        };
        if let Some(rest) = line.strip_prefix("listening on ") {
            portal = Some(rest.split(',').next().unwrap_or(rest).parse()?);
        }
        let done = ready(&line);
        said.push(line);
        if done {
            return Ok((portal.context("no `listening on` line")?, said));
        }
    }
}
