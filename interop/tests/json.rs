//! The output of all commands with `--json`, and of their errors, against `docs/schema.json`.
#![forbid(unsafe_code)]

use interop::{Folder, Login, Server, TARGET, json, lunar_bin};
use jsonschema::Validator;
use serde_json::{Deserializer, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONFIG: &str =
    "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n";
const ROUTER: &str = "[router.r1.upstream]\nm.memory = \"1M\"\n[[router.r1.target]]\nmap = \"lun\"\n\
    name = \"iqn.2026-11.org.example:routed\"\naccess = \"all\"\nlun = [{ lun = 0, upstream = \"m\" }]\n";
const NEW: &str = "iqn.2026-11.org.example:new";
/// Commands of which another test has the output: they take too long for this one, or need a cluster.
const ELSEWHERE: [&str; 4] = ["bench reproduce", "gateway drain", "gateway failover", "gateway resume"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project").to_path_buf()
}

/// Makes a schema reject keys that it does not name. A client ignores them.
fn forbid_other_keys(schema: &mut Value) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(forbid_other_keys),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match (key.as_str(), value) {
                    // The parts of an object do not name the keys of each other.
                    ("allOf", Value::Array(parts)) => {
                        parts
                            .iter_mut()
                            .filter_map(|part| part.get_mut("properties"))
                            .for_each(forbid_other_keys);
                    }
                    (_, value) => forbid_other_keys(value),
                }
            }
            if map.contains_key("$ref") {
                map.insert("unevaluatedProperties".into(), false.into());
            }
        }
        _ => {}
    }
}

/// The schemas, and the commands whose output was compared with them.
struct Schemas {
    document: Value,
    seen: BTreeSet<String>,
}

impl Schemas {
    fn new() -> Schemas {
        let text = std::fs::read_to_string(root().join("docs/schema.json")).expect("the schemas");
        Schemas { document: serde_json::from_str(&text).expect("JSON"), seen: BTreeSet::new() }
    }

    fn validator(&self, schema: &Value) -> Validator {
        let mut whole = schema.clone();
        whole["$defs"] = self.document["$defs"].clone();
        forbid_other_keys(&mut whole);
        jsonschema::validator_for(&whole).expect("a schema")
    }

    fn check(&self, schema: &Value, text: &str, what: &str) {
        let validator = self.validator(schema);
        let values = Deserializer::from_str(text).into_iter::<Value>();
        let values: Vec<Value> =
            values.map(|value| value.unwrap_or_else(|e| panic!("{what}: {e}: {text}"))).collect();
        assert!(!values.is_empty(), "{what}: no output");
        for value in values {
            json::assert_unique_keys(&value.to_string());
            let faults: Vec<String> =
                validator.iter_errors(&value).map(|e| format!("{}: {e}", e.instance_path())).collect();
            assert!(faults.is_empty(), "{what}: {faults:#?}: {value:#}");
        }
    }

    /// Checks the output of a command. Its name in the schemas is the `command`.
    fn output(&mut self, command: &str, text: &str) {
        self.check(&self.document["commands"][command], text, command);
        self.seen.insert(command.to_owned());
    }

    fn error(&self, text: &str) {
        self.check(&self.document["error"], text, "error");
    }
}

/// A host, and the server for its commands.
struct Host {
    dir: Folder,
    server: Server,
    schemas: Schemas,
}

impl Host {
    fn new() -> Host {
        let lun = "[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"8MiB\"\nblock_size = \"4K\"\n\
            filters = [{ kind = \"rate\", bytes_per_s = \"1G\" }]\n";
        let server = Server::start(&format!("{CONFIG}[[target]]\nname = \"{TARGET}\"\n{lun}{ROUTER}"));
        Host { dir: Folder::fresh(), server, schemas: Schemas::new() }
    }

