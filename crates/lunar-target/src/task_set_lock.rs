//! The task set lock of a logical unit: SIMPLE commands run concurrently, ORDERED and exclusive commands run alone
//! (SAM-5 section 8).
//!
//! It is a big-reader lock. Each core counts the running commands of its nexuses, so that SIMPLE commands of
//! different cores share no cache line. The count is in the same cache line as the other per-core data of the logical
//! unit ([`PerCore`]). An exclusive command marks every count as closed, and waits until all counts are zero.
//!
//! A core may be stalled while its commands wait here, and must not stall other cores. A command that has the turn to
//! run alone loses it to another core if it does not use it. If a stalled core does not use a wake-up, another
//! wake-up follows: each waiting command also checks by itself, every [`CHECK_INTERVAL`].
//!
//! # Users of this lock
//!
//! - Only READ and WRITE plans run without a task, and no exclusive row of the command table makes such a plan.
//!   `crates/lunar-scsi/src/rules.rs` checks the table, `crates/lunar-target/src/srp/tests/task_order.rs` the running code.
//! - A passthrough command enters as HEAD OF QUEUE, whatever its attribute, because the upstream target orders it. A
//!   command that hangs there blocks no command here.
//! - SANITIZE releases the lock when it has started, because the logical unit must respond to other commands at once.
//! - A chunked WRITE and a copy release the lock between two steps. COMPARE AND WRITE, or an ORDERED command of
//!   another session, can run then. An ORDERED copy holds all of its locks from the first step to the last.
//! - The lock is not fair. HEAD OF QUEUE commands bypass waiting exclusive commands: they wait only for a command
//!   that runs alone.
//! - A command that is aborted while it waits leaves the queue.
//! - A running command keeps the lock although its core is stalled, because it may continue at any time.

use compio::time::timeout;
use event_listener::{Event, EventListener};
use lunar_scsi::{CoreIndex, Lu, PerCore};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The task set lock of one logical unit.
pub struct TaskSetLock {
    lu: Arc<Lu>,
    /// The latest [`ExclusiveTicket`] and its phase in one word, so that a single exchange ends the turn of another
    /// core.
    ticket: AtomicU64,
    opened: Event,
    /// Notified when no command runs alone anymore. HEAD OF QUEUE commands wait for it.
    vacated: Event,
    drained: Event,
}

/// Interval at which a waiting command checks by itself. A turn that is not used within it ends.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Wakes the next waiting command, one at a time: a core that wakes many tasks of another core must wait until that
/// core has accepted them, and two cores must not wait for each other. It also wakes one if an earlier one was woken
/// and has not run yet, because that core may be stalled.
fn wake_next(event: &Event) {
    event.notify_additional(1);
}

/// Wakes the next command, if this command had to wait.
fn pass_on(event: &Event, waited: bool) {
    if waited {
        wake_next(event);
    }
}

/// Exclusive commands take turns to close the lock. Turns are numbered, so that they cannot be confused.
#[derive(Clone, Copy)]
struct ExclusiveTicket(u64);

/// Bits of the word that hold the phase of the turn.
const PHASE: u64 = 3;
/// The turn is over: the lock is open.
const OVER: u64 = 0;
/// New SIMPLE commands wait. The owner of the turn waits until all running commands have ended.
const WAITS: u64 = 1;
/// The owner runs alone, or checks whether it can. No other core may end the turn.
const OCCUPIED: u64 = 2;

impl ExclusiveTicket {
    /// The turn after the one in this word.
    fn after(word: u64) -> ExclusiveTicket {
        ExclusiveTicket((word & !PHASE).wrapping_add(PHASE + 1))
    }

    /// The word of this turn in a phase.
    fn at(self, phase: u64) -> u64 {
        self.0 | phase
    }
}

/// The lock is closed: the highest bit of a count.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The lock, as used by one core.
#[derive(Clone)]
pub struct TaskSetHandle {
    lock: Arc<TaskSetLock>,
    shard: CoreIndex,
}

/// The mode in which a command takes the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockMode {
    /// With other shared holders, unless a command runs or waits exclusively (SIMPLE).
    Shared,
    /// With other shared holders, and before commands that wait exclusively (HEAD OF QUEUE).
    HeadOfQueue,
    /// Without other holders (ORDERED, and commands that the command table marks as exclusive).
    Exclusive,
}

