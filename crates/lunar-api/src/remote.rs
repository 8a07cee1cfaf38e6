//! The address of a server for its clients: its admin socket, or an HTTPS URL with credentials.

use crate::https::{authorities, certificates, private_key};
use lunar_config::{Diagnostic, ErrorCode, InvalidValue, invalid};
use lunar_runtime::host::secret_file;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

/// The port of `https:` without another one.
const PORT: u16 = 443;
const MAX_TOKEN_BYTES: usize = 4096;
const URL_HINT: &str = "write https://HOST:PORT";

/// A server for its clients.
#[derive(Clone, Debug)]
pub enum ServerAddress {
    /// The path of its admin socket.
    Socket(PathBuf),
    /// Its HTTPS URL.
    Https(Arc<RemoteServer>),
}

/// The credentials of a client.
#[derive(Clone, Debug, Default)]
pub struct ClientCredentials {
    /// A file with a bearer token.
    pub token: Option<PathBuf>,
    /// The authorities of the server's certificate; None: those of the system.
    pub ca: Option<PathBuf>,
    /// The client's certificate.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate; None: in the same file.
    pub key: Option<PathBuf>,
}

/// A server at an HTTPS URL.
pub struct RemoteServer {
    /// HOST:PORT.
    authority: String,
    name: ServerName<'static>,
    port: u16,
    tls: Arc<ClientConfig>,
    /// The value of `Authorization`.
    pub(crate) authorization: Option<Zeroizing<String>>,
}

impl ServerAddress {
    /// The server at an HTTPS URL.
    ///
    /// # Errors
    /// The fault of the URL or of a file.
    pub fn https(url: &str, credentials: &ClientCredentials) -> Result<ServerAddress, Diagnostic> {
        let (name, port) = name_and_port(url)?;
        let authorization = credentials.token.as_deref().map(authorization).transpose()?;
        let tls = Arc::new(tls(credentials)?);
        let authority = match &name {
            ServerName::IpAddress(rustls::pki_types::IpAddr::V6(_)) => format!("[{}]:{port}", name.to_str()),
            _ => format!("{}:{port}", name.to_str()),
        };
        Ok(ServerAddress::Https(Arc::new(RemoteServer { authority, name, port, tls, authorization })))
    }

    /// The path of the admin socket. None: the server is remote.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            ServerAddress::Socket(path) => Some(path),
            ServerAddress::Https(_) => None,
        }
    }
}

impl From<PathBuf> for ServerAddress {
    fn from(socket: PathBuf) -> ServerAddress {
        ServerAddress::Socket(socket)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Socket(path) => path.display().fmt(f),
            ServerAddress::Https(server) => write!(f, "https://{}", server.authority),
        }
    }
}

/// Without the token.
impl fmt::Debug for RemoteServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteServer").field(&self.authority).finish()
    }
}

impl RemoteServer {
    /// The value of `Host`.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    pub(crate) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let host = self.name.to_str();
        let stream = TcpStream::connect((&*host, self.port)).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(self.tls.clone()).connect(self.name.clone(), stream).await
    }
}

fn name_and_port(url: &str) -> Result<(ServerName<'static>, u16), InvalidValue> {
    let shown = url.escape_debug();
    let wrong = |why: &str| invalid(format!("the URL {shown} of the server {why}"), URL_HINT);
    let Some(rest) = url.strip_prefix("https://") else { return wrong("does not begin with https://") };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let Ok(authority) = rest.parse::<hyper::http::uri::Authority>() else {
        return wrong("has no valid host");
    };
    if rest.contains('@') {
        return wrong("has a user: give a token with --token-file");
    }
    let port = match rest.strip_prefix(authority.host()).and_then(|port| port.strip_prefix(':')) {
        None => PORT,
        Some(port) => match port.parse() {
            Ok(port) => port,
            Err(_) => return wrong("has no valid port"),
        },
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    match ServerName::try_from(host) {
        Ok(name) => Ok((name, port)),
        Err(_) => wrong("has no valid host"),
    }
}

/// The value of `Authorization` for the token of a file.
fn authorization(path: &Path) -> Result<Zeroizing<String>, Diagnostic> {
    let bytes = secret_file(path, MAX_TOKEN_BYTES, None)
        .map_err(|refused| Diagnostic::new(refused.what, refused.hint))?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = format!("the file {} has no token", path.display());
        let hint = "write the token alone into the file, without its name and role";
        return Err(Diagnostic::new(what, hint).with_code(ErrorCode::InvalidArgument));
    }
    Ok(Zeroizing::new(format!("Bearer {text}")))
}

