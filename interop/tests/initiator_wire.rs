//! The requests of the initiator: `lunar` against a scripted target that is correct, or loses a connection. Test
//! names contain the id of a row of `conformance/rows.tsv`. `Target::seen` also checks layout, reserved fields and
//! numbers of every request.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use interop::config::TARGET;
use interop::script::{BLOCK, HookAction, Script, ScriptConnection, Target, lunar};
use interop::server::Folder;
use interop::{Pdu, op};

/// READ(10) and WRITE(10) of the first eight blocks.
const READ: &str = "28000000000000000800";
const WRITE: &str = "2a000000000000000800";

/// Runs a command with a time limit of 20 s, and returns its output.
fn scsi(url: &str, arguments: &[&str]) -> String {
    let ran = lunar(&[&["scsi", url, "--timeout", "20", "--json"], arguments].concat());
    assert!(ran.ok(), "{:?}: {}", ran.status, ran.said);
    ran.said
}

/// Reads eight blocks, which must be those of the disk.
fn read(target: &Target, settings: &str) {
    let said = scsi(&target.url(settings), &[READ, "--in", "4096"]);
    let digits: String = target.disk()[..8 * BLOCK].iter().map(|b| format!("{b:02x}")).collect();
    assert!(said.contains(&digits), "{said}");
}

/// Overwrites the target's disk with other bytes, and copies them back.
fn copy_there_and_back(target: &Target, settings: &str) {
    let folder = Folder::fresh();
    let (there, back) = (folder.join("there"), folder.join("back"));
    let (there, back) = (there.to_str().expect("a path"), back.to_str().expect("a path"));
    let bytes: Vec<u8> = target.disk().iter().map(|b| b.wrapping_mul(3) ^ 0x5a).collect();
    std::fs::write(there, &bytes).expect("a file");
    let url = target.url(settings);
    for pair in [[there, &url], [&url, back]] {
        let ran = lunar(&["copy", pair[0], pair[1], "--timeout", "20"]);
        assert!(ran.ok(), "{:?}: {}", ran.status, ran.said);
    }
    assert!(target.disk() == bytes && std::fs::read(back).expect("a file") == bytes);
}

fn key(pdu: &Pdu, key: &str) -> Option<String> {
    pdu.value(key)
}

/// Calls a hook for its first request only.
fn once(
    hook: impl Fn(&mut ScriptConnection, &Pdu) -> HookAction,
) -> impl Fn(&mut ScriptConnection, &Pdu) -> HookAction {
    let called = AtomicBool::new(false);
    move |link, pdu| if called.swap(true, SeqCst) { HookAction::Usual } else { hook(link, pdu) }
}

/// FRM-001, FRM-002, FRM-006, FRM-007, FRM-010: layout, reserved fields and padding of every kind of request, and no
/// additional header. FRM-025, KEY-012: no segment beyond the limit that the target declared.
#[test]
fn frm_002_requests_are_well_formed() {
    let target = Script::new().answer("InitialR2T", "Yes").listen();
    assert!(lunar(&["discover", &target.address().to_string()]).ok());
    read(&target, "");
    copy_there_and_back(&target, "max_burst_length=8192&first_burst_length=4096");
    let slow = Script::new().scsi(
        0x28,
        once(|_, _| {
            std::thread::sleep(Duration::from_millis(2500));
            HookAction::Usual
        }),
    );
    let slow = slow.listen();
    read(&slow, "noop_interval=1&noop_timeout=10");
    let mut opcodes: Vec<u8> = target.seen().iter().chain(&slow.seen()).map(|s| s.pdu.opcode()).collect();
    opcodes.sort_unstable();
    opcodes.dedup();
    assert_eq!(opcodes, [op::NOP_OUT, op::SCSI, op::LOGIN, op::TEXT, op::DATA_OUT, op::LOGOUT]);
    let offer = key(&target.requests(op::LOGIN)[3], "TaskReporting");
    assert_eq!(offer.as_deref(), Some("ResponseFence,RFC3720"), "only values that the initiator supports");
    let (login, command) = (&target.requests(op::LOGIN)[0], &target.requests(op::SCSI)[0]);
    assert_eq!(command.get32(20), 4096, "Expected Data Transfer Length");
    assert_eq!(login.get32(24), command.get32(24), "LOG-026: a login consumes no CmdSN");
}

