//! The Login Phase and its stages (RFC 7143 sections 6.3, 11.12, 11.13).

use interop::{Login, NONE, Pdu, PduOutcome, Raw, Received, Server, config, op, shared};
use std::time::Duration;

const C: u8 = 0x40;

/// Keys that one side only declares. They never answer an offer.
const DECLARED: [&str; 4] =
    ["TargetPortalGroupTag", "TargetAlias", "MaxRecvDataSegmentLength", "TargetAddress"];

/// LOG-001
#[test]
fn log_001_anything_before_login_ends_the_connection() {
    let server = shared();
    for opcode in
        [op::NOP_OUT, op::SCSI, op::TMF, op::TEXT, op::DATA_OUT, op::LOGOUT, op::SNACK, 0x0a, 0x23, 0x3f]
    {
        let mut raw = Raw::connect(server.portal());
        raw.send(&Pdu::new(opcode | 0x40).itt(1).ttt(NONE));
        raw.expect_close();
    }
}

/// LOG-002, LST-015
#[test]
fn log_002_other_requests_during_login_are_refused() {
    let server = shared();
    for opcode in [op::SCSI, op::TEXT, op::NOP_OUT] {
        let login = Login::new();
        let mut raw = login.connect(server.portal());
        assert_eq!(raw.login(&login.request(1, None)).status(), 0);
        raw.send(&Pdu::new(opcode | 0x40).itt(1).ttt(NONE).cmd_sn(1));
        let answer = raw.recv();
        assert_eq!((answer.opcode(), answer.status()), (op::LOGIN_RESPONSE, 0x020b), "{answer:?}");
        raw.expect_close();
    }
}

/// LOG-004
#[test]
fn log_004_no_second_login_phase() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let again = Login::new().request(1, Some(3));
    raw.outcome(&again).refused(&[4, 5, 9, 0xb]);
}

/// LOG-005
#[test]
fn log_005_pipelined_requests_are_ordered_or_refused() {
    let server = shared();
    let login = Login::new();
    let mut raw = login.connect(server.portal());
    raw.send_all(&[login.request(0, Some(1)), login.empty(1, Some(3)).exp_stat_sn(1)]);
    let first = raw.recv();
    if first.status() != 0 {
        return raw.expect_close();
    }
    assert_eq!(first.bhs[1], 0x81, "the answer to the first: {first:?}");
    match raw.next_outcome() {
        PduOutcome::Answered(second) if second.status() == 0 => assert_eq!(second.bhs[1], 0x87),
        PduOutcome::Answered(_) => raw.expect_close(),
        PduOutcome::Closed => {}
        other => panic!("{other:?}"),
    }
}

/// LOG-009
#[test]
fn log_009_security_comes_before_operational() {
    let server = shared();
    let login = Login::new();
    let mut raw = login.connect(server.portal());
    assert_eq!(raw.login(&login.request(1, None)).status(), 0);
    assert_eq!(raw.login(&login.empty(0, Some(1))).status(), 0x0200);
    raw.expect_close();
}

/// LOG-010
#[test]
fn log_010_stage_transitions() {
    let server = shared();
    let login = Login::new();
    for (csg, nsg) in [(0, 0), (1, 0), (1, 1), (2, 3), (3, 3), (0, 2), (1, 2), (2, 2), (3, 1)] {
        let mut raw = login.connect(server.portal());
        raw.send(&login.request(csg, Some(nsg)));
        let answer = raw.recv();
        assert_eq!(
            (answer.opcode(), answer.status()),
            (op::LOGIN_RESPONSE, 0x0200),
            "{csg} to {nsg}: {answer:?}"
        );
        raw.expect_close();
    }
    for (csg, nsg, flags) in [(0, 1, 0x81), (0, 3, 0x83), (1, 3, 0x87)] {
        let answer = login.connect(server.portal()).login(&login.request(csg, Some(nsg)));
        assert_eq!((answer.status(), answer.bhs[1]), (0, flags), "{csg} to {nsg}");
    }
    let mut raw = login.connect(server.portal());
    let answer = raw.login(&login.request(1, None).flags(0x07));
    assert_eq!((answer.status(), answer.bhs[1] & 0x8c), (0, 0x04), "NSG without T does not change the stage");
    assert_eq!(raw.login(&login.empty(1, Some(3))).bhs[1], 0x87);
}

