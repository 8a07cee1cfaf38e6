//! TransportIDs of iSCSI (SPC-5 section 7.6.4.6) and SRP (section 7.6.4.5).

use super::NO_BIT;
use crate::{InitiatorPort, TransportProtocol};
use lunar_wire::iscsi::name::{NAME_LEN, prepare};
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::transport_id::{
    ADDITIONAL_LENGTH, FORMAT_CODE, ISCSI_NAME, NVME_HOST_ID, NVME_PROTOCOL, PROTOCOL_IDENTIFIER, SRP_LEN,
    SRP_PORT,
};
use lunar_wire::srp::PortId;

const ISCSI: u8 = TransportProtocol::Iscsi as u8;
const SRP: u8 = TransportProtocol::Srp as u8;
/// The text between the name and the digits of the ISID in format 01b.
const SEPARATOR: &str = ",i,0x";
/// Minimum value of ADDITIONAL LENGTH.
const MIN_ADDITIONAL: usize = 20;
/// Maximum length of a TransportID: header, name, separator, 12 digits, NUL and padding.
pub(super) const MAX: usize = ISCSI_NAME + (NAME_LEN + SEPARATOR.len() + 12 + 1).next_multiple_of(4);

/// The initiator ports that a TransportID in a parameter list names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TransportId {
    /// Format 00b: every initiator port of this name.
    Name(String),
    /// Format 01b of iSCSI, or a TransportID of SRP: one initiator port.
    Port(InitiatorPort),
}

/// Decodes the TransportID at the start of `bytes`, and returns it with its length. `at` is its offset in the
/// parameter list.
pub(super) fn decode(bytes: &[u8], at: usize) -> Result<(TransportId, usize), Sense> {
    let wrong = |byte| Sense::parameter_field(at as u16 + byte, NO_BIT);
    if bytes.len() < ISCSI_NAME {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let wrong_format = Sense::in_parameters(FORMAT_CODE.after(at as u16));
    match PROTOCOL_IDENTIFIER.get_u8(bytes) {
        ISCSI => {}
        SRP if FORMAT_CODE.is_set(bytes) => return Err(wrong_format),
        SRP => return srp(bytes).map(|id| (id, SRP_LEN)).ok_or(Sense::PARAMETER_LIST_LENGTH),
        _ => return Err(Sense::in_parameters(PROTOCOL_IDENTIFIER.after(at as u16))),
    }
    let additional = ADDITIONAL_LENGTH.get(bytes) as usize;
    if additional < MIN_ADDITIONAL || !additional.is_multiple_of(4) {
        return Err(wrong(ADDITIONAL_LENGTH.byte()));
    }
    let text = bytes.get(ISCSI_NAME..ISCSI_NAME + additional).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let text = terminated(text).ok_or(wrong(ISCSI_NAME as u16))?;
    let id = match FORMAT_CODE.get(bytes) {
        0 => name(text).map(TransportId::Name),
        1 => port(text),
        _ => return Err(wrong_format),
    };
    Ok((id.ok_or(wrong(ISCSI_NAME as u16))?, ISCSI_NAME + additional))
}

fn srp(bytes: &[u8]) -> Option<TransportId> {
    let port = bytes.get(SRP_PORT..SRP_LEN)?.first_chunk()?;
    Some(TransportId::Port(InitiatorPort::Srp(PortId(*port))))
}

/// The text before the first NUL.
fn terminated(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|&b| b == 0)?;
    std::str::from_utf8(&bytes[..end]).ok()
}

/// An iSCSI name, folded as at login. The text of an SRP port is none (RFC 7143 section 4.2.7), because saved
/// registrations differ by name.
fn name(text: &str) -> Option<String> {
    let name = prepare(text).ok().filter(|name| !name.is_empty() && name.parse::<PortId>().is_err())?;
    Some(name.into_owned())
}

