//! SRP port names: target ports in their text form, and the initiator port.

use crate::{Error, ErrorCode};
use lunar_wire::srp::PortId;

/// The number of hexadecimal digits of each half of a name.
pub const DIGITS: usize = 16;

/// Parses the target port `ID_EXT[:IOC_GUID]`, 16 hexadecimal digits each. The second half defaults to the first, as
/// in Linux and in Lunar's own target.
pub fn target_port(text: &str) -> Option<PortId> {
    let (extension, guid) = text.split_once(':').unwrap_or((text, text));
    Some(PortId::new(half(extension)?, half(guid)?))
}

/// Whether a text consists of hexadecimal digits only.
pub fn are_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Parses 16 hexadecimal digits.
pub fn half(digits: &str) -> Option<u64> {
    // `from_str_radix` would accept a sign.
    let plain = digits.len() == DIGITS && are_digits(digits);
    plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// Formats a target port with both halves, as [`target_port`] parses it.
pub fn target_name(port: PortId) -> String {
    format!("{:016x}:{:016x}", port.extension(), port.guid())
}

/// The initiator port of a session with this ISID. The GUID identifies the host and is derived from the initiator
/// name. The extension is the ISID: a target ends the session of a port that logs in again, so each session of a host
/// needs its own port. `given` are the halves that the user has set.
pub fn initiator_port(name: &str, isid: [u8; 6], given: (Option<u64>, Option<u64>)) -> PortId {
    let [a, b, c, d, e, f] = isid;
    let extension = given.0.unwrap_or(u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    PortId::new(extension, given.1.unwrap_or_else(|| guid(name)))
}

/// The GUID of an initiator name. Names that differ only in case have the same GUID.
fn guid(name: &str) -> u64 {
    PortId::of_name(&name.to_ascii_lowercase()).guid()
}

/// The error of a discovery request to an SRP portal.
pub fn no_discovery() -> Error {
    Error::new(ErrorCode::InvalidArgument, "discovery over SRP: the protocol cannot report the targets of a portal")
        .with_hint(
            "name the target: srp://HOST[:PORT]/ID_EXT[:IOC_GUID], with id_ext and ioc_guid as the target shows them",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_port_has_two_halves_of_which_one_may_be_left_out() {
        let both = target_port("0002c90300a0b0c0:0002C90300A0B0C1").unwrap();
        assert_eq!((both.extension(), both.guid()), (0x0002_c903_00a0_b0c0, 0x0002_c903_00a0_b0c1));
        assert_eq!(target_name(both), "0002c90300a0b0c0:0002c90300a0b0c1");
        assert_eq!(target_port("0002c90300a0b0c0").unwrap().guid(), 0x0002_c903_00a0_b0c0);
        for text in
            ["", ":", "1", "0002c90300a0b0c0:", "+002c90300a0b0c0", "0002c90300a0b0c0:1", "0x02c90300a0b0c0g"]
        {
            assert_eq!(target_port(text), None, "{text}");
        }
    }

    #[test]
    fn sessions_of_one_host_have_distinct_ports_by_default() {
        let name = "iqn.2026-11.org.example:host";
        let [one, two] = [1, 2].map(|n| initiator_port(name, [0x80, 0, 0, 0, 0, n], (None, None)));
        assert_eq!((one.extension(), two.extension()), (0x8000_0000_0001, 0x8000_0000_0002));
        assert_eq!(one.guid(), two.guid(), "the GUID is that of the host");
        assert_eq!(one.guid(), 0x7d28_32b7_9f9a_6da2, "the GUID must never change: access lists contain it");
        assert_eq!(initiator_port(name, [9; 6], (Some(7), Some(8))), PortId::new(7, 8));
    }
}
