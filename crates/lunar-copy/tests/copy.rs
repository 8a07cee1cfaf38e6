//! Copies with any layout of extents, with failures of either side, and with power loss.

#[path = "../../lunar-block/tests/common/mod.rs"]
mod common;

use common::{Scratch, filled, runtimes};
use lunar_block::filter::{FilterOp, IoCounters, error, stats};
use lunar_block::offload::{GRANULE, Offload};
use lunar_block::testing::VolatileBackend;
use lunar_block::{Backend, BackendInfo, BackendKind, BackendSpec, BufResult, Extent, LocalBoxFuture, open};
use lunar_copy::{
    CopyErrorCause, CopyJob, CopyMeter, CopyOutcome, CopySource, CopyStyle, StopFlag, ZeroPolicy, copy,
    stream, verify,
};
use lunar_runtime::Buf;
use proptest::prelude::*;
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

const STYLE: CopyStyle =
    CopyStyle { block: 2 * GRANULE, depth: 4, sparse: ZeroPolicy::Auto, skip_errors: false };

fn memory(size: u64) -> Arc<dyn Backend> {
    open(&BackendSpec::sized(BackendKind::Memory, size)).expect("memory")
}

fn job(source: &Arc<dyn Backend>, destination: &Arc<dyn Backend>, style: CopyStyle) -> CopyJob {
    CopyJob {
        source: CopySource::Disk(source.clone()),
        destination: destination.clone(),
        range: 0..source.info().capacity,
        style,
        zeroed: false,
        grow: None,
        offload: None,
        meter: Arc::default(),
        stop: Arc::default(),
    }
}

async fn simply(job: CopyJob) -> CopyOutcome {
    copy(job, None, |_, _| Ok(())).await
}

/// Bytes that depend on the offset and are never zero.
fn pattern(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (at % 251) as u8 + 1).collect()
}

async fn put(disk: &dyn Backend, offset: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        disk.write(offset, filled(bytes), false).await.0.expect("write");
    }
}

async fn content(disk: &dyn Backend, len: u64) -> Vec<u8> {
    let (result, buf) = disk.read(0, Buf::zeroed(len as usize)).await;
    result.expect("read");
    buf.to_vec()
}

/// A disk filled with the pattern.
async fn full(size: u64) -> Arc<dyn Backend> {
    let disk = memory(size);
    put(&*disk, 0, &pattern(0, size as usize)).await;
    disk
}

