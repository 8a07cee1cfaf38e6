//! Checks strings of the configuration and the command line.

use crate::diagnostic::{InvalidValue, invalid};
use std::net::Ipv6Addr;

/// Hexadecimal digits of an SRP port.
const PORT_DIGITS: usize = 32;

/// Checks an iSCSI name (RFC 7143 section 4.2.7): `iqn.yyyy-mm.reversed.domain[:any]`, `eui.` with 16
/// hexadecimal digits, `naa.` with 16 or 32; at most 223 bytes. The underscore is allowed, because targets that Lunar
/// replaces have it in names that hosts know.
pub fn iscsi_name(text: &str) -> Result<String, InvalidValue> {
    let shown = text.escape_debug();
    let hint =
        "a name looks like iqn.2026-11.org.example:disks, eui.02004567a425678d or naa.52004567ba64678d";
    let letters = "lower-case letters, digits, '-', '.', ':' and '_' are allowed";
    if text.len() > 223 {
        return invalid(format!("the iSCSI name has {} bytes", text.len()), "the limit is 223 bytes");
    }
    match lunar_proto::name::prepare_with(text, lunar_proto::name::may_stand) {
        Err(why) => return invalid(format!("\"{shown}\" is not an iSCSI name: {why}"), letters),
        Ok(folded) if folded != text => {
            let what = format!("the iSCSI name \"{shown}\" is not in its folded form (RFC 3722)");
            return invalid(what, format!("write \"{folded}\""));
        }
        Ok(_) => {}
    }
    let good = match text.get(..4) {
        Some("iqn.") => iqn(&text[4..]),
        Some("eui.") => hex(&text[4..], &[16]),
        Some("naa.") => hex(&text[4..], &[16, 32]),
        _ => return invalid(format!("\"{shown}\" is not an iSCSI name"), hint),
    };
    match good {
        Ok(()) => Ok(text.to_string()),
        Err(why) => invalid(format!("\"{shown}\" is not an iSCSI name: {why}"), hint),
    }
}

/// Checks what follows `iqn.`: yyyy-mm, a reversed domain, and an optional suffix after a colon.
fn iqn(rest: &str) -> Result<(), &'static str> {
    let (date, rest) = rest.split_once('.').ok_or("a date and a domain must follow iqn.")?;
    let (year, month) = date.split_once('-').ok_or("the date must have the form yyyy-mm")?;
    let digits = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(year, 4) || !digits(month, 2) {
        return Err("the date must have the form yyyy-mm");
    }
    if !(1..=12).contains(&month.parse::<u8>().unwrap_or(0)) {
        return Err("the month must be 01 to 12");
    }
    let domain = rest.split(':').next().unwrap_or("");
    if domain.split('.').any(|label| label.is_empty() || label.starts_with('-') || label.ends_with('-')) {
        return Err("a reversed domain name must follow the date");
    }
    Ok(())
}

fn hex(digits: &str, lengths: &[usize]) -> Result<(), &'static str> {
    if lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err("eui. must have 16 hexadecimal digits, naa. 16 or 32")
}

/// A pattern of initiator names, with `*` and `?`; folded, as the names of logins are (RFC 3722).
pub fn pattern(text: &str) -> Result<String, InvalidValue> {
    check_port(text)?;
    if text.is_empty() {
        return invalid("the pattern is empty", "\"*\" matches every initiator");
    }
    let shown = text.escape_debug();
    match lunar_proto::name::prepare_with(text, |c| lunar_proto::name::may_stand(c) || is_wildcard(c)) {
        Err(why) => invalid(
            format!("the pattern \"{shown}\" matches no initiator name: {why}"),
            "initiator names have letters, digits, '-', '.', ':' and '_'; * and ? are wildcards",
        ),
        // Wide forms of the wildcards normalize to wildcards.
        Ok(folded) if folded.matches(is_wildcard).count() != text.matches(is_wildcard).count() => invalid(
            format!("the pattern \"{shown}\" has a wildcard that is not ASCII"),
            "write * and ? as ASCII characters",
        ),
        Ok(folded) => Ok(folded.into_owned()),
    }
}

fn is_wildcard(c: char) -> bool {
    matches!(c, '*' | '?')
}

/// A pattern that starts like an SRP port must be one.
fn check_port(text: &str) -> Result<(), InvalidValue> {
    const HINT: &str = "an SRP port is 0x and 32 lower-case hexadecimal digits; * and ? are wildcards";
    let Some(digits) = text.strip_prefix("0x").filter(|digits| !digits.contains('*')) else { return Ok(()) };
    let is_digit = |c: &char| matches!(c, '0'..='9' | 'a'..='f' | '?');
    let shown = text.escape_debug();
    match digits.chars().find(|c| !is_digit(c)) {
        Some(c) => invalid(format!("the SRP port \"{shown}\" contains {c:?}"), HINT),
        None if digits.len() != PORT_DIGITS => {
            invalid(format!("the SRP port \"{shown}\" has {} digits", digits.len()), HINT)
        }
        None => Ok(()),
    }
}

/// An address to advertise to initiators: host name or address, optional port (RFC 7143 section 13.8).
pub fn advertised_address(text: &str) -> Result<String, InvalidValue> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let host_good = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')),
    };
    if host_good
        && host.len() <= 255
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
    {
        return Ok(text.to_string());
    }
    invalid(
        format!("\"{}\" is not an address that initiators can use", text.escape_debug()),
        "write a host name or an address, with a port if it is not the default: storage.example, 192.0.2.9 or \
         [2001:db8::9]:5000",
    )
}

