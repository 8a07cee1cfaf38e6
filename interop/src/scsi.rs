//! SCSI commands over a raw connection: sending them, their data, and their responses.

use crate::pdu::{NONE, Pdu, op};
use crate::raw::Raw;

/// The R and W flags of a SCSI Command, to be combined with F (0x80) and a task attribute.
pub const READ: u8 = 0x40;
pub const WRITE: u8 = 0x20;

/// The result of a command.
#[derive(Debug)]
pub struct Reply {
    /// The iSCSI response code; 0 if Data-In contained the status.
    pub response: u8,
    pub status: u8,
    /// o, u, O, U of the response, or O, U of the last Data-In.
    pub flags: u8,
    pub residual: u32,
    /// Sense data without its length prefix.
    pub sense: Vec<u8>,
    pub data: Vec<u8>,
    /// All PDUs of the task, in order.
    pub pdus: Vec<Pdu>,
}

impl Reply {
    /// Sense key, ASC and ASCQ as one number, such as 0x052400; 0 without sense data.
    pub fn sense(&self) -> u32 {
        sense(&self.sense)
    }

    /// Returns the data. Fails unless the status is GOOD.
    pub fn good(self) -> Vec<u8> {
        assert_eq!(
            (self.response, self.status),
            (0, 0),
            "sense {:06x}: {:?}",
            self.sense(),
            self.pdus.last()
        );
        self.data
    }

    /// Fails unless the status is CHECK CONDITION with this sense.
    pub fn check(self, expected: u32) {
        assert_eq!((self.response, self.status), (0, 2), "{:?}", self.pdus.last());
        assert_eq!(self.sense(), expected, "sense {:06x}, expected {expected:06x}", self.sense());
    }

    /// The R2Ts of the task.
    pub fn r2ts(&self) -> Vec<&Pdu> {
        self.pdus.iter().filter(|p| p.opcode() == op::R2T).collect()
    }
}

/// Sense key, ASC and ASCQ as one number.
pub fn sense(bytes: &[u8]) -> u32 {
    let at = |i: usize| bytes.get(i).copied().unwrap_or(0) as u32;
    match at(0) & 0x7f {
        0x70 | 0x71 => (at(2) & 0xf) << 16 | at(12) << 8 | at(13),
        0x72 | 0x73 => (at(1) & 0xf) << 16 | at(2) << 8 | at(3),
        _ => 0,
    }
}

/// READ(10) of `blocks` from `lba`.
pub fn read10(lba: u32, blocks: u16) -> [u8; 10] {
    cdb10(0x28, lba, blocks)
}

/// WRITE(10) of `blocks` at `lba`.
pub fn write10(lba: u32, blocks: u16) -> [u8; 10] {
    cdb10(0x2a, lba, blocks)
}

/// A CDB of 10 bytes with its LBA in bytes 2 to 5 and its length in bytes 7 and 8.
pub fn cdb10(opcode: u8, lba: u32, length: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&length.to_be_bytes());
    cdb
}

/// INQUIRY, standard or of a VPD page.
pub fn inquiry(page: Option<u8>, allocation: u16) -> [u8; 6] {
    let [high, low] = allocation.to_be_bytes();
    [0x12, page.is_some() as u8, page.unwrap_or(0), high, low, 0]
}

/// PERSISTENT RESERVE OUT with the basic parameter list (SPC-4 section 6.16): action, type, reservation key,
/// service action key, flags of byte 20 (SPEC_I_PT 8, ALL_TG_PT 4, APTPL 1).
pub fn reserve_out(
    raw: &mut Raw,
    lun: u16,
    action: u8,
    kind: u8,
    key: u64,
    action_key: u64,
    flags: u8,
) -> Reply {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    list[20] = flags;
    raw.write(lun, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list)
}

/// The keys of PERSISTENT RESERVE IN, READ KEYS, sorted.
pub fn read_keys(raw: &mut Raw, lun: u16) -> Vec<u64> {
    let data = raw.read(lun, &[0x5e, 0, 0, 0, 0, 0, 0, 0xff, 0xf8, 0], 0xfff8).good();
    let key = |k: &[u8]| u64::from_be_bytes(k.try_into().expect("8 bytes"));
    let mut keys: Vec<u64> = data[8..].chunks_exact(8).map(key).collect();
    keys.sort();
    keys
}

/// The NAA designator of a LUN, of VPD page 83h.
pub fn designator(raw: &mut Raw, lun: u16) -> Vec<u8> {
    let page = raw.read(lun, &inquiry(Some(0x83), 1024), 1024).good();
    let mut at = 4;
    while page[at + 1] & 0x3f != 3 {
        at += 4 + page[at + 3] as usize;
    }
    page[at..at + 4 + page[at + 3] as usize].to_vec()
}

