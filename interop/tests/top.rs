//! `lunar top` in a terminal of tmux, and its one table, while a benchmark loads the server.

use interop::routed::until;
use interop::tool::{self, Tool};
use interop::{Folder, Login, Server, TARGET, lunar_bin};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const TMUX: Tool = Tool { program: "tmux", package: "tmux" };
const ROUTED: &str = "iqn.2026-11.org.example:routed";
const UNREACHABLE: i32 = 4;
const INVALID: i32 = 7;
/// A text of the shell before the display, and again after it.
const BEFORE: &str = "shown-before";

/// A server with LUN 0, which is not used, and LUN 17, which a benchmark reads.
fn loaded() -> (Server, Load) {
    let server = Server::start(&format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1MiB\"\n\
         [[target.lun]]\nlun = 17\nbackend = \"memory\"\nsize = \"1MiB\"\n"
    ));
    let load = Load::start(&server);
    (server, load)
}

/// A benchmark that runs until it is dropped.
struct Load(Child);

impl Load {
    fn start(server: &Server) -> Load {
        Load::of(&format!("iscsi://{}/{TARGET}/17", server.portal()))
    }

    fn of(url: &str) -> Load {
        let mut command = Command::new(lunar_bin());
        command.args(["bench", "randread", url, "--depth", "4", "--runtime", "10m"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Load(child.expect("lunar runs"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell in a terminal.
struct Pane {
    dir: Folder,
}

impl Pane {
    fn open() -> Pane {
        let pane = Pane { dir: Folder::fresh() };
        pane.tmux(&["new-session", "-d", "-x", "140", "-y", "20", "env -u NO_COLOR PS1='> ' sh"]);
        pane.until("a prompt", |screen| screen.starts_with('>'));
        pane.enter(&format!("echo {BEFORE}"));
        pane.shows(&format!("\n{BEFORE}\n"));
        pane
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let socket = self.dir.join("tmux");
        let arguments = [&["-f", "/dev/null", "-S", socket.to_str().expect("a path")], arguments].concat();
        tool::must("tmux", &arguments)
    }

    fn enter(&self, command: &str) {
        self.tmux(&["send-keys", "-l", command]);
        self.tmux(&["send-keys", "Enter"]);
    }

    /// Starts the display. `before`: variables of its environment.
    fn top(&self, before: &str, socket: &Path, options: &str) {
        let (lunar, socket) = (lunar_bin().display().to_string(), socket.display());
        let pid = self.dir.join("pid").display().to_string();
        let command = format!(
            "{before} {lunar} top --socket {socket} --interval 200ms {options}",
            before = before.trim()
        );
        self.enter(&format!("clear; echo {BEFORE}; sh -c 'echo $$ > {pid}; exec env {}'", command.trim()));
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until `is_right` accepts the screen, and returns it.
    fn until(&self, what: &str, is_right: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(what, || {
                last = self.screen();
                is_right(&last).then(|| last.clone())
            })
        }));
        found.unwrap_or_else(|_| panic!("{what}: the screen is\n{last}"))
    }

    fn shows(&self, text: &str) -> String {
        self.until(&format!("{text:?}"), |screen| screen.contains(text))
    }

    /// The shell has its screen and the modes of its terminal again, and the status of the display.
    fn is_restored(&self, status: i32) {
        self.until("the shell", |screen| screen.contains(BEFORE) && screen.trim_end().ends_with('>'));
        self.enter("echo status=$?; stty -a | tr -s ' ;' '\\n' | grep -x -e '-*icanon' -e '-*echo'");
        let screen = self.shows(&format!("\nstatus={status}\n"));
        assert!(!screen.contains("READS/S"), "{screen}");
        let modes = self.until("modes", |screen| screen.contains("\necho\n"));
        assert!(modes.contains("\nicanon\n"), "{modes}");
    }
}

impl Drop for Pane {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn admin_socket(server: &Server) -> std::path::PathBuf {
    server.dir().join("admin.sock")
}

/// The LUN and the reads a second of each row.
fn rows(screen: &str) -> Vec<(String, String)> {
    let lines = screen.lines().skip_while(|line| !line.starts_with("TARGET")).skip(1);
    let cells = lines.filter(|line| line.starts_with("iqn.") || line.starts_with('…'));
    cells
        .map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let mut next = || words.next().unwrap_or_default().to_owned();
            (next(), next())
        })
        .collect()
}

fn has_rate(text: &str) -> bool {
    text.trim_end_matches(['k', 'M', 'G']).parse::<f64>().is_ok_and(|rate| rate > 0.0)
}

fn is_loaded(screen: &str) -> bool {
    rows(screen).iter().any(|(lun, reads)| lun == "17" && has_rate(reads))
}

fn luns(screen: &str) -> Vec<String> {
    rows(screen).into_iter().map(|(lun, _)| lun).collect()
}

#[test]
fn display_shows_sorts_and_filters_a_loaded_server() {
    if !tool::have(&[TMUX]) {
        return;
    }
    let (server, _load) = loaded();
    let pane = Pane::open();
    pane.top("", &admin_socket(&server), "");
    let screen = pane.until("a rate", is_loaded);
    assert_eq!(luns(&screen), ["17", "0"], "{screen}");
    assert!(!screen.contains(BEFORE) && screen.contains("q quit"), "{screen}");
    pane.press(&["<"]);
    pane.until("the order of LUNs", |screen| screen.contains("by lun") && luns(screen) == ["0", "17"]);
    pane.press(&["r"]);
    pane.until("the reverse order", |screen| luns(screen) == ["17", "0"]);
    pane.press(&["/", "1", "7", "Enter"]);
    pane.until("the filter", |screen| screen.contains("filter: 17") && luns(screen) == ["17"]);
    pane.tmux(&["resize-window", "-x", "40", "-y", "10"]);
    pane.until("a narrow terminal", |screen| {
        screen.lines().all(|line| line.chars().count() <= 40) && is_loaded(screen)
    });
    pane.tmux(&["resize-window", "-x", "140", "-y", "20"]);
    // Together, the two keys would be one with Alt.
    pane.press(&["Escape"]);
    pane.until("no filter", |screen| luns(screen) == ["17", "0"]);
    pane.press(&["Tab"]);
    pane.until("the session", |screen| {
        let row = screen.lines().find(|line| line.contains(" 127.0.0.1:"));
        row.is_some_and(|row| row.split_whitespace().nth(4).is_some_and(has_rate))
    });
    pane.press(&["Tab"]);
    pane.shows("ROUTER  UPSTREAM  LUN  URL  STATE");
    pane.press(&["q"]);
    pane.is_restored(0);
}

#[test]
fn pause_keeps_the_rows_until_it_ends() {
    if !tool::have(&[TMUX]) {
        return;
    }
    let (server, load) = loaded();
    let pane = Pane::open();
    pane.top("", &admin_socket(&server), "--sort lun --reverse --filter 17");
    pane.until("a rate", is_loaded);
    pane.press(&["p"]);
    pane.shows("paused");
    drop(load);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(is_loaded(&pane.screen()), "{}", pane.screen());
    pane.press(&["p"]);
    let screen = pane.until("no rate", |screen| rows(screen) == [("17".to_owned(), "0".to_owned())]);
    assert!(screen.contains("by lun, reversed  filter: 17"), "{screen}");
    pane.press(&["C-c"]);
    pane.is_restored(0);
}

#[test]
fn signals_restore_the_terminal() {
    if !tool::have(&[TMUX]) {
        return;
    }
    let server = interop::shared();
    let pane = Pane::open();
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        pane.top("", &server.dir().join("admin.sock"), "");
        pane.shows("READS/S");
        let pid = std::fs::read_to_string(pane.dir.join("pid")).expect("the process");
        tool::must("kill", &[&format!("-{name}"), pid.trim()]);
        pane.is_restored(128 + number);
    }
}

#[test]
fn restarted_server_is_shown_again_without_negative_rates() {
    if !tool::have(&[TMUX]) {
        return;
    }
    for (variable, is_coloured) in [("NO_COLOR=", true), ("NO_COLOR=1", false)] {
        let (mut server, load) = loaded();
        let pane = Pane::open();
        pane.top(variable, &admin_socket(&server), "");
        pane.until("a rate", is_loaded);
        server.kill9();
        let screen = pane.shows("disconnected: no server answers at");
        assert!(screen.contains(TARGET), "{screen}");
        let escapes = pane.tmux(&["capture-pane", "-p", "-e"]);
        let has_red = ["[31m", ";31m", "38;5;1m"].iter().any(|red| escapes.contains(red));
        assert_eq!(has_red, is_coloured, "{escapes:?}");
        drop(load);
        server.restart();
        let _load = Load::start(&server);
        let screen = pane.until("a rate again", |screen| {
            assert!(
                !screen.contains(" -0") && !(1..=9).any(|digit| screen.contains(&format!(" -{digit}"))),
                "{screen}"
            );
            !screen.contains("disconnected") && is_loaded(screen)
        });
        assert!(screen.contains("errors 0/s"), "{screen}");
        pane.press(&["q"]);
        pane.is_restored(0);
    }
}

fn top(arguments: &[&str], socket: &Path) -> (String, String, i32) {
    let socket = socket.display().to_string();
    interop::command::lunar(&[&["top", "--socket", &socket], arguments].concat())
}

#[test]
fn one_table_has_the_rates_of_one_interval() {
    let (server, _load) = loaded();
    let socket = admin_socket(&server);
    let json = |arguments: &[&str]| -> Value {
        let all = [&["--once", "--json", "--interval", "500ms"], arguments].concat();
        let (out, err, status) = top(&all, &socket);
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        serde_json::from_str(&out).expect("JSON")
    };
    let lun = until("a rate", || {
        let report = json(&[]);
        let items = report["items"].as_array().expect("rows");
        assert_eq!((items.len(), items[1]["lun"].as_u64()), (2, Some(0)), "{report}");
        let time = report["time"].as_str().expect("a time");
        assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
        assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.5), "{report}");
        assert_eq!(report["server"].as_str(), Some(&*socket.display().to_string()));
        // The first command of a session reports the unit attention of the login.
        let is_steady = items[0]["reads_s"].as_f64() > Some(0.0) && items[0]["errors_s"] == 0.0;
        (items[0]["lun"] == 17 && is_steady).then(|| items[0].clone())
    });
    let number = |key: &str| lun[key].as_f64().unwrap_or_else(|| panic!("{key}: {lun}"));
    assert_eq!((lun["target"].as_str(), number("written_bytes_s")), (Some(TARGET), 0.0));
    assert!((number("read_bytes_s") / number("reads_s") - 4096.0).abs() < 1.0, "{lun}");
    assert!(number("latency_s") > 0.0 && number("latency_p50_s") <= number("latency_p99_s"), "{lun}");
    assert!(number("in_flight") >= 0.0, "{lun}");
    let sessions = json(&["--view", "sessions", "--filter", "17"]);
    assert!(sessions["items"].is_array(), "{sessions}");
    let sessions = json(&["--view", "sessions"]);
    let session = &sessions["items"][0];
    assert!(
        session["reads_s"].as_f64() > Some(0.0) && session["latency_s"].as_f64() > Some(0.0),
        "{sessions}"
    );
    assert!(session["in_flight"].is_u64() && session["latency_p99_s"].is_null(), "{sessions}");
    let (out, _, _) = top(&["--once", "--interval", "100ms", "--sort", "lun", "--reverse"], &socket);
    let (first, second) = (out.lines().next().expect("a header"), out.lines().nth(1).expect("a row"));
    assert!(first.starts_with("TARGET ") && second.split_whitespace().nth(1) == Some("17"), "{out}");
}

