//! Task management, and the end of sessions.

use super::host::{Host, KEYS, NAMES, TargetMessage, pattern};
use crate::config::{AccessRule, TargetConfig};
use crate::registry::SessionMessage;
use crate::test_target::{DEPTH, TestTarget, run_ready, run_test, run_test_with};
use lunar_rdma::mem::EndpointOp;
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::status::async_event;
use lunar_wire::iscsi::{Bhs, opcode};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::cdb;

/// Function authorization failed (RFC 7143 section 11.6.1).
const AUTHORIZATION_FAILED: u8 = 6;

/// Sends a write whose RDMA Read does not end. Returns its tag and its CmdSN.
async fn start_held_write(host: &mut Host) -> (u32, u32) {
    host.faults[1].reads.hold();
    let cmd_sn = host.cmd_sn;
    let (itt, _) = host.write(&cdb::write_10(0, 8, false), &[0xee; 4096], 0);
    run_ready().await;
    assert!(matches!(host.take_operations()[..], [EndpointOp::Read { len: 4096, .. }]));
    (itt, cmd_sn)
}

/// Checks that nothing is sent before the data arrive, and lets them arrive.
async fn expect_data_before(host: &mut Host, kind: u8) -> TargetMessage {
    run_ready().await;
    assert_eq!(host.take_operations(), [], "waits for the data");
    host.faults[1].reads.release();
    let received = host.receive(kind).await;
    let did = host.take_operations();
    assert!(matches!(did[..], [EndpointOp::ReadEnded { .. }, EndpointOp::Send { .. }, ..]), "{did:?}");
    received
}

async fn aborts(target: TestTarget, function: TaskManagementFunction) {
    let mut host = target.session(1).await;
    let (itt, cmd_sn) = start_held_write(&mut host).await;
    let task = (function == TaskManagementFunction::AbortTask).then_some((itt, cmd_sn));
    let manage = host.manage(function, task);
    let received = expect_data_before(&mut host, opcode::TASK_MANAGEMENT_RESPONSE).await;
    assert_eq!((received.bhs.itt(), received.bhs.response()), (manage, 0));
    // The write gets no response, and none of its data are stored. The next command may report a reset.
    let bhs = host.command(&cdb::test_unit_ready());
    host.send(lunar_wire::iser::IserHeader::PLAIN, bhs, &[]);
    host.answer(bhs.itt()).await;
    assert!(host.blocks(0, 8).await == [0; 4096]);
}

#[test]
fn abort_task_waits_for_rdma_read() {
    run_test(|target| aborts(target, TaskManagementFunction::AbortTask));
}

#[test]
fn abort_task_set_waits_for_rdma_read() {
    run_test(|target| aborts(target, TaskManagementFunction::AbortTaskSet));
}

#[test]
fn lun_reset_waits_for_rdma_read() {
    run_test(|target| aborts(target, TaskManagementFunction::LunReset));
}

#[test]
fn warm_reset_waits_for_rdma_read() {
    run_test(|target| aborts(target, TaskManagementFunction::TargetWarmReset));
}

/// The target releases the memory of a command with its response. An aborted command gets no response.
#[test]
fn command_keeps_memory_after_many_aborts() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        for _ in 0..2 * (DEPTH + 64) + 2 {
            let task = start_held_write(&mut host).await;
            let manage = host.manage(TaskManagementFunction::AbortTask, Some(task));
            let received = expect_data_before(&mut host, opcode::TASK_MANAGEMENT_RESPONSE).await;
            assert_eq!((received.bhs.itt(), received.bhs.response()), (manage, 0));
        }
        assert!(host.blocks(0, 8).await == [0; 4096]);
    });
}

#[test]
fn cold_reset_is_answered_before_connection_ends() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        start_held_write(&mut host).await;
        let manage = host.manage(TaskManagementFunction::TargetColdReset, None);
        let received = expect_data_before(&mut host, opcode::TASK_MANAGEMENT_RESPONSE).await;
        assert_eq!((received.bhs.itt(), received.bhs.response()), (manage, 0));
        host.expect_close().await;
        assert_eq!(target.sessions(), 0);
    });
}

/// DATA PROTECT, COMMAND NOT ALLOWED.
const FORBIDDEN: [u8; 3] = [7, 0x27, 0];

