//! Serves the API over HTTPS. A client shows a bearer token or a certificate.

mod authentication;
mod connection;
mod credentials;
mod pem;
mod subject;
mod tokens;

#[cfg(test)]
mod tests;

pub use credentials::{CredentialFiles, HttpsCredentials, Role};
pub use pem::{authorities, certificates, private_key};

use crate::accept::{ServiceThread, ThreadNames};
use crate::handlers::{MAX_WAITING, router};
use connection::Connections;
use lunar_admin::ServerControl;
use lunar_config::{Diagnostic, ErrorCode, io_text};
use lunar_runtime::Listener;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;

const NAMES: ThreadNames =
    ThreadNames { thread: "api-https", helpers: "https-ask", max_helpers: MAX_WAITING + 1 };

/// Where the API listens, and who may use it.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpsSettings {
    /// The addresses.
    pub listen: Vec<SocketAddr>,
    /// The files of the credentials.
    pub files: CredentialFiles,
    /// Their content.
    pub credentials: Arc<HttpsCredentials>,
}

/// The listening sockets with their configured addresses, and the credentials in force.
#[derive(Clone)]
struct Listening {
    listeners: Vec<(SocketAddr, Arc<TcpListener>)>,
    credentials: Arc<HttpsCredentials>,
}

/// None: the server does not listen.
type HttpsState = Option<Listening>;

/// A state that [`HttpsServer::apply`] puts into force.
pub struct PreparedHttps(HttpsState);

/// The HTTPS server of a process. Its thread runs as soon as it has settings. Dropping it closes all connections.
pub struct HttpsServer {
    control: Arc<dyn ServerControl>,
    state: HttpsState,
    thread: Option<HttpsThread>,
}

struct HttpsThread {
    states: watch::Sender<HttpsState>,
    _thread: ServiceThread,
}

impl HttpsServer {
    /// A server that does not listen yet.
    pub fn new(control: Arc<dyn ServerControl>) -> HttpsServer {
        HttpsServer { control, state: None, thread: None }
    }

    /// Does everything that can fail: opens new listening sockets, and starts the thread. None: no HTTPS.
    ///
    /// # Errors
    /// When an address is in use, or the system provides no thread.
    pub fn prepare(&mut self, settings: Option<&HttpsSettings>) -> Result<PreparedHttps, Diagnostic> {
        let Some(settings) = settings else { return Ok(PreparedHttps(None)) };
        if self.thread.is_none() {
            self.thread = Some(HttpsThread::start(self.control.clone()).map_err(|e| cannot_start(&e))?);
        }
        let open = |address: &SocketAddr| match self.listeners().find(|(other, _)| other == address) {
            Some(open) => Ok(open.clone()),
            None => Ok((*address, Arc::new(self.listen(*address)?))),
        };
        let listeners = settings.listen.iter().map(open).collect::<Result<_, Diagnostic>>()?;
        Ok(PreparedHttps(Some(Listening { listeners, credentials: settings.credentials.clone() })))
    }

    /// Puts a state into force. After a change, existing connections end with their current request.
    pub fn apply(&mut self, PreparedHttps(new): PreparedHttps) {
        let shown = |state: &HttpsState| {
            let state = state.as_ref()?;
            let addresses: Vec<SocketAddr> = state.listeners.iter().map(|(address, _)| *address).collect();
            Some((addresses, state.credentials.clone()))
        };
        if shown(&new) == shown(&self.state) {
            return;
        }
        for (address, listener) in new.iter().flat_map(|state| &state.listeners) {
            if !self.listeners().any(|(other, _)| other == address) {
                tracing::info!("the API listens at https://{}", listener.local_addr().unwrap_or(*address));
            }
        }
        self.state = new;
        if let Some(thread) = &self.thread {
            thread.states.send_replace(self.state.clone());
        }
    }

    /// A new listening socket, also where an open one has the wildcard address of the same port, or an address of the
    /// same port as the new wildcard.
    fn listen(&self, address: SocketAddr) -> Result<TcpListener, Diagnostic> {
        let own: Vec<&TcpListener> = self.listeners().map(|(_, open)| &**open).collect();
        let opened = Listener::bind_beside(address, &own);
        let opened = opened.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        opened.map_err(|e| cannot_listen(address, &e))
    }

    fn listeners(&self) -> impl Iterator<Item = &(SocketAddr, Arc<TcpListener>)> {
        self.state.iter().flat_map(|state| &state.listeners)
    }

    /// The addresses at which it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners().filter_map(|(_, listener)| listener.local_addr().ok()).collect()
    }
}

impl HttpsThread {
    fn start(control: Arc<dyn ServerControl>) -> io::Result<HttpsThread> {
        let (states, watched) = watch::channel(None);
        let thread = ServiceThread::start(&NAMES, || run(Connections::new(router(control)), watched))?;
        Ok(HttpsThread { states, _thread: thread })
    }
}

/// Accepts connections in each state until the next one.
async fn run(connections: Connections, mut states: watch::Receiver<HttpsState>) {
    loop {
        let mut accepting = JoinSet::new();
        let state = states.borrow_and_update().clone();
        if let Some(Listening { listeners, credentials }) = state {
            for (_, listener) in listeners {
                let (connections, credentials) = (connections.clone(), credentials.clone());
                match listener.try_clone().and_then(tokio::net::TcpListener::from_std) {
                    Ok(listener) => {
                        accepting.spawn(connections.accept(listener, credentials, states.clone()));
                    }
                    Err(e) => tracing::error!("cannot serve the API over HTTPS: {e}"),
                }
            }
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

fn cannot_listen(address: SocketAddr, e: &io::Error) -> Diagnostic {
    let hint = match e.kind() {
        io::ErrorKind::AddrInUse => "stop the program that listens there, or change `listen` of [api]",
        io::ErrorKind::AddrNotAvailable => "choose an address of this host: `ip address` lists all",
        _ => "change `listen` of [api]",
    };
    let what = format!("cannot serve the API at https://{address}: {}", io_text(e));
    Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind()))
}

fn cannot_start(e: &io::Error) -> Diagnostic {
    let what = format!("cannot serve the API over HTTPS: {}", io_text(e));
    Diagnostic::new(what, "check the limits of the process with `ulimit -a`")
}
