//! A model of two routers, a lossy network between them, and storage that each may or may not reach. Invariants: both
//! never write at the same time, and one of them serves once all faults are repaired.

use super::*;
use crate::failover::history::PeerHistory;
use proptest::prelude::*;
use std::time::Instant;

/// An event in the model.
#[derive(Clone, Copy, Debug)]
enum ModelEvent {
    Crash(usize),
    Start(usize),
    /// The router is not scheduled, and does not notice it.
    Stop(usize),
    Go(usize),
    Lan(bool),
    San(usize, bool),
}

/// The reservation state of the logical unit.
#[derive(Default)]
struct Storage {
    holder: Option<usize>,
    /// The registered control nexuses, and those that carry data.
    control: [bool; 2],
    data: [bool; 2],
    generation: u64,
}

/// The steps of a takeover. Other events may happen between them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TakeoverStep {
    Register,
    Reserve,
    Check,
    /// Until this step: commands of the former router may be running.
    Wait(u64),
    RegisterData,
    CheckData,
}

struct ModelRouter {
    history: PeerHistory,
    up: bool,
    running: bool,
    san: bool,
    /// Whether it believes that it is active, so that it admits commands.
    active: bool,
    /// The current step of a takeover, and whether it may preempt.
    taking: Option<(TakeoverStep, bool)>,
    asked: u64,
    seizes: usize,
}

struct PairModel {
    storage: Storage,
    routers: [ModelRouter; 2],
    lan: bool,
    start: Instant,
    step: u64,
    /// The steps for which each takeover waits, with heartbeats.
    wait: u64,
}

const STEP_MS: u64 = 100;

impl PairModel {
    fn new() -> PairModel {
        let start = Instant::now();
        let router = || ModelRouter {
            history: PeerHistory::new(start),
            up: true,
            running: true,
            san: true,
            active: false,
            taking: None,
            asked: 0,
            seizes: 0,
        };
        let routers = [router(), router()];
        PairModel { storage: Storage::default(), routers, lan: true, start, step: 0, wait: 0 }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.step * STEP_MS)
    }

    fn happens(&mut self, what: ModelEvent) {
        let now = self.now();
        match what {
            ModelEvent::Crash(i) => self.routers[i].up = false,
            ModelEvent::Start(i) if !self.routers[i].up => {
                let ModelRouter { san, seizes, .. } = self.routers[i];
                self.routers[i] = ModelRouter {
                    history: PeerHistory::new(now),
                    san,
                    seizes,
                    ..PairModel::new().routers.into_iter().next().unwrap()
                };
                // A restarted router has new sessions.
                self.storage.data[i] = false;
            }
            ModelEvent::Start(_) => {}
            ModelEvent::Stop(i) => self.routers[i].running = false,
            ModelEvent::Go(i) => self.routers[i].running = true,
            ModelEvent::Lan(up) => self.lan = up,
            ModelEvent::San(i, up) => self.routers[i].san = up,
        }
    }

    fn runs(&self, i: usize) -> bool {
        self.routers[i].up && self.routers[i].running
    }

    /// Delivers the peer's status to one router.
    fn heartbeat(&mut self, i: usize) {
        let now = self.now();
        let peer = 1 - i;
        if !(self.lan && self.runs(peer)) {
            return;
        }
        let other = &self.routers[peer];
        let role = match (other.active, other.taking, other.history.is_yielding(now)) {
            (true, ..) => Role::Active,
            (_, Some(_), _) => Role::Taking,
            (_, _, true) => Role::Yielding,
            _ => Role::Standby,
        };
        let status =
            PeerStatus { role, eligible: true, preferred: peer == 0, healthy: other.san, key: peer as u64 };
        self.routers[peer].asked = self.step;
        self.routers[i].history.heard(status, now);
    }

    fn fenced(&mut self, i: usize) {
        let now = self.now();
        self.routers[i].active = false;
        self.routers[i].taking = None;
        self.routers[i].history.fenced(now);
    }

    /// A host command. Returns whether the storage executes it.
    fn write(&mut self, i: usize) -> bool {
        if !(self.runs(i) && self.routers[i].active && self.routers[i].san) {
            return false;
        }
        let done = self.storage.holder.is_none() || self.storage.data[i];
        if !done {
            self.fenced(i);
        }
        done
    }

    fn take(&mut self, i: usize, step: TakeoverStep, seize: bool) {
        if !self.routers[i].san {
            self.routers[i].taking = None;
            return;
        }
        let storage = &mut self.storage;
        let next = match step {
            TakeoverStep::Register => {
                storage.control[i] = true;
                storage.generation += 1;
                Some(TakeoverStep::Reserve)
            }
            TakeoverStep::Reserve => match storage.holder {
                _ if !storage.control[i] => None,
                Some(other) if other != i && !seize => None,
                before => {
                    let other = 1 - i;
                    if before.is_some() {
                        (storage.control[other], storage.data) = (false, [false; 2]);
                    }
                    storage.holder = Some(i);
                    storage.generation += 1;
                    Some(TakeoverStep::Check)
                }
            },
            TakeoverStep::Check => {
                (storage.holder == Some(i)).then_some(TakeoverStep::Wait(self.step + self.wait))
            }
            TakeoverStep::Wait(_) if storage.holder != Some(i) => return self.fenced(i),
            TakeoverStep::Wait(end) if self.step < end => {
                storage.generation += 1;
                Some(step)
            }
            TakeoverStep::Wait(_) => Some(TakeoverStep::RegisterData),
            TakeoverStep::RegisterData => {
                storage.data[i] = true;
                Some(TakeoverStep::CheckData)
            }
            TakeoverStep::CheckData => {
                let ours = storage.holder == Some(i);
                storage.data[i] &= ours;
                if !ours {
                    // It has held the reservation: the first look as the active router finds the other holder.
                    return self.fenced(i);
                }
                self.routers[i].active = true;
                None
            }
        };
        self.routers[i].taking = next.map(|next| (next, seize));
    }

    fn tick(&mut self, i: usize) {
        let now = self.now();
        let storage = &mut self.storage;
        let router = &mut self.routers[i];
        let holder = match storage.holder {
            _ if !router.san => Holder::Unknown,
            None => Holder::Nobody,
            Some(holder) if holder == i => Holder::Ours,
            Some(_) => Holder::Other,
        };
        router.history.saw(holder, storage.generation, now);
        if router.active && holder == Holder::Other {
            return self.fenced(i);
        }
        if router.active && holder == Holder::Nobody {
            router.active = false;
        }
        if router.active && router.san && self.step - router.asked > 10 {
            storage.generation += 1;
        }
        let mut view = router.history.view(now);
        (view.is_active, view.eligible, view.preferred, view.has_hosts) = (router.active, true, i == 0, true);
        match view.decide() {
            Decision::Stay => {}
            Decision::Yield => {
                router.active = false;
                router.history.yielded(now);
            }
            Decision::Take => router.taking = Some((TakeoverStep::Register, false)),
            Decision::Seize => {
                router.seizes += 1;
                router.taking = Some((TakeoverStep::Register, true));
            }
        }
    }

    /// A tenth of a second. The routers act in a random order.
    fn step(&mut self, chance: u8) {
        let first = usize::from(chance & 1);
        for i in [first, 1 - first] {
            if !self.runs(i) {
                continue;
            }
            // One in four heartbeats is lost.
            if self.step.is_multiple_of(10) && chance & 6 != 0 {
                self.heartbeat(i);
            }
            match self.routers[i].taking {
                Some(_) if chance & 8 << i != 0 => {}
                Some((step, seize)) => self.take(i, step, seize),
                None if self.step.is_multiple_of(5) => self.tick(i),
                None => {}
            }
        }
        let may =
            [0, 1].map(|i| self.routers[i].active && self.storage.data[i] && self.storage.holder.is_some());
        assert!(may != [true, true], "both may write");
        let wrote = [self.write(0), self.write(1)];
        assert!(wrote != [true, true], "both have written");
        self.step += 1;
    }

    /// The routers that can serve hosts.
    fn serving(&self) -> Vec<usize> {
        (0..2).filter(|i| self.runs(*i) && self.routers[*i].active && self.storage.data[*i]).collect()
    }
}

