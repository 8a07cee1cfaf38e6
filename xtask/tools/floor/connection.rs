//! One connection: parses bytes, builds responses.

use crate::bytes::{BHS, RESERVED_TAG, get24, get32, padded, put24, put32};
use crate::login::negotiate;
use crate::outgoing_pdu::{DataSegment, MAX_READ, OutgoingPdu};
use crate::scsi::data_in;

/// The size of the CmdSN window.
const WINDOW: u32 = 255;

/// A header, and the text of a login request.
type ReceivedPdu = ([u8; BHS], Vec<u8>);

/// The state of a connection.
#[derive(Debug)]
pub struct FloorConnection {
    exp_cmd_sn: u32,
    stat_sn: u32,
    full_feature: bool,
    /// The remaining payload, which is ignored
    skip: usize,
    /// The incomplete PDU: header and, during login, text
    partial: Vec<u8>,
}

impl Default for FloorConnection {
    fn default() -> Self {
        FloorConnection { exp_cmd_sn: 1, stat_sn: 1, full_feature: false, skip: 0, partial: Vec::new() }
    }
}

impl FloorConnection {
    /// Processes the bytes of one receive and appends all responses. Returns false after a logout.
    pub fn feed(&mut self, mut input: &[u8], answers: &mut Vec<OutgoingPdu>) -> bool {
        loop {
            let skipped = self.skip.min(input.len());
            input = &input[skipped..];
            self.skip -= skipped;
            if input.is_empty() {
                return true;
            }
            let (taken, pdu) = self.next_pdu(input);
            input = &input[taken..];
            let Some((header, text)) = pdu else { continue };
            if !self.answer(&header, &text, answers) {
                return false;
            }
        }
    }

    /// The number of consumed bytes, and the PDU if they complete one.
    fn next_pdu(&mut self, input: &[u8]) -> (usize, Option<ReceivedPdu>) {
        if self.full_feature && self.partial.is_empty() && input.len() >= BHS {
            let header: [u8; BHS] = input[..BHS].try_into().expect("a slice of that length");
            self.skip = padded(get24(&header, 5));
            return (BHS, Some((header, Vec::new())));
        }
        let taken = self.wanted().min(input.len());
        self.partial.extend_from_slice(&input[..taken]);
        if self.wanted() > 0 {
            return (taken, None);
        }
        let text = self.partial.split_off(BHS);
        let header: [u8; BHS] = std::mem::take(&mut self.partial).try_into().expect("split at that length");
        if self.full_feature {
            self.skip = padded(get24(&header, 5));
        }
        (taken, Some((header, text)))
    }

    /// The missing bytes of the incomplete PDU.
    fn wanted(&self) -> usize {
        if self.partial.len() < BHS {
            return BHS - self.partial.len();
        }
        let text = if self.full_feature { 0 } else { padded(get24(&self.partial, 5)) };
        BHS + text - self.partial.len()
    }

    /// Appends the response to one PDU. Returns false for a logout.
    fn answer(&mut self, request: &[u8; BHS], text: &[u8], answers: &mut Vec<OutgoingPdu>) -> bool {
        if request[0] & 0x40 == 0 {
            self.exp_cmd_sn = get32(request, 24).wrapping_add(1);
        }
        let mut header = [0; BHS];
        header[1] = 0x80;
        header[16..20].copy_from_slice(&request[16..20]);
        let data = match request[0] & 0x3f {
            0x00 if get32(request, 16) != RESERVED_TAG => simple(&mut header, 0x20),
            0x01 if request[1] & 0x40 != 0 => data(&mut header, request),
            0x01 => simple(&mut header, 0x21),
            0x02 => simple(&mut header, 0x22),
            0x03 => self.login(&mut header, request, text),
            0x06 => simple(&mut header, 0x26),
            _ => return true,
        };
        put32(&mut header, 24, self.stat_sn);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        put32(&mut header, 28, self.exp_cmd_sn);
        put32(&mut header, 32, self.exp_cmd_sn.wrapping_add(WINDOW));
        answers.push(OutgoingPdu { header, data });
        request[0] & 0x3f != 0x06
    }

    fn login(&mut self, header: &mut [u8; BHS], request: &[u8; BHS], text: &[u8]) -> DataSegment {
        self.exp_cmd_sn = get32(request, 24);
        header[0] = 0x23;
        header[1] = request[1] & 0x8f;
        header[8..14].copy_from_slice(&request[8..14]);
        self.full_feature = request[1] & 0x83 == 0x83;
        header[15] = u8::from(self.full_feature); // TSIH
        with_bytes(header, negotiate(text, self.stat_sn == 1))
    }
}

/// A response without data.
fn simple(header: &mut [u8; BHS], opcode: u8) -> DataSegment {
    header[0] = opcode;
    if opcode == 0x20 {
        put32(header, 20, RESERVED_TAG);
    }
    DataSegment::Zeros(0)
}

/// Data-In with status: zeros for a READ.
fn data(header: &mut [u8; BHS], request: &[u8; BHS]) -> DataSegment {
    header[0] = 0x25;
    header[1] = 0x81;
    put32(header, 20, RESERVED_TAG);
    let wanted = (get32(request, 20) as usize).min(MAX_READ);
    let Some(mut bytes) = data_in(&request[32..]) else {
        put24(header, 5, wanted as u32);
        return DataSegment::Zeros(wanted.next_multiple_of(4));
    };
    bytes.truncate(wanted);
    if bytes.len() < wanted {
        header[1] |= 2; // residual underflow
        put32(header, 44, (wanted - bytes.len()) as u32);
    }
    with_bytes(header, bytes)
}

fn with_bytes(header: &mut [u8; BHS], mut bytes: Vec<u8>) -> DataSegment {
    put24(header, 5, bytes.len() as u32);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    DataSegment::Bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tag: u32) -> [u8; BHS] {
        let mut header = [0; BHS];
        header[0] = 0x01;
        header[1] = 0xc1;
        put32(&mut header, 16, tag);
        put32(&mut header, 20, 4096);
        put32(&mut header, 24, tag);
        header[32] = 0x28;
        header
    }

    /// The responses do not depend on how the bytes are split.
    #[test]
    fn split_input_gives_same_responses() {
        let stream = [read(1), read(2), read(3)].concat();
        for cut in 0..stream.len() {
            let mut connection = FloorConnection { full_feature: true, ..FloorConnection::default() };
            let mut answers = Vec::new();
            assert!(connection.feed(&stream[..cut], &mut answers));
            assert!(connection.feed(&stream[cut..], &mut answers));
            let tags: Vec<u32> = answers.iter().map(|a| get32(&a.header, 16)).collect();
            assert_eq!(tags, [1, 2, 3], "cut at {cut}");
            assert_eq!(answers[2].data.as_bytes().len(), 4096);
        }
    }
}
