//! The limit on unfinished task management functions, and their order among immediate commands.

use super::host::Host;
use crate::test_target::run_test;
use lunar_wire::iscsi::{Bhs, opcode, request};
use lunar_wire::scsi::{TaskManagementFunction, cdb};

#[test]
fn functions_beyond_limit_are_rejected_until_one_ends() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let late = host.command(&cdb::test_unit_ready());
        // These wait for the command before them.
        for _ in 0..17 {
            host.manage(TaskManagementFunction::AbortTaskSet, None);
        }
        assert_eq!(host.next().await.expect("a PDU").opcode(), opcode::REJECT);
        host.queue(late, &[]);
        host.send();
        let mut ended = 0;
        while ended < 16 {
            ended +=
                usize::from(host.next().await.expect("a PDU").opcode() == opcode::TASK_MANAGEMENT_RESPONSE);
        }
        host.manage(TaskManagementFunction::AbortTaskSet, None);
        assert_eq!(host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.response(), 0);
    });
}

/// Sends an immediate WRITE of one block. Returns the R2T.
async fn immediate_write(host: &mut Host) -> Bhs {
    let mut write = host.immediate_command(&cdb::write_10(0, 1, false));
    request::set_write(&mut write, 512, false);
    host.queue(write, &[]);
    host.send();
    host.receive(opcode::R2T).await
}

/// While a function waits for a command before it, an immediate command arrives with the same CmdSN. It gets a
/// response.
#[test]
fn function_spares_later_immediate_command() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let awaited = host.command(&cdb::test_unit_ready());
        let earlier = immediate_write(&mut host).await;
        host.manage(TaskManagementFunction::AbortTaskSet, None);
        let later = immediate_write(&mut host).await;
        host.queue(awaited, &[]);
        host.send();
        assert_eq!(host.receive(opcode::SCSI_RESPONSE).await.itt(), awaited.itt());
        host.answer(&earlier, 1).await;
        assert_eq!(host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.response(), 0);
        assert_eq!(target.on_medium(0), 0, "the earlier command was aborted");
        host.answer(&later, 2).await;
        assert_eq!(host.receive(opcode::SCSI_RESPONSE).await.itt(), later.itt());
        assert_eq!(target.on_medium(0), 2);
    });
}
