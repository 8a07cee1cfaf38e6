//! Discovery sessions and SendTargets (RFC 7143 sections 4.3, 7.4, 13.3, appendix C).

use interop::config::target;
use interop::{Login, NONE, Pdu, PduOutcome, Raw, Server, TARGET, op, shared};
use std::net::SocketAddr;

const OTHER: &str = "iqn.2026-11.org.example:other";
const HIDDEN: &str = "iqn.2026-11.org.example:hidden";

/// Two portal groups, with two portals and with one, and three targets. Only one initiator has access to the third.
fn three_targets() -> Server {
    let groups = "[session]\nnop_interval_s = 1\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n\
                  [[portal_group]]\ntag = 7\nportals = [\"127.0.0.1:0\"]\n";
    let access = "[[target.access]]\ninitiators = [\"iqn.2026-11.org.example:friend\"]\n";
    let only_first = "portal_groups = [1]";
    Server::start(
        &(groups.to_string()
            + &target(TARGET, only_first)
            + &target(OTHER, "")
            + &target(HIDDEN, "")
            + access),
    )
}

/// Target names with their addresses. Fails on any other key, and on an address before a name.
fn records(answer: &Pdu) -> Vec<(String, Vec<String>)> {
    assert_eq!(answer.opcode(), op::TEXT_RESPONSE, "{answer:?}");
    assert!(answer.data.is_empty() || answer.data.ends_with(b"\0"));
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for (key, value) in answer.pairs() {
        match key.as_str() {
            "TargetName" => all.push((value, Vec::new())),
            "TargetAddress" => all.last_mut().expect("a name first").1.push(value),
            other => panic!("{other} in {answer:?}"),
        }
    }
    all
}

fn send_targets(raw: &mut Raw, value: &str) -> Vec<(String, Vec<String>)> {
    records(&raw.text(&[("SendTargets", value)]))
}

fn addresses(server: &Server, tags: &[u16]) -> Vec<String> {
    server.portals().iter().zip(tags).map(|(p, tag)| format!("{p},{tag}")).collect()
}

/// DSC-001
#[test]
fn dsc_001_discovery_on_every_portal() {
    let server = three_targets();
    for portal in server.portals() {
        let login = Login::discovery();
        let mut raw = login.connect(*portal);
        login.finish(&mut raw, login.request(1, Some(3))).expect("a login");
        assert!(!send_targets(&mut raw, "All").is_empty());
        assert_eq!(raw.logout(0, 0).bhs[2], 0);
    }
}

/// DSC-002
#[test]
fn dsc_002_discovery_sessions_do_nothing_else() {
    let server = three_targets();
    let refused = |build: &dyn Fn(&mut Raw) -> Pdu| {
        let mut raw = Raw::discovery(server.portal(), &[]);
        let pdu = build(&mut raw);
        match raw.outcome(&pdu) {
            PduOutcome::Rejected(4 | 5 | 9) | PduOutcome::Closed => {}
            PduOutcome::Answered(a) if a.opcode() == op::LOGOUT_RESPONSE => assert_ne!(a.bhs[2], 0, "{a:?}"),
            other => panic!("{pdu:?}: {other:?}"),
        }
    };
    refused(&|raw| raw.command(0, 0x80, &[0; 6], 0));
    refused(&|raw| raw.tmf(1, 0, 1, 1));
    refused(&|raw| raw.request(op::NOP_OUT | 0x40).ttt(NONE));
    refused(&|raw| raw.request(op::LOGOUT | 0x40).flags(0x82));
    let mut raw = Raw::discovery(server.portal(), &[]);
    let text = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("MaxBurstLength", "512")]);
    match raw.outcome(&text) {
        PduOutcome::Answered(answer) => assert_eq!(answer.value("MaxBurstLength").as_deref(), Some("Reject")),
        PduOutcome::Rejected(4 | 5 | 9) | PduOutcome::Closed => {}
        other => panic!("{other:?}"),
    }
}

