//! Commands with `nvme://` URLs against a running server: their output and exit status.

use interop::command::{CommandOutput, lunar};
use interop::nvme::{NvmeHostName, RawController};
use interop::routed::until;
use interop::{Folder, Server, TARGET};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const NQN: &str = "nqn.2026-11.org.example:disks";

/// Namespaces 1 and 3 are LUNs 0 and 1 of the target.
fn server() -> Server {
    Server::start(&format!(
        r#"
[[portal_group]]
tag = 1
portals = [{{ listen = "127.0.0.1:0", transport = ["nvme-tcp"] }}]
[[portal_group]]
tag = 2
portals = ["127.0.0.1:0"]
[[target]]
name = "{TARGET}"
portal_groups = [2]
[[target.lun]]
lun = 0
backend = "memory"
size = "16MiB"
[[target.lun]]
lun = 1
backend = "memory"
size = "8MiB"
[[subsystem]]
nqn = "{NQN}"
portal_groups = [1]
[[subsystem.namespace]]
nsid = 1
target = "{TARGET}"
lun = 0
[[subsystem.namespace]]
nsid = 3
target = "{TARGET}"
lun = 1
"#
    ))
}

/// The URL of a namespace for a host.
fn url(server: &Server, namespace: &str, host: &str) -> String {
    let portal = server.portals()[0];
    format!("nvme://{portal}/{NQN}/{namespace}?host_nqn=nqn.2026-11.org.example:{host}")
}

fn pr(url: &str, arguments: &[&str]) -> CommandOutput {
    lunar(&[&["pr", url][..], arguments].concat())
}

fn done(ran: CommandOutput) -> String {
    assert_eq!((ran.1.as_str(), ran.2), ("", 0), "{}", ran.0);
    ran.0
}

/// The value of a field in the text or in JSON.
fn field(text: &str, name: &str) -> String {
    let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("no {name} in {text}"));
    rest.chars()
        .skip_while(|c| "\": ".contains(*c))
        .take_while(|c| c.is_ascii_hexdigit() || *c == '-')
        .collect()
}

/// A file of 1 MiB.
fn data(dir: &Folder) -> String {
    let file = dir.join("data").display().to_string();
    std::fs::write(&file, [7; 1 << 20]).expect("a file");
    file
}

#[test]
fn pr_of_a_namespace_reserves_holds_and_preempts() {
    let (server, dir) = (server(), Folder::fresh());
    let (one, other, file) = (url(&server, "1", "one"), url(&server, "1", "other"), data(&dir));
    done(pr(&one, &["register", "--new-key", "0xabc"]));
    done(pr(&one, &["reserve", "--key", "abc", "--type", "we-ro"]));
    let id = field(&done(pr(&other, &["read-full-status", "--json"])), "\"host_id\"");
    let out = done(pr(&other, &["read-full-status"]));
    assert!(
        out.contains(&format!("host id {id}, key 0x0000000000000abc, holds reservation yes, type write")),
        "{out}"
    );

    let (_, err, status) = pr(&other, &["reserve", "--key", "1", "--type", "we"]);
    assert_eq!(status, 13, "{err}");
    assert!(
        err.contains(&format!("held by host {id} with key 0xabc: write exclusive, registrants only")),
        "{err}"
    );
    assert!(err.contains("is not registered\n"), "{err}");
    let (_, err, status) = lunar(&["copy", &file, &other]);
    assert!(status == 13 && err.contains("reservation conflict"), "{err}");
    assert_eq!(lunar(&["copy", &file, &one]).2, 13, "another command has an identifier of its own");
    assert_eq!(lunar(&["copy", &file, &format!("{one}&host_id={id}")]).2, 0);

    done(pr(&other, &["register", "--new-key", "def"]));
    let (_, err, status) = pr(&other, &["release", "--key", "1", "--type", "we-ro"]);
    assert!(status == 13 && err.contains("this host is registered with key 0xdef, not 0x1"), "{err}");
    done(pr(&other, &["preempt", "--key", "def", "--new-key", "abc", "--type", "5"]));
    let out = done(pr(&one, &["read-reservation", "read-keys"]));
    assert!(out.contains("0x0000000000000def") && !out.contains("0abc"), "{out}");
    done(pr(&other, &["release", "--key", "def", "--type", "we-ro"]));
    done(pr(&other, &["register", "--key", "def", "--new-key", "123"]));
    done(pr(&other, &["register-ignore", "--new-key", "456"]));
    assert!(done(pr(&one, &["read-keys"])).contains("0x0000000000000456"));
    done(pr(&other, &["register", "--key", "456", "--new-key", "0"]));
    assert!(done(pr(&one, &["read-keys"])).contains("keys        none"));
    assert_eq!(lunar(&["copy", &file, &one]).2, 0);
}