/// EXTENDED COPY of `blocks` blocks from the beginning of one logical unit to block 9 of another, by their
/// designators: the CDB and its parameter list.
pub fn extended_copy(from: &[u8], to: &[u8], blocks: u16) -> ([u8; 16], Vec<u8>) {
    let mut list = vec![0u8; 16];
    (list[3], list[11]) = (64, 28);
    for designator in [from, to] {
        let mut descriptor = vec![0u8; 32];
        descriptor[0] = 0xe4;
        descriptor[4..4 + designator.len()].copy_from_slice(designator);
        descriptor[30] = 2;
        list.extend_from_slice(&descriptor);
    }
    let mut segment = [0u8; 28];
    (segment[0], segment[3], segment[7], segment[27]) = (2, 0x18, 1, 9);
    segment[10..12].copy_from_slice(&blocks.to_be_bytes());
    list.extend_from_slice(&segment);
    let mut cdb = [0u8; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    (cdb, list)
}

/// Bytes that differ from block to block and within a block.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8) ^ ((i / 251) as u8).wrapping_mul(31) ^ seed).collect()
}

impl Raw {
    /// A SIMPLE command with the next CmdSN and a new tag. `flags` contains F, R and W.
    pub fn command(&mut self, lun: u16, flags: u8, cdb: &[u8], expected: u32) -> Pdu {
        self.request(op::SCSI).flags(flags | 1).lun(lun).set32(20, expected).bytes(32, cdb)
    }

    /// Sends a command without data, and waits for its end.
    pub fn simple(&mut self, lun: u16, cdb: &[u8]) -> Reply {
        let pdu = self.command(lun, 0x80, cdb, 0);
        self.execute(&pdu, &[])
    }

    /// Sends a command that reads up to `expected` bytes.
    pub fn read(&mut self, lun: u16, cdb: &[u8], expected: u32) -> Reply {
        let pdu = self.command(lun, 0x80 | READ, cdb, expected);
        self.execute(&pdu, &[])
    }

    /// Sends a command that writes `data`: immediate data as negotiated, the rest in response to R2Ts.
    pub fn write(&mut self, lun: u16, cdb: &[u8], data: &[u8]) -> Reply {
        let now = if self.immediate_data { data.len().min(self.first_burst).min(self.send_max) } else { 0 };
        let pdu = self.command(lun, 0x80 | WRITE, cdb, data.len() as u32).data(&data[..now]);
        self.execute(&pdu, data)
    }

    /// Writes blocks of 512 bytes.
    pub fn write_blocks(&mut self, lun: u16, lba: u32, data: &[u8]) -> Reply {
        self.write(lun, &write10(lba, (data.len() / 512) as u16), data)
    }

    /// Reads blocks of 512 bytes.
    pub fn read_blocks(&mut self, lun: u16, lba: u32, blocks: u16) -> Vec<u8> {
        self.read(lun, &read10(lba, blocks), blocks as u32 * 512).good()
    }

    /// Repeats a command until its status is no unit attention. A router may receive an event of its storage late.
    pub fn settled(&mut self, mut command: impl FnMut(&mut Raw) -> Reply) -> Reply {
        (0..8).map(|_| command(self)).find(|reply| reply.sense() >> 16 != 6).expect("unit attentions end")
    }

    /// Sends TEST UNIT READY until no unit attention is pending. An absent LUN is ignored.
    pub fn clear_attentions(&mut self, lun: u16) {
        for _ in 0..8 {
            if self.simple(lun, &[0; 6]).sense() >> 16 != 6 {
                return;
            }
        }
        panic!("unit attentions of LUN {lun} do not end");
    }

    /// SET TARGET PORT GROUPS: the ASYMMETRIC ACCESS STATE of the groups 1 and 2 of LUN 0.
    pub fn set_access(&mut self, [first, second]: [u8; 2]) {
        self.clear_attentions(0);
        let list = [0, 0, 0, 0, first, 0, 0, 1, second, 0, 0, 2];
        let set = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
        assert_eq!(self.write(0, &set, &list).status, 0);
    }

    /// Sends a command, and waits for its end. `out` is the data for R2Ts.
    pub fn execute(&mut self, command: &Pdu, out: &[u8]) -> Reply {
        self.send(command);
        self.collect(command.tag(), out)
    }

    /// Waits for the end of a task that was sent. `out` is the data for R2Ts.
    pub fn collect(&mut self, itt: u32, out: &[u8]) -> Reply {
        self.try_collect(itt, out).expect("the connection was closed before the end of the task")
    }

