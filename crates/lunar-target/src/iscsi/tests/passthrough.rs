//! A long read that a remote logical unit executes: it delivers parts of the data before its response.

use super::host::Host;
use crate::config::TargetConfig;
use crate::test_target::{self, NAME, TestTarget, run_ready, run_test_with};
use crate::{
    CommandFate, PassthroughCommand, PassthroughData, PassthroughLu, PassthroughNexus, PassthroughResponse,
};
use event_listener::Event;
use lunar_block::LocalBoxFuture;
use lunar_runtime::Buf;
use lunar_scsi::NexusPorts;
use lunar_wire::iscsi::{flag, opcode, request};
use lunar_wire::scsi::{Sense, Status, TaskManagementFunction, cdb};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of each part, which is one Data-In, and of the whole read.
const PART: usize = 8192;
const LEN: usize = 3 * PART;

/// A disk that delivers one part of each read at once, another one when `comes` is notified, and then ends the read.
struct PartDisk {
    comes: Arc<Event>,
    status: Status,
    /// Bytes of the response.
    rest: Option<usize>,
}

impl PartDisk {
    fn response(&self, mut buf: Buf) -> PassthroughResponse {
        let sense = match self.status {
            Status::Good => Box::default(),
            _ => Sense::MEDIUM_CHANGED.encode(false).into(),
        };
        let moved = self.rest.map_or(0, |rest| 2 * PART + rest) as u64;
        buf.set_visible(self.rest.unwrap_or_default());
        let (status, data) = (self.status as u8, self.rest.map(|_| buf));
        PassthroughResponse { status, sense, data, moved, fate: CommandFate::Ended }
    }
}

impl PassthroughLu for PartDisk {
    fn enter(&self, _: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus> {
        Rc::new(PartDisk { comes: self.comes.clone(), ..*self })
    }

    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// The response to a command without data.
fn good() -> LocalBoxFuture<'static, PassthroughResponse> {
    let (status, sense, fate) = (Status::Good as u8, Box::default(), CommandFate::Ended);
    Box::pin(std::future::ready(PassthroughResponse { status, sense, data: None, moved: 0, fate }))
}

impl PassthroughNexus for PartDisk {
    fn submit(&self, _: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
        good()
    }

    fn submit_in_parts<'a>(
        &'a self,
        command: PassthroughCommand,
        take: Option<&'a dyn Fn(Buf)>,
    ) -> LocalBoxFuture<'a, PassthroughResponse> {
        let (PassthroughData::In(mut buf), Some(take)) = (command.data, take) else { return good() };
        if buf.is_empty() {
            return good();
        }
        Box::pin(async move {
            let comes = self.comes.listen();
            take(buf.split_front(PART));
            comes.await;
            take(buf.split_front(PART));
            self.response(buf)
        })
    }

    fn abort(&self, _: u64) -> LocalBoxFuture<'_, CommandFate> {
        self.comes.notify(usize::MAX);
        Box::pin(std::future::ready(CommandFate::Ended))
    }

    fn manage(&self, _: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}

/// Runs a test with a read that has delivered its first part. Its tag is that of the Data-In.
fn run_test<W: Future<Output = ()> + 'static>(
    status: Status,
    rest: Option<usize>,
    work: impl FnOnce(TestTarget, Host, u32, Arc<Event>) -> W + Send + 'static,
) {
    let comes = Arc::<Event>::default();
    let served = Arc::new(PartDisk { comes: comes.clone(), status, rest });
    let change = move |config: &mut TargetConfig| {
        let unit = Arc::new(test_target::passthrough_unit(test_target::CAPACITY, served));
        config.targets.get_mut(NAME).expect("the target").luns.insert(0, unit);
    };
    run_test_with(change, |target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut read = host.command(&cdb::read_10(0, (LEN / 512) as u16));
        request::set_read(&mut read, LEN as u32);
        host.queue(read, &[]);
        host.send();
        let first = host.next().await.expect("the first part");
        assert_eq!((first.opcode(), first.data_len(), first.flags()), (opcode::DATA_IN, PART, 0));
        assert_eq!((first.data_sn(), first.buffer_offset()), (0, 0));
        assert_eq!(host.next_now().map(|header| header.opcode()), None, "the read has not ended");
        work(target, host, read.itt(), comes).await;
    });
}

/// Receives the second part.
async fn second_part(host: &mut Host) {
    let second = host.next().await.expect("the second part");
    assert_eq!((second.opcode(), second.data_len(), second.flags()), (opcode::DATA_IN, PART, 0));
    assert_eq!((second.data_sn(), second.buffer_offset()), (1, PART as u32));
}

#[test]
fn part_of_a_passed_read_is_sent_before_the_status() {
    for rest in [PART, 4096] {
        run_test(Status::Good, Some(rest), move |_, mut host, _, comes| async move {
            comes.notify(1);
            second_part(&mut host).await;
            let last = host.next().await.expect("the rest");
            assert_eq!((last.data_sn(), last.buffer_offset(), last.data_len()), (2, 2 * PART as u32, rest));
            assert!(last.is_final() && last.flags() & flag::STATUS != 0 && last.scsi_status() == 0);
            let missing = LEN - 2 * PART - rest;
            assert_eq!(
                (last.flags() & flag::UNDERFLOW != 0, last.residual_count()),
                (missing > 0, missing as u32)
            );
            host.ping().await;
        });
    }
}

#[test]
fn failure_after_parts_counts_the_data_sent() {
    for rest in [Some(512), None] {
        run_test(Status::CheckCondition, rest, move |_, mut host, _, comes| async move {
            comes.notify(1);
            second_part(&mut host).await;
            if let Some(rest) = rest {
                let last = host.next().await.expect("the rest");
                assert_eq!((last.data_sn(), last.data_len(), last.flags()), (2, rest, flag::FINAL));
            }
            let response = host.next().await.expect("a response");
            assert_eq!((response.opcode(), response.scsi_status()), (opcode::SCSI_RESPONSE, 2));
            assert_eq!(response.exp_data_sn(), 2 + u32::from(rest.is_some()));
            let missing = LEN - 2 * PART - rest.unwrap_or_default();
            assert_eq!(
                (response.flags() & flag::UNDERFLOW != 0, response.residual_count()),
                (true, missing as u32)
            );
        });
    }
}

#[test]
fn part_that_comes_after_an_abort_is_not_sent() {
    run_test(Status::Good, Some(PART), |_, mut host, tag, _| async move {
        host.manage(TaskManagementFunction::AbortTask, Some(tag));
        let response = host.next().await.expect("a response");
        assert_eq!((response.opcode(), response.response()), (opcode::TASK_MANAGEMENT_RESPONSE, 0));
        host.ping().await;
    });
}

#[test]
fn part_that_comes_after_the_connection_is_dropped() {
    run_test(Status::Good, Some(PART), |target, host, _, comes| async move {
        host.reset();
        run_ready().await;
        comes.notify(1);
        while target.sessions() > 0 {
            run_ready().await;
        }
        assert_eq!(target.shared.pool.used(), 0);
    });
}
