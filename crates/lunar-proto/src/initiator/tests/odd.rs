//! Targets seen in the field whose logins deviate from RFC 7143. The initiator accepts all of them.

use super::*;

/// The deviations of one target.
struct Odd {
    what: &'static str,
    /// Key text of the response in the security stage.
    opens: &'static [u8],
    /// Keys of the last response that get this value instead of the first one offered; `None`: no answer.
    but: &'static [(&'static str, Option<&'static str>)],
    /// Key text that the last response contains in addition.
    more: &'static [u8],
}

const USUAL: Odd = Odd { what: "", opens: b"TargetPortalGroupTag=1\0AuthMethod=None\0", but: &[], more: b"" };

const TARGETS: [Odd; 12] = [
    Odd { what: "extra NULs", opens: b"\0AuthMethod=None\0\0TargetPortalGroupTag=1\0\0", ..USUAL },
    Odd { what: "extra NULs at the end", more: b"\0\0\0", ..USUAL },
    Odd { what: "alias that is not UTF-8", opens: b"AuthMethod=None\0TargetAlias=\xff\0", ..USUAL },
    Odd { what: "lower case", opens: b"AuthMethod=none\0", but: LOWER, ..USUAL },
    Odd { what: "blanks around values", opens: b"AuthMethod= None\0", but: BLANKS, ..USUAL },
    Odd { what: "AuthMethod in the operational stage", more: b"AuthMethod=None\0", ..USUAL },
    Odd { what: "declares again", more: b"TargetPortalGroupTag=1\0", ..USUAL },
    Odd { what: "declares unasked", more: b"TargetAlias=Disks\0TargetAddress=192.0.2.1:3260,1\0", ..USUAL },
    Odd {
        what: "names the target",
        opens: b"AuthMethod=None\0TargetName=iqn.2026-11.org.example:disks\0",
        ..USUAL
    },
    Odd { what: "does not know a key", but: &[("TaskReporting", Some("NotUnderstood"))], ..USUAL },
    Odd { what: "calls keys irrelevant", but: IRRELEVANT, ..USUAL },
    Odd { what: "declares no lengths", but: &[("MaxRecvDataSegmentLength", None)], ..USUAL },
];
const LOWER: &[(&str, Option<&str>)] =
    &[("ImmediateData", Some("yes")), ("InitialR2T", Some("no")), ("HeaderDigest", Some("none"))];
const BLANKS: &[(&str, Option<&str>)] = &[
    ("ImmediateData", Some(" Yes")),
    ("MaxBurstLength", Some(" 65536 ")),
    ("FirstBurstLength", Some(" 8192")),
    ("DataDigest", Some(" None")),
];
const IRRELEVANT: &[(&str, Option<&str>)] =
    &[("MaxConnections", Some("Irrelevant")), ("ErrorRecoveryLevel", Some("irrelevant"))];

/// Logs in to the target with key text split into PDUs of `piece` bytes, and with `isid` in its responses.
fn log_in(odd: &Odd, piece: usize, isid: [u8; 6]) -> InitiatorLoginStep {
    let mut script = Script::new(wish());
    let say = |script: &mut Script, flags: u8, text: &[u8]| {
        let parts: Vec<&[u8]> = text.chunks(piece).collect();
        let (last, first) = parts.split_last().expect("a text");
        for part in first {
            let csg = flags & OPERATIONAL;
            let step = script.reply_with(csg | CONTINUE, part, |h| h.set_isid(isid));
            assert!(matches!(step, InitiatorLoginStep::Send(_)), "{}: {step:?}", odd.what);
        }
        script.reply_with(flags, last, |h| h.set_isid(isid))
    };
    let step = say(&mut script, TO_OPERATIONAL, odd.opens);
    assert!(matches!(step, InitiatorLoginStep::Send(_)), "{}: {step:?}", odd.what);
    let text = [script.agree(odd.but).as_bytes(), odd.more].concat();
    say(&mut script, LAST, &text)
}

#[test]
fn target_with_odd_answers_is_used() {
    for odd in &TARGETS {
        for (piece, isid) in [(SEGMENT_LEN, ISID), (SEGMENT_LEN, [0; 6]), (23, ISID), (23, [0; 6])] {
            let step = log_in(odd, piece, isid);
            let InitiatorLoginStep::Done(got) = step else { panic!("{}: {step:?}", odd.what) };
            let p = got.parameters;
            assert!(p.immediate_data && !p.initial_r2t && !p.header_digest, "{}: {p:?}", odd.what);
            assert_eq!(p.max_burst_length, if odd.but == BLANKS { 65536 } else { 1_048_576 }, "{}", odd.what);
        }
    }
}

/// A PDU that is not allowed before full feature phase: the error names it.
#[test]
fn target_that_sends_a_ping_in_a_login_is_named() {
    let mut script = Script::new(wish());
    let ping = |h: &mut Bhs| {
        h.set_opcode(opcode::NOP_IN);
        h.set_lun(u64::MAX);
    };
    let step = script.reply_with(TO_OPERATIONAL, b"", ping);
    let InitiatorLoginStep::Failed(LoginError::Broke(why)) = step else { panic!("{step:?}") };
    assert_eq!(why, "the target sent a PDU during login that is no Login Response: NOP-In");
}

/// A Discovery session in which the target proposes keys of Normal sessions.
#[test]
fn target_that_proposes_connections_in_discovery_is_used() {
    let mut script = Script::operational(discovery_wish());
    let text = script.agree(&[]) + "MaxConnections=4\0ImmediateData=Yes\0MaxOutstandingR2T=1\0";
    let step = script.reply(LAST, &text);
    assert!(matches!(step, InitiatorLoginStep::Done(_)), "{step:?}");
}
