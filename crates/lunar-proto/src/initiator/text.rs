//! Text negotiation in full feature phase on the initiator side (RFC 7143 sections 6.4, 11.10, 11.11).

use lunar_wire::iscsi::flag::{CONTINUE, FINAL};
use lunar_wire::iscsi::{Bhs, NONE, opcode, request};

use crate::Pdu;
use crate::text_reassembly::{TextReassembly, piece};

/// The next step of a text negotiation.
#[derive(Debug, PartialEq, Eq)]
pub enum TextStep {
    /// Send this PDU. The caller stamps CmdSN and ExpStatSN.
    Send(Pdu),
    /// The complete key text of the response.
    Done(Vec<u8>),
    /// The target rejected the request; the reason code of RFC 7143 section 11.17.1.
    Rejected(u8),
    /// Protocol error; a message that describes the fault.
    Failed(String),
}

/// One text negotiation: a request, and a response of any number of PDUs. All requests are immediate, so that a
/// closed command window does not block them and they consume no CmdSN.
#[derive(Debug)]
pub struct TextClient {
    itt: u32,
    max_xmit: usize,
    gather: TextReassembly,
    /// Key text that is not sent yet.
    out: Vec<u8>,
    /// Number of further responses that are accepted.
    left: usize,
}

impl TextClient {
    /// Starts a negotiation, and returns its first request; the caller stamps CmdSN and ExpStatSN. `max_xmit` is the
    /// target's MaxRecvDataSegmentLength, `limit` the maximum length of the response; both are in bytes.
    pub fn new(itt: u32, text: Vec<u8>, max_xmit: u32, limit: usize) -> (Self, Pdu) {
        // Average number of bytes per PDU below which a response counts as endless.
        const LEAST: usize = 64;
        let (max_xmit, left) = (max_xmit.max(1) as usize, LEAST + text.len() + limit / LEAST);
        let mut exchange = TextClient { itt, max_xmit, gather: TextReassembly::new(limit), out: text, left };
        let first = exchange.request(NONE, 0);
        (exchange, first)
    }

    /// Processes a Text Response, or a Reject of one of the requests, with its complete data segment.
    pub fn response(&mut self, header: &Bhs, data: &[u8]) -> TextStep {
        self.advance(header, data).unwrap_or_else(TextStep::Failed)
    }

    fn advance(&mut self, header: &Bhs, data: &[u8]) -> Result<TextStep, String> {
        if header.opcode() == opcode::REJECT {
            return Ok(TextStep::Rejected(header.reject_reason()));
        }
        self.check(header)?;
        if !self.out.is_empty() {
            // The rest of our own key text is outstanding. An empty response requests it.
            let asks = data.is_empty() && !header.is_final() && !header.continues();
            return if asks {
                Ok(self.send(header))
            } else {
                Err("the target answered a Text Request before its end (the request had the C bit)".into())
            };
        }
        let text = self.gather.take(data, !header.is_final());
        match text.map_err(|_| "the target sent a Text Response that is too long".to_owned())? {
            Some(text) => Ok(TextStep::Done(text)),
            None => Ok(self.send(header)),
        }
    }

    fn check(&mut self, header: &Bhs) -> Result<(), String> {
        if header.opcode() != opcode::TEXT_RESPONSE {
            return Err(format!(
                "the target sent a {}, expected a Text Response",
                opcode::name(header.opcode())
            ));
        }
        let left = self.left.checked_sub(1);
        for (holds, rule) in [
            (left.is_some(), "the target sent too many Text Responses without the F bit"),
            (header.ahs_len() == 0, "the target sent a Text Response with an additional header segment"),
            (
                header.itt() == self.itt,
                "the target sent a Text Response with an Initiator Task Tag that the request did not have",
            ),
            (
                !(header.is_final() && header.continues()),
                "the target sent a Text Response with both F bit and C bit",
            ),
            (
                header.is_final() || header.ttt() != NONE,
                "the target sent a Text Response with neither F bit nor Target Transfer Tag",
            ),
        ] {
            if !holds {
                return Err(rule.into());
            }
        }
        self.left = left.unwrap_or_default();
        Ok(())
    }

    /// The next request, with the Target Transfer Tag and LUN of the response.
    fn send(&mut self, header: &Bhs) -> TextStep {
        TextStep::Send(self.request(header.ttt(), header.lun()))
    }

    fn request(&mut self, ttt: u32, lun: u64) -> Pdu {
        let rest = self.out.split_off(piece(&self.out, self.max_xmit));
        let data = std::mem::replace(&mut self.out, rest);
        let flags = if self.out.is_empty() { FINAL } else { CONTINUE };
        Pdu::new(request::text(self.itt, flags, lun, ttt), data)
    }
}
