//! Authentication of a request over HTTPS: a bearer token (RFC 6750), or the certificate of the connection.

use super::credentials::{HttpsCredentials, Role};
use crate::caller::{Caller, forbidden};
use crate::problem::Problem;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use lunar_config::ErrorCode;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;

/// A connection with its peer.
#[derive(Clone, Debug)]
pub struct HttpsPeer {
    /// Its address.
    pub address: SocketAddr,
    /// Its verified certificate.
    pub certificate: Option<CertificateDer<'static>>,
}

impl HttpsPeer {
    /// The sender of a request, which may use its method.
    ///
    /// # Errors
    /// 401 without valid credentials, 403 without the right.
    pub fn caller(
        &self,
        credentials: &HttpsCredentials,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Caller, Box<Problem>> {
        let caller = match headers.get(header::AUTHORIZATION) {
            Some(value) => self.of_token(credentials, value.as_bytes())?,
            None => self.of_certificate(credentials, method, headers)?,
        };
        caller.check(method).map(|()| caller)
    }

    fn of_token(&self, credentials: &HttpsCredentials, value: &[u8]) -> Result<Caller, Box<Problem>> {
        let token = bearer(value).ok_or_else(|| unauthorized("the request has no bearer token"))?;
        let Some((name, role)) = credentials.of_token(token) else {
            return Err(unauthorized("the token is not valid"));
        };
        Ok(self.named("token", name, role))
    }

    fn of_certificate(
        &self,
        credentials: &HttpsCredentials,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Caller, Box<Problem>> {
        let Some(certificate) = &self.certificate else {
            return Err(unauthorized("the request has neither a token nor a client certificate"));
        };
        let Some((name, role)) = credentials.of_certificate(certificate) else {
            return Err(unauthorized("the client certificate has no subject"));
        };
        // A browser sends a certificate with the requests of any page.
        if !method.is_safe() && is_of_other_site(headers) {
            let what = "a page of another site sent the request".to_owned();
            return Err(forbidden(what, "use a page of this server, or a token"));
        }
        Ok(self.named("certificate", &name, role))
    }

    fn named(&self, kind: &str, name: &str, role: Role) -> Caller {
        Caller { name: format!("{kind} {name} at {}", self.address), may_write: role == Role::Write }
    }
}

/// The token of the value of `Authorization`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Whether a browser sent the request for a page of another site.
fn is_of_other_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text("sec-fetch-site") {
        return !matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text("origin") else { return false };
    let origin = origin.parse::<Uri>().ok();
    origin.as_ref().and_then(Uri::authority).map(|authority| authority.as_str()) != text("host")
}

fn unauthorized(what: &str) -> Box<Problem> {
    let problem =
        Problem::new(StatusCode::UNAUTHORIZED, what, "send Authorization: Bearer TOKEN, or a certificate");
    Box::new(Problem { code: ErrorCode::AuthenticationFailed.name().to_owned(), ..*problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn token_follows_its_scheme_in_any_case() {
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!([bearer(b"Basic abc"), bearer(b"Bearer"), bearer(b"")], [None; 3]);
    }

    #[test]
    fn request_of_another_site_is_recognized() {
        let headers = |list: &[(&'static str, &str)]| {
            let one = |(name, value): &(&'static str, &str)| {
                (header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            };
            list.iter().map(one).collect::<HeaderMap>()
        };
        let host = ("host", "moon:3261");
        for (list, is_other) in [
            (&[host][..], false),
            (&[host, ("sec-fetch-site", "cross-site")], true),
            (&[host, ("sec-fetch-site", "same-site")], true),
            (&[host, ("sec-fetch-site", "same-origin")], false),
            (&[host, ("origin", "https://moon:3261")], false),
            (&[host, ("origin", "https://moon")], true),
            (&[host, ("origin", "null")], true),
        ] {
            assert_eq!(is_of_other_site(&headers(list)), is_other, "{list:?}");
        }
    }
}
