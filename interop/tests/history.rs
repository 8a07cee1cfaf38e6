//! `lunar history`, `lunar diff --since` and `lunar rollback`, each as a user runs it: what returns, what stays, and what a
//! crash leaves.

use interop::routed::until;
use interop::{Folder, Login, Server, TARGET, lunar_bin};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

const CONFIG: &str =
    "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n";
const LUN: &str = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"8MiB\"\n";
const NOT_FOUND: i32 = 21;
const IN_USE: i32 = 28;

fn configuration() -> String {
    format!("{CONFIG}[[target]]\nname = \"{TARGET}\"\n{LUN}")
}

/// stdout, stderr and the exit status of a command for the server in this folder.
fn run(folder: &Path, arguments: &[&str]) -> (String, String, i32) {
    let mut command = Command::new(lunar_bin());
    let socket = folder.join("admin.sock");
    let ran = command.args(arguments).arg("--socket").arg(socket).output().expect("lunar runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(ran.stdout), text(ran.stderr), ran.status.code().expect("an exit status"))
}

/// stdout of a command that succeeds.
fn does(server: &Server, arguments: &[&str]) -> String {
    let (out, err, status) = run(server.dir(), arguments);
    assert_eq!((status, err.as_str()), (0, ""), "{arguments:?}: {out}");
    out
}

/// stderr of a command that fails with this status and a hint.
fn fails(server: &Server, arguments: &[&str], expected: i32) -> String {
    let (out, err, status) = run(server.dir(), arguments);
    assert_eq!((out.as_str(), status), ("", expected), "{arguments:?}: {err}");
    assert!(err.contains("hint: "), "{arguments:?}: {err}");
    err
}

fn entries(server: &Server) -> Vec<Value> {
    let list: Value = serde_json::from_str(&does(server, &["history", "--json"])).expect("JSON");
    list["items"].as_array().expect("a list").clone()
}

fn luns(server: &Server) -> usize {
    let list: Value = serde_json::from_str(&does(server, &["lun", "list", "--json"])).expect("JSON");
    list["items"].as_array().expect("a list").len()
}

fn add(server: &Server) {
    does(server, &["lun", "add", TARGET, "null:1M"]);
}

/// The files of the history, without hidden ones.
fn kept(server: &Server) -> Vec<PathBuf> {
    let folders = fs::read_dir(server.dir().join("history")).expect("a history").flatten();
    let mut files: Vec<PathBuf> = folders
        .flat_map(|folder| fs::read_dir(folder.path()).expect("a folder").flatten())
        .map(|f| f.path())
        .collect();
    files.sort();
    files
}

fn journal(server: &Server) -> PathBuf {
    server.dir().join("lunar.d/api/.trial")
}

#[test]
fn earlier_configuration_is_listed_compared_and_restored() {
    let server = Server::start(&configuration());
    add(&server);
    add(&server);
    let table = does(&server, &["history"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("NUMBER  TIME ") && lines[0].ends_with("CAUSE   REQUESTED BY"), "{table}");
    assert!(lines[1].starts_with("     3  ") && lines[1].contains("  change  user "), "{table}");
    assert!(lines[3].starts_with("     1  ") && lines[3].ends_with("  start   -"), "{table}");
    let since = does(&server, &["diff", "--since", "2"]);
    assert_eq!(since, format!("target {TARGET}: LUN 2: added: null, 1 MiB\n"));
    let start = entries(&server)[2]["time"].as_str().expect("a time").to_owned();
    assert!(start.ends_with('Z'), "{start}");
    assert_eq!(does(&server, &["diff", "--since", "2999-01-01T00:00:00Z"]), "nothing has changed\n");
    fails(&server, &["diff", "--since", "2020-01-01T00:00:00Z"], NOT_FOUND);
    fails(&server, &["diff", "--since", "9"], NOT_FOUND);

    let removed = format!("target {TARGET}: LUN 1: removed\ntarget {TARGET}: LUN 2: removed\n");
    let out = does(&server, &["rollback", "--to", "1", "--dry-run"]);
    assert_eq!(out, format!("{removed}dry run: nothing was changed\n"));
    assert_eq!(luns(&server), 3);
    assert_eq!(does(&server, &["rollback", "--to", "1"]), format!("{removed}rolled back\n"));
    assert_eq!((luns(&server), entries(&server)[0]["cause"].as_str()), (1, Some("rollback")));
    let out = does(&server, &["rollback", "--to", "3", "--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&out).expect("JSON")["changes"].as_array().map(Vec::len),
        Some(2)
    );
    assert!(fails(&server, &["rollback", "--to", "9"], NOT_FOUND).contains("the history has no entry 9"));
    assert!(
        server.log().contains("roll back to entry 1 of the history: requested by user "),
        "{}",
        server.log()
    );
}

#[test]
fn kill_during_a_trial_undoes_it_at_the_next_start() {
    let mut server = Server::start(&configuration());
    add(&server);
    let before: Vec<_> =
        fs::read_dir(server.dir().join("lunar.d/api")).expect("a folder").flatten().collect();
    let text = fs::read(before[0].path()).expect("a file");
    let out = does(&server, &["rollback", "--to", "1", "--confirm-within", "1h"]);
    assert!(
        out.ends_with("rolled back; this is undone in 3600 s unless you run lunar apply --confirm\n"),
        "{out}"
    );
    assert!(does(&server, &["status"]).contains("trial "));
    assert!(!before[0].path().exists() && journal(&server).exists());
    let mode = fs::metadata(journal(&server)).expect("a journal").permissions().mode() & 0o777;
    assert_eq!((luns(&server), mode), (1, 0o600));
    server.restart();
    assert_eq!((luns(&server), fs::read(before[0].path()).expect("a file")), (2, text));
    assert!(!journal(&server).exists());
    let line = "the configuration on trial was not confirmed before the server ended: 1 file in ";
    assert!(server.log().contains(line), "{}", server.log());

    does(&server, &["rollback", "--to", "1", "--confirm-within", "1h"]);
    does(&server, &["apply", "--confirm"]);
    assert!(!journal(&server).exists());
    server.restart();
    assert_eq!(luns(&server), 1);
    assert_eq!(server.log().matches(line).count(), 1, "{}", server.log());
}

#[test]
fn graceful_restart_undoes_a_trial_of_own_files_too() {
    let mut server = Server::start(&configuration());
    add(&server);
    let file =
        fs::read_dir(server.dir().join("lunar.d/api")).expect("a folder").flatten().next().expect("a file");
    let text = fs::read_to_string(file.path()).expect("text");
    fs::write(file.path(), format!("{text}vendor = \"TRIAL\"\n")).expect("written");
    does(&server, &["apply", "--confirm-within", "1h"]);
    server.stop();
    assert!(journal(&server).exists());
    server.restart();
    assert_eq!(fs::read_to_string(file.path()).expect("text"), text);
    assert!(!does(&server, &["lun", "show", TARGET, "1"]).contains("TRIAL"));
    // A reload keeps what was on trial.
    fs::write(file.path(), format!("{text}vendor = \"TRIAL\"\n")).expect("written");
    does(&server, &["apply", "--confirm-within", "1h"]);
    does(&server, &["reload"]);
    assert!(!journal(&server).exists());
    server.restart();
    assert!(does(&server, &["lun", "show", TARGET, "1"]).contains("TRIAL"));
}

#[test]
fn trial_that_is_not_confirmed_in_time_restores_the_files() {
    let server = Server::start(&configuration());
    add(&server);
    does(&server, &["rollback", "--to", "1", "--confirm-within", "1s"]);
    // The journal goes after the files are restored.
    until("the end of the trial", || (luns(&server) != 1 && !journal(&server).exists()).then_some(()));
    assert_eq!((luns(&server), journal(&server).exists()), (2, false));
    let newest = &entries(&server)[0];
    assert_eq!((newest["cause"].as_str(), &newest["asker"]), (Some("rollback"), &Value::Null));
}

#[test]
fn twenty_trees_are_kept_of_many_applies() {
    let mut server = Server::start(&configuration());
    for _ in 0..25 {
        add(&server);
    }
    let numbers = |server: &Server| -> Vec<u64> {
        entries(server).iter().map(|entry| entry["number"].as_u64().expect("a number")).collect()
    };
    assert_eq!(numbers(&server), (7..=26).rev().collect::<Vec<u64>>());
    let files = kept(&server);
    let modes: Vec<u32> =
        files.iter().map(|file| fs::metadata(file).expect("a file").permissions().mode() & 0o777).collect();
    assert_eq!(modes, [0o600; 20]);
    does(&server, &["reload"]);
    server.restart();
    assert_eq!(numbers(&server), (7..=26).rev().collect::<Vec<u64>>(), "the same tree is not kept again");
    let tree = fs::read_to_string(&files[0]).expect("text");
    let path = server.dir().join("tree.toml");
    fs::write(&path, tree).expect("written");
    let checked = Command::new(lunar_bin()).arg("check").arg(&path).output().expect("lunar runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn concurrent_changes_are_all_in_the_history() {
    let server = Server::start(&configuration());
    thread::scope(|scope| {
        for client in 0..6 {
            let server = &server;
            scope.spawn(move || {
                for at in 0..3 {
                    let number = (1 + client * 3 + at).to_string();
                    does(server, &["lun", "add", TARGET, "null:1M", "--lun", &number]);
                }
            });
        }
    });
    let list = entries(&server);
    assert_eq!(list.len(), 19);
    let luns_of = |entry: &Value| {
        let number = entry["number"].as_u64().expect("a number");
        let tree = fs::read_to_string(&kept(&server)[number as usize - 1]).expect("text");
        tree.matches("[[target.lun]]").count()
    };
    let counts: Vec<usize> = list.iter().map(luns_of).collect();
    assert_eq!(counts, (1..=19).rev().collect::<Vec<usize>>());
}

#[test]
fn full_state_folder_stops_no_change() {
    let many: String = (1..200).map(|lun| LUN.replace("lun = 0", &format!("lun = {lun}"))).collect();
    // The tree has more than 8 KiB. The files of the API and the log have less.
    let mut server = Server::start_by_shell(&(configuration() + &many), "ulimit -f 16", "");
    let line = "; the applied configuration is not in the history";
    does(&server, &["lun", "add", TARGET, "null:1M", "--lun", "500"]);
    does(&server, &["lun", "add", TARGET, "null:1M", "--lun", "501"]);
    assert_eq!(does(&server, &["history"]), "no applied configurations\n");
    assert_eq!(server.log().matches(line).count(), 1, "logged once: {}", server.log());
    assert_eq!((luns(&server), kept(&server).len()), (202, 0));
    server.restart();
    assert_eq!((luns(&server), entries(&server).len()), (202, 1));
}

#[test]
fn difference_in_the_own_file_is_rejected_with_its_line() {
    let mut server = Server::start(&configuration());
    add(&server);
    server.rewrite(&configuration().replace("8MiB", "9MiB"));
    does(&server, &["reload"]);
    let text = fs::read_to_string(server.dir().join("lunar.toml")).expect("text");
    let line = text.lines().position(|line| line == "[[target.lun]]").expect("a LUN") + 1;
    let err = fails(&server, &["rollback", "--to", "1"], 1);
    let folder = server.dir().canonicalize().expect("a path");
    let fault = format!("{}/lunar.toml:{line}:1: LUN 0 of {TARGET} differs from the tree", folder.display());
    assert!(err.contains(&fault) && err.contains("run lunar reload"), "{err}");
    assert_eq!(luns(&server), 2, "nothing has changed");
}

#[test]
fn lun_in_use_is_removed_only_by_force() {
    let server = Server::start(&configuration());
    add(&server);
    let _host = Login::new().on(server.portal());
    let err = fails(&server, &["rollback", "--to", "1"], IN_USE);
    assert!(err.contains(&format!("LUN 1 of {TARGET} is in use by iqn.")), "{err}");
    does(&server, &["rollback", "--to", "1", "--force"]);
    assert_eq!(luns(&server), 1);
}

/// Bytes that the process has passed to write(2) so far.
fn written(server: &Server) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/io", server.pid())).expect("the server lives");
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("a count");
    line.parse().expect("a number")
}

#[test]
fn change_of_many_luns_writes_one_tree() {
    let folder = Folder::fresh();
    fs::create_dir_all(folder.join("lunar.d")).expect("a folder");
    let many: String = (1..2000)
        .map(|lun| {
            format!("[[lun]]\ntarget = \"{TARGET}\"\nlun = {lun}\nbackend = \"null\"\nsize = \"1M\"\n")
        })
        .collect();
    fs::write(folder.join("lunar.d/many.toml"), many).expect("written");
    let server = Server::start_in(folder, &configuration());
    assert_eq!(entries(&server).len(), 1);
    let before = written(&server);
    does(&server, &["lun", "add", TARGET, "null:1M", "--lun", "3000"]);
    assert_eq!(entries(&server).len(), 2);
    let length = fs::metadata(&kept(&server)[1]).expect("a tree").len();
    let bytes = written(&server) - before;
    assert!(length > 100_000 && bytes >= length, "{bytes} bytes for a tree of {length}");
    assert!(bytes < length + 100_000, "{bytes} bytes for a tree of {length}");
}
