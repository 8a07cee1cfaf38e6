//! The API over its socket, with a server that answers at once or when it is let.

use crate::client::{Client, Outcome, SessionList, segment};
use crate::handlers::MAX_WAITING;
use crate::{ApiServer, Problem};
use interop::Folder;
use lunar_admin::{
    AdminSocket, Asker, Capacities, ConfigObject, ConfigSnapshot, Counters, Document, EventLog,
    GatewayReport, GroupReport, Keys, ObjectId, ObjectOrigin, ObjectSource, Request, Response,
    RollbackRequest, RouterReport, ServerControl, ServerEvent, SessionReport, SharedUnitReport, connect,
    listening,
};
use lunar_config::{Diagnostic, ErrorCode};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod events;

const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "iqn.2026-11.org.example:a";

/// Records requests, and answers with them.
#[derive(Default)]
pub(crate) struct Fake(Mutex<Vec<Request>>, pub(crate) Arc<EventLog>);

fn session(tsih: u16) -> SessionReport {
    SessionReport {
        tsih,
        initiator: "iqn.2026-11.org.example:host".into(),
        initiator_address: "192.0.2.1:1000".into(),
        target: Some(NAME.into()),
        portal: "192.0.2.9:3260".into(),
        portal_group: 1,
        isid: "400001370000".into(),
        transport: "TCP".into(),
        provider: None,
        srp: None,
        nvme: None,
        session_type: "Normal".into(),
        parameters: None,
        counters: Counters::default(),
        connected_s: 1,
    }
}

impl ServerControl for Fake {
    fn sessions(&self) -> Vec<SessionReport> {
        vec![session(1), session(2)]
    }

    fn config(&self) -> Arc<ConfigSnapshot> {
        let source = ObjectSource { origin: ObjectOrigin::Api, file: "/l.toml".into(), line: 3 };
        let object = ConfigObject { keys: Keys::new(), source };
        let ids = [ObjectId::Target(NAME.into()), ObjectId::Lun(NAME.into(), 7)];
        let objects: Document = ids.into_iter().map(|id| (id, object.clone())).collect();
        Arc::new(ConfigSnapshot {
            version: "v1".into(),
            objects: Arc::new(objects),
            targets: 3,
            luns: 4,
            ..ConfigSnapshot::default()
        })
    }

    fn group(&self) -> GroupReport {
        let gateways = vec![GatewayReport { id: 3, ..GatewayReport::default() }];
        let units = vec![SharedUnitReport { image: "p/n/i".into(), ..SharedUnitReport::default() }];
        GroupReport { gateways, units }
    }

    fn capacities(&self) -> Capacities {
        Capacities::from([((NAME.into(), 7), 4096)])
    }

    fn events(&self) -> Arc<EventLog> {
        self.1.clone()
    }

    fn ask(&self, request: Request, asker: &Asker) -> Response {
        self.0.lock().unwrap().push(request.clone());
        match request {
            Request::Routers => {
                Response::Routers(vec![RouterReport { name: "r1".into(), ..RouterReport::default() }])
            }
            Request::Change(_) | Request::RollBackTo(_) => {
                Response::Changed { version: "v2".into(), changes: Vec::new(), warnings: vec!["w".into()] }
            }
            other => {
                Diagnostic::new(format!("{other} by {}", asker.name), "no").with_code(ErrorCode::InUse).into()
            }
        }
    }
}

/// A running API of `control`.
fn served(folder: &Folder, control: Arc<dyn ServerControl>) -> (ApiServer, PathBuf) {
    let path = folder.join("lunar.sock");
    let server = ApiServer::start(AdminSocket::bind(&path).unwrap(), control).unwrap();
    (server, path)
}

fn sessions(path: &Path, limit: Duration) -> Result<SessionList, Diagnostic> {
    single(client(path, limit).get("/v1/sessions"))
}

/// A result of the client with at most one fault.
pub fn single<T>(result: Result<T, Vec<Diagnostic>>) -> Result<T, Diagnostic> {
    result.map_err(|faults| <[Diagnostic; 1]>::try_from(faults).expect("one fault")[0].clone())
}

