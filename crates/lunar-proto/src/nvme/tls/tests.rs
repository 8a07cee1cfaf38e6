//! Text forms, and vectors that were computed with the HKDF and the HMAC of OpenSSL.
//!
//! With the names of the tests of libnvme 1.16, the derivation makes the identities that those expect, for both hashes and
//! both forms of labels. Those names are no NQNs, so they cannot be used here.

use super::*;
use crate::nvme::auth::AuthNames;
use lunar_wire::nvme::Nqn;

/// Keys of 32 and of 48 bytes. `nvme check-tls-key` accepts both.
const SHORT: &str = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ";
const LONG: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==";
/// Keys that `nvme gen-tls-key` made.
const FOREIGN: [&str; 2] = [
    "NVMeTLSkey-1:01:q+4+GM48c3sP+lS/3xXwayu9WcxQ6ts0GcD7uU2qFF0N4I+A:",
    "NVMeTLSkey-1:02:EWJUDlY/VLcL/teX42C8yeQCHomJ3spdQX99kYln5ES711/lijisqK+aOwWaEPoAfZFfFw==:",
];
const NAMES: &str = "nqn.2026-11.org.example:h nqn.2026-11.org.example:s";

fn names(host: &str, subsystem: &str) -> AuthNames {
    let name = |text| Nqn::new(text).expect("valid");
    AuthNames { host: name(host), subsystem: name(subsystem) }
}

fn key(id: &str) -> TlsKey {
    let text = if id == "02" { LONG } else { SHORT };
    TlsKey::parse(&format!("NVMeTLSkey-1:{id}:{text}:")).expect("valid")
}

#[test]
fn tls_key_has_a_hash_a_key_and_a_check_sum() {
    for (id, key) in [("00", SHORT), ("00", LONG), ("01", SHORT), ("02", LONG)] {
        let text = format!("NVMeTLSkey-1:{id}:{key}:");
        assert_eq!(*TlsKey::parse(&text).expect(&text).to_text(), text);
        assert!(TlsKey::parse(&format!("{text}\n")).is_ok(), "the end of a line in a file");
    }
    for text in FOREIGN {
        assert_eq!(*TlsKey::parse(text).expect(text).to_text(), text);
    }
    for (text, fault) in [
        (String::new(), "form"),
        (format!("NVMeTLSkey-1:01:{SHORT}"), "form"),
        (format!("NVMeTLSkey-2:01:{SHORT}:"), "form"),
        (format!("DHHC-1:01:{SHORT}:"), "form"),
        (format!("NVMeTLSkey-1:03:{SHORT}:"), "00, 01 or 02"),
        (format!("NVMeTLSkey-1:1:{SHORT}:"), "00, 01 or 02"),
        (format!("NVMeTLSkey-1:02:{SHORT}:"), "digest of its hash"),
        (format!("NVMeTLSkey-1:01:{LONG}:"), "digest of its hash"),
        ("NVMeTLSkey-1:01:!:".into(), "base64"),
        ("NVMeTLSkey-1:01:AAEC:".into(), "form"),
        ("NVMeTLSkey-1:01:AAECAwQFBgc=:".into(), "32 or 48"),
        (format!("NVMeTLSkey-1:01:{}:", SHORT.replace("VRLb", "VRLa")), "check sum"),
    ] {
        let e = TlsKey::parse(&text).expect_err(&text);
        assert!(e.to_string().contains(fault), "{text}: {e}");
    }
}

#[test]
fn generated_tls_keys_differ_and_hide_in_logs() {
    for (hash, len) in [(TlsKeyHash::Sha256, 65), (TlsKeyHash::Sha384, 89)] {
        let [one, other] = [(); 2].map(|()| TlsKey::generate(hash).expect("random numbers"));
        assert_ne!(one, other);
        assert_eq!(TlsKey::parse(&one.to_text()), Ok(one.clone()));
        assert_eq!((one.to_text().len(), format!("{one:?}")), (len, format!("TlsKey({hash:?})")));
    }
}

#[test]
fn psk_and_identity_are_those_of_openssl() {
    let names = names("nqn.2026-11.org.example:h", "nqn.2026-11.org.example:s");
    for (id, version, identity, secret) in [
        (
            "00",
            TlsPskVersion::Zero,
            format!("NVMe0R01 {NAMES}"),
            "6c394c3238defe5cf37e920ff82015b300dd163a10d20b05d3818bc10d7528f9",
        ),
        (
            "01",
            TlsPskVersion::Zero,
            format!("NVMe0R01 {NAMES}"),
            "3958cecd950a563aefac976f148f13f37f59b171ab5c9d914af9dc97892a5922",
        ),
        (
            "01",
            TlsPskVersion::One,
            format!("NVMe1R01 {NAMES} U4dC6PKhFebJXE1vZDCjJLtZkkMefLTfpm8UgkLy1uw="),
            "2edada76115bb9720d5d803394b4f03eeaeb089adfd7d0ba9a0aa88f4f552c9b",
        ),
        (
            "02",
            TlsPskVersion::One,
            format!("NVMe1R02 {NAMES} CxYuABjZJOoCdKikuAYo8BOtm/V8KIqYjAxzu/AWFe/1ENreFSX/JKg0kYacipSW"),
            "32cfae0a2c4c71fff99d20468e1804c524f16a269dc9743bf604a2847dbb31a3\
             cbe5c5ae2c8e3ba07f4c2c5c0b766305",
        ),
    ] {
        let psk = key(id).psk(&names, version).expect("a PSK");
        assert_eq!((&psk.identity, hex(&psk.secret).as_str()), (&identity, secret));
        assert_eq!(format!("{psk:?}"), format!("TlsPsk({identity})"));
    }
}

/// The vectors follow libnvme before 1.16. Its own tests confirm the same computation for other names.
#[test]
fn psk_of_an_older_libnvme_has_other_labels() {
    let names = names("nqn.2026-11.org.example:h", "nqn.2026-11.org.example:s");
    for (version, identity, secret) in [
        (
            TlsPskVersion::Zero,
            format!("NVMe0R01 {NAMES}"),
            "a719a99d6830eb8b401dce0a45798500b4da4ffbe14f666549fdeb3611902de8",
        ),
        (
            TlsPskVersion::One,
            format!("NVMe1R01 {NAMES} YYUoSQaznxepAsyKOnj6fm2OhLrzdKy36mh3uKO39Io="),
            "338044b329705b656f66e2c11f8de6857dfdc38951165610997a0865442a80f3",
        ),
    ] {
        let psk = key("01").psk_with(TlsKeyLabels::Libnvme115, &names, version).expect("a PSK");
        assert_eq!((psk.identity.as_str(), hex(&psk.secret).as_str()), (identity.as_str(), secret));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn names_with_blanks_or_without_room_have_no_psk() {
    let key = key("01");
    for (host, subsystem) in [("a b", "c"), ("a", "b c")] {
        let [host, subsystem] = [host, subsystem].map(|name| format!("nqn.2026-11.org.example:{name}"));
        let fault = key.psk(&names(&host, &subsystem), TlsPskVersion::One).expect_err("a blank");
        assert!(fault.to_string().contains("blank"), "{fault}");
    }
    let long = format!("nqn.2026-11.org.example:{}", "x".repeat(199));
    let names = names(&long, &long);
    let fault = key.psk(&names, TlsPskVersion::Zero).expect_err("no room");
    assert!(fault.to_string().contains("too long for version 0"), "{fault}");
    assert!(key.psk(&names, TlsPskVersion::One).is_ok());
}
