//! The commands that change the NVMe subsystems of a running server, while a host has a controller.
#![forbid(unsafe_code)]

use interop::nvme::{DISCOVERY, DNR, NvmeEntry, NvmeHostName, RawController};
use interop::{Server, TARGET, lunar_bin};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

const NQN: &str = "nqn.2026-11.org.example:disks";
const NEW: &str = "nqn.2026-11.org.example:new";
const ANN: &str = "nqn.2026-11.org.example:ann";
const INVALID: i32 = 7;
const EXISTS: i32 = 15;
const NOT_FOUND: i32 = 21;
const IN_USE: i32 = 28;
/// The event that the list of namespaces has changed, its feature, and its log page.
const NAMESPACE_CHANGED: u32 = 0x0004_0002;
const CONFIGURATION: u8 = 0x0b;
const NAMESPACES: u32 = 1 << 8;
const CHANGED: u8 = 4;
const NOT_ALLOWED: u16 = DNR | 0x184;
/// The result of Connect: the host must authenticate itself.
const AUTHENTICATION_REQUIRED: u64 = 1 << 17;

const CONFIG: &str = r#"
[session]
nop_interval_s = 0
[[portal_group]]
tag = 1
portals = [{ listen = "127.0.0.1:0", transport = ["nvme-tcp"] }]
[[target]]
name = "iqn.2026-11.org.example:disks"
[[target.lun]]
lun = 0
backend = "memory"
size = "8MiB"
[[subsystem]]
nqn = "nqn.2026-11.org.example:disks"
[[subsystem.namespace]]
nsid = 1
target = "iqn.2026-11.org.example:disks"
lun = 0
"#;

/// A running server and the commands for it.
struct Administrator {
    server: Server,
}

impl Administrator {
    fn new() -> Administrator {
        Administrator { server: Server::start(CONFIG) }
    }

    fn portal(&self) -> SocketAddr {
        self.server.portals()[0]
    }

    /// stdout, stderr and the exit status.
    fn run(&self, line: &str) -> (String, String, i32) {
        let mut command = Command::new(lunar_bin());
        command.args(line.split(' ')).current_dir(self.server.dir());
        let socket = self.server.dir().join("admin.sock");
        let ran = command.arg("--socket").arg(socket).output().expect("lunar runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(ran.stdout), text(ran.stderr), ran.status.code().expect("an exit status"))
    }

    /// stdout of a command that succeeds.
    fn does(&self, line: &str) -> String {
        let (out, err, status) = self.run(line);
        assert_eq!(status, 0, "{line}: {out}{err}");
        out
    }

    /// stderr of a command that fails with this status and a hint.
    fn fails(&self, line: &str, expected: i32) -> String {
        let (out, err, status) = self.run(line);
        assert_eq!((out.as_str(), status), ("", expected), "{line}: {err}");
        assert!(err.contains("\n  hint: "), "{line}: {err}");
        err
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.does(&format!("{line} --json"))).expect("JSON")
    }
}

/// An enabled controller that reports changes of namespaces.
fn controller(admin: &Administrator, subsystem: &str) -> RawController {
    let mut it = RawController::enabled(admin.portal(), &NvmeHostName::new("host"), subsystem, 0);
    it.admin.execute(&NvmeEntry::set_feature(CONFIGURATION, NAMESPACES), &[]).is(0);
    it
}

/// The active namespaces.
fn namespaces(it: &mut RawController) -> Vec<u32> {
    let list = it.admin.execute(&NvmeEntry::identify(2, 0), &[]).good();
    let numbers = list.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("4 bytes")));
    numbers.take_while(|number| *number != 0).collect()
}

/// Waits for the event of changed namespaces, and reads their log.
fn changed(it: &mut RawController, waiting: u16) {
    assert_eq!(it.admin.collect(waiting, &[]).result as u32, NAMESPACE_CHANGED);
    it.admin.execute(&NvmeEntry::log(CHANGED, 4096), &[]).good();
}

/// Bytes of a namespace with blocks of 512 bytes, as Identify shows them.
fn size(it: &mut RawController, nsid: u32) -> u64 {
    let page = it.admin.execute(&NvmeEntry::identify(0, nsid), &[]).good();
    u64::from_le_bytes(page[..8].try_into().expect("8 bytes")) * 512
}