/// DSC-003, DSC-008, DSC-010, DSC-011, KEY-008
#[test]
fn dsc_003_all_lists_what_the_initiator_may_use() {
    let server = three_targets();
    let mut all = send_targets(&mut Raw::discovery(server.portal(), &[]), "All");
    all.sort();
    let wanted = [
        (TARGET.to_string(), addresses(&server, &[1, 1])),
        (OTHER.to_string(), addresses(&server, &[1, 1, 7])),
    ];
    assert_eq!(all, wanted);
    let mut friend = Login::discovery().initiator("iqn.2026-11.org.example:friend").on(server.portal());
    assert_eq!(send_targets(&mut friend, "All").len(), 3);
}

/// DSC-004, DSC-006
#[test]
fn dsc_004_a_normal_session_sees_its_own_target_only() {
    let server = three_targets();
    let mut raw = Login::new().on(server.portal());
    let own = [(TARGET.to_string(), addresses(&server, &[1, 1]))];
    assert_eq!(send_targets(&mut raw, ""), own);
    assert_eq!(send_targets(&mut raw, TARGET), own);
    for value in ["All", OTHER] {
        let mut raw = Login::new().on(server.portal());
        let text = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("SendTargets", value)]);
        match raw.outcome(&text) {
            PduOutcome::Answered(answer) => {
                assert!(!answer.pairs().iter().any(|(_, v)| v == OTHER || v == HIDDEN))
            }
            PduOutcome::Rejected(_) | PduOutcome::Closed => {}
        }
    }
}

/// DSC-005
#[test]
fn dsc_005_one_target_by_name() {
    let server = three_targets();
    let mut raw = Raw::discovery(server.portal(), &[]);
    assert_eq!(send_targets(&mut raw, OTHER), [(OTHER.to_string(), addresses(&server, &[1, 1, 7]))]);
    let in_capitals = OTHER.to_uppercase();
    assert_eq!(send_targets(&mut raw, &in_capitals), [(OTHER.to_string(), addresses(&server, &[1, 1, 7]))]);
    for name in [HIDDEN, "iqn.2026-11.org.example:absent", "rubbish"] {
        let mut raw = Raw::discovery(server.portal(), &[]);
        let text = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("SendTargets", name)]);
        if let PduOutcome::Answered(answer) = raw.outcome(&text) {
            assert!(answer.pairs().iter().all(|(k, v)| k == "SendTargets" && v == "Reject"), "{answer:?}");
        }
    }
}

/// DSC-007: the rule binds initiators. A target that receives more keys answers all of them.
#[test]
fn dsc_007_send_targets_with_another_key() {
    let server = shared();
    let mut raw = Raw::discovery(server.portal(), &[]);
    let text =
        raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("SendTargets", "All"), ("X-com.example.a", "1")]);
    let PduOutcome::Answered(answer) = raw.outcome(&text) else { panic!("no answer") };
    assert_eq!(answer.value("X-com.example.a").as_deref(), Some("NotUnderstood"));
    assert_eq!(answer.value("TargetName").as_deref(), Some(TARGET));
}

/// DSC-009
#[test]
fn dsc_009_initiator_without_access_gets_no_target() {
    let access = "[[target.access]]\ninitiators = [\"iqn.2026-11.org.example:friend\"]\n";
    let server = Server::start(&interop::config::with("", "", access));
    let mut raw = Raw::discovery(server.portal(), &[]);
    let answer = raw.text(&[("SendTargets", "All")]);
    assert_eq!((answer.opcode(), answer.is_final(), answer.data.len()), (op::TEXT_RESPONSE, true, 0));
}

/// DSC-011, KEY-008: an advertised address replaces the bound one; IPv6 addresses are in brackets.
#[test]
fn dsc_011_advertised_addresses() {
    let portals = "portals = [{ listen = \"127.0.0.1:0\", advertise = \"192.0.2.1:3333\" }, \
                   { listen = \"127.0.0.1:0\", advertise = \"[2001:db8::1]:3260\" }, \"127.0.0.1:0\"]";
    let server = Server::start(&interop::config::standard().replace("portals = [\"127.0.0.1:0\"]", portals));
    let all = send_targets(&mut Raw::discovery(server.portal(), &[]), "All");
    let last = format!("{},1", server.portals()[2]);
    assert_eq!(
        all,
        [(TARGET.to_string(), vec!["192.0.2.1:3333,1".into(), "[2001:db8::1]:3260,1".into(), last])]
    );
}