#[derive(Clone, Debug)]
struct Case {
    size: u64,
    /// The writes to the source: offset and length.
    data: Vec<(u64, usize)>,
    style: CopyStyle,
    zeroed: bool,
    larger: u64,
    file: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let style = (1u64..4, 1usize..6, any::<bool>()).prop_map(|(blocks, depth, auto)| CopyStyle {
        block: blocks * GRANULE,
        depth,
        sparse: if auto { ZeroPolicy::Auto } else { ZeroPolicy::Never },
        skip_errors: false,
    });
    let size = prop_oneof![1..2_000_000u64, (1u64..20).prop_map(|n| n * GRANULE)];
    let data = proptest::collection::vec((0u64..2_000_000, 1usize..200_000), 0..6);
    (size, data, style, any::<bool>(), 0u64..3 * GRANULE, any::<bool>()).prop_map(
        |(size, data, style, zeroed, larger, file)| Case { size, data, style, zeroed, larger, file },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn copy_is_equal_and_leaves_the_rest_alone(case in case()) {
        let scratch = Scratch::new();
        let source = match case.file {
            true => open(&scratch.spec(case.size)).expect("a file"),
            false => memory(case.size),
        };
        let destination = memory(case.size + case.larger);
        runtimes().remove(0).block_on(async {
            if !case.zeroed {
                let old = vec![0xee; (case.size + case.larger) as usize];
                put(&*destination, 0, &old).await;
            }
            for (offset, len) in &case.data {
                let offset = offset % case.size;
                put(&*source, offset, &pattern(offset, (*len).min((case.size - offset) as usize))).await;
            }
            let mut work = job(&source, &destination, case.style);
            work.zeroed = case.zeroed;
            let meter = work.meter.clone();
            let outcome = simply(work).await;
            assert!(outcome.complete && outcome.failure.is_none() && outcome.stable == case.size);
            assert_eq!(meter.done.get(), case.size);
            let moved = meter.written.get() + meter.zeroed.get() + meter.skipped.get();
            assert_eq!(moved, case.size, "every byte is counted once");
            assert!(case.style.sparse == ZeroPolicy::Auto || meter.written.get() == case.size);
            let (expected, got) = (content(&*source, case.size).await, content(&*destination, case.size + case.larger).await);
            assert!(got[..case.size as usize] == expected[..]);
            let rest = if case.zeroed { 0 } else { 0xee };
            assert!(got[case.size as usize..].iter().all(|byte| *byte == rest));
            assert!(verify(job(&source, &destination, case.style), &[]).await.complete);
        });
    }

    #[test]
    fn stream_gives_the_same_bytes(case in case()) {
        let source = memory(case.size);
        let destination = memory(case.size + case.larger);
        runtimes().remove(0).block_on(async {
            for (offset, len) in &case.data {
                let offset = offset % case.size;
                put(&*source, offset, &pattern(offset, (*len).min((case.size - offset) as usize))).await;
            }
            let (out, bytes) = flume::bounded(2);
            let mut work = job(&source, &destination, case.style);
            let pipe = flume::bounded(2);
            (work.source, work.zeroed) = (CopySource::Stream(pipe.1), true);
            // The streamed bytes are collected and then copied to the destination as a stream.
            let streaming = compio::runtime::spawn(stream(
                CopySource::Disk(source.clone()), 0..case.size, case.style, out, Arc::default(), Arc::default(),
            ));
            let passing = compio::runtime::spawn(async move {
                let mut whole = Vec::new();
                while let Ok(buf) = bytes.recv_async().await {
                    whole.extend_from_slice(&buf);
                }
                for block in whole.chunks(case.style.block as usize) {
                    pipe.0.send_async(Ok(filled(block))).await.expect("it listens");
                }
            });
            let outcome = simply(work).await;
            passing.await.expect("joined");
            assert!(streaming.await.expect("joined").complete && outcome.complete, "{outcome:?}");
            assert_eq!(outcome.stable, case.size);
            assert!(content(&*source, case.size).await == content(&*destination, case.size).await);
        });
    }

    #[test]
    fn checkpointed_bytes_survive_power_loss(
        seed in any::<u64>(), after in 0u64..40, every in 1u64..6, complete in any::<bool>(),
    ) {
        const SIZE: u64 = 24 * GRANULE;
        runtimes().remove(0).block_on(async {
            let source = full(SIZE).await;
            let medium = memory(SIZE);
            let lossy = Arc::new(VolatileBackend::new(medium.clone()));
            // Some writes take longer than writes that start later.
            let slow: Arc<dyn Backend> = Arc::new(Uneven(lossy.clone()));
            let work = CopyJob { style: CopyStyle { block: GRANULE, ..STYLE }, ..job(&source, &slow, STYLE) };
            let stop = work.stop.clone();
            let checkpoint = Cell::new(0);
            let outcome = if complete {
                copy(work, Some(every * GRANULE), |stable, _| { checkpoint.set(stable); Ok(()) }).await
            } else {
                let stopper = compio::runtime::spawn(async move {
                    compio::time::sleep(Duration::from_micros(after * 200)).await;
                    stop.stop();
                });
                let outcome = copy(work, Some(every * GRANULE), |stable, _| { checkpoint.set(stable); Ok(()) }).await;
                stopper.await.expect("joined");
                outcome
            };
            lossy.lose(Some(seed)).await.expect("lose");
            assert!(outcome.failure.is_none());
            assert!(outcome.complete || checkpoint.get() == outcome.stable, "an early end is reported");
            assert!(!complete || outcome.complete && outcome.stable == SIZE);
            let stable = outcome.stable as usize;
            assert!(content(&*medium, SIZE).await[..stable] == pattern(0, SIZE as usize)[..stable]);
        });
    }
}

/// Every third write is slow.
struct Uneven(Arc<VolatileBackend>);

static WRITES: AtomicU32 = AtomicU32::new(0);

impl Backend for Uneven {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            if WRITES.fetch_add(1, SeqCst).is_multiple_of(3) {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
            self.0.write(offset, buf, fua).await
        })
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.flush()
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.unmap(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.write_zeroes(offset, len, unmap)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.0.describe()
    }
}

/// A disk with unreadable and unwritable ranges.
struct Damaged {
    inner: Arc<dyn Backend>,
    unreadable: Vec<Range<u64>>,
    unwritable: Option<Range<u64>>,
    error: Errno,
}

