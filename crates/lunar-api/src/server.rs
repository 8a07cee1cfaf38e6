//! Serves the API on the admin socket.

use crate::caller::{Caller, forbidden};
use crate::exchange::{self, ExchangeLimits};
use crate::handlers::{router, sample};
use crate::problem::Problem;
use axum::Router;
use axum::http::request::Parts;
use lunar_admin::{AdminSocket, ServerControl, may_ask};
use lunar_config::{Diagnostic, io_text};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};

/// Maximum number of connections. Further clients wait.
const MAX_CONNECTIONS: usize = 64;
/// Time for a client to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after an error of the listener. A lasting error, such as no free descriptor, must not make its loop spin.
const PAUSE: Duration = Duration::from_millis(10);

/// The API server of a process. Dropping it closes the admin socket and ends its thread.
pub struct ApiServer {
    socket: AdminSocket,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// Serves the API of `control` on `socket`.
    ///
    /// # Errors
    /// When the system provides no thread or event queue.
    pub fn start(socket: AdminSocket, control: Arc<dyn ServerControl>) -> Result<ApiServer, Diagnostic> {
        let cannot = |e: std::io::Error| {
            let what = format!("cannot serve the API on {}: {}", socket.path().display(), io_text(&e));
            Diagnostic::new(what, "check the limits of the process with `ulimit -a`")
        };
        let listener = socket.listener.try_clone().map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(crate::handlers::MAX_WAITING + 1)
            .thread_name("api-ask")
            .build()
            .map_err(cannot)?;
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(serve(listener, control, stopped));
            // A request that waits for the main thread must not keep the process.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("api".into()).spawn(run).map_err(cannot)?;
        Ok(ApiServer { socket, stop: Some(stop), thread: Some(thread) })
    }

    /// The path of the admin socket.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

async fn serve(
    listener: std::os::unix::net::UnixListener,
    control: Arc<dyn ServerControl>,
    stopped: oneshot::Receiver<()>,
) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("cannot serve the API: {e}"),
    };
    tokio::select! {
        () = accept(&listener, router(control.clone())) => {}
        () = sample(control) => {}
        _ = stopped => {}
    }
}

async fn accept(listener: &UnixListener, router: Router) {
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
                tracing::debug!("admin socket: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves one client, which the kernel identifies.
async fn connection(stream: UnixStream, router: Router) {
    let own = rustix::process::geteuid().as_raw();
    let peer = match stream.peer_cred() {
        Ok(peer) => peer,
        Err(e) => return tracing::debug!("admin socket: {e}"),
    };
    let process = peer.pid().map_or(String::new(), |pid| format!(", process {pid}"));
    let caller = Caller { name: format!("user {}{process}", peer.uid()), may_write: true };
    let caller = |_: &Parts| match may_ask(peer.uid(), own) {
        true => Ok(caller.clone()),
        false => Err(not_allowed(peer.uid())),
    };
    let limits = ExchangeLimits { head: HEAD_TIMEOUT };
    if let Err(e) = exchange::serve(stream, router, limits, caller, std::future::pending()).await {
        tracing::debug!("admin socket: {e}");
    }
}

fn not_allowed(peer: u32) -> Box<Problem> {
    let what = format!("user {peer} is not allowed to use the admin socket");
    forbidden(what, "run as the server's user or as root")
}
