//! The client of the API.

mod events;

use crate::problem::Problem;
use crate::remote::tls_fault;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HeaderName;
use hyper::{Request, header, http::request};
use hyper_util::rt::TokioIo;
use lunar_config::{Diagnostic, ErrorCode, io_text};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

pub use crate::handlers::reports::*;
pub use crate::problem::ProblemDetail;
pub use crate::remote::{ClientCredentials, ServerAddress};
pub use crate::schema::{
    AccessView, ChapUserView, DiskView, HostView, LunView, NamespaceItem, PortalGroupView, SubsystemView,
    TargetView,
};
pub use crate::sizes::SIZE_KEYS;
pub use hyper::Method;

/// Maximum length of a response.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// The characters that a path segment keeps.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// A client of a server.
#[derive(Clone, Debug)]
pub struct Client {
    server: ServerAddress,
    timeout: Duration,
}

/// A response with its entity tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged<T> {
    /// The version of the configuration; empty without an entity tag.
    pub version: String,
    /// The object.
    pub value: T,
}

/// The reason why there is no response.
enum CallError {
    Io(io::Error),
    Http(hyper::Error),
    TooLarge,
}

impl Client {
    /// A client that waits up to `timeout` for each response.
    pub fn new(server: &ServerAddress, timeout: Duration) -> Client {
        Client { server: server.clone(), timeout }
    }

    /// The server.
    pub fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// When no server answers, and the errors of the server.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Vec<Diagnostic>> {
        self.send(Method::GET, path, None, &Value::Null).map(|tagged| tagged.value)
    }

    /// Reads a resource with its entity tag.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_tagged<T: DeserializeOwned>(&self, path: &str) -> Result<Tagged<T>, Vec<Diagnostic>> {
        self.send(Method::GET, path, None, &Value::Null)
    }

    /// Sends a request that creates or executes something.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Vec<Diagnostic>> {
        self.send(Method::POST, path, None, body).map(|tagged| tagged.value)
    }

    /// Creates an object, which must not exist.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn create<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Vec<Diagnostic>> {
        let only_new = Some((header::IF_NONE_MATCH, "*".to_owned()));
        self.request(Method::PUT, path, only_new, body).map(|tagged| tagged.value)
    }

    /// Changes some keys of an object, whatever its version is (RFC 7396).
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn merge<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Vec<Diagnostic>> {
        let any_version = Some((header::IF_MATCH, "*".to_owned()));
        self.request(Method::PATCH, path, any_version, body).map(|tagged| tagged.value)
    }

    /// Sends a request. `version`: the version of an object that it changes. A null `body` is none.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        version: Option<&str>,
        body: &impl Serialize,
    ) -> Result<Tagged<T>, Vec<Diagnostic>> {
        let condition = version.map(|version| (header::IF_MATCH, format!("\"{version}\"")));
        self.request(method, path, condition, body)
    }

    /// Sends a request under a condition.
    fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        condition: Option<(HeaderName, String)>,
        body: &impl Serialize,
    ) -> Result<Tagged<T>, Vec<Diagnostic>> {
        let body = serde_json::to_vec(body).map_err(|e| strange(&e.to_string()))?;
        let body = if body == b"null" { Vec::new() } else { body };
        let mut request = self.head(&method, path);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some((name, value)) = condition {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body.into())).map_err(|e| strange(&e.to_string()))?;
        let response = self.call(request).map_err(|e| self.no_answer(&method, e))?;
        decoded(&response)
    }

    /// The head of a request.
    fn head(&self, method: &Method, path: &str) -> request::Builder {
        let (host, authorization) = match &self.server {
            ServerAddress::Socket(_) => ("lunar", None),
            ServerAddress::Https(server) => (server.authority(), server.authorization.as_ref()),
        };
        let head = Request::builder().method(method).uri(path).header(header::HOST, host);
        match authorization {
            Some(value) => head.header(header::AUTHORIZATION, value.as_str()),
            None => head,
        }
    }

    /// Sends a request, and waits for the whole response.
    fn call(&self, request: Request<Full<Bytes>>) -> Result<hyper::Response<Bytes>, CallError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CallError::Io)?;
        let called = async { whole(self.begin(request).await?).await };
        runtime.block_on(self.limited(called))
    }

    /// Sends a request on a new connection. The body of the response follows its head.
    async fn begin(&self, request: Request<Full<Bytes>>) -> Result<hyper::Response<Incoming>, CallError> {
        match &self.server {
            ServerAddress::Socket(path) => {
                let stream = lunar_admin::connect(path, self.timeout).map_err(CallError::Io)?;
                stream.set_nonblocking(true).map_err(CallError::Io)?;
                begun(tokio::net::UnixStream::from_std(stream).map_err(CallError::Io)?, request).await
            }
            ServerAddress::Https(server) => {
                begun(server.connect().await.map_err(CallError::Io)?, request).await
            }
        }
    }

    /// The result within the time limit of the client.
    async fn limited<T>(&self, called: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        let limited = tokio::time::timeout(self.timeout, called).await;
        limited.unwrap_or_else(|_| Err(CallError::Io(io::ErrorKind::TimedOut.into())))
    }

    fn no_answer(&self, method: &Method, e: CallError) -> Diagnostic {
        match e {
            CallError::Io(e) => self.no_connection(method, &e),
            CallError::Http(e) if e.is_parse() => strange(&e.to_string()),
            CallError::Http(e) => match source(&e) {
                Some(e) => self.no_connection(method, e),
                None => self.silent(&lunar_config::plain(&e.to_string())),
            },
            CallError::TooLarge => strange("the response is too large"),
        }
    }

    fn no_connection(&self, method: &Method, e: &io::Error) -> Diagnostic {
        let server = &self.server;
        if let Some((why, hint)) = tls_fault(e) {
            let what = format!("no TLS connection with the server at {server}: {why}");
            return Diagnostic::new(what, hint).with_code(ErrorCode::AuthenticationFailed);
        }
        let is_remote = server.socket().is_none();
        match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused if is_remote => Diagnostic::new(
                format!("no server answers at {server}"),
                "check the host, and `listen` of [api] in its lunar.toml",
            )
            .with_code(ErrorCode::Unreachable),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Diagnostic::new(
                format!("no server answers at {server}"),
                "start a server with lunar serve, or give the socket of a server with --socket",
            )
            .with_code(ErrorCode::Unreachable),
            io::ErrorKind::PermissionDenied => Diagnostic::new(
                format!("the server at {server} belongs to another user"),
                "run as that user or as root",
            )
            .with_code(ErrorCode::PermissionDenied),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => self.late(method),
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                self.silent(&io_text(e)).with_code(ErrorCode::Unreachable)
            }
            _ => self.silent(&io_text(e)),
        }
    }

    /// A connection that ended without a response is not the code of a server that does not run: its process may still
    /// have its media.
    fn silent(&self, why: &str) -> Diagnostic {
        let what = format!("the server at {} does not answer: {why}", self.server);
        Diagnostic::new(what, "read the log of the server")
    }

    fn late(&self, method: &Method) -> Diagnostic {
        let limit = lunar_proto::duration::show(self.timeout);
        let what = format!("no answer from the server at {} within {limit}", self.server);
        let hint = "check the process of the server, which is stopped or overloaded, or raise --timeout";
        let later = match method.is_safe() {
            true => "",
            false => "; the server may still execute the request",
        };
        Diagnostic::new(what, format!("{hint}{later}")).with_code(ErrorCode::TimedOut)
    }
}

