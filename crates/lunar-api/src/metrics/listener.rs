//! The TCP listener of the metrics. It serves nothing else, so that a monitoring host needs no rights.

use super::{PATH, router};
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
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tower_service::Service;

/// Maximum number of connections. Further clients wait.
const MAX_CONNECTIONS: usize = 32;
/// Time for a client to send the head of a request, also of the next one on its connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause after an error of the listener. A lasting error, such as no free descriptor, must not make its loop spin.
const PAUSE: Duration = Duration::from_millis(10);

/// The metrics server of a process. Dropping it closes the listener and ends its thread.
pub struct MetricsServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .thread_name("metrics-ask")
            .build()
            .map_err(cannot)?;
        let router = router(control).route("/", get(async || format!("Lunar: metrics are at {PATH}\n")));
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(serve(listener, router, stopped));
            // A request that waits for the main thread must not keep the process.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(run).map_err(cannot)?;
        Ok(MetricsServer { address, stop: Some(stop), thread: Some(thread) })
    }

    /// The address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, router: Router, stopped: oneshot::Receiver<()>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("cannot serve metrics: {e}"),
    };
    tokio::select! {
        () = accept(&listener, router) => {}
        _ = stopped => {}
    }
}

async fn accept(listener: &tokio::net::TcpListener, router: Router) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    connection(stream, router).await;
                    drop(permit);
                });
            }
            Err(e) => {
                tracing::debug!("metrics: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let service = service_fn(move |request| router.clone().call(request));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(e) = served {
        tracing::debug!("metrics: {e}");
    }
}
