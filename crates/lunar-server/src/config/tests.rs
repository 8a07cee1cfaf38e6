//! Each class of faults with its exact text, and the example that documents all keys.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A folder for one test, removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        // Tests of one process may use the same name at the same time.
        let number = NEXT.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-{name}-{}-{number}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

const TARGET: &str = "[[target]]\nname = \"iqn.2026-11.org.example:disks\"\n";
const LUN: &str = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1G\"\n";

pub(crate) fn problems(source: &str) -> String {
    let list = parse(source, Path::new("t.toml")).err().unwrap_or_default();
    list.iter().map(|problem| format!("{problem}\n")).collect()
}

/// Faults of a file with a valid target, where `source` is on line 3, inside the target.
fn of_target(source: &str) -> String {
    problems(&format!("{TARGET}{source}"))
}

/// Faults of a LUN 0 whose keys are on line 5.
fn of_lun(source: &str) -> String {
    of_target(&format!("[[target.lun]]\nlun = 0\n{source}"))
}

/// Faults of a file with a valid target after `source`.
fn before_target(source: &str) -> String {
    problems(&format!("{source}\n{TARGET}{LUN}"))
}

/// A source and the lines of its faults.
pub(crate) type Case<'a> = (&'a str, &'a [&'a str]);

pub(crate) fn check_all(run: impl Fn(&str) -> String, cases: &[Case<'_>]) {
    let mut invalid = String::new();
    for (source, expected) in cases {
        let actual = run(source);
        if actual.lines().map(str::trim).ne(expected.iter().copied()) {
            invalid += &format!("--- {source}\n{actual}");
        }
    }
    assert!(invalid.is_empty(), "{invalid}");
}

#[test]
fn example_is_good_and_says_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lunar.example.toml");
    let config = load(&path).unwrap();
    let plain = defaults();
    assert_eq!(config.server, plain.server);
    assert_eq!(config.limits, plain.limits);
    assert_eq!(config.session, plain.session);
    assert_eq!(config.max_registrants, plain.max_registrants);
    let disks = &config.targets[0];
    assert_eq!(
        disks.luns[&1],
        LunConfig::new(Source::Null { size: 1 << 40 }, lunar_scsi::PeripheralDeviceType::Disk)
    );
    let memory = LunConfig::new(Source::Memory { size: 64 << 20 }, lunar_scsi::PeripheralDeviceType::Disk);
    assert_eq!(LunConfig { filters: Vec::new(), ..disks.luns[&0].clone() }, memory);
    assert_eq!(disks.luns[&0].filters.len(), 4);
    assert_eq!(disks.access[0].luns.clone().unwrap(), BTreeMap::from([(0, 0), (5, 1)]));
    assert_eq!(config.portal_groups[0].portals[1].advertise.as_deref(), Some("[::1]:3260"));
}

/// The lines that the example has commented out must be valid too.
#[test]
fn example_uncommented_is_good() {
    let folder = Folder::new("example");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lunar.example.toml");
    let text = std::fs::read_to_string(example).unwrap();
    // A gateway has other targets: `gateway::tests` reads its section.
    let (head, rest) = text.split_once("# [gateway]").unwrap();
    let mut text = format!("{head}{}", &rest[rest.find("\n\n").unwrap()..]);
    for key in [
        "state_dir",
        "admin_socket",
        "[api]",
        "listen",
        "certificate_file",
        "key_file",
        "token_file",
        "client_",
        "metrics",
        "mutual",
        "redirect",
        "offline",
        "standby",
        "physical",
        "serial",
        "path",
        "chap",
        "format",
        "on_missing_file",
        "revision",
        "naa",
        "eui64",
        "scsi_name",
        "t10_id",
        "[[",
        "lun = ",
        "disk = ",
        "pool = ",
        "image = ",
        "snapshot = ",
        "user = ",
        "ceph_conf = ",
        "keyring = ",
        "cluster = ",
        "backend = ",
        "size = ",
        "initiators",
        "deny",
        "id = ",
        "name",
        "nqn",
        "uuid",
        "nguid",
        "secret",
    ] {
        text = text.replace(&format!("# {key}"), key);
    }
    let text =
        text.replace("chap = [\"scout\"]", "chap = [\"alice\"]").replace("\"lunar-discovery\"", "\"lunar\"");
    let text = text.replace("backend = \"memory\"", "backend = \"file\"");
    let text = text + "[[chap_user]]\nname = \"lunar\"\nsecret_file = \"lunar.secret\"\n";
    folder.file("alice.secret", "0x0102030405060708090a0b0c0d0e0f10\n", 0o600);
    folder.file("lunar.secret", "a secret of lunar\n", 0o600);
    for key in ["subsystem.key", "ann.key"] {
        folder.file(key, "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n", 0o600);
    }
    let ca = interop::certificates::Authority::new("test authority");
    let pair = ca.server(&["localhost"]);
    folder.file("clients.pem", ca.pem(), 0o644);
    folder.file("server.pem", pair.certificate, 0o644);
    folder.file("server.key", pair.key, 0o600);
    folder.file("tokens", "ann write 0123456789abcdef0123456789abcdef\n", 0o600);
    let config = load(&folder.file("lunar.toml", text, 0o644)).map_err(|list| list[0].to_string()).unwrap();
    assert_eq!(config.server.state_dir, Some("/var/lib/lunar".into()));
    assert_eq!(config.api.unwrap().listen.len(), 1);
    assert_eq!(*config.targets[0].mutual.as_ref().unwrap().secret, b"a secret of lunar");
    assert_eq!(*config.discovery.chap.unwrap()[0].secret, (1..=16).collect::<Vec<u8>>());
    let disk = Source::File { path: folder.0.join("disk.img"), size: Some(64 << 20) };
    let lun = &config.targets[0].luns[&0];
    assert_eq!(lun.source, disk, "relative paths start at the file's folder");
    assert!(lun.raw && lun.on_missing_file == lunar_target::OnMissing::Continue);
    assert_eq!(config.targets[0].luns[&2], config.disks["data"]);
    let image = config.targets[0].luns[&4].source.image().expect("an image");
    assert_eq!(image.to_string(), "rbd:rbd/tenant/disk1@monday");
    let subsystem = config.targets.iter().find_map(|target| target.subsystem.as_ref()).expect("a subsystem");
    assert!(subsystem.secret.is_some() && subsystem.hosts.contains_key("nqn.2026-11.org.example:ann"));
}

