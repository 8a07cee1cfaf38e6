//! The limit on unfinished task management functions.

use super::host::Host;
use crate::test_target::run_test;
use lunar_wire::iscsi::opcode;
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
