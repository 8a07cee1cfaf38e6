//! Targets that are killed, redirect, or stay away.

use super::*;
use interop::Server;
use interop::peer::SIZE;
use lunar_initiator::ErrorCode;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{sleep, spawn};

const LEN: usize = 32768;
const SLOTS: u64 = SIZE / LEN as u64;
const WRITERS: u64 = 8;

/// The progress of the writers, and whether they may stop.
#[derive(Default)]
struct Progress {
    written: AtomicU64,
    enough: AtomicBool,
}

impl Progress {
    /// Waits until `more` further writes are acknowledged.
    fn await_more(&self, more: u64) {
        let goal = self.written.load(Relaxed) + more;
        let end = std::time::Instant::now() + LIMIT;
        while self.written.load(Relaxed) < goal {
            assert!(std::time::Instant::now() < end, "no more writes are acknowledged");
            sleep(Duration::from_millis(5));
        }
    }
}

/// Writes to random slots of its own until `enough` is set. Returns the last seed written to each slot.
async fn write_on(lun: Arc<Lun>, writer: u64, progress: Arc<Progress>) -> HashMap<u64, u64> {
    let (mut random, mut last) = (Random(writer), HashMap::new());
    for seed in (writer << 32).. {
        if progress.enough.load(Relaxed) {
            break;
        }
        let slot = random.below(SLOTS / WRITERS) * WRITERS + writer;
        let written = write(&*lun, slot * LEN as u64, seed, LEN).await;
        written.unwrap_or_else(|e| panic!("a write failed: {e}"));
        last.insert(slot, seed);
        progress.written.fetch_add(1, Relaxed);
    }
    last
}

/// Runs several writers, then verifies all acknowledged writes.
async fn write_and_check(url: String, progress: Arc<Progress>) {
    let lun = open(&url).await.expect("a LUN");
    let begin = |n| compio::runtime::spawn(write_on(lun.clone(), n, progress.clone()));
    let mut acknowledged = Vec::new();
    for writer in (0..WRITERS).map(begin).collect::<Vec<_>>() {
        acknowledged.extend(writer.await.expect("the writer panicked"));
    }
    assert!(lun.session().info().recoveries >= 2, "the session was never lost");
    for (slot, seed) in acknowledged {
        assert!(read(&*lun, slot * LEN as u64, LEN).await == *pattern(seed, LEN), "slot {slot} was lost");
    }
}

#[test]
fn writer_sees_nothing_of_a_target_restart() {
    for mut peer in peers() {
        let progress = Arc::new(Progress::default());
        let (url, seen) = (peer.open(""), progress.clone());
        let writer = spawn(move || run(move || write_and_check(url, seen)));
        for away_ms in [0, 700] {
            progress.await_more(200);
            peer.kill9();
            sleep(Duration::from_millis(away_ms));
            peer.restart();
            progress.await_more(50);
        }
        progress.enough.store(true, Relaxed);
        writer.join().expect("the writer panicked");
    }
}

#[test]
fn absent_target_fails_after_the_recovery_timeout() {
    // The timeout exceeds the two seconds that targets demand before a new login (DefaultTime2Wait).
    for mut peer in peers() {
        let url = peer.open("recovery_timeout=5&late_writes=risk");
        let (sender, receiver) = flume::bounded::<()>(0);
        let user = spawn(move || {
            run(move || async move {
                let lun = open(&url).await.expect("a LUN");
                receiver.recv_async().await.expect("the LUN is open");
                receiver.recv_async().await.expect("the target is killed");
                write(&*lun, 0, 1, LEN).await.expect_err("the target is gone")
            })
        });
        sender.send(()).expect("the LUN is open");
        peer.kill9();
        sender.send(()).expect("the user waits");
        let error = user.join().expect("an error");
        let inner = Error::of(&error).expect("an error of this crate");
        // The rest of the message depends on the port, which another test may use by now.
        let names_portal =
            inner.what.contains(&format!("no connection to {} for 5 s: ", interop::peer::OPEN));
        assert!(inner.code == ErrorCode::TimedOut && names_portal, "{:?}: {inner}", inner.code);
    }
}

/// A server whose first portal redirects to its second.
fn redirecting(permanent: bool) -> Server {
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let there = held.local_addr().expect("bound");
    drop(held);
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[portal_group]]\ntag = 2\nportals = [\"{there}\"]\n\
         [[target]]\nname = \"{}\"\n\
         redirect = [{{ portal_group = 1, to = \"{there}\", permanent = {permanent} }}]\n\
         [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"64MiB\"\n",
        interop::TARGET
    ))
}

#[test]
fn target_that_moved_is_followed_also_after_it_was_killed() {
    for permanent in [false, true] {
        let mut server = redirecting(permanent);
        let there = server.portals()[1].to_string();
        let url = format!("iscsi://{}/{}/0", server.portal(), interop::TARGET);
        let progress = Arc::new(Progress::default());
        let seen = progress.clone();
        let writer = spawn(move || {
            run(move || async move {
                let lun = open(&url).await.expect("a LUN");
                assert_eq!(lun.session().info().portal.to_string(), there);
                write_on(lun.clone(), 0, seen).await;
                assert!(lun.session().info().recoveries > 0);
                assert_eq!(lun.session().info().portal.to_string(), there);
            })
        });
        progress.await_more(50);
        server.restart();
        progress.await_more(50);
        progress.enough.store(true, Relaxed);
        writer.join().expect("the writer panicked");
    }
}
