//! The command line: arguments, exit statuses, signals.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The output of `--json` for an empty list.
const NO_ITEMS: &str = "{\n  \"items\": []\n}\n";

/// A folder with state and sockets of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lunar-command-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn lunar(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunar"));
        command.args(args).current_dir(&self.0).env("XDG_STATE_HOME", &self.0);
        command.env("LUNAR_RUN_DIR", self.0.join("lunar"));
        command.env_remove("LUNAR_LOG").stdin(Stdio::null());
        command
    }

    /// Exit status, stdout and stderr.
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.lunar(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running server. It is killed on drop.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Its output up to `ready`.
    banner: String,
    /// The file of its stderr.
    log: PathBuf,
}

impl Server {
    fn start(folder: &Folder, args: &[&str]) -> Server {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let log = folder.0.join(format!("log{}", COUNT.fetch_add(1, Relaxed)));
        let stderr = std::fs::File::create(&log).unwrap();
        let mut child = folder.lunar(args).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.ends_with("\nready\n") {
            assert_ne!(out.read_line(&mut banner).unwrap(), 0, "the server ended: {banner}");
        }
        Server { child, out, banner, log }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log contains a text.
    fn says(&self, what: &str) {
        let start = Instant::now();
        while !self.log().contains(what) {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "the log never contained {what}: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the server with a signal. Returns exit status, the rest of stdout, and stderr.
    fn end(mut self, signal: Signal) -> (i32, String, String) {
        self.signal(signal);
        let status = self.child.wait().unwrap();
        let mut out = String::new();
        self.out.read_to_string(&mut out).unwrap();
        (status.code().unwrap(), out, self.log())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
    }
}

fn config(luns: u16) -> String {
    let mut text = "[server]\nstate_dir = \"state\"\nadmin_socket = \"a.sock\"\n[[portal_group]]\ntag = 7\n\
        portals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n"
        .to_string();
    for lun in 0..luns {
        text += &format!("[[target.lun]]\nlun = {lun}\nbackend = \"null\"\nsize = \"1G\"\n");
    }
    text
}

#[test]
fn help_names_every_command_and_argument() {
    let folder = Folder::new("help");
    let (status, help, _) = folder.run(&["--help"]);
    assert_eq!(status, 0);
    for word in [
        "serve",
        "copy",
        "check",
        "session",
        "completions",
        "man",
        "Examples:",
        "LUNAR_LOG",
        "LUNAR_CHAP_PASSWORD_FILE",
    ] {
        assert!(help.contains(word), "{word}");
    }
    let (_, help, _) = folder.run(&["help", "serve"]);
    for word in ["--size", "--listen", "--target", "--config", "--run", "--cores", "null:SIZE", "SIGHUP"] {
        assert!(help.contains(word), "{word}");
    }
    let (_, help, _) = folder.run(&["help", "copy"]);
    for word in
        ["SRC", "DST", "--verify", "--resume", "--skip-errors", "--timeout", "iscsi://", "Exit status"]
    {
        assert!(help.contains(word), "{word}");
    }
    assert_eq!(folder.run(&[]).0, 2, "usage is shown without arguments");
}

#[test]
fn wrong_usage_is_refused() {
    let folder = Folder::new("usage");
    let refused = [
        &["serve", "--config", "x", "null:1G"][..],
        &["serve", "--config", "x", "--size", "1G"],
        &["serve", "--config", "x", "--listen", "127.0.0.1:0"],
        &["serve", "--config", "x", "--target", "iqn.2026-11.org.example"],
        &["srve"],
        &["session", "show", "one"],
    ];
    refused.iter().for_each(|args| assert_eq!(folder.run(args).0, 2, "{args:?}"));
    let usage = "Usage: lunar serve [OPTIONS] [LUN]...\n       lunar serve [OPTIONS] --config <FILE>\n";
    let (_, _, said) = folder.run(&["serve", "--config", "x", "--siz", "1G"]);
    assert!(said.contains(usage), "{said}");
    let (_, help, _) = folder.run(&["router", "eligible", "--help"]);
    assert!(help.contains("Usage: lunar router eligible [OPTIONS] <NAME> <on|off>\n"), "{help}");
}

#[test]
fn check_reports_fine_or_errors() {
    let folder = Folder::new("check");
    folder.write("good.toml", &config(2));
    let fine = "good.toml is fine: 1 target, 2 LUNs, 1 portal, 0 access entries\n";
    assert_eq!(folder.run(&["check", "good.toml"]), (0, fine.into(), String::new()));
    folder.write("bad.toml", "[sever]\n[limits]\nsessions = 0\n");
    let expected = "error: bad.toml:1:2: unknown key `sever` in the file\n  hint: did you mean `server`?\n\
        error: bad.toml:3:12: `sessions` is out of range: 0\n  hint: use 1 to 65535\n";
    assert_eq!(folder.run(&["check", "bad.toml"]), (1, String::new(), expected.into()));
}

#[test]
fn check_lists_router_mappings() {
    let folder = Folder::new("check-router");
    let router = "[router.r1.upstream.a]\nurls = [\"iscsi://192.0.2.1\"]\n[[router.r1.target]]\n\
        map = \"transparent\"\nupstream = \"a\"\naccess = \"all\"\n";
    folder.write("lunar.toml", router);
    let fine = "lunar.toml is fine: 0 targets, 0 LUNs, 1 portal, 0 access entries, 1 router\n\n\
        ROUTER  MAP          NAME         UPSTREAM                   ACCESS\n\
        r1      transparent  as upstream  a: iscsi://192.0.2.1:3260  all\n";
    assert_eq!(folder.run(&["check", "lunar.toml"]), (0, fine.into(), String::new()));
}

#[test]
fn check_looks_at_media_when_asked() {
    let folder = Folder::new("check-media");
    let file = "[[target.lun]]\nlun = 9\nbackend = \"file\"\npath = \"disk.img\"\n";
    folder.write("lunar.toml", &(config(1) + file));
    let fine = "lunar.toml is fine: 1 target, 2 LUNs, 1 portal, 0 access entries\n";
    assert_eq!(folder.run(&["check", "lunar.toml"]), (0, fine.into(), String::new()));
    let (status, out, err) = folder.run(&["check", "--media", "lunar.toml"]);
    assert_eq!((status, out.as_str()), (21, ""), "as that of a server");
    let disk = folder.0.join("disk.img");
    let missing = format!("error: LUN 9 of iqn.2026-11.org.example:a: {}: no such file", disk.display());
    assert!(err.starts_with(&missing) && err.contains("\n  hint: "), "{err}");
    folder.write("disk.img", &"x".repeat(5000));
    let warning = "warning: LUN 9 of iqn.2026-11.org.example:a: the last 392 bytes of the medium are less than a \
        block of 512 bytes and are not served\n";
    let (status, out, err) = folder.run(&["check", "--media", "lunar.toml"]);
    assert_eq!((status, err.as_str()), (0, warning));
    // The user is that of the service if it is installed, and otherwise the caller.
    assert!(out.starts_with(&format!("{}; checked for the user ", fine.trim_end())), "{out}");
}

#[test]
fn serve_prints_its_portals_and_ends_cleanly() {
    let folder = Folder::new("serve");
    let args = ["serve", "null:1G", "--listen", "127.0.0.1:0", "--target", "iqn.2026-11.org.example:x"];
    let server = Server::start(&folder, &args);
    let first = server.banner.lines().next().unwrap();
    let address = first.strip_prefix("listening on ").unwrap().strip_suffix(", portal group 1").unwrap();
    TcpStream::connect(address).unwrap();
    let url = format!("iscsi://{address}/iqn.2026-11.org.example:x/0");
    for line in [
        url.clone(),
        format!("qemu-img info {url}"),
        format!("iscsiadm -m discovery -t sendtargets -p {address}"),
        format!("iscsiadm -m node -T iqn.2026-11.org.example:x -p {address} --login"),
    ] {
        assert!(server.banner.lines().any(|l| l.trim() == line), "{line}");
    }
    assert_eq!(folder.run(&["session", "list"]), (0, "no sessions\n".into(), String::new()));
    assert_eq!(folder.run(&["session", "show", "--json"]), (0, NO_ITEMS.into(), String::new()));
    let none = "error: session 9 does not exist\n  hint: lunar session list shows the sessions\n";
    assert_eq!(folder.run(&["session", "show", "9"]), (21, String::new(), none.into()));
    let (status, out, _) = server.end(Signal::INT);
    assert_eq!((status, out.as_str()), (0, ""));
    let (status, _, err) = folder.run(&["session", "list"]);
    assert_eq!(status, 4);
    assert!(err.starts_with("error: no server answers at "), "{err}");
}

#[test]
fn hangup_reads_the_configuration_again() {
    let folder = Folder::new("hangup");
    folder.write("lunar.toml", &config(1));
    let server = Server::start(&folder, &["serve", "--config", "lunar.toml"]);
    assert!(server.banner.contains(", portal group 7\n"));
    assert_eq!(folder.run(&["session", "list", "--socket", "a.sock"]).0, 0);
    folder.write("lunar.toml", "[sever]");
    server.signal(Signal::HUP);
    server.says("lunar.toml rejected: the configuration is unchanged");
    folder.write("lunar.toml", &config(3));
    server.signal(Signal::HUP);
    server.says("lunar.toml reloaded");
    let (status, _, log) = server.end(Signal::TERM);
    assert_eq!(status, 0);
    let refused = log.lines().find(|line| line.contains("lunar.toml:1:2: unknown key `sever` in the file"));
    let refused: Vec<&str> = refused.unwrap().split_whitespace().take(2).collect();
    assert!(refused[0].ends_with('Z') && refused[1] == "ERROR", "time and level: {log}");
    assert!(log.contains("did you mean `server`?"), "{log}");
}

#[test]
fn captive_command_decides_the_exit_status() {
    let folder = Folder::new("captive");
    let (status, out, _) =
        folder.run(&["serve", "null:1G", "--listen", "127.0.0.1:0", "--run", "echo $LUNAR_URL; exit 7"]);
    assert_eq!(status, 7);
    assert!(out.starts_with("iscsi://127.0.0.1:"), "only the output of the command: {out}");
    assert!(out.ends_with("/0\n") && out.lines().count() == 1, "{out}");
}

/// The child holds the pipe of stdout open, so the run ends only after the child.
#[test]
fn children_of_a_captive_command_end_with_it() {
    let folder = Folder::new("orphans");
    let started_at = Instant::now();
    let command = "sleep 60 & echo begun; exit 5";
    let (status, out, _) = folder.run(&["serve", "null:1G", "--listen", "127.0.0.1:0", "--run", command]);
    assert_eq!((status, out.as_str()), (5, "begun\n"));
    assert!(started_at.elapsed() < Duration::from_secs(30), "the run waited for the child of the command");
}

#[test]
fn serve_without_arguments_keeps_its_disk() {
    let folder = Folder::new("default");
    for _ in 0..2 {
        let (status, _, log) = folder.run(&["serve", "--listen", "127.0.0.1:0", "--run", "true"]);
        assert_eq!(status, 0, "{log}");
        let disk = folder.0.join("lunar/disk.img");
        assert_eq!(std::fs::metadata(&disk).unwrap().len(), 1 << 30);
    }
}

#[test]
fn size_option_differing_from_the_file_is_reported() {
    let folder = Folder::new("size");
    std::fs::File::create(folder.0.join("disk.img")).unwrap().set_len(5 << 20).unwrap();
    let serve = |size| {
        let args = ["serve", "disk.img", "--listen", "127.0.0.1:0", "--run", "true", "--size", size];
        let (status, _, log) = folder.run(&args);
        assert_eq!(status, 0, "{log}");
        log
    };
    let log = serve("10M");
    assert!(
        log.contains("WARN") && log.contains("exists and keeps its size of 5 MiB; the given size is 10 MiB"),
        "{log}"
    );
    assert!(!serve("5M").contains("WARN"));
    std::fs::File::create(folder.0.join("disk.img")).unwrap().set_len((5 << 20) + 7).unwrap();
    let log = serve("5M");
    assert!(
        log.contains("LUN 0 of ")
            && log.contains("the last 7 bytes of the medium are less than a block of 512"),
        "{log}"
    );
    std::fs::File::create(folder.0.join("disk.img")).unwrap().set_len(5 << 20).unwrap();
    assert_eq!(std::fs::metadata(folder.0.join("disk.img")).unwrap().len(), 5 << 20);
}

#[test]
fn unservable_arguments_are_reported() {
    let folder = Folder::new("cannot");
    let message = |args: &[&str], wanted: i32| {
        let (status, out, err) = folder.run(args);
        assert_eq!((status, out.as_str()), (wanted, ""), "{args:?}: {err}");
        err
    };
    for args in [
        &["serve", "memory:x"][..],
        &["serve", "null:1G", "--listen", "localhost:0"],
        &["serve", "null:1G", "--target", "disks"],
        &["serve", "null:1G", "--cores", "none"],
        &["serve", "", "--size", "1G"],
    ] {
        message(args, 7);
    }
    assert_eq!(
        message(&["serve", "none.img"], 21),
        "error: LUN: none.img does not exist\n  hint: check the path, or add --size 10G to create it\n"
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let in_use = message(&["serve", "null:1G", "--listen", &address], 28);
    assert!(in_use.contains(&address), "{in_use}");
    assert!(in_use.contains("hint: stop the program that listens at this address"), "{in_use}");
    let held = std::fs::File::create(folder.0.join("held.img")).unwrap();
    held.set_len(1 << 20).unwrap();
    held.try_lock().unwrap();
    let in_use = message(&["serve", "held.img", "--listen", "127.0.0.1:0"], 28);
    assert!(in_use.contains("held.img: is in use by another server"), "{in_use}");
    let mut command = folder.lunar(&["serve", "null:1G"]);
    for (words, start) in [
        ("=loud=", "error: invalid LUNAR_LOG: "),
        ("loud", "error: invalid LUNAR_LOG: unknown level \"loud\"\n  hint: set it to error, warn, "),
        ("warn,debgu", "error: invalid LUNAR_LOG: unknown level \"debgu\"\n"),
        ("warn,lunar_target=loud", "error: invalid LUNAR_LOG: "),
    ] {
        let log = command.env("LUNAR_LOG", words).output().unwrap();
        let log = String::from_utf8(log.stderr).unwrap();
        assert!(log.starts_with(start), "{words}: {log}");
    }
    for command in
        [&["check", "lunar.toml"][..], &["session", "list"], &["router", "list"], &["rdma", "list"]]
    {
        let log = folder.lunar(command).env("LUNAR_LOG", "loud").output().unwrap();
        assert!(String::from_utf8(log.stderr).unwrap().contains("invalid LUNAR_LOG"), "{command:?}");
    }
    for words in ["off", "INFO", "warn,lunar_target=debug"] {
        let serve = ["serve", "null:1G", "--listen", "127.0.0.1:0", "--run", "true"];
        let ended = folder.lunar(&serve).env("LUNAR_LOG", words).output().unwrap();
        assert!(ended.status.success(), "{words}");
    }
}

#[test]
fn completions_and_manual_pages() {
    let folder = Folder::new("man");
    for shell in ["bash", "zsh", "fish"] {
        let (status, script, _) = folder.run(&["completions", shell]);
        assert_eq!(status, 0);
        assert!(script.contains("LUNAR_COMPLETE"), "{shell}");
    }
    assert!(folder.run(&["man"]).1.contains("lunar\\-serve"));
    assert!(folder.run(&["man", "serve"]).1.contains("null:SIZE"));
    let none = "error: lunar has no command \"srve\"\n  hint: lunar --help lists the commands\n";
    assert_eq!(folder.run(&["man", "srve"]), (7, String::new(), none.into()));
}

#[test]
fn of_several_servers_the_one_with_the_router_is_asked() {
    let folder = Folder::new("routing");
    let storage = Server::start(&folder, &["serve", "null:1G", "--listen", "127.0.0.1:0"]);
    let upstream = "[router.r1]\nlisten = [\"127.0.0.1:0\"]\n[router.r1.upstream.m]\nmemory = \"1MiB\"\n";
    let target =
        "[[router.r1.target]]\nmap = \"lun\"\nname = \"iqn.2026-11.org.example:t\"\naccess = \"all\"\n";
    let file =
        folder.write("router.toml", &format!("{upstream}{target}lun = [{{ lun = 0, upstream = \"m\" }}]\n"));
    let router = Server::start(&folder, &["serve", "--config", file.to_str().expect("a path")]);
    for args in
        [&["router", "list"][..], &["router", "show", "r1"], &["router", "stats"], &["router", "sessions"]]
    {
        assert_eq!(folder.run(args).0, 0, "{args:?}: {}", folder.run(args).2);
    }
    assert_eq!(folder.run(&["router", "drain", "r1"]).1, "router r1: draining\n");
    let (status, _, why) = folder.run(&["router", "show", "r9"]);
    assert!(status == 1 && why.contains("2 servers are running"), "{status} {why}");
    for server in [router, storage] {
        assert_eq!(server.end(Signal::TERM).0, 0);
    }
}

#[test]
fn socket_of_a_hidden_server_is_kept() {
    let folder = Folder::new("hidden");
    let args = ["serve", "null:1G", "--listen", "127.0.0.1:0"];
    let _first = Server::start(&folder, &args);
    // Its process looks dead, as that of another user does with ProtectProc=invisible.
    let hidden = folder.0.join("lunar/lunar-4000000001.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&hidden).unwrap();
    let _second = Server::start(&folder, &args);
    assert!(hidden.exists());
}

#[test]
fn second_server_has_its_own_admin_socket() {
    let folder = Folder::new("second");
    let args = ["serve", "null:1G", "--listen", "127.0.0.1:0"];
    let first = Server::start(&folder, &args);
    // The socket of a killed server.
    let dead = folder.write("lunar/lunar-4000000000.sock", "");
    let second = Server::start(&folder, &args);
    assert!(!dead.exists());
    let sockets = ["lunar.sock".to_string(), format!("lunar-{}.sock", second.child.id())];
    let sockets = sockets.map(|name| folder.0.join("lunar").join(name).display().to_string());
    let (status, out, _) = folder.run(&["session", "list"]);
    let both = format!("[{}]\nno sessions\n[{}]\nno sessions\n", sockets[0], sockets[1]);
    assert_eq!((status, out), (0, both));
    let portal = |server: &Server| {
        let line = server.banner.lines().next().unwrap();
        line.split(' ').nth(2).unwrap().trim_end_matches(',').to_owned()
    };
    let each = [(&first, &sockets[0]), (&second, &sockets[1])].map(|(server, socket)| {
        format!("{socket} (process {}, listens on {})", server.child.id(), portal(server))
    });
    let which = format!(
        "error: 2 servers are running: {}\n  hint: choose a server with --socket PATH\n",
        each.join(", ")
    );
    assert_eq!(folder.run(&["session", "show"]), (1, String::new(), which));
    let target = first.banner.split("/iqn.").nth(1).unwrap().split('/').next().unwrap();
    let host = log_in_to(&portal(&first), &format!("iqn.{target}"));
    let (status, json, err) = folder.run(&["session", "list", "--json"]);
    let sessions: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, sessions["items"].as_array().map(Vec::len), err.as_str()), (0, Some(1), ""));
    assert_eq!(sessions["items"][0]["server"], sockets[0].as_str());
    drop(host);
    first.says("session ended");
    for socket in &sockets {
        assert_eq!(folder.run(&["session", "list", "--json", "--socket", socket]).1, NO_ITEMS);
    }
    let (status, _, log) = second.end(Signal::TERM);
    assert_eq!(status, 0);
    assert!(
        log.contains(&format!("use lunar session list --socket {} for this server", sockets[1])),
        "{log}"
    );
    assert!(
        !Path::new(&sockets[1]).exists() && Path::new(&sockets[0]).exists(),
        "each server removes its own socket"
    );
    assert_eq!(folder.run(&["session", "list"]).1, "no sessions\n");
    assert_eq!(first.end(Signal::TERM).0, 0);
}

/// Logs in with one PDU (RFC 7143 section 11.12), directly to the full feature phase.
fn log_in(address: &str) -> TcpStream {
    log_in_to(address, "iqn.2026-11.org.example:a")
}

fn log_in_to(address: &str, target: &str) -> TcpStream {
    let keys = format!(
        "InitiatorName=iqn.2026-11.org.example:me\0TargetName={target}\0SessionType=Normal\0InitialR2T=Yes\0\
         FirstBurstLength=65536\0MaxRecvDataSegmentLength=131072\0"
    );
    let mut pdu = vec![0; 48];
    pdu[..2].copy_from_slice(&[0x43, 0x87]);
    pdu[4..8].copy_from_slice(&(keys.len() as u32).to_be_bytes());
    pdu[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, 5]);
    pdu.extend(keys.bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&pdu).unwrap();
    let mut answer = [0; 48];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], answer[1], answer[36]), (0x23, 0x87, 0), "logged in");
    stream
}

