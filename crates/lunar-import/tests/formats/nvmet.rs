//! Imports of the configuration of nvmet: the file of nvmetcli, and the tree.

use super::{disk_named, has, keeps, notes, subsystem};
use lunar_import::{
    AdmittedHosts, DiskMedium, Imported, NewTransport, Outcome, TreeEntry, nvmet, nvmet_tree, toml,
};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

const CONFIG: &str = include_str!("../samples/nvmet/config.json");
const SIMPLE: &str = include_str!("../samples/nvmet/simple.json");
const TREE: &str = include_str!("../samples/nvmet/tree.txt");

fn import(text: &str) -> Imported {
    nvmet(text).expect("it is a config.json")
}

/// Reads the sample of a tree: a line for each file, link or empty folder.
fn in_tree(tree: &str, path: &Path) -> io::Result<TreeEntry> {
    let path = path.to_str().expect("text");
    let folder = if path.is_empty() { String::new() } else { format!("{path}/") };
    let mut names = BTreeSet::new();
    for line in tree.lines() {
        let (file, text) = line.split_once('=').unwrap_or((line, ""));
        if file == path {
            return Ok(TreeEntry::File(format!("{text}\n")));
        }
        let (file, target) = line.split_once(" -> ").unwrap_or((file, ""));
        if file == path {
            return Ok(TreeEntry::Link(target.into()));
        }
        let below = file.strip_prefix(&folder).and_then(|rest| rest.split('/').next());
        names.extend(below.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    let is_known = !names.is_empty() || tree.lines().any(|line| line == folder);
    is_known.then_some(TreeEntry::Folder(names.into_iter().collect())).ok_or(io::ErrorKind::NotFound.into())
}

fn import_tree(tree: &str) -> Imported {
    nvmet_tree(&|path| in_tree(tree, path)).expect("a tree")
}

#[test]
fn simple_file_is_carried_whole() {
    let imported = import(SIMPLE);
    assert!(!imported.notes.has_lost(), "{}", notes(&imported, Outcome::Lost));
    let configuration = &imported.configuration;
    let disks = subsystem(configuration, "disks");
    assert_eq!(disks.serial.as_deref(), Some("123456789abcdef"));
    assert_eq!((disks.model.as_deref(), &disks.hosts), (Some("Linux"), &AdmittedHosts::Every));
    let disk = &configuration.disks[disks.namespaces[&1].disk];
    assert_eq!(disk.medium, DiskMedium::File("/srv/nvme/disk.img".into()));
    assert_eq!((disk.block_size, disk.write_cache), (Some(4096), true));
    let [group] = &configuration.portal_groups[..] else { panic!("one portal group") };
    assert_eq!((group.tag, group.portals[0].transport), (1, NewTransport::NvmeTcp));
}

#[test]
fn subsystems_keep_hosts_portals_and_namespaces() {
    let imported = import(CONFIG);
    let configuration = &imported.configuration;
    let mail = subsystem(configuration, "mail");
    let host = "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5";
    assert_eq!(mail.hosts, AdmittedHosts::Named([host.to_owned()].into()));
    assert_eq!(mail.namespaces.keys().copied().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(mail.portal_groups, [3, 4].into());
    let far = subsystem(configuration, "far");
    assert!(far.offline, "its portal is not carried over");
    assert_eq!(far.hosts, AdmittedHosts::Named(BTreeSet::new()), "no host may connect");
    let open = subsystem(configuration, "open");
    assert_eq!((open.serial.as_deref(), open.portal_groups.len()), (None, 1));
    assert_eq!(open.namespaces[&5].disk, mail.namespaces[&1].disk, "one disk behind both");
    let portals = configuration.portal_groups.iter().flat_map(|group| &group.portals);
    let portals: Vec<_> = portals.map(|one| (one.listen.as_str(), one.transport)).collect();
    let tls = NewTransport::NvmeTls;
    let expected = [("192.0.2.10:4420", NewTransport::NvmeTcp), ("0.0.0.0:4421", tls), ("[::]:4421", tls)];
    assert_eq!(portals, expected);
    assert_eq!(configuration.nvme_referrals, ["192.0.2.11:8009"]);
    let text = toml(configuration, "secrets");
    has(&text, &["allowed_hosts = []\n", "offline = true\n", "nvme_referrals = [\"192.0.2.11:8009\"]\n"]);
    assert_eq!(text.matches("disk = \"mail\"").count(), 2, "{text}");
    has(&text, &["{ listen = \"[::]:4421\", transport = [\"nvme-tcp\"], tls = \"required\" }"]);
}

#[test]
fn everything_that_is_lost_is_named() {
    let imported = import(CONFIG);
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "subsystems[0].attr cntlid_min=100",
            "subsystems[0].attr cntlid_max=199",
            "subsystems[1].attr offload=1",
            "the host \"someone\", which is no NQN",
            "ANA group 7, which is non-optimized at port 3",
            "ANA group 7, which is inaccessible at port 4",
            "namespace 3: it is disabled",
            "namespace 4096, the device /dev/vg0/far: the number is not in 1 to 1024",
            "namespace 6, the device /dev/vg0/mail: it is a namespace of this subsystem already",
            "commands for /dev/nvme0 itself",
            "port 5: the transport \"rdma\"",
            "port 6, 192.0.2.12:4420: nothing listens there",
            "the keys of TLS",
            "nqn.2026-11.org.example:far: offline",
            "hosts[1] the host nqn.2026-11.org.example:spare",
        ],
    );
    // An NGUID of zeros is none, also for hosts that connect again.
    let identifiers = ["6ad1f3fd-0b6a-4e3d-a9c4-1b5e0c8c7f10", "e0f0a1b2c3d44e5f8091a2b3c4d5e6f7", "none"];
    keeps(&imported, &identifiers);
    let changed = notes(&imported, Outcome::Changed);
    has(&changed, &["inline_data_size=32768", "the serial number \"00:11\"", "nvmetcli saves no secrets"]);
}

#[test]
fn tree_has_the_secrets_of_hosts() {
    let imported = import_tree(TREE);
    let configuration = &imported.configuration;
    let locked = subsystem(configuration, "locked");
    let AdmittedHosts::Proven(hosts) = &locked.hosts else { panic!("{:?}", locked.hosts) };
    assert_eq!(hosts[0].nqn, "nqn.2026-11.org.example:ann");
    assert_eq!(
        [&hosts[0].secret, &locked.secret].map(Option::as_deref),
        [Some("ann.key"), Some("locked.key")]
    );
    assert_eq!(disk_named(configuration, "locked").medium, DiskMedium::Device("/dev/vg0/locked".into()));
    let secret = configuration.secret_files.iter().find(|file| file.name == "ann.key").expect("a file");
    assert!(TREE.contains(&format!("dhchap_key={}\n", *secret.text)));
    let AdmittedHosts::Proven(hosts) = &subsystem(configuration, "mixed").hosts else { panic!("no proof") };
    assert_eq!((hosts.len(), hosts[0].secret.as_deref()), (1, Some("ann.key")), "bob has no secret");
    let lost = notes(&imported, Outcome::Lost);
    has(
        &lost,
        &[
            "the host nqn.2026-11.org.example:bob, which has no secret",
            "ANA group 2, which is inaccessible at port 1",
            "ANA group 1, which is non-optimized at port 2",
        ],
    );
    assert!(!lost.contains("optimized at port 1") && !lost.contains("accessible at port 2"), "{lost}");
    assert!(!notes(&imported, Outcome::Changed).contains("nvmetcli saves no secrets"));
    assert!(!toml(configuration, "secrets").contains("DHHC-1"), "secrets are in files of their own");
}

#[test]
fn name_of_a_link_in_a_tree_means_nothing() {
    let ann = "nqn.2026-11.org.example:ann";
    let link = format!("allowed_hosts/{ann} -> ");
    let alias = "allowed_hosts/nqn.2026-11.org.example:alias -> ";
    assert!(TREE.contains(&link));
    let imported = import_tree(&TREE.replace(&link, alias));
    let AdmittedHosts::Proven(hosts) = &subsystem(&imported.configuration, "locked").hosts else {
        panic!("no proof")
    };
    assert_eq!((hosts[0].nqn.as_str(), hosts[0].secret.as_deref()), (ann, Some("ann.key")));
    assert_eq!(subsystem(&imported.configuration, "mixed").portal_groups, [1, 2].into());
    // The folder of a host has its secret. A link without one could be any host.
    let gone = TREE.replace(&format!("hosts/{ann}\n"), "hosts/nqn.2026-11.org.example:gone\n");
    let imported = import_tree(&gone);
    assert_eq!(subsystem(&imported.configuration, "locked").hosts, AdmittedHosts::Named(BTreeSet::new()));
    has(&notes(&imported, Outcome::Lost), &["the host nqn.2026-11.org.example:gone, which is not among"]);
}

#[test]
fn tree_with_other_entries_is_rejected() {
    let fault = |tree: &str| nvmet_tree(&|path| in_tree(tree, path)).expect_err("no tree").what;
    let host = "hosts/nqn.2026-11.org.example:ann";
    for (from, to, expected) in [
        ("hosts/nqn.2026-11.org.example:ann\n", "ports/1\n", "leads to \"../../../../nvmet/ports/1\""),
        ("hosts/nqn.2026-11.org.example:ann\n", "hosts/..\n", "and not into hosts"),
        (
            "allowed_hosts/nqn.2026-11.org.example:bob -> ../../../../nvmet/hosts/nqn.2026-11.org.example:bob",
            "allowed_hosts/nqn.2026-11.org.example:bob/",
            "allowed_hosts/nqn.2026-11.org.example:bob is no link",
        ),
        ("dhchap_key=\n", "dhchap_key/x=\n", "dhchap_key is no file"),
        ("discovery_nqn=", &format!("hosts/link -> ../{host}\ndiscovery_nqn="), "hosts/link is no folder"),
        ("dhchap_key=\n", &format!("dhchap_key={}\n", "x".repeat(4096)), "has more than 4096 bytes"),
    ] {
        assert!(TREE.contains(from), "{from}");
        let found = fault(&TREE.replace(from, to));
        assert!(found.contains(expected), "{found}");
    }
    let many = |path: &Path| match path.as_os_str().is_empty() {
        true => Ok(TreeEntry::Folder(vec!["hosts".into()])),
        false => Ok(TreeEntry::Folder(vec!["x".into(); if path.ends_with("hosts") { 1000 } else { 100 }])),
    };
    assert_eq!(nvmet_tree(&many).expect_err("too many").what, "the folder has more than 100000 entries");
    let unknown = format!("other/{host} -> .\nports/1/other -> /\n{TREE}other=\n");
    assert!(!import_tree(&unknown).configuration.subsystems.is_empty());
}

#[test]
fn unreadable_secret_ends_the_import() {
    let unreadable = |path: &Path| match path.ends_with("dhchap_key") {
        true => Err(io::ErrorKind::PermissionDenied.into()),
        false => in_tree(TREE, path),
    };
    let error = nvmet_tree(&unreadable).expect_err("no secret");
    has(&error.what, &["cannot read hosts/", "dhchap_key"]);
    let malformed = TREE.replace("dhchap_key=DHHC-1:", "dhchap_key=DHHC-2:");
    let imported = import_tree(&malformed);
    assert_eq!(subsystem(&imported.configuration, "locked").hosts, AdmittedHosts::Named(BTreeSet::new()));
}

#[test]
fn empty_and_foreign_files_are_rejected() {
    assert_eq!(nvmet("{}").expect_err("nothing to import").what, "there is no subsystem");
    for text in ["", "7", "{\"subsystems\": 7}", "{\"subsystems\": [{\"attr\": []}]}"] {
        let error = nvmet(text).expect_err(text);
        assert!(error.what.starts_with("the file is no config.json of nvmetcli: "), "{error}");
    }
    let secret =
        nvmet("{\"hosts\": [{\"dhchap\": \"DHHC-1:00:secret:\"}]}").expect_err("a text in place of a map");
    has(&secret.what, &["expected a map at line 1 column"]);
    assert!(!secret.what.contains("secret"), "{secret}");
    assert!(nvmet_tree(&|_| Err(io::ErrorKind::NotFound.into())).is_err());
}
