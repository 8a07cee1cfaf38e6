//! Bad input from targets: `lunar` against a scripted target that breaks one rule. In each case `lunar` prints an
//! error and a hint within the time-out, and exits with a documented status. It prints no control characters of the
//! target. It must not hang, and its memory stays bounded.

use std::process::Command;
use std::time::Duration;

use interop::config::TARGET;
use interop::script::{self, HookAction, Script, ScriptConnection, Target};
use interop::server::lunar_bin;
use interop::tool::{ToolOutput, run};
use interop::{NONE, Pdu, op};

/// Exit statuses of docs/use.md.
const GENERAL: i32 = 1;
const UNREACHABLE: i32 = 4;
const REFUSED: i32 = 5;
const TIMED_OUT: i32 = 8;
const NOT_FOUND: i32 = 21;
const UNKNOWN_HOST: i32 = 23;
const AUTHENTICATION: i32 = 24;

/// Limit of a command's address space, in KiB. A target's 16 MiB of text must not exceed it.
const MEMORY_KIB: u32 = 1_000_000;

/// Runs a command with bounded memory and a time limit of 6 s. It is killed after 30 s.
fn bounded(arguments: &[&str]) -> ToolOutput {
    let script = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(lunar_bin()).args(arguments).args(["--timeout", "6"]);
    run(&mut command, Duration::from_secs(30))
}

/// Checks that a command ends with a documented status and message. Returns its output.
fn fails(name: &str, arguments: &[&str], statuses: &[i32]) -> String {
    let ran = bounded(arguments);
    let status = ran.status.unwrap_or_else(|| panic!("{name}: lunar hangs: {}", ran.said));
    let code = status.code().unwrap_or_else(|| panic!("{name}: {status}: {}", ran.said));
    assert!(statuses.contains(&code), "{name}: exit status {code}: {}", ran.said);
    assert!(ran.said.contains("hint: "), "{name}: {}", ran.said);
    let controls = |c: char| c.is_control() && c != '\n';
    assert!(!ran.said.contains(controls), "{name}: {:?}", ran.said);
    assert!(ran.said.len() < 4000 && !ran.said.contains("panicked"), "{name}: {}", ran.said);
    ran.said
}

fn discover(name: &str, target: &Target, statuses: &[i32]) -> String {
    let url = format!("iscsi://{}?login_tries=1", target.address());
    fails(name, &["discover", &url], statuses)
}

fn read(name: &str, target: &Target, statuses: &[i32]) -> String {
    fails(name, &["scsi", &target.url("command_timeout=2"), "28000000000000000800", "--in", "4096"], statuses)
}

/// A target that changes its first Login Response.
fn first_response(change: impl Fn(Pdu) -> Pdu + Send + Sync + 'static) -> Target {
    let script = Script::new().at(op::LOGIN, move |link, pdu| {
        let keys = [("TargetPortalGroupTag", "1"), ("AuthMethod", "None")];
        let answer = link.login_response(pdu, 0x81, &keys);
        let answer = change(link.with_numbers(answer));
        link.send_unchanged(&answer);
        HookAction::Done
    });
    script.listen()
}

