//! Who may run beside whom in one logical unit: SIMPLE commands run together, ORDERED and exclusive ones
//! alone (SAM-5 section 8).
//!
//! A big-reader lock. Each core counts the running commands of its nexuses, so that SIMPLE commands of
//! different cores share no cache line; the count stands beside what else a command needs of its logical unit
//! ([`Part`]). Who wants to be alone marks every count as closed and waits until all are zero.

use event_listener::Event;
use lunar_scsi::{Lu, Part, Shard};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The gate of one logical unit.
pub struct Gate {
    lu: Arc<Lu>,
    /// New SIMPLE commands wait: somebody is, or wants to be, alone.
    closed: AtomicBool,
    /// Somebody is alone, or looks whether it can be.
    occupied: AtomicBool,
    opened: Event,
    /// Nobody is alone any more: for those who pass a closed gate.
    vacated: Event,
    drained: Event,
}

/// Who has waited wakes the next in line. One at a time: a core that wakes many tasks of another core at once
/// has to wait until that core has taken them up, and two cores may not wait for each other.
fn pass_on(event: &Event, waited: bool) {
    if waited {
        event.notify(1);
    }
}

/// The gate is closed: the topmost bit of a count.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A core's place at the gate.
#[derive(Clone)]
pub struct Member {
    gate: Arc<Gate>,
    shard: Shard,
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
    /// The gate of this logical unit, which has no other.
    pub fn new(lu: Arc<Lu>) -> Gate {
        Gate {
            lu,
            closed: AtomicBool::default(),
            occupied: AtomicBool::default(),
            opened: Event::new(),
            vacated: Event::new(),
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

    /// Who looked whether it could be alone, could not: those who saw it looking may go on.
    fn vacate(&self) {
        self.occupied.store(false, SeqCst);
        self.vacated.notify(1);
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
        self.vacated.notify(1);
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

    /// As [`Gate::try_enter`].
    pub fn try_enter(&self) -> bool {
        self.gate.try_enter(self.part())
    }

    /// Being inside of one who has stepped in by [`Gate::try_enter`].
    pub fn entered(self) -> Shared {
        Shared(self)
    }

    /// As [`Gate::leave`].
    pub fn leave(&self) {
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
            self.part().gate.fetch_add(1, SeqCst);
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
    use std::sync::atomic::AtomicUsize;
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

    /// Who passes a closed gate waits for one who is alone, not for the next who only wants to be.
    #[test]
    fn head_of_queue_does_not_wait_for_who_waits() {
        let (gate, a, b) = gate();
        let [c, d] = [a.shard, b.shard].map(|shard| gate.member(shard));
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
        let [(_, a0, b0), (_, a1, b1)] = [(); 2].map(|()| gate());
        let (a, b, held) = ([a0.clone(), a1.clone()], [b0, b1], [a0, a1]);
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

    /// One wants to be alone, and looks again whenever somebody leaves; another stays inside all the time.
    #[test]
    fn head_of_queue_is_not_stopped_by_a_look() {
        let (gate, alone, stays) = gate();
        assert!(stays.try_enter());
        let exclusive = std::thread::spawn(move || wait(async move { drop(alone.enter_alone().await) }));
        while stays.try_enter() {
            stays.leave();
            std::thread::yield_now();
        }
        all_end(0..2, {
            let gate = gate.clone();
            move |_| {
                let member = gate.member(Shard::mine());
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
        let ((gate, ..), inside) = (gate(), AtomicUsize::new(0));
        all_end(0..4, move |number| {
            let member = gate.member(Shard::mine());
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
