use super::*;
use crate::config::parse;
use lunar_admin::router::LunHealth;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;

const PORTAL: &str = "urls = [\"iscsi://192.0.2.1\"]\n";
const TARGET: &str = "urls = [\"iscsi://192.0.2.1/iqn.2001-04.com.example:t\"]\n";
const LUN: &str = "urls = [\"iscsi://192.0.2.1/iqn.2001-04.com.example:t/3\"]\n";
const ALL: &str = "[[router.r1.target]]\naccess = \"all\"\n";

/// A configuration of one router with this upstream `a` and these targets.
fn config(upstream: &str, targets: &str) -> Config {
    let source = format!("[router.r1]\n[router.r1.upstream.a]\n{upstream}{targets}");
    parse(&source, Path::new("t.toml")).map_err(|list| list[0].to_string()).unwrap()
}

fn transparent() -> String {
    format!("{ALL}map = \"transparent\"\nupstream = \"a\"\n")
}

fn disk() -> FoundLun {
    FoundLun {
        block_size: 512,
        physical_block_size: 4096,
        vendor: "IET".into(),
        product: "VIRTUAL-DISK".into(),
        revision: "0001".into(),
        serial: "beaf11".into(),
        naa: vec![0x60; 16],
        designators: vec![1, 3, 0, 2, 7, 7],
        ..FoundLun::default()
    }
}

/// Targets of upstream `a`, each with these LUNs.
fn found(targets: &[(&str, &[u16])]) -> Found {
    let one = |(name, luns): &(&str, &[u16])| FoundTarget {
        window: 8,
        name: (*name).into(),
        luns: luns.iter().map(|number| (*number, disk())).collect(),
    };
    Found(BTreeMap::from([(("r1".into(), "a".into()), targets.iter().map(one).collect())]))
}

/// Target and LUN, and the target and LUN of the upstream.
fn routes(config: &Config) -> Vec<(String, u16, String, u16)> {
    let mut list = Vec::new();
    for target in &config.targets {
        for (number, lun) in target.luns.iter() {
            if let Source::Routed(LuAddress { target: behind, lun, .. }) = &lun.source {
                list.push((target.name.clone(), *number, behind.clone(), *lun));
            }
        }
    }
    list
}

fn route(name: &str, number: u16, behind: &str, lun: u16) -> (String, u16, String, u16) {
    (name.into(), number, behind.into(), lun)
}

fn lun_of(target: &str, number: u16) -> crate::build::UnitName {
    crate::build::UnitName::Lun(target.into(), number)
}

#[test]
fn copies_of_a_configuration_share_the_luns() {
    let lun = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1MiB\"\n";
    let source = format!("[[target]]\nname = \"iqn.2026-11.org.example:a\"\n{lun}");
    let config = parse(&source, Path::new("t.toml")).unwrap();
    let copies = [expand(&config, &Found::default()).unwrap(), crate::in_force(&config, &config)];
    for copy in copies {
        assert!(Arc::ptr_eq(&copy.targets[0].luns, &config.targets[0].luns));
    }
}

#[test]
fn transparent_upstream_keeps_names_and_numbers() {
    let config = config(PORTAL, &transparent());
    assert!(expand(&config, &Found::default()).unwrap().targets.is_empty());
    let (a, b) = ("iqn.2001-04.com.example:a", "iqn.2001-04.com.example:b");
    let whole = expand(&config, &found(&[(b, &[0, 7]), (a, &[1])])).unwrap();
    assert_eq!(routes(&whole), [route(a, 1, a, 1), route(b, 0, b, 0), route(b, 7, b, 7)]);
    assert_eq!(whole.targets[0].router.as_deref(), Some("r1"));
    assert_eq!(whole.targets[0].portal_groups, [1]);
}

#[test]
fn chosen_name_is_there_before_its_luns() {
    let name = "iqn.2026-11.org.example:mine";
    let map = format!("{ALL}map = \"target\"\nname = \"{name}\"\nupstream = \"a\"\n");
    let config = config(TARGET, &map);
    let whole = expand(&config, &Found::default()).unwrap();
    assert_eq!((whole.targets[0].name.as_str(), whole.targets[0].luns.len()), (name, 0));
    let t = "iqn.2001-04.com.example:t";
    let whole = expand(&config, &found(&[("iqn.2001-04.com.example:other", &[0, 1]), (t, &[0, 5])])).unwrap();
    assert_eq!(routes(&whole), [route(name, 0, t, 0), route(name, 5, t, 5)]);
}

