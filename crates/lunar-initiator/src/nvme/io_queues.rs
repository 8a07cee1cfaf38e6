//! The I/O queues of a controller, and the choice among them.
//!
//! The first queue is on the core of the controller. Its commands cross no thread, so small commands from this core use it
//! alone. Each further queue is on an event loop that all controllers share: bytes of large commands, and commands from
//! other cores, spread over several CPUs.

use super::association::{Association, QueueAttempt, SubsystemAddress};
use super::controller_info::max_transfer;
use super::host_queue::HostQueue;
use super::io_queue::{EndReport, IoQueue, QueueConnect, QueueRequest, QueueUse};
use super::options::NvmeOptions;
use super::queue_load::QueueLoad;
use super::status::closed;
use crate::connect::login_timed_out;
use crate::{Error, ErrorCode, time_limit};
use lunar_runtime::{Cores, all, processors};
use lunar_wire::nvme::ConnectCommand;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most I/O queues of a controller by default.
const DEFAULT_QUEUES: usize = 4;
/// How much more load the first queue has than another before commands of its own core use the other one, in bytes.
const ADVANTAGE: u64 = 1 << 20;
/// All further queues together have this part of the time of an attempt to connect.
const SHARE: u32 = 4;

/// The I/O queues of a controller.
pub struct IoQueues {
    queues: Vec<IoQueue>,
    /// The weight of a command without data. A full queue of them weighs as much as [`ADVANTAGE`].
    weight: AtomicU64,
}

impl IoQueues {
    /// The queues that the options ask for, without connections. The first one is on this core.
    pub async fn start(options: &NvmeOptions) -> Arc<IoQueues> {
        let wanted = options.io_queues.map_or(processors().min(DEFAULT_QUEUES), usize::from);
        let entries = options.queue_len;
        let mut queues = vec![IoQueue::start(entries)];
        while queues.len() < wanted {
            let at = queues.len() - 1;
            match start_on_loop(at, move || IoQueue::start(entries)).await {
                Ok(queue) => queues.push(queue),
                Err(e) => {
                    tracing::warn!("{} of {wanted} I/O queues are used: no event loop: {e}", queues.len());
                    break;
                }
            }
        }
        Arc::new(IoQueues { queues, weight: AtomicU64::new(weight(entries)) })
    }

    /// These queues, of which the first one is on this core.
    #[cfg(test)]
    pub fn of(queues: Vec<IoQueue>) -> Arc<IoQueues> {
        Arc::new(IoQueues { queues, weight: AtomicU64::new(ADVANTAGE) })
    }

    /// The queues for this many small commands that are in flight together.
    #[cfg(test)]
    pub fn choose_all(&self, count: usize) -> Vec<usize> {
        let chosen: Vec<(usize, QueueLoad)> = (0..count).map(|_| self.choose(1)).collect();
        chosen.iter().map(|(at, _)| *at).collect()
    }

    /// The queue for a command of this many bytes, and the load that the command adds to it.
    pub fn choose(&self, len: usize) -> (usize, QueueLoad) {
        if self.queues.len() == 1 {
            return (0, QueueLoad::default());
        }
        let advantage = if self.queues[0].local().is_some() { ADVANTAGE } else { 0 };
        let load = |(at, queue): &(usize, &IoQueue)| queue.load.sum() + if *at == 0 { 0 } else { advantage };
        let usable = self.queues.iter().enumerate().filter(|(at, queue)| *at == 0 || queue.is_usable());
        let (at, queue) = usable.min_by_key(load).expect("the first queue");
        (at, queue.load.add(len as u64 + self.weight.load(Ordering::Relaxed)))
    }

    /// The queue with this index.
    pub fn queue(&self, at: usize) -> &IoQueue {
        &self.queues[at]
    }

    /// The first queue, if the caller is on its core.
    pub fn first_local(&self) -> Option<Rc<HostQueue>> {
        self.queues[0].local()
    }

    /// Connects as many queues as the controller grants, and returns their number. Only the first one must succeed, and
    /// each must authenticate: a controller may have no room for more. The association keeps the attempt whose time was too
    /// short, which goes on.
    ///
    /// # Errors
    /// Those of Set Features and of the first queue; [`ErrorCode::AuthenticationFailed`] of any queue.
    pub async fn connect(
        &self,
        association: &mut Association,
        address: &SubsystemAddress,
        options: &NvmeOptions,
    ) -> Result<u16, Error> {
        let wanted = u16::try_from(self.queues.len()).unwrap_or(u16::MAX);
        let granted = association.request_queues(wanted).await?;
        association.granted_queues = granted;
        self.weight.store(weight(entries(association, options)), Ordering::Relaxed);
        let (mut limit, mut end) = (options.timeouts.login, None);
        for number in 1..=granted {
            let attempt = self.begin(association, address, options, number);
            let connected = match time_limit::within(limit, attempt.recv_async()).await {
                Some(connected) => connected.unwrap_or_else(|_| Err(closed())),
                None => {
                    association.late_queue = Some(attempt);
                    Err(login_timed_out(limit))
                }
            };
            match connected.map_err(|e| e.during(format!("I/O queue {number}"))) {
                Ok(()) => {}
                Err(e) if number == 1 || e.code == ErrorCode::AuthenticationFailed => return Err(e),
                Err(e) => {
                    let subsystem = &address.subsystem;
                    tracing::warn!(%subsystem, "{} of {granted} I/O queues are used: {e}", number - 1);
                    return Ok(number - 1);
                }
            }
            let end = end.get_or_insert_with(|| Instant::now() + time_of_further_queues(options));
            limit = end.saturating_duration_since(Instant::now());
        }
        Ok(granted)
    }

