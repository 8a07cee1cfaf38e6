//! Selects the path for the next operation.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};

/// The distribution of operations over the best paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathPolicy {
    /// All operations use the first usable path.
    Failover,
    /// Operations use the paths in turn.
    RoundRobin,
    /// An operation uses the path with the fewest operations.
    #[default]
    LeastQueue,
}

/// The state of a path, best first: the ALUA states (SPC-5 section 5.18.2.4), and states without I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum PathState {
    /// Active/optimized, or a logical unit without ALUA.
    Optimized,
    /// Active/non-optimized: it works, but another path may be faster.
    NonOptimized,
    /// Transitioning between states: it may work soon.
    Transitioning,
    /// Standby or unavailable: it takes no I/O.
    Standby,
    /// The path does not work.
    Down,
    /// The path leads to another logical unit than before.
    Changed,
}

impl std::fmt::Display for PathState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PathState::Optimized => "optimized",
            PathState::NonOptimized => "non-optimized",
            PathState::Transitioning => "transitioning",
            PathState::Standby => "standby",
            PathState::Down => "down",
            PathState::Changed => "another",
        })
    }
}

impl PathState {
    const ALL: [PathState; 6] = [
        PathState::Optimized,
        PathState::NonOptimized,
        PathState::Transitioning,
        PathState::Standby,
        PathState::Down,
        PathState::Changed,
    ];

    /// Whether the path accepts I/O.
    pub fn is_usable(self) -> bool {
        self <= PathState::NonOptimized
    }
}

#[derive(Debug)]
struct PathEntry {
    state: AtomicU8,
    load: AtomicUsize,
    /// Whether it was ever usable.
    was_usable: AtomicBool,
}

/// The states and loads of all paths.
#[derive(Debug)]
pub struct PathSelector {
    paths: Vec<PathEntry>,
    policy: PathPolicy,
    next: AtomicUsize,
}

/// The use of a path by one operation, which counts as load until this is dropped.
pub struct PathLease<'a> {
    /// The path.
    pub at: usize,
    paths: &'a PathSelector,
}

impl Drop for PathLease<'_> {
    fn drop(&mut self) {
        self.paths.give_back(self.at);
    }
}

impl PathSelector {
    /// A selector for `count` paths that are not checked yet.
    pub fn new(count: usize, policy: PathPolicy) -> PathSelector {
        let path = || PathEntry {
            state: AtomicU8::new(PathState::Down as u8),
            load: AtomicUsize::new(0),
            was_usable: AtomicBool::new(false),
        };
        PathSelector { paths: (0..count).map(|_| path()).collect(), policy, next: AtomicUsize::new(0) }
    }

    /// The state of a path.
    pub fn state(&self, at: usize) -> PathState {
        PathState::ALL[usize::from(self.paths[at].state.load(Relaxed))]
    }

    /// The number of operations on a path.
    pub fn load(&self, at: usize) -> usize {
        self.paths[at].load.load(Relaxed)
    }

    /// Sets the state of a path, and returns the previous one.
    pub fn set(&self, at: usize, state: PathState) -> PathState {
        let before = self.state(at);
        self.paths[at].state.store(state as u8, Relaxed);
        before
    }

    /// Whether a path was usable before. From now on it was.
    pub fn take_was_usable(&self, at: usize) -> bool {
        self.paths[at].was_usable.swap(true, Relaxed)
    }

    /// Whether every path leads to another logical unit.
    pub fn all_changed(&self) -> bool {
        (0..self.paths.len()).all(|at| self.state(at) == PathState::Changed)
    }

    /// Whether any path accepts I/O.
    pub fn has_usable(&self) -> bool {
        (0..self.paths.len()).any(|at| self.state(at).is_usable())
    }