#[test]
fn namespaces_come_and_go_while_a_host_is_connected() {
    let mut admin = Administrator::new();
    let mut host = controller(&admin, NQN);
    let waiting = host.admin.submit(&NvmeEntry::event(), &[]);
    let out = admin.does(&format!("namespace add {NQN} new.img --size 1MiB --dry-run"));
    assert!(out.contains("namespace 2: added: ") && out.ends_with("dry run: nothing was changed\n"), "{out}");
    admin.does(&format!("namespace add {NQN} new.img --size 1MiB"));
    changed(&mut host, waiting);
    assert_eq!(namespaces(&mut host), [1, 2]);
    admin.does(&format!("lun add {TARGET} null:1M --lun 7"));
    let waiting = host.admin.submit(&NvmeEntry::event(), &[]);
    admin.does(&format!("namespace add {NQN} lun:{TARGET}/7 --nsid 5"));
    changed(&mut host, waiting);
    assert_eq!(namespaces(&mut host), [1, 2, 5]);
    admin.fails(&format!("namespace add {NQN} null:1M --nsid 5"), EXISTS);
    admin.fails(&format!("namespace add {NEW} null:1M"), NOT_FOUND);
    let err = admin.fails(&format!("namespace add {NQN} lun:{TARGET}/9"), 1);
    assert!(err.contains("has no LUN 9"), "{err}");
    admin.fails(&format!("namespace add {NQN} lun:{TARGET}"), INVALID);

    let list = admin.does("namespace list");
    let rows: Vec<Vec<&str>> = list.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{list}");
    assert_eq!(rows[2][..4], [NQN, "5", "null", &format!("lun:{TARGET}/7")], "{list}");
    admin.does(&format!("namespace resize {NQN} 2 2MiB"));
    // A host sees the new size when the command has ended.
    assert_eq!(size(&mut host, 2), 2 << 20);
    admin.does(&format!("namespace resize {NQN} 5 3MiB"));
    assert_eq!(size(&mut host, 5), 3 << 20);
    let shown = |nsid: u16| admin.json(&format!("namespace show {NQN} {nsid}"))["capacity_bytes"].clone();
    assert_eq!([shown(2), shown(5)], [2 << 20, 3 << 20]);

    let err = admin.fails(&format!("lun remove {TARGET} 7"), IN_USE);
    assert!(err.contains(&format!("LUN 7 of {TARGET} is in use by namespace 5 of {NQN}")), "{err}");
    let err = admin.fails(&format!("namespace remove {NQN} 5"), IN_USE);
    assert!(
        err.contains(&format!("namespace 5 of {NQN} is in use by nqn.2026-11.org.example:host at ")),
        "{err}"
    );
    let waiting = host.admin.submit(&NvmeEntry::event(), &[]);
    admin.does(&format!("namespace remove {NQN} 5 --force"));
    changed(&mut host, waiting);
    assert_eq!(namespaces(&mut host), [1, 2]);
    admin.does(&format!("lun remove {TARGET} 7"));
    let err = admin.fails(&format!("namespace remove {NQN} 1 --force"), 1);
    assert!(err.contains("lunar.toml line ") && err.contains("lunar reload"), "{err}");
    drop(host);

    admin.server.restart();
    let kept = admin.json(&format!("namespace show {NQN} 2"));
    assert_eq!(
        (&kept["source"]["origin"], &kept["capacity_bytes"]),
        (&json!("api"), &json!(2 << 20)),
        "{kept}"
    );
}

const UUID: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
const OTHER_UUID: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf7";
const NGUID: &str = "0123456789abcdef0123456789abcdef";
const EUI64: &str = "fedcba9876543210";

/// EUI64, NGUID and UUID as Identify shows them: the first two twice.
fn identifiers(it: &mut RawController, nsid: u32) -> [String; 5] {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let page = it.admin.execute(&NvmeEntry::identify(0, nsid), &[]).good();
    let list = it.admin.execute(&NvmeEntry::identify(3, nsid), &[]).good();
    assert_eq!(
        (&list[..4], &list[12..16], &list[32..36]),
        (&[1, 8, 0, 0][..], &[2, 16, 0, 0][..], &[3, 16, 0, 0][..])
    );
    [&page[120..128], &list[4..12], &page[104..120], &list[16..32], &list[36..52]].map(hex)
}