/// Checks all keys in `_s` except rates and renamed keys: their table, their value, and the largest value.
#[test]
fn each_key_in_seconds_takes_a_duration() {
    let source = include_str!("limits.rs").to_owned() + include_str!("router.rs");
    let of = |config: &Config, key: &str| match key {
        "login_timeout_s" => config.limits.login_timeout,
        "discovery_timeout_s" => config.limits.discovery_timeout,
        "nop_interval_s" => config.session.nop_interval.unwrap_or_default(),
        "nop_timeout_s" => config.session.nop_timeout,
        "data_out_timeout_s" => config.session.data_out_timeout,
        "path_loss_timeout_s" => config.routers[0].path_loss_timeout,
        other => panic!("{other} is in no table here"),
    };
    let router = "[router.r1.upstream.m]\nmemory = \"1MiB\"\n[[router.r1.target]]\nmap = \"lun\"\n\
        name = \"iqn.2026-11.org.example:r\"\naccess = \"all\"\nlun = [{ lun = 0, upstream = \"m\" }]\n[router.r1]\n";
    let parsed = |table: &str, key: &str, value: &str| {
        parse(&format!("{TARGET}{table}{key} = {value}\n"), Path::new("t.toml"))
    };
    let keys: BTreeSet<&str> =
        source.split('"').skip(1).step_by(2).filter(|word| word.ends_with("_s")).collect();
    let keys: Vec<&str> = keys.into_iter().filter(|key| !["bytes_per_s", "hold_s"].contains(key)).collect();
    assert_eq!(keys.len(), 6, "{keys:?}");
    for key in keys {
        let table = match key {
            "path_loss_timeout_s" => router,
            _ if key.starts_with("login") || key.starts_with("discovery") => "[limits]\n",
            _ => "[session]\n",
        };
        for (value, ms) in [("7", 7000), ("\"5s\"", 5000), ("\"1m30s\"", 90_000), ("\"1500ms\"", 1500)] {
            let config = parsed(table, key, value).map_err(|list| list[0].to_string()).unwrap();
            assert_eq!(of(&config, key), Duration::from_millis(ms), "{key} = {value}");
        }
        for (value, named) in [("\"soon\"", "soon"), ("\"9000d\"", "9000d"), ("\"-1s\"", "-1s"), ("-1", "-1")]
        {
            let problem = parsed(table, key, value).unwrap_err().remove(0);
            let hint = problem.hint.unwrap_or_default();
            assert!(problem.what.contains(key) && problem.what.contains(named), "{}", problem.what);
            assert!(hint.starts_with("write seconds") || hint.starts_with("use "), "{hint}");
        }
        let short = parsed(table, key, "\"500ms\"");
        match key {
            "path_loss_timeout_s" => assert_eq!(of(&short.unwrap(), key), Duration::from_millis(500)),
            _ => {
                let problem = short.unwrap_err().remove(0);
                let says = |part: &str| problem.to_string().contains(part);
                assert!(says(key) && says("500ms") && says("1s to "), "{problem}");
            }
        }
    }
}

#[test]
fn problems_of_the_file() {
    check_all(
        problems,
        &[
            (
                "",
                &[
                    "t.toml:1:1: the configuration has no target",
                    "hint: add [[target]] with a name and a [[target.lun]]",
                ],
            ),
            (
                "root:x:0\nbin:x:1\na = = 2",
                &[
                    "t.toml:1:5: invalid TOML: invalid unquoted key, expected letters, numbers, `-`, `_`",
                    "hint: https://toml.io describes the syntax",
                ],
            ),
            (
                "a = ",
                &[
                    "t.toml:1:5: invalid TOML: string values must be quoted, expected literal string",
                    "hint: https://toml.io describes the syntax",
                ],
            ),
            (
                "[server]\ncores = 1\ncores = 2",
                &["t.toml:3:1: key `cores` is given twice", "hint: the first is at 2:1; remove one of them"],
            ),
            (
                "server = 3",
                &[
                    "t.toml:1:10: `server` must be a table, not an integer",
                    "hint: write [server] on a separate line",
                ],
            ),
            (
                "target = 3",
                &["t.toml:1:10: `target` must be a list of tables, not an integer", "hint: write [[target]]"],
            ),
            (
                "target = [3]",
                &["t.toml:1:11: `target` must be a list of tables, not an integer", "hint: write [[target]]"],
            ),
            ("[sever]", &["t.toml:1:2: unknown key `sever` in the file", "hint: did you mean `server`?"]),
            (
                "[weather]",
                &[
                    "t.toml:1:2: unknown key `weather` in the file",
                    "hint: known keys: server, api, limits, session, chap_user, discovery, portal_group, disk, target, subsystem, access, router, gateway",
                ],
            ),
            (
                "[server]\ncores = \"1.5\"\nstate_dir = \"\"\nadmin_socket = 5",
                &[
                    "t.toml:2:9: invalid core selection \"1.5\"",
                    "hint: write \"all\", a number of cores such as 2, or a list such as \"0,2-3\"; \"0\" is core \
                     0, and \"3,\" core 3",
                    "t.toml:3:13: \"\" is not a valid path",
                    "hint: use a path without control characters",
                    "t.toml:4:16: `admin_socket` must be a string, not an integer",
                    "hint: put the value in quotes",
                ],
            ),
            ("[server]\ncores = -1", &["t.toml:2:9: `cores` is out of range: -1", "hint: use 0 to 4096"]),
            (
                "[server]\nmetrics = \"localhost\"",
                &[
                    "t.toml:2:11: not an IP address with a port: \"localhost\"",
                    "hint: write address and port, such as 127.0.0.1:9860 or [::1]:9860",
                ],
            ),
        ],
    );
}

#[test]
fn problems_of_limits_and_session() {
    check_all(
        before_target,
        &[
            (
                "[limits]\nconnections = 0",
                &["t.toml:2:15: `connections` is out of range: 0", "hint: use 1 to 1000000"],
            ),
            (
                "[limits]\nconnections = \"many\"",
                &["t.toml:2:15: `connections` must be an integer, not a string", "hint: use 1 to 1000000"],
            ),
            (
                "[limits]\ntext_bytes = \"1K\"",
                &["t.toml:2:14: `text_bytes` is out of range: 1 KiB", "hint: use 8 KiB to 16 MiB"],
            ),
            (
                "[limits]\nmemory = \"1 Gigabyte\"",
                &[
                    "t.toml:2:10: \"1 Gigabyte\" is not a size",
                    "hint: write a number with K, M, G, T (powers of 1024) or KB, MB, GB, TB (powers of 1000): 64KiB, 10G",
                ],
            ),
            (
                "[limits]\nmemory = true",
                &["t.toml:2:10: `memory` must be a size, not a boolean", "hint: write memory = \"64MiB\""],
            ),
            (
                "[limits]\nmemory = \"99999999999999999999G\"",
                &["t.toml:2:10: \"99999999999999999999G\" is too large a size", "hint: use at most 8191P"],
            ),
            (
                "[session]\nmax_outstanding_r2t = 33",
                &["t.toml:2:23: `max_outstanding_r2t` is out of range: 33", "hint: use 1 to 32"],
            ),
            (
                "[session]\nmax_outstanding_r2t = -1",
                &["t.toml:2:23: `max_outstanding_r2t` is out of range: -1", "hint: use 1 to 32"],
            ),
            (
                "[session]\nimmediate_data = \"Yes\"",
                &[
                    "t.toml:2:18: `immediate_data` must be true or false, not a string",
                    "hint: write immediate_data = true or immediate_data = false",
                ],
            ),
            (
                "[session]\nfirst_burst_length = 65536\nmax_burst_length = 4096",
                &[
                    "t.toml:2:22: `first_burst_length` (65536) exceeds `max_burst_length` (4096)",
                    "hint: decrease first_burst_length, or increase max_burst_length (RFC 7143 section 13.14)",
                ],
            ),
            (
                "[session]\nheader_digest = [\"MD5\"]\ndata_digest = []",
                &[
                    "t.toml:2:18: unknown digest \"MD5\"",
                    "hint: write [\"None\"], [\"CRC32C\"] or both",
                    "t.toml:3:15: `data_digest` is empty",
                    "hint: write [\"None\"], [\"CRC32C\"] or both",
                ],
            ),
            (
                "[session]\nchap_algorithms = [\"md4\"]",
                &[
                    "t.toml:2:20: unknown CHAP algorithm \"md4\"",
                    "hint: write one or more of \"md5\", \"sha1\", \"sha256\" and \"sha3-256\" in brackets",
                ],
            ),
            (
                "[session]\nchap_algorithms = []",
                &[
                    "t.toml:2:19: `chap_algorithms` is empty",
                    "hint: write one or more of \"md5\", \"sha1\", \"sha256\" and \"sha3-256\" in brackets",
                ],
            ),
            (
                "[session]\nheader_digest = \"CRC32C\"",
                &[
                    "t.toml:2:17: `header_digest` must be a list, not a string",
                    "hint: write [\"None\"], [\"CRC32C\"] or both",
                ],
            ),
            (
                "[session]\nmax_burst_lenght = 512",
                &[
                    "t.toml:2:1: unknown key `max_burst_lenght` in [session]",
                    "hint: did you mean `max_burst_length`?",
                ],
            ),
        ],
    );
}

