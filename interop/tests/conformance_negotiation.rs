//! Text format and negotiation rules (RFC 7143 sections 6.1, 6.2).

use interop::scsi::{READ, pattern, read10, write10};
use interop::{KeyResponse, Login, NONE, Pdu, PduOutcome, Raw, negotiate, op, shared};

const C: u8 = 0x40;

/// NEG-001
#[test]
fn neg_001_keys_and_values_are_case_sensitive() {
    let server = shared();
    assert!(negotiate(server.portal(), "immediatedata", "Yes").is("NotUnderstood"));
    assert!(negotiate(server.portal(), "HeaderDigest", "crc32c").refused());
}

/// NEG-002
#[test]
fn neg_002_every_pair_ends_in_one_nul() {
    let server = shared();
    let login = Login::new().key("ImmediateData", "No").key("X-com.example.a", "1");
    let answer = login.connect(server.portal()).login(&login.request(1, Some(3)));
    assert_eq!(answer.data.last(), Some(&0));
    assert!(!answer.data.windows(2).any(|w| w == [0, 0]) && answer.data[0] != 0, "{answer:?}");
}

/// The end of the text also ends its last pair.
#[test]
fn last_pair_without_nul_is_taken() {
    let server = shared();
    let login = Login::new().key("ImmediateData", "No");
    let mut cut = login.request(1, Some(3));
    assert_eq!(cut.data.pop(), Some(0));
    let answer = login.connect(server.portal()).login(&cut);
    assert_eq!((answer.status(), answer.value("ImmediateData").as_deref()), (0, Some("No")));
    let mut raw = Raw::discovery(server.portal(), &[]);
    let text = raw.request(op::TEXT | 0x40).ttt(NONE).data(b"SendTargets=All");
    let PduOutcome::Answered(answer) = raw.outcome(&text) else { panic!("no answer") };
    assert!(answer.value("TargetName").is_some(), "{answer:?}");
}

#[test]
fn initiator_alias_of_300_bytes_logs_in() {
    assert!(!negotiate(shared().portal(), "InitiatorAlias", &"a".repeat(300)).refused());
}

/// NEG-003
#[test]
fn neg_003_names_of_keys() {
    let server = shared();
    let long = format!("X-com.example.{}", "k".repeat(49));
    assert_eq!(long.len(), 63);
    assert!(negotiate(server.portal(), &long, "1").is("NotUnderstood"));
    assert!(negotiate(server.portal(), "X-com.example.k", "a=b").is("NotUnderstood"));
    for key in [format!("{long}k"), "9lives".into(), "k".into(), "Sp ace".into()] {
        let answer = negotiate(server.portal(), &key, "1");
        assert!(answer.is("NotUnderstood") || answer.refused(), "{key}: {answer:?}");
    }
    let login = Login::new();
    let mut no_equals = login.request(1, Some(3));
    no_equals.data.extend_from_slice(b"ImmediateData\0");
    let mut raw = login.connect(server.portal());
    assert_eq!(raw.login(&no_equals).status(), 0x0200);
}

/// NEG-004
#[test]
fn neg_004_a_pair_may_be_split_anywhere() {
    let server = shared();
    let login = Login::new().key("ImmediateData", "No");
    let text = login.request(1, None).data;
    for at in 1..text.len() {
        let mut raw = login.connect(server.portal());
        let empty = raw.login(&login.empty(1, None).flags(C | 4).data(&text[..at]));
        assert_eq!((empty.status(), empty.data.len()), (0, 0), "split at {at}");
        let answer = raw.login(&login.empty(1, Some(3)).data(&text[at..]));
        assert_eq!(
            (answer.status(), answer.value("ImmediateData").as_deref()),
            (0, Some("No")),
            "split at {at}"
        );
    }
}

/// NEG-005
#[test]
fn neg_005_values_of_255_bytes() {
    let server = shared();
    assert!(negotiate(server.portal(), "X-com.example.v", &"v".repeat(255)).is("NotUnderstood"));
    let answer = negotiate(server.portal(), "X-com.example.v", &"v".repeat(256));
    assert!(answer.is("NotUnderstood") || answer.refused(), "{answer:?}");
}

