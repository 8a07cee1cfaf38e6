//! Connects to a portal and logs in.

pub use crate::addresses::resolve;
use crate::io_error::{lost, no_connection};
use crate::nexus::{LoginTarget, TargetPort};
use crate::options::{SessionTransport, Transport};
use crate::portal::Portal;
use crate::protocol_mismatch::{self, mismatch};
#[cfg(feature = "rdma")]
use crate::rdma_connector::RdmaConnector;
use crate::session::info::SessionInfo;
use crate::session::transport::TransportHandle;
use crate::{Error, ErrorCode, Options, hints, iser, srp, time_limit, waits, with_retry};
use lunar_proto::Pdu;
use lunar_proto::chap::Algorithm;
use lunar_proto::initiator::login::{InitiatorLogin, InitiatorLoginStep, LoggedIn, LoginError, LoginParams};
use lunar_proto::login::SessionType;
use lunar_runtime::Stream;
use lunar_runtime::iscsi::pdu_queue::{Digests, Payload, PduQueue};
use lunar_wire::iscsi::{BHS_LEN, Bhs, opcode, padded, request};
use lunar_wire::nvme::pdu_type::C2H_TERM_REQUEST;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The maximum number of consecutive redirections.
const REDIRECTIONS: u32 = 5;
/// CmdSN of a new session.
const FIRST_CMD_SN: u32 = 1;
/// The begin of C2HTermReq of NVMe/TCP: its type, no flags, and the length of its header. iSCSI targets send no PDU of
/// this type.
const TERM_REQUEST: [u8; 3] = [C2H_TERM_REQUEST, 0, 24];
/// The fault of an address that does not answer.
const NO_CONNECTION_IN_TIME: &str = "the portal does not accept a connection in time";

/// A connection after login.
pub struct Connected {
    /// The connection.
    pub wire: LoginConnection,
    /// The portal, after redirections.
    pub portal: Portal,
    /// The result of the login.
    pub login: Box<LoggedIn>,
}

impl Connected {
    /// The properties of a new session on this connection.
    pub fn info(&self, login_target: &LoginTarget, options: &Options) -> SessionInfo {
        SessionInfo {
            portal: self.portal.clone(),
            target: login_target.target.clone().unwrap_or_default(),
            alias: self.login.target_alias.clone(),
            portal_group_tag: self.login.portal_group_tag,
            port: self.target_port(login_target),
            isid: login_target.isid,
            tsih: self.login.tsih,
            user: self.user(options),
            transport: self.wire.transport(),
            parameters: self.login.parameters.clone(),
            connected: true,
            lost_by: None,
            recoveries: 0,
            orphans: 0,
        }
    }

    /// The authenticated CHAP user. Empty if the target requested no authentication.
    pub fn user(&self, options: &Options) -> String {
        let credentials = options.credentials.as_ref().filter(|_| self.login.chap.is_some());
        credentials.map(|credentials| credentials.name.clone()).unwrap_or_default()
    }

    /// The target port of the nexus, if known.
    pub fn target_port(&self, login_target: &LoginTarget) -> Option<TargetPort> {
        match (&self.wire, self.login.portal_group_tag) {
            (LoginConnection::Srp(_), _) => {
                login_target.target.as_deref().and_then(srp::target_port).map(TargetPort::Srp)
            }
            (_, Some(tag)) => Some(TargetPort::PortalGroup(tag)),
            (LoginConnection::Tcp(wire), None) => wire.stream.peer().ok().map(TargetPort::Portal),
            (LoginConnection::Iser(wire), None) => Some(TargetPort::Portal(wire.peer())),
        }
    }
}

/// Connects and logs in. Retries while the target is unreachable, up to the number of attempts in the options. A
/// rejected login is not retried.
pub async fn connect_with_retry(login_target: &LoginTarget, options: &Options) -> Result<Connected, Error> {
    let missing = |e: &Error| tracing::warn!("{e}; the initiator tries again");
    with_retry(options.timeouts.login_tries, missing, async || connect_once(login_target, options).await)
        .await
}

