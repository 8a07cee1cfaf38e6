//! Targets that violate the protocol, one rule at a time.

use lunar_wire::iscsi::status::LoginStatus;
use lunar_wire::iscsi::text::{binary, push, push_hex};

use super::*;

/// LOG-003: a PDU other than a Login Response ends the login. FRM-008: so does a PDU that only initiators send.
#[test]
fn other_pdus_have_no_place_in_login() {
    for opcode in [
        opcode::NOP_IN,
        opcode::R2T,
        opcode::REJECT,
        opcode::SCSI_RESPONSE,
        opcode::TEXT_RESPONSE,
        opcode::ASYNC,
        opcode::LOGIN,
        0x0a,
    ] {
        let step = Script::new(wish()).reply_with(TO_OPERATIONAL, OPEN.as_bytes(), |h| h.set_opcode(opcode));
        let is_known = opcode::is_known(opcode);
        let ((InitiatorLoginStep::Failed(LoginError::Broke(why)), true)
        | (InitiatorLoginStep::Failed(LoginError::UnknownPdu(why)), false)) = (&step, is_known)
        else {
            panic!("{step:?}")
        };
        assert!(why.contains(opcode::name(opcode)), "{why}");
    }
}

/// FRM-007, LOG-011, LOG-017, LOG-019, LOG-023, LOG-027, LOG-028: one invalid field at a time, in the second
/// response.
#[test]
fn fields_of_the_header() {
    type Change = fn(&mut Bhs);
    let changes: [(Change, &str); 9] = [
        (|h| raw(h, |b| b[2] = 1), "Version-max"),
        (|h| raw(h, |b| b[3] = 1), "Version-active"),
        (|h| h.set_ahs_len(4), "additional header"),
        (|h| raw(h, |b| b[13] ^= 1), "ISID"),
        (|h| h.set_itt(ITT + 1), "Initiator Task Tag"),
        (|h| h.set_stat_sn(h.stat_sn().wrapping_add(1)), "StatSN"),
        (|h| h.set_stat_sn(h.stat_sn().wrapping_sub(1)), "StatSN"),
        (|h| h.set_exp_cmd_sn(7), "ExpCmdSN"),
        (|h| h.set_tsih(0), "TSIH"),
    ];
    for (change, field) in changes {
        let mut script = Script::operational(wish());
        let text = script.agree(&[]);
        let step = script.reply_with(LAST, text.as_bytes(), change);
        let InitiatorLoginStep::Failed(LoginError::Broke(why)) = step else { panic!("{field}: {step:?}") };
        assert!(why.contains(field), "{why}");
    }
    // FRM-003: reserved fields are ignored.
    let mut script = Script::operational(wish());
    let text = script.agree(&[]);
    let step = script.reply_with(LAST | 0x30, text.as_bytes(), |h| {
        h.set_tsih(1);
        raw(h, |b| b[20..24].fill(0xff));
        raw(h, |b| b[38..].fill(0xff));
    });
    assert!(matches!(step, InitiatorLoginStep::Done(_)));
}

/// As STGT does over iSER, although it still expects the CmdSN of the login.
#[test]
fn target_may_count_the_login() {
    let mut script = Script::operational(wish());
    let text = script.agree(&[]);
    let mut begins = 0;
    let step = script.reply_with(LAST, text.as_bytes(), |h| {
        begins = h.exp_cmd_sn();
        h.set_exp_cmd_sn(begins.wrapping_add(1));
        h.set_max_cmd_sn(begins);
    });
    let InitiatorLoginStep::Done(login) = step else { panic!("{step:?}") };
    assert_eq!((login.cmd_sn, login.exp_cmd_sn, login.max_cmd_sn), (begins, begins, begins));
}

/// LOG-009, LOG-011, LOG-013, LOG-016, LOG-017: stages and bits.
#[test]
fn invalid_stage_or_flag_ends_the_login() {
    for (flags, why) in [
        (TRANSIT | CONTINUE | 1, "both T bit and C bit"),
        (TRANSIT | 3, "NSG"),
        (TRANSIT | 2, "NSG"),
        (OPERATIONAL, "CSG"),
        (LAST, "CSG"),
        (2 << 2, "CSG"),
        (3 << 2, "CSG"),
    ] {
        assert!(Script::new(wish()).broke(flags, OPEN).contains(why), "{flags:02x}");
    }
    for (flags, why) in
        [(TO_OPERATIONAL, "CSG"), (TRANSIT | OPERATIONAL, "NSG"), (TRANSIT | OPERATIONAL | 2, "NSG")]
    {
        assert!(Script::operational(wish()).broke(flags, "").contains(why), "{flags:02x}");
    }
    let why = Script::new(with(alice())).broke(TO_OPERATIONAL, "AuthMethod=CHAP\0");
    assert!(why.contains("T bit"), "{why}");
}

