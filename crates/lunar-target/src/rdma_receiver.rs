//! The receiving side of a connection over RDMA: what comes arrives in batches, of which a part may have to wait, until it
//! is stopped.

use event_listener::Event as Notify;
use lunar_rdma::{Endpoint, EndpointEvent, EndpointEvents, LocalBoxFuture};
use lunar_runtime::Buf;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

/// Something has come.
pub enum RdmaDelivery<'a> {
    /// A message.
    Message(&'a [u8]),
    /// An RDMA Read has ended well: its number, and its buffer.
    Read(u64, Buf),
}

/// What takes what comes.
pub trait DeliveryHandler {
    /// Takes one thing that has come. False: nothing more is wanted.
    ///
    /// # Errors
    /// Why the connection cannot go on.
    fn take(&mut self, delivery: RdmaDelivery<'_>) -> io::Result<bool>;

    /// There is no room for more answers now.
    fn is_full(&self) -> bool;
}

/// What a receive came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// Go on when there is more.
    More,
    /// There is no room for more answers: go on when there is.
    Full,
    /// The peer has closed, or nothing more is wanted.
    End,
}

/// The receiving side of a connection.
pub struct RdmaReceiver {
    endpoint: Rc<dyn Endpoint>,
    /// Bytes of the longest message that is taken.
    longest: usize,
    /// What has come and was not taken yet.
    events: RefCell<EndpointEvents>,
    /// Nothing more is taken.
    over: Cell<bool>,
    /// The end of the connection was seen: no RDMA Read is under way any more.
    ended: Cell<bool>,
    /// The end of the connection is among what has come.
    ends: Cell<bool>,
    /// Events that were taken so far.
    taken: Cell<u64>,
    stopped: Notify,
}

impl RdmaReceiver {
    /// That of a connection on which this has come already, and takes messages of so many bytes.
    pub fn new(endpoint: Rc<dyn Endpoint>, longest: usize, begun: EndpointEvents) -> RdmaReceiver {
        let (events, over) = (RefCell::new(begun), Cell::new(false));
        let (ended, ends, taken) = (Cell::default(), Cell::new(ends(&events.borrow())), Cell::default());
        RdmaReceiver { endpoint, longest, events, over, ended, ends, taken, stopped: Notify::new() }
    }

    /// Hands over what is there, one by one, unless it was stopped.
    ///
    /// # Errors
    /// When the connection has broken, or what came breaks it.
    pub fn receive(&self, taker: &mut impl DeliveryHandler) -> io::Result<ReceiveOutcome> {
        if self.over.get() { Ok(ReceiveOutcome::End) } else { self.take(taker) }
    }

    /// The same, stopped or not.
    ///
    /// # Errors
    /// As [`RdmaReceiver::receive`].
    pub fn take(&self, taker: &mut impl DeliveryHandler) -> io::Result<ReceiveOutcome> {
        let mut events = self.events.take();
        if events.is_empty() {
            events.clear();
            self.endpoint.poll(&mut events);
            self.ends.set(ends(&events));
        }
        let (mut messages, mut taken, mut result) = (0, 0, Ok(ReceiveOutcome::More));
        let EndpointEvents { list, bytes } = &mut events;
        for event in list.iter_mut() {
            taken += 1;
            let more = match std::mem::replace(event, EndpointEvent::End(None)) {
                EndpointEvent::Message(range, _) => {
                    messages += 1;
                    taker.take(RdmaDelivery::Message(&bytes[range]))
                }
                EndpointEvent::Read(id, buf, Ok(())) => taker.take(RdmaDelivery::Read(id, buf)),
                EndpointEvent::Read(_, _, Err(e)) | EndpointEvent::End(Some(e)) => {
                    self.ended.set(true);
                    Err(e)
                }
                EndpointEvent::End(None) => {
                    self.ended.set(true);
                    Ok(false)
                }
            };
            result = match more {
                Ok(true) if taker.is_full() => Ok(ReceiveOutcome::Full),
                Ok(true) => continue,
                Ok(false) => Ok(ReceiveOutcome::End),
                Err(e) => Err(e),
            };
            break;
        }
        if messages > 0 {
            self.endpoint.receives(messages, self.longest);
        }
        list.drain(..taken);
        self.taken.set(self.taken.get() + taken as u64);
        self.events.replace(events);
        result
    }

    /// Waits until there may be something to take, or it is stopped.
    pub fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async {
            let stopped = self.stopped.listen();
            if self.over.get() {
                return Ok(());
            }
            let stopped = async {
                stopped.await;
                Ok(())
            };
            lunar_runtime::either(self.endpoint.readable(), stopped).await
        })
    }

    /// Waits until there is something to take, stopped or not.
    ///
    /// # Errors
    /// When nothing can come any more.
    pub async fn wait_for_event(&self) -> io::Result<()> {
        if self.events.borrow().is_empty() { self.endpoint.readable().await } else { Ok(()) }
    }

    /// The connection has ended, or was ended here: no data comes or goes any more.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// The connection has ended, whatever it has brought before that and was not taken yet.
    pub fn ends(&self) -> bool {
        self.ended.get() || self.ends.get() || self.endpoint.has_ended()
    }

    /// What it receives from.
    pub fn endpoint(&self) -> &dyn Endpoint {
        &*self.endpoint
    }

    /// Events that were taken so far.
    pub fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.ended.set(true);
        self.endpoint.close();
    }

    /// The same, and what is on its way is thrown away.
    pub fn reset(&self) {
        self.ended.set(true);
        self.endpoint.reset();
    }

    /// Nothing more is taken.
    pub fn stop(&self) {
        self.over.set(true);
        self.stopped.notify(usize::MAX);
    }
}

/// The end is the last event.
fn ends(events: &EndpointEvents) -> bool {
    matches!(events.list.last(), Some(EndpointEvent::End(_)))
}

/// The connection cannot go on, because of what the initiator did.
pub fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