/// LOG-003, LOG-009, LOG-011, LOG-017, LOG-019, LOG-035: every field of a Login Response.
#[test]
fn log_011_fields_of_a_login_response() {
    type Change = fn(Pdu) -> Pdu;
    let changes: [(&str, Change, &[i32]); 26] = [
        ("NOP-In", |p| p.byte(0, op::NOP_IN), &[GENERAL]),
        ("Reject", |p| p.byte(0, op::REJECT), &[GENERAL]),
        ("R2T", |p| p.byte(0, op::R2T), &[GENERAL]),
        ("a request", |p| p.byte(0, op::LOGIN), &[GENERAL]),
        ("an unknown opcode", |p| p.byte(0, 0x3e), &[GENERAL]),
        ("T and C", |p| p.flags(0xc1), &[GENERAL]),
        ("another CSG", |p| p.flags(0x87), &[GENERAL]),
        ("the reserved CSG", |p| p.flags(0x08), &[GENERAL]),
        ("the reserved NSG", |p| p.flags(0x82), &[GENERAL]),
        ("Version-active", |p| p.byte(3, 9), &[GENERAL]),
        ("an additional header", |p| p.ahs(&[0; 4]), &[GENERAL]),
        ("ISID", |p| p.byte(9, 0xee).byte(10, 0xee), &[GENERAL]),
        ("the task tag", |p| p.itt(0x7777), &[GENERAL]),
        ("8193 bytes", |p| p.data(&[b'a'; 8193]), &[GENERAL]),
        ("no text", |p| p.data(&[0xff; 64]), &[GENERAL]),
        ("no last NUL", |p| p.data(b"AuthMethod=None"), &[GENERAL]),
        ("an escape sequence", |p| p.data(b"AuthMethod=\x1b[2J\x07\0"), &[GENERAL]),
        ("an escape sequence as key", |p| p.data(b"\x1b[31mAuth=None\0"), &[GENERAL]),
        ("a key twice", |p| p.data(b"AuthMethod=None\0AuthMethod=None\0"), &[GENERAL]),
        ("a key of the other stage", |p| p.data(b"MaxBurstLength=512\0"), &[GENERAL]),
        ("status 02/01", |p| p.set16(36, 0x0201), &[AUTHENTICATION]),
        ("status 02/03", |p| p.set16(36, 0x0203), &[NOT_FOUND]),
        ("status 02/7f", |p| p.set16(36, 0x027f), &[REFUSED]),
        ("status 03/01", |p| p.set16(36, 0x0301), &[UNREACHABLE]),
        ("status 03/7f", |p| p.set16(36, 0x037f), &[UNREACHABLE]),
        ("status 09/00", |p| p.set16(36, 0x0900), &[GENERAL]),
    ];
    for (name, change, statuses) in changes {
        discover(name, &first_response(change), statuses);
        read(name, &first_response(change), statuses);
    }
}

/// LOG-038: redirects to nowhere, to invalid addresses, and in a loop.
#[test]
fn log_038_redirects_that_lead_nowhere() {
    let to = |address: &'static [u8]| first_response(move |p| p.set16(36, 0x0101).data(address));
    for (name, target, statuses) in [
        ("no address", to(b""), &[GENERAL][..]),
        ("an empty address", to(b"TargetAddress=\0"), &[GENERAL]),
        ("controls", to(b"TargetAddress=a\x1b]0;x\x07\0"), &[GENERAL]),
        ("port 0", to(b"TargetAddress=127.0.0.1:0\0"), &[GENERAL]),
        ("a port without a listener", to(b"TargetAddress=127.0.0.1:1\0"), &[UNREACHABLE]),
        ("an unknown host", to(b"TargetAddress=no-such-host.invalid\0"), &[UNKNOWN_HOST, TIMED_OUT]),
    ] {
        discover(name, &target, statuses);
    }
    let ring = Script::new().redirects_to(|here| here.to_string()).listen();
    let said = discover("a ring", &ring, &[GENERAL]);
    assert!(said.contains("redirected the login more than"), "{said}");
    assert_eq!(ring.requests(op::LOGIN).len(), 6);
}

/// LOG-040, LOG-041, LOG-042: logins without end.
#[test]
fn log_042_endless_logins() {
    let text = |link: &mut ScriptConnection, pdu: &Pdu, flags: u8, data: &[u8]| {
        let answer = link.login_response(pdu, flags, &[]).data(data);
        link.send(answer);
        HookAction::Done
    };
    for (name, statuses, script) in [
        ("text without end", &[GENERAL][..], {
            Script::new().at(op::LOGIN, move |link, pdu| text(link, pdu, 0x40, &[b'a'; 8192]))
        }),
        ("exchanges without end", &[GENERAL], {
            Script::new().at(op::LOGIN, move |link, pdu| text(link, pdu, 0x00, &[]))
        }),
        ("keys without end", &[GENERAL], {
            Script::new().at(op::LOGIN, move |link, pdu| {
                let keys: String = (0..2000).map(|i| format!("X{i}=\0")).collect();
                text(link, pdu, 0x00, &keys.as_bytes()[..8190])
            })
        }),
        ("no answer", &[TIMED_OUT], Script::new().at(op::LOGIN, |_, _| HookAction::Done)),
        ("half an answer", &[TIMED_OUT], {
            Script::new().at(op::LOGIN, |link, pdu| {
                let answer = link.login_response(pdu, 0x81, &[]);
                link.send_bytes(&answer.encode(false, false)[..47]);
                HookAction::Done
            })
        }),
        ("a close", &[UNREACHABLE], Script::new().at(op::LOGIN, |_, _| HookAction::Close)),
    ] {
        discover(name, &script.listen(), statuses);
    }
}