/// NEG-001 to NEG-003, NEG-009: malformed key text. A missing NUL at the very end is accepted.
#[test]
fn malformed_key_text_ends_the_login() {
    let long = format!("{}=1\0", "K".repeat(64));
    for text in ["AuthMethod\0", "=None\0", "Auth Method=None\0", &long] {
        assert!(Script::new(wish()).broke(TO_OPERATIONAL, text).contains("key text"), "{text:?}");
    }
    let step = Script::new(wish()).reply_with(TO_OPERATIONAL, b"TargetAddress=\xff\0", |_| ());
    assert!(matches!(step, InitiatorLoginStep::Failed(LoginError::Broke(_))));
    // Keys are case-sensitive.
    let mut script = Script::operational(wish());
    let text = script.agree(&[("ImmediateData", None)]) + "immediatedata=Yes\0";
    assert!(script.broke(LAST, &text).contains("did not answer the key ImmediateData"));
}

/// LOG-033, LOG-034, KEY-004, KEY-005, KEY-021, SEC-019, NEG-013: keys that are not allowed there.
#[test]
fn keys_out_of_place() {
    for text in [
        "HeaderDigest=None\0",
        "MaxBurstLength=512\0",
        "InitiatorName=iqn.2026-11.org.example:x\0",
        "InitiatorAlias=x\0",
        "SessionType=Normal\0",
        "SendTargets=All\0",
        "TargetName=iqn.2026-11.org.example:other\0",
        "TargetPortalGroupTag=65536\0",
        "TargetPortalGroupTag=\0",
        "TargetAlias=a\0TargetAlias=b\0",
        "X-a=1\0X-a=1\0",
        "X-a=NotUnderstood\0",
        "X-a=Reject\0",
    ] {
        let why = Script::new(wish()).broke(SECURITY, &format!("AuthMethod=None\0{text}"));
        assert!(why.contains(text.split('=').next().unwrap()), "{why}");
    }
    for text in [
        "CHAP_A=5\0",
        "AuthMethod=CHAP\0",
        "TargetPortalGroupTag=2\0",
        "IFMarker=Reject\0",
        "IFMarkInt=Irrelevant\0",
    ] {
        let why = Script::operational(wish()).broke(OPERATIONAL, text);
        assert!(why.contains(text.split('=').next().unwrap()), "{why}");
    }
    let mut script = Script::operational(wish());
    script.send(OPERATIONAL, "ImmediateData=Yes\0X-a=1\0");
    assert!(script.broke(OPERATIONAL, "ImmediateData=Yes\0").contains("ImmediateData"));
    let mut script = Script::operational(LoginParams { tsih: 7, ..wish() });
    assert!(script.broke(OPERATIONAL, "MaxConnections=2\0").contains("MaxConnections"), "KEY-037");
    assert!(matches!(
        Script::new(wish()).reply(TO_OPERATIONAL, &format!("{OPEN}TargetName={DISKS}\0")),
        InitiatorLoginStep::Send(_)
    ));
}