fn port(text: &str) -> Option<TransportId> {
    let (before, digits) = text.split_once(SEPARATOR)?;
    if !(1..=12).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let [_, _, isid @ ..] = u64::from_str_radix(digits, 16).ok()?.to_be_bytes();
    Some(TransportId::Port(InitiatorPort::Iscsi { name: name(before)?, isid }))
}

/// Encodes the TransportID of an initiator port; for iSCSI in format 01b.
pub(super) fn encode(port: &InitiatorPort) -> Vec<u8> {
    match port {
        InitiatorPort::Iscsi { name, isid } => encode_iscsi(name, *isid),
        InitiatorPort::Srp(PortId(port)) => {
            let mut out = vec![0; SRP_PORT];
            PROTOCOL_IDENTIFIER.set(&mut out, SRP.into());
            [&out[..], port].concat()
        }
        InitiatorPort::Nvme { name, id } => encode_nvme(name, id),
    }
}

/// SPC-5 has none for NVMe hosts. This one shows that a registrant is there, and which host it is.
fn encode_nvme(name: &str, id: &[u8; 16]) -> Vec<u8> {
    let mut out = vec![0; NVME_HOST_ID];
    PROTOCOL_IDENTIFIER.set(&mut out, NVME_PROTOCOL.into());
    out.extend_from_slice(id);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    let additional = out.len() - ISCSI_NAME;
    ADDITIONAL_LENGTH.set(&mut out, additional as u64);
    out
}

