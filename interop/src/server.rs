//! `lunar serve` as a child process.

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Time limit of a start or a stop.
const START: Duration = Duration::from_secs(60);

/// Sends SIGSTOP, and waits until all threads have stopped. Until then, the process still sends responses.
pub fn pause(child: &Child) {
    kill_process(Pid::from_child(child), Signal::STOP).expect("the process lives");
    let end = Instant::now() + START;
    while !is_paused(child.id()) {
        assert!(Instant::now() < end, "the process does not stop");
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_paused(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    // The state follows the name, which is in parentheses.
    let is_stopped = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
    tasks.flatten().all(|task| fs::read_to_string(task.path().join("stat")).is_ok_and(is_stopped))
}

static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program under test for the whole process. Only the first call has an effect.
pub fn choose_lunar(path: PathBuf) {
    let _ = CHOSEN.set(path);
}

/// The program under test: that of [`choose_lunar`], else `$LUNAR_BIN`, else the result of `cargo build`.
pub fn lunar_bin() -> PathBuf {
    if let Some(path) = CHOSEN.get() {
        return path.clone();
    }
    if let Some(path) = std::env::var_os("LUNAR_BIN") {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).unwrap_or_else(|| root.join("target"));
    let bin = target.join("debug/lunar");
    assert!(bin.exists(), "{} is missing; build it: cargo build -p lunar", bin.display());
    bin
}

/// A new folder in the temporary folder of the system. Dropping it removes the folder.
pub struct Folder {
    path: PathBuf,
    is_kept: bool,
}

impl Folder {
    /// Makes the folder.
    pub fn fresh() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lunar-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a temporary folder");
        Folder { path: dir, is_kept: false }
    }

    /// Makes the folder at this path. The caller removes it.
    pub fn kept(path: PathBuf) -> Folder {
        fs::create_dir_all(&path).expect("a folder");
        Folder { path, is_kept: true }
    }
}

impl std::ops::Deref for Folder {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A running server. Dropping it kills the process and removes the folder.
pub struct Server {
    child: Child,
    dir: Folder,
    toml: String,
    portals: Vec<SocketAddr>,
    /// The command that runs the server, or nothing.
    runner: Vec<OsString>,
}

impl Server {
    /// Starts a server with this configuration, and waits until it is ready. Portals should have port 0. The
    /// configuration file is in a new folder, which is also the state folder unless the text names another.
    pub fn start(toml: &str) -> Server {
        Server::start_in(Folder::fresh(), toml)
    }

    /// As [`Server::start`], in an existing folder, which may contain files that the configuration names.
    pub fn start_in(dir: Folder, toml: &str) -> Server {
        let toml = with_free_ports(&with_state(toml, &dir));
        let (child, portals) = spawn(&dir, &toml).unwrap_or_else(|why| panic!("{why}\n{}", log(&dir)));
        Server { child, dir, toml, portals, runner: Vec::new() }
    }

    /// As [`Server::start_in`], by a command that runs another one, such as `nsenter`.
    pub fn start_by(command: Command, dir: Folder, toml: &str) -> Server {
        let toml = with_free_ports(&with_state(toml, &dir));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let runner: Vec<OsString> = words.map(OsString::from).collect();
        let (child, portals) =
            spawn_by(serve(&runner), &dir, &toml).unwrap_or_else(|why| panic!("{why}\n{}", log(&dir)));
        Server { child, dir, toml, portals, runner }
    }

    /// As [`Server::start`], by a shell. `prelude` runs before the command, for example to set limits. `redirections` follow
    /// the command. $1 is the path of the configuration. A restart uses no shell.
    pub fn start_by_shell(toml: &str, prelude: &str, redirections: &str) -> Server {
        Server::try_by_shell(toml, prelude, redirections).unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`start_by_shell`](Self::start_by_shell), with the reason and the log if the server does not start.
    pub fn try_by_shell(toml: &str, prelude: &str, redirections: &str) -> Result<Server, String> {
        let dir = Folder::fresh();
        let toml = with_free_ports(&with_state(toml, &dir));
        let script = format!("{prelude}\nexec \"$0\" serve --config \"$1\" {redirections}");
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(script).arg(lunar_bin());
        let (child, portals) = spawn_by(shell, &dir, &toml).map_err(|why| format!("{why}\n{}", log(&dir)))?;
        Ok(Server { child, dir, toml, portals, runner: Vec::new() })
    }

    /// Starts a server with a configuration that it must reject. Returns its stderr.
    pub fn refused(dir: &Path, toml: &str) -> String {
        let toml = with_state(toml, dir);
        if let Ok((mut child, _)) = spawn(dir, &toml) {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the server started with\n{toml}");
        }
        log(dir)
    }

    /// The address of the first portal.
    pub fn portal(&self) -> SocketAddr {
        self.portals[0]
    }

    /// The addresses of all portals, in the order of the configuration.
    pub fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    /// The folder of configuration, state and log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in KiB.
    pub fn rss_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the server lives");
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    }

    /// Whether the process runs.
    pub fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The stderr of the server up to now.
    pub fn log(&self) -> String {
        log(&self.dir)
    }

    /// Kills the process with SIGKILL.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal by its number.
    pub fn signal(&self, number: i32) {
        let signal = Signal::from_named_raw(number).expect("a signal");
        kill_process(Pid::from_child(&self.child), signal).expect("the server lives");
    }

    /// As [`pause`].
    pub fn pause(&self) {
        pause(&self.child);
    }

    /// Resumes the process after [`Server::pause`].
    pub fn resume(&self) {
        self.signal(Signal::CONT.as_raw());
    }

    /// Replaces the configuration file, and sends no signal. Ports that were 0 keep the numbers that the server was given.
    pub fn rewrite(&mut self, toml: &str) {
        self.toml = with_ports(&with_state(toml, &self.dir), &self.portals);
        // Replaced by rename, because the server may read the file after an earlier signal.
        let (new, place) = (self.dir.join("lunar.toml.new"), self.dir.join("lunar.toml"));
        fs::write(&new, &self.toml).and_then(|()| fs::rename(&new, &place)).expect("write lunar.toml");
    }

    /// Kills the server if necessary, and starts it again with the same ports and state.
    pub fn restart(&mut self) {
        self.kill9();
        let (child, portals) = spawn_by(serve(&self.runner), &self.dir, &self.toml)
            .unwrap_or_else(|why| panic!("{why}\n{}", self.log()));
        assert_eq!(portals, self.portals, "the ports changed");
        self.child = child;
    }

    /// Sends SIGTERM, and waits for the end of the process.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(15);
        self.wait(Duration::from_secs(20))
    }

    /// Waits until the process ends.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the server did not end within {limit:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the server's log ---\n{}", self.log());
        }
        self.kill9();
    }
}

