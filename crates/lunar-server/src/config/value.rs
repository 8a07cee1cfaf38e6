//! What the strings of the configuration and of the command line mean.

use crate::problem::{Wrong, wrong};
use lunar_target::setup::{Network, Transports};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The port that IANA gave to iSCSI targets (RFC 7143 section 15).
pub const PORT: u16 = 3260;

/// Hexadecimal digits of a port of SRP.
const PORT_DIGITS: usize = 32;

/// Checks an iSCSI name (RFC 7143 section 4.2.7): `iqn.yyyy-mm.reversed.domain[:any]`, `eui.` with 16
/// hexadecimal digits, `naa.` with 16 or 32; at most 223 bytes.
pub(crate) fn iscsi_name(text: &str) -> Result<String, Wrong> {
    let shown = text.escape_debug();
    let hint =
        "a name looks like iqn.2026-11.org.example:disks, eui.02004567a425678d or naa.52004567ba64678d";
    let letters = "lower-case letters, digits, '-', '.' and ':' are allowed";
    if text.len() > 223 {
        return wrong(format!("the iSCSI name has {} bytes", text.len()), "it can have 223");
    }
    match lunar_proto::name::prepare_with(text, lunar_proto::name::may_stand) {
        Err(why) => return wrong(format!("\"{shown}\" is no iSCSI name: {why}"), letters),
        Ok(folded) if folded != text => {
            let what = format!("the iSCSI name \"{shown}\" is not in its folded form (RFC 3722)");
            return wrong(what, format!("write \"{folded}\""));
        }
        Ok(_) => {}
    }
    if text.contains('_') {
        return wrong(format!("the iSCSI name \"{shown}\" contains '_'"), letters);
    }
    let good = match text.get(..4) {
        Some("iqn.") => iqn(&text[4..]),
        Some("eui.") => hex(&text[4..], &[16]),
        Some("naa.") => hex(&text[4..], &[16, 32]),
        _ => return wrong(format!("\"{shown}\" is no iSCSI name"), hint),
    };
    match good {
        Ok(()) => Ok(text.to_string()),
        Err(why) => wrong(format!("\"{shown}\" is no iSCSI name: {why}"), hint),
    }
}

/// What follows `iqn.`: year, month, a domain that is written backwards, and anything after a colon.
fn iqn(rest: &str) -> Result<(), &'static str> {
    let (date, rest) = rest.split_once('.').ok_or("a date and a domain follow iqn.")?;
    let (year, month) = date.split_once('-').ok_or("the date is written yyyy-mm")?;
    let digits = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(year, 4) || !digits(month, 2) {
        return Err("the date is written yyyy-mm");
    }
    if !(1..=12).contains(&month.parse::<u8>().unwrap_or(0)) {
        return Err("the month is 01 to 12");
    }
    let domain = rest.split(':').next().unwrap_or("");
    if domain.split('.').any(|label| label.is_empty() || label.starts_with('-') || label.ends_with('-')) {
        return Err("after the date stands a domain name written backwards");
    }
    Ok(())
}

fn hex(digits: &str, lengths: &[usize]) -> Result<(), &'static str> {
    if lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err("eui. takes 16 hexadecimal digits, naa. 16 or 32")
}

/// A pattern of initiator names, with `*` and `?`; folded, as the names of logins are (RFC 3722).
pub(crate) fn pattern(text: &str) -> Result<String, Wrong> {
    check_port(text)?;
    if text.is_empty() {
        return wrong("the pattern is empty and matches nobody", "\"*\" matches everybody");
    }
    let shown = text.escape_debug();
    match lunar_proto::name::prepare_with(text, |c| lunar_proto::name::may_stand(c) || is_wildcard(c)) {
        Err(why) => wrong(
            format!("the pattern \"{shown}\" matches no initiator name: {why}"),
            "initiator names have letters, digits, '-', '.', ':' and '_'; * and ? stand for any",
        ),
        // Wide forms of the wildcards normalize to wildcards.
        Ok(folded) if folded.matches(is_wildcard).count() != text.matches(is_wildcard).count() => {
            wrong(format!("the pattern \"{shown}\" has a wildcard in another form"), "write * and ? in ASCII")
        }
        Ok(folded) => Ok(folded.into_owned()),
    }
}