/// Holds the lock in either mode, until dropped.
pub enum TaskSetGuard {
    /// Held with others.
    Shared {
        /// Releases the lock when dropped.
        _guard: SharedGuard,
    },
    /// Held alone.
    Exclusive {
        /// Releases the lock when dropped.
        _guard: ExclusiveGuard,
    },
}

/// Takes several locks, each once, in the strongest requested mode. All callers that need more than one lock take
/// them in address order, and wait for no lock while they hold a later one. This prevents deadlocks.
pub async fn lock_all(mut wanted: Vec<(TaskSetHandle, LockMode)>) -> Vec<TaskSetGuard> {
    let place = |member: &TaskSetHandle| Arc::as_ptr(&member.lock) as usize;
    wanted.sort_by_key(|(member, mode)| (place(member), Reverse(*mode)));
    wanted.dedup_by_key(|(member, _)| place(member));
    let mut inside = Vec::with_capacity(wanted.len());
    for (member, mode) in wanted {
        inside.push(member.lock(mode).await);
    }
    inside
}

/// Holds the lock with others, until dropped.
pub struct SharedGuard(TaskSetHandle);

/// Holds the lock alone, until dropped.
pub struct ExclusiveGuard(TaskSetHandle, ExclusiveTicket);

impl TaskSetLock {
    /// The lock of this logical unit, which must have no other.
    pub fn new(lu: Arc<Lu>) -> TaskSetLock {
        TaskSetLock {
            lu,
            ticket: AtomicU64::new(OVER),
            opened: Event::new(),
            vacated: Event::new(),
            drained: Event::new(),
        }
    }

    /// The lock, as used by this core.
    pub fn handle(self: &Arc<Self>, shard: CoreIndex) -> TaskSetHandle {
        TaskSetHandle { lock: self.clone(), shard }
    }

    /// Takes the lock in shared mode, unless it is closed. Each success requires one [`TaskSetLock::unlock_shared`]
    /// with the same `part`. The fast path does not read the lock itself, only `part`.
    #[inline]
    pub fn try_lock_shared(self: &Arc<Self>, part: &PerCore) -> bool {
        if part.lock_word.fetch_add(1, SeqCst) & CLOSED == 0 {
            return true;
        }
        self.unlock_shared(part);
        false
    }

    /// Releases the lock.
    #[inline]
    pub fn unlock_shared(self: &Arc<Self>, part: &PerCore) {
        if part.lock_word.fetch_sub(1, SeqCst) & CLOSED != 0 {
            self.drained.notify(usize::MAX);
        }
    }

    fn is_in(&self, phase: u64) -> bool {
        self.ticket.load(SeqCst) & PHASE == phase
    }

    /// Begins the next turn, as occupied, if the word has not changed.
    fn begin_after(&self, word: u64) -> Option<ExclusiveTicket> {
        let ticket = ExclusiveTicket::after(word);
        self.ticket.compare_exchange(word, ticket.at(OCCUPIED), SeqCst, SeqCst).ok().map(|_| ticket)
    }

    /// Closes the lock, taking turns with other exclusive commands.
    async fn close(&self) -> ExclusiveTicket {
        loop {
            let word = self.ticket.load(SeqCst);
            if word & PHASE == OVER
                && let Some(ticket) = self.begin_after(word)
            {
                return ticket;
            }
            let opened = self.opened.listen();
            if !self.is_in(OVER) {
                self.wait(opened).await;
            }
        }
    }

    /// Occupies a waiting turn. False: another core has ended it.
    fn occupy(&self, ticket: ExclusiveTicket) -> bool {
        self.ticket.compare_exchange(ticket.at(WAITS), ticket.at(OCCUPIED), SeqCst, SeqCst).is_ok()
    }

    /// Returns a turn to waiting after the owner found that it could not run alone. Commands that saw the check may
    /// continue.
    fn vacate(&self, ticket: ExclusiveTicket) {
        self.ticket.store(ticket.at(WAITS), SeqCst);
        wake_next(&self.vacated);
    }

