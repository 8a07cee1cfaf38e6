//! Targets of an experiment: Lunar's and others. They use loopback, free ports, and control sockets in their
//! own folder.

use crate::media::{DiskMedium, ServedDisk, WorkDir};
use crate::process::PeerProcess;
use crate::transport::{FabricTransport, free_ports};
use lunar_bench::{OpenTargets, TargetOptions, TargetSpec};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(20);
const STOP: Duration = Duration::from_secs(5);
const TARGET: &str = "iqn.2026-11.org.example:reproduce";

/// The target software.
#[derive(Clone, Debug)]
pub enum Peer {
    /// Lunar's.
    Lunar,
    /// STGT.
    Stgt,
    /// istgt.
    Istgt,
    /// A running target; all experiments use its one logical unit.
    Running(TargetSpec),
}

impl Peer {
    /// Its name in tables.
    pub fn name(&self) -> String {
        match self {
            Peer::Lunar => "Lunar".into(),
            Peer::Stgt => "STGT".into(),
            Peer::Istgt => "istgt".into(),
            Peer::Running(target) => target.to_string(),
        }
    }

    /// The missing package, if any.
    pub fn missing(&self) -> Option<&'static str> {
        self.missing_from(&folders())
    }

    fn missing_from(&self, folders: &[PathBuf]) -> Option<&'static str> {
        let (program, what) = match self {
            Peer::Stgt => ("tgtd", "stgt is not installed: apt install tgt"),
            Peer::Istgt => ("istgt", "istgt is not installed: apt install istgt"),
            Peer::Lunar | Peer::Running(_) => return None,
        };
        find(program, folders).is_none().then_some(what)
    }

    /// Its version, such as `tgtd 1.0.85`; None if each logical unit reports it, or it is unknown.
    pub fn version(&self) -> Option<String> {
        let (program, package) = match self {
            Peer::Stgt => ("tgtd", "tgt"),
            Peer::Istgt => ("istgt", "istgt"),
            Peer::Lunar | Peer::Running(_) => return None,
        };
        let said = command(program).ok().and_then(|mut command| first_line(command.arg("-V")));
        let ask = ["--show", "--showformat", "${Version}", package];
        let version = said.or_else(|| first_line(Command::new("dpkg-query").args(ask)))?;
        Some(if version.starts_with(program) { version } else { format!("{program} {version}") })
    }

    /// Whether it has a backing store that reads zeros and discards writes.
    pub fn has_null(&self) -> bool {
        matches!(self, Peer::Lunar | Peer::Stgt)
    }
}

/// The folders of programs. PATH may lack those of the administrator.
fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]).collect()
}

