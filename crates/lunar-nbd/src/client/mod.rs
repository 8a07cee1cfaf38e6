//! An export of an NBD server as a [`Backend`].
//!
//! There is one connection, on the core that opened it, with any number of commands in flight. The handle works on
//! every core. The commands of all tasks in one turn of the event loop share one send. When the connection is lost,
//! unanswered commands fail. They are not repeated, because it is unknown whether a write was executed.

mod connect;
mod connection;
mod machine;
mod receive;
pub mod testing;
mod url;

pub use url::{NbdAddress, NbdUrl, is_url};

use connection::{ConnectionHandle, ConnectionMessage, PendingReply};
use lunar_block::{Backend, BackendInfo, BufResult, Extent, LocalBoxFuture, OpenError, describe_row, within};
use lunar_proto::nbd::NbdCommand;
use lunar_proto::nbd::client::ExportInfo;
use lunar_runtime::Buf;
use machine::{ClientMachine, CommandRequest};
use receive::ReplyReceiver;
use std::io;
use std::sync::Arc;

/// The maximum length of one WRITE_ZEROES or BLOCK_STATUS in bytes.
const MAX_RANGE: u64 = 1 << 30;
/// The length in bytes of one WRITE of zeros, if the server does not support WRITE_ZEROES.
const ZEROS: u64 = 1 << 20;

/// An NBD export. The connection is closed when the last handle is dropped.
pub struct NbdDisk {
    url: NbdUrl,
    export: ExportInfo,
    handle: ConnectionHandle,
}

/// Connects to a server and negotiates an export, within 15 s. The connection belongs to the calling event loop.
///
/// # Errors
/// When the server is unreachable, is not an NBD server, or rejects the export; the hint lists its exports.
pub async fn open(url: &NbdUrl) -> Result<Arc<NbdDisk>, OpenError> {
    let connect::NegotiatedConnection { stream, export, begun } = connect::connect(url).await?;
    let (machine, receiver) = (ClientMachine::new(export), ReplyReceiver::new(begun));
    let handle = connection::settle(machine, stream, receiver, url.to_string());
    Ok(Arc::new(NbdDisk { url: url.clone(), export, handle }))
}

impl NbdDisk {
    /// Disconnects, and waits up to 1 s for the server to close. Later commands fail.
    pub async fn close(&self) {
        let (reply, closed) = flume::bounded(1);
        if self.handle.send(ConnectionMessage::Close(reply)).is_ok() {
            // Without a reply, the event loop has ended, and with it the connection.
            let _ = closed.recv_async().await;
        }
    }

    /// Submits a command, after its range has been checked.
    fn submit(&self, command: NbdCommand, offset: u64, len: u64, buf: Option<Buf>) -> PendingReply {
        connection::submit(&self.handle, CommandRequest { command, offset, len: len as u32, buf })
    }