/// NEG-005, NEG-006, NEG-007, NEG-009, NEG-020 to NEG-023, KEY-001, KEY-002, KEY-010 to KEY-020, KEY-022, KEY-027,
/// KEY-034, KEY-035, A-22: answers that the offer does not allow are errors that name the key.
#[test]
fn answers_that_were_not_offered() {
    let level = Offer { error_recovery_level: 1, max_outstanding_r2t: 1, ..Offer::default() };
    let no = Offer { initial_r2t: true, immediate_data: false, ..Offer::default() };
    let fence = Offer { task_reporting: TaskReporting::ResponseFence, ..Offer::default() };
    let none = Offer { header_digest: AllowedDigests { none: true, crc32c: false }, ..Offer::default() };
    let demand = Offer { data_digest: AllowedDigests { none: false, crc32c: true }, ..Offer::default() };
    let young = Offer { protocol_level: 2, ..Offer::default() };
    let usual = Offer::default();
    for (offer, key, value) in [
        (&usual, "HeaderDigest", "CRC32C,None"),
        (&usual, "HeaderDigest", "Y-com.example.x"),
        (&usual, "HeaderDigest", ""),
        (&none, "HeaderDigest", "CRC32C"),
        (&demand, "DataDigest", "None"),
        (&usual, "MaxConnections", "2"),
        (&usual, "MaxConnections", "0"),
        (&usual, "ErrorRecoveryLevel", "1"),
        (&usual, "ErrorRecoveryLevel", "3"),
        (&usual, "InitialR2T", "Maybe"),
        (&usual, "InitialR2T", "1"),
        (&usual, "InitialR2T", ""),
        (&usual, "ImmediateData", "ye"),
        (&no, "InitialR2T", "No"),
        (&no, "ImmediateData", "Yes"),
        (&usual, "DataPDUInOrder", "No"),
        (&usual, "DataSequenceInOrder", "No"),
        (&usual, "MaxRecvDataSegmentLength", "511"),
        (&usual, "MaxRecvDataSegmentLength", "16777216"),
        (&usual, "MaxRecvDataSegmentLength", "08192"),
        (&usual, "MaxBurstLength", "1048577"),
        (&usual, "MaxBurstLength", "511"),
        (&usual, "MaxBurstLength", "512~1024"),
        (&usual, "MaxBurstLength", "18446744073709551616"),
        (&usual, "MaxBurstLength", "4294967808"),
        (&usual, "MaxBurstLength", "-512"),
        (&usual, "FirstBurstLength", "262145"),
        (&usual, "MaxOutstandingR2T", "9"),
        (&usual, "MaxOutstandingR2T", "0"),
        (&level, "MaxOutstandingR2T", "2"),
        (&usual, "DefaultTime2Wait", "1"),
        (&usual, "DefaultTime2Wait", "3601"),
        (&usual, "DefaultTime2Retain", "21"),
        (&usual, "TaskReporting", "Z-fast"),
        (&usual, "TaskReporting", "FastAbort,RFC3720"),
        (&fence, "TaskReporting", "FastAbort"),
        (&young, "iSCSIProtocolLevel", "3"),
        (&usual, "MaxBurstLength", &"1".repeat(300)),
    ] {
        let script = Script::operational(LoginParams { offer: offer.clone(), ..wish() });
        let step = script.answered(&[(key, Some(value))]);
        let has_digests_off = key.ends_with("Digest") && value == "None";
        let ((InitiatorLoginStep::Failed(LoginError::Broke(why)), false)
        | (InitiatorLoginStep::Failed(LoginError::Digests(why)), true)) = (&step, has_digests_off)
        else {
            panic!("{key}={value}: {step:?}")
        };
        assert!(why.contains(key) && why.len() < 400, "{why}");
    }
    let script = Script::operational(wish());
    let step = script.answered(&[("MaxBurstLength", Some("4096")), ("FirstBurstLength", Some("8192"))]);
    assert!(
        matches!(step, InitiatorLoginStep::Failed(LoginError::Broke(why)) if why.contains("FirstBurstLength")),
        "A-06"
    );
    let mut script = Script::operational(wish());
    let text = script.agree(&[]) + &format!("X#NodeArchitecture={}\0", "x".repeat(256));
    assert!(script.broke(LAST, &text).contains("X#NodeArchitecture"), "KEY-027");
    let mut script = Script::operational(wish());
    assert!(script.broke(OPERATIONAL, "iSCSIProtocolLevel=32\0").contains("iSCSIProtocolLevel"));
}

/// LOG-018: until our key text is complete, the target may send only empty responses.
#[test]
fn text_that_is_interrupted() {
    let unknown: String = (0..900).map(|i| format!("X-{i}=1\0")).collect();
    for (flags, text) in [(OPERATIONAL, "X-a=1\0"), (OPERATIONAL | CONTINUE, "")] {
        let mut script = Script::operational(wish());
        let (flags_of_request, _) = script.send(OPERATIONAL, &unknown);
        assert_eq!(flags_of_request, OPERATIONAL | CONTINUE);
        assert!(script.broke(flags, text).contains("C bit"));
    }
}

