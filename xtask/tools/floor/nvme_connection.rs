//! One NVMe/TCP connection, which is one queue pair: parses bytes, builds responses.

use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, bail, ensure};

use crate::nvme_admin::{BLOCK_SIZE, identify, log_page_len, property};
use crate::nvme_answers::NvmeAnswers;
use crate::nvme_pdu::{
    C2H_DATA, CAPSULE_CMD, CAPSULE_RESP, COMMAND_LEN, FABRICS, H2C_DATA, HEADER_LEN, IC_LEN, ICREQ, ICRESP,
    IN_CAPSULE, LAST, PduDigests, R2T, SUCCESS, get16, get32, put,
};
use crate::outgoing_pdu::MAX_READ;

/// Bytes of the common header.
const COMMON: usize = 8;
/// Status codes with "do not retry".
const INVALID_OPCODE: u16 = 0x4001;
const INVALID_FIELD: u16 = 0x4002;

static CONTROLLERS: AtomicU16 = AtomicU16::new(1);

/// The state of a connection. A write needs none: its R2T has the command's identifier as a tag.
#[derive(Debug)]
pub struct NvmeConnection {
    is_initialized: bool,
    digests: PduDigests,
    is_admin: bool,
    controller_id: u16,
    /// The property CC
    configuration: u32,
    has_flow_control: bool,
    queue_size: u32,
    queue_head: u32,
    receiving: Option<ReceivedData>,
}

/// The remaining data of a PDU, which are ignored.
#[derive(Debug)]
struct ReceivedData {
    left: usize,
    /// CRC32C of those before, if a digest follows
    crc: Option<u32>,
    /// The command that they complete
    completes: Option<u16>,
}

impl Default for NvmeConnection {
    fn default() -> Self {
        NvmeConnection {
            is_initialized: false,
            digests: PduDigests::default(),
            is_admin: true,
            controller_id: 0,
            configuration: 0,
            has_flow_control: true,
            queue_size: u32::MAX,
            queue_head: 0,
            receiving: None,
        }
    }
}

impl NvmeConnection {
    /// Processes the bytes of one receive and appends all responses. Returns the number of bytes used: all but an
    /// incomplete header or digest. An error ends the connection.
    pub fn feed(&mut self, input: &[u8], answers: &mut NvmeAnswers) -> Result<usize> {
        let mut at = 0;
        loop {
            let used = if self.receiving.is_some() {
                self.take_data(&input[at..], answers)?
            } else {
                self.take_header(&input[at..], answers)?
            };
            if used == 0 {
                return Ok(at);
            }
            at += used;
        }
    }

    /// Ignores data; completes the command at their end.
    fn take_data(&mut self, input: &[u8], answers: &mut NvmeAnswers) -> Result<usize> {
        let Some(data) = &mut self.receiving else { return Ok(0) };
        let mut used = data.left.min(input.len());
        data.left -= used;
        if let Some(crc) = &mut data.crc {
            *crc = crc32c::crc32c_append(*crc, &input[..used]);
            if data.left == 0 {
                let Some(digest) = input.get(used..used + 4) else { return Ok(used) };
                ensure!(digest == crc.to_le_bytes(), "wrong data digest");
                used += 4;
            }
        }
        if data.left == 0 {
            let completes = data.completes;
            self.receiving = None;
            if let Some(command) = completes {
                self.complete(command, 0, 0, answers);
            }
        }
        Ok(used)
    }

