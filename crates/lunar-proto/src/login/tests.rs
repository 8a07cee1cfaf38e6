//! The target's login against requests that the tests write.

mod rdma;

use std::sync::Arc;

use lunar_wire::iscsi::status::LoginStatus;
use lunar_wire::iscsi::text::{self, pairs, push, push_hex};
use lunar_wire::iscsi::{Bhs, opcode};
use proptest::prelude::*;

use super::*;
use crate::chap::Algorithm;

const INITIATOR: &str = "iqn.1993-08.org.debian:01:abc";
const DISKS: &str = "iqn.2026-11.org.example:disks";
const NAMES: &str = "InitiatorName=iqn.1993-08.org.debian:01:abc\0TargetName=iqn.2026-11.org.example:disks\0";
const ISID: [u8; 6] = [0x80, 1, 2, 3, 4, 5];

/// A target with one name and CHAP users.
struct House {
    alias: Option<String>,
    authentication: Authentication,
    discovery: Result<Authentication, LoginStatus>,
    redirect: Option<(String, bool)>,
    banned: Option<&'static str>,
}

impl Default for House {
    fn default() -> Self {
        let open = Authentication::none();
        House { alias: None, discovery: Ok(open.clone()), authentication: open, redirect: None, banned: None }
    }
}

impl LoginPolicy for House {
    fn discovery(&self) -> Result<Authentication, LoginStatus> {
        self.discovery.clone()
    }

    fn target(&self, name: &str, _: &str) -> Result<TargetInfo, LoginStatus> {
        if name != DISKS {
            return Err(LoginStatus::NOT_FOUND);
        }
        let (alias, authentication) = (self.alias.clone(), self.authentication.clone());
        Ok(TargetInfo { alias, authentication, redirect: self.redirect.clone() })
    }

    fn authorize(&self, _: Option<&str>, initiator: &str, user: Option<&str>) -> Result<(), LoginStatus> {
        assert_eq!(initiator, INITIATOR);
        if self.banned.is_some() && self.banned == user {
            Err(LoginStatus::AUTHORIZATION_FAILURE)
        } else {
            Ok(())
        }
    }
}

fn user(name: &str, secret: &[u8]) -> ChapUser {
    ChapUser { name: name.into(), secret: Secret::new(secret) }
}

fn chap(required: bool) -> Authentication {
    let users = Arc::new([user("alice", b"alice's secret"), user("0x41", b"literal secret")]);
    let mutual = Some(user("lunar", b"lunar's secret"));
    Authentication { required, users, mutual, ..Authentication::none() }
}

fn guarded() -> House {
    House { authentication: chap(true), ..House::default() }
}

/// Both ends of a connection in login.
struct Pair {
    house: House,
    login: Login,
    next_stat_sn: u32,
}

impl Pair {
    fn new(house: House) -> Self {
        Pair {
            house,
            login: Login::new(Offer::default(), 7, 65536).with_stat_sn(u32::MAX),
            next_stat_sn: u32::MAX,
        }
    }

    /// A Login Request with CmdSN 0xffffffff, CID 9, ITT 0x11223344.
    fn header(&self, flags: u8) -> Bhs {
        let mut b = Bhs::new(opcode::LOGIN | 0x40);
        b.set_flags(flags);
        b.set_isid(ISID);
        b.set_itt(0x1122_3344);
        b.set_cid(9);
        b.set_stat_sn(u32::MAX);
        b
    }

    /// Sends a PDU, and checks the rules for every response of class 0.
    fn send(&mut self, flags: u8, data: &[u8]) -> LoginStep {
        let step = self.login.request(&self.header(flags), data, &self.house);
        if let LoginStep::Reply(pdu) = &step {
            self.hold(pdu);
            assert_eq!(pdu.header.flags() >> 2 & 3, flags >> 2 & 3, "CSG of the request (LOG-011)");
            assert!(flags & TRANSIT != 0 || !pdu.header.is_final(), "T without being asked (LOG-013)");
            assert_eq!(pdu.header.tsih(), 0, "TSIH before the end (LOG-022)");
        }
        step
    }

    fn hold(&mut self, pdu: &Pdu) {
        let h = &pdu.header;
        assert_eq!(
            (h.opcode(), h.data_len(), h.itt()),
            (opcode::LOGIN_RESPONSE, pdu.data.len(), 0x1122_3344)
        );
        assert!(pdu.data.len() <= SEGMENT_LEN && !(h.is_final() && h.continues()));
        assert_eq!(h.isid(), ISID);
        assert_eq!((h.version_max(), h.version_min(), h.login_status()), (0, 0, LoginStatus::SUCCESS));
        assert_eq!((h.stat_sn(), h.exp_cmd_sn()), (self.next_stat_sn, u32::MAX), "StatSN, ExpCmdSN");
        self.next_stat_sn = self.next_stat_sn.wrapping_add(1);
    }

