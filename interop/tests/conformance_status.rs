//! Login status codes (RFC 7143 section 11.13.5).

use interop::config::{self, target};
use interop::{Login, Raw, Server, TARGET, shared};
use std::thread::sleep;
use std::time::Duration;

const ACCESS: &str = "[[target.access]]\ninitiators = [\"iqn.2026-11.org.example:good*\"]\n";

/// LST-006
#[test]
fn lst_006_an_initiator_without_access_is_not_authorized() {
    let server = Server::start(&config::with("", "", ACCESS));
    assert_eq!(Login::new().try_on(server.portal()).err(), Some(0x0202));
    Login::new().initiator("iqn.2026-11.org.example:good.1").on(server.portal()).ping();
}

/// LST-006: networks restrict access as names do.
#[test]
fn lst_006_a_network_without_access_is_not_authorized() {
    let access = "[[target.access]]\nnetworks = [\"192.0.2.0/24\"]\n";
    let server = Server::start(&config::with("", "", access));
    assert_eq!(Login::new().try_on(server.portal()).err(), Some(0x0202));
}

/// LST-006: portals restrict access as networks do, also in discovery.
#[test]
fn lst_006_a_portal_without_access_is_not_authorized() {
    let access = "[[target.access]]\nportals = [\"127.0.0.2\"]\n";
    let text = config::with("", "", access).replace("\"127.0.0.1:0\"", "\"0.0.0.0:0\"");
    let server = Server::start(&text);
    let port = server.portal().port();
    let targets = |address: [u8; 4]| {
        let answer = Raw::discovery((address, port).into(), &[]).text(&[("SendTargets", "All")]);
        answer.pairs().iter().filter(|(key, _)| key == "TargetName").count()
    };
    Login::new().on(([127, 0, 0, 2], port).into()).ping();
    assert_eq!(Login::new().try_on(([127, 0, 0, 1], port).into()).err(), Some(0x0202));
    assert_eq!([targets([127, 0, 0, 1]), targets([127, 0, 0, 2])], [0, 1]);
}

/// LST-007
#[test]
fn lst_007_an_unknown_target_is_not_found() {
    let server = shared();
    assert_eq!(
        Login::new().target("iqn.2026-11.org.example:disk").try_on(server.portal()).err(),
        Some(0x0203)
    );
    assert_eq!(Login::new().target(&format!("{TARGET}s")).try_on(server.portal()).err(), Some(0x0203));
}

/// LST-008
#[test]
fn lst_008_a_removed_target_is_gone() {
    let other = "iqn.2026-11.org.example:other";
    let mut server = Server::start(&(config::standard() + &target(other, "")));
    Login::new().target(other).on(server.portal()).ping();
    server.rewrite(&config::standard());
    server.signal(1);
    for _ in 0..50 {
        match Login::new().target(other).try_on(server.portal()) {
            Err(status) => return assert!(matches!(status, 0x0203 | 0x0204), "{status:#06x}"),
            Ok(_) => sleep(Duration::from_millis(100)),
        }
    }
    panic!("the target is still there");
}

/// LST-011
#[test]
fn lst_011_names_must_be_given() {
    let server = shared();
    for key in ["InitiatorName", "TargetName"] {
        assert_eq!(Login::new().without(key).try_on(server.portal()).err(), Some(0x0207), "{key}");
    }
    assert_eq!(Login::discovery().without("InitiatorName").try_on(server.portal()).err(), Some(0x0207));
}

/// LST-013
#[test]
fn lst_013_discovery_can_be_disabled() {
    let server = Server::start(&(config::standard() + "[discovery]\nenabled = false\n"));
    assert_eq!(Login::discovery().try_on(server.portal()).err(), Some(0x0209));
    Raw::session(server.portal(), &[]).ping();
}

/// LST-014, SES-001, SES-006
#[test]
fn lst_014_an_unknown_session_does_not_exist() {
    let server = shared();
    assert_eq!(Login::new().session(0x1234, 0).try_on(server.portal()).err(), Some(0x020a), "a new ISID");
    let known = Login::new();
    let mut raw = known.on(server.portal());
    let wrong = known.clone().session(raw.tsih.wrapping_add(1).max(1), 0);
    assert_eq!(wrong.try_on(server.portal()).err(), Some(0x020a), "a known ISID");
    raw.ping();
}

/// LST-017
#[test]
fn lst_017_an_offline_target_is_unavailable() {
    let server = Server::start(&config::with("", "offline = true", ""));
    assert_eq!(Login::new().try_on(server.portal()).err(), Some(0x0301));
}

/// LST-018
#[test]
fn lst_018_no_more_sessions_than_configured() {
    let server = Server::start(&format!("[limits]\nsessions = 2\n{}", config::standard()));
    let mut first = Raw::session(server.portal(), &[]);
    let mut second = Raw::session(server.portal(), &[]);
    assert_eq!(Login::new().try_on(server.portal()).err(), Some(0x0302));
    first.logout(0, 0);
    first.expect_close();
    let retry = || Login::new().try_on(server.portal()).inspect_err(|_| sleep(Duration::from_millis(50)));
    assert!((0..20).any(|_| retry().is_ok()), "a session is free again");
    second.ping();
}

/// LST-018: the limit for each initiator.
#[test]
fn lst_018_no_more_sessions_per_initiator_than_configured() {
    let server = Server::start(&format!("[limits]\nsessions_per_initiator = 1\n{}", config::standard()));
    let mut first = Raw::session(server.portal(), &[]);
    assert_eq!(Login::new().try_on(server.portal()).err(), Some(0x0302));
    Login::new().initiator("iqn.2026-11.org.example:other").on(server.portal()).ping();
    first.ping();
}
