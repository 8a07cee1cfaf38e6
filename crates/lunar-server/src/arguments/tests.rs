use super::*;
use crate::config::tests::Folder;
use lunar_admin::{ObjectId, ObjectOrigin};
use serde_json::json;

fn arguments(luns: &[&str]) -> Arguments {
    Arguments { luns: luns.iter().map(|lun| lun.to_string()).collect(), ..Arguments::default() }
}

fn config(arguments: &Arguments, folder: &Folder) -> Config {
    let context = ServeContext { state_dir: &folder.0.join("state"), host: "Moon.Example" };
    arguments.config(context).map_err(|list| list[0].to_string()).unwrap()
}

fn messages(arguments: Arguments, folder: &Folder) -> String {
    let context = ServeContext { state_dir: &folder.0.join("state"), host: "moon" };
    let list = arguments.config(context).unwrap_err();
    let text: Vec<String> = list.iter().map(Diagnostic::to_string).collect();
    text.join("\n").replace(&format!("{}/", folder.0.display()), "")
}

#[test]
fn no_arguments_serve_a_disk_in_the_state_folder() {
    let folder = Folder::new("nothing");
    let config = config(&Arguments::default(), &folder);
    let target = &config.targets[0];
    assert_eq!(target.name, "iqn.2026-11.io.lunar:moon.example");
    let path = folder.0.join("state/disk.img");
    assert_eq!(target.luns[&0].source, Source::File { path, size: Some(1 << 30) });
    assert!(folder.0.join("state").is_dir());
    assert_eq!(config.portal_groups[0].portals[0].listen.to_string(), "127.0.0.1:3260");
}

#[test]
fn luns_are_numbered_in_their_order() {
    let folder = Folder::new("luns");
    let iso = folder.file("cd.ISO", vec![0; 4096], 0o600);
    let disk = folder.0.join("new.img");
    let luns = ["null:1T", "memory:64MiB", iso.to_str().unwrap(), disk.to_str().unwrap()];
    let arguments = Arguments {
        size: Some("10G".into()),
        listen: vec!["[::1]:0".into(), "[::1]:0".into()],
        ..arguments(&luns)
    };
    let config = config(&arguments, &folder);
    let luns = &config.targets[0].luns;
    assert_eq!(luns[&0].source, Source::Null { size: 1 << 40 });
    assert_eq!(luns[&0].state_name, None);
    assert_eq!(luns[&1].source, Source::Memory { size: 64 << 20 });
    assert_eq!(
        (luns[&2].kind, luns[&2].read_only, luns[&2].block_size),
        (PeripheralDeviceType::CdRom, true, 2048)
    );
    assert_eq!(luns[&2].source, Source::File { path: iso, size: None });
    assert_eq!(luns[&3].source, Source::File { path: disk, size: Some(10 << 30) });
    assert_eq!(config.portal_groups[0].portals.len(), 2);
}

#[test]
fn disks_are_namespaces_of_a_subsystem_too() {
    let folder = Folder::new("namespaces");
    let iso = folder.file("a.iso", vec![0; 4096], 0o600);
    let nvme = |listen: &str| {
        let luns = ["null:1M", iso.to_str().unwrap(), "memory:1M"];
        let target = Some("iqn.2026-11.org.example:a".into());
        config(&Arguments { nvme: vec![listen.into()], target, ..arguments(&luns) }, &folder)
    };
    let config = nvme("192.0.2.1:4420");
    let subsystem = &config.targets[1];
    assert_eq!(subsystem.name, "nqn.2026-11.org.example:a");
    let shared = &subsystem.subsystem.as_ref().unwrap().shared;
    let target = || "iqn.2026-11.org.example:a".to_owned();
    assert_eq!(*shared, [(1, (target(), 0)), (3, (target(), 2))].into());
    let portals = |config: &Config| {
        let all = config.portal_groups[0].portals.iter();
        all.map(|portal| format!("{} {}", portal.listen, portal.transports)).collect::<Vec<_>>()
    };
    let discovery = "192.0.2.1:8009 NVMe/TCP discovery";
    assert_eq!(portals(&config), ["127.0.0.1:3260 TCP", "192.0.2.1:4420 NVMe/TCP", discovery]);
    assert_eq!(portals(&nvme("192.0.2.1:4421")).len(), 2);
    let document = &config.sources.document;
    assert!(document.contains_key(&ObjectId::Subsystem(subsystem.name.clone())));
    let namespace = &document[&ObjectId::Namespace(subsystem.name.clone(), 3)].keys;
    assert_eq!((&namespace["target"], &namespace["lun"]), (&json!(target()), &json!(2)));
}

