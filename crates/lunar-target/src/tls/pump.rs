//! Passes data between a host and the front end, until either ends.

use super::record_limit::RecordLimit;
use super::socket::RelaySocket;
use s2n_tls_tokio::TlsStream;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// Bytes of a direction that wait in the relay. A slow reader stops its writer.
const BUFFER: usize = 128 << 10;
/// Time in which the last data must reach a host after the end of its session.
const LAST_DATA: Duration = Duration::from_secs(1);

/// The side whose end ended a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndedSide {
    /// The reader has ended, and the writer was closed behind its last bytes.
    Reader,
    /// The writer takes no more.
    Writer,
}

/// The reason why the data of a connection are not passed in both directions any more.
enum PumpEnd {
    /// The host has left, or its connection is broken.
    Host,
    /// The front end has closed, and the host has all of its bytes.
    FrontClosed,
    /// The front end receives no more, and may still send.
    FrontReceivesNoMore,
    /// The session has ended.
    Session,
}

/// Passes data until the host or the front end closes, or `over` resolves: the session has ended.
///
/// The end of the host ends the front end at once, as on TCP: commands that the host has left are stale, and a later copy of
/// them must not be executed. The host still receives all that the front end has sent before its own end.
pub async fn pump(
    tls: TlsStream<RelaySocket>,
    socket: RelaySocket,
    front: UnixStream,
    over: impl Future<Output = ()>,
) {
    let (from_host, to_host) = tokio::io::split(tls);
    let (from_front, to_front) = front.into_split();
    let mut outgoing = pin!(copy(from_front, RecordLimit::new(to_host)));
    let mut incoming = pin!(copy(from_host, to_front));
    let mut over = pin!(over);
    let end = tokio::select! {
        side = &mut outgoing => match side {
            EndedSide::Reader => PumpEnd::FrontClosed,
            EndedSide::Writer => PumpEnd::Host,
        },
        side = &mut incoming => match side {
            EndedSide::Reader => PumpEnd::Host,
            EndedSide::Writer => PumpEnd::FrontReceivesNoMore,
        },
        () = socket.ended() => PumpEnd::Host,
        () = &mut over => PumpEnd::Session,
    };
    let is_sent = match end {
        PumpEnd::Host => false,
        PumpEnd::FrontClosed => true,
        PumpEnd::Session => timeout(LAST_DATA, outgoing).await == Ok(EndedSide::Reader),
        PumpEnd::FrontReceivesNoMore => {
            let late = async {
                over.await;
                sleep(LAST_DATA).await;
            };
            tokio::select! {
                side = outgoing => side == EndedSide::Reader,
                // Data that the host still sends must not fill its connection.
                () = socket.discard() => false,
                () = late => false,
            }
        }
    };
    if is_sent {
        // Unread bytes would reset the connection, and the host would lose the last data.
        _ = timeout(LAST_DATA, socket.discard()).await;
    }
}

/// Copies to the end of the reader, and closes the writer, or to the end of the writer.
async fn copy(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> EndedSide {
    let mut from = BufReader::with_capacity(BUFFER, from);
    loop {
        let len = match from.fill_buf().await {
            // The bytes before the end of a Unix socket come before its error.
            Ok([]) | Err(_) => {
                let closed = to.shutdown().await;
                return if closed.is_ok() { EndedSide::Reader } else { EndedSide::Writer };
            }
            Ok(bytes) => match to.write(bytes).await {
                Ok(len) if len > 0 => len,
                _ => return EndedSide::Writer,
            },
        };
        from.consume(len);
        if from.buffer().is_empty() && to.flush().await.is_err() {
            return EndedSide::Writer;
        }
    }
}
