//! Login PDUs over RDMA, one per message.

use super::IserDatamover;
use crate::options::Options;
use crate::protocol_mismatch::{self, mismatch, no_rdma};
use crate::rdma_connector::{RdmaConnector, no_device};
use crate::session::transport::Datamover;
use crate::{Error, ErrorCode};
use lunar_proto::Pdu;
use lunar_rdma::{ConnParam, ConnectError, ConnectedEndpoint, Endpoint, EndpointEvent, EndpointEvents};
use lunar_runtime::Stream;
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::Bhs;
use lunar_wire::iser::{self, IserCapabilities, LOGIN_LEN};
use lunar_wire::srp::LoginReject;
use std::net::SocketAddr;
use std::rc::Rc;

/// The maximum number of outstanding RDMA Reads of the target (IRD). It limits the concurrent writes.
const READS: u16 = 128;
/// Receives for messages other than SCSI responses: pings, task management, logout.
const BESIDE: usize = 32;

/// A connection during login: one request PDU, then one response PDU.
pub struct IserLoginConnection {
    endpoint: Rc<dyn Endpoint>,
    /// Received events that are not handled yet.
    events: EndpointEvents,
}

/// Connection parameters, with a receive for every message that the target may send at once: no further receives can
/// be requested.
fn terms(options: &Options) -> ConnParam {
    ConnParam { ord: 1, ird: READS, receives: (usize::from(options.commands) + BESIDE, LOGIN_LEN) }
}

/// The private data of the connection request: the iSER capabilities of this initiator.
fn abilities(invalidate: bool) -> Vec<u8> {
    IserCapabilities { zero_based: false, invalidate }.encode().to_vec()
}

impl IserLoginConnection {
    /// Connects to a target through the RDMA device that routes to it.
    ///
    /// # Errors
    /// When no device does, or the target rejects the connection.
    pub async fn by_device(address: SocketAddr, options: &Options) -> Result<IserLoginConnection, Error> {
        let private = abilities(lunar_rdma::verbs::TAKES_INVALIDATE);
        let connected = lunar_rdma::verbs::connect(address, &private, terms(options)).await;
        let (endpoint, _) = connected.map_err(|e| match e {
            ConnectError::Io(e) => no_device(e),
            rejected => refused(rejected),
        })?;
        Ok(IserLoginConnection { endpoint, events: EndpointEvents::default() })
    }

    /// Connects to a target by software iWARP over a byte stream.
    ///
    /// # Errors
    /// When the target uses another protocol, or rejects the connection.
    pub async fn over(stream: Stream, options: &Options) -> Result<IserLoginConnection, Error> {
        // The CRC of MPA frames replaces the digests of iSCSI.
        let crc = options.offer.header_digest.crc32c || options.offer.data_digest.crc32c;
        let window = options.window.map(|bytes| bytes as usize);
        let how = lunar_rdma::iwarp::Options { crc, window, ..lunar_rdma::iwarp::Options::default() };
        let private = abilities(lunar_rdma::iwarp::TAKES_INVALIDATE);
        let peer = stream.peer().map_err(lost)?;
        let connected = lunar_rdma::iwarp::connect(stream, peer, &private, terms(options), &how).await;
        Ok(IserLoginConnection::with(connected.map_err(refused)?))
    }

    /// Connects to a target with the function `make`.
    ///
    /// # Errors
    /// When `make` fails, or the target rejects the connection.
    pub async fn connect_with(
        options: &Options,
        make: impl RdmaConnector,
    ) -> Result<IserLoginConnection, Error> {
        let connected = make(&abilities(true), terms(options)).await;
        Ok(IserLoginConnection::with(connected.map_err(refused)?))
    }

    /// Wraps an established connection.
    pub fn with((endpoint, _): ConnectedEndpoint) -> IserLoginConnection {
        IserLoginConnection { endpoint, events: EndpointEvents::default() }
    }

    /// The RDMA provider: `iwarp`, or `verbs` and a device.
    pub fn provider(&self) -> &str {
        &self.endpoint.info().provider
    }

    /// The address of the target.
    pub fn peer(&self) -> SocketAddr {
        self.endpoint.info().peer
    }

    /// Sends a PDU.
    pub async fn send(&mut self, pdu: Pdu) -> Result<(), Error> {
        let data = if pdu.data.is_empty() { Payload::Empty } else { Payload::Bytes(pdu.data) };
        let (head, payload) = super::datamover::message(iser::IserHeader::PLAIN, pdu.header, &[], data);
        self.endpoint.send(&head, payload, None);
        while !self.endpoint.flush().map_err(lost)? {
            self.endpoint.writable().await.map_err(lost)?;
        }
        Ok(())
    }

    /// Receives a PDU with at most `limit` bytes of data.
    pub async fn receive(&mut self, limit: usize) -> Result<(Bhs, Vec<u8>), Error> {
        while self.events.is_empty() {
            self.events.clear();
            self.endpoint.readable().await.map_err(lost)?;
            self.endpoint.poll(&mut self.events);
        }
        match self.events.list.remove(0) {
            EndpointEvent::Message(range, _) => {
                let message = &self.events.bytes[range];
                let pdu = iser::IserPdu::decode(message).map_err(|e| broke(e.to_string()))?;
                self.endpoint.receives(1, LOGIN_LEN);
                match pdu.data.len() <= limit && pdu.ahs.is_empty() {
                    true => Ok((pdu.bhs, pdu.data.to_vec())),
                    false => Err(broke(format!(
                        "the target sent a login PDU with {} bytes of data and {} of AHS; allowed are {limit} and 0",
                        pdu.data.len(),
                        pdu.ahs.len()
                    ))),
                }
            }
            EndpointEvent::End(Some(e)) => Err(lost(e)),
            EndpointEvent::End(None) => {
                Err(Error::new(ErrorCode::ConnectionLost, "the target closed the connection during login"))
            }
            EndpointEvent::Read(..) => {
                Err(broke("the login completed an RDMA Read that the initiator did not request"))
            }
        }
    }

    /// The Datamover of the session, after login.
    pub fn into_datamover(self) -> Rc<dyn Datamover> {
        Rc::new(IserDatamover::new(self.endpoint, self.events))
    }
}

fn refused(e: ConnectError) -> Error {
    match e {
        ConnectError::Io(e) => no_rdma(&e),
        ConnectError::Rejected(private) if LoginReject::decode(&private).is_ok() => {
            mismatch("the portal rejected the connection with an SRP login reject", protocol_mismatch::SRP)
        }
        ConnectError::Rejected(_) => Error::new(
            ErrorCode::Unreachable,
            "the portal rejected the RDMA connection",
        )
        .with_hint(
            "check that the portal serves iSER, and that the target accepts more connections (see its log)",
        ),
    }
}

fn broke(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::ProtocolError, what)
}

fn lost(e: std::io::Error) -> Error {
    Error::new(ErrorCode::ConnectionLost, lunar_runtime::error::text(&e))
}