#[test]
fn read_only_initiator_changes_no_shared_state() {
    let guests = AccessRule { read_only: true, ..AccessRule::default() };
    let guarded =
        |config: &mut TargetConfig| config.targets.values_mut().for_each(|t| t.access = vec![guests.clone()]);
    run_test_with(guarded, |target| async move {
        let mut host = target.session(1).await;
        for forbidden in [
            TaskManagementFunction::LunReset,
            TaskManagementFunction::ClearTaskSet,
            TaskManagementFunction::TargetColdReset,
        ] {
            host.manage(forbidden, None);
            let received = host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
            assert_eq!(received.bhs.response(), AUTHORIZATION_FAILED, "{forbidden:?}");
        }
        host.manage(TaskManagementFunction::AbortTaskSet, None);
        assert_eq!(host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.bhs.response(), 0);
        let (itt, place) = host.write(&cdb::write_10(0, 1, false), &[0xee; 512], 0);
        assert_eq!(sense_of(&host.answer(itt).await), FORBIDDEN);
        host.revoke_memory(place);
        let mut reserve = cdb::test_unit_ready();
        reserve[0] = 0x16;
        let bhs = host.command(&reserve);
        host.send(lunar_wire::iser::IserHeader::PLAIN, bhs, &[]);
        assert_eq!(sense_of(&host.answer(bhs.itt()).await), FORBIDDEN);
        assert!(host.blocks(0, 1).await == [0; 512]);
        host.expect_alive().await;
    });
}

/// Sense key, ASC and ASCQ of a response with fixed format sense data.
fn sense_of(received: &TargetMessage) -> [u8; 3] {
    assert_eq!(received.status(), 2, "{received:?}");
    [received.data[4] & 15, received.data[14], received.data[15]]
}

#[test]
fn lun_reset_waits_for_rdma_read_of_other_session() {
    run_test(|target| async move {
        let (mut one, mut other) = (target.session(1).await, target.session(2).await);
        start_held_write(&mut one).await;
        let manage = other.manage(TaskManagementFunction::LunReset, None);
        run_ready().await;
        assert_eq!(other.take_operations(), [], "waits for the data of the other session");
        one.faults[1].reads.release();
        let received = other.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
        assert_eq!((received.bhs.itt(), received.bhs.response()), (manage, 0));
        assert_eq!(target.sessions(), 2);
    });
}

/// The second reset finds no tasks, because the first has aborted them and waits for their data.
#[test]
fn second_reset_waits_for_rdma_read_of_other_session() {
    run_test(|target| async move {
        let (mut one, mut first, mut second) =
            (target.session(1).await, target.session(2).await, target.session(3).await);
        let (itt, cmd_sn) = start_held_write(&mut one).await;
        // Tasks that their own session has aborted count too.
        one.manage(TaskManagementFunction::AbortTask, Some((itt, cmd_sn)));
        run_ready().await;
        for host in [&mut first, &mut second] {
            host.manage(TaskManagementFunction::LunReset, None);
            run_ready().await;
            assert_eq!(host.take_operations(), [], "waits for the data of the other session");
        }
        one.faults[1].reads.release();
        for host in [&mut first, &mut second] {
            assert_eq!(host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.bhs.response(), 0);
        }
        assert_eq!(target.sessions(), 3);
    });
}

#[test]
fn initiator_that_blocks_reset_loses_connection() {
    run_test(|target| async move {
        let (mut one, mut other) = (target.session(1).await, target.session(2).await);
        start_held_write(&mut one).await;
        let manage = other.manage(TaskManagementFunction::LunReset, None);
        let received = other.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
        assert_eq!((received.bhs.itt(), received.bhs.response()), (manage, 0));
        one.expect_close().await;
        assert_eq!(target.sessions(), 1);
    });
}

#[test]
fn deferred_responses_have_limit() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let (itt, cmd_sn) = start_held_write(&mut host).await;
        host.manage(TaskManagementFunction::AbortTask, Some((itt, cmd_sn)));
        run_ready().await;
        for _ in 0..100 {
            (0..16).for_each(|_| _ = host.ping(&[]));
            run_ready().await;
        }
        host.expect_close().await;
        assert_eq!(target.sessions(), 0);
    });
}

#[test]
fn abort_does_not_block_other_connections() {
    run_test(|target| async move {
        let (mut one, mut other) = (target.session(1).await, target.session(2).await);
        let (itt, cmd_sn) = start_held_write(&mut one).await;
        one.manage(TaskManagementFunction::AbortTask, Some((itt, cmd_sn)));
        other.expect_alive().await;
        assert!(other.blocks(0, 8).await == [0; 4096]);
        expect_data_before(&mut one, opcode::TASK_MANAGEMENT_RESPONSE).await;
    });
}

