//! Software iWARP: RDMA over an ordinary TCP connection, for peers that speak MPA, DDP and RDMAP (RFC 5044, 5041,
//! 5040, with RFC 6581): siw of Linux, and hardware.
//!
//! Connections have no markers, and CRCs are optional. A steering tag belongs to one connection; the tag of a local
//! RDMA Read accepts only the response to that read. A protocol error of the peer is reported to it (Terminate) and
//! ends the connection.
//!
//! - `handshake`: MPA connection setup.
//! - [`Engine`]: everything else, without I/O. `framing` splits the stream into FPDUs, `inbox` receives Sends, `reads`
//!   has local RDMA Reads and `responses` those of the peer, `memory` checks access, `transmit` builds FPDUs.
//! - `endpoint`: the engine with its socket.

mod endpoint;
mod engine;
mod fault;
mod framing;
mod handshake;
mod inbox;
mod memory;
mod reads;
mod responses;
mod transmit;

#[cfg(test)]
mod tests;

pub use engine::Engine;
pub use lunar_wire::iwarp::mpa::is_request;

use crate::{
    ConnParam, ConnectError, ConnectRequest, ConnectedEndpoint, Endpoint, EndpointInfo, LocalBoxFuture,
};
use endpoint::IwarpEndpoint;
use lunar_runtime::Stream;
use lunar_wire::iwarp::mpa::{REPLY_KEY, REQUEST_KEY};
use lunar_wire::iwarp::{MalformedFrame, MpaFrame};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Each steering tag is for one piece of memory and one connection, and ends when the other side says so.
pub const TAKES_INVALIDATE: bool = true;

/// A request has to come within this time.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// So does a reply, and to take a frame of ours.
const REPLY_TIME: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Each frame is protected by a CRC. The other side can ask for that, too.
    pub crc: bool,
    /// Bytes of a frame, where it is not to be what the kernel says of the TCP segments.
    pub mss: Option<usize>,
    /// Bytes of the socket's buffers, as [`Stream::set_window`] has them, where another connection is made in place of the
    /// one that was given.
    pub window: Option<usize>,
}

/// The first word of who called, before which who was called must not speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstFrame {
    /// Anything.
    Any,
    /// It may be a Send without content, that is no message (RFC 6581 section 5.1).
    Send,
}

/// What both sides agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedMpa {
    /// CRCs are used.
    pub crc: bool,
    /// RDMA Reads that we may have under way.
    pub ord: u16,
    /// RDMA Reads that the other side may have under way.
    pub ird: u16,
    /// Messages that are taken at first: how many, and how long in bytes each may be.
    pub receives: (usize, usize),
    /// The other side has to speak first, and may say this.
    pub first: Option<FirstFrame>,
}

/// Asks for an iWARP connection over a TCP connection to `peer`, with at most [`MAX_PRIVATE`](crate::MAX_PRIVATE)
/// bytes of private data.
///
/// Who seems not to know revision 2 of MPA (RFC 6581) is asked once more in revision 1 (RFC 5044), over another TCP
/// connection: those of before closed, or answered no in their own revision and without a word.
///
/// # Errors
/// The other side turns it down, with a word of its own; or it does not speak MPA, wants markers, does not answer
/// within 5 s, or is gone.
pub async fn connect(
    stream: Stream,
    peer: SocketAddr,
    private: &[u8],
    terms: ConnParam,
    options: &Options,
) -> Result<ConnectedEndpoint, ConnectError> {
    handshake::check_private(private)?;
    let ask = handshake::ask(private, &terms, options);
    let AcceptError { refused, is_old } = match call(stream, peer, &ask, &terms, options).await {
        Ok(connected) => return Ok(connected),
        Err(failed) => failed,
    };
    if !is_old {
        return Err(refused);
    }
    // Who is gone by now has said all that it had to say.
    let Ok(stream) = dial(peer, options).await else { return Err(refused) };
    let ask = MpaFrame { revision: 1, enhanced: None, ..ask };
    call(stream, peer, &ask, &terms, options).await.map_err(|again| match again.refused {
        ConnectError::Rejected(private) => ConnectError::Rejected(private),
        ConnectError::Io(_) => refused,
    })
}

/// Another TCP connection, like the one that was given.
async fn dial(peer: SocketAddr, options: &Options) -> io::Result<Stream> {
    let stream = Stream::connect(peer).await?;
    options.window.map_or(Ok(()), |bytes| stream.set_window(bytes))?;
    Ok(stream)
}

/// A call that came to nothing.
struct AcceptError {
    refused: ConnectError,
    /// It may be because the other side knows only revision 1.
    is_old: bool,
}

impl From<io::Error> for AcceptError {
    fn from(e: io::Error) -> AcceptError {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let is_old = matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
        AcceptError { refused: e.into(), is_old }
    }
}

