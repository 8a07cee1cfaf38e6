//! Text negotiation and the response to SendTargets.

use lunar_wire::iscsi::NONE;
use lunar_wire::iscsi::flag::FINAL;
use lunar_wire::scsi::lun;
use proptest::prelude::*;

use super::*;
use crate::initiator::targets::{DiscoveredTarget, PortalAddress, SendTargetsResult, parse};
use crate::initiator::{TextClient, TextStep};
use crate::text::{SendTargets, TargetRecord, TextServer, TextStep as Answer};

const ALL: &[u8] = b"SendTargets=All\0";

/// A Text Response.
fn response(flags: u8, ttt: u32) -> Bhs {
    let mut h = Bhs::new(opcode::TEXT_RESPONSE);
    h.set_flags(flags);
    h.set_itt(ITT);
    h.set_ttt(ttt);
    h
}

fn send(step: TextStep) -> Pdu {
    match step {
        TextStep::Send(pdu) => pdu,
        other => panic!("{other:?}"),
    }
}

/// DSC-007, TXT-002, TXT-003, TXT-010: the first and a continuing request, byte for byte.
#[test]
fn text_requests_match_golden_bytes() {
    let (mut text, first) = TextClient::new(ITT, ALL.to_vec(), 8192, 65536);
    let want = [
        [0x44, 0x80, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0],
        [0x11, 0x22, 0x33, 0x44, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0],
        [0; 16],
    ];
    assert_eq!((first.header.as_bytes(), &*first.data), (&want.concat().try_into().unwrap(), ALL));
    let mut h = response(CONTINUE, 7);
    h.set_lun(lun::encode(3));
    let next = send(text.response(&h, b"TargetNa"));
    let mut carry_on = Bhs::new(opcode::TEXT | 0x40);
    carry_on.set_lun(lun::encode(3));
    carry_on.set_itt(ITT);
    carry_on.set_ttt(7);
    assert_eq!(next, Pdu { header: carry_on, data: vec![] });
    // TXT-010: the tag of the last response is ignored.
    assert_eq!(text.response(&response(FINAL, 7), b"me=x\0"), TextStep::Done(b"TargetName=x\0".to_vec()));
}

/// TXT-004, TXT-005, TXT-008, FRM-007: responses that violate the protocol.
#[test]
fn responses_that_break_the_rules() {
    let other = |h: Bhs, change: fn(&mut Bhs)| {
        let mut h = h;
        change(&mut h);
        h
    };
    let last = response(FINAL, NONE);
    for (header, why) in [
        (response(FINAL | CONTINUE, NONE), "both F bit and C bit"),
        (response(0, NONE), "Transfer Tag"),
        (response(CONTINUE, NONE), "Transfer Tag"),
        (other(last, |h| h.set_itt(1)), "Task Tag"),
        (other(last, |h| h.set_ahs_len(4)), "additional header"),
        (other(last, |h| h.set_opcode(opcode::NOP_IN)), "NOP-In"),
    ] {
        let mut text = TextClient::new(ITT, ALL.to_vec(), 8192, 65536).0;
        let step = text.response(&header, b"");
        let TextStep::Failed(message) = step else { panic!("{why}: {step:?}") };
        assert!(message.contains(why), "{message}");
    }
    let reject = other(last, |h| raw(h, |b| b[0..3].copy_from_slice(&[opcode::REJECT, 0x80, 9])));
    let mut text = TextClient::new(ITT, ALL.to_vec(), 8192, 65536).0;
    assert_eq!(text.response(&reject, b""), TextStep::Rejected(9), "a refusal breaks no rule");
    // A response before the request is complete.
    for (header, data) in
        [(last, b"".as_slice()), (response(0, 1), b"A=1\0".as_slice()), (response(CONTINUE, 1), b"")]
    {
        let (mut text, first) = TextClient::new(ITT, ALL.to_vec(), 8, 65536);
        assert_eq!((first.header.flags(), &*first.data), (CONTINUE, b"SendTarg".as_slice()));
        assert!(matches!(text.response(&header, data), TextStep::Failed(_)));
    }
}

/// A response that is too long or endless is an error.
#[test]
fn long_or_endless_text_ends_the_exchange() {
    let mut text = TextClient::new(ITT, ALL.to_vec(), 8192, 65536).0;
    send(text.response(&response(CONTINUE, 1), &[b'A'; 65536]));
    assert!(
        matches!(text.response(&response(FINAL, NONE), b"A"), TextStep::Failed(why) if why.contains("long"))
    );
    let mut text = TextClient::new(ITT, ALL.to_vec(), 8192, 65536).0;
    let end = (0..2000).find(|_| matches!(text.response(&response(0, 1), b""), TextStep::Failed(_)));
    assert!(end.is_some());
}

