//! The TCP socket of a relay, which can be watched for its end while others read and write.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// The socket. Clones are the same socket.
#[derive(Clone)]
pub struct RelaySocket(Arc<TcpStream>);

impl RelaySocket {
    /// Takes over a connected socket, on a thread of the relay.
    ///
    /// # Errors
    /// The socket cannot be watched.
    pub fn new(socket: std::net::TcpStream) -> io::Result<RelaySocket> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(RelaySocket(Arc::new(TcpStream::from_std(socket)?)))
    }

    /// A second descriptor of the socket.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&*self.0, 0)?)
    }

    /// Waits for the first bytes, and copies them without receiving them.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        self.0.peek(into).await
    }

    /// Resolves when the peer has closed or reset the connection, even if received bytes are unread.
    pub async fn ended(&self) {
        // Readiness for priority data includes the end of the peer, and readiness for data would resolve with these.
        _ = self.0.ready(Interest::PRIORITY | Interest::ERROR).await;
    }

    /// Receives and drops what the peer still sends, until its end: unread bytes would reset the connection, and the peer
    /// would lose the last data.
    pub async fn discard(&self) {
        let mut discarded = [0; 4096];
        while self.0.readable().await.is_ok() {
            match self.0.try_read(&mut discarded) {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

impl AsyncRead for RelaySocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(len) => {
                    buf.advance(len);
                    return Poll::Ready(Ok(()));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }
}

impl AsyncWrite for RelaySocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write)?))
    }
}
