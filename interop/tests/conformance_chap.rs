//! CHAP and security (RFC 7143 sections 9.2, 12.1; RFC 1994).

use interop::chap::{base64, hex, response, unbinary};
use interop::scsi::{read10, reserve_out};
use interop::{Chap, Folder, Login, Pdu, PduOutcome, Raw, Server, config, op, shared};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

const ALICE: &[u8] = b"alice's secret 1";
const BOB: &[u8] = b"bob's own secret";
const LUNAR: &[u8] = b"the target's own";
const SCOUT: &[u8] = b"discovery secret";
const BINARY: [u8; 16] = [0, 1, 2, 0x0a, 0xff, 0xfe, 0x80, 0x7f, 0, 0, 13, 10, 9, 32, 0xc3, 0x28];
const LONG_NAME: &str = "x.y:z";

/// The keys of the third login step, which respond to a challenge.
type Step<'a> = &'a dyn Fn(&Chap) -> Vec<(String, String)>;
/// An encoding of bytes as text.
type Encode<'a> = &'a dyn Fn(&[u8]) -> String;

/// A new folder with these secrets, each in its own file, and the tables that name them.
fn users(secrets: &[(&str, &[u8])]) -> (Folder, String) {
    let (dir, mut tables) = (Folder::fresh(), String::new());
    for (i, (name, secret)) in secrets.iter().enumerate() {
        let file = dir.join(format!("{i}.secret"));
        fs::write(&file, secret).expect("write a secret");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode 0600");
        tables += &format!("[[chap_user]]\nname = \"{name}\"\nsecret_file = \"{i}.secret\"\n");
    }
    (dir, tables)
}

/// A server that requires CHAP of alice, or of a user with an unusual name or secret. The target responds to
/// challenges as "lunar".
fn guarded() -> Server {
    let long = LONG_NAME.repeat(51);
    let binary = hex(&BINARY);
    let (dir, tables) = users(&[
        ("alice", ALICE),
        ("lunar", LUNAR),
        ("0xab", b"user with prefix"),
        ("a", b"one-letter user!"),
        (&long, b"long-winded user"),
        ("binary", binary.as_bytes()),
        ("bob", BOB),
        ("scout", SCOUT),
    ]);
    let access = format!(
        "[[target.access]]\ninitiators = [\"iqn.2026-11.org.example:bobs\"]\nchap = [\"bob\"]\n\
         [[target.access]]\nchap = [\"alice\", \"0xab\", \"a\", \"{long}\", \"binary\"]\n\
         [discovery]\nchap = [\"scout\", \"a\"]\n"
    );
    Server::start_in(dir, &config::with("", "mutual = \"lunar\"", &(access + &tables)))
}

/// Sends the third login step with these keys. Returns the connection, the login, the challenge and the response.
fn third_step(server: &Server, keys: Step) -> (Raw, Login, Chap, Pdu) {
    let login = Login::new();
    let (mut raw, chap) = Chap::begin(&login, server.portal(), "5").expect("a challenge");
    let keys = keys(&chap);
    let keys: Vec<(&str, &str)> = keys.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let answer = raw.login(&login.empty(0, Some(1)).keys(&keys));
    (raw, login, chap, answer)
}

fn proof(chap: &Chap) -> Vec<(String, String)> {
    vec![("CHAP_N".into(), "alice".into()), ("CHAP_R".into(), hex(&chap.response(ALICE)))]
}

/// Logs in with a correct response of alice, and a challenge for the target.
fn mutual(server: &Server, identifier: &str, challenge: &str) -> (Chap, Pdu) {
    let both = |chap: &Chap| {
        let back = [("CHAP_I".into(), identifier.into()), ("CHAP_C".into(), challenge.into())];
        [proof(chap), back.to_vec()].concat()
    };
    let (_, _, chap, answer) = third_step(server, &both);
    (chap, answer)
}

