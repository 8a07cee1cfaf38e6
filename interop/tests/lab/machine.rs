//! The guest, which scenarios share one after the other.
//!
//! A guest is used again if the previous scenario passed and the guest reports that nothing of it is left. Otherwise
//! the next scenario gets a new guest, so a failure does not affect other scenarios.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use interop::tool;

/// Scenarios in one guest at most, so that what they leave in the kernel's memory stays bounded.
const SCENARIOS: u32 = 7;
/// Time limit of a guest's cleanup. A guest that needs longer is not used again.
const TIDY: Duration = Duration::from_secs(60);
const SETUP: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(50);

/// A place for each guest that may run at a time. The emulator uses one processor of the host for a guest.
static GUESTS: [Mutex<Option<Machine>>; 2] = [const { Mutex::new(None) }; 2];

type Place = MutexGuard<'static, Option<Machine>>;

/// The features of the guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind {
    Plain,
    Rdma,
}

impl GuestKind {
    /// The command of the lab that prepares it.
    fn setup(self) -> &'static str {
        match self {
            GuestKind::Plain => "setup",
            GuestKind::Rdma => "siw",
        }
    }

    /// Whether a guest of this kind can run scenarios that need `other`.
    fn includes(self, other: GuestKind) -> bool {
        self == other || self == GuestKind::Rdma
    }
}

/// A guest, which ends when this is dropped, and with this process.
struct Machine {
    kind: GuestKind,
    child: Child,
    /// The guest ends when this is closed.
    _life: ChildStdin,
    /// Its run directory
    dir: PathBuf,
    jobs: u32,
}

impl Machine {
    fn boot(kind: GuestKind) -> Machine {
        let setup = tool::run(Command::new(script()).arg(kind.setup()), SETUP);
        assert!(setup.ok(), "lab {}: {}", kind.setup(), setup.said);
        let mut command = Command::new(script());
        let mut child =
            command.arg("guest").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the lab");
        let (life, out) = child.stdin.take().zip(child.stdout.take()).expect("piped");
        let mut dir = String::new();
        BufReader::new(out).read_line(&mut dir).expect("the lab's first line");
        assert!(!dir.is_empty(), "the lab has not started");
        Machine { kind, child, _life: life, dir: PathBuf::from(dir.trim_end()), jobs: 0 }
    }

    fn job(&self, number: u32) -> PathBuf {
        self.dir.join("share").join(number.to_string())
    }

