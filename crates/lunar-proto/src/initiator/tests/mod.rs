//! The initiator's state machines against scripted targets, and against the target's own state machines.

mod discovery;
mod hostile;
mod odd;
mod pair;
mod rdma;

use lunar_wire::iscsi::flag::{CONTINUE, TRANSIT};
use lunar_wire::iscsi::text::pairs;
use lunar_wire::iscsi::{Bhs, opcode};

use super::login::*;
use crate::Pdu;
use crate::chap::{Algorithm, Secret};
use crate::login::{EXCHANGES, SEGMENT_LEN, SessionType};
use crate::parameters::{AllowedDigests, Offer, Parameters, TaskReporting};

const INITIATOR: &str = "iqn.1993-08.org.debian:01:abc";
const DISKS: &str = "iqn.2026-11.org.example:disks";
const ISID: [u8; 6] = [0x80, 1, 2, 3, 4, 5];
const ITT: u32 = 0x1122_3344;

/// Flags of responses: within the security stage, to the operational stage, within it, and to full feature phase.
const SECURITY: u8 = 0;
const TO_OPERATIONAL: u8 = TRANSIT | 1;
const OPERATIONAL: u8 = 1 << 2;
const LAST: u8 = TRANSIT | OPERATIONAL | 3;

/// Changes reserved bytes of a header, which no accessor names.
fn raw(header: &mut Bhs, change: impl FnOnce(&mut [u8; 48])) {
    let mut bytes = *header.as_bytes();
    change(&mut bytes);
    *header = Bhs::from_bytes(bytes);
}

const OPEN: &str = "TargetPortalGroupTag=1\0AuthMethod=None\0";

fn wish() -> LoginParams {
    LoginParams {
        initiator: INITIATOR.into(),
        initiator_alias: None,
        target: Some(DISKS.into()),
        session_type: SessionType::Normal,
        isid: ISID,
        tsih: 0,
        cid: 9,
        cmd_sn: u32::MAX,
        itt: ITT,
        offer: Offer::default(),
        crc32c_first: false,
        credentials: None,
    }
}

fn discovery_wish() -> LoginParams {
    LoginParams { target: None, session_type: SessionType::Discovery, ..wish() }
}

fn alice() -> Credentials {
    Credentials {
        name: "alice".into(),
        secret: Secret::new(b"alice's secret"),
        mutual: None,
        algorithms: Algorithm::ALL.to_vec(),
        required: true,
    }
}

fn with(credentials: Credentials) -> LoginParams {
    LoginParams { credentials: Some(credentials), ..wish() }
}

fn mutual() -> Credentials {
    Credentials { mutual: Some(("lunar".into(), Secret::new(b"lunar's secret"))), ..alice() }
}

/// A target whose responses the test writes, and a login to it.
struct Script {
    login: InitiatorLogin,
    wish: LoginParams,
    /// The latest request.
    request: Pdu,
    /// StatSN of the next response.
    stat_sn: u32,
    answered: bool,
}

impl Script {
    fn new(wish: LoginParams) -> Self {
        wish.check().unwrap();
        Self::unchecked(wish)
    }

    fn unchecked(wish: LoginParams) -> Self {
        let (login, request) = InitiatorLogin::new(wish.clone());
        let script = Script { login, wish, request, stat_sn: 0xffff_fffe, answered: false };
        script.hold();
        script
    }

    /// A login in the operational stage, without authentication.
    fn operational(wish: LoginParams) -> Self {
        let mut script = Self::new(wish);
        script.send(TO_OPERATIONAL, OPEN);
        script
    }