/// Connects and logs in, and follows redirections.
pub async fn connect_once(login_target: &LoginTarget, options: &Options) -> Result<Connected, Error> {
    let mut portal = login_target.portal.clone();
    for _ in 0..=REDIRECTIONS {
        let limit = options.timeouts.login;
        let _wait = waits::on(format!("the login to {portal}"));
        // Boxed because the future of a login takes 10 KiB, and would be part of each caller's future.
        let tried = time_limit::within(limit, Box::pin(attempt(&portal, login_target, options))).await;
        let late = || login_timed_out(limit);
        match tried.unwrap_or_else(|| Err(late())).map_err(|e| e.during(format!("login to {portal}")))? {
            LoginOutcome::LoggedIn(connected) => return Ok(*connected),
            LoginOutcome::Redirected(there) => {
                tracing::info!("the target redirects from {portal} to {there}");
                portal = there;
            }
        }
    }
    let what = format!(
        "login to {}: targets redirected the login more than {REDIRECTIONS} times",
        login_target.portal
    );
    Err(Error::new(ErrorCode::ProtocolError, what))
}

/// Logs in once on an RDMA connection that `make` establishes.
#[cfg(feature = "rdma")]
pub async fn connect_with(
    login_target: &LoginTarget,
    options: &Options,
    make: impl RdmaConnector,
) -> Result<Connected, Error> {
    let wire = match options.transport {
        Transport::Tcp => {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "transport TCP: RDMA is required, iSER or SRP",
            ));
        }
        Transport::Iser => {
            LoginConnection::Iser(iser::IserLoginConnection::connect_with(options, make).await?)
        }
        Transport::Srp => {
            LoginConnection::Srp(srp::SrpLoginConnection::connect_with(login_target, options, make).await?)
        }
    };
    match log_in(wire, &login_target.portal, login_target, options, &mut ()).await? {
        LoginOutcome::LoggedIn(connected) => Ok(*connected),
        LoginOutcome::Redirected(there) => Err(Error::new(
            ErrorCode::ProtocolError,
            format!(
                "the target redirects the login to {there}, which a single given connection cannot follow"
            ),
        )),
    }
}

/// The error of a login that took longer than `limit`.
pub fn login_timed_out(limit: Duration) -> Error {
    let what = format!("the login did not complete within {} s", limit.as_secs_f32());
    Error::new(ErrorCode::TimedOut, what).with_hint(hints::LOGIN_TIMEOUT)
}

/// The outcome of one login.
pub enum LoginOutcome {
    /// Login succeeded.
    LoggedIn(Box<Connected>),
    /// The target redirects to this portal.
    Redirected(Portal),
}

/// Records the PDUs of a login in both directions.
pub trait LoginTrace {
    /// Records a sent or received PDU.
    fn record(&mut self, header: &Bhs, data: &[u8]);
}

/// Observes the attempts to connect to the addresses of a portal.
pub trait AddressTrace {
    /// Records the end of an attempt: the time to connect, or the fault.
    fn attempted(&mut self, address: SocketAddr, result: Result<Duration, &str>);
}

/// Records nothing.
impl LoginTrace for () {
    fn record(&mut self, _: &Bhs, _: &[u8]) {}
}

/// Records nothing.
impl AddressTrace for () {
    fn attempted(&mut self, _: SocketAddr, _: Result<Duration, &str>) {}
}

async fn attempt(
    portal: &Portal,
    login_target: &LoginTarget,
    options: &Options,
) -> Result<LoginOutcome, Error> {
    let mut wire = LoginConnection::connect(portal, login_target, options).await?;
    wire.add_channels(portal, login_target, options).await;
    log_in(wire, portal, login_target, options, &mut ()).await
}

