//! An I/O queue on its core, as every core reaches it.

use super::association::{SubsystemAddress, connect_queue};
use super::command::{NvmeCommand, NvmeResult};
use super::host_queue::HostQueue;
use super::initialize::initialize;
use super::options::NvmeOptions;
use super::queue_load::LoadCounter;
use super::queue_tasks::CompletionWaiter;
use super::status::closed;
use crate::Error;
use lunar_block::LocalBoxFuture;
use lunar_runtime::{CoreHandle, Registration, either};
use lunar_wire::nvme::{ConnectCommand, Fuse};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Work on a queue on its core.
type QueueWork = Box<dyn FnOnce(&Rc<HostQueue>) + Send>;

/// A request to an I/O queue. Requests take effect in order.
pub enum QueueRequest {
    /// A command.
    Command(NvmeCommand, flume::Sender<NvmeResult>),
    /// A fused pair.
    Pair(Box<[NvmeCommand; 2]>, [flume::Sender<NvmeResult>; 2]),
    /// Connects the queue, which has no connection.
    Connect(Box<QueueConnect>),
    /// Sends commands from now on.
    Admit(QueueUse),
    /// Ends the connection, or the attempt to connect.
    Reset(Error),
    /// Passes commands to another queue until this one is admitted.
    Forward(IoQueue),
    /// Other work on the queue.
    Run(QueueWork),
}

/// The parameters of a connection of an I/O queue.
pub struct QueueConnect {
    /// The place of the controller.
    pub address: SubsystemAddress,
    /// The address of the admin queue.
    pub peer: SocketAddr,
    /// The options.
    pub options: NvmeOptions,
    /// Connect.
    pub command: ConnectCommand,
    /// The identifier of the controller.
    pub controller: u16,
    /// Bytes of data that a capsule has room for.
    pub capsule_data: usize,
    /// The most data of a command, in bytes.
    pub max_transfer: usize,
    /// Receives the end of the attempt.
    pub reply: flume::Sender<Result<(), Error>>,
}

/// The use of a connected queue. A connection that is never used ends without a report.
pub struct QueueUse {
    /// Reports the end of the connection.
    pub report: EndReport,
    /// The time limit of commands.
    pub limit: Duration,
}

/// The report of the end of a connection: also when the event loop of the queue ends first.
pub struct EndReport(Option<flume::Sender<Error>>);

impl EndReport {
    /// A report to this receiver of the reason.
    pub fn to(ended: &flume::Sender<Error>) -> EndReport {
        EndReport(Some(ended.clone()))
    }

    fn send(&mut self, why: Error) {
        if let Some(ended) = self.0.take() {
            // The controller may have ended already.
            _ = ended.send(why);
        }
    }
}

impl Drop for EndReport {
    fn drop(&mut self) {
        self.send(closed());
    }
}

/// An I/O queue, for every core.
#[derive(Clone)]
pub struct IoQueue {
    handle: CoreHandle<HostQueue, QueueRequest>,
    answered: Arc<AtomicU64>,
    is_usable: Arc<AtomicBool>,
    /// The work that its commands make.
    pub load: Arc<LoadCounter>,
}

impl IoQueue {
    /// A queue on this core, without a connection. It ends when all handles are dropped.
    pub fn start(entries: u32) -> IoQueue {
        let queue = HostQueue::new(entries, 0);
        let answered = queue.state.borrow().answered.clone();
        let (handle, registration, requests) = CoreHandle::new(queue);
        let is_usable = Arc::<AtomicBool>::default();
        let requests = UnservedRequests { requests, is_usable: is_usable.clone() };
        lunar_runtime::spawn(serve(registration, requests));
        IoQueue { handle, answered, is_usable, load: Arc::default() }
    }

    /// The queue itself, if the caller is on its core.
    pub fn local(&self) -> Option<Rc<HostQueue>> {
        self.handle.local()
    }