fn happening() -> impl Strategy<Value = ModelEvent> {
    prop_oneof![
        (0..2usize).prop_map(ModelEvent::Crash),
        (0..2usize).prop_map(ModelEvent::Start),
        (0..2usize).prop_map(ModelEvent::Stop),
        (0..2usize).prop_map(ModelEvent::Go),
        any::<bool>().prop_map(ModelEvent::Lan),
        (0..2usize, any::<bool>()).prop_map(|(i, up)| ModelEvent::San(i, up)),
    ]
}

proptest! {
    #[test]
    fn never_do_both_write_and_when_all_is_well_one_does(
        history in proptest::collection::vec((0..400u64, happening()), 0..24),
        chance in proptest::collection::vec(any::<u8>(), 64),
    ) {
        let mut world = PairModel::new();
        let run = |world: &mut PairModel, steps: u64, history: &[(u64, ModelEvent)]| {
            for _ in 0..steps {
                let at = world.step;
                history.iter().filter(|(when, _)| *when == at).for_each(|(_, what)| world.happens(*what));
                world.step(chance[(at % 64) as usize] ^ at as u8);
            }
        };
        run(&mut world, 400, &history);
        // Router 0 must serve alone, whatever happened before.
        for what in [ModelEvent::Crash(1), ModelEvent::Go(0), ModelEvent::Start(0), ModelEvent::San(0, true)] {
            world.happens(what);
        }
        run(&mut world, 250, &[]);
        prop_assert_eq!(world.serving(), [0]);
        for what in [ModelEvent::Go(1), ModelEvent::Start(1), ModelEvent::San(1, true), ModelEvent::Lan(true)] {
            world.happens(what);
        }
        run(&mut world, 250, &[]);
        prop_assert_eq!(world.serving(), [0], "a healthy active router stays active");
    }

    #[test]
    fn in_a_lasting_partition_the_place_changes_once_at_most(chance in proptest::collection::vec(any::<u8>(), 64)) {
        // A long wait exceeds the time after which the other router takes over.
        for wait in [0, 300] {
            let mut world = PairModel { wait, ..PairModel::new() };
            for n in 0..6000u64 {
                if n == 200 {
                    world.happens(ModelEvent::Lan(false));
                }
                world.step(chance[(n % 64) as usize] ^ n as u8);
            }
            prop_assert!(world.routers.iter().map(|r| r.seizes).sum::<usize>() <= 1);
            prop_assert_eq!(world.serving().len(), 1);
        }
    }
}