#[test]
fn identifiers_of_namespaces_can_be_set() {
    let admin = Administrator::new();
    let ids = format!("uuid={UUID} nguid=eui.{NGUID} eui64={EUI64}");
    admin.does(&format!("namespace add {NQN} memory:1M --nsid 2 {ids}"));
    admin.does(&format!("lun add {TARGET} null:1M --lun 7"));
    let shared = format!("namespace add {NQN} lun:{TARGET}/7 --nsid 3");
    let err = admin.fails(&format!("{shared} uuid={UUID}"), 1);
    assert!(err.contains(&format!("identifier UUID {UUID} is given twice")), "{err}");
    let err = admin.fails(&format!("{shared} eui64=0000000000000000"), 1);
    assert!(err.contains("cannot be an EUI64: zeros mean none"), "{err}");
    admin.does(&format!("{shared} uuid={OTHER_UUID} eui64=1{}", &EUI64[1..]));

    let mut host = controller(&admin, NQN);
    let uuid = UUID.replace('-', "");
    assert_eq!(identifiers(&mut host, 2), [EUI64, EUI64, NGUID, NGUID, &uuid]);
    assert_eq!(identifiers(&mut host, 3)[4], OTHER_UUID.replace('-', ""));
    let show = admin.json(&format!("namespace show {NQN} 2"));
    assert_eq!((&show["config"]["uuid"], &show["config"]["eui64"]), (&json!(UUID), &json!(EUI64)), "{show}");

    let change = format!("namespace set {NQN} 2 nguid=f{}", &NGUID[1..]);
    let err = admin.fails(&change, IN_USE);
    assert!(err.contains(&format!("namespace 2 of {NQN} is in use by ")), "{err}");
    let waiting = host.admin.submit(&NvmeEntry::event(), &[]);
    let out = admin.does(&format!("{change} --force"));
    assert!(out.contains(&format!("namespace 2: nguid from {NGUID} to f{}", &NGUID[1..])), "{out}");
    changed(&mut host, waiting);
    assert_eq!(identifiers(&mut host, 2)[2..4], [format!("f{}", &NGUID[1..]), format!("f{}", &NGUID[1..])]);
    // Without its key, an identifier is derived again.
    admin.does(&format!("namespace set {NQN} 3 uuid= --force"));
    let derived = identifiers(&mut host, 3);
    assert_ne!(derived[4], OTHER_UUID.replace('-', ""));
    // Another namespace cannot have it.
    let err = admin.fails(&format!("namespace add {NQN} memory:1M --nsid 4 nguid={}", derived[2]), 1);
    assert!(err.contains(&format!("namespace 3 of {NQN}: namespace 4 of {NQN} has the same NGUID")), "{err}");
    // A namespace of nvmet has no NGUID.
    admin.does(&format!("namespace add {NQN} memory:1M --nsid 4 uuid={OTHER_UUID} nguid=none"));
    assert_eq!(&host.admin.execute(&NvmeEntry::identify(0, 4), &[]).good()[104..120], &[0; 16]);
    let list = host.admin.execute(&NvmeEntry::identify(3, 4), &[]).good();
    assert_eq!((list[0], list[20], list[25]), (3, 4, 0), "a UUID, a command set, the end");
    assert!(admin.does(&format!("namespace show {NQN} 4")).contains("none"));
}