/// A target that changes its Text Response.
fn text_response(change: impl Fn(Pdu) -> Pdu + Send + Sync + 'static) -> Target {
    let script = Script::new().at(op::TEXT, move |link, pdu| {
        let answer = Pdu::new(op::TEXT_RESPONSE).itt(pdu.tag()).ttt(NONE).keys(&[("TargetName", TARGET)]);
        let answer = change(link.with_numbers(answer));
        link.send_unchanged(&answer);
        HookAction::Done
    });
    script.listen()
}

/// DSC-012, NAM-001, TXT-008: every field of a Text Response, and invalid records.
#[test]
fn dsc_012_fields_of_a_discovery_response() {
    type Change = fn(Pdu) -> Pdu;
    let changes: [(&str, Change); 13] = [
        ("a Login Response", |p| p.byte(0, op::LOGIN_RESPONSE)),
        ("an R2T", |p| p.byte(0, op::R2T)),
        ("Data-In", |p| p.byte(0, op::DATA_IN)),
        ("a Reject", |p| p.byte(0, op::REJECT).byte(2, 9)),
        ("F and C", |p| p.flags(0xc0)),
        ("no F and no tag", |p| p.flags(0)),
        ("another task tag", |p| p.itt(0x7777)),
        ("an additional header", |p| p.ahs(&[0; 8])),
        ("more than was declared", |p| p.data(&[b'a'; 32769])),
        ("another StatSN", |p| p.set32(24, 99)),
        ("controls in a name", |p| p.data(b"TargetName=iqn.2026-11.org.example:\x1b[2J\0")),
        ("an address without a target", |p| p.data(b"TargetAddress=127.0.0.1:3260,1\0")),
        ("no text", |p| p.data(&[0xfe; 100])),
    ];
    for (name, change) in changes {
        discover(name, &text_response(change), &[GENERAL]);
    }
    discover("nothing", &text_response(|p| p.data(b"")), &[NOT_FOUND]);
    let no_last_nul = text_response(|p| p.data(b"TargetName=iqn.2026-11.org.example:a"));
    let ran = script::lunar(&["discover", &no_last_nul.address().to_string()]);
    assert!(ran.ok() && ran.said.contains("iqn.2026-11.org.example:a"), "{ran:?}");
}

/// DSC-012, NAM-001: invalid names and addresses do not hide valid ones, and no control character reaches the terminal.
#[test]
fn dsc_012_odd_entries_do_not_hide_the_others() {
    let target = text_response(|p| {
        p.data(
            b"TargetName=foo\0TargetAddress=a:1,x\0TargetName=a\x1b[2J\0TargetAddress=127.0.0.1\0\
              TargetName=iqn.2026-11.org.example:a\0TargetAddress=\x07\0",
        )
    });
    let ran = script::lunar(&["discover", &target.address().to_string()]);
    let at = target.address();
    assert!(ran.ok(), "{ran:?}");
    for line in [&format!("{at},-1 foo\n"), &format!("{at},-1 iqn.2026-11.org.example:a\n")] {
        assert!(ran.said.contains(line), "{line}: {}", ran.said);
    }
    assert!(
        ran.said.contains("foo: invalid iSCSI name (accepted anyway)")
            && !ran.said.contains(['\x1b', '\x07'])
    );
    assert_eq!(ran.said.matches("skipped").count(), 3, "{}", ran.said);
    let ran = script::lunar(&["ls", &format!("iscsi://{at}/foo/0")]);
    assert!(ran.ok() && ran.said.contains("LUN 0: disk"), "{ran:?}");
}