/// LOG-011, LOG-012, LOG-013, LOG-016, LOG-022, LOG-027, LST-001: the client checks status 0000h and the CSG of each
/// response. It also checks that StatSN continues from response to response and into the full feature phase.
#[test]
fn log_011_a_login_in_three_steps() {
    let server = shared();
    let login = Login::new().key("AuthMethod", "None");
    let mut raw = login.connect(server.portal());
    let step = |raw: &mut Raw, pdu: Pdu| {
        let answer = raw.login(&pdu);
        assert_eq!(answer.status(), 0);
        (answer.bhs[1], answer.get16(14), answer.stat_sn())
    };
    let (flags, tsih, first) = step(&mut raw, login.request(0, None));
    assert_eq!((flags & 0x80, tsih), (0, 0), "T=0 is answered by T=0");
    assert_eq!(step(&mut raw, login.empty(0, Some(1))), (0x81, 0, first.wrapping_add(1)), "NSG as proposed");
    let (flags, tsih, stat_sn) = step(&mut raw, login.empty(1, None).keys(&[("ImmediateData", "Yes")]));
    assert_eq!((flags & 0x80, tsih, stat_sn), (0, 0, first.wrapping_add(2)));
    let (flags, tsih, stat_sn) = step(&mut raw, login.empty(1, Some(3)));
    assert_eq!((flags, stat_sn), (0x87, first.wrapping_add(3)));
    assert_ne!(tsih, 0);
    raw.ping();
    assert_eq!(raw.exp_stat_sn, first.wrapping_add(5));
}

/// LOG-014
#[test]
fn log_014_a_final_answer_asks_for_nothing() {
    let server = shared();
    let pairs = Login::new().answers(server.portal(), &[("ImmediateData", "Yes")]).expect("a login");
    for (key, _) in pairs {
        assert!(key == "ImmediateData" || DECLARED.contains(&key.as_str()), "{key} needs an answer");
    }
}

/// LOG-017
#[test]
fn log_017_continue_excludes_transit() {
    let server = shared();
    let login = Login::new();
    let mut raw = login.connect(server.portal());
    let answer = raw.login(&login.request(1, None).flags(0x80 | C | 0x07));
    assert_eq!(answer.status(), 0x0200);
    raw.expect_close();
}

/// LOG-018, LOG-029
#[test]
fn log_018_continued_text_is_answered_when_complete() {
    let server = shared();
    let login = Login::new().key("ImmediateData", "No");
    let whole = login.request(1, None);
    let mut raw = login.connect(server.portal());
    let third = whole.data.len() / 3;
    for part in [&whole.data[..third], &whole.data[third..2 * third]] {
        let answer = raw.login(&login.empty(1, None).flags(C | 4).data(part));
        assert_eq!((answer.status(), answer.bhs[1] & 0xc0, answer.data.len()), (0, 0, 0), "{answer:?}");
    }
    let answer = raw.login(&login.empty(1, Some(3)).data(&whole.data[2 * third..]));
    assert_eq!(answer.value("TargetPortalGroupTag").as_deref(), Some("1"));
    assert_eq!((answer.bhs[1], answer.value("ImmediateData").as_deref()), (0x87, Some("No")));
}