    /// Waits in an occupied turn until all running commands have ended. False: another core has ended the turn.
    async fn drain(&self, ticket: ExclusiveTicket) -> bool {
        loop {
            if self.is_empty() {
                return true;
            }
            self.vacate(ticket);
            // Not occupied during the wait, because HEAD OF QUEUE commands would then wait too.
            self.until_empty(ticket).await;
            if !self.occupy(ticket) {
                return false;
            }
        }
    }

    /// Waits until all running commands have ended, or another core has ended the turn.
    async fn until_empty(&self, ticket: ExclusiveTicket) {
        loop {
            let drained = self.drained.listen();
            if self.is_empty() || self.ticket.load(SeqCst) != ticket.at(WAITS) {
                return;
            }
            drained.await;
        }
    }

    /// Marks every count as closed: no command enters from now on. The caller occupies the turn.
    fn mark(&self) {
        for part in self.lu.all_cores() {
            part.lock_word.fetch_or(CLOSED, SeqCst);
        }
    }

    /// Ends an occupied turn.
    fn open(&self, ticket: ExclusiveTicket) {
        for part in self.lu.all_cores() {
            part.lock_word.fetch_and(!CLOSED, SeqCst);
        }
        self.ticket.store(ticket.at(OVER), SeqCst);
        wake_next(&self.vacated);
        wake_next(&self.opened);
    }

    /// Waits for a notification, for a limited time. If a command could have run alone during all of that time and
    /// did not, its core is stalled, and this ends its turn.
    async fn wait(&self, woken: EventListener) {
        let before = self.could_be_alone();
        let is_woken = timeout(CHECK_INTERVAL, woken).await.is_ok();
        if let (false, Some(word)) = (is_woken, before)
            && self.could_be_alone() == before
        {
            self.end_for_another(word);
        }
    }

    /// The word of a waiting turn whose owner could run alone.
    fn could_be_alone(&self) -> Option<u64> {
        let word = self.ticket.load(SeqCst);
        (word & PHASE == WAITS && self.is_empty()).then_some(word)
    }

    /// Ends the turn of a stalled core by taking a turn, so that only one of the two opens the lock.
    fn end_for_another(&self, word: u64) {
        if let Some(ticket) = self.begin_after(word) {
            self.open(ticket);
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

    /// See [`TaskSetLock::try_lock_shared`].
    pub fn try_lock_shared(&self) -> bool {
        self.lock.try_lock_shared(self.part())
    }

    /// The guard of a lock that the caller has taken with [`TaskSetLock::try_lock_shared`].
    pub fn into_guard(self) -> SharedGuard {
        SharedGuard(self)
    }

    /// See [`TaskSetLock::unlock_shared`].
    pub fn unlock_shared(&self) {
        self.lock.unlock_shared(self.part());
    }

    /// Takes the lock in shared mode as soon as it is open.
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

    /// Takes the lock in this mode.
    pub async fn lock(&self, mode: LockMode) -> TaskSetGuard {
        match mode {
            LockMode::Shared => TaskSetGuard::Shared { _guard: self.lock_shared().await },
            LockMode::HeadOfQueue => TaskSetGuard::Shared { _guard: self.lock_head_of_queue().await },
            LockMode::Exclusive => TaskSetGuard::Exclusive { _guard: self.lock_exclusive().await },
        }
    }

    /// Takes the lock before commands that wait for exclusive mode (HEAD OF QUEUE), but not while one runs alone.
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

    /// Closes the lock, taking turns with other exclusive commands, and waits until all running commands have ended.
    pub async fn lock_exclusive(&self) -> ExclusiveGuard {
        loop {
            let ticket = self.lock.close().await;
            // Created before the wait, so that dropping this future opens the lock again.
            let alone = ExclusiveGuard(self.clone(), ticket);
            self.lock.mark();
            if self.lock.drain(ticket).await {
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
        let ExclusiveGuard(TaskSetHandle { lock, .. }, ticket) = self;
        if lock.ticket.load(SeqCst) == ticket.at(OCCUPIED) || lock.occupy(*ticket) {
            lock.open(*ticket);
        }
    }
}

#[cfg(test)]
mod tests;
