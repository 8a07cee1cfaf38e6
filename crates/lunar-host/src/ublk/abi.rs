//! The interface of the ublk driver: the structures and numbers of `linux/ublk_cmd.h`, in native byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The size of a sector as a power of two. The driver counts in sectors, whatever the logical block size.
pub(super) const SECTOR_SHIFT: u32 = 9;
/// The maximum depth of a queue.
pub(super) const MAX_DEPTH: u16 = 4096;
/// The `queue_id` of a command that does not concern a queue.
pub(super) const NO_QUEUE: u16 = u16::MAX;

/// Features of a device or of the driver.
pub(super) mod feature {
    /// The device survives the end of its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Unfinished requests of a dead server are sent to the next one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// The capacity can change while the device is in use.
    pub const UPDATE_SIZE: u64 = 1 << 10;
}

/// States of a device.
pub(super) mod state {
    /// A server serves it.
    pub const LIVE: u16 = 1;
    /// Its server is gone, and it waits for another one.
    pub const QUIESCED: u16 = 2;
}

/// A command to `/dev/ublk-control` or of a queue. The driver accepts each as a plain number, and since Linux 6.4
/// also as an ioctl number. Kernels can be built without support for the plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UblkCommand {
    number: u8,
    /// The size of the command's structure in bytes.
    size: u8,
    direction: IoctlDirection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoctlDirection {
    Read = 2,
    ReadWrite = 3,
}

impl UblkCommand {
    pub const GET_DEV_INFO: UblkCommand = UblkCommand::control(0x02, IoctlDirection::Read);
    pub const ADD_DEV: UblkCommand = UblkCommand::control(0x04, IoctlDirection::ReadWrite);
    pub const DEL_DEV: UblkCommand = UblkCommand::control(0x05, IoctlDirection::ReadWrite);
    pub const START_DEV: UblkCommand = UblkCommand::control(0x06, IoctlDirection::ReadWrite);
    pub const STOP_DEV: UblkCommand = UblkCommand::control(0x07, IoctlDirection::ReadWrite);
    pub const SET_PARAMS: UblkCommand = UblkCommand::control(0x08, IoctlDirection::ReadWrite);
    pub const GET_PARAMS: UblkCommand = UblkCommand::control(0x09, IoctlDirection::Read);
    pub const START_USER_RECOVERY: UblkCommand = UblkCommand::control(0x10, IoctlDirection::ReadWrite);
    pub const END_USER_RECOVERY: UblkCommand = UblkCommand::control(0x11, IoctlDirection::ReadWrite);
    pub const GET_FEATURES: UblkCommand = UblkCommand::control(0x13, IoctlDirection::Read);
    pub const UPDATE_SIZE: UblkCommand = UblkCommand::control(0x15, IoctlDirection::ReadWrite);
    /// Fetches a request. The first command of each tag.
    pub const FETCH: UblkCommand = UblkCommand::queue(0x20);
    /// Completes a request and fetches the next one.
    pub const COMMIT_AND_FETCH: UblkCommand = UblkCommand::queue(0x21);

    const fn control(number: u8, direction: IoctlDirection) -> UblkCommand {
        UblkCommand { number, size: size_of::<ControlCommand>() as u8, direction }
    }

    const fn queue(number: u8) -> UblkCommand {
        UblkCommand { number, size: size_of::<IoCommand>() as u8, direction: IoctlDirection::ReadWrite }
    }

    /// The opcode, as an ioctl or a plain number.
    pub fn code(self, as_ioctl: bool) -> u32 {
        let number = u32::from(self.number);
        match as_ioctl {
            true => (self.direction as u32) << 30 | u32::from(self.size) << 16 | 0x75 << 8 | number,
            false => number,
        }
    }
}

/// `ublksrv_ctrl_cmd`: the payload of a command to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub dev_id: u32,
    pub queue_id: u16,
    /// The length of the buffer at `addr` in bytes.
    pub len: u16,
    pub addr: u64,
    pub data: u64,
    pub reserved: u64,
}

/// `ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub pad0: u16,
    /// The maximum length of a read or write in bytes.
    pub max_io_bytes: u32,
    pub id: u32,
    /// The process of the server.
    pub pid: i32,
    pub pad1: u32,
    pub flags: u64,
    /// Flags of the server. The driver only stores them.
    pub server_flags: u64,
    pub reserved: [u64; 3],
}

/// `ublk_params`, with the two used types of parameters.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Params {
    /// The length of this structure in bytes.
    pub len: u32,
    pub types: u32,
    pub basic: Basic,
    pub discard: Discard,
    pub pad: u32,
}

/// Flag of [`Params::types`]: `basic` is valid.
pub(super) const PARAM_BASIC: u32 = 1;
/// Flag of [`Params::types`]: `discard` is valid.
pub(super) const PARAM_DISCARD: u32 = 2;

