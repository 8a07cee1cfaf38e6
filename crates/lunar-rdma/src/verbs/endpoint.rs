//! The endpoint of a connection.
//!
//! Three callers take completions: [`Endpoint::poll`], waiting futures, and the task of the connection. The task
//! sleeps until the device or the connection manager has an event, and then wakes the futures. Only a caller that is
//! about to sleep arms the completion queue. The task outlives the endpoint until the device has released the
//! connection (`teardown`).

use super::async_events::AsyncEventSink;
use super::cm::{CmId, FdWatch};
use super::domain::{Domain, RegisteredRegion};
use super::ffi::*;
use super::inbound::Inbound;
use super::outgoing::{Outgoing, SendMemory};
use super::parts::ConnectionParts;
use super::queues::{BATCH, QueuePair, Verb};
use super::receives;
use crate::{
    Endpoint, EndpointEvent, EndpointEvents, EndpointInfo, LocalBoxFuture, MemoryRegion, RemoteAddress,
    RemoteRange,
};
use event_listener::Event;
use lunar_runtime::send_queue::Payload;
use lunar_runtime::{Buf, Recheck, begin_batch};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::io;
use std::pin::pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// The number of polls without a completion before a future sleeps.
pub const EMPTY_ROUNDS: usize = 4;
/// The maximum number of completion batches in one poll.
const ROUNDS: usize = 8;

/// Creates the endpoint of a connection, and starts its task.
///
/// # Errors
/// When there are too many descriptors.
pub fn endpoint(parts: ConnectionParts, ord: u8) -> io::Result<Rc<dyn Endpoint>> {
    // Before the parts are moved out: on an error they are dropped in the order of their fields.
    let (completions, events) = (parts.queues.watch()?, parts.id.watch()?);
    let ConnectionParts { queues, receives, domain, id } = parts;
    let [pair, completed] = queues.addresses();
    let async_sink = domain.async_events.add([pair, completed, receives.place()]);
    let (local, peer) = id.addresses();
    let info = EndpointInfo {
        provider: format!("verbs {}", domain.name),
        ord: ord.into(),
        sends_invalidate: domain.sends_invalidate(),
        takes_invalidate: super::TAKES_INVALIDATE,
        local,
        peer,
    };
    let state = RefCell::new(State {
        out: Outgoing::new(queues.depths.0, ord.into()).with_all_signalled(domain.is_iwarp),
        receives,
        exposed: HashMap::new(),
        inbox: EndpointEvents::default(),
        end: EndStage::None,
        resets: false,
        disconnected_at: None,
        completions: [ibv_wc::default(); BATCH],
    });
    let (memory, woken) = (memory(&domain), Event::new());
    let inner = Rc::new(VerbsInner {
        queues,
        state,
        memory,
        domain,
        info,
        cm_recheck: Recheck::default(),
        woken,
        async_sink,
        id,
    });
    lunar_runtime::spawn(drive(inner.clone(), completions, events));
    Ok(Rc::new(VerbsEndpoint { inner }))
}

/// The memory of a connection. An iWARP Read Request contains the key of its destination, and the peer may write
/// wherever that key is valid. On iWARP, reads therefore use only memory of this connection.
fn memory(domain: &Arc<Domain>) -> SendMemory {
    let zeros = domain.clone();
    SendMemory {
        pool: domain.pool(),
        sinks: domain.sinks(),
        key: Box::new(domain.keys()),
        zeros: Box::new(move || zeros.zeros()),
        reads_in_place: !domain.is_iwarp,
    }
}

/// Memory that the peer may access. It is deregistered before it is freed. If that fails, it is leaked.
struct ExposedMemory {
    region: RegisteredRegion,
    memory: Option<MemoryRegion>,
}

impl Drop for ExposedMemory {
    fn drop(&mut self) {
        if !self.region.deregister() {
            std::mem::forget(self.memory.take());
        }
    }
}

/// The stages of the end of a connection.
pub enum EndStage {
    None,
    /// Ended. The end is reported after all earlier completions.
    Pending(Option<io::Error>),
    /// Ended. The end is reported when the device no longer writes into buffers that return to their owner.
    TearingDown(Option<io::Error>),
    /// Ended and reported.
    Reported,
}

pub struct State {
    pub out: Outgoing,
    pub receives: Inbound,
    exposed: HashMap<u32, ExposedMemory>,
    /// Events for the next [`Endpoint::poll`].
    pub inbox: EndpointEvents,
    pub end: EndStage,
    /// Whether any end of the connection is a reset.
    pub resets: bool,
    /// The time of the disconnect, which makes the device flush its work.
    pub disconnected_at: Option<Instant>,
    pub completions: [ibv_wc; BATCH],
}

