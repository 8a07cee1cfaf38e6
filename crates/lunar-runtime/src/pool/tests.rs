use super::share::{GRANT_BYTES, RESERVED_BYTES, SMALL_BYTES};
use super::*;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Wake};

#[test]
fn limit_holds_and_a_return_makes_room() {
    let pool = Pool::new(Pool::MAX_BUFFER);
    let all = pool.try_get(Pool::MAX_BUFFER).expect("the first buffer fits");
    assert!(pool.try_get(1).is_none());
    drop(all);
    assert_eq!(pool.used(), 0);
    assert_eq!(pool.try_get(5000).expect("room again").len(), 5000);
}

#[test]
fn share_leaves_something_for_the_others() {
    let pool = Pool::new(4 * Pool::MAX_BUFFER);
    let (greedy, modest) = (pool.share(), pool.share());
    let all = greedy.try_get(Pool::MAX_BUFFER).expect("a quarter");
    assert!(greedy.try_get(1).is_none());
    let rest: Vec<Buf> = (0..3).map(|_| pool.try_get(Pool::MAX_BUFFER).expect("room")).collect();
    let first = modest.try_get(RESERVED_BYTES).expect("the first buffer, above the limit");
    assert!(modest.try_get(1).is_none());
    assert!(pool.share().try_get(RESERVED_BYTES + 1).is_none());
    drop((first, all, rest));
    assert_eq!(pool.used(), 0);
    assert!(greedy.try_get(Pool::MAX_BUFFER).is_some());
}

#[test]
fn shares_of_one_owner_have_one_quarter_together() {
    let pool = Pool::new(4 * Pool::MAX_BUFFER);
    let (one, two, other) = (pool.share_of("a"), pool.share_of("a"), pool.share_of("b"));
    let all = one.try_get(Pool::MAX_BUFFER).expect("a quarter");
    assert!(two.try_get(2 << 20).is_none(), "the quarter is used up");
    let first = two.try_get(RESERVED_BYTES).expect("each share gets its first buffer");
    assert!(two.try_get(RESERVED_BYTES).is_none());
    assert!(other.try_get(Pool::MAX_BUFFER).is_some());
    drop((all, first, one, two));
    assert_eq!(pool.used(), 0);
    assert!(pool.share_of("a").try_get(Pool::MAX_BUFFER).is_some());
    assert_eq!(pool.0.account.owners.lock().unwrap().len(), 2, "unused owners are removed");
}

#[test]
fn owners_that_keep_their_buffers_leave_room_for_the_next() {
    const PART: usize = 2 << 20;
    let pool = Pool::new(32 * Pool::MAX_BUFFER);
    let hoard = |n: usize| {
        let share = pool.share_of(&n.to_string());
        let all: Vec<Buf> = std::iter::from_fn(|| share.try_get(PART)).collect();
        (share, all)
    };
    let hoards: Vec<_> = (0..4).map(hoard).collect();
    assert!(hoards.iter().all(|(_, all)| all.len() * PART > Pool::MAX_BUFFER));
    let next = pool.share_of("next");
    let two = [0, 1].map(|_| next.try_get(Pool::MAX_BUFFER));
    assert!(two.iter().all(Option::is_some));
}

/// All buffers of this size that `shares` shares of one owner get, at most `each` per share.
fn hoard(pool: &Pool, owner: &str, shares: usize, bytes: usize, each: usize) -> Vec<Buf> {
    let of_one = |_| {
        let share = pool.share_of(owner);
        (0..each).map_while(|_| share.try_get(bytes)).collect::<Vec<_>>()
    };
    (0..shares).flat_map(of_one).collect()
}

#[test]
fn small_buffers_count_for_the_owner_of_all_shares() {
    let pool = Pool::new(1 << 30);
    let held = hoard(&pool, "a", 128, SMALL_BYTES, 128);
    assert!(pool.used() <= pool.0.account.limit / 3, "{} of {} bytes", pool.used(), pool.0.account.limit);
    assert!(pool.used() >= pool.0.account.limit / 4, "{} of {} bytes", pool.used(), pool.0.account.limit);
    let other = pool.share_of("b");
    assert!([0, 1, 2, 3].map(|_| other.try_get(Pool::MAX_BUFFER)).iter().all(Option::is_some));
    drop(held);
    assert_eq!(pool.used(), 0);
    let again = hoard(&pool, "a", 128, PAGE, 128);
    assert_eq!(again.len(), 128 * 128, "returned buffers are available again");
}