#[test]
fn session_show_lists_negotiated_keys() {
    let folder = Folder::new("session");
    folder.write("lunar.toml", &config(1));
    let server = Server::start(&folder, &["serve", "--config", "lunar.toml"]);
    let first = server.banner.lines().next().unwrap();
    let session = log_in(first.split(' ').nth(2).unwrap().trim_end_matches(','));
    let (_, table, _) = folder.run(&["session", "list", "--socket", "a.sock"]);
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    let address = session.local_addr().unwrap().to_string();
    let wanted = ["iqn.2026-11.org.example:me", &address, "TCP", "iqn.2026-11.org.example:a", "7", "0"];
    assert_eq!(row[1..7], wanted);
    let (status, shown, _) = folder.run(&["session", "show", row[0], "--socket", "a.sock"]);
    assert_eq!(status, 0);
    let portal = first.split(' ').nth(2).unwrap().trim_end_matches(',');
    let who = format!(
        "Initiator=iqn.2026-11.org.example:me\nInitiatorAddress={address}\nTarget=iqn.2026-11.org.example:a\n\
         TSIH={}\nPortal={portal},7\nTransport=TCP\n",
        row[0]
    );
    assert_eq!(
        shown.strip_prefix(&who).unwrap(),
        "InitialR2T=Yes\nImmediateData=Yes\nMaxConnections=1\nMaxRecvDataSegmentLength=262144\n\
         MaxXmitDataSegmentLength=131072\nMaxBurstLength=262144\nFirstBurstLength=65536\nDefaultTime2Wait=2\n\
         DefaultTime2Retain=20\nMaxOutstandingR2T=1\nDataPDUInOrder=Yes\nDataSequenceInOrder=Yes\n\
         ErrorRecoveryLevel=0\nHeaderDigest=None\nDataDigest=None\nOFMarker=No\nIFMarker=No\nOFMarkInt=Reject\n\
         IFMarkInt=Reject\nCommands=0\nReads=0\nWrites=0\nReadBytes=0\nWriteBytes=0\nErrors=0\nInFlight=0\n\
         MeanLatencyUs=0\n"
    );
    let (_, json, _) = folder.run(&["session", "list", "--json", "--socket", "a.sock"]);
    let sessions: serde_json::Value = serde_json::from_str(&json).unwrap();
    let sessions = &sessions["items"];
    assert_eq!(sessions[0]["isid"], "800000000005");
    assert_eq!(sessions[0]["session_type"], "Normal");
    assert_eq!(sessions[0]["parameters"]["InitialR2T"], "Yes");
}

