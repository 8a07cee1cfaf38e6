//! The effect of each filter, and the data that survives a simulated power loss.

mod common;

use common::{filled, runtimes};
use lunar_block::filter::{FilterOp, IoCounts, RateLimit, delay, error, rate, stats};
use lunar_block::testing::{ComparingBackend, VolatileBackend};
use lunar_block::{Backend, BackendKind, BackendSpec, TryIo, open};
use lunar_runtime::Buf;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn memory(size: u64) -> Arc<dyn Backend> {
    open(&BackendSpec::sized(BackendKind::Memory, size)).expect("memory")
}

fn null() -> Arc<dyn Backend> {
    open(&BackendSpec::sized(BackendKind::Null, 1 << 40)).expect("null")
}

async fn read_ok(disk: &dyn Backend) -> bool {
    disk.read(0, Buf::zeroed(512)).await.0.is_ok()
}

async fn write_ok(disk: &dyn Backend) -> bool {
    disk.write(0, Buf::zeroed(512), false).await.0.is_ok()
}

#[test]
fn null_backend_behind_a_filter_is_not_null() {
    assert!(null().info().null);
    for disk in
        [rate(null(), RateLimit::new(0, 0)), stats(null()).0, error(null(), FilterOp::Read, 0.5, None)]
    {
        assert!(!disk.info().null, "{:?}", disk.describe());
    }
}

#[test]
fn null_is_zeros_without_end() {
    let mut seen = [7; 4096];
    assert!(matches!(null().try_write(1 << 39, &seen), TryIo::Done(Ok(()))));
    assert!(matches!(null().try_read(1 << 39, &mut seen), TryIo::Done(Ok(()))));
    assert_eq!(seen, [0; 4096]);
    assert!(matches!(null().try_read((1 << 40) - 1, &mut seen), TryIo::Done(Err(_))));
}

#[test]
fn delay_of_reads_only_leaves_writes_undelayed() {
    for runtime in runtimes() {
        let disk = delay(memory(4096), Duration::from_millis(20), Duration::ZERO);
        runtime.block_on(async {
            assert!(matches!(disk.try_read(0, &mut [0; 512]), TryIo::WouldWait));
            assert!(matches!(disk.try_write(0, &[0; 512]), TryIo::Done(Ok(()))));
            let started_at = Instant::now();
            assert!(read_ok(&*disk).await);
            assert!(started_at.elapsed() >= Duration::from_millis(20));
        });
    }
}

#[test]
fn errors_come_at_their_rate_and_by_their_seed() {
    let row = |seed| {
        let disk = error(memory(4096), FilterOp::Read, 0.25, Some(seed));
        let runtime = runtimes().remove(0);
        runtime.block_on(async {
            let mut row = Vec::new();
            for _ in 0..2000 {
                assert!(write_ok(&*disk).await, "only reads fail");
                row.push(read_ok(&*disk).await);
            }
            row
        })
    };
    let failed = row(7).iter().filter(|ok| !**ok).count();
    assert!((400..600).contains(&failed), "{failed} of 2000 at a rate of 0.25");
    assert_eq!(row(7), row(7));
    assert_ne!(row(7), row(8));
}

#[test]
fn error_filter_fails_with_eio_and_never_inline() {
    let disk = error(memory(4096), FilterOp::Write, 1.0, None);
    runtimes().remove(0).block_on(async {
        assert!(matches!(disk.try_write(0, &[1; 512]), TryIo::WouldWait));
        let (result, buf) = disk.write(0, filled(&[1; 512]), false).await;
        assert_eq!(result.expect_err("always").raw_os_error(), Some(5));
        assert_eq!(buf[0], 1, "the buffer is returned");
        disk.unmap(0, 512).await.expect_err("UNMAP counts as a write");
        assert!(read_ok(&*disk).await);
    });
}

#[test]
fn error_filter_on_flush_disables_write_through() {
    let disk = error(memory(4096), FilterOp::Flush, 1.0, None);
    assert!(memory(4096).info().write_through && !disk.info().write_through);
    runtimes().remove(0).block_on(async {
        assert!(write_ok(&*disk).await);
        disk.flush().await.expect_err("always");
    });
}

