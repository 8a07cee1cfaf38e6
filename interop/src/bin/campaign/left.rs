//! Commands whose session ends before the server has received all of them.

use interop::scsi::{WRITE, cdb10, write10};
use interop::{NONE, Pdu, Raw, op};

/// Bytes of a block.
pub const BLOCK: usize = 512;
/// Blocks of a long write, of 2.5 MiB.
pub const LONG_BLOCKS: u16 = 5120;
/// Blocks of it that may be stored before its last bytes arrive: two pieces of 1 MiB.
pub const STORED_BLOCKS: usize = 4096;
/// Bytes of its data segments. The last [`HELD`] segments are held back, which fit into the socket buffer of a
/// stopped server.
const SEGMENT: usize = 8192;
const HELD: usize = 4;

/// The kind of an old command, and how its data arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateKind {
    Immediate,
    /// With an additional header segment.
    Extended,
    Unsolicited,
    /// The R2T arrives before the session ends.
    Solicited,
    /// Longer than one R2T: the target stores it in pieces, and part of the data for the last R2T is held back.
    Long,
    /// It waits for a command with a lower CmdSN.
    BehindHole,
    Atomic,
    CompareAndWrite,
    Unmap,
    WriteSame,
}

/// Every kind.
pub const KINDS: [LateKind; 10] = [
    LateKind::Immediate,
    LateKind::Extended,
    LateKind::Unsolicited,
    LateKind::Solicited,
    LateKind::Long,
    LateKind::BehindHole,
    LateKind::Atomic,
    LateKind::CompareAndWrite,
    LateKind::Unmap,
    LateKind::WriteSame,
];

impl LateKind {
    /// Whether R2Ts ask for all of its data.
    pub fn is_asked_for(self) -> bool {
        matches!(self, LateKind::Solicited | LateKind::Long)
    }
}

/// A command with Data-Out, or one that writes without it.
#[derive(Clone, Copy, Debug)]
pub struct LateCommand {
    pub kind: LateKind,
    pub lun: u16,
    pub lba: u32,
    pub blocks: u16,
    /// The stamp that COMPARE AND WRITE compares with
    pub compared: u64,
    /// The stamp that it writes
    pub stamp: u64,
}

/// Blocks that repeat this stamp.
pub fn stamped(stamp: u64, blocks: u16) -> Vec<u8> {
    stamp.to_be_bytes().repeat(usize::from(blocks) * BLOCK / 8)
}

fn cdb16(opcode: u8, lba: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[6..10].copy_from_slice(&lba.to_be_bytes());
    cdb[12..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn compare_and_write(lba: u32) -> [u8; 16] {
    let mut cdb = cdb16(0x89, lba, 0);
    cdb[13] = 1;
    cdb
}

fn write_same(lba: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = cdb16(0x93, lba, 0);
    cdb[12..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn unmap(lba: u32, blocks: u16) -> Vec<u8> {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0];
    list.extend(lba.to_be_bytes());
    list.extend(u32::from(blocks).to_be_bytes());
    list.extend([0; 4]);
    list
}

impl LateCommand {
    /// Returns the late PDUs. Sends those that the server must receive before.
    pub fn pdus(&self, raw: &mut Raw) -> Vec<Pdu> {
        let LateCommand { kind, lun, lba, blocks, compared, stamp } = *self;
        let data = &stamped(stamp, blocks)[..];
        let length = data.len() as u32;
        let with = |raw: &mut Raw, cdb: &[u8], data: &[u8]| {
            whole(raw.command(lun, 0x80 | WRITE, cdb, data.len() as u32), raw, data)
        };
        match kind {
            LateKind::Immediate | LateKind::BehindHole => with(raw, &write10(lba, blocks), data),
            LateKind::Extended => {
                // An AHS with a bidirectional read length, which WRITE ignores (RFC 7143 section 11.2.2.4).
                let command = raw.command(lun, 0x80 | WRITE, &write10(lba, blocks), length);
                whole(command.ahs(&[0, 5, 2, 0, 0, 0, 0, 0]), raw, data)
            }
            LateKind::Unsolicited => {
                let command = raw.command(lun, WRITE, &write10(lba, blocks), length);
                let mut pdus = vec![command.clone()];
                pdus.extend(data_outs(
                    raw,
                    [command.tag(), NONE],
                    0,
                    &data[..data.len().min(raw.first_burst)],
                ));
                pdus
            }
            LateKind::Solicited => {
                let command = raw.command(lun, 0x80 | WRITE, &write10(lba, blocks), length);
                raw.send(&command);
                let r2t = raw.recv_for(command.tag());
                assert_eq!((r2t.opcode(), r2t.get32(44)), (op::R2T, length), "{r2t:?}");
                asked_for(raw, &r2t, data)
            }
            LateKind::Long => {
                raw.send_max = raw.send_max.min(SEGMENT);
                let command = raw.command(lun, 0x80 | WRITE, &write10(lba, blocks), length);
                raw.send(&command);
                loop {
                    let r2t = raw.recv_for(command.tag());
                    assert_eq!(r2t.opcode(), op::R2T, "{r2t:?}");
                    let mut pdus = asked_for(raw, &r2t, data);
                    let is_last = r2t.get32(40) + r2t.get32(44) == length;
                    let held = pdus.split_off(pdus.len() - if is_last { HELD } else { 0 });
                    raw.send_all(&pdus);
                    if is_last {
                        return held;
                    }
                }
            }
            LateKind::Atomic => with(raw, &cdb16(0x9c, lba, blocks), data),
            LateKind::CompareAndWrite => {
                with(raw, &compare_and_write(lba), &[&stamped(compared, 1), data].concat())
            }
            LateKind::Unmap => with(raw, &cdb10(0x42, 0, 24), &unmap(lba, blocks)),
            LateKind::WriteSame => with(raw, &write_same(lba, blocks), &data[..BLOCK]),
        }
    }
}

/// A command with its first data. The rest of its data is never sent.
fn whole(command: Pdu, raw: &Raw, data: &[u8]) -> Vec<Pdu> {
    vec![command.data(&data[..data.len().min(raw.send_max).min(raw.first_burst)])]
}

/// The data that an R2T asks for.
fn asked_for(raw: &Raw, r2t: &Pdu, data: &[u8]) -> Vec<Pdu> {
    let (from, length) = (r2t.get32(40) as usize, r2t.get32(44) as usize);
    let lun: [u8; 8] = r2t.bhs[8..16].try_into().expect("8 bytes");
    let pdus = data_outs(raw, [r2t.tag(), r2t.transfer_tag()], from, &data[from..from + length]);
    pdus.into_iter().map(|pdu| pdu.bytes(8, &lun)).collect()
}

/// A sequence of Data-Out with these initiator and target transfer tags; its data have this offset in those of the command.
fn data_outs(raw: &Raw, tags: [u32; 2], from: usize, data: &[u8]) -> Vec<Pdu> {
    let pieces = data.chunks(raw.send_max).enumerate();
    let last = data.len().div_ceil(raw.send_max) - 1;
    let piece = |(sn, part): (usize, &[u8])| {
        let pdu = raw.data_out(tags[0], tags[1], sn as u32, (from + sn * raw.send_max) as u32, part);
        pdu.flags(if sn == last { 0x80 } else { 0 })
    };
    pieces.map(piece).collect()
}
