//! Looks at the storage again and again, decides, and does it.

use super::keeper::Keeper;
use super::machine::{Decision, Holder};
use super::{End, Order, Pair, Role};
use compio::runtime::spawn;
use event_listener::Event as Bell;
use lunar_initiator::{Error, Kind};
use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// Between two signs of life at the storage.
const BEAT: Duration = Duration::from_secs(1);

/// Runs for as long as the pair is there, once the one `before` is over: what that gives back must not be what this
/// has taken. `_over` goes when this is over.
pub async fn run(pair: Weak<Pair>, before: Option<End>, _over: flume::Sender<Infallible>) {
    if let Some(before) = before {
        // Nothing is sent: it ends.
        _ = before.recv_async().await;
    }
    let mut brain = Brain { keepers: Vec::new(), beaten: Instant::now() };
    loop {
        let rings = {
            let Some(pair) = pair.upgrade() else { break };
            let rings = pair.listen();
            brain.turn(&pair).await;
            rings
        };
        // Either is a reason to look.
        _ = compio::time::timeout(PAUSE, rings).await;
    }
    leave(brain.keepers).await;
}

/// They end, all at the same time.
async fn leave(keepers: Vec<Keeper>) {
    let tasks: Vec<_> = keepers.into_iter().map(|keeper| spawn(keeper.leave())).collect();
    for task in tasks {
        // None panics; one that did has shut its gate.
        _ = task.await;
    }
}

struct Brain {
    keepers: Vec<Keeper>,
    /// When the storage was shown that this router lives.
    beaten: Instant,
}

/// Keepers that are at work.
struct Busy {
    left: Cell<usize>,
    /// Rings when one has ended.
    ended: Bell,
}

/// One of them; also one that panics ends.
struct AtWork(Rc<Busy>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.left.set(self.0.left.get() - 1);
        self.0.ended.notify(usize::MAX);
    }
}

impl Brain {
    /// Does something with all at the same time.
    async fn each(&mut self, what: impl AsyncFn(&mut Keeper) + Clone + 'static) {
        let begin = |mut keeper: Keeper| {
            let what = what.clone();
            spawn(async move {
                what(&mut keeper).await;
                keeper
            })
        };
        let tasks: Vec<_> = self.keepers.drain(..).map(begin).collect();
        for task in tasks {
            // None panics; one that did would be missed, and its gate is shut.
            self.keepers.extend(task.await.ok());
        }
    }

    /// The same where one may take long: at those that are done, the storage is shown meanwhile that this router lives.
    async fn each_alive(&mut self, what: impl AsyncFn(&mut Keeper) + Clone + 'static) {
        let busy = Rc::new(Busy { left: Cell::new(self.keepers.len()), ended: Bell::new() });
        self.each(async move |keeper: &mut Keeper| {
            let mine = AtWork(busy.clone());
            what(keeper).await;
            drop(mine);
            loop {
                let rings = busy.ended.listen();
                if busy.left.get() == 0 {
                    return;
                }
                if compio::time::timeout(BEAT, rings).await.is_err() && keeper.is_taken {
                    keeper.beat().await;
                }
            }
        })
        .await;
    }

    async fn turn(&mut self, pair: &Arc<Pair>) {
        self.adopt(pair).await;
        self.each_alive(async |keeper: &mut Keeper| keeper.look().await).await;
        let (holder, generation) = self.sight();
        let (order, role) = {
            let mut state = pair.state();
            state.memory.saw(holder, generation, Instant::now());
            state.healthy = holder != Holder::Unknown;
            (state.order.take(), state.role)
        };
        match order {
            Some(order) => self.obey(pair, order, role).await,
            None if role == Role::Active => self.serve(pair).await,
            None => self.consider(pair).await,
        }
    }

    /// Takes on what is new, and lets go of what is not routed any more.
    async fn adopt(&mut self, pair: &Arc<Pair>) {
        self.let_go().await;
        let fresh = std::mem::take(&mut pair.state().fresh);
        for remote in fresh.iter().filter_map(Weak::upgrade) {
            // One that is served at the same place goes on until it is not: what it gives back then would be what this
            // one has taken, and it may yet stay, after a change that fails.
            if self.keepers.iter().any(|old| old.is_at(&remote.place())) {
                pair.state().fresh.push(Arc::downgrade(&remote));
                continue;
            }
            let Some(keeper) = Keeper::new(&remote, &pair.spec) else { continue };
            watch(pair, &keeper);
            self.keepers.push(keeper);
        }
    }