    /// Its console and QEMU's log, which may contain the reason of its death.
    fn last_words(&self) -> String {
        let read = |name: &&str| {
            let bytes = fs::read(self.dir.join(name)).unwrap_or_default();
            format!("\n{name}: {}", String::from_utf8_lossy(&bytes).trim())
        };
        ["console", "qemu.log"].iter().map(read).collect()
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Whether it can run one more scenario. Prints the reason if the previous one left something.
    fn is_fit_for(&mut self, kind: GuestKind) -> bool {
        if !self.kind.includes(kind) || self.jobs >= SCENARIOS {
            return false;
        }
        let (left, end) = (self.job(self.jobs).join("left"), Instant::now() + TIDY);
        while self.is_running() && Instant::now() < end {
            match fs::read_to_string(&left) {
                Ok(what) if what.is_empty() => return true,
                Ok(what) => {
                    println!("a new guest, because the scenario before left: {}", what.trim_end());
                    return false;
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
        println!("a new guest, because that before does not answer");
        false
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The script's trap ends QEMU.
        let _ = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/lab")
}

/// Exclusive use of the guest for one test. Dropping it ends the guest, unless [`Lab::keep`] is called.
pub struct Lab {
    place: Place,
    kind: GuestKind,
    is_kept: bool,
}

/// A scenario in the guest, by its number there.
#[derive(Clone, Copy, Debug)]
pub struct ScenarioId(u32);

/// How a scenario ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScenarioResult {
    Status(i32),
    /// The guest died first.
    Guest,
    /// It exceeded its time limit.
    Late,
}

impl Lab {
    /// Waits until no other test uses the guest.
    pub fn take(kind: GuestKind) -> Lab {
        loop {
            if let Some(place) = free_places().into_iter().min_by_key(|place| cost(place, kind)) {
                return Lab { place, kind, is_kept: true };
            }
            thread::sleep(LOOK);
        }
    }

    /// Ends the guest.
    pub fn discard_guest(&mut self) {
        *self.place = None;
    }

    fn machine(&mut self) -> &mut Machine {
        self.place.as_mut().expect("a scenario was started")
    }

    /// Starts a scenario in the guest, or in a new one if the guest cannot run it.
    pub fn start(&mut self, scenario: &str, variables: &[(&str, &str)]) -> ScenarioId {
        let kind = self.kind;
        if !self.place.as_mut().is_some_and(|machine| machine.is_fit_for(kind)) {
            self.discard_guest(); // the old one ends first
            *self.place = Some(Machine::boot(kind));
        }
        self.is_kept = false;
        self.clear_requests();
        let machine = self.machine();
        machine.jobs += 1;
        write_job(&machine.job(machine.jobs), scenario, variables);
        ScenarioId(machine.jobs)
    }

    /// Removes the requests of the previous scenario.
    fn clear_requests(&mut self) {
        let is_request = |path: &Path| path.extension().is_some_and(|end| end == "wanted" || end == "done");
        let entries = fs::read_dir(self.share()).expect("the guest's folder").flatten();
        entries.map(|entry| entry.path()).filter(|path| is_request(path)).for_each(|path| {
            fs::remove_file(path).expect("remove a request of the previous scenario");
        });
    }

    /// The folder that the host and the guest share.
    pub fn share(&mut self) -> PathBuf {
        self.machine().dir.join("share")
    }

    /// The result of the scenario, if it has ended.
    pub fn ended(&mut self, job: &ScenarioId) -> Option<ScenarioResult> {
        let machine = self.machine();
        let is_running = machine.is_running(); // read before the status, which the guest may write just before it ends
        match fs::read_to_string(machine.job(job.0).join("status")) {
            Ok(status) => Some(ScenarioResult::Status(status.trim().parse().unwrap_or(-1))),
            Err(_) => (!is_running).then_some(ScenarioResult::Guest),
        }
    }

    /// Waits until the scenario has ended, up to a limit.
    pub fn wait(&mut self, job: &ScenarioId, limit: Duration) -> ScenarioResult {
        let end = Instant::now() + limit;
        loop {
            match self.ended(job) {
                Some(ended) => return ended,
                None if Instant::now() > end => return ScenarioResult::Late,
                None => thread::sleep(LOOK),
            }
        }
    }

    /// Output of the scenario, and complaints of the kernel.
    pub fn log(&mut self, job: &ScenarioId) -> String {
        let at = self.machine().job(job.0);
        let read =
            |name: &str| fs::read(at.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let is_complaint =
            |line: &&str| ["BUG:", "Oops", "general protection", "WARNING:"].iter().any(|c| line.contains(c));
        let dmesg = read("dmesg").unwrap_or_default();
        let complaints: String =
            dmesg.lines().filter(is_complaint).map(|line| format!("\nkernel: {line}")).collect();
        let last = if self.machine().is_running() { String::new() } else { self.machine().last_words() };
        read("log").unwrap_or_default() + &complaints + &last
    }

    /// Keeps the guest for another scenario, because this one passed.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.is_kept {
            self.discard_guest();
        }
    }
}

fn free_places() -> Vec<Place> {
    let lock = |guest: &'static Mutex<Option<Machine>>| match guest.try_lock() {
        Ok(place) => Some(place),
        Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    GUESTS.iter().filter_map(lock).collect()
}

/// A guest that can be used costs nothing, a guest that must end first costs most.
fn cost(place: &Place, kind: GuestKind) -> u32 {
    match place.as_ref() {
        Some(machine) if machine.kind.includes(kind) && machine.jobs < SCENARIOS => 0,
        None => 1,
        Some(_) => 2,
    }
}

/// The files of a job, in the order that the head of `lab` names.
fn write_job(at: &Path, scenario: &str, variables: &[(&str, &str)]) {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/scenarios").join(format!("{scenario}.sh"));
    let environment: String =
        variables.iter().map(|(name, value)| format!("{name}={}\n", quoted(value))).collect();
    fs::create_dir(at).expect("a folder for the scenario");
    fs::write(at.join("environment"), environment).expect("the environment");
    fs::write(at.join("command"), format!("exec bash {}\n", quoted(&path.display().to_string())))
        .expect("the command");
    fs::write(at.join("go"), "").expect("the start");
}