/// FRM-005: a response that arrives byte by byte.
#[test]
fn frm_005_responses_in_any_segmentation() {
    let bytewise = Script::new().scsi(0x28, |link, pdu| {
        let data = vec![0x77; 1001];
        let answer = Pdu::new(op::DATA_IN).flags(0x83).itt(pdu.tag()).set32(44, 3095).data(&data);
        let bytes = link.with_numbers(answer).encode(false, false);
        for byte in bytes.chunks(1) {
            link.send_bytes(byte);
        }
        HookAction::Done
    });
    let target = bytewise.listen();
    let said = scsi(&target.url(""), &[READ, "--in", "4096"]);
    assert!(said.contains(&"77".repeat(1001)) && said.contains("\"residual\": 3095"), "{said}");
}

/// FRM-011: the eight bytes of LUNs 0, 1, 300.
#[test]
fn frm_011_luns_have_the_sam_form() {
    for (lun, bytes) in [(0, [0, 0]), (1, [0, 1]), (300, [0x41, 0x2c])] {
        let target = Script::new().listen();
        scsi(&format!("iscsi://{}/{TARGET}/{lun}", target.address()), &["000000000000"]);
        assert_eq!(target.requests(op::SCSI)[0].bhs[8..16], [&bytes[..], &[0; 6]].concat());
    }
}

/// FRM-013, FRM-014, FRM-015, FRM-016, KEY-001: all four combinations of digests, also for data of odd lengths. The
/// scripted target checks the digests with its own CRC32C.
#[test]
fn frm_013_all_four_digest_combinations() {
    for header in ["none", "crc32c"] {
        for data in ["none", "crc32c"] {
            let target = Script::new().scsi(0x3b, |link, pdu| {
                assert_eq!(pdu.data, [1, 2, 3, 4, 5]);
                link.good(pdu);
                HookAction::Done
            });
            let target = target.listen();
            let settings = format!("header_digest={header}&data_digest={data}");
            scsi(&target.url(&settings), &["3b000000000000000500", "--out", "hex:0102030405"]);
            copy_there_and_back(&target, &settings);
            let agreed = |digest: &str| if digest == "crc32c" { "CRC32C" } else { "None" };
            let offer = &target.requests(op::LOGIN)[1];
            assert_eq!(key(offer, "HeaderDigest").as_deref(), Some(agreed(header)));
            assert_eq!(key(offer, "DataDigest").as_deref(), Some(agreed(data)));
            target.seen();
        }
    }
}

/// FRM-017: a bad header digest ends the connection, and has no other effect.
#[test]
fn frm_017_a_bad_header_digest_ends_the_connection() {
    let bad = once(|link: &mut ScriptConnection, pdu: &Pdu| {
        let answer = Pdu::new(op::DATA_IN).flags(0x81).itt(pdu.tag()).data(&[9; 4096]);
        let mut bytes = link.with_numbers(answer).encode(true, false);
        bytes[50] ^= 1;
        link.send_bytes(&bytes);
        HookAction::Done
    });
    let target = Script::new().scsi(0x28, bad).listen();
    read(&target, "header_digest=crc32c");
    assert_eq!(target.seen().last().map(|s| s.link), Some(1));
}

/// LOG-005: the initiator sends no second request before the response to the first.
#[test]
fn log_005_one_login_request_at_a_time() {
    let slow = Script::new().at(op::LOGIN, |_, _| {
        std::thread::sleep(Duration::from_millis(400));
        HookAction::Usual
    });
    let target = slow.listen();
    read(&target, "");
    assert_eq!(target.requests(op::LOGIN).len(), 2);
}