/// NEG-006
#[test]
fn neg_006_booleans_are_yes_or_no() {
    let server = shared();
    for (value, taken) in [("yes", "Yes"), ("YES", "Yes"), ("no", "No")] {
        assert!(negotiate(server.portal(), "InitialR2T", value).is(taken), "{value:?}");
    }
    for value in ["Maybe", "1", "", "Yes,No", "Yes "] {
        assert!(negotiate(server.portal(), "InitialR2T", value).refused(), "{value:?}");
    }
}

/// NEG-007
#[test]
fn neg_007_numbers_are_decimal_or_hex() {
    let server = shared();
    for value in ["262144", "0x40000", "0X40000"] {
        assert_eq!(negotiate(server.portal(), "MaxBurstLength", value).number(), 262144, "{value}");
    }
    for value in ["18446744073709551616", "-1", "", "12k", "0x", " 512", "99999999999999999999999999"] {
        assert!(negotiate(server.portal(), "MaxBurstLength", value).refused(), "{value:?}");
    }
}

/// NEG-009
#[test]
fn neg_009_ranges_only_where_a_key_has_them() {
    let server = shared();
    assert!(negotiate(server.portal(), "MaxBurstLength", "512~1024").refused());
}

/// NEG-010, KEY-026
#[test]
fn neg_010_keys_not_understood_are_answered_so() {
    let server = shared();
    let key = ("X-com.example.foo", "1");
    let login = Login::new().with(&[key]);
    let answer = login.connect(server.portal()).login(&login.request(0, Some(1)));
    assert_eq!(
        (answer.status(), answer.value(key.0).as_deref()),
        (0, Some("NotUnderstood")),
        "security stage"
    );
    assert!(negotiate(server.portal(), key.0, key.1).is("NotUnderstood"), "operational stage");
    let mut raw = Raw::session(server.portal(), &[]);
    let answer = raw.text(&[key]);
    assert_eq!((answer.opcode(), answer.value(key.0).as_deref()), (op::TEXT_RESPONSE, Some("NotUnderstood")));
    assert!(negotiate(server.portal(), "FutureKey", "1").is("NotUnderstood"));
}

/// NEG-011, NEG-013
#[test]
fn neg_011_reserved_words_are_no_offers() {
    let server = shared();
    for word in ["NotUnderstood", "Reject", "Irrelevant", "None"] {
        for key in ["MaxBurstLength", "MaxConnections", "ImmediateData"] {
            assert!(negotiate(server.portal(), key, word).refused(), "{key}={word}");
        }
    }
    for word in ["NotUnderstood", "Reject", "Irrelevant"] {
        assert!(negotiate(server.portal(), "HeaderDigest", word).refused(), "HeaderDigest={word}");
    }
}

/// NEG-015, KEY-014
#[test]
fn neg_015_irrelevant_is_no_failure() {
    let server = shared();
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("FirstBurstLength", "4096")];
    let pairs = Login::new().answers(server.portal(), &keys).expect("a login");
    let (_, value) = pairs.iter().find(|(k, _)| k == "FirstBurstLength").expect("an answer");
    assert!(value == "Irrelevant" || value.parse::<u32>().is_ok_and(|n| n <= 4096), "{value}");
}

/// NEG-016, SES-021, KEY-010, KEY-011, KEY-013: a key without an offer gets no answer, and its default applies.
/// Earlier negotiations of the same nexus have no effect.
#[test]
fn neg_016_defaults_without_an_offer() {
    let server = shared();
    let login = Login::new();
    let other = [
        ("InitialR2T", "No"),
        ("ImmediateData", "No"),
        ("MaxBurstLength", "512"),
        ("HeaderDigest", "CRC32C"),
    ];
    drop(login.clone().with(&other).on(server.portal()));
    let mut raw = login.connect(server.portal());
    let pairs = login.finish(&mut raw, login.request(1, Some(3))).expect("a login");
    for (key, _) in pairs {
        assert!(
            ["TargetPortalGroupTag", "TargetAlias", "MaxRecvDataSegmentLength"].contains(&key.as_str()),
            "{key}"
        );
    }
    (0..3).for_each(|lun| raw.clear_attentions(lun));
    let bytes = pattern(1024 * 512, 1);
    let write = raw.command(0, 0xa0, &write10(1000, 1024), bytes.len() as u32).data(&bytes[..8192]);
    let reply = raw.execute(&write, &bytes);
    let r2ts: Vec<(u32, u32)> = reply.r2ts().iter().map(|r| (r.get32(40), r.get32(44))).collect();
    assert_eq!(
        r2ts,
        [(8192, 262144), (270336, 253952)],
        "immediate data yes, InitialR2T yes, bursts of 262144"
    );
    reply.good();
}