#[test]
fn each_path_of_a_router_has_its_own_rates() {
    let mut ports = [(); 2].map(|()| interop::ports::free());
    ports.sort_by_key(u16::to_string);
    let _target = Server::start(&format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\n\
         portals = [\"127.0.0.1:{}\", \"127.0.0.1:{}\"]\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"1MiB\"\n",
        ports[0], ports[1]
    ));
    let urls = ports.map(|port| format!("\"iscsi://127.0.0.1:{port}/{TARGET}\"")).join(", ");
    let router = Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[router.r1.upstream.u]\nurls = [{urls}]\n\
         policy = \"round-robin\"\n[[router.r1.target]]\nmap = \"target\"\nname = \"{ROUTED}\"\n\
         upstream = \"u\"\naccess = \"all\"\n"
    ));
    let login = Login::new().key("TargetName", ROUTED);
    drop(interop::routed::session(&login, router.portal(), &[0]));
    let url = format!("iscsi://{}/{ROUTED}/0", router.portal());
    let _load = Load::of(&url);
    let socket = admin_socket(&router);
    let options = ["--once", "--json", "--view", "paths", "--sort", "url", "--interval", "500ms"];
    let rows = until("rates of both paths", || {
        let (out, err, status) = top(&options, &socket);
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        let rows = report["items"].as_array().expect("rows").clone();
        let is_loaded = |row: &Value| row["reads_s"].as_f64() > Some(0.0);
        (rows.len() == 2 && rows.iter().all(is_loaded)).then_some(rows)
    });
    for (row, port) in rows.iter().zip(ports) {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        assert!(row["url"].as_str().is_some_and(|url| url.contains(&format!(":{port}/"))), "{row}");
        assert!((number("read_bytes_s") / number("reads_s") - 4096.0).abs() < 1.0, "{row}");
        assert!(number("latency_s") > 0.0 && row["latency_p99_s"].is_null(), "{row}");
        assert_eq!((number("writes_s"), number("errors_s")), (0.0, 0.0), "{row}");
    }
}

#[test]
fn display_without_server_or_terminal_says_so() {
    let dir = Folder::fresh();
    let absent = dir.join("no.sock");
    let (out, err, status) = top(&["--once"], &absent);
    let expected = format!("error: no server answers at {}\n  hint: start a server", absent.display());
    assert_eq!((out.as_str(), status), ("", UNREACHABLE), "{err}");
    assert!(err.starts_with(&expected), "{err}");
    let (out, err, status) = top(&[], &absent);
    assert_eq!((out.as_str(), status), ("", INVALID), "{err}");
    assert!(err.starts_with("error: stdout is not a terminal\n  hint: "), "{err}");
    let (_, err, status) = top(&["--json"], &absent);
    assert!(status == 2 && err.contains("--once"), "{status}: {err}");
    if tool::have(&[TMUX]) {
        let pane = Pane::open();
        pane.top("", &absent, "");
        pane.shows("error: no server answers at");
        pane.is_restored(UNREACHABLE);
    }
}