/// LOG-006, LOG-021, LOG-026: tag, ISID, TSIH, CID and CmdSN are the same in all requests of a login.
#[test]
fn log_006_requests_of_a_login_belong_together() {
    let target = Script::new().listen();
    read(&target, "");
    let logins = target.requests(op::LOGIN);
    assert_eq!(logins.len(), 2);
    let fixed = |pdu: &Pdu| (pdu.bhs[0], pdu.bhs[8..22].to_vec(), pdu.get32(24));
    assert_eq!(fixed(&logins[0]), fixed(&logins[1]));
}

/// LOG-024, SES-007, SES-008: ISIDs have the random format, and no two sessions have the same.
#[test]
fn log_024_isids_are_random() {
    let target = Script::new().listen();
    read(&target, "");
    read(&target, "");
    let isids: Vec<_> = target.requests(op::LOGIN).iter().map(|l| l.bhs[8..14].to_vec()).collect();
    assert!(isids.iter().all(|isid| isid[0] == 0x80), "{isids:02x?}");
    assert_ne!(isids[0], isids[2]);
}

/// LOG-028, SN-004: the initiator acknowledges StatSN, also where it wraps.
#[test]
fn log_028_responses_are_acknowledged() {
    for stat_sn in [0, 0xffff_fffc, 0xffff_ffff] {
        let target = Script::new().stat_sn(stat_sn).listen();
        copy_there_and_back(&target, "");
        let last = target.requests(op::LOGOUT).pop().expect("a logout");
        let answers = target.requests(op::LOGIN).len() / 2 + target.requests(op::SCSI).len();
        assert!(last.get32(28).wrapping_sub(stat_sn) > 2 && answers > 2);
    }
}

/// LOG-038: the initiator follows a temporary redirect for this login only.
#[test]
fn log_038_redirects_are_followed() {
    let there = Script::new().listen();
    let place = format!("{},1", there.address());
    let here = Script::new().redirects_to(move |_| place.clone()).listen();
    read(&here, "");
    assert_eq!((here.requests(op::SCSI).len(), there.requests(op::SCSI).len()), (0, 1));
}

/// NAM-002, NAM-004: one setting is the initiator name of discovery and of sessions, and names are sent unchanged.
#[test]
fn nam_004_one_name() {
    let name = "iqn.2026-11.org.example:the-host";
    let target = Script::new().listen();
    let portal = format!("iscsi://{}?initiator={name}", target.address());
    assert!(lunar(&["discover", &portal]).ok());
    read(&target, &format!("initiator={name}"));
    let logins = target.requests(op::LOGIN);
    let names: Vec<_> = logins.iter().filter_map(|l| key(l, "InitiatorName")).collect();
    assert_eq!(names, [name, name]);
    assert_eq!(key(&logins[2], "TargetName").as_deref(), Some(TARGET));
}

/// DSC-001, DSC-007, KEY-003, KEY-021, TXT-001, TXT-002: discovery without TargetName, with one Text Request that
/// contains only SendTargets.
#[test]
fn dsc_001_discovery() {
    let target = Script::new().listen();
    let ran = lunar(&["discover", &target.address().to_string()]);
    assert_eq!(ran.said, format!("{},1 {TARGET}\n", target.address()));
    let first = &target.requests(op::LOGIN)[0];
    assert_eq!((key(first, "SessionType").as_deref(), key(first, "TargetName")), (Some("Discovery"), None));
    let texts = target.requests(op::TEXT);
    assert_eq!((texts.len(), &*texts[0].data), (1, &b"SendTargets=All\0"[..]));
}

/// CMD-011: a target with a window of one command gets one command at a time.
#[test]
fn cmd_011_the_window_is_respected() {
    let target = Script::new().window(1).listen();
    copy_there_and_back(&target, "commands=64");
    target.seen();
}