#[test]
fn check_warns_of_ports_that_an_entry_with_chap_shuts_out() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("shut-out");
    let secret = folder.write("ann", "a secret of ann");
    std::fs::set_permissions(secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    folder.write(
        "t.toml",
        "[[portal_group]]\ntag = 1\nportals = [{ listen = \"127.0.0.1:5555\", transport = [\"srp\"] }]\n\
         [[target]]\nname = \"iqn.2026-11.org.example:a\"\n[[target.access]]\nchap = [\"ann\"]\n[[target.access]]\n\
         initiators = [\"0x00000000000000010000000000000002\"]\n[[chap_user]]\nname = \"ann\"\nsecret_file = \"ann\"\n",
    );
    let (status, out, err) = folder.run(&["check", "t.toml"]);
    assert!(status == 0 && out.contains("is fine"), "{out}{err}");
    assert!(
        err.starts_with("warning: access entry 1 of iqn.2026-11.org.example:a never applies to 0x"),
        "{err}"
    );
}

#[test]
fn check_warns_of_subsystems_and_of_secrets_of_upstreams() {
    let folder = Folder::new("nvme-lint");
    let upstream = "[router.r1.upstream.a]\nurls = [\"nvme://192.0.2.1/nqn.2026-11.org.example:b?secret_file=b.key\"]\n\
        [[router.r1.target]]\nmap = \"target\"\nname = \"iqn.2026-11.org.example:b\"\nupstream = \"a\"\naccess = \"all\"\n";
    folder.write("t.toml", &format!("[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n{upstream}"));
    let (status, out, err) = folder.run(&["check", "t.toml"]);
    assert!(status == 0 && out.contains("is fine"), "{out}{err}");
    for warning in [
        "warning: no portal of NVMe/TCP offers nqn.2026-11.org.example:a; hint: ",
        "warning: nqn.2026-11.org.example:a has no namespace; hint: ",
        "warning: the upstream a of router r1: cannot read the secret ",
    ] {
        assert!(err.contains(warning), "{warning}: {err}");
    }
}

