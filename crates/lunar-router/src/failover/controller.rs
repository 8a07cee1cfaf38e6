//! The control loop of a failover pair: it probes the storage, makes a decision, and executes it.

use super::machine::{Decision, Holder};
use super::owner::ReservationOwner;
use super::{FailoverRequest, Pair, PairEnd, Role};
use compio::runtime::spawn;
use event_listener::Event;
use lunar_initiator::{Error, ErrorCode};
use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The interval of probes.
const PAUSE: Duration = Duration::from_millis(250);
/// The interval of heartbeats at the storage.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Runs while the pair exists. Starts after the end of the pair `before`, which must not release reservations that
/// this pair has taken. Dropping `_over` signals the end.
pub async fn run(pair: Weak<Pair>, before: Option<PairEnd>, _over: flume::Sender<Infallible>) {
    if let Some(before) = before {
        // Carries no messages: this returns when the sender is dropped.
        _ = before.recv_async().await;
    }
    let mut controller = Controller { owners: Vec::new(), heartbeat_at: Instant::now() };
    loop {
        let rings = {
            let Some(pair) = pair.upgrade() else { break };
            let rings = pair.listen();
            controller.step(&pair).await;
            rings
        };
        // Probe after either.
        _ = compio::time::timeout(PAUSE, rings).await;
    }
    leave(controller.owners).await;
}

/// Releases all reservations concurrently.
async fn leave(owners: Vec<ReservationOwner>) {
    let tasks: Vec<_> = owners.into_iter().map(|owner| spawn(owner.leave())).collect();
    for task in tasks {
        // A panicked task has shut its gate.
        _ = task.await;
    }
}

struct Controller {
    owners: Vec<ReservationOwner>,
    /// The time of the last heartbeat at the storage.
    heartbeat_at: Instant,
}

/// The owners whose job is running.
struct RunningOwners {
    left: Cell<usize>,
    /// Notified when a job has ended.
    ended: Event,
}

/// Counts a job as ended when dropped, even by a panic.
struct OwnerGuard(Rc<RunningOwners>);

impl Drop for OwnerGuard {
    fn drop(&mut self) {
        self.0.left.set(self.0.left.get() - 1);
        self.0.ended.notify(usize::MAX);
    }
}

impl Controller {
    /// Runs a job for all owners concurrently.
    async fn each(&mut self, what: impl AsyncFn(&mut ReservationOwner) + Clone + 'static) {
        let begin = |mut owner: ReservationOwner| {
            let what = what.clone();
            spawn(async move {
                what(&mut owner).await;
                owner
            })
        };
        let tasks: Vec<_> = self.owners.drain(..).map(begin).collect();
        for task in tasks {
            // The owner of a panicked task is removed, and its gate is shut.
            self.owners.extend(task.await.ok());
        }
    }

    /// The same for long jobs. Meanwhile this router sends heartbeats to the storage whose job has ended.
    async fn each_alive(&mut self, what: impl AsyncFn(&mut ReservationOwner) + Clone + 'static) {
        let busy = Rc::new(RunningOwners { left: Cell::new(self.owners.len()), ended: Event::new() });
        self.each(async move |owner: &mut ReservationOwner| {
            let mine = OwnerGuard(busy.clone());
            what(owner).await;
            drop(mine);
            loop {
                let rings = busy.ended.listen();
                if busy.left.get() == 0 {
                    return;
                }
                if compio::time::timeout(HEARTBEAT, rings).await.is_err() && owner.is_taken {
                    owner.heartbeat().await;
                }
            }
        })
        .await;
    }

    async fn step(&mut self, pair: &Arc<Pair>) {
        self.adopt(pair).await;
        self.each_alive(async |owner: &mut ReservationOwner| owner.probe().await).await;
        let (holder, generation) = self.sight();
        let (request, role) = {
            let mut state = pair.state();
            state.history.saw(holder, generation, Instant::now());
            state.healthy = holder != Holder::Unknown;
            (state.request.take(), state.role)
        };
        match request {
            Some(request) => self.carry_out(pair, request, role).await,
            None if role == Role::Active => self.serve(pair).await,
            None => self.consider(pair).await,
        }
    }

    /// Adds owners of new logical units, and removes those that are no longer routed.
    async fn adopt(&mut self, pair: &Arc<Pair>) {
        self.let_go().await;
        let fresh = std::mem::take(&mut pair.state().fresh);
        for remote in fresh.iter().filter_map(Weak::upgrade) {
            // While the same logical unit is routed, its earlier owner continues: otherwise the earlier one would
            // release the reservation of the new one. After a failed configuration change it stays.
            if self.owners.iter().any(|old| old.is_at(&remote.location())) {
                pair.state().fresh.push(Arc::downgrade(&remote));
                continue;
            }
            let Some(owner) = ReservationOwner::new(&remote, &pair.spec) else { continue };
            watch(pair, &owner);
            self.owners.push(owner);
        }
    }

    async fn let_go(&mut self) {
        let (gone, there) = std::mem::take(&mut self.owners).into_iter().partition(ReservationOwner::is_gone);
        self.owners = there;
        leave(gone).await;
    }

