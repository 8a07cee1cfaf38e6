//! One NVMe/TCP connection, and commands one at a time.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};

use crate::job::BlastJob;
use crate::login::connect;
use crate::nvme_pdu::{
    C2H_DATA, CAPSULE_CMD, CAPSULE_RESP, COMMAND_LEN, FABRICS, HEADER_LEN, IC_LEN, ICREQ, ICRESP, IN_CAPSULE,
    PduDigests, SUCCESS, get16, get32, put,
};

/// PDU type: the target ends the connection.
pub const C2H_TERM_REQ: u8 = 0x03;
/// SGL descriptor: the transport moves the data.
pub const TRANSPORT_SGL: u8 = 0x5a;
/// Bytes of a submission queue entry.
const SQE: usize = COMMAND_LEN - 8;
/// Bytes of the data of Connect.
const CONNECT_DATA: usize = 1024;

/// A submission queue entry without an identifier.
pub fn sqe(opcode: u8, namespace: u32, len: u32, sgl: u8) -> [u8; SQE] {
    let mut sqe = [0; SQE];
    (sqe[0], sqe[1], sqe[39]) = (opcode, 0x40, sgl);
    put(&mut sqe, 4, namespace.to_le_bytes());
    put(&mut sqe, 32, len.to_le_bytes());
    sqe
}

/// A fabrics command without data.
pub fn fabrics(kind: u8) -> [u8; SQE] {
    sqe(FABRICS, kind.into(), 0, TRANSPORT_SGL)
}

/// Appends the header of a command with `data` bytes in its capsule.
pub fn push_command(digests: PduDigests, sqe: &[u8; SQE], data: usize, output: &mut Vec<u8>) {
    let mut header = [0; COMMAND_LEN];
    header[0] = CAPSULE_CMD;
    header[8..].copy_from_slice(sqe);
    digests.push_header(header, data, output);
}

/// A connection with its parameters.
#[derive(Debug)]
pub struct NvmeQueue {
    /// The connection
    pub socket: TcpStream,
    /// The digests that both sides use
    pub digests: PduDigests,
    /// The most data of one H2CData, in bytes
    pub max_data: u32,
}

/// The queue to connect.
#[derive(Clone, Copy, Debug)]
pub struct QueueId {
    /// The host
    pub host: u32,
    /// 0 is the admin queue
    pub queue: u16,
    /// FFFFh asks for a new controller
    pub controller: u16,
    /// Entries, 0-based
    pub size: u16,
}

impl NvmeQueue {
    /// Connects a queue; returns also the identifier of its controller.
    pub fn open(job: &BlastJob, id: QueueId) -> Result<(NvmeQueue, u16)> {
        let mut queue = NvmeQueue::initialize(job)?;
        let mut sqe = sqe(FABRICS, 1, CONNECT_DATA as u32, IN_CAPSULE);
        put(&mut sqe, 42, id.queue.to_le_bytes());
        put(&mut sqe, 44, id.size.to_le_bytes());
        sqe[46] = u8::from(job.disable_sqflow) << 2;
        let mut data = [0; CONNECT_DATA];
        data[..12].copy_from_slice(b"lunar-blast-");
        put(&mut data, 12, id.host.to_be_bytes());
        put(&mut data, 16, id.controller.to_le_bytes());
        let host = format!("nqn.2026-11.bench:blast{}", id.host);
        for (at, name) in [(256, &job.target), (512, &host)] {
            ensure!(name.len() < 256, "a name of {} bytes", name.len());
            data[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        let (controller, _) = queue.execute(sqe, &data).with_context(|| format!("connect {id:?}"))?;
        Ok((queue, controller as u16))
    }

    /// Agrees on the parameters of the connection.
    fn initialize(job: &BlastJob) -> Result<NvmeQueue> {
        let digests = PduDigests { header: job.header_digest, data: job.data_digest };
        let (mut socket, mut header, mut request) = (connect(job.portal)?, [0; IC_LEN], Vec::new());
        (header[0], header[11]) = (ICREQ, digests.byte());
        PduDigests::default().push_header(header, 0, &mut request);
        socket.write_all(&request)?;
        socket.read_exact(&mut header).context("no ICResp")?;
        ensure!(header[0] == ICRESP, "ICReq was answered by type {:#04x}", header[0]);
        ensure!(header[10] == 0, "the target wants aligned data");
        ensure!(PduDigests::of_byte(header[11]) == digests, "the target answered DGST {}", header[11]);
        let max_data = get32(&header, 12);
        ensure!(max_data >= 4096, "the target answered MAXH2CDATA {max_data}");
        Ok(NvmeQueue { socket, digests, max_data })
    }

    /// Executes a command with `data` in its capsule. Returns the result and the data of the target.
    pub fn execute(&mut self, sqe: [u8; SQE], data: &[u8]) -> Result<(u64, Vec<u8>)> {
        let mut pdu = Vec::new();
        push_command(self.digests, &sqe, data.len(), &mut pdu);
        pdu.extend_from_slice(data);
        if self.digests.data_len(data.len()) > 0 {
            pdu.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
        }
        self.socket.write_all(&pdu)?;
        let mut received = Vec::new();
        loop {
            let header = self.receive(&mut received)?;
            match header[0] {
                CAPSULE_RESP => {
                    let status = get16(&header, 22) >> 1;
                    ensure!(status == 0, "opcode {:#04x}: status {status:#06x}", sqe[0]);
                    return Ok((
                        u64::from(get32(&header, 8)) | u64::from(get32(&header, 12)) << 32,
                        received,
                    ));
                }
                C2H_DATA if header[1] & SUCCESS != 0 => return Ok((0, received)),
                C2H_DATA => {}
                other => bail!("opcode {:#04x} was answered by type {other:#04x}", sqe[0]),
            }
        }
    }

    /// Receives a PDU, and appends its data.
    fn receive(&mut self, data: &mut Vec<u8>) -> Result<[u8; HEADER_LEN]> {
        let mut header = [0; HEADER_LEN];
        self.socket.read_exact(&mut header).context("no answer")?;
        let rest = (get32(&header, 4) as usize).checked_sub(HEADER_LEN).context("a short PDU")?;
        let mut body = vec![0; rest];
        self.socket.read_exact(&mut body)?;
        if header[0] == C2H_DATA {
            let (first, len) =
                (usize::from(header[3]).saturating_sub(HEADER_LEN), get32(&header, 16) as usize);
            data.extend_from_slice(body.get(first..first + len).context("data beyond their PDU")?);
        }
        Ok(header)
    }
}
