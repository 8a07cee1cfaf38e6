//! The commands that change a running server, each as a user runs it, while a host has a session.

use interop::scsi::{inquiry, pattern, read_keys, reserve_out};
use interop::{Folder, Login, Raw, Server, TARGET, lunar_bin};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const CONFIG: &str =
    "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n";
const NEW: &str = "iqn.2026-11.org.example:new";
const SIGHUP: i32 = 1;
const USAGE: i32 = 2;
const INVALID: i32 = 7;
const EXISTS: i32 = 15;
const NOT_FOUND: i32 = 21;
const IN_USE: i32 = 28;

/// A running server and the commands for it.
struct Administrator {
    server: Server,
}

impl Administrator {
    fn new() -> Administrator {
        let lun = "[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"8MiB\"\n";
        Administrator { server: Server::start(&format!("{CONFIG}[[target]]\nname = \"{TARGET}\"\n{lun}")) }
    }

    /// stdout, stderr and the exit status.
    fn run(&self, arguments: &[&str]) -> (String, String, i32) {
        let mut command = Command::new(lunar_bin());
        command.args(arguments).current_dir(self.server.dir());
        let socket = self.server.dir().join("admin.sock");
        let ran = command.arg("--socket").arg(socket).output().expect("lunar runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(ran.stdout), text(ran.stderr), ran.status.code().expect("an exit status"))
    }

    /// stdout of a command that succeeds.
    fn does(&self, arguments: &[&str]) -> String {
        let (out, err, status) = self.run(arguments);
        assert_eq!((status, err.as_str()), (0, ""), "{arguments:?}: {out}");
        out
    }

    /// stderr of a command that fails with this status and a hint.
    fn fails(&self, arguments: &[&str], expected: i32) -> String {
        let (out, err, status) = self.run(arguments);
        assert_eq!((out.as_str(), status), ("", expected), "{arguments:?}: {err}");
        assert!(err.contains("\n  hint: "), "{arguments:?}: {err}");
        err
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.does(&[arguments, &["--json"]].concat())).expect("JSON")
    }
}

#[test]
fn lun_comes_grows_and_goes_while_a_host_uses_its_target() {
    let admin = Administrator::new();
    let mut raw = Login::new().on(admin.server.portal());
    raw.clear_attentions(0);
    let out = admin.does(&["lun", "add", TARGET, "new.img", "--size", "1MiB", "--dry-run"]);
    assert!(out.contains("LUN 1: added") && out.ends_with("dry run: nothing was changed\n"), "{out}");
    let out = admin.does(&["lun", "add", TARGET, "new.img", "--size", "1MiB", "thin=false"]);
    assert!(out.contains("LUN 1: added") && out.ends_with("applied\n"), "{out}");
    raw.clear_attentions(0);
    raw.clear_attentions(1);
    raw.write_blocks(1, 0, &pattern(512, 3)).good();
    let shown = admin.does(&["lun", "show", TARGET, "1"]);
    assert!(shown.contains("new.img\n") && shown.contains("thin            false\n"), "{shown}");
    let list = admin.json(&["lun", "list"]);
    assert_eq!(list["items"][1]["source"]["origin"], "api", "{list}");
    assert!(admin.does(&["lun", "list", TARGET]).starts_with("TARGET "));
    admin.fails(&["lun", "add", TARGET, "null:1M", "--lun", "1"], EXISTS);
    admin.fails(&["lun", "add", TARGET, "missing.img"], NOT_FOUND);

    admin.does(&["lun", "resize", TARGET, "1", "2MiB"]);
    let length = || std::fs::metadata(admin.server.dir().join("new.img")).expect("a file").len();
    assert_eq!(length(), 2 << 20);
    let file = std::fs::File::options().write(true).open(admin.server.dir().join("new.img")).expect("a file");
    file.set_len(3 << 20).expect("it grows");
    interop::routed::until("the list shows the size that hosts see", || {
        (admin.json(&["lun", "show", TARGET, "1"])["capacity_bytes"] == 3 << 20).then_some(())
    });
    assert!(admin.does(&["lun", "list", TARGET]).contains("  3 MiB  "));
    assert!(admin.fails(&["lun", "resize", TARGET, "1", "1MiB"], 1).contains("cannot shrink"));
    admin.does(&["lun", "add", TARGET, "null:1M", "--lun", "2", "--transient"]);
    admin.does(&["lun", "resize", TARGET, "2", "2MiB"]);
    assert_eq!(admin.json(&["lun", "show", TARGET, "2"])["source"]["origin"], "transient");

    let err = admin.fails(&["lun", "remove", TARGET, "1"], IN_USE);
    assert!(err.contains("LUN 1 of ") && err.contains("is in use by iqn."), "{err}");
    admin.does(&["lun", "remove", TARGET, "1", "--force"]);
    admin.fails(&["lun", "show", TARGET, "1"], NOT_FOUND);
    let err = admin.fails(&["lun", "remove", TARGET, "0", "--force"], 1);
    assert!(err.contains("lunar.toml line ") && err.contains("run lunar reload"), "{err}");
    assert_eq!(length(), 3 << 20, "the file stays");
}

