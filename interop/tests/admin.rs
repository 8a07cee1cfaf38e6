//! Commands that ask a running server, while a server hangs.

use interop::{Folder, Server, lunar_bin};
use std::path::Path;
use std::process::Command;

const TIMED_OUT: i32 = 8;

fn server(runs: &Path, socket: &str) -> Server {
    let socket = runs.join(socket).display().to_string();
    Server::start(&format!(
        "[server]\nadmin_socket = \"{socket}\"\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"iqn.2026-11.org.example:disks\"\n"
    ))
}

/// stdout, stderr and the exit status.
fn lunar(runs: &Path, arguments: &[&str]) -> (String, String, Option<i32>) {
    let ran = Command::new(lunar_bin()).args(arguments).env("LUNAR_RUN_DIR", runs).output();
    let ran = ran.expect("lunar runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(ran.stdout), text(ran.stderr), ran.status.code())
}

#[test]
fn each_command_ends_in_time_when_the_server_hangs() {
    let runs = Folder::fresh();
    let server = server(&runs, "lunar.sock");
    server.pause();
    let file = server.dir().join("lunar.toml").display().to_string();
    let commands: [&[&str]; 22] = [
        &["session", "list"],
        &["session", "show"],
        &["router", "list"],
        &["router", "show"],
        &["router", "stats"],
        &["router", "sessions"],
        &["router", "paths"],
        &["router", "drain", "r1"],
        &["router", "eligible", "r1", "on"],
        &["diff", &file],
        &["apply", &file],
        &["apply", "--confirm"],
        &["apply", "--rollback"],
        &["status"],
        &["reload"],
        &["session", "end", "1"],
        &["target", "list"],
        &["lun", "remove", interop::TARGET, "0"],
        &["access", "list", interop::TARGET],
        &["chap", "add", "alice"],
        &["portal", "list"],
        &["config", "show"],
    ];
    for command in commands {
        let (out, err, status) = lunar(&runs, &[command, &["--timeout", "100ms"]].concat());
        assert_eq!((out.as_str(), status), ("", Some(TIMED_OUT)), "{command:?}: {err}");
        assert!(err.contains("lunar.sock within 100ms\n  hint: "), "{command:?}: {err}");
        let may_follow = matches!(
            command,
            ["apply" | "reload", ..]
                | ["router", "drain" | "eligible", ..]
                | ["session", "end", _]
                | ["chap", ..]
        );
        assert_eq!(
            err.contains("the server may still execute the request"),
            may_follow,
            "{command:?}: {err}"
        );
    }
    server.resume();
    assert_eq!(lunar(&runs, &["session", "list"]), ("no sessions\n".into(), String::new(), Some(0)));
}

#[test]
fn server_that_hangs_does_not_hide_the_others() {
    let runs = Folder::fresh();
    let (hangs, answers) = (server(&runs, "lunar.sock"), server(&runs, "lunar-1.sock"));
    let host = interop::Login::new().on(answers.portal());
    hangs.pause();
    let list = |more: &[&str]| lunar(&runs, &[&["session", "list", "--timeout", "3s"], more].concat());
    let (out, err, status) = list(&[]);
    assert!(out.contains("lunar-1.sock]\n") && out.contains(interop::TARGET), "{out}");
    assert!(err.contains("lunar.sock within 3s"), "{err}");
    assert_eq!(status, Some(TIMED_OUT));
    let (out, err, status) = list(&["--json"]);
    let sessions: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(sessions["items"].as_array().map(Vec::len), Some(1), "{out}");
    assert!(err.contains("no answer from the server") && status == Some(TIMED_OUT), "{err}");
    drop(host);
}
