//! One logical unit, addressed in both forms that have its LUN number (SAM-5 section 4.7).

use super::host::Host;
use crate::test_target::{run_ready, run_test};
use lunar_wire::iscsi::{Bhs, opcode, request};
use lunar_wire::scsi::{TaskAttribute, TaskManagementFunction, cdb};

/// LUN 0 in flat space addressing. The other form is 0.
const FLAT: u64 = 0x4000 << 48;
/// Bytes of a write in chunks, and of its first chunk.
const LONG: u32 = 3 << 20;
const CHUNK: u32 = 1 << 20;

/// Sends a WRITE from block 0 on without data. Returns its R2T.
async fn begin_write(host: &mut Host, lun: u64, len: u32) -> Bhs {
    let mut write = host.command(&cdb::write_10(0, (len / 512) as u16, false));
    request::set_write(&mut write, len, false);
    write.set_lun(lun);
    host.queue(write, &[]);
    host.send();
    host.receive(opcode::R2T).await
}

#[test]
fn ordered_command_waits_for_other_form_of_lun() {
    for (first, second) in [(0, FLAT), (FLAT, 0)] {
        run_test(move |target| async move {
            let mut host = Host::session(&target, 1).await;
            let mut r2t = begin_write(&mut host, first, LONG).await;
            while r2t.buffer_offset() + r2t.desired_len() < CHUNK {
                host.answer(&r2t, 1).await;
                r2t = host.receive(opcode::R2T).await;
            }
            host.answer(&r2t, 1).await;
            while target.on_medium(0) != 1 {
                lunar_runtime::yield_now().await;
            }
            let mut ordered = host.command_as(&cdb::write_10(0, 1, false), TaskAttribute::Ordered);
            request::set_write(&mut ordered, 512, false);
            ordered.set_lun(second);
            host.queue(ordered, &[2; 512]);
            host.send();
            run_ready().await;
            assert_eq!(target.on_medium(0), 1, "the earlier write has not ended");
        });
    }
}

#[test]
fn abort_task_finds_task_in_other_form_of_lun() {
    for (first, second) in [(0, FLAT), (FLAT, 0)] {
        run_test(move |target| async move {
            let mut host = Host::session(&target, 1).await;
            let r2t = begin_write(&mut host, first, 4096).await;
            host.manage_at(second, TaskManagementFunction::AbortTask, Some(r2t.itt()));
            let response = host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
            assert_eq!(response.response(), 0, "FUNCTION COMPLETE");
        });
    }
}
