//! SRP login, which is part of connecting (SRP r16a sections 6.2 to 6.4, in the short format of the RDMA connection
//! manager).

use super::channels::Channels;
use super::credits::{Credits, FIRST};
use super::datamover::{NegotiatedLimits, RECEIVE_LEN, SrpDatamover};
use super::ports::{no_discovery, target_port};
use super::requests::SHORT_IU_LEN;
use crate::nexus::LoginTarget;
use crate::protocol_mismatch::{self, mismatch, no_rdma};
use crate::rdma_connector::{RdmaConnector, no_device};
use crate::session::transport;
use crate::{Error, ErrorCode, Options, hints};
use lunar_proto::initiator::login::LoggedIn;
use lunar_proto::parameters::Parameters;
use lunar_rdma::{ConnParam, ConnectError, ConnectedEndpoint};
use lunar_runtime::Stream;
use lunar_wire::iser::PRIVATE_LEN;
use lunar_wire::srp::{
    IMMEDIATE_OFFSET, LINUX_IU_LEN, LoginFormat, LoginReject, LoginRejectReason, LoginRequest, LoginResponse,
    format,
};
use std::net::SocketAddr;
use std::rc::Rc;

/// The maximum number of outstanding RDMA Reads of the target (IRD). It limits the concurrent writes.
const READS: u16 = 128;
/// Receives for messages other than SCSI responses: task management, credits, events.
const BESIDE: usize = 16;
/// The value for lengths without a limit.
const ANY: u32 = 0xff_ffff;

/// A connection after login.
pub struct SrpLoginConnection {
    datamover: Rc<SrpDatamover>,
    /// The other channels.
    more: Vec<Rc<SrpDatamover>>,
    login: Box<LoggedIn>,
    response: LoginResponse,
}

impl SrpLoginConnection {
    /// Logs in by software iWARP over a byte stream.
    ///
    /// # Errors
    /// When the target uses another protocol, or rejects the connection.
    pub async fn over(
        stream: Stream,
        login_target: &LoginTarget,
        options: &Options,
    ) -> Result<SrpLoginConnection, Error> {
        let request = request(login_target, options)?;
        let private = request.encode(LoginFormat::RdmaCm);
        let crc = options.offer.header_digest.crc32c || options.offer.data_digest.crc32c;
        let window = options.window.map(|bytes| bytes as usize);
        let how = lunar_rdma::iwarp::Options { crc, window, ..lunar_rdma::iwarp::Options::default() };
        let peer = stream
            .peer()
            .map_err(|e| Error::new(ErrorCode::ConnectionLost, lunar_runtime::error::text(&e)))?;
        let connected = lunar_rdma::iwarp::connect(stream, peer, &private, terms(options), &how).await;
        finish(connected, &request, options)
    }

    /// Logs in through the RDMA device that routes to the target.
    ///
    /// # Errors
    /// When no device does, or the target rejects the connection.
    pub async fn by_device(
        address: SocketAddr,
        login_target: &LoginTarget,
        options: &Options,
    ) -> Result<SrpLoginConnection, Error> {
        let request = request(login_target, options)?;
        let private = request.encode(LoginFormat::RdmaCm);
        let connected = lunar_rdma::verbs::connect(address, &private, terms(options)).await;
        match connected {
            Err(ConnectError::Io(e)) => Err(no_device(e)),
            connected => finish(connected, &request, options),
        }
    }

    /// Logs in on a connection that `make` establishes.
    ///
    /// # Errors
    /// When `make` fails, or the target rejects the connection.
    pub async fn connect_with(
        login_target: &LoginTarget,
        options: &Options,
        make: impl RdmaConnector,
    ) -> Result<SrpLoginConnection, Error> {
        let request = request(login_target, options)?;
        let connected = make(&request.encode(LoginFormat::RdmaCm), terms(options)).await;
        finish(connected, &request, options)
    }

    /// The login in terms of iSCSI.
    pub fn login(&self) -> &LoggedIn {
        &self.login
    }

    /// The login response of the target.
    pub fn response(&self) -> &LoginResponse {
        &self.response
    }

    /// The RDMA provider: `iwarp`, or `verbs` and a device.
    pub fn provider(&self) -> &str {
        &self.datamover.endpoint.info().provider
    }

    /// Adds a channel.
    pub fn join(&mut self, channel: SrpLoginConnection) {
        channel.datamover.join(&self.datamover);
        self.more.push(channel.datamover);
        self.login.max_cmd_sn = self.datamover.max_cmd_sn();
    }

    /// The Datamover of the session, for one or all channels.
    pub fn into_datamover(self) -> Rc<dyn transport::Datamover> {
        match self.more.is_empty() {
            true => self.datamover,
            false => Rc::new(Channels::new(std::iter::once(self.datamover).chain(self.more).collect())),
        }
    }

    /// The first channel.
    #[cfg(test)]
    pub fn first(&self) -> Rc<SrpDatamover> {
        self.datamover.clone()
    }
}

/// Connection parameters, with a receive for every message that the target may send at once: no further receives can
/// be requested.
pub fn terms(options: &Options) -> ConnParam {
    ConnParam { ord: 1, ird: READS, receives: (receives(options), RECEIVE_LEN) }
}

fn receives(options: &Options) -> usize {
    usize::from(options.commands) + BESIDE
}