/// DSC-012: lists without end, and pings instead of a list.
#[test]
fn dsc_012_endless_lists() {
    let endless = |data: &'static [u8]| {
        Script::new().at(op::TEXT, move |link, pdu| {
            link.send(Pdu::new(op::TEXT_RESPONSE).flags(0x40).itt(pdu.tag()).ttt(5).data(data));
            HookAction::Done
        })
    };
    discover("text without end", &endless(&[b'a'; 32768]).listen(), &[GENERAL]);
    discover("empty responses without end", &endless(&[]).listen(), &[GENERAL, TIMED_OUT]);
    let pings = Script::new().at(op::TEXT, |link, _| {
        let end = std::time::Instant::now() + Duration::from_secs(8);
        while std::time::Instant::now() < end {
            link.send(Pdu::new(op::NOP_IN).itt(NONE).ttt(NONE));
        }
        HookAction::Close
    });
    discover("pings without end", &pings.listen(), &[TIMED_OUT, UNREACHABLE]);
}

/// The reaction of a target to each READ.
fn at_read(act: impl Fn(&mut ScriptConnection, &Pdu) -> HookAction + Send + Sync + 'static) -> Target {
    Script::new().scsi(0x28, act).listen()
}

fn data_in(pdu: &Pdu) -> Pdu {
    Pdu::new(op::DATA_IN).flags(0x81).itt(pdu.tag()).ttt(NONE).data(&[0x77; 4096])
}

/// FRM-024, DAT-028, SN-010: responses to a READ that break a rule, on every connection. The command fails in the
/// end.
#[test]
fn frm_024_responses_that_break_a_rule() {
    type Make = fn(&Pdu) -> Pdu;
    let answers: [(&str, Make); 15] = [
        ("another tag", |r| data_in(r).itt(0x0001_0007)),
        ("beyond the buffer", |r| data_in(r).set32(40, 4096)),
        ("beyond 32 bits", |r| data_in(r).set32(40, u32::MAX - 100)),
        ("out of order", |r| data_in(r).set32(40, 512).data(&[1; 512])),
        ("another DataSN", |r| data_in(r).set32(36, 3)),
        ("too few bytes", |r| data_in(r).data(&[1; 100])),
        ("an impossible residual", |r| data_in(r).flags(0x83).set32(44, 5000)),
        ("both residuals", |r| data_in(r).flags(0x87).set32(44, 5)),
        ("status before the end", |r| data_in(r).flags(0x01)),
        ("an additional header", |r| data_in(r).ahs(&[0; 8])),
        ("an R2T for a read", |r| Pdu::new(op::R2T).itt(r.tag()).ttt(1).set32(44, 512)),
        ("sense of another length", |r| {
            Pdu::new(op::SCSI_RESPONSE).itt(r.tag()).byte(3, 2).data(&[0xff, 0xff, 0x70, 0])
        }),
        ("a response of no task", |_| Pdu::new(op::SCSI_RESPONSE).itt(0x0001_0007)),
        ("a Login Response", |r| Pdu::new(op::LOGIN_RESPONSE).itt(r.tag())),
        ("an unsolicited response", |_| Pdu::new(op::LOGOUT_RESPONSE).itt(0x8000_0077)),
    ];
    for (name, make) in answers {
        let target = at_read(move |link, pdu| {
            link.send(make(pdu));
            HookAction::Done
        });
        read(name, &target, &[GENERAL, UNREACHABLE]);
    }
}

/// FRM-025: a segment of almost 16 MiB, far beyond the declared limit, fails the command.
#[test]
fn frm_025_a_giant_segment() {
    let target = at_read(|link, pdu| {
        let mut bytes = data_in(pdu).encode(false, false);
        bytes[5..8].copy_from_slice(&[0xff, 0xff, 0xff]);
        link.send_bytes(&bytes);
        HookAction::Done
    });
    read("a giant segment", &target, &[GENERAL, UNREACHABLE]);
}

