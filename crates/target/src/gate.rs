//! Who may run beside whom in one logical unit: SIMPLE commands run together, ORDERED and exclusive ones
//! alone (SAM-5 section 8).
//!
//! A big-reader lock. Each core counts the running commands of its nexuses, so that SIMPLE commands of
//! different cores share no cache line; the count stands beside what else a command needs of its logical unit
//! ([`Part`]). Who wants to be alone marks every count as closed and waits until all are zero.

use device::{Lu, Part, Shard};
use event_listener::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The gate of one logical unit.
pub struct Gate {
    lu: Arc<Lu>,
    /// New SIMPLE commands wait: somebody is, or wants to be, alone.
    closed: AtomicBool,
    /// Somebody is alone.
    occupied: AtomicBool,
    opened: Event,
    drained: Event,
}

/// The gate is closed: the topmost bit of a count.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A core's place at the gate.
#[derive(Clone)]
pub struct Member {
    gate: Arc<Gate>,
    shard: Shard,
}

/// Being inside beside others; leaves when dropped.
pub struct Shared(Member);

/// Being inside alone; leaves when dropped.
pub struct Alone(Member);

impl Gate {
    /// The gate of this logical unit, which has no other.
    pub fn new(lu: Arc<Lu>) -> Gate {
        Gate {
            lu,
            closed: AtomicBool::default(),
            occupied: AtomicBool::default(),
            opened: Event::new(),
            drained: Event::new(),
        }
    }

    /// A core's place.
    pub fn member(self: &Arc<Self>, shard: Shard) -> Member {
        Member { gate: self.clone(), shard }
    }

    /// Steps in beside others, unless the gate is closed. Every true needs one [`Gate::leave`] with the same
    /// part. By the handle: the gate itself need not be read.
    #[inline]
    pub fn try_enter(self: &Arc<Self>, part: &Part) -> bool {
        if part.gate.fetch_add(1, SeqCst) & CLOSED == 0 {
            return true;
        }
        self.leave(part);
        false
    }

    /// Steps out again.
    #[inline]
    pub fn leave(self: &Arc<Self>, part: &Part) {
        if part.gate.fetch_sub(1, SeqCst) & CLOSED != 0 {
            self.drained.notify(usize::MAX);
        }
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
        for part in self.lu.all_parts() {
            part.gate.fetch_or(CLOSED, SeqCst);
        }
    }

    fn open(&self) {
        for part in self.lu.all_parts() {
            part.gate.fetch_and(!CLOSED, SeqCst);
        }
        self.occupied.store(false, SeqCst);
        self.closed.store(false, SeqCst);
        self.opened.notify(1);
    }

    fn is_empty(&self) -> bool {
        self.lu.all_parts().iter().all(|part| part.gate.load(SeqCst) & !CLOSED == 0)
    }
}

impl Member {
    fn part(&self) -> &Part {
        self.gate.lu.part(self.shard)
    }

    fn try_enter(&self) -> bool {
        self.gate.try_enter(self.part())
    }

    fn leave(&self) {
        self.gate.leave(self.part());
    }

    /// Steps in beside others as soon as the gate is open.
    pub async fn enter(&self) -> Shared {
        let mut waited = false;
        while !self.try_enter() {
            let opened = self.gate.opened.listen();
            if self.part().gate.load(SeqCst) & CLOSED != 0 {
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
            self.part().gate.fetch_add(1, SeqCst);
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

    /// A gate, and the places of two cores.
    fn gate() -> (Arc<Gate>, Member, Member) {
        let gate = Arc::new(Gate::new(crate::exec::tests::lu(true)));
        let other = std::thread::spawn(Shard::mine).join().expect("a shard");
        let (a, b) = (gate.member(Shard::mine()), gate.member(other));
        (gate, a, b)
    }

    #[test]
    fn simple_commands_run_together_and_an_exclusive_one_waits_for_them() {
        let (_, a, b) = gate();
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
        let (_, a, b) = gate();
        assert!(a.try_enter());
        {
            let mut alone = pin!(b.enter_alone());
            assert!(poll(alone.as_mut()).is_pending());
        }
        assert!(a.try_enter());
    }

    #[test]
    fn all_who_are_inside_on_one_core_are_waited_for() {
        let (gate, a, b) = gate();
        let beside = gate.member(b.shard);
        assert!(b.try_enter() && beside.try_enter());
        let mut alone = pin!(a.enter_alone());
        assert!(poll(alone.as_mut()).is_pending());
        b.leave();
        assert!(poll(alone.as_mut()).is_pending());
        beside.leave();
        assert!(poll(alone.as_mut()).is_ready());
    }
}
