//! The events of a running server, over HTTP by hand and by `lunar events`.

use interop::{Folder, Login, Server, TARGET, lunar_bin};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const UNREACHABLE: i32 = 4;

fn server() -> Server {
    Server::start(&format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"8MiB\"\n"
    ))
}

/// A connection to the admin socket after a request.
fn send(server: &Server, line: &str, fields: &str, body: &str) -> UnixStream {
    let mut stream = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let head = format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{fields}");
    let text = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).expect("a request is sent");
    stream
}

/// Sends a request for a change, which must succeed.
fn change(server: &Server, line: &str, body: &str) {
    let mut text = String::new();
    let condition = if line.starts_with("PUT ") { "" } else { "If-Match: *\r\n" };
    let mut stream = send(server, line, &format!("{condition}Connection: close\r\n"), body);
    stream.read_to_string(&mut text).expect("a response");
    assert!(text.starts_with("HTTP/1.1 2"), "{text}");
}

/// A stream of events.
struct Events(BufReader<UnixStream>);

impl Events {
    fn of(server: &Server, query: &str, fields: &str) -> Events {
        let mut lines = BufReader::new(send(server, &format!("GET /v1/events{query}"), fields, ""));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a status");
        assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
        while line.trim_end() != "" {
            line.clear();
            lines.read_line(&mut line).expect("a head");
        }
        Events(lines)
    }

    /// The next event.
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).expect("an event in time") > 0, "the stream ended");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).expect("JSON");
            }
        }
    }

    /// The next event of this kind.
    fn until(&mut self, kind: &str) -> Value {
        loop {
            let event = self.next();
            if event["kind"] == kind {
                return event;
            }
        }
    }
}

fn sequence(event: &Value) -> u64 {
    event["sequence"].as_u64().unwrap_or_else(|| panic!("no number: {event}"))
}

#[test]
fn logins_and_changes_are_events() {
    let server = server();
    let mut events = Events::of(&server, "", "");
    let mut raw = Login::new().on(server.portal());
    let login = events.until("session.login");
    assert_eq!((&login["level"], &login["target"]), (&Value::from("info"), &Value::from(TARGET)), "{login}");
    assert!(login["initiator"].as_str().is_some_and(|name| name.starts_with("iqn.")), "{login}");
    raw.logout(0, 0);
    raw.expect_close();
    let end = events.until("session.end");
    assert_eq!((&end["reason"], &end["tsih"]), (&Value::from("logout"), &login["tsih"]), "{end}");
    assert!(Login::new().target("iqn.2026-11.org.example:none").try_on(server.portal()).is_err());
    assert!(events.until("login.refused")["reason"].is_string());

    let lun = format!("/v1/targets/{TARGET}/luns/1");
    change(&server, &format!("PUT {lun}"), "{\"backend\":\"null\",\"size\":\"1MiB\"}");
    let request = events.until("request");
    assert!(request["message"].as_str().is_some_and(|text| text.contains("requested by user ")), "{request}");
    events.until("config.applied");
    let added = events.until("lun.added");
    assert_eq!((&added["target"], &added["lun"]), (&Value::from(TARGET), &Value::from(1)), "{added}");
    change(&server, &format!("PATCH {lun}"), "{\"serial\":\"another\"}");
    events.until("lun.changed");
    change(&server, &format!("DELETE {lun}"), "");
    events.until("lun.removed");
    change(&server, "POST /v1/config/apply", "{\"confirm_within_s\":600}");
    change(&server, "POST /v1/config/rollback", "");
    events.until("config.reverted");
}

#[test]
fn reader_that_returns_gets_what_it_missed() {
    let mut server = server();
    let mut events = Events::of(&server, "", "");
    drop(Login::new().on(server.portal()));
    let login = sequence(&events.until("session.login"));
    // The next request must come after it.
    events.until("session.end");
    drop(events);
    let file = server.dir().join("lunar.toml").display().to_string();
    change(&server, "POST /v1/config/apply", &format!("{{\"file\":\"{file}\"}}"));
    let mut again = Events::of(&server, "", &format!("Last-Event-ID: {login}\r\n"));
    let seen = [again.until("session.end"), again.until("request"), again.until("config.applied")];
    let numbers = seen.each_ref().map(sequence);
    assert!(login < numbers[0] && numbers.is_sorted(), "{numbers:?} after {login}");
    let mut all = Events::of(&server, "?since=0&follow=false", "");
    assert_eq!(sequence(&all.until("session.login")), login, "a number means one event");

    server.restart();
    let mut after = Events::of(&server, &format!("?since={login}"), "");
    let gap = after.next();
    assert_eq!((&gap["kind"], &gap["lost"]), (&Value::from("gap"), &Value::Null), "{gap}");
    drop(Login::new().on(server.portal()));
    assert!(sequence(&after.until("session.login")) > numbers[2], "numbers increase across restarts");
}

/// Sends so many requests that the server no longer keeps the first events. A request for a session that does not exist
/// is an event too.
fn flood(server: &Server, requests: usize) {
    let socket = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    let (mut to, mut from) = (socket.try_clone().expect("a socket"), BufReader::new(socket));
    let request = "DELETE /v1/sessions/65535 HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut line = String::new();
    for _ in 0..requests {
        to.write_all(request.as_bytes()).expect("a request is sent");
        let mut length = 0;
        loop {
            line.clear();
            from.read_line(&mut line).expect("a response");
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim_end().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
        }
        from.read_exact(&mut vec![0; length]).expect("a body");
    }
}

