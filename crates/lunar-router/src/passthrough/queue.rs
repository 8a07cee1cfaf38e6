//! Commands to a block device that are forwarded without a future for each, over batches of the upstream session.

use super::nexus::{LuNexus, direction};
use lunar_initiator::command::only_reads_on_blocks;
use lunar_initiator::{Batch, Command, CommandId, CommandResult, Session};
use lunar_runtime::latency::LatencyTotal;
use lunar_target::{Cdb, PassthroughCommand, PassthroughQueue, PassthroughResponse};
use std::cell::Ref;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// The queued commands of a host for one logical unit.
#[derive(Default)]
pub struct CommandQueue {
    /// The links that have commands in flight, and the current one as the last.
    links: Vec<Link>,
    /// The commands in flight, by lane.
    sent: Vec<Option<SentCommand>>,
    /// Commands that could not be sent.
    failed: Vec<Ended>,
    in_flight: usize,
    /// The waker of the caller, until it has polled a new link or a failed command.
    waker: Option<Waker>,
    /// The time of the poll, and the latencies that it has added up.
    polled: Option<Polled>,
}

/// A connection of an upstream session.
struct Link {
    /// The number of the connection.
    connection: u64,
    batch: Batch,
    /// The session, while commands are in flight. An idle link must not keep it open.
    session: Option<Session>,
    in_flight: usize,
}

struct SentCommand {
    /// The tag by which it is aborted.
    tag: u64,
    kind: CommandKind,
    at: Instant,
}

/// A completed command. The session, if it has failed.
struct Ended {
    lane: usize,
    session: Option<Session>,
    result: CommandResult,
}

/// The properties of a command that its response depends on.
#[derive(Clone, Copy)]
pub struct CommandKind {
    /// Its buffer is Data-In.
    pub reads: bool,
    /// It was repeated if necessary.
    pub repeatable: bool,
    /// It may have changed the medium or the state of the logical unit.
    pub changes: bool,
}

/// A command that was sent, for its abort.
pub struct AbortableCommand {
    pub session: Session,
    pub id: CommandId,
    pub changes: bool,
}

/// The latencies of the commands that a poll completes.
struct Polled {
    now: Instant,
    queue: LatencyTotal,
    upstream: LatencyTotal,
}

impl Polled {
    fn at(now: Instant) -> Polled {
        Polled { now, queue: LatencyTotal::default(), upstream: LatencyTotal::default() }
    }

    fn add(&mut self, sent: Instant, (result, _): &CommandResult) {
        let queued = result.as_ref().map(|completion| completion.queued).unwrap_or_default();
        self.queue.add(queued);
        self.upstream.add(self.now.saturating_duration_since(sent).saturating_sub(queued));
    }
}

impl CommandQueue {
    /// The number of commands in flight.
    pub fn len(&self) -> usize {
        self.in_flight
    }

    /// The command with this tag.
    pub fn find(&self, tag: u64) -> Option<AbortableCommand> {
        let is_it = |sent: &Option<SentCommand>| sent.as_ref().is_some_and(|sent| sent.tag == tag);
        let lane = self.sent.iter().position(is_it)?;
        let changes = self.sent[lane].as_ref()?.kind.changes;
        let of_link = |link: &Link| link.session.clone().zip(link.batch.id(lane as u32));
        let (session, id) = self.links.iter().find_map(of_link)?;
        Some(AbortableCommand { session, id, changes })
    }

    /// Sends a command over the last link.
    fn send(&mut self, lane: usize, session: &Session, command: Command, sent: SentCommand) {
        if lane >= self.sent.len() {
            self.sent.resize_with(lane + 1, || None);
        }
        self.sent[lane] = Some(sent);
        self.in_flight += 1;
        let Some(link) = self.links.last_mut() else { return };
        match link.batch.submit(lane as u32, command) {
            Ok(()) => {
                link.in_flight += 1;
                link.session.get_or_insert_with(|| session.clone());
            }
            Err(result) => {
                self.failed.push(Ended { lane, session: Some(session.clone()), result: *result });
                self.wake();
            }
        }
    }

