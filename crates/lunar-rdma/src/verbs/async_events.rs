//! Asynchronous events: a device, or a queue of one of its connections, has failed. One thread for each device waits
//! for them, because they may affect connections on all cores.
#![allow(unsafe_code)]

use super::ffi::*;
use super::library::Library;
use event_listener::Event;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

/// No event.
const NONE: c_int = -1;

/// The connections that an event affects.
#[derive(Clone, Copy)]
enum EventScope {
    /// The connection with this queue: a queue pair, a completion queue, or a shared receive queue.
    Queue(usize),
    /// All connections of the device.
    All,
    /// None: the event is only logged.
    LogOnly,
}

/// The events of one connection.
pub struct AsyncEventSink {
    queues: [usize; 3],
    event: AtomicI32,
    is_last: AtomicBool,
    /// Notified of each event.
    pub wakeup: Event,
}

impl AsyncEventSink {
    /// The event that ends the connection, if there was one.
    pub fn event(&self) -> Option<c_int> {
        Some(self.event.load(SeqCst)).filter(|event| *event != NONE)
    }

    /// Whether the queue pair has failed and takes no more buffers of the shared receive queue.
    pub fn is_last(&self) -> bool {
        self.is_last.load(SeqCst)
    }
}

/// The connections of a device.
#[derive(Default)]
pub struct AsyncEvents(Mutex<Vec<Weak<AsyncEventSink>>>);

impl AsyncEvents {
    fn list(&self) -> MutexGuard<'_, Vec<Weak<AsyncEventSink>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection with these queues.
    pub fn add(&self, queues: [usize; 3]) -> Arc<AsyncEventSink> {
        let (event, is_last) = (AtomicI32::new(NONE), AtomicBool::new(false));
        let sink = Arc::new(AsyncEventSink { queues, event, is_last, wakeup: Event::new() });
        let mut list = self.list();
        list.retain(|one| one.strong_count() > 0);
        list.push(Arc::downgrade(&sink));
        sink
    }

    /// Delivers an event to the connections that it affects. Every event except "last WQE reached" ends them.
    fn deliver(&self, about: EventScope, event: c_int) {
        let is_meant = |one: &Arc<AsyncEventSink>| match about {
            EventScope::Queue(queue) => one.queues.contains(&queue),
            EventScope::All => true,
            EventScope::LogOnly => false,
        };
        for one in self.list().iter().filter_map(Weak::upgrade).filter(is_meant) {
            match event {
                EVENT_QP_LAST_WQE_REACHED => one.is_last.store(true, SeqCst),
                _ => one.event.store(event, SeqCst),
            }
            one.wakeup.notify(usize::MAX);
        }
    }
}

/// The context of a device. It outlives the thread.
struct DeviceContext(NonNull<ibv_context>);

// SAFETY: the library accepts calls for a context from all threads.
unsafe impl Send for DeviceContext {}

/// The thread that waits for events. Dropping this ends the thread, before the context is released.
pub struct EventThread {
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl EventThread {
    /// Starts watching a device. The context must outlive this.
    ///
    /// # Errors
    /// When there are too many threads or descriptors.
    pub fn new(
        library: &'static Library,
        context: NonNull<ibv_context>,
        name: &str,
        async_events: Arc<AsyncEvents>,
    ) -> io::Result<EventThread> {
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        // SAFETY: the context is valid, and so is its descriptor.
        let events = unsafe { BorrowedFd::borrow_raw(context.as_ref().async_fd) }.try_clone_to_owned()?;
        // Another watcher may take the event that woke this one.
        rustix::fs::fcntl_setfl(&events, rustix::fs::fcntl_getfl(&events)? | rustix::fs::OFlags::NONBLOCK)?;
        let (ends, context, name) = (end.try_clone()?, DeviceContext(context), name.to_string());
        let watch = move || {
            let context = context;
            while is_ready(&events, &ends) && take(library, &context, &name, &async_events) {}
        };
        let thread = std::thread::Builder::new().name("rdma events".into()).spawn(watch)?;
        Ok(EventThread { end, thread: Some(thread) })
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        let is_notified = rustix::io::write(&self.end, &1u64.to_ne_bytes()).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| is_notified) {
            _ = thread.join();
        }
    }
}