#[test]
fn objects_are_shown_with_the_keys_of_a_file() {
    let folder = Folder::new("objects");
    let disk = folder.file("a.img", vec![0; 4096], 0o600);
    let arguments = Arguments {
        raw: true,
        srp: vec!["127.0.0.1:3261".into()],
        target: Some("iqn.2026-11.org.example:a".into()),
        ..arguments(&["null:1M", disk.to_str().unwrap()])
    };
    let config = config(&arguments, &folder);
    let document = &config.sources.document;
    assert!(document.values().all(|object| object.source.origin == ObjectOrigin::CommandLine));
    let keys = |id: ObjectId| serde_json::Value::Object(document[&id].keys.clone());
    let target = || "iqn.2026-11.org.example:a".to_owned();
    let null = json!({ "backend": "null", "size": 1 << 20, "format": "raw" });
    assert_eq!(keys(ObjectId::Lun(target(), 0)), null);
    let file = keys(ObjectId::Lun(target(), 1));
    assert_eq!((&file["backend"], &file["path"]), (&json!("file"), &json!(disk)));
    assert_eq!(file["serial"], json!(config.targets[0].luns[&1].serial));
    assert_eq!(keys(ObjectId::Target(target())), json!({}));
    let portals = json!(["127.0.0.1:3260", { "listen": "127.0.0.1:3261", "transport": ["srp"] }]);
    assert_eq!(keys(ObjectId::PortalGroup(1)), json!({ "portals": portals }));
    assert_eq!(document.len(), 4);
}

#[test]
fn disk_is_known_by_its_path() {
    let folder = Folder::new("known");
    let path = folder.0.join("a.img");
    let size = Some("1M".to_string());
    let before = config(&Arguments { size, ..arguments(&[path.to_str().unwrap()]) }, &folder);
    folder.file("a.img", vec![0; 4096], 0o600);
    let other = folder.file("b.img", vec![0; 4096], 0o600);
    let after = config(&arguments(&[other.to_str().unwrap(), path.to_str().unwrap()]), &folder);
    let (a, b) = (&after.targets[0].luns[&1], &after.targets[0].luns[&0]);
    assert_eq!(before.targets[0].luns[&0].serial, a.serial, "at any place of the command line");
    assert_ne!(a.serial, b.serial);
    assert_eq!(a.state_name, a.serial);
}

