//! Passes data between a host and the front end, until either ends.

use super::socket::RelaySocket;
use s2n_tls_tokio::TlsStream;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, copy_buf};
use tokio::net::UnixStream;

/// Bytes of a direction that wait in the relay. A slow reader stops its writer.
const BUFFER: usize = 128 << 10;
/// Time in which the last data must reach a host after the end of its session.
const LAST_DATA: Duration = Duration::from_secs(1);

/// Passes data until the host or the front end closes, or `over` resolves: the session has ended.
///
/// The end of the host ends the front end at once, as on TCP: commands that the host has left are stale, and a later copy of
/// them must not be executed.
pub async fn pump(
    tls: TlsStream<RelaySocket>,
    socket: RelaySocket,
    front: UnixStream,
    over: impl Future<Output = ()>,
) {
    let (from_host, to_host) = tokio::io::split(tls);
    let (from_front, to_front) = front.into_split();
    let mut outgoing = pin!(copy(from_front, to_host));
    let mut over = pin!(over);
    tokio::select! {
        () = &mut outgoing => {
            // The session lives: it waits until the host has closed.
            tokio::select! {
                () = socket.discard() => {}
                () = &mut over => {}
            }
        }
        () = copy(from_host, to_front) => {}
        () = socket.ended() => {}
        () = &mut over => {
            _ = tokio::time::timeout(LAST_DATA, outgoing).await;
        }
    }
}

/// Copies to the end of the reader or of the writer, and closes the writer.
async fn copy(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let copied = copy_buf(&mut BufReader::with_capacity(BUFFER, from), &mut to).await;
    if copied.is_ok() {
        _ = to.shutdown().await;
    }
}
