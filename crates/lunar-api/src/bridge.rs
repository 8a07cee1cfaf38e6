//! A bridge from a browser of this host to a server, whose admin socket browsers cannot reach: an HTTP server on a loopback
//! address. It serves the live page, and forwards the requests of the page.
//!
//! Other users of this host, and pages of other sites in the same browser, reach the address too. So each request needs
//! the token of this bridge in `Authorization`, which no browser sends by itself. The token is in the fragment of the
//! URL, which browsers send to no server. `Host` must be a name of this host, against DNS rebinding.

use crate::accept::accept_each;
use crate::handlers::{page_file, reports::CallerReport};
use crate::problem::Problem;
use crate::remote::ServerAddress;
use axum::Json;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lunar_config::{Diagnostic, ErrorCode, io_text};
use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;

/// Maximum number of connections. Further clients wait.
const MAX_CONNECTIONS: usize = 64;
/// Time for a client to send the head of the next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A bridge that listens.
pub struct PageBridge {
    listener: std::net::TcpListener,
    address: SocketAddr,
    rules: Arc<BridgeRules>,
}

struct BridgeRules {
    server: ServerAddress,
    token: String,
    may_write: bool,
}

impl PageBridge {
    /// Listens at `listen` for a server. Without `may_write`, the page can only read.
    ///
    /// # Errors
    /// When the address is not a loopback address, or is in use, or the system has no random numbers.
    pub fn bind(
        listen: SocketAddr,
        server: ServerAddress,
        may_write: bool,
    ) -> Result<PageBridge, Diagnostic> {
        if !listen.ip().is_loopback() {
            let what = format!("the address {listen} is not a loopback address");
            let hint = "for another host, forward a port to it: ssh -L 8080:127.0.0.1:8080 HOST";
            return Err(Diagnostic::new(what, hint).with_code(ErrorCode::InvalidArgument));
        }
        let cannot = |e: io::Error| {
            let what = format!("cannot listen on {listen}: {}", io_text(&e));
            Diagnostic::new(what, "choose another port with --listen")
        };
        let listener = std::net::TcpListener::bind(listen).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let rules = Arc::new(BridgeRules { server, token: token()?, may_write });
        Ok(PageBridge { listener, address, rules })
    }

    /// The URL of the page, with the token.
    pub fn url(&self) -> String {
        format!("http://{}/#token={}", self.address, self.rules.token)
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    /// When the system provides no event queue.
    pub fn run(self) -> Result<(), Diagnostic> {
        let cannot = |e: io::Error| {
            let what = format!("cannot serve the page: {}", io_text(&e));
            Diagnostic::new(what, "check the limits of the process with `ulimit -a`")
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(self.listener).map_err(cannot)?;
            let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
            let serve = |(stream, _)| connection(stream, self.rules.clone());
            accept_each(permits, "page", |cx| listener.poll_accept(cx), serve).await;
            Ok(())
        })
    }
}

/// A token of 256 random bits.
fn token() -> Result<String, Diagnostic> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|e| Diagnostic::new(format!("the system has no random numbers: {e}"), "check the kernel"))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    }))
}

async fn connection(stream: TcpStream, rules: Arc<BridgeRules>) {
    let service = service_fn(|request: Request<Incoming>| {
        let rules = rules.clone();
        async move { Ok::<_, Infallible>(rules.respond(request).await.unwrap_or_else(Box::into_response)) }
    });
    let mut http = server::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    // A browser may close a connection at any time.
    _ = http.serve_connection(TokioIo::new(stream), service).await;
}

impl BridgeRules {
    async fn respond(&self, request: Request<Incoming>) -> Result<Response, Box<Problem>> {
        check_host(&request)?;
        if let Some(file) = page_file(request.method(), request.uri().path()) {
            return Ok(file);
        }
        self.check_token(&request)?;
        if request.uri().path() == "/v1/caller" {
            let name = "lunar page".into();
            return Ok(Json(CallerReport { name, may_write: self.may_write }).into_response());
        }
        self.check_right(&request)?;
        self.forward(request).await
    }

    fn check_token(&self, request: &Request<Incoming>) -> Result<(), Box<Problem>> {
        let value = request.headers().get(header::AUTHORIZATION).map(header::HeaderValue::as_bytes);
        let given = value.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        if bool::from(given.ct_eq(self.token.as_bytes())) {
            return Ok(());
        }
        let what = "the request has no valid token";
        Err(failed(
            StatusCode::UNAUTHORIZED,
            what,
            "open the URL that lunar page printed",
            ErrorCode::AuthenticationFailed,
        ))
    }

