//! Counters of the commands of a logical unit. Each I_T_L nexus counts for itself on its core, so that no two cores write
//! to one counter. A reader adds up.

mod histogram;
mod totals;

use crate::session_counter::SessionCounter;
use lunar_wire::scsi::{Sense, Status, op};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use histogram::StageCounters;
pub use histogram::{LATENCY_BUCKETS, LatencyTotals, StageTotals, bucket_bound_s};
pub use totals::LuTotals;

/// Operation codes of commands that write.
const WRITES: [u8; 11] = [
    op::WRITE_6,
    op::WRITE_10,
    op::WRITE_12,
    op::WRITE_16,
    op::WRITE_VERIFY_10,
    op::WRITE_VERIFY_12,
    op::WRITE_VERIFY_16,
    op::WRITE_SAME_10,
    op::WRITE_SAME_16,
    op::COMPARE_AND_WRITE,
    op::WRITE_ATOMIC_16,
];

/// Kinds of commands that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpClass {
    /// READ.
    Read,
    /// Commands that write data of the initiator, or a pattern.
    Write,
    /// UNMAP.
    Unmap,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// All others.
    Other,
}

impl OpClass {
    /// All kinds.
    pub const ALL: [OpClass; 5] =
        [OpClass::Read, OpClass::Write, OpClass::Unmap, OpClass::Flush, OpClass::Other];

    /// The kind of a command.
    pub fn of(cdb: &[u8]) -> OpClass {
        match cdb[0] {
            _ if op::is_read(cdb) => OpClass::Read,
            op::UNMAP => OpClass::Unmap,
            op::SYNCHRONIZE_CACHE_10 | op::SYNCHRONIZE_CACHE_16 => OpClass::Flush,
            code if WRITES.contains(&code) => OpClass::Write,
            // The service actions READ(32), WRITE(32), WRITE AND VERIFY(32) and WRITE SAME(32).
            op::VARIABLE_LENGTH => match u16::from_be_bytes([cdb[8], cdb[9]]) {
                0x09 => OpClass::Read,
                0x0b..=0x0d => OpClass::Write,
                _ => OpClass::Other,
            },
            _ => OpClass::Other,
        }
    }

    /// The word of the label `op`.
    pub fn name(self) -> &'static str {
        match self {
            OpClass::Read => "read",
            OpClass::Write => "write",
            OpClass::Unmap => "unmap",
            OpClass::Flush => "flush",
            OpClass::Other => "other",
        }
    }
}

/// Ends of commands without GOOD, by the word of the label `status`.
pub const FAILURES: [&str; 7] = [
    "check_condition",
    "busy",
    "reservation_conflict",
    "task_set_full",
    "task_aborted",
    "other",
    // No status: the initiator aborted the command, or its session ended.
    "aborted",
];

/// The index in [`FAILURES`] of a command that ended without a status.
const ABORTED: usize = FAILURES.len() - 1;

/// The index in [`FAILURES`] of a status; None for success.
fn failure_of(status: u8) -> Option<usize> {
    const CODES: [Status; 5] = [
        Status::CheckCondition,
        Status::Busy,
        Status::ReservationConflict,
        Status::TaskSetFull,
        Status::TaskAborted,
    ];
    match CODES.iter().position(|code| *code as u8 == status) {
        None if [Status::Good, Status::ConditionMet].iter().any(|good| *good as u8 == status) => None,
        None => Some(CODES.len()),
        found => found,
    }
}

/// The counters of an I_T_L nexus. Only its core writes them. Those of each command come first, in few cache lines.
#[derive(Default)]
#[repr(C)]
pub struct NexusCounters {
    commands: [SessionCounter; OpClass::ALL.len()],
    read_bytes: SessionCounter,
    written_bytes: SessionCounter,
    /// Latencies, for each kind of command that was used.
    latency: [OnceLock<Box<StageCounters>>; OpClass::ALL.len()],
    failures: [SessionCounter; FAILURES.len()],
    /// By sense key.
    senses: [SessionCounter; 16],
    /// Tasks that began, and those that ended.
    begun: SessionCounter,
    ended: SessionCounter,
}

/// The durations of the stages of a command.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    /// From its arrival to its execution: it waits for data, for its turn and for memory.
    pub queue: Duration,
    /// Its execution by the medium, or by the remote target.
    pub backend: Duration,
    /// From its end until its response is handed to the network.
    pub send: Duration,
}

impl NexusCounters {
    /// Counts a command, and the bytes that it moved.
    #[inline]
    pub fn count(&self, class: OpClass, read: u64, written: u64) {
        self.commands[class as usize].add(1);
        if read > 0 {
            self.read_bytes.add(read);
        }
        if written > 0 {
            self.written_bytes.add(written);
        }
    }

