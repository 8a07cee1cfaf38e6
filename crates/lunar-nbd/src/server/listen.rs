//! Where a server listens.

use lunar_runtime::Listener;
use socket2::Socket;
use std::fmt;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address of TCP; port 0 means any that is free.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Listen {
    /// The URI by which clients find an export here, by the NBD project's doc/uri.md.
    pub fn url(&self, export: &str) -> String {
        match self {
            Listen::Tcp(address) => format!("nbd://{address}/{}", Escaped(export.as_bytes())),
            Listen::Unix(path) => {
                let socket = Escaped(path.as_os_str().as_encoded_bytes());
                format!("nbd+unix:///{}?socket={socket}", Escaped(export.as_bytes()))
            }
        }
    }

    /// Binds, and says where that came to be.
    pub(super) fn bind(&self) -> io::Result<(Listen, Socket)> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {self}: {e}"));
        match self {
            Listen::Tcp(address) => {
                let socket = Listener::bind(*address).map_err(named)?;
                Ok((Listen::Tcp(socket.local_addr()?), socket.into()))
            }
            Listen::Unix(path) => Ok((self.clone(), Listener::bind_unix(path).map_err(named)?.into())),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Bytes as a URI writes them (RFC 3986 section 2.1).
struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                f.write_char(char::from(*byte))
            }
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

/// The path of a Unix socket of ours, which is removed with this.
pub(super) struct Trace {
    path: PathBuf,
    inode: u64,
}

impl Trace {
    /// Of what was bound there just now.
    pub(super) fn new(path: &Path) -> io::Result<Trace> {
        Ok(Trace { path: path.to_owned(), inode: std::fs::symlink_metadata(path)?.ino() })
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours {
            // Already gone: nothing to do.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_escaped() {
        let tcp = Listen::Tcp("[::1]:10809".parse().expect("an address"));
        assert_eq!(tcp.url("a disk"), "nbd://[::1]:10809/a%20disk");
        let unix = Listen::Unix("/run/a?b.sock".into());
        assert_eq!(unix.url(""), "nbd+unix:///?socket=/run/a%3Fb.sock");
    }
}