    fn check_right(&self, request: &Request<Incoming>) -> Result<(), Box<Problem>> {
        // The faults of a file that the request names show parts of it.
        let names_file = request.uri().path() == "/v1/config/diff" && request.uri().query().is_some();
        if self.may_write || (request.method().is_safe() && !names_file) {
            return Ok(());
        }
        let what = "this page may only read";
        Err(failed(
            StatusCode::FORBIDDEN,
            what,
            "start it with lunar page --write",
            ErrorCode::PermissionDenied,
        ))
    }

    /// Sends a request to the server, and returns its response, whose body may be an endless stream.
    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response, Box<Problem>> {
        let headers = request.headers_mut();
        for name in
            [header::AUTHORIZATION, header::CONNECTION, header::COOKIE, header::ORIGIN, header::REFERER]
        {
            headers.remove(name);
        }
        let host = match &self.server {
            ServerAddress::Socket(_) => "lunar",
            ServerAddress::Https(server) => server.authority(),
        };
        headers.insert(header::HOST, value(host)?);
        match &self.server {
            ServerAddress::Socket(path) => {
                let stream = UnixStream::connect(path).await.map_err(|e| self.no_answer(&io_text(&e)))?;
                self.exchange(stream, request).await
            }
            ServerAddress::Https(server) => {
                if let Some(token) = &server.authorization {
                    headers.insert(header::AUTHORIZATION, value(token)?);
                }
                let stream = server.connect().await.map_err(|e| self.no_answer(&io_text(&e)))?;
                self.exchange(stream, request).await
            }
        }
    }

    async fn exchange<S>(&self, stream: S, request: Request<Incoming>) -> Result<Response, Box<Problem>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let gone = |e: hyper::Error| self.no_answer(&lunar_config::plain(&e.to_string()));
        let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.map_err(gone)?;
        tokio::spawn(connection);
        let mut response = sender.send_request(request).await.map_err(gone)?;
        response.headers_mut().remove(header::CONNECTION);
        Ok(response.map(Body::new))
    }

    fn no_answer(&self, why: &str) -> Box<Problem> {
        let what = format!("no server answers at {}: {why}", self.server);
        failed(StatusCode::BAD_GATEWAY, what, "start a server with lunar serve", ErrorCode::Unreachable)
    }
}

fn value(text: &str) -> Result<header::HeaderValue, Box<Problem>> {
    header::HeaderValue::from_str(text).map_err(|_| {
        let what = "the address or the token of the server is no value of a header";
        failed(StatusCode::BAD_GATEWAY, what, "check --server and --token-file", ErrorCode::InvalidArgument)
    })
}

fn failed(status: StatusCode, what: impl Into<String>, hint: &str, code: ErrorCode) -> Box<Problem> {
    Box::new(Problem { code: code.name().to_owned(), ..*Problem::new(status, what, hint) })
}

/// Checks that the browser asked for this host, at any port: a port may be forwarded here.
fn check_host(request: &Request<Incoming>) -> Result<(), Box<Problem>> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_this_host(host) {
        return Ok(());
    }
    let what = format!("{} is not a name of this host", host.escape_debug());
    Err(failed(
        StatusCode::MISDIRECTED_REQUEST,
        what,
        "open the URL that lunar page printed",
        ErrorCode::PermissionDenied,
    ))
}

fn is_this_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_accepted() {
        for host in ["127.0.0.1:80", "127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:80", "[::1]"] {
            assert!(is_this_host(host), "{host}");
        }
        for host in
            ["", "example.org", "127.0.0.1.example.org:80", "localhost.example.org", "192.0.2.1", "[::2]:80"]
        {
            assert!(!is_this_host(host), "{host}");
        }
    }

    #[test]
    fn address_that_other_hosts_reach_is_refused() {
        let bind = |address: &str| {
            PageBridge::bind(address.parse().unwrap(), std::path::PathBuf::from("s").into(), false)
        };
        let problem = bind("0.0.0.0:0").err().unwrap();
        assert_eq!(problem.what, "the address 0.0.0.0:0 is not a loopback address");
        let (first, second) = (bind("127.0.0.1:0").unwrap(), bind("127.0.0.1:0").unwrap());
        let token = |bridge: &PageBridge| bridge.url().split_once("/#token=").unwrap().1.to_owned();
        assert_eq!(token(&first).len(), 64);
        assert_ne!(token(&first), token(&second));
        let problem = bind(&first.address.to_string()).err().unwrap();
        assert!(
            problem.what.starts_with(&format!("cannot listen on {}: ", first.address)),
            "{}",
            problem.what
        );
    }
}