    /// As [`Raw::collect`]. `None`: the connection has ended before the task.
    pub fn try_collect(&mut self, itt: u32, out: &[u8]) -> Option<Reply> {
        let (mut data, mut pdus) = (Vec::new(), Vec::new());
        loop {
            let pdu = self.try_recv_for(itt)?;
            pdus.push(pdu.clone());
            match pdu.opcode() {
                op::R2T => self.answer(&pdu, out),
                op::DATA_IN => place(&mut data, &pdu),
                op::SCSI_RESPONSE => return Some(response(&pdu, data, pdus)),
                _ => panic!("a PDU that is not of a SCSI task: {pdu:?}"),
            }
            if pdu.opcode() == op::DATA_IN && pdu.bhs[1] & 1 != 0 {
                let (status, flags, residual) = (pdu.bhs[3], pdu.bhs[1] & 6, pdu.get32(44));
                return Some(Reply { response: 0, status, flags, residual, sense: Vec::new(), data, pdus });
            }
        }
    }

    /// Sends all data of an R2T, in PDUs of at most the size that the target accepts.
    pub fn answer(&mut self, r2t: &Pdu, out: &[u8]) {
        let (offset, length) = (r2t.get32(40) as usize, r2t.get32(44) as usize);
        assert!(offset + length <= out.len(), "R2T beyond the {} bytes there are: {r2t:?}", out.len());
        for (sn, at) in (0..length).step_by(self.send_max).enumerate() {
            let end = length.min(at + self.send_max);
            let part = &out[offset + at..offset + end];
            let pdu = self.data_out(r2t.tag(), r2t.transfer_tag(), sn as u32, (offset + at) as u32, part);
            let lun: [u8; 8] = r2t.bhs[8..16].try_into().expect("8 bytes");
            self.send(&pdu.bytes(8, &lun).flags(if end == length { 0x80 } else { 0 }));
        }
    }

    /// A Data-Out with F set and LUN 0. With TTT [`NONE`] it is unsolicited.
    pub fn data_out(&self, itt: u32, ttt: u32, data_sn: u32, offset: u32, data: &[u8]) -> Pdu {
        let pdu = Pdu::new(op::DATA_OUT).itt(itt).ttt(ttt).exp_stat_sn(self.exp_stat_sn);
        pdu.set32(36, data_sn).set32(40, offset).data(data)
    }

    /// A task management request, immediate: function, LUN, referenced tag and RefCmdSN.
    pub fn tmf(&mut self, function: u8, lun: u16, tag: u32, ref_cmd_sn: u32) -> Pdu {
        let pdu = self.request(op::TMF | 0x40).flags(0x80 | function).lun(lun).set32(20, tag);
        pdu.set32(32, ref_cmd_sn)
    }

    /// Sends a task management request for `lun` without a referenced task. Returns the response code.
    pub fn manage(&mut self, function: u8, lun: u16) -> u8 {
        let pdu = self.tmf(function, lun, NONE, 0);
        let answer = self.ask(&pdu);
        assert_eq!(answer.opcode(), op::TMF_RESPONSE, "{answer:?}");
        answer.bhs[2]
    }

    /// Sends a Text Request that starts a sequence. Returns the Text Response or Reject.
    pub fn text(&mut self, keys: &[(&str, &str)]) -> Pdu {
        let pdu = self.request(op::TEXT | 0x40).ttt(NONE).keys(keys);
        self.send(&pdu);
        self.recv()
    }

    /// Logs out with this reason for this CID. Returns the response.
    pub fn logout(&mut self, reason: u8, cid: u16) -> Pdu {
        let pdu = self.request(op::LOGOUT | 0x40).flags(0x80 | reason).set16(20, cid);
        self.ask(&pdu)
    }
}

pub(crate) fn place(data: &mut Vec<u8>, pdu: &Pdu) {
    let end = pdu.get32(40) as usize + pdu.data.len();
    if data.len() < end {
        data.resize(end, 0);
    }
    data[end - pdu.data.len()..end].copy_from_slice(&pdu.data);
}

fn response(pdu: &Pdu, data: Vec<u8>, pdus: Vec<Pdu>) -> Reply {
    let length = pdu.data.get(..2).map_or(0, |l| u16::from_be_bytes([l[0], l[1]]) as usize);
    let sense = pdu.data.get(2..2 + length).unwrap_or_default().to_vec();
    assert!(pdu.data.is_empty() || sense.len() == length && length > 0, "sense length: {pdu:?}");
    let sent = pdus.iter().filter(|p| p.opcode() == op::DATA_IN).count() as u32;
    assert_eq!(pdu.get32(36), if pdu.bhs[2] == 0 { sent } else { 0 }, "ExpDataSN: {pdu:?}");
    let (flags, residual) = (pdu.bhs[1] & 0x1e, pdu.get32(44));
    Reply { response: pdu.bhs[2], status: pdu.bhs[3], flags, residual, sense, data, pdus }
}