#[test]
fn problems_of_portals() {
    check_all(
        before_target,
        &[
            (
                "[[portal_group]]\nportals = [\"localhost\"]",
                &[
                    "t.toml:1:1: [[portal_group]] has no `tag`",
                    "hint: add tag = 1",
                    "t.toml:2:12: \"localhost\" is not an address to listen on",
                    "hint: write a numeric address and a port: 127.0.0.1:3260, [::1]:3260 or 0.0.0.0:3260",
                ],
            ),
            (
                "[[portal_group]]\ntag = 0\nportals = []",
                &[
                    "t.toml:2:7: `tag` is out of range: 0",
                    "hint: use 1 to 65535",
                    "t.toml:3:11: the portal group has no portal",
                    "hint: add portals = [\"127.0.0.1:3260\"]",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1",
                &[
                    "t.toml:1:1: [[portal_group]] has no `portals`",
                    "hint: add portals = [\"127.0.0.1:3260\"]",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [5]",
                &[
                    "t.toml:3:12: `portals` must be a list of addresses, not an integer",
                    "hint: write \"127.0.0.1:3260\" or { listen = ..., advertise = ..., transport = [...] }",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ lisetn = \"127.0.0.1\" }]",
                &[
                    "t.toml:3:12: a portal has no `listen`",
                    "hint: add listen = \"127.0.0.1:3260\"",
                    "t.toml:3:14: unknown key `lisetn` in a portal",
                    "hint: did you mean `listen`?",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ listen = \"127.0.0.1\", advertise = \"a b:70000\" }]",
                &[
                    "t.toml:3:48: \"a b:70000\" is not an address that initiators can use",
                    "hint: write a host name or an address, with a port if it is not the default: storage.example, \
                     192.0.2.9 or [2001:db8::9]:5000",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:1\", transport = [\"tcp\", \"srp\"] }, { listen = \"[::1]:2\", transport = [] }]",
                &[
                    "t.toml:3:46: \"srp\", \"nvme-tcp\" and \"nvme-discovery\" exclude other transports in one portal",
                    "hint: add a separate portal with another port for each of them",
                    "t.toml:3:98: `transport` is empty",
                    "hint: write [\"tcp\"], [\"tcp\", \"iser\"], [\"srp\"] or [\"nvme-tcp\"]",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:1\", tls = \"required\" }]",
                &[
                    "t.toml:3:40: `tls` requires NVMe/TCP, which this portal does not have",
                    "hint: remove `tls`, or set transport = [\"nvme-tcp\"] or [\"nvme-discovery\"]",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:1\", transport = [\"nvme-tcp\"], tls = \"yes\" }]",
                &[
                    "t.toml:3:66: unknown value \"yes\" of `tls`",
                    "hint: write \"required\", or remove `tls` for a portal without TLS",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:1\", transport = [\"tcp\"], provider = \"verbs\" }]",
                &[
                    "t.toml:3:66: `provider` requires an RDMA transport, which this portal does not have",
                    "hint: remove `provider`, or add transport = [\"tcp\", \"iser\"] or [\"srp\"]",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:1\", provider = \"verbs\" }, { listen = \"[::1]:2\", transport = [\"isre\"], provider = \"verbs\" }]",
                &[
                    "t.toml:3:45: `provider` requires an RDMA transport, which this portal does not have",
                    "hint: remove `provider`, or add transport = [\"tcp\", \"iser\"] or [\"srp\"]",
                    "t.toml:3:91: unknown transport \"isre\"",
                    "hint: write \"tcp\" (iSCSI over TCP), \"iser\" (iSCSI over RDMA), \"srp\" (SRP), \"nvme-tcp\" (NVMe over TCP) or \
                     \"nvme-discovery\" (the discovery of NVMe over TCP)",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:1\", transport = [\"iser\", \"iser\"] }]",
                &["t.toml:3:46: `transport` has a duplicate", "hint: remove the duplicate"],
            ),
            (
                "[[portal_group]]\ntag = 32769\nportals = [{ listen = \"[::1]:1\", transport = [\"srp\"] }]",
                &[
                    "t.toml:2:7: the portal group has an SRP portal, but a tag of 32768 or more",
                    "hint: set a `tag` below 32768",
                ],
            ),
            (
                "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:1\", transport = [\"srp\"] }]\n[[portal_group]]\ntag = 32769\nportals = [\"[::1]:2\"]",
                &[
                    "t.toml:5:7: portal group tag 32769 is given twice",
                    "hint: the first is at 2:7; change or remove one of them",
                ],
            ),
            (
                "[[portal_group]]\ntag = 7\nportals = [\"[::1]\"]\n[[portal_group]]\ntag = 7\nportals = [\"[::1]:3260\"]",
                &[
                    "t.toml:5:7: portal group tag 7 is given twice",
                    "hint: the first is at 2:7; change or remove one of them",
                    "t.toml:6:12: the address [::1]:3260 is given twice",
                    "hint: the first is at 3:12; change or remove one of them",
                ],
            ),
        ],
    );
    let broken =
        "[[portal_group]]\ntag = 1\n[[target]]\nname = \"iqn.2026-11.org.example:d\"\nportal_groups = [1]";
    assert_eq!(
        problems(broken).matches("portal group").count(),
        0,
        "the target is not reported for naming an invalid group"
    );
    assert_eq!(problems(broken).matches("[[portal_group]] has no `portals`").count(), 1);
    let two_free = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\", \"127.0.0.1:0\"]";
    assert_eq!(before_target(two_free), "");
}

#[test]
fn problems_of_targets() {
    check_all(
        problems,
        &[
            (
                "[[target]]",
                &[
                    "t.toml:1:1: [[target]] has no `name`",
                    "hint: add name = \"iqn.2026-11.org.example:disks\"",
                ],
            ),
            (
                "[[target]]\nname = \"disks\"",
                &[
                    "t.toml:2:8: \"disks\" is not an iSCSI name",
                    "hint: a name looks like iqn.2026-11.org.example:disks, eui.02004567a425678d or \
                     naa.52004567ba64678d",
                ],
            ),
            (
                "[[target]]\nname = \"iqn.2026-13.org.example\"",
                &[
                    "t.toml:2:8: \"iqn.2026-13.org.example\" is not an iSCSI name: the month must be 01 to 12",
                    "hint: a name looks like iqn.2026-11.org.example:disks, eui.02004567a425678d or \
                     naa.52004567ba64678d",
                ],
            ),
            (
                "[[target]]\nname = \"iqn.2026-11.org.Example\"",
                &[
                    "t.toml:2:8: the iSCSI name \"iqn.2026-11.org.Example\" is not in its folded form (RFC 3722)",
                    "hint: write \"iqn.2026-11.org.example\"",
                ],
            ),
            (
                "[[target]]\nname = \"iqn.2026-11.org.example:a\\u0007b\"",
                &[
                    "t.toml:2:8: \"iqn.2026-11.org.example:a\\u{7}b\" is not an iSCSI name: RFC 3722 prohibits \
                     '\\u{7}'",
                    "hint: lower-case letters, digits, '-', '.', ':' and '_' are allowed",
                ],
            ),
            (
                "[[target]]\nname = \"eui.02004567a425678\"",
                &[
                    "t.toml:2:8: \"eui.02004567a425678\" is not an iSCSI name: eui. must have 16 hexadecimal digits, \
                     naa. 16 or 32",
                    "hint: a name looks like iqn.2026-11.org.example:disks, eui.02004567a425678d or \
                     naa.52004567ba64678d",
                ],
            ),
        ],
    );
    check_all(
        of_target,
        &[
            (
                "alias = \"a\\nb\"",
                &[
                    "t.toml:3:9: \"a\\nb\" cannot be an alias",
                    "hint: use 1 to 255 bytes without control characters",
                ],
            ),
            (
                "portal_groups = []",
                &[
                    "t.toml:3:17: the target is in no portal group",
                    "hint: name a portal group, or leave `portal_groups` out for all",
                ],
            ),
            ("portal_groups = [2]", &["t.toml:3:18: unknown portal group 2", "hint: portal groups are 1"]),
            (
                "redirect = [{ portal_group = 1 }]",
                &["t.toml:3:13: redirect = [{ ... }] has no `to`", "hint: add to = \"192.0.2.9:3260\""],
            ),
            (
                "redirect = [{ portal_group = 3, to = \"there\" }]",
                &["t.toml:3:30: unknown portal group 3", "hint: portal groups are 1"],
            ),
            (
                "redirect = [{ portal_group = 1, to = \"there:0\" }]",
                &[
                    "t.toml:3:38: \"there:0\" is not an address that initiators can use",
                    "hint: write a host name or an address, with a port if it is not the default: storage.example, \
                     192.0.2.9 or [2001:db8::9]:5000",
                ],
            ),
            (
                "mutual = \"lunar\"",
                &["t.toml:3:10: unknown CHAP user \"lunar\"", "hint: add [[chap_user]] with this name"],
            ),
            (
                "[[target]]\nname = \"iqn.2026-11.org.example:disks\"",
                &[
                    "t.toml:4:8: target iqn.2026-11.org.example:disks is given twice",
                    "hint: the first is at 2:8; change or remove one of them",
                ],
            ),
            (
                "[[target.lun]]\nbackend = \"null\"\nsize = 4096",
                &["t.toml:3:1: [[target.lun]] has no `lun`", "hint: add lun = 0"],
            ),
            (
                "[[target.lun]]\nlun = 16384\nbackend = \"null\"\nsize = 4096",
                &["t.toml:4:7: `lun` is out of range: 16384", "hint: use 0 to 16383"],
            ),
            (
                "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = 4096\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = 4096",
                &[
                    "t.toml:8:7: LUN 0 is given twice",
                    "hint: the first is at 4:7; change or remove one of them",
                ],
            ),
            (
                "[[target.access]]\ninitiators = [\"iqn.a/*\"]",
                &[
                    "t.toml:4:15: the pattern \"iqn.a/*\" matches no initiator name: RFC 3722 prohibits '/'",
                    "hint: initiator names have letters, digits, '-', '.', ':' and '_'; * and ? are wildcards",
                ],
            ),
            (
                "[[target.access]]\ninitiators = [\"0x0000000000000001000000000000002\", \"0x*\", \"0xzz\", \"0x?000000000000001000000000000000a\"]",
                &[
                    "t.toml:4:15: the SRP port \"0x0000000000000001000000000000002\" has 31 digits",
                    "hint: an SRP port is 0x and 32 lower-case hexadecimal digits; * and ? are wildcards",
                    "t.toml:4:59: the SRP port \"0xzz\" contains 'z'",
                    "hint: an SRP port is 0x and 32 lower-case hexadecimal digits; * and ? are wildcards",
                ],
            ),
            (
                "[[target.access]]\ninitiators = []",
                &["t.toml:4:14: `initiators` is empty", "hint: remove the key to match all"],
            ),
            (
                "[[target.access]]\nnetworks = [\"10.0.0.1/8\", \"::1/129\", \"here\"]",
                &[
                    "t.toml:4:13: the network 10.0.0.1/8 has host bits set beyond the prefix of 8",
                    "hint: write 10.0.0.0/8 for the network, or 10.0.0.1 for one address",
                    "t.toml:4:27: \"::1/129\" is not a network: the prefix length must be 0 to 128",
                    "hint: write a network such as 192.0.2.0/24 or 2001:db8::/32",
                    "t.toml:4:38: \"here\" is not a network: the address is invalid",
                    "hint: write a network such as 192.0.2.0/24 or 2001:db8::/32",
                ],
            ),
            (
                "[[target.access]]\nluns = [0]",
                &[
                    "t.toml:4:9: the target has no LUN 0",
                    "hint: add [[target.lun]], or remove the LUN from the access entry",
                ],
            ),
            (
                "[[target.access]]\nluns = 0",
                &[
                    "t.toml:4:8: `luns` must be a map or a list of LUNs, not an integer",
                    "hint: write luns = { 0 = 0, 5 = 1 } or luns = [0, 1]",
                ],
            ),
            (
                "[[target.access]]\nluns = { x = 1 }\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = 4096",
                &[
                    "t.toml:4:10: \"x\" is not a LUN",
                    "hint: use a number from 0 to 16383",
                    "t.toml:4:14: the target has no LUN 1",
                    "hint: the target has LUN 0",
                ],
            ),
            (
                "[[target.access]]\nluns = { 0 = 0, 00 = 0 }\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = 4096",
                &["t.toml:4:17: LUN 0 is mapped twice", "hint: remove one of them"],
            ),
            (
                "[[target.access]]\ndeny = true\nluns = []\nread_only = true",
                &[
                    "t.toml:5:8: `luns` has no effect in an entry with deny = true",
                    "hint: remove `luns` or `deny`",
                    "t.toml:6:13: `read_only` has no effect in an entry with deny = true",
                    "hint: remove `read_only` or `deny`",
                ],
            ),
            (
                "[[target.access]]\nluns = { 5 = 0 }\nread_only = [0, 5, 99999]\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = 4096",
                &[
                    "t.toml:5:13: `read_only` lists LUN 0, which these initiators do not see",
                    "hint: use the LUN numbers of the initiators, as in `luns`",
                    "t.toml:5:20: `read_only` is out of range: 99999",
                    "hint: use 0 to 16383",
                ],
            ),
            (
                "[[target.access]]\nchap = []",
                &[
                    "t.toml:4:8: `chap` is empty",
                    "hint: write the name of a [[chap_user]], or remove the key",
                ],
            ),
        ],
    );
}

#[test]
fn problems_of_disks() {
    let target = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n";
    let disk = "[[disk]]\nname = \"d1\"\nbackend = \"null\"\nsize = \"1G\"\n";
    let lun = |lun: &str| format!("{disk}{target}{lun}");
    for (source, expected) in [
        (
            lun("[[target.lun]]\nlun = 0\ndisk = \"d2\"\n"),
            "t.toml:9:8: unknown disk \"d2\"\n  hint: did you mean \"d1\"?",
        ),
        (
            lun("[[target.lun]]\nlun = 0\ndisk = \"d1\"\n[[target.lun]]\nlun = 1\ndisk = \"d1\"\n"),
            "t.toml:12:8: disk d1 is given twice\n  hint: the first is at 9:8; change or remove one of them",
        ),
        (
            lun("[[target.lun]]\nlun = 0\ndisk = \"d1\"\nserial = \"1\"\n"),
            "t.toml:10:1: unknown key `serial` in [[target.lun]]",
        ),
        (
            format!("{disk}{disk}{target}"),
            "t.toml:6:8: disk d1 is given twice\n  hint: the first is at 2:8; change or remove one of them",
        ),
        (
            format!("[[disk]]\nbackend = \"null\"\nsize = \"1G\"\n{target}"),
            "t.toml:1:1: [[disk]] has no `name`\n  hint: add name = \"disk1\"",
        ),
        (
            format!("[[disk]]\nname = \"a/b\"\nbackend = \"null\"\nsize = \"1G\"\n{target}"),
            "t.toml:2:8: \"a/b\" is not a valid name\n  hint: use at most 48 letters, digits, '.', '_' and '-', starting with a letter or digit",
        ),
    ] {
        assert!(problems(&source).starts_with(expected), "{source}\n{}", problems(&source));
    }
    assert_eq!(problems(&lun("[[target.lun]]\nlun = 0\ndisk = \"d1\"\n")), "");
}

#[test]
fn file_is_used_once_unless_read_only() {
    let folder = Folder::new("twice");
    folder.file("disk.img", "", 0o600);
    std::os::unix::fs::symlink("disk.img", folder.0.join("link.img")).unwrap();
    let messages = |first: &str, second: &str| {
        let lun = |n: u8, keys: &str| format!("[[target.lun]]\nlun = {n}\nbackend = \"file\"\n{keys}\n");
        let head = "[[target]]\nname = \"iqn.2026-11.org.example:disks\"\n";
        let source = format!("{head}{}{}", lun(0, first), lun(1, second));
        let list = parse(&source, &folder.0.join("t.toml")).err().unwrap_or_default();
        let what: Vec<String> = list.into_iter().map(|problem| problem.what).collect();
        what.join("\n").replace(&format!("{}/", folder.0.display()), "")
    };
    let (file, reading) = ("path = \"disk.img\"", "path = \"disk.img\"\nread_only = true");
    assert_eq!(messages(file, "path = \"link.img\""), "link.img is given twice, line 6 and line 10");
    std::fs::hard_link(folder.0.join("disk.img"), folder.0.join("hard.img")).unwrap();
    let one = "disk.img and hard.img are the same file, line 6 and line 10";
    assert_eq!(messages(file, "path = \"hard.img\""), one);
    assert_eq!(messages(file, "path = \"./disk.img\""), "./disk.img is given twice, line 6 and line 10");
    assert_eq!(messages(file, reading), "disk.img is given twice, line 6 and line 10");
    assert_eq!(messages(reading, file), "disk.img is given twice, line 6 and line 11");
    assert_eq!(messages(reading, reading), "");
    assert_eq!(messages(file, "path = \"other.img\""), "");
}

#[test]
fn problems_of_luns() {
    check_all(
        of_lun,
        &[
            (
                "backend = \"file\"\npath = \"x\"\n[[target.lun]]\nlun = 1\nbackend = \"file\"\npath = \"x\"",
                &[
                    "t.toml:10:8: x is given twice, line 6 and line 10",
                    "hint: remove one of the LUNs (one LUN serves many hosts), or set read_only = true in both",
                ],
            ),
            (
                "",
                &[
                    "t.toml:3:1: [[target.lun]] has no `backend`",
                    "hint: add backend = \"file\" (or \"null\", \"memory\", \"device\", \"rbd\")",
                ],
            ),
            (
                "backend = \"flie\"",
                &["t.toml:5:11: unknown backend \"flie\"", "hint: did you mean \"file\"?"],
            ),
            (
                "backend = \"ceph\"",
                &[
                    "t.toml:5:11: unknown backend \"ceph\"",
                    "hint: write \"null\", \"memory\", \"file\", \"device\" or \"rbd\"",
                ],
            ),
            (
                "backend = \"rbd\"\nimage = \"a\"",
                &["t.toml:5:11: the backend \"rbd\" needs `pool`", "hint: add pool = \"pool1\""],
            ),
            (
                "backend = \"rbd\"\npool = \"p\"\nimage = \"a/b\"",
                &[
                    "t.toml:5:11: rbd:p/a/b: a name has one of the characters / @ :",
                    "hint: write each name alone: pool, namespace, image, snapshot",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\npool = \"p\"",
                &[
                    "t.toml:7:8: the backend \"null\" takes no `pool`",
                    "hint: remove `pool`, or write backend = \"rbd\"",
                ],
            ),
            (
                "backend = \"null\"",
                &["t.toml:5:11: the backend \"null\" needs a size", "hint: add size = \"64MiB\""],
            ),
            (
                "backend = \"memory\"\nsize = 512\npath = \"x\"",
                &[
                    "t.toml:6:8: `size` is out of range: 512 bytes",
                    "hint: use 4 KiB to 8191 PiB",
                    "t.toml:7:8: the backend \"memory\" takes no path",
                    "hint: remove `path`, or write backend = \"file\"",
                ],
            ),
            (
                "backend = \"file\"",
                &["t.toml:5:11: the backend \"file\" needs a path", "hint: add path = \"disk.img\""],
            ),
            (
                "backend = \"device\"\npath = \"/dev/x\"\nsize = \"1G\"",
                &["t.toml:7:8: the size of a device is fixed", "hint: remove `size`"],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nkind = \"tape\"",
                &["t.toml:7:8: unknown kind \"tape\"", "hint: write \"disk\" or \"cdrom\""],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nblock_size = 520",
                &["t.toml:7:14: `block_size` cannot be 520 bytes", "hint: write 512 or 4096"],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nblock_size = 4096\nphysical_block_size = 512",
                &[
                    "t.toml:8:23: `physical_block_size` cannot be 512 bytes",
                    "hint: use a power of two, at least 4096",
                ],
            ),
            (
                "backend = \"file\"\npath = \"x.iso\"\nkind = \"cdrom\"\nblock_size = 512\nread_only = false",
                &[
                    "t.toml:8:14: `block_size` cannot be 512 bytes",
                    "hint: write 2048, which a cdrom requires",
                    "t.toml:9:13: `read_only` is false, but a cdrom is always read-only",
                    "hint: remove `read_only`, or write kind = \"disk\"",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\ndirect = true",
                &["t.toml:7:10: `direct` requires a file or a device", "hint: remove `direct`"],
            ),
            (
                "backend = \"memory\"\nsize = \"1G\"\nzero_copy = true",
                &[
                    "t.toml:7:13: `zero_copy` requires a file or a device with the page cache",
                    "hint: remove `zero_copy`",
                ],
            ),
            (
                "backend = \"file\"\npath = \"a\"\ndirect = true\nzero_copy = true",
                &[
                    "t.toml:8:13: `zero_copy` requires a file or a device with the page cache",
                    "hint: remove `zero_copy` or `direct`",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nformat = \"raw\"",
                &["t.toml:7:10: `format` requires a file or a device", "hint: remove `format`"],
            ),
            (
                "backend = \"file\"\npath = \"a\"\nformat = \"qcow2\"\non_missing_file = \"notready\"",
                &[
                    "t.toml:7:10: unsupported format \"qcow2\"",
                    "hint: convert the image (qemu-img convert -O raw), and write format = \"raw\" or leave it out",
                    "t.toml:8:19: unknown setting \"notready\"",
                    "hint: did you mean \"not-ready\"?",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nserial = \"ü\"",
                &[
                    "t.toml:7:10: \"ü\" cannot be a serial number",
                    "hint: use 1 to 252 printable ASCII characters without trailing spaces",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nnaa = \"60014\"\neui64 = \"eui.0102\"\nscsi_name = \"disk\"\nt10_id = \"a \"\nrevision = \"12345\"",
                &[
                    "t.toml:7:7: \"60014\" cannot be an NAA designator",
                    "hint: write 16 hexadecimal digits that begin with 2, 3 or 5, or 32 that begin with 6",
                    "t.toml:8:9: \"eui.0102\" cannot be an EUI-64 designator",
                    "hint: write 16, 24 or 32 hexadecimal digits",
                    "t.toml:9:13: \"disk\" cannot be a SCSI name",
                    "hint: write iqn., eui. or naa. and the rest of the name, at most 251 bytes",
                    "t.toml:10:10: \"a \" cannot be a T10 identifier",
                    "hint: use 1 to 244 printable ASCII characters without trailing spaces",
                    "t.toml:11:12: \"12345\" cannot be a revision",
                    "hint: use 1 to 4 printable ASCII characters without leading or trailing spaces",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nnaa = \"naa.3000000000000001\"\ndesignators = [\"01 94 00 04 00 00 00 01\", \"0103\"]",
                &[
                    "t.toml:7:7: `naa` has no effect, because `designators` lists all designators",
                    "hint: remove `naa` or `designators`",
                    "t.toml:8:16: \"01 94 00 04 00 00 00 01\" cannot be a designator of a LUN",
                    "hint: write all bytes of one descriptor in hexadecimal digits: code set, type, 00, length, value",
                    "t.toml:8:43: \"0103\" cannot be a designator of a LUN",
                    "hint: write all bytes of one descriptor in hexadecimal digits: code set, type, 00, length, value",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nnaa = \"0x3000000000000001\"\n[[target.lun]]\nlun = 1\nbackend = \"null\"\nsize = 4096\ndesignators = [\"0103 0008 3000000000000001\"]",
                &[
                    "t.toml:12:15: designator 3000000000000001 is given twice",
                    "hint: the first is at 7:7; change or remove one of them",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\ndesignators = []",
                &[
                    "t.toml:7:15: `designators` lists 0 designators",
                    "hint: list 1 to 64, or remove `designators`",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nvendor = \"LUNAR INC\"\nproduct = \" X\"",
                &[
                    "t.toml:7:10: \"LUNAR INC\" cannot be a vendor",
                    "hint: use 1 to 8 printable ASCII characters without leading or trailing spaces",
                    "t.toml:8:11: \" X\" cannot be a product",
                    "hint: use 1 to 16 printable ASCII characters without leading or trailing spaces",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nserial = \"1\"\n[[target.lun]]\nlun = 1\nbackend = \"null\"\nsize = 4096\nserial = \"1\"",
                &[
                    "t.toml:12:10: serial number 1 is given twice",
                    "hint: the first is at 7:10; change or remove one of them",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nfilters = [{ kind = \"dely\" }]",
                &["t.toml:7:21: unknown filter \"dely\"", "hint: did you mean \"delay\"?"],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nfilters = [{}]",
                &[
                    "t.toml:7:12: [[target.lun.filters]] has no `kind`",
                    "hint: add kind = \"stats\" (or \"delay\", \"rate\", \"error\")",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nfilters = [\"stats\"]",
                &[
                    "t.toml:7:12: `filters` must be a list of tables, not a string",
                    "hint: write [[target.lun.filters]]",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nfilters = [{ kind = \"error\", rate = 1.5, op = \"seek\" }]",
                &[
                    "t.toml:7:37: `rate` is out of range",
                    "hint: use 0.0 to 1.0",
                    "t.toml:7:47: unknown operation \"seek\"",
                    "hint: write \"read\", \"write\" or \"flush\"",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nfilters = [{ kind = \"error\", rate = \"1\" }]",
                &[
                    "t.toml:7:37: `rate` must be a number from 0.0 to 1.0, not a string",
                    "hint: write 0.0 to 1.0",
                ],
            ),
            (
                "backend = \"null\"\nsize = \"1G\"\nfilters = [{ kind = \"stats\", read_us = 1 }]",
                &["t.toml:7:30: unknown key `read_us` in [[target.lun.filters]]", "hint: known keys: kind"],
            ),
        ],
    );
}

#[test]
fn problems_of_targets_on_standby() {
    let hint = "hint: add standby = true, or set state_dir in [server]";
    let required = "t.toml:3:13: `state_dir` of a target requires standby = true";
    let memory =
        "t.toml:4:1: a target with standby = true cannot have a memory disk, whose data no other server has";
    let disk =
        "t.toml:4:1: a target with standby = true cannot show a [[disk]], which other targets may show too";
    check_all(
        of_target,
        &[
            ("state_dir = \"state\"\n", &[required, hint]),
            ("standby = true\nstate_dir = \"state\"\n", &[]),
            (
                "standby = true\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"1G\"\n",
                &[memory, "hint: use a device or a file that both servers can open"],
            ),
            (
                "standby = true\n[[target.lun]]\nlun = 0\ndisk = \"a\"\n[[disk]]\nname = \"a\"\nbackend = \"null\"\nsize = \"1G\"\n",
                &[disk, "hint: define the medium in [[target.lun]]"],
            ),
        ],
    );
}

#[test]
fn state_that_does_not_move_is_a_warning() {
    let lines = |keys: &str| {
        let config = parse(&format!("{TARGET}{keys}"), Path::new("t.toml")).unwrap();
        state_left_behind(&config).collect::<Vec<_>>()
    };
    assert_eq!((lines(""), lines("standby = true\nstate_dir = \"state\"\n")), (Vec::new(), Vec::new()));
    let warned = lines("standby = true\n");
    assert!(
        warned.len() == 1
            && warned[0].starts_with(
                "reservations and saved mode pages of iqn.2026-11.org.example:disks stay on this server; hint: "
            ),
        "{warned:?}"
    );
}

#[test]
fn all_errors_are_reported_in_file_order() {
    let source = "[server]\ncolour = 1\n[limits]\nsessions = 0\n[[target]]\nname = \"x\"\nofline = true\n";
    let expected = [
        "t.toml:2:1: unknown key `colour` in [server]",
        "hint: known keys: cores, busy_poll_us, state_dir, admin_socket, metrics",
        "t.toml:4:12: `sessions` is out of range: 0",
        "hint: use 1 to 65535",
        "t.toml:6:8: \"x\" is not an iSCSI name",
        "hint: a name looks like iqn.2026-11.org.example:disks, eui.02004567a425678d or naa.52004567ba64678d",
        "t.toml:7:1: unknown key `ofline` in [[target]]",
        "hint: did you mean `offline`?",
    ];
    check_all(problems, &[(source, &expected)]);
}

#[test]
fn problems_of_chap_users() {
    let folder = Folder::new("chap");
    folder.file("good", "a good long secret\n", 0o600);
    folder.file("same", "a good long secret", 0o400);
    folder.file("other", "another long secret", 0o400);
    folder.file("open", "a good long secret\n", 0o640);
    folder.file("short", "short\n", 0o600);
    folder.file("hex", "0xabc\n", 0o600);
    std::fs::create_dir(folder.0.join("dir")).unwrap();
    let run = |source: &str| {
        let list = parse(&format!("{source}\n{TARGET}"), &folder.0.join("t.toml")).err().unwrap_or_default();
        let text: String = list.iter().map(|problem| format!("{problem}\n")).collect();
        text.replace(&format!("{}/", folder.0.display()), "")
    };
    check_all(
        run,
        &[
            (
                "[[chap_user]]\nname = \"a\"\nsecret_file = \"open\"\n",
                &[
                    "t.toml:3:15: the secret open has mode 0640, but only 0600 and 0400 are allowed",
                    "hint: run: chmod 0600 open",
                ],
            ),
            (
                "[[chap_user]]\nname = \"a\"\nsecret_file = \"short\"\n",
                &[
                    "t.toml:3:15: the secret short has 5 bytes",
                    "hint: use 12 to 255 bytes, preferably 16 random bytes (RFC 7143 section 9.2.1)",
                ],
            ),
            (
                "[[chap_user]]\nname = \"a\"\nsecret_file = \"hex\"\n",
                &[
                    "t.toml:3:15: the secret hex contains 0x not followed by pairs of hexadecimal digits",
                    "hint: write two digits for each byte",
                ],
            ),
            (
                "[[chap_user]]\nname = \"a\"\nsecret_file = \"dir\"\n",
                &[
                    "t.toml:3:15: cannot read the secret dir: is a directory",
                    "hint: put the secret into a regular file",
                ],
            ),
            (
                "[[chap_user]]\nname = \"a\"\nsecret_file = \"none\"\n",
                &[
                    "t.toml:3:15: cannot read the secret none: no such file or directory",
                    "hint: create the file with: (umask 077; openssl rand -hex 16 > none)",
                ],
            ),
            (
                "[[chap_user]]\nname = \"a\"\nsecret_file = \"good\"\n[[chap_user]]\nname = \"a\"\nsecret_file = \"good\"\n",
                &[
                    "t.toml:5:8: CHAP user a is given twice",
                    "hint: the first is at 2:8; change or remove one of them",
                ],
            ),
            (
                "[[chap_user]]\nname = \"a\"",
                &[
                    "t.toml:2:8: [[chap_user]] has no `secret_file`",
                    "hint: add secret_file = \"alice.secret\"",
                ],
            ),
            (
                "[[chap_user]]\nsecret_file = \"good\"",
                &["t.toml:1:1: [[chap_user]] has no `name`", "hint: add name = \"alice\""],
            ),
            (
                "[[chap_user]]\nname = \"a\\u0000\"\nsecret_file = \"good\"",
                &[
                    "t.toml:2:8: \"a\\0\" cannot be a CHAP name",
                    "hint: use 1 to 255 bytes without control characters",
                ],
            ),
            (
                "[[chap_user]]\nname = \"alice\"\nsecret_file = \"good\"\n[discovery]\nchap = [\"alcie\"]\nmutual = \"bob\"",
                &[
                    "t.toml:5:9: unknown CHAP user \"alcie\"",
                    "hint: did you mean \"alice\"?",
                    "t.toml:6:10: unknown CHAP user \"bob\"",
                    "hint: add [[chap_user]] with this name",
                ],
            ),
            (
                "[[chap_user]]\nname = \"a\"\nsecret_file = \"good\"\n[[chap_user]]\nid = \"b\"\nname = \"a\"\nsecret_file = \"other\"\n[discovery]\nchap = [\"a\", \"b\"]",
                &[
                    "t.toml:9:14: `chap` lists two CHAP users with the name \"a\"",
                    "hint: list one of them, because an initiator sends only the name",
                ],
            ),
            (
                "[[chap_user]]\nname = \"a\"\nsecret_file = \"good\"\n[[chap_user]]\nid = \"a\"\nname = \"b\"\nsecret_file = \"other\"",
                &[
                    "t.toml:5:6: CHAP user a is given twice",
                    "hint: the first is at 2:8; change or remove one of them",
                ],
            ),
            (
                "[[chap_user]]\nname = \"alice\"\nsecret_file = \"good\"\n[[chap_user]]\nname = \"lunar\"\nsecret_file = \"same\"\n[discovery]\nchap = [\"alice\"]\nmutual = \"lunar\"",
                &[
                    "t.toml:9:10: the mutual CHAP user \"lunar\" has the same secret as the user \"alice\"",
                    "hint: use different secrets for the two directions (RFC 7143 section 9.2.1)",
                ],
            ),
            (
                "[[chap_user]]\nname = \"alice\"\nsecret_file = \"good\"\n[[chap_user]]\nname = \"lunar\"\nsecret_file = \"same\"\n[[target]]\nname = \"iqn.2026-11.org.example:b\"\nmutual = \"lunar\"\n[[target.access]]\nchap = [\"alice\"]",
                &[
                    "t.toml:9:10: the mutual CHAP user \"lunar\" has the same secret as the user \"alice\"",
                    "hint: use different secrets for the two directions (RFC 7143 section 9.2.1)",
                ],
            ),
        ],
    );
    assert_eq!(run("[[chap_user]]\nname = \"a\"\nsecret_file = \"good\"\n"), "");
}

/// Only root can change the owner of a file, so the test is skipped for other users.
#[test]
fn secret_of_another_user_is_refused() {
    let folder = Folder::new("owner");
    let path = folder.file("secret", "a good long secret\n", 0o600);
    if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
        return;
    }
    let source = format!("[[chap_user]]\nname = \"a\"\nsecret_file = \"secret\"\n{TARGET}");
    let message = parse(&source, &folder.0.join("t.toml")).unwrap_err()[0].to_string();
    assert_eq!(
        message.replace(&format!("{}/", folder.0.display()), ""),
        "t.toml:3:15: the secret secret belongs to user 12345, not to the user who runs lunar\n  \
         hint: give it to the user of the server, who alone may read it: chown USER secret"
    );
}

#[test]
fn root_reads_the_secrets_of_the_user_of_the_server() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let chown = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
    let folder = Folder::new("server-owner");
    let api = folder.0.join("t.d/api");
    std::fs::create_dir_all(&api).unwrap();
    chown(&api, 12345);
    let user = format!("[[chap_user]]\nname = \"a\"\nsecret_file = \"secret\"\n{TARGET}");
    let fault = || parse(&user, &folder.0.join("t.toml")).err().map(|list| list[0].what.clone());
    let path = folder.file("secret", "a good long secret\n", 0o600);
    for (owner, is_read) in [(12345, true), (0, true), (12346, false)] {
        chown(&path, owner);
        assert_eq!(fault().is_none(), is_read, "{owner}: {:?}", fault());
    }
    chown(&path, 12345);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(fault().unwrap().contains("has mode 0640"));
}

#[test]
fn files_that_cannot_be_read() {
    let folder = Folder::new("files");
    let message =
        |path: &Path| load(path).unwrap_err()[0].to_string().replace(&format!("{}/", folder.0.display()), "");
    assert_eq!(
        message(&folder.0.join("none")),
        "none: cannot read the configuration: no such file or directory\n  hint: check the path and its permissions"
    );
    assert_eq!(
        message(&folder.file("bytes", b"a = 1\nb = \xff", 0o600)),
        "bytes:2:5: the configuration file is not UTF-8 text\n  hint: save the file as UTF-8"
    );
    // Neither is read: /dev/null would be an empty configuration, and a FIFO without a writer would block.
    let fifo = folder.0.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
    for (path, shown) in [(Path::new("/dev/null"), "/dev/null"), (&fifo, "fifo")] {
        let expected = "cannot read the configuration: it is not a regular file\n  hint: check the path and its permissions";
        assert_eq!(message(path), format!("{shown}: {expected}"));
    }
    let drop_in = folder.0.join("lunar.d/1.toml");
    std::fs::create_dir(folder.0.join("lunar.d")).unwrap();
    std::os::unix::fs::symlink(&fifo, &drop_in).unwrap();
    let whole = message(&folder.file("lunar.toml", TARGET, 0o600));
    assert!(
        whole.starts_with("lunar.d/1.toml: cannot read the configuration: it is not a regular file"),
        "{whole}"
    );
    let large = folder.file("large", "", 0o600);
    std::fs::File::options().write(true).open(&large).unwrap().set_len((16 << 20) + 1).unwrap();
    assert_eq!(
        message(&large),
        "large: the configuration file is larger than 16 MiB\n  hint: to serve a disk image, remove --config"
    );
}

/// Every text gives a configuration or faults, and never a panic.
#[test]
fn broken_examples_never_panic() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lunar.example.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let check = |text: &str| _ = parse(text, Path::new("t.toml")).map_err(|list| list[0].to_string());
    for (at, c) in text.char_indices() {
        check(&text[..at]);
        for other in ["\"", "0", "[", "=", "\u{0}", "ü"] {
            if c.is_ascii_punctuation() || c.is_ascii_digit() {
                check(&format!("{}{other}{}", &text[..at], &text[at + c.len_utf8()..]));
            }
        }
    }
    let file = |text: &str| ConfigFile { path: "t.toml".into(), text: text.to_owned(), is_transient: false };
    for (at, _) in text.match_indices('\n') {
        let (head, tail) = text.split_at(at + 1);
        _ = parse_files(vec![file(head), file(tail), file(head)], Path::new("t.toml"))
            .map_err(|list| list.iter().for_each(|problem| assert!(problem.position.is_some(), "{problem}")));
    }
    _ = parse_files(vec![file(&text), file(&format!("a = {}", "{a=".repeat(100_000)))], Path::new("t.toml"));
    check(&"[".repeat(100_000));
    check(&format!("a = {}", "[".repeat(100_000)));
    check(&format!("a = {}", "{a=".repeat(100_000)));
    check(&format!("[{}]", "a.".repeat(50_000)));
}

mod values {
    use super::super::value::*;
    use lunar_target::config::Transports;

    #[test]
    fn network_is_an_address_and_a_prefix() {
        let one = |text: &str| network(text).map(|n| format!("{}/{}", n.address, n.bits)).ok();
        assert_eq!(one("10.0.0.0/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(one("0.0.0.0/0").as_deref(), Some("0.0.0.0/0"));
        assert_eq!(one("::/0").as_deref(), Some("::/0"));
        assert_eq!(one("192.0.2.7").as_deref(), Some("192.0.2.7/32"));
        assert_eq!(one("::1").as_deref(), Some("::1/128"));
        for text in ["", "10/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.1/8", "2001:db8::1/32", "10.0.0.0/-1"] {
            assert_eq!(one(text), None, "{text}");
        }
    }

    #[test]
    fn listen_address_has_a_default_port() {
        let one = |text: &str| listen(text, Transports::TCP).map(|address| address.to_string()).ok();
        assert_eq!(one("127.0.0.1:0").as_deref(), Some("127.0.0.1:0"));
        assert_eq!(one("127.0.0.1").as_deref(), Some("127.0.0.1:3260"));
        assert_eq!(one("::1").as_deref(), Some("[::1]:3260"));
        assert_eq!(one("[::1]").as_deref(), Some("[::1]:3260"));
        assert_eq!(one("[::]:860").as_deref(), Some("[::]:860"));
        assert_eq!(listen("::1", Transports::SRP).map(|a| a.port()).ok(), Some(5555));
        ["", "localhost:3260", "127.0.0.1:", "127.0.0.1:65536"]
            .iter()
            .for_each(|text| assert_eq!(one(text), None));
    }
}