fn is_wildcard(c: char) -> bool {
    matches!(c, '*' | '?')
}

/// What begins as a port of SRP must be one.
fn check_port(text: &str) -> Result<(), Wrong> {
    const HINT: &str = "a port of SRP is 0x and 32 hexadecimal digits in lower case; * and ? stand for any";
    let Some(digits) = text.strip_prefix("0x").filter(|digits| !digits.contains('*')) else { return Ok(()) };
    let is_digit = |c: &char| matches!(c, '0'..='9' | 'a'..='f' | '?');
    let shown = text.escape_debug();
    match digits.chars().find(|c| !is_digit(c)) {
        Some(c) => wrong(format!("the port \"{shown}\" contains {c:?}"), HINT),
        None if digits.len() != PORT_DIGITS => {
            wrong(format!("the port \"{shown}\" has {} digits", digits.len()), HINT)
        }
        None => Ok(()),
    }
}

/// An address with a prefix length, or a single address.
pub(crate) fn network(text: &str) -> Result<Network, Wrong> {
    let not = || {
        wrong(
            format!("\"{}\" is no network", text.escape_debug()),
            "write it as 192.0.2.0/24 or 2001:db8::/32",
        )
    };
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return not() };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits.map(str::parse::<u8>) {
        None => most,
        Some(Ok(bits)) if bits <= most => bits,
        Some(_) => return not(),
    };
    let first = first_address(address, bits);
    if first != address {
        let what = format!("the network {text} has bits set after its first {bits}");
        return wrong(what, format!("write {first}/{bits}, or {address} for that address alone"));
    }
    Ok(Network { address, bits })
}

/// The address with all but its leading bits cleared.
fn first_address(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

/// The port where SRP is looked for if none is named.
const SRP_PORT: u16 = 5555;

/// An address to listen on: `ADDR:PORT`, or `ADDR` for the port where initiators look for what it carries.
pub(crate) fn listen(text: &str, transports: Transports) -> Result<SocketAddr, Wrong> {
    let port = if transports.srp { SRP_PORT } else { PORT };
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    text.parse().or_else(|_| {
        wrong(
            format!("\"{}\" is no address to listen on", text.escape_debug()),
            "write a numeric address and a port: 127.0.0.1:3260, [::1]:3260 or 0.0.0.0:3260",
        )
    })
}

/// An address that initiators are told: a host name or address, with or without a port (RFC 7143 section
/// 13.8).
pub(crate) fn told(text: &str) -> Result<String, Wrong> {
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
    wrong(
        format!("\"{}\" is no address that an initiator could use", text.escape_debug()),
        "write a host name or an address, and a port: storage.example:3260, 192.0.2.9:3260 or [2001:db8::9]:3260",
    )
}

/// The longest name of an instance, an upstream or an access list.
const MAX_WORD: usize = 48;

/// A name that the file gives to a part of itself, and that commands and logs repeat.
pub(crate) fn word(text: &str) -> Result<(), Wrong> {
    let fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.len() <= MAX_WORD
        && text.chars().all(fit)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
    {
        return Ok(());
    }
    wrong(
        format!("\"{}\" cannot be a name here", text.escape_debug()),
        "use letters, digits, '.', '_' and '-', 48 at most, a letter or digit first",
    )
}

/// Text that SCSI can carry: printable ASCII of at most `most` characters.
pub(crate) fn scsi_text(text: &str, what: &str, most: usize) -> Result<String, Wrong> {
    let good = !text.is_empty() && text.len() <= most && text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if good && text.trim() == text {
        return Ok(text.to_string());
    }
    wrong(
        format!("\"{}\" cannot be a {what}", text.escape_debug()),
        format!("it can have 1 to {most} printable ASCII characters, without spaces at its ends"),
    )
}

/// Text that a login can carry as a value: UTF-8 of 1 to 255 bytes without control characters (RFC 7143
/// section 6.1).
pub(crate) fn plain_text(text: &str, what: &str) -> Result<String, Wrong> {
    if !text.is_empty() && text.len() <= 255 && !text.chars().any(char::is_control) {
        return Ok(text.to_string());
    }
    wrong(
        format!("\"{}\" cannot be {what}", text.escape_debug()),
        "it can have 1 to 255 bytes and no control characters",
    )
}
