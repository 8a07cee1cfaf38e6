//! Recognizes hosts that connect to a portal of another protocol, by the first bytes that they send.

use lunar_wire::iscsi::opcode;
use lunar_wire::nvme::IcRequest;

/// The flag of immediate delivery, which each Login Request has (RFC 7143 section 11.12).
const IMMEDIATE: u8 = 0x40;

/// The reason to close a connection at an iSCSI portal that begins with ICReq; None: it does not, as far as received.
pub fn at_iscsi_portal(received: &[u8]) -> Option<&'static str> {
    received.starts_with(&IC_REQUEST).then_some(
        "the host speaks NVMe/TCP, and this portal iSCSI; hint: connect to a portal with transport = [\"nvme-tcp\"], \
         usually port 4420",
    )
}

/// The common header of ICReq: type 00h, no flags, HLEN and PLEN of its length, no data.
const IC_REQUEST: [u8; 8] = [0, 0, IcRequest::LEN as u8, 0, IcRequest::LEN as u8, 0, 0, 0];
/// A handshake record of TLS and its version, with which a host with TLS begins (RFC 8446, section 5.1).
const TLS: [u8; 2] = [22, 3];

const ISCSI: &str = "the initiator speaks iSCSI, and this portal NVMe/TCP; hint: connect to an iSCSI portal, usually port 3260";

/// The reason to close a connection at a portal of NVMe/TCP that begins with a Login Request or with TLS; None: it does not.
pub fn at_nvme_portal(received: &[u8]) -> Option<&'static str> {
    // NVMe/TCP has no PDUs of these types.
    if received.starts_with(&TLS) {
        return Some(
            "the host begins with TLS, and this portal has none; hint: connect without --tls, or set tls = \"required\" of \
             the portal",
        );
    }
    received.starts_with(&[opcode::LOGIN | IMMEDIATE]).then_some(ISCSI)
}

/// The reason to close a connection at a portal of NVMe/TCP with TLS that begins without it.
pub fn at_tls_portal(received: &[u8]) -> &'static str {
    if received.starts_with(&IC_REQUEST) {
        return "the host uses no TLS, and this portal demands it; hint: connect with --tls, or to a portal without TLS";
    }
    match at_nvme_portal(received) {
        Some(reason) => reason,
        None => "the host does not begin with TLS, and this portal demands it",
    }
}