/// Runs SendTargets against the target's own state machine.
fn ask(targets: usize, sent: u32, answered: u32, limit: usize) -> TextStep {
    let mut exchange = TextServer::new(SessionType::Discovery, 65536);
    let (mut text, mut request) = TextClient::new(ITT, ALL.to_vec(), sent, limit);
    loop {
        assert!(request.data.len() <= sent as usize && request.header.immediate());
        let record = |i| TargetRecord {
            name: format!("iqn.2026-11.org.example:t{i}"),
            addresses: ["192.0.2.1:3260,1", "[2001:db8::1]:3260,1"].map(str::to_owned).to_vec(),
        };
        let all = |asked: SendTargets<'_>| {
            assert_eq!(asked, SendTargets::All);
            (0..targets).map(record).collect()
        };
        let answer = exchange.request(&request.header, &request.data, answered, all, |_, _| None);
        let Answer::Reply { pdu, .. } = answer else { panic!("{answer:?}") };
        match text.response(&pdu.header, &pdu.data) {
            TextStep::Send(next) => request = next,
            end => return end,
        }
    }
}

/// DSC-012, TXT-001: a thousand targets in segments of 512 bytes.
#[test]
fn long_lists_come_in_pieces() {
    let TextStep::Done(text) = ask(1000, 8192, 512, 1 << 20) else { panic!() };
    let SendTargetsResult { found, notes } = parse(&text).unwrap();
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!((found.len(), found[999].addresses.len()), (1000, 2));
    assert!(matches!(ask(1000, 8192, 512, 65536), TextStep::Failed(_)));
}

fn at(host: &str, port: u16, tag: Option<u16>) -> PortalAddress {
    PortalAddress { host: host.into(), port, portal_group_tag: tag }
}

/// DSC-013, KEY-008, LOG-045: records with and without addresses, ports and tags.
#[test]
fn send_targets_records_are_parsed() {
    let text = "TargetName=iqn.2026-11.org.example:a\0TargetAddress=192.0.2.1:3261,1\0\
        TargetAddress=[2001:db8::1],2\0TargetAddress=192.0.2.1:3261,1\0TargetAlias=sent by some\0\
        TargetName=iqn.2026-11.org.example:b\0TargetName=eui.02004567A425678D\0\
        TargetAddress=disks.example.org:860\0TargetName=iqn.2026-11.org.example:a\0TargetAddress=a_b\0";
    let target = |name: &str, addresses: Vec<_>| DiscoveredTarget { name: name.into(), addresses };
    let first = vec![at("192.0.2.1", 3261, Some(1)), at("2001:db8::1", 3260, Some(2)), at("a_b", 3260, None)];
    let want = vec![
        target("iqn.2026-11.org.example:a", first),
        target("iqn.2026-11.org.example:b", vec![]),
        target("eui.02004567A425678D", vec![at("disks.example.org", 860, None)]),
    ];
    assert_eq!(parse(text.as_bytes()), Ok(SendTargetsResult { found: want, notes: vec![] }));
    assert_eq!(parse(b""), Ok(SendTargetsResult::default()));
}

/// NAM-001: invalid iSCSI names are accepted, and an unusable entry does not hide the others.
#[test]
fn odd_record_hides_no_other() {
    let too_long = "a".repeat(224);
    let text = format!(
        "TargetName=foo\0TargetAddress=192.0.2.1:3260,1\0TargetName={too_long}\0TargetAddress=a\0\
         TargetName=iqn.2026-11.org.example:a\0TargetAddress=a\nb\0TargetAddress=b\0"
    );
    let SendTargetsResult { found, notes } = parse(text.as_bytes()).unwrap();
    let names: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.addresses.len())).collect();
    assert_eq!(names, [("foo", 1), ("iqn.2026-11.org.example:a", 1)]);
    for (note, part) in notes.iter().zip(["TargetName=foo: ", "skipped", "TargetAddress=a?b: "]) {
        assert!(note.contains(part), "{note}");
    }
    assert_eq!(notes.len(), 3);
    let many: String = (0..100).map(|i| format!("TargetName=disk{i}\0")).collect();
    let parsed = parse(many.as_bytes()).unwrap();
    assert!(parsed.found.len() == 100 && parsed.notes.len() == 16);
    let addresses: String = (1..1030).map(|i| format!("TargetAddress=a:{i}\0")).collect();
    let parsed = parse(format!("TargetName=iqn.2026-11.org.example:a\0{addresses}").as_bytes()).unwrap();
    assert_eq!((parsed.found[0].addresses.len(), parsed.notes.len()), (1024, 5));
}

