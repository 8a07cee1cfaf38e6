//! A limit on the records that a connection sends with its keys.
//!
//! AES-GCM allows about 2^24.5 records with one key (RFC 8446, section 5.5). s2n-tls then changes the key by KeyUpdate. The NVMe
//! host of Linux cannot follow: its kernel TLS stops receiving, and the queue hangs. A connection that ends before is one
//! that the host opens again, with new keys.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// The most records. s2n-tls changes the key after 23,726,565.
const MAX_RECORDS: u64 = 20_000_000;
/// The most bytes of a record.
const RECORD: usize = 16 << 10;

/// A writer of records.
pub struct RecordLimit<W> {
    writer: W,
    left: u64,
}

impl<W> RecordLimit<W> {
    /// The writer of a connection with new keys.
    pub fn new(writer: W) -> RecordLimit<W> {
        RecordLimit { writer, left: MAX_RECORDS }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for RecordLimit<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::other("the keys of TLS are used up")));
        }
        let len = ready!(Pin::new(&mut self.writer).poll_write(cx, bytes))?;
        self.left = self.left.saturating_sub(len.div_ceil(RECORD) as u64);
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[test]
    fn writer_fails_before_its_key_is_used_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut limited = RecordLimit { writer: tokio::io::sink(), left: 3 };
            // One record, and two.
            for len in [1, RECORD + 1] {
                assert_eq!(limited.write(&vec![0; len]).await.expect("a record is left"), len);
            }
            assert!(limited.write(&[0]).await.is_err());
            limited.shutdown().await.expect("the end needs no key");
        });
    }
}
