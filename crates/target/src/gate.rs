//! Who may run beside whom in one logical unit: SIMPLE commands run together, ORDERED and exclusive ones
//! alone (SAM-5 section 8).
//!
//! A big-reader lock. Each nexus counts its own running commands, so that SIMPLE commands of different cores
//! share no cache line. Who wants to be alone marks every count as closed and waits until all are zero.

use event_listener::Event;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

/// The gate of one logical unit.
#[derive(Default)]
pub struct Gate {
    /// New SIMPLE commands wait: somebody is, or wants to be, alone.
    closed: AtomicBool,
    /// Somebody is alone.
    occupied: AtomicBool,
    opened: Event,
    drained: Event,
    members: Mutex<Vec<Weak<Count>>>,
}

/// Commands of one nexus that are inside, and whether the gate is closed.
#[repr(align(128))]
struct Count(AtomicUsize);

/// The gate is closed: the topmost bit of a count.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A nexus's place at the gate.
#[derive(Clone)]
pub struct Member {
    gate: Arc<Gate>,
    count: Arc<Count>,
}

/// Being inside beside others; leaves when dropped.
pub struct Shared(Member);

/// Being inside alone; leaves when dropped.
pub struct Alone(Member);

impl Gate {
    /// A place for another nexus.
    pub fn join(self: &Arc<Self>) -> Member {
        let mut members = self.members();
        let count = Arc::new(Count(AtomicUsize::new(if self.closed.load(SeqCst) { CLOSED } else { 0 })));
        members.retain(|m| m.strong_count() > 0);
        members.push(Arc::downgrade(&count));
        Member { gate: self.clone(), count }
    }

    fn members(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Count>>> {
        self.members.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Who has waited wakes the next in line. One at a time: a core that wakes many tasks of another core at
    /// once has to wait until that core has taken them up, and two cores may not wait for each other.
    fn pass_on(&self, waited: bool) {
        if waited {
            self.opened.notify(1);
        }
    }

    /// Marks every count: nobody enters from here on. The caller has closed the gate.
    fn mark(&self) {
        for member in self.members().iter().filter_map(Weak::upgrade) {
            member.0.fetch_or(CLOSED, SeqCst);
        }
    }

    fn open(&self) {
        let members = self.members();
        for member in members.iter().filter_map(Weak::upgrade) {
            member.0.fetch_and(!CLOSED, SeqCst);
        }
        // Under the lock, so that who joins sees either all of it or nothing.
        self.occupied.store(false, SeqCst);
        self.closed.store(false, SeqCst);
        drop(members);
        self.opened.notify(1);
    }

    fn is_empty(&self) -> bool {
        self.members().iter().filter_map(Weak::upgrade).all(|m| m.0.load(SeqCst) & !CLOSED == 0)
    }
}

impl Member {
    /// Steps in beside others, unless the gate is closed. Every true needs one [`Member::leave`].
    #[inline]
    pub fn try_enter(&self) -> bool {
        if self.count.0.fetch_add(1, SeqCst) & CLOSED == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Steps out again.
    #[inline]
    pub fn leave(&self) {
        if self.count.0.fetch_sub(1, SeqCst) & CLOSED != 0 {
            self.gate.drained.notify(usize::MAX);
        }
    }

    /// Steps in beside others as soon as the gate is open.
    pub async fn enter(&self) -> Shared {
        let mut waited = false;
        while !self.try_enter() {
            let opened = self.gate.opened.listen();
            if self.count.0.load(SeqCst) & CLOSED != 0 {
                opened.await;
                waited = true;
            }
        }
        self.gate.pass_on(waited);
        Shared(self.clone())
    }

    /// Steps in ahead of those who wait to be alone (HEAD OF QUEUE), but not beside one who is.
    pub async fn enter_ahead(&self) -> Shared {
        let mut waited = false;
        loop {
            self.count.0.fetch_add(1, SeqCst);
            if !self.gate.occupied.load(SeqCst) {
                self.gate.pass_on(waited);
                return Shared(self.clone());
            }
            self.leave();
            let opened = self.gate.opened.listen();
            if self.gate.occupied.load(SeqCst) {
                opened.await;
                waited = true;
            }
        }
    }

    /// Closes the gate, in turn with others who want to, and waits until everybody has left.
    pub async fn enter_alone(&self) -> Alone {
        while self.gate.closed.swap(true, SeqCst) {
            let opened = self.gate.opened.listen();
            if self.gate.closed.load(SeqCst) {
                opened.await;
            }
        }
        // Made before the wait, so that the gate opens again should this future be dropped.
        let alone = Alone(self.clone());
        self.gate.mark();
        loop {
            let drained = self.gate.drained.listen();
            self.gate.occupied.store(true, SeqCst);
            if self.gate.is_empty() {
                return alone;
            }
            self.gate.occupied.store(false, SeqCst);
            drained.await;
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.gate.open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(f: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        f.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn simple_commands_run_together_and_an_exclusive_one_waits_for_them() {
        let gate = Arc::new(Gate::default());
        let (a, b) = (gate.join(), gate.join());
        assert!(a.try_enter() && b.try_enter());
        let mut alone = pin!(a.enter_alone());
        assert!(poll(alone.as_mut()).is_pending());
        assert!(!b.try_enter(), "the gate is closed to new ones");
        assert!(poll(pin!(b.enter_ahead())).is_ready(), "but not to HEAD OF QUEUE");
        a.leave();
        assert!(poll(alone.as_mut()).is_pending());
        b.leave();
        let Poll::Ready(held) = poll(alone.as_mut()) else { panic!("everybody has left") };
        let mut waiting = pin!(b.enter());
        assert!(poll(waiting.as_mut()).is_pending());
        let mut next = pin!(a.enter());
        assert!(poll(next.as_mut()).is_pending());
        drop(held);
        assert!(poll(waiting.as_mut()).is_ready());
        assert!(poll(next.as_mut()).is_ready(), "the first in line wakes the second");
    }

    #[test]
    fn a_dropped_wait_opens_the_gate_again() {
        let gate = Arc::new(Gate::default());
        let (a, b) = (gate.join(), gate.join());
        assert!(a.try_enter());
        {
            let mut alone = pin!(b.enter_alone());
            assert!(poll(alone.as_mut()).is_pending());
        }
        assert!(a.try_enter());
    }

    #[test]
    fn a_nexus_that_is_gone_holds_nobody_up() {
        let gate = Arc::new(Gate::default());
        let a = gate.join();
        {
            let b = gate.join();
            assert!(b.try_enter());
        }
        assert!(poll(pin!(a.enter_alone())).is_ready());
    }
}
