use super::test_target::{Host, HostResponse, NAME, command, run_ready};
use super::{TestTarget, on_core};
use crate::config::AccessRule;
use lunar_block::TryIo;
use lunar_rdma::EndpointEvents;
use lunar_rdma::mem::EndpointOp;
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb;
use lunar_wire::srp::{
    CreditRequest, DataBuffer, IndirectBuffer, MemoryDescriptor, SrpCommand, function, task_status,
};
use std::time::Duration;

/// A target whose RDMA Reads are held, a host that has sent a write of one block, and the memory of that write.
async fn writing() -> (TestTarget, Host, MemoryDescriptor) {
    let target = TestTarget::new();
    let host = target.host(1, false).await.receive_attentions().await;
    host.faults[1].reads.hold();
    let (at, cdb) = (host.source(&[7; 512]), cdb::write_10(0, 1, false));
    host.send(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(5, &cdb) });
    run_ready().await;
    (target, host, at)
}

/// The ends of RDMA Reads, and the sent messages, in order.
fn order(host: &Host) -> Vec<&'static str> {
    let word = |operation| match operation {
        EndpointOp::ReadEnded { .. } => Some("read"),
        EndpointOp::Send { .. } => Some("sent"),
        _ => None,
    };
    host.faults[1].log().into_iter().filter_map(word).collect()
}

#[test]
fn write_without_data_ends_session() {
    on_core(async move || {
        let target = TestTarget::with_data_timeout(Duration::from_millis(6));
        let mut host = target.host(1, false).await.receive_attentions().await;
        host.faults[1].reads.hold();
        let (at, cdb) = (host.source(&[7; 512]), cdb::write_10(0, 1, false));
        host.send(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(5, &cdb) });
        host.expect_close().await;
        host.faults[1].reads.release();
        while !target.shared.registry.list().is_empty() {
            run_ready().await;
        }
    });
}

#[test]
fn abort_response_waits_for_rdma_read() {
    on_core(async move || {
        let (_world, mut host, _) = writing().await;
        host.manage(6, function::ABORT_TASK, 5);
        host.expect_silence().await;
        host.faults[1].reads.release();
        // It returns its own credit, and that of the aborted command, which gets no response.
        assert_eq!(host.answer().await, HostResponse::function_status(6, 2, task_status::COMPLETE));
        assert_eq!(order(&host), ["sent", "read", "sent"]);
        assert_eq!(host.execute(&command(7, &cdb::test_unit_ready())).await, HostResponse::good(7));
        host.expect_silence().await;
    });
}

#[test]
fn lun_reset_aborts_earlier_commands() {
    on_core(async move || {
        let (_world, mut host, _) = writing().await;
        host.manage(6, function::LUN_RESET, 0);
        host.expect_silence().await;
        host.faults[1].reads.release();
        assert_eq!(host.answer().await, HostResponse::function_status(6, 2, task_status::COMPLETE));
        assert_eq!(
            host.execute(&command(7, &cdb::test_unit_ready())).await,
            HostResponse::check(7, (6, 0x29, 3))
        );
    });
}

#[test]
fn command_with_pending_table_can_be_aborted() {
    on_core(async move || {
        let (_world, mut host, at) = writing().await;
        let list = at.encode();
        let all = IndirectBuffer { table: host.source(&list), len: 512, list: &[] };
        let cdb = cdb::write_10(0, 1, false);
        host.send(&SrpCommand { data_out: DataBuffer::Indirect(all), ..command(8, &cdb) });
        host.manage(9, function::ABORT_TASK, 8);
        host.expect_silence().await;
        host.faults[1].reads.release();
        let mut received = [host.answer().await, host.answer().await];
        received.sort_by_key(|answer| answer.tag);
        assert_eq!(
            received,
            [HostResponse::good(5), HostResponse::function_status(9, 2, task_status::COMPLETE)]
        );
    });
}

#[test]
fn function_for_missing_object_is_answered() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        for (function, lun, wanted) in [
            (function::ABORT_TASK, 0, task_status::COMPLETE),
            (function::ABORT_TASK, 9, task_status::FAILED),
            (function::ABORT_TASK_SET, 0, task_status::COMPLETE),
            (function::CLEAR_TASK_SET, 0, task_status::COMPLETE),
            (function::CLEAR_ACA, 0, task_status::NOT_SUPPORTED),
            (0x80, 0, task_status::NOT_SUPPORTED),
        ] {
            let lun = lun << 48;
            let asked =
                lunar_wire::srp::TaskManagement { notifications: 0, tag: 6, lun, function, task_tag: 77 };
            host.send_unit(&asked.encode());
            assert_eq!(host.answer().await, HostResponse::function_status(6, 1, wanted), "{function}");
        }
    });
}

#[test]
fn all_credits_return_after_abort() {
    on_core(async move || {
        let (_world, mut host, at) = writing().await;
        let cdb = cdb::write_10(0, 1, false);
        for tag in [6, 7] {
            host.send(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(tag, &cdb) });
        }
        // Three of four credits are in use.
        host.manage(8, function::ABORT_TASK_SET, 0);
        host.expect_silence().await;
        host.faults[1].reads.release();
        let mut credits = 0;
        while credits < 4 {
            credits += host.answer().await.credits;
        }
        assert_eq!(credits, 4);
        // All of them can be used again.
        host.faults[1].reads.hold();
        for tag in 10..14 {
            host.send(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(tag, &cdb) });
        }
        host.faults[1].reads.release();
        for _ in 10..14 {
            assert_eq!(host.answer().await.credits, 1);
        }
    });
}

