//! Sessions and connections: reinstatement, time-outs, recovery, clearing (RFC 7143 sections 4.4.3, 6.3, 7,
//! appendix E).

use interop::scsi::{READ, WRITE, inquiry, read10, write10};
use interop::{INITIATOR, Login, NONE, PduOutcome, Raw, Received, Server, config, op, shared};
use std::thread::sleep;
use std::time::Duration;

const QUICK: [(&str, &str); 2] = [("DefaultTime2Wait", "0"), ("DefaultTime2Retain", "0")];
const SLOW: u16 = 2;

/// Whether the target still knows a session with this TSIH. A login with another CID fails with status 020ah if not,
/// otherwise with 0206h or 0208h.
fn is_known(server: &Server, login: &Login, tsih: u16) -> bool {
    match login.clone().session(tsih, 9).try_on(server.portal()) {
        Err(0x020a) => false,
        Err(0x0206 | 0x0208) => true,
        other => panic!("{:#06x?}", other.err()),
    }
}

fn becomes_unknown(server: &Server, login: &Login, tsih: u16) {
    for _ in 0..30 {
        if !is_known(server, login, tsih) {
            return;
        }
        sleep(Duration::from_millis(100));
    }
    panic!("session {tsih} is still known");
}

/// SES-002
#[test]
fn ses_002_each_isid_is_a_session() {
    let server = shared();
    let (one, two) = (Login::new(), Login::new());
    let (mut first, mut second) = (one.on(server.portal()), two.on(server.portal()));
    assert!(first.tsih != 0 && second.tsih != 0 && first.tsih != second.tsih);
    first.ping();
    second.ping();
    assert!(is_known(&server, &one, first.tsih) && is_known(&server, &two, second.tsih));
}

/// SES-003, SES-012, CLR-003, LGO-014
#[test]
fn ses_003_a_login_with_a_known_isid_reinstates() {
    let server = shared();
    let login = Login::new();
    let mut old = login.on(server.portal());
    old.clear_attentions(SLOW);
    let reads: Vec<_> = (0..3).map(|_| old.command(SLOW, 0x80 | READ, &read10(0, 1), 512)).collect();
    old.send_all(&reads);
    let mut new = login.clone().cmd_sn(0x5000).on(server.portal());
    assert!(old.until_close().iter().all(|p| p.opcode() == op::ASYNC), "old tasks get no response");
    assert_ne!(new.tsih, 0);
    (0..3).for_each(|lun| new.clear_attentions(lun));
    assert_eq!(new.window.map(|w| w.0), Some(new.cmd_sn), "CmdSN of the new login is in force");
    new.read_blocks(0, 0, 1);
    assert!(matches!(new.get(Duration::from_millis(600)), Received::Nothing), "no response of an old task");
}

/// SES-003: the same ISID under another initiator name is another session.
#[test]
fn ses_003_isid_of_another_initiator_is_another_session() {
    let server = shared();
    let login = Login::new();
    let mut first = login.on(server.portal());
    let mut second = login.clone().initiator(&format!("{INITIATOR}.2")).on(server.portal());
    first.ping();
    second.ping();
}

/// SES-005, SES-009, SES-010, SES-011
#[test]
fn ses_005_a_login_with_a_live_cid_reinstates_the_connection() {
    let server = shared();
    let login = Login::new().with(&[("ImmediateData", "No"), ("MaxBurstLength", "4096")]);
    let mut old = login.on(server.portal());
    old.clear_attentions(0);
    let write = old.command(0, 0x80 | WRITE, &write10(0, 1), 512);
    old.send(&write);
    assert_eq!(old.recv_for(write.tag()).opcode(), op::R2T);
    let again = login.clone().session(old.tsih, 0).cmd_sn(old.cmd_sn);
    let mut new = again.on(server.portal());
    old.expect_close();
    assert_eq!(new.tsih, old.tsih, "the session continues");
    new.clear_attentions(0);
    new.immediate_data = false;
    let reply = new.write_blocks(0, 0, &[3; 16384]);
    assert_eq!(reply.r2ts().len(), 4, "the parameters of the session apply");
    reply.good();
    new.expect_silence();
}

/// SES-007, SES-012
#[test]
fn ses_007_parallel_logins_of_one_nexus_leave_one_session() {
    let server = shared();
    let (login, portal) = (Login::new(), server.portal());
    let attempts: Vec<_> = (0..8)
        .map(|_| (login.clone(), portal))
        .map(|(login, portal)| std::thread::spawn(move || login.try_on(portal).ok()))
        .collect();
    let sessions: Vec<Raw> = attempts.into_iter().filter_map(|t| t.join().ok().flatten()).collect();
    sleep(Duration::from_millis(200));
    let alive = sessions.into_iter().filter_map(|mut raw| match raw.get(Duration::ZERO) {
        Received::Nothing => Some(raw),
        _ => None,
    });
    let mut alive: Vec<Raw> = alive.collect();
    assert_eq!(alive.len(), 1);
    alive[0].ping();
}