/// Dropped in this order: the device uses the memory until the queues are destroyed, and the queues use the id.
pub struct VerbsInner {
    pub queues: QueuePair,
    pub state: RefCell<State>,
    memory: SendMemory,
    domain: Arc<Domain>,
    info: EndpointInfo,
    /// Caches that the connection manager has no event.
    cm_recheck: Recheck,
    /// Notified of every change.
    pub woken: Event,
    /// The asynchronous events of this connection. It also wakes the task when the connection ends.
    pub async_sink: Arc<AsyncEventSink>,
    pub id: CmId,
}

struct VerbsEndpoint {
    inner: Rc<VerbsInner>,
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        match std::thread::panicking() {
            // The resulting event wakes the task. Waking it here during a panic would make compio abort the process.
            true => self.inner.id.disconnect(),
            false => self.inner.shut_down(true),
        }
    }
}

/// The task of a connection: wakes waiting futures until the connection ends, then tears it down.
async fn drive(inner: Rc<VerbsInner>, completions: FdWatch, events: FdWatch) {
    // The manager has no event before the end, so one wait serves for many completions.
    let mut manager = pin!(events.read_ready());
    loop {
        let notified = inner.async_sink.wakeup.listen();
        if let Some(event) = inner.async_sink.event() {
            inner.fail(event);
        }
        if inner.state.borrow().end.is_over() {
            break;
        }
        let completed = async { EventSource::Completions(completions.read_ready().await) };
        let said = async { EventSource::Manager(manager.as_mut().await) };
        let over = async {
            notified.await;
            EventSource::Asynchronous
        };
        match lunar_runtime::either(lunar_runtime::either(completed, said), over).await {
            EventSource::Completions(ready) => inner.process(ready.map(|()| inner.queues.take_event())),
            EventSource::Manager(ready) => {
                manager.set(events.read_ready());
                inner.process(ready.and_then(|()| inner.process_cm_events(&mut inner.state.borrow_mut())));
            }
            EventSource::Asynchronous => {}
        }
    }
    inner.tear_down().await;
}

/// The sources of events.
enum EventSource {
    Completions(io::Result<()>),
    Manager(io::Result<()>),
    Asynchronous,
}

impl VerbsInner {
    /// Ends the connection after an asynchronous event.
    fn fail(&self, event: c_int) {
        let text = format!("RDMA device event: {}", self.id.library.device_text(event));
        let mut state = self.state.borrow_mut();
        state.end.set_pending(Some(Some(io::Error::new(io::ErrorKind::ConnectionAborted, text))));
        while !self.take(&mut state) {}
    }

    /// Takes completions after an event of the device or the connection manager. An error ends the connection.
    fn process(&self, seen: io::Result<()>) {
        let mut state = self.state.borrow_mut();
        state.end.set_pending(seen.err().map(Some));
        self.take(&mut state);
        self.woken.notify(usize::MAX);
    }

    /// Takes events of the connection manager. All except ESTABLISHED end the connection.
    fn process_cm_events(&self, state: &mut State) -> io::Result<()> {
        while let Some(event) = self.id.event()? {
            let end = match event.kind {
                ESTABLISHED => None,
                DISCONNECTED if event.status == 0 => Some(None),
                TIMEWAIT_EXIT => Some(None),
                _ => Some(Some(event.error(self.id.library))),
            };
            state.end.set_pending(end);
        }
        Ok(())
    }

    /// Moves completions into the inbox. Returns true if the completion queue is empty.
    fn take(&self, state: &mut State) -> bool {
        if state.end.is_over() {
            return true;
        }
        let before = state.inbox.list.len();
        let (mut is_drained, mut moved) = (false, false);
        for _ in 0..ROUNDS {
            let n = self.queues.poll(&mut state.completions).unwrap_or_else(|e| {
                state.end.set_pending(Some(Some(e)));
                0
            });
            for n in 0..n {
                self.complete(state, n);
            }
            moved |= n > 0;
            if n < BATCH {
                is_drained = true;
                break;
            }
        }
        if moved && matches!(state.end, EndStage::None) {
            let refilled = state.receives.refill(&self.queues);
            let sent = if state.out.has_more() { self.send(state) } else { Ok(()) };
            state.end.set_pending(refilled.and(sent).err().map(Some));
        }
        if is_drained && let EndStage::Pending(reason) = &mut state.end {
            let reason = reason.take();
            self.begin_teardown(state, reason, false);
        }
        if moved || state.inbox.list.len() > before {
            self.woken.notify(usize::MAX);
        }
        is_drained
    }