impl Damaged {
    fn reading(inner: Arc<dyn Backend>, unreadable: Vec<Range<u64>>) -> Arc<dyn Backend> {
        Arc::new(Damaged { inner, unreadable, unwritable: None, error: Errno::IO })
    }

    fn verdict<'a>(
        &self,
        mut places: impl Iterator<Item = &'a Range<u64>>,
        offset: u64,
        len: usize,
    ) -> io::Result<()> {
        let hit = places.any(|place| place.start < offset + len as u64 && offset < place.end);
        if hit { Err(self.error.into()) } else { Ok(()) }
    }
}

impl Backend for Damaged {
    fn info(&self) -> BackendInfo {
        BackendInfo { unmap: false, ..self.inner.info() }
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        match self.verdict(self.unreadable.iter(), offset, buf.len()) {
            Ok(()) => self.inner.read(offset, buf),
            Err(e) => Box::pin(std::future::ready((Err(e), buf))),
        }
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        match self.verdict(self.unwritable.iter(), offset, buf.len()) {
            Ok(()) => self.inner.write(offset, buf, fua),
            Err(e) => Box::pin(std::future::ready((Err(e), buf))),
        }
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.flush()
    }
    fn unmap(&self, _offset: u64, _len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())))
    }
    fn write_zeroes(&self, _offset: u64, _len: u64, _unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())))
    }
    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        self.inner.extent(offset, len)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

const SIZE: u64 = 20 * GRANULE + 1000;

#[test]
fn first_unreadable_range_ends_the_copy() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let source =
                Damaged::reading(full(SIZE).await, vec![9 * GRANULE..9 * GRANULE + 1, SIZE - 1..SIZE]);
            let destination = memory(SIZE);
            let outcome = simply(job(&source, &destination, STYLE)).await;
            let failure = outcome.failure.expect("the source is unreadable there");
            assert!(
                matches!(failure.cause, CopyErrorCause::Read(ref e) if e.raw_os_error() == Some(5)),
                "{failure}"
            );
            assert_eq!((failure.offset, outcome.stable), (8 * GRANULE, 8 * GRANULE));
            assert!(!outcome.complete);
            let got = content(&*destination, outcome.stable).await;
            assert!(got == pattern(0, got.len()), "the data before the failure is copied");
        });
    }
}

#[test]
fn unreadable_ranges_are_skipped_and_reported() {
    let bad = vec![4096..8192, 3 * GRANULE + 512..3 * GRANULE + 513, SIZE - 10..SIZE];
    let skipped = vec![4096..8192, 3 * GRANULE..3 * GRANULE + 4096, 20 * GRANULE..SIZE];
    runtimes().remove(0).block_on(async {
        let source = Damaged::reading(full(SIZE).await, bad);
        let destination = memory(SIZE);
        put(&*destination, 0, &vec![0xee; SIZE as usize]).await;
        let style = CopyStyle { skip_errors: true, ..STYLE };
        let outcome = simply(job(&source, &destination, style)).await;
        assert!(outcome.complete, "{outcome:?}");
        assert_eq!(outcome.bad, skipped);
        let mut expected = pattern(0, SIZE as usize);
        skipped.iter().for_each(|range| expected[range.start as usize..range.end as usize].fill(0));
        assert!(content(&*destination, SIZE).await == expected);
        let checked = verify(job(&source, &destination, STYLE), &outcome.bad).await;
        assert!(checked.complete, "left-out ranges are not compared: {checked:?}");
    });
}

#[test]
fn disk_that_is_gone_is_no_damage() {
    runtimes().remove(0).block_on(async {
        let (inner, destination) = (full(SIZE).await, memory(SIZE));
        let gone = Damaged {
            inner,
            unreadable: vec![0..GRANULE, GRANULE..SIZE],
            unwritable: None,
            error: Errno::NODEV,
        };
        let source: Arc<dyn Backend> = Arc::new(gone);
        let outcome = simply(job(&source, &destination, CopyStyle { skip_errors: true, ..STYLE })).await;
        assert!(matches!(outcome.failure.expect("gone").cause, CopyErrorCause::Read(_)));
        assert!(outcome.bad.is_empty());
    });
}

