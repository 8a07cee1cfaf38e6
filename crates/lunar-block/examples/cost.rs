//! Measures the cost of one operation on the calling core, in nanoseconds. The numbers are informative, and no test
//! depends on them: `cargo run --release -p lunar-block --example cost [FOLDER]`.

use lunar_block::filter::stats;
use lunar_block::{Backend, BackendKind, BackendSpec, TryIo, open};
use lunar_runtime::Buf;
use rustix::io::{ReadWriteFlags, preadv2};
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const CAPACITY: u64 = 64 << 20;
const ROUNDS: u64 = 32_000;
const DEPTH: u64 = 32;

/// Pseudo-random offsets within the disk, the same in each run.
fn offset(round: u64, len: usize) -> u64 {
    round.wrapping_mul(0x9e37_79b9) * 4096 % (CAPACITY - len as u64) / 4096 * 4096
}

fn print(name: &str, len: usize, started_at: Instant, done: u64) {
    let ns = started_at.elapsed().as_nanos() as u64 / ROUNDS;
    println!("{name:36} {len:7} bytes {ns:7} ns   {:3} % on the spot", done * 100 / ROUNDS);
}

fn is_done(outcome: TryIo) -> bool {
    match outcome {
        TryIo::Done(result) => result.is_ok(),
        TryIo::WouldWait => false,
    }
}

/// Reads as a server does: inline if possible, otherwise asynchronously.
async fn reads(name: &str, disk: &dyn Backend, len: usize) {
    let (mut buf, mut done) = (Buf::zeroed(len), 0);
    let started_at = Instant::now();
    for round in 0..ROUNDS {
        match is_done(disk.try_read(offset(round, len), &mut buf)) {
            true => done += 1,
            false => (_, buf) = disk.read(offset(round, len), buf).await,
        }
    }
    print(&format!("{name}: read"), len, started_at, done);
}

/// Writes as a server does.
async fn writes(name: &str, disk: &dyn Backend, len: usize) {
    let (mut buf, mut done) = (Buf::zeroed(len), 0);
    buf.fill(1);
    let started_at = Instant::now();
    for round in 0..ROUNDS {
        match is_done(disk.try_write(offset(round, len), &buf)) {
            true => done += 1,
            false => (_, buf) = disk.write(offset(round, len), buf, false).await,
        }
    }
    print(&format!("{name}: write"), len, started_at, done);
}

/// Writes asynchronously, many at once.
async fn deep_writes(name: &str, disk: &Arc<dyn Backend>, len: usize) {
    let started_at = Instant::now();
    let lanes: Vec<_> = (0..DEPTH)
        .map(|lane| {
            let disk = disk.clone();
            compio::runtime::spawn(async move {
                let mut buf = Buf::zeroed(len);
                for round in 0..ROUNDS / DEPTH {
                    (_, buf) = disk.write(offset(round * DEPTH + lane, len), buf, false).await;
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.expect("a lane");
    }
    print(&format!("{name}: write, {DEPTH} at once"), len, started_at, 0);
}

fn bare(path: &Path, len: usize) {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("a file");
    let mut buf = Buf::zeroed(len);
    let started_at = Instant::now();
    for round in 0..ROUNDS {
        let n = preadv2(&file, &mut [IoSliceMut::new(&mut buf)], offset(round, len), ReadWriteFlags::NOWAIT);
        assert!(n.is_ok_and(|n| n == len));
    }
    print("the bare call: read", len, started_at, ROUNDS);
    let started_at = Instant::now();
    for round in 0..ROUNDS {
        file.write_all_at(&buf, offset(round, len)).expect("written");
    }
    print("the bare call: write", len, started_at, ROUNDS);
}

fn main() {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("lunar-cost-{}.img", std::process::id()));
    let spec = BackendSpec {
        rbd: None,
        kind: BackendKind::File,
        size: Some(CAPACITY),
        create: true,
        ..BackendSpec::path(&path)
    };
    let disks: [(&str, Arc<dyn Backend>); 4] = [
        ("null", open(&BackendSpec::sized(BackendKind::Null, CAPACITY)).expect("null")),
        ("memory", open(&BackendSpec::sized(BackendKind::Memory, CAPACITY)).expect("memory")),
        ("file", open(&spec).expect("a file")),
        (
            "stats of memory",
            stats(open(&BackendSpec::sized(BackendKind::Memory, CAPACITY)).expect("memory")).0,
        ),
    ];
    std::fs::write(&path, vec![1; CAPACITY as usize]).expect("filled");
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    for len in [4096, 65536] {
        bare(&path, len);
        for (name, disk) in &disks {
            runtime.block_on(reads(name, &**disk, len));
            runtime.block_on(writes(name, &**disk, len));
            runtime.block_on(deep_writes(name, disk, len));
        }
    }
    std::fs::remove_file(&path).expect("gone");
}
