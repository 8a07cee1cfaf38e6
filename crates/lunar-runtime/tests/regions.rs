//! Pool buffers that are cut from regions. A separate process, because regions are enabled for all pools of a
//! process.

use lunar_runtime::{Buf, Pool, regions};
use std::thread;

fn place(buf: &Buf) -> usize {
    let region = buf.region().expect("a buffer of a region");
    let at = (buf.as_ptr() as usize).checked_sub(region.at.as_ptr() as usize).expect("in its region");
    assert!(at + buf.len() <= regions::REGION);
    at
}

#[test]
fn buffers_of_pools_lie_in_regions_once_that_is_asked_for() {
    let pool = Pool::new(2 * Pool::MAX_BUFFER);
    let before = pool.try_get(8192).expect("room");
    assert!(before.region().is_none());
    regions::enable();
    drop(before);
    let mut buf = pool.try_get(8192).expect("room");
    buf.fill(7);
    let first = place(&buf);
    let other = pool.try_get(5000).expect("room");
    assert_ne!(place(&other), first);
    assert!(other.iter().all(|b| *b == 0), "unused memory");
    // Returned on another thread, whose free lists vanish when it ends.
    thread::spawn(move || assert!(buf.iter().all(|b| *b == 7))).join().expect("a core");
    assert_eq!(place(&pool.try_get(8192).expect("room")), first);
    assert!(Buf::zeroed(4096).region().is_none(), "a buffer without a pool");
    let mut rest = pool.try_get(3 * 4096).expect("room");
    let front = rest.split_front(4096);
    assert_eq!(place(&rest), place(&front) + 4096, "parts of a buffer lie in its region");
    drop((front, rest));
    drop(other);
    let big = pool.try_get(Pool::MAX_BUFFER).expect("room");
    assert_eq!(big.region().expect("a buffer of a region").index, 1);
}
