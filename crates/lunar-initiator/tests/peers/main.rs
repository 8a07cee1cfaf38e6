//! The library against targets on loopback: STGT, istgt, and Lunar's own. Through all faults, acknowledged data must
//! survive, and temporary faults must not surface as errors.
#![forbid(unsafe_code)]

mod data;
mod faults;
mod paths;
mod stress;

use interop::Peer;
use lunar_block::Backend;
use lunar_initiator::{Error, Lun, Url};
use lunar_runtime::{Buf, Cores};
use std::io::Write;
use std::panic;
use std::sync::{Arc, Once};
use std::time::Duration;

const DIGESTS: &str = "header_digest=crc32c&data_digest=crc32c";
/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `work` on its own event loop.
fn run<T, W>(work: impl FnOnce() -> W + Send + 'static) -> T
where
    T: Send + 'static,
    W: Future<Output = T> + 'static,
{
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // Bypasses the output capture: an event loop that panics with live sessions aborts the process, and
            // captured output is lost.
            let _ = writeln!(std::io::stderr(), "{info}");
            usual(info);
        }));
    });
    let cores = Cores::one().expect("an event loop");
    let limited = move || async move { compio::time::timeout(LIMIT, work()).await.expect("the test hangs") };
    cores.wait(0, limited).expect("an event loop")
}

async fn open(url: &str) -> Result<Arc<Lun>, Error> {
    lunar_initiator::open(&Url::parse(url)?).await
}

/// Every installed peer, and Lunar.
fn peers() -> impl Iterator<Item = Peer> {
    let foreign: [fn() -> Option<Peer>; 3] = [Peer::tgt, Peer::istgt, || Some(Peer::lunar())];
    foreign.into_iter().filter_map(|start| start())
}

/// A deterministic sequence of random numbers (SplitMix64).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }
}

/// Bytes that are unique to a seed.
fn pattern(seed: u64, len: usize) -> Buf {
    let (mut random, mut buf) = (Random(seed), Buf::zeroed(len));
    buf.chunks_mut(8).for_each(|c| c.copy_from_slice(&random.below(u64::MAX).to_le_bytes()[..c.len()]));
    buf
}

async fn write(disk: &dyn Backend, offset: u64, seed: u64, len: usize) -> std::io::Result<()> {
    disk.write(offset, pattern(seed, len), false).await.0
}

async fn read(disk: &dyn Backend, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) = disk.read(offset, Buf::zeroed(len)).await;
    result.unwrap_or_else(|e| panic!("read of {len} bytes at {offset}: {e}"));
    buf.to_vec()
}