/// LOG-040, LOG-041, LOG-042: the number of exchanges and the bytes of text have limits.
#[test]
fn login_beyond_a_limit_ends() {
    let mut script = Script::new(wish());
    (1..=EXCHANGES).for_each(|_| assert_eq!(script.send(SECURITY, "").0, TO_OPERATIONAL));
    assert!(script.broke(SECURITY, "").contains("within 64 responses"));

    let mut script = Script::operational(wish());
    let part = "A".repeat(SEGMENT_LEN);
    (0..7).for_each(|_| assert_eq!(script.send(OPERATIONAL | CONTINUE, &part).1, ""));
    script.send(OPERATIONAL | CONTINUE, &part[..SEGMENT_LEN - OPEN.len()]);
    assert!(script.broke(OPERATIONAL | CONTINUE, "A").contains("65536 bytes"));

    assert!(Script::new(wish()).broke(SECURITY, &"A".repeat(SEGMENT_LEN + 1)).contains("DataSegmentLength"));

    let mut script = Script::operational(wish());
    let keys: String = (0..1025).map(|i| format!("{i}=\0")).collect();
    assert!(script.broke(OPERATIONAL, &keys).contains("unknown keys"));
}

/// LOG-035, LOG-036, LOG-039, NEG-016: a rejected login is reported whatever the other header fields contain.
#[test]
fn refused_login_returns_its_status() {
    for (class, detail) in [(2, 0), (2, 1), (2, 3), (2, 0x7f), (3, 1), (3, 0x7f)] {
        let step = Script::new(wish()).reply_with(SECURITY, b"", |h| {
            h.set_login_status(LoginStatus(class, detail));
            raw(h, |b| b[8..16].fill(0));
            raw(h, |b| b[24..36].fill(0));
        });
        assert_eq!(step, InitiatorLoginStep::Failed(LoginError::Refused(LoginStatus(class, detail))));
    }
    let step = Script::new(wish()).reply_with(SECURITY, b"", |h| h.set_login_status(LoginStatus(4, 0)));
    assert!(
        matches!(step, InitiatorLoginStep::Failed(LoginError::Broke(why)) if why.contains("Status-Class"))
    );
}

/// LOG-037, LOG-038, A-21: redirects before and after CHAP, and redirects without a valid address.
#[test]
fn redirect_returns_the_address_or_an_error() {
    let moved = |h: &mut Bhs| h.set_login_status(LoginStatus(1, 1));
    for (detail, permanent) in [(1, false), (2, true), (0x7f, false)] {
        let step = Script::new(wish()).reply_with(SECURITY, b"TargetAddress=[2001:db8::1]:3261\0", |h| {
            h.set_login_status(LoginStatus(1, detail));
            raw(h, |b| b[24..36].fill(0));
        });
        assert_eq!(step, InitiatorLoginStep::Moved { address: "[2001:db8::1]:3261".into(), permanent });
    }
    let mut script = Script::new(with(alice()));
    script.challenged("7", "0x0102");
    let step = script.reply_with(SECURITY, b"TargetAddress=disks.example.org\0", moved);
    assert_eq!(step, InitiatorLoginStep::Moved { address: "disks.example.org".into(), permanent: false });
    for text in
        ["", "TargetAddress=\0", "TargetAddress=192.0.2.1:0\0", "TargetAddress=a\x1b[2J\0", "TargetAlias=a\0"]
    {
        let step = Script::new(wish()).reply_with(SECURITY, text.as_bytes(), moved);
        let InitiatorLoginStep::Failed(LoginError::Broke(why)) = step else { panic!("{text:?}: {step:?}") };
        assert!(why.contains("TargetAddress") && !why.contains('\x1b'), "{why}");
    }
}

impl Script {
    /// Passes AuthMethod and CHAP_A, and returns the initiator's key text with CHAP_R.
    fn challenged(&mut self, algorithm: &str, challenge: &str) -> String {
        assert_eq!(self.send(SECURITY, "TargetPortalGroupTag=1\0AuthMethod=CHAP\0").0, SECURITY);
        let (flags, proof) =
            self.send(SECURITY, &format!("CHAP_A={algorithm}\0CHAP_I=16\0CHAP_C={challenge}\0"));
        assert_eq!(flags, TO_OPERATIONAL);
        proof
    }

