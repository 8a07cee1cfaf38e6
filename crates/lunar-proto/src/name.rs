//! iSCSI names (RFC 7143 section 4.2.7).

use std::borrow::Cow;

pub use lunar_wire::iscsi::name::{NAME_LEN, fold, may_stand, prepare_with};

/// Checks an iSCSI name, and returns it in the form in which names are compared (RFC 3722).
///
/// # Errors
/// The reason why this is not an iSCSI name, safe for a terminal.
pub fn check(name: &str) -> Result<Cow<'_, str>, String> {
    let name = lunar_wire::iscsi::name::prepare(name)?;
    let is_formed = match name.split_at_checked(4) {
        Some(("iqn.", rest)) => is_iqn(rest),
        Some(("eui.", rest)) => rest.len() == 16 && is_hex(rest),
        Some(("naa.", rest)) => (rest.len() == 16 || rest.len() == 32) && is_hex(rest),
        _ => false,
    };
    if is_formed {
        Ok(name)
    } else {
        Err("the form iqn., eui. or naa. of RFC 7143 section 4.2.7 is required".into())
    }
}

/// Whether this is an iSCSI name: type iqn., eui. or naa., in characters that RFC 3722 allows or folds.
pub fn is_valid(name: &str) -> bool {
    check(name).is_ok()
}

/// Whether a target name can be used, even if it is not a valid iSCSI name: other targets accept such names, and
/// initiators must be able to reach them. A usable name contains no character that changes how the text around it is
/// displayed.
pub fn is_usable(name: &str) -> bool {
    (1..=NAME_LEN).contains(&name.len()) && !name.contains(lunar_wire::iscsi::name::is_invisible)
}

/// Checks the part after `iqn.`: yyyy-mm.reversed-domain[:suffix].
fn is_iqn(rest: &str) -> bool {
    let b = rest.as_bytes();
    let digits = |r: std::ops::Range<usize>| b[r].iter().all(u8::is_ascii_digit);
    b.len() > 8
        && digits(0..4)
        && b[4] == b'-'
        && digits(5..7)
        && (b"01"..=b"12").contains(&&[b[5], b[6]])
        && b[7] == b'.'
        && b[8] != b':'
}

fn is_hex(s: &str) -> bool {
    s.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The default iSCSI name of a host: derived from the host name, so that it is stable.
pub fn of_host(host: &str) -> String {
    let good = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' { c } else { '-' };
    let host: String = host.to_ascii_lowercase().chars().map(good).take(128).collect();
    let host = host.trim_matches(['-', '.']);
    format!("iqn.2026-11.io.lunar:{}", if host.is_empty() { "host" } else { host })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed_names() {
        let longest = format!("iqn.2026-11.org.example:{}", "a".repeat(NAME_LEN - 24));
        for n in [
            "iqn.1993-08.org.debian:01:abc",
            "iqn.2026-12.org.example",
            "iqn.2026-11.org.example:m\u{fc}ller",
            "eui.02004567A425678D",
            "IQN.1991-05.com.Microsoft:HOST_1",
            "naa.52004567ba64678d",
            "naa.62004567ba64678d0123456789abcdef",
            &longest,
        ] {
            assert!(is_valid(n) && is_usable(n), "{n}");
        }
    }

    #[test]
    fn malformed_iscsi_names_are_rejected() {
        let too_long = format!("iqn.2026-11.org.example:{}", "a".repeat(NAME_LEN - 23));
        for n in [
            "",
            "iqn.",
            "iqn.2026-13.org.example",
            "iqn.2026-00.org.example",
            "iqn.202-11.org.example",
            "iqn.2026-11.",
            "iqn.2026-11.:x",
            "iqn.2026-11.org.example:a b",
            "iqn.2026-11.org.example:a\n",
            "iqn.2026-11.org.example:a,t,0x1",
            "eui.02004567A425678",
            "eui.02004567A425678G",
            "naa.0123",
            "disk\u{e9}",
            "iqn.2026-11.org.example:a\u{202e}b",
            "iqn.2026-11.org.example:a\u{1f600}",
            &too_long,
        ] {
            assert!(!is_valid(n), "{n}");
        }
    }

    #[test]
    fn names_in_use_are_accepted() {
        for n in ["foo", "iqn.test:x", "a b", "disk\u{e9}", &"a".repeat(NAME_LEN)] {
            assert!(is_usable(n) && !is_valid(n), "{n}");
        }
        for n in ["", "a\n", "\u{9b}2J", "a\u{202e}b", &"a".repeat(NAME_LEN + 1)] {
            assert!(!is_usable(n), "{n:?}");
        }
    }
}
