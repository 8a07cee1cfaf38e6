//! Recognizes hosts that connect to a portal of another protocol, by the first bytes that they send.

use lunar_wire::iscsi::opcode;
use lunar_wire::nvme::IcRequest;

/// The flag of immediate delivery, which each Login Request has (RFC 7143 section 11.12).
const IMMEDIATE: u8 = 0x40;

/// The reason to close a connection at an iSCSI portal that begins with ICReq; None: it does not, as far as received.
pub fn at_iscsi_portal(received: &[u8]) -> Option<&'static str> {
    // The common header of ICReq: type 00h, no flags, HLEN and PLEN of its length, no data.
    const LEN: u8 = IcRequest::LEN as u8;
    received.starts_with(&[0, 0, LEN, 0, LEN, 0, 0, 0]).then_some(
        "the host speaks NVMe/TCP, and this portal iSCSI; hint: connect to a portal with transport = [\"nvme-tcp\"], \
         usually port 4420",
    )
}

/// The reason to close a connection at a portal of NVMe/TCP that begins with a Login Request; None: it does not.
pub fn at_nvme_portal(received: &[u8]) -> Option<&'static str> {
    // NVMe/TCP has no PDU of this type.
    received.starts_with(&[opcode::LOGIN | IMMEDIATE]).then_some(
        "the initiator speaks iSCSI, and this portal NVMe/TCP; hint: connect to an iSCSI portal, usually port 3260",
    )
}
