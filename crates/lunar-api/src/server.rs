//! Serves the API on the admin socket.

use crate::accept::{ServiceThread, ThreadNames, accept_each};
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
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Maximum number of connections. Further clients wait.
const MAX_CONNECTIONS: usize = 64;
/// Time for a client to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

const NAMES: ThreadNames =
    ThreadNames { thread: "api", helpers: "api-ask", max_helpers: crate::handlers::MAX_WAITING + 1 };

/// The API server of a process. Dropping it ends its thread and closes the admin socket.
pub struct ApiServer {
    _thread: ServiceThread,
    socket: AdminSocket,
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
        let thread = ServiceThread::start(&NAMES, || serve(listener, control)).map_err(cannot)?;
        Ok(ApiServer { _thread: thread, socket })
    }

    /// The path of the admin socket.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }
}

async fn serve(listener: std::os::unix::net::UnixListener, control: Arc<dyn ServerControl>) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("cannot serve the API: {e}"),
    };
    let (permits, router) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), router(control.clone()));
    let accept = accept_each(
        permits,
        "admin socket",
        |cx| listener.poll_accept(cx),
        |(stream, _)| connection(stream, router.clone()),
    );
    tokio::select! {
        () = accept => {}
        () = sample(control) => {}
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