#[test]
fn subsystem_is_added_changed_and_removed() {
    let admin = Administrator::new();
    admin.does(&format!("subsystem add {NEW} serial=0001"));
    admin.does(&format!("namespace add {NEW} memory:1M"));
    admin.fails(&format!("subsystem add {NEW}"), EXISTS);
    assert!(admin.fails("subsystem add iqn.2026-11.org.example:x", 1).contains("is no NQN"));
    let mut host = controller(&admin, NEW);
    assert_eq!(namespaces(&mut host), [1]);
    let identity = host.admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
    assert_eq!(&identity[4..8], b"0001", "the serial number");

    let shown = admin.json(&format!("subsystem show {NEW}"));
    assert_eq!((&shown["state"], &shown["controllers"]), (&json!("serving"), &json!(1)), "{shown}");
    assert_eq!(shown["namespaces"][0]["config"]["backend"], "memory", "{shown}");
    let list = admin.does("subsystem list");
    let row = list.lines().find(|row| row.starts_with(NEW)).expect("a row");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), [NEW, "serving", "1", "1", "api"], "{list}");
    let status = admin.does("status");
    assert!(status.contains("\ntargets     1\n") && status.contains("\nsubsystems  2\n"), "{status}");
    assert!(status.contains("\nLUNs        1\n") && status.contains("\nnamespaces  2\n"), "{status}");

    let refused = RawController::try_connect(admin.portal(), &NvmeHostName::new("stranger"), NEW);
    assert_eq!(refused.status, 0);
    admin.does(&format!("subsystem set {NEW} allowed_hosts=[\"nqn.2026-11.org.example:host\"]"));
    let refused = RawController::try_connect(admin.portal(), &NvmeHostName::new("stranger"), NEW);
    assert_eq!(refused.status, NOT_ALLOWED);
    let err = admin.fails(&format!("subsystem remove {NEW}"), IN_USE);
    assert!(err.contains(&format!("subsystem {NEW} is in use by nqn.2026-11.org.example:host at ")), "{err}");
    let err = admin.fails(&format!("subsystem set {NEW} allowed_hosts="), 1);
    assert!(err.contains("would admit all hosts without `allowed_hosts`"), "{err}");
    // It admits no host then.
    admin.does(&format!("subsystem set {NEW} allowed_hosts= offline=true"));
    assert_eq!(admin.json(&format!("subsystem show {NEW}"))["state"], "offline");
    admin.does(&format!("subsystem remove {NEW} --force"));
    assert!(admin.fails(&format!("subsystem show {NEW}"), NOT_FOUND).contains("lunar subsystem list"));
    admin.fails(&format!("namespace show {NEW} 1"), NOT_FOUND);
    let files = std::fs::read_dir(admin.server.dir().join("lunar.d/api")).expect("the folder of the API");
    assert_eq!(files.flatten().filter(|file| file.path().is_file()).count(), 0, "all files are gone");
}

/// nvme/030 of blktests. Hosts compare the generation to learn whether they have read two logs in parts of one.
#[test]
fn each_change_of_subsystems_raises_the_generation() {
    let admin = Administrator::new();
    let mut host = RawController::enabled(admin.portal(), &NvmeHostName::new("host"), DISCOVERY, 0);
    let mut log = || {
        let page = host.admin.execute(&NvmeEntry::log(0x70, 16), &[]).good();
        let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        (number(0), number(8))
    };
    let mut before = log();
    assert_eq!(before.1, 2, "the discovery subsystem and the first one");
    for (line, records) in [
        (format!("subsystem add {NEW}"), 3),
        (format!("host add {NEW} {ANN}"), 2),
        (format!("host remove {NEW} {ANN} --force"), 3),
        (format!("subsystem remove {NEW}"), 2),
    ] {
        admin.does(&line);
        let now = log();
        assert!(now.0 > before.0 && now.1 == records, "{line}: {before:?}, then {now:?}");
        before = now;
    }
}

/// nvme/031 of blktests.
#[test]
fn subsystem_is_removed_right_after_its_first_use() {
    let admin = Administrator::new();
    for _ in 0..10 {
        admin.does(&format!("subsystem add {NEW}"));
        admin.does(&format!("namespace add {NEW} memory:1M"));
        let mut host = controller(&admin, NEW);
        host.queue(1).execute(&NvmeEntry::read(1, 0, 8), &[]).good();
        admin.does(&format!("subsystem remove {NEW} --force"));
        host.admin.expect_close(Duration::from_secs(20));
    }
}

