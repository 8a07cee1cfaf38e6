//! Connection setup.

use super::endpoint::{ADDRESSES, both};
use super::{Faults, MemLink};
use crate::{
    ConnParam, ConnectError, ConnectRequest, ConnectedEndpoint, Endpoint, LocalBoxFuture, MAX_PRIVATE,
};
use event_listener::Event;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// The lengths of private data on InfiniBand, in bytes: in a request, an acceptance, and a rejection.
const PADDED: [usize; 3] = [56, 196, 148];

/// The state that both sides share.
#[derive(Default)]
struct Rendezvous {
    outcome: RefCell<Option<Result<ConnectedEndpoint, ConnectError>>>,
    decided: Event,
    /// Whether the initiator has stopped waiting.
    gone: Cell<bool>,
}

impl Rendezvous {
    fn decide(&self, outcome: Result<ConnectedEndpoint, ConnectError>) {
        self.outcome.replace(Some(outcome));
        self.decided.notify(usize::MAX);
    }
}

/// The initiator's side.
struct InitiatorSide(Rc<Rendezvous>);

/// The target's side.
struct TargetSide {
    meeting: Rc<Rendezvous>,
    private: Vec<u8>,
    terms: ConnParam,
    faults: [Rc<Faults>; 2],
    answered: bool,
}

pub(super) fn meet(
    private: &[u8],
    terms: ConnParam,
    faults: [Rc<Faults>; 2],
) -> (Box<dyn ConnectRequest>, LocalBoxFuture<'static, Result<ConnectedEndpoint, ConnectError>>) {
    let meeting = Rc::new(Rendezvous::default());
    let asking = InitiatorSide(meeting.clone());
    if private.len() > MAX_PRIVATE {
        meeting.gone.set(true);
        meeting.decide(Err(too_much().into()));
    }
    let private = padded(private.to_vec(), PADDED[0], &faults[1]);
    let asked = TargetSide { meeting, private, terms, faults, answered: false };
    (Box::new(asked), Box::pin(asking.outcome()))
}

fn padded(mut private: Vec<u8>, len: usize, faults: &Faults) -> Vec<u8> {
    if faults.pads.get() {
        private.resize(len.max(private.len()), 0);
    }
    private
}

fn too_much() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("the private data exceed the limit of {MAX_PRIVATE} bytes"),
    )
}

impl InitiatorSide {
    async fn outcome(self) -> Result<ConnectedEndpoint, ConnectError> {
        loop {
            let decided = self.0.decided.listen();
            if let Some(outcome) = self.0.outcome.take() {
                return outcome;
            }
            decided.await;
        }
    }
}

impl Drop for InitiatorSide {
    fn drop(&mut self) {
        self.0.gone.set(true);
        self.0.outcome.take();
    }
}

impl TargetSide {
    fn accept_now(&mut self, private: Vec<u8>, terms: ConnParam) -> io::Result<Rc<dyn Endpoint>> {
        if private.len() > MAX_PRIVATE {
            return Err(too_much());
        }
        if self.meeting.gone.get() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the initiator has disconnected"));
        }
        let [initiator, target] = both(MemLink::new([self.terms, terms], self.faults.clone()));
        self.answer(Ok((initiator, padded(private, PADDED[1], &self.faults[0]))));
        Ok(target)
    }

    fn answer(&mut self, outcome: Result<ConnectedEndpoint, ConnectError>) {
        if !std::mem::replace(&mut self.answered, true) && !self.meeting.gone.get() {
            self.meeting.decide(outcome);
        }
    }
}

impl Drop for TargetSide {
    fn drop(&mut self) {
        let nothing = padded(Vec::new(), PADDED[2], &self.faults[0]);
        self.answer(Err(ConnectError::Rejected(nothing)));
    }
}

impl ConnectRequest for TargetSide {
    fn private(&self) -> &[u8] {
        &self.private
    }

    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (ADDRESSES[1], ADDRESSES[0])
    }

    fn sends_invalidate(&self) -> bool {
        self.faults[1].invalidates.get()
    }

    fn accept(
        mut self: Box<Self>,
        private: Vec<u8>,
        terms: ConnParam,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Endpoint>>> {
        Box::pin(async move { self.accept_now(private, terms) })
    }

    fn reject(mut self: Box<Self>, private: Vec<u8>) -> LocalBoxFuture<'static, ()> {
        let private = padded(private, PADDED[2], &self.faults[0]);
        Box::pin(async move { self.answer(Err(ConnectError::Rejected(private))) })
    }
}