fn client(path: &Path, limit: Duration) -> Client {
    Client::new(&path.to_path_buf().into(), limit)
}

/// Status and body of a raw request.
fn raw(path: &Path, head: &str, body: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(path).unwrap();
    let length = body.len();
    let text = format!("{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

const JSON: &str = "Content-Type: application/json";

#[test]
fn move_of_a_lun_names_its_version_and_its_new_place() {
    let folder = Folder::fresh();
    let fake = Arc::new(Fake::default());
    let (_server, path) = served(&folder, fake.clone());
    let post = |headers: &str, body: &str| {
        let resource = format!("/v1/targets/{NAME}/luns/7/move?force=true");
        raw(&path, &format!("POST {resource} HTTP/1.1\r\n{JSON}{headers}"), body).0
    };
    assert_eq!(post("", "{\"target\":\"iqn.b\"}"), 428);
    assert_eq!(post("\r\nIf-Match: *", "{}"), 422);
    assert_eq!(post("\r\nIf-Match: \"v1\"", "{\"target\":\"iqn.b\"}"), 200);
    assert_eq!(post("\r\nIf-Match: *", "{\"target\":\"iqn.b\",\"lun\":2}"), 200);
    let requests: Vec<String> = fake.0.lock().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(requests, [7, 2].map(|to| format!("move LUN 7 of {NAME} to LUN {to} of iqn.b")));
    let Request::Change(change) = fake.0.lock().unwrap().remove(0) else { panic!("no change") };
    assert_eq!((change.version.as_deref(), change.force, change.transient), (Some("v1"), true, false));
}

#[test]
fn all_objects_have_a_kind_and_samples_a_length() {
    let folder = Folder::fresh();
    let (_server, path) = served(&folder, Arc::new(Fake::default()));
    let get = |resource| raw(&path, &format!("GET {resource} HTTP/1.1"), "");
    let (status, objects) = get("/v1/objects");
    let kinds: Vec<&Value> = objects["items"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert_eq!((status, kinds), (200, vec![&json!("target"), &json!("lun")]));
    assert_eq!(objects["items"][1]["lun"], 7);
    assert_eq!(get("/v1/history/rates?since=3").1, json!({ "interval_s": 5, "items": [] }));
    assert_eq!(get("/v1/history/rates?since=x").0, 400);
    let (status, caller) = get("/v1/caller");
    assert!(status == 200 && caller["may_write"] == true, "{caller}");
    assert!(caller["name"].as_str().is_some_and(|name| name.starts_with("user ")), "{caller}");
}

#[test]
fn resources_are_read() {
    let folder = Folder::fresh();
    let (server, path) = served(&folder, Arc::new(Fake::default()));
    let client = client(&path, LIMIT);
    assert_eq!(sessions(&path, LIMIT).unwrap().items, [session(1), session(2)]);
    assert_eq!(client.get::<SessionReport>("/v1/sessions/2").unwrap(), session(2));
    let gateways: Value = client.get("/v1/gateways").unwrap();
    assert_eq!((&gateways["items"][0]["id"], &gateways["items"][0]["state"]), (&json!(3), &json!("away")));
    assert_eq!(client.get::<Value>("/v1/gateways/3").unwrap(), gateways["items"][0]);
    let units: Value = client.get("/v1/shared-units").unwrap();
    assert_eq!(units["items"][0]["phase"], "joining");
    let one = format!("/v1/shared-units/{}", segment("p/n/i"));
    assert_eq!(client.get::<Value>(&one).unwrap(), units["items"][0]);
    let routers: Value = client.get("/v1/routers").unwrap();
    assert_eq!(routers["items"][0]["name"], "r1");
    let lun = client.get_tagged::<Value>(&format!("/v1/targets/{NAME}/luns/7")).unwrap();
    let source = json!({ "origin": "api", "file": "/l.toml", "line": 3 });
    assert_eq!(
        lun.value,
        json!({ "target": NAME, "lun": 7, "capacity_bytes": 4096, "config": {}, "source": source })
    );
    assert_eq!(lun.version, "v1");
    let report: Value = client.get("/v1/server").unwrap();
    assert_eq!([&report["targets"], &report["luns"], &report["sessions"]], [3, 4, 2]);
    let absent = single(client.get::<Value>("/v1/targets/iqn.x/luns")).unwrap_err();
    assert_eq!((absent.what.as_str(), absent.code), ("target iqn.x does not exist", ErrorCode::NotFound));
    drop(server);
    assert!(!path.exists());
    assert_eq!(
        sessions(&path, LIMIT).unwrap_err().to_string().replace(&format!("{}/", folder.display()), ""),
        "no server answers at lunar.sock\n  hint: start a server with lunar serve, or give the socket of a server with --socket"
    );
}

#[test]
fn client_creates_only_new_objects() {
    let folder = Folder::fresh();
    let fake = Arc::new(Fake::default());
    let (_server, path) = served(&folder, fake.clone());
    let lun = format!("/v1/targets/{NAME}/luns/7?dry_run=true");
    let created: Value = client(&path, LIMIT).create(&lun, &json!({})).unwrap();
    assert_eq!(created["dry_run"], true);
    let asked = fake.0.lock().unwrap()[0].to_string();
    assert_eq!(asked, format!("create LUN 7 of {NAME} (dry run)"), "not replaced, though it exists");
}

#[test]
fn change_needs_the_version_of_an_existing_object() {
    let folder = Folder::fresh();
    let fake = Arc::new(Fake::default());
    let (_server, path) = served(&folder, fake.clone());
    let lun = |number: u16| format!("/v1/targets/{NAME}/luns/{number}");
    let send = |method: &str, number: u16, headers: &str| {
        raw(&path, &format!("{method} {}?dry_run=true HTTP/1.1\r\n{JSON}{headers}", lun(number)), "{}").0
    };
    assert_eq!(send("PUT", 7, ""), 428);
    assert_eq!(send("PATCH", 7, ""), 428);
    assert_eq!(send("DELETE", 7, ""), 428);
    assert_eq!(send("PUT", 7, "\r\nIf-Match: 7"), 400);
    assert!(fake.0.lock().unwrap().is_empty());
    assert_eq!(send("PUT", 7, "\r\nIf-Match: \"v1\""), 200);
    assert_eq!(send("PUT", 8, ""), 200, "a dry run creates nothing");
    assert_eq!(send("PUT", 7, "\r\nIf-None-Match: *"), 200, "the main thread finds that it exists");
    let asked: Vec<_> = std::mem::take(&mut *fake.0.lock().unwrap());
    let shown: Vec<String> = asked.iter().map(ToString::to_string).collect();
    let of = |lun: u16| format!("LUN {lun} of {NAME} (dry run)");
    assert_eq!(
        shown,
        [format!("replace {}", of(7)), format!("create {}", of(8)), format!("create {}", of(7))]
    );
    let versions = asked.iter().map(|request| match request {
        Request::Change(change) => change.version.clone(),
        _ => None,
    });
    assert_eq!(versions.collect::<Vec<_>>(), [Some("v1".into()), None, None]);
    assert_eq!(raw(&path, &format!("PUT {} HTTP/1.1\r\n{JSON}", lun(8)), "{}").0, 201);
}

#[test]
fn access_entry_is_added_at_a_place_or_at_the_end() {
    let folder = Folder::fresh();
    let fake = Arc::new(Fake::default());
    let (_server, path) = served(&folder, fake.clone());
    let add =
        |query: &str| raw(&path, &format!("POST /v1/targets/{NAME}/access{query} HTTP/1.1\r\n{JSON}"), "{}");
    let (status, report) = add("?at=3");
    assert_eq!((status, &report["warnings"]), (201, &json!(["w"])));
    assert_eq!(add("?at=0&dry_run=true").0, 200);
    assert_eq!(add("").0, 201);
    assert_eq!([add("?at=x").0, add("?at=-1").0, add("?of=1").0], [400; 3]);
    let asked: Vec<_> = std::mem::take(&mut *fake.0.lock().unwrap());
    let shown: Vec<String> = asked.iter().map(ToString::to_string).collect();
    let entry = |at: usize| format!("access entry {at} of {NAME}");
    assert_eq!(
        shown,
        [
            format!("insert {}", entry(3)),
            format!("insert {} (dry run)", entry(0)),
            format!("create {}", entry(0))
        ]
    );
}

#[test]
fn client_merges_keys_in_any_version() {
    let folder = Folder::fresh();
    let fake = Arc::new(Fake::default());
    let (_server, path) = served(&folder, fake.clone());
    let lun = format!("/v1/targets/{NAME}/luns/7");
    let report: crate::client::ChangeReport =
        client(&path, LIMIT).merge(&lun, &json!({ "vendor": null })).unwrap();
    assert_eq!(report.warnings, ["w"]);
    let asked = fake.0.lock().unwrap()[0].clone();
    let Request::Change(change) = asked else { panic!("{asked:?}") };
    assert_eq!((change.to_string(), change.version), (format!("change LUN 7 of {NAME}"), None));
}

#[test]
fn rollback_may_have_a_condition() {
    let folder = Folder::fresh();
    let fake = Arc::new(Fake::default());
    let (_server, path) = served(&folder, fake.clone());
    let list = client(&path, LIMIT).get_tagged::<Value>("/v1/config/history").unwrap();
    assert_eq!((list.version.as_str(), list.value), ("v1", json!({ "items": [] })));
    let send = |headers: &str, body: &str| {
        raw(&path, &format!("POST /v1/config/history/7/rollback HTTP/1.1\r\n{JSON}{headers}"), body).0
    };
    assert_eq!(send("", "{\"confirm_within_s\":0}"), 422);
    assert_eq!(send("\r\nIf-Match: 7", "{}"), 400);
    assert!(fake.0.lock().unwrap().is_empty());
    assert_eq!(send("", "{\"dry_run\":true}"), 200);
    assert_eq!(send("\r\nIf-Match: \"v1\"", "{\"force\":true,\"confirm_within_s\":60}"), 200);
    let back = |version, dry_run, force, confirm_within_s| {
        Request::RollBackTo(RollbackRequest { to: 7, version, dry_run, force, confirm_within_s })
    };
    let asked: Vec<_> = std::mem::take(&mut *fake.0.lock().unwrap());
    assert_eq!(asked, [back(None, true, false, None), back(Some("v1".into()), false, true, Some(60))]);
    assert_eq!(asked[0].to_string(), "roll back to entry 7 of the history (dry run)");
}

#[test]
fn nonsense_is_answered_and_the_next_one_too() {
    let folder = Folder::fresh();
    let (_server, path) = served(&folder, Arc::new(Fake::default()));
    let lun = format!("/v1/targets/{NAME}/luns/7");
    for (head, body, status, detail) in [
        ("GET /v2/x HTTP/1.1", "", 404, "the resource /v2/x does not exist"),
        ("POST /v1/sessions HTTP/1.1", "", 405, "POST is not a method of /v1/sessions"),
        ("GET /v1/sessions/99999 HTTP/1.1", "", 404, "session 99999 does not exist"),
        ("POST /v1/routers/r1/fly HTTP/1.1", "", 404, "the action fly of a router does not exist"),
        ("GET /v1/gateways/4 HTTP/1.1", "", 404, "gateway 4 does not exist"),
        ("GET /v1/shared-units/p%2Fi HTTP/1.1", "", 404, "shared image p/i does not exist"),
        (&format!("PUT {lun} HTTP/1.1"), "{}", 415, "the body is invalid: expected request with"),
        (&format!("PUT {lun} HTTP/1.1\r\n{JSON}"), "{", 400, "the body is invalid: failed to parse"),
        (&format!("PUT {lun} HTTP/1.1\r\n{JSON}"), "[]", 422, "the body is invalid: failed to deserialize"),
        (&format!("POST /v1/config/apply HTTP/1.1\r\n{JSON}"), "{\"x\":1}", 422, "the body is invalid:"),
        (
            &format!("POST /v1/config/apply HTTP/1.1\r\n{JSON}"),
            "{\"file\":\"x\"}",
            422,
            "the path \"x\" is not",
        ),
        ("GET /v1/config/diff?file=x HTTP/1.1", "", 422, "the path \"x\" is not absolute"),
        ("GET /v1/config/diff?since=x HTTP/1.1", "", 422, "`since` is no entry of the history: \"x\""),
        ("GET /v1/config/diff?since=1&file=/x HTTP/1.1", "", 422, "the request has both `file` and `since`"),
        ("GET /v1/config/history/x HTTP/1.1", "", 404, "the entry x of the history does not exist"),
        ("GET /v1/config/history/7 HTTP/1.1", "", 404, "the history has no entry 7"),
    ] {
        let (was, problem) = raw(&path, head, body);
        let problem: Problem = serde_json::from_value(problem).unwrap();
        assert_eq!((was, problem.status), (status, status), "{head}: {problem:?}");
        assert!(problem.detail.starts_with(detail) && !problem.hint.is_empty(), "{head}: {problem:?}");
    }
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"{\"command\":\"sessions\"}\n").unwrap();
    drop(stream);
    assert_eq!(sessions(&path, LIMIT).unwrap().items.len(), 2);
}

#[test]
fn failure_of_the_server_keeps_its_code() {
    let folder = Folder::fresh();
    let (_server, path) = served(&folder, Arc::new(Fake::default()));
    let failed = single(client(&path, LIMIT).post::<Outcome>("/v1/config/confirm", &())).unwrap_err();
    let own = std::process::id();
    let user = rustix::process::geteuid().as_raw();
    let what = format!("confirm the applied configuration by user {user}, process {own}");
    assert_eq!((failed.what, failed.code), (what, ErrorCode::InUse));
    assert_eq!(raw(&path, "POST /v1/config/confirm HTTP/1.1", "").0, 409);
}

/// Reports each request on `taken`, and answers it after a message on `go` or its end.
struct Slow {
    taken: SyncSender<()>,
    go: Mutex<Receiver<()>>,
}

impl ServerControl for Slow {
    fn sessions(&self) -> Vec<SessionReport> {
        Vec::new()
    }

    fn config(&self) -> Arc<ConfigSnapshot> {
        Arc::default()
    }

    fn ask(&self, _: Request, _: &Asker) -> Response {
        self.taken.send(()).unwrap();
        _ = self.go.lock().unwrap().recv();
        Response::Done("done".into())
    }
}

#[test]
fn requests_that_wait_are_bounded_and_hold_up_no_other() {
    let folder = Folder::fresh();
    let ((taken, takes), (lets_go, go)) = (sync_channel(MAX_WAITING), channel());
    let (_server, path) = served(&folder, Arc::new(Slow { taken, go: go.into() }));
    let confirm = "POST /v1/config/confirm HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let ask = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(confirm.as_bytes()).unwrap();
        stream
    };
    let mut waiting: Vec<UnixStream> = (0..MAX_WAITING).map(|_| ask()).collect();
    (0..MAX_WAITING).for_each(|_| takes.recv().unwrap());
    assert_eq!(sessions(&path, LIMIT).unwrap().items, []);
    let refused = single(client(&path, LIMIT).post::<Outcome>("/v1/config/confirm", &())).unwrap_err();
    assert_eq!(refused.code, ErrorCode::TimedOut);
    let what = "the server rejects the request, because 16 requests are pending";
    assert_eq!(refused.what, what);
    drop(lets_go);
    for stream in &mut waiting {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("{\"result\":\"done\"}"), "{text}");
    }
}