#[test]
fn any_lun_becomes_any_lun() {
    let name = "iqn.2026-11.org.example:mine";
    let t = "iqn.2001-04.com.example:t";
    let map = |luns: &str| format!("{ALL}map = \"lun\"\nname = \"{name}\"\nlun = [{luns}]\n");
    let of_target = config(
        TARGET,
        &map("{ lun = 9, upstream = \"a\", from = 3 }, { lun = 0, upstream = \"a\", from = 4 }"),
    );
    let whole = expand(&of_target, &found(&[(t, &[0, 3])])).unwrap();
    assert_eq!(routes(&whole), [route(name, 9, t, 3)], "LUN 4 was not found yet");
    let of_lun = config(LUN, &map("{ lun = 1, upstream = \"a\" }"));
    let whole = expand(&of_lun, &found(&[(t, &[0, 3])])).unwrap();
    assert_eq!(routes(&whole), [route(name, 1, t, 3)]);
}

#[test]
fn disk_of_this_host_needs_no_finding_and_a_scsi_device_does() {
    let map = format!(
        "{ALL}map = \"lun\"\nname = \"iqn.2026-11.org.example:m\"\nlun = [{{ lun = 2, upstream = \"a\" }}]\n"
    );
    let memory = config("memory = \"1M\"\nvendor = \"ACME\"\nserial = \"7\"\n", &map);
    let whole = expand(&memory, &Found::default()).unwrap();
    let lun = &whole.targets[0].luns[&2];
    assert_eq!(lun.source, Source::Memory { size: 1 << 20 });
    assert!(!expand_early(&memory, &Found::default()).unwrap().targets[0].offline);
    assert_eq!(
        (lun.vendor.as_str(), lun.product.as_str(), lun.serial.as_deref()),
        ("ACME", "VIRTUAL DISK", Some("7"))
    );
    let sg = config("sg = \"/dev/sg3\"\nmode = \"passthrough\"\n", &map);
    assert!(expand(&sg, &Found::default()).unwrap().targets[0].luns.is_empty());
    let whole = expand(&sg, &found(&[("", &[0])])).unwrap();
    assert_eq!(routes(&whole), [route("iqn.2026-11.org.example:m", 2, "", 0)]);
}

#[test]
fn lun_is_known_as_the_one_it_is() {
    let t = "iqn.2001-04.com.example:t";
    let seen = found(&[(t, &[0])]);
    let lun = |upstream: &str| {
        expand(&config(upstream, &transparent()), &seen).unwrap().targets[0].luns[&0].clone()
    };
    let plain = lun(PORTAL);
    assert_eq!(plain.found.as_deref(), Some(&disk()));
    let identity = crate::identity::identity(&lun_of("iqn.2026-11.org.example:x", 0), &plain);
    let texts = [&identity.vendor, &identity.product, &identity.revision, &identity.serial];
    assert_eq!(texts, ["IET", "VIRTUAL-DISK", "0001", "beaf11"]);
    assert_eq!(identity.naa, [0x60; 16]);
    assert_eq!((plain.block_size, plain.physical_block_size, plain.thin), (512, 4096, false));
    let other = lun(&format!("{PORTAL}vendor = \"ACME\"\nproduct = \"ROUTED\"\n"));
    assert_eq!((other.vendor.as_str(), other.product.as_str()), ("ACME", "ROUTED"));
}

#[test]
fn upstream_texts_are_sanitized() {
    let wild = FoundLun {
        vendor: "a\u{0}\u{e4}bcdefghijk".into(),
        revision: "12345".into(),
        serial: "\n".into(),
        naa: vec![1; 3],
        physical_block_size: 5,
        ..disk()
    };
    let lun =
        as_found(&config(PORTAL, &transparent()).routers[0].upstreams["a"], &wild, Source::Null { size: 0 });
    assert_eq!((lun.vendor.as_str(), lun.serial.clone(), lun.physical_block_size), ("abcdefgh", None, 512));
    let identity = crate::identity::identity(&lun_of("iqn.2026-11.org.example:x", 0), &lun);
    assert_eq!((identity.revision.as_str(), identity.naa.len()), ("1234", 8));
}