    /// Selects a path for the next operation: one in the best state, according to the policy. The operation counts as
    /// load until the guard is dropped.
    pub fn choose(&self) -> Option<PathLease<'_>> {
        self.take().map(|at| PathLease { at, paths: self })
    }

    /// The same without a guard: the operation counts as load until [`PathSelector::give_back`].
    pub fn take(&self) -> Option<usize> {
        let best = (0..self.paths.len()).map(|at| self.state(at)).min().filter(|s| s.is_usable())?;
        let among = (0..self.paths.len()).filter(|at| self.state(*at) == best);
        let at = match self.policy {
            PathPolicy::Failover => among.min(),
            PathPolicy::LeastQueue => among.min_by_key(|at| self.load(*at)),
            PathPolicy::RoundRobin => {
                let (count, first) = (self.paths.len(), self.next.fetch_add(1, Relaxed));
                // The distance after the last selected path.
                let after = |at: &usize| (at + count - first % count) % count;
                let chosen = among.min_by_key(after);
                if let Some(at) = chosen {
                    self.next.store(at + 1, Relaxed);
                }
                chosen
            }
        }?;
        self.paths[at].load.fetch_add(1, Relaxed);
        Some(at)
    }

    /// Releases the path of an ended operation.
    pub fn give_back(&self, at: usize) {
        self.paths[at].load.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(policy: PathPolicy, states: &[PathState]) -> PathSelector {
        let paths = PathSelector::new(states.len(), policy);
        states.iter().enumerate().for_each(|(at, state)| {
            paths.set(at, *state);
        });
        paths
    }

    fn chosen(paths: &PathSelector, n: usize) -> Vec<usize> {
        let leases: Vec<PathLease<'_>> = (0..n).filter_map(|_| paths.choose()).collect();
        leases.iter().map(|t| t.at).collect()
    }

    #[test]
    fn each_policy_spreads_as_its_name_says() {
        use PathState::{Down, NonOptimized, Optimized};
        let states = [Down, Optimized, NonOptimized, Optimized];
        assert_eq!(chosen(&paths(PathPolicy::Failover, &states), 3), [1, 1, 1]);
        assert_eq!(chosen(&paths(PathPolicy::RoundRobin, &states), 5), [1, 3, 1, 3, 1]);
        assert_eq!(chosen(&paths(PathPolicy::LeastQueue, &states), 4), [1, 3, 1, 3]);
        assert_eq!(chosen(&paths(PathPolicy::RoundRobin, &[Optimized; 3]), 4), [0, 1, 2, 0]);
    }

    #[test]
    fn worse_path_is_taken_only_when_no_better_one_is_left() {
        let p = paths(PathPolicy::LeastQueue, &[PathState::Optimized, PathState::NonOptimized]);
        assert_eq!(chosen(&p, 2), [0, 0]);
        p.set(0, PathState::Down);
        assert_eq!(chosen(&p, 2), [1, 1]);
        p.set(1, PathState::Standby);
        assert!(chosen(&p, 1).is_empty() && !p.has_usable());
    }

    #[test]
    fn path_to_another_unit_is_unused_until_it_leads_back() {
        let p = paths(PathPolicy::Failover, &[PathState::Changed, PathState::Down]);
        assert!(!p.has_usable() && !p.all_changed());
        p.set(1, PathState::Changed);
        assert!(p.all_changed());
        p.set(0, PathState::Optimized);
        assert_eq!(chosen(&p, 1), [0]);
    }

    #[test]
    fn path_was_usable_from_its_first_use_on() {
        let p = PathSelector::new(2, PathPolicy::Failover);
        assert!(!p.take_was_usable(0));
        p.set(0, PathState::Down);
        assert!(p.take_was_usable(0) && !p.take_was_usable(1));
    }

    #[test]
    fn load_goes_down_when_a_turn_ends() {
        let p = paths(PathPolicy::LeastQueue, &[PathState::Optimized; 2]);
        let first = p.choose();
        assert_eq!((p.load(0), p.load(1)), (1, 0));
        drop(first);
        assert_eq!(p.load(0), 0);
    }
}