/// The longest name of an instance, an upstream or an access list.
const MAX_WORD: usize = 48;

/// A name of a section, as commands and logs show it.
pub fn word(text: &str) -> Result<(), InvalidValue> {
    let fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.len() <= MAX_WORD
        && text.chars().all(fit)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
    {
        return Ok(());
    }
    invalid(
        format!("\"{}\" is not a valid name", text.escape_debug()),
        "use at most 48 letters, digits, '.', '_' and '-', starting with a letter or digit",
    )
}

/// Text that SCSI can carry: printable ASCII of at most `max` characters.
pub fn scsi_text(text: &str, what: &str, max: usize) -> Result<String, InvalidValue> {
    let good = !text.is_empty() && text.len() <= max && text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if good && text.trim() == text {
        return Ok(text.to_string());
    }
    invalid(
        format!("\"{}\" cannot be a {what}", text.escape_debug()),
        format!("use 1 to {max} printable ASCII characters without leading or trailing spaces"),
    )
}

/// Text of a SCSI field that other targets pad on the left: printable ASCII characters, not only spaces, without
/// trailing spaces.
pub fn padded_text(text: &str, what: &str, max: usize) -> Result<String, InvalidValue> {
    let good = !text.is_empty() && text.len() <= max && text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if good && !text.ends_with(' ') {
        return Ok(text.to_string());
    }
    invalid(
        format!("\"{}\" cannot be a {what}", text.escape_debug()),
        format!("use 1 to {max} printable ASCII characters without trailing spaces"),
    )
}

/// Text that a login can carry as a value: UTF-8 of 1 to 255 bytes without control characters (RFC 7143
/// section 6.1).
pub fn plain_text(text: &str, what: &str) -> Result<String, InvalidValue> {
    if !text.is_empty() && text.len() <= 255 && !text.chars().any(char::is_control) {
        return Ok(text.to_string());
    }
    invalid(
        format!("\"{}\" cannot be {what}", text.escape_debug()),
        "use 1 to 255 bytes without control characters",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iscsi_name_is_checked() {
        let longest = format!("iqn.2026-11.org.example:{}", "x".repeat(199));
        assert_eq!(longest.len(), 223);
        let good = [
            "iqn.2026-11.org.example",
            "iqn.2026-11.org.example:",
            "iqn.2026-11.org.example:disks.1-2:3",
            "iqn.2026-11.org.example:müller",
            "iqn.2026-11.org.example:disk_1",
            "iqn.2026-11.org_a",
            "eui.02004567a425678d",
            "naa.52004567ba64678d",
            "naa.62004567ba64678d0123456789abcdef",
            &longest,
        ];
        good.iter().for_each(|name| assert_eq!(iscsi_name(name), Ok(name.to_string())));
        let bad = [
            "",
            "iqn.",
            "iqn.2026-11",
            "iqn.2026-11.",
            "iqn.2026-11.org..example",
            "iqn.2026-11.-org",
            "iqn.26-11.org",
            "iqn.2026-00.org",
            "iqn.2026-1.org",
            "iqn.2026-11.org a",
            "iqn.2026-11.org.example:a/b",
            "iqn.2026-11.org.example:Ü",
            "iqn.2026-11.org.example:\u{200b}",
            "iqn.2026-11.org.example:a\u{202e}b",
            "iqn.2026-11.org.example:mu\u{308}ller",
            "eui.02004567a425678",
            "eui.02004567a425678g",
            "naa.52004567ba64678d0",
            "wwn.52004567ba64678d",
            &(longest.clone() + "x"),
        ];
        bad.iter().for_each(|name| assert!(iscsi_name(name).is_err(), "{name}"));
    }

    #[test]
    fn pattern_accepts_every_login_name() {
        for (text, folded) in [
            ("IQN.1991-05.com.Microsoft:WIN_1", "iqn.1991-05.com.microsoft:win_1"),
            ("iqn.*:Node-?", "iqn.*:node-?"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
            ("iqn.2026-11.org.example:M\u{dc}LLER", "iqn.2026-11.org.example:m\u{fc}ller"),
        ] {
            assert_eq!(pattern(text), Ok(folded.to_string()));
        }
    }

    #[test]
    fn pattern_that_matches_no_login_is_rejected() {
        for (text, named) in [
            ("iqn.*:a\u{202e}b", "\\u{202e}"),
            ("iqn.*:a b", "\\u{20}"),
            ("iqn.\u{ff0a}", "\u{ff0a}"),
            ("", "empty"),
        ] {
            let invalid = pattern(text).unwrap_err();
            assert!(invalid.what.contains(named), "{}", invalid.what);
        }
    }

    #[test]
    fn redirect_address_takes_a_host_and_a_port() {
        for text in ["storage", "storage.example:3260", "192.0.2.1", "[2001:db8::1]", "[2001:db8::1]:860"] {
            assert!(advertised_address(text).is_ok(), "{text}");
        }
        for text in ["", ":3260", "a,1", "a b", "::1", "[::1", "[x]:1", "a:0", "a:b", "a:65536", "a\n:1"] {
            assert!(advertised_address(text).is_err(), "{text}");
        }
    }
}
