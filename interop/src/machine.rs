//! systemd as process 1 of its own namespaces. Its root folder is a copy-on-write copy of the one of this host, so a test
//! can install packages, and change nothing here.

use crate::server::Folder;
use crate::tool::{self, Tool, ToolOutput};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const TOOLS: [Tool; 3] = [
    Tool { program: "systemctl", package: "systemd" },
    Tool { program: "unshare", package: "util-linux" },
    Tool { program: "ip", package: "iproute2" },
];
/// The trees of control groups: of both versions, or of version 2 alone.
const TREES: [&str; 3] = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

const INIT: &str = include_str!("../lab/machine.sh");
/// Units that replace those of the host, so that nothing but the service starts.
const UNITS: [&str; 2] = ["test.target", "network-online.target"];

/// A running systemd. Dropping it ends all its processes.
pub struct Machine {
    child: Child,
    dir: Folder,
    group: String,
}

impl Machine {
    /// Boots with these files more, by their paths below `/`, and with the tested program if it is given. None: not
    /// possible here, which is printed.
    pub fn start(files: &[(&str, &str)], program: Option<&Path>) -> Option<Machine> {
        if !tool::have(&TOOLS) {
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = Folder::fresh();
        let write = |path: &str, text: &str| {
            let path = dir.join("root").join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("write");
        };
        files.iter().for_each(|(path, text)| write(path, text));
        let empty = "[Unit]\nDefaultDependencies=no\n";
        UNITS.iter().for_each(|unit| write(&format!("etc/systemd/system/{unit}"), empty));
        write("etc/systemd/system/lunar.service.d/test.conf", empty);
        let log = fs::File::create(dir.join("log")).expect("a log");
        let group = format!("lunar-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", INIT, "sh"])
            .arg(dir.join("root"))
            .arg(program.unwrap_or(Path::new("")))
            .args([&group, "--net"]);
        let errors = log.try_clone().expect("a log");
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("sh");
        let mut machine = Machine { child, dir, group };
        let end = Instant::now() + LIMIT;
        loop {
            let state = machine.run(&["systemctl", "is-system-running"]).said;
            if state.contains("running") || state.contains("degraded") {
                return Some(machine);
            }
            if machine.child.try_wait().expect("a child").is_some() || Instant::now() > end {
                let log = fs::read_to_string(machine.dir.join("log")).unwrap_or_default();
                println!("skipped: needs systemd in namespaces: {}", log.replace('\n', " "));
                return None;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The process id of systemd.
    fn pid(&self) -> Option<String> {
        let shell = self.child.id();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    }

    /// Runs a command in the machine, as root.
    pub fn run(&self, words: &[&str]) -> ToolOutput {
        let Some(pid) = self.pid() else { return ToolOutput { status: None, said: String::new() } };
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid, "--mount", "--pid", "--net", "--ipc", "--uts"]).args(words);
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("LUNAR_RUN_DIR");
        tool::run(command.env("XDG_RUNTIME_DIR", "/tmp/elsewhere"), LIMIT)
    }

    /// Runs a command that must succeed, and returns its output.
    pub fn must(&self, words: &[&str]) -> String {
        let ran = self.run(words);
        assert!(ran.ok(), "{words:?}: {}", ran.said);
        ran.said
    }

    /// Runs a shell script that must succeed, and returns its output.
    pub fn shell(&self, script: &str) -> String {
        self.must(&["/bin/sh", "-ec", script])
    }

    /// A property of lunar.service.
    pub fn property(&self, name: &str) -> String {
        self.must(&["systemctl", "show", "--value", "--property", name, "lunar.service"]).trim().to_owned()
    }

    /// Writes the configuration of the service.
    pub fn configure(&self, text: &str) {
        self.shell(&format!("cat >/etc/lunar/lunar.toml <<'END'\n{text}\nEND"));
    }

    /// Copies a file of the host into `/run` of the machine.
    pub fn copy(&self, file: &Path, name: &str) {
        let pid = self.pid().expect("the machine runs");
        let to = format!("/proc/{pid}/root/run/{name}");
        fs::copy(file, &to).unwrap_or_else(|error| panic!("{} to {to}: {error}", file.display()));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // `unshare --kill-child` ends systemd, and with it all other processes.
        let _ = self.child.kill();
        let _ = self.child.wait();
        TREES.iter().for_each(|tree| remove_groups(&Path::new(tree).join(&self.group)));
    }
}

/// Removes a control group and those in it. They are busy until their processes have ended.
fn remove_groups(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    for _ in 0..50 {
        if !group.exists() || fs::remove_dir(group).is_ok() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
