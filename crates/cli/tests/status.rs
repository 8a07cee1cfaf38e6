//! Exit statuses and hints of commands that cannot do what they are asked, as docs/use.md lists them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const NAME: &str = "iqn.2026-11.org.example:a";

/// A folder with a random file `data` and a wrong configuration `bad.toml`; it goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lunar-status-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("dir")).unwrap();
        fs::write(path.join("data"), [7; 8192]).unwrap();
        fs::write(path.join("bad.toml"), "[sever]\n").unwrap();
        Folder(path)
    }

    fn lunar(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunar"));
        command.args(args.split_whitespace()).current_dir(&self.0).stdin(Stdio::null());
        command
            .env("XDG_STATE_HOME", &self.0)
            .env("XDG_RUNTIME_DIR", &self.0)
            .env("XDG_CONFIG_HOME", &self.0);
        command.env("LUNAR_RUN_DIR", self.0.join("run")).env_remove("LUNAR_LOG");
        command
    }

    /// Ends with this status, prints nothing on stdout, and has these words on stderr.
    fn ends(&self, status: i32, args: &str, words: &str) {
        let ended = self.lunar(args).output().unwrap();
        let [out, err] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!((ended.status.code(), out.as_str()), (Some(status), ""), "{args}: {err}");
        assert!(err.contains("error: ") && err.contains("hint: ") && err.contains(words), "{args}: {err}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// A server, and the address of its portal.
struct Server(Child, String);

impl Server {
    fn start(folder: &Folder, args: &str) -> Server {
        let mut command = folder.lunar(&format!("serve {args} --listen 127.0.0.1:0"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| line != "ready").collect();
        let address = lines[0].split([' ', ',']).nth(2).unwrap().to_owned();
        Server(child, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn wrong_input_ends_with_the_status_of_the_table() {
    let folder = Folder::new("input");
    for (status, args, words) in [
        (7, "ls foo/bar", ""),
        (7, "discover iqn.2026-11.org.example:a", "iscsi://HOST/iqn.2026-11.org.example:a"),
        (4, "ls 127.0.0.1:1", "is the port open"),
        (21, "check none.toml", "cannot read the configuration"),
        (7, "check dir", "is a directory"),
        (1, "check bad.toml", "unknown key"),
        (21, "serve --config none.toml", "none.toml"),
        (7, "serve dir", "is a directory"),
        (7, "serve null:1M --cores 999 --listen 127.0.0.1:0", "999 cores"),
        (7, "man srve", "no command"),
        (21, "copy none x", "No such file"),
        (21, "copy data none/x", "No such file"),
        (21, "copy data x --journal none/j", "--journal FILE"),
        (4, "copy nbd://127.0.0.1:1/x x", "Connection refused"),
        (21, "bench read none", "No such file"),
        (7, "bench read dir", "directory"),
        (4, "bench read nbd://127.0.0.1:1/x", "Connection refused"),
        (7, "bench randraed null:1G", "did you mean randread?"),
        (4, "session list", "no server answers"),
        (4, "router list --socket none", "no server answers"),
        (4, "apply bad.toml", "no server answers"),
        (21, "attach none", "no saved attachment"),
        (21, "detach none", "is not attached"),
    ] {
        folder.ends(status, args, words);
    }
}

#[test]
fn wrong_names_at_a_server_end_with_their_status() {
    let folder = Folder::new("names");
    let server = Server::start(&folder, &format!("null:16M --target {NAME}"));
    let portal = &server.1;
    let lists = format!("lunar ls {portal} lists the targets and LUNs");
    folder.ends(21, &format!("ls iscsi://{portal}/iqn.2026-11.org.example:b"), &lists);
    folder.ends(21, &format!("pr iscsi://{portal}/{NAME}/9 read-keys"), &lists);
    folder.ends(28, &format!("serve null:1M --listen {portal}"), "something listens there already");
    folder.ends(21, "session show 99", "there is no session 99");
    folder.ends(21, "router drain x", "there is no router x");
    folder.ends(21, "diff none.toml", "cannot read the configuration");
    folder.ends(21, "apply none.toml", "cannot read the configuration");
}

#[test]
fn full_stdout_ends_with_status_1() {
    let folder = Folder::new("full");
    for args in ["man", "completions bash", "check --help", "bench read null:1M --runtime 10ms --json"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = folder.lunar(args).stdout(full).output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(1) && err.contains("cannot write to stdout"), "{args}: {err}");
    }
}

/// The client has few descriptors: its own limit is at fault, not the target.
#[test]
fn client_without_descriptors_names_its_limit() {
    let folder = Folder::new("descriptors");
    let server = Server::start(&folder, &format!("null:16M --target {NAME}"));
    let url = format!("iscsi://{}/{NAME}/0", server.1);
    let script = format!("ulimit -n 24; exec {} bench read {url} --sessions 64", env!("CARGO_BIN_EXE_lunar"));
    let ended = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && err.contains("Too many open files"), "{err}");
    assert!(err.contains("hint: no file descriptor is left") && err.contains("ulimit -n"), "{err}");
}

/// A user without a home and without the folders of a login.
#[test]
fn hint_without_home_names_an_option_of_the_command() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = Folder::new("home");
    let program = folder.0.join("lunar");
    fs::copy(env!("CARGO_BIN_EXE_lunar"), &program).unwrap();
    for (args, hint) in [
        ("serve null:1M", "set XDG_STATE_HOME"),
        ("session list", "--socket"),
        ("router list", "--socket"),
        ("attached", "LUNAR_RUN_DIR"),
        ("detach x", "LUNAR_RUN_DIR"),
        ("attach x", "XDG_CONFIG_HOME"),
    ] {
        let mut command = Command::new(&program);
        command.args(args.split_whitespace()).current_dir("/").env_clear().uid(65534).gid(65534);
        let ended = command.output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(1) && err.contains("nor HOME is set"), "{args}: {err}");
        assert!(err.split("hint: ").nth(1).is_some_and(|told| told.contains(hint)), "{args}: {err}");
    }
}

#[test]
fn exposed_portals_and_targets_are_warned_of() {
    let folder = Folder::new("exposed");
    let text = "[server]\nstate_dir = \"state\"\nadmin_socket = \"a.sock\"\n[[portal_group]]\ntag = 1\n\
        portals = [\"[::]:0\"]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nlun = 0\n\
        backend = \"null\"\nsize = \"1M\"\n";
    fs::write(folder.0.join("t.toml"), text).unwrap();
    for args in ["check t.toml", "serve --config t.toml --run true"] {
        let ended = folder.lunar(args).output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{args}: {err}");
        for words in
            ["takes IPv6 alone", "every host that reaches a portal can use iqn.2026-11.org.example:a"]
        {
            assert!(err.contains(words), "{args}: {err}");
        }
    }
}
