//! The listening address of a server.

use lunar_runtime::Listener;
use socket2::Socket;
use std::fmt;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The listening address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP address; port 0 means any free port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The URI of an export at this address, as specified in the NBD project's doc/uri.md.
    pub fn url(&self, export: &str) -> String {
        match self {
            ListenAddress::Tcp(address) => format!("nbd://{address}/{}", UriEscaped(export.as_bytes())),
            ListenAddress::Unix(path) => {
                let socket = UriEscaped(path.as_os_str().as_encoded_bytes());
                format!("nbd+unix:///{}?socket={socket}", UriEscaped(export.as_bytes()))
            }
        }
    }

    /// Binds. Returns the bound address and the socket.
    pub(super) fn bind(&self) -> io::Result<(ListenAddress, Socket)> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {self}: {e}"));
        match self {
            ListenAddress::Tcp(address) => {
                let socket = Listener::bind(*address).map_err(named)?;
                Ok((ListenAddress::Tcp(socket.local_addr()?), socket.into()))
            }
            ListenAddress::Unix(path) => Ok((self.clone(), Listener::bind_unix(path).map_err(named)?.into())),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(f),
            ListenAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Formats bytes percent-encoded (RFC 3986 section 2.1).
struct UriEscaped<'a>(&'a [u8]);

impl fmt::Display for UriEscaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                f.write_char(char::from(*byte))
            }
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

/// The path of a bound Unix socket. The file is removed on drop.
pub(super) struct SocketPath {
    path: PathBuf,
    inode: u64,
}

impl SocketPath {
    /// Takes over the path of a newly bound socket.
    pub(super) fn new(path: &Path) -> io::Result<SocketPath> {
        Ok(SocketPath { path: path.to_owned(), inode: std::fs::symlink_metadata(path)?.ino() })
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours {
            // The file may already have been removed.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_escaped() {
        let tcp = ListenAddress::Tcp("[::1]:10809".parse().expect("an address"));
        assert_eq!(tcp.url("a disk"), "nbd://[::1]:10809/a%20disk");
        let unix = ListenAddress::Unix("/run/a?b.sock".into());
        assert_eq!(unix.url(""), "nbd+unix:///?socket=/run/a%3Fb.sock");
    }
}
