//! The receiving side of an RDMA connection. Events arrive in batches, of which a part may have to wait.

use event_listener::Event;
use lunar_rdma::{Endpoint, EndpointEvent, EndpointEvents, LocalBoxFuture};
use lunar_runtime::{Buf, ReceiveStatus};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

/// Maximum number of events that [`RdmaReceiver::receive_arrived`] handles. It is never reached, because an initiator
/// without responses runs out of credits.
const MAX_EVENTS: u64 = 1 << 16;

/// A received event.
pub enum RdmaDelivery<'a> {
    /// A message.
    Message(&'a [u8]),
    /// An RDMA Read has succeeded: its number and its buffer.
    Read(u64, Buf),
}

/// The handler of received events.
pub trait DeliveryHandler {
    /// Handles one event. False: receive no more.
    ///
    /// # Errors
    /// The reason why the connection cannot continue.
    fn take(&mut self, delivery: RdmaDelivery<'_>) -> io::Result<bool>;

    /// Whether there is no room for more responses now.
    fn is_full(&self) -> bool;
}

/// The receiving side of a connection.
pub struct RdmaReceiver {
    endpoint: Rc<dyn Endpoint>,
    /// Maximum length of an accepted message in bytes.
    longest: usize,
    /// Received events that were not handled.
    events: RefCell<EndpointEvents>,
    /// Whether receiving was stopped.
    over: Cell<bool>,
    /// Whether the end of the connection was handled: no RDMA Read is in flight anymore.
    ended: Cell<bool>,
    /// Whether the received events include the end of the connection.
    ends: Cell<bool>,
    /// Number of handled events.
    taken: Cell<u64>,
    stopped: Event,
}

impl RdmaReceiver {
    /// The receiver of a connection. `begun`: events that have already arrived. `longest`: maximum length of a
    /// message in bytes.
    pub fn new(endpoint: Rc<dyn Endpoint>, longest: usize, begun: EndpointEvents) -> RdmaReceiver {
        let (events, over) = (RefCell::new(begun), Cell::new(false));
        let (ended, ends, taken) = (Cell::default(), Cell::new(ends(&events.borrow())), Cell::default());
        RdmaReceiver { endpoint, longest, events, over, ended, ends, taken, stopped: Event::new() }
    }

    /// Passes received events to the handler, unless receiving was stopped.
    ///
    /// # Errors
    /// The connection has failed, or the received data are invalid.
    pub fn receive(&self, handler: &mut impl DeliveryHandler) -> io::Result<ReceiveStatus> {
        if self.over.get() { Ok(ReceiveStatus::End) } else { self.take(handler) }
    }

    /// Passes all events that have arrived to the handler, unless receiving was stopped.
    ///
    /// # Errors
    /// The same as for [`RdmaReceiver::receive`].
    pub fn receive_arrived(&self, handler: &mut impl DeliveryHandler) -> io::Result<ReceiveStatus> {
        let max = self.taken() + MAX_EVENTS;
        loop {
            let before = self.taken();
            let received = self.receive(handler)?;
            if received != ReceiveStatus::More || self.taken() == before || self.taken() >= max {
                return Ok(received);
            }
        }
    }

    /// Passes received events to the handler, even if receiving was stopped.
    ///
    /// # Errors
    /// The same as for [`RdmaReceiver::receive`].
    pub fn take(&self, handler: &mut impl DeliveryHandler) -> io::Result<ReceiveStatus> {
        let mut events = self.events.take();
        if events.is_empty() {
            events.clear();
            self.endpoint.poll(&mut events);
            self.ends.set(ends(&events));
        }
        let (mut messages, mut taken, mut result) = (0, 0, Ok(ReceiveStatus::More));
        let EndpointEvents { list, bytes } = &mut events;
        for event in list.iter_mut() {
            taken += 1;
            let more = match std::mem::replace(event, EndpointEvent::End(None)) {
                EndpointEvent::Message(range, _) => {
                    messages += 1;
                    handler.take(RdmaDelivery::Message(&bytes[range]))
                }
                EndpointEvent::Read(id, buf, Ok(())) => handler.take(RdmaDelivery::Read(id, buf)),
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
                Ok(true) if handler.is_full() => Ok(ReceiveStatus::Full),
                Ok(true) => continue,
                Ok(false) => Ok(ReceiveStatus::End),
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

    /// Waits until there may be an event, or receiving is stopped.
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

    /// Waits until there is an event, even if receiving was stopped.
    ///
    /// # Errors
    /// No event can arrive anymore.
    pub async fn wait_for_event(&self) -> io::Result<()> {
        if self.events.borrow().is_empty() { self.endpoint.readable().await } else { Ok(()) }
    }

    /// Whether the end of the connection was handled: no data are in flight anymore.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Whether the connection has ended, even if earlier events were not handled.
    pub fn ends(&self) -> bool {
        self.ended.get() || self.ends.get() || self.endpoint.has_ended()
    }

    /// Number of handled events.
    fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.ended.set(true);
        self.endpoint.close();
    }

    /// Closes the connection, and discards all data in flight.
    pub fn reset(&self) {
        self.ended.set(true);
        self.endpoint.reset();
    }

    /// Stops receiving.
    pub fn stop(&self) {
        self.over.set(true);
        self.stopped.notify(usize::MAX);
    }
}

/// Whether the last event is the end of the connection.
fn ends(events: &EndpointEvents) -> bool {
    matches!(events.list.last(), Some(EndpointEvent::End(_)))
}

/// The error of a connection on which the initiator violated the protocol.
pub fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
