//! Received information units, converted to PDUs of the session.

use super::datamover::{SrpDatamover, SrpRequestKind};
use super::responses;
use crate::session::transport::DatamoverEvents;
use lunar_rdma::MemoryRegion;
use lunar_runtime::iscsi::receive::{ReceiveError, ReceivedData, ReceivedPdu};
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::{Bhs, NONE, pdu};
use lunar_wire::srp::{self, FromTarget, SrpResponse};
use std::io;

/// The maximum number of queued replies to requests of the target.
const MAX_REPLIES: u32 = 4096;

impl SrpDatamover {
    /// Handles an information unit. Returns false if the session accepts no more.
    pub(super) fn unit(&self, session: &mut dyn DatamoverEvents, unit: &[u8]) -> Result<bool, ReceiveError> {
        match FromTarget::decode(unit).map_err(|e| broken(io::ErrorKind::InvalidData, e.to_string()))? {
            FromTarget::Response(response) => Ok(self.response(session, &response)),
            FromTarget::Credit(request) => {
                self.reply(&srp::credit_response(request.tag), request.credits)?;
                Ok(self.report_window(session))
            }
            FromTarget::Aer(event) => {
                self.reply(&srp::aer_response(event.tag), event.credits)?;
                if event.sense.is_empty() {
                    return Ok(self.report_window(session));
                }
                let (header, data) = responses::event(&event);
                Ok(self.deliver(session, header, &data, true))
            }
            FromTarget::Logout(end) => {
                let what = format!(
                    "the target ended the SRP connection with an SRP_T_LOGOUT: reason {:#x}",
                    end.reason
                );
                Err(broken(io::ErrorKind::ConnectionReset, what))
            }
        }
    }

    fn response(&self, session: &mut dyn DatamoverEvents, response: &SrpResponse<'_>) -> bool {
        let Some((itt, open)) = self.with_state(|state| {
            state.credits.give(response.credits);
            let closed = state.close(response.tag);
            self.send_on(state);
            closed
        }) else {
            // The request may have been aborted meanwhile.
            tracing::debug!(tag = response.tag, "the target sent an SRP response whose tag no request has");
            return self.report_window(session);
        };
        let (header, data) = match open.kind {
            SrpRequestKind::Command(direction) => {
                self.give_back(session, itt, open.lent, responses::unfilled(direction, response));
                responses::scsi_response(itt, direction, response)
            }
            SrpRequestKind::Manage => (responses::managed(itt, response), Vec::new()),
            SrpRequestKind::Ping => (pdu::nop_in(0, itt, NONE), Vec::new()),
        };
        self.deliver(session, header, &data, true)
    }

    /// Returns the buffer of a completed command to the session.
    fn give_back(&self, session: &mut dyn DatamoverEvents, itt: u32, lent: Option<u32>, short: u32) {
        if let Some(MemoryRegion::Sink(buf)) = lent.and_then(|stag| self.endpoint.revoke(stag)) {
            session.filled(itt, buf, short);
        }
    }

    /// Replies to a request of the target, which may grant credits.
    fn reply(&self, unit: &[u8], credits: i32) -> Result<(), ReceiveError> {
        self.with_state(|state| {
            state.replies = if self.endpoint.waiting() == 0 { 0 } else { state.replies + 1 };
            if state.replies > MAX_REPLIES {
                let what = "the target sends SRP requests but does not read the replies of the initiator";
                return Err(broken(io::ErrorKind::InvalidData, what.into()));
            }
            self.endpoint.send(unit, Payload::Empty, None);
            state.credits.give(credits);
            self.send_on(state);
            Ok(())
        })
    }

    /// Reports only the command window to the session.
    fn report_window(&self, session: &mut dyn DatamoverEvents) -> bool {
        self.deliver(session, pdu::nop_in(0, NONE, NONE), &[], false)
    }

    fn deliver(
        &self,
        session: &mut dyn DatamoverEvents,
        mut header: Bhs,
        data: &[u8],
        is_answer: bool,
    ) -> bool {
        header.set_data_len(data.len());
        self.with_state(|state| state.credits.stamp(&mut header, is_answer, state.waiting.len()));
        session.take_pdu(ReceivedPdu {
            header,
            ahs: &[],
            data: ReceivedData::Bytes(data),
            intact: true,
            behind: &[],
        })
    }

    /// Delivers the locally generated PDUs. Returns false if the session accepts no more.
    pub(super) fn deliver_ours(&self, session: &mut dyn DatamoverEvents) -> bool {
        while let Some((header, data)) = self.with_state(|state| state.ours.pop_front()) {
            if !self.deliver(session, header, &data, true) {
                return false;
            }
        }
        true
    }
}

fn broken(kind: io::ErrorKind, what: String) -> ReceiveError {
    ReceiveError::Io(io::Error::new(kind, what))
}