/// SEC-001, SEC-003, SEC-005, KEY-029, LST-001
#[test]
fn sec_001_chap_with_each_algorithm() {
    let server = guarded();
    for algorithm in 5..=8 {
        Chap::login(&Login::new(), server.portal(), algorithm, "alice", ALICE).expect("a login").ping();
    }
    for (offer, chosen) in [("7,5", 7), ("5,7", 5), ("99,5", 5), ("8,6", 8)] {
        let (_, chap) = Chap::begin(&Login::new(), server.portal(), offer).expect("a challenge");
        assert_eq!(chap.algorithm, chosen, "{offer}");
    }
    for offer in ["99", "0", "", "MD5", "5;7"] {
        let refusal = Chap::begin(&Login::new(), server.portal(), offer).err().expect("a refusal");
        assert!(matches!(refusal.status(), 0x0201 | 0x0200), "{offer}: {refusal:?}");
    }
}

/// SEC-001, SEC-005, SEC-010: mutual authentication; the challenges of the two sides differ.
#[test]
fn sec_001_mutual_chap() {
    let server = guarded();
    let challenge = [0x5a; 16];
    let (chap, answer) = mutual(&server, "77", &hex(&challenge));
    assert_eq!(answer.status(), 0);
    assert_eq!(answer.value("CHAP_N").as_deref(), Some("lunar"));
    let back = unbinary(&answer.value("CHAP_R").expect("CHAP_R"));
    assert_eq!(back, response(5, 77, LUNAR, &challenge));
    assert_ne!(chap.challenge, challenge);
    let alone = guarded_without_mutual();
    let (_, answer) = mutual(&alone, "77", &hex(&challenge));
    assert_eq!(answer.status(), 0x0201, "a target without a user rejects the challenge");
}

/// As [`guarded`], but the target has no user for mutual CHAP.
fn guarded_without_mutual() -> Server {
    let (dir, tables) = users(&[("alice", ALICE)]);
    Server::start_in(
        dir,
        &config::with("", "", &("[[target.access]]\nchap = [\"alice\"]\n".to_string() + &tables)),
    )
}

/// SEC-005, LST-005, LOG-031
#[test]
fn sec_005_wrong_proofs_fail() {
    let server = guarded();
    for (name, secret) in
        [("alice", BOB), ("carol", ALICE), ("Alice", ALICE), ("lunar", LUNAR), ("alice ", ALICE)]
    {
        let status = Chap::login(&Login::new(), server.portal(), 5, name, secret).err();
        assert_eq!(status, Some(0x0201), "{name}");
    }
    let login = Login::new();
    assert_eq!(login.try_on(server.portal()).err(), Some(0x0201), "no security stage at all");
    let mut raw = login.connect(server.portal());
    let none = login.finish(&mut raw, login.clone().key("AuthMethod", "None").request(0, Some(1)));
    assert_eq!(none.err(), Some(0x0201));
    Chap::login(&login, server.portal(), 5, "alice", ALICE).expect("a login").ping();
}