    /// Processes a PDU up to its data; a fabrics command with its data. Returns 0 if bytes are missing.
    fn take_header(&mut self, input: &[u8], answers: &mut NvmeAnswers) -> Result<usize> {
        if input.len() < COMMON {
            return Ok(0);
        }
        let (header_len, pdu_len) = (usize::from(input[2]), get32(input, 4) as usize);
        let start = usize::from(input[3]).max(header_len + self.digests.header_len());
        let rest = pdu_len.checked_sub(start).context("wrong length")?;
        let needs_all = input[0] == CAPSULE_CMD && input.get(COMMON) == Some(&FABRICS);
        if input.len() < start.max(COMMON + 1) || (needs_all && input.len() < pdu_len) {
            return Ok(0);
        }
        ensure!(self.digests.is_header_good(input, header_len), "wrong header digest");
        let received = |completes| {
            let crc = self.digests.data.then_some(0);
            let left = rest.saturating_sub(self.digests.data_len(rest));
            (rest > 0).then_some(ReceivedData { left, crc, completes })
        };
        match (input[0], header_len) {
            (ICREQ, IC_LEN) if !self.is_initialized => self.initialize(input, answers)?,
            (CAPSULE_CMD, COMMAND_LEN) if self.is_initialized => {
                let sqe = &input[COMMON..COMMAND_LEN];
                self.receiving = if needs_all { None } else { received(Some(get16(sqe, 2))) };
                self.queue_head += 1;
                if self.queue_head == self.queue_size {
                    self.queue_head = 0;
                }
                if needs_all {
                    self.fabrics(sqe, &input[start..pdu_len], answers);
                    return Ok(pdu_len);
                }
                if self.receiving.is_none() {
                    self.command(sqe, answers);
                }
            }
            (H2C_DATA, HEADER_LEN) if rest > 0 => {
                self.receiving = received((input[1] & LAST != 0).then(|| get16(input, 8)));
            }
            (other, _) => bail!("unexpected PDU of type {other:#04x}"),
        }
        Ok(start)
    }

    fn initialize(&mut self, request: &[u8], answers: &mut NvmeAnswers) -> Result<()> {
        ensure!(get16(request, 8) == 0 && request[10] == 0, "unknown version, or aligned data");
        let digests = PduDigests::of_byte(request[11]);
        let mut response = [0; IC_LEN];
        response[0] = ICRESP;
        response[11] = digests.byte();
        put(&mut response, 12, (MAX_READ as u32).to_le_bytes());
        PduDigests::default().push_header(response, 0, &mut answers.bytes);
        (self.digests, self.is_initialized) = (digests, true);
        Ok(())
    }

    fn fabrics(&mut self, sqe: &[u8], data: &[u8], answers: &mut NvmeAnswers) {
        let result = match sqe[4] {
            0x00 => {
                self.configuration = get32(sqe, 48);
                Some(0)
            }
            0x01 if data.len() >= 1024 => {
                self.connect(sqe, get16(data, 16));
                Some(self.controller_id.into())
            }
            0x04 => property(get32(sqe, 44), self.configuration),
            0x08 => Some(0),
            _ => None,
        };
        self.complete_with(get16(sqe, 2), result, answers);
    }

    fn connect(&mut self, sqe: &[u8], controller_id: u16) {
        self.is_admin = get16(sqe, 42) == 0;
        self.controller_id =
            if self.is_admin { CONTROLLERS.fetch_add(1, Ordering::Relaxed) } else { controller_id };
        self.queue_size = u32::from(get16(sqe, 44)) + 1;
        self.has_flow_control = sqe[46] & 4 == 0;
    }

