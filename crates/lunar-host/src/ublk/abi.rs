//! What passes between the ublk driver and a server of devices: the structures and numbers of
//! `linux/ublk_cmd.h`, in the machine's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a sector, the driver's unit of sizes and offsets, whatever the logical block.
pub(super) const SECTOR_SHIFT: u32 = 9;
/// Commands that a queue can hold at most.
pub(super) const MAX_DEPTH: u16 = 4096;
/// `queue_id` of a command that is about no queue.
pub(super) const NO_QUEUE: u16 = u16::MAX;

/// What a device or a driver can do.
pub(super) mod feature {
    /// The device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// What its server had not answered is asked of the next one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// The capacity can change while the device is in use.
    pub const UPDATE_SIZE: u64 = 1 << 10;
}

/// States of a device.
pub(super) mod state {
    /// It is served.
    pub const LIVE: u16 = 1;
    /// Its server is gone, it waits for another one.
    pub const QUIESCED: u16 = 2;
}

/// A command of `/dev/ublk-control`, or of a queue. The driver knows each by a bare number, and since
/// Linux 6.4 also in the form of an ioctl; kernels can be built without the bare numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UblkCommand {
    number: u8,
    /// Bytes of its structure.
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
    /// The first command of each tag: wait for a request.
    pub const FETCH: UblkCommand = UblkCommand::queue(0x20);
    /// Answers a request and waits for the next one.
    pub const COMMIT_AND_FETCH: UblkCommand = UblkCommand::queue(0x21);

    const fn control(number: u8, direction: IoctlDirection) -> UblkCommand {
        UblkCommand { number, size: size_of::<ControlCommand>() as u8, direction }
    }

    const fn queue(number: u8) -> UblkCommand {
        UblkCommand { number, size: size_of::<IoCommand>() as u8, direction: IoctlDirection::ReadWrite }
    }

    /// The operation's code, as an ioctl or bare.
    pub fn code(self, as_ioctl: bool) -> u32 {
        let number = u32::from(self.number);
        match as_ioctl {
            true => (self.direction as u32) << 30 | u32::from(self.size) << 16 | 0x75 << 8 | number,
            false => number,
        }
    }
}

/// `ublksrv_ctrl_cmd`: the inner part of a command to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub dev_id: u32,
    pub queue_id: u16,
    /// Bytes at `addr`.
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
    /// The longest read or write in bytes.
    pub max_io_bytes: u32,
    pub id: u32,
    /// The server's process.
    pub pid: i32,
    pub pad1: u32,
    pub flags: u64,
    /// The server's own; the driver keeps it.
    pub server_flags: u64,
    pub reserved: [u64; 3],
}

/// `ublk_params` with the two kinds of parameters that are used here.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Params {
    /// Bytes of this structure that count.
    pub len: u32,
    pub types: u32,
    pub basic: Basic,
    pub discard: Discard,
    pub pad: u32,
}

/// [`Params::types`]: `basic` counts.
pub(super) const PARAM_BASIC: u32 = 1;
/// [`Params::types`]: `discard` counts.
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

/// `ublk_param_discard`, for WRITE ZEROES too.
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

/// `ublksrv_io_cmd`: the inner part of a queue's command.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IoCommand {
    pub queue: u16,
    pub tag: u16,
    /// Bytes done, 0 or a negative errno.
    pub result: i32,
    /// Of the buffer for the next request's data, and of the data of the read that is answered.
    pub addr: u64,
}

/// `ublksrv_io_desc`: a request, in the memory that the driver shares.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IoDescriptor {
    /// Operation in bits 0 to 7, flags above.
    pub op_flags: u32,
    pub sectors: u32,
    pub start: u64,
    pub addr: u64,
}

/// Operations of a [`IoDescriptor`].
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

    /// To be stable before it is answered.
    pub fn is_fua(&self) -> bool {
        self.op_flags & Self::FUA != 0
    }

    /// Zeros that keep their space.
    pub fn keeps_space(&self) -> bool {
        self.op_flags & Self::NO_UNMAP != 0
    }

    /// First byte.
    pub fn offset(&self) -> u64 {
        self.start << SECTOR_SHIFT
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        u64::from(self.sectors) << SECTOR_SHIFT
    }
}

/// Where in the character device's mapping the requests of a queue stand.
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