#[test]
fn scheme_that_is_nearly_right_is_no_path() {
    let folder = Folder::new("scheme");
    const URL: &str = "isre://127.0.0.1/iqn.2026-11.org.example:a/0";
    for args in [&["info", URL][..], &["copy", URL, "null:1M"], &["bench", "read", URL]] {
        let (status, _, err) = folder.run(args);
        assert!(status == 7 && err.contains("did you mean iser://?"), "{args:?}: {status}: {err}");
    }
}

#[test]
fn captive_command_has_a_url_of_each_kind() {
    let folder = Folder::new("urls");
    let portals = ["--listen", "127.0.0.1:0", "--iser", "--srp", "127.0.0.1:0"];
    let lines = "echo $LUNAR_URL; echo $LUNAR_ISER_URL; echo $LUNAR_SRP_URL";
    let (status, out, err) = folder.run(&[&["serve", "null:1M", "--run", lines], &portals[..]].concat());
    let schemes: Vec<_> = out.lines().filter_map(|line| line.split_once("://")).map(|(s, _)| s).collect();
    assert!(status == 0 && schemes == ["iscsi", "iser", "srp"], "{out}{err}");
}

#[test]
fn captive_command_has_the_url_of_a_namespace() {
    let folder = Folder::new("nvme-url");
    let config = "[[portal_group]]\ntag = 1\nportals = [{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }]\n\
        [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n[[subsystem.namespace]]\nnsid = 2\nbackend = \"null\"\n\
        size = \"1M\"\n";
    folder.write("lunar.toml", config);
    let lunar = env!("CARGO_BIN_EXE_lunar");
    let line = format!("{lunar} info $LUNAR_NVME_URL > /dev/null && echo \"$LUNAR_URL$LUNAR_NVME_URL\"");
    let (status, out, err) = folder.run(&["serve", "--config", "lunar.toml", "--run", &line]);
    assert!(status == 0 && out.starts_with("nvme://127.0.0.1:"), "{out}{err}");
    assert!(out.ends_with("/nqn.2026-11.org.example:a/2\n"), "{out}{err}");
}