#[test]
fn owners_of_small_buffers_leave_room_for_the_next() {
    let pool = Pool::new(1 << 30);
    let held: Vec<_> = (0..6).map(|n| hoard(&pool, &n.to_string(), 64, SMALL_BYTES, 128)).collect();
    let next = pool.share_of("next");
    assert!(next.try_get(Pool::MAX_BUFFER).is_some());
    assert!((0..32).map(|_| next.try_get(PAGE)).all(|buf| buf.is_some()));
    drop(held);
}

/// An idle share keeps one step. This step must not keep buffers from other shares of its owner.
#[test]
fn unused_steps_of_small_buffers_go_back_to_the_owner() {
    let pool = Pool::new(4 * Pool::MAX_BUFFER);
    let (one, two) = (pool.share_of("a"), pool.share_of("a"));
    let held: Vec<Buf> = (0..64).map(|_| one.try_get(SMALL_BYTES).expect("room")).collect();
    let owner = one.0.owner.clone();
    assert_eq!(owner.small.load(SeqCst), 64 * SMALL_BYTES);
    drop(held);
    assert_eq!(owner.small.load(SeqCst), GRANT_BYTES);
    assert!(two.try_get(Pool::MAX_BUFFER).is_some());
    drop(one);
    assert_eq!(owner.small.load(SeqCst), 0);
}

#[test]
fn first_buffers_beyond_the_limit_are_bounded_together() {
    let pool = Pool::new(4 * Pool::MAX_BUFFER);
    let all: Vec<Buf> = (0..4).map(|_| pool.try_get(Pool::MAX_BUFFER).expect("room")).collect();
    let firsts = |owner: &str| {
        let shares: Vec<Pool> = (0..100).map(|_| pool.share_of(owner)).collect();
        shares.iter().map_while(|share| share.try_get(RESERVED_BYTES)).collect::<Vec<Buf>>()
    };
    let greedy = firsts("a");
    assert!((1..=12).contains(&greedy.len()), "{} of 32 MiB", greedy.len());
    let others: Vec<_> = (0..8).map(|n| firsts(&n.to_string())).collect();
    assert!(others.iter().all(|held| !held.is_empty()), "each owner gets one");
    let promised = pool.share_of("late").promise(RESERVED_BYTES);
    assert!(promised.is_some_and(|mut first| first.claim()));
    drop((greedy, others, all));
    assert_eq!((pool.used(), pool.0.account.reserve.load(SeqCst)), (0, 0));
}

#[test]
fn promise_takes_nothing_until_it_is_claimed() {
    let pool = Pool::new(4 * Pool::MAX_BUFFER);
    let shares = ["a", "b", "c", "d", "e"].map(|owner| pool.share_of(owner));
    let mut promised = shares.each_ref().map(|share| share.promise(Pool::MAX_BUFFER).expect("a promise"));
    assert!(shares[0].promise(2 << 20).is_none(), "the promise counts for its share");
    assert_eq!(pool.used(), 0);
    let claimed = promised.each_mut().map(Buf::claim);
    assert_eq!(claimed, [true, true, true, true, false]);
    assert!(promised[0].claim(), "a second claim has no effect");
    assert_eq!(pool.used(), 4 * Pool::MAX_BUFFER);
    assert!(pool.share_of("f").promise(2 << 20).is_none(), "the pool is at its limit");
    assert!(pool.share_of("f").promise(RESERVED_BYTES).is_some_and(|mut first| first.claim()));
    drop(promised);
    assert_eq!(pool.used(), 0);
    assert!(shares[0].try_get(Pool::MAX_BUFFER).is_some());
}

