//! From a portal's name to a connection that is logged in.

pub use crate::addresses::resolve;
use crate::io_error::{lost, no_connection};
use crate::made::Make;
use crate::nexus::{Goal, TargetPort};
use crate::options::Transport;
use crate::portal::Portal;
use crate::session::info::Facts;
use crate::session::transport::Line;
use crate::{Error, Kind, Options, iser, srp, waits};
use lunar_proto::Pdu;
use lunar_proto::chap::Algorithm;
use lunar_proto::initiator::login::{Failure, LoggedIn, Login, Step, Wish};
use lunar_proto::login::SessionType;
use lunar_runtime::Stream;
use lunar_runtime::iscsi::out::{Digests, Out, Payload};
use lunar_wire::iscsi::{BHS_LEN, Bhs, opcode, padded, request};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Redirections that are followed, one after another.
const REDIRECTIONS: u32 = 5;
/// CmdSN of a new session.
const FIRST_CMD_SN: u32 = 1;

/// A connection that is logged in.
pub struct Connected {
    /// The connection.
    pub wire: Wire,
    /// Where it leads, after redirections.
    pub portal: Portal,
    /// What came of the login.
    pub login: Box<LoggedIn>,
}

impl Connected {
    /// The session that it is the connection of.
    pub fn facts(&self, goal: &Goal, options: &Options) -> Facts {
        Facts {
            portal: self.portal.clone(),
            target: goal.target.clone().unwrap_or_default(),
            alias: self.login.target_alias.clone(),
            portal_group_tag: self.login.portal_group_tag,
            port: self.target_port(goal),
            isid: goal.isid,
            tsih: self.login.tsih,
            user: self.user(options),
            carrier: self.wire.carrier(),
            parameters: self.login.parameters.clone(),
            connected: true,
            recoveries: 0,
            left_behind: 0,
        }
    }

    /// The user that has authenticated; a target that asks for no authentication knows none.
    pub fn user(&self, options: &Options) -> String {
        let credentials = options.credentials.as_ref().filter(|_| self.login.chap.is_some());
        credentials.map(|credentials| credentials.name.clone()).unwrap_or_default()
    }

    /// The target port of its nexus, where that can be known.
    pub fn target_port(&self, goal: &Goal) -> Option<TargetPort> {
        match (&self.wire, self.login.portal_group_tag) {
            (Wire::Srp(_), _) => goal.target.as_deref().and_then(srp::target_port).map(TargetPort::Srp),
            (_, Some(tag)) => Some(TargetPort::Group(tag)),
            (Wire::Tcp(wire), None) => wire.stream.peer().ok().map(TargetPort::Portal),
            (Wire::Iser(wire), None) => Some(TargetPort::Portal(wire.peer())),
        }
    }
}

/// Connects and logs in. While the target cannot be reached it is tried again, as often as the options say;
/// a refusal ends it at once.
pub async fn patiently(goal: &Goal, options: &Options) -> Result<Connected, Error> {
    let mut pause = Duration::from_millis(500);
    for _ in 1..options.timeouts.login_tries.max(1) {
        match once(goal, options).await {
            Err(e) if matches!(e.kind, Kind::Unreachable | Kind::TimedOut | Kind::Lost) => {
                tracing::warn!("{e}; trying again");
                compio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(4));
            }
            end => return end,
        }
    }
    once(goal, options).await
}

/// Connects and logs in, and follows redirections.
pub async fn once(goal: &Goal, options: &Options) -> Result<Connected, Error> {
    let mut portal = goal.portal.clone();
    for _ in 0..=REDIRECTIONS {
        let limit = options.timeouts.login;
        let _wait = waits::on(format!("the login to {portal}"));
        // Boxed: whoever waits for a login would hold its ten kilobytes, once for each call that it is passed through.
        let tried = compio::time::timeout(limit, Box::pin(attempt(&portal, goal, options))).await;
        let late = || Error::new(Kind::TimedOut, format!("no login within {} s", limit.as_secs_f32()));
        match tried.unwrap_or_else(|_| Err(late())).map_err(|e| e.during(format!("login to {portal}")))? {
            Attempt::In(connected) => return Ok(*connected),
            Attempt::Moved(there) => {
                tracing::info!("the target sends us from {portal} to {there}");
                portal = there;
            }
        }
    }
    let what = format!("{} sends us on and on (more than {REDIRECTIONS} redirections)", goal.portal);
    Err(Error::new(Kind::Protocol, what))
}