/// NEG-017, NEG-024, NEG-025
#[test]
fn neg_017_every_offer_is_answered_once() {
    let server = shared();
    let keys = [
        ("HeaderDigest", "None"),
        ("DataDigest", "None"),
        ("MaxConnections", "1"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "262144"),
        ("FirstBurstLength", "65536"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("MaxOutstandingR2T", "1"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("ErrorRecoveryLevel", "0"),
        ("TaskReporting", "RFC3720,ResponseFence"),
        ("iSCSIProtocolLevel", "1"),
    ];
    let pairs = Login::new().answers(server.portal(), &keys).expect("a login");
    let may_be_silent = ["DataPDUInOrder", "DataSequenceInOrder"];
    for (key, _) in keys {
        let count = pairs.iter().filter(|(k, _)| k == key).count();
        assert!(count == 1 || count == 0 && may_be_silent.contains(&key), "{key} is answered {count} times");
        assert_eq!(negotiate(server.portal(), key, keys.iter().find(|k| k.0 == key).expect("key").1), {
            pairs
                .iter()
                .find(|(k, _)| k == key)
                .map_or(KeyResponse::Silence, |(_, v)| KeyResponse::Value(v.clone()))
        });
    }
}

/// NEG-018, NEG-019, NEG-020, KEY-001
#[test]
fn neg_018_the_first_supported_value_of_a_list() {
    let server = shared();
    for (offer, answer) in [
        ("None,CRC32C", "None"),
        ("CRC32C,None", "CRC32C"),
        ("Y-com.example.x,CRC32C", "CRC32C"),
        ("Y-com.example.x,None", "None"),
        ("None", "None"),
        ("CRC32C", "CRC32C"),
    ] {
        for key in ["HeaderDigest", "DataDigest"] {
            assert!(negotiate(server.portal(), key, offer).is(answer), "{key}={offer}");
        }
    }
    let config = interop::config::with("header_digest = [\"None\"]\ndata_digest = [\"None\"]", "", "");
    let plain = interop::Server::start(&config);
    for key in ["HeaderDigest", "DataDigest"] {
        assert!(negotiate(plain.portal(), key, "CRC32C").refused(), "{key}");
        assert!(negotiate(plain.portal(), key, "CRC32C,None").is("None"), "{key}");
    }
}

/// NEG-021
#[test]
fn neg_021_a_method_that_is_not_there_is_never_chosen() {
    let server = shared();
    let login = Login::new().key("AuthMethod", "SRP");
    let mut raw = login.connect(server.portal());
    let answer = raw.login(&login.request(0, Some(1)));
    assert!(
        answer.status() >> 8 == 2 || answer.value("AuthMethod").as_deref() == Some("Reject"),
        "{answer:?}"
    );
}

/// NEG-022, NEG-023
#[test]
fn neg_022_numbers_out_of_range_are_refused() {
    let server = shared();
    for value in ["100", "0", "511", "16777216"] {
        let answer = negotiate(server.portal(), "MaxBurstLength", value);
        assert!(answer.refused() || answer.number() >= 512, "{value}: {answer:?}");
    }
    for offer in [512, 65536, 1 << 20, 16777215] {
        let answer = negotiate(server.portal(), "MaxBurstLength", &offer.to_string()).number();
        assert!((512..=offer).contains(&answer), "{offer}: {answer}");
    }
}

/// NEG-026, KEY-036
#[test]
fn neg_026_a_text_negotiation_counts_when_it_is_complete() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", "8192")]);
    let largest = |raw: &mut Raw| {
        let reply = raw.read(0, &read10(0, 32), 16384);
        let largest = reply.pdus.iter().map(|p| p.data.len()).max();
        assert_eq!(reply.good().len(), 16384);
        largest
    };
    assert_eq!(largest(&mut raw), Some(8192));
    let smaller = [("MaxRecvDataSegmentLength", "1024")];
    let half = raw.request(op::TEXT | 0x40).flags(0).ttt(NONE).keys(&smaller);
    let answer = raw.ask(&half);
    assert_eq!((answer.opcode(), answer.is_final()), (op::TEXT_RESPONSE, false), "{answer:?}");
    assert_eq!(largest(&mut raw), Some(8192), "the sequence is not complete");
    let reset = raw.request(op::TEXT | 0x40).ttt(NONE).itt(half.tag()).keys(&[("X-com.example.a", "1")]);
    assert!(raw.ask(&reset).is_final());
    assert_eq!(largest(&mut raw), Some(8192), "the first sequence was dropped");
    assert!(raw.text(&smaller).is_final());
    raw.receive_max = 1024;
    assert_eq!(largest(&mut raw), Some(1024));
}

/// NEG-027, KEY-034
#[test]
fn neg_027_first_burst_is_no_longer_than_a_burst() {
    let server = shared();
    for keys in
        [&[("FirstBurstLength", "262144"), ("MaxBurstLength", "65536")][..], &[("MaxBurstLength", "4096")]]
    {
        let keys = [keys, &[("InitialR2T", "No"), ("ImmediateData", "Yes")]].concat();
        let Ok(mut raw) = Login::new().with(&keys).try_on(server.portal()) else { continue };
        raw.clear_attentions(0);
        let longest = raw.max_burst + 512;
        let write = raw.command(0, 0xa0, &write10(0, (longest / 512) as u16), longest as u32);
        match raw.outcome(&write.data(&vec![1; longest])) {
            PduOutcome::Answered(answer) => {
                assert_ne!((answer.opcode(), answer.bhs[3]), (op::SCSI_RESPONSE, 0))
            }
            PduOutcome::Rejected(_) | PduOutcome::Closed => {}
        }
    }
}

/// NEG-029
#[test]
fn neg_029_no_empty_answers_without_need() {
    let server = shared();
    let login = Login::new().key("ImmediateData", "Yes");
    let answer = login.connect(server.portal()).login(&login.request(1, None));
    assert!(!answer.data.is_empty());
}

/// NEG-030
#[test]
fn neg_030_a_key_twice_in_a_text_sequence() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", "8192")]);
    let key = ("MaxRecvDataSegmentLength", "512");
    let twice = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[key, key]);
    raw.send(&twice);
    assert_eq!(raw.rejected(&twice), 4);
    let reply = raw.read(0, &read10(0, 16), 8192);
    assert_eq!(reply.pdus[0].data.len(), 8192, "the old value is in force");
}

/// NEG-008: a value may contain any byte but NUL. The response contains only printable ASCII.
#[test]
fn neg_008_odd_bytes_in_values_are_handled() {
    let server = shared();
    let login = Login::new();
    for value in [&b"\x01\x02\x1b"[..], b"\xff\xfe", b"\xc3\x28"] {
        let mut pdu = login.request(1, Some(3));
        pdu.data.extend_from_slice(&[b"X-com.example.a=", value, b"\0"].concat());
        let answer: Pdu = login.connect(server.portal()).login(&pdu);
        assert!(answer.status() == 0 || answer.status() >> 8 == 2, "{answer:?}");
        assert!(answer.data.iter().all(|b| *b == 0 || (0x20..0x7f).contains(b)), "{answer:?}");
    }
    let mut raw = Raw::session(server.portal(), &[]);
    let read = raw.command(0, 0x80 | READ, &read10(0, 1), 512);
    raw.execute(&read, &[]).good();
}
