//! A model of paths that fail while the target stalls. Invariant: once a newer write is acknowledged, the target
//! executes no older write to the same block, in any order of events. The session states are the real ones. There is
//! no clock.

use super::super::proof::Proof;
use super::*;
use crate::LateWrites;
use lunar_block::range_lock::{RangeAccess, RangeLocks};
use std::collections::VecDeque;
use std::sync::Arc;

const LUN: u64 = 1 << 48;
const PATHS: usize = 3;
const BLOCKS: usize = 4;
const STEPS: usize = 250;

/// A deterministic sequence of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, max: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % max as u64) as usize
    }
}

/// A command that the target has received but not executed.
#[derive(Clone, Copy)]
struct Arrived {
    tag: u32,
    block: usize,
    value: u64,
}

/// A path: the initiator's side of its session, and its connections that the target still has. While the session is
/// up, the last one is the current connection.
struct Path {
    peer: Peer,
    up: bool,
    stalls: bool,
    connections: Vec<Connection>,
}

/// A connection to a portal of this group, and the commands that the target has received on it.
struct Connection {
    group: u16,
    has: VecDeque<Arrived>,
}

/// A write whose owner waits for the result.
struct Write {
    block: usize,
    value: u64,
    /// The path of the write, and its tag there.
    on: Option<(usize, u32)>,
}

struct World {
    random: Random,
    paths: Vec<Path>,
    ranges: Arc<RangeLocks>,
    writes: Vec<Write>,
    latest: u64,
    acknowledged: [u64; BLOCKS],
    /// The first violation of the invariant.
    broken: Option<String>,
    /// Acknowledged writes while the target still had a lost connection: the cases in which the invariant could
    /// break.
    counted: usize,
}

impl World {
    fn new(seed: u64, late_writes: LateWrites) -> World {
        let path = |_| {
            let mut peer = Peer::new(parameters());
            peer.state.late_writes = late_writes;
            let mut path = Path { peer, up: false, stalls: false, connections: Vec::new() };
            path.log_in(1);
            path
        };
        World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            paths: (0..PATHS).map(path).collect(),
            ranges: Arc::default(),
            writes: Vec::new(),
            latest: 0,
            acknowledged: [0; BLOCKS],
            broken: None,
            counted: 0,
        }
    }

    fn step(&mut self) {
        let at = self.random.below(PATHS);
        match self.random.below(16) {
            0..=3 => self.write(),
            4..=8 => self.execute(at),
            9 => self.paths[at].stalls = !self.paths[at].stalls,
            10 => self.paths[at].lose(),
            // Some logins go to another portal group.
            11 | 12 => {
                let group = 1 + self.random.below(4) as u16 / 3;
                self.paths[at].log_in(group);
            }
            13 => self.reset(at),
            14 => self.drop_one(),
            _ => self.expire_one(),
        }
        self.paths.iter_mut().for_each(Path::arrive);
        self.take_ends();
    }

    /// Starts a write to a block without a pending write.
    fn write(&mut self) {
        let block = self.random.below(BLOCKS);
        if self.writes.iter().all(|w| w.block != block) {
            self.latest += 1;
            self.writes.push(Write { block, value: self.latest, on: None });
        }
        self.send();
    }

    /// Submits pending writes to a usable path, unless the block is locked.
    fn send(&mut self) {
        let up: Vec<usize> = (0..PATHS).filter(|at| self.paths[*at].up).collect();
        for write in self.writes.iter_mut().filter(|w| w.on.is_none()) {
            let bytes = write.block as u64 * 512..(write.block as u64 + 1) * 512;
            if up.is_empty() {
                return;
            }
            let Some(hold) = self.ranges.try_lock(&bytes, RangeAccess::Shared) else { continue };
            let at = up[self.random.below(up.len())];
            let mut buf = Buf::zeroed(512);
            buf[..8].copy_from_slice(&write.value.to_be_bytes());
            let mut command =
                Command::new(LUN, cdb::write_10(write.block as u32, 1, false), Direction::Out(buf));
            command.hold = Some(hold);
            let tag = self.paths[at].peer.state.submit(command, Waiter::Unknown).expect("room");
            write.on = Some((at, tag));
        }
    }

    /// The target executes a command of any connection of this path.
    fn execute(&mut self, at: usize) {
        let path = &mut self.paths[at];
        if path.stalls || path.connections.is_empty() {
            return;
        }
        let which = self.random.below(path.connections.len());
        let is_present = path.up && which + 1 == path.connections.len();
        let Some(command) = path.connections[which].has.pop_front() else { return };
        let newest = self.acknowledged[command.block];
        if command.value < newest {
            let Arrived { block, value, .. } = command;
            self.broken.get_or_insert(format!("block {block}: {value} after {newest} was acknowledged"));
        }
        if is_present {
            path.peer.respond(command.tag, 0, 0, 0, &[]);
        }
    }

    /// LOGICAL UNIT RESET through this path: the target drops all commands that it has.
    fn reset(&mut self, at: usize) {
        if !self.paths[at].up || self.paths[at].stalls {
            return;
        }
        let sent = Instant::now();
        let path = &mut self.paths[at];
        path.arrive();
        let own: Vec<u32> = path.connections.iter().flat_map(|c| &c.has).map(|c| c.tag).collect();
        self.paths.iter_mut().flat_map(|path| &mut path.connections).for_each(|c| c.has.clear());
        self.paths[at].peer.state.ended_by_abort(own, "a reset");
        self.paths.iter_mut().for_each(|path| path.peer.state.prove(Proof::Reset(Some(LUN), sent)));
    }

    /// The owner of a write stops waiting and regards the write as ended.
    fn drop_one(&mut self) {
        if self.writes.is_empty() {
            return;
        }
        let write = self.writes.swap_remove(self.random.below(self.writes.len()));
        if let Some((at, tag)) = write.on {
            self.paths[at].peer.state.tasks.abandon(tag);
        }
    }

    /// The operation timeout of a write expires, and its connection is dropped.
    fn expire_one(&mut self) {
        let on: Vec<(usize, u32)> = self.writes.iter().filter_map(|w| w.on).collect();
        if let Some((at, tag)) = on.get(self.random.below(on.len().max(1))) {
            self.paths[*at].peer.state.expire(*tag, Error::new(ErrorCode::TimedOut, "late"));
            self.paths[*at].lose();
        }
    }

    /// A failed write is retried on another path, or ends with the error.
    fn take_ends(&mut self) {
        let mut left = Vec::new();
        for mut write in std::mem::take(&mut self.writes) {
            let end = write.on.and_then(|(at, tag)| self.paths[at].peer.end(tag));
            match end {
                None => left.push(write),
                Some((Ok(_), _)) => {
                    self.acknowledged[write.block] = self.acknowledged[write.block].max(write.value);
                    let is_late = |path: &Path| path.connections.len() > usize::from(path.up);
                    self.counted += usize::from(self.paths.iter().any(is_late));
                }
                Some((Err(_), _)) if self.random.below(2) == 0 => {
                    write.on = None;
                    left.push(write);
                }
                Some((Err(_), _)) => {}
            }
        }
        self.writes = left;
    }
}

