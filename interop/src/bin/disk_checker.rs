//! Writes and reads blocks of a disk at random, and checks each value that it reads (`interop::admissible`).
//!
//! `disk_checker DEVICE STOP GAPS`: runs until the file STOP exists. A line of GAPS is the time in ms that one thread has
//! waited for an operation, if that was long. A failed operation, or a value that the block may not hold, ends the program
//! with status 1. The disk contains zeros at the beginning.
#![forbid(unsafe_code)]

use interop::Random;
use interop::admissible::{BLOCK_BYTES, WrittenBlock, contents, generation};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const THREADS: u64 = 4;
/// So few that a block is written again soon after a fault, when a late write of its old generation would show.
const BLOCKS: u64 = 256;
/// Blocks are in different objects of the image.
const BLOCK_DISTANCE_BYTES: u64 = 256 << 10;
/// Shorter gaps are not written to the file.
const LONG: Duration = Duration::from_millis(500);

struct Checker {
    disk: File,
    gaps: File,
    blocks: Vec<WrittenBlock>,
    writes: AtomicU64,
    reads: AtomicU64,
}

fn main() -> ExitCode {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [device, stop, gaps] = &paths[..] else {
        eprintln!("usage: disk_checker DEVICE STOP GAPS");
        return ExitCode::from(2);
    };
    match check(device, Path::new(stop), gaps) {
        Ok(counts) => {
            println!("{counts}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            println!("disk_checker: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn check(device: &str, stop: &Path, gaps: &str) -> Result<String, String> {
    let open = |options: &mut OpenOptions, path: &str| options.open(path).map_err(|e| format!("{path}: {e}"));
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let checker = Checker {
        disk: open(OpenOptions::new().read(true).write(true).custom_flags(direct), device)?,
        gaps: open(OpenOptions::new().create(true).append(true), gaps)?,
        blocks: (0..BLOCKS).map(|_| WrittenBlock::default()).collect(),
        writes: AtomicU64::new(0),
        reads: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let checker = &checker;
            // A fault ends the program, although other threads may wait for the disk.
            scope.spawn(move || {
                if let Err(fault) = checker.run(thread, stop) {
                    println!("disk_checker: {fault}");
                    std::process::exit(1);
                }
            });
        }
    });
    (0..BLOCKS).try_for_each(|number| checker.read(number))?;
    Ok(format!("{} writes, {} reads", checker.writes.load(Relaxed), checker.reads.load(Relaxed)))
}

impl Checker {
    /// A thread writes its own blocks, and reads all.
    fn run(&self, thread: u64, stop: &Path) -> Result<(), String> {
        let mut random = Random::new(thread);
        while !stop.exists() {
            let number = random.below(BLOCKS);
            let begin = Instant::now();
            match number % THREADS == thread || random.one_in(2) {
                true => self.write(number - number % THREADS + thread)?,
                false => self.read(number)?,
            }
            if begin.elapsed() > LONG {
                let line = format!("{}\n", begin.elapsed().as_millis());
                (&self.gaps).write_all(line.as_bytes()).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    fn write(&self, number: u64) -> Result<(), String> {
        let block = &self.blocks[number as usize];
        let generation = block.begin_write();
        let (mut memory, at) = aligned();
        memory[at..at + BLOCK_BYTES].copy_from_slice(&contents(number, generation));
        let written = self.disk.write_all_at(&memory[at..at + BLOCK_BYTES], number * BLOCK_DISTANCE_BYTES);
        written.map_err(|e| format!("block {number}: write: {e}"))?;
        block.acknowledge(generation);
        self.writes.fetch_add(1, Relaxed);
        Ok(())
    }

    fn read(&self, number: u64) -> Result<(), String> {
        let block = &self.blocks[number as usize];
        let oldest = block.begin_read();
        let (mut memory, at) = aligned();
        let data = &mut memory[at..at + BLOCK_BYTES];
        let read = self.disk.read_exact_at(data, number * BLOCK_DISTANCE_BYTES);
        read.map_err(|e| format!("block {number}: read: {e}"))?;
        let shown = generation(number, data).and_then(|shown| block.end_read(oldest, shown));
        shown.map_err(|fault| format!("block {number}: {fault}"))?;
        self.reads.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Memory, and the start of a part that is aligned for O_DIRECT.
fn aligned() -> (Vec<u8>, usize) {
    let memory = vec![0; 2 * BLOCK_BYTES];
    let at = memory.as_ptr().align_offset(BLOCK_BYTES);
    (memory, at)
}