/// A server with the standard configuration. Tests that run at the same time share it.
pub struct Shared(Arc<Server>);

impl std::ops::Deref for Shared {
    type Target = Server;
    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the shared server's log ---\n{}", self.log());
        }
    }
}

/// The shared server with [`crate::config::standard`]. The last test that uses it drops it. A static would never be dropped,
/// and its process would stay.
pub fn shared() -> Shared {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut server = SERVER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let running = server.upgrade().unwrap_or_else(|| Arc::new(Server::start(&crate::config::standard())));
    *server = Arc::downgrade(&running);
    Shared(running)
}

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("stderr")).unwrap_or_default()
}

fn with_state(toml: &str, dir: &Path) -> String {
    let missing = |key: &str| !toml.lines().any(|l| l.trim_start().starts_with(key));
    let mut keys = String::new();
    for (key, file) in [("state_dir", ""), ("admin_socket", "admin.sock")] {
        if missing(key) {
            keys += &format!("{key} = \"{}\"\n", dir.join(file).display());
        }
    }
    match toml.contains("[server]\n") {
        true => toml.replacen("[server]\n", &format!("[server]\n{keys}"), 1),
        false => format!("[server]\n{keys}{toml}"),
    }
}

const ANY: &str = ":0\"";

fn with_free_ports(toml: &str) -> String {
    toml.matches(ANY).fold(toml.to_string(), |text, _| with_port(&text, crate::ports::free()))
}

fn with_ports(toml: &str, portals: &[SocketAddr]) -> String {
    portals.iter().fold(toml.to_string(), |text, portal| with_port(&text, portal.port()))
}

fn with_port(toml: &str, port: u16) -> String {
    toml.replacen(ANY, &format!(":{port}\""), 1)
}

fn spawn(dir: &Path, toml: &str) -> Result<(Child, Vec<SocketAddr>), String> {
    spawn_by(serve(&[]), dir, toml)
}

/// `lunar serve --config`, run by another command unless that is empty.
fn serve(runner: &[OsString]) -> Command {
    let mut words = runner.iter().cloned().chain([lunar_bin().into(), "serve".into(), "--config".into()]);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    command
}

/// Starts a command whose last argument is the configuration.
fn spawn_by(mut command: Command, dir: &Path, toml: &str) -> Result<(Child, Vec<SocketAddr>), String> {
    let file = dir.join("lunar.toml");
    fs::write(&file, toml).expect("write lunar.toml");
    let stderr = fs::File::options().create(true).append(true).open(dir.join("stderr")).expect("a log");
    command.arg(&file).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().expect("start lunar");
    let portals = wait_ready(&mut child);
    if portals.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    portals.map(|portals| (child, portals))
}

/// Reads the stdout of `lunar serve` up to `ready`, and returns the addresses of all portals. The error is the reason why the
/// server is not ready. A thread reads the rest, so that the server never blocks on stdout.
pub fn wait_ready(child: &mut Child) -> Result<Vec<SocketAddr>, String> {
    let stdout = child.stdout.take().expect("piped");
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|l| drop(send.send(l)))
    });
    let (mut portals, end) = (Vec::new(), Instant::now() + START);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let line = lines
            .recv_timeout(left)
            .map_err(|_| "the server ended or hung before it was ready".to_string())?;
        if line == "ready" {
            return if portals.is_empty() { Err("no `listening on` line".into()) } else { Ok(portals) };
        }
        if let Some(rest) = line.strip_prefix("listening on ") {
            let address = rest.split(',').next().unwrap_or(rest);
            portals.push(address.parse().map_err(|e| format!("{line}: {e}"))?);
        }
    }
}