#[test]
fn unit_without_blocks_requires_passthrough() {
    let t = "iqn.2001-04.com.example:t";
    let odd = |change: &dyn Fn(&mut FoundLun)| {
        let mut seen = found(&[(t, &[0])]);
        seen.0.values_mut().flatten().flat_map(|there| there.luns.values_mut()).for_each(change);
        seen
    };
    for seen in [odd(&|lun| lun.kind = 1), odd(&|lun| lun.block_size = 520), odd(&|lun| lun.block_size = 0)] {
        let luns = |upstream: &str| routes(&expand(&config(upstream, &transparent()), &seen).unwrap()).len();
        assert_eq!((luns(PORTAL), luns(&format!("{PORTAL}mode = \"passthrough\"\n"))), (0, 1));
    }
}

#[test]
fn name_of_an_upstream_is_no_path_of_this_host() {
    let config = config(PORTAL, &transparent());
    for name in ["", "../../etc", "iqn.2001-04.com.example:../x", "iqn.2001-04.com.example:A"] {
        assert!(expand(&config, &found(&[(name, &[0])])).unwrap().targets.is_empty(), "{name}");
    }
    let whole = expand(&config, &found(&[("iqn.2001-04.com.example:t", &[16384, 16383])])).unwrap();
    assert_eq!(whole.targets[0].luns.keys().copied().collect::<Vec<_>>(), [16383]);
}

#[test]
fn target_whose_name_another_has_is_left_out_and_nothing_else() {
    let (t, other) = ("iqn.2001-04.com.example:t", "iqn.2001-04.com.example:u");
    let there = found(&[(t, &[0]), (other, &[0])]);
    let own = format!("[[target]]\nname = \"{t}\"\n");
    let chosen =
        format!("[router.r1.upstream.b]\n{TARGET}{ALL}map = \"target\"\nname = \"{t}\"\nupstream = \"b\"\n");
    for first in [own, chosen] {
        let whole = expand(&config(PORTAL, &format!("{}{first}", transparent())), &there).unwrap();
        let named = |name: &str| whole.targets.iter().filter(|target| target.name == name).count();
        assert_eq!((named(t), named(other)), (1, 1));
        let is_from_a = routes(&whole).iter().any(|made| *made == route(t, 0, t, 0));
        assert!(!is_from_a, "the configured name has priority");
    }
}

#[test]
fn duplicate_upstream_name_uses_the_first() {
    let t = "iqn.2001-04.com.example:t";
    let whole = expand(&config(PORTAL, &transparent()), &found(&[(t, &[0]), (t, &[1])])).unwrap();
    assert_eq!(routes(&whole), [route(t, 0, t, 0)]);
}

#[test]
fn target_without_granted_luns_is_offline() {
    let t = "iqn.2001-04.com.example:t";
    let lists = "[access.lab]\ninitiators = [\"iqn.x:*\"]\n[access.ops]\nread_only = true\n";
    let target = |access: &str| {
        let map = transparent().replace("\"all\"", access) + lists;
        expand(&config(PORTAL, &map), &found(&[(t, &[0])])).unwrap().targets[0].clone()
    };
    let seen = |access: &str| {
        let entries = target(access).access;
        (entries.iter().any(|entry| entry.deny), entries.len())
    };
    assert_eq!([seen("\"all\""), seen("\"none\""), seen("\"lab\"")], [(false, 0), (true, 1), (false, 1)]);
    let both = target("[\"ops\", \"lab\"]").access;
    assert_eq!((both[0].read_only, both[1].initiators.as_slice()), (true, &["iqn.x:*".to_owned()][..]));
}

#[test]
fn new_target_awaits_all_luns_and_later_the_first() {
    let map =
        |luns: &str| format!("{ALL}map = \"lun\"\nname = \"iqn.2026-11.org.example:m\"\nlun = [{luns}]\n");
    let luns = map("{ lun = 0, upstream = \"a\" }, { lun = 1, upstream = \"b\" }");
    let both = config(&format!("{LUN}[router.r1.upstream.b]\n{}", LUN.replace("/3", "/4")), &luns);
    let t = "iqn.2001-04.com.example:t";
    let (none, one) = (Found::default(), found(&[(t, &[3])]));
    let mut all = one.clone();
    all.0.insert(("r1".into(), "b".into()), found(&[(t, &[4])]).0.into_values().next().unwrap());
    let is_offline = |early: bool, found: &Found| {
        let whole = if early { expand_early(&both, found) } else { expand(&both, found) };
        whole.unwrap().targets[0].offline
    };
    assert_eq!([&none, &one, &all].map(|found| is_offline(true, found)), [true, true, false]);
    assert_eq!([&none, &one, &all].map(|found| is_offline(false, found)), [true, false, false]);
}