/// Logs in on an RDMA connection that somebody else makes, once.
pub async fn made(goal: &Goal, options: &Options, make: impl Make) -> Result<Connected, Error> {
    let wire = match options.transport {
        Transport::Tcp => return Err(Error::new(Kind::Invalid, "TCP is no RDMA")),
        Transport::Iser => Wire::Iser(iser::Wire::made(options, make).await?),
        Transport::Srp => Wire::Srp(srp::Wire::made(goal, options, make).await?),
    };
    match log_in(wire, &goal.portal, goal, options, &mut ()).await? {
        Attempt::In(connected) => Ok(*connected),
        Attempt::Moved(there) => {
            Err(Error::new(Kind::Protocol, format!("the target sends us to {there}, where nobody connects")))
        }
    }
}

/// What came of one login.
pub enum Attempt {
    /// A connection.
    In(Box<Connected>),
    /// It is to be tried there.
    Moved(Portal),
}

/// Sees the PDUs of a login, both ways.
pub trait Watch {
    /// A PDU that was sent, or has come.
    fn see(&mut self, header: &Bhs, data: &[u8]);
}

/// Nobody watches.
impl Watch for () {
    fn see(&mut self, _: &Bhs, _: &[u8]) {}
}

async fn attempt(portal: &Portal, goal: &Goal, options: &Options) -> Result<Attempt, Error> {
    let mut wire = Wire::connect(portal, goal, options).await?;
    wire.add_channels(portal, goal, options).await;
    log_in(wire, portal, goal, options, &mut ()).await
}

/// Logs in on a connection.
pub async fn log_in(
    mut wire: Wire,
    portal: &Portal,
    goal: &Goal,
    options: &Options,
    watch: &mut impl Watch,
) -> Result<Attempt, Error> {
    if let Wire::Srp(srp) = &wire {
        // It came with the connection.
        let login = Box::new(srp.login().clone());
        return Ok(Attempt::In(Box::new(Connected { wire, portal: portal.clone(), login })));
    }
    let wish = Wish {
        initiator: options.initiator.clone(),
        initiator_alias: None,
        target: goal.target.clone(),
        session_type: if goal.target.is_some() { SessionType::Normal } else { SessionType::Discovery },
        isid: goal.isid,
        tsih: 0,
        cid: 1,
        cmd_sn: FIRST_CMD_SN,
        itt: 1,
        offer: options.transport.offer(&options.offer),
        crc32c_first: options.crc32c_first,
        credentials: options.credentials.clone(),
    };
    wish.check().map_err(|what| Error::new(Kind::Invalid, what))?;
    let is_tcp = matches!(wire, Wire::Tcp(_));
    let mut silence = Silence { anonymous: wish.credentials.is_none(), may_be_other: is_tcp };
    let (mut login, mut request) = Login::new(wish);
    loop {
        watch.see(&request.header, &request.data);
        wire.send(request).await?;
        let received = wire.receive(lunar_proto::login::SEGMENT_LEN).await;
        let (header, data) = received.map_err(|e| silence.explain(e))?;
        silence.may_be_other = false;
        watch.see(&header, &data);
        match login.response(&header, &data) {
            Step::Send(next) => request = next,
            Step::Done(login) => {
                return Ok(Attempt::In(Box::new(Connected { wire, portal: portal.clone(), login })));
            }
            Step::Moved { address, .. } => return told(&address).map(Attempt::Moved),
            Step::Failed(failure) => return Err(with_algorithms(failed(failure), options)),
        }
    }
}

