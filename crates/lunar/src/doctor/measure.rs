//! Short measurements of a logical unit. They only read.

use super::report::{ReadStats, RoundTrip, us};
use lunar_block::Backend;
use lunar_initiator::nvme::{NvmeCommand, NvmeController, Sqe};
use lunar_initiator::{Direction, Error, Lun};
use lunar_runtime::Buf;
use lunar_wire::nvme::admin_opcode;
use lunar_wire::scsi::cdb;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands for the measurement of round trips.
const ROUND_TRIPS: usize = 20;
/// Duration of each of the two read measurements.
const PHASE: Duration = Duration::from_millis(500);
/// Minimum bytes of a small read.
const SMALL: u64 = 4096;
/// A feature that every controller has: its number of queues.
const NUMBER_OF_QUEUES: u32 = 0x07;
/// Bytes of a large read.
const LARGE: u64 = 256 << 10;
/// Large reads in flight.
const DEPTH: usize = 16;

/// Measures TEST UNIT READY, one command at a time.
pub async fn round_trip(lun: &Lun) -> Result<RoundTrip, Error> {
    one_at_a_time(async || lun.scsi(cdb::test_unit_ready(), Direction::None).await.0.map(drop)).await
}

/// Measures Get Features (number of queues), one command at a time.
pub async fn admin_round_trip(controller: &NvmeController) -> Result<RoundTrip, Error> {
    one_at_a_time(async || {
        let sqe = Sqe::new(admin_opcode::GET_FEATURES, 0, 0).with_dword(10, NUMBER_OF_QUEUES);
        controller.admin(NvmeCommand::new(sqe, Direction::None)).await.0.map(drop)
    })
    .await
}

async fn one_at_a_time(command: impl AsyncFn() -> Result<(), Error>) -> Result<RoundTrip, Error> {
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let started_at = Instant::now();
        command().await?;
        times.push(us(started_at.elapsed()));
    }
    times.sort_unstable();
    Ok(RoundTrip {
        count: ROUND_TRIPS,
        min_us: times[0],
        median_us: times[ROUND_TRIPS / 2],
        max_us: times[ROUND_TRIPS - 1],
    })
}

/// Reads for a second: first small reads, one at a time, scattered over the medium; then concurrent large reads from
/// its start. None if the medium is smaller than a large read.
pub async fn reads<B: Backend + 'static>(
    disk: &Arc<B>,
    block_size: u32,
) -> std::io::Result<Option<ReadStats>> {
    let capacity = disk.info().capacity;
    let small = SMALL.max(block_size.into());
    if capacity < LARGE || capacity < small {
        return Ok(None);
    }
    let small_median_us = one_by_one(&**disk, small, capacity / small).await?;
    let (bytes, time) = together(disk, capacity / LARGE).await?;
    Ok(Some(ReadStats {
        small_bytes: small as usize,
        small_median_us,
        large_bytes: LARGE as usize,
        large_depth: DEPTH,
        large_bytes_per_s: (bytes as f64 / time.as_secs_f64().max(1e-6)) as u64,
    }))
}

async fn one_by_one(disk: &impl Backend, size: u64, places: u64) -> std::io::Result<u64> {
    let (started_at, mut times) = (Instant::now(), Vec::new());
    let (mut buf, mut n) = (Buf::zeroed(size as usize), 0u64);
    while started_at.elapsed() < PHASE {
        let started_at = Instant::now();
        // A multiplicative walk defeats read-ahead without random numbers.
        let place = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places;
        let (result, back) = disk.read(place * size, buf).await;
        result?;
        (buf, n) = (back, n + 1);
        times.push(us(started_at.elapsed()));
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

async fn together<B: Backend + 'static>(disk: &Arc<B>, places: u64) -> std::io::Result<(u64, Duration)> {
    let (started_at, next, bytes) = (Instant::now(), Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
    let reader = || {
        let (disk, next, bytes) = (disk.clone(), next.clone(), bytes.clone());
        compio::runtime::spawn(async move {
            let mut buf = Buf::zeroed(LARGE as usize);
            while started_at.elapsed() < PHASE {
                let place = next.get() % places;
                next.set(next.get() + 1);
                let (result, back) = disk.read(place * LARGE, buf).await;
                result?;
                buf = back;
                bytes.set(bytes.get() + LARGE);
            }
            std::io::Result::Ok(())
        })
    };
    let readers: Vec<_> = (0..DEPTH).map(|_| reader()).collect();
    for reader in readers {
        reader.await.map_err(|_| std::io::Error::other("a reader thread panicked"))??;
    }
    Ok((bytes.get(), started_at.elapsed()))
}