#[test]
fn missing_mapped_luns_are_listed_with_reason() {
    let name = "iqn.2026-11.org.example:m";
    let t = "iqn.2001-04.com.example:t";
    let map = format!(
        "{ALL}map = \"lun\"\nname = \"{name}\"\n\
         lun = [{{ lun = 7, upstream = \"a\", from = 3 }}, {{ lun = 8, upstream = \"m\" }}]\n"
    );
    let config = config(TARGET, &format!("{map}[router.r1.upstream.m]\nmemory = \"1M\"\n"));
    let missing_luns = |found: &Found| {
        let all = missing(&config.routers[0], &expand(&config, found).unwrap(), found);
        all.iter().for_each(|one| assert_eq!((one.target.as_str(), one.lun, one.address.lun), (name, 7, 3)));
        all.iter().map(|one| (one.address.target.clone(), one.why)).collect::<Vec<_>>()
    };
    assert_eq!(missing_luns(&Found::default()), [(t.into(), LunHealth::Awaited)]);
    assert_eq!(missing_luns(&found(&[(t, &[0])])), [(t.into(), LunHealth::NotFound)]);
    let mut tape = found(&[(t, &[3])]);
    let lun = |found: &mut Found, kind| {
        found
            .0
            .values_mut()
            .flatten()
            .flat_map(|there| there.luns.values_mut())
            .for_each(|lun| lun.kind = kind);
    };
    lun(&mut tape, 1);
    assert_eq!(missing_luns(&tape), [(t.into(), LunHealth::NotServed)]);
    assert_eq!(missing_luns(&found(&[(t, &[3])])), []);
}

#[test]
fn controller_of_a_mapped_target_is_not_served() {
    let (t, name) = ("iqn.2001-04.com.example:t", "iqn.2026-11.org.example:m");
    let mut found = found(&[(t, &[0, 1])]);
    let lun = found.0.values_mut().flatten().find_map(|there| there.luns.get_mut(&0)).unwrap();
    (lun.kind, lun.block_size) = (0x0c, 0);
    let by_name = format!("{ALL}map = \"target\"\nname = \"{name}\"\nupstream = \"a\"\n");
    for (upstream, map, target) in [(TARGET, by_name, name), (PORTAL, transparent(), t)] {
        let missing_luns = |mode: &str| {
            let config = config(&format!("{upstream}mode = \"{mode}\"\n"), &map);
            missing(&config.routers[0], &expand(&config, &found).unwrap(), &found)
        };
        let all = missing_luns("block");
        let [one] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(
            (one.target.as_str(), one.lun, one.address.lun, one.why),
            (target, 0, 0, LunHealth::NotServed)
        );
        assert!(one.refusal.as_ref().is_some_and(|refusal| refusal.is_controller), "{one:?}");
        assert_eq!(missing_luns("passthrough"), []);
    }
}

#[test]
fn shared_disk_requires_passthrough_for_both_luns() {
    let of = |mode: &str| {
        let map =
            format!("{ALL}map = \"target\"\nname = \"iqn.2026-11.org.example:{mode}\"\nupstream = \"a\"\n");
        let config = config(&format!("{TARGET}mode = \"{mode}\"\n"), &map);
        expand(&config, &found(&[("iqn.2001-04.com.example:t", &[0])])).unwrap().targets.remove(0).luns
    };
    let warnings = |paths: &[&str]| {
        let mut disks = BTreeMap::new();
        let numbered = paths.iter().enumerate();
        numbered.map(|(n, path)| twins(&n.to_string(), &of(path), &mut disks)).collect::<Vec<_>>()
    };
    let count = |paths: &[&str]| warnings(paths).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(count(&["passthrough", "passthrough"]), [0, 0]);
    assert_eq!(count(&["block", "block"]), [0, 1]);
    assert_eq!(count(&["block", "passthrough"]), [0, 1]);
    assert_eq!(count(&["passthrough", "passthrough", "block", "passthrough"]), [0, 0, 1, 1]);
    assert!(
        warnings(&["passthrough", "block"])[1][0].starts_with("LUN 0 of 0 and LUN 0 of 1 are the same disk")
    );
}

