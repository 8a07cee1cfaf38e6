//! A connection that records the target's calls, in order.

use lunar_rdma::{
    ConnParam, ConnectRequest, Endpoint, EndpointEvents, EndpointInfo, LocalBoxFuture, MemoryRegion,
    RemoteAddress, RemoteRange,
};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointCall {
    /// Receive buffers were posted.
    Receives(usize),
    /// A message was queued.
    Sent,
}

/// The calls, in order.
pub type Log = Rc<RefCell<Vec<EndpointCall>>>;

struct RecordingEndpoint(Rc<dyn Endpoint>, Log);

/// A request whose connection is recorded.
pub struct RecordingRequest(pub Box<dyn ConnectRequest>, pub Log);

impl ConnectRequest for RecordingRequest {
    fn private(&self) -> &[u8] {
        self.0.private()
    }

    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        self.0.addresses()
    }

    fn sends_invalidate(&self) -> bool {
        self.0.sends_invalidate()
    }

    fn accept(
        self: Box<Self>,
        private: Vec<u8>,
        terms: ConnParam,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Endpoint>>> {
        self.1.borrow_mut().push(EndpointCall::Receives(terms.receives.0));
        Box::pin(async move {
            Ok(Rc::new(RecordingEndpoint(self.0.accept(private, terms).await?, self.1)) as Rc<dyn Endpoint>)
        })
    }

    fn reject(self: Box<Self>, private: Vec<u8>) -> LocalBoxFuture<'static, ()> {
        self.0.reject(private)
    }
}

impl Endpoint for RecordingEndpoint {
    fn info(&self) -> &EndpointInfo {
        self.0.info()
    }

    fn receives(&self, count: usize, len: usize) {
        self.1.borrow_mut().push(EndpointCall::Receives(count));
        self.0.receives(count, len);
    }

    fn send(&self, head: &[u8], payload: Payload, invalidate: Option<u32>) {
        self.1.borrow_mut().push(EndpointCall::Sent);
        self.0.send(head, payload, invalidate);
    }

    fn write(&self, to: RemoteAddress, payload: Payload) {
        self.0.write(to, payload);
    }

    fn gather(&self, id: u64, from: &[RemoteRange], buf: Buf, at: usize) {
        self.0.gather(id, from, buf, at);
    }

    fn expose(&self, memory: MemoryRegion) -> io::Result<RemoteAddress> {
        self.0.expose(memory)
    }

    fn revoke(&self, stag: u32) -> Option<MemoryRegion> {
        self.0.revoke(stag)
    }

    fn flush(&self) -> io::Result<bool> {
        self.0.flush()
    }

    fn waiting(&self) -> usize {
        self.0.waiting()
    }

    fn take_moved(&self) -> bool {
        self.0.take_moved()
    }

    fn fence(&self) -> u64 {
        self.0.fence()
    }

    fn fence_done(&self, mark: u64) -> bool {
        self.0.fence_done(mark)
    }

    fn poll(&self, into: &mut EndpointEvents) {
        self.0.poll(into);
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    fn recheck_peer(&self) {
        self.0.recheck_peer();
    }

    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.readable()
    }

    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.writable()
    }

    fn close(&self) {
        self.0.close();
    }
}