    /// Counts the end of a command without GOOD. None: it has no status.
    pub fn count_failure(&self, status: Option<u8>, sense: Option<&Sense>) {
        if let Some(failure) = status.map_or(Some(ABORTED), failure_of) {
            self.failures[failure].add(1);
        }
        if let Some(sense) = sense {
            self.senses[usize::from(sense.key & 0xf)].add(1);
        }
    }

    /// A command became a task.
    pub fn begin_task(&self) {
        self.begun.add(1);
    }

    /// A task ended. The LUN may have been another logical unit when it began.
    pub fn end_task(&self) {
        if self.ended.get() < self.begun.get() {
            self.ended.add(1);
        }
    }

    /// Adds `count` commands with these durations.
    pub fn add_latency(&self, class: OpClass, count: u32, stages: Stages) {
        self.latency[class as usize].get_or_init(Box::default).add(count.into(), stages);
    }
}

/// The counters of a logical unit, or of a session: of its current nexuses, and the sum of those that ended.
#[derive(Default)]
pub struct LuCounters(Mutex<CountersByNexus>);

#[derive(Default)]
struct CountersByNexus {
    current: Vec<Arc<NexusCounters>>,
    ended: LuTotals,
}

impl LuCounters {
    fn lock(&self) -> MutexGuard<'_, CountersByNexus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sum over all nexuses.
    pub fn totals(&self) -> LuTotals {
        let by_nexus = self.lock();
        let mut totals = by_nexus.ended.clone();
        by_nexus.current.iter().for_each(|nexus| totals.add(nexus));
        totals
    }
}

/// The counters of a nexus, in the lists of its logical unit and of its session until dropped.
pub struct CountersListing {
    lists: [Arc<LuCounters>; 2],
    nexus: Arc<NexusCounters>,
}

impl CountersListing {
    /// Counters for one more nexus of a logical unit and of a session.
    pub fn new(of_unit: &Arc<LuCounters>, of_session: &Arc<LuCounters>) -> CountersListing {
        let nexus = Arc::<NexusCounters>::default();
        let lists = [of_unit.clone(), of_session.clone()];
        lists.iter().for_each(|list| list.lock().current.push(nexus.clone()));
        CountersListing { lists, nexus }
    }

    /// The counters, for responses that outlast the nexus.
    pub fn shared(&self) -> &Arc<NexusCounters> {
        &self.nexus
    }
}

impl Deref for CountersListing {
    type Target = NexusCounters;

    #[inline]
    fn deref(&self) -> &NexusCounters {
        &self.nexus
    }
}

impl Drop for CountersListing {
    fn drop(&mut self) {
        for list in &self.lists {
            let mut by_nexus = list.lock();
            by_nexus.current.retain(|nexus| !Arc::ptr_eq(nexus, &self.nexus));
            by_nexus.ended.add(&self.nexus);
            // Its tasks are gone with it.
            by_nexus.ended.in_flight = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nexus_counts_for_its_unit_and_its_session() {
        let (unit, sessions) = (Arc::<LuCounters>::default(), [(); 2].map(|()| Arc::<LuCounters>::default()));
        let [first, _second] = sessions.each_ref().map(|session| {
            let nexus = CountersListing::new(&unit, session);
            nexus.begin_task();
            nexus.count(OpClass::Read, 512, 0);
            nexus
        });
        let seen = || {
            let [a, b] = sessions.each_ref().map(|session| session.totals());
            [unit.totals(), a, b].map(|totals| (totals.commands[0], totals.in_flight))
        };
        assert_eq!(seen(), [(2, 2), (1, 1), (1, 1)]);
        drop(first);
        assert_eq!(seen(), [(2, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn commands_have_the_kind_of_their_operation_code() {
        let long = |action: u8| [&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0][..], &[action], &[0; 22]].concat();
        for (cdb, expected) in [
            (vec![0x28; 16], OpClass::Read),
            (vec![0x88; 16], OpClass::Read),
            (vec![0x8a; 16], OpClass::Write),
            (vec![0x93; 16], OpClass::Write),
            (vec![0x42; 16], OpClass::Unmap),
            (vec![0x91; 16], OpClass::Flush),
            (vec![0x12; 16], OpClass::Other),
            (long(0x09), OpClass::Read),
            (long(0x0b), OpClass::Write),
            (long(0x05), OpClass::Other),
        ] {
            assert_eq!(OpClass::of(&cdb), expected, "{cdb:x?}");
        }
    }
}
