//! Who may run beside whom in one logical unit: SIMPLE commands run together, ORDERED and exclusive ones
//! alone (SAM-5 section 8).
//!
//! A big-reader lock. Each nexus counts its own running commands, so that SIMPLE commands of different cores
//! share no cache line. Who wants to be alone marks every count as closed and waits until all are zero.

use event_listener::Event;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

/// The gate of one logical unit.
#[derive(Default)]
pub struct Gate {
    /// New SIMPLE commands wait: somebody is, or wants to be, alone.
    closed: AtomicBool,
    /// Somebody is alone, or looks whether it can be.
    occupied: AtomicBool,
    opened: Event,
    /// Nobody is alone any more: for those who pass a closed gate.
    vacated: Event,
    drained: Event,
    members: Mutex<Vec<Weak<Count>>>,
}

/// Commands of one nexus that are inside, and whether the gate is closed.
#[repr(align(128))]
struct Count(AtomicUsize);

/// Who has waited wakes the next in line. One at a time: a core that wakes many tasks of another core at once
/// has to wait until that core has taken them up, and two cores may not wait for each other.
fn pass_on(event: &Event, waited: bool) {
    if waited {
        event.notify(1);
    }
}

/// The gate is closed: the topmost bit of a count.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A nexus's place at the gate.
#[derive(Clone)]
pub struct Member {
    gate: Arc<Gate>,
    count: Arc<Count>,
}

/// How a command steps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// Beside others, when nobody is or wants to be alone (SIMPLE).
    Beside,
    /// Beside others, ahead of those who want to be alone (HEAD OF QUEUE).
    Ahead,
    /// Alone (ORDERED, and what its row of the command table calls exclusive).
    Alone,
}

/// Being inside, in either way; leaves when dropped.
pub enum Inside {
    /// Beside others.
    Beside {
        /// Leaves.
        _guard: Shared,
    },
    /// Alone.
    Alone {
        /// Leaves.
        _guard: Alone,
    },
}

