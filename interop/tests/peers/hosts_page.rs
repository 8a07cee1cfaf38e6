//! The examples of docs/hosts.md for hosts that no test can run: the values that they contain must log in.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use interop::Server;
use interop::server::{Folder, lunar_bin};
use interop::tool;

const LIMIT: Duration = Duration::from_secs(60);
const SECRET: &str = "host1-password-1";
/// The keys of ISCSIPersistentVolumeSource, in Kubernetes' API v1.
const VOLUME_KEYS: [&str; 11] = [
    "chapAuthDiscovery",
    "chapAuthSession",
    "fsType",
    "initiatorName",
    "iqn",
    "iscsiInterface",
    "lun",
    "portals",
    "readOnly",
    "secretRef",
    "targetPortal",
];

/// The first block of the page with this info string.
fn example(info: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/hosts.md");
    let page = fs::read_to_string(page).expect("docs/hosts.md");
    let (_, rest) = page.split_once(&format!("```{info}\n")).expect("the example");
    rest.split("```").next().expect("its text").to_string()
}

/// Serves the configuration of the page.
fn serve() -> Server {
    let dir = Folder::fresh();
    let made =
        tool::run(Command::new("install").args(["-m600", "/dev/null"]).arg(dir.join("host1.secret")), LIMIT);
    assert!(made.ok(), "{}", made.said);
    fs::write(dir.join("host1.secret"), SECRET).expect("write the secret");
    Server::start_in(dir, &example("toml").replace("192.0.2.10:3260", "127.0.0.1:0"))
}

/// The value of the first line `KEY: VALUE`.
fn value<'a>(yaml: &'a str, key: &str) -> &'a str {
    let of_line = |line: &'a str| line.trim().strip_prefix(key)?.strip_prefix(": ");
    yaml.lines().find_map(of_line).unwrap_or_else(|| panic!("no {key} in\n{yaml}"))
}

/// The lines of the mapping `iscsi`, and the keys directly in it.
fn volume(yaml: &str) -> (String, Vec<String>) {
    let (_, rest) = yaml.split_once("\n  iscsi:\n").expect("a volume");
    let lines: Vec<&str> = rest.lines().take_while(|line| line.starts_with("    ")).collect();
    let own = lines.iter().filter(|line| !line.starts_with("     "));
    let keys = own.map(|line| line.trim().split(':').next().expect("a key").to_string()).collect();
    (lines.join("\n"), keys)
}

/// Logs in to a LUN at the portal of the server.
fn log_in(server: &Server, initiator: &str, user: Option<(&str, &str)>, target: &str, lun: &str) {
    let mut info = Command::new(lunar_bin());
    info.args(["info", &format!("iscsi://{}/{target}/{lun}", server.portal())])
        .env("LUNAR_INITIATOR", initiator);
    if let Some((user, secret)) = user {
        info.env("LUNAR_CHAP_USER", user).env("LUNAR_CHAP_PASSWORD", secret);
    }
    let ran = tool::run(&mut info, LIMIT);
    assert!(ran.ok(), "{initiator} {target} {lun}: {}", ran.said);
}

#[test]
fn kubernetes_example_has_keys_and_values_that_log_in() {
    let server = serve();
    let yaml = example("yaml").replace("SECRET", SECRET);
    let (volume, keys) = volume(&yaml);
    keys.iter().for_each(|key| assert!(VOLUME_KEYS.contains(&key.as_str()), "{key} is no key of a volume"));
    assert_eq!(value(&volume, "targetPortal"), "192.0.2.10:3260");
    assert_eq!(value(&yaml, "type"), "kubernetes.io/iscsi-chap");
    assert_eq!(value(&volume, "name"), value(&yaml, "name"), "the secret");
    let user = (value(&yaml, "node.session.auth.username"), value(&yaml, "node.session.auth.password"));
    let initiator = value(&volume, "initiatorName");
    log_in(&server, initiator, Some(user), value(&volume, "iqn"), value(&volume, "lun"));
}

#[test]
fn proxmox_examples_name_a_target_that_admits_a_node() {
    let server = serve();
    for file in ["storage-lvm.cfg", "storage-direct.cfg"] {
        let storage = example(&format!("text file {file}"));
        let value = |key: &str| {
            let line = storage.lines().find_map(|line| line.trim().strip_prefix(key)).expect("the key");
            line.trim().to_string()
        };
        assert_eq!(value("portal"), "192.0.2.10");
        log_in(&server, "iqn.1993-08.org.debian:01:0123456789ab", None, &value("target"), "0");
    }
}

#[test]
fn libvirt_examples_have_values_that_log_in() {
    let server = serve();
    for file in ["pool-iscsi.xml", "pool-direct.xml", "domain.xml"] {
        let xml = example(&format!("text file {file}"));
        let attribute = |before: &str| {
            let (_, rest) = xml.split_once(before).unwrap_or_else(|| panic!("{file}: no {before}"));
            rest.split('"').next().expect("a value").to_string()
        };
        let disk = match file {
            "domain.xml" => attribute("protocol=\"iscsi\" name=\""),
            _ => attribute("device path=\"") + "/0",
        };
        let (target, lun) = disk.split_once('/').expect("a LUN");
        assert_eq!(attribute("host name=\""), "192.0.2.10");
        let user = attribute("username=\"");
        log_in(&server, &attribute("iqn name=\""), Some((&user, SECRET)), target, lun);
    }
}