/// Serial number and designators of a LUN, without those of the target port.
fn identity(host: &mut Raw, lun: u16) -> [Vec<u8>; 2] {
    let serial = host.read(lun, &inquiry(Some(0x80), 255), 255).good();
    let page = host.read(lun, &inquiry(Some(0x83), 1024), 1024).good();
    let mut of_unit = Vec::new();
    let mut rest = &page[4..];
    while let [_, association, _, length, ..] = *rest {
        let (one, after) = rest.split_at(4 + usize::from(length));
        // Association 0: the logical unit (SPC-5 section 7.7.6.1).
        of_unit.extend_from_slice(if association & 0x30 == 0 { one } else { &[] });
        rest = after;
    }
    [serial, of_unit]
}

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;
const APTPL: u8 = 1;
const CONFLICT: u8 = 0x18;

#[test]
fn moved_lun_stays_the_same_disk_with_its_reservation() {
    let mut admin = Administrator::new();
    let portal = admin.server.portal();
    admin.does(&["target", "add", NEW]);
    admin.does(&["lun", "add", NEW, "null:1M"]);
    admin.does(&["lun", "add", TARGET, "new.img", "--size", "1MiB"]);
    let at = |target: &str, isid: u8, lun: u16| {
        let mut host = Login::new().target(target).isid([0x40, 0, 1, 0x37, 0, isid]).on(portal);
        host.clear_attentions(lun);
        host
    };
    let mut host = at(TARGET, 1, 1);
    let before = identity(&mut host, 1);
    host.write_blocks(1, 0, &pattern(512, 3)).good();
    reserve_out(&mut host, 1, REGISTER, 0, 0, 0xabcd, APTPL).good();
    reserve_out(&mut host, 1, RESERVE, EXCLUSIVE_ACCESS, 0xabcd, 0, 0).good();

    let err = admin.fails(&["lun", "move", TARGET, "1", NEW], IN_USE);
    assert!(err.contains("LUN 1 of ") && err.contains("is in use by iqn."), "{err}");
    admin.fails(&["lun", "move", TARGET, "1", NEW, "--lun", "0", "--force"], EXISTS);
    admin.fails(&["lun", "move", TARGET, "1", "iqn.2026-11.org.example:none", "--force"], NOT_FOUND);
    admin.fails(&["lun", "move", TARGET, "0", NEW, "--lun", "5", "--force"], 1);
    let out = admin.does(&["lun", "move", TARGET, "1", NEW, "--force", "--dry-run"]);
    assert!(out.ends_with("dry run: nothing was changed\n"), "{out}");
    host.read_blocks(1, 0, 1);
    let out = admin.does(&["lun", "move", TARGET, "1", NEW, "--force"]);
    assert!(out.contains("LUN 1: removed\n") && out.contains("LUN 1: added: "), "{out}");
    admin.fails(&["lun", "show", TARGET, "1"], NOT_FOUND);
    drop(host);

    admin.does(&["lun", "move", NEW, "1", NEW, "--lun", "6"]);
    for is_restarted in [false, true] {
        if is_restarted {
            admin.server.restart();
        }
        let mut host = at(NEW, 1, 6);
        assert_eq!(identity(&mut host, 6), before, "{is_restarted}");
        assert_eq!(read_keys(&mut host, 6), [0xabcd], "{is_restarted}");
        assert_eq!(host.read_blocks(6, 0, 1), pattern(512, 3));
        let mut other = at(NEW, 2, 6);
        assert_eq!(other.write_blocks(6, 0, &[0; 512]).status, CONFLICT, "{is_restarted}");
    }
    // A new LUN of the former place does not begin with its reservation.
    admin.does(&["lun", "add", TARGET, "null:1M", "--lun", "1"]);
    let mut next = at(TARGET, 1, 1);
    assert_eq!(read_keys(&mut next, 1), Vec::<u64>::new());
    assert_ne!(identity(&mut next, 1), before);
}

#[test]
fn memory_keeps_its_data_and_volatile_reservation_in_a_move() {
    let admin = Administrator::new();
    admin.does(&["target", "add", NEW]);
    admin.does(&["lun", "add", TARGET, "memory:1M", "--transient"]);
    let login = |target: &str| Login::new().target(target).on(admin.server.portal());
    let mut host = login(TARGET);
    host.clear_attentions(1);
    let before = identity(&mut host, 1);
    host.write_blocks(1, 0, &pattern(512, 3)).good();
    reserve_out(&mut host, 1, REGISTER, 0, 0, 0xabcd, 0).good();
    drop(host);
    admin.does(&["lun", "move", TARGET, "1", NEW, "--lun", "3", "--force"]);
    assert_eq!(admin.json(&["lun", "show", NEW, "3"])["source"]["origin"], "transient");
    let mut host = login(NEW);
    host.clear_attentions(3);
    assert_eq!((identity(&mut host, 3), read_keys(&mut host, 3)), (before, vec![0xabcd]));
    assert_eq!(host.read_blocks(3, 0, 1), pattern(512, 3));
}