#[test]
fn abort_after_read_response_finds_no_task() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let cmd_sn = host.cmd_sn;
        let (itt, place) = host.read(&cdb::read_10(0, 8), 4096);
        host.manage(TaskManagementFunction::AbortTask, Some((itt, cmd_sn)));
        host.answer(itt).await;
        assert_eq!(host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.bhs.response(), 1);
        host.revoke_memory(place);
        run_ready().await;
        host.expect_alive().await;
    });
}

/// The initiator reuses the memory of a write after its response.
#[test]
fn write_response_waits_for_rdma_read() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let (itt, _) = start_held_write(&mut host).await;
        // A SNACK for data ends its command with an error.
        let mut snack = Bhs::new(opcode::SNACK);
        snack.set_itt(itt);
        snack.set_ttt(lunar_wire::iscsi::NONE);
        host.send_immediate(snack, &[]);
        assert_eq!(host.receive(opcode::REJECT).await.bhs.response(), 3);
        host.take_operations();
        let received = expect_data_before(&mut host, opcode::SCSI_RESPONSE).await;
        assert_eq!((received.bhs.itt(), received.status()), (itt, 2));
        host.expect_alive().await;
    });
}

#[test]
fn late_data_do_not_reach_task_with_reused_tag() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let (itt, cmd_sn) = start_held_write(&mut host).await;
        host.manage(TaskManagementFunction::AbortTask, Some((itt, cmd_sn)));
        run_ready().await;
        // Unlike a conforming initiator, this one reuses the tag before it gets the response.
        host.itt = itt - 1;
        let data = pattern(65536);
        let (again, _) = host.write(&cdb::write_10(64, 128, false), &data, 0);
        assert_eq!(again, itt);
        run_ready().await;
        host.faults[1].reads.release();
        host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
        assert_eq!(host.answer(itt).await.status(), 0);
        host.itt += 9;
        assert!(host.blocks(64, 128).await == data);
        assert!(host.blocks(0, 8).await == [0; 4096]);
    });
}

#[test]
fn stale_r2t_is_not_read_for_task_with_reused_tag() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let first = start_held_write(&mut host).await;
        // PDUs after the deferred response wait with it, among them the R2T of the next write.
        host.manage(TaskManagementFunction::AbortTask, Some(first));
        run_ready().await;
        let cmd_sn = host.cmd_sn;
        let (itt, _) = host.write(&cdb::write_10(0, 8, false), &[0xee; 4096], 0);
        host.manage(TaskManagementFunction::AbortTask, Some((itt, cmd_sn)));
        run_ready().await;
        // Unlike a conforming initiator, this one reuses the tag before it gets the response.
        host.itt = itt - 1;
        let data = pattern(8192);
        host.write(&cdb::write_10(64, 16, false), &data, 0);
        run_ready().await;
        host.take_operations();
        host.faults[1].reads.release();
        host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
        host.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
        assert_eq!(host.answer(itt).await.status(), 0);
        let len = |did| if let EndpointOp::Read { len, .. } = did { Some(len) } else { None };
        assert_eq!(host.take_operations().into_iter().filter_map(len).collect::<Vec<_>>(), [8192]);
        host.itt += 9;
        assert!(host.blocks(64, 16).await == data);
        assert!(host.blocks(0, 8).await == [0; 4096]);
    });
}

#[test]
fn logout_is_answered_before_connection_ends() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        host.send_immediate(request::logout(99), &[]);
        let received = host.receive(opcode::LOGOUT_RESPONSE).await;
        assert_eq!((received.bhs.itt(), received.bhs.response()), (99, 0));
        host.expect_close().await;
        assert_eq!(target.sessions(), 0);
    });
}

#[test]
fn logout_response_waits_for_rdma_read() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        start_held_write(&mut host).await;
        host.send_immediate(request::logout(99), &[]);
        let received = expect_data_before(&mut host, opcode::LOGOUT_RESPONSE).await;
        assert_eq!(received.bhs.itt(), 99);
        host.expect_close().await;
        assert_eq!(target.sessions(), 0);
    });
}

