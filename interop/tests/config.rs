//! `lunar config` and `lunar adopt`, each as a user runs it: the configuration and the state of a server survive.

use interop::{Folder, Server, TARGET, lunar_bin};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const INVALID: i32 = 7;
const EXISTS: i32 = 15;
const IN_USE: i32 = 28;

/// A configuration whose paths are relative, so that its folder can move.
const HEAD: &str = "[server]\nstate_dir = \"state\"\n[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\n\
    portals = [\"127.0.0.1:0\"]\n";

fn configuration() -> String {
    format!(
        "{HEAD}\n# The disks\n[[target]]\nname = \"{TARGET}\"\n\n# Keep this one\n[[target.lun]]\nlun = 0\nbackend = \"file\"\n\
         path = \"disk.img\"\nsize = \"1MiB\"\n"
    )
}

/// stdout, stderr and the exit status of a command in a folder.
fn run(folder: &Path, arguments: &[&str]) -> (String, String, i32) {
    let mut command = Command::new(lunar_bin());
    command.args(arguments).current_dir(folder).env("LUNAR_RUN_DIR", folder.join("run"));
    let ran = command.output().expect("lunar runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(ran.stdout), text(ran.stderr), ran.status.code().expect("an exit status"))
}

fn does(folder: &Path, arguments: &[&str]) -> String {
    let (out, err, status) = run(folder, arguments);
    assert_eq!(status, 0, "{arguments:?}: {out}{err}");
    out
}

/// stderr of a command that fails with this status and a hint.
fn fails(folder: &Path, arguments: &[&str], expected: i32) -> String {
    let (out, err, status) = run(folder, arguments);
    assert_eq!((out.as_str(), status), ("", expected), "{arguments:?}: {err}");
    assert!(err.contains("\n  hint: "), "{arguments:?}: {err}");
    err
}

/// A server with a CHAP user and a LUN of the API, and a reservation that persists.
fn server() -> Server {
    let server = Server::start(&configuration());
    let socket = server.dir().join("admin.sock").display().to_string();
    let url = format!("iscsi://{}/{TARGET}/0", server.portal());
    let file = server.dir().join("alice.txt");
    fs::write(&file, "twelve bytes").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    for arguments in [
        &["chap", "add", "alice", "--secret-file", "alice.txt", "--socket", &socket][..],
        &["lun", "add", TARGET, "null:1M", "--lun", "3", "--socket", &socket],
        &[
            "pr",
            &url,
            "register-ignore",
            "reserve",
            "--new-key",
            "abc",
            "--key",
            "abc",
            "--type",
            "we",
            "--aptpl",
        ],
    ] {
        does(server.dir(), arguments);
    }
    server
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.collect();
    files.sort();
    files
}

#[test]
fn dump_restores_a_server_in_another_folder() {
    let mut server = server();
    let dump =
        does(server.dir(), &["config", "dump", "--config", "lunar.toml", "-o", "dump.json", "--secrets"]);
    assert!(dump.contains("3 files of the configuration, 0 attachments, 1 secret, "), "{dump}");
    let file = server.dir().join("dump.json");
    assert_eq!(file.metadata().expect("a dump").permissions().mode() & 0o777, 0o600);
    fails(server.dir(), &["config", "dump", "--config", "lunar.toml", "-o", "dump.json"], EXISTS);
    let restore = ["config", "restore", "dump.json"];
    assert!(does(server.dir(), &restore).starts_with("nothing to restore: "));
    // The state of the running server is not replaced.
    let state = server.dir().join(format!("state/lu/{TARGET}/0.state"));
    let saved = fs::read(&state).expect("a state");
    fs::write(&state, "changed").expect("a state");
    let force: Vec<&str> = [&restore[..], &["--force"]].concat();
    assert!(fails(server.dir(), &force, IN_USE).contains("a server uses the state "));
    fs::write(&state, saved).expect("a state");
    assert!(server.stop().success());

    let copy = Folder::fresh();
    fs::copy(server.dir().join("disk.img"), copy.join("disk.img")).expect("a copy of the disk");
    let folder = copy.display().to_string();
    let (out, err, status) =
        run(server.dir(), &["config", "restore", "dump.json", "--config-folder", &folder, "--dry-run"]);
    assert_eq!(status, 0, "{err}");
    assert!(out.contains(&format!("create   {folder}/lunar.toml\n")), "{out}");
    assert_eq!(files(&copy).len(), 1, "{out}");
    does(server.dir(), &["config", "restore", "dump.json", "--config-folder", &folder]);
    let secret = &files(&copy.join("lunar.d/api/secrets"))[0];
    assert_eq!(fs::read_to_string(secret).expect("a secret"), "twelve bytes");
    assert_eq!(secret.metadata().expect("a secret").permissions().mode() & 0o777, 0o600);
    // The admin socket has an absolute path.
    let text = fs::read_to_string(copy.join("lunar.toml")).expect("a configuration");
    let text = text.replace(&server.dir().display().to_string(), &folder);
    let restored = Server::start_in(copy, &text);
    let url = format!("iscsi://{}/{TARGET}/0", restored.portal());
    let status = does(restored.dir(), &["pr", &url, "read-reservation"]);
    assert!(status.to_lowercase().contains("abc"), "{status}");
    let shown = does(restored.dir(), &["config", "show", "--socket", "admin.sock"]);
    assert!(shown.contains("lun = 3\nbackend = \"null\"") && !shown.contains("twelve"), "{shown}");
}

#[test]
fn restore_replaces_and_removes_files_only_by_force() {
    let folder = Folder::fresh();
    let text = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n";
    fs::write(folder.join("lunar.toml"), text).expect("a file");
    fs::write(folder.join("other.toml"), "[server]\nstate_dir = \"state\"\n").expect("a file");
    does(&folder, &["config", "dump", "--config", "lunar.toml", "-o", "dump.json"]);
    fs::write(folder.join("lunar.toml"), text.replace(":a", ":b")).expect("a file");
    fs::create_dir(folder.join("lunar.d")).expect("a folder");
    fs::rename(folder.join("other.toml"), folder.join("lunar.d/other.toml")).expect("a drop-in file");
    fs::create_dir(folder.join("lunar.d/api")).expect("a folder");
    let record = folder.join("lunar.d/api/.trial");
    fs::write(&record, "{}").expect("a record");
    let err = fails(&folder, &["config", "restore", "dump.json"], EXISTS);
    assert!(err.contains(".trial is not in the dump"), "{err}");
    assert!(
        err.contains("lunar.toml exists with other content") && err.contains("other.toml is not in the dump"),
        "{err}"
    );
    let out = does(&folder, &["config", "restore", "dump.json", "--force"]);
    assert!(out.contains("replace  ") && out.contains("remove   "), "{out}");
    assert_eq!(fs::read_to_string(folder.join("lunar.toml")).expect("a file"), text);
    assert!(files(&folder.join("lunar.d")).iter().all(|path| path.is_dir()));
    assert!(!record.exists(), "it would replace restored files");
}

#[test]
fn dump_that_is_damaged_newer_or_invalid_writes_nothing() {
    let folder = Folder::fresh();
    fs::write(folder.join("lunar.toml"), "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n")
        .expect("a file");
    let dump = does(&folder, &["config", "dump", "--config", "lunar.toml"]);
    for (changed, fault) in [
        (dump.replace("example:a", "example:b"), "is damaged: its checksum does not match"),
        (dump[..dump.len() - 9].to_owned(), "is damaged: "),
        (dump.replace("\"version\": 1", "\"version\": 9"), "has version 9 of the format"),
        ("[server]\n".to_owned(), "is no dump: "),
    ] {
        fs::write(folder.join("dump.json"), changed).expect("a file");
        let err = fails(&folder, &["config", "restore", "dump.json", "--config-folder", "new"], INVALID);
        assert!(err.contains(fault), "{err}");
        assert!(!folder.join("new").exists());
    }
    let err =
        fails(&folder, &["config", "dump", "--config", "lunar.toml", "--secrets", "-o", "no/dump.json"], 1);
    assert!(err.contains("cannot write no/dump.json: "), "{err}");
}

#[test]
fn password_in_a_url_is_dumped_only_as_a_secret() {
    let folder = Folder::fresh();
    let text = "[router.r1.upstream]\na.urls = [\"iscsi://bob%hidden@192.0.2.1\"]\n[[router.r1.target]]\n\
        map = \"transparent\"\nupstream = \"a\"\naccess = \"all\"\n";
    let file = folder.join("lunar.toml");
    fs::write(&file, text).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    let err = fails(&folder, &["config", "dump", "--config", "lunar.toml"], 1);
    assert!(err.contains("lunar.toml:2: the URL holds a secret"), "{err}");
    let out = does(&folder, &["config", "dump", "--config", "lunar.toml", "--secrets"]);
    assert!(out.contains("hidden"), "a pipe takes secrets: {out}");
    assert!(!does(&folder, &["config", "show", "lunar.toml"]).contains("hidden"));
}

#[test]
fn adopted_lun_can_be_changed_by_commands() {
    let server = Server::start(&configuration());
    let socket = server.dir().join("admin.sock").display().to_string();
    let remove = ["lun", "remove", TARGET, "0", "--socket", &socket];
    let err = fails(server.dir(), &remove, 1);
    assert!(err.contains("or move the object with lunar adopt"), "{err}");
    let before = does(server.dir(), &["config", "show", "lunar.toml", "--json"]);
    let out = does(server.dir(), &["adopt", &format!("{TARGET}/0"), "--config", "lunar.toml"]);
    assert!(out.starts_with(&format!("LUN 0 of {TARGET}: ")) && out.contains("/lunar.d/api/lun-"), "{out}");
    let after = does(server.dir(), &["config", "show", "lunar.toml", "--json"]);
    let values = |text: &str| {
        let lines =
            text.split("\\n").filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    assert_eq!(values(&before), values(&after));
    let adopted = fs::read_to_string(&files(&server.dir().join("lunar.d/api"))[0]).expect("a file");
    assert!(adopted.contains("\n# Keep this one\n[[lun]]\n"), "{adopted}");
    let rest = fs::read_to_string(server.dir().join("lunar.toml")).expect("a file");
    assert!(rest.contains("\n# The disks\n[[target]]\n") && !rest.contains("Keep"), "{rest}");
    assert_eq!(does(server.dir(), &["reload", "--socket", &socket]), "applied\n");
    does(server.dir(), &remove);
}