/// Asks once.
async fn call(
    stream: Stream,
    peer: SocketAddr,
    ask: &MpaFrame,
    terms: &ConnParam,
    options: &Options,
) -> Result<ConnectedEndpoint, AcceptError> {
    handshake::write(&stream, &ask.encode(&REQUEST_KEY), REPLY_TIME).await?;
    let reply = handshake::read(&stream, &REPLY_KEY, Vec::new(), REPLY_TIME).await?;
    let (reply, begun) = reply.map_err(malformed)?;
    if reply.rejected {
        let is_old = reply.revision < ask.revision && reply.private.is_empty();
        return Err(AcceptError { refused: ConnectError::Rejected(reply.private), is_old });
    }
    if reply.markers {
        return Err(unsupported_markers().into());
    }
    let agreed = handshake::asked(ask, &reply, terms);
    let local = stream.route().local.ok_or(io::ErrorKind::NotConnected).map_err(io::Error::from)?;
    Ok((endpoint(stream, &agreed, (local, peer), options, begun), reply.private))
}

/// Reads what an iWARP connection is asked for with. `begun` is what has been read of it already, maybe nothing or
/// more than the request.
///
/// # Errors
/// It is no request, or one that cannot be taken: markers, a wrong revision, too much private data. Then the other
/// side has been told no. Or it does not come within 10 s, or the connection is lost.
pub async fn request(
    stream: Stream,
    begun: Vec<u8>,
    local: SocketAddr,
    peer: SocketAddr,
    options: &Options,
) -> io::Result<Box<dyn ConnectRequest>> {
    let (frame, begun) = match handshake::read(&stream, &REQUEST_KEY, begun, REQUEST_TIME).await? {
        Ok(read) => read,
        Err(MalformedFrame::Key) => return Err(malformed(MalformedFrame::Key)),
        Err(wrong) => {
            handshake::write(&stream, &handshake::refusal(None, Vec::new()), REPLY_TIME).await?;
            return Err(malformed(wrong));
        }
    };
    let asked =
        IwarpRequest { frame, begun, addresses: (local, peer), options: *options, stream: Some(stream) };
    match asked.frame.markers {
        // Dropping it turns it down.
        true => Err(unsupported_markers()),
        false => Ok(Box::new(asked)),
    }
}

fn malformed(wrong: MalformedFrame) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other side sent {wrong}"))
}

fn unsupported_markers() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the other side wants markers in the stream")
}

fn endpoint(
    stream: Stream,
    agreed: &NegotiatedMpa,
    (local, peer): (SocketAddr, SocketAddr),
    options: &Options,
    begun: Vec<u8>,
) -> Rc<dyn Endpoint> {
    let facts = EndpointInfo {
        provider: "iwarp".into(),
        ord: agreed.ord,
        sends_invalidate: true,
        takes_invalidate: TAKES_INVALIDATE,
        local,
        peer,
    };
    let mss = options.mss.or_else(|| stream.route().mss.and_then(|mss| usize::try_from(mss).ok()));
    Rc::new(IwarpEndpoint::new(stream, facts, Engine::new(agreed, mss, begun)))
}

/// A connection that is asked for.
struct IwarpRequest {
    frame: MpaFrame,
    /// What came behind the request.
    begun: Vec<u8>,
    addresses: (SocketAddr, SocketAddr),
    options: Options,
    /// Until it is answered.
    stream: Option<Stream>,
}

impl ConnectRequest for IwarpRequest {
    fn private(&self) -> &[u8] {
        &self.frame.private
    }

    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        self.addresses
    }

    fn sends_invalidate(&self) -> bool {
        true
    }

    fn accept(
        mut self: Box<Self>,
        private: Vec<u8>,
        terms: ConnParam,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Endpoint>>> {
        Box::pin(async move {
            handshake::check_private(&private)?;
            let (reply, agreed) = handshake::answer(&self.frame, private, &terms, &self.options);
            let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
            handshake::write(&stream, &reply.encode(&REPLY_KEY), REPLY_TIME).await?;
            let begun = std::mem::take(&mut self.begun);
            Ok(endpoint(stream, &agreed, self.addresses, &self.options, begun))
        })
    }

    fn reject(mut self: Box<Self>, private: Vec<u8>) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            if let Some(stream) = self.stream.take() {
                let refusal = handshake::refusal(Some(&self.frame), private);
                // Who is gone needs no answer.
                _ = handshake::write(&stream, &refusal, REPLY_TIME).await;
            }
        })
    }
}

impl Drop for IwarpRequest {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            let refusal = handshake::refusal(Some(&self.frame), Vec::new());
            // Nothing was sent before: it is taken, unless the other side is gone.
            _ = stream.send(&[io::IoSlice::new(&refusal)]);
        }
    }
}