    /// Makes the caller poll again: it polls no link that did not exist at its last poll.
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// The next completed command, with its lane.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Ended, SentCommand)> {
        let Poll::Ready(ended) = self.poll_links(cx) else { return Poll::Pending };
        let sent = self.sent[ended.lane].take().expect("a completed lane has a sent command");
        self.in_flight -= 1;
        self.polled.get_or_insert_with(|| Polled::at(Instant::now())).add(sent.at, &ended.result);
        Poll::Ready((ended, sent))
    }

    fn poll_links(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        if let Some(failed) = self.failed.pop() {
            return Poll::Ready(failed);
        }
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            let Poll::Ready((lane, result)) = link.batch.poll_ended(cx) else { continue };
            let session = if result.0.is_err() { link.session.clone() } else { None };
            link.in_flight -= 1;
            if link.in_flight == 0 {
                link.session = None;
                self.drop_old_links();
            }
            return Poll::Ready(Ended { lane: lane as usize, session, result });
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Drops the links that have no commands, except the last.
    fn drop_old_links(&mut self) {
        let mut left = self.links.len();
        self.links.retain(|link| {
            left -= 1;
            left == 0 || link.in_flight > 0
        });
    }

    /// Whether the last link is this connection.
    fn is_at(&self, connection: u64) -> bool {
        self.links.last().is_some_and(|link| link.connection == connection)
    }

    /// Adds a link, which becomes the current one.
    fn add_link(&mut self, connection: u64, batch: Batch) {
        self.links.push(Link { connection, batch, session: None, in_flight: 0 });
        self.drop_old_links();
        self.wake();
    }
}

impl LuNexus {
    /// The current session, if a command may be sent over it at once: after all earlier commands, and once the
    /// logical unit is known and no stale session is left that matters.
    fn ready_session(&self, changes: bool) -> Option<Ref<'_, Session>> {
        if self.has_waiting() || (changes && !self.stale.is_over()) {
            return None;
        }
        let (session, connection) = (self.nexus.current_session()?, self.nexus.connection());
        if !self.queue.borrow().is_at(connection) {
            let batch = self.is_verified().then(|| session.batch()).flatten()?;
            self.queue.borrow_mut().add_link(connection, batch);
        }
        Some(session)
    }
}

impl PassthroughQueue for LuNexus {
    fn begin(&self, lane: usize, command: PassthroughCommand) -> Result<(), PassthroughCommand> {
        let Cdb::Short(cdb) = command.cdb else { return Err(command) };
        let Some(session) = self.ready_session(!only_reads_on_blocks(&cdb)) else { return Err(command) };
        let (direction, reads) = direction(command.data);
        let sending = self.prepared(Command::new(self.lun, cdb, direction), command.attribute);
        let kind = CommandKind { reads, repeatable: sending.repeatable, changes: sending.changes };
        let sent = SentCommand { tag: command.tag, kind, at: Instant::now() };
        self.queue.borrow_mut().send(lane, &session, sending, sent);
        self.count();
        Ok(())
    }

    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<(usize, PassthroughResponse)> {
        let polled = self.queue.borrow_mut().poll(cx);
        let Poll::Ready((Ended { lane, session, result }, sent)) = polled else {
            self.publish();
            return Poll::Pending;
        };
        Poll::Ready((lane, self.response(session.as_ref(), sent.kind, result, 0)))
    }
}

impl LuNexus {
    /// Publishes the latencies of a poll, and the number of commands in flight.
    fn publish(&self) {
        if let Some(Polled { queue, upstream, .. }) = self.queue.borrow_mut().polled.take() {
            self.shared.hops.queue.add_all(queue);
            self.shared.hops.upstream.add_all(upstream);
        }
        self.count();
    }
}