#[test]
fn reset_by_other_initiator_returns_credits() {
    on_core(async move || {
        let (target, mut host, _) = writing().await;
        let mut other = target.host(2, false).await.receive_attentions().await;
        other.manage(6, function::LUN_RESET, 0);
        // Data of the write may still arrive.
        other.expect_silence().await;
        host.faults[1].reads.release();
        assert_eq!(other.answer().await, HostResponse::function_status(6, 1, task_status::COMPLETE));
        // No response will return the credit.
        let unit = host.receive().await.expect("credits");
        let asked = CreditRequest::decode(&unit).expect("credits");
        assert_eq!((asked.credits, asked.solicited), (1, false));
        host.send_unit(&lunar_wire::srp::credit_response(asked.tag));
        let next = host.execute(&command(7, &cdb::test_unit_ready())).await;
        assert_eq!(next, HostResponse::check(7, (6, 0x29, 3)));
    });
}

/// Sets TAS with MODE SELECT (6): tasks that another initiator aborts end with TASK ABORTED.
async fn set_tas(host: &mut Host) {
    let page = [0, 0, 0, 0, 10, 10, 0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0];
    let cdb = [0x15, 0x10, 0, 0, page.len() as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let select = SrpCommand { data_out: DataBuffer::Immediate(&page), ..command(2, &cdb) };
    assert_eq!(host.execute(&select).await, HostResponse::good(2));
}

#[test]
fn stale_read_is_not_used_for_reused_slot() {
    on_core(async move || {
        let (target, mut host, _) = writing().await;
        host.faults[1].reads.release();
        assert_eq!(host.answer().await, HostResponse::good(5));
        set_tas(&mut host).await;
        let mut other = target.host(2, false).await.receive_attentions().await;
        host.faults[1].reads.hold();
        let (first, second) = (cdb::write_10(0, 1, false), cdb::write_10(16, 2, false));
        let ask = |host: &Host, tag, cdb: &[u8; 16], bytes: &[u8]| {
            host.send(&SrpCommand { data_out: DataBuffer::Direct(host.source(bytes)), ..command(tag, cdb) });
        };
        ask(&host, 11, &first, &[7; 512]);
        run_ready().await;
        // PDUs after the deferred response wait with it: the read and the response of the next write.
        host.manage(12, function::ABORT_TASK, 11);
        run_ready().await;
        ask(&host, 13, &first, &[8; 512]);
        run_ready().await;
        other.manage(6, function::CLEAR_TASK_SET, 0);
        host.expect_silence().await;
        host.faults[1].take_log();
        host.faults[1].reads.release();
        // Everything is sent when the data have arrived, and the next command arrives at the same time.
        host.endpoint.poll(&mut EndpointEvents::default());
        ask(&host, 14, &second, &[9; 1024]);
        assert_eq!(host.answer().await, HostResponse::function_status(12, 2, task_status::COMPLETE));
        assert_eq!(host.answer().await, HostResponse { status: 0x40, ..HostResponse::good(13) });
        assert_eq!(host.answer().await, HostResponse::good(14));
        let read = |op: &EndpointOp| if let EndpointOp::Read { len, .. } = op { Some(*len) } else { None };
        assert_eq!(host.faults[1].log().iter().filter_map(read).collect::<Vec<_>>(), [1024]);
        assert_eq!(other.answer().await, HostResponse::function_status(6, 1, task_status::COMPLETE));
        let (at, cdb) = (host.sink(1024), cdb::read_10(16, 2));
        assert_eq!(
            host.execute(&SrpCommand { data_in: DataBuffer::Direct(at), ..command(15, &cdb) }).await,
            HostResponse::good(15)
        );
        assert_eq!(host.written(at), [9; 1024]);
    });
}

#[test]
fn commands_before_end_do_not_begin_after_it() {
    on_core(async move || {
        let target = TestTarget::new();
        let host = target.host(1, false).await.receive_attentions().await;
        let cdb = cdb::write_10(0, 1, false);
        host.send(&SrpCommand { data_out: DataBuffer::Immediate(&[7; 512]), ..command(5, &cdb) });
        host.endpoint.close();
        while !target.shared.registry.list().is_empty() {
            lunar_runtime::yield_now().await;
        }
        let (mut block, disk) = (Buf::zeroed(512), target.shared.config().targets[NAME].luns[&0].backend());
        assert!(matches!(disk.try_read(0, &mut block), TryIo::Done(Ok(()))));
        assert_eq!(block[0], 0);
    })
}

#[test]
fn read_only_initiator_resets_nothing() {
    on_core(async move || {
        let guests = AccessRule { read_only: true, ..AccessRule::default() };
        let target = TestTarget::with(|target| target.access = vec![guests]);
        let mut host = target.host(1, false).await.receive_attentions().await;
        for (tag, forbidden) in [(5, function::LUN_RESET), (6, function::CLEAR_TASK_SET)] {
            host.manage(tag, forbidden, 0);
            assert_eq!(host.answer().await, HostResponse::function_status(tag, 1, task_status::FAILED));
        }
        host.manage(7, function::ABORT_TASK_SET, 0);
        assert_eq!(host.answer().await, HostResponse::function_status(7, 1, task_status::COMPLETE));
        let mut reserve = [0; 16];
        reserve[0] = 0x16;
        assert_eq!(host.execute(&command(8, &reserve)).await, HostResponse::check(8, (7, 0x27, 0)));
    });
}
