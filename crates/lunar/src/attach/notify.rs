//! Service notification by NOTIFY_SOCKET: sd_notify(3).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports to the service manager that the service is ready.
pub fn ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return };
    if let Err(e) = send(path.as_encoded_bytes(), b"READY=1") {
        tracing::warn!("cannot notify the service manager at NOTIFY_SOCKET: {e}");
    }
}

/// Sends to a Unix socket. A leading `@` marks an abstract address.
fn send(path: &[u8], words: &[u8]) -> io::Result<()> {
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::str::from_utf8(path).map_err(io::Error::other)?)?,
    };
    UnixDatagram::unbound()?.send_to_addr(words, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_arrives_at_a_path_and_at_an_abstract_name() {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("lunar-notify-{id}"));
        _ = std::fs::remove_file(&path);
        let named = format!("lunar-notify-{id}");
        let abstract_name = SocketAddr::from_abstract_name(&named).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{named}")),
        ] {
            send(address.as_bytes(), b"READY=1").unwrap();
            let mut word = [0; 16];
            let len = socket.recv(&mut word).unwrap();
            assert_eq!(&word[..len], b"READY=1");
        }
        std::fs::remove_file(path).unwrap();
    }
}
