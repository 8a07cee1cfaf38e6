//! The credentials of the server and of its clients: certificates and tokens.

use super::pem;
use super::subject::{common_name, expiry};
use super::tokens::BearerTokens;
use lunar_config::{ErrorCode, InvalidValue, invalid};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use super::tokens::Role;

/// A certificate that expires earlier is worth a warning.
const SOON: Duration = Duration::from_secs(14 * 86400);

/// The files of the credentials, as in `[api]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The certificate of the server, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Bearer tokens.
    pub tokens: Option<PathBuf>,
    /// The authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// Common names of client certificates that may change something; `*` at the end stands for any text.
    pub client_writers: Vec<String>,
}

/// The content of the files.
#[derive(Clone)]
pub struct HttpsCredentials {
    pub(super) tls: Arc<ServerConfig>,
    tokens: BearerTokens,
    writers: Vec<String>,
    /// The fingerprint and the end of the validity of the certificate.
    certificate: (String, Option<SystemTime>),
    /// Hashes of the chain, the tokens and the authorities of clients.
    hashes: [[u8; 32]; 3],
}

impl HttpsCredentials {
    /// Reads the files. Root also reads tokens of `owner`, the user of the server.
    ///
    /// # Errors
    /// The first fault.
    pub fn load(files: &CredentialFiles, owner: Option<u32>) -> Result<HttpsCredentials, InvalidValue> {
        let chain = pem::certificates(&files.certificate)?;
        let tokens = files.tokens.as_deref().map(|path| BearerTokens::load(path, owner)).transpose()?;
        let clients = files.client_ca.as_deref().map(pem::authorities).transpose()?;
        let authorities = clients.iter().flat_map(|roots| &roots.roots);
        let hashes = [
            hash(chain.iter().map(AsRef::as_ref)),
            tokens.as_ref().map(BearerTokens::hash).unwrap_or_default(),
            hash(authorities.map(|root| root.subject_public_key_info.as_ref())),
        ];
        let certificate = (fingerprint(&chain[0]), expiry(&chain[0]));
        Ok(HttpsCredentials {
            tls: Arc::new(tls(files, chain, clients, tokens.is_some())?),
            tokens: tokens.unwrap_or_default(),
            writers: files.client_writers.clone(),
            certificate,
            hashes,
        })
    }

    /// The name and the role of a bearer token.
    pub(super) fn of_token(&self, token: &[u8]) -> Option<(&str, Role)> {
        self.tokens.find(token)
    }

    /// The name and the role of a client certificate, whose chain is verified.
    pub(super) fn of_certificate(&self, certificate: &CertificateDer<'_>) -> Option<(String, Role)> {
        let name = common_name(certificate)?;
        let may_write = self.writers.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *pattern == name,
        });
        Some((name, if may_write { Role::Write } else { Role::Read }))
    }

    /// The names of the tokens with their roles.
    pub fn tokens(&self) -> String {
        self.tokens.names()
    }

    /// The start of the fingerprint of the certificate, and its end.
    pub fn certificate(&self) -> String {
        let (fingerprint, end) = &self.certificate;
        let end = end.map(|end| format!(", expires {}", date(end))).unwrap_or_default();
        format!("SHA-256 {fingerprint}{end}")
    }

    /// The end of the validity of the certificate; None if it is unknown.
    pub fn not_after(&self) -> Option<SystemTime> {
        self.certificate.1
    }

    /// Hashes of the tokens and of the authorities of clients: values that are compared, but never shown.
    pub fn hidden(&self) -> [Vec<u8>; 2] {
        [self.hashes[1].to_vec(), self.hashes[2].to_vec()]
    }

    /// Faults that do not prevent the use.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let end = self.certificate.1.filter(|end| *end < now + SOON)?;
        let when = if end < now { "expired" } else { "expires" };
        Some(format!(
            "the certificate of [api] {when} on {}; hint: replace the file, and run lunar reload",
            date(end)
        ))
    }
}

/// The content counts: equal files are equal.
impl PartialEq for HttpsCredentials {
    fn eq(&self, other: &HttpsCredentials) -> bool {
        (self.hashes, &self.writers) == (other.hashes, &other.writers)
    }
}

/// No hash of a token gets into a log.
impl std::fmt::Debug for HttpsCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HttpsCredentials({})", self.certificate())
    }
}

fn tls(
    files: &CredentialFiles,
    chain: Vec<CertificateDer<'static>>,
    clients: Option<RootCertStore>,
    has_tokens: bool,
) -> Result<ServerConfig, InvalidValue> {
    let unfit = |e: rustls::Error| {
        let key = files.key.display();
        let what = format!("the private key {key} cannot be used with {}: {e}", files.certificate.display());
        let hint = "use the key for which the certificate was made".into();
        InvalidValue { what, hint, code: ErrorCode::Other }
    };
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ClientCertVerifier> = match clients {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(roots) => {
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            // With tokens, a client may have no certificate.
            let builder = if has_tokens { builder.allow_unauthenticated() } else { builder };
            builder
                .build()
                .or_else(|e| invalid(format!("`client_ca_file`: {e}"), "name the authorities of clients"))?
        }
    };
    let key = pem::private_key(&files.key)?;
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unfit)?;
    let mut tls = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key).map_err(unfit)?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

fn hash<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hasher = Sha256::new();
    parts.for_each(|part| hasher.update(part));
    hasher.finalize().into()
}

fn fingerprint(certificate: &[u8]) -> String {
    Sha256::digest(certificate).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The date of a time: `2026-11-28`.
fn date(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let text = lunar_admin::rows::utc(since.as_secs());
    text.split('T').next().unwrap_or_default().to_owned()
}
