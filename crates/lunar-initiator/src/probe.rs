//! A login that records each step, for diagnosis.

use crate::connect::{self, AddressTrace, LoginConnection, LoginOutcome, LoginTrace};
use crate::nexus::{self, LoginTarget};
use crate::options::{SessionTransport, Transport};
use crate::{Error, ErrorCode, Options, Portal, srp, time_limit};
use lunar_proto::initiator::login::LoggedIn;
use lunar_runtime::stream::TcpInfo;
use lunar_wire::iscsi::text::pairs;
use lunar_wire::iscsi::{Bhs, opcode};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The maximum number of redirections.
const REDIRECTIONS: usize = 5;
/// Authentication keys whose values are not recorded.
const HIDDEN: [&str; 2] = ["CHAP_C", "CHAP_R"];

/// The record of a login attempt, from name resolution to the last response.
#[derive(Debug)]
#[non_exhaustive]
pub struct Probe {
    /// The portals of the attempt: the given one, then those of redirections.
    pub portals: Vec<Portal>,
    /// The addresses of the last portal.
    pub addresses: Vec<SocketAddr>,
    /// The time of the name resolution.
    pub resolved_in: Duration,
    /// The attempted addresses, each with the time to connect or the error.
    pub connections: Vec<(SocketAddr, Result<Duration, String>)>,
    /// The kernel's information about a TCP connection.
    pub route: TcpInfo,
    /// The transport and provider, once connected.
    pub transport: Option<SessionTransport>,
    /// The requests and responses of the login.
    pub exchanges: Vec<Exchange>,
    /// The result of the login, or its error.
    pub login: Result<Box<LoggedIn>, Error>,
}

/// One request of a login and its response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exchange {
    /// The login stage, as RFC 7143 section 11.12.3 names it. SRP has a single stage.
    pub stage: &'static str,
    /// The keys of the request.
    pub sent: Vec<(String, String)>,
    /// The keys of the response.
    pub received: Vec<(String, String)>,
    /// Status-Class and Status-Detail, once there is a response.
    pub status: Option<(u8, u8)>,
    /// The time until the response. None without a response.
    pub took: Option<Duration>,
}

impl Probe {
    /// A probe that has not started.
    pub fn of(portal: Portal) -> Probe {
        Probe {
            portals: vec![portal],
            addresses: Vec::new(),
            resolved_in: Duration::ZERO,
            connections: Vec::new(),
            route: TcpInfo::default(),
            transport: None,
            exchanges: Vec::new(),
            login: Err(Error::new(ErrorCode::TimedOut, "the login was not attempted")),
        }
    }

    /// Logs in once to a target, or to a discovery session, and logs out. [`Probe::login`] holds a failure. The steps
    /// are recorded even if this future is dropped.
    pub async fn log_in(&mut self, target: Option<String>, options: &Options) {
        let login_target = LoginTarget {
            portal: self.portals[0].clone(),
            target,
            isid: nexus::new_isid(),
            is_extra_channel: false,
        };
        let limit = options.timeouts.login;
        for _ in 0..=REDIRECTIONS {
            let step = time_limit::within(limit, Box::pin(self.step(&login_target, options))).await;
            let late = || Err(connect::login_timed_out(limit));
            match step.unwrap_or_else(late) {
                Ok(Some(portal)) => self.portals.push(portal),
                Ok(None) => return,
                Err(e) => {
                    self.login = Err(e);
                    return;
                }
            }
        }
        self.login = Err(Error::new(
            ErrorCode::ProtocolError,
            format!("targets redirected the login more than {REDIRECTIONS} times"),
        ));
    }

    /// Connects to the first portal by TCP, and closes the connection, for protocols without an iSCSI login. The steps are
    /// recorded even if this future is dropped.
    ///
    /// # Errors
    /// When the name has no address, or no address answers within `limit`.
    pub async fn reach(&mut self, limit: Duration, window: Option<u32>) -> Result<(), Error> {
        let reached = time_limit::within(limit, Box::pin(self.reach_once(limit, window))).await;
        reached.unwrap_or_else(|| Err(connect::login_timed_out(limit)))
    }

    async fn reach_once(&mut self, limit: Duration, window: Option<u32>) -> Result<(), Error> {
        self.resolve().await?;
        let addresses = self.addresses.clone();
        let stream = connect::tcp_stream(&addresses, limit, window, self).await?;
        self.route = stream.route();
        Ok(())
    }

    async fn resolve(&mut self) -> Result<Portal, Error> {
        let portal = self.portals.last().expect("the given portal").clone();
        let started_at = Instant::now();
        self.addresses = connect::resolve(&portal).await?;
        self.resolved_in = started_at.elapsed();
        Ok(portal)
    }

    /// Logs in at one portal. Returns the next portal after a redirection.
    async fn step(&mut self, login_target: &LoginTarget, options: &Options) -> Result<Option<Portal>, Error> {
        let portal = self.resolve().await?;
        self.connections.clear();
        self.exchanges.clear();
        let wire = match options.transport {
            Transport::Srp => self.by_srp(login_target, options).await?,
            Transport::Tcp | Transport::Iser => self.connect(login_target, options).await?,
        };
        self.transport = Some(wire.transport());
        let mut notes = Notes { exchanges: &mut self.exchanges, started_at: Instant::now() };
        match connect::log_in(wire, &portal, login_target, options, &mut notes).await? {
            LoginOutcome::Redirected(there) => Ok(Some(there)),
            LoginOutcome::LoggedIn(connected) => {
                self.login = Ok(connected.login.clone());
                // A missing logout response does not change the result.
                let _ = connect::log_out(*connected).await;
                Ok(None)
            }
        }
    }

