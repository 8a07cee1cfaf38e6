use super::session::tests::session;
use super::*;
use folder::TempDir;

struct Fake;

impl ServerControl for Fake {
    fn sessions(&self) -> Vec<SessionReport> {
        vec![session(1), session(2)]
    }

    fn ask(&self, request: Request) -> Response {
        match request {
            Request::Routers {} => {
                Response::Routers(vec![RouterReport { name: "r1".into(), ..RouterReport::default() }])
            }
            other => refused(format!("{other:?}"), "no"),
        }
    }
}

#[test]
fn routers_are_listed_and_rejections_are_errors() {
    let folder = TempDir::new("routers");
    let path = folder.0.join("lunar.sock");
    let _admin = Admin::start(&path, Arc::new(Fake)).unwrap();
    assert_eq!(routers(&path, PATIENCE * 2).unwrap()[0].name, "r1");
    let drain = Request::Router { name: "r1".into(), action: RouterAction::Drain };
    assert_eq!(execute(&path, &drain, PATIENCE).unwrap_err().what, format!("{drain:?}"));
    assert!(raw(&path, b"{\"command\":\"routers\"}\n").starts_with("{\"routers\":[{\"name\":\"r1\""));
}

fn raw(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(bytes).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn sessions_are_listed() {
    let folder = TempDir::new("admin");
    let path = folder.0.join("lunar.sock");
    let admin = Admin::start(&path, Arc::new(Fake)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(sessions(&path, PATIENCE * 2).unwrap(), [session(1), session(2)]);
    assert!(raw(&path, b"{\"command\":\"sessions\"}\n").starts_with("{\"sessions\":[{\"tsih\":1,"));
    drop(admin);
    assert!(!path.exists());
    assert_eq!(
        sessions(&path, PATIENCE * 2)
            .unwrap_err()
            .to_string()
            .replace(&format!("{}/", folder.0.display()), ""),
        "no server answers at lunar.sock\n  hint: start a server with lunar serve, or give the socket of a server with --socket"
    );
}

#[test]
fn nonsense_is_answered_and_the_next_one_too() {
    let folder = TempDir::new("nonsense");
    let path = folder.0.join("lunar.sock");
    let _admin = Admin::start(&path, Arc::new(Fake)).unwrap();
    assert!(raw(&path, b"hello\n").starts_with("{\"error\":{\"what\":\"invalid request:"));
    assert!(raw(&path, b"{\"command\":\"format\"}\n").contains("send {\\\"command\\\":\\\"sessions\\\"}"));
    assert!(raw(&path, b"{\"command\":\"sessions\",\"x\":1}\n").contains("invalid request"));
    assert!(raw(&path, &[b'x'; 4097]).contains("at most 4096 bytes"));
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.write_all(b"no newline").unwrap();
    drop(silent);
    assert_eq!(sessions(&path, PATIENCE * 2).unwrap().len(), 2);
}

#[test]
fn error_code_travels_by_its_name() {
    for code in ErrorCode::ALL {
        let response = Response::from(Diagnostic::new("in any words", "wait").with_code(*code));
        let text = serde_json::to_string(&response).unwrap();
        assert!(text.contains(&format!("\"code\":\"{}\"", code.name())), "{text}");
        assert_eq!(serde_json::from_str::<Response>(&text).unwrap(), response);
    }
    let read = |code: &str| {
        let text = format!("{{\"error\":{{\"what\":\"timed out\",\"hint\":\"wait\"{code}}}}}");
        serde_json::from_str::<Response>(&text).unwrap()
    };
    let other = Response::from(Diagnostic::new("timed out", "wait"));
    assert_eq!([read(""), read(",\"code\":\"of-a-later-version\"")], [other.clone(), other]);
}

/// Reports each request on `taken`, and answers it after a message on `go` or its end.
struct Slow {
    taken: std::sync::mpsc::SyncSender<()>,
    go: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl ServerControl for Slow {
    fn sessions(&self) -> Vec<SessionReport> {
        Vec::new()
    }

    fn ask(&self, _: Request) -> Response {
        self.taken.send(()).unwrap();
        _ = self.go.lock().unwrap().recv();
        Response::Done("done".into())
    }
}

#[test]
fn requests_that_wait_are_bounded_and_hold_up_no_other() {
    let folder = TempDir::new("slow");
    let path = folder.0.join("lunar.sock");
    let ((taken, takes), (lets_go, go)) =
        (std::sync::mpsc::sync_channel(MAX_WAITING), std::sync::mpsc::channel());
    let _admin = Admin::start(&path, Arc::new(Slow { taken, go: go.into() })).unwrap();
    let ask = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"command\":\"confirm\"}\n").unwrap();
        stream
    };
    let mut waiting: Vec<UnixStream> = (0..MAX_WAITING).map(|_| ask()).collect();
    (0..MAX_WAITING).for_each(|_| takes.recv().unwrap());
    assert_eq!(sessions(&path, PATIENCE * 10).unwrap(), []);
    let refused = execute(&path, &Request::Confirm {}, PATIENCE * 10).unwrap_err();
    assert_eq!(refused.code, ErrorCode::TimedOut);
    assert!(
        refused.what.starts_with("the server rejects the request, because 16 requests are pending"),
        "{}",
        refused.what
    );
    drop(lets_go);
    for stream in &mut waiting {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "{\"done\":\"done\"}\n");
    }
}

