//! Aborts of commands that a remote logical unit executes.

use super::test_target::{HostResponse, TestTarget, command, on_core, run_ready};
use crate::{CommandFate, PassthroughCommand, PassthroughLu, PassthroughNexus, PassthroughResponse};
use event_listener::Event;
use lunar_block::LocalBoxFuture;
use lunar_scsi::NexusPorts;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::{Status, cdb, op};
use lunar_wire::srp::{DataBuffer, SrpCommand, function, task_status};
use std::rc::Rc;
use std::sync::Arc;

/// A remote logical unit that blocks writes until they are aborted, and the state of an aborted write.
struct HeldLu([CommandFate; 2]);

/// Its nexus.
struct HeldNexus {
    fates: [CommandFate; 2],
    aborted: Event,
}

impl PassthroughLu for HeldLu {
    fn enter(&self, _: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus> {
        Rc::new(HeldNexus { fates: self.0, aborted: Event::new() })
    }

    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

impl PassthroughNexus for HeldNexus {
    fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
        let aborted = (command.cdb[0] == op::WRITE_10).then(|| self.aborted.listen());
        let reply = PassthroughResponse {
            status: Status::Good as u8,
            sense: Box::default(),
            data: None,
            moved: 0,
            fate: self.fates[1],
        };
        Box::pin(async move {
            if let Some(aborted) = aborted {
                aborted.await;
            }
            reply
        })
    }

    fn abort(&self, _: u64) -> LocalBoxFuture<'_, CommandFate> {
        Box::pin(async {
            self.aborted.notify(usize::MAX);
            self.fates[0]
        })
    }

    fn manage(&self, _: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
        Box::pin(async { true })
    }
}

#[test]
fn function_reports_fate_of_remote_tasks() {
    let (ended, indeterminate) = (CommandFate::Ended, CommandFate::Indeterminate);
    for (fates, how) in [
        ([ended, ended], task_status::COMPLETE),
        ([indeterminate, ended], task_status::FAILED),
        ([ended, indeterminate], task_status::FAILED),
    ] {
        on_core(async move || {
            let target = TestTarget::with_passthrough(Arc::new(HeldLu(fates)));
            let mut host = target.host(1, false).await;
            let mut other = target.host(2, false).await;
            let cdb = cdb::write_10(0, 1, false);
            let all = [
                function::ABORT_TASK,
                function::ABORT_TASK_SET,
                function::CLEAR_TASK_SET,
                function::LUN_RESET,
            ];
            for (tag, ends) in (10..).step_by(2).zip(all) {
                let write = SrpCommand { data_out: DataBuffer::Immediate(&[7; 512]), ..command(tag, &cdb) };
                host.send(&write);
                run_ready().await;
                host.manage(tag + 1, ends, tag);
                let answer = host.answer().await;
                assert_eq!((answer.tag, answer.function_status), (tag + 1, Some(how)), "{ends}");
            }
            host.send(&SrpCommand { data_out: DataBuffer::Immediate(&[7; 512]), ..command(20, &cdb) });
            run_ready().await;
            other.manage(5, function::LUN_RESET, 0);
            assert_eq!(other.answer().await, HostResponse::function_status(5, 1, how), "by another session");
            // A function does not inherit the result of the one before.
            other.manage(6, function::LUN_RESET, 0);
            assert_eq!(other.answer().await, HostResponse::function_status(6, 1, task_status::COMPLETE));
        });
    }
}