#[test]
fn lost_connection_during_rdma_read_leaves_nothing() {
    run_test(|target| async move {
        let mut other = target.session(2).await;
        for lost in [false, true] {
            let mut host = target.session(1).await;
            start_held_write(&mut host).await;
            if lost {
                host.faults[1].fail_next_read.set(true);
                host.faults[1].reads.release();
            } else {
                host.end.close();
            }
            host.expect_close().await;
            assert_eq!(target.sessions(), 1);
            let used = target.shared.pool.used();
            assert!(other.blocks(0, 8).await == [0; 4096], "no data are stored");
            let (itt, _) = other.write(&cdb::write_10(8, 8, false), &pattern(4096), 0);
            assert_eq!(other.answer(itt).await.status(), 0);
            assert_eq!((used, target.shared.pool.used()), (0, 0), "no buffer is kept");
        }
    });
}

#[test]
fn login_reinstates_session_during_rdma_read() {
    run_test(|target| async move {
        let mut old = target.session(1).await;
        start_held_write(&mut old).await;
        let mut new = target.connect().await;
        new.log_in(1).await;
        old.expect_close().await;
        new.receive_attentions().await;
        assert!(new.blocks(0, 8).await == [0; 4096]);
        assert_eq!(target.sessions(), 1);
    });
}

/// A target that sends events to everybody.
fn with_events(config: &mut TargetConfig) {
    let anybody = AccessRule { aen: true, ..AccessRule::default() };
    config.targets.values_mut().for_each(|target| target.access = vec![anybody.clone()]);
}

/// Sends a message to all sessions.
fn send_each(target: &TestTarget, message: impl Fn() -> SessionMessage) {
    target.shared.registry.send_each(|_| Some(message()));
}

/// Uses both receive buffers for events.
async fn fill_event_buffers(target: &TestTarget, host: &mut Host) {
    let unit = target.disk();
    for _ in 0..2 {
        send_each(target, || SessionMessage::Attention(unit.clone()));
        assert_eq!(host.receive(opcode::ASYNC).await.bhs.async_event(), async_event::SCSI);
    }
}

#[test]
fn termination_waits_for_initiator_buffer() {
    run_test_with(with_events, |target| async move {
        let mut host = target.connect().await;
        host.negotiate(1, NAMES, &format!("{KEYS}TaskReporting=FastAbort\n")).await;
        host.receive_attentions().await;
        start_held_write(&mut host).await;
        fill_event_buffers(&target, &mut host).await;
        let mut other = target.session(2).await;
        other.manage(TaskManagementFunction::LunReset, None);
        run_ready().await;
        host.faults[1].reads.release();
        assert_eq!(other.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.bhs.response(), 0);
        let sent = host.take_operations();
        assert_eq!(sent.iter().filter(|op| matches!(op, EndpointOp::Send { .. })).count(), 2, "{sent:?}");
        let ping = host.ping(&[]);
        let event = host.next().await.expect("a live session").bhs;
        assert_eq!((event.opcode(), event.async_event()), (opcode::ASYNC, async_event::TASK_TERMINATION));
        assert_eq!(host.next().await.expect("a live session").bhs.itt(), ping);
    });
}

#[test]
fn message_without_initiator_buffer_precedes_no_end() {
    for stops in [false, true] {
        run_test_with(with_events, move |target| async move {
            let mut host = target.session(1).await;
            fill_event_buffers(&target, &mut host).await;
            let done = flume::bounded(0).0;
            send_each(&target, || match stops {
                true => SessionMessage::Stop { done: done.clone() },
                false => SessionMessage::Luns(None),
            });
            host.expect_close().await;
        });
    }
}

/// Linux has two receive buffers for events. Any further request acknowledges them.
#[test]
fn events_do_not_exceed_initiator_buffers() {
    let anybody = AccessRule { aen: true, ..AccessRule::default() };
    let change = |config: &mut TargetConfig| {
        config.targets.values_mut().for_each(|target| target.access = vec![anybody.clone()]);
    };
    run_test_with(change, |target| async move {
        let mut host = target.session(1).await;
        let unit = target.shared.config().targets.values().next().expect("a target").luns[&0].clone();
        let changes = || target.shared.registry.send_each(|_| Some(SessionMessage::Attention(unit.clone())));
        for _ in 0..2 {
            (0..5).for_each(|_| changes());
            for _ in 0..2 {
                assert_eq!(host.receive(opcode::ASYNC).await.bhs.async_event(), 0, "a SCSI event");
            }
            run_ready().await;
            host.expect_alive().await;
        }
    });
}
