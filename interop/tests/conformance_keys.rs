//! Text keys (RFC 7143 section 13).

use interop::config::{self, with};
use interop::scsi::{READ, pattern, read10, write10};
use interop::{KeyResponse, Login, NONE, PduOutcome, Raw, Server, TARGET, negotiate, op, shared};

/// KEY-002
#[test]
fn key_002_one_connection_per_session() {
    let server = shared();
    assert_eq!(negotiate(server.portal(), "MaxConnections", "8").number(), 1);
    assert_eq!(negotiate(server.portal(), "MaxConnections", "1").number(), 1);
    for value in ["0", "65536"] {
        assert!(negotiate(server.portal(), "MaxConnections", value).refused(), "{value}");
    }
}

/// KEY-003
#[test]
fn key_003_send_targets_belongs_to_full_feature_phase() {
    let server = shared();
    for login in [Login::new(), Login::discovery()] {
        let status = login.key("SendTargets", "All").try_on(server.portal()).err();
        assert_eq!(status, Some(0x0200));
    }
    let answer = Raw::discovery(server.portal(), &[]).text(&[("SendTargets", "All")]);
    assert_eq!(answer.pairs()[0], ("TargetName".into(), TARGET.into()));
}

/// KEY-006
#[test]
fn key_006_the_alias_of_the_target() {
    let alias = "Disk Zürich 1";
    let server = Server::start(&with("", &format!("alias = \"{alias}\""), ""));
    let pairs = Login::new().answers(server.portal(), &[]).expect("a login");
    assert!(pairs.contains(&("TargetAlias".into(), alias.into())), "{pairs:?}");
    let status = Login::new().target(alias).try_on(server.portal()).err();
    assert!(matches!(status, Some(0x0200 | 0x0203)), "an alias is no name: {status:#06x?}");
}

/// KEY-007
#[test]
fn key_007_the_alias_of_the_initiator_changes_nothing() {
    let server = shared();
    let alias = "ü".repeat(127);
    Login::new().key("InitiatorAlias", &alias).on(server.portal()).ping();
}

/// KEY-009
#[test]
fn key_009_portal_group_tags() {
    for tag in [1, 65535] {
        let server = Server::start(&config::standard().replace("tag = 1", &format!("tag = {tag}")));
        let pairs = Login::new().answers(server.portal(), &[]).expect("a login");
        assert!(pairs.contains(&("TargetPortalGroupTag".into(), tag.to_string())), "{pairs:?}");
    }
    let server = shared();
    assert!(negotiate(server.portal(), "TargetPortalGroupTag", "1").refused());
}

/// KEY-010, KEY-011: the four combinations of offer and configuration, and the data that they permit.
#[test]
fn key_010_initial_r2t_and_immediate_data() {
    for ours in ["true", "false"] {
        let server = Server::start(&with(&format!("initial_r2t = {ours}\nimmediate_data = {ours}"), "", ""));
        for offer in ["Yes", "No"] {
            let mut raw = Raw::session(server.portal(), &[("InitialR2T", offer), ("ImmediateData", offer)]);
            assert_eq!(raw.initial_r2t, ours == "true" || offer == "Yes", "OR of {ours} and {offer}");
            assert_eq!(raw.immediate_data, ours == "true" && offer == "Yes", "AND of {ours} and {offer}");
            let bytes = pattern(8192, 1);
            raw.write_blocks(0, 0, &bytes).good();
            assert!(raw.read_blocks(0, 0, 16) == bytes);
        }
        let both = Login::new().answers(server.portal(), &[("InitialR2T", "No"), ("ImmediateData", "Yes")]);
        let both = both.expect("a login");
        for key in ["InitialR2T", "ImmediateData"] {
            let answer = if ours == "true" { "Yes" } else { "No" };
            assert!(both.contains(&(key.into(), answer.into())), "{both:?}");
        }
    }
}

/// KEY-012
#[test]
fn key_012_max_recv_data_segment_length() {
    let server = shared();
    for value in ["511", "16777216", "0"] {
        assert!(negotiate(server.portal(), "MaxRecvDataSegmentLength", value).refused(), "{value}");
    }
    for value in ["512", "16777215"] {
        let mut raw = Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", value)]);
        let reply = raw.read(0, &read10(0, 1024), 524288);
        let longest = reply.pdus.iter().map(|p| p.data.len()).max().expect("data");
        assert!(longest <= value.parse().expect("a number"), "{longest}");
        assert_eq!(reply.good().len(), 524288);
    }
}

