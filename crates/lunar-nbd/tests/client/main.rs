//! Tests of the NBD client with servers of other projects, with Lunar's server, and with faulty servers.
#![forbid(unsafe_code)]

mod hostile;
mod ours;
mod peers;

use lunar_block::Backend;
use lunar_nbd::client;
use lunar_runtime::{Buf, Cores};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Runs a future on its own event loop.
fn on_a_core<T: Send + 'static, W: Future<Output = T> + 'static>(
    work: impl FnOnce() -> W + Send + 'static,
) -> T {
    Cores::one().expect("an event loop").wait(0, work).expect("the task panicked")
}

async fn open(url: &str) -> Arc<client::NbdDisk> {
    let url: client::NbdUrl = url.parse().unwrap_or_else(|e| panic!("{e}"));
    client::open(&url).await.unwrap_or_else(|e| panic!("{e}"))
}

/// Opens an export that must be rejected. Returns what failed, and the hint.
fn refused(url: &str) -> (String, String) {
    let url: client::NbdUrl = url.parse().unwrap_or_else(|e| panic!("{e}"));
    let refused = on_a_core(move || async move { client::open(&url).await.err() });
    let e = refused.expect("the export was opened");
    (e.what, e.hint)
}

fn filled(bytes: &[u8]) -> Buf {
    Buf::copy_of(bytes)
}

async fn write(disk: &dyn Backend, offset: u64, bytes: &[u8], fua: bool) {
    let (result, buf) = disk.write(offset, filled(bytes), fua).await;
    result.expect("the write succeeds");
    assert_eq!(&buf[..], bytes, "the returned buffer has other bytes");
}

async fn read(disk: &dyn Backend, offset: u64, len: usize) -> Vec<u8> {
    // Filled with a value other than zero, so that missing data is detected.
    let (result, buf) = disk.read(offset, filled(&vec![0xEE; len])).await;
    result.expect("the read succeeds");
    buf.to_vec()
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at / 512).wrapping_mul(seed * 2 + 1).wrapping_add(at) as u8).collect()
}

/// Returns a value of `describe` by its name.
fn described_value(disk: &dyn Backend, name: &str) -> String {
    disk.describe().into_iter().find(|row| row.0 == name).map(|row| row.1).unwrap_or_default()
}