/// Waits. Returns true if an event may be available, false at the end.
fn is_ready(events: &OwnedFd, end: &OwnedFd) -> bool {
    let mut fds = [events.as_fd(), end.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut fds, None) {
        Ok(_) => fds[1].revents().is_empty(),
        Err(e) => e == rustix::io::Errno::INTR,
    }
}

/// Takes an event if one is available. Returns false when the device is gone.
fn take(library: &Library, context: &DeviceContext, name: &str, async_events: &AsyncEvents) -> bool {
    let mut event = ibv_async_event { element: 0, event_type: NONE };
    // SAFETY: the context is valid, the result has room, and the event is acknowledged once. Queues are destroyed
    // only after the acknowledgement, so the address does not belong to a newer queue.
    unsafe {
        if (library.ibv_get_async_event)(context.0.as_ptr(), &raw mut event) != 0 {
            let e = io::Error::last_os_error().kind();
            return matches!(e, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
        }
        let about = about(&event);
        let text = library.device_text(event.event_type);
        match about {
            _ if event.event_type == EVENT_QP_LAST_WQE_REACHED => {}
            EventScope::LogOnly => tracing::debug!(device = name, event = text, "RDMA device event"),
            _ => tracing::warn!(device = name, event = text, "RDMA device event ends connections"),
        }
        async_events.deliver(about, event.event_type);
        (library.ibv_ack_async_event)(&raw mut event);
    }
    true
}

fn about(event: &ibv_async_event) -> EventScope {
    match event.event_type {
        EVENT_CQ_ERR
        | EVENT_QP_FATAL
        | EVENT_QP_REQ_ERR
        | EVENT_QP_ACCESS_ERR
        | EVENT_SRQ_ERR
        | EVENT_QP_LAST_WQE_REACHED => EventScope::Queue(event.element as usize),
        EVENT_DEVICE_FATAL => EventScope::All,
        // A port may recover before it is needed.
        _ => EventScope::LogOnly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::endpoint_tests::{connection, run, sharing, until};
    use crate::verbs::fake::FakeDevice;
    use crate::{Endpoint, EndpointEvent, EndpointEvents};

    /// Whether an event of the device has ended the connection.
    fn has_failed(end: &dyn Endpoint) -> bool {
        let mut events = EndpointEvents::default();
        end.poll(&mut events);
        matches!(&events.list[..], [EndpointEvent::End(Some(e))] if e.to_string().starts_with("RDMA device event"))
    }

    #[test]
    fn device_failure_ends_the_affected_connections() {
        // The index of a queue of the first connection (2: an unknown queue), the event, and which connections it
        // ends.
        let rows = [
            (0, EVENT_QP_FATAL, (true, false)),
            (0, EVENT_QP_ACCESS_ERR, (true, false)),
            (1, EVENT_CQ_ERR, (true, false)),
            (2, EVENT_DEVICE_FATAL, (true, true)),
            (2, EVENT_PORT_ERR, (false, false)),
        ];
        for (which, event, (first, second)) in rows {
            run(async move {
                let fake = FakeDevice::new();
                let ends = [connection(fake, 4), connection(fake, 4)];
                let queues = fake.first_queues();
                fake.raise_async_event(queues[which], event);
                if first {
                    until(|| fake.state().pairs_gone == usize::from(first) + usize::from(second)).await;
                } else {
                    compio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                assert_eq!((has_failed(&*ends[0]), has_failed(&*ends[1])), (first, second), "{event}");
            });
        }
    }

    #[test]
    fn failed_shared_resource_is_not_reused() {
        run(async {
            let fake = FakeDevice::new();
            let (end, alone) = sharing(fake, 4);
            let shared = fake.state().shared[0];
            fake.raise_async_event(shared, EVENT_SRQ_ERR);
            until(|| fake.state().disconnects == 1).await;
            assert!(has_failed(&*end) && !has_failed(&*alone[0]));
            let later = connection(fake, 4);
            assert_eq!(fake.state().shared.len(), 2);
            assert!(!has_failed(&*later));
        });
    }

    /// A remaining thread would use a destroyed context.
    #[test]
    fn unused_device_has_no_event_thread() {
        run(async {
            let fake = FakeDevice::new();
            drop(connection(fake, 4));
            until(|| fake.held() == (0, 0)).await;
            fake.raise_async_event(1, EVENT_DEVICE_FATAL);
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(fake.has_async_events());
        });
    }
}
