//! Login request, response and reject (SRP r16a sections 6.2 to 6.4). They travel in the private data of the connection
//! setup, which may be padded with zeros.

use super::error::of;
use super::{PortId, SrpError, opcode};
use crate::be;
use std::fmt;

/// Multichannel action: keep the other channels of the nexus.
const MULTI: u8 = 1;
const CHANNELS: u8 = 0x03;
const NOTIFICATIONS: u8 = 0x70;
/// Immediate data: wanted, or granted.
const IMMEDIATE: u8 = 0x80;

/// The layout of a login request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginFormat {
    /// InfiniBand connection manager: the 64 bytes of the standard.
    Ib,
    /// RDMA connection manager over IP: the 56 bytes that Linux defines.
    RdmaCm,
}

/// Offsets of the fields of a login request.
struct LoginLayout {
    opcode: usize,
    tag: usize,
    it_iu_len: usize,
    formats: usize,
    flags: usize,
    immediate_offset: usize,
    ports: [usize; 2],
}

const IB: LoginLayout = LoginLayout {
    opcode: 0,
    tag: 8,
    it_iu_len: 16,
    formats: 24,
    flags: 26,
    immediate_offset: 28,
    ports: [32, 48],
};
const RDMA_CM: LoginLayout = LoginLayout {
    opcode: 11,
    tag: 0,
    it_iu_len: 12,
    formats: 8,
    flags: 10,
    immediate_offset: 48,
    ports: [16, 32],
};

impl LoginFormat {
    /// Bytes of a login request.
    pub const fn request_len(self) -> usize {
        match self {
            LoginFormat::Ib => 64,
            LoginFormat::RdmaCm => 56,
        }
    }

    fn layout(self) -> &'static LoginLayout {
        match self {
            LoginFormat::Ib => &IB,
            LoginFormat::RdmaCm => &RDMA_CM,
        }
    }
}

/// A login request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// Tag that the initiator chose.
    pub tag: u64,
    /// Maximum initiator-to-target information unit length, in bytes.
    pub it_iu_len: u32,
    /// Required data buffer [`format`](super::format)s.
    pub formats: u16,
    /// Multichannel action: true keeps the other channels of the nexus, false ends them.
    pub keep_channels: bool,
    /// Solicited notification: 0x10 for a logout, 0x20 for a credit request, 0x40 for an asynchronous event.
    pub notifications: u8,
    /// Requested offset of immediate data in a command; `None` without immediate data.
    pub immediate_offset: Option<u16>,
    /// Initiator port.
    pub initiator: PortId,
    /// Target port.
    pub target: PortId,
}

impl LoginRequest {
    /// Encodes the information unit.
    pub fn encode(&self, form: LoginFormat) -> Vec<u8> {
        let (at, mut b) = (form.layout(), vec![0; form.request_len()]);
        b[at.opcode] = opcode::LOGIN_REQUEST;
        be::put64(&mut b[at.tag..], self.tag);
        be::put32(&mut b[at.it_iu_len..], self.it_iu_len);
        be::put16(&mut b[at.formats..], self.formats);
        b[at.flags] = (u8::from(self.keep_channels) * MULTI) | (self.notifications & NOTIFICATIONS);
        if let Some(offset) = self.immediate_offset {
            b[at.flags] |= IMMEDIATE;
            be::put16(&mut b[at.immediate_offset..], offset);
        }
        for (at, port) in at.ports.into_iter().zip([self.initiator, self.target]) {
            b[at..at + 16].copy_from_slice(&port.0);
        }
        b
    }

    /// Decodes the private data of a connection request.
    ///
    /// # Errors
    /// They are too short, are no login request, or have a reserved multichannel code.
    pub fn decode(private: &[u8], form: LoginFormat) -> Result<LoginRequest, SrpError> {
        let at = form.layout();
        let short = SrpError::Short { needed: form.request_len() as u64, there: private.len() };
        let b = private.get(..form.request_len()).ok_or(short)?;
        if b[at.opcode] != opcode::LOGIN_REQUEST {
            return Err(SrpError::Opcode(b[at.opcode]));
        }
        let flags = b[at.flags];
        if flags & CHANNELS > MULTI {
            return Err(SrpError::Channels(flags & CHANNELS));
        }
        let [initiator, target] = at.ports.map(|at| PortId(std::array::from_fn(|i| b[at + i])));
        Ok(LoginRequest {
            tag: be::get64(&b[at.tag..]),
            it_iu_len: be::get32(&b[at.it_iu_len..]),
            formats: be::get16(&b[at.formats..]),
            keep_channels: flags & CHANNELS == MULTI,
            notifications: flags & NOTIFICATIONS,
            immediate_offset: (flags & IMMEDIATE != 0).then(|| be::get16(&b[at.immediate_offset..])),
            initiator,
            target,
        })
    }
}