/// Logs in on a connection.
pub async fn log_in(
    mut wire: LoginConnection,
    portal: &Portal,
    login_target: &LoginTarget,
    options: &Options,
    trace: &mut impl LoginTrace,
) -> Result<LoginOutcome, Error> {
    if let LoginConnection::Srp(srp) = &wire {
        // SRP logs in while it connects.
        let login = Box::new(srp.login().clone());
        return Ok(LoginOutcome::LoggedIn(Box::new(Connected { wire, portal: portal.clone(), login })));
    }
    let wish = LoginParams {
        initiator: options.initiator.clone(),
        initiator_alias: None,
        target: login_target.target.clone(),
        session_type: if login_target.target.is_some() {
            SessionType::Normal
        } else {
            SessionType::Discovery
        },
        isid: login_target.isid,
        tsih: 0,
        cid: 1,
        cmd_sn: FIRST_CMD_SN,
        itt: 1,
        offer: options.transport.offer(&options.offer),
        crc32c_first: options.crc32c_first,
        credentials: options.credentials.clone(),
    };
    wish.check().map_err(|what| Error::new(ErrorCode::InvalidArgument, what))?;
    let is_tcp = matches!(wire, LoginConnection::Tcp(_));
    let mut silence = ClosedDuringLogin { anonymous: wish.credentials.is_none(), may_be_other: is_tcp };
    let (mut login, mut request) = InitiatorLogin::new(wish);
    loop {
        trace.record(&request.header, &request.data);
        wire.send(request).await?;
        let received = wire.receive(lunar_proto::login::SEGMENT_LEN).await;
        let (header, data) = received.map_err(|e| silence.explain(e))?;
        silence.may_be_other = false;
        trace.record(&header, &data);
        match login.response(&header, &data) {
            InitiatorLoginStep::Send(next) => request = next,
            InitiatorLoginStep::Done(login) => {
                return Ok(LoginOutcome::LoggedIn(Box::new(Connected {
                    wire,
                    portal: portal.clone(),
                    login,
                })));
            }
            InitiatorLoginStep::Moved { address, .. } => {
                return redirected(&address).map(LoginOutcome::Redirected);
            }
            InitiatorLoginStep::Failed(failure) => return Err(with_chap_hint(failed(failure), options)),
        }
    }
}

/// Adds a hint about missing credentials, or about MD5, the one algorithm that every target must support (RFC 7143
/// section 12.1.3).
fn with_chap_hint(e: Error, options: &Options) -> Error {
    let has_md5 = options.credentials.as_ref().is_none_or(|c| c.algorithms.contains(&Algorithm::Md5));
    match e.code {
        ErrorCode::AuthenticationFailed if options.credentials.is_none() => {
            e.with_hint(hints::CREDENTIALS_MISSING)
        }
        ErrorCode::AuthenticationFailed | ErrorCode::Refused if !has_md5 => e.with_hint(
            "the target may not support the offered CHAP algorithms. Some targets, such as STGT, support only MD5: \
             remove auth= from the URL, or write auth=md5",
        ),
        _ => e,
    }
}

/// The possible causes when a target closes the connection during login.
struct ClosedDuringLogin {
    /// Whether no CHAP user was offered.
    anonymous: bool,
    /// Whether the connection is TCP and the target has sent no PDU, so that the port may serve another protocol.
    may_be_other: bool,
}

impl ClosedDuringLogin {
    /// LIO closes without a response if it requires CHAP and the initiator offers none. Over iSER it does so for
    /// every rejected login.
    fn explain(&self, e: Error) -> Error {
        if e.code != ErrorCode::ConnectionLost {
            return e;
        }
        let login = match self.anonymous {
            true => "the target may require CHAP: add USER@ and password_file=FILE to the URL",
            false => {
                "the target may reject the login: check user, password and initiator name, and the log of the target"
            }
        };
        let other = "; if the port serves NVMe/TCP, iSER or SRP only, use nvme://, iser:// or srp://";
        e.with_hint(format!("{login}{}", if self.may_be_other { other } else { "" }))
    }
}

/// Logs out on a connection that has only logged in. If digests were negotiated, or over SRP, which has no logout,
/// this closes the connection instead.
pub async fn log_out(connected: Connected) -> Result<(), Error> {
    let Connected { mut wire, login, .. } = connected;
    let has_digests = login.parameters.header_digest || login.parameters.data_digest;
    if has_digests || matches!(wire, LoginConnection::Srp(_)) {
        return Ok(());
    }
    let mut header = request::logout(2);
    request::stamp(&mut header, login.cmd_sn, login.exp_stat_sn);
    wire.send(Pdu::new(header, Vec::new())).await?;
    wire.receive(lunar_proto::login::SEGMENT_LEN).await.map(drop)
}