#[test]
fn twin_of_a_namespace_gets_no_hint_at_passthrough() {
    let nqn = "nqn.2026-11.org.example:n";
    let map = format!("{ALL}map = \"target\"\nname = \"iqn.2026-11.org.example:m\"\nupstream = \"a\"\n");
    let config = config(&format!("urls = [\"nvme://192.0.2.1/{nqn}\"]\n"), &map);
    let luns = expand(&config, &found(&[(nqn, &[0])])).unwrap().targets.remove(0).luns;
    let mut disks = BTreeMap::new();
    assert_eq!(twins("a", &luns, &mut disks), [""; 0]);
    let [warning] = &twins("b", &luns, &mut disks)[..] else { panic!("one warning") };
    assert!(
        warning.contains("are the same disk: ") && warning.contains("hint: remove one of them"),
        "{warning}"
    );
    assert_eq!(luns[&0].source.to_string(), format!("router r1, upstream a, namespace 1 of {nqn}"));
}

#[test]
fn serial_number_keeps_the_spaces_around_it() {
    let lun = |padded: &str, serial: &str| {
        let found = FoundLun { padded_serial: padded.into(), serial: serial.into(), ..disk() };
        let config = config(LUN, &one_lun());
        let address = LuAddress { router: "r1".into(), upstream: "a".into(), target: String::new(), lun: 3 };
        let lun = as_found(&config.routers[0].upstreams["a"], &found, Source::Routed(address));
        (lun.serial.clone(), crate::identity::identity(&lun_of("t", 0), &lun))
    };
    let (serial, identity) = lun("    beaf11 ", "beaf11");
    assert_eq!((serial.as_deref(), identity.serial.as_str()), (Some("    beaf11 "), "    beaf11 "));
    assert_eq!(identity.designators, Some(disk().designators), "the identity does not change");
    assert_eq!(lun("a\u{1b}b", "a?b").0.as_deref(), Some("a?b"), "control characters are replaced");
    assert_eq!(lun(&" ".repeat(300), "").0, None);
    assert_eq!(lun("", "").0, None);
}

fn one_lun() -> String {
    let lun = "lun = [{ lun = 0, upstream = \"a\" }]";
    format!("{ALL}map = \"lun\"\nname = \"iqn.2026-11.org.example:m\"\n{lun}\n")
}

#[test]
fn names_are_awaited_until_an_upstream_was_seen() {
    let config = config(PORTAL, &transparent());
    let groups = |found: &Found| Vec::from_iter(expand(&config, found).unwrap().awaited);
    assert_eq!((groups(&Found::default()), groups(&found(&[]))), (vec![1], vec![]));
}

#[test]
fn subsystem_awaits_the_luns_of_its_namespaces() {
    let t = "iqn.2001-04.com.example:t";
    let subsystem = |target: &str| {
        format!(
            "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:s\"\n[[subsystem.namespace]]\nnsid = 1\ntarget = \"{target}\"\nlun = 0\n"
        )
    };
    let mapping = format!("{ALL}map = \"target\"\nname = \"iqn.2026-11.org.example:m\"\nupstream = \"a\"\n");
    for config in [
        config(PORTAL, &(transparent() + &subsystem(t))),
        config(TARGET, &(mapping + &subsystem("iqn.2026-11.org.example:m"))),
    ] {
        let is_awaited = |config: &Config| {
            let subsystem = config.targets.iter().find_map(|target| target.subsystem.as_ref());
            subsystem.expect("a subsystem").is_awaited
        };
        let before = expand(&config, &Found::default()).unwrap();
        let other = expand(&config, &found(&[(t, &[7])])).unwrap();
        assert!(!is_awaited(&other), "the upstream has no such LUN");
        let after = expand(&before, &found(&[(t, &[0])])).unwrap();
        assert_eq!([&config, &before, &after].map(is_awaited), [false, true, false]);
    }
}

