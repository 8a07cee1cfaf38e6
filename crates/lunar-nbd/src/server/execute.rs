//! Executes requests on the backend.

use super::connection::{InFlightGuard, ServerConnection};
use super::receive::{Admission, ReceivedRequest, RequestData};
use super::reply::ReplyError;
use lunar_block::{Backend, Extent, TryIo};
use lunar_proto::nbd::NbdCommand;
use lunar_runtime::Buf;
use lunar_wire::nbd::{Errno, Request};
use std::io;
use std::rc::Rc;

/// Reads and writes longer than this, in bytes, become tasks, so that they do not delay others.
const MAX_INLINE: usize = 1 << 20;
/// Reads of at least this many bytes may pass through a pipe, whose system calls are additional.
const MIN_PIPED: usize = 128 << 10;
/// The maximum number of extents per reply. The client requests the rest.
const MAX_EXTENTS: usize = 1024;

/// Executes a request at once, or starts a task for it.
pub(super) fn take(conn: &Rc<ServerConnection>, arrived: ReceivedRequest<'_>) -> Admission {
    let ReceivedRequest { request, verdict, data, behind } = arrived;
    let refusal = match verdict {
        Ok(NbdCommand::Disconnect) => return Admission::Last,
        Ok(command) if changes(&command) && conn.is_late(behind) => return Admission::Last,
        Ok(_) if conn.state.borrow().stopping => {
            ReplyError::new(Errno::Shutdown, "the server is being stopped")
        }
        Ok(_) if request.len == 0 && !matches!(verdict, Ok(NbdCommand::Flush)) => {
            conn.state.borrow_mut().replies.done(&request);
            return Admission::Yes;
        }
        Ok(command) => return start(conn, request, command, data),
        Err(refusal) => ReplyError::new(refusal.errno, refusal.why),
    };
    conn.state.borrow_mut().replies.failed(&request, &refusal);
    Admission::Yes
}

fn start(
    conn: &Rc<ServerConnection>,
    request: Request,
    command: NbdCommand,
    data: RequestData<'_>,
) -> Admission {
    let mut payload = None;
    match (command, data) {
        (NbdCommand::Read { whole }, _) if try_read(conn, &request, whole) => return Admission::Yes,
        (NbdCommand::Write { fua: false }, RequestData::Bytes(data)) if try_write(conn, &request, data) => {
            return Admission::Yes;
        }
        (NbdCommand::Write { fua: false }, RequestData::Buf(buf)) if try_write(conn, &request, &buf) => {
            return Admission::Yes;
        }
        (NbdCommand::Write { .. }, RequestData::Bytes(data)) => {
            let Some(mut buf) = conn.buffer(data.len()) else { return Admission::Starved };
            buf.copy_from_slice(data);
            payload = Some(buf);
        }
        (NbdCommand::Write { .. }, RequestData::Buf(buf)) => payload = Some(buf),
        (NbdCommand::Cache, _) => {
            conn.backend.prefetch(request.offset, request.len.into());
            end(conn, &request, Ok(()));
            return Admission::Yes;
        }
        _ => {}
    }
    let place = InFlightGuard::new(conn, changes(&command));
    lunar_runtime::spawn(async move { perform(&place.conn, request, command, payload).await });
    Admission::Yes
}

/// Whether a command modifies the medium.
fn changes(command: &NbdCommand) -> bool {
    matches!(command, NbdCommand::Write { .. } | NbdCommand::Trim { .. } | NbdCommand::WriteZeroes { .. })
}

/// Reads if the backend can do so without waiting. Returns false otherwise.
fn try_read(conn: &ServerConnection, request: &Request, whole: bool) -> bool {
    if conn.null {
        conn.state.borrow_mut().replies.zeros(request);
        return true;
    }
    let len = request.len as usize;
    let Some(mut buf) = (len <= MAX_INLINE).then(|| conn.pool.try_get(len)).flatten() else { return false };
    match conn.backend.try_read(request.offset, &mut buf) {
        TryIo::Done(result) => end_read(conn, request, (result, buf), whole),
        TryIo::WouldWait => return false,
    }
    true
}

/// Writes if the backend can do so without waiting. Returns false otherwise.
fn try_write(conn: &ServerConnection, request: &Request, data: &[u8]) -> bool {
    if data.len() > MAX_INLINE {
        return false;
    }
    match conn.backend.try_write(request.offset, data) {
        TryIo::Done(result) => end(conn, request, result.map_err(ReplyError::from)),
        TryIo::WouldWait => return false,
    }
    true
}