/// MD5 is the one algorithm that every target knows (RFC 7143 section 12.1.3).
fn with_algorithms(e: Error, options: &Options) -> Error {
    let has_md5 = options.credentials.as_ref().is_none_or(|c| c.algorithms.contains(&Algorithm::Md5));
    match e.kind {
        Kind::Authentication | Kind::Refused if !has_md5 => e.with_hint(
            "the target may not know this algorithm: many, such as STGT, know MD5 alone; leave auth= out, or auth=md5",
        ),
        _ => e,
    }
}

/// What a target may mean that closes without an answer.
struct Silence {
    /// It was offered no user.
    anonymous: bool,
    /// It has not said a word of iSCSI yet, over TCP.
    may_be_other: bool,
}

impl Silence {
    /// LIO closes without an answer when it wants CHAP and is offered none; over iSER also whenever it refuses a login.
    fn explain(&self, e: Error) -> Error {
        if e.kind != Kind::Lost {
            return e;
        }
        let login = match self.anonymous {
            true => "a target that closes during login may want CHAP: give a user and a password",
            false => {
                "a target that closes during login may refuse it: look at user, password and name, and at its log"
            }
        };
        let other = "; a portal of iSER or SRP alone closes, too: use iser:// or srp:// there";
        e.with_hint(format!("{login}{}", if self.may_be_other { other } else { "" }))
    }
}

/// Says goodbye on a connection that has done nothing else. Digests are left out where they were agreed on:
/// then the target only sees the end of the connection. So it does over SRP, where nobody says goodbye.
pub async fn log_out(connected: Connected) -> Result<(), Error> {
    let Connected { mut wire, login, .. } = connected;
    let has_digests = login.parameters.header_digest || login.parameters.data_digest;
    if has_digests || matches!(wire, Wire::Srp(_)) {
        return Ok(());
    }
    let mut header = request::logout(2);
    request::stamp(&mut header, login.cmd_sn, login.exp_stat_sn);
    wire.send(Pdu::new(header, Vec::new())).await?;
    wire.receive(lunar_proto::login::SEGMENT_LEN).await.map(drop)
}

fn failed(failure: Failure) -> Error {
    match failure {
        Failure::Refused(status) => {
            let kind = match (status.0, status.1) {
                (2, 1) => Kind::Authentication,
                (2, 3 | 4) => Kind::NotFound,
                // The target may serve again soon.
                (3, _) => Kind::Unreachable,
                _ => Kind::Refused,
            };
            let error = Error::new(kind, format!("refused: {status}"));
            match (status.0, status.1) {
                (2, 1) => error.with_hint(
                    "check user, password and algorithm on both sides (docs/use.md, CHAP); the target's log has the reason",
                ),
                (3, 1) => {
                    error.with_hint("its target may be stopped; LIO says so too of one that it does not have")
                }
                (3, 2) => error.with_hint(
                    "it has as many sessions as it takes: end some, or raise its limits (Lunar: `sessions` in [limits])",
                ),
                _ => error,
            }
        }
        Failure::Authentication(what) => Error::new(Kind::Authentication, what),
        Failure::Broke(what) => Error::new(Kind::Protocol, what),
    }
}

/// An address as targets tell it (RFC 7143 section 13.8).
fn told(address: &str) -> Result<Portal, Error> {
    address
        .parse()
        .map_err(|e: Error| Error::new(Kind::Protocol, format!("the target sends us elsewhere: {e}")))
}

/// A connection on which one PDU goes out and one comes back.
pub enum Wire {
    /// A stream of bytes.
    Tcp(TcpWire),
    /// Messages over RDMA.
    Iser(iser::Wire),
    /// SRP, logged in: no PDUs.
    Srp(srp::Wire),
}

