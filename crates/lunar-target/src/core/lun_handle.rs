//! The I_T_L nexus of a LUN that was used, with its medium.

use super::io_queue::IoQueue;
use super::passed_commands::PassedCommands;
use crate::access::LunEntry;
use crate::lu_counters::{CountersListing, OpClass};
use crate::nexus_list::{NexusList, NexusListing};
use crate::task_set_lock::TaskSetHandle;
use crate::{LogicalUnit, PassthroughNexus};
use lunar_block::{Backend, TryIo};
use lunar_runtime::piped_bytes::MAX_PIPED;
use lunar_runtime::{Buf, PipedBytes, Pool};
use lunar_scsi::{Nexus, NexusPorts, Plan, PlanResult};
use lunar_wire::scsi::{Status, op};
use std::rc::Rc;
use std::sync::Arc;

/// Maximum length of a read that is tried without waiting, in bytes. A longer one would delay other connections of
/// the core.
const MAX_READ_AT_ONCE: u32 = 256 << 10;
/// Length in bytes from which references to pages can cost less than a copy of them. For 128 KiB, processors differ: from
/// 0.91 of the rate of the copy to more than it (BENCHMARKS.md).
pub const MIN_PAGES_LEN: u32 = 128 << 10;

/// The result of a read without waiting.
pub enum ReadAttempt {
    /// The data are zeros.
    Zeros,
    /// The data.
    Done(Buf),
    /// Pages with the data.
    Pages(PipedBytes),
    /// The read would wait.
    NotNow,
}

/// A LUN that this session has used.
pub struct LunHandle {
    /// The I_T_L nexus.
    nexus: Nexus,
    /// The logical unit behind it.
    unit: Arc<LogicalUnit>,
    /// The backend, as of `epoch`.
    backend: Arc<dyn Backend>,
    /// Whether the backend needs no reads and keeps no data, as of `epoch`.
    null: bool,
    /// Whether other servers share the state of the logical unit.
    is_shared: bool,
    /// Whether the medium is remote, so that no command completes at once; as of `epoch`.
    is_remote: bool,
    /// The block size in bytes, as of `epoch`.
    block_size: u32,
    /// The epoch of the nexus when the backend was looked up.
    epoch: u64,
    /// Number of unfinished ORDERED commands.
    ordered: i32,
    /// Its nexus with the remote logical unit, if this is a passthrough.
    passthrough: Option<Rc<dyn PassthroughNexus>>,
    /// The forwarded commands without an async task, if the passthrough has a queue.
    passed: Option<Rc<PassedCommands>>,
    /// The queue of its medium, if that executes many commands at once, as of `epoch`.
    queue: Option<Rc<IoQueue>>,
    /// The counters of the nexus.
    counters: CountersListing,
    /// The commands of the current receive that completed at once, by [`OpClass`].
    at_once: [u32; OpClass::ALL.len()],
    /// Its entry in the list of nexuses of the session.
    _listing: NexusListing,
}

impl LunHandle {
    /// Creates the I_T_L nexus of a LUN.
    pub fn open(visible: &LunEntry, port: &Arc<NexusPorts>, nexuses: &Arc<NexusList>) -> LunHandle {
        let unit = visible.unit.clone();
        let backend = unit.backend();
        let info = backend.info();
        let nexus = unit.lu.attach(port.clone(), visible.read_only);
        let passthrough = unit.passthrough().map(|passthrough| passthrough.enter(port));
        LunHandle {
            _listing: nexuses.list(&nexus),
            nexus,
            null: info.null,
            is_shared: unit.sharing().is_some(),
            is_remote: info.remote,
            backend,
            block_size: unit.lu.settings().block_size,
            // The first command looks up the backend, because the epoch differs.
            epoch: 0,
            ordered: 0,
            passed: passthrough.clone().and_then(PassedCommands::of),
            passthrough,
            queue: None,
            counters: CountersListing::new(&unit.counters, nexuses.counters()),
            at_once: Default::default(),
            unit,
        }
    }

    /// The block size in bytes, as of the last command.
    #[inline]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The counters of the nexus.
    #[inline]
    pub fn counters(&self) -> &CountersListing {
        &self.counters
    }

    /// Counts a command that completed at once for the latency of the current receive. True: it is the first one.
    #[inline]
    pub fn add_at_once(&mut self, class: OpClass) -> bool {
        let is_first = self.at_once == [0; OpClass::ALL.len()];
        self.at_once[class as usize] += 1;
        is_first
    }

    /// The number of commands that completed at once.
    pub fn at_once(&self) -> u32 {
        self.at_once.iter().sum()
    }

    /// Takes the numbers of commands that completed at once, by [`OpClass`].
    pub fn take_at_once(&mut self) -> [u32; OpClass::ALL.len()] {
        std::mem::take(&mut self.at_once)
    }