    /// A command whose data, if any, are not in the capsule.
    fn command(&mut self, sqe: &[u8], answers: &mut NvmeAnswers) {
        let (command, len) = (get16(sqe, 2), get32(sqe, 32));
        match (self.is_admin, sqe[0]) {
            (_, opcode) if opcode & 3 == 1 && len > 0 && sqe[39] != IN_CAPSULE => {
                let mut header = [0; HEADER_LEN];
                header[0] = R2T;
                put(&mut header, 8, command.to_le_bytes());
                put(&mut header, 10, command.to_le_bytes());
                put(&mut header, 16, len.to_le_bytes());
                self.digests.push_header(header, 0, &mut answers.bytes);
            }
            (false, 0x02) => {
                let blocks = usize::from(get16(sqe, 48)) + 1;
                self.zeros(command, blocks * BLOCK_SIZE as usize, answers);
            }
            (false, 0x00 | 0x08) => self.complete(command, 0, 0, answers),
            (true, 0x02) => self.zeros(command, log_page_len(sqe), answers),
            (true, 0x06) => match identify(sqe, self.controller_id) {
                Some(data) => self.bytes(command, &data, answers),
                None => self.complete(command, INVALID_FIELD, 0, answers),
            },
            (true, 0x08) => self.complete(command, 0, 1, answers), // nothing was aborted
            (true, 0x09) if sqe[40] == 7 => self.complete(command, 0, get32(sqe, 44).into(), answers),
            (true, 0x09 | 0x0a | 0x18) => self.complete(command, 0, 0, answers),
            (true, 0x0c) => {} // no event ever occurs
            _ => self.complete(command, INVALID_OPCODE, 0, answers),
        }
    }

    /// Completes a command with data of zeros.
    fn zeros(&self, command: u16, len: usize, answers: &mut NvmeAnswers) {
        if len > MAX_READ {
            return self.complete(command, INVALID_FIELD, 0, answers);
        }
        self.data_header(command, len, answers);
        let zeros = answers.push_zeros(len);
        self.data_end(command, zeros, answers);
    }

    fn bytes(&self, command: u16, data: &[u8], answers: &mut NvmeAnswers) {
        self.data_header(command, data.len(), answers);
        answers.bytes.extend_from_slice(data);
        self.data_end(command, data, answers);
    }

    fn data_header(&self, command: u16, len: usize, answers: &mut NvmeAnswers) {
        let mut header = [0; HEADER_LEN];
        header[0] = C2H_DATA;
        header[1] = if self.has_flow_control { LAST } else { LAST | SUCCESS };
        put(&mut header, 8, command.to_le_bytes());
        put(&mut header, 16, (len as u32).to_le_bytes());
        self.digests.push_header(header, len, &mut answers.bytes);
    }

    fn data_end(&self, command: u16, data: &[u8], answers: &mut NvmeAnswers) {
        if self.digests.data_len(data.len()) > 0 {
            answers.bytes.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
        }
        if self.has_flow_control {
            self.complete(command, 0, 0, answers);
        }
    }

    fn complete_with(&self, command: u16, result: Option<u64>, answers: &mut NvmeAnswers) {
        let status = if result.is_some() { 0 } else { INVALID_FIELD };
        self.complete(command, status, result.unwrap_or(0), answers);
    }

