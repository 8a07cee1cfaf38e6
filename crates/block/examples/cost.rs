//! What one operation costs on the core that asks for it, in nanoseconds, at queue depth 1. For looking at, not for
//! judging: `cargo run --release -p block --example cost [FOLDER]`.

use block::filter::stats;
use block::{Backend, Inline, Kind, Spec, open};
use net::Buf;
use rustix::io::{ReadWriteFlags, preadv2};
use std::io::IoSliceMut;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const CAPACITY: u64 = 64 << 20;
const ROUNDS: u64 = 50_000;

/// Offsets all over the disk, the same each time.
fn offset(round: u64, len: usize) -> u64 {
    round.wrapping_mul(0x9e37_79b9) * 4096 % (CAPACITY - len as u64) / 4096 * 4096
}

fn tell(name: &str, len: usize, begin: Instant, done: u64) {
    let ns = begin.elapsed().as_nanos() as u64 / ROUNDS;
    println!("{name:28} {len:7} bytes {ns:7} ns   {:3} % on the spot", done * 100 / ROUNDS);
}

fn on_the_spot(name: &str, disk: &dyn Backend, len: usize) {
    let mut buf = Buf::zeroed(len);
    let done = |outcome| u64::from(matches!(outcome, Inline::Done(Ok(()))));
    let begin = Instant::now();
    let sum = (0..ROUNDS).map(|round| done(disk.read_now(offset(round, len), &mut buf))).sum();
    tell(&format!("{name} read_now"), len, begin, sum);
    let begin = Instant::now();
    let sum = (0..ROUNDS).map(|round| done(disk.write_now(offset(round, len), &buf))).sum();
    tell(&format!("{name} write_now"), len, begin, sum);
}

async fn asynchronous(name: &str, disk: &dyn Backend, len: usize) {
    let mut buf = Buf::zeroed(len);
    let begin = Instant::now();
    for round in 0..ROUNDS {
        (_, buf) = disk.read(offset(round, len), buf).await;
    }
    tell(&format!("{name} read"), len, begin, 0);
    let begin = Instant::now();
    for round in 0..ROUNDS {
        (_, buf) = disk.write(offset(round, len), buf, false).await;
    }
    tell(&format!("{name} write"), len, begin, 0);
}

fn bare(path: &PathBuf, len: usize) {
    let file = std::fs::File::open(path).expect("a file");
    let mut buf = Buf::zeroed(len);
    let begin = Instant::now();
    for round in 0..ROUNDS {
        let n = preadv2(&file, &mut [IoSliceMut::new(&mut buf)], offset(round, len), ReadWriteFlags::NOWAIT);
        assert!(n.is_ok_and(|n| n == len));
    }
    tell("the bare call preadv2", len, begin, ROUNDS);
}

fn main() {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("lunar-cost-{}.img", std::process::id()));
    let spec = Spec { kind: Kind::File, size: Some(CAPACITY), create: true, ..Spec::path(&path) };
    let disks: [(&str, Arc<dyn Backend>); 4] = [
        ("null", open(&Spec::sized(Kind::Null, CAPACITY)).expect("null")),
        ("memory", open(&Spec::sized(Kind::Memory, CAPACITY)).expect("memory")),
        ("file", open(&spec).expect("a file")),
        ("stats of memory", stats(open(&Spec::sized(Kind::Memory, CAPACITY)).expect("memory")).0),
    ];
    std::fs::write(&path, vec![1; CAPACITY as usize]).expect("filled");
    for len in [4096, 65536] {
        bare(&path, len);
        for (name, disk) in &disks {
            on_the_spot(name, &**disk, len);
        }
    }
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    for (name, disk) in &disks {
        runtime.block_on(asynchronous(name, &**disk, 4096));
    }
    std::fs::remove_file(&path).expect("gone");
}
