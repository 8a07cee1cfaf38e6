//! Login over RDMA: each PDU is one message.

use super::datamover::{IserDatamover, message};
use crate::config::RdmaProvider;
use crate::iscsi::login::LoginTransport;
use crate::iscsi::transport::IscsiTransport;
use crate::session_info::SessionTransport;
use lunar_proto::Pdu;
use lunar_proto::login::SessionType;
use lunar_proto::parameters::{AllowedDigests, Offer, Parameters};
use lunar_rdma::{Endpoint, EndpointEvent, EndpointEvents};
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::Bhs;
use lunar_wire::iser::{self, LOGIN_LEN, OVERHEAD, SAFE_DATA_LEN};
use std::io;
use std::rc::Rc;

/// MaxRecvDataSegmentLength of the target in bytes.
const MAX_SEGMENT: u32 = 8192;
/// Maximum number of bytes of additional header segments.
const MAX_AHS: usize = 1020;
/// Receive buffers in addition to those for commands: for task management, pings and logout.
const EXTRA_RECEIVES: usize = 32;

/// A login over RDMA.
pub struct IserLogin {
    endpoint: Rc<dyn Endpoint>,
    /// Whether the initiator accepts Send with Invalidate.
    invalidate: bool,
    /// Received events that were not handled.
    events: EndpointEvents,
}

impl IserLogin {
    /// A connection that has posted a receive buffer for one login message.
    pub fn new(endpoint: Rc<dyn Endpoint>, invalidate: bool) -> IserLogin {
        IserLogin { endpoint, invalidate, events: EndpointEvents::default() }
    }

    async fn send_message(&self, pdu: &Pdu) -> io::Result<()> {
        let data = if pdu.data.is_empty() { Payload::Empty } else { Payload::Bytes(pdu.data.clone()) };
        let (head, payload) = message(pdu.header, data);
        self.endpoint.send(&head, payload, None);
        while !self.endpoint.flush()? {
            self.endpoint.writable().await?;
        }
        Ok(())
    }
}

impl LoginTransport for IserLogin {
    async fn next(&mut self) -> io::Result<Option<(Bhs, Vec<u8>)>> {
        loop {
            if !self.events.is_empty() {
                return match self.events.list.remove(0) {
                    EndpointEvent::Message(range, _) => {
                        let pdu =
                            iser::IserPdu::decode(&self.events.bytes[range]).map_err(io::Error::other)?;
                        Ok(Some((pdu.bhs, pdu.data.to_vec())))
                    }
                    EndpointEvent::End(Some(e)) => Err(e),
                    EndpointEvent::End(None) => {
                        Err(io::Error::other("the initiator closed the connection during login"))
                    }
                    EndpointEvent::Read(..) => {
                        Err(io::Error::other("an RDMA Read completed before the end of the login"))
                    }
                };
            }
            self.events.clear();
            self.endpoint.readable().await?;
            self.endpoint.poll(&mut self.events);
        }
    }

    async fn send(&mut self, pdu: &Pdu) -> io::Result<()> {
        // Post the buffer before the response is sent, because the next request follows the response.
        self.endpoint.receives(1, LOGIN_LEN);
        self.send_message(pdu).await
    }

    fn transport(&self, provider: RdmaProvider) -> SessionTransport {
        SessionTransport::Rdma(provider)
    }

    fn offer(&self, offer: Offer) -> Offer {
        let none = AllowedDigests { none: true, crc32c: false };
        Offer {
            rdma_extensions: true,
            target_recv_data_segment_length: MAX_SEGMENT,
            // Solicited data are transferred by RDMA.
            initial_r2t: true,
            max_outstanding_r2t: 1,
            header_digest: none,
            data_digest: none,
            max_recv_data_segment_length: MAX_SEGMENT,
            ..offer
        }
    }

    /// Limits segments to the receive buffers of initiators, whatever was negotiated. In full feature phase Linux and
    /// libiscsi have 128 bytes, in Discovery sessions as much as for a login.
    fn parameters(&self, parameters: Parameters, session_type: SessionType) -> Parameters {
        let room = match session_type {
            SessionType::Normal => SAFE_DATA_LEN as u32,
            SessionType::Discovery => MAX_SEGMENT,
        };
        let max_recv_data_segment_length = match parameters.rdma_extensions {
            true => parameters.target_recv_data_segment_length,
            false => MAX_SEGMENT,
        };
        let max_xmit_data_segment_length = parameters.max_xmit_data_segment_length.min(room);
        Parameters { max_recv_data_segment_length, max_xmit_data_segment_length, ..parameters }
    }

    async fn accept(self, pdu: &Pdu, parameters: &Parameters, depth: u32) -> io::Result<IscsiTransport> {
        let segment = parameters.max_recv_data_segment_length.max(MAX_SEGMENT) as usize;
        let longest = OVERHEAD + MAX_AHS + segment;
        // Post all receive buffers before the final response, because requests may follow it at once.
        self.endpoint.receives(depth as usize + EXTRA_RECEIVES, longest);
        self.send_message(pdu).await?;
        let starts_at_first_byte = !parameters.tagged_buffer_for_solicited_data_only;
        let datamover =
            IserDatamover::new(self.endpoint, self.events, longest, self.invalidate, starts_at_first_byte);
        Ok(IscsiTransport::Datamover(Rc::new(datamover)))
    }
}
