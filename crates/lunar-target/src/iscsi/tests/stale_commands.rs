//! Commands in the socket, or held for their CmdSN, when their session ends or another session aborts them.

use super::connections::{TwoConnections, joined};
use super::host::Host;
use crate::config::TargetConfig;
use crate::end_reason::EndReason;
use crate::iscsi::dispatch::PduDispatcher;
use crate::iscsi::receive::{PduHandler, ReceivedPdu};
use crate::registry::{AbortScope, SessionMessage};
use crate::task_set_lock::LockMode;
use crate::test_target::{self, NAME, TestTarget, run_ready, run_test, run_test_with};
use crate::{
    CommandFate, Instance, PassthroughCommand, PassthroughLu, PassthroughNexus, PassthroughResponse,
};
use lunar_block::{Backend, BackendInfo, BackendQueue, BufResult, LocalBoxFuture};
use lunar_runtime::{Buf, ReceivedData};
use lunar_scsi::{CoreIndex, NexusId, NexusPorts};
use lunar_wire::iscsi::{Bhs, NONE, opcode, request};
use lunar_wire::scsi::{Status, TaskManagementFunction, cdb, op};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

const OLD: u8 = 1;
const NEW: u8 = 2;
const RESERVE: cdb::Cdb = [op::RESERVE_6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Waits until the target has this many sessions.
async fn until_sessions(target: &TestTarget, count: usize) {
    while target.sessions() != count {
        lunar_runtime::yield_now().await;
    }
    run_ready().await;
}

/// Leaves WRITEs in the socket, and ends the connection with `leave`. Then block 0 must contain `wanted`.
fn leave_in_socket(leave: impl FnOnce(Host) -> Option<Host> + Send + 'static, wanted: u8) {
    run_test(move |target| async move {
        let mut host = Host::session(&target, 1).await;
        (0..3).for_each(|_| host.write(0, OLD));
        host.send();
        let left = leave(host);
        until_sessions(&target, 0).await;
        assert_eq!(target.on_medium(0), wanted);
        drop(left);
    });
}

#[test]
fn commands_before_reset_do_not_begin_after_it() {
    let reset = |host: Host| {
        host.reset();
        None
    };
    leave_in_socket(reset, 0);
}

#[test]
fn commands_before_close_without_logout_do_not_begin() {
    let finish = |host: Host| {
        host.finish();
        Some(host)
    };
    leave_in_socket(finish, 0);
}

#[test]
fn commands_before_logout_and_close_are_executed() {
    let log_out = |mut host: Host| {
        host.log_out();
        host.send();
        host.finish();
        Some(host)
    };
    leave_in_socket(log_out, OLD);
}

#[test]
fn logout_before_last_command_does_not_count() {
    let more = |mut host: Host| {
        host.log_out();
        host.write(0, NEW);
        host.send();
        host.finish();
        Some(host)
    };
    leave_in_socket(more, 0);
}

#[test]
fn data_before_reset_begins_no_write() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut write = host.command(&cdb::write_10(0, 1, false));
        request::set_write(&mut write, 512, false);
        host.queue(write, &[]);
        host.send();
        let r2t = host.receive(opcode::R2T).await;
        let burst = request::DataOutTags { lun: 0, itt: write.itt(), ttt: r2t.ttt() };
        host.queue(request::data_out(burst, 0, 0, true, 0), &[OLD; 512]);
        host.send();
        host.reset();
        until_sessions(&target, 0).await;
        assert_eq!(target.on_medium(0), 0);
    });
}

#[test]
fn command_at_lock_does_not_begin_after_reset() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let inside = target.disk().task_set.handle(CoreIndex::current()).lock(LockMode::Exclusive).await;
        host.write(0, OLD);
        host.send();
        run_ready().await;
        host.reset();
        drop(inside);
        until_sessions(&target, 0).await;
        assert_eq!(target.on_medium(0), 0);
    });
}

