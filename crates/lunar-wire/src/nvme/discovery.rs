//! The discovery log page (log page 70h).

use super::{NQN_LEN, Nqn};
use crate::le;

/// The header of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryHeader {
    /// It grows with each change of the page.
    pub generation: u64,
    /// The number of entries.
    pub entries: u64,
}

impl DiscoveryHeader {
    /// Its length in bytes.
    pub const LEN: usize = 1024;

    /// Decodes the start of a page, which is enough for a first look. `None`: the format of the entries is unknown.
    pub fn decode(page: &[u8; 18]) -> Option<DiscoveryHeader> {
        let header = DiscoveryHeader { generation: le::get64(page), entries: le::get64(&page[8..]) };
        (le::get16(&page[16..]) == 0).then_some(header)
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; DiscoveryHeader::LEN] {
        let mut bytes = [0; DiscoveryHeader::LEN];
        le::put64(&mut bytes, self.generation);
        le::put64(&mut bytes[8..], self.entries);
        bytes
    }
}

/// The kind of a transport (TRTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// RDMA.
    Rdma,
    /// Fibre Channel.
    FibreChannel,
    /// TCP.
    Tcp,
    /// Another one.
    Other(u8),
}

/// The kind of an address (ADRFAM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Another one.
    Other(u8),
}

/// The kind of an entry (SUBTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryKind {
    /// Another discovery service.
    Referral,
    /// A subsystem with namespaces.
    Subsystem,
    /// This discovery service.
    Current,
    /// Another one.
    Other(u8),
}

/// Whether a connection is encrypted (TREQ bits 0 and 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecureChannel {
    /// Not specified.
    Unspecified,
    /// Required.
    Required,
    /// Not required.
    NotRequired,
}

macro_rules! codes {
    ($type:ident: $($name:ident = $code:literal),*) => {
        impl $type {
            fn decode(code: u8) -> $type {
                match code {
                    $($code => $type::$name,)*
                    other => $type::Other(other),
                }
            }

            fn encode(self) -> u8 {
                match self {
                    $($type::$name => $code,)*
                    $type::Other(code) => code,
                }
            }
        }
    };
}

codes!(TransportKind: Rdma = 1, FibreChannel = 2, Tcp = 3);
codes!(AddressFamily: V4 = 1, V6 = 2);
codes!(DiscoveryKind: Referral = 1, Subsystem = 2, Current = 3);

/// An entry of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// The transport.
    pub transport: TransportKind,
    /// The kind of the address.
    pub family: AddressFamily,
    /// The kind of the entry.
    pub kind: DiscoveryKind,
    /// Whether a connection is encrypted.
    pub secure: SecureChannel,
    /// Hosts may do without the flow control of queues (TREQ bit 2).
    pub without_flow_control: bool,
    /// The number of the port in its subsystem.
    pub port: u16,
    /// The controller; FFFFh: the target chooses one.
    pub controller: u16,
    /// Entries of the admin queue.
    pub admin_queue_len: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The address.
    pub address: String,
    /// The port of the address, as text.
    pub service: String,
    /// The security of TCP (SECTYPE): 0 none, 2 TLS 1.3.
    pub security: u8,
}

const SERVICE: usize = 32;
const SERVICE_LEN: usize = 32;
const SUBSYSTEM: usize = 256;
const ADDRESS: usize = 512;
const SECURITY: usize = 768;

impl DiscoveryEntry {
    /// Its length in bytes.
    pub const LEN: usize = 1024;

    /// Decodes an entry. `None`: the name of the subsystem is malformed, or a text is not UTF-8.
    pub fn decode(bytes: &[u8; DiscoveryEntry::LEN]) -> Option<DiscoveryEntry> {
        Some(DiscoveryEntry {
            transport: TransportKind::decode(bytes[0]),
            family: AddressFamily::decode(bytes[1]),
            kind: DiscoveryKind::decode(bytes[2]),
            secure: match bytes[3] & 3 {
                1 => SecureChannel::Required,
                2 => SecureChannel::NotRequired,
                _ => SecureChannel::Unspecified,
            },
            without_flow_control: bytes[3] & 4 != 0,
            port: le::get16(&bytes[4..]),
            controller: le::get16(&bytes[6..]),
            admin_queue_len: le::get16(&bytes[8..]),
            subsystem: Nqn::decode(bytes[SUBSYSTEM..].first_chunk()?).ok()?,
            address: text(&bytes[ADDRESS..SECURITY])?,
            service: text(&bytes[SERVICE..SERVICE + SERVICE_LEN])?,
            security: bytes[SECURITY],
        })
    }

    /// Encodes the entry. Texts that are too long are cut.
    pub fn encode(&self) -> [u8; DiscoveryEntry::LEN] {
        let mut bytes = [0; DiscoveryEntry::LEN];
        bytes[0] = self.transport.encode();
        bytes[1] = self.family.encode();
        bytes[2] = self.kind.encode();
        let secure = match self.secure {
            SecureChannel::Unspecified => 0,
            SecureChannel::Required => 1,
            SecureChannel::NotRequired => 2,
        };
        bytes[3] = secure | u8::from(self.without_flow_control) << 2;
        le::put16(&mut bytes[4..], self.port);
        le::put16(&mut bytes[6..], self.controller);
        le::put16(&mut bytes[8..], self.admin_queue_len);
        put_text(&mut bytes[SERVICE..SERVICE + SERVICE_LEN], &self.service);
        bytes[SUBSYSTEM..SUBSYSTEM + NQN_LEN].copy_from_slice(&self.subsystem.encode());
        put_text(&mut bytes[ADDRESS..SECURITY], &self.address);
        bytes[SECURITY] = self.security;
        bytes
    }
}

/// The text of a field, which ends with zeros or spaces.
fn text(field: &[u8]) -> Option<String> {
    let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let text = str::from_utf8(&field[..len]).ok()?.trim_end_matches(' ');
    (!text.chars().any(char::is_control)).then(|| text.to_owned())
}

fn put_text(field: &mut [u8], text: &str) {
    field.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
}