/// RSP-008: the initiator uses the sense data of the SCSI Response, and sends no REQUEST SENSE.
#[test]
fn rsp_008_sense_data_come_with_the_status() {
    let target = Script::new().listen();
    let out_of_range = "28000000ffff00000800";
    let ran = lunar(&["scsi", &target.url(""), out_of_range, "--in", "4096", "--json"]);
    assert!(!ran.ok() && ran.said.contains("\"asc\": 33"), "{}", ran.said);
    assert!(target.requests(op::SCSI).iter().all(|command| command.bhs[32] != 0x03), "REQUEST SENSE");
}

/// SES-011, SES-009, SES-020, REC-001, REC-002, REC-011: the initiator reinstates a lost session with its ISID and
/// without a TSIH, and retries the command.
#[test]
fn ses_011_a_lost_session_is_reinstated() {
    let target = Script::new().scsi(0x28, once(|_, _| HookAction::Close)).listen();
    read(&target, "");
    let logins = target.requests(op::LOGIN);
    assert_eq!(logins.len(), 4);
    assert!(logins.iter().all(|l| l.bhs[8..14] == logins[0].bhs[8..14] && l.get16(14) == 0));
    let target = Script::new().scsi(0x2a, once(|_, _| HookAction::Close)).listen();
    copy_there_and_back(&target, "");
    assert!(target.seen().iter().any(|s| s.link == 1));
}

/// SES-021: each session has the parameters of its own login.
#[test]
fn ses_021_parameters_start_anew() {
    let target = Script::new().hook(|link, pdu| {
        let is_read = pdu.opcode() == op::SCSI && pdu.bhs[32] == 0x28;
        if is_read && link.number == 0 {
            return HookAction::Close;
        }
        if pdu.opcode() != op::LOGIN || pdu.bhs[1] >> 2 & 3 == 0 || link.number == 0 {
            return HookAction::Usual;
        }
        // The second session: no digests, and other lengths.
        let keys: Vec<(String, String)> = pdu.pairs();
        let changed = |k: &str, v: &str| match k {
            "HeaderDigest" | "DataDigest" => "None".to_owned(),
            "MaxRecvDataSegmentLength" => "1024".to_owned(),
            _ => v.split(',').next().expect("a value").to_owned(),
        };
        let keys: Vec<_> = keys.iter().map(|(k, v)| (k.clone(), changed(k, v))).collect();
        let keys: Vec<_> = keys.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let answer = link.login_response(pdu, 0x87, &keys);
        link.send(answer);
        link.full_feature = true;
        HookAction::Done
    });
    let target = target.listen();
    read(&target, "header_digest=crc32c,none&data_digest=crc32c,none");
    assert_eq!(target.seen().last().map(|s| s.link), Some(1));
}

/// SES-015, SES-016: no new session before DefaultTime2Wait has passed.
#[test]
fn ses_015_the_default_time_is_waited_for() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let kept = times.clone();
    let target = Script::new().answer("DefaultTime2Wait", "2").hook(move |link, pdu| {
        let first = pdu.opcode() == op::LOGIN && pdu.bhs[1] >> 2 & 3 == 0;
        let read = pdu.opcode() == op::SCSI && pdu.bhs[32] == 0x28 && link.number == 0;
        if first || read {
            kept.lock().expect("no thread panics while it holds the lock").push(Instant::now());
        }
        if read { HookAction::Close } else { HookAction::Usual }
    });
    read(&target.listen(), "");
    let times = times.lock().expect("no thread panics while it holds the lock");
    assert!(times[2] - times[1] >= Duration::from_millis(1900), "{:?}", times[2] - times[1]);
}

/// SES-014, SES-019, LGO-001, LGO-007, LGO-010: a session ends with a logout of the session. The initiator sends no
/// PDU after it.
#[test]
fn lgo_001_sessions_end_by_logout() {
    let target = Script::new().listen();
    assert!(lunar(&["discover", &target.address().to_string()]).ok());
    read(&target, "");
    copy_there_and_back(&target, "");
    let seen = target.seen();
    let links = seen.last().expect("requests").link;
    for link in 0..=links {
        let last = seen.iter().rfind(|s| s.link == link).expect("a request");
        assert_eq!((last.pdu.opcode(), last.pdu.bhs[1]), (op::LOGOUT, 0x80), "link {link}");
    }
}

