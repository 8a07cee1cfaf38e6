//! A passthrough logical unit with a limit of operations and bytes per second.

use event_listener::Event;
use lunar_block::LocalBoxFuture;
use lunar_block::filter::RateLimit;
use lunar_runtime::Buf;
use lunar_scsi::NexusPorts;
use lunar_target::{
    CommandFate, PassthroughCommand, PassthroughData, PassthroughLu, PassthroughNexus, PassthroughQueue,
    PassthroughResponse,
};
use lunar_wire::scsi::Status;
use lunar_wire::scsi::TaskManagementFunction;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Adds a rate limit, which several logical units may share.
pub fn with_rate_limit(passthrough: Arc<dyn PassthroughLu>, rate: Arc<RateLimit>) -> Arc<dyn PassthroughLu> {
    Arc::new(RateLimited { passthrough, rate })
}

struct RateLimited {
    passthrough: Arc<dyn PassthroughLu>,
    rate: Arc<RateLimit>,
}

impl PassthroughLu for RateLimited {
    fn enter(&self, port: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus> {
        Rc::new(RateLimitedNexus {
            nexus: self.passthrough.enter(port),
            rate: self.rate.clone(),
            line: RefCell::default(),
            submitted: RefCell::default(),
            notifier: Event::new(),
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.passthrough.describe()
    }
}

struct RateLimitedNexus {
    nexus: Rc<dyn PassthroughNexus>,
    rate: Arc<RateLimit>,
    /// Tags of the waiting commands, in order of arrival.
    line: RefCell<VecDeque<u64>>,
    /// Tags of the commands with a future, and whether they were aborted.
    submitted: RefCell<BTreeMap<u64, bool>>,
    /// Notified when a command is aborted or leaves the queue.
    notifier: Event,
}

/// A place in the queue. Dropping it leaves the queue.
struct QueueTicket<'w>(&'w RateLimitedNexus, u64);

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.0.line.borrow_mut().retain(|tag| *tag != self.1);
        self.0.notifier.notify(usize::MAX);
    }
}

impl RateLimitedNexus {
    /// Waits until a command may be sent. Returns false if it is aborted first.
    async fn waits(&self, tag: u64, bytes: u64) -> bool {
        let end = Instant::now() + self.rate.pay(bytes);
        self.line.borrow_mut().push_back(tag);
        let _place = QueueTicket(self, tag);
        loop {
            let rings = self.notifier.listen();
            if self.submitted.borrow().get(&tag) == Some(&true) {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            let is_first = self.line.borrow().front() == Some(&tag);
            match is_first {
                true if left.is_zero() => return true,
                // Check again after either.
                true => _ = compio::time::timeout(left, rings).await,
                false => rings.await,
            }
        }
    }
}

impl PassthroughNexus for RateLimitedNexus {
    fn queue(&self) -> Option<&dyn PassthroughQueue> {
        self.nexus.queue()?;
        Some(self)
    }

    fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
        self.submit_in_parts(command, None)
    }

    fn submit_in_parts<'a>(
        &'a self,
        command: PassthroughCommand,
        take: Option<&'a dyn Fn(Buf)>,
    ) -> LocalBoxFuture<'a, PassthroughResponse> {
        let bytes = match &command.data {
            PassthroughData::None => 0,
            PassthroughData::In(buf) | PassthroughData::Out(buf) => buf.len() as u64,
        };
        let tag = command.tag;
        self.submitted.borrow_mut().insert(tag, false);
        Box::pin(async move {
            let reply = match self.waits(tag, bytes).await {
                true => self.nexus.submit_in_parts(command, take).await,
                // The caller no longer waits for the reply.
                false => {
                    let (status, sense) = (Status::TaskAborted as u8, Box::default());
                    PassthroughResponse { status, sense, data: None, moved: 0, fate: CommandFate::Ended }
                }
            };
            self.submitted.borrow_mut().remove(&tag);
            reply
        })
    }

    fn abort(&self, tag: u64) -> LocalBoxFuture<'_, CommandFate> {
        if let Some(is_aborted) = self.submitted.borrow_mut().get_mut(&tag) {
            *is_aborted = true;
        }
        self.notifier.notify(usize::MAX);
        self.nexus.abort(tag)
    }

    fn manage(&self, function: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
        self.nexus.manage(function)
    }
}