/// Executes a request that may have to wait, and queues its reply.
async fn perform(conn: &ServerConnection, request: Request, command: NbdCommand, payload: Option<Buf>) {
    match command {
        NbdCommand::Read { whole } => {
            let Some(buf) = conn.buffer_for_answer(request.len as usize).await else { return };
            if buf.len() < MIN_PIPED {
                return end_read(conn, &request, conn.backend.read(request.offset, buf).await, whole);
            }
            match conn.backend.read_piped(request.offset, buf).await {
                (Ok(Some(piped)), _) => conn.state.borrow_mut().replies.piped(&request, piped),
                (result, buf) => end_read(conn, &request, (result.map(drop), buf), whole),
            }
        }
        NbdCommand::BlockStatus { one } => match extents(&*conn.backend, &request, one, conn.block).await {
            Ok(extents) => conn.state.borrow_mut().replies.status(&request, &extents),
            Err(e) => end(conn, &request, Err(e.into())),
        },
        _ => {
            let result = change(conn, &request, command, payload).await;
            end(conn, &request, result);
        }
    }
}

/// Executes a command whose reply has no data.
async fn change(
    conn: &ServerConnection,
    request: &Request,
    command: NbdCommand,
    payload: Option<Buf>,
) -> Result<(), ReplyError> {
    let (backend, offset, len) = (&conn.backend, request.offset, u64::from(request.len));
    let mut settle = false;
    if conn.is_reset() {
        return Err(ReplyError::new(Errno::Shutdown, "the client has reset the connection"));
    }
    match (command, payload) {
        (NbdCommand::Write { fua }, Some(buf)) => backend.write(offset, buf, fua).await.0?,
        (NbdCommand::Flush, _) => backend.flush().await?,
        (NbdCommand::Trim { fua }, _) => {
            backend.unmap(offset, len).await?;
            settle = fua;
        }
        (NbdCommand::WriteZeroes { fua, unmap, fast }, _) => {
            if fast && !is_fast(&**backend, unmap) {
                return Err(ReplyError::new(
                    Errno::NotSup,
                    "zeroing this range would be no faster than a write",
                ));
            }
            backend.write_zeroes(offset, len, unmap).await?;
            settle = fua;
        }
        _ => return Err(ReplyError::new(Errno::Inval, "unknown NBD command")),
    }
    if settle {
        backend.flush().await?;
    }
    Ok(())
}

/// Whether zeroing is certainly cheaper than a write, because the backend frees space or stores nothing.
fn is_fast(backend: &dyn Backend, unmap: bool) -> bool {
    let info = backend.info();
    info.null || (unmap && info.unmap)
}

/// Returns the extents of a request. They consist of whole blocks, and adjacent extents differ in their state.
async fn extents(backend: &dyn Backend, request: &Request, one: bool, block: u64) -> io::Result<Vec<Extent>> {
    let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
    let mut found: Vec<Extent> = Vec::new();
    while at < end && found.len() < MAX_EXTENTS {
        let extent = whole_blocks(backend.extent(at, end - at).await?, at, end, block);
        at += extent.len;
        match found.last_mut() {
            Some(last) if last.mapped == extent.mapped => last.len += extent.len,
            Some(_) if one => break,
            _ => found.push(extent),
        }
    }
    Ok(found)
}

/// Rounds an extent to whole blocks, at least one. A partly allocated block counts as allocated.
fn whole_blocks(extent: Extent, at: u64, end: u64, block: u64) -> Extent {
    let len = match extent.mapped {
        true => extent.len.next_multiple_of(block),
        false => extent.len - extent.len % block,
    };
    Extent { offset: at, len: len.clamp(block, end - at), mapped: extent.mapped || len == 0 }
}

fn end_read(conn: &ServerConnection, request: &Request, (result, buf): lunar_block::BufResult, whole: bool) {
    match result {
        Ok(()) => conn.state.borrow_mut().replies.data(request, buf, whole),
        Err(e) => end(conn, request, Err(e.into())),
    }
}

fn end(conn: &ServerConnection, request: &Request, result: Result<(), ReplyError>) {
    let replies = &mut conn.state.borrow_mut().replies;
    match result {
        Ok(()) => replies.done(request),
        Err(failure) => replies.failed(request, &failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_become_whole_blocks() {
        let of = |len, mapped| Extent { offset: 4096, len, mapped };
        let cases = [
            (of(1, true), 512, true),
            (of(513, true), 1024, true),
            (of(8192, true), 4096, true),
            (of(0, true), 512, true),
            (of(511, false), 512, true),
            (of(513, false), 512, false),
            (of(4096, false), 4096, false),
        ];
        for (extent, len, mapped) in cases {
            assert_eq!(whole_blocks(extent, 4096, 8192, 512), of(len, mapped), "{extent:?}");
        }
    }
}
