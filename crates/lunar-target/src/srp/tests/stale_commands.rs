//! Commands whose descriptors are being read while another session resets their logical unit.

use super::test_target::{Host, HostResponse, NAME, TestTarget, command, memory, on_core, run_ready};
use lunar_block::TryIo;
use lunar_runtime::Buf;
use lunar_wire::scsi::{Status, cdb};
use lunar_wire::srp::{DataBuffer, IndirectBuffer, SrpCommand, TaskManagement, function, task_status};

/// LUN fields of the disks.
const USED: u64 = 0;
const UNUSED: u64 = 1 << 48;

fn busy(tag: u64) -> HostResponse {
    HostResponse { status: Status::Busy as u8, ..HostResponse::good(tag) }
}

/// Sends a WRITE of one block of bytes 7, whose descriptors the target has to read.
fn write_by_table(host: &Host, lun: u64, tag: u64) {
    let table = host.source(&host.source(&[7; 512]).encode());
    let (all, cdb) = (IndirectBuffer { table, len: 512, list: &[] }, cdb::write_10(0, 1, false));
    host.send(&SrpCommand { lun, data_out: DataBuffer::Indirect(all), ..command(tag, &cdb) });
}

fn reset(host: &Host, lun: u64) {
    let (notifications, task_tag) = (0, 0);
    host.send_unit(
        &TaskManagement { notifications, tag: 90, lun, function: function::LUN_RESET, task_tag }.encode(),
    );
}

/// The first byte of a disk on the medium.
fn on_medium(target: &TestTarget, lun: u16) -> u8 {
    let (mut block, disk) = (Buf::zeroed(512), target.shared.config().targets[NAME].luns[&lun].backend());
    assert!(matches!(disk.try_read(0, &mut block), TryIo::Done(Ok(()))));
    block[0]
}

/// A target with two disks, and two hosts. The first host has used the first disk.
async fn target() -> (TestTarget, Host, Host) {
    let target = TestTarget::with_media([memory(), memory()]);
    let (one, other) = (
        target.host(1, false).await.receive_attentions().await,
        target.host(2, false).await.receive_attentions().await,
    );
    (target, one, other)
}

#[test]
fn reset_makes_command_with_pending_table_busy() {
    on_core(async move || {
        for (number, lun) in [(0, USED), (1, UNUSED)] {
            let (target, mut one, mut other) = target().await;
            one.faults[1].reads.hold();
            write_by_table(&one, lun, 5);
            run_ready().await;
            reset(&other, lun);
            other.expect_silence().await;
            one.faults[1].reads.release();
            assert_eq!(one.answer().await, busy(5));
            assert_eq!(other.answer().await, HostResponse::function_status(90, 1, task_status::COMPLETE));
            assert_eq!(on_medium(&target, number), 0);
        }
    });
}

#[test]
fn reset_makes_earlier_commands_busy_only() {
    on_core(async move || {
        let (target, mut one, mut other) = target().await;
        one.faults[1].reads.hold();
        let cdb = cdb::write_10(0, 1, false);
        let write = |tag| SrpCommand { data_out: DataBuffer::Immediate(&[8; 512]), ..command(tag, &cdb) };
        write_by_table(&one, USED, 5);
        one.send(&write(6));
        run_ready().await;
        reset(&other, USED);
        run_ready().await;
        // A reset of another disk has no effect.
        reset(&other, UNUSED);
        run_ready().await;
        one.send(&command(7, &cdb::test_unit_ready()));
        run_ready().await;
        one.faults[1].reads.release();
        let mut received = [one.answer().await, one.answer().await, one.answer().await];
        received.sort_by_key(|answer| answer.tag);
        assert_eq!(received, [busy(5), busy(6), HostResponse::good(7)]);
        for _ in [USED, UNUSED] {
            assert_eq!(other.answer().await, HostResponse::function_status(90, 1, task_status::COMPLETE));
        }
        assert_eq!(
            one.execute(&command(8, &cdb::test_unit_ready())).await,
            HostResponse::check(8, (6, 0x29, 3))
        );
        assert_eq!(one.execute(&write(9)).await, HostResponse::good(9));
        assert_eq!(on_medium(&target, 0), 8);
    });
}
