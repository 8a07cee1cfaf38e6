//! The load by NVMe/TCP: one I/O queue.

use std::io::IoSlice;
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};

use crate::job::IoOp;
use crate::nvme_controller::NvmeController;
use crate::nvme_pdu::{
    C2H_DATA, CAPSULE_RESP, COMMAND_LEN, H2C_DATA, HEADER_LEN, IN_CAPSULE, LAST, PduDigests, R2T, SUCCESS,
    get16, get32, put,
};
use crate::nvme_queue::{C2H_TERM_REQ, TRANSPORT_SGL, push_command, sqe};
use crate::protocol::{BlastProtocol, CommandEnd, CommandLayout, WritePayload, send_all};

/// The parameters of a queue. A command identifier is a tag.
#[derive(Debug)]
pub struct NvmeLoad {
    /// Its admin connection stays open with the last queue
    controller: Arc<NvmeController>,
    digests: PduDigests,
    max_data: u32,
    /// Bytes in the capsule
    immediate: u32,
}

impl NvmeLoad {
    /// Opens an I/O queue; returns also its connection.
    pub fn open(controller: &Arc<NvmeController>, queue: u16) -> Result<(TcpStream, NvmeLoad)> {
        let opened = controller.open_queue(queue)?;
        let job = &controller.job;
        let is_immediate = job.op == IoOp::Write && job.bytes <= controller.in_capsule;
        let load = NvmeLoad {
            controller: Arc::clone(controller),
            digests: opened.digests,
            max_data: opened.max_data,
            immediate: if is_immediate { job.bytes } else { 0 },
        };
        Ok((opened.socket, load))
    }

    /// Sends the H2CData PDUs that an R2T requests.
    fn send_data(&self, r2t: &[u8], payload: &mut WritePayload, socket: &mut TcpStream) -> Result<()> {
        let (mut offset, len) = (get32(r2t, 12), get32(r2t, 16));
        let bytes = self.controller.job.bytes;
        ensure!(offset.checked_add(len).is_some_and(|end| end <= bytes), "R2T beyond the command");
        let end = offset + len;
        while offset < end {
            let part = (end - offset).min(self.max_data);
            let (mut header, mut head) = ([0; HEADER_LEN], Vec::with_capacity(HEADER_LEN + 4));
            header[0] = H2C_DATA;
            header[1] = if offset + part == end { LAST } else { 0 };
            header[8..12].copy_from_slice(&r2t[8..12]); // identifier and tag
            put(&mut header, 12, offset.to_le_bytes());
            put(&mut header, 16, part.to_le_bytes());
            self.digests.push_header(header, part as usize, &mut head);
            let digest = if self.digests.data { payload.digest(part) } else { [0; 4] };
            let tail = if self.digests.data { &digest[..] } else { &[] };
            let data = &payload.bytes[offset as usize..(offset + part) as usize];
            send_all(socket, &mut [&head[..], data, tail].map(IoSlice::new))?;
            offset += part;
        }
        Ok(())
    }
}

impl BlastProtocol for NvmeLoad {
    fn layout(&self) -> CommandLayout {
        let data = self.immediate as usize;
        CommandLayout {
            head: COMMAND_LEN + self.digests.header_len(),
            data,
            tail: self.digests.data_len(data),
        }
    }

    /// The queue has an entry for each command of the depth.
    fn is_open(&self) -> bool {
        true
    }

    fn command(&mut self, tag: u32, place: u64, payload: &mut WritePayload, output: &mut Vec<u8>) {
        let job = &self.controller.job;
        let opcode = match job.op {
            IoOp::Read => 2,
            IoOp::Write => 1,
        };
        let sgl = if self.immediate > 0 { IN_CAPSULE } else { TRANSPORT_SGL };
        let mut sqe = sqe(opcode, u32::from(job.lun_at(place)) + 1, job.bytes, sgl);
        put(&mut sqe, 2, (tag as u16).to_le_bytes());
        put(&mut sqe, 40, (place * u64::from(job.blocks())).to_le_bytes());
        put(&mut sqe, 48, ((job.blocks() - 1) as u16).to_le_bytes());
        push_command(self.digests, &sqe, self.immediate as usize, output);
        if self.immediate > 0 && self.digests.data {
            output.extend_from_slice(&payload.digest(self.immediate));
        }
    }

    fn header_len(&self) -> usize {
        HEADER_LEN + self.digests.header_len()
    }

    fn pdu_len(&self, header: &[u8]) -> usize {
        get32(header, 4) as usize
    }

    fn answer(
        &mut self,
        header: &[u8],
        payload: &mut WritePayload,
        socket: &mut TcpStream,
    ) -> Result<Option<CommandEnd>> {
        ensure!(header[0] != C2H_TERM_REQ, "the target ends the connection: error {}", get16(header, 8));
        ensure!(self.digests.is_header_good(header, HEADER_LEN), "wrong header digest");
        let end = |tag, is_good| Ok(Some(CommandEnd { tag: u32::from(tag), is_good }));
        match header[0] {
            CAPSULE_RESP => end(get16(header, 20), get16(header, 22) >> 1 == 0),
            C2H_DATA if header[1] & SUCCESS != 0 => end(get16(header, 8), true),
            C2H_DATA => Ok(None),
            R2T => self.send_data(header, payload, socket).map(|()| None),
            other => bail!("unexpected PDU of type {other:#04x}"),
        }
    }
}