impl Wire {
    /// Connects to the first address of a portal that answers, in time for a login.
    pub async fn connect(portal: &Portal, goal: &Goal, options: &Options) -> Result<Wire, Error> {
        if options.by_device() {
            return Wire::by_device(&resolve(portal).await?, goal, options).await;
        }
        let tcp = TcpWire::connect(portal, options.timeouts.login).await?;
        if let Some(bytes) = options.window {
            tcp.stream.set_window(bytes as usize).map_err(lost)?;
        }
        Wire::over(tcp.stream, goal, options).await
    }

    /// As many channels more as the options want, over SRP. What the target does not give is done without, as Linux does.
    async fn add_channels(&mut self, portal: &Portal, goal: &Goal, options: &Options) {
        let Wire::Srp(session) = self else { return };
        let beside = Goal { beside: true, ..goal.clone() };
        for number in 2..=options.channels {
            match Wire::connect(portal, &beside, options).await {
                Ok(Wire::Srp(channel)) => session.join(channel),
                Ok(_) => return,
                Err(e) => {
                    tracing::warn!("{portal}: channel {number} of {}: {e}", options.channels);
                    return;
                }
            }
        }
    }

    /// To the first of these addresses that answers.
    pub async fn by_device(addresses: &[SocketAddr], goal: &Goal, options: &Options) -> Result<Wire, Error> {
        let mut last = Error::new(Kind::Unreachable, "its name has no address");
        for address in addresses {
            let wire = match options.transport {
                Transport::Srp => srp::Wire::by_device(*address, goal, options).await.map(Wire::Srp),
                Transport::Tcp | Transport::Iser => {
                    iser::Wire::by_device(*address, options).await.map(Wire::Iser)
                }
            };
            match wire {
                Ok(wire) => return Ok(wire),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// A connection over a stream of bytes that nothing was said on yet.
    pub async fn over(stream: Stream, goal: &Goal, options: &Options) -> Result<Wire, Error> {
        match options.transport {
            Transport::Tcp => Ok(Wire::Tcp(TcpWire { stream, begun: Vec::new() })),
            Transport::Iser => iser::Wire::over(stream, options).await.map(Wire::Iser),
            Transport::Srp => srp::Wire::over(stream, goal, options).await.map(Wire::Srp),
        }
    }

    /// What carries it, and what carries that: `tcp`, `iser/iwarp`, `srp/verbs:rxe0`.
    pub fn carrier(&self) -> String {
        let over = |transport: Transport, provider: &str| {
            // A provider tells its name and that of the device, with a space between them.
            format!("{}/{}", transport.name(), provider.replace(' ', ":"))
        };
        match self {
            Wire::Tcp(_) => Transport::Tcp.name().into(),
            Wire::Iser(wire) => over(Transport::Iser, wire.provider()),
            Wire::Srp(wire) => over(Transport::Srp, wire.provider()),
        }
    }

    /// Sends a PDU.
    pub async fn send(&mut self, pdu: Pdu) -> Result<(), Error> {
        match self {
            Wire::Tcp(wire) => wire.send(pdu).await,
            Wire::Iser(wire) => wire.send(pdu).await,
            Wire::Srp(_) => Err(no_pdus()),
        }
    }

    /// Receives a PDU with at most so many bytes of data.
    pub async fn receive(&mut self, limit: usize) -> Result<(Bhs, Vec<u8>), Error> {
        match self {
            Wire::Tcp(wire) => wire.receive(limit).await,
            Wire::Iser(wire) => wire.receive(limit).await,
            Wire::Srp(_) => Err(no_pdus()),
        }
    }

    /// What carries a session that has logged in, and bytes that came behind the login.
    pub fn into_line(self) -> (Line, Vec<u8>) {
        match self {
            Wire::Tcp(wire) => (Line::Tcp(wire.stream), wire.begun),
            Wire::Iser(wire) => (Line::Moved(Rc::new(wire.into_mover())), Vec::new()),
            Wire::Srp(wire) => (Line::Moved(wire.into_mover()), Vec::new()),
        }
    }
}

fn no_pdus() -> Error {
    Error::new(Kind::Invalid, "no PDUs travel over SRP")
}

/// The same over a stream of bytes.
pub struct TcpWire {
    stream: Stream,
    begun: Vec<u8>,
}

impl TcpWire {
    /// Connects to the first address of a portal that answers, within `limit`.
    pub async fn connect(portal: &Portal, limit: Duration) -> Result<TcpWire, Error> {
        TcpWire::to_one_of(&resolve(portal).await?, limit).await
    }

    /// Each address has its share of the time, so that one that is silent leaves some for the next.
    async fn to_one_of(addresses: &[SocketAddr], limit: Duration) -> Result<TcpWire, Error> {
        let share = limit / (addresses.len().max(1) + 1) as u32;
        let mut last = Error::new(Kind::Unreachable, "its name has no address");
        for (left, address) in addresses.iter().enumerate().map(|(n, a)| (addresses.len() - 1 - n, a)) {
            // The last one has all that is left: who called watches over that.
            let share = if left == 0 { limit } else { share };
            match compio::time::timeout(share, Stream::connect(*address)).await {
                Ok(Ok(stream)) => return Ok(TcpWire { stream, begun: Vec::new() }),
                Ok(Err(e)) => last = no_connection(&e),
                Err(_) => last = Error::new(Kind::TimedOut, "it does not answer"),
            }
        }
        Err(last)
    }

    /// Sends a PDU.
    pub async fn send(&mut self, pdu: Pdu) -> Result<(), Error> {
        let mut out = Out::default();
        let payload = if pdu.data.is_empty() { Payload::Empty } else { Payload::Bytes(pdu.data) };
        out.push(pdu.header, payload, Digests::default());
        while !out.flush(&self.stream).map_err(lost)? {
            self.stream.writable().await.map_err(lost)?;
        }
        Ok(())
    }

    /// Receives a PDU with at most so many bytes of data.
    pub async fn receive(&mut self, limit: usize) -> Result<(Bhs, Vec<u8>), Error> {
        self.fill(BHS_LEN).await?;
        let header = Bhs(self.begun[..BHS_LEN].try_into().expect("48 bytes"));
        let (ahs, len) = (header.ahs_len(), header.data_len());
        if ahs > 0 || len > limit {
            let name = opcode::name(header.opcode());
            return Err(Error::new(
                Kind::Protocol,
                format!("{name} with {ahs} bytes of additional header and {len} of data"),
            ));
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
                Some(0) => return Err(Error::new(Kind::Lost, "the target closed the connection")),
                Some(n) => self.begun.extend_from_slice(&chunk[..n]),
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn who_closes_before_the_first_word_may_speak_something_else() {
        for (anonymous, login) in [(true, "may want CHAP"), (false, "look at user, password")] {
            for may_be_other in [true, false] {
                let told = Silence { anonymous, may_be_other }.explain(Error::new(Kind::Lost, "closed"));
                let hint = told.hint.clone().unwrap_or_default();
                assert!(hint.contains(login), "{hint}");
                assert_eq!(hint.contains("use iser:// or srp:// there"), may_be_other, "{hint}");
            }
        }
    }

    #[test]
    fn an_address_that_is_silent_leaves_time_for_the_next() {
        compio::runtime::Runtime::new().expect("an event loop").block_on(async {
            let [full, open] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
            let [silent, answers] = [&full, &open].map(|l| l.local_addr().expect("bound"));
            // Whose backlog is full answers no more.
            rustix::net::listen(&full, 0).expect("a shorter backlog");
            let moment = Duration::from_millis(200);
            let held: Vec<_> =
                (0..4).map_while(|_| TcpStream::connect_timeout(&silent, moment).ok()).collect();
            assert!(held.len() < 4, "it still answers");
            let limit = Duration::from_secs(3);
            let addresses = [silent, silent, answers];
            let tried = compio::time::timeout(limit, TcpWire::to_one_of(&addresses, limit));
            let wire = tried.await.expect("in time").expect("the last address answers");
            assert_eq!(wire.stream.route().local.map(|a| a.ip()), Some(answers.ip()));
        });
    }
}