fn failed(failure: LoginError) -> Error {
    match failure {
        LoginError::Refused(status) => {
            let kind = match (status.0, status.1) {
                (2, 1) => ErrorCode::AuthenticationFailed,
                (2, 3 | 4) => ErrorCode::NotFound,
                // The condition may be temporary.
                (3, _) => ErrorCode::Unreachable,
                _ => ErrorCode::Refused,
            };
            let error = Error::new(kind, format!("the target rejected the login: {status}"));
            match (status.0, status.1) {
                (2, 1) => error.with_hint(
                    "check CHAP user, password and algorithm on both sides (docs/use.md, CHAP); see the target's log",
                ),
                (3, 1) => {
                    error.with_hint("start the target, and check its name: LIO returns this for unknown names, too")
                }
                (3, 2) => error.with_hint(
                    "end some sessions of the target, or raise its limits (Lunar: `sessions` and `sessions_per_initiator` in \
                     [limits])",
                ),
                _ => error,
            }
        }
        LoginError::Authentication(what) => Error::new(ErrorCode::AuthenticationFailed, what),
        LoginError::Digests(what) => {
            Error::new(ErrorCode::NegotiationFailed, what).with_hint(hints::DIGESTS_OFF)
        }
        LoginError::UnknownPdu(what) => {
            Error::new(ErrorCode::ProtocolError, what).with_hint(hints::NOT_A_PORTAL)
        }
        LoginError::Broke(what) => Error::new(ErrorCode::ProtocolError, what),
    }
}

/// Parses an address in the format of TargetAddress (RFC 7143 section 13.8).
fn redirected(address: &str) -> Result<Portal, Error> {
    address.parse().map_err(|e: Error| {
        Error::new(
            ErrorCode::ProtocolError,
            format!("the target redirects the login to an invalid address: {e}"),
        )
    })
}

/// A connection during login, with one request in flight.
pub enum LoginConnection {
    /// A byte stream.
    Tcp(TcpLoginConnection),
    /// Messages over RDMA.
    Iser(iser::IserLoginConnection),
    /// SRP, already logged in. It has no PDUs.
    Srp(srp::SrpLoginConnection),
}

impl LoginConnection {
    /// Connects to the first address of a portal that answers within the login timeout.
    pub async fn connect(
        portal: &Portal,
        login_target: &LoginTarget,
        options: &Options,
    ) -> Result<LoginConnection, Error> {
        #[cfg(not(feature = "rdma"))]
        if options.transport != Transport::Tcp {
            return Err(crate::io_error::no_rdma_feature());
        }
        let addresses = resolve(portal).await?;
        if options.by_device() {
            return LoginConnection::by_device(&addresses, login_target, options, &mut ()).await;
        }
        let stream = tcp_stream(&addresses, options.timeouts.login, options.window, &mut ()).await?;
        LoginConnection::over(stream, login_target, options).await
    }

    /// Adds the other channels of an SRP session. As in Linux, a session may get fewer channels than requested.
    async fn add_channels(&mut self, portal: &Portal, login_target: &LoginTarget, options: &Options) {
        let LoginConnection::Srp(session) = self else { return };
        let is_extra_channel = LoginTarget { is_extra_channel: true, ..login_target.clone() };
        for number in 2..=options.channels {
            match LoginConnection::connect(portal, &is_extra_channel, options).await {
                Ok(LoginConnection::Srp(channel)) => session.join(channel),
                Ok(_) => return,
                Err(e) => {
                    tracing::warn!(
                        "{portal}: cannot open channel {number} of {} of the SRP session: {e}",
                        options.channels
                    );
                    return;
                }
            }
        }
    }

    /// Connects through an RDMA device to the first of these addresses that answers within the login timeout.
    pub async fn by_device(
        addresses: &[SocketAddr],
        login_target: &LoginTarget,
        options: &Options,
        trace: &mut impl AddressTrace,
    ) -> Result<LoginConnection, Error> {
        let connect = async |address| match options.transport {
            Transport::Srp => srp::SrpLoginConnection::by_device(address, login_target, options)
                .await
                .map(LoginConnection::Srp),
            Transport::Tcp | Transport::Iser => {
                iser::IserLoginConnection::by_device(address, options).await.map(LoginConnection::Iser)
            }
        };
        first_that_answers(addresses, options.timeouts.login, trace, connect).await
    }

