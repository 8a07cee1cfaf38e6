//! Each way in which a command ends moves each counter of its session once.

use super::test_target::{Host, HostResponse, NAME, command, run_ready};
use super::{TestTarget, on_core};
use crate::registry::SessionMessage;
use crate::session_info::account::{Account, FAILED};
use lunar_wire::scsi::{Status, cdb};
use lunar_wire::srp::{DataBuffer, IndirectBuffer, SrpCommand, function, task_status};

const LEN: u32 = 512;

async fn target() -> (TestTarget, Host, Account) {
    let target = TestTarget::new();
    let host = target.host(1, false).await.receive_attentions().await;
    let account = Account::new(target.shared.registry.list()[0].1.clone());
    (target, host, account)
}

fn status(tag: u64, status: Status) -> HostResponse {
    HostResponse { status: status as u8, ..HostResponse::good(tag) }
}

/// Sends a WRITE of one block whose data the target reads.
fn write(host: &Host, tag: u64) {
    let (at, cdb) = (host.source(&[7; LEN as usize]), cdb::write_10(0, 1, false));
    host.send(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(tag, &cdb) });
}

/// The same with a descriptor table that the target reads first.
fn write_by_table(host: &Host, tag: u64) {
    let table = host.source(&host.source(&[7; LEN as usize]).encode());
    let (all, cdb) = (IndirectBuffer { table, len: LEN, list: &[] }, cdb::write_10(0, 1, false));
    host.send(&SrpCommand { data_out: DataBuffer::Indirect(all), ..command(tag, &cdb) });
}

async fn until_no_session(target: &TestTarget) {
    while !target.shared.registry.list().is_empty() {
        lunar_runtime::yield_now().await;
    }
}

#[test]
fn good_commands_are_counted_once() {
    on_core(async move || {
        let (_world, mut host, mut account) = target().await;
        assert_eq!(host.execute(&command(2, &cdb::test_unit_ready())).await, HostResponse::good(2));
        assert_eq!(account.moved(), [1, 0, 0, 0, 0, 0]);
        write(&host, 3);
        assert_eq!(host.answer().await, HostResponse::good(3));
        assert_eq!(account.moved(), [1, 0, 1, 0, 512, 0]);
        let (at, cdb) = (host.sink(LEN), cdb::read_10(0, 1));
        let read = SrpCommand { data_in: DataBuffer::Direct(at), ..command(4, &cdb) };
        assert_eq!(host.execute(&read).await, HostResponse::good(4));
        assert_eq!(account.moved(), [1, 1, 0, 512, 0, 0]);
    });
}

#[test]
fn failed_and_busy_commands_are_counted_once() {
    on_core(async move || {
        let (target, mut host, mut account) = target().await;
        let beyond = cdb::write_10(u32::MAX, 1, false);
        assert_eq!(host.execute(&command(2, &beyond)).await.status, Status::CheckCondition as u8);
        assert_eq!(account.moved(), FAILED, "CHECK CONDITION");
        target.shared.config().targets[NAME].luns[&0].lu.set_busy(true);
        assert_eq!(host.execute(&command(3, &cdb::test_unit_ready())).await, status(3, Status::Busy));
        assert_eq!(account.moved(), FAILED, "BUSY");
    });
}

#[test]
fn refused_command_is_counted_once() {
    on_core(async move || {
        let (_world, mut host, mut account) = target().await;
        let (at, cdb) = (DataBuffer::Direct(host.sink(LEN)), cdb::write_10(0, 1, false));
        let both = SrpCommand { data_in: at, data_out: at, ..command(5, &cdb) };
        assert_eq!(host.execute(&both).await, HostResponse::check(5, (5, 0x0e, 3)));
        assert_eq!(account.moved(), FAILED);
    });
}

#[test]
fn command_without_table_memory_is_busy_and_counted() {
    on_core(async move || {
        let (target, mut host, mut account) = target().await;
        let held: Vec<_> = std::iter::from_fn(|| target.shared.pool.try_get(1 << 20)).collect();
        host.faults[1].reads.hold();
        // The first takes the reserve of the session.
        write_by_table(&host, 5);
        write_by_table(&host, 6);
        assert_eq!(host.answer().await, status(6, Status::Busy));
        assert_eq!(account.moved(), FAILED);
        drop(held);
    });
}

#[test]
fn command_during_logout_is_busy_and_counted() {
    on_core(async move || {
        let (target, mut host, mut account) = target().await;
        host.faults[1].reads.hold();
        write(&host, 5);
        run_ready().await;
        target.shared.registry.send_each(|_| Some(SessionMessage::Stop { done: flume::bounded(0).0 }));
        run_ready().await;
        assert_eq!(host.execute(&command(6, &cdb::test_unit_ready())).await, status(6, Status::Busy));
        assert_eq!(account.moved(), FAILED);
        host.faults[1].reads.release();
        assert_eq!(host.answer().await, HostResponse::good(5));
        assert_eq!(account.moved(), [1, 0, 1, 0, 512, 0]);
    });
}

#[test]
fn aborted_commands_are_counted_once() {
    on_core(async move || {
        let (_world, mut host, mut account) = target().await;
        for write in [write, write_by_table] {
            host.faults[1].reads.hold();
            write(&host, 5);
            run_ready().await;
            host.manage(6, function::ABORT_TASK, 5);
            run_ready().await;
            host.faults[1].reads.release();
            assert_eq!(host.answer().await, HostResponse::function_status(6, 2, task_status::COMPLETE));
            assert_eq!(account.moved(), FAILED);
        }
    });
}

#[test]
fn commands_of_ended_session_are_counted_once() {
    on_core(async move || {
        for write in [write, write_by_table] {
            let (target, host, mut account) = target().await;
            host.faults[1].reads.hold();
            write(&host, 5);
            run_ready().await;
            host.endpoint.close();
            until_no_session(&target).await;
            assert_eq!(account.moved(), FAILED);
        }
    });
}