#[test]
fn disk_is_shown_by_two_targets_and_grows_for_both() {
    let admin = Administrator::new();
    admin.does(&["target", "add", NEW]);
    assert_eq!(admin.does(&["disk", "list"]), "no disks\n");
    let out = admin.does(&["disk", "add", "data", "new.img", "--size", "1MiB", "thin=false"]);
    assert!(out.ends_with("applied\n"), "{out}");
    admin.fails(&["disk", "add", "data", "null:1M"], EXISTS);
    admin.does(&["lun", "add", TARGET, "disk:data"]);
    admin.does(&["lun", "add", NEW, "disk:data", "--lun", "5"]);
    assert!(admin.fails(&["lun", "add", NEW, "disk=data"], INVALID).contains("hint: write disk:data"));
    assert!(admin.fails(&["lun", "add", NEW, "disk:dat"], 1).contains("unknown disk \"dat\""));
    let mut host = Login::new().on(admin.server.portal());
    let mut other = Login::new().target(NEW).on(admin.server.portal());
    host.clear_attentions(1);
    other.clear_attentions(5);
    host.write_blocks(1, 0, &pattern(512, 3)).good();
    assert_eq!(other.read_blocks(5, 0, 1), pattern(512, 3));

    let list = admin.does(&["lun", "list"]);
    let rows: Vec<&str> = list.lines().filter(|row| row.contains("disk:data")).collect();
    assert_eq!(
        rows.iter().filter(|row| row.contains(" file ") && row.contains("1 MiB")).count(),
        2,
        "{list}"
    );
    assert!(admin.does(&["target", "show", NEW]).contains("disk:data"));
    admin.does(&["lun", "resize", NEW, "5", "2MiB"]);
    let length = std::fs::metadata(admin.server.dir().join("new.img")).expect("a file").len();
    assert_eq!(length, 2 << 20);
    interop::routed::until("both LUNs have the new size", || {
        (admin.does(&["lun", "list"]).matches("2 MiB").count() == 2).then_some(())
    });
    let shown = admin.does(&["disk", "show", "data"]);
    assert!(shown.contains("thin     false\n") && shown.matches("disk:data").count() == 2, "{shown}");
    let list = admin.does(&["disk", "list"]);
    let row: Vec<&str> = list.lines().last().expect("a row").split_whitespace().collect();
    assert_eq!((row[0], row[1], &row[3..]), ("data", "file", &["2", "MiB", "2", "api"][..]), "{list}");

    let err = admin.fails(&["disk", "remove", "data"], IN_USE);
    assert!(err.contains("disk data is in use by LUN 1 of ") && err.contains("LUN 5 of "), "{err}");
    drop((host, other));
    admin.does(&["lun", "remove", TARGET, "1", "--force"]);
    admin.does(&["lun", "remove", NEW, "5", "--force"]);
    admin.does(&["disk", "remove", "data"]);
    assert!(admin.fails(&["disk", "show", "data"], NOT_FOUND).contains("lunar disk list"));
}

/// A reload by command asks for a LUN in use. One by signal cannot ask, and logs it.
#[test]
fn lun_in_use_is_taken_by_force_or_signal_only() {
    let admin = Administrator::new();
    let file = admin.server.dir().join("lunar.toml");
    let whole = std::fs::read_to_string(&file).expect("a configuration");
    let lun = |number: u16| format!("[[target.lun]]\nlun = {number}\nbackend = \"null\"\nsize = \"1M\"\n");
    std::fs::write(&file, whole.clone() + &lun(1) + &lun(2)).expect("written");
    admin.does(&["reload"]);
    let mut raw = Login::new().on(admin.server.portal());
    raw.clear_attentions(0);
    std::fs::write(&file, whole.clone() + &lun(2)).expect("written");
    let path = file.display().to_string();
    for line in [
        &["reload"][..],
        &["apply", &path],
        &["apply", &path, "--confirm-within", "1h"],
        &["apply", "--dry-run"],
    ] {
        let err = admin.fails(line, IN_USE);
        assert!(
            err.contains(&format!("LUN 1 of {TARGET} is in use by iqn.")) && err.contains("--force"),
            "{err}"
        );
        admin.does(&["lun", "show", TARGET, "1"]);
    }
    let out = admin.does(&["apply", "--dry-run", "--force"]);
    assert!(out.contains("LUN 1: removed\n") && out.ends_with("dry run: nothing was changed\n"), "{out}");
    admin.does(&["lun", "show", TARGET, "1"]);
    admin.does(&["reload", "--force"]);
    admin.fails(&["lun", "show", TARGET, "1"], NOT_FOUND);

    std::fs::write(&file, whole).expect("written");
    admin.server.signal(SIGHUP);
    interop::routed::until("the signal takes LUN 2", || {
        let line = format!("LUN 2 of {TARGET} was removed, or is another disk now, while in use by iqn.");
        admin.server.log().contains(&line).then_some(())
    });
    admin.fails(&["lun", "show", TARGET, "2"], NOT_FOUND);
}

