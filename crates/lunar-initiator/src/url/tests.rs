use super::*;
use crate::ErrorCode;
use crate::LateWrites;
use lunar_proto::parameters::AllowedDigests;
use std::time::Duration;

fn url(text: &str) -> Url {
    Url::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn error(text: &str) -> String {
    let e = Url::parse(text).expect_err(text);
    assert_eq!(e.code, ErrorCode::InvalidArgument);
    format!("{}; {}", e.what, e.hint.as_ref().expect("a hint"))
}

#[test]
fn url_with_portal_target_or_lun_parses() {
    let u = url("iscsi://10.0.0.1:3261/iqn.2026-11.org.example:a/7");
    assert_eq!((u.portal.to_string().as_str(), u.lun), ("10.0.0.1:3261", Some(7)));
    assert_eq!(u.target.as_deref(), Some("iqn.2026-11.org.example:a"));
    let u = url("iscsi://[fe80::1]/iqn.2026-11.org.example:a");
    assert_eq!((u.portal.host.as_str(), u.portal.port, u.lun), ("fe80::1", 3260, None));
    let u = url("ISCSI://[fe80::1%lo]:3261/iqn.2026-11.org.example:a/7/");
    assert_eq!(u.to_string(), "iscsi://[fe80::1%lo]:3261/iqn.2026-11.org.example:a/7");
    assert_eq!(
        url("iscsi://h/a disk,b/0").to_string(),
        "iscsi://h:3260/a%20disk,b/0",
        "a non-standard target name is accepted"
    );
    for text in ["iscsi://host", "iscsi://host/", "iscsi://host:3260,1"] {
        let u = url(text);
        assert_eq!((u.portal.to_string().as_str(), u.target), ("host:3260", None), "{text}");
    }
}

#[test]
fn users_and_passwords_in_both_forms() {
    let who = |text: &str| {
        let u = url(text);
        (u.user.unwrap_or_default(), u.password.unwrap_or_default())
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(who("iscsi://ann%secret@h"), pair("ann", "secret"));
    assert_eq!(
        who("iscsi://ann%se%63:t/@h"),
        pair("ann", "se%63:t/"),
        "as in libiscsi, the rest is taken literally"
    );
    assert_eq!(who("iscsi://ann:s%40%2fx%25@h"), pair("ann", "s@/x%"));
    assert_eq!(who("iscsi://a%3ann:x@h"), pair("a", "3ann:x"), "the percent sign comes first");
    assert_eq!(who("iscsi://ann@h"), pair("ann", ""));
    assert!(error("iscsi://ann:100%@h").contains("%25"));
}

#[test]
fn invalid_url_error_has_a_hint() {
    for (text, part) in [
        ("http://ann:secret@h/x?password=y", "\"http://h/x\" is not a URL of iSCSI, iSER, SRP or NVMe"),
        ("iscssi://ann%secret@h/x", "\"iscssi://h/x\" has an unknown scheme"),
        ("iscsi://h\n", "\"iscsi://h\\n\" contains control"),
        ("iscsi://", "invalid host name or address"),
        ("iscsi://h:0/iqn.2026-11.org.example:a", "the port \"0\" is out of range: use 1 to 65535"),
        ("iscsi://h:99999", "the port \"99999\" is out of range: use 1 to 65535"),
        ("iscsi://h:x", "the port \"x\" is not a number: use 1 to 65535"),
        ("iscsi://a b/x", "invalid host name or address \"a b\""),
        ("iscsi://::1/iqn.2026-11.org.example:a", "brackets"),
        ("iscsi://h/disk%0A/0", "percent"),
        (&format!("iscsi://h/{}/0", "a".repeat(224)), "not a target name"),
        ("iscsi://h//0", "not a target name"),
        ("iscsi://h/iqn.2026-11.org.example:a/x", "not a LUN"),
        ("iscsi://h/iqn.2026-11.org.example:a/16384", "not a LUN"),
        ("iscsi://h/iqn.2026-11.org.example:a/1/2", "not a LUN"),
        ("iscsi://h/iqn.2026-11.org.example%zz", "percent"),
        ("iscsi://h?header_digets=none", "did you mean header_digest?"),
        ("iscsi://h?colour=red", "docs/use.md"),
        ("iscsi://h?commands=1&commands=2", "twice"),
        ("iscsi://h?commands=0", "1 to 4096"),
        ("iscsi://h?initial_r2t=maybe", "yes or no"),
        ("iscsi://h?max_burst_length=511", "512 to 16777215"),
        ("iscsi://h?max_burst_length=64X", "512 to 16777215"),
        ("iscsi://h?login_timeout=0", "1ms to 30d"),
        ("iscsi://h?login_timeout=inf", "is not a time; write seconds"),
        ("iscsi://h?login_timeout=5x", "\"5x\" is not a time; write seconds"),
        ("iscsi://h?data_digest=md5", "crc32c"),
        ("iscsi://h?auth=rot13", "sha3-256"),
        ("iscsi://h?error_recovery_level=1", "must be 0"),
        ("iscsi://h?target_user=", "value is empty"),
        ("iscsi://h?late_writes=never", "wait or risk"),
    ] {
        assert!(error(text).contains(part), "{text}: {}", error(text));
    }
    assert!(Url::parse(&format!("iscsi://h?x={}", "y".repeat(9000))).is_err());
}

#[test]
fn settings_go_where_they_belong() {
    let u = url("iscsi://h?header_digest=crc32c&data_digest=none&initial_r2t=Yes&immediate_data=no&\
         first_burst_length=4096&login_timeout=1.5&noop_interval=0&transition_timeout=0&login_tries=1&commands=7&auth=sha-256,md5&isid=0x80aB00000001&late_writes=risk");
    let s = &u.settings;
    assert_eq!(s.offer.header_digest, AllowedDigests { none: false, crc32c: true });
    assert_eq!((s.offer.initial_r2t, s.offer.immediate_data), (true, false));
    assert_eq!((s.offer.first_burst_length, s.commands, s.timeouts.login_tries), (4096, 7, 1));
    assert_eq!((s.timeouts.login, s.timeouts.noop_interval), (Duration::from_millis(1500), Duration::ZERO));
    assert_eq!(s.timeouts.transition, Some(Duration::ZERO));
    assert_eq!(s.algorithms, [Algorithm::Sha256, Algorithm::Md5]);
    assert_eq!((s.late_writes, defaults().late_writes), (LateWrites::Risk, LateWrites::Wait));
    assert_eq!(s.isid, Some([0x80, 0xab, 0, 0, 0, 1]));
}

/// All time settings accept the same formats, and reject others with the same message.
#[test]
fn every_time_of_a_url_takes_the_same_forms() {
    let times = settings::TABLE.iter().filter(|row| row.is_time()).map(|row| row.name);
    let named = |name: &&str| name.ends_with("_timeout") || name.ends_with("_interval");
    let expected = settings::TABLE.iter().map(|row| row.name).filter(named);
    assert!(times.clone().eq(expected), "keys named like times must be times");
    let refusal = lunar_proto::duration::any("5x").expect_err("an invalid time");
    for key in times {
        for value in ["5", "5s", "500ms", "2m", "0.5"] {
            url(&format!("iscsi://h?{key}={value}"));
        }
        let said = error(&format!("iscsi://h?{key}=5x"));
        assert_eq!(said, format!("{key}=5x in the URL: {}; {}", refusal.what, refusal.hint));
    }
}

/// Every row must have a valid value in this list.
#[test]
fn every_setting_can_be_set() {
    for row in settings::TABLE {
        let works = |value: &&str| row.set(&mut defaults(), value).is_ok();
        let values = [
            "yes",
            "1",
            "0",
            "600",
            "4096",
            "none",
            "ResponseFence",
            "md5",
            "800000000001",
            "0000000000000001",
            "iwarp",
            "risk",
        ];
        assert!(values.iter().any(works), "{}", row.name);
        assert!(row.set(&mut defaults(), "").is_err(), "{}", row.name);
    }
}

#[test]
fn no_secret_is_shown_and_the_rest_can_be_read_again() {
    for (text, shown) in [
        (
            "iscsi://ann%hush@h/iqn.2026-11.org.example:a/1?target_user=t&target_password=hush&commands=9",
            "iscsi://ann@h:3260/iqn.2026-11.org.example:a/1?target_user=t&commands=9",
        ),
        ("iscsi://a/b:hush@[::1]", "iscsi://a/b@[::1]:3260"),
        ("iscsi://h?password_file=/a%20b%26", "iscsi://h:3260?password_file=/a%20b%26"),
    ] {
        let u = url(text);
        assert_eq!(u.to_string(), shown);
        assert_eq!(url(shown).to_string(), shown);
        assert_eq!(format!("{u:?}"), format!("Url({shown})"));
    }
    let u = url("iscsi://ann%hush@h?commands=9").at("iqn.2026-11.org.example:b", Some(3));
    assert_eq!(u.plain(), "iscsi://h:3260/iqn.2026-11.org.example:b/3");
    assert_eq!(u.password.as_deref(), Some("hush"), "the credentials are kept");
}

#[test]
fn srp_names_a_target_port_by_its_halves() {
    const FULL: &str = "srp://h:5555/0002c90300a0b0c0:0002c90300a0b0c1/7";
    let u = url(FULL);
    assert_eq!((u.transport, u.portal.port, u.lun), (Transport::Srp, 5555, Some(7)));
    assert_eq!(u.target.as_deref(), Some("0002c90300a0b0c0:0002c90300a0b0c1"));
    for (text, shown) in [
        ("SRP://h/0002C90300A0B0C0:0002c90300a0b0c1/7/", FULL),
        ("srp://[::1]/0002c90300a0b0c0", "srp://[::1]:5555/0002c90300a0b0c0:0002c90300a0b0c0"),
        ("srp://[::1]:3260/0002c90300a0b0c0", "srp://[::1]:3260/0002c90300a0b0c0:0002c90300a0b0c0"),
        ("srp://10.0.0.1:1", "srp://10.0.0.1:1"),
        (
            "srp://h/0002c90300a0b0c0/0?initiator_ext=00000000000000aB&commands=9",
            "srp://h:5555/0002c90300a0b0c0:0002c90300a0b0c0/0?initiator_ext=00000000000000aB&commands=9",
        ),
    ] {
        assert_eq!(url(text).to_string(), shown);
        assert_eq!(url(shown).to_string(), shown);
    }
    assert_eq!(url("srp://h").at("0002c90300a0b0c0:0002c90300a0b0c1", Some(7)).to_string(), FULL);
}

#[test]
fn our_port_over_srp_is_what_the_url_says() {
    let u = url("srp://h/0002c90300a0b0c0?initiator_ext=00000000000000ab&initiator_guid=0102030405060708");
    let options = u.options().unwrap();
    assert_eq!(options.srp_port([9; 6]).to_string(), "0x00000000000000ab0102030405060708");
    let options = url("srp://h/0002c90300a0b0c0?initiator=iqn.2026-11.org.example:a").options().unwrap();
    let (one, two) = (options.srp_port([1; 6]), options.srp_port([2; 6]));
    assert!(one.extension() != two.extension() && one.guid() == two.guid());
}

#[test]
fn srp_url_with_iscsi_keys_is_an_error() {
    for (text, part) in [
        ("srp://h/iqn.2026-11.org.example:a", "ID_EXT[:IOC_GUID]"),
        ("srp://h/0002c90300a0b0c", "must have 16 hexadecimal digits, and has 15"),
        ("srp://h/0002c90300a0b0c0:1/0", "write the leading zeros: 0000000000000001"),
        ("srp://h/0002c90300a0b0c0:x/0", "each of 16 hexadecimal digits"),
        ("srp://h/00002c90300a0b0c0/0", "each of 16 hexadecimal digits"),
        ("srp://h/1:2:3/0", "each of 16 hexadecimal digits"),
        ("srp://ann@h/0002c90300a0b0c0", "does not support"),
        ("srp://h/0002c90300a0b0c0?password_file=x", "does not support"),
        ("srp://h/0002c90300a0b0c0?auth=md5", "does not support"),
        ("srp://h/0002c90300a0b0c0?target_user=t", "does not support"),
        ("srp://h/0002c90300a0b0c0?initiator_guid=1", "16 hexadecimal digits"),
        ("srp://h/0002c90300a0b0c0?channels=0", "1 to 64"),
        ("iscsi://h/iqn.2026-11.org.example:a?channels=2", "only to srp:// URLs"),
        ("iscsi://h/iqn.2026-11.org.example:a?provider=verbs", "only to iser:// and srp:// URLs"),
        ("srp://::1/0002c90300a0b0c0", "srp://HOST"),
        ("iscsi://h?initiator_ext=0000000000000001", "only to srp:// URLs"),
    ] {
        assert!(error(text).contains(part), "{text}: {}", error(text));
    }
}

#[test]
fn near_miss_of_a_scheme_is_suggested_with_all_forms() {
    for (text, part) in [
        ("isre://h", "did you mean iser://?"),
        ("iscis://h/x/0", "did you mean iscsi://?"),
        ("SPR://h", "did you mean srp://?"),
        ("nvme-tcp://h/nqn.x", "did you mean nvme://?"),
        ("nvme:/h/nqn.x", "or write nvme://HOST[:PORT]/NQN"),
        ("http://h", "iscsi://[USER@]HOST[:PORT][/TARGET[/LUN]]"),
        ("moon/disk", "iser://, or write srp://HOST"),
    ] {
        assert!(error(text).contains(part), "{text}: {}", error(text));
        assert_eq!(is_url(text), part.starts_with("did you mean"), "{text}");
    }
}

/// Digests work with software iWARP. RDMA devices have their own checksums.
#[test]
fn digests_that_do_nothing_are_refused() {
    for settings in ["header_digest=crc32c", "data_digest=none,crc32c&commands=3"] {
        for scheme in ["iser://h/iqn.2026-11.org.example:a", "srp://h/0002c90300a0b0c0"] {
            url(&format!("{scheme}?{settings}"));
            let text = format!("{scheme}?{settings}&provider=verbs");
            assert!(error(&text).contains("has no effect with provider=verbs"), "{text}: {}", error(&text));
        }
    }
    url("iser://h/iqn.2026-11.org.example:a?data_digest=none&provider=verbs");
}

#[test]
fn paths_under_different_names_are_refused() {
    let path = |query: &str| url(&format!("iscsi://h/iqn.2026-11.org.example:a/0{query}"));
    let (bare, one) = (path(""), path("?initiator=iqn.2026-11.org.example:one"));
    let other = path("?initiator=iqn.2026-11.org.example:other");
    assert!(bare.check_beside(&bare).is_ok());
    assert!(one.check_beside(&path("?initiator=IQN.2026-11.org.example:One&commands=3")).is_ok());
    let [folded, written] =
        ["strasse", "STRA%C3%9FE"].map(|name| path(&format!("?initiator=iqn.2026-11.org.example:{name}")));
    assert!(written.check_beside(&folded).is_ok(), "the same name in two spellings (RFC 3722)");
    for (this, first) in [(&one, &other), (&one, &bare), (&bare, &one)] {
        let refused = this.check_beside(first).unwrap_err();
        assert!(refused.what.contains("that of the first path has"), "{refused}");
    }
}

#[test]
fn documentation_of_url_lists_every_key() {
    let rows = include_str!("keys.md").lines().skip(2).take_while(|line| line.starts_with('|'));
    let first = rows.map(|row| row.split('|').nth(1).expect("a first column"));
    let mut listed: Vec<_> =
        first.flat_map(|keys| keys.split(',')).map(|key| key.trim().trim_matches('`')).collect();
    let mut known: Vec<_> = settings::TABLE.iter().map(|row| row.name).collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known);
}