    /// Starts on a byte stream on which nothing has been sent.
    pub async fn over(
        stream: Stream,
        login_target: &LoginTarget,
        options: &Options,
    ) -> Result<LoginConnection, Error> {
        match options.transport {
            Transport::Tcp => Ok(LoginConnection::Tcp(TcpLoginConnection { stream, begun: Vec::new() })),
            Transport::Iser => {
                iser::IserLoginConnection::over(stream, options).await.map(LoginConnection::Iser)
            }
            Transport::Srp => {
                srp::SrpLoginConnection::over(stream, login_target, options).await.map(LoginConnection::Srp)
            }
        }
    }

    /// The transport and its provider.
    pub fn transport(&self) -> SessionTransport {
        let over = |transport: Transport, provider: &str| {
            // The provider string is "name device": the space becomes a colon.
            SessionTransport { transport, provider: Some(provider.replace(' ', ":")) }
        };
        match self {
            LoginConnection::Tcp(_) => SessionTransport { transport: Transport::Tcp, provider: None },
            LoginConnection::Iser(wire) => over(Transport::Iser, wire.provider()),
            LoginConnection::Srp(wire) => over(Transport::Srp, wire.provider()),
        }
    }

    /// Sends a PDU.
    pub async fn send(&mut self, pdu: Pdu) -> Result<(), Error> {
        match self {
            LoginConnection::Tcp(wire) => wire.send(pdu).await,
            LoginConnection::Iser(wire) => wire.send(pdu).await,
            LoginConnection::Srp(_) => Err(no_pdus()),
        }
    }

    /// Receives a PDU with at most `limit` bytes of data.
    pub async fn receive(&mut self, limit: usize) -> Result<(Bhs, Vec<u8>), Error> {
        match self {
            LoginConnection::Tcp(wire) => wire.receive(limit).await,
            LoginConnection::Iser(wire) => wire.receive(limit).await,
            LoginConnection::Srp(_) => Err(no_pdus()),
        }
    }

    /// The transport of the session, and any bytes received after the login.
    pub fn into_line(self) -> (TransportHandle, Vec<u8>) {
        match self {
            LoginConnection::Tcp(wire) => (TransportHandle::Tcp(wire.stream), wire.begun),
            LoginConnection::Iser(wire) => (TransportHandle::Datamover(wire.into_datamover()), Vec::new()),
            LoginConnection::Srp(wire) => (TransportHandle::Datamover(wire.into_datamover()), Vec::new()),
        }
    }
}

fn no_pdus() -> Error {
    Error::new(ErrorCode::InvalidArgument, "an SRP connection carries no iSCSI PDUs")
}

/// The error of a name without an address.
fn no_address() -> Error {
    Error::new(ErrorCode::Unreachable, "the host name of the portal resolves to no address")
}

/// Connects over TCP to the first of these addresses that answers within the limit. `window` is the size of the socket
/// buffers in bytes; None leaves it to the kernel.
pub async fn tcp_stream(
    addresses: &[SocketAddr],
    limit: Duration,
    window: Option<u32>,
    trace: &mut impl AddressTrace,
) -> Result<Stream, Error> {
    let connect = async |address| Stream::connect(address).await.map_err(|e| no_connection(&e));
    let stream = first_that_answers(addresses, limit, trace, connect).await?;
    if let Some(bytes) = window {
        stream.set_window(bytes as usize).map_err(lost)?;
    }
    Ok(stream)
}

/// An attempt to connect to an address. Dropping it records an attempt that the caller's time limit has ended.
struct AddressAttempt<'a, T: AddressTrace> {
    trace: &'a mut T,
    address: SocketAddr,
    started_at: Instant,
    is_recorded: bool,
}