#[test]
fn stats_count_what_ended_on_every_thread() {
    let (disk, counters) = stats(error(memory(1 << 20), FilterOp::Flush, 1.0, None));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10 {
                    assert!(matches!(disk.try_write(0, &[1; 1024]), TryIo::Done(Ok(()))));
                    assert!(matches!(disk.try_read(0, &mut [0; 512]), TryIo::Done(Ok(()))));
                }
                runtimes().remove(0).block_on(async {
                    assert!(read_ok(&*disk).await);
                    disk.unmap(0, 512).await.expect("unmap");
                    disk.write_zeroes(0, 512, false).await.expect("write zeroes");
                    disk.flush().await.expect_err("always");
                });
            });
        }
    });
    let expected = IoCounts {
        reads: 44,
        writes: 40,
        unmaps: 8,
        flushes: 4,
        read_bytes: 44 * 512,
        written_bytes: 40 * 1024,
        errors: 4,
    };
    assert_eq!(counters.total(), expected);
    assert!(disk.describe().contains(&("reads".into(), "44".into())));
}

/// A difference is a read, and anything else a write.
#[test]
fn comparison_passes_each_filter_as_one_operation() {
    let answer = |offset, _: &[u8]| match offset {
        0 => Ok(None),
        512 => Ok(Some(7)),
        _ => Err(std::io::ErrorKind::StorageFull.into()),
    };
    for runtime in runtimes() {
        let (disk, counters) = stats(Arc::new(ComparingBackend::new(memory(4096), answer)));
        let failing = error(disk.clone(), FilterOp::Write, 1.0, None);
        let limited = rate(delay(disk, Duration::ZERO, Duration::from_micros(1)), RateLimit::new(0, 0));
        assert_eq!((limited.max_compare_and_swap(), memory(4096).max_compare_and_swap()), (4096, 0));
        runtime.block_on(async {
            let compare = async |disk: &dyn Backend, offset| {
                disk.compare_and_swap(offset, Buf::zeroed(1024)).await.map_err(|e| e.kind())
            };
            assert_eq!(compare(&*limited, 0).await, Ok(None));
            assert_eq!(compare(&*limited, 512).await, Ok(Some(7)));
            assert_eq!(compare(&*limited, 1024).await, Err(std::io::ErrorKind::StorageFull));
            assert!(compare(&*failing, 0).await.is_err());
            assert_eq!(compare(&*memory(4096), 0).await, Err(std::io::ErrorKind::Unsupported));
        });
        let expected = IoCounts {
            reads: 1,
            writes: 2,
            read_bytes: 512,
            written_bytes: 512,
            errors: 1,
            ..IoCounts::default()
        };
        assert_eq!(counters.total(), expected, "an error that the filter makes is not counted below it");
    }
}

#[test]
fn rate_lets_no_more_through_than_it_says() {
    for runtime in runtimes() {
        // 100 operations a second, and a burst of ten: the other 20 take a fifth of a second.
        let disk = rate(memory(4096), RateLimit::new(100, 0));
        runtime.block_on(async {
            let started_at = Instant::now();
            for _ in 0..30 {
                assert!(read_ok(&*disk).await);
            }
            assert!(started_at.elapsed() >= Duration::from_millis(190));
            let mut waits = (0..20).map(|_| disk.try_read(0, &mut [0; 512]));
            assert!(
                waits.any(|outcome| matches!(outcome, TryIo::WouldWait)),
                "inline operations are limited too"
            );
        });
    }
}

#[test]
fn rate_counts_bytes_too() {
    let disk = rate(memory(1 << 20), RateLimit::new(0, 1 << 20));
    runtimes().remove(0).block_on(async {
        let started_at = Instant::now();
        for _ in 0..5 {
            disk.read(0, Buf::zeroed(1 << 16)).await.0.expect("read");
        }
        // 320 KiB at 1 MiB/s: the last operation runs on credit, and the burst covers a tenth of a second.
        assert!(started_at.elapsed() >= Duration::from_millis(140));
    });
}

