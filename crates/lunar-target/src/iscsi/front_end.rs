//! The iSCSI session as a front end of the core.

use super::connection::IscsiConnection;
use super::dispatch;
use super::session::{FinalPdu, IscsiSession, data_in_header, set_residual};
use crate::core::data_in::DataIn;
use crate::core::{
    CommandResponse, DataInProgress, DataRequest, FrontEnd, InFlightData, ItNexus, NexusState, ScsiCommand,
};
use crate::end_reason::EndReason;
use crate::registry::AbortScope;
use lunar_proto::parameters::{Parameters, TaskReporting};
use lunar_proto::transfer::DataOutRules;
use lunar_proto::window::precedes;
use lunar_runtime::SendPump;
use lunar_wire::iscsi::flag;
use lunar_wire::iscsi::status::async_event;
use lunar_wire::iscsi::{pdu, sense_segment};
use lunar_wire::scsi::{Sense, Status};
use std::rc::Rc;

impl FrontEnd for IscsiSession {
    #[inline]
    fn data_out_rules(&self) -> DataOutRules {
        data_out_rules(self.parameters())
    }

    fn fetches_data(&self) -> bool {
        self.connections().iter().any(|connection| connection.datamover().is_some())
    }

    /// The transfer tag is the Target Transfer Tag, and the number the R2TSN (RFC 7143 section 11.8).
    fn request_data(&mut self, c: &ScsiCommand, request: DataRequest) {
        let DataRequest { transfer_tag: tag, number, offset, len } = request;
        self.notice(c.connection, pdu::r2t(c.lun, c.tag, tag, number, offset, len));
    }

    fn data_in(&mut self, c: &ScsiCommand, data: DataIn, sent: DataInProgress) -> DataInProgress {
        self.data_in_pdus(c, data, sent, FinalPdu::Open)
    }

    /// Status GOOD is sent with the last Data-In (RFC 7143 section 11.7).
    #[inline(always)]
    fn respond(&mut self, c: &ScsiCommand, response: CommandResponse) {
        let CommandResponse { status, sense, residual, data, sent } = response;
        let len = data.len();
        if len == 0 {
            return self.scsi_response(c, status, &sense, residual, sent.parts);
        }
        if status != Status::Good as u8 || !sense.is_empty() {
            let sent = self.data_in_pdus(c, data, sent, FinalPdu::Data);
            return self.scsi_response(c, status, &sense, residual, sent.parts);
        }
        let max = self.connection(c.connection).map_or(0, |connection| connection.longest_data_in());
        if sent.bytes == 0 && len <= max && len <= self.parameters().max_burst_length as usize {
            let mut header = data_in_header(c, sent);
            set_residual(&mut header, flag::FINAL | flag::STATUS, residual);
            return self.reply(c.connection, &mut header, data.whole());
        }
        self.data_in_pdus(c, data, sent, FinalPdu::Status(residual));
    }

    #[inline]
    fn release(&mut self, c: &ScsiCommand) {
        if c.immediate {
            self.end_immediate();
        } else {
            self.order_mut().finished();
        }
    }

    #[inline]
    fn takes_pages(&self, connection: u16) -> bool {
        self.connection(connection).is_some_and(|connection| connection.takes_pages())
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.connections().iter().any(|connection| connection.is_full())
    }

    #[inline]
    fn stale_reason(&self, connection: u16) -> Option<EndReason> {
        self.connection(connection)?.stale_reason(None)
    }

    fn recheck_peer(&self, connection: u16) {
        if let Some(connection) = self.connection(connection) {
            connection.recheck_peer();
        }
    }

    fn drain_received(state: &mut NexusState<IscsiSession>, scope: &AbortScope) -> Result<(), EndReason> {
        dispatch::drain_received(state, scope)
    }

    fn has_received(&self, sequence: u32) -> bool {
        !precedes(self.order().exp_cmd_sn(), sequence)
    }

    fn in_flight_data(&self) -> Vec<Rc<dyn InFlightData>> {
        let datamovers = self.connections().iter().filter_map(|connection| connection.datamover());
        datamovers.map(|datamover| datamover as Rc<dyn InFlightData>).collect()
    }

    /// True unless FastAbort was negotiated (RFC 7143 section 4.2.3.3).
    fn waits_for_data(&self) -> bool {
        self.parameters().task_reporting != TaskReporting::FastAbort
    }

    fn report_termination(&mut self, lun: u64) {
        self.announce_termination(lun);
    }

    /// An event that the initiator has no room for is left to its unit attention.
    fn report_event(&mut self, lun: u64, event: Sense) -> bool {
        self.announce(lun, async_event::SCSI, [0; 3], sense_segment::encode(&event.encode(false)))
    }

    /// Without room for the message, only the end of the connection follows.
    fn report_gone(&mut self) {
        self.announce(0, async_event::SESSION_DROP, [0, 2, 0], Vec::new());
    }

    fn request_logout(&mut self, time_s: u16) -> bool {
        self.announce(0, async_event::LOGOUT_REQUEST, [0, 0, time_s], Vec::new())
    }

    fn flush(nexus: &Rc<ItNexus<IscsiSession>>) {
        each(nexus, SendPump::flush);
    }

    fn flush_soon(nexus: &Rc<ItNexus<IscsiSession>>) {
        each(nexus, SendPump::flush_soon);
    }

    async fn flushed(nexus: &Rc<ItNexus<IscsiSession>>) {
        let connections = nexus.state().front().connections().to_vec();
        for connection in &connections {
            SendPump::flushed(connection).await;
        }
    }

    fn stop_receiving(&self) {
        self.connections().iter().for_each(|connection| connection.stop_receiving());
    }

    fn close(&self) {
        self.connections().iter().for_each(|connection| connection.close());
    }
}

/// The rules that a login negotiated (RFC 7143 sections 4.2.5.2 and 13).
#[inline]
fn data_out_rules(p: &Parameters) -> DataOutRules {
    DataOutRules {
        max_immediate: if p.immediate_data { p.first_burst_length } else { 0 },
        max_unsolicited: if p.initial_r2t { 0 } else { p.first_burst_length },
        max_request: p.max_burst_length,
        max_requests: p.max_outstanding_r2t,
        in_order: p.data_pdu_in_order,
    }
}

/// Calls `act` for every connection without borrowing the state. Most sessions have one connection.
fn each(nexus: &ItNexus<IscsiSession>, act: impl Fn(&Rc<IscsiConnection>)) {
    let mut index = 0;
    loop {
        let connection = nexus.state().front().connections().get(index).cloned();
        let Some(connection) = connection else { return };
        act(&connection);
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiated_parameters_set_data_out_rules() {
        let p = Parameters {
            initial_r2t: true,
            immediate_data: true,
            first_burst_length: 1024,
            max_burst_length: 2048,
            max_outstanding_r2t: 3,
            data_pdu_in_order: true,
            ..Parameters::default()
        };
        let rules = DataOutRules {
            max_immediate: 1024,
            max_unsolicited: 0,
            max_request: 2048,
            max_requests: 3,
            in_order: true,
        };
        assert_eq!(data_out_rules(&p), rules);
        let p = Parameters { initial_r2t: false, immediate_data: false, data_pdu_in_order: false, ..p };
        let rules = DataOutRules { max_immediate: 0, max_unsolicited: 1024, in_order: false, ..rules };
        assert_eq!(data_out_rules(&p), rules);
    }
}