#[test]
fn silent_client_is_disconnected() {
    let folder = TempDir::new("silent");
    let path = folder.0.join("lunar.sock");
    let _admin = Admin::start(&path, Arc::new(Fake)).unwrap();
    let _silent = UnixStream::connect(&path).unwrap();
    assert_eq!(sessions(&path, PATIENCE * 2).unwrap().len(), 2, "after the silent client was disconnected");
}

#[test]
fn only_the_own_user_and_root_may_ask() {
    assert!(may_ask(1000, 1000));
    assert!(may_ask(0, 1000));
    assert!(!may_ask(1001, 1000));
    assert!(!may_ask(1000, 0));
}

#[test]
fn socket_in_use_is_left_alone_and_a_dead_one_replaced() {
    let folder = TempDir::new("inuse");
    let path = folder.0.join("lunar.sock");
    let message = |result: Result<Admin, Diagnostic>| {
        result.err().unwrap().to_string().replace(&format!("{}/", folder.0.display()), "")
    };
    drop(UnixListener::bind(&path).unwrap());
    let first = Admin::start(&path, Arc::new(Fake)).unwrap();
    assert_eq!(
        message(Admin::start(&path, Arc::new(Fake))),
        "another server uses the admin socket lunar.sock\n  \
         hint: stop that server, or set admin_socket in the configuration to another path"
    );
    assert_eq!(sessions(&path, PATIENCE * 2).unwrap().len(), 2);
    drop(first);
    std::fs::write(&path, "a file").unwrap();
    assert_eq!(
        message(Admin::start(&path, Arc::new(Fake))),
        "the path of the admin socket lunar.sock is a file, not a socket\n  \
         hint: move the file away, or set admin_socket in the configuration to another path"
    );
    assert_eq!(
        message(Admin::start(&folder.0.join("none/lunar.sock"), Arc::new(Fake))),
        "cannot listen on the admin socket none/lunar.sock: no such file or directory\n  \
         hint: set admin_socket in the configuration to a path that this user can create"
    );
}

#[test]
fn server_that_hangs_is_reported_when_the_time_is_over() {
    let folder = TempDir::new("hangs");
    let path = folder.0.join("lunar.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let limit = Duration::from_millis(100);
    let said = |result: Result<String, Diagnostic>| {
        let problem = result.unwrap_err();
        assert_eq!(problem.code, ErrorCode::TimedOut);
        problem.to_string().replace(&format!("{}/", folder.0.display()), "")
    };
    let hangs = "no answer from the server at lunar.sock within 100ms\n  \
         hint: check the process of the server, which is stopped or overloaded, or raise --timeout";
    assert_eq!(said(sessions(&path, limit).map(|_| String::new())), hangs);
    assert_eq!(
        said(execute(&path, &Request::Confirm {}, limit)),
        format!("{hangs}; the server may still execute the request")
    );
    // Fills the backlog of the socket.
    let waiting: Vec<UnixStream> = std::iter::from_fn(|| connect(&path, limit).ok()).take(100_000).collect();
    assert!(waiting.len() < 100_000);
    assert_eq!(said(sessions(&path, limit).map(|_| String::new())), hangs);
    assert_eq!(listening(&path).len(), 1);
    drop(listener);
}

#[test]
fn server_whose_socket_was_replaced_stops_and_leaves_it() {
    let folder = TempDir::new("replaced");
    let path = folder.0.join("lunar.sock");
    let first = Admin::start(&path, Arc::new(Fake)).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = Admin::start(&path, Arc::new(Fake)).unwrap();
    drop(first);
    assert_eq!(sessions(&path, PATIENCE * 2).unwrap().len(), 2, "the second one answers");
}
