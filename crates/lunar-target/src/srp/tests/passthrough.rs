//! Aborts of commands that a remote logical unit executes.

use super::test_target::{HostResponse, TestTarget, command, on_core, run_ready};
use crate::{
    CommandFate, PassthroughCommand, PassthroughLu, PassthroughNexus, PassthroughQueue, PassthroughResponse,
};
use event_listener::Event;
use lunar_block::LocalBoxFuture;
use lunar_scsi::NexusPorts;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::{Status, cdb, op};
use lunar_wire::srp::{DataBuffer, SrpCommand, function, task_status};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// A remote logical unit that blocks writes until they are aborted.
#[derive(Clone, Default)]
struct HeldLu {
    /// The state of an aborted write: by the abort, and by the response.
    fates: [CommandFate; 2],
    /// Whether it has a queue.
    has_queue: bool,
    /// An abort ends only after this event.
    aborts_end: Option<Arc<Event>>,
    /// The queue refuses this many commands.
    refused: Arc<AtomicUsize>,
    /// The operation codes in the order of arrival, and whether each was queued.
    arrived: Arc<Mutex<Vec<(u8, bool)>>>,
}

/// Its nexus.
struct HeldNexus {
    lu: HeldLu,
    aborted: Event,
    /// The lanes of queued commands: of those that are blocked, and of those that have ended.
    blocked: RefCell<Vec<usize>>,
    ended: RefCell<Vec<usize>>,
    waker: RefCell<Option<Waker>>,
}

impl HeldLu {
    fn record(&self, command: &PassthroughCommand, is_queued: bool) {
        self.arrived.lock().expect("no panic").push((command.cdb[0], is_queued));
    }

    fn taken(&self) -> Vec<(u8, bool)> {
        std::mem::take(&mut self.arrived.lock().expect("no panic"))
    }
}

impl PassthroughLu for HeldLu {
    fn enter(&self, _: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus> {
        let (blocked, ended, waker) = Default::default();
        Rc::new(HeldNexus { lu: self.clone(), aborted: Event::new(), blocked, ended, waker })
    }

    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

impl HeldNexus {
    fn reply(&self) -> PassthroughResponse {
        let (status, sense, fate) = (Status::Good as u8, Box::default(), self.lu.fates[1]);
        PassthroughResponse { status, sense, data: None, moved: 0, fate }
    }
}

impl PassthroughNexus for HeldNexus {
    fn queue(&self) -> Option<&dyn PassthroughQueue> {
        self.lu.has_queue.then_some(self)
    }

    fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
        self.lu.record(&command, false);
        let aborted = (command.cdb[0] == op::WRITE_10).then(|| self.aborted.listen());
        Box::pin(async move {
            if let Some(aborted) = aborted {
                aborted.await;
            }
            self.reply()
        })
    }

    fn abort(&self, _: u64) -> LocalBoxFuture<'_, CommandFate> {
        Box::pin(async {
            self.aborted.notify(usize::MAX);
            self.ended.borrow_mut().append(&mut self.blocked.borrow_mut());
            self.waker.take().into_iter().for_each(Waker::wake);
            if let Some(end) = &self.lu.aborts_end {
                end.listen().await;
            }
            self.lu.fates[0]
        })
    }

    fn manage(&self, _: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
        Box::pin(async { true })
    }
}

impl PassthroughQueue for HeldNexus {
    fn begin(&self, lane: usize, command: PassthroughCommand) -> Result<(), PassthroughCommand> {
        if self.lu.refused.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(command);
        }
        self.lu.record(&command, true);
        let is_blocked = command.cdb[0] == op::WRITE_10;
        if is_blocked { &self.blocked } else { &self.ended }.borrow_mut().push(lane);
        self.waker.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<(usize, PassthroughResponse)> {
        if let Some(lane) = self.ended.borrow_mut().pop() {
            return Poll::Ready((lane, self.reply()));
        }
        self.waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// A WRITE of one block.
fn write(tag: u64, cdb: &cdb::Cdb) -> SrpCommand<'_> {
    SrpCommand { data_out: DataBuffer::Immediate(&[7; 512]), ..command(tag, cdb) }
}

#[test]
fn function_reports_fate_of_remote_tasks() {
    let (ended, indeterminate) = (CommandFate::Ended, CommandFate::Indeterminate);
    for (fates, how, has_queue) in [
        ([ended, ended], task_status::COMPLETE, false),
        ([indeterminate, ended], task_status::FAILED, false),
        ([ended, indeterminate], task_status::FAILED, false),
        ([ended, ended], task_status::COMPLETE, true),
        ([indeterminate, ended], task_status::FAILED, true),
        ([ended, indeterminate], task_status::FAILED, true),
    ] {
        on_core(async move || {
            let lu = HeldLu { fates, has_queue, ..HeldLu::default() };
            let arrived = lu.clone();
            let target = TestTarget::with_passthrough(Arc::new(lu));
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
                arrived.taken();
                host.send(&write(tag, &cdb));
                run_ready().await;
                assert_eq!(arrived.taken(), [(op::WRITE_10, has_queue)]);
                host.manage(tag + 1, ends, tag);
                let answer = host.answer().await;
                assert_eq!((answer.tag, answer.function_status), (tag + 1, Some(how)), "{ends}");
            }
            host.send(&write(20, &cdb));
            run_ready().await;
            other.manage(5, function::LUN_RESET, 0);
            assert_eq!(other.answer().await, HostResponse::function_status(5, 1, how), "by another session");
            // A function does not inherit the result of the one before.
            other.manage(6, function::LUN_RESET, 0);
            assert_eq!(other.answer().await, HostResponse::function_status(6, 1, task_status::COMPLETE));
        });
    }
}

#[test]
fn queued_command_ends_after_its_abort() {
    on_core(async move || {
        let end = Arc::new(Event::new());
        let lu = HeldLu { has_queue: true, aborts_end: Some(end.clone()), ..HeldLu::default() };
        let target = TestTarget::with_passthrough(Arc::new(lu));
        let mut host = target.host(1, false).await;
        host.send(&write(10, &cdb::write_10(0, 1, false)));
        run_ready().await;
        host.manage(11, function::ABORT_TASK, 10);
        run_ready().await;
        host.expect_silence().await;
        end.notify(usize::MAX);
        assert_eq!(host.answer().await, HostResponse::function_status(11, 2, task_status::COMPLETE));
        host.send(&command(12, &cdb::test_unit_ready()));
        assert_eq!(host.answer().await.tag, 12, "the queue serves the next command");
    });
}

#[test]
fn queued_command_does_not_overtake_a_ready_task() {
    on_core(async move || {
        let lu = HeldLu { has_queue: true, ..HeldLu::default() };
        let target = TestTarget::with_passthrough(Arc::new(lu.clone()));
        let mut host = target.host(1, false).await;
        lu.taken();
        lu.refused.store(1, Relaxed);
        let (first, second) = (cdb::test_unit_ready(), cdb::inquiry(None, 0));
        host.send(&command(10, &first));
        host.send(&command(11, &second));
        for _ in 0..2 {
            host.answer().await;
        }
        assert_eq!(lu.taken(), [(first[0], false), (second[0], false)]);
        host.send(&command(12, &first));
        host.answer().await;
        assert_eq!(lu.taken(), [(first[0], true)], "the queue again");
    });
}