/// Waits for the end of its client.
struct Deserted(SyncSender<()>, SyncSender<()>);

impl ServerControl for Deserted {
    fn sessions(&self) -> Vec<SessionReport> {
        Vec::new()
    }

    fn config(&self) -> Arc<ConfigSnapshot> {
        Arc::default()
    }

    fn ask(&self, _: Request, asker: &Asker) -> Response {
        self.0.send(()).unwrap();
        while !asker.is_gone() {
            std::thread::yield_now();
        }
        self.1.send(()).unwrap();
        Response::Done("done".into())
    }
}

#[test]
fn request_knows_that_its_client_is_gone() {
    let folder = Folder::fresh();
    let ((taken, takes), (gone, is_gone)) = (sync_channel(1), sync_channel(1));
    let (_server, path) = served(&folder, Arc::new(Deserted(taken, gone)));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"POST /v1/config/confirm HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    takes.recv().unwrap();
    assert!(is_gone.try_recv().is_err(), "the client waits");
    drop(stream);
    is_gone.recv().unwrap();
}

#[test]
fn request_without_an_end_delays_no_server_stop() {
    let folder = Folder::fresh();
    let ((taken, takes), (_lets_go, go)) = (sync_channel(1), channel());
    let (server, path) = served(&folder, Arc::new(Slow { taken, go: go.into() }));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"POST /v1/config/confirm HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    takes.recv().unwrap();
    drop(server);
    let mut text = String::new();
    _ = stream.read_to_string(&mut text);
    assert_eq!(text, "");
}

