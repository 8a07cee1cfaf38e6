//! Buffers of pools that are cut from regions. In a process of its own: it is for all pools of one.

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
    // Given back by another core, which keeps nothing once it is gone.
    thread::spawn(move || assert!(buf.iter().all(|b| *b == 7))).join().expect("a core");
    assert_eq!(place(&pool.try_get(8192).expect("room")), first);
    assert!(Buf::zeroed(4096).region().is_none(), "of no pool");
    drop(other);
    let big = pool.try_get(Pool::MAX_BUFFER).expect("room");
    assert_eq!(big.region().expect("the second one").index, 1);
}