#[test]
fn random_read_errors_never_make_a_wrong_copy() {
    for seed in 0..20 {
        runtimes().remove(0).block_on(async {
            let source = error(full(SIZE).await, FilterOp::Read, 0.1, Some(seed));
            let destination = memory(SIZE);
            let outcome = simply(job(&source, &destination, STYLE)).await;
            assert_eq!(outcome.complete, outcome.failure.is_none());
            let got = content(&*destination, outcome.stable).await;
            assert!(got == pattern(0, got.len()), "seed {seed}");
        });
    }
}

#[test]
fn full_destination_ends_the_copy() {
    runtimes().remove(0).block_on(async {
        let (source, inner) = (full(SIZE).await, memory(SIZE));
        let destination: Arc<dyn Backend> = Arc::new(Damaged {
            inner,
            unreadable: Vec::new(),
            unwritable: Some(5 * GRANULE..SIZE),
            error: Errno::NOSPC,
        });
        let mut checkpoint = None;
        let work = job(&source, &destination, STYLE);
        let outcome = copy(work, None, |stable, _| {
            checkpoint = Some(stable);
            Ok(())
        });
        let outcome = outcome.await;
        let failure = outcome.failure.expect("full");
        assert!(
            matches!(failure.cause, CopyErrorCause::Write(ref e) if e.kind() == io::ErrorKind::StorageFull)
        );
        assert_eq!((failure.offset, checkpoint), (4 * GRANULE, Some(4 * GRANULE)));
    });
}

#[test]
fn failed_flush_is_no_success() {
    runtimes().remove(0).block_on(async {
        let source = full(SIZE).await;
        let destination = error(memory(SIZE), FilterOp::Flush, 1.0, None);
        let outcome = simply(job(&source, &destination, STYLE)).await;
        assert!(matches!(outcome.failure.expect("not stable").cause, CopyErrorCause::Flush(_)));
        assert_eq!((outcome.stable, outcome.complete), (0, false));
        let outcome = copy(job(&source, &destination, STYLE), Some(1), |stable, _| {
            assert_eq!(stable, 0, "no checkpoint claims durable data");
            Ok(())
        });
        assert!(!outcome.await.complete);
    });
}

/// A disk with one failed flush. Many file systems report a lost page only once.
struct Forgetful {
    inner: Arc<dyn Backend>,
    flushes: AtomicU32,
    fails: u32,
}