/// DSC-011: an initiator on IPv4 gets no address of an IPv6-only portal, and vice versa. It gets no target that has
/// only such portals.
#[test]
fn dsc_011_portals_for_all_addresses_of_both_families() {
    let portals = "portals = [\"0.0.0.0:0\", \"[::]:0\"]";
    let standard = interop::config::standard().replace("portals = [\"127.0.0.1:0\"]", portals);
    let far = "[[portal_group]]\ntag = 2\nportals = [\"[::]:0\"]\n";
    let far = format!("{far}{}", target("iqn.2026-11.org.example:far", "portal_groups = [2]\n"));
    let server = Server::start(&format!("{standard}{far}"));
    let ports: Vec<u16> = server.portals().iter().map(SocketAddr::port).collect();
    let targets_at = |host: &str| {
        let portal = format!("{host}:{}", ports[usize::from(host != "127.0.0.1")]);
        send_targets(&mut Raw::discovery(portal.parse().expect("an address"), &[]), "All")
    };
    assert_eq!(targets_at("127.0.0.1"), [(TARGET.to_string(), vec![format!("127.0.0.1:{},1", ports[0])])]);
    let mut by_v6 = targets_at("[::1]");
    by_v6.sort();
    let far = ("iqn.2026-11.org.example:far".to_string(), vec![format!("[::1]:{},2", ports[2])]);
    assert_eq!(
        by_v6,
        [(TARGET.to_string(), vec![format!("[::1]:{},1", ports[1]), format!("[::1]:{},2", ports[2])]), far]
    );
}

/// DSC-012, TXT-004
#[test]
fn dsc_012_a_thousand_targets_in_pieces_of_512() {
    let group = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n".to_string();
    let names: Vec<String> = (0..1000).map(|i| format!("iqn.2026-11.org.example:disk.{i:04}")).collect();
    let server = Server::start(&names.iter().fold(group, |toml, name| toml + &target(name, "")));
    let mut raw = Raw::discovery(server.portal(), &[("MaxRecvDataSegmentLength", "512")]);
    let mut whole = Pdu::new(op::TEXT_RESPONSE);
    let first = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("SendTargets", "All")]);
    let mut answer = raw.ask(&first);
    let mut count = 0;
    loop {
        assert_eq!(answer.opcode(), op::TEXT_RESPONSE, "{answer:?}");
        whole.data.extend_from_slice(&answer.data);
        count += 1;
        if answer.is_final() {
            break;
        }
        assert!(!answer.data.is_empty() && answer.data.len() <= 512);
        let next = raw.request(op::TEXT | 0x40).itt(first.tag()).ttt(answer.transfer_tag());
        answer = raw.ask(&next.bytes(8, &answer.bhs[8..16]));
    }
    assert!(count > 100, "{count} pieces");
    let mut found = records(&whole);
    found.sort();
    assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names);
    assert!(found.iter().all(|(_, a)| *a == [format!("{},1", server.portal())]));
}

/// DSC-014
#[test]
fn dsc_014_unnamed_discovery_sessions_by_portal() {
    let server = three_targets();
    let login = Login::discovery();
    let mut first = login.on(server.portals()[0]);
    let mut second = login.on(server.portals()[0]);
    first.expect_close();
    let mut third = login.on(server.portals()[1]);
    assert!(!send_targets(&mut second, "All").is_empty());
    assert!(!send_targets(&mut third, "All").is_empty());
}

/// DSC-015
#[test]
fn dsc_015_named_discovery_sessions_are_reinstated() {
    let server = three_targets();
    let login = Login::new();
    let mut first = login.clone().key("SessionType", "Discovery").on(server.portal());
    let mut second = login.on(server.portal());
    first.expect_close();
    second.ping();
}

/// DSC-016: no NOP-In, although the keepalive interval of this server is one second.
#[test]
fn dsc_016_an_idle_discovery_session_is_silent() {
    let server = three_targets();
    let mut raw = Raw::discovery(server.portal(), &[]);
    match raw.get(std::time::Duration::from_millis(2500)) {
        interop::Received::Nothing | interop::Received::Closed => {}
        other => panic!("{other:?}"),
    }
}
