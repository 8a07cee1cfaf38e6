//! A write cache that is disabled while it holds data, or while data are on their way to it.

use super::test_target::{Host, HostResponse, command, memory, run_ready};
use super::{TestTarget, on_core};
use lunar_block::Backend;
use lunar_block::filter::delay;
use lunar_block::testing::VolatileBackend;
use lunar_runtime::Buf;
use lunar_wire::scsi::{cdb, op};
use lunar_wire::srp::{DataBuffer, SrpCommand, function, task_status};
use std::sync::Arc;
use std::time::Duration;

/// A medium that can lose unflushed data.
fn lossy() -> Arc<VolatileBackend> {
    Arc::new(VolatileBackend::new(memory()))
}

/// Sends a write of bytes 7 to the first block.
fn write(host: &Host, tag: u64) {
    let cdb = cdb::write_10(0, 1, false);
    host.send(&SrpCommand { data_out: DataBuffer::Direct(host.source(&[7; 512])), ..command(tag, &cdb) });
}

/// Sends a MODE SELECT that enables or disables the write cache.
fn select(host: &Host, tag: u64, on: bool) {
    let mut cdb = [0; 16];
    let mut list = [0; 24];
    list[4..7].copy_from_slice(&[0x08, 0x12, if on { 4 } else { 0 }]);
    (cdb[0], cdb[1], cdb[4]) = (op::MODE_SELECT_6, 0x10, list.len() as u8);
    host.send(&SrpCommand { data_out: DataBuffer::Direct(host.source(&list)), ..command(tag, &cdb) });
}

/// Simulates a power failure. Returns the content of the first block.
async fn left(lossy: &VolatileBackend) -> Vec<u8> {
    lossy.lose(None).await.expect("the medium works");
    let (result, block) = lossy.read(0, Buf::zeroed(512)).await;
    result.expect("a block");
    block.to_vec()
}

#[test]
fn cached_write_is_stable_after_cache_is_disabled() {
    on_core(async move || {
        let lossy = lossy();
        let target =
            TestTarget::with_medium(delay(lossy.clone(), Duration::ZERO, Duration::from_millis(300)), true);
        let mut host = target.host(1, false).await.receive_attentions().await;
        write(&host, 5);
        run_ready().await;
        select(&host, 6, false);
        let mut received = [host.answer().await, host.answer().await];
        received.sort_by_key(|answer| answer.tag);
        assert_eq!(received, [HostResponse::good(5), HostResponse::good(6)]);
        assert_eq!(left(&lossy).await, [7; 512]);
    });
}

#[test]
fn reset_that_disables_cache_flushes_it() {
    on_core(async move || {
        let lossy = lossy();
        let target = TestTarget::with_medium(lossy.clone(), false);
        let mut host = target.host(1, false).await.receive_attentions().await;
        select(&host, 5, true);
        assert_eq!(host.answer().await, HostResponse::good(5));
        write(&host, 6);
        assert_eq!(host.answer().await, HostResponse::good(6));
        host.manage(7, function::LUN_RESET, 0);
        assert_eq!(host.answer().await, HostResponse::function_status(7, 1, task_status::COMPLETE));
        assert_eq!(left(&lossy).await, [7; 512]);
    });
}