/// Holds a WRITE for the CmdSN of a request that changes nothing. That request arrives just before the connection
/// ends.
fn hold_write_behind(first: impl Fn(&mut Host) -> Bhs + Send + 'static) {
    run_test(move |target| async move {
        let mut host = Host::session(&target, 1).await;
        let awaited = first(&mut host);
        host.write(0, OLD);
        host.send();
        run_ready().await;
        host.queue(awaited, &[]);
        host.send();
        host.reset();
        until_sessions(&target, 0).await;
        assert_eq!(target.on_medium(0), 0);
    });
}

#[test]
fn command_held_for_read_does_not_begin_after_reset() {
    hold_write_behind(|host| {
        let mut read = host.command(&cdb::read_10(0, 1));
        request::set_read(&mut read, 512);
        read
    });
}

#[test]
fn command_held_for_nop_does_not_begin_after_reset() {
    hold_write_behind(|host| {
        let in_its_place = host.command(&cdb::test_unit_ready());
        let mut nop = request::nop_out(0, in_its_place.itt(), NONE);
        request::stamp(&mut nop, in_its_place.cmd_sn(), 0);
        nop.set_opcode(opcode::NOP_OUT);
        nop
    });
}

/// The stalled core neither receives the message that ends the session, nor reads the commands in its socket.
#[test]
fn replaced_session_of_stalled_core_begins_nothing() {
    run_test(|target| async move {
        let (go_on, held) = flume::bounded::<()>(0);
        let mut old = Host::connect_held(&target, async move {
            _ = held.recv_async().await;
        });
        old.send_login("one", 1);
        assert_eq!(old.receive(opcode::LOGIN_RESPONSE).await.login_status().0, 0);
        (0..3).for_each(|_| old.write(0, OLD));
        old.send();
        let mut new = Host::session(&target, 1).await;
        new.write(0, NEW);
        new.send();
        new.receive(opcode::SCSI_RESPONSE).await;
        drop(go_on);
        while old.next().await.is_some() {}
        run_ready().await;
        assert_eq!((target.on_medium(0), target.sessions()), (NEW, 1));
    });
}

/// Limits the target to one session.
fn limit_to_one_session(config: &mut TargetConfig) {
    let instance = Instance::new("one");
    instance.max_sessions.store(1, Relaxed);
    config.targets.get_mut(NAME).expect("the target").instance = Some(Arc::new(instance));
}

#[test]
fn replaced_session_of_stalled_core_holds_nothing() {
    run_test_with(limit_to_one_session, |target| async move {
        let (mut old, hold) = Host::session_with_hold(&target, 1).await;
        assert_eq!(old.run(&RESERVE).await, Status::Good as u8);
        hold.begin();
        let mut new = Host::session(&target, 1).await;
        new.write(0, NEW);
        new.send();
        assert_eq!(new.receive(opcode::SCSI_RESPONSE).await.scsi_status(), Status::Good as u8);
        assert_eq!(new.run(&RESERVE).await, Status::Good as u8);
        hold.end();
        while old.next().await.is_some() {}
        run_ready().await;
        // The end of the old session releases nothing of the new one.
        assert_eq!(new.run(&cdb::test_unit_ready()).await, Status::Good as u8);
        let mut other = Host::connect(&target);
        other.send_login("other", 2);
        assert_eq!(
            other.receive(opcode::LOGIN_RESPONSE).await.login_status().0,
            3,
            "the session limit is used up"
        );
    });
}

#[test]
fn session_of_stalled_core_can_be_ended() {
    run_test(|target| async move {
        let (mut old, hold) = Host::session_with_hold(&target, 1).await;
        assert_eq!(old.run(&RESERVE).await, Status::Good as u8);
        hold.begin();
        let ended = target.shared.registry.end(|_| true, EndReason::ServerStop).await;
        assert_eq!((ended, target.sessions()), (1, 0));
        let mut other = Host::session_of(&target, "other", 2).await;
        assert_eq!(other.run(&RESERVE).await, Status::Good as u8);
    });
}

