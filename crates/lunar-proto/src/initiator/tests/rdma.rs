//! Keys of iSER (RFC 7145 section 6), with the answers of LIO and STGT.

use super::*;

/// The offer for a session over RDMA.
fn over_rdma() -> Offer {
    let none = AllowedDigests { none: true, crc32c: false };
    Offer {
        rdma_extensions: true,
        initial_r2t: true,
        max_outstanding_r2t: 1,
        header_digest: none,
        data_digest: none,
        task_reporting: TaskReporting::Rfc3720,
        ..Offer::default()
    }
}

fn script() -> Script {
    Script::operational(LoginParams { offer: over_rdma(), ..wish() })
}

#[test]
fn only_iser_keys_are_offered_over_rdma() {
    let text = script().text();
    for said in [
        "RDMAExtensions=Yes\0",
        "TargetRecvDataSegmentLength=8192\0",
        "InitiatorRecvDataSegmentLength=8192\0",
    ] {
        assert!(text.contains(&format!("\0{said}")), "{said} in {text:?}");
    }
    let missing =
        ["HeaderDigest", "DataDigest", "\0MaxRecvDataSegmentLength", "Marker", "iSERHello", "Tagged"];
    missing.iter().for_each(|key| assert!(!text.contains(key), "{key} in {text:?}"));
    let discovery = Script::operational(LoginParams { offer: over_rdma(), ..discovery_wish() }).text();
    assert!(!discovery.contains("RDMAExtensions") && !discovery.contains("RecvDataSegmentLength=8192"));
    assert!(discovery.contains("MaxRecvDataSegmentLength=262144\0"));
}

#[test]
fn no_iser_key_is_sent_over_tcp() {
    let text = Script::operational(wish()).text();
    assert!(text.contains("\0MaxRecvDataSegmentLength=262144\0"));
    ["RDMA", "TargetRecv", "InitiatorRecv", "Tagged", "iSER"]
        .iter()
        .for_each(|key| assert!(!text.contains(key)));
}

/// LIO answers every key, and proposes those that the initiator left out.
#[test]
fn answers_of_lio_are_accepted() {
    let script = script();
    let but =
        [("TargetRecvDataSegmentLength", Some("4096")), ("InitiatorRecvDataSegmentLength", Some("1024"))];
    let step = script.answered(&but);
    let InitiatorLoginStep::Done(logged_in) = step else { panic!("{step:?}") };
    let p = logged_in.parameters;
    assert!(p.rdma_extensions && p.initial_r2t && !p.header_digest && !p.data_digest);
    assert_eq!((p.target_recv_data_segment_length, p.initial_r2t), (4096, true));
    // The limits of segments over TCP follow them.
    assert_eq!((p.max_xmit_data_segment_length, p.max_recv_data_segment_length), (4096, 1024));
    assert!(p.tagged_buffer_for_solicited_data_only, "as Linux has it");
}

#[test]
fn omitted_key_proposed_by_the_target_is_answered() {
    let mut script = script();
    let text = script.agree(&[])
        + "IFMarker=No\0OFMarker=No\0HeaderDigest=None\0MaxRecvDataSegmentLength=65536\0iSERHelloRequired=No\0";
    let (flags, answers) = script.send(OPERATIONAL, &text);
    assert_eq!(flags, LAST);
    assert_eq!(answers, "HeaderDigest=None\0IFMarker=No\0OFMarker=No\0iSERHelloRequired=No\0");
    // MaxRecvDataSegmentLength is ignored over RDMA.
    assert_eq!(script.done("").parameters.max_xmit_data_segment_length, 8192);
}

#[test]
fn session_over_rdma_requires_rdma_extensions() {
    for answer in [Some("No"), Some("Irrelevant"), Some("Reject"), None] {
        let step = script().answered(&[("RDMAExtensions", answer)]);
        assert!(
            matches!(&step, InitiatorLoginStep::Failed(LoginError::Broke(why)) if why.contains("RDMAExtensions")),
            "{step:?}"
        );
    }
}

#[test]
fn no_digest_is_chosen_over_rdma() {
    let mut script = script();
    let text = script.agree(&[]) + "HeaderDigest=CRC32C\0";
    assert!(script.broke(OPERATIONAL, &text).contains("HeaderDigest"));
}

#[test]
fn answer_above_the_offer_is_rejected() {
    let mut script = script();
    let text = script.agree(&[("TargetRecvDataSegmentLength", Some("8196"))]);
    assert!(script.broke(LAST, &text).contains("TargetRecvDataSegmentLength"));
}