impl Path {
    /// The target receives everything that was sent, and keeps it after a loss of the connection.
    fn arrive(&mut self) {
        for (header, data) in self.peer.sent() {
            if header.opcode() != opcode::SCSI_COMMAND {
                continue;
            }
            let block = u32::from_be_bytes(header.cdb()[2..6].try_into().expect("four bytes")) as usize;
            let value = u64::from_be_bytes(data[..8].try_into().expect("eight bytes"));
            let present = self.connections.last_mut().expect("a current connection");
            present.has.push_back(Arrived { tag: header.itt(), block, value });
        }
    }

    /// The connection fails and is dropped at once.
    fn lose(&mut self) {
        if !std::mem::take(&mut self.up) {
            return;
        }
        self.arrive();
        self.peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        self.peer.state.gave_up = true;
        self.peer.state.fail_queued(&Error::new(ErrorCode::TimedOut, "no connection"), |_| true);
    }

    /// A login: the target drops the commands of the same nexus.
    fn log_in(&mut self, group: u16) {
        if std::mem::replace(&mut self.up, true) {
            return;
        }
        self.connections.retain(|connection| connection.group != group);
        self.connections.push(Connection { group, has: VecDeque::new() });
        (self.peer.exp_cmd_sn, self.peer.max_cmd_sn) = (1, 10_000);
        self.peer.state.port = Some(TargetPort::PortalGroup(group));
        self.peer.log_in(parameters());
        self.peer.state.gave_up = false;
    }
}

/// The violation, if any, and the number of cases in which one was possible.
fn played(seed: u64, late_writes: LateWrites) -> (Option<String>, usize) {
    let mut world = World::new(seed, late_writes);
    for _ in 0..STEPS {
        world.step();
    }
    (world.broken, world.counted)
}

#[test]
fn no_older_write_is_executed_after_a_newer_one_was_acked() {
    let mut counted = 0;
    for seed in 1..=400 {
        let (broken, times) = played(seed, LateWrites::Wait);
        assert_eq!(broken, None, "seed {seed}");
        counted += times;
    }
    assert!(counted > 1000, "too few late commands: {counted}");
}

#[test]
fn late_writes_risk_lets_older_writes_execute() {
    assert!((1..=20).any(|seed| played(seed, LateWrites::Risk).0.is_some()));
}