    /// The I_T_L nexus.
    #[inline]
    pub fn nexus(&self) -> &Nexus {
        &self.nexus
    }

    /// The same, mutably.
    pub fn nexus_mut(&mut self) -> &mut Nexus {
        &mut self.nexus
    }

    /// The logical unit behind it.
    #[inline]
    pub fn unit(&self) -> &Arc<LogicalUnit> {
        &self.unit
    }

    /// Its nexus with the remote logical unit, if this is a passthrough.
    pub fn passthrough(&self) -> Option<Rc<dyn PassthroughNexus>> {
        self.passthrough.clone()
    }

    /// The forwarded commands without an async task, if the passthrough has a queue.
    pub fn passed(&self) -> Option<&Rc<PassedCommands>> {
        self.passed.as_ref()
    }

    /// Whether there are unfinished ORDERED commands.
    #[inline]
    pub fn has_ordered(&self) -> bool {
        self.ordered > 0
    }

    /// Number of unfinished ORDERED commands.
    pub fn ordered(&self) -> i32 {
        self.ordered
    }

    /// Counts ORDERED commands that begin or end.
    pub fn count_ordered(&mut self, by: i32) {
        // Never below zero: the LUN may have belonged to another logical unit meanwhile.
        self.ordered = (self.ordered + by).max(0);
    }

    /// Reads from the cache, or returns zeros for a null backend. `takes_pages`: the pages themselves will do.
    #[inline]
    pub fn try_read(&self, pool: &Pool, offset: u64, len: u32, room: u32, takes_pages: bool) -> ReadAttempt {
        if self.null {
            return ReadAttempt::Zeros;
        }
        let n = len.min(room);
        if takes_pages
            && (MIN_PAGES_LEN..=MAX_PIPED as u32).contains(&n)
            && let Some(pages) = self.backend.cached_pages(offset, n as usize)
        {
            return ReadAttempt::Pages(pages);
        }
        if n == 0 || n > MAX_READ_AT_ONCE || self.is_remote {
            return ReadAttempt::NotNow;
        }
        let Some(mut buf) = pool.try_get(n as usize) else { return ReadAttempt::NotNow };
        match self.backend.try_read(offset, &mut buf) {
            TryIo::Done(Ok(())) => ReadAttempt::Done(buf),
            _ => ReadAttempt::NotNow,
        }
    }

    /// Writes without waiting.
    #[inline]
    pub fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        self.backend.try_write(offset, data)
    }

    /// The preferred length of reads from a remote medium.
    pub fn preferred_read_size(&self) -> Option<usize> {
        self.is_remote.then(|| self.backend.preferred_read_size()).flatten()
    }

    /// The task set of its logical unit, on this core.
    pub fn task_set(&self) -> TaskSetHandle {
        self.unit.task_set.handle(self.nexus.core_index())
    }

    /// See [`Nexus::begin_transfer`]; otherwise as [`LunHandle::begin`]. A shared logical unit has no such plan.
    #[inline]
    pub fn begin_transfer(&mut self, cdb: &[u8]) -> Option<Plan> {
        if self.is_shared {
            return None;
        }
        let plan = self.nexus.begin_transfer(cdb);
        if self.nexus.epoch() != self.epoch {
            self.refresh();
        }
        plan
    }

    /// Plans a command that holds the task set lock, or would. Afterwards `backend` is current, because replacing the
    /// backend advances the epoch.
    pub fn begin(&mut self, cdb: &[u8]) -> PlanResult {
        if self.is_shared && !self.unit.may_answer() {
            return Err(Status::Busy.into());
        }
        let mut plan = self.nexus.begin(cdb);
        // The medium refuses the operations of a server whose state is old. An error, or REQUEST SENSE, may have taken a unit
        // attention.
        if self.is_shared
            && plan.as_ref().is_ok_and(|plan| !plan.attributes().accesses_medium)
            && cdb.first() != Some(&op::REQUEST_SENSE)
            && !(self.unit.may_decide() || self.unit.is_unavailable())
        {
            plan = Err(Status::Busy.into());
        }
        if self.nexus.epoch() != self.epoch {
            self.refresh();
        }
        plan
    }

    /// The queue of the medium, if that executes many commands at once on this core.
    pub fn queue(&mut self) -> Option<Rc<IoQueue>> {
        if self.queue.is_none() {
            self.queue = self.backend.clone().queue().map(|queue| Rc::new(IoQueue::new(queue)));
        }
        self.queue.clone()
    }

    /// Looks up the backend again.
    #[cold]
    pub fn refresh(&mut self) {
        self.backend = self.unit.backend();
        self.queue = None;
        let info = self.backend.info();
        (self.null, self.is_remote) = (info.null, info.remote);
        self.block_size = self.unit.lu.settings().block_size;
        self.epoch = self.nexus.epoch();
    }
}