    /// Processes one completion.
    fn complete(&self, state: &mut State, n: usize) {
        let wc = state.completions[n];
        let slot = receives::slot(wc.wr_id);
        if wc.status != WC_SUCCESS {
            // Flushed work is a consequence of the end: the reason is in another completion or event.
            let (is_flushed, text) = (wc.status == WC_FLUSH_ERR, || self.id.library.status_text(wc.status));
            let reason = (!is_flushed).then(|| io::Error::new(io::ErrorKind::ConnectionAborted, text()));
            match slot {
                Some(slot) => state.receives.discard(slot),
                None => state.out.failed(wc.wr_id),
            }
            if is_flushed && matches!(state.end, EndStage::None) {
                let seen = self.process_cm_events(state);
                state.end.set_pending(seen.err().map(Some));
            }
            return state.end.set_pending(Some(reason));
        }
        match slot {
            None => state.inbox.list.extend(state.out.completed(wc.wr_id)),
            Some(slot) => {
                let bytes = wc.byte_len as usize;
                let (chunk, len) = match state.receives.take(slot, bytes) {
                    Ok(Some(taken)) => taken,
                    Ok(None) => return,
                    Err(e) => return state.end.set_pending(Some(Some(e))),
                };
                let invalidated = (wc.wc_flags & WC_WITH_INV != 0).then_some(wc.invalidated_rkey);
                state.inbox.message(&chunk.bytes()[..len.min(bytes)], invalidated);
            }
        }
    }

    /// Posts queued work while the device has room.
    fn send(&self, state: &mut State) -> io::Result<()> {
        loop {
            state.out.stage(&self.memory)?;
            let work = state.out.work();
            let all = work.len();
            if all == 0 {
                return Ok(());
            }
            let taken = self.queues.post(work);
            state.out.taken(taken);
            if taken < all {
                return match state.out.is_idle() {
                    true => Err(io::Error::other("the RDMA device accepts no send requests")),
                    false => Ok(()),
                };
            }
        }
    }

    /// Takes completions for a future that waits for `is_there`.
    fn poll_for(&self, is_there: impl Fn(&State) -> bool) -> PollOutcome {
        let mut state = self.state.borrow_mut();
        let is_drained = self.take(&mut state);
        match (is_there(&state), &state.end, is_drained) {
            (true, ..) => PollOutcome::Ready,
            (_, EndStage::Reported, _) => PollOutcome::Over,
            (.., true) => PollOutcome::Nothing,
            (.., false) => PollOutcome::More,
        }
    }

    /// Waits until `is_there` holds, or the connection has ended.
    async fn until(&self, is_there: impl Fn(&State) -> bool) -> io::Result<()> {
        let mut empty_rounds = 0;
        loop {
            // After enough empty polls: arm the queue, poll once more, then sleep. No completion in between is
            // missed.
            let woken = (empty_rounds == EMPTY_ROUNDS).then(|| self.woken.listen());
            if woken.is_some() {
                self.queues.arm()?;
            }
            match (self.poll_for(&is_there), woken) {
                (PollOutcome::Ready, _) => return Ok(()),
                (PollOutcome::Over, _) => return Err(io::ErrorKind::NotConnected.into()),
                (PollOutcome::More, _) => {}
                (PollOutcome::Nothing, None) => empty_rounds += 1,
                (PollOutcome::Nothing, Some(woken)) => {
                    woken.await;
                    empty_rounds = 0;
                }
            }
        }
    }
}

/// The result of a poll for a waiting future.
enum PollOutcome {
    Ready,
    Over,
    Nothing,
    /// Nothing yet, but more completions are available.
    More,
}

impl EndStage {
    /// Whether the connection has ended: nothing more arrives or is sent.
    pub fn is_over(&self) -> bool {
        matches!(self, EndStage::TearingDown(_) | EndStage::Reported)
    }

    /// Records the end, if there is one. The first reason is kept.
    fn set_pending(&mut self, end: Option<Option<io::Error>>) {
        match (&self, end) {
            (EndStage::None, Some(reason)) => *self = EndStage::Pending(reason),
            (EndStage::Pending(None), Some(Some(reason))) => *self = EndStage::Pending(Some(reason)),
            _ => {}
        }
    }
}

/// The arguments of a registration: address, length in bytes, and access flags.
fn place(memory: &mut MemoryRegion) -> Option<(NonNull<u8>, usize, i32)> {
    let (at, len, access) = match memory {
        MemoryRegion::Sink(buf) => (buf.as_mut_ptr(), buf.len(), ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE),
        MemoryRegion::Source(buf) => (buf.as_ptr().cast_mut(), buf.len(), ACCESS_REMOTE_READ),
    };
    Some((NonNull::new(at)?, len, access))
}

impl Endpoint for VerbsEndpoint {
    fn info(&self) -> &EndpointInfo {
        &self.inner.info
    }