#[test]
fn diff_of_an_unchanged_file_by_relative_path_is_empty() {
    let folder = Folder::new("diff");
    folder.write("disk.img", &"x".repeat(4096));
    let lun = "[[target.lun]]\nlun = 1\nbackend = \"file\"\npath = \"disk.img\"\n";
    folder.write("lunar.toml", &(config(1) + lun));
    let server = Server::start(&folder, &["serve", "--config", "lunar.toml"]);
    std::fs::create_dir(folder.0.join("sub")).expect("a folder");
    std::os::unix::fs::symlink(".", folder.0.join("link")).expect("a link");
    for file in ["lunar.toml", "sub/../lunar.toml", "link/lunar.toml"] {
        let (status, out, err) = folder.run(&["diff", file, "--socket", "a.sock", "--json"]);
        assert_eq!((status, out.as_str()), (0, NO_ITEMS), "{file}: {err}");
    }
    assert_eq!(server.end(Signal::TERM).0, 0);
}

/// A FIFO without a writer would block the main thread for good, and no signal would end the server.
#[test]
fn fifo_as_configuration_is_rejected_by_a_reload() {
    let folder = Folder::new("fifo");
    folder.write("lunar.toml", &config(1));
    let server = Server::start(&folder, &["serve", "--config", "lunar.toml"]);
    std::fs::remove_file(folder.0.join("lunar.toml")).expect("a file");
    let made = Command::new("mkfifo").arg(folder.0.join("lunar.toml")).status().expect("mkfifo");
    assert!(made.success());
    server.signal(Signal::HUP);
    server.says("it is not a regular file");
    assert_eq!(server.end(Signal::TERM).0, 0);
}