#[test]
fn describe_lists_the_stack_from_the_outside_in() {
    let disk =
        stats(delay(Arc::new(VolatileBackend::new(memory(4096))), Duration::ZERO, Duration::from_micros(9)))
            .0;
    let rows = disk.describe();
    let names: Vec<_> =
        rows.iter().filter(|row| row.0 == "filter" || row.0 == "backend").map(|row| &row.1).collect();
    assert_eq!(names, ["stats", "delay", "lossy", "memory"]);
    assert!(rows.contains(&("write_us".into(), "9".into())));
}

/// An operation before the power loss. Positions are sectors of 512 bytes.
#[derive(Clone, Debug)]
enum Event {
    Write { at: u64, seed: u8, stable: bool },
    Clear { at: u64, sectors: u64 },
    Flush,
}

const SECTORS: u64 = 64;

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..SECTORS, 1u8.., any::<bool>()).prop_map(|(at, seed, stable)| Event::Write { at, seed, stable }),
        1 => (0..SECTORS, 1u64..8)
            .prop_map(|(at, n)| Event::Clear { at, sectors: n.min(SECTORS - at) }),
        1 => Just(Event::Flush),
    ]
}

/// For each sector, the values that it may have after the power loss.
struct Possible(Vec<Vec<u8>>);

impl Possible {
    fn change(&mut self, at: u64, value: u8, stable: bool) {
        let sector = &mut self.0[at as usize];
        if stable {
            sector.clear();
        }
        sector.push(value);
    }

    fn flush(&mut self) {
        for sector in &mut self.0 {
            sector.drain(..sector.len() - 1);
        }
    }
}

async fn happen(disk: &VolatileBackend, possible: &mut Possible, event: &Event) {
    match *event {
        Event::Write { at, seed, stable } => {
            disk.write(at * 512, filled(&[seed; 512]), stable).await.0.expect("write");
            possible.change(at, seed, stable);
        }
        Event::Clear { at, sectors } => {
            disk.unmap(at * 512, sectors * 512).await.expect("unmap");
            (at..at + sectors).for_each(|at| possible.change(at, 0, false));
        }
        Event::Flush => {
            disk.flush().await.expect("flush");
            possible.flush();
        }
    }
}

async fn sectors(disk: &dyn Backend) -> Vec<u8> {
    let (result, buf) = disk.read(0, Buf::zeroed(SECTORS as usize * 512)).await;
    result.expect("read");
    let whole = |sector: &[u8]| sector.iter().all(|byte| *byte == sector[0]).then_some(sector[0]);
    buf.chunks(512).map(|sector| whole(sector).expect("a sector that is not torn")).collect()
}

proptest! {
    #[test]
    fn power_loss_keeps_flushed_and_fua_writes(
        events in proptest::collection::vec(event(), 1..60), seed in any::<Option<u64>>(),
    ) {
        runtimes().remove(0).block_on(async {
            let disk = VolatileBackend::new(memory(SECTORS * 512));
            let mut possible = Possible(vec![vec![0]; SECTORS as usize]);
            for event in &events {
                happen(&disk, &mut possible, event).await;
            }
            let newest: Vec<u8> = possible.0.iter().map(|values| values[values.len() - 1]).collect();
            assert_eq!(sectors(&disk).await, newest, "no data is lost before the power loss");
            disk.lose(seed).await.expect("lose");
            let left = sectors(&disk).await;
            for (at, value) in left.iter().enumerate() {
                let allowed = &possible.0[at];
                assert!(allowed.contains(value), "sector {at} is {value}, none of {allowed:?}");
                assert!(seed.is_some() || *value == allowed[0], "without a seed, all unstable data is lost");
            }
        });
    }
}

#[test]
fn seed_loses_some_and_keeps_some() {
    runtimes().remove(0).block_on(async {
        let disk = VolatileBackend::new(memory(SECTORS * 512));
        disk.write(0, filled(&vec![1; SECTORS as usize * 512]), false).await.0.expect("write");
        disk.lose(Some(3)).await.expect("lose");
        let kept = sectors(&disk).await.iter().filter(|value| **value == 1).count();
        assert!((10..54).contains(&kept), "{kept} of {SECTORS} kept");
    });
}