/// SN-005: StatSN that jumps.
#[test]
fn sn_005_a_lost_response() {
    for jump in [1, 5, 1 << 30, u32::MAX] {
        let target = at_read(move |link, pdu| {
            let pdu = link.with_numbers(data_in(pdu));
            let pdu = pdu.clone().set32(24, pdu.stat_sn().wrapping_add(jump));
            link.send_unchanged(&pdu);
            HookAction::Done
        });
        read(&format!("StatSN + {jump}"), &target, &[GENERAL, UNREACHABLE]);
    }
}

/// DAT-014: R2Ts outside the data of the command. The initiator sends no data for them.
#[test]
fn dat_014_r2ts_outside_the_command() {
    type Ask = (u32, u32, u32);
    let asks: [(&str, Ask); 6] = [
        ("beyond the data", (0, 4000, 200)),
        ("beyond 32 bits", (0, u32::MAX - 10, 512)),
        ("nothing", (0, 0, 0)),
        ("more than a burst", (0, 0, u32::MAX)),
        ("another number", (7, 0, 512)),
        ("at the end", (0, 4096, 1)),
    ];
    for (name, (r2t_sn, offset, len)) in asks {
        let target = Script::new().answer("InitialR2T", "Yes").answer("ImmediateData", "No");
        let target = target.scsi(0x2a, move |link, pdu| {
            let r2t = Pdu::new(op::R2T).itt(pdu.tag()).ttt(9).set32(36, r2t_sn);
            link.send(r2t.set32(40, offset).set32(44, len));
            HookAction::Done
        });
        let target = target.listen();
        let out = format!("hex:{}", "5a".repeat(4096));
        let url = target.url("command_timeout=2");
        fails(name, &["scsi", &url, "2a000000000000000800", "--out", &out], &[GENERAL, UNREACHABLE]);
        assert!(target.requests(op::DATA_OUT).is_empty(), "{name}");
    }
}

/// NOP-003, NOP-004: a flood of pings in a session. The initiator answers those that request a response, and the
/// time-out of the command still applies. It gives up a target that floods every connection.
#[test]
fn nop_003_a_flood_of_pings() {
    let target = at_read(|link, _| {
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while std::time::Instant::now() < end {
            link.send(Pdu::new(op::NOP_IN).itt(NONE).ttt(7).data(&[1; 512]));
        }
        HookAction::Close
    });
    read("a flood", &target, &[TIMED_OUT, UNREACHABLE, GENERAL]);
}

/// FRM-004, ASY-011: asynchronous messages with odd codes. Vendor-specific codes have no effect; unknown codes end
/// the session.
#[test]
fn asy_011_asynchronous_messages_with_odd_codes() {
    for (code, statuses) in
        [(6, &[GENERAL, UNREACHABLE][..]), (100, &[GENERAL, UNREACHABLE]), (247, &[GENERAL, UNREACHABLE])]
    {
        let target = at_read(move |link, _| {
            link.send(Pdu::new(op::ASYNC).itt(NONE).byte(36, code).data(&[0xff; 40]));
            HookAction::Done
        });
        read(&format!("code {code}"), &target, statuses);
    }
    let target = at_read(|link, pdu| {
        link.send(Pdu::new(op::ASYNC).itt(NONE).byte(36, 250).data(&[0xff; 40]));
        link.send(data_in(pdu));
        HookAction::Done
    });
    let url = target.url("");
    assert!(bounded(&["scsi", &url, "28000000000000000800", "--in", "4096"]).ok());
}

/// REJ-012: the retired reason of a Reject ends the connection.
#[test]
fn rej_012_the_retired_reason() {
    let target = at_read(|link, pdu| {
        link.send(Pdu::new(op::REJECT).byte(2, 0x0b).itt(NONE).data(&pdu.header()));
        HookAction::Done
    });
    read("reason 0b", &target, &[GENERAL, UNREACHABLE]);
    assert!(target.seen().last().is_some_and(|s| s.link > 0));
}