/// The login request for a channel. The login ends earlier channels of this initiator port, unless it adds a channel.
///
/// # Errors
/// When the target name is missing or invalid.
pub fn request(login_target: &LoginTarget, options: &Options) -> Result<LoginRequest, Error> {
    let name = login_target.target.as_deref().ok_or_else(no_discovery)?;
    let wrong = || {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("\"{}\" is not an SRP target port", name.escape_debug()),
        )
    };
    let target = target_port(name).ok_or_else(|| {
        wrong().with_hint("write ID_EXT[:IOC_GUID], each of 16 hexadecimal digits, as the target shows them")
    })?;
    let immediate = options.offer.immediate_data;
    Ok(LoginRequest {
        tag: 0,
        it_iu_len: if immediate { LINUX_IU_LEN } else { SHORT_IU_LEN } as u32,
        formats: format::DIRECT,
        keep_channels: login_target.is_extra_channel,
        notifications: 0,
        immediate_offset: immediate.then_some(IMMEDIATE_OFFSET),
        initiator: options.srp_port(login_target.isid),
        target,
    })
}

/// Completes a login from the result of connecting.
///
/// # Errors
/// When the connection failed or was rejected, or the response violates the protocol.
pub fn finish(
    connected: Result<ConnectedEndpoint, ConnectError>,
    request: &LoginRequest,
    options: &Options,
) -> Result<SrpLoginConnection, Error> {
    let (endpoint, private) = connected.map_err(|refused| turned_down(refused, request))?;
    let response = LoginResponse::decode(&private);
    if is_of_iser(&private) {
        return Err(mismatch(
            "the portal did not answer the login with an SRP response",
            protocol_mismatch::ISER,
        ));
    }
    let response = response.map_err(|e| {
        Error::new(ErrorCode::ProtocolError, format!("the portal sent an invalid SRP login response: {e}"))
            .with_hint(hints::NOT_SRP)
    })?;
    if response.formats & format::DIRECT == 0 {
        let what = format!(
            "the target does not support direct data buffer descriptors: formats {:#06x}",
            response.formats
        );
        return Err(Error::new(ErrorCode::ProtocolError, what));
    }
    tracing::debug!(?response, "logged in");
    let immediate = response.immediate && request.immediate_offset.is_some();
    let agreed = NegotiatedLimits {
        it_iu_len: response.it_iu_len.min(request.it_iu_len) as usize,
        immediate,
        // Requests of the target also need posted receives.
        in_flight: receives(options) - BESIDE / 2,
    };
    let credits = Credits::new(response.credits);
    let login = Box::new(logged_in(&agreed, &credits));
    let datamover = Rc::new(SrpDatamover::new(endpoint, agreed, credits));
    Ok(SrpLoginConnection { datamover, more: Vec::new(), login, response })
}

/// The negotiated limits in terms of iSCSI. The target initiates all data transfer itself, in any order.
fn logged_in(agreed: &NegotiatedLimits, credits: &Credits) -> LoggedIn {
    let parameters = Parameters {
        initial_r2t: false,
        immediate_data: agreed.immediate,
        max_recv_data_segment_length: ANY,
        max_xmit_data_segment_length: ANY,
        max_burst_length: ANY,
        first_burst_length: agreed.immediate_len() as u32,
        default_time2wait: 0,
        default_time2retain: 0,
        rdma_extensions: true,
        ..Parameters::default()
    };
    LoggedIn {
        parameters,
        tsih: 0,
        cmd_sn: FIRST,
        exp_cmd_sn: FIRST,
        max_cmd_sn: credits.max_cmd_sn(),
        exp_stat_sn: FIRST,
        target_alias: None,
        portal_group_tag: None,
        answers: Vec::new(),
        chap: None,
    }
}

/// Whether the private data come from an iSER portal: its capabilities or nothing, padded with zeros over InfiniBand.
fn is_of_iser(private: &[u8]) -> bool {
    private.iter().skip(PRIVATE_LEN).all(|byte| *byte == 0)
}

fn turned_down(refused: ConnectError, request: &LoginRequest) -> Error {
    let private = match refused {
        ConnectError::Io(e) => return no_rdma(&e),
        ConnectError::Rejected(private) => private,
    };
    let Ok(reject) = LoginReject::decode(&private) else {
        return Error::new(ErrorCode::Unreachable, "the portal rejected the connection without a reason")
            .with_hint("check that the portal serves SRP: portals of other protocols give no reason");
    };
    let (kind, hint) = advice(reject.reason, request);
    Error::new(kind, format!("the target rejected the SRP login: {}", reject.reason)).with_hint(hint)
}

/// The error code and hint for a reject reason.
fn advice(reason: LoginRejectReason, request: &LoginRequest) -> (ErrorCode, String) {
    let ours = request.initiator;
    match reason {
        LoginRejectReason::NOT_ASSOCIATED => (
            ErrorCode::NotFound,
            format!(
                "check ID_EXT and IOC_GUID, and admit the initiator port {ours} in the access list of the target; an \
                 entry with `chap` admits no SRP port"
            ),
        ),
        LoginRejectReason::TOO_MANY_CHANNELS => (
            ErrorCode::Refused,
            format!(
                "raise the channel limit of the target; on Linux, also admit port {ours} or the address of this host"
            ),
        ),
        // The condition may be temporary.
        LoginRejectReason::NO_RESOURCES => {
            (ErrorCode::Unreachable, "end some connections of the target, or raise its limit".into())
        }
        LoginRejectReason::IT_IU_TOO_LONG => {
            (ErrorCode::Refused, "add immediate_data=no to the URL, which makes commands shorter".into())
        }
        _ => (ErrorCode::Refused, "see the log of the target".into()),
    }
}