#[test]
fn pr_of_a_namespace_runs_several_actions_in_order() {
    let server = server();
    let one = url(&server, "1", "one");
    let out = done(pr(
        &one,
        &["register-ignore", "reserve", "read-reservation", "--new-key", "7", "--type", "ea-ar"],
    ));
    assert!(out.contains("type      exclusive access, all registrants"), "{out}");
    assert!(done(pr(&one, &["report-capabilities"])).contains("exclusive access all registrants    yes"));
    done(pr(&one, &["clear", "--key", "7"]));
    assert!(done(pr(&one, &["read-full-status"])).contains("registrations  none"));
    let (_, err, status) = pr(&one, &["register", "--new-key", "7", "--all-ports"]);
    assert!(status == 7 && err.contains("--all-ports has no meaning for NVMe"), "{err}");
}

#[test]
fn registrations_of_scsi_and_nvme_exclude_each_other() {
    let server = server();
    let (host, lun) = (url(&server, "1", "one"), format!("iscsi://{}/{TARGET}/0", server.portals()[1]));
    done(pr(&lun, &["register", "--new-key", "5"]));
    let (_, err, status) = pr(&host, &["register", "--new-key", "7"]);
    assert!(status == 13 && err.contains("SCSI initiators exclude NVMe hosts"), "{err}");
    assert!(err.contains("hint: remove the registrations"), "{err}");
    done(pr(&lun, &["register", "--key", "5", "--new-key", "0"]));
    done(pr(&host, &["register", "--new-key", "7"]));
    let id = field(&done(pr(&host, &["read-full-status", "--json"])), "\"host_id\"");
    let seen = done(pr(&lun, &["read-full-status"]));
    assert!(
        seen.contains(&format!("nqn.2026-11.org.example:one, host id {id}, key 0x0000000000000007")),
        "{seen}"
    );
    for action in ["register", "register-ignore"] {
        let (_, err, status) = pr(&lun, &[action, "--new-key", "5"]);
        assert!(status == 13 && err.contains("NVMe hosts exclude SCSI initiators"), "{err}");
    }
    done(pr(&host, &["clear", "--key", "7"]));
    done(pr(&lun, &["register", "--new-key", "5"]));
}

#[test]
fn bench_at_a_conflict_has_one_status_for_both_families() {
    let server = server();
    done(pr(&url(&server, "1", "one"), &["register", "reserve", "--new-key", "7", "--type", "we"]));
    for target in [url(&server, "1", "other"), format!("iscsi://{}/{TARGET}/0", server.portals()[1])] {
        let (out, err, status) = lunar(&["bench", "randwrite", &target, "--destroy", "--runtime", "1s"]);
        assert!(status == 1 && err.contains("reservation conflict"), "{target}: {out}{err}");
    }
}

#[test]
fn url_with_an_identifier_leads_to_its_namespace() {
    let server = server();
    let info = |namespace: &str| lunar(&["info", &url(&server, namespace, "one"), "--json"]);
    let identity = |text: &str| {
        let (_, rest) = text.split_once("\"identity\": \"").expect("an identity");
        rest.split_once('"').expect("its end").0.to_owned()
    };
    // The controller has another number each time.
    let namespace = |out: String| out.split_once("\"namespace\": {").expect("a namespace").1.to_owned();
    let third = namespace(info("3").0);
    let uuid = identity(&third);
    assert!(uuid.starts_with("uuid.") && uuid != identity(&info("1").0), "{uuid}");
    assert_eq!(namespace(done(info(&uuid))), third);
    assert_eq!(namespace(done(info(&uuid.replace('-', "").to_uppercase()))), third);
    let listed = done(lunar(&["ls", &url(&server, &uuid, "one")]));
    assert!(listed.contains("8 MiB") && !listed.contains("16 MiB"), "{listed}");
    let (_, err, status) = info("uuid.00000000-0000-0000-0000-000000000001");
    assert_eq!(status, 21, "{err}");
    assert!(err.contains("has the identifier uuid.00000000") && err.contains("lunar ls nvme://"), "{err}");
    let (_, err, status) = info("eui.07");
    assert!(status == 7 && err.contains("eui.07") && err.contains("is not a namespace"), "{err}");
}

