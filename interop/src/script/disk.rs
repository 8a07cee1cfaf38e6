//! The disk of a scripted target: 512 KiB, with the commands that a host sends to discover and use a disk.

use super::connection::ScriptConnection;
use crate::pdu::{NONE, Pdu, op};

/// Bytes of a block.
pub const BLOCK: usize = 512;
/// Blocks of the disk.
pub const BLOCKS: usize = 1024;

/// ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE.
const UNKNOWN: [u8; 3] = [5, 0x20, 0];
/// ILLEGAL REQUEST, INVALID FIELD IN CDB.
const FIELD: [u8; 3] = [5, 0x24, 0];
/// ILLEGAL REQUEST, LOGICAL BLOCK ADDRESS OUT OF RANGE.
const RANGE: [u8; 3] = [5, 0x21, 0];

/// A write whose data have not all arrived.
pub struct Write {
    lun: [u8; 8],
    at: usize,
    data: Vec<u8>,
    got: usize,
    r2t_sn: u32,
}

/// The content of a new disk. Each block differs from its neighbours.
pub fn fresh() -> Vec<u8> {
    (0..BLOCKS * BLOCK).map(|i| (i / BLOCK * 7 + i) as u8).collect()
}

impl ScriptConnection {
    /// Executes a command as a disk does.
    pub(super) fn command(&mut self, pdu: &Pdu) {
        let cdb: [u8; 16] = pdu.bhs[32..].try_into().expect("16 bytes");
        match (cdb[0], cdb[1] & 0x1f) {
            (0x00, _) | (0x35 | 0x91, _) => self.good(pdu),
            (0x12, _) => match inquiry(&cdb) {
                Some(data) => self.data_in(pdu, &data),
                None => self.check_condition(pdu, FIELD),
            },
            (0x25, _) => self.data_in(pdu, &capacity()[4..12]),
            (0x9e, 0x10) => self.data_in(pdu, &capacity()),
            (0x5a, _) => self.data_in(pdu, &[0, 6, 0, 0, 0, 0, 0, 0]),
            (0xa0, _) => self.data_in(pdu, &[[0, 0, 0, 8, 0, 0, 0, 0], [0; 8]].concat()),
            (0x28 | 0x88, _) => match range(&cdb) {
                Some((at, len)) => {
                    let data = self.disk()[at..at + len].to_vec();
                    self.data_in(pdu, &data);
                }
                None => self.check_condition(pdu, RANGE),
            },
            (0x2a | 0x8a, _) => match range(&cdb) {
                Some((at, len)) => self.write(pdu, at, len),
                None => self.check_condition(pdu, RANGE),
            },
            _ => self.check_condition(pdu, UNKNOWN),
        }
    }

    /// Ends a command with status GOOD.
    pub fn good(&mut self, pdu: &Pdu) {
        let expected = pdu.get32(20);
        let residual = if expected > 0 && pdu.bhs[1] & 0x40 != 0 { 0x82 } else { 0x80 };
        let missing = if residual == 0x82 { expected } else { 0 };
        self.send(Pdu::new(op::SCSI_RESPONSE).flags(residual).itt(pdu.tag()).set32(44, missing));
    }

    /// Ends a command with CHECK CONDITION and this key, code and qualifier.
    pub fn check_condition(&mut self, pdu: &Pdu, sense: [u8; 3]) {
        let mut data = vec![0, 18, 0x70, 0, sense[0], 0, 0, 0, 0, 10];
        data.extend_from_slice(&[0, 0, 0, 0, sense[1], sense[2], 0, 0, 0, 0]);
        self.send(Pdu::new(op::SCSI_RESPONSE).itt(pdu.tag()).byte(3, 2).data(&data));
    }

