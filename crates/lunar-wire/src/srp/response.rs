//! Responses to commands and task management functions (SRP r16a section 6.9).

use super::{SrpError, error::of, opcode};
use crate::be;

const RESPONSE_VALID: u8 = 0x01;
const SENSE_VALID: u8 = 0x02;
/// Residual flags of data-out. Those of data-in are two bits higher.
const OVER: u8 = 0x04;
const UNDER: u8 = 0x08;
const DATA_IN: u8 = 2;
const SOLICITED: u8 = 0x01;

/// The residual of one direction: the difference from the expected data length, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// No residual.
    #[default]
    None,
    /// Overflow: the command had more data than the buffer.
    Over(u32),
    /// Underflow: the command had less data than the buffer.
    Under(u32),
}

impl Residual {
    fn encode(self) -> (u8, u32) {
        match self {
            Residual::None => (0, 0),
            Residual::Over(bytes) => (OVER, bytes),
            Residual::Under(bytes) => (UNDER, bytes),
        }
    }

    fn decode(flags: u8, shift: u8, bytes: u32) -> Result<Residual, SrpError> {
        match (flags >> shift) & (OVER | UNDER) {
            0 => Ok(Residual::None),
            OVER => Ok(Residual::Over(bytes)),
            UNDER => Ok(Residual::Under(bytes)),
            _ => Err(SrpError::Residual(flags)),
        }
    }
}

const LEN: usize = 36;

/// A response to a command or a task management function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrpResponse<'a> {
    /// SOLNT: the message is a solicited notification.
    pub solicited: bool,
    /// Request limit delta: usually one, plus credits that the target withheld.
    pub credits: i32,
    /// The tag of the request.
    pub tag: u64,
    /// SCSI status.
    pub status: u8,
    /// Residual of data-out.
    pub residual_out: Residual,
    /// Residual of data-in.
    pub residual_in: Residual,
    /// Response data, empty if there is none: see [`SrpResponse::task_status`].
    pub data: &'a [u8],
    /// Sense data, empty if there is none.
    pub sense: &'a [u8],
}

impl<'a> SrpResponse<'a> {
    /// Bytes before the response data and the sense data.
    pub const LEN: usize = LEN;

    /// The [`task_status`](super::task_status) in the four bytes of response data; `None` without response data.
    pub fn task_status(&self) -> Option<u8> {
        self.data.get(3).copied()
    }

    /// Appends the encoded information unit.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let ((out_flag, out_bytes), (in_flag, in_bytes)) =
            (self.residual_out.encode(), self.residual_in.encode());
        let mut b = [0; LEN];
        (b[0], b[1]) = (opcode::RESPONSE, u8::from(self.solicited) * SOLICITED);
        be::put32(&mut b[4..], self.credits as u32);
        be::put64(&mut b[8..], self.tag);
        let valid = [(self.data, RESPONSE_VALID), (self.sense, SENSE_VALID)];
        let valid = valid.iter().filter(|(bytes, _)| !bytes.is_empty()).map(|(_, flag)| flag);
        b[18] = out_flag | (in_flag << DATA_IN) | valid.sum::<u8>();
        b[19] = self.status;
        be::put32(&mut b[20..], out_bytes);
        be::put32(&mut b[24..], in_bytes);
        be::put32(&mut b[28..], self.sense.len() as u32);
        be::put32(&mut b[32..], self.data.len() as u32);
        into.extend_from_slice(&b);
        into.extend_from_slice(self.data);
        into.extend_from_slice(self.sense);
    }

    /// Decodes an information unit. A length whose valid bit is clear counts as zero.
    ///
    /// # Errors
    /// It is shorter than its data, has another opcode, or its residual flags contradict each other.
    pub fn decode(iu: &'a [u8]) -> Result<SrpResponse<'a>, SrpError> {
        let b: &[u8; LEN] = of(iu, 0, opcode::RESPONSE)?;
        let flags = b[18];
        let len = |flag, at: usize| if flags & flag != 0 { be::get32(&b[at..]) } else { 0 };
        let (sense_len, data_len) = (len(SENSE_VALID, 28), len(RESPONSE_VALID, 32));
        let needed = Self::LEN as u64 + u64::from(data_len) + u64::from(sense_len);
        if needed > iu.len() as u64 {
            return Err(SrpError::Short { needed, there: iu.len() });
        }
        let (data, rest) = iu[Self::LEN..].split_at(data_len as usize);
        Ok(SrpResponse {
            solicited: b[1] & SOLICITED != 0,
            credits: be::get32(&b[4..]) as i32,
            tag: be::get64(&b[8..]),
            status: b[19],
            residual_out: Residual::decode(flags, 0, be::get32(&b[20..]))?,
            residual_in: Residual::decode(flags, DATA_IN, be::get32(&b[24..]))?,
            data,
            sense: &rest[..sense_len as usize],
        })
    }
}