/// Leaves WRITEs in the socket of one session. Then a session of initiator `other` aborts the tasks in `scope`.
async fn abort_by_other(target: &TestTarget, other: &str, scope: AbortScope) -> Host {
    let mut one = Host::session(target, 1).await;
    let other = Host::session_of(target, other, 2).await;
    let from = target.shared.registry.list().pop().expect("two sessions").1;
    (0..3).for_each(|_| one.write(0, OLD));
    one.send();
    let message = |done| {
        let (scope, from, indeterminate) = (scope.clone(), from.clone(), Default::default());
        SessionMessage::Abort { scope, from: Some(from), indeterminate, done }
    };
    target.shared.registry.broadcast(None, message).await;
    drop(other);
    one
}

/// Checks that the commands ended with BUSY, and that the session continues.
async fn expect_all_busy(target: &TestTarget, mut one: Host) {
    let then = target.on_medium(0);
    run_ready().await;
    assert_eq!((then, target.on_medium(0)), (0, 0));
    for _ in 0..3 {
        assert_eq!(one.receive(opcode::SCSI_RESPONSE).await.scsi_status(), Status::Busy as u8);
    }
    one.write(0, NEW);
    one.send();
    one.receive(opcode::SCSI_RESPONSE).await;
    assert_eq!(target.on_medium(0), NEW, "a live session");
}

#[test]
fn reset_by_other_session_stops_older_commands() {
    run_test(|target| async move {
        let one = abort_by_other(&target, "one", AbortScope::units([target.disk()])).await;
        expect_all_busy(&target, one).await;
    });
}

#[test]
fn preempted_nexus_begins_no_older_command() {
    run_test(|target| async move {
        let all = AbortScope::Nexuses((0..10_000).map(NexusId).collect());
        let one = abort_by_other(&target, "other", all).await;
        expect_all_busy(&target, one).await;
    });
}

#[test]
fn reset_by_other_initiator_keeps_unread_commands() {
    run_test(|target| async move {
        let mut one = abort_by_other(&target, "other", AbortScope::units([target.disk()])).await;
        one.receive(opcode::SCSI_RESPONSE).await;
        assert_eq!(target.on_medium(0), OLD);
    });
}

#[test]
fn new_login_follows_commands_of_old_session() {
    run_test(|target| async move {
        let mut old = Host::session(&target, 1).await;
        let mut new = Host::connect(&target);
        run_ready().await;
        (0..3).for_each(|_| old.write(0, OLD));
        old.send();
        new.send_login("one", 1);
        new.receive(opcode::LOGIN_RESPONSE).await;
        let then = target.on_medium(0);
        run_ready().await;
        assert_eq!(target.on_medium(0), then);
    });
}

#[test]
fn login_before_reset_or_close_ends_no_session() {
    run_test(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut late = [Host::connect(&target), Host::connect(&target)];
        run_ready().await;
        late.iter_mut().for_each(|late| late.send_login("one", 1));
        let [reset, closed] = late;
        reset.reset();
        closed.finish();
        run_ready().await;
        host.write(0, NEW);
        host.send();
        host.receive(opcode::SCSI_RESPONSE).await;
        assert_eq!((target.on_medium(0), target.sessions()), (NEW, 1));
    });
}

/// A tape at another target, which counts the commands that it receives.
#[derive(Default)]
struct Tape(Arc<AtomicUsize>);