/// SES-012
#[test]
fn ses_012_reinstatement_during_login_and_again_and_again() {
    let server = shared();
    let login = Login::new();
    let mut halfway = login.connect(server.portal());
    assert_eq!(halfway.login(&login.request(1, None)).status(), 0);
    let mut last = login.on(server.portal());
    for _ in 0..20 {
        let read = last.command(SLOW, 0x80 | READ, &read10(0, 1), 512);
        last.send(&read);
        let next = login.on(server.portal());
        last.until_close();
        last = next;
    }
    last.ping();
    assert_eq!(last.logout(0, 0).bhs[2], 0);
    login.on(server.portal()).ping();
}

/// SES-013: a reservation outlives the nexus loss, and a unit attention reports the loss.
#[test]
fn ses_013_reinstatement_is_a_loss_of_the_nexus() {
    let server = Server::start(&config::standard());
    let login = Login::new();
    let mut raw = login.on(server.portal());
    raw.clear_attentions(0);
    let mut parameters = [0; 24];
    parameters[15] = 0x77;
    raw.write(0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &parameters).good();
    parameters = [0; 24];
    parameters[7] = 0x77;
    raw.write(0, &[0x5f, 1, 5, 0, 0, 0, 0, 0, 24, 0], &parameters).good();
    let mut raw = login.on(server.portal());
    let sense = raw.simple(0, &[0; 6]).sense();
    assert!(matches!(sense, 0x06_2907 | 0x06_2900), "I_T nexus loss: {sense:06x}");
    raw.clear_attentions(0);
    let keys = raw.read(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64).good();
    assert_eq!(keys[8..16], [0, 0, 0, 0, 0, 0, 0, 0x77]);
    let reservation = raw.read(0, &[0x5e, 1, 0, 0, 0, 0, 0, 0, 64, 0], 64).good();
    assert_eq!((reservation[7], reservation[21]), (16, 5), "write exclusive, registrants only");
    raw.write_blocks(0, 0, &[1; 512]).good();
}

/// SES-014, LGO-001
#[test]
fn ses_014_a_logout_frees_the_session() {
    let server = shared();
    for reason in [0, 1] {
        let login = Login::new();
        let mut raw = login.on(server.portal());
        assert_eq!(raw.logout(reason, 0).bhs[2], 0);
        raw.expect_close();
        becomes_unknown(&server, &login, raw.tsih);
    }
}

/// SES-015, SES-017, SES-018, REC-014: with DefaultTime2Retain=0, the target frees a lost session at once.
#[test]
fn ses_018_time_to_retain_zero_frees_at_once() {
    let server = shared();
    let login = Login::new().with(&QUICK);
    let mut raw = login.on(server.portal());
    raw.clear_attentions(SLOW);
    let write = raw.command(SLOW, 0x80 | WRITE, &write10(77, 1), 512);
    raw.send(&write);
    assert_eq!(raw.recv_for(write.tag()).opcode(), op::R2T);
    let tsih = raw.tsih;
    raw.cut();
    becomes_unknown(&server, &login, tsih);
    let mut raw = login.on(server.portal());
    raw.clear_attentions(SLOW);
    raw.simple(SLOW, &[0; 6]).good();
}

/// SES-015, SES-017
#[test]
fn ses_017_the_retain_time_ends() {
    let server = shared();
    let login = Login::new().with(&[("DefaultTime2Wait", "0"), ("DefaultTime2Retain", "1")]);
    let raw = login.on(server.portal());
    let tsih = raw.tsih;
    raw.cut();
    sleep(Duration::from_millis(3200));
    becomes_unknown(&server, &login, tsih);
    login.on(server.portal()).ping();
}

/// SES-016: the Logout Response carries the values of the session.
#[test]
fn ses_016_logout_response_has_the_times() {
    let server = shared();
    let keys = [("DefaultTime2Wait", "5"), ("DefaultTime2Retain", "7")];
    let mut raw = Login::new().with(&keys).on(server.portal());
    let bye = raw.logout(0, 0);
    let times = (bye.get16(40), bye.get16(42));
    assert!(times == (0, 0) || times == (5, 7) || times == (5, 0), "{times:?}");
}