    /// Sends a request after which the login continues, and returns the text of the response.
    fn text(&mut self, flags: u8, text: &str) -> String {
        match self.send(flags, text.as_bytes()) {
            LoginStep::Reply(pdu) => String::from_utf8(pdu.data).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request that is rejected, and returns the status.
    fn refused(&mut self, flags: u8, text: &str) -> LoginStatus {
        match self.send(flags, text.as_bytes()) {
            LoginStep::Refuse(pdu) => pdu.header.login_status(),
            other => panic!("{other:?}"),
        }
    }

    /// Ends a login, and returns the text of the final response.
    fn ready(&mut self, flags: u8, text: &str) -> String {
        assert_eq!(self.send(flags, text.as_bytes()), LoginStep::Ready);
        let pdu = self.login.accept(0x55, 128);
        self.hold(&pdu);
        assert_eq!(pdu.header.flags(), TRANSIT | flags & 0xc | 3);
        assert_eq!(pdu.header.tsih(), 0x55);
        assert_eq!(pdu.header.max_cmd_sn(), 126, "MaxCmdSN over the wrap");
        assert_eq!(self.login.next_stat_sn(), self.next_stat_sn);
        String::from_utf8(pdu.data).unwrap()
    }

    /// Sends a request that fails authentication. The response contains nothing but the status.
    fn ends_with(mut self, flags: u8, text: &str) -> Self {
        let LoginStep::Refuse(pdu) = self.send(flags, text.as_bytes()) else { panic!("{text}: no refusal") };
        let denied = LoginStatus::AUTHENTICATION_FAILURE;
        assert_eq!(pdu.header.login_status(), denied, "{text}");
        assert_eq!((pdu.header.flags(), pdu.data.len()), (0, 0), "{text}");
        self
    }

    /// Passes AuthMethod and CHAP_A, and returns the decoded challenge.
    fn challenged(&mut self, list: &str) -> (Algorithm, u8, Vec<u8>) {
        let method = self.text(SECURITY | TRANSIT | 1, &format!("{NAMES}AuthMethod=CHAP\0"));
        assert_eq!(method, "TargetPortalGroupTag=7\0AuthMethod=CHAP\0");
        let step = self.text(SECURITY, &format!("CHAP_A={list}\0"));
        let found: Vec<_> = pairs(step.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(found.iter().map(|p| p.0).collect::<Vec<_>>(), ["CHAP_A", "CHAP_I", "CHAP_C"]);
        let mut buf = [0; 1024];
        let challenge = text::binary(found[2].1, &mut buf).unwrap().to_vec();
        assert!((16..=32).contains(&challenge.len()));
        (Algorithm::first_of(found[0].1, &Algorithm::ALL).unwrap(), found[1].1.parse().unwrap(), challenge)
    }

    /// CHAP_N and CHAP_R of a user for a new challenge.
    fn proof(&mut self, list: &str, name: &str, secret: &[u8]) -> String {
        let (algorithm, id, challenge) = self.challenged(list);
        let mut out = vec![];
        push(&mut out, "CHAP_N", name);
        push_hex(&mut out, "CHAP_R", &algorithm.response(id, &Secret::new(secret), &challenge));
        String::from_utf8(out).unwrap()
    }
}

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1 << 2;
const DIRECT: u8 = TRANSIT | OPERATIONAL | 3;
const TO_OPERATIONAL: u8 = TRANSIT | SECURITY | 1;

/// LOG-032, first form: a single exchange. The names and the portal group tag.
#[test]
fn login_of_one_exchange() {
    let mut p = Pair::new(House { alias: Some("Disk Z\u{fc}rich 1".into()), ..House::default() });
    let text = p.ready(DIRECT, &format!("{NAMES}InitiatorAlias=host\0SessionType=Normal\0"));
    let want = "TargetAlias=Disk Z\u{fc}rich 1\0TargetPortalGroupTag=7\0MaxRecvDataSegmentLength=262144\0";
    assert_eq!(text, want);
    let l = &p.login;
    assert_eq!(
        (l.initiator_name(), l.target_name(), l.initiator_alias()),
        (INITIATOR, Some(DISKS), Some("host"))
    );
    assert_eq!((l.isid(), l.tsih(), l.cid(), l.cmd_sn()), (ISID, 0, 9, u32::MAX));
    assert_eq!((l.session_type(), l.chap_user()), (SessionType::Normal, None));
    let ours = Parameters { max_recv_data_segment_length: 262144, ..Parameters::default() };
    assert_eq!(*l.parameters(), ours);
}

/// LOG-032, second form: with an operational stage, and without one (defaults apply).
#[test]
fn login_without_auth_method() {
    let mut p = Pair::new(House::default());
    assert_eq!(p.text(TO_OPERATIONAL, NAMES), "TargetPortalGroupTag=7\0");
    assert_eq!(
        p.text(OPERATIONAL, "MaxBurstLength=4096\0"),
        "MaxBurstLength=4096\0MaxRecvDataSegmentLength=262144\0"
    );
    assert_eq!(p.ready(DIRECT, ""), "", "declared once");
    assert_eq!(p.login.parameters().first_burst_length, 4096, "KEY-034");

    let mut p = Pair::new(House::default());
    assert_eq!(p.ready(TRANSIT | 3, NAMES), "TargetPortalGroupTag=7\0");
    assert_eq!(*p.login.parameters(), Parameters::default());
}

/// The keys of open-iscsi and libiscsi in one text. The answers have the order of the table.
#[test]
fn full_set_of_keys() {
    let mut p = Pair::new(House::default());
    assert_eq!(
        p.text(TO_OPERATIONAL, &format!("{NAMES}AuthMethod=None\0")),
        "TargetPortalGroupTag=7\0AuthMethod=None\0"
    );
    let keys = "HeaderDigest=CRC32C,None\0DataDigest=None\0InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=262144\0\
        MaxBurstLength=131072\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0MaxOutstandingR2T=1\0ErrorRecoveryLevel=0\0\
        IFMarker=No\0OFMarkInt=2048~8192\0MaxConnections=1\0MaxRecvDataSegmentLength=32768\0DataPDUInOrder=Yes\0\
        DataSequenceInOrder=Yes\0TaskReporting=FastAbort,ResponseFence,RFC3720\0iSCSIProtocolLevel=2\0\
        X#NodeArchitecture=x86\0X-com.example.k=1\0RDMAExtensions=Yes\0";
    let answers = p.ready(DIRECT, keys);
    assert_eq!(
        answers,
        "HeaderDigest=CRC32C\0DataDigest=None\0MaxConnections=1\0ErrorRecoveryLevel=0\0InitialR2T=No\0\
        ImmediateData=Yes\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0MaxBurstLength=131072\0\
        FirstBurstLength=131072\0MaxOutstandingR2T=1\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0\
        TaskReporting=FastAbort\0iSCSIProtocolLevel=1\0IFMarker=No\0OFMarkInt=Reject\0RDMAExtensions=No\0\
        X-com.example.k=NotUnderstood\0MaxRecvDataSegmentLength=262144\0"
    );
    let got = p.login.parameters();
    assert_eq!((got.header_digest, got.data_digest, got.max_xmit_data_segment_length), (true, false, 32768));
    assert_eq!(
        (got.first_burst_length, got.task_reporting),
        (131072, crate::parameters::TaskReporting::FastAbort)
    );
}

/// The header of a response that continues the login, byte for byte.
#[test]
fn login_response_matches_golden_bytes() {
    let mut p = Pair::new(House::default());
    let LoginStep::Reply(pdu) = p.send(TO_OPERATIONAL, NAMES.as_bytes()) else { panic!() };
    let want = [
        [0x23, 0x81, 0, 0, 0, 0, 0, 23, 0x80, 1, 2, 3, 4, 5, 0, 0],
        [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(pdu.header.as_bytes()[..], want.concat()[..]);
}

/// LOG-001, LOG-002, LST-015.
#[test]
fn other_pdus_have_no_place_in_login() {
    let mut p = Pair::new(House::default());
    assert_eq!(p.login.request(&Bhs::new(opcode::NOP_OUT), b"", &p.house), LoginStep::Drop);
    p.text(SECURITY, NAMES);
    let LoginStep::Refuse(pdu) = p.login.request(&Bhs::new(opcode::TEXT), b"", &p.house) else { panic!() };
    assert_eq!(pdu.header.login_status(), LoginStatus::INVALID_REQUEST);
}

/// LOG-009, LOG-010, LOG-017: first PDUs with invalid flags, then second PDUs.
#[test]
fn only_allowed_stage_transitions_are_made() {
    for flags in [
        TRANSIT,
        TRANSIT | 2,
        TRANSIT | 4,
        TRANSIT | 5,
        TRANSIT | 6,
        8,
        12,
        TRANSIT | 15,
        TRANSIT | CONTINUE | 1,
    ] {
        assert_eq!(
            Pair::new(House::default()).refused(flags, NAMES),
            LoginStatus::INITIATOR_ERROR,
            "{flags:02x}"
        );
    }
    let mut p = Pair::new(House::default());
    p.text(OPERATIONAL | 3, NAMES); // NSG is ignored without T
    assert_eq!(p.refused(SECURITY, ""), LoginStatus::INITIATOR_ERROR);
}

/// LOG-020.
#[test]
fn future_version_is_rejected() {
    let p = Pair::new(House::default());
    let (mut login, mut header) = (p.login, Bhs::new(opcode::LOGIN));
    header =
        Bhs::from_bytes(std::array::from_fn(|i| if i == 2 || i == 3 { 1 } else { header.as_bytes()[i] }));
    let LoginStep::Refuse(pdu) = login.request(&header, NAMES.as_bytes(), &p.house) else { panic!() };
    assert_eq!(
        (pdu.header.version_max(), pdu.header.version_min(), pdu.header.login_status()),
        (0, 0, LoginStatus::UNSUPPORTED_VERSION)
    );
}

/// The status for an invalid first text.
#[test]
fn texts_that_are_refused() {
    let long = format!("InitiatorName=iqn.2026-11.org.example:{}\0", "a".repeat(224 - 24));
    let initiator = format!("InitiatorName={INITIATOR}\0");
    for (text, want) in [
        ("".to_owned(), LoginStatus::MISSING_PARAMETER),
        (initiator.clone(), LoginStatus::MISSING_PARAMETER),
        (format!("TargetName={DISKS}\0"), LoginStatus::MISSING_PARAMETER),
        (format!("{initiator}TargetName=iqn.2026-11.org.example:none\0"), LoginStatus::NOT_FOUND),
        (format!("{initiator}TargetName=disks\0"), LoginStatus::INITIATOR_ERROR),
        (
            "InitiatorName=iqn.2026-11.org.example:a\nb\0SessionType=Discovery\0".into(),
            LoginStatus::INITIATOR_ERROR,
        ),
        (long, LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}SessionType=Other\0"), LoginStatus::SESSION_TYPE_UNSUPPORTED),
        (format!("{NAMES}ImmediateData=Yes\0ImmediateData=Yes\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}X-a=1\0X-a=1\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}CHAP_A=5\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}SendTargets=All\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}TargetPortalGroupTag=1\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}TargetAddress=192.0.2.1\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}ErrorRecoveryLevel=9\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}HeaderDigest=X-none-such\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}InitialR2T\0"), LoginStatus::INITIATOR_ERROR),
        (format!("{NAMES}{}=1\0", "K".repeat(64)), LoginStatus::INITIATOR_ERROR),
    ] {
        assert_eq!(Pair::new(House::default()).refused(DIRECT, &text), want, "{text}");
    }
    let mut p = Pair::new(House::default());
    assert_eq!(
        p.refused(SECURITY, &format!("{NAMES}DataDigest=None\0")),
        LoginStatus::INITIATOR_ERROR,
        "LOG-033"
    );
}

#[test]
fn last_pair_without_nul_and_lower_case_log_in() {
    let text = Pair::new(House::default()).ready(DIRECT, &format!("{NAMES}ImmediateData=no"));
    assert!(text.contains("ImmediateData=No\0"), "{text}");
    Pair::new(House::default()).ready(DIRECT, NAMES.trim_end_matches('\0'));
}

#[test]
fn long_alias_is_cut_for_display() {
    let mut p = Pair::new(House::default());
    p.ready(DIRECT, &format!("{NAMES}InitiatorAlias=a{}\0", "\u{e9}".repeat(150)));
    assert_eq!(p.login.initiator_alias(), Some(&*format!("a{}", "\u{e9}".repeat(127))));
}

/// LOG-034, KEY-004: a repeated key in a second PDU.
#[test]
fn keys_are_not_repeated_later() {
    for again in ["ImmediateData=Yes\0", "X-a=1\0", NAMES, "SessionType=Discovery\0"] {
        let mut p = Pair::new(House::default());
        p.text(OPERATIONAL, &format!("{NAMES}ImmediateData=Yes\0X-a=1\0"));
        assert_eq!(p.refused(OPERATIONAL, again), LoginStatus::INITIATOR_ERROR, "{again}");
    }
}

/// As libiscsi with CHAP credentials does at a target that requires none.
#[test]
fn names_may_be_repeated_after_the_security_stage() {
    for (again, good) in [
        (NAMES, true),
        ("SessionType=Normal\0", true),
        ("SessionType=Discovery\0", false),
        ("TargetName=iqn.2026-11.org.example:other\0", false),
    ] {
        let mut p = Pair::new(House::default());
        p.text(TO_OPERATIONAL, &format!("{NAMES}AuthMethod=CHAP,None\0"));
        let step = p.send(DIRECT, again.as_bytes());
        assert_eq!(matches!(step, LoginStep::Ready), good, "{again}: {step:?}");
    }
}

/// KEY-037: a connection that joins a session may not send keys of the leading login.
#[test]
fn leading_only_key_is_rejected_on_other_connections() {
    for (key, good) in [("MaxConnections=2\0", false), ("HeaderDigest=None\0", true)] {
        let mut p = Pair::new(House::default());
        let mut header = p.header(OPERATIONAL);
        header.set_tsih(1);
        let step = p.login.request(&header, format!("{NAMES}{key}").as_bytes(), &p.house);
        assert_eq!(matches!(step, LoginStep::Reply(_)), good, "{key}");
        assert_eq!(p.login.tsih(), 1);
    }
}

/// LOG-037, A-21.
#[test]
fn target_that_moved() {
    for (for_good, status) in
        [(false, LoginStatus::MOVED_TEMPORARILY), (true, LoginStatus::MOVED_PERMANENTLY)]
    {
        let mut p =
            Pair::new(House { redirect: Some(("[2001:db8::1]:3260".into(), for_good)), ..House::default() });
        let LoginStep::Refuse(pdu) = p.send(DIRECT, NAMES.as_bytes()) else { panic!() };
        assert_eq!(pdu.header.login_status(), status);
        assert_eq!(pdu.data, b"TargetAddress=[2001:db8::1]:3260\0");
    }
}

/// Names are folded (RFC 3722).
#[test]
fn names_in_capitals_log_in_folded() {
    let mut p = Pair::new(House::default());
    p.ready(
        DIRECT,
        &NAMES.to_uppercase().replace("INITIATORNAME", "InitiatorName").replace("TARGETNAME", "TargetName"),
    );
    assert_eq!((p.login.initiator_name(), p.login.target_name()), (INITIATOR, Some(DISKS)));
}

#[test]
fn none_named_in_operational_stage_is_answered() {
    let text = Pair::new(House::default()).ready(DIRECT, &format!("{NAMES}AuthMethod=CHAP,None\0"));
    assert!(text.contains("AuthMethod=None\0"), "{text}");
    let refused = |house, list| Pair::new(house).refused(DIRECT, &format!("{NAMES}AuthMethod={list}\0"));
    assert_eq!(refused(House::default(), "CHAP"), LoginStatus::INITIATOR_ERROR);
    assert_eq!(refused(guarded(), "None"), LoginStatus::AUTHENTICATION_FAILURE);
}

/// DSC-001, KEY-038, A-08, A-09, LST-013.
#[test]
fn discovery_session_logs_in_without_target() {
    let unnamed = format!("InitiatorName={INITIATOR}\0SessionType=Discovery\0InitiatorAlias=a\x1bb\0");
    let mut p = Pair::new(House::default());
    p.login.offer.error_recovery_level = 2;
    let text =
        p.ready(DIRECT, &format!("{unnamed}ErrorRecoveryLevel=2\0MaxConnections=4\0FirstBurstLength=512\0"));
    let want = "MaxConnections=1\0ErrorRecoveryLevel=0\0FirstBurstLength=512\0\
        MaxRecvDataSegmentLength=262144\0";
    assert_eq!(text, want);
    assert_eq!((p.login.session_type(), p.login.target_name()), (SessionType::Discovery, None));
    assert_eq!(p.login.initiator_alias(), Some("a?b"));

    let mut p = Pair::new(House { alias: Some("Disks".into()), ..House::default() });
    let named = format!("{unnamed}TargetName={DISKS}\0");
    assert_eq!(p.ready(DIRECT, &named), "TargetPortalGroupTag=7\0MaxRecvDataSegmentLength=262144\0");

    let closed = Err(LoginStatus::SESSION_TYPE_UNSUPPORTED);
    let mut p = Pair::new(House { discovery: closed, ..House::default() });
    assert_eq!(p.refused(DIRECT, &unnamed), LoginStatus::SESSION_TYPE_UNSUPPORTED);

    let mut p = Pair::new(guarded());
    assert_eq!(
        p.refused(DIRECT, &named),
        LoginStatus::AUTHENTICATION_FAILURE,
        "a named one needs what its target needs"
    );
}

/// LOG-018, LOG-029, NEG-004, CVE-2021-28361.
#[test]
fn text_over_several_pdus() {
    let mut p = Pair::new(House::default());
    assert_eq!(p.text(OPERATIONAL | CONTINUE, ""), "");
    let text = format!("{NAMES}MaxBurstLength=4096\0");
    for part in text.as_bytes().chunks(7) {
        let LoginStep::Reply(pdu) = p.send(OPERATIONAL | CONTINUE, part) else { panic!() };
        assert_eq!((pdu.data.len(), pdu.header.flags()), (0, OPERATIONAL));
    }
    let want = "TargetPortalGroupTag=7\0MaxBurstLength=4096\0MaxRecvDataSegmentLength=262144\0";
    assert_eq!(p.ready(DIRECT, ""), want);
}

/// LOG-040, LOG-041: an answer longer than a segment. The stage changes after its last part.
#[test]
fn long_answer_comes_in_pieces() {
    let mut p = Pair::new(House::default());
    let keys: String = (0..900).map(|i| format!("X-{i}=1\0")).collect();
    let mut step = p.send(DIRECT, (NAMES.to_owned() + &keys).as_bytes());
    let (mut all, mut pieces) = (vec![], 0);
    while let LoginStep::Reply(pdu) = step {
        assert_eq!(pdu.header.flags(), OPERATIONAL | CONTINUE);
        all.extend(pdu.data);
        pieces += 1;
        step = p.send(DIRECT, b"");
    }
    assert_eq!((step, pieces), (LoginStep::Ready, 2));
    all.extend(p.login.accept(1, 1).data);
    assert_eq!(pairs(&all).filter(|a| matches!(a, Ok((_, "NotUnderstood")))).count(), 900);
    assert_eq!(pairs(&all).map(Result::unwrap).filter(|a| a.0 == "MaxRecvDataSegmentLength").count(), 1);

    let mut p = Pair::new(House::default());
    p.send(DIRECT, (NAMES.to_owned() + &keys).as_bytes());
    assert_eq!(p.refused(DIRECT, "X-late=1\0"), LoginStatus::INITIATOR_ERROR);
}

/// LOG-042, and the limits on unknown keys and key text.
#[test]
fn login_beyond_a_limit_is_refused() {
    let mut p = Pair::new(House::default());
    p.text(OPERATIONAL, NAMES);
    (1..EXCHANGES).for_each(|_| assert_eq!(p.text(OPERATIONAL, ""), ""));
    assert_eq!(p.refused(OPERATIONAL, ""), LoginStatus::INITIATOR_ERROR);

    let mut p = Pair::new(House::default());
    let part = "A".repeat(SEGMENT_LEN);
    (0..8).for_each(|_| assert_eq!(p.text(OPERATIONAL | CONTINUE, &part), ""));
    assert_eq!(p.refused(OPERATIONAL | CONTINUE, "A"), LoginStatus::INITIATOR_ERROR, "65536 bytes of text");

    let mut p = Pair::new(House::default());
    assert_eq!(p.refused(DIRECT, &"A".repeat(SEGMENT_LEN + 1)), LoginStatus::INITIATOR_ERROR);

    let mut p = Pair::new(House::default());
    let keys: String = (0..=UNKNOWN_KEYS).map(|i| format!("{i}=\0")).collect();
    assert_eq!(p.refused(DIRECT, &(NAMES.to_owned() + &keys)), LoginStatus::INITIATOR_ERROR);
}

/// LOG-031, SEC-009, and unsupported methods.
#[test]
fn security_that_is_required_is_not_skipped() {
    let denied = LoginStatus::AUTHENTICATION_FAILURE;
    assert_eq!(Pair::new(guarded()).refused(DIRECT, NAMES), denied);
    assert_eq!(Pair::new(guarded()).refused(OPERATIONAL, NAMES), denied);
    for flags in [TO_OPERATIONAL, TRANSIT | 3] {
        assert_eq!(Pair::new(guarded()).refused(flags, NAMES), denied);
    }
    for list in ["None", "KRB5,SRP", "none", ""] {
        let text = format!("{NAMES}AuthMethod={list}\0");
        assert_eq!(Pair::new(guarded()).refused(SECURITY, &text), denied, "{list}");
    }
    let mut p = Pair::new(guarded());
    p.challenged("5");
    assert_eq!(p.refused(TO_OPERATIONAL, ""), LoginStatus::MISSING_PARAMETER);
}

/// KEY-028: the first offered method that policy allows is selected.
#[test]
fn methods_by_policy() {
    for (house, list, want) in [
        (House::default(), "CHAP,None", "None"),
        (guarded(), "None,CHAP", "CHAP"),
        (House { authentication: chap(false), ..House::default() }, "None,CHAP", "None"),
        (House { authentication: chap(false), ..House::default() }, "KRB5,CHAP,None", "CHAP"),
    ] {
        let text = Pair::new(house).text(SECURITY, &format!("{NAMES}AuthMethod={list}\0"));
        assert_eq!(text, format!("TargetPortalGroupTag=7\0AuthMethod={want}\0"));
    }
}

/// SEC-001, SEC-003, KEY-029, KEY-033: every algorithm, hexadecimal digits in both cases, base64; CHAP_N is taken
/// literally.
#[test]
fn chap_one_way() {
    for (list, name, secret) in [
        ("5", "alice", b"alice's secret"),
        ("6,5", "alice", b"alice's secret"),
        ("99,7,5", "alice", b"alice's secret"),
        ("8", "0x41", b"literal secret"),
    ] {
        let mut p = Pair::new(guarded());
        let proof = p.proof(list, name, secret);
        assert_eq!(p.text(TO_OPERATIONAL, &proof), "");
        assert_eq!(p.login.chap_user(), Some(name));
        assert_eq!(p.ready(DIRECT, ""), "MaxRecvDataSegmentLength=262144\0");
    }
    let mut p = Pair::new(guarded());
    let proof = p.proof("5", "alice", b"alice's secret");
    let (name, response) = proof.split_once("=0x").unwrap();
    assert_eq!(p.text(TO_OPERATIONAL, &format!("{name}=0X{}", response.to_uppercase())), "");
}

/// SEC-005, SEC-007, KEY-033, A-18.
#[test]
fn chap_that_fails() {
    let mut p = Pair::new(guarded());
    p.text(SECURITY, &format!("{NAMES}AuthMethod=CHAP\0"));
    assert_eq!(p.refused(SECURITY, "CHAP_A=99\0"), LoginStatus::AUTHENTICATION_FAILURE);
    for (name, secret) in
        [("alice", b"wrong".as_slice()), ("bob", b"alice's secret"), ("A", b"literal secret")]
    {
        let mut p = Pair::new(guarded());
        let proof = p.proof("5", name, secret);
        assert_eq!(p.refused(TO_OPERATIONAL, &proof), LoginStatus::AUTHENTICATION_FAILURE, "{name}");
    }
    for (text, want) in [
        ("CHAP_N=alice\0".to_owned(), LoginStatus::MISSING_PARAMETER),
        ("CHAP_R=0x00\0".into(), LoginStatus::MISSING_PARAMETER),
        ("CHAP_N=alice\0CHAP_R=0x00\0".into(), LoginStatus::AUTHENTICATION_FAILURE),
        ("CHAP_N=alice\0CHAP_R=0x\0".into(), LoginStatus::AUTHENTICATION_FAILURE),
        ("CHAP_N=alice\0CHAP_R=123\0".into(), LoginStatus::INITIATOR_ERROR),
        (format!("CHAP_N=alice\0CHAP_R=0x{}\0", "00".repeat(1025)), LoginStatus::INITIATOR_ERROR),
        (format!("CHAP_N=alice\0CHAP_R=0b{}\0", "AAAA".repeat(342)), LoginStatus::INITIATOR_ERROR),
        ("CHAP_A=5\0".into(), LoginStatus::INITIATOR_ERROR),
        ("AuthMethod=None\0".into(), LoginStatus::INITIATOR_ERROR),
    ] {
        let mut p = Pair::new(guarded());
        p.challenged("5");
        assert_eq!(p.refused(TO_OPERATIONAL, &text), want, "{text}");
    }
    let mut p = Pair::new(guarded());
    p.text(SECURITY, &format!("{NAMES}AuthMethod=CHAP\0"));
    assert_eq!(
        p.refused(SECURITY, "CHAP_N=alice\0CHAP_R=0x00\0"),
        LoginStatus::INITIATOR_ERROR,
        "a step too early"
    );
}

#[test]
fn forbidden_algorithms_are_not_chosen() {
    let strong = || {
        let authentication =
            Authentication { algorithms: vec![Algorithm::Sha256, Algorithm::Sha3], ..chap(true) };
        Pair::new(House { authentication, ..House::default() })
    };
    assert_eq!(strong().challenged("5,6,7").0, Algorithm::Sha256);
    for list in ["5", "5,6", "99"] {
        let mut p = strong();
        p.text(SECURITY, &format!("{NAMES}AuthMethod=CHAP\0"));
        let status = p.refused(SECURITY, &format!("CHAP_A={list}\0"));
        assert_eq!(status, LoginStatus::AUTHENTICATION_FAILURE, "{list}");
        let why =
            format!("the initiator offers CHAP_A={list} without an allowed algorithm (sha256, sha3-256)");
        assert_eq!(p.login.reason(), Some(&*why));
    }
}

/// SEC-004, SEC-005, KEY-030, KEY-031: mutual CHAP, and a target without a user for it.
#[test]
fn mutual_chap_authenticates_both_sides() {
    let mutual = |extra: &str| {
        let mut p = Pair::new(guarded());
        let proof = p.proof("7", "alice", b"alice's secret");
        (p, proof + extra)
    };
    let (mut p, text) = mutual("CHAP_I=255\0CHAP_C=0x0102030405060708\0");
    let answer = p.text(TO_OPERATIONAL, &text);
    let mut want = b"CHAP_N=lunar\0".to_vec();
    let secret = Secret::new(b"lunar's secret");
    push_hex(&mut want, "CHAP_R", &Algorithm::Sha256.response(255, &secret, &[1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(answer.as_bytes(), want);

    let long = format!("CHAP_I=0\0CHAP_C=0x{}\0", "11".repeat(1025));
    for (extra, want) in [
        ("CHAP_I=256\0CHAP_C=0x01\0", LoginStatus::INITIATOR_ERROR),
        ("CHAP_I=abc\0CHAP_C=0x01\0", LoginStatus::INITIATOR_ERROR),
        ("CHAP_I=0\0CHAP_C=0x\0", LoginStatus::INITIATOR_ERROR),
        (&long, LoginStatus::INITIATOR_ERROR),
        ("CHAP_C=0x01\0", LoginStatus::MISSING_PARAMETER),
        ("CHAP_I=1\0", LoginStatus::MISSING_PARAMETER),
    ] {
        let (mut p, text) = mutual(extra);
        assert_eq!(p.refused(TO_OPERATIONAL, &text), want, "{extra}");
    }
    let (mut p, text) = mutual("CHAP_I=1\0CHAP_C=0x01\0");
    p.login.demand.mutual = None;
    assert_eq!(p.refused(TO_OPERATIONAL, &text), LoginStatus::AUTHENTICATION_FAILURE);
}

/// SEC-011, SEC-012.
#[test]
fn reflected_challenge_is_not_answered() {
    let mut p = Pair::new(guarded());
    let (algorithm, id, challenge) = p.challenged("5");
    let mut text = vec![];
    push(&mut text, "CHAP_N", "alice");
    push_hex(&mut text, "CHAP_R", &algorithm.response(id, &Secret::new(b"alice's secret"), &challenge));
    push(&mut text, "CHAP_I", &id.to_string());
    push_hex(&mut text, "CHAP_C", &challenge);
    let text = String::from_utf8(text).unwrap();
    assert_eq!(p.refused(TO_OPERATIONAL, &text), LoginStatus::AUTHENTICATION_FAILURE);

    let mut p = Pair::new(guarded());
    let proof = p.proof("5", "alice", b"alice's secret") + "CHAP_I=1\0CHAP_C=0x01\0";
    p.login.demand.mutual = Some(user("lunar", b"alice's secret"));
    assert_eq!(
        p.refused(TO_OPERATIONAL, &proof),
        LoginStatus::AUTHENTICATION_FAILURE,
        "one secret for both ways"
    );
}

/// Runs a login that fails authentication.
type Fails = fn() -> Pair;

fn mutual(change: fn(&mut Pair), challenge: fn(&[u8]) -> Vec<u8>) -> Pair {
    let mut p = Pair::new(guarded());
    let (algorithm, id, ours) = p.challenged("5");
    change(&mut p);
    let mut text = vec![];
    push(&mut text, "CHAP_N", "alice");
    push_hex(&mut text, "CHAP_R", &algorithm.response(id, &Secret::new(b"alice's secret"), &ours));
    push(&mut text, "CHAP_I", "1");
    push_hex(&mut text, "CHAP_C", &challenge(&ours));
    p.ends_with(TO_OPERATIONAL, std::str::from_utf8(&text).unwrap())
}

fn proved(name: &str, secret: &[u8]) -> Pair {
    let mut p = Pair::new(guarded());
    let proof = p.proof("5", name, secret);
    p.ends_with(TO_OPERATIONAL, &proof)
}

/// SEC-005, SEC-012: the log names each fault; the response is the same for all.
#[test]
fn each_chap_fault_is_logged_and_looks_alike() {
    let offers =
        |list: &str| Pair::new(guarded()).ends_with(SECURITY, &format!("{NAMES}AuthMethod={list}\0"));
    let algorithm = || {
        let mut p = Pair::new(guarded());
        p.text(SECURITY, &format!("{NAMES}AuthMethod=CHAP\0"));
        p.ends_with(SECURITY, "CHAP_A=99\0")
    };
    let faults: [(Fails, &str); 6] = [
        (|| proved("bob", b"alice's secret"), "the CHAP user bob is not allowed"),
        (|| proved("b\x1b", b"x"), "the CHAP user b\\u{1b} is not allowed"),
        (|| proved("alice", b"wrong"), "the initiator sent a wrong secret for the CHAP user alice"),
        (
            || mutual(|_| {}, <[u8]>::to_vec),
            "the initiator sends the target's own challenge back (RFC 7143 section 9.2.1)",
        ),
        (
            || mutual(|p| p.login.demand.mutual = None, |_| vec![1]),
            "the initiator requests mutual CHAP, but the key `mutual` names no CHAP user",
        ),
        (
            || mutual(|p| p.login.demand.mutual = Some(user("lunar", b"alice's secret")), |_| vec![1]),
            "the CHAP users alice and lunar (`mutual`) have the same secret",
        ),
    ];
    let mut all: Vec<(Pair, &str)> = faults.into_iter().map(|(fails, why)| (fails(), why)).collect();
    all.extend([
        (
            Pair::new(guarded()).ends_with(DIRECT, NAMES),
            "CHAP is required, but the initiator offers no AuthMethod",
        ),
        (offers("None"), "CHAP is required, but the initiator offers AuthMethod=None"),
        (
            algorithm(),
            "the initiator offers CHAP_A=99 without an allowed algorithm (sha3-256, sha1, md5, sha256)",
        ),
    ]);
    for (p, why) in &all {
        assert_eq!(p.login.reason(), Some(*why));
    }
}

/// LST-006, SEC-017: access is checked after authentication, with the user name.
#[test]
fn authorization_follows_authentication() {
    let mut p = Pair::new(House { banned: Some("alice"), ..guarded() });
    let proof = p.proof("5", "alice", b"alice's secret");
    assert_eq!(p.text(SECURITY, &proof), "", "not before the stage ends");
    assert_eq!(p.refused(TO_OPERATIONAL, ""), LoginStatus::AUTHORIZATION_FAILURE);
}

/// The session cannot be registered after the negotiation.
#[test]
fn refused_at_the_end() {
    let mut p = Pair::new(House::default());
    assert_eq!(p.send(DIRECT, NAMES.as_bytes()), LoginStep::Ready);
    let pdu = p.login.refuse(LoginStatus::OUT_OF_RESOURCES);
    assert_eq!(
        (pdu.header.login_status(), pdu.header.flags(), pdu.data.len()),
        (LoginStatus::OUT_OF_RESOURCES, 0, 0)
    );
}

proptest! {
    /// NEG-004: the way in which the text is split does not change the result.
    #[test]
    fn splits_change_nothing(cuts in prop::collection::vec(0usize..400, 0..20)) {
        let text = format!("{NAMES}HeaderDigest=CRC32C,None\0MaxBurstLength=0x1000\0FirstBurstLength=65536\0X-a=b=c\0");
        let mut whole = Pair::new(House::default());
        let want = whole.ready(DIRECT, &text);
        let mut cuts: Vec<_> = cuts.into_iter().map(|c| c % text.len()).collect();
        cuts.sort_unstable();
        let mut p = Pair::new(House::default());
        let mut from = 0;
        for cut in cuts {
            p.text(OPERATIONAL | CONTINUE, &text[from..cut]);
            from = cut;
        }
        prop_assert_eq!(p.ready(DIRECT, &text[from..]), want);
        prop_assert_eq!(p.login.parameters(), whole.login.parameters());
    }

    /// For any input: no panic, an end within the limit of exchanges, and bounded state.
    #[test]
    fn random_input_does_not_panic(pdus in prop::collection::vec(
        (any::<u8>(), prop_oneof![any::<Vec<u8>>(), key_text()]), 1..80,
    )) {
        let mut p = Pair::new(guarded());
        for (flags, data) in pdus {
            let header = p.header(flags & 0xcf);
            match p.login.request(&header, &data, &p.house) {
                LoginStep::Reply(pdu) => prop_assert!(pdu.data.len() <= SEGMENT_LEN),
                LoginStep::Ready => {
                    prop_assert!(p.login.chap_user().is_some() || p.login.session_type() == SessionType::Discovery);
                    p.login.accept(1, 1);
                    break;
                }
                _ => break,
            }
            prop_assert!(p.login.exchanges <= EXCHANGES && p.login.unknown.len() <= UNKNOWN_KEYS);
        }
    }
}

/// Key text of known keys and plausible values.
fn key_text() -> impl Strategy<Value = Vec<u8>> {
    let key = (0..keys::TABLE.len()).prop_map(|i| keys::TABLE[i].name);
    let values =
        ["Yes", "No", "None", "CHAP", "5", "65536", "Discovery", "Normal", INITIATOR, DISKS, "0x00", ""];
    let pair = (key, prop::sample::select(values.to_vec()));
    (any::<bool>(), prop::collection::vec(pair, 0..6)).prop_map(|(named, pairs)| {
        let mut text = if named { NAMES.as_bytes().to_vec() } else { vec![] };
        pairs.iter().for_each(|(k, v)| push(&mut text, k, v));
        text
    })
}

#[test]
fn rejected_login_has_its_reason() {
    let long = "x".repeat(200);
    let cases = [
        (
            format!("{NAMES}MaxBurstLength=12\0"),
            "MaxBurstLength=12: the value must be a number from 512 to 16777215".to_owned(),
        ),
        (
            format!("{NAMES}InitialR2T=\x1b[1mmaybe\0"),
            "InitialR2T=\\u{1b}[1mmaybe: the value must be Yes or No".to_owned(),
        ),
        (format!("{NAMES}X-a={long}\0X-a={long}\0"), format!("X-a={}...: the key was sent before", "x".repeat(64))),
        (format!("{NAMES}CHAP_A=5\0"), "CHAP_A=(not shown): the key is not valid in this login stage".to_owned()),
        (
            format!("{NAMES}TargetAddress=192.0.2.1\0"),
            "TargetAddress=192.0.2.1: only targets may send this key".to_owned(),
        ),
        ("SessionType=Normal\0".to_owned(), "the key InitiatorName is missing".to_owned()),
        (
            "InitiatorName=me\0".to_owned(),
            "InitiatorName=me: not an iSCSI name: the form iqn., eui. or naa. of RFC 7143 section 4.2.7 is required"
                .to_owned(),
        ),
        (
            format!("{NAMES}InitialR2T\0"),
            "malformed key text: expected KEY=VALUE pairs, each ended by NUL".to_owned(),
        ),
    ];
    for (text, reason) in cases {
        let mut p = Pair::new(House::default());
        p.refused(DIRECT, &text);
        assert_eq!(p.login.reason(), Some(&*reason), "{text:?}");
    }
}
