//! Each way in which a command ends moves the counters of its logical unit once.

use super::host::Host;
use crate::test_target::{TestTarget, run_test};
use crate::{FAILURES, LuTotals, OpClass};
use lunar_wire::iscsi::{opcode, request};
use lunar_wire::scsi::{TaskManagementFunction, cdb};

fn totals(target: &TestTarget) -> LuTotals {
    target.disk().totals()
}

/// The number of commands whose latency is counted, for each stage.
fn measured(totals: &LuTotals, class: OpClass) -> [u64; 4] {
    totals.latency[class as usize].as_deref().map_or([0; 4], |of| {
        [of.whole, of.queue, of.backend, of.send].map(|stage| stage.buckets.iter().sum())
    })
}

fn commands(totals: &LuTotals, class: OpClass) -> u64 {
    totals.commands[class as usize]
}

async fn read(host: &mut Host, blocks: u16) {
    let mut read = host.command(&cdb::read_10(0, blocks));
    request::set_read(&mut read, u32::from(blocks) * 512);
    host.queue(read, &[]);
    host.send();
    host.receive(opcode::DATA_IN).await;
}

#[test]
fn commands_are_counted_by_kind_with_their_bytes() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        // The first command reported the unit attention of the login.
        let before = totals(&target);
        for _ in 0..3 {
            read(&mut host, 2).await;
        }
        host.write(0, 7);
        host.send();
        host.receive(opcode::SCSI_RESPONSE).await;
        let r2t = host.announce_write().await;
        assert_eq!(totals(&target).in_flight, 1);
        host.answer(&r2t, 7).await;
        host.receive(opcode::SCSI_RESPONSE).await;
        assert_eq!(host.run(&cdb::test_unit_ready()).await, 0);
        let totals = totals(&target);
        assert_eq!(commands(&totals, OpClass::Read), 3);
        assert_eq!(commands(&totals, OpClass::Write), 2);
        assert_eq!((totals.read_bytes, totals.written_bytes, totals.in_flight), (3072, 1024, 0));
        assert_eq!(commands(&totals, OpClass::Other) - commands(&before, OpClass::Other), 1);
        assert_eq!(totals.failures, before.failures);
    });
}

#[test]
fn latency_is_counted_once_for_each_command_and_stage() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        for _ in 0..5 {
            read(&mut host, 2).await;
        }
        let r2t = host.announce_write().await;
        host.answer(&r2t, 7).await;
        host.receive(opcode::SCSI_RESPONSE).await;
        let totals = totals(&target);
        assert_eq!(measured(&totals, OpClass::Read), [5; 4]);
        assert_eq!(measured(&totals, OpClass::Write), [1; 4]);
        assert_eq!(measured(&totals, OpClass::Unmap), [0; 4]);
        let read = totals.latency[OpClass::Read as usize].as_deref().expect("reads");
        assert_eq!(read.whole.sum_ns, read.queue.sum_ns + read.backend.sum_ns + read.send.sum_ns);
    });
}

#[test]
fn failures_are_counted_by_status_and_sense_key() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        host.run(&cdb::test_unit_ready()).await;
        let before = totals(&target);
        host.run(&cdb::write_10(u32::MAX, 1, false)).await;
        let r2t = host.announce_write().await;
        host.manage(TaskManagementFunction::AbortTask, Some(r2t.itt()));
        host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
        target.disk().lu.set_busy(true);
        host.run(&cdb::test_unit_ready()).await;
        let now = totals(&target);
        let moved: Vec<u64> = now.failures.iter().zip(before.failures).map(|(now, was)| now - was).collect();
        let mut expected = [0; FAILURES.len()];
        (expected[0], expected[1], expected[FAILURES.len() - 1]) = (1, 1, 1);
        assert_eq!((&*moved, now.in_flight), (&expected[..], 0));
        // ILLEGAL REQUEST.
        assert_eq!(now.senses[5] - before.senses[5], 1);
    });
}

#[test]
fn counters_outlive_their_session() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        read(&mut host, 2).await;
        host.announce_write().await;
        host.reset();
        while target.sessions() > 0 {
            lunar_runtime::yield_now().await;
        }
        let mut other = Host::session(&target, 2).await;
        read(&mut other, 4).await;
        let totals = totals(&target);
        assert_eq!((commands(&totals, OpClass::Read), totals.read_bytes, totals.in_flight), (2, 3072, 0));
        let initiators = target.shared.registry.initiators();
        assert_eq!(initiators.values().map(|of| (of.reads, of.sessions)).collect::<Vec<_>>(), [(2, 1)]);
    });
}
