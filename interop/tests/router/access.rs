//! Access lists and session limits of a router.

use crate::*;
use interop::tool::ToolOutput;
use std::os::unix::fs::PermissionsExt;

/// Login status of an initiator without access, and of an unavailable target (RFC 7143 section 11.13.5).
const FORBIDDEN: u16 = 0x0202;
const OUT_OF_RESOURCES: u16 = 0x0302;
const WRITE_PROTECTED: u32 = 0x072700;
/// A task management function, and its response where it is not allowed (RFC 7143 sections 11.5.1 and 11.6.1).
const LUN_RESET: u8 = 5;
const UNAUTHORIZED: u8 = 6;
const SECRET: &str = "bobs-secret-12";

/// A target for each access list, named after it.
fn guarded(storage: &Server) -> Server {
    let dir = Folder::fresh();
    let file = dir.join("bob.secret");
    std::fs::write(&file, SECRET).expect("a secret");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("set its mode");
    let lists = "[access.here]\nnetworks = [\"127.0.0.0/8\"]\n[access.far]\nnetworks = [\"10.0.0.0/8\"]\n\
                 [access.lab]\ninitiators = [\"iqn.*:lab-*\"]\n[access.bob]\nchap = [\"bob\"]\n\
                 [access.look]\nread_only = true\n\
                 [[chap_user]]\nname = \"bob\"\nsecret_file = \"bob.secret\"\n";
    let names =
        ["all", "none", "here", "far", "lab", "bob", "look"].map(|name| (name, format!("\"{name}\"")));
    let both = ("both", "[\"far\", \"lab\"]".to_owned());
    let maps: String = names.iter().chain([&both]).map(|(name, access)| guarded_map(name, access)).collect();
    let place = url(storage, &format!("/{A}"));
    let upstreams: String = names.iter().chain([&both]).map(|(name, _)| upstream(name, &place, "")).collect();
    Server::start_in(dir, &router_text("", &format!("{upstreams}{maps}{lists}")))
}

fn guarded_map(name: &str, access: &str) -> String {
    format!(
        "[[router.r1.target]]\nmap = \"target\"\nname = \"{}\"\nupstream = \"{name}\"\naccess = {access}\n",
        named(name)
    )
}

fn named(name: &str) -> String {
    format!("iqn.2026-11.org.example:{name}")
}

fn refused(router: &Server, target: &str, initiator: &str) -> Option<u16> {
    Login::new().target(&named(target)).initiator(initiator).try_on(router.portal()).err()
}

fn ls(router: &Server, user: &str) -> ToolOutput {
    lunar(&["ls", &format!("iscsi://{user}{}/{}?login_tries=1", router.portal(), named("bob"))])
}

#[test]
fn access_list_rejections_are_counted() {
    let storage = storage();
    let router = guarded(&storage);
    drop(session(router.portal(), &named("all"), &[0, 3]));
    let (lab, other) = ("iqn.2026-11.org.example:lab-7", "iqn.2026-11.org.example:office");
    for target in ["none", "here", "far", "lab", "both", "bob", "look"] {
        until("its disk is found", || (refused(&router, target, lab) != Some(0x0301)).then_some(()));
    }
    let before = r1(&router);
    for (target, initiator, status) in [
        ("all", other, None),
        ("none", other, Some(FORBIDDEN)),
        ("here", other, None),
        ("far", lab, Some(FORBIDDEN)),
        ("lab", lab, None),
        ("lab", other, Some(FORBIDDEN)),
        ("both", lab, None),
        ("both", other, Some(FORBIDDEN)),
        ("absent", lab, Some(NOT_FOUND)),
    ] {
        let got = refused(&router, target, initiator);
        assert_eq!(got, status, "{initiator} at {target}: {got:04x?}");
    }
    let mut reader = session(router.portal(), &named("look"), &[0, 3]);
    reader.write_blocks(0, 0, &[1; 512]).check(WRITE_PROTECTED);
    reader.simple(0, &[0x16, 0, 0, 0, 0, 0]).check(WRITE_PROTECTED);
    assert_eq!(reader.manage(LUN_RESET, 0), UNAUTHORIZED, "a reader must not reset the LUN of others");
    let good = ls(&router, &format!("bob%{SECRET}@"));
    assert!(good.ok() && good.said.contains("LUN 3: disk, 8 MiB"), "{}", good.said);
    for user in ["", "bob%another-secret@", "eve%bobs-secret-12@"] {
        assert_eq!(ls(&router, user).status.and_then(|status| status.code()), Some(24), "{user}");
    }
    let now = r1(&router);
    let more = |key: &str| now[key].as_u64().expect(key) - before[key].as_u64().expect(key);
    assert_eq!(more("target_access_failures"), 5, "none, far, lab, both, and absent: {now}");
    assert_eq!(more("authentication_failures"), 3, "{now}");
    assert_eq!(more("logins_accepted"), 4 + 1 + 1, "{now}");
    drop(reader);
    until("no session is left", || (r1(&router)["logins_active"] == 0).then_some(()));
}

#[test]
fn instance_limits_its_sessions() {
    let storage = storage();
    let router = router_to(&url(&storage, &format!("/{A}")), "max_sessions = 2\n");
    let (first, _second) = (session(router.portal(), T, &[0, 3]), session(router.portal(), T, &[0, 3]));
    let third = || Login::new().target(T).try_on(router.portal()).err();
    until("the limit", || (third() == Some(OUT_OF_RESOURCES)).then_some(()));
    assert_eq!(r1(&router)["logins_active"], 2);
    drop(first);
    until("one has left", || third().is_none().then_some(()));
}

#[test]
fn drained_instance_rejects_logins_until_resumed() {
    let storage = storage();
    let router = router_to(&url(&storage, &format!("/{A}")), "");
    let mut raw = session(router.portal(), T, &[0, 3]);
    assert_eq!(r1(&router)["state"], "serving");
    assert_eq!(router.said(&["router", "drain", "r1"]), "router r1: draining\n");
    let request = raw.recv_op(interop::op::ASYNC);
    assert_eq!(request.bhs[36], 1, "the target asks for a logout: {request:?}");
    assert_eq!(raw.logout(0, 0).bhs[2], 0);
    let login = || Login::new().target(T).try_on(router.portal()).err();
    let failures = || r1(&router)["target_access_failures"].as_u64().expect("a count");
    let before = failures();
    assert_eq!((login(), r1(&router)["state"].as_str()), (Some(UNAVAILABLE), Some("draining")));
    assert_eq!(failures(), before + 1);
    assert_eq!(json_output(&router, &["router", "resume", "r1"])["result"], "router r1: serving");
    assert_eq!(login(), None);
    let none = router.asked(&["router", "drain", "r9"]);
    assert!(!none.ok() && none.said.contains("router r9 does not exist"), "{}", none.said);
    let alone = router.asked(&["router", "failover", "r1"]);
    assert!(!alone.ok() && alone.said.contains("has no failover pair"), "{}", alone.said);
}
