use super::*;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Waker};

fn poll<F: Future>(f: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    f.poll(&mut Context::from_waker(Waker::noop()))
}

/// A lock, and its handles for two cores.
fn gate() -> (Arc<TaskSetLock>, TaskSetHandle, TaskSetHandle) {
    let gate = Arc::new(TaskSetLock::new(crate::exec::tests::lu(true)));
    let other = std::thread::spawn(CoreIndex::current).join().expect("a shard");
    let (a, b) = (gate.handle(CoreIndex::current()), gate.handle(other));
    (gate, a, b)
}

#[test]
fn exclusive_command_waits_for_simple_commands() {
    wait(async {
        let (_, a, b) = gate();
        assert!(a.try_lock_shared() && b.try_lock_shared());
        let mut alone = pin!(a.lock_exclusive());
        assert!(poll(alone.as_mut()).is_pending());
        assert!(!b.try_lock_shared(), "the lock is closed");
        assert!(poll(pin!(b.lock_head_of_queue())).is_ready(), "HEAD OF QUEUE passes");
        a.unlock_shared();
        assert!(poll(alone.as_mut()).is_pending());
        b.unlock_shared();
        let Poll::Ready(held) = poll(alone.as_mut()) else { panic!("all have left") };
        let mut waiting = pin!(b.lock_shared());
        assert!(poll(waiting.as_mut()).is_pending());
        let mut next = pin!(a.lock_shared());
        assert!(poll(next.as_mut()).is_pending());
        drop(held);
        assert!(poll(waiting.as_mut()).is_ready());
        assert!(poll(next.as_mut()).is_ready(), "the first waiter wakes the second");
    });
}

#[test]
fn dropped_wait_opens_lock_again() {
    let (_, a, b) = gate();
    assert!(a.try_lock_shared());
    {
        let mut alone = pin!(b.lock_exclusive());
        assert!(poll(alone.as_mut()).is_pending());
    }
    assert!(a.try_lock_shared());
}

#[test]
fn exclusive_command_waits_for_all_of_one_core() {
    let (gate, a, b) = gate();
    let beside = gate.handle(b.shard);
    assert!(b.try_lock_shared() && beside.try_lock_shared());
    let mut alone = pin!(a.lock_exclusive());
    assert!(poll(alone.as_mut()).is_pending());
    b.unlock_shared();
    assert!(poll(alone.as_mut()).is_pending());
    beside.unlock_shared();
    assert!(poll(alone.as_mut()).is_ready());
}

/// HEAD OF QUEUE waits for a command that runs alone, but not for one that waits to run alone.
#[test]
fn head_of_queue_passes_waiting_exclusive() {
    wait(async {
        let (gate, a, b) = gate();
        let [c, d] = [a.shard, b.shard].map(|shard| gate.handle(shard));
        let Poll::Ready(held) = poll(pin!(a.lock_exclusive())) else { panic!("the lock is free") };
        let mut next = pin!(b.lock_exclusive());
        assert!(poll(next.as_mut()).is_pending());
        let [mut ahead, mut another] = [Box::pin(c.lock_head_of_queue()), Box::pin(c.lock_head_of_queue())];
        assert!(poll(ahead.as_mut()).is_pending() && poll(another.as_mut()).is_pending());
        drop(held);
        assert!(d.try_lock_shared());
        assert!(poll(next.as_mut()).is_pending(), "it waits for the new holder");
        assert!(poll(ahead.as_mut()).is_ready());
        assert!(poll(another.as_mut()).is_ready(), "the first waiter wakes the second");
    });
}

/// Two tasks each take one lock exclusively and the other one shared, and reach their first lock at the same time.
#[test]
fn several_locks_do_not_deadlock() {
    wait(async {
        let [(_, a0, b0), (_, a1, b1)] = [(); 2].map(|()| gate());
        let (a, b, held) = ([a0.clone(), a1.clone()], [b0, b1], [a0, a1]);
        let [first, second] = held.each_ref().map(|m| match poll(pin!(m.lock_exclusive())) {
            Poll::Ready(alone) => alone,
            Poll::Pending => panic!("the lock is free"),
        });
        let wanted = [
            vec![(a[0].clone(), LockMode::Exclusive), (a[1].clone(), LockMode::Shared)],
            vec![
                (b[1].clone(), LockMode::Exclusive),
                (b[0].clone(), LockMode::Shared),
                (b[1].clone(), LockMode::Shared),
            ],
        ];
        let [mut there, mut back] = wanted.map(|wanted| Box::pin(lock_all(wanted)));
        assert!(poll(there.as_mut()).is_pending() && poll(back.as_mut()).is_pending());
        drop(first);
        assert!(poll(there.as_mut()).is_pending() && poll(back.as_mut()).is_pending());
        drop(second);
        let (one, other) = match (poll(back.as_mut()), poll(there.as_mut())) {
            (Poll::Ready(inside), Poll::Pending) => (inside, there),
            (Poll::Pending, Poll::Ready(inside)) => (inside, back),
            (Poll::Pending, Poll::Pending) => panic!("deadlock"),
            _ => panic!("both want exclusive locks"),
        };
        assert_eq!(one.len(), 2, "each lock once");
        drop(one);
        let mut other = other;
        assert!(poll(other.as_mut()).is_ready());
    });
}

