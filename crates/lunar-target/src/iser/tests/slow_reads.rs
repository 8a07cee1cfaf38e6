//! RDMA Writes of a long read that another session aborts, while the device has them and the initiator does not.

use super::host::Host;
use crate::config::TargetConfig;
use crate::test_target::{self, TestTarget, run_ready, run_test_with};
use event_listener::Event;
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_rdma::mem::EndpointOp;
use lunar_runtime::Buf;
use lunar_wire::iscsi::opcode;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::cdb;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads are split into parts. The first part is short.
const STRIDE: usize = 8192;
const FIRST: usize = STRIDE / 4;

/// A remote medium that delivers only the first part of each read until `comes` is called.
#[derive(Default)]
struct SlowDisk {
    is_delivered: AtomicBool,
    event: Event,
}

impl SlowDisk {
    fn deliver(&self) {
        self.is_delivered.store(true, Ordering::SeqCst);
        self.event.notify(usize::MAX);
    }
}

impl Backend for SlowDisk {
    fn info(&self) -> BackendInfo {
        let spec = lunar_block::BackendSpec::sized(lunar_block::BackendKind::Memory, test_target::CAPACITY);
        let memory = lunar_block::open(&spec).expect("memory");
        BackendInfo { remote: true, ..memory.info() }
    }

    fn preferred_read_size(&self) -> Option<usize> {
        Some(STRIDE)
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let comes = self.event.listen();
            if offset > 0 && !self.is_delivered.load(Ordering::SeqCst) {
                comes.await;
            }
            (Ok(()), buf)
        })
    }

    fn write(&self, _: u64, buf: Buf, _: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(std::future::ready((Ok(()), buf)))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn unmap(&self, _: u64, _: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.flush()
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.flush()
    }

    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// A session with a long read of which one part is at the device, and another session that has requested a reset.
async fn reset_during_read(target: &TestTarget, medium: &SlowDisk) -> (Host, Host, u32) {
    let (mut one, mut other) = (target.session(1).await, target.session(2).await);
    one.faults[1].line.hold();
    one.read(&cdb::read_10(0, 64), 4 * STRIDE);
    run_ready().await;
    let manage = other.manage(TaskManagementFunction::LunReset, None);
    run_ready().await;
    medium.deliver();
    run_ready().await;
    assert_eq!((one.take_operations(), other.take_operations()), (vec![], vec![]), "nothing was sent");
    (one, other, manage)
}

fn run_test<W: std::future::Future<Output = ()> + 'static>(
    work: impl FnOnce(TestTarget, Arc<SlowDisk>) -> W + Send + 'static,
) {
    let medium = Arc::<SlowDisk>::default();
    let served = medium.clone();
    let change = |config: &mut TargetConfig| {
        let luns = BTreeMap::from([(0, test_target::unit_of(1, served)), (1, test_target::unit(2))]);
        config.targets.insert(test_target::NAME.into(), test_target::target(test_target::NAME, luns));
    };
    run_test_with(change, |target| work(target, medium));
}

#[test]
fn reset_waits_for_rdma_writes_of_other_session() {
    run_test(|target, medium| async move {
        let (one, mut other, manage) = reset_during_read(&target, &medium).await;
        one.faults[1].line.release();
        let received = other.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
        assert_eq!((received.bhs.itt(), received.bhs.response()), (manage, 0));
        assert!(matches!(one.take_operations()[..], [EndpointOp::Write { len: FIRST, .. }, ..]));
        assert_eq!(target.sessions(), 2);
    });
}

#[test]
fn stuck_initiator_loses_connection_before_reset_response() {
    run_test(|target, medium| async move {
        let (one, mut other, manage) = reset_during_read(&target, &medium).await;
        let received = other.receive(opcode::TASK_MANAGEMENT_RESPONSE).await;
        assert_eq!((received.bhs.itt(), received.bhs.response()), (manage, 0));
        one.faults[1].line.release();
        assert_eq!(one.take_operations(), []);
        one.expect_close().await;
        assert_eq!(target.sessions(), 1);
    });
}