/// ASY-004, LGO-012: after a logout request, the initiator sends no new command, logs out, and returns at once, whatever
/// times the Logout Response has.
#[test]
fn asy_004_a_logout_on_demand() {
    for event in [1, 4] {
        let target = Script::new().hook(move |link, pdu| {
            if pdu.opcode() == op::SCSI && link.number == 0 && pdu.bhs[32] == 0x12 && pdu.bhs[33] == 0 {
                let ask = Pdu::new(op::ASYNC).itt(interop::NONE).byte(36, event).set16(42, 10);
                link.send(ask);
                return HookAction::Usual;
            }
            if pdu.opcode() == op::LOGOUT {
                let answer = Pdu::new(op::LOGOUT_RESPONSE).itt(pdu.tag()).set16(40, 3600).set16(42, 3600);
                link.send(answer);
                return HookAction::Done;
            }
            HookAction::Usual
        });
        let target = target.listen();
        copy_there_and_back(&target, "");
        let seen = target.seen();
        let first: Vec<u8> =
            seen.iter().filter(|s| s.link == 0 && s.full_feature).map(|s| s.pdu.opcode()).collect();
        assert_eq!(first, [op::SCSI, op::LOGOUT], "event {event}");
        assert!(seen.iter().any(|s| s.link == 1 && s.pdu.opcode() == op::SCSI));
    }
}

/// ASY-004: the initiator logs out within the seconds of Parameter3, although a command is in flight, and retries
/// that command.
#[test]
fn asy_004_a_logout_in_time() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let kept = times.clone();
    let target = Script::new().hook(move |link, pdu| {
        let is_slow = pdu.opcode() == op::SCSI && pdu.bhs[32] == 0x28;
        if link.number > 0 || !is_slow && pdu.opcode() != op::LOGOUT {
            return HookAction::Usual;
        }
        if is_slow {
            link.send(Pdu::new(op::ASYNC).itt(interop::NONE).byte(36, 1).set16(42, 4));
        }
        kept.lock().expect("no thread panics while it holds the lock").push(Instant::now());
        // A command that does not end before the connection does.
        if is_slow { HookAction::Done } else { HookAction::Usual }
    });
    read(&target.listen(), "");
    let times = times.lock().expect("no thread panics while it holds the lock");
    assert!(times[1] - times[0] <= Duration::from_secs(4), "{:?}", times[1] - times[0]);
}

/// ASY-006, ASY-007: after a target has dropped the connection or session, the initiator waits for the time in its
/// message.
#[test]
fn asy_006_a_dropped_connection() {
    for event in [2, 3] {
        let dropped = Arc::new(Mutex::new(None));
        let (kept, back) = (dropped.clone(), Arc::new(Mutex::new(None)));
        let returned = back.clone();
        let target = Script::new().hook(move |link, pdu| {
            if link.number == 1 {
                returned
                    .lock()
                    .expect("no thread panics while it holds the lock")
                    .get_or_insert_with(Instant::now);
            }
            if link.number > 0 || pdu.opcode() != op::SCSI {
                return HookAction::Usual;
            }
            let drop = Pdu::new(op::ASYNC).itt(interop::NONE).byte(36, event).set16(38, 1).set16(40, 1);
            link.send(drop.set16(42, 20));
            *kept.lock().expect("no thread panics while it holds the lock") = Some(Instant::now());
            HookAction::Close
        });
        read(&target.listen(), "");
        let (from, to) = (
            dropped.lock().expect("no thread panics while it holds the lock"),
            back.lock().expect("no thread panics while it holds the lock"),
        );
        let waited = to.expect("the initiator came back") - from.expect("the connection was dropped");
        assert!(waited >= Duration::from_millis(900), "event {event}: {waited:?}");
    }
}

