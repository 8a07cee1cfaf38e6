//! Discovery sessions: the targets of a portal (SendTargets, RFC 7143 appendix C), and other text keys.

use crate::connect::{self, Connected, LoginConnection};
use crate::nexus::{self, LoginTarget};
use crate::options::Transport;
use crate::srp::no_discovery;
use crate::{Error, ErrorCode, Options, Portal, text, time_limit};
use lunar_proto::Pdu;
use lunar_proto::initiator::targets::{self, DiscoveredTarget};
use lunar_proto::initiator::{TextClient, TextStep};
use lunar_proto::parameters::{AllowedDigests, Offer};
use lunar_wire::iscsi::text::push;
use lunar_wire::iscsi::{Bhs, NONE, opcode, request};
use std::fmt;
use std::future::Future;
use std::time::Duration;

/// MaxRecvDataSegmentLength of a discovery session, as in Open-iSCSI.
const SEGMENT: u32 = 32768;

/// Requests all targets that a portal shows to this initiator.
///
/// # Errors
/// When the portal is unreachable or rejects the login, or its response violates the protocol.
pub async fn discover(portal: Portal, options: &Options) -> Result<Vec<DiscoveredTarget>, Error> {
    let during = |e: Error| e.during(format!("discovery at {portal}"));
    let mut discovery = Discovery::open(portal.clone(), options).await?;
    let mut question = Vec::new();
    push(&mut question, "SendTargets", "All");
    let answer = discovery.exchange(question).await.map_err(answered).map_err(during)?;
    let answer = targets::parse(&answer).map_err(|why| during(Error::new(ErrorCode::ProtocolError, why)))?;
    answer.notes.iter().for_each(|note| tracing::warn!("{note}"));
    // The list is complete: a missing logout response does not matter.
    let _ = discovery.close().await;
    Ok(answer.found)
}

/// A target must answer SendTargets: a Reject is a protocol error (RFC 7143 appendix C).
fn answered(e: Error) -> Error {
    if e.code == ErrorCode::Refused { Error::new(ErrorCode::ProtocolError, e.what.clone()) } else { e }
}

/// An open discovery session on the core that opened it. Dropping it closes the connection.
pub struct Discovery {
    /// None after an incomplete exchange: the next PDU could not be attributed to a request.
    connection: Option<DiscoveryConnection>,
    /// The time limit of an exchange.
    answer: Duration,
    /// The time limit of a logout.
    logout: Duration,
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovery").field("is_open", &self.connection.is_some()).finish_non_exhaustive()
    }
}

impl Discovery {
    /// Logs in to a portal, without a target.
    ///
    /// # Errors
    /// When the portal is unreachable in all attempts, or rejects the login. [`ErrorCode::InvalidArgument`] over SRP,
    /// which has no discovery.
    pub async fn open(portal: Portal, options: &Options) -> Result<Discovery, Error> {
        if options.transport == Transport::Srp {
            return Err(no_discovery());
        }
        let none = AllowedDigests { none: true, crc32c: false };
        let offer = Offer {
            header_digest: none,
            data_digest: none,
            max_recv_data_segment_length: SEGMENT,
            ..options.offer.clone()
        };
        let options = Options { offer, ..options.clone() };
        let login_target =
            LoginTarget { portal, target: None, isid: nexus::new_isid(), is_extra_channel: false };
        let connected = connect::connect_with_retry(&login_target, &options).await?;
        let (answer, logout) = (options.timeouts.login, options.timeouts.logout);
        Ok(Discovery { connection: Some(DiscoveryConnection::new(connected)), answer, logout })
    }

    /// Sends a text request and waits for the response, at most for the login timeout. The target answers an unknown
    /// key with NotUnderstood, which is not an error.
    ///
    /// # Errors
    /// [`ErrorCode::Refused`] when the target rejects the request. [`ErrorCode::InvalidArgument`] for malformed keys,
    /// and for those that only a login may negotiate. Other errors end the session: [`ErrorCode::ConnectionLost`],
    /// [`ErrorCode::TimedOut`], and [`ErrorCode::ProtocolError`] for a response that violates the protocol.
    pub async fn text(&mut self, asked: &[(&str, &str)]) -> Result<Vec<(String, String)>, Error> {
        text::parse(&self.exchange(text::question(asked)?).await?)
    }

