//! A host that uses one path until its session has ended, and then another one. It does not use reservations.

use super::FAULTS;
use super::cluster::BLOCKS;
use super::executor::Executor;
use super::server::{Server, SimMember};
use crate::member::Phase;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The host ends a session that does not answer for this time.
const NOP_TIMEOUT: Duration = Duration::from_secs(9);
/// The host uses another path this long after a connection was reset. The network may hold operations of a killed process, so
/// that this is as long as a round of the others is valid.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(9);
/// Time after which the server gives up an operation that the cluster does not end.
const LATE_AFTER_MS: u64 = 5_000;

pub struct MultipathHost {
    pub executor: Executor,
    pub servers: Vec<Rc<Server>>,
}

/// A session on a server.
struct Session {
    executor: Executor,
    server: Rc<Server>,
    member: Rc<SimMember>,
    process: usize,
    /// The last sign of life.
    heard: Cell<Duration>,
}

impl MultipathHost {
    /// Writes tags that grow. Writes of the same session are not ordered.
    pub async fn run(self) {
        let mut tag = 0;
        while self.executor.now() < FAULTS {
            let choice = self.executor.below(self.servers.len() as u64) as usize;
            self.executor.sleep(Duration::from_millis(100)).await;
            let server = self.servers[choice].clone();
            let Some(member) = server.serving_member().filter(|_| !self.executor.is_paused(server.process()))
            else {
                continue;
            };
            let (executor, process) = (self.executor.clone(), server.process());
            let heard = Cell::new(executor.now());
            let session = Rc::new(Session { executor, server, member, process, heard });
            while !session.has_ended() && self.executor.now() < FAULTS {
                tag += 1;
                self.executor.spawn(Some(process), session.clone().write(tag));
                self.executor.sleep(Duration::from_millis(self.executor.below(300))).await;
            }
        }
    }
}

impl Session {
    fn has_ended(&self) -> bool {
        let now = self.executor.now();
        let silent = now - self.heard.get();
        if self.server.process() != self.process {
            return silent >= REPLACEMENT_TIMEOUT;
        }
        if self.executor.is_paused(self.process) {
            return silent >= NOP_TIMEOUT;
        }
        self.heard.set(now);
        self.member.phase() == Phase::Lost && self.member.is_fenced(now)
    }

    async fn write(self: Rc<Self>, tag: u64) {
        let now = self.executor.now();
        let (member, block) = (&self.member, self.executor.below(BLOCKS as u64) as usize);
        let may_write = member.is_current(now) && member.has_round(now) && member.is_active();
        if !may_write || member.phase() != Phase::Serving {
            return;
        }
        // The client holds an operation whose storage server is down.
        if self.executor.below(40) == 0 {
            let held_ms = self.executor.below(3 * LATE_AFTER_MS);
            self.executor.sleep(Duration::from_millis(held_ms.min(LATE_AFTER_MS))).await;
            if held_ms > LATE_AFTER_MS {
                member.lose("an operation is late");
                self.executor.sleep(Duration::from_millis(held_ms - LATE_AFTER_MS)).await;
            }
        }
        _ = member.store().write_over(block, tag, now).await;
    }
}