impl PassthroughLu for Tape {
    fn enter(&self, _: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus> {
        Rc::new(Tape(self.0.clone()))
    }

    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

impl PassthroughNexus for Tape {
    fn submit(&self, _: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
        self.0.fetch_add(1, Relaxed);
        let (status, sense, data, moved) = (Status::Good as u8, Box::default(), None, 0);
        let fate = CommandFate::Ended;
        Box::pin(std::future::ready(PassthroughResponse { status, sense, data, moved, fate }))
    }

    fn abort(&self, _: u64) -> LocalBoxFuture<'_, CommandFate> {
        Box::pin(std::future::ready(CommandFate::Ended))
    }

    fn manage(&self, _: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}

/// READ(6) and READ(16) move a tape. The check of received READs skips them, the check of tasks does not.
#[test]
fn tape_read_before_reset_does_not_begin_after_it() {
    for opcode in [op::READ_6, op::READ_16] {
        let tape = Arc::<Tape>::default();
        let served = tape.clone();
        let change = move |config: &mut TargetConfig| {
            let unit = Arc::new(test_target::passthrough_unit(test_target::CAPACITY, served));
            config.targets.get_mut(NAME).expect("the target").luns.insert(0, unit);
        };
        let count = tape.0.clone();
        run_test_with(change, move |target| async move {
            let mut host = Host::session(&target, 1).await;
            let before = count.load(Relaxed);
            assert!(before > 0, "the tape receives commands");
            let mut cdb = [0; 16];
            cdb[0] = opcode;
            let mut read = host.command(&cdb);
            request::set_read(&mut read, 512);
            host.queue(read, &[]);
            host.send();
            host.reset();
            until_sessions(&target, 0).await;
            assert_eq!(count.load(Relaxed), before, "{opcode:02x}");
        });
    }
}

/// A disk in memory with a queue, which counts the operations that it gets.
struct QueuedDisk {
    inner: Arc<dyn Backend>,
    begun: Arc<AtomicUsize>,
}

impl Backend for QueuedDisk {
    fn info(&self) -> BackendInfo {
        // No command completes at once.
        BackendInfo { remote: true, ..self.inner.info() }
    }

    fn refresh(&self) -> bool {
        self.inner.refresh()
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.inner.write(offset, buf, fua)
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        Some(Box::new(CountingQueue { begun: self.begun.clone(), ended: VecDeque::new() }))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

/// Ends each operation at the next poll.
struct CountingQueue {
    begun: Arc<AtomicUsize>,
    ended: VecDeque<(usize, BufResult)>,
}

impl BackendQueue for CountingQueue {
    fn read(&mut self, lane: usize, _: u64, buf: Buf) {
        self.begun.fetch_add(1, Relaxed);
        self.ended.push_back((lane, (Ok(()), buf)));
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, _: bool) {
        self.read(lane, offset, buf);
    }

    fn poll_ended(&mut self, _: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        self.ended.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Processes a command on the first connection, without the event loop.
fn process(joined: &TwoConnections, header: Bhs, data: &[u8]) {
    let connection = joined.nexus().state().front().connections()[0].clone();
    let pdu = ReceivedPdu { header, ahs: &[], data: ReceivedData::Bytes(data), intact: true, behind: &[] };
    assert!(PduDispatcher::new(&mut joined.nexus().state(), &connection).take(pdu));
}

/// The core receives a READ and a WRITE, and stalls before the queue of the medium gets them.
fn stall_before_queue(resets: bool, wanted: usize) {
    let begun = Arc::<AtomicUsize>::default();
    let disk = QueuedDisk { inner: test_target::memory(test_target::CAPACITY), begun: begun.clone() };
    let change = move |config: &mut TargetConfig| {
        let unit = test_target::unit_of(1, Arc::new(disk));
        config.targets.get_mut(NAME).expect("the target").luns.insert(0, unit);
    };
    run_test_with(change, move |target| async move {
        let (mut host, other, joined) = joined(&target).await;
        host.run(&cdb::test_unit_ready()).await;
        let mut read = host.command(&cdb::read_10(0, 1));
        request::set_read(&mut read, 512);
        let mut write = host.command(&cdb::write_10(0, 1, false));
        request::set_write(&mut write, 512, false);
        write.set_data_len(512);
        process(&joined, read, &[]);
        process(&joined, write, &[OLD; 512]);
        let host = match resets {
            true => {
                host.reset();
                None
            }
            false => Some(host),
        };
        assert_eq!(begun.load(Relaxed), 0, "the core has not polled the queue");
        // The cached state of the connection is used for one tick of the coarse clock.
        std::thread::sleep(Duration::from_millis(25));
        run_ready().await;
        assert_eq!(begun.load(Relaxed), wanted);
        drop((host, other, joined));
    });
}

#[test]
fn queued_commands_do_not_begin_after_reset() {
    stall_before_queue(true, 0);
}

#[test]
fn queued_commands_of_open_connection_begin() {
    stall_before_queue(false, 2);
}