#[test]
fn silent_client_is_disconnected() {
    let folder = Folder::fresh();
    let (_server, path) = served(&folder, Arc::new(Fake::default()));
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.write_all(b"GET /v1/sess").unwrap();
    assert_eq!(sessions(&path, LIMIT).unwrap().items.len(), 2, "it delays no other client");
    let mut text = Vec::new();
    silent.read_to_end(&mut text).unwrap();
}

#[test]
fn closed_connection_is_not_an_absent_server() {
    let folder = Folder::fresh();
    let path = folder.join("lunar.sock");
    let code = || single(client(&path, LIMIT).post::<Outcome>("/v1/config/confirm", &())).unwrap_err().code;
    assert_eq!(code(), ErrorCode::Unreachable);
    let listener = UnixListener::bind(&path).unwrap();
    let closes = std::thread::spawn(move || drop(listener.accept().unwrap()));
    assert_eq!(code(), ErrorCode::Other);
    closes.join().unwrap();
    assert_eq!(code(), ErrorCode::Unreachable);
}

#[test]
fn server_that_hangs_is_reported_when_the_time_is_over() {
    let folder = Folder::fresh();
    let path = folder.join("lunar.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let limit = Duration::from_millis(100);
    let said = |problem: Diagnostic| {
        assert_eq!(problem.code, ErrorCode::TimedOut);
        problem.to_string().replace(&format!("{}/", folder.display()), "")
    };
    let hangs = "no answer from the server at lunar.sock within 100ms\n  \
         hint: check the process of the server, which is stopped or overloaded, or raise --timeout";
    assert_eq!(said(sessions(&path, limit).unwrap_err()), hangs);
    let late = single(client(&path, limit).post::<Outcome>("/v1/config/confirm", &())).unwrap_err();
    assert_eq!(said(late), format!("{hangs}; the server may still execute the request"));
    // Fills the backlog of the socket.
    let waiting: Vec<UnixStream> = std::iter::from_fn(|| connect(&path, limit).ok()).take(100_000).collect();
    assert!(waiting.len() < 100_000);
    assert_eq!(said(sessions(&path, limit).unwrap_err()), hangs);
    assert_eq!(listening(&path).len(), 1);
    drop(listener);
}

#[test]
fn other_protocol_at_the_socket_is_reported() {
    let folder = Folder::fresh();
    let path = folder.join("lunar.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        _ = stream.read(&mut [0; 512]);
        stream.write_all(b"{\"error\":{}}\n").unwrap();
    });
    let strange = sessions(&path, LIMIT).unwrap_err();
    assert!(strange.what.starts_with("unexpected response of the server: "), "{strange}");
    answer.join().unwrap();
}

/// The committed description of the API is current. `LUNAR_WRITE=1` writes it.
#[test]
fn committed_openapi_document_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let current = serde_json::to_string_pretty(&crate::openapi()).unwrap() + "\n";
    if std::env::var_os("LUNAR_WRITE").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == current, "run LUNAR_WRITE=1 cargo test -p lunar-api openapi");
}