/// Offers and their answers under the standard configuration: minimum, maximum, AND, OR and lists.
const TABLE: &[(&str, &str, &str)] = &[
    ("MaxBurstLength", "512", "512"),
    ("MaxBurstLength", "16777215", "1048576"),
    ("FirstBurstLength", "512", "512"),
    ("DefaultTime2Wait", "0", "2"),
    ("DefaultTime2Wait", "2", "2"),
    ("DefaultTime2Wait", "5", "5"),
    ("DefaultTime2Wait", "3600", "3600"),
    ("DefaultTime2Retain", "0", "0"),
    ("DefaultTime2Retain", "7", "7"),
    ("DefaultTime2Retain", "60", "20"),
    ("MaxOutstandingR2T", "1", "1"),
    ("MaxOutstandingR2T", "65535", "8"),
    ("ErrorRecoveryLevel", "0", "0"),
    ("ErrorRecoveryLevel", "1", "0"),
    ("ErrorRecoveryLevel", "2", "0"),
    ("iSCSIProtocolLevel", "0", "0"),
    ("iSCSIProtocolLevel", "1", "1"),
    ("iSCSIProtocolLevel", "2", "1"),
    ("iSCSIProtocolLevel", "31", "1"),
    ("TaskReporting", "RFC3720,ResponseFence,FastAbort", "RFC3720"),
    ("TaskReporting", "ResponseFence,RFC3720", "ResponseFence"),
    ("TaskReporting", "RFC3720", "RFC3720"),
    ("TaskReporting", "FastAbort,ResponseFence,RFC3720", "FastAbort"),
    ("IFMarker", "Yes", "No"),
    ("IFMarker", "No", "No"),
    ("OFMarker", "Yes", "No"),
    ("OFMarker", "No", "No"),
    ("IFMarkInt", "2048~8192", "Reject"),
    ("OFMarkInt", "2048~8192", "Reject"),
    ("OFMarkInt", "2048", "Reject"),
];

const OUT_OF_RANGE: &[(&str, &str)] = &[
    ("MaxBurstLength", "511"),
    ("MaxBurstLength", "16777216"),
    ("FirstBurstLength", "511"),
    ("FirstBurstLength", "16777216"),
    ("DefaultTime2Wait", "3601"),
    ("DefaultTime2Retain", "3601"),
    ("MaxOutstandingR2T", "0"),
    ("MaxOutstandingR2T", "65536"),
    ("ErrorRecoveryLevel", "3"),
    ("iSCSIProtocolLevel", "32"),
    ("TaskReporting", "Y-com.example.none"),
];

/// KEY-013, KEY-014, KEY-015, KEY-016, KEY-017, KEY-020, KEY-022, KEY-023, KEY-024, KEY-025, LST-004
#[test]
fn key_013_answers_by_table() {
    let server = shared();
    for (key, offer, answer) in TABLE {
        assert_eq!(
            negotiate(server.portal(), key, offer),
            KeyResponse::Value(answer.to_string()),
            "{key}={offer}"
        );
    }
    for (key, offer) in OUT_OF_RANGE {
        assert!(negotiate(server.portal(), key, offer).refused(), "{key}={offer}");
    }
}

/// KEY-013: bursts obey the result in both directions.
#[test]
fn key_013_bursts_obey_the_negotiated_length() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxBurstLength", "1024"), ("ImmediateData", "No")]);
    let bytes = pattern(8192, 2);
    let reply = raw.write_blocks(0, 0, &bytes);
    assert!(reply.r2ts().iter().all(|r| r.get32(44) <= 1024), "{:?}", reply.pdus);
    reply.good();
    let reply = raw.read(0, &read10(0, 16), 8192);
    let mut burst = 0;
    for pdu in reply.pdus.iter().filter(|p| p.opcode() == op::DATA_IN) {
        burst += pdu.data.len();
        assert!(burst <= 1024, "{burst}");
        burst = if pdu.is_final() { 0 } else { burst };
    }
    assert!(reply.good() == bytes);
}

/// KEY-018, KEY-019
#[test]
fn key_018_data_in_order() {
    let server = shared();
    for key in ["DataPDUInOrder", "DataSequenceInOrder"] {
        for offer in ["Yes", "No"] {
            match negotiate(server.portal(), key, offer) {
                KeyResponse::Value(v) => {
                    assert!(v == "Yes" || v == "No" && offer == "No", "{key}={offer}: {v}")
                }
                KeyResponse::Silence => {
                    assert_eq!(offer, "Yes", "only the value that decides may go unanswered")
                }
                KeyResponse::Failed(status) => panic!("{key}={offer}: {status:#06x}"),
            }
        }
    }
    let mut raw = Raw::session(server.portal(), &[("MaxBurstLength", "2048")]);
    let reply = raw.read(0, &read10(0, 64), 32768);
    let mut at = 0;
    for pdu in reply.pdus.iter().filter(|p| p.opcode() == op::DATA_IN) {
        assert_eq!(pdu.get32(40), at);
        at += pdu.data.len() as u32;
    }
    let mut raw = Raw::session(server.portal(), &[("MaxBurstLength", "2048"), ("ImmediateData", "No")]);
    let offsets: Vec<u32> = raw.write_blocks(0, 0, &[1; 16384]).r2ts().iter().map(|r| r.get32(40)).collect();
    assert!(offsets.is_sorted() && offsets[0] == 0, "{offsets:?}");
}