    /// Connects over SRP, where the connection request carries the login.
    async fn by_srp(
        &mut self,
        login_target: &LoginTarget,
        options: &Options,
    ) -> Result<LoginConnection, Error> {
        let sent = srp::asked(&srp::request(login_target, options)?);
        let started_at = Instant::now();
        self.exchanges.push(Exchange {
            stage: "single",
            sent,
            received: Vec::new(),
            status: None,
            took: None,
        });
        let made = self.connect(login_target, options).await;
        let exchange = self.exchanges.last_mut().expect("the login exchange");
        match &made {
            Ok(LoginConnection::Srp(wire)) => exchange.received = srp::granted(wire.response()),
            Err(e) if !is_answer(e.code) => return made,
            _ => {}
        }
        exchange.took = Some(started_at.elapsed());
        made
    }

    async fn connect(
        &mut self,
        login_target: &LoginTarget,
        options: &Options,
    ) -> Result<LoginConnection, Error> {
        let addresses = self.addresses.clone();
        if options.by_device() {
            return LoginConnection::by_device(&addresses, login_target, options, self).await;
        }
        let stream = connect::tcp_stream(&addresses, options.timeouts.login, options.window, self).await?;
        self.route = stream.route();
        LoginConnection::over(stream, login_target, options).await
    }
}

impl AddressTrace for Probe {
    fn attempted(&mut self, address: SocketAddr, result: Result<Duration, &str>) {
        self.connections.push((address, result.map_err(str::to_owned)));
    }
}

/// Whether this error means that the target has responded.
fn is_answer(kind: ErrorCode) -> bool {
    matches!(
        kind,
        ErrorCode::Refused | ErrorCode::NotFound | ErrorCode::NegotiationFailed | ErrorCode::ProtocolError
    )
}

/// Records the exchanges of a login.
struct Notes<'a> {
    exchanges: &'a mut Vec<Exchange>,
    started_at: Instant,
}

impl LoginTrace for Notes<'_> {
    fn record(&mut self, header: &Bhs, data: &[u8]) {
        match header.opcode() {
            opcode::LOGIN => {
                self.started_at = Instant::now();
                self.exchanges.push(Exchange {
                    stage: if header.stages().0 == 0 { "security" } else { "operational" },
                    sent: keys(data),
                    received: Vec::new(),
                    status: None,
                    took: None,
                });
            }
            _ => {
                if let Some(last) = self.exchanges.last_mut() {
                    let status = header.login_status();
                    last.received = keys(data);
                    last.status = Some((status.0, status.1));
                    last.took = Some(self.started_at.elapsed());
                }
            }
        }
    }
}

/// The keys and values, escaped, truncated, and without secrets.
fn keys(text: &[u8]) -> Vec<(String, String)> {
    let shown = |key: &str, value: &str| match HIDDEN.contains(&key) {
        true => "...".to_owned(),
        false => value.chars().take(256).collect::<String>().escape_debug().to_string(),
    };
    pairs(text).flatten().take(64).map(|(key, value)| (key.to_owned(), shown(key, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_address_is_recorded_and_leaves_time_for_the_next() {
        compio::runtime::Runtime::new().expect("an event loop").block_on(async {
            let (silent, _full, _held) = connect::tests::silent_address();
            let open = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let answers = open.local_addr().expect("bound");
            let portal: Portal = answers.to_string().parse().expect("a portal");
            let mut options = Options::new("iqn.2026-11.org.example:host");
            options.timeouts.login = Duration::from_secs(3);
            let login_target = LoginTarget {
                portal: portal.clone(),
                target: None,
                isid: nexus::new_isid(),
                is_extra_channel: false,
            };
            let mut probe = Probe::of(portal);
            probe.addresses = vec![silent, answers];
            let limit = options.timeouts.login;
            let made = time_limit::within(limit, probe.connect(&login_target, &options)).await;
            made.expect("the attempt ends in time").expect("the last address answers");
            let attempts: Vec<_> = probe.connections.iter().map(|(to, end)| (*to, end.is_ok())).collect();
            assert_eq!(attempts, [(silent, false), (answers, true)]);
        });
    }

    #[test]
    fn last_silent_address_is_recorded_at_the_time_limit() {
        compio::runtime::Runtime::new().expect("an event loop").block_on(async {
            let (silent, _full, _held) = connect::tests::silent_address();
            let mut options = Options::new("iqn.2026-11.org.example:host");
            options.timeouts.login = Duration::from_secs(1);
            let mut probe = Probe::of(silent.to_string().parse().expect("a portal"));
            probe.log_in(None, &options).await;
            let attempts: Vec<_> = probe.connections.iter().map(|(to, end)| (*to, end.is_ok())).collect();
            assert_eq!(attempts, [(silent, false)]);
            assert_eq!(probe.login.expect_err("no answer").code, ErrorCode::TimedOut);
        });
    }

    #[test]
    fn keys_are_shown_without_proofs_and_without_controls() {
        let text = b"AuthMethod=CHAP\0CHAP_R=0x1234\0TargetAlias=a\x1b[m\0";
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            keys(text),
            [pair("AuthMethod", "CHAP"), pair("CHAP_R", "..."), pair("TargetAlias", "a\\u{1b}[m")]
        );
    }
}