#[test]
fn subsystem_awaits_one_lun_of_a_composed_target() {
    let mixed = "lun = [{ lun = 0, upstream = \"a\", from = 0 }, { lun = 1, upstream = \"b\", from = 0 }]";
    let mapping = format!(
        "[router.r1.upstream.b]\nurls = [\"iscsi://192.0.2.2/iqn.2001-04.com.example:u\"]\n\
         {ALL}map = \"lun\"\nname = \"iqn.2026-11.org.example:m\"\n{mixed}\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.example:s\"\n\
         [[subsystem.namespace]]\nnsid = 1\ntarget = \"iqn.2026-11.org.example:m\"\nlun = "
    );
    for (number, is_awaited) in [(0, false), (1, true)] {
        let config = config(TARGET, &format!("{mapping}{number}\n"));
        let whole = expand(&config, &found(&[("iqn.2001-04.com.example:t", &[0])])).unwrap();
        let subsystem = whole.targets.iter().find_map(|target| target.subsystem.as_ref());
        assert_eq!(subsystem.expect("a subsystem").is_awaited, is_awaited, "LUN {number}");
    }
}

#[test]
fn expansion_can_be_expanded() {
    let config = config(PORTAL, &transparent());
    let t = "iqn.2001-04.com.example:t";
    let once = expand(&config, &found(&[(t, &[0])])).unwrap();
    let twice = expand(&once, &found(&[(t, &[0, 1])])).unwrap();
    assert_eq!(routes(&twice), [route(t, 0, t, 0), route(t, 1, t, 1)]);
    assert!(expand(&twice, &Found::default()).unwrap().targets.is_empty());
}

/// Targets with short or arbitrary names, and any LUNs.
fn any_found() -> impl Strategy<Value = Found> {
    let name = prop_oneof![
        Just("iqn.2001-04.com.example:t".to_owned()),
        "iqn\\.2001-04\\.com\\.example:[a-c]",
        Just(String::new()),
        any::<String>(),
    ];
    let lun = (any::<u8>(), prop_oneof![Just(512), Just(4096), any::<u32>()], any::<u32>(), any::<String>());
    let lun = lun.prop_map(|(kind, block_size, physical_block_size, vendor)| FoundLun {
        kind: kind & 1,
        block_size,
        physical_block_size,
        vendor,
        ..disk()
    });
    let number = prop_oneof![0..8_u16, any::<u16>()];
    let target = (name, proptest::collection::btree_map(number, lun, 0..4));
    let target = target.prop_map(|(name, luns)| FoundTarget { name, window: 8, luns });
    let key = ("r[12]", "[ab]");
    proptest::collection::btree_map(key, proptest::collection::vec(target, 0..4), 0..4).prop_map(Found)
}

proptest! {
    /// Hosts see exactly the mapped LUNs, each one once, whatever an upstream reports.
    #[test]
    fn no_lun_appears_that_was_not_asked_for(found in any_found()) {
        let (t, mine) = ("iqn.2001-04.com.example:t", "iqn.2026-11.org.example:mine");
        let lun = format!("{ALL}map = \"lun\"\nname = \"{mine}\"\nlun = [{{ lun = 5, upstream = \"a\", from = 3 }}]\n");
        let target = format!("{ALL}map = \"target\"\nname = \"{mine}\"\nupstream = \"a\"\n");
        let of_a: BTreeSet<(String, u16)> = found.targets("r1", "a").iter()
            .flat_map(|there| there.luns.keys().map(|lun| (there.name.clone(), *lun))).collect();
        for (upstream, map) in [(PORTAL, transparent()), (TARGET, target), (TARGET, lun)] {
            let config = config(upstream, &map);
            let whole = expand(&config, &found).unwrap();
            for (name, number, behind, from) in routes(&whole) {
                prop_assert!(of_a.contains(&(behind.clone(), from)));
                match &config.routers[0].targets[0].map {
                    Map::Transparent { .. } => prop_assert!(name == behind && number == from),
                    Map::Target { .. } => prop_assert!(name == mine && behind == t && number == from),
                    Map::Lun { .. } => prop_assert!(name == mine && behind == t && (number, from) == (5, 3)),
                }
            }
            let names: BTreeSet<&str> = whole.targets.iter().map(|target| target.name.as_str()).collect();
            prop_assert_eq!(names.len(), whole.targets.len());
            for target in &whole.targets {
                prop_assert!(iscsi_name(&target.name).is_ok());
                for (number, lun) in target.luns.iter() {
                    let info = lunar_block::BackendInfo { capacity: 1 << 40, read_only: false, unmap: true, null: false, remote: false, write_through: false };
                    let settings = crate::build::settings(&lun_of(&target.name, *number), lun, info, 8).unwrap();
                    prop_assert!(lunar_scsi::Lu::new(settings, None).is_ok(), "the device server accepts the settings");
                }
            }
        }
    }
}