    /// Begins to connect the queue with this number, which counts from 1.
    pub fn begin(
        &self,
        association: &Association,
        address: &SubsystemAddress,
        options: &NvmeOptions,
        number: u16,
    ) -> QueueAttempt {
        let (reply, attempt) = flume::bounded(1);
        let limit = max_transfer(&association.identify, association.page_shift);
        let with = QueueConnect {
            address: address.clone(),
            peer: association.peer,
            options: options.clone(),
            command: ConnectCommand {
                queue: number,
                queue_len: entries(association, options),
                // Then data may carry the success of their command.
                disables_flow_control: true,
                keep_alive_ms: 0,
            },
            controller: association.id,
            capsule_data: association.capsule_data(),
            max_transfer: limit.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX),
            reply,
        };
        // If the event loop of the queue has ended, there is no reply.
        _ = self.queues[usize::from(number) - 1].send(QueueRequest::Connect(Box::new(with)));
        attempt
    }

    /// Waits for the end of an attempt, which is given up after `limit`.
    ///
    /// # Errors
    /// Those of Connect, and the end of the time.
    pub async fn end(&self, number: u16, attempt: &QueueAttempt, limit: Duration) -> Result<(), Error> {
        let connected = match time_limit::within(limit, attempt.recv_async()).await {
            Some(connected) => connected.unwrap_or_else(|_| Err(closed())),
            None => Err(login_timed_out(limit)),
        };
        connected.map_err(|e| {
            self.queues[usize::from(number) - 1].reset(e.clone());
            e.during(format!("I/O queue {number}"))
        })
    }

    /// Sends commands from now on, on this many queues. The first one takes over the commands of the others.
    pub fn admit(&self, count: u16, association: &Association, options: &NvmeOptions) {
        (1..=count).for_each(|number| self.admit_one(number, association, options));
        self.queues.iter().skip(count.into()).for_each(|queue| queue.forward(&self.queues[0]));
    }

    /// Sends commands from now on, on the queue with this number too.
    pub fn admit_one(&self, number: u16, association: &Association, options: &NvmeOptions) {
        let with =
            QueueUse { report: EndReport::to(&association.io_ended.0), limit: options.timeouts.command };
        self.queues[usize::from(number) - 1].admit(with);
    }

    /// Ends all connections.
    pub fn reset(&self, why: &Error) {
        self.queues.iter().for_each(|queue| queue.reset(why.clone()));
    }

    /// Fails the commands that wait, and those that are submitted until the next connection.
    pub fn refuse(&self, why: &Error) {
        self.queues.iter().for_each(|queue| queue.refuse(why.clone()));
    }

    /// Waits until no queue has a connection.
    pub async fn disconnected(&self) {
        let ended = |queue: Rc<HostQueue>| async move { _ = queue.disconnected().await };
        all(self.queues.iter().map(|queue| async move { _ = queue.ask(ended).await })).await;
    }

    /// Refuses new commands, and waits until no command is in flight.
    pub async fn drained(&self) {
        all(self.queues.iter().map(|queue| async move { _ = queue.ask(HostQueue::drained).await })).await;
    }

    /// Commands that the controller has answered on all queues.
    pub fn answered(&self) -> u64 {
        self.queues.iter().map(IoQueue::answered).fold(0, u64::wrapping_add)
    }
}

/// The time in which further queues can connect. Meanwhile, there is no Keep Alive.
fn time_of_further_queues(options: &NvmeOptions) -> Duration {
    let part = options.timeouts.login / SHARE;
    if options.keep_alive.is_zero() { part } else { part.min(options.keep_alive / 2) }
}

/// Entries of an I/O queue.
fn entries(association: &Association, options: &NvmeOptions) -> u32 {
    options.queue_len.min(association.max_entries).max(2)
}

fn weight(entries: u32) -> u64 {
    ADVANTAGE / u64::from(entries.saturating_sub(1).max(1))
}

/// Runs work on an event loop for further queues. There is one less than the process has CPUs, and at least one. Each starts at
/// first use, and runs until the process ends.
async fn start_on_loop<T: Send + 'static>(
    at: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    static LOOPS: Mutex<Vec<Cores>> = Mutex::new(Vec::new());
    let count = (processors() - 1).max(1);
    let started = {
        let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
        while loops.len() <= at % count {
            loops.push(Cores::unbound()?);
        }
        loops[at % count].start_on(0, || async { work() })
    };
    started.recv_async().await.map_err(|_| io::Error::other("the thread of an event loop panicked"))
}
