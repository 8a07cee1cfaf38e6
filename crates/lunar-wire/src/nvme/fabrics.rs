//! Fabrics commands: Connect, and access to properties.

use super::{InvalidNqn, NQN_LEN, Nqn, NvmeStatus, SglDescriptor, Sqe, admin_opcode, fabrics_type};
use crate::le;

/// A controller that the target chooses (CNTLID of Connect).
const DYNAMIC: u16 = 0xffff;

/// The entry of a Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectCommand {
    /// The queue: 0 for the admin queue.
    pub queue: u16,
    /// Entries of the queue. The field is 0-based.
    pub queue_len: u32,
    /// The completions need not report the head of the queue (CATTR bit 2).
    pub disables_flow_control: bool,
    /// The time-out of Keep Alive in milliseconds; 0: there is none. Only on the admin queue.
    pub keep_alive_ms: u32,
}

/// A parameter of Connect that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectFault {
    /// The status.
    pub status: NvmeStatus,
    /// The offset of the parameter.
    pub offset: u16,
    /// It is in the data, not in the command.
    pub in_data: bool,
}

impl ConnectFault {
    /// The result of the completion.
    pub fn result(&self) -> u64 {
        u64::from(self.offset) | u64::from(self.in_data) << 16
    }
}

impl ConnectCommand {
    /// Decodes an entry.
    ///
    /// # Errors
    /// The format of the command is unknown, or the queue has less than two entries.
    pub fn decode(sqe: &Sqe) -> Result<ConnectCommand, ConnectFault> {
        let bytes = &sqe.0;
        let fault = |status, offset| ConnectFault { status, offset, in_data: false };
        if le::get16(&bytes[40..]) != 0 {
            return Err(fault(NvmeStatus::CONNECT_FORMAT, 40));
        }
        let size = le::get16(&bytes[44..]);
        if size == 0 {
            return Err(fault(NvmeStatus::CONNECT_PARAMETERS, 44));
        }
        Ok(ConnectCommand {
            queue: le::get16(&bytes[42..]),
            queue_len: u32::from(size) + 1,
            disables_flow_control: bytes[46] & 4 != 0,
            keep_alive_ms: le::get32(&bytes[48..]),
        })
    }

    /// The entry, whose data follow in the capsule.
    pub fn encode(&self, id: u16) -> Sqe {
        let mut sqe = Sqe::new(admin_opcode::FABRICS, id, u32::from(fabrics_type::CONNECT));
        le::put16(&mut sqe.0[42..], self.queue);
        le::put16(&mut sqe.0[44..], self.queue_len.saturating_sub(1) as u16);
        sqe.0[46] = u8::from(self.disables_flow_control) << 2;
        le::put32(&mut sqe.0[48..], self.keep_alive_ms);
        sqe.with_data(SglDescriptor::in_capsule(ConnectData::LEN as u32))
    }
}

/// The data of a Connect command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// The identifier of the host (HOSTID).
    pub host_id: [u8; 16],
    /// The controller; `None`: the target chooses one.
    pub controller: Option<u16>,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host.
    pub host: Nqn,
}

const SUBSYSTEM: usize = 256;
const HOST: usize = SUBSYSTEM + NQN_LEN;

impl ConnectData {
    /// Its length in bytes.
    pub const LEN: usize = 1024;

    /// Decodes the data. A host without a name, such as `spdk_nvme_perf`, gets the one that contains its identifier.
    ///
    /// # Errors
    /// A name is malformed, or the host has neither a name nor an identifier.
    pub fn decode(data: &[u8; ConnectData::LEN]) -> Result<ConnectData, ConnectFault> {
        let name = |at: usize| {
            let field: &[u8; NQN_LEN] = data[at..].first_chunk().expect("it is within the data");
            let fault = |_: InvalidNqn| ConnectFault {
                status: if at == HOST { NvmeStatus::CONNECT_HOST } else { NvmeStatus::CONNECT_PARAMETERS },
                offset: at as u16,
                in_data: true,
            };
            Nqn::decode(field).map_err(fault)
        };
        let (controller, subsystem) = (le::get16(&data[16..]), name(SUBSYSTEM)?);
        let host_id: [u8; 16] = *data.first_chunk().expect("it is at the start");
        let is_nameless = data[HOST] == 0 && host_id != [0; 16];
        let host = if is_nameless { Nqn::of_uuid(&host_id) } else { name(HOST)? };
        Ok(ConnectData {
            host_id,
            controller: (controller != DYNAMIC).then_some(controller),
            subsystem,
            host,
        })
    }

    /// Encodes the data.
    pub fn encode(&self) -> [u8; ConnectData::LEN] {
        let mut data = [0; ConnectData::LEN];
        data[..16].copy_from_slice(&self.host_id);
        le::put16(&mut data[16..], self.controller.unwrap_or(DYNAMIC));
        data[SUBSYSTEM..HOST].copy_from_slice(&self.subsystem.encode());
        data[HOST..HOST + NQN_LEN].copy_from_slice(&self.host.encode());
        data
    }
}

/// Property Get and Property Set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// The offset of the property.
    pub offset: u32,
    /// It has 8 bytes instead of 4.
    pub is_long: bool,
    /// The new value of Property Set.
    pub value: u64,
}

impl PropertyAccess {
    /// Decodes an entry. `None`: the size is reserved.
    pub fn decode(sqe: &Sqe) -> Option<PropertyAccess> {
        let is_long = match sqe.0[40] & 7 {
            0 => false,
            1 => true,
            _ => return None,
        };
        let value = le::get64(&sqe.0[48..]);
        let value = if is_long { value } else { value & u64::from(u32::MAX) };
        Some(PropertyAccess { offset: le::get32(&sqe.0[44..]), is_long, value })
    }

    /// The entry of a Property Get or Property Set.
    pub fn encode(&self, id: u16, sets: bool) -> Sqe {
        let kind = if sets { fabrics_type::PROPERTY_SET } else { fabrics_type::PROPERTY_GET };
        let mut sqe = Sqe::new(admin_opcode::FABRICS, id, u32::from(kind));
        sqe.0[40] = u8::from(self.is_long);
        le::put32(&mut sqe.0[44..], self.offset);
        le::put64(&mut sqe.0[48..], if sets { self.value } else { 0 });
        sqe
    }
}

/// The property CC, the controller configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfiguration(pub u32);

impl ControllerConfiguration {
    /// The controller is enabled (EN).
    pub fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// The command set (CSS): 0 for NVM, 6 for all sets.
    pub fn command_set(self) -> u8 {
        (self.0 >> 4) as u8 & 7
    }

    /// The size of memory pages: 2 to the power of 12 and this (MPS).
    pub fn page_shift(self) -> u8 {
        (self.0 >> 7) as u8 & 15
    }

    /// The arbitration of queues (AMS).
    pub fn arbitration(self) -> u8 {
        (self.0 >> 11) as u8 & 7
    }

    /// A shutdown is requested (SHN).
    pub fn is_shutdown(self) -> bool {
        self.0 >> 14 & 3 != 0
    }

    /// The binary logarithms of the sizes of queue entries: submission (IOSQES) and completion (IOCQES).
    pub fn entry_sizes(self) -> (u8, u8) {
        ((self.0 >> 16) as u8 & 15, (self.0 >> 20) as u8 & 15)
    }
}