    async fn let_go(&mut self) {
        let (gone, there) = std::mem::take(&mut self.keepers).into_iter().partition(Keeper::is_gone);
        self.keepers = there;
        leave(gone).await;
    }

    /// All together: what one of them has counts for all.
    fn sight(&self) -> (Holder, u64) {
        let all: Vec<Holder> = self.keepers.iter().map(Keeper::holder).collect();
        let order = [Holder::Other, Holder::Ours, Holder::Nobody];
        let holder = order.into_iter().find(|holder| all.contains(holder)).unwrap_or_default();
        let seen = self.keepers.iter().filter_map(|keeper| keeper.seen);
        (holder, seen.map(|seen| u64::from(seen.generation)).sum())
    }

    async fn obey(&mut self, pair: &Arc<Pair>, order: Order, role: Role) {
        match (order, role) {
            (Order::Failover | Order::Ineligible, Role::Active) => self.give_up(pair).await,
            (Order::Failover, _) => self.take(pair, true).await,
            (Order::Eligible, _) => pair.state().memory.wanted(),
            (Order::Ineligible, _) => {}
        }
    }

    /// Standby: is it our turn?
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
        pair.state().memory.wanted();
        pair.is(Role::Taking);
        let results = self.take_all(seize).await;
        let others = results.iter().any(|r| r.as_ref().is_err_and(|e| e.kind == Kind::Reserved));
        if others || results.iter().all(Result::is_err) {
            self.each(async |keeper| keeper.release().await).await;
            return pair.is(Role::Standby);
        }
        self.each(async |keeper| {
            if keeper.is_taken {
                keeper.open().await
            }
        })
        .await;
        pair.is(Role::Active);
    }

    async fn take_all(&mut self, seize: bool) -> Vec<Result<(), Error>> {
        let (tell, told) = flume::unbounded();
        self.each_alive(async move |keeper: &mut Keeper| {
            // Who cannot be seen is taken when it can be.
            let result = match keeper.holder() {
                Holder::Unknown => Err(Error::new(Kind::Unreachable, "it cannot be seen")),
                _ => keeper.take(seize).await,
            };
            // The other end is there until all have told.
            _ = tell.send(result);
        })
        .await;
        told.drain().collect()
    }

    /// Active: is it still so, and is there more to serve?
    async fn serve(&mut self, pair: &Arc<Pair>) {
        if self.keepers.iter().any(|keeper| keeper.is_taken && keeper.holder() == Holder::Other) {
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
        self.each_alive(async move |keeper: &mut Keeper| match (keeper.holder(), keeper.is_taken) {
            (Holder::Unknown, _) => {}
            (Holder::Ours, true) if keeper.guard().is_open() => {}
            // A session was not registered, or not any more.
            (Holder::Ours, true) => keeper.open().await,
            (Holder::Other, _) if !seize => {}
            (holder, _) => {
                if keeper.take(holder == Holder::Other).await.is_ok() {
                    keeper.open().await;
                }
            }
        })
        .await;
        if pair.is_unasked() && self.beaten.elapsed() >= BEAT {
            self.beaten = Instant::now();
            self.each(async |keeper| {
                if keeper.is_taken {
                    keeper.beat().await
                }
            })
            .await;
        }
        (pair.changed)();
    }

    /// The other router has taken over.
    fn fenced(&mut self, pair: &Arc<Pair>) {
        self.keepers.iter_mut().for_each(Keeper::lose);
        tracing::warn!(router = pair.spec.router, "the other router of the pair has taken over");
        pair.state().memory.fenced(Instant::now());
        pair.is(Role::Standby);
    }

    /// Leaves the place to the other one.
    async fn give_up(&mut self, pair: &Arc<Pair>) {
        pair.is(Role::Yielding);
        self.each(async |keeper| keeper.release().await).await;
        pair.state().memory.yielded(Instant::now());
        pair.is(Role::Standby);
    }
}

/// A gate that was shut by a conflict is a reason to look at once, and to tell hosts.
fn watch(pair: &Arc<Pair>, keeper: &Keeper) {
    let (pair, guard) = (Arc::downgrade(pair), Arc::downgrade(keeper.guard()));
    lunar_runtime::spawn(async move {
        loop {
            let Some(shut) = guard.upgrade().map(|guard| guard.listen()) else { return };
            shut.await;
            let Some(pair) = pair.upgrade() else { return };
            pair.bell.notify(usize::MAX);
            (pair.changed)();
        }
    });
}
