//! Login and discovery.

use super::host::{DISCOVERY, Host, KEYS, NAMES, ROOM, pairs};
use super::recording_endpoint::{EndpointCall, RecordingRequest};
use crate::test_target::{DEPTH, NAME, TestTarget, run_ready, run_test, run_test_with, target};
use lunar_rdma::mem::Faults;
use lunar_wire::iscsi::{NONE, opcode, request};
use lunar_wire::iser::{IserCapabilities, IserHeader, LOGIN_LEN, OVERHEAD, SAFE_DATA_LEN, VERSION};
use std::collections::BTreeMap;
use std::rc::Rc;

fn value<'a>(said: &'a [(String, String)], key: &str) -> Option<&'a str> {
    said.iter().find(|(k, _)| k == key).map(|(_, v)| &**v)
}

#[test]
fn login_volunteers_no_keys() {
    run_test(|target| async move {
        let mut host = target.connect().await;
        let said = host.log_in(1).await;
        let offered = [NAMES, KEYS].concat();
        for (key, _) in &said {
            // Open-iSCSI expects this key from every target.
            let known = key == "TargetPortalGroupTag" || offered.contains(&format!("{key}="));
            assert!(known, "{key}");
        }
        let want = [
            ("RDMAExtensions", Some("Yes")),
            ("TargetRecvDataSegmentLength", Some("8192")),
            ("InitialR2T", Some("Yes")),
            ("ImmediateData", Some("Yes")),
            ("IFMarker", Some("No")),
            ("OFMarker", Some("No")),
            ("MaxOutstandingR2T", Some("1")),
            ("MaxConnections", Some("1")),
            ("ErrorRecoveryLevel", Some("0")),
            ("MaxRecvDataSegmentLength", None),
            ("HeaderDigest", None),
        ];
        want.iter().for_each(|(key, want)| assert_eq!(value(&said, key), *want, "{key}"));
        host.expect_alive().await;
    });
}

#[test]
fn iser_keys_are_answered_on_request() {
    run_test(|target| async move {
        let mut host = target.connect().await;
        let more = "HeaderDigest=CRC32C,None\nDataDigest=None\nTaggedBufferForSolicitedDataOnly=Yes\n\
            iSERHelloRequired=No\nMaxOutstandingUnexpectedPDUs=4\nMaxAHSLength=64\n";
        let said = host.negotiate(1, NAMES, &[KEYS, more].concat()).await;
        let keys = ["HeaderDigest", "DataDigest", "TaggedBufferForSolicitedDataOnly", "iSERHelloRequired"];
        assert_eq!(keys.map(|key| value(&said, key)), [Some("None"), Some("None"), Some("Yes"), Some("No")]);
        assert_eq!(["MaxOutstandingUnexpectedPDUs", "MaxAHSLength"].map(|key| value(&said, key)), [None; 2]);
    });
}

#[test]
fn digest_request_fails_login() {
    run_test(|target| async move {
        let mut host = target.connect().await;
        host.send_login(1, 0x81, NAMES);
        host.keys().await;
        host.last_request(1, &[KEYS, "HeaderDigest=CRC32C\n"].concat());
        let received = host.receive(opcode::LOGIN_RESPONSE).await;
        assert_eq!(received.bhs.login_status().0, 2, "an initiator error");
        host.expect_close().await;
        assert_eq!(target.sessions(), 0);
    });
}

#[test]
fn receive_buffers_precede_final_login_response() {
    run_test(|target| async move {
        let log = Rc::default();
        let faults = [Rc::<Faults>::default(), Rc::default()];
        let watched = Rc::clone(&log);
        let spied =
            |request| Box::new(RecordingRequest(request, watched)) as Box<dyn lunar_rdma::ConnectRequest>;
        let mut host = target.connect_wrapped(&[0; 4], faults, spied).await;
        host.log_in(1).await;
        let log = log.borrow();
        let [
            EndpointCall::Receives(1),
            EndpointCall::Receives(1),
            EndpointCall::Sent,
            EndpointCall::Receives(many),
            EndpointCall::Sent,
        ] = log[..]
        else {
            panic!("{log:?}")
        };
        assert!(many >= DEPTH as usize + 16, "{many}");
    });
}

#[test]
fn full_command_window_has_receive_buffers() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        for _ in 0..3 {
            let first = host.itt + 1;
            for _ in 0..DEPTH {
                host.read(&lunar_wire::scsi::cdb::read_10(0, 1), 512);
            }
            for itt in first..first + DEPTH {
                assert_eq!(host.answer(itt).await.status(), 0);
            }
        }
    });
}

#[test]
fn private_data_is_answered_with_or_without_padding() {
    run_test(|target| async move {
        let can = |invalidate| IserCapabilities { zero_based: false, invalidate }.encode().to_vec();
        for (said, able, pads, want) in [
            (can(true), true, false, true),
            (can(true), true, true, true),
            (can(false), true, false, false),
            (vec![], true, false, false),
            (vec![], true, true, true),
            (can(true), false, false, false),
        ] {
            let faults = [Rc::<Faults>::default(), Rc::default()];
            faults.iter().for_each(|f| f.pads.set(pads));
            faults[1].invalidates.set(able);
            let mut host = target.connect_with(&said, faults).await;
            assert_eq!(host.private.len(), if pads { 196 } else { 4 });
            let received = IserCapabilities::decode(&host.private);
            assert!(!received.zero_based && received.invalidate == want, "{said:?} {able} {pads}");
            host.log_in(1).await;
            let (itt, place) = host.read(&lunar_wire::scsi::cdb::inquiry(None, 36), 36);
            let answer = host.answer(itt).await;
            assert_eq!(answer.invalidated, want.then_some(place.stag), "{said:?} {able} {pads}");
        }
    });
}

