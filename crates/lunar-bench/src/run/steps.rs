//! The commands of a session, one after another on each lane. A future for each lane would cost more than the command
//! itself.

use super::lane::LaneState;
use super::session::JobSession;
use crate::job::ArrivalProcess;
use crate::offsets::NextCommand;
use crate::session_stats::CommandTimes;
use crate::verify::UnitClaim;
use lunar_block::BufResult;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The number of commands that a lane starts while each completes at once. It then leaves the core to others.
const COMMANDS_PER_YIELD: u32 = 64;
/// The number of attempts to claim free units before a lane sleeps.
const CLAIM_ATTEMPTS: u32 = 16;
/// The duration of that sleep.
const CLAIM_RETRY: Duration = Duration::from_millis(1);

/// The choice of the next command.
enum Choice {
    Command(NextCommand, Option<UnitClaim>),
    /// Other commands use the units of all attempts.
    Busy,
    /// There is no further command.
    Done,
}

impl JobSession {
    /// Completes commands and starts further ones. Ready when all lanes have ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.polls += 1;
        let woken_at = (!self.sleepers.is_empty()).then(Instant::now);
        let mut read_at = None;
        loop {
            // A command that ended when it began must not wait until other lanes have begun theirs.
            if let Poll::Ready((lane, ended)) = self.queue.poll_ended(cx) {
                let now = self.ended_at(lane, &mut read_at);
                self.complete(lane, ended, now);
            } else if let Some(lane) = woken_at.and_then(|now| self.sleepers.take_due(now)) {
                self.step(lane, Instant::now());
            } else {
                break;
            }
        }
        if self.live == 0 {
            return Poll::Ready(());
        }
        self.sleepers.arm(cx);
        self.poll_tick(read_at, cx)
    }

    /// The time of a completion. Completions of a batch share a clock reading, but a command that was submitted in
    /// this poll needs a later one.
    fn ended_at(&mut self, lane: usize, read_at: &mut Option<Instant>) -> Instant {
        let lane = &mut self.lanes[lane];
        let is_at_once = lane.begun_in == self.polls;
        lane.at_once = if is_at_once { lane.at_once + 1 } else { 0 };
        match *read_at {
            Some(now) if self.is_batched && !is_at_once => now,
            _ => *read_at.insert(Instant::now()),
        }
    }

    /// Continues with a lane that has no command in flight.
    fn step(&mut self, lane: usize, now: Instant) {
        if self.lanes[lane].state == LaneState::Due {
            return self.start_due(lane, now);
        }
        if self.is_over(now) {
            return self.end_lane(lane);
        }
        if self.lanes[lane].at_once == COMMANDS_PER_YIELD {
            self.lanes[lane].at_once = 0;
            return self.sleepers.add(lane, now);
        }
        // With both directions at once, each has its own lanes.
        match self.choose(lane < self.job.depth) {
            Choice::Command(command, claim) => self.begin(lane, command, claim, now),
            Choice::Busy => self.sleepers.add(lane, now + CLAIM_RETRY),
            Choice::Done => self.end_lane(lane),
        }
    }

    fn end_lane(&mut self, lane: usize) {
        self.lanes[lane].state = LaneState::Ended;
        self.live -= 1;
    }

    /// Chooses a command. With a ledger, its units are claimed, so that no other command uses them.
    fn choose(&mut self, read: bool) -> Choice {
        let Some(ledger) = &self.ledger else {
            return self.next(read).map_or(Choice::Done, |next| Choice::Command(next, None));
        };
        let ledger = ledger.clone();
        if self.is_read_back {
            let Some(claim) = ledger.claim_known(self.job.longest()) else { return Choice::Done };
            let command = NextCommand { read: true, offset: claim.offset(), len: claim.len() };
            return Choice::Command(command, Some(claim));
        }
        for _ in 0..CLAIM_ATTEMPTS {
            let Some(next) = self.next(read) else { return Choice::Done };
            if let Some(claim) = ledger.claim(next.offset, next.len) {
                return Choice::Command(next, Some(claim));
            }
        }
        Choice::Busy
    }

    /// The next command; None when the amount is reached.
    fn next(&mut self, read: bool) -> Option<NextCommand> {
        (!self.is_amount_issued()).then(|| self.offsets.next(read, self.left))
    }

    /// Charges a command to the amount; false during the warm-up, which charges nothing.
    fn take(&mut self, command: NextCommand, now: Instant) -> bool {
        let counts = now >= self.clock.measured_from;
        if counts {
            self.left = self.left.saturating_sub(command.len.into());
            self.commands = self.commands.saturating_sub(1);
        }
        counts
    }

    /// Submits a command, in a closed loop; otherwise when it is due.
    fn begin(&mut self, lane: usize, command: NextCommand, claim: Option<UnitClaim>, now: Instant) {
        let is_taken = self.take(command, now);
        let due = self.arrivals.as_mut().map(|arrivals| arrivals.take());
        let this = &mut self.lanes[lane];
        (this.command, this.claim, this.is_taken) = (command, claim, is_taken);
        let Some(due) = due else { return self.submit(lane, now) };
        (this.due, this.state) = (due, LaneState::Due);
        let until = self.clock.deadline.map_or(due, |deadline| deadline.min(due));
        match until > now {
            true => self.sleepers.add(lane, until),
            false => self.start_due(lane, now),
        }
    }

    /// Submits a command that is due now, or ends the lane if the session ends first.
    fn start_due(&mut self, lane: usize, now: Instant) {
        let is_late = self.clock.deadline.is_some_and(|deadline| self.lanes[lane].due >= deadline);
        if is_late || self.is_stopped() {
            self.is_cut = true;
            return self.end_lane(lane);
        }
        if !self.lanes[lane].is_taken {
            // It was chosen during the warm-up. Other lanes may have reached the amount since.
            if self.is_amount_issued() {
                return self.end_lane(lane);
            }
            self.lanes[lane].is_taken = self.take(self.lanes[lane].command, now);
        }
        self.submit(lane, now);
    }

    fn submit(&mut self, lane: usize, now: Instant) {
        let this = &mut self.lanes[lane];
        let buf = match this.prepare() {
            Ok(buf) => buf,
            Err(why) => {
                self.fail(why);
                return self.end_lane(lane);
            }
        };
        let is_closed = self.job.pace == ArrivalProcess::Closed;
        // The client's own checks are not latency of the target.
        let is_next = is_closed && this.claim.is_none() && !self.job.compare;
        this.started_at = if is_next { now } else { Instant::now() };
        if is_closed {
            this.due = this.started_at;
        }
        (this.state, this.begun_in) = (LaneState::InFlight, self.polls);
        let NextCommand { read, offset, .. } = this.command;
        match read {
            true => self.queue.read(lane, offset, buf),
            false => self.queue.write(lane, offset, buf, self.job.fua),
        }
    }

    /// Takes the result of a command, and continues with its lane.
    fn complete(&mut self, lane: usize, (result, buf): BufResult, now: Instant) {
        let this = &self.lanes[lane];
        let (command, is_taken) = (this.command, this.is_taken);
        let times = CommandTimes { due: this.due, started_at: this.started_at, done: now };
        if !is_taken {
            // The command was in flight when the warm-up ended, or ended during it.
            self.take(command, now);
        }
        let is_done = self.record_completion(command, times, result);
        if let Err(why) = self.lanes[lane].finish(buf, is_done) {
            self.fail(why);
        }
        match self.job.think.is_zero() {
            true => self.step(lane, now),
            false => self.sleepers.add(lane, now + self.job.think),
        }
    }

    /// Records a completed command; false if it failed. A command in flight at the end of the time counts in
    /// the latency, but not in rates: a target that stalls must not look fast.
    fn record_completion(
        &mut self,
        command: NextCommand,
        times: CommandTimes,
        result: io::Result<()>,
    ) -> bool {
        let NextCommand { read, offset, len } = command;
        // With a flush at the end, commands that end before it count.
        let is_late = !self.job.flush && self.clock.deadline.is_some_and(|deadline| times.done > deadline);
        let is_counted = times.done >= self.clock.measured_from && !is_late;
        if is_counted {
            self.last = times.done;
        }
        self.is_cut |= is_late;
        if let Err(e) = result {
            self.errors += 1;
            if !self.job.continue_on_error {
                let direction = if read { "read" } else { "write" };
                self.fail(format!("{direction} of {len} bytes at offset {offset} failed: {e}"));
            }
            return false;
        }
        match is_late {
            true => self.stats.add_late(read, times),
            false if is_counted => self.stats.add(read, len, times),
            false => {}
        }
        true
    }
}