    /// stdout, stderr and the exit status.
    fn run(&self, arguments: &[&str]) -> (String, String, i32) {
        let mut command = Command::new(lunar_bin());
        command
            .args(arguments)
            .arg("--json")
            .current_dir(&*self.dir)
            .env("LUNAR_RUN_DIR", self.dir.join("run"));
        command.env("XDG_CONFIG_HOME", self.dir.join("config")).env("XDG_STATE_HOME", self.dir.join("state"));
        let ran = command.output().expect("lunar runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(ran.stdout), text(ran.stderr), ran.status.code().expect("an exit status"))
    }

    /// Runs a command that succeeds, and checks its output.
    fn does(&mut self, command: &str, arguments: &[&str]) -> Value {
        let (out, err, status) = self.run(arguments);
        assert_eq!(status, 0, "{arguments:?}: {err}");
        self.schemas.output(command, &out);
        Deserializer::from_str(&out).into_iter().next().expect("output").expect("JSON")
    }

    /// As [`Host::does`], for a command that asks the server. `line`: its words.
    fn asks(&mut self, command: &str, line: &str) -> Value {
        let socket = self.server.dir().join("admin.sock").display().to_string();
        let words: Vec<&str> = line.split(' ').chain(["--socket", &socket]).collect();
        self.does(command, &words)
    }

    /// The error of a command that fails with this status.
    fn fails(&self, arguments: &[&str], expected: i32) -> Value {
        let (out, err, status) = self.run(arguments);
        assert_eq!((out.as_str(), status), ("", expected), "{arguments:?}: {err}");
        let line = err.lines().last().expect("an error");
        self.schemas.error(line);
        serde_json::from_str::<Value>(line).expect("JSON")["error"].take()
    }
}

fn objects_of_the_configuration(host: &mut Host) {
    host.asks("target add", &format!("target add {NEW} alias=new"));
    host.asks("lun add", &format!("lun add {NEW} new.img --size 1MiB"));
    host.asks("lun move", &format!("lun move {NEW} 0 {NEW} --lun 5 --dry-run"));
    host.asks("access add", &format!("access add {NEW} --initiator iqn.2026-11.org.example:* --luns 0"));
    host.asks("access show", &format!("access show {NEW} 0"));
    host.asks("access set", &format!("access set {NEW} 0 --read-only --dry-run"));
    host.asks("target set", &format!("target set {NEW} alias=newer"));
    host.asks("disk add", "disk add data null:1M");
    host.asks("disk list", "disk list");
    host.asks("disk show", "disk show data");
    host.asks("disk remove", "disk remove data");
    host.asks("access list", &format!("access list {NEW}"));
    let list = host.asks("lun list", "lun list");
    let config = |at: usize| &list["items"][at]["config"];
    assert_eq!((&config(0)["size"], &config(0)["block_size"]), (&(8 << 20).into(), &4096.into()), "{list}");
    assert_eq!(config(0)["filters"][0]["bytes_per_s"], 1 << 30, "{list}");
    assert_eq!(config(1)["size"], 1 << 20, "{list}");
    host.asks("lun show", &format!("lun show {NEW} 0"));
    host.asks("lun set", &format!("lun set {NEW} 0 vendor=ACME"));
    host.asks("lun resize", &format!("lun resize {NEW} 0 2MiB"));
    let shown = host.asks("target show", &format!("target show {NEW}"));
    assert_eq!((&shown["luns"][0]["lun"], &shown["access"][0]["index"]), (&0.into(), &0.into()), "{shown}");
    host.asks("target list", "target list");
    host.asks("target add", "target add iqn.2026-11.org.example:moves standby=true");
    host.asks("target promote", "target promote iqn.2026-11.org.example:moves");
    host.asks("target demote", "target demote iqn.2026-11.org.example:moves");
    host.asks("target remove", "target remove iqn.2026-11.org.example:moves");
    host.asks("access remove", &format!("access remove {NEW} 0 --force"));
    host.asks("lun remove", &format!("lun remove {NEW} 0"));
    host.asks("target remove", &format!("target remove {NEW}"));
    host.asks("chap add", "chap add alice");
    host.asks("chap set", "chap set alice");
    host.asks("chap show", "chap show alice");
    host.asks("chap list", "chap list");
    host.asks("chap remove", "chap remove alice");
    host.asks("portal add", "portal add 2 127.0.0.1:3999");
    host.asks("portal list", "portal list");
    host.asks("portal show", "portal show 2");
    host.asks("portal remove", "portal remove 2");
}

fn objects_of_nvme(host: &mut Host) {
    let (nqn, ann) = ("nqn.2026-11.org.example:new", "nqn.2026-11.org.example:ann");
    host.asks("subsystem add", &format!("subsystem add {nqn} serial=s1"));
    host.asks("namespace add", &format!("namespace add {nqn} lun:{TARGET}/0"));
    host.asks("namespace add", &format!("namespace add {nqn} null:1M"));
    host.asks("namespace set", &format!("namespace set {nqn} 2 block_size=4096 --dry-run"));
    host.asks("namespace resize", &format!("namespace resize {nqn} 2 2MiB"));
    let list = host.asks("namespace list", "namespace list");
    let (shared, own) = (&list["items"][0], &list["items"][1]);
    assert_eq!(
        (&shared["config"]["lun"], &shared["capacity_bytes"]),
        (&0.into(), &(8 << 20).into()),
        "{list}"
    );
    assert_eq!((&own["nsid"], &own["config"]["size"]), (&2.into(), &(2 << 20).into()), "{list}");
    host.asks("namespace show", &format!("namespace show {nqn} 1"));
    let added = host.asks("host add", &format!("host add {nqn} {ann}"));
    assert!(added["secret"].as_str().is_some_and(|text| text.starts_with("DHHC-1:00:")), "{added}");
    host.asks("host set", &format!("host set {nqn} {ann}"));
    host.asks("host show", &format!("host show {nqn} {ann}"));
    host.asks("host list", &format!("host list {nqn}"));
    host.asks("subsystem set", &format!("subsystem set {nqn} read_only=true"));
    let shown = host.asks("subsystem show", &format!("subsystem show {nqn}"));
    assert_eq!((&shown["controllers"], &shown["hosts"][0]["nqn"]), (&0.into(), &ann.into()), "{shown}");
    host.asks("subsystem list", "subsystem list");
    host.asks("host remove", &format!("host remove {nqn} {ann} --force"));
    host.asks("namespace remove", &format!("namespace remove {nqn} 2"));
    host.asks("subsystem remove", &format!("subsystem remove {nqn}"));
}

fn sessions_and_routers(host: &mut Host) {
    let mut raw = Login::new().on(host.server.portal());
    raw.clear_attentions(0);
    host.asks("status", "status");
    host.asks("session list", "session list");
    host.asks("session show", "session show");
    let id = raw.tsih;
    host.asks("session show ID", &format!("session show {id}"));
    host.asks("top --once", "top --once --interval 100ms");
    host.asks("session end", &format!("session end {id}"));
    let list = host.asks("router list", "router list");
    assert!(list["items"][0]["started_at"].as_str().is_some_and(|time| time.ends_with('Z')), "{list}");
    for words in ["show", "stats", "paths", "sessions"] {
        host.asks(&format!("router {words}"), &format!("router {words}"));
    }
    host.asks("router drain", "router drain r1");
    host.asks("router resume", "router resume r1");
}

/// A gateway has no routers. The images that it shares need a cluster, which another test has.
fn gateways(host: &mut Host) {
    assert_eq!(host.asks("gateway list", "gateway list")["items"], Value::Array(Vec::new()));
    assert_eq!(host.asks("gateway show", "gateway show")["items"], Value::Array(Vec::new()));
    let own = format!(
        "[[target]]\nname = \"{TARGET}\"\nlun = [{{ lun = 0, backend = \"memory\", size = \"1M\" }}]\n"
    );
    let gateway = Server::start(&format!("[gateway]\ngroup = \"gw\"\nid = 3\n{CONFIG}{own}"));
    let router = std::mem::replace(&mut host.server, gateway);
    let list = host.asks("gateway list", "gateway list");
    let socket = host.server.dir().join("admin.sock").display().to_string();
    let error = host.fails(&["gateway", "drain", "--socket", &socket], 21);
    assert_eq!(error["detail"], "the server shares no image", "{error}");
    assert_eq!((&list["items"][0]["id"], &list["items"][0]["this_server"]), (&3.into(), &true.into()));
    host.server = router;
}

fn configurations(host: &mut Host) {
    host.asks("config show", "config show");
    host.asks("history", "history");
    host.asks("diff", "diff --since 1");
    host.asks("reload", "reload");
    host.asks("rollback", "rollback --to 1 --dry-run");
    host.asks("apply", "apply --confirm-within 60s");
    host.asks("apply --confirm", "apply --confirm");
    host.asks("apply", "apply --confirm-within 60s");
    host.asks("apply --rollback", "apply --rollback");
    host.asks("events", "events");
    let file = host.server.dir().join("lunar.toml").display().to_string();
    let report = host.does("check", &["check", &file]);
    assert_eq!((&report["targets"], &report["luns"], &report["routers"]), (&1.into(), &1.into(), &1.into()));
    let adopted = host.does("adopt", &["adopt", "--all", "--dry-run", "--config", &file]);
    assert!(adopted["items"][0]["line"].is_u64() && adopted["dry_run"] == true, "{adopted}");
    let sample = root().join("crates/lunar-import/tests/samples/demo-mode.json").display().to_string();
    host.does("import", &["import", "lio", &sample, "-o", "imported.toml"]);
}

fn disks(host: &mut Host) {
    let portal = host.server.portal().to_string();
    let url = format!("iscsi://{portal}/{TARGET}/0");
    host.does("discover", &["discover", &portal]);
    let list = host.does("ls", &["ls", &portal]);
    assert_eq!(list["items"][0]["luns"][0]["capacity_bytes"], 8 << 20, "{list}");
    host.does("doctor", &["doctor", &url]);
    host.does("info", &["info", &url]);
    host.does("pr", &["pr", &url, "read-keys"]);
    host.does("scsi", &["scsi", &url, "12:00:00:00:60:00", "--in", "96"]);
    host.does("copy", &["copy", &url, "null:8M"]);
    let result = host.does("bench", &["bench", "randread", "null:1M", "--runtime", "10ms"]);
    std::fs::write(host.dir.join("a.json"), result.to_string()).expect("a file");
    host.does("bench compare", &["bench", "compare", "a.json", "a.json"]);
    host.does("rdma list", &["rdma", "list"]);
    let attached = host.does("attach", &["attach", &url, "--name", "a"]);
    assert!(attached["attached_at"].as_str().is_some_and(|time| time.ends_with('Z')), "{attached}");
    host.does("attach list", &["attach", "list"]);
    host.does("attach list NAME", &["attach", "list", "a"]);
    host.does("detach", &["detach", "a"]);
}

fn errors(host: &Host) {
    let socket = host.server.dir().join("admin.sock").display().to_string();
    let error = host.fails(&["session", "show", "99", "--socket", &socket], 21);
    assert_eq!(error["code"], "not-found", "{error}");
    // It is in no failover pair.
    for words in [&["router", "failover", "r1"][..], &["router", "eligible", "r1", "on"]] {
        host.fails(&[words, &["--socket", &socket]].concat(), 1);
    }
    let error = host.fails(&["gateway", "show", "rbd/no", "--socket", &socket], 21);
    assert_eq!(error["detail"], "the server shares no image rbd/no", "{error}");
    let absent = host.dir.join("absent").display().to_string();
    assert_eq!(host.fails(&["status", "--socket", &absent], 4)["code"], "unreachable");
    std::fs::write(host.dir.join("bad.toml"), "[[target]]\nname = \"x y\"\nalas = 1\n").expect("a file");
    let error = host.fails(&["check", "bad.toml"], 1);
    let faults = error["errors"].as_array().expect("faults");
    assert!(faults.len() > 1 && faults.iter().all(|fault| fault["file"] == "bad.toml"), "{error}");
    assert!(faults.iter().any(|fault| fault["line"] == 3 && fault["hint"].is_string()), "{error}");
    let refused = host.fails(&["apply", "bad.toml", "--socket", &socket], 1);
    let details = |error: &Value| -> Vec<String> {
        let each = error["errors"].as_array().expect("faults").iter();
        each.map(|fault| format!("{}:{} {}", fault["line"], fault["column"], fault["detail"])).collect()
    };
    assert_eq!(details(&refused), details(&error), "each fault of the server has its place");
    assert_eq!(host.fails(&["adopt", "disk:no", "--config", "none.toml"], 21)["code"], "not-found");
    assert_eq!(host.fails(&["ls", "127.0.0.1:1"], 4)["code"], "unreachable");
    assert_eq!(host.fails(&["bench", "read", "absent.img"], 21)["code"], "not-found");
}

#[test]
fn output_of_each_command_has_the_form_of_its_schema() {
    let mut host = Host::new();
    objects_of_the_configuration(&mut host);
    sessions_and_routers(&mut host);
    gateways(&mut host);
    disks(&mut host);
    errors(&host);
    configurations(&mut host);
    objects_of_nvme(&mut host);
    host.asks("stop", "stop");
    let mut commands: BTreeSet<String> =
        host.schemas.document["commands"].as_object().expect("commands").keys().cloned().collect();
    // Their output is that of `router drain`, but no router here is in a failover pair.
    commands.retain(|command| !["router failover", "router eligible"].contains(&&**command));
    commands.retain(|command| !ELSEWHERE.contains(&&**command));
    assert_eq!(host.schemas.seen, commands);
}

#[test]
fn invented_key_is_no_part_of_a_schema() {
    let schemas = Schemas::new();
    let valid = |text: &str| {
        let value: Value = serde_json::from_str(text).expect("JSON");
        schemas.validator(&schemas.document["commands"]["session end"]).is_valid(&value)
    };
    assert!(valid(r#"{"result": "done"}"#));
    assert!(!valid(r#"{"result": "done", "invented": 1}"#) && !valid(r#"{"result": 1}"#) && !valid("{}"));
}