/// REC-013, TMF-003, TMF-004: the initiator aborts a command without a response on its connection, by tag and CmdSN,
/// and retries it.
#[test]
fn rec_013_a_silent_command_is_aborted() {
    let target = Script::new().scsi(0x28, once(|_, _| HookAction::Done)).listen();
    read(&target, "command_timeout=1");
    let seen = target.seen();
    let command = seen.iter().find(|s| s.pdu.opcode() == op::SCSI).expect("a command");
    let abort = seen.iter().find(|s| s.pdu.opcode() == op::TMF).expect("an abort");
    assert_eq!((abort.link, abort.pdu.bhs[1]), (command.link, 0x81));
    assert_eq!(abort.pdu.get32(20), command.pdu.tag(), "Referenced Task Tag");
    assert_eq!(abort.pdu.get32(32), command.pdu.get32(24), "RefCmdSN");
}

/// REC-013, TMF-035: if the target rejects an abort, the initiator resets the logical unit, then the target, then the
/// session.
#[test]
fn rec_013_abort_is_followed_by_resets() {
    let target = Script::new().hook(|link, pdu| match pdu.opcode() {
        op::TMF => {
            link.send(Pdu::new(op::TMF_RESPONSE).itt(pdu.tag()).byte(2, 5));
            HookAction::Done
        }
        op::SCSI if link.number == 0 => HookAction::Done,
        _ => HookAction::Usual,
    });
    let target = target.listen();
    read(&target, "command_timeout=1");
    let functions: Vec<u8> = target.requests(op::TMF).iter().map(|tmf| tmf.bhs[1] & 0x7f).collect();
    assert_eq!(functions, [1, 5, 6]);
    assert_eq!(target.seen().last().map(|s| s.link), Some(1));
}

/// NOP-008, NOP-005: the initiator pings a silent target, and drops the connection if there is no response.
#[test]
fn nop_008_a_silent_target_is_disconnected() {
    let target = Script::new().hook(|link, pdu| {
        if link.number == 0 && link.full_feature && pdu.opcode() != op::LOGIN {
            HookAction::Done
        } else {
            HookAction::Usual
        }
    });
    let target = target.listen();
    read(&target, "noop_interval=1&noop_timeout=1");
    let pings = target.requests(op::NOP_OUT);
    assert_eq!(pings.len(), 1);
    assert_eq!((pings[0].bhs[0], pings[0].transfer_tag()), (0x40, interop::NONE));
    assert_eq!(target.seen().last().map(|s| s.link), Some(1));
}

/// WRITE keeps to each combination of negotiated values: DAT-004, DAT-015, DAT-025, KEY-010, KEY-011, KEY-013,
/// KEY-014.
#[test]
fn dat_004_writes_keep_to_the_negotiated_lengths() {
    for (r2t, immediate) in [("Yes", "Yes"), ("Yes", "No"), ("No", "Yes"), ("No", "No")] {
        let target = Script::new().answer("InitialR2T", r2t).answer("ImmediateData", immediate);
        let target = target.answer("FirstBurstLength", "1024").answer("MaxBurstLength", "2048").listen();
        scsi(&target.url(""), &[WRITE, "--out", &format!("hex:{}", "a5".repeat(4096))]);
        assert!(target.disk()[..4096].iter().all(|b| *b == 0xa5));
        let command = &target.requests(op::SCSI)[0];
        let outs = target.requests(op::DATA_OUT);
        let unasked: usize =
            outs.iter().filter(|o| o.transfer_tag() == interop::NONE).map(|o| o.data.len()).sum();
        let (now, later) = match (r2t, immediate) {
            ("Yes", "Yes") | ("No", "Yes") => (1024, 0),
            ("Yes", _) => (0, 0),
            _ => (0, 1024),
        };
        assert_eq!((command.data.len(), unasked), (now, later), "InitialR2T={r2t} ImmediateData={immediate}");
        for out in outs.iter().filter(|o| o.transfer_tag() == interop::NONE) {
            assert_eq!(out.bhs[8..16], [0; 8], "DAT-022: no tag, and so no LUN");
        }
    }
}