#[test]
fn record_that_is_not_utf8_hides_no_other() {
    let text = b"TargetName=iqn.2026-11.org.example:\xff\x1b\0TargetAddress=192.0.2.9\0TargetAddress=\xff\0\
        TargetName=iqn.2026-11.org.example:a\0TargetAddress=\xe4b\0TargetAddress=192.0.2.1\0X-own=\xff\0\
        TargetName=iqn.2026-11.org.example:b\0";
    let SendTargetsResult { found, notes } = parse(text).unwrap();
    let seen: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.addresses.len())).collect();
    assert_eq!(seen, [("iqn.2026-11.org.example:a", 1), ("iqn.2026-11.org.example:b", 0)]);
    let wanted = [
        r"the target sent TargetName=iqn.2026-11.org.example:\xff\x1b: the value is not UTF-8 (skipped)",
        r"the target sent TargetAddress=\xe4b: the value is not UTF-8 (skipped)",
    ];
    assert_eq!(notes, wanted);
    for refused in [&b"TargetName=\xff\0"[..], b"TargetAddress=\xff\0TargetName=a\0", b"\xffTargetName=a\0"] {
        assert!(parse(refused).is_err(), "{refused:?}");
    }
}

#[test]
fn portal_addresses_are_parsed_or_rejected() {
    for (text, want) in [
        ("192.0.2.1", Some(at("192.0.2.1", 3260, None))),
        ("192.0.2.1:1", Some(at("192.0.2.1", 1, None))),
        ("[::1]:65535,65535", Some(at("::1", 65535, Some(65535)))),
        ("[::]", Some(at("::", 3260, None))),
        ("[fe80::1%eth0.7]:860", Some(at("fe80::1%eth0.7", 860, None))),
        ("[fe80::1%]", None),
        ("[fe80::1%a/b]", None),
        ("[fe80::1%a%b]", None),
        ("[fe80::1%a-name-of-16-chr]", None),
        ("127.0.0.1%lo", None),
        ("a-b.example.,0", Some(at("a-b.example.", 3260, Some(0)))),
        ("", None),
        (":3260", None),
        (",1", None),
        ("[]", None),
        ("[192.0.2.1]", None),
        ("[::1", None),
        ("[::1]3260", None),
        ("[::1]:", None),
        ("2001:db8::1", None),
        ("a:0", None),
        ("a:65536", None),
        ("a:+1", None),
        ("a:1:2", None),
        ("a,", None),
        ("a,65536", None),
        ("a,1,2", None),
        ("a b", None),
        ("a\u{7}", None),
        ("m\u{fc}ller", None),
        ("-a", None),
        ("a/b", None),
        ("a@b", None),
        (&"a".repeat(254), None),
    ] {
        assert_eq!(PortalAddress::parse(text).ok(), want, "{text:?}");
    }
    assert_eq!(at("::1", 3260, Some(1)).to_string(), "[::1]:3260");
    assert_eq!(at("a", 860, None).to_string(), "a:860");
}

/// NAM-001, NAM-003: error messages about rejected responses contain no control characters.
#[test]
fn answers_that_are_refused() {
    let too_long = format!("TargetName=iqn.2026-11.org.example:{}\0", "a".repeat(201));
    for text in [
        "TargetAddress=192.0.2.1\0",
        "TargetName=disk\x1b[2J\0",
        "TargetName=\0",
        "SendTargets=Reject\0",
        "SendTargets=NotUnderstood\0",
        "=\0",
        &too_long,
    ] {
        let why = parse(text.as_bytes()).unwrap_err();
        assert!(!why.contains(char::is_control) && why.len() < 500, "{why:?}");
    }
}

proptest! {
    /// The way in which request and response are split does not change the result.
    #[test]
    fn splits_change_nothing(sent in 1u32..20, answered in 1u32..600) {
        prop_assert_eq!(ask(5, sent, answered, 65536), ask(5, 8192, 8192, 65536));
    }

    #[test]
    fn random_input_does_not_panic(pdus in prop::collection::vec((any::<u8>(), 0u32..3, any::<Vec<u8>>()), 0..40)) {
        let mut text = TextClient::new(ITT, ALL.to_vec(), 8, 1000).0;
        for (flags, ttt, data) in pdus {
            match text.response(&response(flags & 0xc0, ttt), &data) {
                TextStep::Done(text) => prop_assert!(text.len() <= 1000),
                TextStep::Send(pdu) => prop_assert!(pdu.data.len() <= 8),
                TextStep::Failed(_) | TextStep::Rejected(_) => {}
            }
        }
    }
}
