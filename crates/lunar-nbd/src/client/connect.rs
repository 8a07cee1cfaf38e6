//! Connection setup: from a URL to the transmission phase.

use super::url::{NbdAddress, NbdUrl};
use lunar_block::OpenError;
use lunar_proto::nbd::client::{ClientNegotiation, ExportInfo, NegotiationFailure, NegotiationStep};
use lunar_runtime::Stream;
use lunar_runtime::error::text;
use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

/// The time limit of the connection setup.
const PATIENCE: Duration = Duration::from_secs(15);
/// TCP keepalive: the idle time, which is also the interval of probes, and the number of probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_TRIES: u32 = 4;
/// The maximum number of bytes per receive.
const SCRATCH: usize = 4096;

/// A connection in the transmission phase, and the bytes received after the handshake.
pub struct NegotiatedConnection {
    pub stream: Stream,
    pub export: ExportInfo,
    pub begun: Vec<u8>,
}

/// Connects, and negotiates the export.
pub async fn connect(url: &NbdUrl) -> Result<NegotiatedConnection, OpenError> {
    let late = |_| {
        let what = format!("the NBD server did not answer within {} s", PATIENCE.as_secs());
        let late = OpenError::new(url.to_string(), what, "check the server and the network");
        Err(late.of(io::ErrorKind::TimedOut))
    };
    compio::time::timeout(PATIENCE, attempt(url)).await.unwrap_or_else(late)
}

async fn attempt(url: &NbdUrl) -> Result<NegotiatedConnection, OpenError> {
    let stream = reach(&url.address).await.map_err(|e| {
        OpenError::new(
            url.to_string(),
            format!("cannot connect: {}", text(&e)),
            "check that an NBD server listens at this address",
        )
        .of(e.kind())
    })?;
    let cut = |e: io::Error| {
        OpenError::new(
            url.to_string(),
            format!("the handshake failed: {}", text(&e)),
            "see the log of the server, which may require TLS",
        )
        .of(e.kind())
    };
    let (mut machine, mut input, mut out) = (ClientNegotiation::new(&url.export), Vec::new(), Vec::new());
    loop {
        let (used, step) = machine.feed(&input, &mut out);
        input.drain(..used);
        let sent = stream.send_all(&out).await;
        out.clear();
        match step {
            NegotiationStep::Agreed(export) => {
                return Ok(NegotiatedConnection { stream, export, begun: input });
            }
            NegotiationStep::Failed(failure) => return Err(failed(url, failure)),
            NegotiationStep::More => sent.map_err(cut)?,
        }
        if used == 0 {
            receive(&stream, &mut input).await.map_err(cut)?;
        }
    }
}

async fn reach(address: &NbdAddress) -> io::Result<Stream> {
    let (host, port) = match address {
        NbdAddress::Unix(path) => return Stream::connect_unix(path).await,
        NbdAddress::Tcp(host, port) => (host.clone(), *port),
    };
    let asked =
        compio::runtime::spawn_blocking(move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    let addresses = asked.await.map_err(|_| io::Error::other("the name resolver failed"))??;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in addresses {
        match Stream::connect(address).await {
            Ok(stream) => {
                stream.keep_alive(KEEPALIVE, KEEPALIVE_TRIES)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

async fn receive(stream: &Stream, input: &mut Vec<u8>) -> io::Result<()> {
    let mut scratch = [0; SCRATCH];
    loop {
        match stream.receive(&mut scratch)? {
            Some(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
            Some(n) => {
                input.extend_from_slice(&scratch[..n]);
                return Ok(());
            }
            None => stream.readable().await?,
        }
    }
}

fn failed(url: &NbdUrl, failure: NegotiationFailure) -> OpenError {
    let subject = url.to_string();
    match failure {
        NegotiationFailure::Broken(why) => OpenError::new(
            subject,
            format!("the server violates the protocol: {why}"),
            "check that an NBD server listens at this address",
        ),
        NegotiationFailure::Refused { why, said, tls, exports } => {
            let said = if said.is_empty() { said } else { format!(" ({said})") };
            let hint = match (tls, exports.is_empty()) {
                (true, _) => {
                    "NBD over TLS is not supported: allow connections without TLS at the server, through a tunnel"
                        .to_owned()
                }
                (_, true) => "see the log of the server; nbdinfo --list shows the exports".to_owned(),
                _ => format!(
                    "the server has the exports {}",
                    exports.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
                ),
            };
            let is_missing = !exports.is_empty() && !exports.contains(&url.export);
            let kind = if is_missing { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
            let what = format!("the server refuses export \"{}\": {why}{said}", url.export);
            OpenError::new(subject, what, hint).of(kind)
        }
    }
}
