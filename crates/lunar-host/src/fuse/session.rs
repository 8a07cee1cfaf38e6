//! The session with the kernel: requests are received one by one from the open device, and replies are sent in order
//! of completion.

use super::reply::{ExportedFile, FuseReply, FuseRequest, IN_FLIGHT, MAX_WRITE, out_header};
use compio::runtime::fd::PollFd;
use lunar_runtime::{Buf, begin_batch};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use zerocopy::IntoBytes;

/// Serves until the unmount, or until the sender of `stop` is dropped. All senders of `ended` are dropped when the last
/// request has its reply.
pub(super) async fn serve(
    device: OwnedFd,
    file: ExportedFile,
    stop: flume::Receiver<()>,
    ended: flume::Sender<()>,
) -> io::Result<()> {
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    let device = Rc::new(PollFd::new(device)?);
    let file = Rc::new(file);
    let (give_back, free) = flume::unbounded();
    for _ in 0..IN_FLIGHT {
        let _ = give_back.send(FuseRequest::new());
    }
    loop {
        let next = async { receive(&device, free.recv_async().await.map_err(io::Error::other)?).await };
        let request = match either(next, stop.recv_async()).await {
            Some(Ok(Some(request))) => request,
            Some(Err(e)) => return Err(e),
            Some(Ok(None)) | None => return Ok(()),
        };
        let (device, file, give_back) = (device.clone(), file.clone(), give_back.clone());
        let ended = ended.clone();
        lunar_runtime::spawn(async move {
            let request = handle(&device, &file, request).await;
            let _ = give_back.send(request);
            drop(ended);
        });
    }
}

/// The result of the first future, or None if the second one ends first.
async fn either<T, U>(first: impl Future<Output = T>, second: impl Future<Output = U>) -> Option<T> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => second.as_mut().poll(cx).map(|_| None),
    })
    .await
}

/// Receives the next request; None after the unmount. The data of a WRITE is placed at the start of the buffer,
/// aligned for direct I/O.
async fn receive(device: &PollFd<OwnedFd>, mut into: FuseRequest) -> io::Result<Option<FuseRequest>> {
    into.rest.set_visible(MAX_WRITE);
    loop {
        let mut parts = [IoSliceMut::new(&mut into.head), IoSliceMut::new(&mut into.rest)];
        match rustix::io::readv(device, &mut parts) {
            Ok(len) => {
                begin_batch();
                into.len = len;
                return Ok(Some(into));
            }
            Err(Errno::AGAIN) => device.read_ready().await?,
            // ENOENT: the request was interrupted before it was read.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Executes a request, sends the reply, and returns the buffer.
async fn handle(device: &PollFd<OwnedFd>, file: &ExportedFile, mut request: FuseRequest) -> FuseRequest {
    let Some(header) = request.header() else {
        tracing::warn!(
            len = request.len,
            "message of the kernel on /dev/fuse is too short for a FUSE request"
        );
        return request;
    };
    let result = file.answer(&header, &mut request).await;
    if request.rest.capacity() < MAX_WRITE {
        request.rest = Buf::zeroed(MAX_WRITE);
    }
    if matches!(result, Ok(FuseReply::Silence)) {
        return request;
    }
    let head = out_header(header.unique, &result);
    let body = match &result {
        Ok(FuseReply::Bytes(bytes)) => &bytes[..],
        Ok(FuseReply::Data(len)) => &request.rest[..*len],
        Ok(FuseReply::Silence) | Err(_) => &[],
    };
    // The kernel accepts a reply completely or not at all. It fails if the caller or the mount is gone.
    if let Err(e) = rustix::io::writev(device, &[IoSlice::new(head.as_bytes()), IoSlice::new(body)]) {
        tracing::debug!(header.opcode, "the kernel did not accept the reply to a FUSE request: {e}");
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_runtime::current_batch;

    #[test]
    fn each_request_begins_a_batch() {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let (device, kernel) = rustix::pipe::pipe().expect("a pipe");
            rustix::io::write(&kernel, &[1; 100]).expect("written");
            let device = PollFd::new(device).expect("an event loop");
            let batch = current_batch();
            let request = receive(&device, FuseRequest::new()).await.expect("received").expect("a request");
            assert!(request.len == 100 && current_batch() != batch);
        });
    }
}
