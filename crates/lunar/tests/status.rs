//! Exit statuses and hints of commands that fail, as docs/use.md lists them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const NAME: &str = "iqn.2026-11.org.example:a";

/// A folder with a file `data` and an invalid configuration `bad.toml`, removed on drop.
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
        command.env("XDG_STATE_HOME", &self.0).env("XDG_CONFIG_HOME", &self.0);
        command.env("LUNAR_RUN_DIR", self.0.join("run")).env_remove("LUNAR_LOG");
        command
    }

    /// The command must end with this status, print nothing on stdout, and print these words on stderr.
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
    let secret = "[[chap_user]]\nname = \"ann\"\nsecret_file = \"none\"\n";
    fs::write(folder.0.join("secret.toml"), secret).unwrap();
    for (status, args, words) in [
        (7, "ls foo/bar", ""),
        (7, "discover iqn.2026-11.org.example:a", "iscsi://HOST/iqn.2026-11.org.example:a"),
        (4, "ls 127.0.0.1:1", "the port is open"),
        (21, "check none.toml", "cannot read the configuration"),
        (7, "check dir", "is a directory"),
        (1, "check bad.toml", "unknown key"),
        (21, "serve --config none.toml", "none.toml"),
        (7, "serve dir", "is a directory"),
        (21, "check secret.toml", "no such file or directory"),
        (21, "info iscsi://ann@127.0.0.1:1/x/0?password_file=none", "no such file or directory"),
        (7, "attach ./none", "cannot be the name of an attachment"),
        (7, "info dir/none", "\"dir/none\" is not"),
        (7, "serve null:1M --listen 127.0.0.1:70000", "the port 70000 is out of range 0 to 65535"),
        (7, "ls 127.0.0.1:70000", "the port \"70000\" is out of range: use 1 to 65535"),
        (7, "serve null:1M --cores 999 --listen 127.0.0.1:0", "999 cores"),
        (7, "man srve", "no command"),
        (21, "copy none x", "no such file"),
        (21, "copy data none/x", "no such file"),
        (21, "copy data x --journal none/j", "--journal FILE"),
        (4, "copy nbd://127.0.0.1:1/x x", "connection refused"),
        (21, "bench read none", "no such file"),
        (7, "bench read dir", "directory"),
        (4, "bench read nbd://127.0.0.1:1/x", "connection refused"),
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

/// The status of each command for a missing file, for a wrong file type, and for an excessive number.
#[test]
fn each_command_ends_with_one_status_for_each_mistake() {
    let folder = Folder::new("walk");
    let lun = |file: &str, keys: &str, path: &str| {
        let text = format!(
            "[server]\n{keys}state_dir = \"s\"\nadmin_socket = \"a.sock\"\n[[target]]\n\
             name = \"{NAME}\"\n[[target.lun]]\nlun = 0\nbackend = {path}\n"
        );
        fs::write(folder.0.join(file), text).unwrap();
    };
    lun("none.toml", "", "\"file\"\npath = \"none\"");
    lun("dir.toml", "", "\"file\"\npath = \"dir\"");
    lun("null.toml", "", "\"file\"\npath = \"/dev/null\"");
    lun("type.toml", "", "\"device\"\npath = \"data\"");
    lun("cores.toml", "cores = 999\n", "\"file\"\npath = \"data\"");
    const NONE: &[&str] = &[
        "serve none",
        "serve none.iso",
        "serve none/x --size 1M",
        "serve --config none.toml",
        "serve --config missing.toml",
        "check missing.toml",
        "check --media none.toml",
        "copy none x",
        "copy data none/x",
        "bench read none",
        "bench dd if=none of=/dev/null",
        "bench sgp_dd if=none of=/dev/null bs=512",
        "bench compare none none",
        "bench read null:1M --runtime 10ms --report none/x",
        "attach none",
        "detach none",
        "scsi iscsi://127.0.0.1:1/iqn.x:y/0 0a:00:00:00:01:00 --out none",
    ];
    const WRONG_TYPE: &[&str] = &[
        "serve dir",
        "serve /dev/null",
        "serve data/x",
        "serve --config dir",
        "serve --config dir.toml",
        "serve --config null.toml",
        "serve --config type.toml",
        "check dir",
        "check --media dir.toml",
        "check --media null.toml",
        "check --media type.toml",
        "copy dir x",
        "copy data dir",
        "copy data/x y",
        "copy data x --journal dir",
        "bench read dir",
        "bench read /dev/null",
        "bench dd if=dir of=/dev/null",
        "bench compare dir dir",
        "bench read null:1M --runtime 10ms --report dir",
        "scsi iscsi://127.0.0.1:1/iqn.x:y/0 0a:00:00:00:01:00 --out dir",
    ];
    const ABSURD: &[&str] = &[
        "serve null:999999999P",
        "serve null:0",
        "serve new --size 999999999P",
        "serve null:1M --cores 999",
        "serve null:1M --cores 99999999999",
        "serve null:1M --listen 127.0.0.1:99999",
        "serve --config cores.toml",
        "check --media cores.toml",
        "copy null:99999999P x",
        "copy data x --block 0",
        "bench read data --cores 999",
        "bench read data --bs 0",
        "bench read data --bs 99999999P",
        "bench read data --rate 0",
        "bench read data --amount 0",
        "bench read data --interval 0",
        "bench read data --latency-target 0",
        "discover 127.0.0.1:99999",
        "ls 127.0.0.1:99999",
        "info iscsi://127.0.0.1:1/iqn.x:y/99999999",
        "attach iscsi://127.0.0.1:1/iqn.x:y/99999999",
        "pr iscsi://127.0.0.1:1/iqn.x:y/99999 read-keys",
    ];
    const NOT_UNDERSTOOD: &[&str] = &[
        "copy data x --depth 0",
        "copy data x --timeout 0",
        "bench read data --runtime 0",
        "bench read data --runtime 1us",
        "bench read data --runtime 99999999999",
        "bench read data --depth 0",
        "bench read data --sessions 99999999",
        "apply x --confirm-within 99999999",
        "session list --timeout 0",
        "session show 99999999",
        "diff --timeout 5x",
        "ls 127.0.0.1:1 --timeout 0",
    ];
    for (status, commands) in [(21, NONE), (7, WRONG_TYPE), (7, ABSURD)] {
        commands.iter().for_each(|args| folder.ends(status, args, ""));
    }
    for args in NOT_UNDERSTOOD {
        let ended = folder.lunar(args).output().unwrap();
        assert_eq!((ended.status.code(), ended.stdout), (Some(2), Vec::new()), "{args}");
    }
    let ended = folder.lunar("bench read data --runtime 0").output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert!(err.contains("the time \"0\" is out of range\n  hint: use 1ms"), "{err}");
}

#[test]
fn wrong_names_at_a_server_end_with_their_status() {
    let folder = Folder::new("names");
    let server = Server::start(&folder, &format!("null:16M --target {NAME}"));
    let portal = &server.1;
    let lists = format!("lunar ls {portal} lists the targets and LUNs");
    folder.ends(21, &format!("ls iscsi://{portal}/iqn.2026-11.org.example:b"), &lists);
    folder.ends(21, &format!("pr iscsi://{portal}/{NAME}/9 read-keys"), &lists);
    folder.ends(
        28,
        &format!("serve null:1M --listen {portal}"),
        "stop the program that listens at this address",
    );
    folder.ends(21, "session show 99", "session 99 does not exist");
    folder.ends(21, "router drain x", "router x does not exist");
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

/// The client has few descriptors. The hint must name its own limit, not the target.
#[test]
fn client_without_descriptors_names_its_limit() {
    let folder = Folder::new("descriptors");
    let server = Server::start(&folder, &format!("null:16M --target {NAME}"));
    let url = format!("iscsi://{}/{NAME}/0", server.1);
    let script = format!("ulimit -n 24; exec {} bench read {url} --sessions 64", env!("CARGO_BIN_EXE_lunar"));
    let ended = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && err.contains("too many open files"), "{err}");
    assert!(err.contains("hint: raise the limit of this process on open files: ulimit -n"), "{err}");
}

/// With so few descriptors, no event loop can start.
#[test]
fn without_descriptors_hint_names_their_limit() {
    for (files, args) in [(4, "ls iscsi://127.0.0.1:1"), (8, "serve null:1G --listen 127.0.0.1:0")] {
        let folder = Folder::new("few-descriptors");
        let script = format!("ulimit -n {files}; exec {} {args}", env!("CARGO_BIN_EXE_lunar"));
        let mut shell = Command::new("/bin/sh");
        let shell = shell.args(["-c", &script]).current_dir(&folder.0).env("XDG_STATE_HOME", &folder.0);
        let ended = shell.output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(
            !ended.status.success() && err.to_lowercase().contains("too many open files"),
            "{args}: {err}"
        );
        assert!(err.contains("hint: raise the limit on open files: ulimit -n"), "{args}: {err}");
    }
}

#[test]
fn misspelt_face_of_bench_is_suggested() {
    let folder = Folder::new("face");
    let ended = folder.lunar("bench blokdev-perftest null:1G").output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(21), "{err}");
    assert!(err.contains("did you mean lunar bench blockdev-perftest?"), "{err}");
    let ended = folder.lunar("bench read no-such-disk.img").output().unwrap();
    assert!(!String::from_utf8_lossy(&ended.stderr).contains("did you mean"));
}

#[test]
fn bench_without_its_files_ends_with_status_21() {
    let folder = Folder::new("bench-files");
    for args in ["compare a.json b.json", "dd if=none.img of=/dev/null", "sgp_dd if=none.img of=/dev/null"] {
        let ended = folder.lunar(&format!("bench {args}")).output().unwrap();
        assert_eq!(ended.status.code(), Some(21), "{args}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// A user without a home and without the folders of a login session.
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
        ("attach list", "LUNAR_RUN_DIR"),
        ("detach x", "LUNAR_RUN_DIR"),
        ("attach x", "XDG_CONFIG_HOME"),
    ] {
        let mut command = Command::new(&program);
        command.args(args.split_whitespace()).current_dir("/").env_clear().uid(65534).gid(65534);
        let ended = command.output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(1) && err.contains("nor HOME is set"), "{args}: {err}");
        assert!(err.split("hint: ").nth(1).is_some_and(|text| text.contains(hint)), "{args}: {err}");
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
            ["accepts only IPv6", "every host that reaches a portal can use iqn.2026-11.org.example:a"]
        {
            assert!(err.contains(words), "{args}: {err}");
        }
    }
}
