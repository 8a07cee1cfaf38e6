//! Flushes.
//!
//! One fdatasync at a time serves all callers that waited when it started. This is cheaper than one for each, and it
//! is needed for correctness: the kernel reports a lost write once per descriptor and marks the pages clean, so that
//! one of two concurrent calls would succeed. For the same reason, a failure is permanent: a later fdatasync would
//! succeed although the bytes are lost. Only reopening the file clears it, because callers then read the content of
//! the medium.

use crate::locked;
use event_listener::Event;
use lunar_runtime::blocking;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

pub(super) struct Syncer {
    sync: Box<dyn Fn() -> rustix::io::Result<()> + Send + Sync>,
    rounds: Mutex<SyncRounds>,
    ended: Event,
    /// The errno of the first failure; 0 if none.
    failed: AtomicI32,
}

/// Rounds of fdatasync, counted from 1.
#[derive(Default)]
struct SyncRounds {
    begun: u64,
    running: bool,
    /// The last successful round.
    good: u64,
}

/// The next step of a waiter for round `want`.
enum SyncStep {
    Over(io::Result<()>),
    Run(SyncRound),
    Wait,
}

/// A running round. It ends on drop, even if it never ran.
struct SyncRound {
    syncer: Arc<Syncer>,
    good: bool,
}

impl Syncer {
    /// `sync` makes everything written so far durable.
    pub(super) fn new(sync: impl Fn() -> rustix::io::Result<()> + Send + Sync + 'static) -> Self {
        Syncer {
            sync: Box::new(sync),
            rounds: Mutex::default(),
            ended: Event::new(),
            failed: AtomicI32::new(0),
        }
    }

    /// The permanent failure, if any.
    pub(super) fn verdict(&self) -> io::Result<()> {
        match self.failed.load(SeqCst) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Waits until everything written before this call is durable.
    pub(super) async fn flush(self: &Arc<Self>) -> io::Result<()> {
        // A running round may have passed this caller's pages.
        let want = locked(&self.rounds).begun + 1;
        loop {
            let ended = self.ended.listen();
            match self.step(want) {
                SyncStep::Over(result) => return result,
                SyncStep::Run(round) => blocking(move || round.run()).await?,
                SyncStep::Wait => ended.await,
            }
        }
    }

    fn step(self: &Arc<Self>, want: u64) -> SyncStep {
        let mut rounds = locked(&self.rounds);
        if let Err(e) = self.verdict() {
            return SyncStep::Over(Err(e));
        }
        if rounds.good >= want {
            return SyncStep::Over(Ok(()));
        }
        if rounds.running {
            return SyncStep::Wait;
        }
        rounds.running = true;
        rounds.begun += 1;
        SyncStep::Run(SyncRound { syncer: self.clone(), good: false })
    }
}

impl SyncRound {
    /// The outcome is recorded here, on the thread that made the call, because the caller may be gone while others
    /// wait.
    fn run(mut self) -> io::Result<()> {
        let result = loop {
            match (self.syncer.sync)() {
                Err(rustix::io::Errno::INTR) => {}
                other => break other,
            }
        };
        match result {
            Ok(()) => self.good = true,
            Err(e) => self.syncer.failed.store(e.raw_os_error(), SeqCst),
        }
        Ok(result?)
    }
}

impl Drop for SyncRound {
    fn drop(&mut self) {
        let mut rounds = locked(&self.syncer.rounds);
        rounds.running = false;
        if self.good {
            rounds.good = rounds.begun;
        }
        drop(rounds);
        self.syncer.ended.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::sync::atomic::AtomicU32;

    fn run<T>(work: impl Future<Output = T>) -> T {
        compio::runtime::Runtime::new().expect("a runtime").block_on(work)
    }

    #[test]
    fn failed_sync_stays_an_error() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = calls.clone();
        // As in the kernel: one call reports the loss, and later ones succeed.
        let syncer = Arc::new(Syncer::new(move || match counted.fetch_add(1, SeqCst) {
            1 => Err(Errno::IO),
            _ => Ok(()),
        }));
        run(async {
            syncer.flush().await.expect("no sync has failed yet");
            for _ in 0..3 {
                let e = syncer.flush().await.expect_err("bytes are lost");
                assert_eq!(e.raw_os_error(), Some(Errno::IO.raw_os_error()));
            }
        });
        assert!(syncer.verdict().is_err());
        assert_eq!(calls.load(SeqCst), 2, "the failure is permanent, without another call");
    }

    #[test]
    fn those_who_wait_share_one_sync() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = calls.clone();
        let syncer = Arc::new(Syncer::new(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            counted.fetch_add(1, SeqCst);
            Ok(())
        }));
        run(async {
            let first = compio::runtime::spawn({
                let syncer = syncer.clone();
                async move { syncer.flush().await }
            });
            compio::time::sleep(std::time::Duration::from_millis(5)).await;
            let rest: Vec<_> = (0..20)
                .map(|_| {
                    let syncer = syncer.clone();
                    compio::runtime::spawn(async move { syncer.flush().await })
                })
                .collect();
            first.await.expect("joined").expect("synced");
            for one in rest {
                one.await.expect("joined").expect("synced");
            }
        });
        assert!(
            (2..=3).contains(&calls.load(SeqCst)),
            "one sync for the first caller, one for all later callers"
        );
    }

    #[test]
    fn cancelled_waiter_leaves_the_outcome_to_others() {
        let (go, gate) = std::sync::mpsc::channel();
        let gate = Mutex::new(gate);
        let syncer = Arc::new(Syncer::new(move || {
            locked(&gate).recv().expect("a go");
            Err(Errno::IO)
        }));
        run(async {
            let early = compio::time::timeout(std::time::Duration::from_millis(1), syncer.flush()).await;
            assert!(early.is_err(), "the waiter was cancelled first");
            go.send(()).expect("somebody waits");
            syncer.flush().await.expect_err("the next waiter gets the failure");
        });
    }
}