impl PassthroughQueue for RateLimitedNexus {
    fn begin(&self, lane: usize, command: PassthroughCommand) -> Result<(), PassthroughCommand> {
        let is_free = self.rate.is_unlimited() && self.line.borrow().is_empty();
        match self.nexus.queue().filter(|_| is_free) {
            Some(queue) => queue.begin(lane, command),
            None => Err(command),
        }
    }

    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<(usize, PassthroughResponse)> {
        self.nexus.queue().map_or(Poll::Pending, |queue| queue.poll_ended(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::scsi::TaskAttribute;
    use std::task::Waker;
    use std::time::Duration;

    /// Records the commands that it receives.
    #[derive(Default)]
    struct RecordingNexus(RefCell<Vec<u64>>);

    impl PassthroughQueue for RecordingNexus {
        fn begin(&self, _: usize, command: PassthroughCommand) -> Result<(), PassthroughCommand> {
            self.0.borrow_mut().push(command.tag);
            Ok(())
        }

        fn poll_ended(&self, _: &mut Context<'_>) -> Poll<(usize, PassthroughResponse)> {
            Poll::Pending
        }
    }

    impl PassthroughNexus for RecordingNexus {
        fn queue(&self) -> Option<&dyn PassthroughQueue> {
            Some(self)
        }

        fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
            self.0.borrow_mut().push(command.tag);
            let reply = PassthroughResponse {
                status: 0,
                sense: Box::default(),
                data: None,
                moved: 0,
                fate: CommandFate::Ended,
            };
            Box::pin(async { reply })
        }

        fn abort(&self, _: u64) -> LocalBoxFuture<'_, CommandFate> {
            Box::pin(async { CommandFate::Ended })
        }

        fn manage(&self, _: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
            Box::pin(async { true })
        }
    }

    fn command(tag: u64) -> PassthroughCommand {
        PassthroughCommand {
            tag,
            cdb: [0; 16].into(),
            attribute: TaskAttribute::Simple,
            data: PassthroughData::None,
        }
    }

    fn with_rate_limit(iops: u64, bytes_per_s: u64) -> (Rc<RecordingNexus>, RateLimitedNexus) {
        let (seen, rate) = (Rc::new(RecordingNexus::default()), RateLimit::new(iops, bytes_per_s));
        let (line, submitted) = Default::default();
        (seen.clone(), RateLimitedNexus { nexus: seen, rate, line, submitted, notifier: Event::new() })
    }

    #[test]
    fn rate_limit_delays_commands_and_drops_aborted_ones() {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let (seen, nexus) = with_rate_limit(100, 0);
            let started_at = Instant::now();
            for tag in 0..20 {
                assert_eq!(nexus.submit(command(tag)).await.status, 0);
            }
            // The allowance of a tenth of a second is available at once.
            assert!(started_at.elapsed().as_millis() >= 50, "{:?}", started_at.elapsed());
            let waits = nexus.submit(command(20));
            nexus.abort(20).await;
            assert_eq!(waits.await.status, Status::TaskAborted as u8);
            assert_eq!(seen.0.borrow().len(), 20);
        });
    }

    #[test]
    fn queue_passes_nothing_that_a_limit_or_a_line_holds() {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let (seen, nexus) = with_rate_limit(1, 0);
            let queue = nexus.queue().expect("a queue");
            assert!(queue.begin(0, command(1)).is_err());
            let mut waits = [command(2), command(3), command(4)].map(|command| nexus.submit(command));
            let mut cx = Context::from_waker(Waker::noop());
            waits.iter_mut().for_each(|waits| drop(waits.as_mut().poll(&mut cx)));
            assert!(!nexus.line.borrow().is_empty());
            nexus.rate.set(0, 0);
            assert!(queue.begin(0, command(5)).is_err(), "older commands wait");
            nexus.line.borrow_mut().clear();
            assert!(queue.begin(0, command(6)).is_ok());
            assert_eq!(seen.0.borrow().last(), Some(&6));
            nexus.abort(6).await;
            assert!(!nexus.submitted.borrow().contains_key(&6), "nothing is left of it");
        });
    }

    #[test]
    fn rate_limit_keeps_order_and_skips_aborted_commands() {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let (seen, nexus) = with_rate_limit(0, 10_000);
            let nexus = Rc::new(nexus);
            let write =
                |tag| PassthroughCommand { data: PassthroughData::Out(Buf::zeroed(4000)), ..command(tag) };
            let commands = [write(1), write(2), command(3), write(4), command(5)];
            let begin = |command| {
                let nexus = nexus.clone();
                compio::runtime::spawn(async move { nexus.submit(command).await.status })
            };
            let begun: Vec<_> = commands.into_iter().map(begin).collect();
            compio::time::sleep(Duration::from_millis(50)).await;
            nexus.abort(4).await;
            for one in begun {
                one.await.expect("a reply");
            }
            assert_eq!(*seen.0.borrow(), [1, 2, 3, 5]);
        });
    }
}