impl<'a, T: AddressTrace> AddressAttempt<'a, T> {
    fn begin(trace: &'a mut T, address: SocketAddr) -> AddressAttempt<'a, T> {
        AddressAttempt { trace, address, started_at: Instant::now(), is_recorded: false }
    }

    fn record<C>(mut self, result: &Result<C, Error>) {
        self.is_recorded = true;
        let result = result.as_ref().map(|_| self.started_at.elapsed()).map_err(|e| e.what.as_str());
        self.trace.attempted(self.address, result);
    }
}

impl<T: AddressTrace> Drop for AddressAttempt<'_, T> {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.trace.attempted(self.address, Err(NO_CONNECTION_IN_TIME));
        }
    }
}

/// Connects to the first of these addresses that answers. Each address gets a share of the time, so that an
/// unresponsive one leaves time for the next.
async fn first_that_answers<C>(
    addresses: &[SocketAddr],
    limit: Duration,
    trace: &mut impl AddressTrace,
    connect: impl AsyncFn(SocketAddr) -> Result<C, Error>,
) -> Result<C, Error> {
    let share = limit / (addresses.len().max(1) + 1) as u32;
    let silent = || Error::new(ErrorCode::TimedOut, NO_CONNECTION_IN_TIME).with_hint(hints::LOGIN_TIMEOUT);
    let mut last = no_address();
    for (left, address) in addresses.iter().enumerate().map(|(n, a)| (addresses.len() - 1 - n, a)) {
        // The last address gets all remaining time: the caller limits the total.
        let share = if left == 0 { limit } else { share };
        let attempt = AddressAttempt::begin(trace, *address);
        let connected = time_limit::within(share, connect(*address)).await.unwrap_or_else(|| Err(silent()));
        attempt.record(&connected);
        match connected {
            Ok(connection) => return Ok(connection),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A connection during login over a byte stream.
pub struct TcpLoginConnection {
    stream: Stream,
    begun: Vec<u8>,
}

impl TcpLoginConnection {
    /// Sends a PDU.
    pub async fn send(&mut self, mut pdu: Pdu) -> Result<(), Error> {
        let mut out = PduQueue::default();
        let payload = if pdu.data.is_empty() { Payload::Empty } else { Payload::Bytes(pdu.data) };
        out.push(&mut pdu.header, payload, Digests::default());
        while !out.flush(&self.stream).map_err(lost)? {
            self.stream.writable().await.map_err(lost)?;
        }
        Ok(())
    }

    /// Receives a PDU with at most `limit` bytes of data.
    pub async fn receive(&mut self, limit: usize) -> Result<(Bhs, Vec<u8>), Error> {
        self.fill(BHS_LEN).await?;
        let header = Bhs::from_bytes(self.begun[..BHS_LEN].try_into().expect("48 bytes"));
        let (ahs, len) = (header.ahs_len(), header.data_len());
        if ahs > 0 || len > limit {
            let name = opcode::name(header.opcode());
            return Err(Error::new(
                ErrorCode::ProtocolError,
                format!("{name} during login: {ahs} bytes of AHS and {len} bytes of data; allowed are 0 and {limit}"),
            )
            .with_hint(hints::NOT_A_PORTAL));
        }
        let whole = BHS_LEN + padded(len);
        self.fill(whole).await?;
        let rest = self.begun.split_off(whole);
        let data = std::mem::replace(&mut self.begun, rest)[BHS_LEN..BHS_LEN + len].to_vec();
        Ok((header, data))
    }

    async fn fill(&mut self, len: usize) -> Result<(), Error> {
        let mut chunk = vec![0; 16 << 10];
        while self.begun.len() < len {
            self.stream.readable().await.map_err(lost)?;
            match self.stream.receive(&mut chunk).map_err(lost)? {
                Some(0) => {
                    return Err(Error::new(ErrorCode::ConnectionLost, "the target closed the connection"));
                }
                Some(n) => self.begun.extend_from_slice(&chunk[..n]),
                None => {}
            }
            if self.begun.starts_with(&TERM_REQUEST) {
                let happened = "the portal answers the login with a PDU of NVMe/TCP";
                return Err(mismatch(happened, protocol_mismatch::NVME));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// An address that does not answer while the returned sockets are open.
    pub fn silent_address() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let full = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let silent = full.local_addr().expect("bound");
        // A listener with a full backlog drops further SYNs.
        rustix::net::listen(&full, 0).expect("listen with backlog 0");
        let moment = Duration::from_millis(200);
        let held: Vec<_> = (0..4).map_while(|_| TcpStream::connect_timeout(&silent, moment).ok()).collect();
        assert!(held.len() < 4, "the backlog is not full");
        (silent, full, held)
    }

    #[test]
    fn login_failure_has_code_and_hint_of_its_variant() {
        type Make = fn(String) -> LoginError;
        for (make, code, hint) in [
            (LoginError::Digests as Make, ErrorCode::NegotiationFailed, Some(hints::DIGESTS_OFF)),
            (LoginError::UnknownPdu as Make, ErrorCode::ProtocolError, Some(hints::NOT_A_PORTAL)),
            (LoginError::Broke as Make, ErrorCode::ProtocolError, None),
            (LoginError::Authentication as Make, ErrorCode::AuthenticationFailed, None),
        ] {
            for words in [
                "",
                "the target sent HeaderDigest=None: the value was not offered",
                "the target sent a PDU during login that is no Login Response: unknown opcode",
            ] {
                let e = failed(make(words.into()));
                assert_eq!((e.code, e.hint.clone()), (code, hint.clone()), "{words}");
            }
        }
        let late = login_timed_out(Duration::from_secs(1));
        assert_eq!((late.code, late.hint.clone()), (ErrorCode::TimedOut, Some(hints::LOGIN_TIMEOUT)));
    }

    #[test]
    fn authentication_failure_without_user_hints_at_user_and_secret() {
        let refused =
            || failed(LoginError::Refused(lunar_wire::iscsi::status::LoginStatus::AUTHENTICATION_FAILURE));
        let anonymous = Options::new("iqn.2026-11.org.example:h");
        let hint = |options| with_chap_hint(refused(), options).hint.clone();
        assert_eq!(hint(&anonymous), Some(hints::CREDENTIALS_MISSING));
        let url = crate::Url::parse("iscsi://ann%secret-of-ann@h").expect("a URL");
        let named = url.options().expect("valid options");
        assert_ne!(hint(&named), Some(hints::CREDENTIALS_MISSING));
        let unset = failed(LoginError::Authentication("the target requires CHAP".into()));
        assert_eq!(with_chap_hint(unset, &anonymous).hint.clone(), Some(hints::CREDENTIALS_MISSING));
    }

    #[test]
    fn close_before_the_first_pdu_hints_at_other_protocols() {
        for (anonymous, login) in [(true, "may require CHAP"), (false, "check user, password")] {
            for may_be_other in [true, false] {
                let error = ClosedDuringLogin { anonymous, may_be_other }
                    .explain(Error::new(ErrorCode::ConnectionLost, "closed"));
                let hint = error.hint.as_deref().expect("a hint");
                assert!(hint.contains(login), "{hint}");
                assert_eq!(hint.contains("use nvme://, iser:// or srp://"), may_be_other, "{hint}");
            }
        }
    }

    /// The same loop serves TCP and RDMA devices, which tests do not have.
    #[test]
    fn silent_address_gets_a_share_with_any_connector() {
        compio::runtime::Runtime::new().expect("an event loop").block_on(async {
            let [silent, answers] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
            let connect = async |address| match address == silent {
                true => std::future::pending().await,
                false => Ok(address),
            };
            let limit = Duration::from_secs(1);
            let addresses = [silent, answers];
            let mut trace = ();
            let tried = time_limit::within(limit, first_that_answers(&addresses, limit, &mut trace, connect));
            assert_eq!(tried.await.expect("the attempt ends in time"), Ok(answers));
        });
    }

    #[test]
    fn address_that_is_silent_leaves_time_for_the_next() {
        compio::runtime::Runtime::new().expect("an event loop").block_on(async {
            let (silent, _full, _held) = silent_address();
            let open = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let answers = open.local_addr().expect("bound");
            let limit = Duration::from_secs(3);
            let (addresses, mut trace) = ([silent, silent, answers], ());
            let tried = compio::time::timeout(limit, tcp_stream(&addresses, limit, None, &mut trace));
            let stream = tried.await.expect("the attempt ends in time").expect("the last address answers");
            assert_eq!(stream.route().local.map(|a| a.ip()), Some(answers.ip()));
        });
    }
}