fn says(server: &Server, reason: &str) {
    let end = Instant::now() + Duration::from_secs(10);
    while !server.log().lines().any(|line| line.contains("login refused") && line.contains(reason)) {
        assert!(Instant::now() < end, "{reason} is not in\n{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// SEC-005, SEC-012: the log of the target has the reason, and the initiator sees one status for all of them.
#[test]
fn sec_005_each_fault_has_its_reason_in_the_log() {
    let server = guarded();
    let login = Login::new();
    let portal = server.portal();
    let reflected = |chap: &Chap| {
        let back = [("CHAP_I".into(), "1".into()), ("CHAP_C".into(), hex(&chap.challenge))];
        [proof(chap), back.to_vec()].concat()
    };
    let alone = guarded_without_mutual();
    let refused = |status: u16| assert_eq!(status, 0x0201);
    refused(login.try_on(portal).err().expect("a refusal"));
    refused(Chap::login(&login, portal, 5, "carol", ALICE).err().expect("a refusal"));
    refused(Chap::login(&login, portal, 5, "alice", BOB).err().expect("a refusal"));
    refused(Chap::begin(&login, portal, "99").err().expect("a refusal").status());
    refused(third_step(&server, &reflected).3.status());
    refused(mutual(&alone, "77", &hex(&[0x5a; 16])).1.status());
    for (server, reason) in [
        (&server, "the initiator offers no AuthMethod"),
        (&server, "the CHAP user carol is not allowed"),
        (&server, "wrong secret for the CHAP user alice"),
        (&server, "CHAP_A=99 without an allowed algorithm"),
        (&server, "sends the target's own challenge back"),
        (&alone, "the key `mutual` names no CHAP user"),
    ] {
        says(server, reason);
    }
}

/// SEC-007, LST-011
#[test]
fn sec_007_keys_out_of_step() {
    let server = guarded();
    let steps: [Step; 5] = [
        &|chap| proof(chap)[..1].to_vec(),
        &|chap| proof(chap)[1..].to_vec(),
        &|chap| [proof(chap), vec![("CHAP_C".into(), hex(&[1; 16]))]].concat(),
        &|chap| [proof(chap), vec![("CHAP_I".into(), "1".into())]].concat(),
        &|chap| [proof(chap), vec![("CHAP_A".into(), "5".into())]].concat(),
    ];
    for (i, step) in steps.iter().enumerate() {
        let (mut raw, _, _, answer) = third_step(&server, step);
        assert!(matches!(answer.status(), 0x0200 | 0x0207), "case {i}: {answer:?}");
        raw.expect_close();
    }
    let login = Login::new();
    for early in [("CHAP_R", "0x00112233445566778899aabbccddeeff"), ("CHAP_N", "alice"), ("CHAP_C", "0x01")] {
        let mut raw = login.connect(server.portal());
        assert_eq!(raw.login(&login.clone().key("AuthMethod", "CHAP").request(0, None)).status(), 0);
        let answer = raw.login(&login.empty(0, None).keys(&[early]));
        assert!(matches!(answer.status(), 0x0200 | 0x0207), "{early:?}: {answer:?}");
    }
}

/// SEC-009
#[test]
fn sec_009_chap_cannot_be_skipped() {
    let server = guarded();
    for (csg, nsg) in [(0, 1), (0, 3), (1, 3)] {
        let login = Login::new();
        let mut raw = login.connect(server.portal());
        assert_eq!(raw.login(&login.clone().key("AuthMethod", "CHAP").request(0, None)).status(), 0);
        raw.send(&login.empty(csg, Some(nsg)).exp_stat_sn(raw.exp_stat_sn));
        let answer = raw.recv();
        assert!(answer.status() >> 8 == 2 || csg == 0 && !answer.is_final(), "{csg} to {nsg}: {answer:?}");
        let (mut raw, _) = Chap::begin(&login, server.portal(), "5").expect("a challenge");
        let answer = raw.login(&login.empty(0, Some(nsg)));
        assert!(matches!(answer.status(), 0x0201 | 0x0207 | 0x0200) || !answer.is_final(), "{answer:?}");
    }
}

/// SEC-011
#[test]
fn sec_011_a_reflected_challenge_is_refused() {
    let server = guarded();
    let reflect = |chap: &Chap| {
        let back = [("CHAP_I".into(), chap.identifier.to_string()), ("CHAP_C".into(), hex(&chap.challenge))];
        [proof(chap), back.to_vec()].concat()
    };
    let (mut raw, _, _, answer) = third_step(&server, &reflect);
    assert_eq!(answer.status() >> 8, 2, "{answer:?}");
    raw.expect_close();
    let (_open, other) = Chap::begin(&Login::new(), server.portal(), "5").expect("a challenge");
    let (_, answer) = mutual(&server, &other.identifier.to_string(), &hex(&other.challenge));
    // The challenge of another connection: the target must not send the response that would log in there.
    let back = answer.value("CHAP_R").map(|r| unbinary(&r));
    assert!(answer.status() >> 8 == 2 || back != Some(other.response(ALICE)), "{answer:?}");
}

/// SEC-012, SEC-014, SEC-015
#[test]
fn sec_012_secrets_are_checked_in_the_configuration() {
    let access = "[[target.access]]\nchap = [\"alice\"]\n";
    let (dir, tables) = users(&[("alice", ALICE), ("lunar", ALICE)]);
    let said =
        Server::refused(&dir, &config::with("", "mutual = \"lunar\"", &(access.to_string() + &tables)));
    assert!(said.contains("secret") && !said.contains("alice's secret"), "{said}");
    let (dir, tables) = users(&[("alice", b"eleven byte")]);
    let said = Server::refused(&dir, &config::with("", "", &(access.to_string() + &tables)));
    assert!(said.contains("secret") && !said.contains("eleven"), "{said}");
    let (dir, tables) = users(&[("alice", ALICE)]);
    fs::set_permissions(dir.join("0.secret"), fs::Permissions::from_mode(0o644)).expect("chmod");
    let said = Server::refused(&dir, &config::with("", "", &(access.to_string() + &tables)));
    assert!(said.contains("0.secret"), "{said}");
}

/// SEC-015
#[test]
fn sec_015_a_secret_shared_by_two_users_is_reported() {
    let (dir, tables) = users(&[("alice", ALICE), ("bob", ALICE)]);
    let access = "[[target.access]]\nchap = [\"alice\", \"bob\"]\n";
    let server = Server::start_in(dir, &config::with("", "", &(access.to_string() + &tables)));
    assert!(server.log().contains("secret"), "a warning: {}", server.log());
}

/// SEC-013, KEY-032
#[test]
fn sec_013_binary_secrets_and_odd_names() {
    let server = guarded();
    let long = LONG_NAME.repeat(51);
    assert_eq!(long.len(), 255);
    for (name, secret) in [
        ("binary", &BINARY[..]),
        ("a", b"one-letter user!"),
        (&long, b"long-winded user"),
        ("0xab", b"user with prefix"),
    ] {
        Chap::login(&Login::new(), server.portal(), 5, name, secret).expect(name).ping();
    }
    for name in ["\u{ab}", "ab", "171", "0xAB"] {
        let status = Chap::login(&Login::new(), server.portal(), 5, name, b"user with prefix").err();
        assert_eq!(status, Some(0x0201), "{name}");
    }
}

/// SEC-016
#[test]
fn sec_016_challenges_are_fresh() {
    let server = guarded();
    let portal = server.portal();
    let collect = move || -> Vec<(u8, Vec<u8>)> {
        let one = || Chap::begin(&Login::new(), portal, "5").expect("a challenge").1;
        (0..250).map(|_| one()).map(|c| (c.identifier, c.challenge)).collect()
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(collect)).collect();
    let all: Vec<(u8, Vec<u8>)> = threads.into_iter().flat_map(|t| t.join().expect("a thread")).collect();
    assert!(all.iter().all(|(_, c)| c.len() >= 16));
    assert_eq!(all.iter().map(|(_, c)| c).collect::<HashSet<_>>().len(), 1000, "challenges");
    assert!(all.iter().map(|(i, _)| i).collect::<HashSet<_>>().len() > 64, "identifiers");
    let bits: u32 = all.iter().flat_map(|(_, c)| c).map(|b| b.count_ones()).sum();
    let total: usize = all.iter().map(|(_, c)| c.len() * 8).sum();
    assert!((0.48..0.52).contains(&(bits as f64 / total as f64)), "{bits} of {total} bits are set");
}

/// SEC-017
#[test]
fn sec_017_the_user_must_match_the_initiator() {
    let server = guarded();
    let bobs = Login::new().initiator("iqn.2026-11.org.example:bobs");
    Chap::login(&bobs, server.portal(), 5, "bob", BOB).expect("bob").ping();
    for (login, name, secret) in [(bobs, "alice", ALICE), (Login::new(), "bob", BOB)] {
        let status = Chap::login(&login, server.portal(), 5, name, secret).err();
        assert!(matches!(status, Some(0x0201 | 0x0202)), "{name}: {status:#06x?}");
    }
}

/// SEC-017: discovery has users of its own.
#[test]
fn sec_017_discovery_has_its_own_users() {
    let server = guarded();
    Chap::login(&Login::discovery(), server.portal(), 5, "scout", SCOUT)
        .expect("scout")
        .text(&[("SendTargets", "All")]);
    for (login, name, secret) in [(Login::discovery(), "alice", ALICE), (Login::new(), "scout", SCOUT)] {
        let status = Chap::login(&login, server.portal(), 5, name, secret).err();
        assert!(matches!(status, Some(0x0201 | 0x0202)), "{name}: {status:#06x?}");
    }
    assert_eq!(Login::discovery().try_on(server.portal()).err(), Some(0x0201));
}

/// SEC-018: a login that reinstates a connection or a session must authenticate as the owner. Otherwise, the owner
/// keeps the session.
#[test]
fn sec_018_a_session_is_not_taken_over_by_others() {
    let server = guarded();
    let login = Login::new();
    let mut owner = Chap::login(&login, server.portal(), 5, "alice", ALICE).expect("alice");
    for session in [0, owner.tsih] {
        let again = login.clone().session(session, 0);
        assert_eq!(again.try_on(server.portal()).err(), Some(0x0201), "without CHAP");
        let wrong = Chap::login(&again, server.portal(), 5, "alice", BOB).err();
        assert_eq!(wrong, Some(0x0201), "with a wrong secret");
        owner.ping();
    }
    let other = login.clone().session(owner.tsih, 0);
    let status = Chap::login(&other, server.portal(), 5, "a", b"one-letter user!").err();
    assert!(status.is_some_and(|s| s >> 8 == 2), "another user, same session: {status:#06x?}");
    owner.ping();
    Chap::login(&login.clone().session(owner.tsih, 0), server.portal(), 5, "alice", ALICE)
        .expect("alice again")
        .ping();
}

/// SEC-018: READ FULL STATUS shows the name and ISID of a session to all initiators.
#[test]
fn sec_018_another_user_does_not_replace_a_session() {
    let server = guarded();
    let login = Login::new();
    let as_user = |name: &str, secret: &[u8]| Chap::login(&login, server.portal(), 5, name, secret);
    let mut owner = as_user("alice", ALICE).expect("alice");
    owner.clear_attentions(0);
    reserve_out(&mut owner, 0, 0, 0, 0, 1, 0).good();
    reserve_out(&mut owner, 0, 1, 3, 1, 0, 0).good();
    let mut beside = as_user("a", b"one-letter user!").expect("another user is another initiator port");
    beside.clear_attentions(0);
    assert_eq!(beside.read(0, &read10(0, 1), 512).status, 0x18, "the reservation is not that of this user");
    owner.read_blocks(0, 0, 1);
    let mut again = as_user("alice", ALICE).expect("alice may replace her session");
    owner.expect_close();
    again.clear_attentions(0);
    again.read_blocks(0, 0, 1);
    beside.ping();
    again.logout(0, 0);
    beside.ping();
    as_user("alice", ALICE).expect("alice logs in beside the other user").ping();
    let scout = Login::discovery();
    let mut owner = Chap::login(&scout, server.portal(), 5, "scout", SCOUT).expect("scout");
    let mut beside =
        Chap::login(&scout, server.portal(), 5, "a", b"one-letter user!").expect("a session of its own");
    owner.text(&[("SendTargets", "All")]);
    beside.text(&[("SendTargets", "All")]);
}

/// SEC-020, KEY-039
#[test]
fn sec_020_login_without_methods_gets_chap_or_is_rejected() {
    let server = guarded();
    let login = Login::new();
    let mut raw = login.connect(server.portal());
    let answer = raw.login(&login.request(0, None));
    if answer.status() != 0 {
        assert_eq!(answer.status(), 0x0201);
        return raw.expect_close();
    }
    if let Some(offer) = answer.value("AuthMethod") {
        assert_eq!(offer, "CHAP", "no private method, no None");
        let answer = raw.login(&login.empty(0, None).keys(&[("AuthMethod", "CHAP"), ("CHAP_A", "5")]));
        let keys = [("CHAP_N", "alice"), ("CHAP_R", &hex(&Chap::read(&answer).response(ALICE)))];
        login.finish(&mut raw, login.empty(0, Some(1)).keys(&keys)).expect("a login");
        return raw.ping();
    }
    let status = login.finish(&mut raw, login.empty(0, Some(1))).err();
    assert_eq!(status, Some(0x0201));
}

/// SEC-023, KEY-028
#[test]
fn sec_023_methods_that_are_not_there_are_skipped() {
    let server = guarded();
    for (offer, chosen) in
        [("KRB5,SRP,CHAP,None", "CHAP"), ("Z-com.example.x,CHAP", "CHAP"), ("None,CHAP", "CHAP")]
    {
        let login = Login::new().key("AuthMethod", offer);
        let answer = login.connect(server.portal()).login(&login.request(0, None));
        assert_eq!((answer.status(), answer.value("AuthMethod").as_deref()), (0, Some(chosen)), "{offer}");
    }
    for offer in ["KRB5", "SRP", "None", "KRB5,SRP"] {
        let login = Login::new().key("AuthMethod", offer);
        let answer = login.connect(server.portal()).login(&login.request(0, None));
        assert!(
            answer.status() == 0x0201 || answer.value("AuthMethod").as_deref() == Some("Reject"),
            "{answer:?}"
        );
    }
    let open = shared();
    let login = Login::new().key("AuthMethod", "KRB5,CHAP,None");
    let answer = login.connect(open.portal()).login(&login.request(0, Some(1)));
    assert!(matches!(answer.value("AuthMethod").as_deref(), Some("CHAP" | "None")), "{answer:?}");
}

/// KEY-030, KEY-031
#[test]
fn key_030_identifiers_and_challenges() {
    let server = guarded();
    for (identifier, fine) in
        [("0", true), ("255", true), ("256", false), ("abc", false), ("", false), ("-1", false)]
    {
        let (_, answer) = mutual(&server, identifier, &hex(&[9; 16]));
        assert!(
            fine == (answer.status() == 0) && (fine || answer.status() >> 8 == 2),
            "{identifier}: {answer:?}"
        );
    }
    for (length, fine) in [(1, true), (16, true), (1024, true), (1025, false)] {
        for text in [hex(&vec![7; length]), base64(&vec![7; length])] {
            let (_, answer) = mutual(&server, "3", &text);
            assert!(
                fine == (answer.status() == 0) && (fine || answer.status() >> 8 == 2),
                "{length}: {answer:?}"
            );
            if fine {
                let back = unbinary(&answer.value("CHAP_R").expect("CHAP_R"));
                assert_eq!(back, response(5, 3, LUNAR, &vec![7; length]), "{text}");
            }
        }
    }
}

/// KEY-033, NEG-008
#[test]
fn key_033_responses_in_hex_and_base64() {
    let server = guarded();
    let upper = |bytes: &[u8]| format!("0x{}", hex(bytes)[2..].to_uppercase());
    let capital = |bytes: &[u8]| format!("0X{}", &hex(bytes)[2..]);
    let big_base64 = |bytes: &[u8]| format!("0B{}", &base64(bytes)[2..]);
    let right: [Encode; 5] = [&hex, &base64, &upper, &capital, &big_base64];
    for (i, encode) in right.iter().enumerate() {
        let keys =
            |chap: &Chap| vec![proof(chap)[0].clone(), ("CHAP_R".into(), encode(&chap.response(ALICE)))];
        let (_, _, _, answer) = third_step(&server, &keys);
        assert_eq!(answer.status(), 0, "encoding {i}");
    }
    let wrong: [Encode; 8] = [
        &|r| hex(&r[..15]),
        &|r| hex(&[r, &[0]].concat()),
        &|r| hex(&[r, &[0; 1009]].concat()),
        &|r| base64(&[r, &[0; 1009]].concat()),
        &|r| format!("0x{}", &hex(r)[3..]),
        &|_| "12345678901234567890".into(),
        &|_| "0x".into(),
        &|_| "0bzz*z".into(),
    ];
    for (i, encode) in wrong.iter().enumerate() {
        let keys =
            |chap: &Chap| vec![proof(chap)[0].clone(), ("CHAP_R".into(), encode(&chap.response(ALICE)))];
        let (mut raw, _, chap, answer) = third_step(&server, &keys);
        let leading_zero = i == 4 && chap.response(ALICE)[0] < 16;
        assert!(matches!(answer.status(), 0x0200 | 0x0201) || leading_zero, "case {i}: {answer:?}");
        if !leading_zero {
            raw.expect_close();
        }
    }
}

/// Another request in the middle of CHAP ends the login.
#[test]
fn sec_007_a_command_in_the_middle_of_chap() {
    let server = guarded();
    let (mut raw, _) = Chap::begin(&Login::new(), server.portal(), "5").expect("a challenge");
    match raw.outcome(&Pdu::new(op::SCSI | 0x40).itt(9)) {
        PduOutcome::Answered(answer) => {
            assert_eq!((answer.opcode(), answer.status()), (op::LOGIN_RESPONSE, 0x020b))
        }
        other => other.refused(&[]),
    }
}