/// SES-019, ASY-001, ASY-003: a target that stops requests a logout before it closes.
#[test]
fn ses_019_a_stopping_server_says_goodbye() {
    let mut server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    server.signal(15);
    let message = raw.recv();
    assert_eq!((message.opcode(), message.tag(), message.is_final()), (op::ASYNC, NONE, true), "{message:?}");
    assert!(matches!(message.bhs[36], 1..=3), "event {}", message.bhs[36]);
    if message.bhs[36] == 1 {
        assert_ne!(message.get16(42), 0, "Parameter3 is the time left");
        let logout = raw.request(op::LOGOUT | 0x40);
        match raw.outcome(&logout) {
            PduOutcome::Answered(bye) => assert_eq!((bye.opcode(), bye.bhs[2]), (op::LOGOUT_RESPONSE, 0)),
            other => other.refused(&[]),
        }
    }
    raw.until_close();
    assert!(server.wait(Duration::from_secs(20)).success());
}

/// SES-020: the state transitions that are visible from outside, one after the other.
#[test]
fn ses_020_states_from_outside() {
    let server = shared();
    let login = Login::new();
    let connected = Raw::connect(server.portal());
    connected.cut();
    let mut in_login = login.connect(server.portal());
    assert_eq!(in_login.login(&login.request(1, None)).status(), 0);
    in_login.cut();
    let mut logged_in = login.on(server.portal());
    logged_in.ping();
    logged_in.cut();
    let mut again = login.on(server.portal());
    let bye = again.logout(1, 0);
    assert_eq!(bye.bhs[2], 0);
    again.expect_close();
    let mut in_logout = login.on(server.portal());
    let logout = in_logout.request(op::LOGOUT | 0x40);
    in_logout.send(&logout);
    in_logout.cut();
    login.on(server.portal()).ping();
}

/// SES-022
#[test]
fn ses_022_immediate_commands_die_with_their_connection() {
    let server = shared();
    let login = Login::new().with(&QUICK);
    let mut raw = login.on(server.portal());
    let tmf = raw.tmf(2, 0, NONE, 0);
    let pings: Vec<_> = (0..50).map(|_| raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(&[1; 4096])).collect();
    raw.send_all(&pings);
    raw.send(&tmf);
    raw.cut();
    let mut raw = login.on(server.portal());
    raw.expect_silence();
    raw.ping();
}

/// REC-001, REC-002, REC-011
#[test]
fn rec_001_session_recovery_keeps_the_data() {
    let server = shared();
    let login = Login::new().with(&QUICK);
    for round in 0..10u8 {
        let mut raw = login.on(server.portal());
        raw.clear_attentions(0);
        raw.write_blocks(0, 5000, &[round; 4096]).good();
        let read = raw.command(0, 0x80 | READ, &read10(5000, 2000), 2000 * 512);
        raw.send(&read);
        raw.cut();
        let mut raw = login.on(server.portal());
        raw.clear_attentions(0);
        assert_eq!(raw.read_blocks(0, 5000, 8), [round; 4096]);
    }
}

/// REC-015, TMF-022, LGO-004
#[test]
fn rec_015_actions_above_level_zero_are_refused() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let reassign = raw.tmf(8, 0, 0x4711, 0);
    assert_eq!(raw.ask(&reassign).bhs[2], 4);
    let logout = raw.logout(2, 0);
    assert_eq!((logout.opcode(), logout.bhs[2]), (op::LOGOUT_RESPONSE, 2));
    raw.ping();
}

/// REC-014: tasks of a closed session end, and no other session is affected.
#[test]
fn rec_014_tasks_end_with_their_session() {
    let server = shared();
    let mut neighbour = Raw::session(server.portal(), &[]);
    let login = Login::new().with(&QUICK);
    let mut raw = login.on(server.portal());
    raw.clear_attentions(SLOW);
    let slow: Vec<_> = (0..4).map(|_| raw.command(SLOW, 0x80 | READ, &read10(0, 1), 512)).collect();
    raw.send_all(&slow);
    let logout = raw.request(op::LOGOUT | 0x40);
    raw.send(&logout);
    assert_eq!(raw.recv_for(logout.tag()).opcode(), op::LOGOUT_RESPONSE);
    raw.expect_close();
    assert!(neighbour.read(SLOW, &inquiry(None, 96), 96).good().len() >= 36);
    neighbour.read_blocks(SLOW, 0, 1);
}

/// CLR-004
#[test]
fn clr_004_resets_keep_the_numbers() {
    let server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    for function in [5, 6] {
        let (cmd_sn, stat_sn) = (raw.cmd_sn, raw.exp_stat_sn);
        let response = raw.manage(function, 0);
        assert!(matches!(response, 0 | 5), "function {function}: {response}");
        (0..3).for_each(|lun| raw.clear_attentions(lun));
        assert_eq!(raw.window.map(|w| w.0), Some(raw.cmd_sn), "CmdSN continues from {cmd_sn}");
        assert_eq!(
            raw.exp_stat_sn.wrapping_sub(stat_sn),
            raw.cmd_sn.wrapping_sub(cmd_sn) + 1,
            "StatSN continues"
        );
    }
}