#[test]
fn hosts_with_secrets_exclude_all_others() {
    let admin = Administrator::new();
    admin.does(&format!("subsystem add {NEW} allowed_hosts=[\"{ANN}\"]"));
    admin.does(&format!("namespace add {NEW} null:1M"));
    let err = admin.fails(&format!("host add {NEW} {ANN}"), 1);
    assert!(err.contains("exclude each other"), "{err}");
    admin.does(&format!("subsystem set {NEW} allowed_hosts= --force"));
    let out = admin.does(&format!("host add {NEW} {ANN}"));
    assert!(out.contains(&format!(" -n {NEW} -q {ANN} -S \"DHHC-1:00:")), "{out}");
    let connect = |name: &str| RawController::try_connect(admin.portal(), &NvmeHostName::new(name), NEW);
    assert_eq!(connect("stranger").status, NOT_ALLOWED);
    let reply = connect("ann");
    assert_eq!((reply.status, reply.result & AUTHENTICATION_REQUIRED), (0, AUTHENTICATION_REQUIRED));

    let secrets = || {
        let folder = std::fs::read_dir(admin.server.dir().join("lunar.d/api/secrets")).expect("a folder");
        folder.flatten().map(|file| file.path()).collect::<Vec<_>>()
    };
    let before = secrets();
    assert_eq!(before.len(), 1, "{before:?}");
    assert!(!admin.does(&format!("host show {NEW} {ANN}")).contains("DHHC"));
    admin.does(&format!("host set {NEW} {ANN}"));
    assert!(secrets().len() == 1 && secrets() != before, "the old secret is removed: {:?}", secrets());
    assert!(admin.does(&format!("host list {NEW}")).contains(ANN));

    let err = admin.fails(&format!("host remove {NEW} {ANN}"), 1);
    assert!(err.contains("would admit hosts without a secret"), "{err}");
    admin.does(&format!("host remove {NEW} {ANN} --force"));
    assert_eq!(connect("stranger").status, 0);
    admin.does(&format!("host add {NEW} {ANN}"));
    admin.does(&format!("subsystem remove {NEW}"));
    assert!(secrets().is_empty(), "the secrets of its hosts go with it: {:?}", secrets());
}

#[test]
fn host_that_gets_a_secret_loses_its_open_controller() {
    let admin = Administrator::new();
    admin.does(&format!("subsystem add {NEW}"));
    admin.does(&format!("namespace add {NEW} null:1M"));
    let [mut ann, mut bob] =
        ["ann", "bob"].map(|name| RawController::enabled(admin.portal(), &NvmeHostName::new(name), NEW, 0));
    let _queue = ann.queue(1);
    for dry_run in [" --dry-run", ""] {
        let (_, err, status) = admin.run(&format!("host add {NEW} {ANN}{dry_run}"));
        assert_eq!(status, 0, "{err}");
        assert!(
            err.contains("warning: 2 sessions end, because") && err.contains(&format!("{ANN} at ")),
            "{err}"
        );
    }
    // Bob is no longer listed, and Ann has proved nothing.
    for it in [&mut ann, &mut bob] {
        it.admin.expect_close(Duration::from_secs(20));
    }
}

#[test]
fn session_of_a_queue_shows_its_controller() {
    let admin = Administrator::new();
    let mut host = RawController::connect(admin.portal(), &NvmeHostName::new("host"), NQN, 15_000);
    host.enable();
    let _queues = [host.queue(1), host.queue(2)];
    let list = admin.json("session list");
    let of = |queue: u16| {
        let mut sessions = list["items"].as_array().expect("a list").iter();
        sessions.find(|one| one["nvme"]["queue"] == queue).unwrap_or_else(|| panic!("{list}"))["nvme"].clone()
    };
    let host_id = "686f7374-5a5a-5a5a-5a5a-5a5a5a5a5a5a";
    let expected = |queue: u16, entries: u16, keep_alive_ms: u32| {
        json!({ "host_id": host_id, "controller": host.id, "queue": queue, "queue_len": entries, "io_queues": 2,
            "keep_alive_ms": keep_alive_ms })
    };
    assert_eq!([of(0), of(1), of(2)], [expected(0, 32, 15_000), expected(1, 128, 0), expected(2, 128, 0)]);
    let shown = admin.does("session show");
    for line in [&format!("HostID={host_id}\n"), &format!("Controller={}\n", host.id), "KeepAliveMs=15000\n"]
    {
        assert!(shown.contains(line), "{shown}");
    }
    assert_eq!(
        admin.json(&format!("subsystem show {NQN}"))["controllers"],
        1,
        "one controller, three queues"
    );
}

#[test]
fn objects_of_a_file_become_those_of_the_api() {
    let admin = Administrator::new();
    let file = admin.server.dir().join("lunar.toml").display().to_string();
    let ran = Command::new(lunar_bin()).args(["adopt", NQN, "--config", &file]).output().expect("lunar runs");
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(out.contains(&format!("namespace 1 of {NQN}: ")) && out.contains("adopted 2 objects"), "{ran:?}");
    admin.does("reload");
    admin.does(&format!("namespace remove {NQN} 1"));
    assert_eq!(admin.does("namespace list"), "no namespaces\n");
}
