//! Load on a logical unit or a namespace, as `cargo xtask bench` uses it: `load URL read|write BYTES DEPTH SECONDS`. Prints
//! the IOPS and the CPU time for each I/O.

use lunar_block::{Backend, BackendQueue};
use lunar_initiator::nvme;
use lunar_initiator::{Error as InitiatorError, Url};
use lunar_runtime::{Cores, Pool};
use std::cell::Cell;
use std::error::Error;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The load to generate.
#[derive(Clone, Copy)]
struct Load {
    write: bool,
    bytes: usize,
    depth: usize,
    time: Duration,
}

/// After a read of more bytes than this, the buffer goes back to the pool. The next read takes a buffer whose pages
/// are still in the CPU cache.
const LARGE: usize = 64 << 10;

/// Uniformly distributed offsets (xorshift).
struct Offsets {
    state: u64,
    places: u64,
}

impl Offsets {
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        // Multiply and shift: a division would take a noticeable part of the time of a command.
        ((u128::from(self.state) * u128::from(self.places)) >> 64) as u64
    }
}

/// Reads or writes until `on` is cleared. Returns the number of operations.
async fn work(disk: Arc<dyn Backend>, load: Load, on: Rc<Cell<bool>>) -> std::io::Result<u64> {
    // The same part of the disk as the reference load generator.
    let places = disk.info().capacity.min(256 << 20) / load.bytes as u64;
    let mut offsets = Offsets { state: 0x9e37_79b9_7f4a_7c16, places };
    let mut queue = disk.queue().ok_or_else(|| std::io::Error::other("the session is on another core"))?;
    let mut begin = |queue: &mut dyn BackendQueue, lane, data| {
        let offset = offsets.next() * load.bytes as u64;
        match load.write {
            true => queue.write(lane, offset, data, false),
            false => queue.read(lane, offset, data),
        }
    };
    let pool = Pool::new(1 << 30);
    let buffer = || pool.try_get(load.bytes).expect("less than the pool has");
    (0..load.depth).for_each(|lane| begin(&mut *queue, lane, buffer()));
    let mut count = 0;
    while on.get() {
        let (lane, (result, mut data)) = poll_fn(|cx| queue.poll_ended(cx)).await;
        result?;
        if !load.write && load.bytes > LARGE {
            drop(data);
            data = buffer();
        }
        begin(&mut *queue, lane, data);
        count += 1;
    }
    Ok(count)
}

/// Opens the LUN or the namespace of a URL.
async fn open(url: &str) -> Result<Arc<dyn Backend>, InitiatorError> {
    match nvme::is_url(url) {
        true => Ok(nvme::open(&url.parse()?).await?),
        false => Ok(lunar_initiator::open(&Url::parse(url)?).await?),
    }
}

async fn run(url: String, load: Load) -> Result<(u64, Duration), String> {
    let lun = open(&url).await.map_err(|e| e.to_string())?;
    let on = Rc::new(Cell::new(true));
    let start = Instant::now();
    let worker = compio::runtime::spawn(work(lun.clone(), load, on.clone()));
    lunar_runtime::sleep_until(start + load.time).await;
    on.set(false);
    let sum = worker.await.map_err(|_| "the worker panicked")?.map_err(|e| e.to_string())?;
    Ok((sum, start.elapsed()))
}

/// CPU time of this process.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let main: u64 = stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("schedstat")).ok();
    let all = threads.filter_map(of).filter_map(|s| s.split(' ').next()?.parse::<u64>().ok()).sum::<u64>();
    Duration::from_nanos(all.max(main))
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, op, bytes, depth, seconds] = &words[..] else {
        return Err("load URL read|write BYTES DEPTH SECONDS".into());
    };
    let load = Load {
        write: op == "write",
        bytes: bytes.parse()?,
        depth: depth.parse()?,
        time: Duration::from_secs_f64(seconds.parse()?),
    };
    let (url, cores) = (url.clone(), Cores::one()?);
    let before = cpu();
    let (count, time) = cores.wait(0, move || run(url, load))??;
    let used = cpu() - before;
    let iops = count as f64 / time.as_secs_f64();
    println!("iops {iops:.0} cpu_us_per_io {:.4}", used.as_secs_f64() * 1e6 / count.max(1) as f64);
    Ok(())
}