fn encode_iscsi(name: &str, isid: [u8; 6]) -> Vec<u8> {
    let mut out = vec![0; ISCSI_NAME];
    FORMAT_CODE.set(&mut out, 1);
    PROTOCOL_IDENTIFIER.set(&mut out, ISCSI.into());
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(SEPARATOR.as_bytes());
    for byte in isid {
        out.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    out.push(0);
    out.resize(out.len().next_multiple_of(4).max(ISCSI_NAME + MIN_ADDITIONAL), 0);
    let additional = out.len() - ISCSI_NAME;
    ADDITIONAL_LENGTH.set(&mut out, additional as u64);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn iscsi(name: &str, isid: [u8; 6]) -> InitiatorPort {
        InitiatorPort::Iscsi { name: name.into(), isid }
    }

    fn id(format: u8, text: &[u8]) -> Vec<u8> {
        let mut out = vec![format << 6 | ISCSI, 0, 0, 0];
        out.extend_from_slice(text);
        out.push(0);
        out.resize(out.len().next_multiple_of(4).max(24), 0);
        out[3] = (out.len() - 4) as u8;
        out
    }

    #[test]
    fn transport_id_matches_golden_bytes() {
        let port = iscsi("iqn.a:b", [0, 2, 0x3d, 0, 0, 0xaf]);
        let bytes = encode(&port);
        assert_eq!(&bytes[..4], &[0x45, 0, 0, 28]);
        assert_eq!(&bytes[4..], b"iqn.a:b,i,0x00023d0000af\0\0\0\0");
        assert_eq!(decode(&bytes, 24), Ok((TransportId::Port(port), 32)));
    }

    #[test]
    fn srp_port_is_reported_by_its_identifier() {
        let port = InitiatorPort::Srp(PortId([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]));
        let golden = [4, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(encode(&port), golden);
        let id = TransportId::Port(port);
        assert_eq!(decode(&[&golden[..], &[5; 9]].concat(), 24), Ok((id, 24)));
        assert_eq!(decode(&golden[..23], 24), Err(Sense::PARAMETER_LIST_LENGTH));
        assert_eq!(decode(&[&[0x44], &golden[1..]].concat(), 24), Err(Sense::parameter_field(24, 7)));
    }

    #[test]
    fn nvme_host_is_reported_by_name_and_identifier() {
        let bytes = encode(&InitiatorPort::Nvme { name: "nqn.a:bc".into(), id: [7; 16] });
        assert_eq!(bytes, [&[15, 0, 0, 32, 0, 0, 0, 0][..], &[7; 16], b"nqn.a:bc\0\0\0\0"].concat());
        let wrong = Err(Sense::in_parameters(PROTOCOL_IDENTIFIER.after(24)));
        assert_eq!(decode(&bytes, 24), wrong, "SCSI commands cannot name it");
    }

    #[test]
    fn transport_id_is_decoded_in_lower_case() {
        assert_eq!(decode(&id(0, b"iqn.X"), 0), Ok((TransportId::Name("iqn.x".into()), 24)));
        let wanted = TransportId::Port(iscsi("iqn.x", [0, 0, 0, 0, 0xab, 0xcd]));
        assert_eq!(decode(&id(1, b"iqn.X,i,0xABcd"), 0), Ok((wanted, 24)));
    }

    /// For each fault: the bytes, and the byte of the field pointer if the TransportID begins at byte 100 of the
    /// parameter list.
    #[test]
    fn each_flaw_is_pointed_at() {
        let edit = |at: usize, value: u8| {
            let mut b = id(1, b"iqn.x,i,0x1");
            b[at] = value;
            b
        };
        let cases = [
            ("Fibre Channel", edit(0, 0x40), Sense::parameter_field(100, 3)),
            ("format 10b", edit(0, 0x85), Sense::parameter_field(100, 7)),
            ("short", edit(3, 16), Sense::parameter_field(102, 8)),
            ("odd", edit(3, 22), Sense::parameter_field(102, 8)),
            ("beyond the list", edit(3, 24), Sense::PARAMETER_LIST_LENGTH),
            ("control character", edit(5, 7), Sense::parameter_field(104, 8)),
            ("prohibited", id(0, "iqn.\u{202e}x".as_bytes()), Sense::parameter_field(104, 8)),
            ("grows", id(0, "\u{3316}".repeat(70).as_bytes()), Sense::parameter_field(104, 8)),
            ("no UTF-8", edit(5, 0xff), Sense::parameter_field(104, 8)),
            ("no name", edit(4, 0), Sense::parameter_field(104, 8)),
            ("no ISID", id(1, b"iqn.x"), Sense::parameter_field(104, 8)),
            ("no digits", id(1, b"iqn.x,i,0x"), Sense::parameter_field(104, 8)),
            ("a sign", id(1, b"iqn.x,i,0x+1"), Sense::parameter_field(104, 8)),
            ("13 digits", id(1, b"iqn.x,i,0x1234567890123"), Sense::parameter_field(104, 8)),
            ("empty name", id(1, b",i,0x1"), Sense::parameter_field(104, 8)),
            ("SRP port", id(0, b"0x0000000000000000000000000000000A"), Sense::parameter_field(104, 8)),
            ("long name", id(0, &[b'x'; 224]), Sense::parameter_field(104, 8)),
            ("no NUL", [&[5, 0, 0, 20][..], &[b'x'; 20]].concat(), Sense::parameter_field(104, 8)),
            ("cut", vec![0x45, 0, 0], Sense::PARAMETER_LIST_LENGTH),
        ];
        for (what, bytes, sense) in cases {
            assert_eq!(decode(&bytes, 100), Err(sense), "{what}");
        }
    }

    #[test]
    fn longest_fits_its_bound() {
        assert_eq!(encode(&iscsi(&"x".repeat(NAME_LEN), [0xff; 6])).len(), MAX);
    }

    proptest! {
        #[test]
        fn encoded_ids_come_back(name in "[a-z0-9.:-]{1,223}", isid: [u8; 6]) {
            let port = iscsi(&name, isid);
            let bytes = encode(&port);
            prop_assert_eq!(decode(&bytes, 0), Ok((TransportId::Port(port), bytes.len())));
        }

        #[test]
        fn any_bytes_are_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes, 24);
        }
    }
}
