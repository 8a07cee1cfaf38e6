//! The TCP listener of the metrics. It serves nothing else, so that a monitoring host needs no rights.

use super::{PATH, router};
use crate::accept::{ServiceThread, ThreadNames, accept_each, disconnect_gone_peer};
use crate::peers::PeerCounts;
use axum::Router;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lunar_admin::{ServerControl, cannot_serve_metrics, metrics_listener};
use lunar_config::Diagnostic;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tower_service::Service;

/// Maximum number of connections. Further clients wait.
const MAX_CONNECTIONS: usize = 32;
/// Time for a client to send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

const NAMES: ThreadNames = ThreadNames { thread: "metrics", helpers: "metrics-ask", max_helpers: 1 };

/// The metrics server of a process. Dropping it closes the listener and ends its thread.
pub struct MetricsServer {
    address: SocketAddr,
    _thread: ServiceThread,
}

impl MetricsServer {
    /// Serves the metrics of `control` on this address.
    ///
    /// # Errors
    /// When the address cannot be bound, or the system provides no thread or event queue.
    pub fn start(address: SocketAddr, control: Arc<dyn ServerControl>) -> Result<MetricsServer, Diagnostic> {
        let listener = metrics_listener(address)?;
        let cannot = |e: io::Error| cannot_serve_metrics(address, &e);
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let router = router(control).route("/", get(async || format!("Lunar: metrics are at {PATH}\n")));
        let thread = ServiceThread::start(&NAMES, || serve(listener, router)).map_err(cannot)?;
        Ok(MetricsServer { address, _thread: thread })
    }

    /// The address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve(listener: TcpListener, router: Router) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("cannot serve metrics: {e}"),
    };
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let peers = PeerCounts::default();
    let serve = |(stream, address): (TcpStream, SocketAddr)| {
        let (place, router) = (peers.enter(address.ip()), router.clone());
        async move {
            match place {
                Some(_place) => connection(stream, router).await,
                None => tracing::debug!("metrics: connection of {address} refused: its host has too many"),
            }
        }
    };
    accept_each(permits, "metrics", |cx| listener.poll_accept(cx), serve).await;
}

/// Serves one request. Idle connections would take the places of other clients.
async fn connection(stream: TcpStream, router: Router) {
    if let Err(e) = disconnect_gone_peer(&stream) {
        return tracing::debug!("metrics: {e}");
    }
    let service = service_fn(move |request| router.clone().call(request));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(e) = served {
        tracing::debug!("metrics: {e}");
    }
}