    /// Sends Data-In PDUs within the limits of the initiator. The last one contains the status.
    pub fn data_in(&mut self, pdu: &Pdu, data: &[u8]) {
        let expected = pdu.get32(20) as usize;
        let sent = &data[..data.len().min(expected)];
        if sent.is_empty() {
            return self.good(pdu);
        }
        let (step, burst) = (self.send_max, self.number_of("MaxBurstLength", 262_144));
        let (mut at, mut data_sn) = (0, 0);
        while at < sent.len() {
            let len = step.min(sent.len() - at).min(burst - at % burst);
            let (last, ends) = (at + len == sent.len(), (at + len) % burst == 0);
            let mut answer = Pdu::new(op::DATA_IN).flags(u8::from(last || ends) << 7).itt(pdu.tag());
            answer = answer.ttt(NONE).set32(36, data_sn).set32(40, at as u32).data(&sent[at..at + len]);
            if last {
                let missing = expected - sent.len();
                answer = answer.flags(0x81 | u8::from(missing > 0) << 1).set32(44, missing as u32);
            }
            self.send(answer);
            (at, data_sn) = (at + len, data_sn + 1);
        }
    }

    fn write(&mut self, pdu: &Pdu, at: usize, len: usize) {
        let lun = pdu.bhs[8..16].try_into().expect("8 bytes");
        let mut write = Write { lun, at, data: vec![0; len], got: pdu.data.len(), r2t_sn: 0 };
        write.data[..pdu.data.len()].copy_from_slice(&pdu.data);
        self.writes.insert(pdu.tag(), write);
        if pdu.is_final() {
            self.resume(pdu);
        }
    }

    /// Receives a Data-Out. At the end of a sequence, requests the next sequence.
    pub(super) fn data_out(&mut self, pdu: &Pdu) {
        let Some(write) = self.writes.get_mut(&pdu.tag()) else { return };
        let at = pdu.get32(40) as usize;
        write.data[at..at + pdu.data.len()].copy_from_slice(&pdu.data);
        write.got += pdu.data.len();
        if pdu.is_final() {
            self.resume(pdu);
        }
    }

    fn resume(&mut self, pdu: &Pdu) {
        let burst = self.number_of("MaxBurstLength", 262_144);
        let Some(write) = self.writes.get_mut(&pdu.tag()) else { return };
        if write.got < write.data.len() {
            let len = burst.min(write.data.len() - write.got) as u32;
            let r2t = Pdu::new(op::R2T).bytes(8, &write.lun).itt(pdu.tag()).ttt(0x5000 + write.r2t_sn);
            let r2t = r2t.set32(36, write.r2t_sn).set32(40, write.got as u32).set32(44, len);
            write.r2t_sn += 1;
            return self.send(r2t);
        }
        let write = self.writes.remove(&pdu.tag()).expect("found before");
        self.disk()[write.at..write.at + write.data.len()].copy_from_slice(&write.data);
        self.send(Pdu::new(op::SCSI_RESPONSE).itt(pdu.tag()));
    }
}

/// Offset and length in bytes of READ and WRITE of 10 and 16 bytes.
fn range(cdb: &[u8; 16]) -> Option<(usize, usize)> {
    let number = |bytes: &[u8]| bytes.iter().fold(0usize, |n, b| n << 8 | *b as usize);
    let (lba, blocks) = match cdb[0] {
        0x28 | 0x2a => (number(&cdb[2..6]), number(&cdb[7..9])),
        _ => (number(&cdb[2..10]), number(&cdb[10..14])),
    };
    let ends = lba.checked_add(blocks)?;
    (ends <= BLOCKS).then_some((lba * BLOCK, blocks * BLOCK))
}

fn capacity() -> [u8; 32] {
    let mut data = [0; 32];
    data[..8].copy_from_slice(&(BLOCKS as u64 - 1).to_be_bytes());
    data[8..12].copy_from_slice(&(BLOCK as u32).to_be_bytes());
    data
}

fn inquiry(cdb: &[u8; 16]) -> Option<Vec<u8>> {
    match (cdb[1] & 1, cdb[2]) {
        (0, _) => {
            let mut data = vec![0, 0, 6, 2, 31, 0, 0, 2];
            data.extend_from_slice(b"SCRIPTEDA disk          0001");
            Some(data)
        }
        (_, 0x00) => Some(vec![0, 0, 0, 2, 0, 0x83]),
        (_, 0x83) => Some([&[0, 0x83, 0, 12, 1, 3, 0, 8][..], &[0x60, 1, 2, 3, 4, 5, 6, 7]].concat()),
        _ => None,
    }
}