/// KEY-021
#[test]
fn key_021_session_types() {
    let server = shared();
    Login::new().key("SessionType", "Discovery").without("TargetName").on(server.portal());
    Login::new().key("SessionType", "Discovery").on(server.portal());
    Login::new().without("SessionType").on(server.portal()).ping();
    let status = Login::new().key("SessionType", "Backup").try_on(server.portal()).err();
    assert!(matches!(status, Some(0x0209 | 0x0200)), "{status:#06x?}");
}

/// KEY-027
#[test]
fn key_027_node_architecture_is_taken_in_silence() {
    let server = shared();
    let key = "X#NodeArchitecture";
    for value in ["AHSL", &"a".repeat(255)] {
        let answer = negotiate(server.portal(), key, value);
        assert!(matches!(answer, KeyResponse::Silence) || answer.is("NotUnderstood"), "{answer:?}");
    }
    let answer = negotiate(server.portal(), key, &"a".repeat(256));
    assert!(answer == KeyResponse::Silence || answer.is("NotUnderstood") || answer.refused(), "{answer:?}");
    let login = Login::new().key(key, "AHSL");
    let mut twice = login.request(1, Some(3));
    twice.data.extend_from_slice(format!("{key}=AHSL\0").as_bytes());
    assert_eq!(login.connect(server.portal()).login(&twice).status(), 0x0200);
    let pairs = Login::new().answers(server.portal(), &[]).expect("a login");
    assert!(pairs.iter().all(|(k, _)| !k.starts_with("X")), "the target declares an X key: {pairs:?}");
}

/// KEY-037
#[test]
fn key_037_login_keys_are_refused_in_full_feature_phase() {
    let server = shared();
    for (key, value) in [
        ("MaxBurstLength", "512"),
        ("FirstBurstLength", "512"),
        ("HeaderDigest", "CRC32C"),
        ("InitialR2T", "No"),
        ("ErrorRecoveryLevel", "0"),
        ("InitiatorName", interop::INITIATOR),
        ("AuthMethod", "None"),
        ("MaxConnections", "1"),
        ("TaskReporting", "RFC3720"),
    ] {
        let mut raw = Raw::session(server.portal(), &[]);
        let text = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[(key, value)]);
        match raw.outcome(&text) {
            PduOutcome::Answered(answer) => assert_eq!(answer.value(key).as_deref(), Some("Reject"), "{key}"),
            PduOutcome::Rejected(reason) => assert_eq!(reason, 4, "{key}"),
            PduOutcome::Closed => continue,
        }
        let write = raw.command(0, 0x80 | 0x20, &write10(0, 64), 32768);
        raw.send(&write);
        let r2t = raw.recv_for(write.tag());
        assert_eq!((r2t.opcode(), r2t.get32(44)), (op::R2T, 32768), "a negotiated value changed: {r2t:?}");
    }
}

/// KEY-038
#[test]
fn key_038_discovery_has_level_zero_and_one_connection() {
    let server = shared();
    let keys = [("ErrorRecoveryLevel", "2"), ("MaxConnections", "4")];
    let pairs = Login::discovery().answers(server.portal(), &keys).expect("a login");
    let value = |key: &str| pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    assert_eq!(value("ErrorRecoveryLevel"), Some("0"));
    assert!(matches!(value("MaxConnections"), Some("1" | "Irrelevant")), "{pairs:?}");
}

/// KEY-036: the target sends longer segments only after the exchange.
#[test]
fn key_036_segments_grow_in_full_feature_phase() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", "512")]);
    raw.receive_max = 65536;
    let read = raw.command(0, 0x80 | READ, &read10(0, 64), 32768);
    assert!(raw.execute(&read, &[]).pdus.iter().all(|p| p.data.len() <= 512));
    raw.text(&[("MaxRecvDataSegmentLength", "65536")]);
    let reply = raw.read(0, &read10(0, 64), 32768);
    assert_eq!(reply.pdus[0].data.len(), 32768);
}
