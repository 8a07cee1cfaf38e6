//! The link between two endpoints: it moves queued work from one to the other.

use super::side::{EndpointSide, SideMessage, SideWork, broken};
use super::{EndpointOp, Faults};
use crate::{ConnParam, EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress};
use std::cell::{RefCell, RefMut};
use std::io;
use std::rc::Rc;

/// A connection in memory.
pub(super) struct MemLink(RefCell<LinkState>);

struct LinkState {
    sides: [EndpointSide; 2],
    /// The end of the connection, with its reason, if any.
    over: Option<Option<String>>,
}

impl MemLink {
    pub fn new([a, b]: [ConnParam; 2], [fa, fb]: [Rc<Faults>; 2]) -> Rc<MemLink> {
        let sides = [EndpointSide::new(a, b, fa), EndpointSide::new(b, a, fb)];
        Rc::new(MemLink(RefCell::new(LinkState { sides, over: None })))
    }

    /// One of its endpoints.
    pub fn side(&self, which: usize) -> RefMut<'_, EndpointSide> {
        RefMut::map(self.0.borrow_mut(), |state| &mut state.sides[which])
    }

    /// Queues work. After the end of the connection, a read fails and other work is dropped.
    pub fn queue(&self, me: usize, job: SideWork) {
        let mut state = self.0.borrow_mut();
        match (&state.over, job) {
            (None, job) => {
                state.sides[me].queued += u64::from(!matches!(job, SideWork::Read(_)));
                state.sides[me].queue.push_back(job);
                state.sides[me].update();
            }
            (Some(_), SideWork::Read(read)) => {
                state.sides[me].read_ended(read, Err(broken(None)));
                state.sides[me].update();
            }
            (Some(_), _) => (),
        }
    }

    /// Registers memory for access by the peer.
    pub fn expose(&self, me: usize, memory: MemoryRegion) -> io::Result<RemoteAddress> {
        self.side(me).expose(memory)
    }

    /// Processes the queue of one endpoint, in order. Returns false if a gate holds some of it back.
    pub fn flush(&self, me: usize) -> io::Result<bool> {
        let mut state = self.0.borrow_mut();
        while state.over.is_none()
            && let Some(job) = state.sides[me].next_job()
        {
            match job {
                SideWork::Read(_) => state.step(me, job),
                job => state.sides[me].posted.push_back(job),
            }
            state.transmit(me);
        }
        state.advance();
        state.alive().map(|()| state.sides[me].queue.is_empty())
    }

    /// Takes the events of one endpoint.
    pub fn poll(&self, me: usize, into: &mut EndpointEvents) {
        let mut state = self.0.borrow_mut();
        state.advance();
        let came = &mut state.sides[me].came;
        for event in came.list.drain(..) {
            match event {
                EndpointEvent::Message(range, invalidated) => into.message(&came.bytes[range], invalidated),
                other => into.list.push(other),
            }
        }
        came.bytes.clear();
    }

    /// Whether one endpoint has events.
    pub fn has_come(&self, me: usize) -> io::Result<bool> {
        let mut state = self.0.borrow_mut();
        state.advance();
        match state.sides[me].came.is_empty() {
            true => state.alive().map(|()| false),
            false => Ok(true),
        }
    }

    /// Whether the first `count` messages and RDMA Writes of one endpoint have been sent, or never will be.
    pub fn has_sent(&self, me: usize, count: u64) -> bool {
        let mut state = self.0.borrow_mut();
        state.advance();
        state.over.is_some() || state.sides[me].sent >= count
    }

    pub fn alive(&self) -> io::Result<()> {
        self.0.borrow().alive()
    }

    pub fn close(&self) {
        self.0.borrow_mut().end(None);
    }
}

impl LinkState {
    fn alive(&self) -> io::Result<()> {
        self.over.as_ref().map_or(Ok(()), |reason| Err(broken(reason.as_deref())))
    }

    fn end(&mut self, reason: Option<String>) {
        if self.over.is_none() {
            self.sides.iter_mut().for_each(|side| side.over(reason.as_deref()));
            self.over = Some(reason);
        }
    }

    fn check(&mut self, result: Result<(), String>) {
        if let Err(reason) = result {
            self.end(Some(reason));
        }
    }

    fn step(&mut self, me: usize, job: SideWork) {
        let side = &mut self.sides[me];
        side.moved = true;
        match job {
            SideWork::Send(message) => self.send(me, message),
            SideWork::Write(to, payload) => {
                side.faults.did(EndpointOp::Write { to, len: payload.bytes().len() });
                let written = self.sides[1 - me].written(to, payload.bytes());
                self.check(written);
            }
            SideWork::Read(read) => {
                side.reads.push_back(read);
                if side.ord == 0 {
                    self.end(Some("the peer sent an RDMA Read, but none were negotiated".into()));
                }
            }
        }
        self.settle();
    }

    fn send(&mut self, me: usize, message: SideMessage) {
        let SideMessage { bytes, invalidate } = &message;
        let side = &self.sides[me];
        side.faults.did(EndpointOp::Send { len: bytes.len(), invalidate: *invalidate });
        if invalidate.is_some() && !side.invalidates {
            return self.end(Some("this end cannot send a message that invalidates a steering tag".into()));
        }
        self.sides[1 - me].arriving.push_back(message);
    }

    /// Sends posted work, in order.
    fn transmit(&mut self, me: usize) {
        while self.over.is_none()
            && let Some(job) = self.sides[me].next_posted()
        {
            self.step(me, job);
        }
    }

    /// Moves all work of both endpoints that no gate holds back.
    fn advance(&mut self) {
        [0, 1].into_iter().for_each(|me| self.transmit(me));
        self.settle();
    }

    /// Delivers sent work, and processes reads.
    fn settle(&mut self) {
        for me in [0, 1] {
            self.deliver(me);
            self.read(me);
        }
        if self.sides.iter().any(|side| side.faults.lose_after.get() == Some(0)) {
            self.end(Some("the connection was lost (injected fault)".into()));
        }
        self.sides.iter().for_each(EndpointSide::update);
    }

    fn deliver(&mut self, me: usize) {
        let side = &mut self.sides[me];
        while !side.arriving.is_empty() && side.faults.messages.admits() {
            let Some(message) = side.arriving.pop_front() else { return };
            if let Err(reason) = side.arrives(&message) {
                return self.end(Some(reason));
            }
        }
    }

    fn read(&mut self, me: usize) {
        self.sides[me].begin_reads();
        while let Some(mut read) = self.sides[me].next_read() {
            let done = match self.sides[me].faults.fail_next_read.take() {
                true => Err("an RDMA Read failed (injected fault)".to_string()),
                false => self.sides[1 - me].read_by(&mut read),
            };
            let result = done.clone().map_err(|reason| broken(Some(&reason)));
            self.sides[me].read_ended(read, result);
            self.check(done);
            self.sides[me].begin_reads();
        }
    }
}
