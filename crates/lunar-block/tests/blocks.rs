//! Reads during concurrent writes return each block as it was before or after a write, never a mix, on every medium.

mod common;

use common::Scratch;
use lunar_block::{Backend, BackendKind, BackendSpec, TryIo, open};
use lunar_runtime::Buf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const CAPACITY: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// Writes `len` bytes of one number repeatedly, with a new number each time, inline if possible.
async fn write(disk: &dyn Backend, len: usize, ends: &AtomicBool) {
    let mut buf = Buf::zeroed(len);
    let mut number = 0_u8;
    while !ends.load(Relaxed) {
        number = number.wrapping_add(1);
        if number == 0 {
            disk.write_zeroes(0, len as u64, false).await.expect("zeros");
            continue;
        }
        buf.fill(number);
        match disk.try_write(0, &buf) {
            TryIo::Done(result) => result.expect("written"),
            TryIo::WouldWait => {
                let result;
                (result, buf) = disk.write(0, buf, false).await;
                result.expect("written");
            }
        }
    }
}

/// The number of blocks read that mix several numbers.
async fn torn(disk: &dyn Backend, len: usize, reads: u32) -> u32 {
    let (mut buf, mut torn) = (Buf::zeroed(len), 0);
    for round in 0..reads {
        let done = if round % 4 == 0 { TryIo::WouldWait } else { disk.try_read(0, &mut buf) };
        match done {
            TryIo::Done(result) => result.expect("read"),
            TryIo::WouldWait => {
                let result;
                (result, buf) = disk.read(0, buf).await;
                result.expect("read");
            }
        }
        torn += buf.chunks(BLOCK).filter(|block| **block != [block[0]; BLOCK]).count() as u32;
    }
    torn
}

/// Runs a writer on another thread and a reader here, and returns the number of torn blocks.
fn beside(disk: &Arc<dyn Backend>, len: usize, reads: u32) -> u32 {
    let ends = Arc::new(AtomicBool::new(false));
    let (other, stop) = (disk.clone(), ends.clone());
    let writer = std::thread::spawn(move || {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(write(&*other, len, &stop));
    });
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    let torn = runtime.block_on(torn(&**disk, len, reads));
    ends.store(true, Relaxed);
    writer.join().expect("a writer");
    torn
}

#[test]
fn read_beside_a_write_returns_whole_blocks() {
    let [cached, direct] = [Scratch::new(), Scratch::new()];
    let direct = open(&BackendSpec { direct: true, ..direct.spec(CAPACITY) });
    let media = [
        ("memory", open(&BackendSpec::sized(BackendKind::Memory, CAPACITY)), 100_000),
        ("file", open(&cached.spec(CAPACITY)), 100_000),
        ("direct", direct, 2_000),
    ];
    for (name, disk, reads) in media {
        let Ok(disk) = disk else { return println!("skipped: {name}") };
        for blocks in [1, 64] {
            let torn = beside(&disk, blocks * BLOCK, reads / blocks as u32);
            assert_eq!(torn, 0, "{name}: torn blocks in reads of {blocks} blocks");
        }
    }
}