async fn begun<I>(stream: I, request: Request<Full<Bytes>>) -> Result<hyper::Response<Incoming>, CallError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(CallError::Http)?;
    // It ends with the body.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(CallError::Http)
}

/// A response with its whole body.
async fn whole(response: hyper::Response<Incoming>) -> Result<hyper::Response<Bytes>, CallError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
    let body = body.map_err(|_| CallError::TooLarge)?.to_bytes();
    Ok(hyper::Response::from_parts(head, body))
}

/// The I/O error behind an error of HTTP. With TLS 1.3, the server refuses a certificate after the handshake.
fn source(e: &hyper::Error) -> Option<&io::Error> {
    std::error::Error::source(e)?.downcast_ref()
}

/// A text as one segment of the path of a resource.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

fn decoded<T: DeserializeOwned>(response: &hyper::Response<Bytes>) -> Result<Tagged<T>, Vec<Diagnostic>> {
    let body = response.body();
    if !response.status().is_success() {
        let problem: Problem = serde_json::from_slice(body).map_err(|e| strange(&e.to_string()))?;
        return Err(problem.into_diagnostics());
    }
    let tag = response.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default();
    let version = tag.trim_matches('"').to_owned();
    let value = serde_json::from_slice(body).map_err(|e| strange(&e.to_string()))?;
    Ok(Tagged { version, value })
}

fn strange(why: &str) -> Diagnostic {
    Diagnostic::new(
        format!("unexpected response of the server: {}", lunar_config::plain(why)),
        "restart the server, which may have another version",
    )
}
