//! Asynchronous events of a controller (NVM Express Base, Asynchronous Event Request).

use lunar_wire::nvme::NvmeStatus;
use std::collections::{BTreeSet, VecDeque};

/// An event that a host can learn of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AsyncEvent {
    /// A namespace has come, gone or changed.
    NamespaceChanged,
    /// The access state of a namespace has changed.
    AccessChanged,
    /// The discovery log has changed.
    DiscoveryChanged,
    /// The reservation notification log has a new entry.
    Reservation,
}

impl AsyncEvent {
    /// All events.
    pub const ALL: [AsyncEvent; 4] = [
        AsyncEvent::NamespaceChanged,
        AsyncEvent::AccessChanged,
        AsyncEvent::DiscoveryChanged,
        AsyncEvent::Reservation,
    ];

    /// The result of a completion with this event: type, information, and the log page that has more.
    pub fn result(self) -> u32 {
        let (kind, information, page) = match self {
            AsyncEvent::NamespaceChanged => (2, 0x00, 0x04),
            AsyncEvent::AccessChanged => (2, 0x03, 0x0c),
            AsyncEvent::DiscoveryChanged => (2, 0xf0, 0x70),
            AsyncEvent::Reservation => (6, 0x00, 0x80),
        };
        kind | information << 8 | page << 16
    }

    /// The log page that has more.
    pub fn log_page(self) -> u8 {
        (self.result() >> 16) as u8
    }

    /// The bit that turns it on, in OAES and in the feature Asynchronous Event Configuration. Reservation events have none.
    pub fn bit(self) -> Option<u32> {
        match self {
            AsyncEvent::NamespaceChanged => Some(1 << 8),
            AsyncEvent::AccessChanged => Some(1 << 11),
            AsyncEvent::DiscoveryChanged => Some(1 << 31),
            AsyncEvent::Reservation => None,
        }
    }
}

/// The events of a controller, and the requests that wait for one. An event of each kind is held until a request is there.
/// After an event, others of its kind are held until the host has read its log page.
#[derive(Clone, Debug)]
pub struct EventQueue {
    /// The most requests that may wait.
    limit: usize,
    requests: VecDeque<u16>,
    /// The feature Asynchronous Event Configuration.
    configuration: u32,
    held: BTreeSet<AsyncEvent>,
    /// Their log page was not read since the last event.
    masked: BTreeSet<AsyncEvent>,
}

impl EventQueue {
    /// A queue with room for `limit` requests. `configuration`: the bits of the events that are on.
    pub fn new(limit: usize, configuration: u32) -> EventQueue {
        let (requests, held, masked) = Default::default();
        EventQueue { limit, requests, configuration, held, masked }
    }

    /// The feature Asynchronous Event Configuration.
    pub fn configuration(&self) -> u32 {
        self.configuration
    }

    /// Changes the feature. Held events of a kind that is off now are dropped.
    pub fn configure(&mut self, configuration: u32) {
        self.configuration = configuration;
        let mut held = std::mem::take(&mut self.held);
        held.retain(|event| self.is_on(*event));
        self.held = held;
    }

    fn is_on(&self, event: AsyncEvent) -> bool {
        event.bit().is_none_or(|bit| self.configuration & bit != 0)
    }

    /// Asynchronous Event Request with this command identifier.
    ///
    /// # Errors
    /// Too many requests wait, or another one has this identifier.
    pub fn request(&mut self, id: u16) -> Result<(), NvmeStatus> {
        if self.requests.contains(&id) {
            return Err(NvmeStatus::ID_CONFLICT);
        }
        if self.requests.len() >= self.limit {
            return Err(NvmeStatus::EVENT_LIMIT_EXCEEDED);
        }
        self.requests.push_back(id);
        Ok(())
    }

    /// An event has happened.
    pub fn raise(&mut self, event: AsyncEvent) {
        if self.is_on(event) {
            self.held.insert(event);
        }
    }

    /// The host has read a log page, and does not ask to retain its event.
    pub fn log_read(&mut self, page: u8) {
        self.masked.retain(|event| event.log_page() != page);
    }

    /// The next completion: command identifier and event.
    pub fn take_completion(&mut self) -> Option<(u16, AsyncEvent)> {
        let event = self.held.difference(&self.masked).next().copied()?;
        let id = self.requests.pop_front()?;
        self.held.remove(&event);
        self.masked.insert(event);
        Some((id, event))
    }

    /// The controller is disabled: requests end without a completion, and events are dropped.
    pub fn reset(&mut self, configuration: u32) {
        *self = EventQueue::new(self.limit, configuration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AsyncEvent::{AccessChanged, DiscoveryChanged, NamespaceChanged, Reservation};

    const ON: u32 = 0x900;

    #[test]
    fn results_are_those_that_hosts_know() {
        let results = AsyncEvent::ALL.map(AsyncEvent::result);
        assert_eq!(results, [0x0004_0002, 0x000c_0302, 0x0070_f002, 0x0080_0006]);
    }

    #[test]
    fn event_waits_for_a_request() {
        let mut queue = EventQueue::new(4, ON);
        queue.raise(NamespaceChanged);
        queue.raise(NamespaceChanged);
        assert_eq!(queue.take_completion(), None);
        queue.request(31).expect("room");
        assert_eq!((queue.take_completion(), queue.take_completion()), (Some((31, NamespaceChanged)), None));
    }

    #[test]
    fn event_is_masked_until_its_log_page_is_read() {
        let mut queue = EventQueue::new(4, ON);
        (1..4).for_each(|id| queue.request(id).expect("room"));
        queue.raise(NamespaceChanged);
        assert_eq!(queue.take_completion(), Some((1, NamespaceChanged)));
        queue.raise(NamespaceChanged);
        assert_eq!(queue.take_completion(), None, "masked");
        queue.raise(AccessChanged);
        assert_eq!(queue.take_completion(), Some((2, AccessChanged)), "another kind");
        queue.log_read(0x0c);
        assert_eq!(queue.take_completion(), None, "another page");
        queue.log_read(0x04);
        assert_eq!(queue.take_completion(), Some((3, NamespaceChanged)), "held, not lost");
    }

    #[test]
    fn events_that_are_off_do_not_happen() {
        let mut queue = EventQueue::new(4, 0x100);
        (1..4).for_each(|id| queue.request(id).expect("room"));
        [AccessChanged, DiscoveryChanged].into_iter().for_each(|event| queue.raise(event));
        assert_eq!(queue.take_completion(), None);
        queue.raise(Reservation);
        assert_eq!(queue.take_completion(), Some((1, Reservation)), "it has no bit");
        queue.raise(NamespaceChanged);
        queue.configure(0x800);
        assert_eq!((queue.take_completion(), queue.configuration()), (None, 0x800));
    }

    #[test]
    fn requests_are_limited_and_end_with_a_reset() {
        let mut queue = EventQueue::new(2, ON);
        assert_eq!([1, 2, 3].map(|id| queue.request(id).is_ok()), [true, true, false]);
        queue.raise(AccessChanged);
        assert_eq!(queue.take_completion(), Some((1, AccessChanged)));
        queue.request(4).expect("room");
        queue.raise(AccessChanged);
        queue.reset(ON);
        queue.log_read(0x0c);
        assert_eq!(queue.take_completion(), None, "of the controller before");
    }
}