/// LOG-019, LOG-020, LST-009
#[test]
fn log_019_versions() {
    let server = shared();
    let login = Login::new();
    let mut raw = login.connect(server.portal());
    let answer = raw.login(&login.request(1, None).byte(2, 5));
    assert_eq!((answer.status(), answer.bhs[2], answer.bhs[3]), (0, 0, 0), "the versions 0 to 5 include 0");
    let changed = raw.login(&login.empty(1, Some(3)).byte(2, 7).byte(3, 3));
    assert!(changed.status() >> 8 == 2 || (changed.bhs[2], changed.bhs[3]) == (0, 0), "{changed:?}");
    let mut raw = login.connect(server.portal());
    let answer = raw.login(&login.request(1, Some(3)).byte(2, 1).byte(3, 1));
    assert_eq!((answer.status(), answer.bhs[3]), (0x0205, 0));
    raw.expect_close();
}

/// LOG-025
#[test]
fn log_025_the_login_sets_exp_cmd_sn() {
    let server = shared();
    for cmd_sn in [0, 1, 0x7fff_ffff, 0xffff_ffff] {
        let login = Login::new().cmd_sn(cmd_sn);
        let mut raw = login.connect(server.portal());
        assert_eq!(raw.login(&login.request(1, None)).exp_cmd_sn(), cmd_sn);
        assert_eq!(raw.login(&login.empty(1, Some(3))).exp_cmd_sn(), cmd_sn);
        raw.clear_attentions(0);
        raw.simple(0, &[0; 6]).good();
    }
}

/// LOG-029
#[test]
fn log_029_the_portal_group_tag_comes_once_and_first() {
    let server = shared();
    let login = Login::new();
    let mut raw = login.connect(server.portal());
    let first = raw.login(&login.request(0, Some(1)));
    assert_eq!(first.value("TargetPortalGroupTag").as_deref(), Some("1"));
    let last = raw.login(&login.empty(1, Some(3)));
    assert_eq!((last.bhs[1], last.value("TargetPortalGroupTag")), (0x87, None));
}

/// LOG-032
#[test]
fn log_032_logins_without_security() {
    let server = shared();
    let names = Login::new().without("SessionType");
    let mut raw = names.connect(server.portal());
    let answer = raw.login(&names.request(0, Some(1)));
    assert_eq!((answer.status(), answer.bhs[1]), (0, 0x81));
    assert!(
        answer.pairs().iter().all(|(k, _)| k == "TargetPortalGroupTag" || k == "TargetAlias"),
        "{answer:?}"
    );
    names.finish(&mut raw, names.empty(1, Some(3))).expect("a login");
    raw.ping();
    let mut raw = names.connect(server.portal());
    assert_eq!(raw.login(&names.request(1, Some(3))).bhs[1], 0x87, "in one exchange");
}

/// LOG-033, SEC-019
#[test]
fn log_033_keys_outside_their_stage() {
    let server = shared();
    let login = Login::new();
    for (csg, nsg, key, value) in [
        (0, 1, "MaxBurstLength", "65536"),
        (0, 1, "DataDigest", "None"),
        (1, 3, "CHAP_A", "5"),
        (1, 3, "AuthMethod", "CHAP"),
    ] {
        let mut raw = login.connect(server.portal());
        let answer = raw.login(&login.clone().key(key, value).request(csg, Some(nsg)));
        assert_eq!(answer.status(), 0x0200, "{key} in stage {csg}");
        raw.expect_close();
    }
}

/// LOG-034, LST-004, KEY-004, KEY-005
#[test]
fn log_034_a_key_comes_once() {
    let server = shared();
    for (key, value) in
        [("ImmediateData", "Yes"), ("InitiatorName", interop::INITIATOR), ("TargetName", interop::TARGET)]
    {
        let login = Login::new().key(key, value);
        let mut raw = login.connect(server.portal());
        let mut twice = login.request(1, Some(3));
        twice.data.extend_from_slice(format!("{key}={value}\0").as_bytes());
        assert_eq!(raw.login(&twice).status(), 0x0200, "{key} twice in one PDU");
        raw.expect_close();
        let mut raw = login.connect(server.portal());
        assert_eq!(raw.login(&login.request(1, None)).status(), 0);
        assert_eq!(
            raw.login(&login.empty(1, Some(3)).keys(&[(key, value)])).status(),
            0x0200,
            "{key} in two PDUs"
        );
        raw.expect_close();
    }
}