#[test]
fn iser_hello_ends_only_its_connection() {
    run_test(|target| async move {
        let mut other = target.session(1).await;
        let hello = IserHeader::Hello { versions: (VERSION, VERSION), ird: 8 };
        let before = target.connect().await;
        before.send_bytes(&hello.encode());
        before.expect_close().await;
        let after = target.session(2).await;
        after.send_bytes(&hello.encode());
        after.expect_close().await;
        other.expect_alive().await;
        assert_eq!(target.sessions(), 1);
    });
}

/// Runs discovery with the receive buffers of `ib_iser`. The response is longer than 8 KiB.
async fn discover(target: &TestTarget, keys: &str) -> Vec<u8> {
    let mut host = target.connect().await;
    host.negotiate(1, DISCOVERY, keys).await;
    let (mut all, mut ttt) = (Vec::new(), NONE);
    loop {
        let question: &[u8] = if ttt == NONE { b"SendTargets=All\0" } else { b"" };
        host.send_immediate(request::text(7, 0x80, 0, ttt), question);
        let received = host.receive(opcode::TEXT_RESPONSE).await;
        assert!(received.data.len() <= LOGIN_LEN - OVERHEAD);
        all.extend(received.data);
        ttt = received.bhs.ttt();
        assert_eq!(received.bhs.continues(), ttt != NONE);
        if received.bhs.is_final() {
            break;
        }
    }
    host.send_immediate(request::logout(9), &[]);
    host.receive(opcode::LOGOUT_RESPONSE).await;
    host.expect_close().await;
    all
}

#[test]
fn discovery_fits_text_into_login_buffers() {
    let name = |i: u16| format!("iqn.2026-11.org.example:disk-{i:04}-of-a-large-house-that-has-long-names");
    let many = move |config: &mut crate::config::TargetConfig| {
        config.targets.extend((0..300).map(|i| (name(i), target(&name(i), BTreeMap::new()))));
    };
    run_test_with(many, move |target| async move {
        for declared in ["MaxRecvDataSegmentLength=32768\n", "MaxRecvDataSegmentLength=262144\n"] {
            let text = discover(&target, declared).await;
            let received = pairs(&text);
            let names: Vec<&str> =
                received.iter().filter(|(k, _)| k == "TargetName").map(|(_, v)| &**v).collect();
            assert_eq!((names.len(), names[0]), (301, NAME));
            assert!(text.len() > 3 * 8192 && names[300] == name(299));
        }
        assert_eq!(target.sessions(), 0);
    });
}

#[test]
fn full_feature_text_is_at_most_128_bytes() {
    let answers = crate::config::TextKeyHandler::new(|_, _, _| Some("x".repeat(500)));
    run_test_with(
        |config| config.text_keys = answers,
        |target| async move {
            for keys in [KEYS.to_owned(), KEYS.replace("RDMAExtensions=Yes\n", "")] {
                let mut host = target.connect().await;
                host.negotiate(1, NAMES, &keys).await;
                host.send_immediate(request::text(7, 0x80, 0, NONE), b"MaxRecvDataSegmentLength=65536\0");
                assert!(host.receive(opcode::TEXT_RESPONSE).await.bhs.is_final());
                let (mut all, mut ttt) = (Vec::new(), NONE);
                loop {
                    let question: &[u8] = if ttt == NONE { b"X-org.lunar.a=?\0" } else { b"" };
                    host.send_immediate(request::text(8, 0x80, 0, ttt), question);
                    let received = host.receive(opcode::TEXT_RESPONSE).await;
                    assert!(received.data.len() <= SAFE_DATA_LEN);
                    all.extend(received.data);
                    ttt = received.bhs.ttt();
                    if received.bhs.is_final() {
                        break;
                    }
                }
                assert_eq!(pairs(&all), [("X-org.lunar.a".to_owned(), "x".repeat(500))]);
                host.expect_alive().await;
                assert!(host.faults[1].log().len() > 5);
            }
        },
    );
}

#[test]
fn long_ping_is_answered_up_to_limit() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        for len in [0, 5, 128, 129, 4096, 8192] {
            let data = super::host::pattern(len);
            let itt = host.ping(&data);
            let received = host.receive(opcode::NOP_IN).await;
            assert_eq!((received.bhs.itt(), received.bhs.ttt()), (itt, NONE));
            assert!(received.data.len() + OVERHEAD <= ROOM && data.starts_with(&received.data));
            assert_eq!(received.data.len(), len.min(SAFE_DATA_LEN));
        }
    });
}

#[test]
fn same_initiator_login_reinstates_session() {
    run_test(|target| async move {
        let old = target.session(1).await;
        let mut new = target.connect().await;
        new.log_in(1).await;
        old.expect_close().await;
        assert_eq!(target.sessions(), 1);
        new.expect_alive().await;
        new.receive_attentions().await;
    });
}

#[test]
fn abandoned_login_leaves_nothing() {
    run_test(|target| async move {
        for requests in 0..2 {
            let mut host = target.connect().await;
            if requests > 0 {
                host.send_login(1, 0x81, NAMES);
                host.keys().await;
            }
            let Host { end, served, .. } = host;
            drop(end);
            served.await.expect("a clean end");
        }
        run_ready().await;
        assert_eq!(target.sessions(), 0);
        assert_eq!(target.shared.connections(), 0);
    });
}