/// `ublk_param_basic`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Basic {
    pub attributes: u32,
    pub logical_shift: u8,
    pub physical_shift: u8,
    pub optimal_shift: u8,
    pub minimum_shift: u8,
    pub max_sectors: u32,
    pub chunk_sectors: u32,
    pub sectors: u64,
    pub virt_boundary: u64,
}

/// Attributes of [`Basic`].
pub(super) mod attribute {
    pub const READ_ONLY: u32 = 1;
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    pub const FUA: u32 = 1 << 3;
}

/// `ublk_param_discard`, also for WRITE_ZEROES.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Discard {
    pub alignment: u32,
    pub granularity: u32,
    pub max_discard_sectors: u32,
    pub max_zeroes_sectors: u32,
    pub max_segments: u16,
    pub reserved: u16,
}

/// `ublksrv_io_cmd`: the payload of a queue's command.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IoCommand {
    pub queue: u16,
    pub tag: u16,
    /// The number of transferred bytes, 0, or a negative errno.
    pub result: i32,
    /// The buffer with the data of a completed read. It is also the buffer for the data of the next request.
    pub addr: u64,
}

/// `ublksrv_io_desc`: a request, in memory shared with the driver.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IoDescriptor {
    /// The operation in bits 0 to 7, and flags above them.
    pub op_flags: u32,
    pub sectors: u32,
    pub start: u64,
    pub addr: u64,
}

/// Operations of an [`IoDescriptor`].
pub(super) mod op {
    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const FLUSH: u8 = 2;
    pub const DISCARD: u8 = 3;
    pub const WRITE_ZEROES: u8 = 5;
}

impl IoDescriptor {
    const FUA: u32 = 1 << 13;
    const NO_UNMAP: u32 = 1 << 15;

    pub fn op(&self) -> u8 {
        self.op_flags as u8
    }

    /// Whether the request must be stable before it is completed.
    pub fn is_fua(&self) -> bool {
        self.op_flags & Self::FUA != 0
    }

    /// Whether zeroed blocks must stay allocated.
    pub fn keeps_space(&self) -> bool {
        self.op_flags & Self::NO_UNMAP != 0
    }

    /// The first byte.
    pub fn offset(&self) -> u64 {
        self.start << SECTOR_SHIFT
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        u64::from(self.sectors) << SECTOR_SHIFT
    }
}

/// The offset of a queue's requests in the mapping of the character device.
pub(super) fn requests_offset(queue: u16) -> u64 {
    u64::from(queue) * u64::from(MAX_DEPTH) * size_of::<IoDescriptor>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_the_kernels() {
        assert_eq!([size_of::<ControlCommand>(), size_of::<DeviceInfo>(), size_of::<Params>()], [32, 64, 64]);
        assert_eq!([size_of::<Basic>(), size_of::<Discard>()], [32, 20]);
        assert_eq!([size_of::<IoCommand>(), size_of::<IoDescriptor>()], [16, 24]);
        assert_eq!([offset_of!(ControlCommand, addr), offset_of!(ControlCommand, data)], [8, 16]);
        assert_eq!([offset_of!(DeviceInfo, max_io_bytes), offset_of!(DeviceInfo, pid)], [8, 16]);
        assert_eq!([offset_of!(DeviceInfo, flags), offset_of!(DeviceInfo, server_flags)], [24, 32]);
        assert_eq!([offset_of!(Params, basic), offset_of!(Params, discard)], [8, 40]);
        assert_eq!([offset_of!(Basic, max_sectors), offset_of!(Basic, sectors)], [8, 16]);
        assert_eq!([offset_of!(IoCommand, result), offset_of!(IoCommand, addr)], [4, 8]);
        assert_eq!([offset_of!(IoDescriptor, start), offset_of!(IoDescriptor, addr)], [8, 16]);
    }

    #[test]
    fn codes_are_the_kernels() {
        let codes = [
            (UblkCommand::GET_FEATURES, 0x8020_7513),
            (UblkCommand::GET_DEV_INFO, 0x8020_7502),
            (UblkCommand::ADD_DEV, 0xc020_7504),
            (UblkCommand::UPDATE_SIZE, 0xc020_7515),
            (UblkCommand::FETCH, 0xc010_7520),
            (UblkCommand::COMMIT_AND_FETCH, 0xc010_7521),
        ];
        for (command, code) in codes {
            assert_eq!(command.code(true), code, "{command:?}");
            assert_eq!(command.code(false), code & 0xff, "{command:?}");
        }
    }

    #[test]
    fn request_is_taken_apart() {
        let flags = u32::from(op::WRITE_ZEROES) | 1 << 13 | 1 << 15;
        let request = IoDescriptor { op_flags: flags, sectors: u32::MAX, start: 3, addr: 0 };
        assert_eq!((request.op(), request.is_fua(), request.keeps_space()), (op::WRITE_ZEROES, true, true));
        assert_eq!((request.offset(), request.len()), (1536, 0x1ff_ffff_fe00));
        assert_eq!(requests_offset(1) % 4096, 0);
    }
}
