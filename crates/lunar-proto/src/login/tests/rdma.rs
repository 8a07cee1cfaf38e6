//! Keys of iSER (RFC 7145 section 6).

use super::*;
use crate::parameters::AllowedDigests;

const ALL: &str = "RDMAExtensions=Yes\0TargetRecvDataSegmentLength=4096\0InitiatorRecvDataSegmentLength=262144\0\
    TaggedBufferForSolicitedDataOnly=Yes\0iSERHelloRequired=Yes\0MaxOutstandingUnexpectedPDUs=4\0MaxAHSLength=64\0";

/// A target whose sessions run over RDMA.
fn over_rdma() -> Pair {
    let none = AllowedDigests { none: true, crc32c: false };
    let offer = Offer {
        rdma_extensions: true,
        initial_r2t: true,
        max_outstanding_r2t: 1,
        header_digest: none,
        data_digest: none,
        ..Offer::default()
    };
    let mut pair = Pair::new(House::default());
    pair.login = Login::new(offer, 7, 65536).with_stat_sn(u32::MAX);
    pair
}

/// Advances the login to the operational stage.
fn operational(mut pair: Pair) -> Pair {
    pair.text(TRANSIT | 1, &format!("{NAMES}AuthMethod=None\0"));
    pair
}

const LAST: u8 = TRANSIT | 1 << 2 | 3;

#[test]
fn iser_keys_have_no_effect_over_tcp() {
    let mut p = operational(Pair::new(House::default()));
    assert_eq!(
        p.ready(LAST, ALL),
        "RDMAExtensions=No\0TargetRecvDataSegmentLength=Irrelevant\0InitiatorRecvDataSegmentLength=Irrelevant\0\
        TaggedBufferForSolicitedDataOnly=Irrelevant\0iSERHelloRequired=Irrelevant\0MaxRecvDataSegmentLength=262144\0"
    );
    let want = Parameters { max_recv_data_segment_length: 262144, ..Parameters::default() };
    assert_eq!(*p.login.parameters(), want);
}

#[test]
fn iser_keys_are_negotiated_over_rdma() {
    let mut p = operational(over_rdma());
    assert_eq!(
        p.ready(LAST, ALL),
        "RDMAExtensions=Yes\0TargetRecvDataSegmentLength=4096\0InitiatorRecvDataSegmentLength=8192\0\
        TaggedBufferForSolicitedDataOnly=Yes\0iSERHelloRequired=No\0"
    );
    let got = p.login.parameters();
    assert!(got.rdma_extensions && got.tagged_buffer_for_solicited_data_only);
    assert_eq!((got.target_recv_data_segment_length, got.initiator_recv_data_segment_length), (4096, 8192));
}

/// In any order, and in any number of texts.
#[test]
fn iser_keys_may_precede_rdma_extensions() {
    let mut p = operational(over_rdma());
    assert_eq!(
        p.ready(LAST, "TargetRecvDataSegmentLength=65536\0RDMAExtensions=Yes\0"),
        "RDMAExtensions=Yes\0TargetRecvDataSegmentLength=8192\0"
    );
    let mut p = operational(over_rdma());
    assert_eq!(p.text(1 << 2, "RDMAExtensions=Yes\0InitialR2T=No\0"), "InitialR2T=Yes\0RDMAExtensions=Yes\0");
    assert_eq!(p.ready(LAST, "TargetRecvDataSegmentLength=512\0"), "TargetRecvDataSegmentLength=512\0");
}

/// RFC 7145 section 6.9: if the key is No, the advertised memory of a write begins with its first byte.
#[test]
fn tagged_buffer_for_solicited_data_only_is_negotiated() {
    let mut p = operational(over_rdma());
    let said = "RDMAExtensions=Yes\0TaggedBufferForSolicitedDataOnly=No\0";
    assert_eq!(p.ready(LAST, said), said);
    assert!(!p.login.parameters().tagged_buffer_for_solicited_data_only);
}

#[test]
fn over_rdma_digests_are_left_out_or_the_login_fails() {
    let mut p = operational(over_rdma());
    let answers = p.ready(LAST, "RDMAExtensions=Yes\0HeaderDigest=CRC32C,None\0DataDigest=None\0");
    assert_eq!(answers, "HeaderDigest=None\0DataDigest=None\0RDMAExtensions=Yes\0");
    let mut p = operational(over_rdma());
    assert_eq!(p.refused(LAST, "RDMAExtensions=Yes\0DataDigest=CRC32C\0"), LoginStatus::INITIATOR_ERROR);
}

/// Some initiators declare it although it has no effect.
#[test]
fn declared_segment_length_is_accepted_over_rdma() {
    let mut p = operational(over_rdma());
    assert_eq!(
        p.ready(LAST, "MaxRecvDataSegmentLength=262144\0RDMAExtensions=Yes\0"),
        "RDMAExtensions=Yes\0"
    );
}

/// Discovery sessions have no iSER keys, even over RDMA.
#[test]
fn over_rdma_a_discovery_session_declares_as_over_tcp() {
    let mut p = over_rdma();
    p.text(TRANSIT | 1, &format!("InitiatorName={INITIATOR}\0SessionType=Discovery\0AuthMethod=None\0"));
    assert_eq!(
        p.ready(LAST, "MaxRecvDataSegmentLength=32768\0RDMAExtensions=Yes\0"),
        "RDMAExtensions=Irrelevant\0MaxRecvDataSegmentLength=262144\0"
    );
    assert!(!p.login.parameters().rdma_extensions);
}
