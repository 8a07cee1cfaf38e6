//! An end of a connection as its user sees it.

use super::link::Link;
use super::side::{Job, Message, Read};
use crate::{Endpoint, Events, Facts, MemoryRegion, Piece, Remote, Wait};
use event_listener::Event;
use lunar_runtime::Buf;
use lunar_runtime::out::Payload;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

/// Addresses of the two ends. Nothing goes there.
pub(super) const ADDRESSES: [SocketAddr; 2] = [loopback(49152), loopback(3260)];

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

struct End {
    link: Rc<Link>,
    me: usize,
    facts: Facts,
    bell: Rc<Event>,
}

/// Both ends of a connection.
pub(super) fn both(link: Rc<Link>) -> [Rc<dyn Endpoint>; 2] {
    [0, 1].map(|me| Rc::new(End::new(link.clone(), me)) as Rc<dyn Endpoint>)
}

impl End {
    fn new(link: Rc<Link>, me: usize) -> End {
        let side = link.side(me);
        let facts = Facts {
            provider: "mem".into(),
            ord: side.ord,
            sends_invalidate: side.invalidates,
            takes_invalidate: true,
            local: ADDRESSES[me],
            peer: ADDRESSES[1 - me],
        };
        let bell = side.faults.bell.clone();
        drop(side);
        End { link, me, facts, bell }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.link.close();
    }
}

impl Endpoint for End {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn receives(&self, count: usize, len: usize) {
        self.link.side(self.me).receives.push_back((count, len));
    }

    fn send(&self, head: &[u8], payload: Payload, invalidate: Option<u32>) {
        let bytes = [head, payload.bytes()].concat();
        self.link.queue(self.me, Job::Send(Message { bytes, invalidate }));
    }

    fn write(&self, to: Remote, payload: Payload) {
        self.link.queue(self.me, Job::Write(to, payload));
    }

    fn gather(&self, id: u64, from: &[Piece], buf: Buf, at: usize) {
        self.link.queue(self.me, Job::Read(Read { id, from: from.to_vec(), buf, at }));
    }

    fn expose(&self, memory: MemoryRegion) -> io::Result<Remote> {
        self.link.expose(self.me, memory)
    }

    fn revoke(&self, stag: u32) -> Option<MemoryRegion> {
        self.link.side(self.me).revoke(stag)
    }

    fn flush(&self) -> io::Result<bool> {
        self.link.flush(self.me)
    }

    fn waiting(&self) -> usize {
        self.link.side(self.me).queue.iter().map(Job::size).sum()
    }

    fn has_moved(&self) -> bool {
        std::mem::take(&mut self.link.side(self.me).moved)
    }

    fn fence(&self) -> u64 {
        self.link.side(self.me).queued
    }

    fn fence_done(&self, mark: u64) -> bool {
        self.link.has_sent(self.me, mark)
    }

    fn poll(&self, into: &mut Events) {
        self.link.poll(self.me, into);
    }

    fn has_ended(&self) -> bool {
        self.link.alive().is_err()
    }

    fn readable(&self) -> Wait<'_, io::Result<()>> {
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

    fn writable(&self) -> Wait<'_, io::Result<()>> {
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
