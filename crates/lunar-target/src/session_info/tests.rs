//! Tests of the identities of sessions.

use super::*;
use crate::session_key::SessionKey;
use lunar_wire::srp::PortId;

fn info(initiator: String, transport: SessionTransport, protocol: SessionProtocol) -> SessionInfo {
    let portal = ([10, 0, 0, 1], 3260).into();
    let target = (Some("iqn.2026-11.org.example:disk".into()), 1);
    SessionInfo::new(initiator, Addresses { local: portal, peer: portal }, target, transport, protocol)
}

fn iscsi(name: &str, isid: u8) -> SessionInfo {
    let iscsi = IscsiSessionInfo { isid: [isid; 6], cid: 7, ..IscsiSessionInfo::default() };
    info(name.into(), SessionTransport::Tcp, SessionProtocol::Iscsi(iscsi))
}

fn srp(guid: u64) -> SessionInfo {
    let initiator_port = PortId::new(1, guid);
    let protocol = SessionProtocol::Srp(SrpSessionInfo { initiator_port });
    info(initiator_port.to_string(), SessionTransport::Rdma(RdmaProvider::Iwarp), protocol)
}

fn key(info: &SessionInfo) -> SessionKey {
    SessionKey::new(info, info.portal)
}

#[test]
fn name_and_isid_of_iscsi_identify_initiator_port() {
    let one = iscsi("iqn.a", 1);
    for (other, is_same) in
        [(iscsi("iqn.a", 1), true), (iscsi("iqn.a", 2), false), (iscsi("iqn.b", 1), false)]
    {
        assert_eq!((key(&one) == key(&other), one.has_same_ports(&other)), (is_same, is_same));
    }
}

#[test]
fn port_identifier_of_srp_identifies_initiator_port() {
    for (other, is_same) in [(srp(2), true), (srp(3), false), (iscsi(&srp(2).initiator, 0), false)] {
        assert_eq!((key(&srp(2)) == key(&other), srp(2).has_same_ports(&other)), (is_same, is_same));
    }
}

#[test]
fn user_target_and_portal_group_are_part_of_key() {
    let one = iscsi("iqn.a", 1);
    let changes: [fn(&mut SessionInfo); 3] = [
        |info| info.user = Some("alice".into()),
        |info| info.target = Some("iqn.2026-11.org.example:other".into()),
        |info| info.portal_group_tag = 2,
    ];
    for change in changes {
        let mut other = iscsi("iqn.a", 1);
        change(&mut other);
        assert_ne!(key(&one), key(&other));
    }
}

#[test]
fn portal_is_part_of_key_without_target_only() {
    let elsewhere = ([10, 0, 0, 2], 3260).into();
    let mut one = iscsi("iqn.a", 1);
    assert_eq!(key(&one), SessionKey::new(&one, elsewhere));
    one.target = None;
    assert_ne!(key(&one), SessionKey::new(&one, elsewhere));
}

#[test]
fn session_of_srp_may_be_of_any_host() {
    let (one, other) = (iscsi("iqn.a", 1), iscsi("iqn.b", 1));
    assert!(one.may_be_of_host(&iscsi("iqn.a", 2)) && !one.may_be_of_host(&other));
    assert!(srp(2).may_be_of_host(&srp(3)) && srp(2).may_be_of_host(&one) && one.may_be_of_host(&srp(2)));
}

#[test]
fn session_of_srp_has_no_facts_of_iscsi() {
    let srp = srp(2);
    assert_eq!((srp.is_discovery(), srp.connection_id()), (false, None));
    assert_eq!(iscsi("iqn.a", 1).connection_id(), Some(7));
}