fn tls(credentials: &ClientCredentials) -> Result<ClientConfig, Diagnostic> {
    let roots = match &credentials.ca {
        Some(path) => authorities(path)?,
        None => system_authorities(),
    };
    let unfit = |e: rustls::Error| {
        let what = format!("the client certificate cannot be used: {e}");
        Diagnostic::new(what, "give the certificate with --cert and its private key with --key")
            .with_code(ErrorCode::InvalidArgument)
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(unfit)?.with_root_certificates(roots);
    let Some(certificate) = &credentials.certificate else { return Ok(builder.with_no_client_auth()) };
    let key = private_key(credentials.key.as_ref().unwrap_or(certificate))?;
    builder.with_client_auth_cert(certificates(certificate)?, key).map_err(unfit)
}

/// The authorities of the system. Unusable ones are skipped, as other programs do.
fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// The reason why a TLS connection failed, with a hint. None: another reason.
pub(crate) fn tls_fault(e: &io::Error) -> Option<(String, &'static str)> {
    use rustls::{AlertDescription as Alert, CertificateError as Fault, Error};
    let error = e.get_ref()?.downcast_ref::<Error>()?;
    let hint = match error {
        Error::InvalidCertificate(Fault::UnknownIssuer) => {
            "give the authority of its certificate with --ca FILE"
        }
        Error::InvalidCertificate(Fault::NotValidForName | Fault::NotValidForNameContext { .. }) => {
            "use a name or an address that its certificate has"
        }
        Error::InvalidCertificate(_) => "renew the certificate of the server, and run lunar reload there",
        Error::AlertReceived(Alert::CertificateRequired | Alert::HandshakeFailure) => {
            "give a client certificate with --cert FILE and --key FILE"
        }
        Error::AlertReceived(_) => {
            "use a client certificate that the server accepts: see `client_ca_file` there"
        }
        Error::InvalidMessage(_) => "check the port: a server that speaks HTTPS must listen there",
        _ => "read the log of the server",
    };
    Some((lunar_config::plain(&error.to_string()), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_of_a_server_has_host_and_port() {
        let of =
            |url| ServerAddress::https(url, &ClientCredentials::default()).map(|address| address.to_string());
        assert_eq!(of("https://moon:3261/").unwrap(), "https://moon:3261");
        assert_eq!(of("https://moon").unwrap(), "https://moon:443");
        assert_eq!(of("https://[::1]:3261").unwrap(), "https://[::1]:3261");
        assert_eq!(of("https://192.0.2.1:3261").unwrap(), "https://192.0.2.1:3261");
        for (url, why) in [
            ("http://moon", "does not begin with https://"),
            ("moon:3261", "does not begin with https://"),
            ("https://moon:x", "has no valid port"),
            ("https://moon:70000", "has no valid port"),
            ("https://moon/v1", "has no valid host"),
            ("https://ann@moon", "has a user: give a token with --token-file"),
            ("https://", "has no valid host"),
        ] {
            let problem = of(url).unwrap_err();
            assert_eq!(
                (problem.what, problem.code),
                (format!("the URL {url} of the server {why}"), ErrorCode::InvalidArgument)
            );
        }
    }
}
