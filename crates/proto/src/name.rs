//! iSCSI names (RFC 7143 section 4.2.7).

pub use wire::iscsi::name::fold;

/// The longest iSCSI name, in bytes.
pub const NAME_LEN: usize = 223;

/// Whether this is a well-formed iSCSI name: iqn., eui. or naa., in characters that stringprep leaves or folds.
pub fn is_valid(name: &str) -> bool {
    let name = fold(name);
    if name.len() > NAME_LEN || !name.chars().all(may_stand) {
        return false;
    }
    match name.split_at_checked(4) {
        Some(("iqn.", rest)) => is_iqn(rest),
        Some(("eui.", rest)) => rest.len() == 16 && is_hex(rest),
        Some(("naa.", rest)) => (rest.len() == 16 || rest.len() == 32) && is_hex(rest),
        _ => false,
    }
}

/// Whether a target of this name can be used: other targets let names through that are none by the rules, and
/// their users are to get at them all the same.
pub fn is_usable(name: &str) -> bool {
    (1..=NAME_LEN).contains(&name.len()) && !name.contains(char::is_control)
}

/// Whether a character may stand in an iSCSI name. Of ASCII: letters, digits, dash, dot, colon, and the underscore that
/// some initiators use. Initiators in the field send capitals, which are folded before names are compared
/// (RFC 3722). Beyond ASCII: neither controls nor spaces.
pub fn may_stand(c: char) -> bool {
    match c {
        '-' | '.' | ':' => true,
        c if c.is_ascii() => c.is_ascii_alphanumeric() || c == '_',
        c => !c.is_control() && !c.is_whitespace(),
    }
}

/// yyyy-mm.reversed-domain[:suffix]
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

/// The iSCSI name of a host to which nobody gave one: made of the host's name, and so the same each time.
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
    fn broken_names() {
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
            &too_long,
        ] {
            assert!(!is_valid(n), "{n}");
        }
    }

    #[test]
    fn names_of_the_field() {
        for n in ["foo", "iqn.test:x", "a b", "disk\u{e9}", &"a".repeat(NAME_LEN)] {
            assert!(is_usable(n) && !is_valid(n), "{n}");
        }
        for n in ["", "a\n", "\u{9b}2J", &"a".repeat(NAME_LEN + 1)] {
            assert!(!is_usable(n), "{n:?}");
        }
    }
}
