//! Who may run beside whom in one logical unit: SIMPLE commands run together, ORDERED and exclusive ones
//! alone (SAM-5 section 8).
//!
//! A big-reader lock. Each core counts the running commands of its nexuses, so that SIMPLE commands of
//! different cores share no cache line; the count stands beside what else a command needs of its logical unit
//! ([`PerCore`]). Who wants to be alone marks every count as closed and waits until all are zero.
//!
//! A core may be held up while its commands wait here, and must not hold up other cores. A command whose turn it is to
//! be alone can lose the turn to another core until it is alone. A wake-up that a core does not take up is replaced:
//! each command that waits also looks by itself, every [`LOOK`].
//!
//! # Who else relies on it
//!
//! - Only READ and WRITE plans run without a task, and no exclusive row of the command table makes such a plan.
//!   `crates/lunar-scsi/src/rules.rs` checks the table, `crates/lunar-target/src/srp/tests/order.rs` the running code.
//! - A passthrough command enters as HEAD OF QUEUE, whatever its attribute. The other target orders it, and one that hangs
//!   there blocks nobody here.
//! - SANITIZE leaves the lock when it has started, because the logical unit must answer other commands at once.
//! - A WRITE in pieces, and a copy, leave the lock between two steps. That is when COMPARE AND WRITE runs, or an ORDERED
//!   command of another session. An ORDERED copy stays in all of its locks from the first step to the last.
//! - The lock has no order of arrival. HEAD OF QUEUE commands have a queue of their own: they wait only for a command that
//!   is alone, not for those that want to be.
//! - A command that is aborted while it waits gives up its place.
//! - A command that is inside keeps its place although its core stalls, because it may run at any time.

use compio::time::timeout;
use event_listener::{Event, EventListener};
use lunar_scsi::{CoreIndex, Lu, PerCore};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The gate of one logical unit.
pub struct TaskSetLock {
    lu: Arc<Lu>,
    /// The last [`ExclusiveTurn`] and its phase, in one word: one exchange ends the turn of another core.
    turn: AtomicU64,
    opened: Event,
    /// Nobody is alone any more: for those who pass a closed gate.
    vacated: Event,
    drained: Event,
}

/// How often a command that waits looks by itself. A turn ends that was not taken up for as long.
const LOOK: Duration = Duration::from_millis(100);

/// Wakes the next in line. One at a time: a core that wakes many tasks of another core at once has to wait until that
/// core has taken them up, and two cores may not wait for each other. Beside one that was woken and is not awake yet:
/// its core may be held up.
fn wake_next(event: &Event) {
    event.notify_additional(1);
}

/// A command that has waited wakes the next in line.
fn pass_on(event: &Event, waited: bool) {
    if waited {
        wake_next(event);
    }
}

/// One after the other closes the gate to be alone; turns have numbers, so that none is taken for another one.
#[derive(Clone, Copy)]
struct ExclusiveTurn(u64);

/// Bits of the word that hold the phase of the turn.
const PHASE: u64 = 3;
/// The turn is over: the gate is open.
const OVER: u64 = 0;
/// New SIMPLE commands wait; the owner of the turn waits until everybody has left.
const WAITS: u64 = 1;
/// The owner is alone, or looks whether it can be. Nobody else ends the turn.
const OCCUPIED: u64 = 2;

impl ExclusiveTurn {
    /// The one after that of this word.
    fn after(word: u64) -> ExclusiveTurn {
        ExclusiveTurn((word & !PHASE).wrapping_add(PHASE + 1))
    }

    /// The word of this turn in a phase.
    fn at(self, phase: u64) -> u64 {
        self.0 | phase
    }
}

/// The gate is closed: the topmost bit of a count.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A core's place at the gate.
#[derive(Clone)]
pub struct TaskSetHandle {
    lock: Arc<TaskSetLock>,
    shard: CoreIndex,
}

/// How a command steps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockMode {
    /// Beside others, when nobody is or wants to be alone (SIMPLE).
    Shared,
    /// Beside others, ahead of those who want to be alone (HEAD OF QUEUE).
    HeadOfQueue,
    /// Alone (ORDERED, and what its row of the command table calls exclusive).
    Exclusive,
}

/// Being inside, in either way; leaves when dropped.
pub enum TaskSetGuard {
    /// Beside others.
    Shared {
        /// Leaves.
        _guard: SharedGuard,
    },
    /// Alone.
    Exclusive {
        /// Leaves.
        _guard: ExclusiveGuard,
    },
}