/// LOG-035, NEG-014
#[test]
fn log_035_a_failed_negotiation_fails_the_login() {
    let server = shared();
    let login = Login::new().key("HeaderDigest", "Y-com.example.none");
    let mut raw = login.connect(server.portal());
    match login.finish(&mut raw, login.request(1, Some(3))) {
        Err(status) => assert_eq!(status >> 8, 2),
        Ok(pairs) => {
            assert!(pairs.contains(&("HeaderDigest".into(), "Reject".into())), "{pairs:?}");
            assert!(!raw.header_digest, "the default stays in force");
            raw.ping();
        }
    }
}

/// LOG-036: a rejected login ends its own connection, and no other.
#[test]
fn log_036_a_refused_login_closes() {
    let server = shared();
    let mut neighbour = Raw::session(server.portal(), &[]);
    let none = "iqn.2026-11.org.example:none";
    for (login, status) in [
        (Login::new().target(none), 0x0203),
        (Login::new().without("InitiatorName"), 0x0207),
        (Login::new().session(77, 0), 0x020a),
        (Login::new().key("ErrorRecoveryLevel", "9"), 0x0200),
    ] {
        assert_eq!(login.try_on(server.portal()).err(), Some(status), "{:?}", login.keys);
    }
    neighbour.ping();
}

/// LOG-037, LST-002, LST-003
#[test]
fn log_037_redirections() {
    for (to, permanent, status) in [
        ("192.0.2.9:3260", false, 0x0101),
        ("192.0.2.9:3260", true, 0x0102),
        ("[2001:db8::9]:3261", false, 0x0101),
    ] {
        let redirect = format!("redirect = [{{ portal_group = 1, to = \"{to}\", permanent = {permanent} }}]");
        let server = Server::start(&config::with("", &redirect, ""));
        let login = Login::new();
        let mut raw = login.connect(server.portal());
        let answer = raw.login(&login.request(0, Some(1)));
        assert_eq!(answer.status(), status);
        assert_eq!(answer.value("TargetAddress").as_deref(), Some(to));
        raw.expect_close();
        Raw::discovery(server.portal(), &[]);
    }
}

/// LOG-040: the answers do not fit into one Login Response. The client checks the default limit of 8192 bytes.
#[test]
fn log_040_login_answers_obey_the_default_segment_length() {
    let server = shared();
    let login = Login::new().key("MaxRecvDataSegmentLength", "65536");
    let long = |i: usize| format!("X-com.example.a-key-without-any-meaning-here.{i:04}");
    let keys: Vec<String> = (0..250).map(long).collect();
    let mut text = login.request(1, None).data;
    keys.iter().for_each(|k| text.extend_from_slice(format!("{k}=1\0").as_bytes()));
    let mut raw = login.connect(server.portal());
    let (first, rest) = text.split_at(8192);
    assert!(raw.login(&login.empty(1, None).flags(C | 4).data(first)).data.is_empty());
    let pairs = login.finish(&mut raw, login.empty(1, Some(3)).data(rest)).expect("a login");
    for key in keys {
        assert!(pairs.contains(&(key.clone(), "NotUnderstood".into())), "{key}");
    }
}

/// LOG-041
#[test]
fn log_041_eight_kilobytes_of_keys() {
    let server = shared();
    let mut login = Login::new();
    for i in 0.. {
        if login.request(1, None).data.len() > 8192 - 240 {
            break;
        }
        login = login.key(&format!("X-com.example.k{i}"), &"v".repeat(200));
    }
    let text = login.request(1, None).data;
    let mut raw = login.connect(server.portal());
    let parts: Vec<&[u8]> = text.chunks(1000).collect();
    for part in &parts[..parts.len() - 1] {
        assert!(raw.login(&login.empty(1, None).flags(C | 4).data(part)).data.is_empty());
    }
    login.finish(&mut raw, login.empty(1, Some(3)).data(parts[parts.len() - 1])).expect("a login");
    raw.ping();
}

