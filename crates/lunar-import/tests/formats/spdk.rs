//! Imports of the configuration of SPDK.

use super::{has, keeps, notes, subsystem};
use lunar_import::{AdmittedHosts, DiskMedium, Found, Imported, NewTransport, Outcome, no_files, spdk, toml};
use std::io;
use std::path::Path;

const CONFIG: &str = include_str!("../samples/spdk/nvmf.json");
const KEY: &str = include_str!("../samples/spdk/root/etc/spdk/ann.key");
const TLS_KEY: &str = include_str!("../samples/spdk/root/etc/spdk/ann.tls");

fn keys(path: &Path) -> io::Result<Found> {
    match path.to_str() {
        Some("/etc/spdk/ann.key") => Ok(Found::File(KEY.into())),
        Some("/etc/spdk/ann.tls") => Ok(Found::File(TLS_KEY.into())),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn import() -> Imported {
    spdk(CONFIG, &keys).expect("a configuration")
}

#[test]
fn subsystems_keep_hosts_portals_and_namespaces() {
    let imported = import();
    let configuration = &imported.configuration;
    let (mail, open) = (subsystem(configuration, "mail"), subsystem(configuration, "open"));
    let AdmittedHosts::Proven(hosts) = &mail.hosts else { panic!("{:?}", mail.hosts) };
    let files = |host: &lunar_import::ProvenHost| (host.secret.clone(), host.tls_key.clone());
    assert_eq!(
        hosts.iter().map(files).collect::<Vec<_>>(),
        [(Some("ann.key".into()), Some("ann.tls".into()))]
    );
    assert_eq!(open.hosts, AdmittedHosts::Every);
    assert_eq!(mail.namespaces.keys().copied().collect::<Vec<_>>(), [1], "others may not see namespace 4");
    assert_eq!(open.namespaces.keys().copied().collect::<Vec<_>>(), [1, 2]);
    let medium = |index: usize| &configuration.disks[index].medium;
    assert_eq!(*medium(mail.namespaces[&1].disk), DiskMedium::File("/srv/spdk/mail.img".into()));
    assert_eq!(configuration.disks[mail.namespaces[&1].disk].block_size, Some(4096));
    assert_eq!(*medium(open.namespaces[&1].disk), DiskMedium::Memory(64 << 20));
    assert_eq!(*medium(open.namespaces[&2].disk), DiskMedium::Device("/dev/vg0/fast".into()));
    let portals = configuration.portal_groups.iter().flat_map(|group| &group.portals);
    let portals: Vec<_> = portals.map(|one| (one.listen.as_str(), one.transport)).collect();
    let expected = [
        ("192.0.2.10:4421", NewTransport::NvmeTls),
        ("192.0.2.10:4420", NewTransport::NvmeTcp),
        ("192.0.2.10:8009", NewTransport::NvmeDiscovery),
    ];
    assert_eq!(portals, expected);
    assert!(mail.portal_groups.is_disjoint(&open.portal_groups));
    assert_eq!(configuration.nvme_referrals, ["192.0.2.11:8009"]);
    assert!(!toml(configuration, "secrets").contains(TLS_KEY.trim()), "keys are in files of their own");
}

#[test]
fn everything_that_is_lost_is_named() {
    let imported = import();
    has(
        &notes(&imported, Outcome::Lost),
        &[
            "bdev[4] Nvme0: an NVMe device of SPDK's driver",
            "Far: namespaces of another target, which a router serves",
            "sealed: bdev_crypto_create has no counterpart",
            "bdev[3][1] sink: the metadata of its blocks",
            "nbd[0] nbd_start_disk",
            "the controller identifiers 256 to 511",
            "the host nqn.2026-11.org.example:bob, which has no key",
            "the key /etc/spdk/gone.key cannot be read",
            "the host nqn.2026-11.org.example:eve, whose key is not known",
            "namespace 2, Nvme0n1: an NVMe device",
            "namespace 3, Farn1: namespaces of another target",
            "namespace 4, fast: only some hosts may see it",
            "the saved reservations in /var/lib/spdk/scratch.json",
            "a null disk of 16777216 bytes: a namespace has blocks of 512 or 4096 bytes",
            "namespace 4, sealed: bdev_crypto_create",
            "the transport \"RDMA\"",
        ],
    );
    // The UUID of a block device is the UUID and the NGUID of its namespace.
    let uuid = "93c1a7c8-9f0d-4d54-8b7b-52b0f5a3b6d2";
    let identifiers = ["6ad1f3fd0b6a4e3da9c41b5e0c8c7f10", uuid, &uuid.replace('-', "")];
    keeps(&imported, &identifiers);
}

/// The sample with more calls at the end of the part `nvmf`.
fn import_with(calls: &str) -> Imported {
    let end = CONFIG.rfind("\n      ]").expect("the end of a list");
    let text = format!("{},\n{calls}{}", &CONFIG[..end], &CONFIG[end..]);
    spdk(&text, &keys).expect("a configuration")
}

fn call(method: &str, nqn: &str, parameters: &str) -> String {
    let nqn = format!("nqn.2026-11.org.example:{nqn}");
    format!("{{ \"method\": \"{method}\", \"params\": {{ \"nqn\": \"{nqn}\"{parameters} }} }}")
}

#[test]
fn last_call_decides_whether_every_host_may_connect() {
    let every =
        |flag| call("nvmf_subsystem_allow_any_host", "open", &format!(", \"allow_any_host\": {flag}"));
    let host = ", \"host\": \"nqn.2026-11.org.example:bob\"";
    let host = call("nvmf_subsystem_add_host", "open", host);
    let imported = import_with(&[every("true"), host.clone(), every("false")].join(","));
    let bob = AdmittedHosts::Named(["nqn.2026-11.org.example:bob".to_owned()].into());
    assert_eq!(subsystem(&imported.configuration, "open").hosts, bob);
    let disabled = call("nvmf_subsystem_allow_any_host", "open", ", \"disable\": true");
    let imported = import_with(&[host.clone(), host, disabled].join(","));
    assert_eq!(subsystem(&imported.configuration, "open").hosts, bob);
    has(&notes(&imported, Outcome::Changed), &["bob, which is given twice"]);
    let imported = import_with(&every("true").replace(":open", ":mail"));
    assert_eq!(subsystem(&imported.configuration, "mail").hosts, AdmittedHosts::Every);
}

#[test]
fn calls_that_may_limit_access_take_a_subsystem_offline() {
    for method in [
        "nvmf_subsystem_remove_host",
        "nvmf_subsystem_set_keys",
        "nvmf_delete_subsystem",
        "nvmf_subsystem_remove_ns",
    ] {
        let imported = import_with(&call(method, "mail", ""));
        assert!(subsystem(&imported.configuration, "mail").offline, "{method}");
        assert!(!subsystem(&imported.configuration, "open").offline, "{method}");
        has(
            &notes(&imported, Outcome::Lost),
            &[&format!("mail: offline, because {method} may limit access")],
        );
    }
    let imported = import_with(&call("nvmf_subsystem_listener_set_ana_state", "mail", ""));
    assert!(!subsystem(&imported.configuration, "mail").offline);
    has(&notes(&imported, Outcome::Lost), &["mail: nvmf_subsystem_listener_set_ana_state"]);
}

#[test]
fn limits_of_the_target_are_lost() {
    let lists = |groups: &str| {
        let filter =
            ", \"discovery_filter\": \"match_any\", \"dhchap_digests\": [\"sha256\", \"sha384\", \"sha512\"]";
        call("nvmf_set_config", "", &format!("{filter}, \"dhchap_dhgroups\": [{groups}]"))
    };
    let all = "\"null\", \"ffdhe2048\", \"ffdhe3072\", \"ffdhe4096\", \"ffdhe6144\", \"ffdhe8192\"";
    let limit = "\"bdev_set_qos_limit\", \"params\": { \"name\": \"mail\", \"rw_mbytes_per_sec\": 9 }";
    let lost = |calls: &str| notes(&import_with(calls), Outcome::Lost);
    let usual = lost(&lists(all));
    assert!(!usual.contains("dhchap") && !usual.contains("nvmf_set_config"), "{usual}");
    has(&lost(&lists("\"ffdhe3072\"")), &["dhchap_dhgroups with only ffdhe3072: hosts may use each"]);
    has(&lost(&format!("{{ \"method\": {limit} }}")), &["bdev_set_qos_limit of \"mail\""]);
}

#[test]
fn calls_about_a_device_do_not_replace_it() {
    let of = |method: &str| format!("{{ \"method\": \"{method}\", \"params\": {{ \"name\": \"mail\" }} }},");
    let more: String = ["bdev_enable_histogram", "bdev_examine", "bdev_set_qos_limit"].map(of).concat();
    let wait = "{ \"method\": \"bdev_wait_for_examine\" }";
    let imported = spdk(&CONFIG.replace(wait, &format!("{more}{wait}")), &keys).expect("a configuration");
    assert!(subsystem(&imported.configuration, "mail").namespaces.contains_key(&1));
    let twice = of("bdev_null_create");
    let imported = spdk(&CONFIG.replace(wait, &format!("{twice}{wait}")), &keys).expect("a configuration");
    assert!(subsystem(&imported.configuration, "mail").namespaces.contains_key(&1));
    has(&notes(&imported, Outcome::Lost), &["mail: the name is given twice"]);
}

#[test]
fn values_that_a_server_rejects_are_lost() {
    let ns = |nsid, bdev| {
        let namespace = format!(
            ", \"namespace\": {{ \"nsid\": {nsid}, \"bdev_name\": \"{bdev}\", \"uuid\": \"93c1a7c8-9f0d-4d54-8b7b-52b0f5a3b6d2\" }}"
        );
        call("nvmf_subsystem_add_ns", "mail", &namespace)
    };
    // Namespace 1 of the other subsystem has the UUID.
    let imported = import_with(&ns(7, "fast"));
    let mail = subsystem(&imported.configuration, "mail");
    assert_eq!(mail.namespaces[&7].identifiers.uuid, None);
    has(
        &notes(&imported, Outcome::Lost),
        &["the UUID 93c1a7c8-9f0d-4d54-8b7b-52b0f5a3b6d2, which another namespace has already"],
    );
    let short = format!("DHHC-1:00:{}:", "A".repeat(64));
    let reader = |path: &Path| match path.ends_with("ann.key") {
        true => Ok(Found::File(short.clone())),
        false => keys(path),
    };
    let imported = spdk(CONFIG, &reader).expect("a configuration");
    has(&notes(&imported, Outcome::Lost), &["has no valid key", "ann, whose key is not known"]);
    let imported = spdk(&CONFIG.replace("example:open", "example:o pen"), &keys).expect("a configuration");
    has(&notes(&imported, Outcome::Lost), &["\"nqn.2026-11.org.example:o pen\", which is no NQN"]);
    let carried = notes(&imported, Outcome::Carried);
    assert!(!carried.lines().any(|line| line.ends_with("o pen")), "{carried}");
}

#[test]
fn discovery_at_every_address_gives_way_to_portals() {
    let imported = spdk(
        &CONFIG.replace("\"192.0.2.10\", \"trsvcid\": \"8009\"", "\"0.0.0.0\", \"trsvcid\": \"4420\""),
        &keys,
    );
    let imported = imported.expect("a configuration");
    let groups = &imported.configuration.portal_groups;
    let portals: Vec<_> =
        groups.iter().flat_map(|group| &group.portals).map(|one| one.listen.as_str()).collect();
    assert_eq!(portals, ["192.0.2.10:4421", "192.0.2.10:4420"]);
    has(&notes(&imported, Outcome::Changed), &["discovery at 0.0.0.0:4420: only at the addresses"]);
}

#[test]
fn keys_that_cannot_be_read_admit_nobody() {
    let imported = spdk(CONFIG, &no_files).expect("a configuration");
    let mail = subsystem(&imported.configuration, "mail");
    // Of the three hosts, only the one without a key is known.
    assert_eq!(mail.hosts, AdmittedHosts::Named(["nqn.2026-11.org.example:bob".to_owned()].into()));
    assert!(imported.configuration.secret_files.is_empty());
}

#[test]
fn empty_and_foreign_files_are_rejected() {
    for (text, fault) in [
        ("", "the file is no configuration of SPDK: "),
        ("{\"subsystems\": 7}", "the file is no configuration of SPDK: "),
        ("{\"subsystems\": []}", "there is no nvmf_create_subsystem"),
    ] {
        let error = spdk(text, &no_files).expect_err(text);
        assert!(error.what.starts_with(fault), "{error}");
    }
}