    /// Logs out.
    ///
    /// # Errors
    /// When the target does not answer in time. The session ends in either case.
    pub async fn close(mut self) -> Result<(), Error> {
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        within(self.logout, connection.log_out()).await
    }

    async fn exchange(&mut self, question: Vec<u8>) -> Result<Vec<u8>, Error> {
        let gone = || {
            Error::new(ErrorCode::ConnectionLost, "the discovery session has ended after an earlier request")
        };
        // Taken until the exchange is complete: a cancelled call leaves None.
        let mut connection = self.connection.take().ok_or_else(gone)?;
        let answer = within(self.answer, connection.request(question)).await;
        if !answer.as_ref().is_err_and(|e| e.code != ErrorCode::Refused) {
            self.connection = Some(connection);
        }
        answer
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = || {
        Error::new(
            ErrorCode::TimedOut,
            format!(
                "the portal did not answer a request of the discovery session within {} s",
                limit.as_secs_f32()
            ),
        )
    };
    time_limit::within(limit, work).await.unwrap_or_else(|| Err(late()))
}

/// The connection of a discovery session, with one request in flight.
struct DiscoveryConnection {
    wire: LoginConnection,
    cmd_sn: u32,
    exp_stat_sn: u32,
    max_xmit: u32,
    /// The last used Initiator Task Tag.
    tag: u32,
}

impl DiscoveryConnection {
    fn new(connected: Connected) -> DiscoveryConnection {
        let Connected { wire, login, .. } = connected;
        DiscoveryConnection {
            wire,
            cmd_sn: login.cmd_sn,
            exp_stat_sn: login.exp_stat_sn,
            max_xmit: login.parameters.max_xmit_data_segment_length,
            tag: 0,
        }
    }

    fn next_tag(&mut self) -> u32 {
        self.tag = self.tag.wrapping_add(1) & (NONE >> 1);
        self.tag
    }

    async fn request(&mut self, question: Vec<u8>) -> Result<Vec<u8>, Error> {
        let (mut text, mut request) = TextClient::new(self.next_tag(), question, self.max_xmit, text::LIMIT);
        loop {
            self.send(request).await?;
            let (header, data) = self.receive().await?;
            match text.response(&header, &data) {
                TextStep::Send(next) => request = next,
                TextStep::Done(answer) => return Ok(answer),
                TextStep::Rejected(reason) => return Err(text::rejected(reason)),
                TextStep::Failed(why) => return Err(Error::new(ErrorCode::ProtocolError, why)),
            }
        }
    }

    async fn log_out(&mut self) -> Result<(), Error> {
        let tag = self.next_tag();
        self.send(Pdu::new(request::logout(tag), Vec::new())).await?;
        self.receive().await.map(drop)
    }

    async fn send(&mut self, mut pdu: Pdu) -> Result<(), Error> {
        request::stamp(&mut pdu.header, self.cmd_sn, self.exp_stat_sn);
        self.wire.send(pdu).await
    }

    /// Receives the next PDU. Answers NOP-In pings on the way.
    async fn receive(&mut self) -> Result<(Bhs, Vec<u8>), Error> {
        loop {
            let (header, data) = self.wire.receive(SEGMENT as usize).await?;
            if header.opcode() != opcode::NOP_IN {
                let (got, next) = (header.stat_sn(), self.exp_stat_sn);
                if got != next {
                    let what = format!("the target sent StatSN {got}, expected {next}: a response was lost");
                    return Err(Error::new(ErrorCode::ProtocolError, what));
                }
                self.exp_stat_sn = next.wrapping_add(1);
                return Ok((header, data));
            }
            if header.ttt() != NONE {
                let pong = request::nop_out(header.lun(), NONE, header.ttt());
                self.send(Pdu::new(pong, data)).await?;
            }
        }
    }
}
