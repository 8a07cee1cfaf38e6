//! The life of a connection: handshake, requests, end.

use super::HttpsState;
use super::authentication::HttpsPeer;
use super::credentials::HttpsCredentials;
use crate::accept::{accept_each, disconnect_gone_peer};
use crate::exchange::{self, ExchangeLimits};
use crate::peers::{LogThrottle, PeerCounts};
use axum::Router;
use axum::http::request::Parts;
use rustls::ServerConnection;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum number of connections. Further clients wait.
const MAX_CONNECTIONS: usize = 64;
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time for a client to send the head of a request, also after the response of another one.
const HEAD: ExchangeLimits = ExchangeLimits { head: Duration::from_secs(10) };
/// The first byte of a TLS connection: the content type handshake (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;
/// The response to a request without TLS.
const NO_TLS: &str = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nConnection: close\r\n\r\n\
    {\"status\":400,\"title\":\"Bad Request\",\"detail\":\"the port expects HTTPS\",\"hint\":\"use https:// in the URL\",\
    \"code\":\"other\"}\n";

/// The state that all connections share.
#[derive(Clone)]
pub struct Connections {
    router: Router,
    permits: Arc<Semaphore>,
    peers: PeerCounts,
    log: Arc<LogThrottle>,
}

impl Connections {
    pub fn new(router: Router) -> Connections {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Connections { router, permits, peers: PeerCounts::default(), log: Arc::new(LogThrottle::new()) }
    }

    /// Accepts connections. They end with the state of the server in which they began.
    pub(super) async fn accept(
        self,
        listener: TcpListener,
        credentials: Arc<HttpsCredentials>,
        states: watch::Receiver<HttpsState>,
    ) {
        let serve = |(stream, address): (TcpStream, SocketAddr)| {
            let (connections, credentials, states) = (self.clone(), credentials.clone(), states.clone());
            async move {
                match connections.peers.enter(address.ip()) {
                    Some(_place) => connections.serve(stream, address, credentials, states).await,
                    None => connections
                        .info(format_args!("HTTPS connection of {address} refused: its host has too many")),
                }
            }
        };
        accept_each(self.permits.clone(), "HTTPS", |cx| listener.poll_accept(cx), serve).await;
    }

    async fn serve(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        credentials: Arc<HttpsCredentials>,
        mut states: watch::Receiver<HttpsState>,
    ) {
        let stream = match timeout(HANDSHAKE, handshake(stream, &credentials)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => return self.info(format_args!("HTTPS connection of {address} failed: {e}")),
            Err(_) => return self.info(format_args!("HTTPS connection of {address} sent no handshake")),
        };
        let certificate = client_certificate(stream.get_ref().1);
        let peer = HttpsPeer { address, certificate };
        let now = states.clone();
        let caller = |head: &Parts| {
            // Other credentials may be in force than at the handshake.
            let current = now.borrow().as_ref().map(|state| state.credentials.clone());
            let is_same = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &credentials));
            let peer = if is_same { peer.clone() } else { HttpsPeer { address, certificate: None } };
            let current = current.unwrap_or_else(|| credentials.clone());
            let caller = peer.caller(&current, &head.method, &head.headers);
            caller.inspect_err(|problem| {
                if matches!(problem.status, 401 | 403) {
                    self.info(format_args!("HTTPS request of {address} refused: {}", problem.detail));
                }
            })
        };
        let stop = async move { _ = states.changed().await };
        if let Err(e) = exchange::serve(stream, self.router.clone(), HEAD, caller, stop).await {
            tracing::debug!("HTTPS connection of {address}: {e}");
        }
    }

    /// Writes a log line, unless another one was written in this second.
    fn info(&self, line: std::fmt::Arguments<'_>) {
        if self.log.allows() {
            tracing::info!("{line}");
        }
    }
}

fn client_certificate(tls: &ServerConnection) -> Option<rustls::pki_types::CertificateDer<'static>> {
    tls.peer_certificates()?.first().map(|certificate| certificate.clone().into_owned())
}

async fn handshake(
    mut stream: TcpStream,
    credentials: &HttpsCredentials,
) -> io::Result<TlsStream<TcpStream>> {
    disconnect_gone_peer(&stream)?;
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != TLS_HANDSHAKE {
        refuse_plain(&mut stream).await?;
        return Err(io::Error::other("it uses no TLS"));
    }
    TlsAcceptor::from(credentials.tls.clone()).accept(stream).await
}

/// Answers a request without TLS. Unread bytes would make the kernel discard the response.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    let mut ignored = [0; 4096];
    _ = stream.read(&mut ignored).await?;
    stream.write_all(NO_TLS.as_bytes()).await?;
    stream.shutdown().await?;
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
