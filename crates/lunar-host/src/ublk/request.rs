//! Executes the driver's requests on a backend.

use super::abi::{IoDescriptor, op};
use crate::error::errno;
use lunar_block::{Backend, BufResult, TryIo};
use lunar_runtime::Buf;
use rustix::io::Errno;
use std::io;

/// Executes a request. Returns the result for the driver (the number of transferred bytes, 0, or a negative errno),
/// and the buffer with the data of a read.
pub(super) async fn perform(backend: &dyn Backend, request: &IoDescriptor, buf: Buf) -> (i32, Buf) {
    let (offset, len) = (request.offset(), request.len());
    let (result, buf) = match request.op() {
        op::READ | op::WRITE => return transfer(backend, request, buf).await,
        op::FLUSH => (backend.flush().await, buf),
        op::DISCARD => (backend.unmap(offset, len).await, buf),
        op::WRITE_ZEROES => (zeroes(backend, request).await, buf),
        _ => (Err(Errno::OPNOTSUPP.into()), buf),
    };
    (result_code(request, result, 0), buf)
}

/// Executes a read or a write, without waiting if the backend supports that.
async fn transfer(backend: &dyn Backend, request: &IoDescriptor, mut buf: Buf) -> (i32, Buf) {
    let (offset, len) = (request.offset(), request.len() as usize);
    if len > buf.capacity() {
        return (-Errno::IO.raw_os_error(), buf);
    }
    buf.set_visible(len);
    let at_once = match request.op() {
        op::READ => backend.try_read(offset, &mut buf),
        _ if request.is_fua() => TryIo::WouldWait,
        _ => backend.try_write(offset, &buf),
    };
    let (result, buf): BufResult = match at_once {
        TryIo::Done(result) => (result, buf),
        TryIo::WouldWait if request.op() == op::READ => backend.read(offset, buf).await,
        TryIo::WouldWait => backend.write(offset, buf, request.is_fua()).await,
    };
    (result_code(request, result, len), buf)
}

async fn zeroes(backend: &dyn Backend, request: &IoDescriptor) -> io::Result<()> {
    backend.write_zeroes(request.offset(), request.len(), !request.keeps_space()).await?;
    match request.is_fua() {
        true => backend.flush().await,
        false => Ok(()),
    }
}

fn result_code(request: &IoDescriptor, result: io::Result<()>, done: usize) -> i32 {
    match result {
        Ok(()) => done as i32,
        Err(e) => {
            tracing::debug!(op = request.op(), offset = request.offset(), "request failed: {e}");
            -errno(&e)
        }
    }
}
