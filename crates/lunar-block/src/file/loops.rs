//! The backing files of loop devices. The kernel identifies the file itself, even if its path leads elsewhere.
#![allow(unsafe_code)]

use crate::FileId;
use rustix::ioctl::{Getter, Opcode, ioctl};
use std::fs::File;
use std::path::Path;

/// `linux/loop.h`.
const LOOP_GET_STATUS64: Opcode = 0x4c05;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// The backing file of a loop device, or None without permission to open the device. If the backing file is a block
/// device, the second id is that of the device.
pub fn backing(device: &Path) -> Option<[FileId; 2]> {
    let device = File::open(device).ok()?;
    // SAFETY: the opcode writes a `struct loop_info64`. `LoopInfo64` has its layout, and accepts any bytes.
    let info = unsafe { ioctl(&device, Getter::<LOOP_GET_STATUS64, LoopInfo64>::new()) }.ok()?;
    Some([FileId::File(info.device, info.inode), FileId::Device(info.rdevice)])
}
