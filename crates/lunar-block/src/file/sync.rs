//! Making writes stable.
//!
//! One fdatasync at a time serves everybody who asked before it began. That is cheaper than one for each, and
//! it is needed for honesty: the kernel tells a lost write once per descriptor and marks the pages clean, so
//! of two calls side by side one would hear that all is well. For the same reason a failure is kept: a later
//! fdatasync would succeed although the bytes are gone. Only opening the file anew, and so reading what is
//! really there, ends it.

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
    /// The error number of the first failure; 0: none.
    failed: AtomicI32,
}

/// Rounds of fdatasync, counted from 1.
#[derive(Default)]
struct SyncRounds {
    begun: u64,
    running: bool,
    /// The last round that succeeded.
    good: u64,
}

/// What one who waits for round `want` does next.
enum SyncTurn {
    Over(io::Result<()>),
    Run(SyncRound),
    Wait,
}

/// A round that runs. It ends when this is dropped, also where it never came to run.
struct SyncRound {
    syncer: Arc<Syncer>,
    good: bool,
}

impl Syncer {
    /// `sync` is the call that makes everything written so far stable.
    pub(super) fn new(sync: impl Fn() -> rustix::io::Result<()> + Send + Sync + 'static) -> Self {
        Syncer {
            sync: Box::new(sync),
            rounds: Mutex::default(),
            ended: Event::new(),
            failed: AtomicI32::new(0),
        }
    }

    /// The failure that is kept, if there was one.
    pub(super) fn verdict(&self) -> io::Result<()> {
        match self.failed.load(SeqCst) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Ends when everything written before this call is stable.
    pub(super) async fn flush(self: &Arc<Self>) -> io::Result<()> {
        // A round that already runs may have passed our pages by.
        let want = locked(&self.rounds).begun + 1;
        loop {
            let ended = self.ended.listen();
            match self.turn(want) {
                SyncTurn::Over(result) => return result,
                SyncTurn::Run(round) => blocking(move || round.run()).await?,
                SyncTurn::Wait => ended.await,
            }
        }
    }

    fn turn(self: &Arc<Self>, want: u64) -> SyncTurn {
        let mut rounds = locked(&self.rounds);
        if let Err(e) = self.verdict() {
            return SyncTurn::Over(Err(e));
        }
        if rounds.good >= want {
            return SyncTurn::Over(Ok(()));
        }
        if rounds.running {
            return SyncTurn::Wait;
        }
        rounds.running = true;
        rounds.begun += 1;
        SyncTurn::Run(SyncRound { syncer: self.clone(), good: false })
    }
}

impl SyncRound {
    /// The outcome is recorded here, on the thread that heard it: who asked may have gone, the others have
    /// not.
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
    fn a_failed_sync_stays_an_error() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = calls.clone();
        // What the kernel does: the first call tells the loss, the next ones know nothing of it.
        let syncer = Arc::new(Syncer::new(move || match counted.fetch_add(1, SeqCst) {
            1 => Err(Errno::IO),
            _ => Ok(()),
        }));
        run(async {
            syncer.flush().await.expect("nothing lost yet");
            for _ in 0..3 {
                let e = syncer.flush().await.expect_err("bytes are lost");
                assert_eq!(e.raw_os_error(), Some(Errno::IO.raw_os_error()));
            }
        });
        assert!(syncer.verdict().is_err());
        assert_eq!(calls.load(SeqCst), 2, "nobody asks the kernel once more");
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
        assert!((2..=3).contains(&calls.load(SeqCst)), "one for the first, one for all who came later");
    }

    #[test]
    fn one_who_leaves_does_not_take_the_outcome_along() {
        let (go, gate) = std::sync::mpsc::channel();
        let gate = Mutex::new(gate);
        let syncer = Arc::new(Syncer::new(move || {
            locked(&gate).recv().expect("a go");
            Err(Errno::IO)
        }));
        run(async {
            let early = compio::time::timeout(std::time::Duration::from_millis(1), syncer.flush()).await;
            assert!(early.is_err(), "it left before the end");
            go.send(()).expect("somebody waits");
            syncer.flush().await.expect_err("the loss was kept for the next one");
        });
    }
}