/// Steps into several gates, each once, in the way that asks for most. Everybody who needs more than one
/// takes them in the same order, that of their addresses, and waits for none while it is inside a later one:
/// so those who wait for each other never form a ring.
pub async fn lock_all(mut wanted: Vec<(TaskSetHandle, LockMode)>) -> Vec<TaskSetGuard> {
    let place = |member: &TaskSetHandle| Arc::as_ptr(&member.lock) as usize;
    wanted.sort_by_key(|(member, entry)| (place(member), Reverse(*entry)));
    wanted.dedup_by_key(|(member, _)| place(member));
    let mut inside = Vec::with_capacity(wanted.len());
    for (member, entry) in wanted {
        inside.push(member.lock(entry).await);
    }
    inside
}

/// Being inside beside others; leaves when dropped.
pub struct SharedGuard(TaskSetHandle);

/// Being inside alone; leaves when dropped.
pub struct ExclusiveGuard(TaskSetHandle, ExclusiveTurn);

impl TaskSetLock {
    /// The gate of this logical unit, which has no other.
    pub fn new(lu: Arc<Lu>) -> TaskSetLock {
        TaskSetLock {
            lu,
            turn: AtomicU64::new(OVER),
            opened: Event::new(),
            vacated: Event::new(),
            drained: Event::new(),
        }
    }

    /// A core's place.
    pub fn handle(self: &Arc<Self>, shard: CoreIndex) -> TaskSetHandle {
        TaskSetHandle { lock: self.clone(), shard }
    }

    /// Steps in beside others, unless the gate is closed. Every true needs one [`TaskSetLock::unlock_shared`] with the same
    /// part. By the handle: the gate itself need not be read.
    #[inline]
    pub fn try_lock_shared(self: &Arc<Self>, part: &PerCore) -> bool {
        if part.lock_word.fetch_add(1, SeqCst) & CLOSED == 0 {
            return true;
        }
        self.unlock_shared(part);
        false
    }

    /// Steps out again.
    #[inline]
    pub fn unlock_shared(self: &Arc<Self>, part: &PerCore) {
        if part.lock_word.fetch_sub(1, SeqCst) & CLOSED != 0 {
            self.drained.notify(usize::MAX);
        }
    }

    fn is_in(&self, phase: u64) -> bool {
        self.turn.load(SeqCst) & PHASE == phase
    }

    /// Begins the next turn, which is occupied, if the word is still this one.
    fn begin_after(&self, word: u64) -> Option<ExclusiveTurn> {
        let turn = ExclusiveTurn::after(word);
        self.turn.compare_exchange(word, turn.at(OCCUPIED), SeqCst, SeqCst).ok().map(|_| turn)
    }

    /// Closes the gate to be alone, in turn with others who want to.
    async fn close(&self) -> ExclusiveTurn {
        loop {
            let word = self.turn.load(SeqCst);
            if word & PHASE == OVER
                && let Some(turn) = self.begin_after(word)
            {
                return turn;
            }
            let opened = self.opened.listen();
            if !self.is_in(OVER) {
                self.wait(opened).await;
            }
        }
    }

    /// Goes on with a turn that waits. False: another core has ended it.
    fn occupy(&self, turn: ExclusiveTurn) -> bool {
        self.turn.compare_exchange(turn.at(WAITS), turn.at(OCCUPIED), SeqCst, SeqCst).is_ok()
    }

    /// Who looked whether it could be alone, could not: those who saw it looking may go on.
    fn vacate(&self, turn: ExclusiveTurn) {
        self.turn.store(turn.at(WAITS), SeqCst);
        wake_next(&self.vacated);
    }

    /// Waits until everybody has left, in an occupied turn. False: another core has ended it.
    async fn drain(&self, turn: ExclusiveTurn) -> bool {
        loop {
            if self.is_empty() {
                return true;
            }
            self.vacate(turn);
            // Not occupied meanwhile: HEAD OF QUEUE would be stopped by it each time somebody leaves.
            self.until_empty(turn).await;
            if !self.occupy(turn) {
                return false;
            }
        }
    }

    /// Waits until everybody has left, or another core has ended the turn.
    async fn until_empty(&self, turn: ExclusiveTurn) {
        loop {
            let drained = self.drained.listen();
            if self.is_empty() || self.turn.load(SeqCst) != turn.at(WAITS) {
                return;
            }
            drained.await;
        }
    }

    /// Marks every count: nobody enters from here on. The caller occupies the turn.
    fn mark(&self) {
        for part in self.lu.all_cores() {
            part.lock_word.fetch_or(CLOSED, SeqCst);
        }
    }

