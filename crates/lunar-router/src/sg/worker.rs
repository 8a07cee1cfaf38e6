//! The thread of a device: submits commands to the kernel in order, and returns their completions.

use super::driver::{SgCompletion, SgDriver, SgIo};
use super::translate::{SubstituteResponse, refused, reply};
use lunar_target::PassthroughResponse;
use lunar_wire::scsi::TaskAttribute;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The counters and the state of a device.
#[derive(Debug, Default)]
pub(super) struct SgCounters {
    /// Commands that the kernel accepted.
    pub commands: AtomicU64,
    /// Those that have not completed.
    pub in_flight: AtomicU64,
    /// Commands that the kernel rejected.
    pub refused: AtomicU64,
    /// Commands that the host adapter ended instead of the device.
    pub host_errors: AtomicU64,
    /// Resets of the logical unit.
    pub resets: AtomicU64,
    /// Whether the device was removed.
    pub gone: AtomicBool,
}

/// A request to the thread.
pub(super) enum Request {
    /// A command.
    Run(SgJob),
    /// Ends commands: queued ones at once, the others when the kernel completes them.
    End(CancelScope, EndMark),
}

/// Closed when the last of the ended commands has completed.
pub(super) type EndMark = flume::Sender<Infallible>;

/// A command, and the channel for its reply.
pub(super) struct SgJob {
    /// The nexus of the command, and its tag there.
    pub from: (u64, u64),
    /// Its task attribute.
    pub attribute: TaskAttribute,
    /// The command.
    pub sg_io: SgIo,
    /// The channel for its reply.
    pub reply: flume::Sender<PassthroughResponse>,
}

/// The commands to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum CancelScope {
    /// One.
    Tag(u64, u64),
    /// All of a nexus.
    Nexus(u64),
    /// All.
    All,
}

impl CancelScope {
    fn has(self, from: (u64, u64)) -> bool {
        match self {
            CancelScope::Tag(nexus, tag) => from == (nexus, tag),
            CancelScope::Nexus(nexus) => from.0 == nexus,
            CancelScope::All => true,
        }
    }
}

/// A command in the kernel.
struct InFlightCommand {
    from: (u64, u64),
    ordered: bool,
    reply: flume::Sender<PassthroughResponse>,
    /// Closed when it has completed.
    ends: Vec<EndMark>,
}

/// The state of the thread.
pub(super) struct SgWorker {
    driver: Arc<dyn SgDriver>,
    requests: flume::Receiver<Request>,
    counters: Arc<SgCounters>,
    depth: usize,
    max_transfer: usize,
    waiting: VecDeque<SgJob>,
    flying: HashMap<u32, InFlightCommand>,
    last: u32,
}

impl SgWorker {
    /// Creates a worker with at most `depth` commands in the kernel.
    pub fn new(
        driver: Arc<dyn SgDriver>,
        requests: flume::Receiver<Request>,
        counters: Arc<SgCounters>,
        depth: usize,
        max_transfer: usize,
    ) -> SgWorker {
        let (waiting, flying) = Default::default();
        SgWorker { driver, requests, counters, depth, max_transfer, waiting, flying, last: 0 }
    }

    /// Runs until the request channel is closed.
    pub fn run(mut self) {
        if let Err(e) = self.work() {
            tracing::error!(error = %e, "cannot read completions of the sg device: its commands fail from now on");
            self.refuse_all();
        }
    }

    fn work(&mut self) -> io::Result<()> {
        loop {
            self.land()?;
            // Before the next submission: ended commands must not be submitted.
            let is_over = !self.take_requests();
            self.launch();
            if is_over {
                return Ok(());
            }
            self.driver.wait(!self.flying.is_empty())?;
        }
    }

