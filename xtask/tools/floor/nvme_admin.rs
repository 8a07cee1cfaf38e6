//! The commands that hosts send before the first read: properties and Identify.

use crate::nvme_pdu::{get16, get32, put};

/// Bytes of a logical block.
pub const BLOCK_SIZE: u64 = 512;
/// Most bytes of data in a command capsule.
pub const IN_CAPSULE_BYTES: u32 = 8192;
/// Bytes that Identify returns.
const IDENTIFY: usize = 4096;
const BLOCKS: u64 = 1 << 31;
/// CAP: 1,024 entries per queue, contiguous queues, 5 s to become ready, the NVM command set.
const CAPABILITIES: u64 = 1023 | 1 << 16 | 10 << 24 | 1 << 37;
/// VS: 1.4.
const VERSION: u32 = 0x0001_0400;
const UUID: [u8; 16] = *b"\x11\x0f\xf1\x00\x0f\x10\x4f\x10\x8f\x10floor\x01";

/// The value of a property, with this controller configuration (CC). CSTS shows the end of each change at once.
pub fn property(offset: u32, configuration: u32) -> Option<u64> {
    let is_shut_down = configuration >> 14 & 3 != 0;
    Some(match offset {
        0x00 => CAPABILITIES,
        0x08 => VERSION.into(),
        0x14 => configuration.into(),
        0x1c => u64::from(configuration & 1) | u64::from(is_shut_down) << 3,
        _ => return None,
    })
}

/// The data of an Identify command (its SQE).
pub fn identify(sqe: &[u8], controller_id: u16) -> Option<Vec<u8>> {
    let mut data = vec![0; IDENTIFY];
    match sqe[40] {
        0x00 if get32(sqe, 4) == 1 => namespace(&mut data),
        0x01 => controller(&mut data, controller_id),
        0x02 => data[0] = u8::from(get32(sqe, 4) < 1),
        0x03 => {
            data[..2].copy_from_slice(&[3, 16]); // a UUID
            put(&mut data, 4, UUID);
        }
        0x00 | 0x06 => {}
        _ => return None,
    }
    data.truncate(get32(sqe, 32) as usize);
    Some(data)
}

fn namespace(data: &mut [u8]) {
    for at in [0, 8, 16] {
        put(data, at, BLOCKS.to_le_bytes());
    }
    data[130] = BLOCK_SIZE.trailing_zeros() as u8;
}

fn controller(data: &mut [u8], controller_id: u16) {
    data[4..72].fill(b' ');
    data[4..9].copy_from_slice(b"FLOOR");
    data[24..29].copy_from_slice(b"FLOOR");
    data[64..66].copy_from_slice(b"01");
    data[77] = 8; // MDTS: 1 MiB
    put(data, 78, controller_id.to_le_bytes());
    put(data, 80, VERSION.to_le_bytes());
    data[111] = 1; // I/O controller
    (data[258], data[259]) = (3, 3); // aborts and events, 0-based
    data[320] = 10; // KAS in 100 ms
    (data[512], data[513]) = (0x66, 0x44); // sizes of queue entries
    put(data, 514, 1024_u16.to_le_bytes()); // MAXCMD
    put(data, 516, 1_u32.to_le_bytes()); // namespaces
    put(data, 536, 0x0010_0001_u32.to_le_bytes()); // SGLs, addresses as offsets
    let name = b"nqn.2026-11.org.example:floor";
    data[768..768 + name.len()].copy_from_slice(name);
    put(data, 1792, ((64 + IN_CAPSULE_BYTES) / 16).to_le_bytes()); // IOCCSZ
    put(data, 1796, 1_u32.to_le_bytes()); // IORCSZ
    data[1803] = 1; // MSDBD
}

/// The bytes that Get Log Page requests.
pub fn log_page_len(sqe: &[u8]) -> usize {
    let dwords = u64::from(get16(sqe, 42)) | u64::from(get16(sqe, 44)) << 16;
    (dwords as usize + 1) * 4
}
