//! Each way in which a command ends moves each counter of its session once.

use super::host::Host;
use crate::session_info::account::{Account, FAILED};
use crate::task_set_lock::LockMode;
use crate::test_target::{TestTarget, run_ready, run_test};
use lunar_scsi::CoreIndex;
use lunar_wire::iscsi::{flag, opcode, request};
use lunar_wire::scsi::{Status, TaskManagementFunction, cdb};

async fn session(target: &TestTarget) -> (Host, Account) {
    let host = Host::session(target, 1).await;
    let account = Account::new(target.shared.registry.list()[0].1.clone());
    (host, account)
}

async fn abort(host: &mut Host, itt: u32) {
    host.manage(TaskManagementFunction::AbortTask, Some(itt));
    assert_eq!(host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.response(), 0);
}

#[test]
fn good_commands_are_counted_once() {
    run_test(|target| async move {
        let (mut host, mut account) = session(&target).await;
        assert_eq!(host.run(&cdb::test_unit_ready()).await, 0);
        assert_eq!(account.moved(), [1, 0, 0, 0, 0, 0]);
        host.write(0, 7);
        host.send();
        assert_eq!(host.receive(opcode::SCSI_RESPONSE).await.scsi_status(), 0);
        assert_eq!(account.moved(), [1, 0, 1, 0, 512, 0], "immediate data");
        let r2t = host.announce_write().await;
        assert_eq!(account.moved(), [0; 6], "not ended");
        host.answer(&r2t, 7).await;
        assert_eq!(host.receive(opcode::SCSI_RESPONSE).await.scsi_status(), 0);
        assert_eq!(account.moved(), [1, 0, 1, 0, 512, 0], "requested data");
        let mut read = host.command(&cdb::read_10(0, 2));
        request::set_read(&mut read, 1024);
        host.queue(read, &[]);
        host.send();
        host.receive(opcode::DATA_IN).await;
        assert_eq!(account.moved(), [1, 1, 0, 1024, 0, 0]);
        let mut short = host.command(&cdb::read_10(0, 2));
        request::set_read(&mut short, 512);
        host.queue(short, &[]);
        host.send();
        let answer = host.receive(opcode::DATA_IN).await;
        assert_eq!(
            (answer.data_len(), answer.flags() & flag::OVERFLOW, answer.residual_count()),
            (512, 4, 512)
        );
        assert_eq!(account.moved(), [1, 1, 0, 1024, 0, 0], "the bytes of the CDB");
    });
}

#[test]
fn failed_and_busy_commands_are_counted_once() {
    run_test(|target| async move {
        let (mut host, mut account) = session(&target).await;
        assert_eq!(host.run(&cdb::write_10(u32::MAX, 1, false)).await, Status::CheckCondition as u8);
        assert_eq!(account.moved(), FAILED, "CHECK CONDITION");
        target.disk().lu.set_busy(true);
        assert_eq!(host.run(&cdb::test_unit_ready()).await, Status::Busy as u8);
        assert_eq!(account.moved(), FAILED, "BUSY");
    });
}

#[test]
fn aborted_commands_are_counted_once() {
    run_test(|target| async move {
        let (mut host, mut account) = session(&target).await;
        let r2t = host.announce_write().await;
        abort(&mut host, r2t.itt()).await;
        assert_eq!(account.moved(), FAILED, "waits for data");
        let inside = target.disk().task_set.handle(CoreIndex::current()).lock(LockMode::Exclusive).await;
        let ready = host.command(&cdb::test_unit_ready());
        host.queue(ready, &[]);
        host.send();
        run_ready().await;
        abort(&mut host, ready.itt()).await;
        assert_eq!(account.moved(), FAILED, "waits for the task set lock");
        drop(inside);
        assert_eq!(host.run(&cdb::test_unit_ready()).await, 0);
    });
}

#[test]
fn commands_of_ended_session_are_counted_once() {
    run_test(|target| async move {
        let (mut host, mut account) = session(&target).await;
        host.announce_write().await;
        host.reset();
        while target.sessions() > 0 {
            lunar_runtime::yield_now().await;
        }
        assert_eq!(account.moved(), FAILED);
    });
}