#[test]
fn slow_reader_delays_nothing_and_learns_what_it_lost() {
    let server = server();
    flood(&server, 1);
    let mut slow = Events::of(&server, "?since=0", "");
    let first = sequence(&slow.next());
    let before_kib = server.rss_kib();
    flood(&server, 12_000);
    let mut raw = Login::new().on(server.portal());
    raw.ping();
    let grown_kib = server.rss_kib().saturating_sub(before_kib);
    assert!(grown_kib < 64 << 10, "{grown_kib} KiB for events of a reader that does not read");
    let gap = slow.until("gap");
    assert!(gap["lost"].as_u64().is_some_and(|lost| lost > 0), "{gap}");
    slow.until("session.login");

    let expired = Events::of(&server, &format!("?since={first}"), "").next();
    assert_eq!(expired["kind"], "gap", "{expired}");
    assert!(expired["lost"].as_u64().is_some_and(|lost| lost > 7000), "{expired}");
    assert_eq!(
        Events::of(&server, "?since=0&follow=false", "").next()["kind"],
        "request",
        "all that are kept"
    );
}

/// `lunar events` with the socket of the server.
fn command(server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(lunar_bin());
    command.arg("events").args(arguments).arg("--socket").arg(server.dir().join("admin.sock"));
    command
}

#[test]
fn command_shows_events_and_follows_until_the_server_ends() {
    let mut server = server();
    drop(Login::new().on(server.portal()));
    let mut follower = command(&server, &["--follow"]);
    let mut follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lunar runs");
    let mut lines = BufReader::new(follower.stdout.take().expect("a pipe"));
    let mut until = |kind: &str| {
        let mut line = String::new();
        while !line.contains(kind) {
            line.clear();
            assert!(lines.read_line(&mut line).expect("a line") > 0, "no {kind}");
        }
        line
    };
    let line = until(" info  session.login logged in ");
    assert!(line.contains(&format!(" target={TARGET}")), "{line}");
    until("session.end");
    let shown = command(&server, &["--json"]).output().expect("lunar runs");
    let shown = String::from_utf8(shown.stdout).expect("text");
    let events: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let login = events.iter().find(|event| event["kind"] == "session.login").expect("a login");
    let since = sequence(login).to_string();
    assert!(line.starts_with(&since), "{line}");
    let later = command(&server, &["--since", &since]).output().expect("lunar runs");
    let later = String::from_utf8(later.stdout).expect("text");
    assert!(later.contains("session.end") && !later.contains("session.login"), "{later}");

    assert_eq!(server.stop().code(), Some(0));
    let ended = follower.wait_with_output().expect("it ends with the server");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(UNREACHABLE), "{said}");
    assert!(said.contains("has ended the stream of events\n  hint: when a server runs again"), "{said}");
}

#[test]
fn command_ends_when_its_output_is_closed() {
    let server = server();
    let mut follower = command(&server, &["--follow"]).stdout(Stdio::piped()).spawn().expect("lunar runs");
    drop(follower.stdout.take());
    while follower.try_wait().expect("a child").is_none() {
        drop(Login::new().on(server.portal()));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(follower.wait().expect("a child").success());
    let none = Folder::fresh().join("none.sock");
    let ran = Command::new(lunar_bin()).args(["events", "--socket"]).arg(none).output().expect("lunar runs");
    assert_eq!(ran.status.code(), Some(UNREACHABLE));
    assert_eq!(command(&server, &["--since", "x"]).output().expect("lunar runs").status.code(), Some(2));
}

/// The kinds of events in the sources are those of the documentation.
#[test]
fn each_kind_of_event_is_documented() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project");
    let page = std::fs::read_to_string(root.join("docs/api.md")).expect("the page");
    let table =
        page.split("| kind | event |").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a table");
    let mut kinds = vec!["log".to_owned(), "gap".to_owned()];
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                kinds.extend(named(&std::fs::read_to_string(path).expect("a source")));
            }
        }
    }
    assert!(kinds.len() > 20, "{kinds:?}");
    kinds.iter().for_each(|kind| assert!(table.contains(&format!("`{kind}`")), "docs/api.md lacks {kind}"));
    let documented = table.split('|').skip(1).step_by(3).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    documented.for_each(|kind| assert!(kinds.iter().any(|one| one == kind), "no event has the kind {kind}"));
}

/// The names of tracing events in a source, and the kinds of its macro for changes.
fn named(source: &str) -> Vec<String> {
    let starts = ["tracing::info!(", "tracing::warn!(", "tracing::error!("];
    let macros = starts.iter().flat_map(|start| source.split(start).skip(1)).filter_map(|rest| {
        rest.trim_start().strip_prefix("name: \"").and_then(|rest| rest.split('"').next())
    });
    let applied = source.split("applied!(\"").skip(1).filter_map(|rest| rest.split('"').next());
    macros.chain(applied).map(str::to_owned).collect()
}