/// Steps into several gates, each once, in the way that asks for most. Everybody who needs more than one
/// takes them in the same order, that of their addresses, and waits for none while it is inside a later one:
/// so those who wait for each other never form a ring.
pub async fn enter_all(mut wanted: Vec<(Member, Entry)>) -> Vec<Inside> {
    let place = |member: &Member| Arc::as_ptr(&member.gate) as usize;
    wanted.sort_by_key(|(member, entry)| (place(member), Reverse(*entry)));
    wanted.dedup_by_key(|(member, _)| place(member));
    let mut inside = Vec::with_capacity(wanted.len());
    for (member, entry) in wanted {
        inside.push(member.step_in(entry).await);
    }
    inside
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

    /// Who looked whether it could be alone, could not: those who saw it looking may go on.
    fn vacate(&self) {
        self.occupied.store(false, SeqCst);
        self.vacated.notify(1);
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
        self.vacated.notify(1);
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
        pass_on(&self.gate.opened, waited);
        Shared(self.clone())
    }

    /// Steps in as a command of this kind does.
    pub async fn step_in(&self, entry: Entry) -> Inside {
        match entry {
            Entry::Beside => Inside::Beside { _guard: self.enter().await },
            Entry::Ahead => Inside::Beside { _guard: self.enter_ahead().await },
            Entry::Alone => Inside::Alone { _guard: self.enter_alone().await },
        }
    }

    /// Steps in ahead of those who wait to be alone (HEAD OF QUEUE), but not beside one who is.
    pub async fn enter_ahead(&self) -> Shared {
        let mut waited = false;
        loop {
            self.count.0.fetch_add(1, SeqCst);
            if !self.gate.occupied.load(SeqCst) {
                pass_on(&self.gate.vacated, waited);
                return Shared(self.clone());
            }
            self.leave();
            let vacated = self.gate.vacated.listen();
            if self.gate.occupied.load(SeqCst) {
                vacated.await;
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
            // First without a mark: HEAD OF QUEUE would be stopped by it each time somebody leaves.
            if self.gate.is_empty() {
                self.gate.occupied.store(true, SeqCst);
                if self.gate.is_empty() {
                    return alone;
                }
                self.gate.vacate();
            }
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

    /// Who passes a closed gate waits for one who is alone, not for the next who only wants to be.
    #[test]
    fn head_of_queue_does_not_wait_for_who_waits() {
        let gate = Arc::new(Gate::default());
        let [a, b, c, d] = [(); 4].map(|()| gate.join());
        let Poll::Ready(held) = poll(pin!(a.enter_alone())) else { panic!("nobody is there") };
        let mut next = pin!(b.enter_alone());
        assert!(poll(next.as_mut()).is_pending());
        let [mut ahead, mut another] = [Box::pin(c.enter_ahead()), Box::pin(c.enter_ahead())];
        assert!(poll(ahead.as_mut()).is_pending() && poll(another.as_mut()).is_pending());
        drop(held);
        assert!(d.try_enter());
        assert!(poll(next.as_mut()).is_pending(), "it waits for the one that slipped in");
        assert!(poll(ahead.as_mut()).is_ready());
        assert!(poll(another.as_mut()).is_ready(), "the first in line wakes the second");
    }

    /// Two that want to be alone in one gate and beside others in the other, and come to their first gates at
    /// the same time.
    #[test]
    fn several_gates_are_taken_in_one_order() {
        let gates = [(); 2].map(|()| Arc::new(Gate::default()));
        let [a, b, held] = [(); 3].map(|()| gates.each_ref().map(|g| g.join()));
        let [first, second] = held.each_ref().map(|m| match poll(pin!(m.enter_alone())) {
            Poll::Ready(alone) => alone,
            Poll::Pending => panic!("nobody is there"),
        });
        let wanted = [
            vec![(a[0].clone(), Entry::Alone), (a[1].clone(), Entry::Beside)],
            vec![(b[1].clone(), Entry::Alone), (b[0].clone(), Entry::Beside), (b[1].clone(), Entry::Beside)],
        ];
        let [mut there, mut back] = wanted.map(|wanted| Box::pin(enter_all(wanted)));
        assert!(poll(there.as_mut()).is_pending() && poll(back.as_mut()).is_pending());
        drop(first);
        assert!(poll(there.as_mut()).is_pending() && poll(back.as_mut()).is_pending());
        drop(second);
        let (one, other) = match (poll(back.as_mut()), poll(there.as_mut())) {
            (Poll::Ready(inside), Poll::Pending) => (inside, there),
            (Poll::Pending, Poll::Ready(inside)) => (inside, back),
            (Poll::Pending, Poll::Pending) => panic!("they wait for each other"),
            _ => panic!("each of them wants to be alone"),
        };
        assert_eq!(one.len(), 2, "each gate once");
        drop(one);
        let mut other = other;
        assert!(poll(other.as_mut()).is_ready());
    }

    const ROUNDS: usize = 3_000;

    /// Runs a work on as many threads as it has numbers, all at the same time; each of them ends.
    fn all_end(numbers: std::ops::Range<usize>, work: impl Fn(usize) + Send + Sync + 'static) {
        let (work, begin) = (Arc::new(work), Arc::new(std::sync::Barrier::new(numbers.len())));
        let (done, ended) = flume::unbounded();
        for number in numbers.clone() {
            let (work, begin, done) = (work.clone(), begin.clone(), done.clone());
            std::thread::spawn(move || {
                begin.wait();
                work(number);
                let _ = done.send(());
            });
        }
        for _ in numbers {
            ended.recv_timeout(std::time::Duration::from_secs(60)).expect("somebody sleeps for ever");
        }
    }

    fn wait<T>(work: impl Future<Output = T>) -> T {
        compio::runtime::Runtime::new().expect("a runtime").block_on(work)
    }

    /// One wants to be alone, and looks again whenever somebody leaves; another stays inside all the time, and
    /// is found last of many.
    #[test]
    fn head_of_queue_is_not_stopped_by_a_look() {
        let gate = Arc::new(Gate::default());
        let _idle: Vec<_> = (0..2000).map(|_| gate.join()).collect();
        let (stays, alone) = (gate.join(), gate.join());
        assert!(stays.try_enter());
        let exclusive = std::thread::spawn(move || wait(async move { drop(alone.enter_alone().await) }));
        while stays.try_enter() {
            stays.leave();
            std::thread::yield_now();
        }
        all_end(0..2, {
            let gate = gate.clone();
            move |_| {
                let member = gate.join();
                wait(async {
                    for _ in 0..ROUNDS {
                        drop(member.enter_ahead().await);
                        std::thread::yield_now();
                    }
                });
            }
        });
        stays.leave();
        exclusive.join().expect("it was alone at last");
    }

    /// Whoever is alone is alone, and everybody gets in, in whatever way.
    #[test]
    fn nobody_is_left_behind() {
        let (gate, inside) = (Arc::new(Gate::default()), AtomicUsize::new(0));
        all_end(0..4, move |number| {
            let member = gate.join();
            wait(async {
                for round in number..number + ROUNDS {
                    let entry = [Entry::Beside, Entry::Ahead, Entry::Alone][round % 3];
                    let held = member.step_in(entry).await;
                    let others = inside.fetch_add(1, SeqCst);
                    assert!(entry != Entry::Alone || others == 0);
                    std::thread::yield_now();
                    assert!(entry != Entry::Alone || inside.load(SeqCst) == 1);
                    inside.fetch_sub(1, SeqCst);
                    drop(held);
                }
            });
        });
    }
}