    /// The combined holder and generation of all logical units.
    fn sight(&self) -> (Holder, u64) {
        let all: Vec<Holder> = self.owners.iter().map(ReservationOwner::holder).collect();
        let request = [Holder::Other, Holder::Ours, Holder::Nobody];
        let holder = request.into_iter().find(|holder| all.contains(holder)).unwrap_or_default();
        let seen = self.owners.iter().filter_map(|owner| owner.seen);
        (holder, seen.map(|seen| u64::from(seen.generation)).sum())
    }

    async fn carry_out(&mut self, pair: &Arc<Pair>, request: FailoverRequest, role: Role) {
        match (request, role) {
            (FailoverRequest::Failover | FailoverRequest::Ineligible, Role::Active) => {
                self.give_up(pair).await
            }
            (FailoverRequest::Failover, _) => self.take(pair, true).await,
            (FailoverRequest::Eligible, _) => pair.state().history.wanted(),
            (FailoverRequest::Ineligible, _) => {}
        }
    }

    /// On standby: decides whether to take the reservations.
    async fn consider(&mut self, pair: &Arc<Pair>) {
        let decision = {
            let state = pair.state();
            pair.view(&state).decide()
        };
        match decision {
            Decision::Take => self.take(pair, false).await,
            Decision::Seize => self.take(pair, true).await,
            Decision::Stay | Decision::Yield => {}
        }
    }

    async fn take(&mut self, pair: &Arc<Pair>, seize: bool) {
        pair.state().history.wanted();
        pair.set_role(Role::Taking);
        let results = self.take_all(seize).await;
        let others =
            results.iter().any(|r| r.as_ref().is_err_and(|e| e.code == ErrorCode::ReservationConflict));
        if others || results.iter().all(Result::is_err) {
            self.each(async |owner| owner.release().await).await;
            // Routers that do not hear each other would otherwise preempt each other forever.
            return match self.owners.iter().any(|owner| owner.is_preempted) {
                true => self.fenced(pair),
                false => pair.set_role(Role::Standby),
            };
        }
        self.each(async |owner| {
            if owner.is_taken {
                owner.open().await
            }
        })
        .await;
        pair.set_role(Role::Active);
    }

    async fn take_all(&mut self, seize: bool) -> Vec<Result<(), Error>> {
        let (sender, results) = flume::unbounded();
        self.each_alive(async move |owner: &mut ReservationOwner| {
            // An unreachable logical unit is taken later, when it is reachable.
            let result = match owner.holder() {
                Holder::Unknown => {
                    Err(Error::new(ErrorCode::Unreachable, "the storage of the failover pair is unreachable"))
                }
                _ => owner.take(seize).await,
            };
            // The receiver exists until all have sent.
            _ = sender.send(result);
        })
        .await;
        results.drain().collect()
    }

    /// While active: checks whether this router is still the holder, and takes further logical units.
    async fn serve(&mut self, pair: &Arc<Pair>) {
        let is_lost = |owner: &ReservationOwner| {
            owner.is_preempted || owner.is_taken && owner.holder() == Holder::Other
        };
        if self.owners.iter().any(is_lost) {
            return self.fenced(pair);
        }
        let (decision, seize) = {
            let state = pair.state();
            let view = pair.view(&state);
            (view.decide(), view.may_seize())
        };
        if decision == Decision::Yield {
            return self.give_up(pair).await;
        }
        self.each_alive(async move |owner: &mut ReservationOwner| match (owner.holder(), owner.is_taken) {
            (Holder::Unknown, _) => {}
            (Holder::Ours, true) if owner.gate().is_open() => {}
            // A session is not registered, or no longer.
            (Holder::Ours, true) => owner.open().await,
            (Holder::Other, _) if !seize => {}
            (holder, _) => {
                if owner.take(holder == Holder::Other).await.is_ok() {
                    owner.open().await;
                }
            }
        })
        .await;
        if pair.is_unasked() && self.heartbeat_at.elapsed() >= HEARTBEAT {
            self.heartbeat_at = Instant::now();
            self.each(async |owner| {
                if owner.is_taken {
                    owner.heartbeat().await
                }
            })
            .await;
        }
        (pair.changed)();
    }

    /// Handles a takeover by the other router.
    fn fenced(&mut self, pair: &Arc<Pair>) {
        self.owners.iter_mut().for_each(ReservationOwner::lose);
        tracing::warn!(name: "pair.takeover", router = pair.spec.router, "the peer router has taken over the storage");
        pair.state().history.fenced(Instant::now());
        pair.set_role(Role::Standby);
    }

    /// Hands the active role to the peer.
    async fn give_up(&mut self, pair: &Arc<Pair>) {
        pair.set_role(Role::Yielding);
        self.each(async |owner| owner.release().await).await;
        pair.state().history.yielded(Instant::now());
        pair.set_role(Role::Standby);
    }
}

/// Watches a gate: when a conflict shuts it, probes at once and notifies hosts.
fn watch(pair: &Arc<Pair>, owner: &ReservationOwner) {
    let (pair, gate) = (Arc::downgrade(pair), Arc::downgrade(owner.gate()));
    lunar_runtime::spawn(async move {
        loop {
            let Some(shut) = gate.upgrade().map(|gate| gate.listen()) else { return };
            shut.await;
            let Some(pair) = pair.upgrade() else { return };
            pair.notifier.notify(usize::MAX);
            (pair.changed)();
        }
    });
}
