//! The endpoint of the in-process provider.

use super::link::MemLink;
use super::side::{SideMessage, SideRead, SideWork};
use crate::{
    Endpoint, EndpointEvents, EndpointInfo, LocalBoxFuture, MemoryRegion, RemoteAddress, RemoteRange,
};
use event_listener::Event;
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

/// The nominal addresses of the two endpoints.
pub(super) const ADDRESSES: [SocketAddr; 2] = [loopback(49152), loopback(3260)];

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

struct MemEndpoint {
    link: Rc<MemLink>,
    me: usize,
    info: EndpointInfo,
    bell: Rc<Event>,
}

/// Both endpoints of a connection.
pub(super) fn both(link: Rc<MemLink>) -> [Rc<dyn Endpoint>; 2] {
    [0, 1].map(|me| Rc::new(MemEndpoint::new(link.clone(), me)) as Rc<dyn Endpoint>)
}

impl MemEndpoint {
    fn new(link: Rc<MemLink>, me: usize) -> MemEndpoint {
        let side = link.side(me);
        let info = EndpointInfo {
            provider: "mem".into(),
            ord: side.ord,
            sends_invalidate: side.invalidates,
            takes_invalidate: true,
            local: ADDRESSES[me],
            peer: ADDRESSES[1 - me],
        };
        let bell = side.faults.bell.clone();
        drop(side);
        MemEndpoint { link, me, info, bell }
    }
}

impl Drop for MemEndpoint {
    fn drop(&mut self) {
        self.link.close();
    }
}

impl Endpoint for MemEndpoint {
    fn info(&self) -> &EndpointInfo {
        &self.info
    }

    fn receives(&self, count: usize, len: usize) {
        self.link.side(self.me).receives.push_back((count, len));
    }

    fn send(&self, head: &[u8], payload: Payload, invalidate: Option<u32>) {
        let bytes = [head, payload.bytes()].concat();
        self.link.queue(self.me, SideWork::Send(SideMessage { bytes, invalidate }));
    }

    fn write(&self, to: RemoteAddress, payload: Payload) {
        self.link.queue(self.me, SideWork::Write(to, payload));
    }

    fn gather(&self, id: u64, from: &[RemoteRange], buf: Buf, at: usize) {
        self.link.queue(self.me, SideWork::Read(SideRead { id, from: from.to_vec(), buf, at }));
    }

    fn expose(&self, memory: MemoryRegion) -> io::Result<RemoteAddress> {
        self.link.expose(self.me, memory)
    }

    fn revoke(&self, stag: u32) -> Option<MemoryRegion> {
        self.link.side(self.me).revoke(stag)
    }

    fn flush(&self) -> io::Result<bool> {
        self.link.flush(self.me)
    }

    fn waiting(&self) -> usize {
        self.link.side(self.me).queue.iter().map(SideWork::size).sum()
    }

    fn take_moved(&self) -> bool {
        std::mem::take(&mut self.link.side(self.me).moved)
    }

    fn fence(&self) -> u64 {
        self.link.side(self.me).queued
    }

    fn fence_done(&self, mark: u64) -> bool {
        self.link.has_sent(self.me, mark)
    }

    fn poll(&self, into: &mut EndpointEvents) {
        lunar_runtime::begin_batch();
        self.link.poll(self.me, into);
    }

    fn has_ended(&self) -> bool {
        self.link.alive().is_err()
    }

    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            loop {
                let rung = self.bell.listen();
                if self.link.has_come(self.me)? {
                    return Ok(());
                }
                rung.await;
            }
        })
    }

    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            loop {
                let rung = self.bell.listen();
                self.link.alive()?;
                if !self.link.side(self.me).faults.sends.is_held() {
                    return Ok(());
                }
                rung.await;
            }
        })
    }

    fn close(&self) {
        self.link.close();
    }
}