fn find(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// The command of an installed program.
fn command(program: &str) -> Result<Command, String> {
    find(program, &folders()).map(Command::new).ok_or_else(|| format!("{program} is not installed"))
}

/// The first line of a program's output, if it succeeds.
fn first_line(command: &mut Command) -> Option<String> {
    let ran = command.stdin(Stdio::null()).output().ok().filter(|ran| ran.status.success())?;
    let line = String::from_utf8(ran.stdout).ok()?.lines().next()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}

/// A running target. One that was started here is stopped on drop.
pub struct PeerServer {
    peer: Peer,
    process: Option<PeerProcess>,
    portals: Vec<SocketAddr>,
    transport: FabricTransport,
    /// The LUN of each disk.
    luns: Vec<Option<u16>>,
    dir: WorkDir,
}

impl PeerServer {
    /// Starts a target with these disks. `lunar` is the program for Lunar's.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn start(
        peer: &Peer,
        lunar: &Path,
        disks: &[ServedDisk],
        (portals, transport): (usize, &FabricTransport),
        dir: WorkDir,
    ) -> Result<PeerServer, String> {
        let (luns, transport) = (numbers(peer, disks), transport.clone());
        let mut server =
            PeerServer { peer: peer.clone(), process: None, portals: Vec::new(), transport, luns, dir };
        match peer {
            Peer::Lunar => server.lunar(lunar, disks, portals)?,
            Peer::Stgt => server.stgt(disks, portals)?,
            Peer::Istgt => server.istgt(disks, portals)?,
            Peer::Running(_) => {}
        }
        Ok(server)
    }

    /// Starts Lunar as a router in front of a server that was started here, with the same LUNs, and waits until
    /// they are available.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn start_router(
        lunar: &Path,
        upstream: &PeerServer,
        transport: &FabricTransport,
        dir: WorkDir,
    ) -> Result<PeerServer, String> {
        let portal = *upstream
            .portals
            .first()
            .ok_or("the target behind the router was not started by this command")?;
        let (luns, transport) = (upstream.luns.clone(), transport.clone());
        let mut server =
            PeerServer { peer: Peer::Lunar, process: None, portals: Vec::new(), transport, luns, dir };
        let config = lunar_head(&server.dir, &server.transport, 1)?
            + &router_config((portal, &upstream.transport), &server.luns);
        server.serve(lunar, &config)?;
        let targets: Vec<TargetSpec> =
            (0..server.luns.len()).filter_map(|disk| server.target(disk, "")).collect();
        let are_there = |_: &PeerServer| {
            OpenTargets::open(&targets, &TargetOptions::default()).map(OpenTargets::close).is_ok()
        };
        server.until(are_there)?;
        Ok(server)
    }

    /// The process id, if it was started here.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(PeerProcess::id)
    }

    /// Its portals, if it was started here.
    pub fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    /// A disk at its first portal, with options of a URL; None if it cannot serve the disk.
    pub fn target(&self, disk: usize, settings: &str) -> Option<TargetSpec> {
        match &self.peer {
            Peer::Running(target) => Some(target.clone()),
            _ => self.at(*self.portals.first()?, disk, settings),
        }
    }

    /// A disk at another address.
    pub fn at(&self, address: SocketAddr, disk: usize, settings: &str) -> Option<TargetSpec> {
        let lun = (*self.luns.get(disk)?)?;
        TargetSpec::parse(&self.transport.url(address, TARGET, Some(lun), settings)).ok()
    }

    fn lunar(&mut self, program: &Path, disks: &[ServedDisk], portals: usize) -> Result<(), String> {
        let config =
            lunar_head(&self.dir, &self.transport, portals)? + &lunar_target(served(disks, &self.luns));
        self.serve(program, &config)
    }

    /// Starts Lunar with a configuration.
    fn serve(&mut self, program: &Path, config: &str) -> Result<(), String> {
        let file = self.dir.join("lunar.toml");
        fs::write(&file, config).map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command.args(["serve", "--config"]).arg(&file).stdout(Stdio::piped());
        let stdout = self.spawn(&mut command)?.stdout().ok_or("the output of lunar serve is not readable")?;
        let (send, lines) = mpsc::channel();
        // Read to the end, so that the server never blocks.
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| drop(send.send(line)));
        });
        let end = Instant::now() + START;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = lines.recv_timeout(left).map_err(|_| self.said("the server did not become ready"))?;
            if line == "ready" {
                return Ok(());
            }
            if let Some(rest) = line.strip_prefix("listening on ") {
                let address = rest.split(',').next().unwrap_or(rest);
                self.portals.push(
                    address.parse().map_err(|e| format!("cannot parse the address in \"{line}\": {e}"))?,
                );
            }
        }
    }

    fn stgt(&mut self, disks: &[ServedDisk], portals: usize) -> Result<(), String> {
        self.portals = free_ports(Ipv4Addr::LOCALHOST.into(), portals)?;
        let listen: Vec<String> = self.portals.iter().map(|portal| format!("portal={portal}")).collect();
        let mut command = command("tgtd")?;
        command.args(["-f", "-C", "1", "--iscsi", &listen.join(",")]).stdout(Stdio::null());
        command.env("TGT_IPC_SOCKET", self.dir.join("tgt"));
        self.spawn(&mut command)?;
        self.until(|server| server.tgtadm("--op show --mode target").is_ok())?;
        self.tgtadm(&format!("--op new --mode target --tid 1 -T {TARGET}"))?;
        for (disk, lun) in served(disks, &self.luns) {
            let (path, kind) = match &disk.medium {
                DiskMedium::Null => (Path::new("/dev/null"), "--bstype null"),
                DiskMedium::Cached(path) => (path.as_path(), "--bstype rdwr"),
                DiskMedium::Direct(path) => (path.as_path(), "--bstype rdwr --bsoflags direct"),
            };
            let unit = format!("--op new --mode logicalunit --tid 1 --lun {lun} {kind} -b");
            self.tgtadm_of(&unit, Some(path))?;
        }
        // Bind last: until then, logins are rejected.
        self.tgtadm("--op bind --mode target --tid 1 -I ALL")
    }

    fn tgtadm(&self, words: &str) -> Result<(), String> {
        self.tgtadm_of(words, None)
    }

    fn tgtadm_of(&self, words: &str, path: Option<&Path>) -> Result<(), String> {
        let mut command = command("tgtadm")?;
        command.args(["-C", "1", "--lld", "iscsi"]).args(words.split_whitespace()).args(path);
        command.env("TGT_IPC_SOCKET", self.dir.join("tgt")).stdin(Stdio::null());
        let ran = command.output().map_err(|e| format!("cannot run tgtadm: {e}"))?;
        let said = || format!("tgtadm {words} failed: {}", String::from_utf8_lossy(&ran.stderr).trim());
        if ran.status.success() { Ok(()) } else { Err(said()) }
    }

    fn istgt(&mut self, disks: &[ServedDisk], portals: usize) -> Result<(), String> {
        self.portals = free_ports(Ipv4Addr::LOCALHOST.into(), portals)?;
        let (file, auth) = (self.dir.join("istgt.conf"), self.dir.join("auth.conf"));
        fs::write(&auth, "").map_err(|e| e.to_string())?;
        fs::write(&file, istgt_config(&self.dir, &self.portals, served(disks, &self.luns)))
            .map_err(|e| e.to_string())?;
        let mut command = command("istgt")?;
        command.args(["-D", "-q", "-c"]).arg(&file).stdout(Stdio::null());
        self.spawn(&mut command)?;
        let last = *self.portals.last().ok_or("istgt has no portal")?;
        self.until(|_| TcpStream::connect(last).is_ok())
    }

    fn spawn(&mut self, command: &mut Command) -> Result<&PeerProcess, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let log = fs::File::create(self.dir.join("log")).map_err(|e| e.to_string())?;
        // Other targets ignore SIGTERM while they have sessions.
        let patience = if matches!(self.peer, Peer::Lunar) { STOP } else { Duration::ZERO };
        let process = PeerProcess::start(command.stdin(Stdio::null()).stderr(log), patience);
        Ok(self.process.insert(process.map_err(|e| format!("cannot run {program}: {e}"))?))
    }

    fn until(&self, is_so: impl Fn(&PeerServer) -> bool) -> Result<(), String> {
        let end = Instant::now() + START;
        while !is_so(self) {
            let is_gone = self.process.as_ref().is_some_and(PeerProcess::is_gone);
            if is_gone || Instant::now() > end {
                return Err(self.said("the server did not become ready"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// An error with the last log line of the server.
    fn said(&self, what: &str) -> String {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        log.trim().lines().next_back().map_or(what.to_owned(), |line| format!("{what}: {line}"))
    }
}

/// The LUN of each disk, in order; None for disks that it cannot serve.
fn numbers(peer: &Peer, disks: &[ServedDisk]) -> Vec<Option<u16>> {
    let can = |disk: &ServedDisk| {
        let is_null = matches!(disk.medium, DiskMedium::Null);
        (!is_null || peer.has_null()) && (disk.bytes_per_s == 0 || matches!(peer, Peer::Lunar))
    };
    // STGT uses LUN 0 for a controller.
    let mut next = u16::from(matches!(peer, Peer::Stgt))..;
    disks.iter().map(|disk| if can(disk) { next.next() } else { None }).collect()
}

/// The served disks with their LUNs.
fn served<'a>(
    disks: &'a [ServedDisk],
    luns: &'a [Option<u16>],
) -> impl Iterator<Item = (&'a ServedDisk, u16)> {
    disks.iter().zip(luns).filter_map(|(disk, lun)| Some((disk, (*lun)?)))
}

/// A TOML string.
fn quoted(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}

fn lunar_head(dir: &Path, transport: &FabricTransport, portals: usize) -> Result<String, String> {
    let listen: Vec<String> =
        transport.addresses(portals)?.into_iter().map(|at| transport.portal(at)).collect();
    Ok(format!(
        "[server]\nstate_dir = {}\nadmin_socket = {}\n[[portal_group]]\ntag = 1\nportals = [{}]\n",
        quoted(dir),
        quoted(&dir.join("admin.sock")),
        listen.join(", ")
    ))
}

fn router_config((portal, transport): (SocketAddr, &FabricTransport), luns: &[Option<u16>]) -> String {
    let upstream = transport.url(portal, TARGET, None, "");
    let lun = |lun: &u16| format!("{{ lun = {lun}, upstream = \"disks\", from = {lun} }}");
    let luns: Vec<String> = luns.iter().flatten().map(lun).collect();
    format!(
        "[router.reproduce]\n[router.reproduce.upstream.disks]\nurls = [\"{upstream}\"]\n\
         [[router.reproduce.target]]\nmap = \"lun\"\nname = \"{TARGET}\"\naccess = \"all\"\nlun = [{}]\n",
        luns.join(", ")
    )
}

fn lunar_target<'a>(disks: impl Iterator<Item = (&'a ServedDisk, u16)>) -> String {
    let mut text = format!("[[target]]\nname = \"{TARGET}\"\n");
    for (disk, lun) in disks {
        text += &format!("[[target.lun]]\nlun = {lun}\n");
        text += &match &disk.medium {
            DiskMedium::Null => format!("backend = \"null\"\nsize = \"{}\"\n", disk.size),
            DiskMedium::Cached(path) => format!("{}direct = false\n", backend(path)),
            DiskMedium::Direct(path) => format!("{}direct = true\n", backend(path)),
        };
        if disk.bytes_per_s > 0 {
            text += &format!("filters = [{{ kind = \"rate\", bytes_per_s = {} }}]\n", disk.bytes_per_s);
        }
    }
    text
}

fn backend(path: &Path) -> String {
    let kind = if path.starts_with("/dev/loop") || is_device(path) { "device" } else { "file" };
    format!("backend = \"{kind}\"\npath = {}\n", quoted(path))
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

fn istgt_config<'a>(
    dir: &Path,
    portals: &[SocketAddr],
    disks: impl Iterator<Item = (&'a ServedDisk, u16)>,
) -> String {
    let mut text = format!(
        "[Global]\n  NodeBase \"iqn.2026-11.org.example\"\n  PidFile {0}/istgt.pid\n  AuthFile {0}/auth.conf\n  \
         MediaDirectory {0}\n  Timeout 30\n  NopInInterval 20\n  DiscoveryAuthMethod Auto\n  MaxSessions 16\n  \
         MaxConnections 4\n  MaxR2T 32\n  MaxOutstandingR2T 16\n  DefaultTime2Wait 2\n  DefaultTime2Retain 60\n  \
         FirstBurstLength 262144\n  MaxBurstLength 1048576\n  MaxRecvDataSegmentLength 262144\n  InitialR2T Yes\n  \
         ImmediateData Yes\n  DataPDUInOrder Yes\n  DataSequenceInOrder Yes\n  ErrorRecoveryLevel 0\n\
         [UnitControl]\n  AuthMethod Auto\n  AuthGroup None\n[PortalGroup1]\n",
        dir.display()
    );
    for (at, portal) in portals.iter().enumerate() {
        text += &format!("  Portal P{at} {portal}\n");
    }
    text += &format!(
        "[InitiatorGroup1]\n  InitiatorName \"ALL\"\n  Netmask 127.0.0.1\n[LogicalUnit1]\n  TargetName {TARGET}\n  \
         Mapping PortalGroup1 InitiatorGroup1\n  AuthMethod None\n  UseDigest Auto\n  UnitType Disk\n"
    );
    for (disk, lun) in disks {
        if let Some(path) = disk.path() {
            text += &format!("  LUN{lun} Storage {} Auto\n", path.display());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::RdmaProvider;
    use lunar_bench::TargetTransport;

    #[test]
    fn path_with_quotes_is_escaped_in_configuration() {
        let path = PathBuf::from("/tmp/a \"b\"\nc");
        let disk =
            ServedDisk { bytes_per_s: 5, ..ServedDisk::new(DiskMedium::Cached(path.clone()), 1 << 20) };
        let text = lunar_head(&path, &FabricTransport::tcp(), 2).expect("a head")
            + &lunar_target([(&disk, 0)].into_iter());
        let table: toml::Table = text.parse().expect("TOML");
        assert_eq!(table["server"]["state_dir"].as_str(), Some(path.display().to_string().as_str()));
        let lun = &table["target"][0]["lun"][0];
        assert_eq!(lun["path"].as_str(), Some(path.display().to_string().as_str()));
        assert_eq!(lun["filters"][0]["bytes_per_s"].as_integer(), Some(5));
    }

    #[test]
    fn router_has_the_luns_of_its_target() {
        let portal = SocketAddr::from(([127, 0, 0, 1], 3260));
        for transport in [TargetTransport::Tcp, TargetTransport::Iser, TargetTransport::Srp] {
            let provider = (transport != TargetTransport::Tcp).then_some(RdmaProvider::Iwarp);
            let transport = FabricTransport::of(transport, provider).expect("a carrier");
            let text = lunar_head(Path::new("/tmp"), &transport, 1).expect("a head")
                + &router_config((portal, &transport), &[Some(1), None, Some(2)]);
            let table: toml::Table = text.parse().expect("TOML");
            let router = &table["router"]["reproduce"];
            let url = transport.url(portal, TARGET, None, "");
            assert_eq!(router["upstream"]["disks"]["urls"][0].as_str(), Some(url.as_str()));
            let luns = router["target"][0]["lun"].as_array().expect("logical units");
            let numbers = luns.iter().map(|lun| (lun["lun"].as_integer(), lun["from"].as_integer()));
            assert_eq!(numbers.collect::<Vec<_>>(), [(Some(1), Some(1)), (Some(2), Some(2))]);
        }
    }

    #[test]
    fn router_needs_a_target_started_here() {
        let dir = || WorkDir::below(&std::env::temp_dir()).expect("a folder");
        let target = TargetSpec::parse("iscsi://127.0.0.1:9/iqn.2026-11.org.example:x/0").expect("a URL");
        let running = PeerServer::start(
            &Peer::Running(target),
            Path::new("lunar"),
            &[],
            (1, &FabricTransport::tcp()),
            dir(),
        );
        let refused = PeerServer::start_router(
            Path::new("lunar"),
            &running.expect("the server runs"),
            &FabricTransport::tcp(),
            dir(),
        );
        assert!(refused.is_err_and(|why| why.contains("not started by this command")));
    }

    #[test]
    fn missing_package_is_named() {
        assert_eq!(Peer::Stgt.missing_from(&[]), Some("stgt is not installed: apt install tgt"));
        assert_eq!(Peer::Istgt.missing_from(&[]), Some("istgt is not installed: apt install istgt"));
        assert_eq!(Peer::Lunar.missing_from(&[]), None);
    }

    #[test]
    fn version_of_installed_peer_is_read() {
        assert_eq!(first_line(Command::new("sh").args(["-c", "echo; exit 0"])), None);
        assert_eq!(first_line(Command::new("sh").args(["-c", "echo 1.0; exit 1"])), None);
        assert_eq!(Peer::Lunar.version(), None);
        for (peer, name) in [(Peer::Stgt, "tgtd "), (Peer::Istgt, "istgt ")] {
            let is_complete =
                |version: String| version.starts_with(name) && version.contains(|c: char| c.is_ascii_digit());
            assert_eq!(peer.version().map(is_complete), peer.missing().is_none().then_some(true), "{name}");
        }
    }

    #[test]
    fn peers_number_their_luns_and_skip_unsupported_disks() {
        let null = ServedDisk::new(DiskMedium::Null, 1);
        let file = ServedDisk::new(DiskMedium::Cached("x".into()), 1);
        let slow = ServedDisk { bytes_per_s: 1, ..file.clone() };
        let disks = [null, slow, file];
        assert_eq!(numbers(&Peer::Lunar, &disks), [Some(0), Some(1), Some(2)]);
        assert_eq!(numbers(&Peer::Stgt, &disks), [Some(1), None, Some(2)]);
        assert_eq!(numbers(&Peer::Istgt, &disks), [None, None, Some(0)]);
    }
}