#[test]
fn doctor_examines_controller_and_namespace() {
    let server = server();
    let (report, err, status) = lunar(&["doctor", &format!("{}&io_queues=3", url(&server, "3", "one"))]);
    assert_eq!((err.as_str(), status), ("", 0), "{report}");
    for part in [
        "\n  as nqn.2026-11.org.example:one\n",
        "\nnetwork\n  name: 127.0.0.1:",
        "path MTU",
        "  authentication: none\n  digests: header none, data none\n  3 I/O queues of 128 entries; commands of up to 1 MiB\n",
        "  writes of up to 8 KiB travel with their command\n  2 namespaces: 1, 3\n  namespace 3: 8 MiB, uuid.",
        "volatile write cache\n",
        "round trip: min",
        "reads of 4096 bytes",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let (report, ..) =
        lunar(&["doctor", &format!("nvme://{}/{NQN}?data_digest=crc32c", server.portals()[0]), "--json"]);
    for part in
        ["\"usable\": true", "\"data_digest\": true", "2 namespaces, and only the first", "\"session\": null"]
    {
        assert!(report.contains(part), "{part}: {report}");
    }
}

/// The metrics of a server.
fn metrics(server: &Server) -> String {
    let mut stream = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("metrics");
    text
}

/// The connections that the portal of the subsystem has accepted.
fn accepted(server: &Server) -> u32 {
    let text = metrics(server);
    let series = "lunar_connections_accepted_total{portal_group=\"1\"} ";
    // The series begins with the first connection.
    let count = text.lines().find_map(|line| line.strip_prefix(series));
    count.map_or(0, |count| count.parse().expect("a count"))
}

#[test]
fn metrics_count_controllers_and_their_queues() {
    let server = server();
    let has = |controllers: u32, queues: u32| {
        let text = metrics(&server);
        let named = |line: String| text.lines().any(|other| other == line);
        let sessions = |count| format!("lunar_sessions{{target=\"{NQN}\",transport=\"NVMe/TCP\"}} {count}");
        let is_counted = named(format!("lunar_nvme_controllers{{target=\"{NQN}\"}} {controllers}"));
        let has_queues = named(sessions(queues));
        // A target of SCSI hosts has no controllers.
        let is_alone = text.matches("\nlunar_nvme_controllers{").count() == 1;
        (is_counted && has_queues && is_alone).then_some(())
    };
    until("no controller", || has(0, 0));
    let controllers = ["one", "two"]
        .map(|name| RawController::enabled(server.portals()[0], &NvmeHostName::new(name), NQN, 0));
    let queues = [1, 2].map(|queue| controllers[0].queue(queue));
    until("two controllers with four queues", || has(2, 4));
    drop(queues);
    drop(controllers);
    until("no controller is left", || has(0, 0));
}

/// Each I/O queue is a connection, besides that of the admin queue.
#[test]
fn each_io_queue_of_a_url_is_a_connection() {
    let server = server();
    for queues in [1, 3] {
        let before = accepted(&server);
        let url = format!("{}&io_queues={queues}", url(&server, "1", "one"));
        let info = done(lunar(&["info", &url, "--json"]));
        assert_eq!(field(&info, "io_queues"), queues.to_string(), "{info}");
        assert_eq!(accepted(&server) - before, 1 + queues);
    }
    // Large blocks and short queues spread over all queues. Each block is verified.
    let before = accepted(&server);
    let url = format!("{}&io_queues=3&queue_len=4", url(&server, "1", "one"));
    let job = ["--verify", "--depth", "16", "--bs", "64k", "--span", "8M", "--runtime", "500ms"];
    let (said, problems, status) = lunar(&[&["bench", "randwrite", &url], &job[..]].concat());
    assert_eq!(status, 0, "{said}\n{problems}");
    assert!(said.contains("verify") && accepted(&server) - before == 1 + 3, "{said}");
}

#[test]
fn doctor_of_a_broken_nvme_url_has_the_exit_status_of_its_cause() {
    let server = server();
    let portal = server.portals()[0];
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let mute = silent.local_addr().expect("an address");
    for (url, status, part) in [
        (format!("nvme://{portal}/{NQN}/2"), 21, "\nbroken: the controller has no namespace 2\n"),
        (
            format!("nvme://{portal}/nqn.2026-11.org.example:none"),
            21,
            "hint: check the name of the subsystem",
        ),
        (format!("nvme://127.0.0.1:1/{NQN}"), 4, "\n  connect 127.0.0.1:1: "),
        (format!("nvme://{mute}/{NQN}?login_timeout=0.5"), 8, "waiting for the answer of "),
    ] {
        let ran = lunar(&["doctor", &url]);
        assert!(ran.0.contains(part) && ran.0.contains("\nbroken: "), "{url}: {}", ran.0);
        assert_eq!(ran.2, status, "{url}: {}", ran.0);
        assert!(
            ran.1.lines().count() == 1 && ran.1.ends_with("cannot be used: see the report\n"),
            "{}",
            ran.1
        );
    }
}
