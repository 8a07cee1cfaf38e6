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
    // The UUID of a block device is that of its namespace.
    let identifiers = ["6ad1f3fd0b6a4e3da9c41b5e0c8c7f10", "93c1a7c8-9f0d-4d54-8b7b-52b0f5a3b6d2"];
    keeps(&imported, &identifiers);
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