/// Multichannel result: whether the nexus had other channels, and whether the target kept them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PreviousChannels {
    /// The nexus had no other channel.
    None = 0,
    /// The target ended them.
    Ended = 1,
    /// The target kept them.
    Kept = 2,
}

/// A login response: the target accepts the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// Initial request limit: requests that the initiator may have outstanding.
    pub credits: u32,
    /// The tag of the request.
    pub tag: u64,
    /// Maximum initiator-to-target information unit length, in bytes.
    pub it_iu_len: u32,
    /// Maximum target-to-initiator information unit length, in bytes.
    pub ti_iu_len: u32,
    /// Supported data buffer [`format`](super::format)s.
    pub formats: u16,
    /// Multichannel result.
    pub previous: PreviousChannels,
    /// The target accepts immediate data.
    pub immediate: bool,
}

impl LoginResponse {
    /// Bytes of the information unit.
    pub const LEN: usize = 52;

    /// Encodes the information unit.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = opcode::LOGIN_RESPONSE;
        be::put32(&mut b[4..], self.credits);
        be::put64(&mut b[8..], self.tag);
        be::put32(&mut b[16..], self.it_iu_len);
        be::put32(&mut b[20..], self.ti_iu_len);
        be::put16(&mut b[24..], self.formats);
        b[26] = self.previous as u8 | (u8::from(self.immediate) * IMMEDIATE);
        b
    }

    /// Decodes the private data of an accepted connection.
    ///
    /// # Errors
    /// They are too short, are no login response, or have a reserved multichannel code.
    pub fn decode(private: &[u8]) -> Result<LoginResponse, SrpError> {
        let b: &[u8; Self::LEN] = of(private, 0, opcode::LOGIN_RESPONSE)?;
        let previous = match b[26] & CHANNELS {
            0 => PreviousChannels::None,
            1 => PreviousChannels::Ended,
            2 => PreviousChannels::Kept,
            code => return Err(SrpError::Channels(code)),
        };
        Ok(LoginResponse {
            credits: be::get32(&b[4..]),
            tag: be::get64(&b[8..]),
            it_iu_len: be::get32(&b[16..]),
            ti_iu_len: be::get32(&b[20..]),
            formats: be::get16(&b[24..]),
            previous,
            immediate: b[26] & IMMEDIATE != 0,
        })
    }
}

/// The reason of a login reject (SRP r16a section 6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRejectReason(pub u32);

impl LoginRejectReason {
    /// The target cannot establish a channel; no other reason applies.
    pub const UNABLE: Self = Self(0x0001_0000);
    /// Insufficient channel resources.
    pub const NO_RESOURCES: Self = Self(0x0001_0001);
    /// The requested information unit length is too large.
    pub const IT_IU_TOO_LONG: Self = Self(0x0001_0002);
    /// The target port does not exist, or rejects this initiator.
    pub const NOT_ASSOCIATED: Self = Self(0x0001_0003);
    /// Unsupported data buffer formats.
    pub const FORMATS: Self = Self(0x0001_0004);
    /// The target supports no multichannel operation.
    pub const NO_MULTICHANNEL: Self = Self(0x0001_0005);
    /// The nexus has reached its channel limit.
    pub const TOO_MANY_CHANNELS: Self = Self(0x0001_0006);
}

impl fmt::Display for LoginRejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::UNABLE => "the target cannot make a channel",
            Self::NO_RESOURCES => "the target lacks resources",
            Self::IT_IU_TOO_LONG => "the initiator's information units are too long for the target",
            Self::NOT_ASSOCIATED => "no such target port, or not for this initiator",
            Self::FORMATS => "the target does not support the data buffer formats",
            Self::NO_MULTICHANNEL => "the target allows only one channel for each initiator",
            Self::TOO_MANY_CHANNELS => "too many channels",
            Self(code) => return write!(f, "reason {code:#010x}"),
        })
    }
}

/// A login reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginReject {
    /// The reason.
    pub reason: LoginRejectReason,
    /// The tag of the request.
    pub tag: u64,
    /// Supported data buffer [`format`](super::format)s.
    pub formats: u16,
}

impl LoginReject {
    /// Bytes of the information unit.
    pub const LEN: usize = 32;

    /// Encodes the information unit.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = opcode::LOGIN_REJECT;
        be::put32(&mut b[4..], self.reason.0);
        be::put64(&mut b[8..], self.tag);
        be::put16(&mut b[24..], self.formats);
        b
    }

    /// Decodes the private data of a rejected connection.
    ///
    /// # Errors
    /// They are too short, or are no login reject.
    pub fn decode(private: &[u8]) -> Result<LoginReject, SrpError> {
        let b: &[u8; Self::LEN] = of(private, 0, opcode::LOGIN_REJECT)?;
        let (reason, tag) = (LoginRejectReason(be::get32(&b[4..])), be::get64(&b[8..]));
        Ok(LoginReject { reason, tag, formats: be::get16(&b[24..]) })
    }
}
