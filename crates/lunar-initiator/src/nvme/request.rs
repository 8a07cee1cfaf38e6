//! Requests to a controller from other cores, and commands in flight as their owners see them.

use super::command::{NvmeCommand, NvmeResult};
use super::host_queue::HostQueue;
use super::io_queue::QueueRequest;
use super::io_queues::IoQueues;
use super::local_controller::LocalController;
use super::namespace_identity::NamespaceIdentity;
use super::queue_tasks::CompletionWaiter;
use super::status::closed;
use lunar_block::range_lock::RangeLock;
use lunar_runtime::CoreHandle;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A request to a controller from another task or core.
pub enum ControllerRequest {
    /// An admin command.
    Admin(NvmeCommand, flume::Sender<NvmeResult>),
    /// The identity that a namespace must keep while it is in use.
    Pin(u32, NamespaceIdentity),
    /// A user of a namespace has gone.
    Unpin(u32),
    /// Shuts the controller down.
    Close(flume::Sender<()>),
}

/// The access to a controller from any core.
pub type ControllerHandle = CoreHandle<LocalController, ControllerRequest>;

/// A command in flight. Dropping it discards the result, but does not abort the command.
pub struct PendingCompletion(PendingPath);

enum PendingPath {
    Local(Rc<HostQueue>, u64),
    /// The reply, and the range lock of a write.
    Remote(flume::r#async::RecvFut<'static, NvmeResult>, Option<RangeLock>),
    Ended(Option<Box<NvmeResult>>),
}

impl PendingCompletion {
    fn refused(result: NvmeResult) -> PendingCompletion {
        PendingCompletion(PendingPath::Ended(Some(Box::new(result))))
    }
}

/// Submits an I/O command to one of the queues.
pub fn submit(io: &IoQueues, mut command: NvmeCommand) -> PendingCompletion {
    let (at, load) = io.choose(command.data.expected());
    command.load = load;
    if let Some(queue) = io.queue(at).local() {
        return match queue.accept(command, CompletionWaiter::Unknown) {
            Ok(key) => PendingCompletion(PendingPath::Local(queue, key)),
            Err(refused) => PendingCompletion::refused(*refused),
        };
    }
    let hold = command.hold.as_ref().map(RangeLock::add_holder);
    let (reply, response) = flume::bounded(1);
    match io.queue(at).send(QueueRequest::Command(command, reply)) {
        Ok(()) => PendingCompletion(PendingPath::Remote(response.into_recv_async(), hold)),
        Err(returned) => match *returned {
            QueueRequest::Command(command, _) => {
                PendingCompletion::refused((Err(closed()), command.data.into_buf()))
            }
            _ => PendingCompletion(PendingPath::Ended(None)),
        },
    }
}

/// Submits a fused pair to one of the queues.
pub fn submit_pair(io: &IoQueues, mut commands: [NvmeCommand; 2]) -> [PendingCompletion; 2] {
    let len = commands.iter().map(|command| command.data.expected()).sum();
    let (at, load) = io.choose(len);
    commands[1].load = load;
    if let Some(queue) = io.queue(at).local() {
        let waiters = [CompletionWaiter::Unknown, CompletionWaiter::Unknown];
        return match queue.accept_pair(commands, waiters) {
            Ok(keys) => keys.map(|key| PendingCompletion(PendingPath::Local(queue.clone(), key))),
            Err(refused) => refused.map(PendingCompletion::refused),
        };
    }
    let holds = [0, 1].map(|at| commands[at].hold.as_ref().map(RangeLock::add_holder));
    let [(first, one), (second, other)] = [flume::bounded(1), flume::bounded(1)];
    match io.queue(at).send(QueueRequest::Pair(Box::new(commands), [first, second])) {
        Ok(()) => {
            let [hold, held] = holds;
            [(one, hold), (other, held)].map(|(response, hold)| {
                PendingCompletion(PendingPath::Remote(response.into_recv_async(), hold))
            })
        }
        Err(_) => [(), ()].map(|()| PendingCompletion::refused((Err(closed()), None))),
    }
}

impl Future for PendingCompletion {
    type Output = NvmeResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NvmeResult> {
        let path = &mut self.get_mut().0;
        let ended = match path {
            PendingPath::Local(queue, key) => match queue.state.borrow_mut().poll(*key, cx) {
                Poll::Ready(ended) => ended,
                Poll::Pending => return Poll::Pending,
            },
            PendingPath::Remote(response, _) => match Pin::new(response).poll(cx) {
                Poll::Ready(ended) => ended.unwrap_or_else(|_| (Err(closed()), None)),
                Poll::Pending => return Poll::Pending,
            },
            PendingPath::Ended(result) => result.take().map_or_else(|| (Err(closed()), None), |ended| *ended),
        };
        *path = PendingPath::Ended(None);
        Poll::Ready(ended)
    }
}

impl fmt::Debug for PendingCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_ended = matches!(self.0, PendingPath::Ended(_));
        f.debug_struct("PendingCompletion").field("has_ended", &has_ended).finish_non_exhaustive()
    }
}

impl Drop for PendingCompletion {
    fn drop(&mut self) {
        match &self.0 {
            PendingPath::Local(queue, key) => queue.state.borrow_mut().abandon(*key),
            // The core of the queue learns of the drop later. Until then, newer writes to the same bytes must wait.
            PendingPath::Remote(_, Some(hold)) => hold.make_exclusive(),
            PendingPath::Remote(_, None) | PendingPath::Ended(_) => {}
        }
    }
}