    /// Checks the rules for every request (FRM-002, LOG-006, LOG-017, LOG-019, LOG-021, LOG-026, LOG-028, LOG-040).
    fn hold(&self) {
        let h = &self.request.header;
        assert_eq!((h.opcode(), h.immediate()), (opcode::LOGIN, true));
        assert_eq!(
            (h.version_max(), h.version_min(), h.ahs_len(), &h.as_bytes()[22..24]),
            (0, 0, 0, [0, 0].as_slice())
        );
        assert!(h.as_bytes()[32..].iter().all(|b| *b == 0));
        assert_eq!((h.itt(), h.cmd_sn(), h.data_len()), (ITT, self.wish.cmd_sn, self.request.data.len()));
        assert_eq!((h.isid(), h.tsih()), (ISID, self.wish.tsih));
        assert_eq!(h.cid(), self.wish.cid);
        assert_eq!(h.exp_stat_sn(), if self.answered { self.stat_sn } else { 0 });
        assert!(self.request.data.len() <= SEGMENT_LEN && !(h.is_final() && h.continues()));
        assert_eq!(h.flags() & 0x30, 0);
        let next = if h.is_final() { [1, 3][usize::from(h.stages().0)] } else { 0 };
        assert_eq!(h.stages().1, next);
    }

    /// Answers the latest request. `change` edits the header before it is sent.
    fn reply_with(&mut self, flags: u8, text: &[u8], change: impl FnOnce(&mut Bhs)) -> InitiatorLoginStep {
        let mut h = Bhs::new(opcode::LOGIN_RESPONSE);
        h.set_flags(flags);
        h.set_isid(ISID);
        h.set_tsih(if flags == LAST { 0x55 } else { 0 });
        h.set_itt(ITT);
        h.set_stat_sn(self.stat_sn);
        h.set_exp_cmd_sn(self.wish.cmd_sn);
        h.set_max_cmd_sn(self.wish.cmd_sn.wrapping_add(31));
        h.set_data_len(text.len());
        change(&mut h);
        let step = self.login.response(&h, text);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        self.answered = true;
        if let InitiatorLoginStep::Send(pdu) = &step {
            self.request = pdu.clone();
            self.hold();
        }
        step
    }

    fn reply(&mut self, flags: u8, text: &str) -> InitiatorLoginStep {
        self.reply_with(flags, text.as_bytes(), |_| ())
    }