    /// Commands that the controller has answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether new commands may use the queue.
    pub fn is_usable(&self) -> bool {
        self.is_usable.load(Ordering::Relaxed)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Returns the request when the queue has ended.
    pub fn send(&self, request: QueueRequest) -> Result<(), Box<QueueRequest>> {
        self.handle.send(request).map_err(Box::new)
    }

    /// Runs work on the core of the queue.
    pub fn run(&self, work: impl FnOnce(&Rc<HostQueue>) + Send + 'static) {
        // An error means that the event loop of the queue has ended.
        _ = self.send(QueueRequest::Run(Box::new(work)));
    }

    /// Runs work on the core of the queue, and waits for its result. None: the event loop of the queue has ended.
    pub async fn ask<T, W>(&self, work: impl FnOnce(Rc<HostQueue>) -> W + Send + 'static) -> Option<T>
    where
        T: Send + 'static,
        W: Future<Output = T> + 'static,
    {
        let (reply, response) = flume::bounded(1);
        self.run(move |queue| {
            let work = work(queue.clone());
            // The caller may have stopped waiting.
            lunar_runtime::spawn(async move { _ = reply.send(work.await) });
        });
        response.recv_async().await.ok()
    }

    /// Ends the connection, or the attempt to connect.
    pub fn reset(&self, why: Error) {
        // An error means that the event loop of the queue has ended.
        _ = self.send(QueueRequest::Reset(why));
    }

    /// Sends commands from now on: at once, if the caller is on the core of the queue, which then passes no commands on.
    pub fn admit(&self, with: QueueUse) {
        // Commands that use the queue from now on come behind the request.
        self.is_usable.store(true, Ordering::Relaxed);
        match self.local() {
            Some(queue) => admit(&queue, with),
            None if self.send(QueueRequest::Admit(with)).is_ok() => {}
            // The event loop of the queue has ended.
            None => self.is_usable.store(false, Ordering::Relaxed),
        }
    }

    /// Fails the commands that wait, and those that are submitted until the next connection.
    pub fn refuse(&self, why: Error) {
        self.is_usable.store(false, Ordering::Relaxed);
        self.run(move |queue| queue.state.borrow_mut().refuse(&why));
    }

    /// Passes the commands that wait, and those that still come, to another queue until this one is admitted.
    pub fn forward(&self, to: &IoQueue) {
        self.is_usable.store(false, Ordering::Relaxed);
        // An error means that the event loop of the queue has ended.
        _ = self.send(QueueRequest::Forward(to.clone()));
    }
}

/// Requests to a queue. If its event loop ends first, the waiters of the commands that are left get an error, and new commands
/// use other queues.
struct UnservedRequests {
    requests: flume::Receiver<QueueRequest>,
    is_usable: Arc<AtomicBool>,
}

impl Drop for UnservedRequests {
    fn drop(&mut self) {
        self.is_usable.store(false, Ordering::Relaxed);
        self.requests.drain();
    }
}

/// Handles the requests to a queue until all handles are dropped.
async fn serve(registration: Registration<HostQueue>, unserved: UnservedRequests) {
    let queue = registration.value().clone();
    let (mut connecting, mut next_queue) = (None, None);
    while let Some(request) = receive(&unserved.requests, &mut connecting).await {
        match (request, &next_queue) {
            (QueueRequest::Connect(with), _) => {
                connecting = Some(Box::pin(connect(queue.clone(), *with)) as LocalBoxFuture<'static, ()>);
            }
            (QueueRequest::Admit(with), _) => {
                next_queue = None;
                admit(&queue, with);
            }
            (QueueRequest::Reset(why), _) => {
                connecting = None;
                queue.reset(why);
            }
            (QueueRequest::Forward(to), _) => {
                waiting(&queue).into_iter().for_each(|request| pass(&to, request));
                next_queue = Some(to);
            }
            (QueueRequest::Run(work), _) => work(&queue),
            (request, Some(to)) => pass(to, request),
            (QueueRequest::Command(command, reply), None) => accept(&queue, command, reply),
            (QueueRequest::Pair(commands, replies), None) => accept_pair(&queue, *commands, replies),
        }
    }
    queue.reset(closed());
}

/// The next request, while the queue connects. None: all handles are dropped.
async fn receive(
    requests: &flume::Receiver<QueueRequest>,
    connecting: &mut Option<LocalBoxFuture<'static, ()>>,
) -> Option<QueueRequest> {
    let mut request = requests.recv_async();
    let received = poll_fn(|cx| {
        if connecting.as_mut().is_some_and(|work| work.as_mut().poll(cx).is_ready()) {
            *connecting = None;
        }
        Pin::new(&mut request).poll(cx)
    });
    received.await.ok()
}

fn accept(queue: &Rc<HostQueue>, command: NvmeCommand, reply: flume::Sender<NvmeResult>) {
    if let Err(refused) = queue.accept(command, CompletionWaiter::There(reply.clone())) {
        // The caller may have stopped waiting.
        _ = reply.send(*refused);
    }
}

fn accept_pair(queue: &Rc<HostQueue>, commands: [NvmeCommand; 2], replies: [flume::Sender<NvmeResult>; 2]) {
    let waiters = replies.clone().map(CompletionWaiter::There);
    if let Err(refused) = queue.accept_pair(commands, waiters) {
        // The callers may have stopped waiting.
        replies.iter().zip(*refused).for_each(|(reply, refused)| _ = reply.send(refused));
    }
}

/// Takes the commands that wait as requests. Their waiters are on other cores, or gone.
fn waiting(queue: &HostQueue) -> Vec<QueueRequest> {
    let reply = |waiter| match waiter {
        CompletionWaiter::There(reply) => reply,
        _ => flume::bounded(1).0,
    };
    let mut taken = queue.state.borrow_mut().take_waiting().into_iter();
    let mut requests = Vec::new();
    while let Some((command, waiter)) = taken.next() {
        let second = if command.sqe.fuse() == Fuse::First { taken.next() } else { None };
        requests.push(match second {
            Some((other, its)) => QueueRequest::Pair(Box::new([command, other]), [waiter, its].map(reply)),
            None => QueueRequest::Command(command, reply(waiter)),
        });
    }
    requests
}

/// Passes a command to another queue. One that has ended drops it: its waiter gets an error.
fn pass(to: &IoQueue, request: QueueRequest) {
    _ = to.send(request);
}

/// Sends commands from now on, and reports the end of the connection.
fn admit(queue: &Rc<HostQueue>, with: QueueUse) {
    queue.admit();
    let (queue, QueueUse { mut report, limit }) = (queue.clone(), with);
    lunar_runtime::spawn(async move {
        report.send(either(queue.disconnected(), queue.watch(limit)).await);
    });
}

/// Connects the queue, and reports the end of the attempt.
async fn connect(queue: Rc<HostQueue>, with: QueueConnect) {
    let result = try_connect(&queue, &with).await;
    if let Err(e) = &result {
        queue.reset(e.clone());
    }
    // The controller may have given the attempt up.
    _ = with.reply.send(result);
}

async fn try_connect(queue: &Rc<HostQueue>, with: &QueueConnect) -> Result<(), Error> {
    // The connection of an attempt that was given up may still have to end.
    queue.disconnected().await;
    {
        let mut state = queue.state.borrow_mut();
        state.resize(with.command.queue_len);
        (state.capsule_data, state.max_transfer) = (with.capsule_data, with.max_transfer);
    }
    queue.attach(initialize(&[with.peer], &with.options).await?);
    connect_queue(queue, with.command, Some(with.controller), &with.address, &with.options).await.map(drop)
}