#[test]
fn invalid_arguments_have_hints() {
    let folder = Folder::new("wrong");
    let here = |name: &str| folder.0.join(name).to_str().unwrap().to_string();
    let disk = folder.file("disk.img", vec![0; 4096], 0o600);
    let disk = disk.to_str().unwrap();
    let hard = here("hard.img");
    std::fs::hard_link(disk, &hard).unwrap();
    let cases = [
        (
            arguments(&[&here("none")]),
            "LUN: none does not exist\n  hint: check the path, or add --size 10G to create it",
        ),
        (
            Arguments { size: Some("1M".into()), ..arguments(&["127.0.0.1:4420"]) },
            "LUN: 127.0.0.1:4420 is an address, not a disk\n  hint: write --nvme=127.0.0.1:4420 or --listen \
             127.0.0.1:4420, or ./127.0.0.1:4420 for a file",
        ),
        (arguments(&["nul:1G"]), "LUN: nul:1G does not exist\n  hint: did you mean null:1G?"),
        (arguments(&["memory:1"]), "LUN: the size of memory:1 is too small\n  hint: use at least 4096 bytes"),
        (
            arguments(&["null:"]),
            "LUN: \"\" is not a size\n  hint: write a number with K, M, G, T (powers of 1024) \
             or KB, MB, GB, TB (powers of 1000): 64KiB, 10G",
        ),
        (arguments(&[disk, disk]), "LUN: disk.img is given twice\n  hint: remove one of them"),
        (
            arguments(&[disk, &hard]),
            "LUN: disk.img and hard.img are the same file\n  hint: remove one of them",
        ),
        (
            Arguments { size: Some("1G".into()), ..arguments(&[""]) },
            "LUN: the LUN argument is empty\n  hint: write a path, null:SIZE or memory:SIZE",
        ),
        (
            Arguments { size: Some("1G".into()), ..arguments(&[&here("a.iso")]) },
            "LUN: a.iso does not exist\n  hint: check the path; an ISO image cannot be created",
        ),
        (
            Arguments { listen: vec!["::1".into(), "[::1]".into()], ..arguments(&["null:1G"]) },
            "--listen: [::1]:3260 is given twice\n  hint: remove one of them",
        ),
        (
            Arguments { size: Some("0".into()), ..arguments(&[&here("a.img")]) },
            "--size: the size of 0 is too small\n  hint: use at least 4096 bytes",
        ),
        (
            Arguments { size: Some("10kb".into()), ..Arguments::default() },
            "--size: the size of 10000 bytes is not a multiple of the block size, 512 bytes\n  hint: use 10240",
        ),
    ];
    for (arguments, expected) in cases {
        assert_eq!(messages(arguments, &folder), expected);
    }
    let all = Arguments {
        luns: vec!["memory:1".into()],
        size: Some("much".into()),
        listen: vec!["here".into()],
        iser: true,
        srp: vec!["there".into()],
        nvme: vec!["away".into()],
        raw: false,
        target: Some("disks".into()),
    };
    let starts: Vec<String> =
        messages(all, &folder).lines().map(|line| line.split(':').next().unwrap().into()).collect();
    assert_eq!(
        starts,
        [
            "--size", "  hint", "--listen", "  hint", "--srp", "  hint", "--nvme", "  hint", "--target",
            "  hint", "LUN", "  hint"
        ]
    );
}

#[test]
fn every_host_name_makes_a_good_target_name() {
    for (host, name) in [
        ("moon", "iqn.2026-11.io.lunar:moon"),
        ("My_Host.example.", "iqn.2026-11.io.lunar:my-host.example"),
        ("", "iqn.2026-11.io.lunar:host"),
        ("---", "iqn.2026-11.io.lunar:host"),
        ("möön", "iqn.2026-11.io.lunar:m--n"),
    ] {
        assert_eq!(lunar_proto::name::of_host(host), name);
        assert!(config::iscsi_name(name).is_ok());
    }
    assert!(config::iscsi_name(&lunar_proto::name::of_host(&"x".repeat(300))).is_ok());
    assert!(!lunar_runtime::host::name().is_empty());
}

#[test]
fn srp_portals_are_added_to_iscsi_portals() {
    let folder = Folder::new("srp");
    let arguments = Arguments { srp: vec!["::1".into()], iser: true, ..arguments(&["null:1G"]) };
    let portals = &config(&arguments, &folder).portal_groups[0].portals;
    let iser = Transports { iser: true, ..Transports::TCP };
    assert_eq!(portals.iter().map(|p| p.transports).collect::<Vec<_>>(), [iser, Transports::SRP]);
    let listen = portals.iter().map(|p| p.listen.to_string()).collect::<Vec<_>>();
    assert_eq!(listen, ["127.0.0.1:3260", "[::1]:5555"]);
    assert_eq!(
        messages(Arguments { srp: vec!["127.0.0.1:3260".into()], ..arguments }, &folder),
        "--srp: 127.0.0.1:3260 is given twice\n  hint: remove one of them"
    );
}