    fn complete(&self, command: u16, status: u16, result: u64, answers: &mut NvmeAnswers) {
        let mut header = [0; HEADER_LEN];
        header[0] = CAPSULE_RESP;
        put(&mut header, 8, result.to_le_bytes());
        let head = if self.has_flow_control { self.queue_head as u16 } else { u16::MAX };
        put(&mut header, 16, head.to_le_bytes());
        put(&mut header, 20, command.to_le_bytes());
        put(&mut header, 22, (status << 1).to_le_bytes());
        self.digests.push_header(header, 0, &mut answers.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: PduDigests = PduDigests { header: true, data: true };

    fn pdu<const N: usize>(digests: PduDigests, header: [u8; N], data: &[u8]) -> Vec<u8> {
        let mut pdu = Vec::new();
        digests.push_header(header, data.len(), &mut pdu);
        pdu.extend_from_slice(data);
        if digests.data_len(data.len()) > 0 {
            pdu.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
        }
        pdu
    }

    fn command(opcode: u8, command: u16, len: u32, sgl: u8) -> [u8; COMMAND_LEN] {
        let mut header = [0; COMMAND_LEN];
        (header[0], header[COMMON], header[COMMON + 39]) = (CAPSULE_CMD, opcode, sgl);
        put(&mut header, COMMON + 2, command.to_le_bytes());
        put(&mut header, COMMON + 32, len.to_le_bytes());
        header
    }

    /// Half of the data of command 3.
    fn data(flags: u8) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        (header[0], header[1], header[8], header[10]) = (H2C_DATA, flags, 3, 3);
        header
    }

    /// ICReq and Connect of an I/O queue.
    fn start(digests: PduDigests, attributes: u8) -> Vec<u8> {
        let (mut request, mut connect) = ([0; IC_LEN], command(FABRICS, 1, 1024, IN_CAPSULE));
        (request[0], request[11]) = (ICREQ, digests.byte());
        for (at, byte) in [(4, 1), (42, 1), (44, 7), (46, attributes)] {
            connect[COMMON + at] = byte;
        }
        let request = pdu(PduDigests::default(), request, &[]);
        [request, pdu(digests, connect, &[9; 1024])].concat()
    }

    /// The responses to `stream`, received in two parts.
    fn responses(stream: &[u8], cut: usize) -> Vec<u8> {
        let (mut connection, mut answers) = (NvmeConnection::default(), NvmeAnswers::default());
        let used = connection.feed(&stream[..cut], &mut answers).expect("valid PDUs");
        let rest = connection.feed(&stream[used..], &mut answers).expect("valid PDUs");
        assert_eq!(used + rest, stream.len(), "cut at {cut}");
        answers.slices().iter().flat_map(|slice| slice.to_vec()).collect()
    }

    /// Type and flags of each PDU.
    fn kinds(mut stream: &[u8]) -> Vec<[u8; 2]> {
        let mut kinds = Vec::new();
        while !stream.is_empty() {
            kinds.push([stream[0], stream[1]]);
            stream = &stream[get32(stream, 4) as usize..];
        }
        kinds
    }

    #[test]
    fn split_nvme_input_gives_same_responses() {
        for digests in [PduDigests::default(), BOTH] {
            let stream = [
                start(digests, 0),
                pdu(digests, command(1, 2, 512, IN_CAPSULE), &[7; 512]),
                pdu(digests, command(1, 3, 1024, 0x5a), &[]),
                pdu(digests, data(0), &[5; 512]),
                pdu(digests, data(LAST), &[5; 512]),
            ];
            let stream = stream.concat();
            let whole = responses(&stream, 0);
            let response = [CAPSULE_RESP, digests.header.into()];
            let wanted = [[ICRESP, 0], response, response, [R2T, response[1]], response];
            assert_eq!(kinds(&whole), wanted);
            assert!((1..stream.len()).all(|cut| responses(&stream, cut) == whole));
        }
    }

    #[test]
    fn read_without_flow_control_has_no_response() {
        let mut read = command(2, 2, 4096, 0x5a);
        read[COMMON + 48] = 7;
        let answered = |attributes| {
            let stream = [start(BOTH, attributes), pdu(BOTH, read, &[])].concat();
            responses(&stream, 0).split_off(IC_LEN + HEADER_LEN + 4)
        };
        assert_eq!(kinds(&answered(0)), [[C2H_DATA, LAST | 3], [CAPSULE_RESP, 1]]);
        let data = answered(4);
        assert_eq!(kinds(&data), [[C2H_DATA, SUCCESS | LAST | 3]]);
        assert_eq!(
            data[HEADER_LEN + 4..],
            [&[0; 4096][..], &crc32c::crc32c(&[0; 4096]).to_le_bytes()].concat()
        );
    }

    #[test]
    fn wrong_digest_ends_the_connection() {
        let write = pdu(BOTH, command(1, 2, 512, IN_CAPSULE), &[7; 512]);
        for at in [12, COMMAND_LEN + 4 + 100] {
            let mut stream = [start(BOTH, 0), write.clone()].concat();
            let last = stream.len() - write.len();
            stream[last + at] ^= 1;
            let fed = NvmeConnection::default().feed(&stream, &mut NvmeAnswers::default());
            assert!(fed.is_err(), "byte {at}");
        }
    }
}
