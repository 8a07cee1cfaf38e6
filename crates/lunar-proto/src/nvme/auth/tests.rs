//! Both roles against each other, and vectors that were computed by other programs.

use super::group::DhKey;
use super::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:12345678-1234-1234-1234-123456789abc";
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR";

fn names() -> AuthNames {
    let name = |text| Nqn::new(text).expect("valid");
    AuthNames { host: name(HOST), subsystem: name("nqn.2026-11.org.example:disks") }
}

fn secret(id: &str) -> DhChapSecret {
    DhChapSecret::parse(&format!("DHHC-1:{id}:{KEY}:")).expect("valid")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn secret_has_a_hash_a_key_and_a_check_sum() {
    for id in ["00", "01", "02", "03"] {
        assert_eq!(*secret(id).to_text(), format!("DHHC-1:{id}:{KEY}:"));
    }
    assert_eq!(format!("{:?}", secret("00")), "DhChapSecret(32 bytes)");
    for (text, fault) in [
        (String::new(), "form"),
        (format!("DHHC-1:00:{KEY}"), "form"),
        (format!("DHHC-2:00:{KEY}:"), "form"),
        (format!("DHHC-1:04:{KEY}:"), "00, 01, 02 or 03"),
        ("DHHC-1:00:!:".into(), "base64"),
        ("DHHC-1:00:AAEC:".into(), "form"),
        ("DHHC-1:00:AAECAwQFBgc=:".into(), "32, 48 or 64"),
        (format!("DHHC-1:00:{}:", KEY.replace("AAEC", "AAED")), "check sum"),
    ] {
        let e = DhChapSecret::parse(&text).expect_err(&text);
        assert!(e.to_string().contains(fault), "{text}: {e}");
    }
    for (hash, len) in [(None, 32), (Some(DhChapHash::Sha384), 48), (Some(DhChapHash::Sha512), 64)] {
        let made = DhChapSecret::generate(hash).expect("random numbers");
        assert_eq!(DhChapSecret::parse(&made.to_text()), Ok(made.clone()));
        assert_eq!(format!("{made:?}"), format!("DhChapSecret({len} bytes)"));
    }
    let made = DhChapSecret::generate_with_len(None, 64).expect("random numbers");
    assert_eq!(format!("{made:?}"), "DhChapSecret(64 bytes)");
    for (hash, len) in [(None, 33), (None, 0), (Some(DhChapHash::Sha256), 48)] {
        let fault = DhChapSecret::generate_with_len(hash, len).expect_err("a wrong length");
        assert_eq!(fault.kind(), std::io::ErrorKind::InvalidInput, "{hash:?} {len}");
    }
}

#[test]
fn responses_are_those_of_another_program() {
    let (names, key) = (names(), secret("01").key_of(&names().host));
    assert_eq!(hex(&key), "be9ab7edfb82ddd5e5ac574178bde5e79ad95f97eb94f2c02fa5e2594701b362");
    let response = Response {
        hash: DhChapHash::Sha256,
        key: &key,
        challenge: &[7; 32],
        shared: None,
        sequence: 0x0102_0304,
        transaction: 5,
    };
    let expected = "ab50b08faf18a6c4205d29678c93a9a3c3d4aa2b8d820cd82d1f21b609dfe815";
    assert_eq!(hex(&response.of_host(&names)), expected);
    let [x, y] = [0x11, 0x22].map(|byte| DhKey::of(DhGroup::Ffdhe2048, &[byte; 64]));
    let digest = |bytes: &[u8]| hex(&DhChapHash::Sha256.digest(bytes));
    assert_eq!(digest(&x.public), "e9e21a424097073148c9248310b99206574755a4778e801b7b82feb1e7d51269");
    let shared = x.shared(&y.public).expect("valid").expect("a group");
    assert_eq!(digest(&shared), "cd1e876da2686813dd5ed662229427fcc05862469b0c73532f79872ba486bd74");
    let key = secret("00").key_of(&names.subsystem);
    let response = Response {
        hash: DhChapHash::Sha384,
        key: &key,
        challenge: &[7; 48],
        shared: Some(&shared),
        ..response
    };
    let expected = "b0046abefc55949b04a40ba1d03f804011f878c629b8c0dd0cca6cb32f9bbe93\
                    3990bd3cc6de65c9ba9fce45b0aa35c0";
    assert_eq!(hex(&response.of_controller(&names)), expected);
}

#[test]
fn public_keys_that_make_the_secret_known_are_refused() {
    let key = DhKey::of(DhGroup::Ffdhe2048, &[3; 64]);
    let number = |last: u8| [&[0; 255][..], &[last]].concat();
    // The prime ends with 64 ones.
    let less_one = |key: &DhKey| {
        let mut bytes = key.group_prime();
        bytes[255] -= 1;
        bytes
    };
    for public in
        [number(0), number(1), less_one(&key), key.group_prime(), vec![0xff; 256], vec![2; 255], vec![]]
    {
        assert_eq!(
            key.shared(&public).map(drop),
            Err(AuthFailure::INVALID_PAYLOAD),
            "{} bytes",
            public.len()
        );
    }
    assert!(key.shared(&number(2)).is_ok());
    assert_eq!(DhKey::of(DhGroup::Null, &[3; 64]).shared(&[]).map(|shared| shared.is_none()), Ok(true));
}

fn controller(secrets: AuthSecrets) -> ControllerAuth {
    ControllerAuth::new(names(), secrets)
}

fn secrets(hash: DhChapHash, group: DhGroup) -> AuthSecrets {
    let (host, subsystem) = (secret("01"), Some(secret("00")));
    AuthSecrets { host, subsystem, hashes: vec![hash], groups: vec![group] }
}

/// A failure, and the secret that is its reason.
type FailedSide = (AuthFailure, Option<MismatchedSecret>);

/// Runs an exchange. The results of host and controller.
fn exchange(host: (HostAuth, Vec<u8>), it: &mut ControllerAuth) -> Result<(), [FailedSide; 2]> {
    let (mut host, mut message) = host;
    loop {
        it.receive(&message);
        if it.is_done() && host.is_done() {
            return Ok(());
        }
        let answer = it.message().expect("a message");
        match host.receive(&answer) {
            Ok(Some(next)) => message = next,
            Ok(None) => {
                assert!(host.is_done() && it.is_done());
                return Ok(());
            }
            Err(failure) => {
                let report = host.report(failure);
                assert_eq!(report.is_none(), it.failure().is_some(), "a failure is reported once");
                if let Some(report) = report {
                    it.receive(&report);
                }
                let other = (it.failure().expect("both have failed"), it.mismatch());
                return Err([(failure, host.mismatch()), other]);
            }
        }
    }
}

#[test]
fn both_roles_agree_with_each_hash_and_group() {
    let groups = [DhGroup::Null, DhGroup::Ffdhe2048, DhGroup::Ffdhe3072];
    for (hash, group) in DhChapHash::ALL.into_iter().flat_map(|hash| groups.map(|group| (hash, group))) {
        for subsystem in [None, Some(secret("00"))] {
            let host = HostAuth::new(names(), AuthSecrets::new(secret("01"), subsystem), 9);
            let mut it = controller(secrets(hash, group));
            assert_eq!(exchange(host, &mut it), Ok(()), "{hash:?} {group:?}");
        }
    }
}

#[test]
fn wrong_secret_of_either_side_fails_both_and_is_named() {
    use MismatchedSecret::{Either, Host, NoSubsystem, Subsystem};
    let all = secrets(DhChapHash::Sha256, DhGroup::Null);
    let alone = AuthSecrets { subsystem: None, ..all.clone() };
    for (host, subsystem, own, by_host, by_controller) in [
        ("02", None, &all, Host, Host),
        ("02", Some("00"), &all, Either, Host),
        ("01", Some("03"), &all, Subsystem, Subsystem),
        ("01", Some("00"), &alone, Either, NoSubsystem),
    ] {
        let host = HostAuth::new(names(), AuthSecrets::new(secret(host), subsystem.map(secret)), 1);
        let failed = [by_host, by_controller].map(|mismatch| (AuthFailure::FAILED, Some(mismatch)));
        assert_eq!(exchange(host, &mut controller(own.clone())), Err(failed));
    }
}

#[test]
fn offers_without_a_common_choice_fail() {
    let negotiate = |concatenates, hashes: &[u8], groups: &[u8]| {
        let (hashes, groups) = (hashes.into(), groups.into());
        AuthMessage::Negotiate { concatenates, hashes, groups }.encode(4)
    };
    for (message, failure) in [
        (negotiate(true, &[1], &[0]), AuthFailure::CONCATENATION),
        (negotiate(false, &[], &[0]), AuthFailure::PROTOCOL),
        (negotiate(false, &[3, 9], &[0]), AuthFailure::HASH),
        (negotiate(false, &[1], &[1, 2]), AuthFailure::GROUP),
        (vec![0; 7], AuthFailure::INVALID_PAYLOAD),
        (AuthMessage::Success2.encode(0), AuthFailure::INVALID_MESSAGE),
    ] {
        let mut it = controller(secrets(DhChapHash::Sha256, DhGroup::Null));
        it.receive(&message);
        let report = AuthMessage::decode(&it.message().expect("a report")).expect("valid").1;
        assert_eq!((report, it.failure()), (AuthMessage::Failure1(failure), Some(failure)));
        assert_eq!(it.message(), None);
    }
}

/// A host that sends the challenge of the controller as its own would receive the response that it must give.
#[test]
fn reflected_challenge_gets_no_response() {
    let mut it = controller(secrets(DhChapHash::Sha256, DhGroup::Null));
    let (_, negotiate) = HostAuth::new(names(), AuthSecrets::new(secret("01"), None), 1);
    it.receive(&negotiate);
    let challenge = it.message().expect("a challenge");
    let Some((_, AuthMessage::Challenge { sequence, challenge, .. })) = AuthMessage::decode(&challenge)
    else {
        panic!("a challenge");
    };
    let key = secret("01").key_of(&names().host);
    let response = Response {
        hash: DhChapHash::Sha256,
        key: &key,
        challenge: &challenge,
        shared: None,
        sequence,
        transaction: 1,
    };
    let response = response.of_host(&names()).to_vec();
    let reply = AuthMessage::Reply { sequence, response, challenge: Some(challenge), public: Vec::new() };
    it.receive(&reply.encode(1));
    assert!(it.message().is_some());
    assert_eq!(it.failure(), Some(AuthFailure::FAILED));
}

#[test]
fn reply_needs_a_challenge_and_its_transaction() {
    let reply =
        AuthMessage::Reply { sequence: 0, response: vec![0; 32], challenge: None, public: Vec::new() };
    let mut it = controller(secrets(DhChapHash::Sha256, DhGroup::Null));
    it.receive(&reply.encode(0));
    it.message();
    assert_eq!(it.failure(), Some(AuthFailure::INVALID_MESSAGE));
    let mut it = controller(secrets(DhChapHash::Sha256, DhGroup::Null));
    let (_, negotiate) = HostAuth::new(names(), AuthSecrets::new(secret("01"), None), 1);
    it.receive(&negotiate);
    it.message();
    it.receive(&reply.encode(2));
    it.message();
    assert_eq!(it.failure(), Some(AuthFailure::INVALID_PAYLOAD));
}

#[test]
fn messages_keep_their_content() {
    let (response, challenge, public) = (vec![1; 32], vec![2; 32], vec![3; 256]);
    for (message, len) in [
        (AuthMessage::Negotiate { concatenates: false, hashes: vec![1, 2], groups: vec![0] }, 72),
        (AuthMessage::Challenge { hash: 1, group: 1, sequence: 7, challenge, public: public.clone() }, 304),
        (AuthMessage::Reply { sequence: 0, response: response.clone(), challenge: None, public }, 336),
        (AuthMessage::Success1 { digest_len: 32, response: Some(response) }, 48),
        (AuthMessage::Success1 { digest_len: 32, response: None }, 16),
        (AuthMessage::Success2, 16),
        (AuthMessage::Failure1(AuthFailure::HASH), 8),
        (AuthMessage::Failure2(AuthFailure::FAILED), 8),
    ] {
        let bytes = message.encode(0x0201);
        assert_eq!((bytes.len(), &bytes[4..6]), (len, &[1, 2][..]), "{message:?}");
        for cut in 0..bytes.len() {
            assert!(AuthMessage::decode(&bytes[..cut]).is_none() || cut >= 8, "{message:?} {cut}");
        }
        assert_eq!(AuthMessage::decode(&bytes), Some((0x0201, message)));
    }
}

#[test]
fn challenge_with_another_hash_or_group_fails_the_host() {
    for (hash, group, failure) in
        [(2, 0, AuthFailure::HASH), (1, 2, AuthFailure::GROUP), (9, 9, AuthFailure::HASH)]
    {
        let (mut host, _) = HostAuth::new(names(), secrets(DhChapHash::Sha256, DhGroup::Null), 1);
        let (challenge, public) = (vec![1; 32], Vec::new());
        let message = AuthMessage::Challenge { hash, group, sequence: 1, challenge, public };
        assert_eq!(host.receive(&message.encode(1)), Err(failure));
    }
}

/// Linux refuses the result of an exchange in one direction whose length is not that of the hash.
#[test]
fn success_has_the_digest_length_without_a_response() {
    let mut it = controller(secrets(DhChapHash::Sha384, DhGroup::Null));
    let (mut host, negotiate) = HostAuth::new(names(), AuthSecrets::new(secret("01"), None), 1);
    it.receive(&negotiate);
    let challenge = it.message().expect("a challenge");
    let reply = host.receive(&challenge).expect("no failure").expect("a reply");
    it.receive(&reply);
    let success = it.message().expect("the result");
    assert_eq!((&success[..2], success[6], success[8]), (&[1, 3][..], 48, 0));
}