const ROUNDS: usize = 3_000;

/// Runs `work` concurrently in one thread for each number. All of them must end.
fn all_end(numbers: std::ops::Range<usize>, work: impl Fn(usize) + Send + Sync + 'static) {
    let (work, begin) = (Arc::new(work), Arc::new(std::sync::Barrier::new(numbers.len())));
    let (done, ended) = flume::unbounded();
    for number in numbers.clone() {
        let (work, begin, done) = (work.clone(), begin.clone(), done.clone());
        std::thread::spawn(move || {
            begin.wait();
            work(number);
            let _ = done.send(());
        });
    }
    for _ in numbers {
        ended.recv_timeout(std::time::Duration::from_secs(60)).expect("a thread sleeps for ever");
    }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    compio::runtime::Runtime::new().expect("a runtime").block_on(work)
}

/// One thread waits to run alone, and checks whenever a command ends. Another one holds the lock all the time.
#[test]
fn head_of_queue_passes_periodic_check() {
    let (gate, alone, stays) = gate();
    assert!(stays.try_lock_shared());
    let exclusive = std::thread::spawn(move || wait(async move { drop(alone.lock_exclusive().await) }));
    while stays.try_lock_shared() {
        stays.unlock_shared();
        std::thread::yield_now();
    }
    all_end(0..2, {
        let gate = gate.clone();
        move |_| {
            let member = gate.handle(CoreIndex::current());
            wait(async {
                for _ in 0..ROUNDS {
                    drop(member.lock_head_of_queue().await);
                    std::thread::yield_now();
                }
            });
        }
    });
    stays.unlock_shared();
    exclusive.join().expect("the exclusive thread");
}

/// An exclusive holder is alone, and all threads get the lock in every mode.
#[test]
fn all_lock_modes_make_progress() {
    let ((gate, ..), inside) = (gate(), AtomicUsize::new(0));
    all_end(0..4, move |number| {
        let member = gate.handle(CoreIndex::current());
        wait(async {
            for round in number..number + ROUNDS {
                let mode = [LockMode::Shared, LockMode::HeadOfQueue, LockMode::Exclusive][round % 3];
                let held = member.lock(mode).await;
                let others = inside.fetch_add(1, SeqCst);
                assert!(mode != LockMode::Exclusive || others == 0);
                std::thread::yield_now();
                assert!(mode != LockMode::Exclusive || inside.load(SeqCst) == 1);
                inside.fetch_sub(1, SeqCst);
                drop(held);
            }
        });
    });
}

/// A time limit for a future that might never resolve.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), work).await.expect("stalled core blocks others")
}

/// The first core in these tests is stalled: nothing polls its future.
#[test]
fn wake_up_of_stalled_core_reaches_next() {
    for mode in [LockMode::Shared, LockMode::HeadOfQueue, LockMode::Exclusive] {
        wait(async {
            let (gate, a, b) = gate();
            let c = gate.handle(b.shard);
            let held = soon(c.lock_exclusive()).await;
            let [mut stalled, mut next] = [&a, &b].map(|member| Box::pin(member.lock(mode)));
            assert!(poll(stalled.as_mut()).is_pending() && poll(next.as_mut()).is_pending());
            drop(held);
            drop(soon(next).await);
            drop(soon(stalled).await);
        });
    }
}

#[test]
fn stalled_core_loses_exclusive_turn() {
    for mode in [LockMode::Shared, LockMode::Exclusive] {
        wait(async {
            let (_, a, b) = gate();
            assert!(b.try_lock_shared());
            let mut stalled = pin!(a.lock_exclusive());
            assert!(poll(stalled.as_mut()).is_pending());
            b.unlock_shared();
            let other = soon(b.lock(mode)).await;
            assert!(poll(stalled.as_mut()).is_pending(), "it waits for its next turn");
            drop(other);
            let _alone = soon(stalled).await;
            assert!(!b.try_lock_shared());
        });
    }
}

#[test]
fn dropped_lost_turn_ends_no_other() {
    wait(async {
        let (_, a, b) = gate();
        assert!(b.try_lock_shared());
        let mut stalled = Box::pin(a.lock_exclusive());
        assert!(poll(stalled.as_mut()).is_pending());
        b.unlock_shared();
        let _alone = soon(b.lock_exclusive()).await;
        drop(stalled);
        assert!(!a.try_lock_shared(), "the lock stays closed");
    });
}