#[test]
fn objects_of_the_api_that_another_file_lacks_are_counted() {
    let admin = Administrator::new();
    admin.does(&["lun", "add", TARGET, "null:1M"]);
    let other = admin.server.dir().join("other.toml");
    std::fs::copy(admin.server.dir().join("lunar.toml"), &other).expect("a copy");
    let other = other.display().to_string();
    let warning = format!("warning: 1 object of the API is not in {other}, ");
    for more in [&["--dry-run"][..], &[]] {
        let (out, err, status) = admin.run(&[&["apply", &other], more].concat());
        assert!(
            status == 0 && err.starts_with(&warning) && err.contains("other.d/api; hint: "),
            "{out}{err}"
        );
    }
    admin.fails(&["lun", "show", TARGET, "1"], NOT_FOUND);
    admin.does(&["reload"]);
    admin.does(&["lun", "show", TARGET, "1"]);
}

#[test]
fn server_without_a_file_shows_its_objects_and_changes_none() {
    let folder = Folder::fresh();
    let mut serve = Command::new(lunar_bin());
    serve.args(["serve", "null:1M", "--listen", "127.0.0.1:0", "--target", TARGET]).current_dir(&*folder);
    serve.env("LUNAR_RUN_DIR", &*folder).env("XDG_STATE_HOME", &*folder);
    let mut serve = serve.stdout(std::process::Stdio::null()).spawn().expect("lunar runs");
    let socket = folder.join("lunar.sock");
    let run = |line: &[&str]| {
        let ran =
            Command::new(lunar_bin()).args(line).arg("--socket").arg(&socket).output().expect("lunar runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&ran.stdout), text(&ran.stderr), ran.status.code())
    };
    let does = |line: &[&str]| {
        let (out, err, status) = run(line);
        assert_eq!((err.as_str(), status), ("", Some(0)), "{line:?}");
        out
    };
    interop::routed::until("the server answers", || (run(&["status"]).2 == Some(0)).then_some(()));
    assert!(
        does(&["status"]).contains("file      none\ntargets   1\nLUNs      1\n"),
        "{}",
        does(&["status"])
    );
    let target = does(&["target", "list"]);
    assert!(target.contains(TARGET) && target.contains("command line\n"), "{target}");
    let list = does(&["lun", "list"]);
    assert!(list.contains("null") && list.contains("1 MiB") && list.contains("command line\n"), "{list}");
    let shown = does(&["target", "show", TARGET]);
    assert!(shown.contains("source  command line\n") && shown.contains("null"), "{shown}");
    assert!(does(&["portal", "list"]).contains("127.0.0.1:0"));
    let hinted =
        "error: the server was started without a configuration file\n  hint: start it with --config FILE\n";
    for line in [
        &["lun", "add", TARGET, "null:1M"][..],
        &["lun", "remove", TARGET, "0", "--force"],
        &["lun", "resize", TARGET, "0", "2M"],
        &["target", "add", NEW],
        &["target", "remove", TARGET],
        &["access", "add", TARGET, "--initiator", "iqn.*"],
        &["chap", "add", "alice"],
        &["portal", "remove", "1"],
    ] {
        let (out, err, status) = run(line);
        assert_eq!((out.as_str(), err.as_str(), status), ("", hinted, Some(1)), "{line:?}");
    }
    let file = folder.join("other.toml");
    let target =
        format!("[[target]]\nname = \"{TARGET}\"\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n");
    std::fs::write(&file, target).expect("written");
    let path = file.display().to_string();
    let warning = format!(
        "warning: the next start of this server does not read {path}, because it was started without"
    );
    let warns = |line: &[&str]| {
        let (out, err, status) = run(line);
        assert_eq!(status, Some(0), "{out}{err}");
        err.starts_with(&warning)
    };
    assert!(warns(&["apply", &path, "--force"]));
    assert!(warns(&["lun", "add", TARGET, "null:1M"]), "the file of the object is not read either");
    assert!(!warns(&["lun", "add", TARGET, "null:1M", "--transient"]), "no start reads it");
    does(&["stop"]);
    assert!(serve.wait().expect("it ends").success());
}

#[test]
fn lun_of_a_deleted_file_is_shown_and_removed_by_force() {
    let admin = Administrator::new();
    for name in ["a.img", "b.img"] {
        admin.does(&["lun", "add", TARGET, name, "--size", "1MiB"]);
        std::fs::remove_file(admin.server.dir().join(name)).expect("a file");
    }
    interop::routed::until("the status warns", || {
        let text = admin.does(&["status"]);
        [1, 2].iter().all(|lun| text.contains(&format!("\nwarning   LUN {lun} of {TARGET}: "))).then_some(())
    });
    let json = admin.json(&["status"]);
    let warning = json["items"][0]["warnings"][0].as_str().expect("a warning");
    assert!(warning.contains("a.img") && warning.contains("; hint: "), "{json}");
    let err = admin.fails(&["lun", "remove", TARGET, "1"], 1);
    assert!(
        err.contains("the data of the file is lost") && err.contains("use --force (force=true)"),
        "{err}"
    );
    admin.does(&["lun", "remove", TARGET, "1", "--force"]);
    admin.fails(&["lun", "show", TARGET, "1"], NOT_FOUND);
    // By hand, as a file of an administrator.
    let api = admin.server.dir().join("lunar.d/api");
    let file = std::fs::read_dir(&api).expect("a folder").flatten().find(|entry| entry.path().is_file());
    std::fs::remove_file(file.expect("a file of LUN 2").path()).expect("removed");
    let err = admin.fails(&["reload"], 1);
    assert!(err.contains("the data of the file is lost") && err.contains("use --force"), "{err}");
    admin.does(&["reload", "--force"]);
    assert!(!admin.does(&["status"]).contains("warning   LUN"));
}

#[test]
fn stop_of_a_server_that_loses_data_fails() {
    let mut admin = Administrator::new();
    let error = "filters=[{\"kind\":\"error\",\"rate\":1.0,\"op\":\"flush\"}]";
    admin.does(&["lun", "add", TARGET, "a.img", "--size", "1MiB", error]);
    let mut raw = Login::new().on(admin.server.portal());
    raw.clear_attentions(0);
    raw.clear_attentions(1);
    raw.write_blocks(1, 0, &pattern(512, 3)).good();
    drop(raw);
    let err = admin.fails(&["stop"], 1);
    let start = format!("error: the server has ended, and data is lost: LUN 1 of {TARGET}");
    assert!(err.starts_with(&start) && err.contains("cannot flush all data"), "{err}");
    assert_eq!(admin.server.wait(Duration::from_secs(20)).code(), Some(1));
}

#[test]
fn server_that_shuts_down_for_long_says_so() {
    let mut admin = Administrator::new();
    admin.does(&["lun", "add", TARGET, "a.img", "--size", "1MiB"]);
    std::fs::remove_file(admin.server.dir().join("a.img")).expect("a file");
    // The server keeps the deleted file for 60 s.
    assert!(admin.fails(&["stop", "--timeout", "100ms"], 8).contains("still shuts down after 100ms"));
    interop::routed::until("the server keeps the file", || {
        admin.server.log().contains("stays available for 60 s").then_some(())
    });
    assert!(admin.does(&["status"]).contains("\nstate     shuts down\n"));
    assert_eq!(admin.json(&["status"])["items"][0]["stopping"], true);
    assert!(admin.fails(&["lun", "add", TARGET, "null:1M"], 1).contains("the server is shutting down"));
    let socket = admin.server.dir().join("admin.sock");
    let mut stop = Command::new(lunar_bin());
    stop.arg("stop").arg("--socket").arg(&socket).stderr(std::process::Stdio::piped());
    let stop = stop.spawn().expect("lunar runs");
    interop::routed::until("it waits for the response", || {
        let is_connected = || {
            let all = std::fs::read_to_string("/proc/net/unix").expect("the sockets of this host");
            let path = socket.display().to_string();
            all.lines().any(|line| line.ends_with(&path) && line.contains(" 0001 03 "))
        };
        let before = is_connected();
        std::thread::sleep(Duration::from_millis(100));
        (before && is_connected()).then_some(())
    });
    admin.server.kill9();
    let ran = stop.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{err}");
    assert!(err.starts_with("error: the server has ended without a result: "), "{err}");
}

#[test]
fn quiet_commands_print_errors_and_what_was_asked_for() {
    let mut admin = Administrator::new();
    let file = admin.server.dir().join("lunar.toml").display().to_string();
    let quiet = |admin: &Administrator, line: &[&str]| admin.does(&[line, &["-q"]].concat());
    for line in [
        &["lun", "add", TARGET, "null:1M"][..],
        &["lun", "resize", TARGET, "1", "2M"],
        &["lun", "remove", TARGET, "1"],
        &["target", "add", NEW],
        &["access", "add", NEW, "--initiator", "iqn.*"],
        &["access", "remove", NEW, "0", "--force"],
        &["target", "remove", NEW],
        &["portal", "add", "2", "127.0.0.9:0"],
        &["portal", "remove", "2"],
        &["reload"],
        &["apply", &file, "--confirm-within", "1h"],
        &["apply", "--confirm"],
        &["apply", &file],
        &["rollback", "--to", "2"],
    ] {
        assert_eq!(quiet(&admin, line), "", "{line:?}");
    }
    assert!(quiet(&admin, &["chap", "add", "alice"]).contains("node.session.auth.password = "));
    assert!(quiet(&admin, &["lun", "list"]).contains(TARGET));
    let shown = quiet(&admin, &["lun", "add", TARGET, "null:1M", "--dry-run"]);
    assert!(shown.contains(": added: null, 1 MiB\ndry run"), "{shown}");
    assert!(quiet(&admin, &["lun", "add", TARGET, "null:1M", "--json"]).contains("\"changes\""));
    let (out, err, status) = admin.run(&["lun", "remove", TARGET, "7", "-q"]);
    assert!(out.is_empty() && err.starts_with("error: ") && status == NOT_FOUND, "{out}{err}");
    assert_eq!(quiet(&admin, &["stop"]), "");
    assert!(admin.server.wait(Duration::from_secs(20)).success());
    for line in [
        &["check", &file][..],
        &["adopt", "--all", "--config", &file],
        &["config", "dump", "--config", &file, "-o", "b.json"],
    ] {
        let ran = Command::new(lunar_bin()).args(line).arg("-q").current_dir(admin.server.dir()).output();
        let ran = ran.expect("lunar runs");
        assert!(ran.status.success() && ran.stdout.is_empty() && ran.stderr.is_empty(), "{line:?}: {ran:?}");
    }
}

#[test]
fn transient_lun_is_gone_after_a_restart() {
    let mut admin = Administrator::new();
    admin.does(&["lun", "add", TARGET, "null:1M", "--transient"]);
    assert_eq!(admin.json(&["lun", "show", TARGET, "1"])["source"]["origin"], "transient");
    admin.does(&["reload"]);
    admin.does(&["lun", "show", TARGET, "1"]);
    admin.server.restart();
    admin.fails(&["lun", "show", TARGET, "1"], NOT_FOUND);
}

#[test]
fn target_with_access_and_chap_admits_its_user_only() {
    let admin = Administrator::new();
    admin.does(&["target", "add", NEW, "alias=backup"]);
    admin.does(&["lun", "add", NEW, "memory:1M"]);
    let added = admin.json(&["chap", "add", "alice"]);
    assert_eq!(added["secret"].as_str().map(str::len), Some(16), "{added}");
    let out = admin.does(&["access", "add", NEW, "--initiator", "iqn.*", "--chap", "alice", "--luns", "7=0"]);
    assert!(out.ends_with("applied\n"), "{out}");
    let host = Login::new().target(NEW);
    assert!(host.try_on(admin.server.portal()).is_err());
    let url = format!("iscsi://alice@{}/{NEW}/7", admin.server.portal());
    let secret = added["secret"].as_str().expect("a secret");
    let mut info = Command::new(lunar_bin());
    let ran = info.args(["info", &url]).env("LUNAR_CHAP_PASSWORD", secret).output().expect("lunar runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));

    let shown = admin.does(&["target", "show", NEW]);
    assert!(shown.contains("alias   backup\n") && shown.contains("memory"), "{shown}");
    assert!(shown.contains("alice") && !shown.contains(secret), "{shown}");
    assert!(admin.fails(&["chap", "remove", "alice"], IN_USE).contains("is in use by access entry 0 of "));
    admin.does(&["access", "remove", NEW, "0", "--force"]);
    assert_eq!(admin.json(&["access", "list", NEW])["items"], Value::Array(Vec::new()));
    admin.does(&["chap", "remove", "alice"]);
    assert_eq!(admin.does(&["chap", "list"]), "no CHAP users\n");
    let session = host.on(admin.server.portal());
    assert!(admin.fails(&["target", "remove", NEW], IN_USE).contains("is in use by iqn."));
    drop(session);
    admin.does(&["target", "remove", NEW, "--force"]);
    let list = admin.json(&["target", "list"]);
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
}

#[test]
fn keys_of_an_object_are_set_and_removed() {
    let admin = Administrator::new();
    let mut raw = Login::new().on(admin.server.portal());
    raw.clear_attentions(0);
    admin.does(&["lun", "add", TARGET, "null:1M"]);
    let set = |keys: &[&str]| admin.does(&[&["lun", "set", TARGET, "1"], keys].concat());
    let out = set(&["vendor=A", "read_only=true", "--dry-run"]);
    assert!(out.contains("vendor from ") && out.ends_with("dry run: nothing was changed\n"), "{out}");
    set(&["vendor=A", "read_only=true"]);
    let keys = || admin.json(&["lun", "show", TARGET, "1"])["config"].clone();
    assert_eq!((&keys()["vendor"], &keys()["read_only"]), (&Value::from("A"), &Value::from(true)));
    set(&["vendor=", "product=B"]);
    assert_eq!((&keys()["vendor"], &keys()["product"]), (&Value::Null, &Value::from("B")));
    assert_eq!(keys()["read_only"], true, "other keys stay");
    assert!(admin.fails(&["lun", "set", TARGET, "1", "sise=1"], 1).contains("unknown key `sise`"));
    assert!(
        admin.fails(&["lun", "set", TARGET, "1", "backend=memory"], IN_USE).contains("is in use by iqn.")
    );
    set(&["backend=memory", "--force"]);
    admin.fails(&["lun", "set", TARGET, "9", "vendor=A"], NOT_FOUND);
    assert!(admin.fails(&["lun", "set", TARGET, "0", "vendor=A"], 1).contains("lunar.toml line "));
    assert_eq!(admin.run(&["lun", "set", TARGET, "1"]).2, USAGE, "no key");
    admin.does(&["lun", "add", TARGET, "null:1M", "--lun", "2", "--transient"]);
    admin.does(&["lun", "set", TARGET, "2", "vendor=A"]);
    assert_eq!(admin.json(&["lun", "show", TARGET, "2"])["source"]["origin"], "transient");

    admin.does(&["target", "add", NEW, "alias=backup"]);
    admin.does(&["target", "set", NEW, "alias=", "portal_groups=[1]"]);
    let target = admin.json(&["target", "show", NEW]);
    assert_eq!(target["config"], serde_json::json!({ "portal_groups": [1] }));
}

#[test]
fn chap_secret_is_rotated_while_a_host_uses_it() {
    let admin = Administrator::new();
    admin.does(&["target", "add", NEW]);
    admin.does(&["lun", "add", NEW, "memory:1M"]);
    let secret = |report: Value| report["secret"].as_str().expect("a secret").to_owned();
    let old = secret(admin.json(&["chap", "add", "alice"]));
    admin.does(&["access", "add", NEW, "--chap", "alice"]);
    let url = format!("iscsi://alice@{}/{NEW}/0", admin.server.portal());
    let logs_in = |secret: &str| {
        let mut info = Command::new(lunar_bin());
        let ran = info.args(["info", &url]).env("LUNAR_CHAP_PASSWORD", secret).output().expect("lunar runs");
        ran.status.success()
    };
    let mut copy = Command::new(lunar_bin());
    let copy = copy.args(["bench", "randread", &url, "--runtime", "60s"]).env("LUNAR_CHAP_PASSWORD", &old);
    let silent = std::process::Stdio::null;
    let mut host = copy.stdout(silent()).stderr(silent()).spawn().expect("lunar runs");
    let sessions = || admin.json(&["session", "list"]);
    let id = interop::routed::until("a session", || {
        Some(sessions()["items"][0]["tsih"].clone()).filter(|id| !id.is_null())
    });
    let new = secret(admin.json(&["chap", "set", "alice"]));
    assert_eq!(sessions()["items"][0]["tsih"], id, "the session stays");
    assert!(old != new && logs_in(&new) && !logs_in(&old));
    host.kill().and_then(|()| host.wait()).expect("a child");
    let shown = admin.does(&["chap", "show", "alice"]);
    assert!(shown.starts_with("id           alice\n") && shown.contains("secret_file"), "{shown}");
    assert!(!shown.contains(&new) && !admin.json(&["chap", "show", "alice"]).to_string().contains(&new));

    let file = admin.server.dir().join("alice.secret");
    std::fs::write(&file, "a secret of ours\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).expect("the mode changes");
    let out = admin.does(&["chap", "set", "alice", "--secret-file", "alice.secret"]);
    assert!(out.ends_with("applied\n") && out.contains("with another secret"), "{out}");
    assert!(logs_in("a secret of ours"));
    admin.fails(&["chap", "set", "bob"], NOT_FOUND);
}

#[test]
fn access_entry_is_inserted_changed_and_shown() {
    let admin = Administrator::new();
    admin.does(&["target", "add", NEW]);
    admin.does(&["lun", "add", NEW, "null:1M"]);
    admin.does(&["access", "add", NEW, "--initiator", "iqn.2026-11.org.example:*"]);
    let host = Login::new().target(NEW);
    assert!(host.try_on(admin.server.portal()).is_ok());
    admin.does(&["access", "add", NEW, "--at", "0", "--initiator", "*:host", "--deny"]);
    assert!(host.try_on(admin.server.portal()).is_err(), "the first match decides");
    admin.does(&["access", "add", NEW, "--at", "1", "--network", "192.0.2.0/24", "--transient"]);
    let list = admin.json(&["access", "list", NEW]);
    assert_eq!(list["items"][1]["source"]["origin"], "transient", "{list}");
    assert_eq!(list["items"][2]["config"]["initiators"][0], "iqn.2026-11.org.example:*", "{list}");
    admin.does(&["reload"]);
    assert_eq!(admin.json(&["access", "list", NEW]), list, "the order is that of the files");
    let err = admin.fails(&["access", "add", NEW, "--at", "7", "--initiator", "iqn.x"], 1);
    assert!(err.contains("access entry 7 of ") && err.contains("the next index is 3"), "{err}");

    admin.does(&["access", "set", NEW, "0", "--initiator", "iqn.y", "deny=", "--luns", "0"]);
    let shown = admin.does(&["access", "show", NEW, "0"]);
    assert!(shown.contains("index       0\n") && shown.contains("initiators  iqn.y\n"), "{shown}");
    assert!(shown.contains("luns        0\n") && !shown.contains("deny"), "{shown}");
    assert!(host.try_on(admin.server.portal()).is_ok());
    assert_eq!(admin.run(&["access", "set", NEW, "0"]).2, USAGE, "no key");
    admin.fails(&["access", "set", NEW, "9", "deny=true"], NOT_FOUND);
    admin.fails(&["access", "show", NEW, "9"], NOT_FOUND);
    let portal = admin.does(&["portal", "show", "1"]);
    assert!(portal.contains("tag      1\n") && portal.contains("portals  127.0.0.1:"), "{portal}");
}

#[test]
fn change_that_opens_or_shadows_access_warns() {
    let portals = CONFIG.replace("127.0.0.1:0", "0.0.0.0:0");
    let lun = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1M\"\n[[target.access]]\ninitiators = [\"iqn.x\"]\n";
    let admin =
        Administrator { server: Server::start(&format!("{portals}[[target]]\nname = \"{TARGET}\"\n{lun}")) };
    let warns = |arguments: &[&str], expected: &[&str]| {
        let (out, err, status) = admin.run(arguments);
        assert_eq!(status, 0, "{arguments:?}: {err}");
        assert_eq!(err.lines().count(), expected.len(), "{arguments:?}: {err}");
        for (line, start) in err.lines().zip(expected) {
            assert!(line.starts_with(&format!("warning: {start}")), "{arguments:?}: {err}");
        }
        out
    };
    let open = format!("every host that reaches a portal can use {NEW}");
    warns(&["target", "add", NEW], &[&open]);
    warns(&["access", "add", NEW, "--initiator", "iqn.a"], &[]);
    let all = format!("{open}: access entry 1 admits all; ");
    let json = warns(&["access", "add", NEW, "--dry-run", "--json"], &[&all]);
    assert!(json.contains(&format!("\"{all}")), "{json}");
    let never = format!("access entry 1 of {NEW} never applies: entry 0 matches ");
    warns(&["access", "add", NEW, "--initiator", "iqn.a", "--read-only"], &[&never]);
    warns(&["access", "remove", NEW, "1"], &[]);
}

#[test]
fn chap_user_prints_the_lines_of_the_client_once() {
    let admin = Administrator::new();
    let out = admin.does(&["chap", "add", "alice"]);
    assert!(out.contains("\nnode.session.auth.username = alice\nnode.session.auth.password = "), "{out}");
    let file = admin.server.dir().join("bob.secret");
    std::fs::write(&file, "a secret of ours\n").expect("a file");
    admin.fails(&["chap", "add", "bob", "--secret-file", "bob.secret"], 1);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).expect("the mode changes");
    let out = admin.does(&["chap", "add", "bob", "--secret-file", "bob.secret"]);
    assert!(out.ends_with("applied\n"), "{out}");
    let out = admin.does(&["chap", "add", "carol", "--dry-run"]);
    assert!(!out.contains("password"), "{out}");
}

#[test]
fn session_ends_and_server_stops_by_command() {
    let mut admin = Administrator::new();
    let mut raw = Login::new().on(admin.server.portal());
    raw.clear_attentions(0);
    let status = admin.json(&["status"])["items"].take();
    assert_eq!((&status[0]["luns"], &status[0]["sessions"]), (&Value::from(1), &Value::from(1)));
    let text = admin.does(&["status"]);
    assert!(text.contains(&format!("process   {}\n", admin.server.pid())), "{text}");
    let id = admin.json(&["session", "list"])["items"][0]["tsih"].to_string();
    assert_eq!(admin.does(&["session", "end", &id]), format!("session {id}: asked to log out\n"));
    // The host is asked to log out (RFC 7143 section 11.9, event 1).
    assert_eq!(raw.recv_op(0x32).bhs[36], 1);
    drop(raw);
    admin.fails(&["session", "end", "65535"], NOT_FOUND);
    assert_eq!(admin.does(&["stop"]), "the server has ended\n");
    assert!(admin.server.wait(Duration::from_secs(20)).success());
}

#[test]
fn status_shows_a_trial_and_servers_that_answer() {
    let admin = Administrator::new();
    let file = admin.server.dir().join("lunar.toml").display().to_string();
    admin.does(&["apply", &file, "--confirm-within", "600s"]);
    assert!(admin.does(&["status"]).contains("unless you run lunar apply --confirm\n"));
    assert!(admin.fails(&["lun", "add", TARGET, "null:1M"], 1).contains("a configuration is on trial"));
    admin.does(&["apply", "--confirm"]);
    assert_eq!(admin.does(&["reload"]), "applied\n");
    let none = Folder::fresh();
    let socket = none.join("none.sock").display().to_string();
    let ran = Command::new(lunar_bin()).args(["status", "--socket", &socket]).output().expect("lunar runs");
    assert_eq!(ran.status.code(), Some(4));
}

#[test]
fn invalid_arguments_are_rejected_before_the_server_is_asked() {
    let admin = Administrator::new();
    for line in [
        &["lun", "add", TARGET, "null:1M", "read_only"][..],
        &["access", "add", TARGET, "--luns", "x"],
        &["access", "add", TARGET, "--deny", "--read-only"],
        &["portal", "add", "2"],
        &["session", "end", "x"],
    ] {
        assert_eq!(admin.run(line).2, USAGE, "{line:?}");
    }
    assert!(admin.fails(&["lun", "add", TARGET, "null:1M", "sise=1"], 1).contains("unknown key `sise`"));
}