    /// Checks that a range is within the export, and aligned to its block size.
    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        within(self.export.size, offset, len)?;
        let block = u64::from(self.export.block_size);
        if (offset | len) & (block - 1) == 0 {
            return Ok(());
        }
        let what = format!(
            "{}: {len} bytes at offset {offset}: length and offset must be multiples of {block} bytes",
            self.url
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    fn check_write(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.export.is_read_only() {
            let what = format!("{}: the export is read-only", self.url);
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, what));
        }
        self.check(offset, len)
    }

    /// Whether a single command can transfer the whole buffer.
    fn is_one(&self, buf: &Buf) -> bool {
        (1..=self.export.max_payload as usize).contains(&buf.len())
    }

    /// Reads with several commands.
    async fn read_pieces(&self, offset: u64, buf: &mut Buf) -> io::Result<()> {
        let mut at = offset;
        for part in buf.chunks_mut(self.export.max_payload as usize) {
            let read = NbdCommand::Read { whole: false };
            let piece = Buf::zeroed(part.len());
            let (result, piece) = self.submit(read, at, part.len() as u64, Some(piece)).await;
            result?;
            part.copy_from_slice(&given_back(piece, part.len()));
            at += part.len() as u64;
        }
        Ok(())
    }

    async fn write_pieces(&self, offset: u64, buf: &Buf, fua: bool) -> io::Result<()> {
        let mut at = offset;
        for part in buf.chunks(self.export.max_payload as usize) {
            let piece = Buf::copy_of(part);
            let write = NbdCommand::Write { fua };
            self.submit(write, at, part.len() as u64, Some(piece)).await.0?;
            at += part.len() as u64;
        }
        Ok(())
    }

    async fn write_all(&self, offset: u64, mut buf: Buf, fua: bool) -> BufResult {
        let len = buf.len();
        if let Err(e) = self.check_write(offset, len as u64) {
            return (Err(e), buf);
        }
        let sends_fua = self.sends_fua(fua);
        let mut result = if self.is_one(&buf) {
            let write = NbdCommand::Write { fua: sends_fua };
            let (result, back) = self.submit(write, offset, len as u64, Some(buf)).await;
            buf = given_back(back, len);
            result.map(drop)
        } else {
            self.write_pieces(offset, &buf, sends_fua).await
        };
        if fua && !sends_fua && result.is_ok() {
            result = self.flush_all().await;
        }
        (result, buf)
    }

    /// Whether a write carries FUA. If the server does not support FLUSH, each write needs it to be durable.
    fn sends_fua(&self, fua: bool) -> bool {
        (fua || !self.export.can_flush()) && self.export.can_fua()
    }

    /// Flushes. Does nothing if the server does not support FLUSH.
    async fn flush_all(&self) -> io::Result<()> {
        if self.export.is_read_only() || !self.export.can_flush() {
            return Ok(());
        }
        self.submit(NbdCommand::Flush, 0, 0, None).await.0.map(drop)
    }

    async fn zero(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.check_write(offset, len)?;
        let zeroes = self.export.can_write_zeroes();
        let (mut at, end) = (offset, offset + len);
        let max = if zeroes { MAX_RANGE } else { ZEROS.min(self.export.max_payload.into()) };
        while at < end {
            let len = max.min(end - at);
            let (command, buf) = match zeroes {
                true => (NbdCommand::WriteZeroes { fua: self.sends_fua(false), unmap, fast: false }, None),
                false => (NbdCommand::Write { fua: self.sends_fua(false) }, Some(Buf::zeroed(len as usize))),
            };
            self.submit(command, at, len, buf).await.0?;
            at += len;
        }
        Ok(())
    }

    /// Returns the extent at an offset, in whole blocks, by BLOCK_STATUS.
    async fn status(&self, offset: u64, len: u64) -> io::Result<Extent> {
        let block = u64::from(self.export.block_size);
        let mapped = Extent { offset, len, mapped: true };
        let whole = len.min(MAX_RANGE) / block * block;
        if self.export.allocation.is_none() || whole == 0 || !offset.is_multiple_of(block) {
            return Ok(mapped);
        }
        self.check(offset, whole)?;
        let status = match self.submit(NbdCommand::BlockStatus { one: true }, offset, whole, None).await.0 {
            Ok(status) => status,
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => None,
            Err(e) => return Err(e),
        };
        let Some(status) = status else { return Ok(mapped) };
        let reported_len = u64::from(status.len) / block * block;
        match reported_len {
            // Less than one block: the state of the rest is unknown, so the block counts as mapped.
            0 => Ok(Extent { len: block, ..mapped }),
            _ => Ok(Extent { offset, len: reported_len.min(whole), mapped: !status.zero }),
        }
    }
}

/// Returns `buf`, or a new buffer if the event loop ended and dropped it.
fn given_back(buf: Option<Buf>, len: usize) -> Buf {
    buf.unwrap_or_else(|| Buf::zeroed(len))
}

impl Backend for NbdDisk {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            capacity: self.export.size,
            read_only: self.export.is_read_only(),
            // TRIM does not guarantee that the range reads as zeros.
            unmap: self.export.can_write_zeroes(),
            null: false,
            remote: true,
            write_through: false,
        }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let len = buf.len();
            if let Err(e) = self.check(offset, len as u64) {
                return (Err(e), buf);
            }
            if !self.is_one(&buf) {
                let result = self.read_pieces(offset, &mut buf).await;
                return (result, buf);
            }
            let read = NbdCommand::Read { whole: false };
            let (result, buf) = self.submit(read, offset, len as u64, Some(buf)).await;
            (result.map(drop), given_back(buf, len))
        })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.write_all(offset, buf, fua))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.flush_all())
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.zero(offset, len, true))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.zero(offset, len, unmap))
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(self.status(offset, len))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let e = &self.export;
        let offers = [
            ("flush", e.can_flush()),
            ("fua", e.can_fua()),
            ("trim", e.can_trim()),
            ("write zeroes", e.can_write_zeroes()),
            ("several connections", e.can_multi_conn()),
            ("structured replies", e.structured),
            ("extents", e.allocation.is_some()),
        ];
        let offered: Vec<&str> = offers.iter().filter(|offer| offer.1).map(|offer| offer.0).collect();
        vec![
            describe_row("kind", "nbd"),
            describe_row("url", &self.url),
            describe_row("block_size", e.block_size),
            describe_row("max_payload", e.max_payload),
            describe_row("offers", offered.join(", ")),
        ]
    }
}