/// LOG-042
#[test]
fn log_042_six_exchanges_are_fine_and_a_thousand_end() {
    let server = shared();
    let login = Login::new();
    let mut raw = login.connect(server.portal());
    assert_eq!(raw.login(&login.request(1, None)).status(), 0);
    for (key, value) in [
        ("ImmediateData", "Yes"),
        ("InitialR2T", "Yes"),
        ("MaxBurstLength", "65536"),
        ("MaxOutstandingR2T", "1"),
    ] {
        let answer = raw.login(&login.empty(1, None).keys(&[(key, value)]));
        assert_eq!((answer.status(), answer.value(key).as_deref()), (0, Some(value)));
    }
    login.finish(&mut raw, login.empty(1, Some(3))).expect("the sixth exchange");
    let mut raw = login.connect(server.portal());
    raw.login(&login.request(1, None));
    for _ in 0..1000 {
        match raw.outcome(&login.empty(1, None).exp_stat_sn(raw.exp_stat_sn)) {
            PduOutcome::Answered(answer) if answer.status() == 0 => {}
            PduOutcome::Answered(_) => return raw.expect_close(),
            _ => return,
        }
    }
    panic!("a login is still open after a thousand empty exchanges");
}

/// LOG-043
#[test]
fn log_043_a_stalled_login_is_cut() {
    let server = Server::start(&format!("[limits]\nlogin_timeout_s = 1\n{}", config::standard()));
    let login = Login::new();
    let mut silent = login.connect(server.portal());
    let mut halfway = login.connect(server.portal());
    halfway.login(&login.request(1, None));
    let mut in_a_header = login.connect(server.portal());
    in_a_header.send_bytes(&login.request(1, None).encode(false, false)[..20]);
    for raw in [&mut silent, &mut halfway, &mut in_a_header] {
        raw.until_close();
    }
    let mut raw = login.on(server.portal());
    std::thread::sleep(Duration::from_millis(1500));
    assert!(matches!(raw.get(Duration::ZERO), Received::Nothing), "a finished login has no limit");
    raw.ping();
}

/// LOG-014, NEG-012, NEG-021, NEG-023, NEG-028, KEY-039: the client answers the target's own offers one key at a time.
/// The target accepts each valid response, and rejects one that its offer does not allow.
#[test]
fn neg_028_offers_of_the_target() {
    let server = shared();
    let login = Login::new();
    let offers = |raw: &mut Raw| {
        let pairs = raw.login(&login.request(1, None)).pairs();
        pairs.into_iter().filter(|(k, _)| !DECLARED.contains(&k.as_str())).collect::<Vec<_>>()
    };
    let mut raw = login.connect(server.portal());
    let offered = offers(&mut raw);
    let keys: Vec<(&str, &str)> =
        offered.iter().map(|(k, v)| (k.as_str(), v.split(',').next().unwrap_or(v))).collect();
    login.finish(&mut raw, login.empty(1, Some(3)).keys(&keys)).expect("the offers, answered");
    for (key, value) in &offered {
        let wrong = value.parse::<u64>().map_or("Y-com.example.wrong".into(), |n| (n + 1).to_string());
        let mut raw = login.connect(server.portal());
        offers(&mut raw);
        let status = login.finish(&mut raw, login.empty(1, Some(3)).keys(&[(key, &wrong)]));
        assert!(status.is_err_and(|s| s >> 8 == 2), "{key}: offered {value}, answered {wrong}");
    }
    assert!(interop::negotiate(server.portal(), "HeaderDigest", "CRC32C,None").is("CRC32C"));
}