    fn receives(&self, count: usize, len: usize) {
        let mut state = self.inner.state.borrow_mut();
        let added = state.receives.add(&self.inner.queues, count, len);
        if let Err(e) = added {
            state.end.set_pending(Some(Some(e)));
            self.inner.woken.notify(usize::MAX);
        }
    }

    fn send(&self, head: &[u8], payload: Payload, invalidate: Option<u32>) {
        self.inner.state.borrow_mut().out.push(Verb::Send(invalidate), head, payload);
    }

    fn write(&self, to: RemoteAddress, payload: Payload) {
        self.inner.state.borrow_mut().out.push(Verb::Write(to), &[], payload);
    }

    fn gather(&self, id: u64, from: &[RemoteRange], buf: Buf, at: usize) {
        let mut state = self.inner.state.borrow_mut();
        if matches!(state.end, EndStage::Reported) {
            return;
        }
        let at_once = state.out.read(id, from, buf, at);
        if at_once.is_some() {
            state.inbox.list.extend(at_once);
            self.inner.woken.notify(usize::MAX);
        }
    }

    fn expose(&self, mut memory: MemoryRegion) -> io::Result<RemoteAddress> {
        let nothing = || io::Error::new(io::ErrorKind::InvalidInput, "the memory to register has 0 bytes");
        let (at, len, access) = place(&mut memory).ok_or_else(nothing)?;
        let region = self.inner.domain.expose(at, len, access)?;
        let stag = region.keys().1;
        self.inner.state.borrow_mut().exposed.insert(stag, ExposedMemory { region, memory: Some(memory) });
        Ok(RemoteAddress { stag, offset: at.as_ptr() as u64 })
    }

    fn revoke(&self, stag: u32) -> Option<MemoryRegion> {
        let mut state = self.inner.state.borrow_mut();
        if !state.exposed.get_mut(&stag)?.region.deregister() {
            return None;
        }
        state.exposed.remove(&stag)?.memory.take()
    }

    fn flush(&self) -> io::Result<bool> {
        let mut state = self.inner.state.borrow_mut();
        if state.end.is_over() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.inner.send(&mut state)?;
        if state.out.is_blocked() {
            // Completions may have freed slots.
            self.inner.take(&mut state);
        }
        Ok(!state.out.is_blocked())
    }

    fn waiting(&self) -> usize {
        self.inner.state.borrow().out.waiting()
    }

    fn take_moved(&self) -> bool {
        self.inner.state.borrow_mut().out.take_moved()
    }

    fn fence(&self) -> u64 {
        self.inner.state.borrow().out.pushed()
    }

    fn fence_done(&self, mark: u64) -> bool {
        let mut state = self.inner.state.borrow_mut();
        self.inner.take(&mut state);
        state.disconnected_at.is_some() || state.out.delivered() >= mark
    }

    fn has_ended(&self) -> bool {
        let mut state = self.inner.state.borrow_mut();
        if matches!(state.end, EndStage::None) && self.inner.cm_recheck.take_due() {
            let seen = self.inner.process_cm_events(&mut state);
            state.end.set_pending(seen.err().map(Some));
        }
        let has_ended = !matches!(state.end, EndStage::None);
        drop(state);
        if has_ended {
            self.inner.woken.notify(usize::MAX);
        }
        has_ended
    }

    fn recheck_peer(&self) {
        self.inner.cm_recheck.next_batch();
    }

    fn poll(&self, into: &mut EndpointEvents) {
        begin_batch();
        self.inner.cm_recheck.next_batch();
        let mut state = self.inner.state.borrow_mut();
        self.inner.take(&mut state);
        append(into, &mut state.inbox);
    }

    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.inner.until(|state| !state.inbox.is_empty()))
    }

    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.inner.until(|state| !state.out.is_blocked() && !state.end.is_over()))
    }

    fn close(&self) {
        self.inner.shut_down(true);
    }

    fn reset(&self) {
        self.inner.shut_down(false);
    }

    /// No call is needed: the kernel destroys the queues when the process exits.
    fn reset_on_close(&self, reset: bool) -> io::Result<()> {
        self.inner.state.borrow_mut().resets = reset;
        Ok(())
    }
}

/// Appends the events of the inbox to a batch.
fn append(into: &mut EndpointEvents, inbox: &mut EndpointEvents) {
    if into.is_empty() {
        into.clear();
        return std::mem::swap(into, inbox);
    }
    let base = into.bytes.len();
    into.bytes.extend_from_slice(&inbox.bytes);
    let moved = |event| match event {
        EndpointEvent::Message(range, stag) => {
            EndpointEvent::Message(range.start + base..range.end + base, stag)
        }
        other => other,
    };
    into.list.extend(inbox.list.drain(..).map(moved));
    inbox.clear();
}