    /// Ends an occupied turn.
    fn open(&self, turn: ExclusiveTurn) {
        for part in self.lu.all_cores() {
            part.lock_word.fetch_and(!CLOSED, SeqCst);
        }
        self.turn.store(turn.at(OVER), SeqCst);
        wake_next(&self.vacated);
        wake_next(&self.opened);
    }

    /// Waits to be woken, for a while at most. If somebody could have been alone all the time and was not, its core is
    /// held up: its turn ends.
    async fn wait(&self, woken: EventListener) {
        let before = self.could_be_alone();
        let is_woken = timeout(LOOK, woken).await.is_ok();
        if let (false, Some(word)) = (is_woken, before)
            && self.could_be_alone() == before
        {
            self.end_for_another(word);
        }
    }

    /// The word of a turn that waits, and does not have to.
    fn could_be_alone(&self) -> Option<u64> {
        let word = self.turn.load(SeqCst);
        (word & PHASE == WAITS && self.is_empty()).then_some(word)
    }

    /// Ends the turn of a core that is held up: by one of its own, so that both do not open the gate.
    fn end_for_another(&self, word: u64) {
        if let Some(turn) = self.begin_after(word) {
            self.open(turn);
            self.drained.notify(usize::MAX);
        }
    }

    fn is_empty(&self) -> bool {
        self.lu.all_cores().iter().all(|part| part.lock_word.load(SeqCst) & !CLOSED == 0)
    }
}

impl TaskSetHandle {
    fn part(&self) -> &PerCore {
        self.lock.lu.per_core(self.shard)
    }

    /// As [`TaskSetLock::try_lock_shared`].
    pub fn try_lock_shared(&self) -> bool {
        self.lock.try_lock_shared(self.part())
    }

    /// Being inside of one who has stepped in by [`TaskSetLock::try_lock_shared`].
    pub fn into_guard(self) -> SharedGuard {
        SharedGuard(self)
    }

    /// As [`TaskSetLock::unlock_shared`].
    pub fn unlock_shared(&self) {
        self.lock.unlock_shared(self.part());
    }

    /// Steps in beside others as soon as the gate is open.
    pub async fn lock_shared(&self) -> SharedGuard {
        let mut waited = false;
        while !self.try_lock_shared() {
            let opened = self.lock.opened.listen();
            if self.part().lock_word.load(SeqCst) & CLOSED != 0 {
                self.lock.wait(opened).await;
                waited = true;
            }
        }
        pass_on(&self.lock.opened, waited);
        SharedGuard(self.clone())
    }

    /// Steps in as a command of this kind does.
    pub async fn lock(&self, entry: LockMode) -> TaskSetGuard {
        match entry {
            LockMode::Shared => TaskSetGuard::Shared { _guard: self.lock_shared().await },
            LockMode::HeadOfQueue => TaskSetGuard::Shared { _guard: self.lock_head_of_queue().await },
            LockMode::Exclusive => TaskSetGuard::Exclusive { _guard: self.lock_exclusive().await },
        }
    }

    /// Steps in ahead of those who wait to be alone (HEAD OF QUEUE), but not beside one who is.
    pub async fn lock_head_of_queue(&self) -> SharedGuard {
        let mut waited = false;
        loop {
            self.part().lock_word.fetch_add(1, SeqCst);
            if !self.lock.is_in(OCCUPIED) {
                pass_on(&self.lock.vacated, waited);
                return SharedGuard(self.clone());
            }
            self.unlock_shared();
            let vacated = self.lock.vacated.listen();
            if self.lock.is_in(OCCUPIED) {
                self.lock.wait(vacated).await;
                waited = true;
            }
        }
    }

    /// Closes the gate, in turn with others who want to, and waits until everybody has left.
    pub async fn lock_exclusive(&self) -> ExclusiveGuard {
        loop {
            let turn = self.lock.close().await;
            // Made before the wait, so that the gate opens again should this future be dropped.
            let alone = ExclusiveGuard(self.clone(), turn);
            self.lock.mark();
            if self.lock.drain(turn).await {
                return alone;
            }
        }
    }
}

impl Drop for SharedGuard {
    fn drop(&mut self) {
        self.0.unlock_shared();
    }
}

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        let ExclusiveGuard(TaskSetHandle { lock, .. }, turn) = self;
        if lock.turn.load(SeqCst) == turn.at(OCCUPIED) || lock.occupy(*turn) {
            lock.open(*turn);
        }
    }
}

#[cfg(test)]
mod tests;
