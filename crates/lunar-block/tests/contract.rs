//! The contract of [`Backend`], checked against an array of bytes: on every backend, with every filter around one,
//! and with both drivers of the runtime.

mod common;

use common::{Scratch, filled, runtimes};
use lunar_block::filter::{FilterOp, RateLimit, delay, error, rate, stats};
use lunar_block::testing::VolatileBackend;
use lunar_block::{Backend, BackendKind, BackendSpec, Extent, RbdLocation, TryIo, open};
use lunar_nbd::client;
use lunar_nbd::server::{ListenAddress, NbdExport, NbdServer, ServerLimits, serve};
use lunar_runtime::Cores;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const CAPACITY: u64 = 640 * 1024;

/// An operation of the test.
#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, len: u64, seed: u8, stable: bool, now: bool },
    Read { offset: u64, len: u64, now: bool },
    Unmap { offset: u64, len: u64 },
    Zero { offset: u64, len: u64, unmap: bool },
    Flush,
    Extents,
    Prefetch { offset: u64, len: u64 },
}

/// A range within the capacity, small or large. Most ranges are aligned to sectors.
fn range() -> impl Strategy<Value = (u64, u64)> {
    let unit = prop_oneof![3 => Just(512u64), 2 => Just(4096), 1 => Just(1)];
    let span = prop_oneof![4 => 0u64..20_000, 1 => 0u64..CAPACITY];
    (0..=CAPACITY, span, unit).prop_map(|(offset, len, unit)| {
        let offset = offset - offset % unit;
        let len = len.next_multiple_of(unit).min(CAPACITY - offset);
        (offset, len)
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (range(), any::<u8>(), any::<bool>(), any::<bool>())
            .prop_map(|((offset, len), seed, stable, now)| Step::Write { offset, len, seed, stable, now }),
        4 => (range(), any::<bool>()).prop_map(|((offset, len), now)| Step::Read { offset, len, now }),
        2 => range().prop_map(|(offset, len)| Step::Unmap { offset, len }),
        2 => (range(), any::<bool>()).prop_map(|((offset, len), unmap)| Step::Zero { offset, len, unmap }),
        1 => Just(Step::Flush),
        1 => Just(Step::Extents),
        1 => range().prop_map(|(offset, len)| Step::Prefetch { offset, len }),
    ]
}

/// Bytes that depend on offset and seed; a `seed` of 0 gives zeros.
fn pattern(seed: u8, offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(|at| (at / 7) as u8 & seed | (seed >> 4)).collect()
}

async fn read(disk: &dyn Backend, offset: u64, len: u64, now: bool) -> Vec<u8> {
    // Not zeros, so that unfilled bytes are detected.
    let mut buf = filled(&vec![0xEE; len as usize]);
    if now && let TryIo::Done(result) = disk.try_read(offset, &mut buf) {
        result.expect("read at once");
        return buf.to_vec();
    }
    let (result, buf) = disk.read(offset, buf).await;
    result.expect("read");
    buf.to_vec()
}

async fn write(disk: &dyn Backend, offset: u64, bytes: &[u8], fua: bool, now: bool) {
    if now
        && !fua
        && let TryIo::Done(result) = disk.try_write(offset, bytes)
    {
        return result.expect("write at once");
    }
    let max_atomic = disk.max_atomic() as usize;
    // A limit of 0 means that atomic writes are unsupported, also those of no bytes.
    let (result, buf) = match fua && max_atomic > 0 && bytes.len() <= max_atomic {
        true => disk.write_atomic(offset, filled(bytes)).await,
        false => disk.write(offset, filled(bytes), fua).await,
    };
    result.expect("write");
    assert_eq!(&buf[..], bytes, "the buffer is returned unchanged");
}

/// Checks that extents cover the disk without a gap, one or several at a time, and that unmapped ranges are zeros.
async fn check_extents(disk: &dyn Backend, model: &[u8]) {
    for max in [1, 3] {
        let mut at = 0;
        while at < CAPACITY {
            let found = match max {
                1 => disk.extent(at, CAPACITY - at).await.map(|one| vec![one]),
                _ => disk.extents(at, CAPACITY - at, max).await,
            };
            let found = found.expect("extents");
            assert!((1..=max).contains(&found.len()));
            for Extent { offset, len, mapped } in found {
                assert_eq!(offset, at);
                assert!(len > 0 && at + len <= CAPACITY);
                assert!(mapped || model[at as usize..(at + len) as usize].iter().all(|b| *b == 0));
                at += len;
            }
        }
    }
}

async fn apply(disk: &dyn Backend, model: &mut [u8], step: &Step) {
    match *step {
        Step::Write { offset, len, seed, stable, now } => {
            let bytes = pattern(seed, offset, len);
            write(disk, offset, &bytes, stable, now).await;
            model[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
        }
        Step::Read { offset, len, now } => {
            let got = read(disk, offset, len, now).await;
            assert!(got == model[offset as usize..(offset + len) as usize], "bytes at {offset}+{len} differ");
        }
        Step::Unmap { offset, len } => {
            disk.unmap(offset, len).await.expect("unmap");
            model[offset as usize..(offset + len) as usize].fill(0);
        }
        Step::Zero { offset, len, unmap } => {
            disk.write_zeroes(offset, len, unmap).await.expect("write zeroes");
            model[offset as usize..(offset + len) as usize].fill(0);
        }
        Step::Flush => disk.flush().await.expect("flush"),
        Step::Extents => check_extents(disk, model).await,
        Step::Prefetch { offset, len } => disk.prefetch(offset, len),
    }
}

/// Applies the steps to a new disk, and compares its content with the model.
async fn live(disk: &dyn Backend, steps: &[Step]) {
    let mut model = vec![0; CAPACITY as usize];
    for step in steps {
        apply(disk, &mut model, step).await;
    }
    check_extents(disk, &model).await;
    for now in [true, false] {
        assert!(read(disk, 0, CAPACITY, now).await == model, "the disk differs at the end");
    }
}

/// Runs the property on a new disk from `make` in each case.
fn promise(cases: u32, make: impl AsyncFn(&Scratch) -> Arc<dyn Backend>) {
    for runtime in runtimes() {
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(steps in proptest::collection::vec(step(), 1..40))| {
            let scratch = Scratch::new();
            runtime.block_on(async {
                let disk = make(&scratch).await;
                assert_eq!(disk.info().capacity, CAPACITY);
                live(&*disk, &steps).await;
            });
        });
    }
}

#[test]
fn memory_keeps_its_promise() {
    promise(100, async |_| open(&BackendSpec::sized(BackendKind::Memory, CAPACITY)).expect("memory"));
}

#[test]
fn file_keeps_its_promise() {
    promise(40, async |scratch| open(&scratch.spec(CAPACITY)).expect("a file"));
}

#[test]
fn direct_file_keeps_its_promise() {
    let direct = |scratch: &Scratch| open(&BackendSpec { direct: true, ..scratch.spec(CAPACITY) });
    match direct(&Scratch::new()) {
        Ok(_) => promise(40, async |scratch| direct(scratch).expect("as before")),
        Err(e) => println!("skipped: O_DIRECT: {e}"),
    }
}

fn memory() -> Arc<dyn Backend> {
    open(&BackendSpec::sized(BackendKind::Memory, CAPACITY)).expect("memory")
}

fn lossy(inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
    Arc::new(VolatileBackend::new(inner))
}

/// Wraps the backend in every filter, with settings that must not change results.
fn filtered(inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
    let slow = delay(inner, Duration::from_nanos(1), Duration::ZERO);
    let sound = error(error(slow, FilterOp::Flush, 0.0, Some(1)), FilterOp::Write, 0.0, None);
    stats(rate(sound, RateLimit::new(100_000_000, 0))).0
}

#[test]
fn filters_keep_the_promise_of_memory() {
    promise(40, async |_| filtered(memory()));
}

#[test]
fn filters_keep_the_promise_of_a_file() {
    promise(20, async |scratch| filtered(open(&scratch.spec(CAPACITY)).expect("a file")));
}

#[test]
fn volatile_backend_with_power_keeps_the_contract() {
    promise(60, async |_| lossy(memory()));
    promise(20, async |scratch| lossy(open(&scratch.spec(CAPACITY)).expect("a file")));
}

#[test]
fn stack_of_filters_keeps_the_contract() {
    promise(40, async |_| filtered(lossy(filtered(lossy(memory())))));
}

/// A server of a memory disk with a block size of 1 byte.
fn server() -> NbdServer {
    let export = NbdExport {
        name: "disk".into(),
        backend: memory(),
        block_size: 1,
        read_only: false,
        description: String::new(),
    };
    let listen = [ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"))];
    let cores = Arc::new(Cores::one().expect("an event loop"));
    serve(&listen, vec![export], cores, ServerLimits::default()).expect("served")
}

#[test]
fn nbd_export_keeps_the_contract() {
    let server = server();
    let url: client::NbdUrl = server.addresses()[0].url("disk").parse().expect("a URL");
    promise(40, async |_| {
        let disk = client::open(&url).await.expect("an export");
        disk.write_zeroes(0, CAPACITY, true).await.expect("zeros");
        disk as Arc<dyn Backend>
    });
}

/// `LUNAR_TEST_RBD` names an image that does not exist, with its options. The test creates it.
#[test]
fn rbd_image_keeps_the_contract() {
    let Ok(text) = std::env::var("LUNAR_TEST_RBD") else {
        return println!("skipped: LUNAR_TEST_RBD names no image to create");
    };
    let location = RbdLocation::parse(&text).expect("an image");
    let spec = BackendSpec { create: true, size: Some(CAPACITY), ..BackendSpec::rbd(location) };
    let disk = open(&spec).expect("an image");
    promise(20, async |_| {
        disk.write_zeroes(0, CAPACITY, true).await.expect("zeros");
        disk.clone()
    });
}

/// A disk that may be overwritten, of exactly [`CAPACITY`] bytes: `losetup --find --show` on a file of that
/// size makes one.
#[test]
fn device_keeps_the_contract() {
    let Some(path) = std::env::var_os("LUNAR_TEST_DEVICE") else {
        return println!(
            "skipped: LUNAR_TEST_DEVICE names no disk of {CAPACITY} bytes that may be overwritten"
        );
    };
    for direct in [false, true] {
        let disk = open(&BackendSpec { direct, ..BackendSpec::path(&path) }).expect("a device");
        // An exclusive open retries a busy device for a while, so it is tested only once.
        let in_use = open(&BackendSpec::path(&path)).err().expect("the device is in use");
        assert!(in_use.what.starts_with("is in use by"), "{in_use}");
        let read = open(&BackendSpec { read_only: true, ..BackendSpec::path(&path) })
            .err()
            .expect("the device is being written");
        assert!(read.what.starts_with("is being written by"), "{read}");
        drop(disk);
        promise(20, async |_| {
            let disk = open(&BackendSpec { direct, ..BackendSpec::path(&path) }).expect("a device");
            disk.write_zeroes(0, CAPACITY, false).await.expect("zeros");
            disk
        });
    }
}
