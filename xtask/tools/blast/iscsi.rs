//! The load by iSCSI.

use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};

use crate::bytes::{BHS, RESERVED_TAG, get24, get32, padded, put24, put32};
use crate::job::{BlastJob, IoOp};
use crate::login::{BlastLogin, put_lun};
use crate::protocol::{BlastProtocol, CommandEnd, CommandLayout, WritePayload, send_all};

/// A session's sequence numbers and lengths.
#[derive(Debug)]
pub struct IscsiLoad {
    job: Arc<BlastJob>,
    cmd_sn: u32,
    max_cmd_sn: u32,
    exp_stat_sn: u32,
    max_segment: u32,
    immediate: u32,
}

impl IscsiLoad {
    /// The load after a login; its connection.
    pub fn new(job: Arc<BlastJob>, login: BlastLogin) -> (TcpStream, IscsiLoad) {
        let immediate = match job.op {
            IoOp::Read => 0,
            IoOp::Write => job.bytes.min(login.first_burst).min(login.max_segment),
        };
        let BlastLogin { socket, cmd_sn, max_cmd_sn, exp_stat_sn, max_segment, .. } = login;
        (socket, IscsiLoad { job, cmd_sn, max_cmd_sn, exp_stat_sn, max_segment, immediate })
    }

    fn end(&mut self, header: &[u8], is_good: bool) -> Option<CommandEnd> {
        self.exp_stat_sn = get32(header, 24).wrapping_add(1);
        Some(CommandEnd { tag: get32(header, 16), is_good })
    }

    /// Sends the Data-Out PDUs that an R2T requests.
    fn data_out(&self, r2t: &[u8], payload: &mut WritePayload, socket: &mut TcpStream) -> Result<()> {
        let (mut offset, len) = (get32(r2t, 40), get32(r2t, 44));
        ensure!(offset.checked_add(len).is_some_and(|end| end <= self.job.bytes), "R2T beyond the command");
        let end = offset + len;
        let mut data_sn = 0;
        while offset < end {
            let segment = (end - offset).min(self.max_segment);
            let mut header = [0; BHS];
            header[0] = 0x05;
            header[1] = if offset + segment == end { 0x80 } else { 0 };
            put24(&mut header, 5, segment);
            header[8..24].copy_from_slice(&r2t[8..24]); // LUN, task tag and transfer tag
            put32(&mut header, 28, self.exp_stat_sn);
            put32(&mut header, 36, data_sn);
            put32(&mut header, 40, offset);
            let digest = if self.job.data_digest { payload.digest(segment) } else { [0; 4] };
            let tail = if self.job.data_digest { &digest[..] } else { &[] };
            let data = &payload.bytes[offset as usize..(offset + segment) as usize];
            send_all(socket, &mut [&header[..], data, tail].map(IoSlice::new))?;
            data_sn += 1;
            offset += segment;
        }
        Ok(())
    }

    /// Responds to a NOP-In that requests it.
    fn pong(&self, nop_in: &[u8], socket: &mut TcpStream) -> Result<()> {
        if get32(nop_in, 20) == RESERVED_TAG {
            return Ok(());
        }
        let mut header = [0; BHS];
        header[0] = 0x40;
        header[1] = 0x80;
        header[8..16].copy_from_slice(&nop_in[8..16]);
        put32(&mut header, 16, RESERVED_TAG);
        header[20..24].copy_from_slice(&nop_in[20..24]);
        put32(&mut header, 24, self.cmd_sn);
        put32(&mut header, 28, self.exp_stat_sn);
        Ok(socket.write_all(&header)?)
    }
}

impl BlastProtocol for IscsiLoad {
    fn layout(&self) -> CommandLayout {
        let tail = if self.immediate > 0 && self.job.data_digest { 4 } else { 0 };
        CommandLayout { head: BHS, data: self.immediate as usize, tail }
    }

    fn is_open(&self) -> bool {
        self.max_cmd_sn.wrapping_sub(self.cmd_sn) as i32 >= 0
    }

    /// Appends one READ(10) or WRITE(10), or the one of 16 bytes for a length that needs it.
    fn command(&mut self, tag: u32, place: u64, payload: &mut WritePayload, output: &mut Vec<u8>) {
        let flags = match self.job.op {
            IoOp::Read => 0xc1,
            IoOp::Write => 0xa1,
        };
        let mut header = [0; BHS];
        header[0] = 0x01;
        header[1] = flags;
        put24(&mut header, 5, self.immediate);
        put_lun(&mut header, self.job.lun_at(place));
        put32(&mut header, 16, tag);
        put32(&mut header, 20, self.job.bytes);
        put32(&mut header, 24, self.cmd_sn);
        put32(&mut header, 28, self.exp_stat_sn);
        let (lba, blocks) = (place as u32 * self.job.blocks(), self.job.blocks());
        let is_read = matches!(self.job.op, IoOp::Read);
        if let Ok(blocks) = u16::try_from(blocks) {
            header[32] = if is_read { 0x28 } else { 0x2a };
            put32(&mut header, 34, lba);
            header[39..41].copy_from_slice(&blocks.to_be_bytes());
        } else {
            header[32] = if is_read { 0x88 } else { 0x8a };
            put32(&mut header, 38, lba);
            put32(&mut header, 42, blocks);
        }
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        output.extend_from_slice(&header);
        if self.immediate > 0 && self.job.data_digest {
            output.extend_from_slice(&payload.digest(self.immediate));
        }
    }

    fn header_len(&self) -> usize {
        BHS
    }

    fn pdu_len(&self, header: &[u8]) -> usize {
        let len = get24(header, 5);
        let digest = if self.job.data_digest && len > 0 { 4 } else { 0 };
        BHS + padded(len) + digest
    }

    fn answer(
        &mut self,
        header: &[u8],
        payload: &mut WritePayload,
        socket: &mut TcpStream,
    ) -> Result<Option<CommandEnd>> {
        self.max_cmd_sn = get32(header, 32);
        match header[0] & 0x3f {
            0x25 if header[1] & 1 != 0 => return Ok(self.end(header, header[3] == 0)),
            0x25 => {}
            0x21 => return Ok(self.end(header, header[2] == 0 && header[3] == 0)),
            0x31 => self.data_out(header, payload, socket)?,
            0x20 => self.pong(header, socket)?,
            other => bail!("unexpected opcode {other:#04x}"),
        }
        Ok(None)
    }
}