/// Two waiters of one share and one of another, and two buffers return at once. The limit of the first share
/// admits only one of its waiters, so the second buffer goes to the other share.
#[test]
fn waiter_over_its_share_wakes_the_next() {
    compio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let pool = Pool::new(2 * Pool::MAX_BUFFER);
        let all = [0, 1].map(|_| pool.try_get(Pool::MAX_BUFFER).expect("room"));
        let (greedy, modest) = (pool.share(), pool.share());
        let (sender, got) = flume::unbounded();
        for (share, name) in [(greedy.clone(), "first"), (greedy, "second"), (modest, "other")] {
            let sender = sender.clone();
            crate::spawn(async move {
                let buf = share.get(Pool::MAX_BUFFER).await;
                let _ = sender.send((name, buf));
            });
        }
        compio::time::sleep(std::time::Duration::from_millis(20)).await;
        drop(all);
        let mut held = Vec::new();
        for expected in ["first", "other"] {
            let next = compio::time::timeout(std::time::Duration::from_secs(10), got.recv_async()).await;
            let (name, buf) = next.expect("in time").expect("a sender");
            assert_eq!(name, expected);
            held.push(buf);
        }
    });
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

type Getting<'a> = (Pin<Box<dyn Future<Output = Buf> + 'a>>, Arc<Woken>);

fn getting(pool: &Pool, len: usize) -> Getting<'_> {
    (Box::pin(pool.get(len)), Arc::new(Woken(true.into())))
}

/// Polls the woken futures until none is woken. Returns the buffers with the index of their waiter.
fn settle(all: &mut [Getting<'_>]) -> Vec<(usize, Buf)> {
    let mut came = Vec::new();
    for _ in 0..100 {
        let mut woken = all.iter_mut().enumerate();
        let Some((who, (get, woken))) = woken.find(|(_, (_, woken))| woken.0.swap(false, SeqCst)) else {
            return came;
        };
        if let Poll::Ready(buf) = get.as_mut().poll(&mut Context::from_waker(&woken.clone().into())) {
            came.push((who, buf));
            *get = Box::pin(std::future::pending());
        }
    }
    panic!("the waiters wake each other endlessly")
}

/// Two waiters that would leave too little to others precede one of another owner, and one buffer returns.
#[test]
fn waiter_over_its_owners_limit_wakes_the_next() {
    for bytes in [SMALL_BYTES, 2 << 20] {
        let pool = Pool::new(4 * Pool::MAX_BUFFER);
        let (greedy, modest) = (pool.share_of("a"), pool.share_of("b"));
        let held: Vec<Buf> = (0..8).map(|_| greedy.try_get(bytes).expect("room")).collect();
        // The next buffer is then not its first one, which it would get above the limit.
        let first = modest.try_get(PAGE).expect("room");
        let mut others: Vec<Buf> = std::iter::from_fn(|| pool.try_get(bytes)).collect();
        let mut all = [&greedy, &greedy, &modest].map(|share| getting(share, bytes));
        assert!(settle(&mut all).is_empty(), "{bytes}: the pool is at its limit");
        others.pop();
        let came = settle(&mut all);
        assert_eq!(came.iter().map(|(who, _)| *who).collect::<Vec<_>>(), [2], "{bytes}");
        drop((held, first));
        assert!(!settle(&mut all).is_empty(), "{bytes}: its owner is below the limit again");
    }
}

/// A waiter for a large buffer precedes one for a small buffer, and room for the small one returns.
#[test]
fn waiter_for_a_large_buffer_does_not_block_small_ones() {
    compio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let pool = Pool::new(Pool::MAX_BUFFER);
        let mut parts: Vec<Buf> = (0..2).map(|_| pool.try_get(Pool::MAX_BUFFER / 2).expect("room")).collect();
        let (sender, got) = flume::unbounded();
        for len in [Pool::MAX_BUFFER, PAGE] {
            let (pool, sender) = (pool.clone(), sender.clone());
            crate::spawn(async move { drop(sender.send(pool.get(len).await)) });
            compio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        parts.pop();
        let next = compio::time::timeout(std::time::Duration::from_secs(10), got.recv_async()).await;
        assert_eq!(next.expect("in time").expect("a sender").len(), PAGE);
    });
}
