//! The URL of an export (NBD URI specification).

use lunar_block::OpenError;
use lunar_proto::nbd::client::ClientNegotiation;
use lunar_proto::percent;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The default port.
const PORT: u16 = 10809;
const FORMS: &str =
    "write nbd://HOST[:PORT][/EXPORT], with an IPv6 address in brackets, or nbd+unix:///EXPORT?socket=PATH";

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// TCP: a host name or an address, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// `nbd://HOST[:PORT][/EXPORT]` or `nbd+unix:///[EXPORT]?socket=PATH`. EXPORT and PATH are percent-encoded. Without
/// EXPORT, the URL means the server's default export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUrl {
    /// The address of the server.
    pub address: NbdAddress,
    /// The name of the export.
    pub export: String,
}

/// Whether a text has an NBD scheme, even an unsupported one.
pub fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| {
        matches!(scheme.split_once('+').map_or(scheme.as_str(), |(first, _)| first), "nbd" | "nbds")
    })
}

impl FromStr for NbdUrl {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<NbdUrl, OpenError> {
        let wrong = |what: &str, hint: &str| OpenError::new(text, what, hint);
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("not a URL", FORMS))?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let decoded = |text| {
            percent::decode(text)
                .ok_or_else(|| wrong("invalid percent-encoding", "write a percent sign as %25"))
        };
        let export = decoded(export)?;
        if export.len() > ClientNegotiation::MAX_NAME {
            return Err(wrong("the name of the export is too long", "use at most 4096 bytes"));
        }
        let address = match scheme.to_ascii_lowercase().as_str() {
            "nbd" if query.is_some_and(|query| !query.is_empty()) => {
                return Err(wrong("an nbd:// URL has no settings after '?'", FORMS));
            }
            "nbd" => {
                let given: String =
                    authority.rsplit('@').next().unwrap_or_default().chars().take(100).collect();
                let what = format!(
                    "\"{}\": the host is missing, or the port is invalid (1 to 65535)",
                    given.escape_debug()
                );
                tcp(authority).ok_or_else(|| wrong(&what, FORMS))?
            }
            "nbd+unix" => {
                let path =
                    query.and_then(|query| query.strip_prefix("socket=")).filter(|_| authority.is_empty());
                let path = path.filter(|path| !path.is_empty() && !path.contains('&'));
                NbdAddress::Unix(
                    decoded(
                        path.ok_or_else(|| wrong("the path of the socket is missing or invalid", FORMS))?,
                    )?
                    .into(),
                )
            }
            "nbds" | "nbds+unix" => {
                return Err(wrong(
                    "NBD over TLS is not supported",
                    "use nbd://, through a tunnel if it must be encrypted",
                ));
            }
            _ => return Err(wrong(&format!("unsupported URL scheme \"{}\"", scheme.escape_debug()), FORMS)),
        };
        Ok(NbdUrl { address, export })
    }
}

/// Parses `HOST[:PORT]`. A host with a colon needs brackets.
fn tcp(authority: &str) -> Option<NbdAddress> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host.parse::<std::net::Ipv6Addr>().ok()?.to_string(), port)
        }
        None => {
            let at = authority.find(':').unwrap_or(authority.len());
            (authority[..at].to_owned(), &authority[at..])
        }
    };
    let port = match port {
        "" => PORT,
        port => port.strip_prefix(':')?.parse().ok().filter(|port| *port != 0)?,
    };
    let may_be = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    (!host.is_empty() && host.chars().all(may_be)).then_some(NbdAddress::Tcp(host, port))
}

impl fmt::Display for NbdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            NbdAddress::Tcp(host, port) if host.contains(':') => write!(f, "nbd://[{host}]:{port}/")?,
            NbdAddress::Tcp(host, port) => write!(f, "nbd://{host}:{port}/")?,
            NbdAddress::Unix(_) => f.write_str("nbd+unix:///")?,
        }
        percent::encode(f, &self.export, percent::is_plain)?;
        match &self.address {
            NbdAddress::Tcp(..) => Ok(()),
            NbdAddress::Unix(path) => {
                f.write_str("?socket=")?;
                percent::encode(f, &path.to_string_lossy(), percent::is_plain)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> NbdUrl {
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    fn tcp(host: &str, port: u16, export: &str) -> NbdUrl {
        NbdUrl { address: NbdAddress::Tcp(host.into(), port), export: export.into() }
    }

    #[test]
    fn urls_name_host_port_and_export() {
        for (text, expected) in [
            ("nbd://localhost", tcp("localhost", 10809, "")),
            ("nbd://localhost/", tcp("localhost", 10809, "")),
            ("NBD://127.0.0.1:7/disk", tcp("127.0.0.1", 7, "disk")),
            ("nbd://[::1]/a", tcp("::1", 10809, "a")),
            ("nbd://[::1]:99/a/b", tcp("::1", 99, "a/b")),
            ("nbd://h//a%20b%25", tcp("h", 10809, "/a b%")),
        ] {
            assert_eq!(url(text), expected, "{text}");
            assert_eq!(url(&expected.to_string()), expected, "{expected}");
        }
    }

    #[test]
    fn urls_name_a_socket() {
        for (text, path, export) in [
            ("nbd+unix:///?socket=/run/a.sock", "/run/a.sock", ""),
            ("nbd+unix:///disk%3f?socket=/run/a%26b", "/run/a&b", "disk?"),
            ("nbd+unix://?socket=nbd.sock", "nbd.sock", ""),
        ] {
            let expected = NbdUrl { address: NbdAddress::Unix(path.into()), export: export.into() };
            assert_eq!(url(text), expected, "{text}");
            assert_eq!(url(&expected.to_string()), expected, "{expected}");
        }
    }

    #[test]
    fn invalid_url_is_refused_with_a_reason() {
        for (text, words) in [
            ("nbd:", "not a URL"),
            ("nbd://", "host is missing"),
            ("nbd://:10809/", "host is missing"),
            ("nbd://h:0", "port is invalid"),
            ("nbd://h:65536", "\"h:65536\": the host is missing, or the port is invalid (1 to 65535)"),
            ("nbd://::1/", "port is invalid"),
            ("nbd://[::1/", "host is missing"),
            ("nbd://[::1]x/", "port is invalid"),
            ("nbd://user@h/", "host is missing"),
            ("nbd://h/a%", "percent"),
            ("nbd://h/a%00", "percent"),
            ("nbd://h/a?socket=x", "no settings after"),
            ("nbd+unix:///a", "path of the socket"),
            ("nbd+unix:///a?socket=", "path of the socket"),
            ("nbd+unix:///a?path=/x", "path of the socket"),
            ("nbd+unix:///a?socket=/x&y=1", "path of the socket"),
            ("nbd+unix://h/a?socket=/x", "path of the socket"),
            ("nbds://h/a", "TLS"),
            ("nbds+unix:///a?socket=/x", "TLS"),
            ("nbd+vsock://1/", "unsupported URL scheme"),
            (&format!("nbd://h/{}", "a".repeat(4097)), "too long"),
        ] {
            let said = text.parse::<NbdUrl>().expect_err(text).to_string();
            assert!(said.contains(words), "{text}: {said}");
        }
    }

    #[test]
    fn url_scheme_is_recognized() {
        for text in ["nbd://h", "nbds://h", "nbd+unix:///", "NBD://", "nbd+ssh://h"] {
            assert!(is_url(text), "{text}");
        }
        for text in ["nbd", "nbd:x", "/nbd", "iscsi://h", "nbdx://h", "disk.img"] {
            assert!(!is_url(text), "{text}");
        }
    }
}