    /// Handles requests. Returns false when the request channel is closed.
    fn take_requests(&mut self) -> bool {
        loop {
            match self.requests.try_recv() {
                Ok(request) => self.take(request),
                Err(flume::TryRecvError::Empty) => return true,
                Err(flume::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Run(job) if job.attribute == TaskAttribute::HeadOfQueue => self.waiting.push_front(job),
            Request::Run(job) => self.waiting.push_back(job),
            Request::End(which, ended) => self.end(which, ended),
        }
    }

    fn end(&mut self, which: CancelScope, ended: EndMark) {
        self.waiting.retain(|job| {
            let stays = !which.has(job.from);
            if !stays {
                answer(&job.reply, SubstituteResponse::ENDED.reply());
            }
            stays
        });
        let flying = self.flying.values_mut().filter(|flight| which.has(flight.from));
        flying.for_each(|flight| flight.ends.push(ended.clone()));
    }

    /// Submits commands, as far as permitted.
    fn launch(&mut self) {
        while self.may_launch()
            && let Some(job) = self.waiting.pop_front()
        {
            self.last = self.last.wrapping_add(1);
            let (id, len) = (self.last, job.sg_io.len());
            match self.driver.send(id, job.sg_io) {
                Ok(()) => {
                    self.counters.commands.fetch_add(1, Relaxed);
                    let ordered = job.attribute == TaskAttribute::Ordered;
                    self.flying.insert(
                        id,
                        InFlightCommand { from: job.from, ordered, reply: job.reply, ends: Vec::new() },
                    );
                }
                Err((e, sg_io)) => self.not_taken(&e, &sg_io, len, &job.reply),
            }
        }
        self.counters.in_flight.store(self.flying.len() as u64, Relaxed);
    }

    /// The kernel has no ORDERED task attribute: such a command runs alone.
    fn may_launch(&self) -> bool {
        let Some(next) = self.waiting.front() else { return false };
        let apart = match next.attribute {
            TaskAttribute::Ordered => !self.flying.is_empty(),
            TaskAttribute::Simple => self.flying.values().any(|flight| flight.ordered),
            TaskAttribute::HeadOfQueue => false,
        };
        !apart && self.flying.len() < self.depth
    }

    fn not_taken(&self, e: &io::Error, sg_io: &SgIo, len: usize, to: &flume::Sender<PassthroughResponse>) {
        self.counters.refused.fetch_add(1, Relaxed);
        let substitute = refused(e, len, self.max_transfer);
        if substitute == SubstituteResponse::GONE && !self.counters.gone.swap(true, Relaxed) {
            tracing::warn!(error = %e, "the sg device was removed");
        }
        tracing::debug!(error = %e, opcode = sg_io.cdb.first(), len, "the kernel rejected a SCSI command");
        answer(to, substitute.reply());
    }

    /// Handles completions.
    fn land(&mut self) -> io::Result<()> {
        while !self.flying.is_empty()
            && let Some(ended) = self.driver.receive()?
        {
            self.landed(ended);
        }
        Ok(())
    }

    fn landed(&mut self, ended: SgCompletion) {
        let SgCompletion { id, sg_io, outcome } = ended;
        if outcome.host != 0 {
            self.counters.host_errors.fetch_add(1, Relaxed);
            let opcode = sg_io.cdb.first();
            tracing::debug!(
                opcode,
                host = outcome.host,
                status = outcome.status,
                "the host adapter ended a SCSI command with an error"
            );
        }
        if let Some(flight) = self.flying.remove(&id) {
            answer(&flight.reply, reply(sg_io, outcome));
        }
    }

    /// Rejects all queued and future commands.
    fn refuse_all(&mut self) {
        self.counters.gone.store(true, Relaxed);
        self.counters.in_flight.store(0, Relaxed);
        self.flying.drain().for_each(|(_, flight)| answer(&flight.reply, SubstituteResponse::GONE.reply()));
        self.waiting.drain(..).for_each(|job| answer(&job.reply, SubstituteResponse::GONE.reply()));
        while let Ok(request) = self.requests.recv() {
            if let Request::Run(job) = request {
                answer(&job.reply, SubstituteResponse::GONE.reply());
            }
        }
    }
}

/// Sends a reply, unless the receiver is dropped.
fn answer(to: &flume::Sender<PassthroughResponse>, reply: PassthroughResponse) {
    let _ = to.send(reply);
}
