use super::*;
use crate::pipe::tests::{counts, limit};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

fn file(content: &[u8]) -> OwnedFd {
    let file = memfd_create("content", MemfdFlags::CLOEXEC).expect("a file");
    assert_eq!(rustix::io::write(&file, content).expect("written"), content.len());
    file
}

#[test]
fn pages_stay_readable_after_their_file_is_truncated() {
    let content: Vec<u8> = (0..50_000u32).map(|at| (at >> 3) as u8).collect();
    let file = file(&content);
    let pages = PipedBytes::take(&file, 4096, 40_000).expect("pages");
    ftruncate(&file, 0).expect("truncated");
    drop(file);
    assert!(PipedPart::from(pages).copy().expect("read") == content[4096..44_096]);
}

#[test]
fn range_beyond_the_end_of_a_file_has_no_pages() {
    let file = file(&[7; 10_000]);
    assert!(PipedBytes::take(&file, 8192, 1808).is_some());
    assert!(PipedBytes::take(&file, 8192, 1809).is_none());
    assert!(PipedBytes::take(&file, 20_000, 1).is_none());
}

#[test]
fn range_longer_than_a_pipe_has_no_pages() {
    let file = file(&vec![7; 2 * MAX_PIPED]);
    assert!(PipedBytes::take(&file, 0, MAX_PIPED).is_some());
    assert!(PipedBytes::take(&file, 0, MAX_PIPED + 1).is_none());
    let free = PipedPart::from(PipedBytes::take(&file, 0, 1).expect("pages"));
    free.copy().expect("read");
    drop(free);
    assert!(PipedBytes::take(&file, 1, MAX_PIPED).is_none(), "it touches one page more");
    assert_eq!(counts(), (1, 0), "no pipe was closed for it");
}

#[test]
fn parts_out_of_order_are_rejected() {
    let pages = Rc::new(PipedBytes::take(file(&[7; 8192]), 0, 8192).expect("pages"));
    let part = |start, len| PipedPart { piped: pages.clone(), start, len };
    assert_eq!(part(1, 10).copy().expect_err("out of order").kind(), io::ErrorKind::InvalidInput);
    assert_eq!(part(0, 10).copy().expect("read"), [7; 10]);
    assert_eq!(part(0, 10).copy().expect_err("sent already").kind(), io::ErrorKind::InvalidInput);
    assert_eq!(part(10, 8182).copy().expect("read").len(), 8182);
}

#[test]
fn pipes_of_a_core_are_bounded_and_reused() {
    let content = file(&[7; 4096]);
    let (take, limit) = (|| PipedBytes::take(&content, 0, 4096), limit());
    let held: Vec<_> = (0..limit).map(|_| take().expect("a pipe")).collect();
    assert!(take().is_none(), "all pipes are lent");
    let mut held = held.into_iter();
    let read = PipedPart::from(held.next().expect("pages"));
    read.copy().expect("read");
    drop(read);
    assert_eq!(counts(), (1, limit - 1));
    drop(held);
    assert_eq!(counts(), (1, 0), "full pipes are closed");
    let again = PipedPart::from(take().expect("a pipe"));
    assert_eq!(again.copy().expect("read"), [7; 4096], "a reused pipe is empty");
}