    /// Sends a response after which the login continues, and returns flags and text of the next request.
    fn send(&mut self, flags: u8, text: &str) -> (u8, String) {
        match self.reply(flags, text) {
            InitiatorLoginStep::Send(_) => (self.request.header.flags(), self.text()),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn done(&mut self, text: &str) -> LoggedIn {
        match self.reply(LAST, text) {
            InitiatorLoginStep::Done(logged_in) => *logged_in,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn failed(&mut self, flags: u8, text: &str) -> LoginError {
        match self.reply(flags, text) {
            InitiatorLoginStep::Failed(failure) => failure,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    /// Sends a response, and returns the protocol violation that the login reports.
    fn broke(&mut self, flags: u8, text: &str) -> String {
        match self.failed(flags, text) {
            LoginError::Broke(why) => why,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.request.data.clone()).unwrap()
    }

    /// Answers every key of the latest request with its value, and a list with its first element. Keys in `but` get
    /// the given value instead, or no answer.
    fn agree(&self, but: &[(&str, Option<&str>)]) -> String {
        let mut text = String::new();
        for (key, value) in pairs(&self.request.data).map(Result::unwrap) {
            let first = value.split(',').next();
            let answer = but.iter().find(|b| b.0 == key).map_or(first, |b| b.1);
            if let Some(answer) = answer {
                text += &format!("{key}={answer}\0");
            }
        }
        text
    }

    /// Ends a login with a response that [`Script::agree`] writes.
    fn answered(mut self, but: &[(&str, Option<&str>)]) -> InitiatorLoginStep {
        let text = self.agree(but);
        self.reply(LAST, &text)
    }
}

/// FRM-001, LOG-007, LOG-008: the first PDU, byte for byte.
#[test]
fn login_request_matches_golden_bytes() {
    let script =
        Script::new(LoginParams { cmd_sn: 0x0102_0304, initiator_alias: Some("host".into()), ..wish() });
    let want = [
        [0x43, 0x81, 0, 0, 0, 0, 0, 140, 0x80, 1, 2, 3, 4, 5, 0, 0],
        [0x11, 0x22, 0x33, 0x44, 0, 9, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0],
        [0; 16],
    ];
    assert_eq!(
        script.text(),
        "InitiatorName=iqn.1993-08.org.debian:01:abc\0InitiatorAlias=host\0\
        TargetName=iqn.2026-11.org.example:disks\0SessionType=Normal\0AuthMethod=None\0"
    );
    assert_eq!(script.request.header.as_bytes()[..], want.concat()[..]);
}

/// KEY-001 to KEY-023, KEY-039, LOG-032, NEG-029: all keys in one request, all answers in one response.
#[test]
fn login_of_two_exchanges() {
    let mut script = Script::new(wish());
    let (flags, text) = script.send(TO_OPERATIONAL, OPEN);
    assert_eq!(flags, LAST);
    assert_eq!(
        text,
        "HeaderDigest=None,CRC32C\0DataDigest=None,CRC32C\0MaxRecvDataSegmentLength=262144\0MaxConnections=1\0\
        ErrorRecoveryLevel=0\0InitialR2T=No\0ImmediateData=Yes\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0\
        MaxBurstLength=1048576\0FirstBurstLength=262144\0MaxOutstandingR2T=8\0DefaultTime2Wait=2\0\
        DefaultTime2Retain=20\0TaskReporting=FastAbort,ResponseFence,RFC3720\0"
    );
    let got = script.done(
        "HeaderDigest=CRC32C\0DataDigest=None\0TargetAlias=Disk Z\u{fc}rich\x1b1\0MaxConnections=1\0\
        ErrorRecoveryLevel=0\0InitialR2T=Yes\0ImmediateData=No\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0\
        MaxBurstLength=0x20000\0FirstBurstLength=65536\0MaxOutstandingR2T=1\0DefaultTime2Wait=5\0\
        DefaultTime2Retain=0\0TaskReporting=RFC3720\0MaxRecvDataSegmentLength=8193\0",
    );
    let parameters = Parameters {
        header_digest: true,
        immediate_data: false,
        max_recv_data_segment_length: 262144,
        max_xmit_data_segment_length: 8193,
        max_burst_length: 131072,
        default_time2wait: 5,
        default_time2retain: 0,
        ..Parameters::default()
    };
    assert_eq!(got.parameters, parameters);
    assert_eq!((got.tsih, got.portal_group_tag, got.chap), (0x55, Some(1), None), "LOG-030");
    assert_eq!((got.cmd_sn, got.exp_cmd_sn, got.max_cmd_sn), (u32::MAX, u32::MAX, 30), "LOG-026");
    assert_eq!(got.exp_stat_sn, 0, "over the wrap");
    assert_eq!(got.target_alias.as_deref(), Some("Disk Z\u{fc}rich?1"));
    assert_eq!((got.answers.len(), &*got.answers[4].1), (18, "Disk Z\u{fc}rich?1"));
}

/// KEY-001, KEY-022, KEY-023, NEG-018: the offered keys follow the login parameters.
#[test]
fn offered_keys_follow_the_options() {
    let none = AllowedDigests { none: true, crc32c: false };
    let crc32c = AllowedDigests { none: false, crc32c: true };
    let offer = Offer { header_digest: none, data_digest: crc32c, ..Offer::default() };
    let young = Offer { protocol_level: 2, task_reporting: TaskReporting::ResponseFence, ..Offer::default() };
    let old = Offer { task_reporting: TaskReporting::Rfc3720, ..Offer::default() };
    for (wish, said, unsaid) in [
        (
            LoginParams { crc32c_first: true, ..wish() },
            "HeaderDigest=CRC32C,None\0DataDigest=CRC32C,None\0",
            "=",
        ),
        (LoginParams { offer, crc32c_first: true, ..wish() }, "HeaderDigest=None\0DataDigest=CRC32C\0", ","),
        (
            LoginParams { offer: young, ..wish() },
            "TaskReporting=ResponseFence,RFC3720\0iSCSIProtocolLevel=2\0",
            "=",
        ),
        (LoginParams { offer: old, ..wish() }, "DefaultTime2Retain=20\0", "TaskReporting"),
        (LoginParams { tsih: 7, ..wish() }, "HeaderDigest=None,CRC32C\0", "MaxConnections"),
        (discovery_wish(), "MaxRecvDataSegmentLength=262144\0", "DefaultTime2Wait"),
    ] {
        let text = Script::operational(wish).text();
        assert!(text.contains(said), "{text:?}");
        assert!(unsaid.len() == 1 || !text.contains(unsaid), "{text:?}");
    }
}

/// KEY-037, LOG-023: a connection that joins a session sends only its own keys, and keeps the TSIH.
#[test]
fn connection_that_joins() {
    let script = Script::new(LoginParams { tsih: 0x1234, ..wish() });
    assert!(!script.text().contains("SessionType"));
    let joining = || Script::operational(LoginParams { tsih: 0x1234, ..wish() });
    let mut script = joining();
    assert_eq!(
        script.text(),
        "HeaderDigest=None,CRC32C\0DataDigest=None,CRC32C\0MaxRecvDataSegmentLength=262144\0"
    );
    let text = script.agree(&[("HeaderDigest", Some("CRC32C"))]);
    let step = script.reply_with(LAST, text.as_bytes(), |h| h.set_tsih(0x1234));
    let InitiatorLoginStep::Done(got) = step else { panic!("{step:?}") };
    assert_eq!((got.tsih, got.parameters.header_digest), (0x1234, true));
    assert!(
        matches!(joining().answered(&[]), InitiatorLoginStep::Failed(LoginError::Broke(_))),
        "another TSIH"
    );
}

/// KEY-007: an alias is cut at 255 bytes, and cannot inject other keys.
#[test]
fn aliases_are_sent_and_received() {
    for (alias, want) in [
        ("host\0TargetName=x".to_owned(), "host?TargetName=x".to_owned()),
        ("\u{fc}".repeat(200), "\u{fc}".repeat(127)),
    ] {
        let script = Script::new(LoginParams { initiator_alias: Some(alias), ..wish() });
        assert!(script.text().contains(&format!("InitiatorAlias={want}\0TargetName={DISKS}\0")));
    }
}

/// LOG-015, LOG-016, LOG-042: T is sent until the target grants it; a T bit with the current stage as NSG grants
/// nothing.
#[test]
fn target_may_take_its_time() {
    let mut script = Script::new(wish());
    assert_eq!(script.send(SECURITY, OPEN), (TO_OPERATIONAL, String::new()));
    assert_eq!(script.send(TRANSIT, ""), (TO_OPERATIONAL, String::new()));
    script.send(TO_OPERATIONAL, "");
    let text = script.agree(&[]);
    for pair in text.split_inclusive('\0').take(6) {
        assert_eq!(script.send(OPERATIONAL, pair), (LAST, String::new()));
    }
    assert_eq!(script.send(TRANSIT | OPERATIONAL | 1, ""), (LAST, String::new()));
    let rest: String = text.split_inclusive('\0').skip(6).collect();
    script.done(&rest);
}

/// LOG-018, LOG-041, NEG-004: key text split at any byte; an empty request fetches each part.
#[test]
fn text_over_several_pdus() {
    let mut script = Script::new(wish());
    for part in OPEN.as_bytes().chunks(5) {
        let step = script.reply_with(CONTINUE, part, |_| ());
        assert!(
            matches!(&step, InitiatorLoginStep::Send(pdu) if pdu.data.is_empty() && !pdu.header.continues())
        );
    }
    let (flags, text) = script.send(TO_OPERATIONAL, "");
    assert!(flags == LAST && text.contains("MaxBurstLength"));
    let long: String = (0..200).map(|i| format!("X-com.example.{i}={}\0", "v".repeat(200))).collect();
    let text = script.agree(&[("MaxBurstLength", Some("4096")), ("FirstBurstLength", Some("512"))]) + &long;
    for part in text.as_bytes().chunks(SEGMENT_LEN) {
        script.reply_with(OPERATIONAL | CONTINUE, part, |_| ());
    }
    // The 200 unknown keys are answered, in a text of less than 8192 bytes.
    let (flags, text) = script.send(OPERATIONAL, "");
    assert_eq!((flags, text.matches("=NotUnderstood\0").count()), (LAST, 200));
    assert_eq!(script.done("").parameters.max_burst_length, 4096);
}

/// NEG-010, KEY-026, LOG-040: an answer longer than a segment is sent in parts.
#[test]
fn long_answer_goes_in_pieces() {
    let mut script = Script::operational(wish());
    let unknown: String = (0..900).map(|i| format!("X-{i}=1\0")).collect();
    let text = script.agree(&[]) + &unknown;
    for part in text.as_bytes().chunks(SEGMENT_LEN) {
        script.reply_with(OPERATIONAL | CONTINUE, part, |_| ());
    }
    let (mut flags, mut text) = script.send(OPERATIONAL, "");
    let (mut all, mut pieces) = (text, 1);
    while flags & CONTINUE != 0 {
        (flags, text) = script.send(OPERATIONAL, "");
        all += &text;
        pieces += 1;
    }
    assert_eq!((flags, pieces, all.matches("=NotUnderstood\0").count()), (LAST, 3, 900));
    script.done("");
}

/// NEG-028, KEY-024, KEY-025, KEY-038, A-05: proposals of the target are answered, unless the login is over.
#[test]
fn proposals_of_the_target() {
    let mut script = Script::operational(wish());
    let mut text = script.agree(&[]);
    text += "iSCSIProtocolLevel=2\0IFMarker=Yes\0OFMarkInt=2048\0X-com.example.a=b=c\0RDMAExtensions=Yes\0";
    let (flags, answers) = script.send(OPERATIONAL, &text);
    assert_eq!(flags, LAST);
    assert_eq!(
        answers,
        "iSCSIProtocolLevel=1\0IFMarker=No\0OFMarkInt=Reject\0RDMAExtensions=No\0X-com.example.a=NotUnderstood\0"
    );
    script.done("");

    let fallible = Offer { error_recovery_level: 2, ..Offer::default() };
    let mut script = Script::operational(LoginParams { offer: fallible, ..discovery_wish() });
    let text = script.agree(&[]) + "MaxConnections=4\0FirstBurstLength=512\0ErrorRecoveryLevel=2\0";
    let answers = script.send(OPERATIONAL, &text).1;
    assert_eq!(answers, "MaxConnections=Irrelevant\0ErrorRecoveryLevel=0\0FirstBurstLength=Irrelevant\0");
    script.done("DefaultTime2Wait=5\0");

    for (proposal, good) in [
        ("IFMarker=No\0", true),
        ("X-com.example.a=1\0", true),
        ("iSCSIProtocolLevel=1\0", false),
        ("OFMarkInt=2048\0", false),
        ("IFMarker=Yes\0", false),
    ] {
        let mut script = Script::operational(wish());
        let text = script.agree(&[]) + proposal;
        let step = script.reply(LAST, &text);
        assert_eq!(matches!(step, InitiatorLoginStep::Done(_)), good, "{proposal}: {step:?}");
    }
}

/// NEG-019: unknown values in a list of the target are skipped.
#[test]
fn lists_with_values_of_others() {
    let offer = Offer { task_reporting: TaskReporting::Rfc3720, ..Offer::default() };
    let mut script = Script::operational(LoginParams { offer, ..wish() });
    let text = script.agree(&[]) + "TaskReporting=Z-com.example.x,RFC3720\0";
    assert_eq!(script.send(OPERATIONAL, &text), (LAST, "TaskReporting=RFC3720\0".into()));
    script.done("");
}

/// NEG-011, NEG-012, NEG-014, NEG-015, NEG-024, NEG-025, A-01, A-02: answers that leave a default in force.
#[test]
fn answers_beside_values() {
    let small = Offer { max_burst_length: 4096, first_burst_length: 4096, ..Offer::default() };
    let quiet = Offer { initial_r2t: true, immediate_data: false, ..small.clone() };
    let demand = Offer { header_digest: AllowedDigests { none: false, crc32c: true }, ..Offer::default() };
    for (offer, key, value, good) in [
        (Offer::default(), "DataPDUInOrder", Some("Reject"), true),
        (Offer::default(), "MaxBurstLength", Some("Reject"), true),
        (Offer::default(), "InitialR2T", Some("Irrelevant"), true),
        (Offer::default(), "MaxBurstLength", Some("NotUnderstood"), false),
        (Offer::default(), "HeaderDigest", Some("NotUnderstood"), false),
        (Offer::default(), "HeaderDigest", Some("Reject"), true),
        (Offer::default(), "TaskReporting", Some("NotUnderstood"), true),
        (Offer::default(), "TaskReporting", Some("Irrelevant"), true),
        (Offer::default(), "MaxRecvDataSegmentLength", Some("Reject"), false),
        (Offer::default(), "MaxRecvDataSegmentLength", Some("NotUnderstood"), false),
        (Offer::default(), "MaxRecvDataSegmentLength", None, true),
        (Offer::default(), "ImmediateData", None, false),
        (Offer::default(), "InitialR2T", None, false),
        (Offer::default(), "MaxBurstLength", None, false),
        (Offer::default(), "HeaderDigest", None, false),
        (Offer::default(), "DataPDUInOrder", None, true),
        (small, "MaxBurstLength", Some("Reject"), false),
        (quiet.clone(), "FirstBurstLength", Some("Irrelevant"), true),
        (quiet.clone(), "FirstBurstLength", Some("Reject"), false),
        (quiet.clone(), "ImmediateData", None, true),
        (quiet, "InitialR2T", None, true),
        (demand, "HeaderDigest", Some("Reject"), false),
    ] {
        let before = Script::operational(LoginParams { offer: offer.clone(), ..wish() });
        match (before.answered(&[(key, value)]), good) {
            (InitiatorLoginStep::Done(got), true) => {
                let p = got.parameters;
                assert!(p.max_burst_length <= offer.max_burst_length, "{key}={value:?}");
                assert!(p.first_burst_length <= offer.first_burst_length.min(p.max_burst_length));
                assert_eq!(
                    (p.initial_r2t, p.header_digest),
                    (offer.initial_r2t || key == "InitialR2T", false)
                );
                assert_eq!(p.immediate_data, offer.immediate_data);
            }
            (InitiatorLoginStep::Failed(LoginError::Broke(why)), false) => {
                assert!(why.contains(key), "{why}")
            }
            (step, _) => panic!("{key}={value:?}: {step:?}"),
        }
    }
}

/// KEY-034: in any order of the answers, FirstBurstLength stays at or below MaxBurstLength.
#[test]
fn bursts_bound_each_other() {
    let quiet = Offer { initial_r2t: true, immediate_data: false, ..Offer::default() };
    let irrelevant = [("MaxBurstLength", Some("4096")), ("FirstBurstLength", Some("Irrelevant"))];
    let step = Script::operational(LoginParams { offer: quiet, ..wish() }).answered(&irrelevant);
    let InitiatorLoginStep::Done(got) = step else { panic!("{step:?}") };
    assert_eq!(got.parameters.first_burst_length, 4096);
    let mut script = Script::operational(wish());
    let rest = script.agree(&[("MaxBurstLength", Some("4096")), ("FirstBurstLength", None)]);
    script.send(OPERATIONAL, "FirstBurstLength=65536\0");
    assert_eq!(script.done(&rest).parameters.first_burst_length, 4096);
}

/// SEC-012, NAM-001, NAM-003: invalid parameters of a login.
#[test]
fn wishes_are_checked() {
    let shared = Credentials { mutual: Some(("t".into(), alice().secret)), ..alice() };
    let nobody = Credentials { name: String::new(), ..alice() };
    let forged = Credentials { name: "a\0CHAP_R=0x".into(), ..alice() };
    for (wish, why) in [
        (with(shared), "secret"),
        (with(nobody), "255"),
        (with(forged), "control"),
        (with(Credentials { algorithms: vec![], ..alice() }), "algorithm"),
        (LoginParams { target: None, ..wish() }, "target"),
        (LoginParams { target: Some("disks\n".into()), ..wish() }, "disks"),
        (
            LoginParams { initiator: format!("iqn.2026-11.org.example:{}", "a".repeat(200)), ..wish() },
            "iSCSI name",
        ),
    ] {
        assert!(wish.check().unwrap_err().contains(why), "{why}");
    }
    assert_eq!(with(mutual()).check(), Ok(()));
    assert_eq!(discovery_wish().check(), Ok(()));
}

/// SEC-014: secrets below 96 bits count as short.
#[test]
fn short_secrets_are_known() {
    assert!(Secret::new(&[7; 11]).is_short() && !Secret::new(&[7; 12]).is_short());
}