impl Backend for Forgetful {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.inner.write(offset, buf, fua)
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        let fails = self.flushes.fetch_add(1, SeqCst) + 1 == self.fails;
        Box::pin(async move { if fails { Err(Errno::IO.into()) } else { Ok(()) } })
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.unmap(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.write_zeroes(offset, len, unmap)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

#[test]
fn failed_flush_is_not_healed_by_the_next() {
    runtimes().remove(0).block_on(async {
        let source = full(SIZE).await;
        let (inner, flushes) = (memory(SIZE), AtomicU32::new(0));
        let destination: Arc<dyn Backend> = Arc::new(Forgetful { inner, flushes, fails: 2 });
        let mut checkpoints = Vec::new();
        let style = CopyStyle { depth: 1, ..STYLE };
        let outcome = copy(job(&source, &destination, style), Some(4 * GRANULE), |stable, _| {
            checkpoints.push(stable);
            Ok(())
        });
        let outcome = outcome.await;
        assert!(matches!(outcome.failure.expect("a flush").cause, CopyErrorCause::Flush(_)));
        assert_eq!((outcome.stable, outcome.complete), (4 * GRANULE, false));
        assert!(checkpoints.iter().all(|stable| *stable == 4 * GRANULE), "{checkpoints:?}");
    });
}

#[test]
fn failed_checkpoint_ends_the_copy() {
    runtimes().remove(0).block_on(async {
        let (source, destination) = (full(SIZE).await, memory(SIZE));
        let outcome = copy(job(&source, &destination, STYLE), Some(1), |_, _| Err(Errno::NOSPC.into())).await;
        assert!(matches!(outcome.failure.expect("a checkpoint").cause, CopyErrorCause::Checkpoint(_)));
    });
}

#[test]
fn checkpoints_come_as_often_as_asked_and_grow() {
    runtimes().remove(0).block_on(async {
        let (source, destination) = (full(SIZE).await, memory(SIZE));
        let mut checkpoints = Vec::new();
        let style = CopyStyle { depth: 1, ..STYLE };
        let outcome = copy(job(&source, &destination, style), Some(4 * GRANULE), |stable, _| {
            checkpoints.push(stable);
            Ok(())
        });
        assert!(outcome.await.complete);
        assert_eq!(checkpoints, [4, 8, 12, 16, 20].map(|n| n * GRANULE));
    });
}

#[test]
fn first_difference_is_named() {
    runtimes().remove(0).block_on(async {
        for place in [0, GRANULE + 17, 11 * GRANULE - 1, SIZE - 1] {
            let (source, destination) = (full(SIZE).await, full(SIZE).await);
            put(&*destination, place, &[0]).await;
            put(&*destination, SIZE - 1, &[0]).await;
            let outcome = verify(job(&source, &destination, STYLE), &[]).await;
            let failure = outcome.failure.expect("they differ");
            assert!(matches!(failure.cause, CopyErrorCause::Differs) && failure.offset == place, "{failure}");
        }
        // A hole of the source with data at the same offset of the destination.
        let (source, destination) = (memory(SIZE), memory(SIZE));
        put(&*destination, 12345, &[1]).await;
        let failure = verify(job(&source, &destination, STYLE), &[]).await.failure.expect("they differ");
        assert_eq!(failure.offset, 12345);
    });
}

/// A disk that records how many requests are in flight at a time.
struct Crowd {
    inner: Arc<dyn Backend>,
    inside: AtomicU32,
    max: AtomicU32,
}

impl Crowd {
    async fn stay(&self) {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        self.max.fetch_max(inside, SeqCst);
        compio::time::sleep(Duration::from_millis(5)).await;
        self.inside.fetch_sub(1, SeqCst);
    }
}

impl Backend for Crowd {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            self.stay().await;
            self.inner.read(offset, buf).await
        })
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            self.stay().await;
            self.inner.write(offset, buf, fua).await
        })
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.flush()
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.unmap(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.write_zeroes(offset, len, unmap)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

#[test]
fn as_many_requests_are_in_flight_as_asked() {
    let crowd = |inner| Arc::new(Crowd { inner, inside: AtomicU32::new(0), max: AtomicU32::new(0) });
    for runtime in runtimes() {
        runtime.block_on(async {
            let (reads, writes) = (crowd(full(16 * GRANULE).await), crowd(memory(16 * GRANULE)));
            let (source, destination): (Arc<dyn Backend>, Arc<dyn Backend>) = (reads.clone(), writes.clone());
            let style = CopyStyle { block: GRANULE, depth: 5, ..STYLE };
            assert!(simply(job(&source, &destination, style)).await.complete);
            assert_eq!((reads.max.load(SeqCst), writes.max.load(SeqCst)), (5, 5));
        });
    }
}

#[test]
fn zeros_cost_no_writes() {
    let counted = |disk: Arc<dyn Backend>| -> (Arc<dyn Backend>, Arc<IoCounters>) { stats(disk) };
    runtimes().remove(0).block_on(async {
        let source = memory(SIZE);
        put(&*source, 5 * GRANULE, &pattern(0, 100)).await;
        for (zeroed, clears) in [(true, false), (false, true)] {
            let (destination, counters) = counted(memory(SIZE));
            let work = CopyJob { zeroed, ..job(&source, &destination, STYLE) };
            assert!(simply(work).await.complete);
            let counts = counters.total();
            assert_eq!((counts.written_bytes, counts.unmaps > 0), (GRANULE, clears), "zeroed: {zeroed}");
        }
        let (destination, counters) = counted(memory(SIZE));
        let never = CopyStyle { sparse: ZeroPolicy::Never, ..STYLE };
        assert!(simply(CopyJob { zeroed: true, ..job(&source, &destination, never) }).await.complete);
        assert_eq!((counters.total().written_bytes, counters.total().unmaps), (SIZE, 0));
    });
}

#[test]
fn stream_that_is_too_long_is_refused_where_it_is() {
    runtimes().remove(0).block_on(async {
        let destination = memory(3 * GRANULE);
        let (pipe, stream) = flume::bounded(8);
        for n in 0..5 {
            pipe.send(Ok(filled(&pattern(n * GRANULE, GRANULE as usize)))).expect("room");
        }
        drop(pipe);
        let style = CopyStyle { block: GRANULE, ..STYLE };
        let mut work =
            CopyJob { source: CopySource::Stream(stream), ..job(&destination, &destination, style) };
        work.zeroed = true;
        let outcome = simply(work).await;
        let failure = outcome.failure.expect("too long");
        assert!(matches!(failure.cause, CopyErrorCause::NoRoom) && failure.offset == 3 * GRANULE);
        assert!(content(&*destination, 3 * GRANULE).await == pattern(0, 3 * GRANULE as usize));
    });
}

#[test]
fn stop_is_heard_while_a_stream_is_silent() {
    runtimes().remove(0).block_on(async {
        let destination = memory(SIZE);
        let (pipe, stream) = flume::bounded(8);
        pipe.send(Ok(filled(&pattern(0, GRANULE as usize)))).expect("room");
        let work = CopyJob { source: CopySource::Stream(stream), ..job(&destination, &destination, STYLE) };
        let (stop, meter): (Arc<StopFlag>, Arc<CopyMeter>) = (work.stop.clone(), work.meter.clone());
        let copying = compio::runtime::spawn(simply(work));
        while meter.done.get() < GRANULE {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.stop();
        let outcome = copying.await.expect("joined");
        assert!(!outcome.complete && outcome.failure.is_none() && outcome.stable == GRANULE, "{outcome:?}");
        drop(pipe);
    });
}

/// A disk whose reads from this offset on wait until the gate is dropped.
struct Stuck {
    inner: Arc<dyn Backend>,
    from: u64,
    gate: flume::Receiver<()>,
}

impl Backend for Stuck {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            if offset >= self.from {
                // Returns when the sender is dropped.
                let _ = self.gate.recv_async().await;
            }
            self.inner.read(offset, buf).await
        })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.inner.write(offset, buf, fua)
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.write_zeroes(offset, len, unmap)
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        self.inner.extent(offset, len)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

/// A stop must checkpoint at once, because the process may exit before the requests in flight end.
#[test]
fn stop_checkpoints_before_in_flight_requests_end() {
    runtimes().remove(0).block_on(async {
        let (open, gate) = flume::bounded::<()>(0);
        let source: Arc<dyn Backend> = Arc::new(Stuck { inner: full(SIZE).await, from: 6 * GRANULE, gate });
        let work = job(&source, &memory(SIZE), STYLE);
        let (stop, meter) = (work.stop.clone(), work.meter.clone());
        let (sender, checkpoints) = flume::unbounded();
        let copying = compio::runtime::spawn(copy(work, None, move |stable, _| {
            let _ = sender.send(stable);
            Ok(())
        }));
        while meter.done.get() < 6 * GRANULE {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.stop();
        let first = compio::time::timeout(Duration::from_secs(10), checkpoints.recv_async()).await;
        assert_eq!(first.expect("a checkpoint in time"), Ok(6 * GRANULE));
        drop(open);
        let outcome = copying.await.expect("joined");
        assert!(!outcome.complete && outcome.failure.is_none(), "{outcome:?}");
        assert_eq!(checkpoints.try_iter().last(), Some(outcome.stable), "and at the end once more");
    });
}

/// Copies between two disks. Unsupported after `left` attempts.
struct Near {
    from: Arc<dyn Backend>,
    to: Arc<dyn Backend>,
    left: AtomicU32,
    /// The number of attempts that still fail with a lost connection.
    losses: AtomicU32,
}

impl Offload for Near {
    fn piece(&self) -> u64 {
        5 * GRANULE
    }

    fn copy(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            if self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
                return Err(io::ErrorKind::Unsupported.into());
            }
            if self.losses.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let (result, buf) = self.from.read(offset, Buf::zeroed(len as usize)).await;
            result?;
            self.to.write(offset, buf, false).await.0
        })
    }
}

#[test]
fn offloaded_ranges_are_not_read() {
    runtimes().remove(0).block_on(async {
        // A range tolerates two losses. With twelve losses, at least one of the five ranges has three.
        for (left, losses) in [(3, 0), (1000, 0), (1000, 2), (1000, 12)] {
            let (source, destination) = (full(SIZE).await, memory(SIZE));
            let (from, to) = (source.clone(), destination.clone());
            let near = Near { from, to, left: left.into(), losses: losses.into() };
            let work = CopyJob { offload: Some(Arc::new(near)), ..job(&source, &destination, STYLE) };
            let meter = work.meter.clone();
            assert!(simply(work).await.complete);
            assert!(content(&*destination, SIZE).await == pattern(0, SIZE as usize));
            assert_eq!(meter.offloaded.get() + meter.read.get(), SIZE);
            let wholly = left == 1000 && losses <= 2;
            assert!(wholly == (meter.read.get() == 0), "{left} {losses}");
            assert!(losses > 2 || meter.offloaded.get() > 0, "{left} {losses}");
        }
    });
}