    /// Runs mutual CHAP up to the initiator's challenge, and returns its identifier and bytes.
    fn asked_back(&mut self) -> (u8, Vec<u8>) {
        let proof = self.challenged("7", "0x0102");
        let found: Vec<_> = pairs(proof.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(found.iter().map(|p| p.0).collect::<Vec<_>>(), ["CHAP_N", "CHAP_R", "CHAP_I", "CHAP_C"]);
        let mut buf = [0; 1024];
        let challenge = binary(found[3].1, &mut buf).unwrap().to_vec();
        assert!(challenge.len() >= 16 && challenge != [1, 2], "SEC-010");
        (found[2].1.parse().unwrap(), challenge)
    }
}

/// CHAP_N and CHAP_R of the target.
fn proof(name: &str, secret: &[u8], id: u8, challenge: &[u8]) -> String {
    let mut out = vec![];
    push(&mut out, "CHAP_N", name);
    push_hex(&mut out, "CHAP_R", &Algorithm::Sha256.response(id, &Secret::new(secret), challenge));
    String::from_utf8(out).unwrap()
}

/// SEC-001, SEC-002, SEC-004, SEC-013, NEG-008, KEY-028 to KEY-033: every algorithm, hex in both cases and
/// base64.
#[test]
fn chap_one_way() {
    for (number, algorithm, challenge) in [
        ("5", Algorithm::Md5, "0x00010203"),
        ("6", Algorithm::Sha1, "0X00010203"),
        ("7", Algorithm::Sha256, "0bAAECAw=="),
        ("0x8", Algorithm::Sha3, "0BAAECAw"),
    ] {
        let mut script = Script::new(with(alice()));
        assert!(script.text().ends_with("AuthMethod=CHAP\0"));
        assert_eq!(script.request.header.flags(), SECURITY);
        assert_eq!(script.send(SECURITY, "AuthMethod=CHAP\0"), (SECURITY, "CHAP_A=8,6,5,7\0".into()));
        let (flags, text) =
            script.send(SECURITY, &format!("CHAP_A={number}\0CHAP_I=16\0CHAP_C={challenge}\0"));
        let mut want = b"CHAP_N=alice\0".to_vec();
        push_hex(&mut want, "CHAP_R", &algorithm.response(16, &alice().secret, &[0, 1, 2, 3]));
        assert_eq!((flags, text.as_bytes()), (TO_OPERATIONAL, want.as_slice()));
        assert_eq!(script.send(SECURITY, ""), (TO_OPERATIONAL, String::new()), "LOG-015");
        script.send(TO_OPERATIONAL, "");
        let text = script.agree(&[]);
        let got = script.done(&text);
        assert_eq!(got.chap, Some(algorithm));
        assert!(got.answers.iter().all(|a| !a.0.starts_with("CHAP")), "no CHAP key is reported");
    }
}

/// KEY-028, NEG-021, SEC-009, SEC-023: a target cannot skip required CHAP.
#[test]
fn required_chap_cannot_be_skipped() {
    let failed = |wish: LoginParams, flags, text: &str| Script::new(wish).failed(flags, text);
    let optional = Credentials { required: false, ..alice() };
    for (wish, text, broke) in [
        (with(alice()), "AuthMethod=None\0", false),
        (with(alice()), "AuthMethod=Reject\0", false),
        (with(alice()), "TargetPortalGroupTag=1\0", false),
        (with(alice()), "AuthMethod=SRP\0", true),
        (with(alice()), "AuthMethod=CHAP,None\0", true),
        (with(alice()), "AuthMethod=CHAP\0CHAP_A=5\0", true),
        (with(alice()), "CHAP_A=5\0", true),
        (with(optional.clone()), "TargetAlias=a\0", false),
        (wish(), "AuthMethod=CHAP\0", false),
        (wish(), "AuthMethod=Reject\0", false),
        (wish(), "AuthMethod=KRB5\0", true),
    ] {
        let failure = failed(wish, SECURITY, text);
        assert_eq!(matches!(failure, LoginError::Broke(_)), broke, "{text}: {failure}");
        assert_eq!(matches!(failure, LoginError::Authentication(_)), !broke, "{text}: {failure}");
    }
    // LIO without authentication answers CHAP, and proceeds without it.
    for method in ["None", "CHAP"] {
        let mut script = Script::new(with(optional.clone()));
        assert!(script.text().ends_with("AuthMethod=CHAP,None\0"));
        script.send(TO_OPERATIONAL, &format!("AuthMethod={method}\0"));
        let text = script.agree(&[]);
        assert_eq!(script.done(&text).chap, None);
    }
    assert_eq!(Script::new(with(optional.clone())).send(SECURITY, "AuthMethod=CHAP\0").1, "CHAP_A=8,6,5,7\0");
    assert!(matches!(failed(with(optional), TO_OPERATIONAL, "AuthMethod=SRP\0"), LoginError::Broke(_)));
    assert!(
        Script::new(with(Credentials { required: false, ..mutual() })).text().ends_with("AuthMethod=CHAP\0")
    );
    let only = Credentials { algorithms: vec![Algorithm::Sha256], ..alice() };
    assert_eq!(Script::new(with(only)).send(SECURITY, "AuthMethod=CHAP\0").1, "CHAP_A=7\0");
}

/// SEC-007, SEC-008, KEY-029 to KEY-031: invalid challenges.
#[test]
fn challenges_that_do_not_fit() {
    let long = format!("CHAP_A=5\0CHAP_I=1\0CHAP_C=0x{}\0", "11".repeat(1025));
    let endless = format!("CHAP_A=5\0CHAP_I=1\0CHAP_C=0b{}\0", "AAAA".repeat(342));
    let longest = format!("CHAP_A=5\0CHAP_I=1\0CHAP_C=0x{}\0", "11".repeat(1024));
    for (text, good) in [
        ("CHAP_A=5\0CHAP_I=0\0CHAP_C=0x1\0", true),
        ("CHAP_A=5\0CHAP_I=255\0CHAP_C=0x01\0", true),
        (&longest, true),
        ("", false),
        ("CHAP_A=5\0", false),
        ("CHAP_A=5\0CHAP_C=0x01\0", false),
        ("CHAP_A=5\0CHAP_I=1\0", false),
        ("CHAP_I=1\0CHAP_C=0x01\0", false),
        ("CHAP_A=99\0CHAP_I=1\0CHAP_C=0x01\0", false),
        ("CHAP_A=7\0CHAP_I=1\0CHAP_C=0x01\0", false),
        ("CHAP_A=5,6\0CHAP_I=1\0CHAP_C=0x01\0", false),
        ("CHAP_A=5\0CHAP_A=5\0CHAP_I=1\0CHAP_C=0x01\0", false),
        ("CHAP_A=5\0CHAP_I=256\0CHAP_C=0x01\0", false),
        ("CHAP_A=5\0CHAP_I=abc\0CHAP_C=0x01\0", false),
        ("CHAP_A=5\0CHAP_I=1\0CHAP_C=0x\0", false),
        ("CHAP_A=5\0CHAP_I=1\0CHAP_C=17\0", false),
        ("CHAP_A=5\0CHAP_I=1\0CHAP_C=0xgg\0", false),
        ("CHAP_A=5\0CHAP_I=1\0CHAP_C=0x01\0CHAP_N=t\0CHAP_R=0x01\0", false),
        (&long, false),
        (&endless, false),
    ] {
        let md5_and_sha1 = Credentials { algorithms: vec![Algorithm::Sha1, Algorithm::Md5], ..alice() };
        let mut script = Script::new(with(md5_and_sha1));
        script.send(SECURITY, "AuthMethod=CHAP\0");
        let step = script.reply(SECURITY, text);
        let broke = matches!(step, InitiatorLoginStep::Failed(LoginError::Broke(_)));
        assert_eq!((matches!(step, InitiatorLoginStep::Send(_)), broke), (good, !good), "{text:?}: {step:?}");
    }
    let mut script = Script::new(with(alice()));
    script.send(SECURITY, "AuthMethod=CHAP\0");
    assert!(matches!(script.failed(SECURITY, "CHAP_A=Reject\0"), LoginError::Authentication(_)), "SEC-007");
    let mut script = Script::new(with(alice()));
    script.challenged("7", "0x0102");
    assert!(
        script.broke(SECURITY, "CHAP_N=t\0CHAP_R=0x01\0").contains("expected: none"),
        "mutual CHAP was not requested"
    );
}

/// SEC-001, SEC-005, SEC-006, SEC-010 to SEC-012, SEC-017, KEY-032, KEY-033: mutual CHAP with valid and invalid
/// responses of the target.
#[test]
fn mutual_chap_authenticates_both_sides() {
    let mut script = Script::new(with(mutual()));
    let (id, challenge) = script.asked_back();
    assert_eq!(script.send(TO_OPERATIONAL, &proof("lunar", b"lunar's secret", id, &challenge)).0, LAST);
    let text = script.agree(&[]);
    assert_eq!(script.done(&text).chap, Some(Algorithm::Sha256));

    type Wrong = fn(u8, &[u8]) -> String;
    let wrong: [(Wrong, bool); 10] = [
        (|i, c| proof("moon", b"lunar's secret", i, c), false),
        (|i, c| proof("LUNAR", b"lunar's secret", i, c), false),
        (|i, c| proof("lunar", b"wrong", i, c), false),
        (|i, c| proof("lunar", b"lunar's secret", i.wrapping_add(1), c), false),
        // The initiator's own response, reflected: with its name, and to its own challenge.
        (|_, _| proof("lunar", b"alice's secret", 16, &[1, 2]), false),
        (|i, c| proof("lunar", b"alice's secret", i, c), false),
        (|_, _| "CHAP_N=lunar\0CHAP_R=0x\0".into(), false),
        (|i, c| proof("lunar", b"lunar's secret", i, c).replace("0x", "0x00"), false),
        (|_, _| "CHAP_N=lunar\0CHAP_R=12\0".into(), true),
        (|i, c| proof("lunar", b"lunar's secret", i, c) + "CHAP_I=1\0CHAP_C=0x01\0", true),
    ];
    for (text, broke) in wrong {
        let mut script = Script::new(with(mutual()));
        let (id, challenge) = script.asked_back();
        let failure = script.failed(TO_OPERATIONAL, &text(id, &challenge));
        assert_eq!(matches!(failure, LoginError::Broke(_)), broke, "{failure}");
        assert_eq!(matches!(failure, LoginError::Authentication(_)), !broke, "{failure}");
    }
    for flags in [SECURITY, TO_OPERATIONAL] {
        let mut script = Script::new(with(mutual()));
        script.asked_back();
        assert!(matches!(script.failed(flags, ""), LoginError::Authentication(_)), "no proof at all");
        let mut script = Script::new(with(mutual()));
        script.asked_back();
        assert!(matches!(script.failed(flags, "CHAP_N=lunar\0"), LoginError::Broke(_)));
    }
}

/// SEC-012: with one secret for both directions, CHAP proves nothing.
#[test]
fn one_secret_for_mutual_chap() {
    let shared = Credentials { mutual: Some(("lunar".into(), alice().secret)), ..alice() };
    let mut script = Script::unchecked(with(shared));
    script.send(SECURITY, "AuthMethod=CHAP\0");
    let failure = script.failed(SECURITY, "CHAP_A=5\0CHAP_I=1\0CHAP_C=0x01\0");
    assert!(matches!(failure, LoginError::Authentication(why) if why.contains("secret")));
}

/// CMD-010: a MaxCmdSN below ExpCmdSN - 1 is ignored.
#[test]
fn max_cmd_sn_too_far_back_is_ignored() {
    for (max, want) in
        [(30, 30), (u32::MAX - 1, u32::MAX - 1), (u32::MAX - 2, u32::MAX), (0x7fff_ffff, u32::MAX)]
    {
        let mut script = Script::operational(wish());
        let text = script.agree(&[]);
        let step = script.reply_with(LAST, text.as_bytes(), |h| h.set_max_cmd_sn(max));
        let InitiatorLoginStep::Done(got) = step else { panic!("{step:?}") };
        assert_eq!(got.max_cmd_sn, want);
    }
}

/// The message of each failure.
#[test]
fn login_status_gives_the_error_text() {
    for (failure, want) in [
        (
            LoginError::Refused(LoginStatus::NOT_FOUND),
            "the target rejected the login: 02/03 (no such target at this portal)",
        ),
        (LoginError::Authentication("x".into()), "authentication failed: x"),
        (LoginError::Broke("x".into()), "the target violated the login protocol: x"),
    ] {
        assert_eq!(failure.to_string(), want);
    }
}
