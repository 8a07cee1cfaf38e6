//! Commands in the socket, or held, when their session ends or another session aborts them.

use super::host::Host;
use crate::Instance;
use crate::config::TargetConfig;
use crate::end_reason::EndReason;
use crate::iser::tests::test_target::{NAME, TestTarget, play, play_with, quiet};
use crate::registry::{AbortScope, SessionMessage};
use crate::task_set_lock::LockMode;
use lunar_scsi::{CoreIndex, NexusId};
use lunar_wire::iscsi::{Bhs, NONE, opcode, request};
use lunar_wire::scsi::{Status, cdb, op};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const OLD: u8 = 1;
const NEW: u8 = 2;
const RESERVE: cdb::Cdb = [op::RESERVE_6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Waits until the target has this many sessions.
async fn until_sessions(target: &TestTarget, count: usize) {
    while target.sessions() != count {
        lunar_runtime::yield_now().await;
    }
    quiet().await;
}

/// Leaves WRITEs in the socket, and ends the connection with `leave`. Block 0 must then have the byte `wanted`.
fn left_in_the_socket(leave: impl FnOnce(Host) -> Option<Host> + Send + 'static, wanted: u8) {
    play(move |target| async move {
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
    left_in_the_socket(reset, 0);
}

#[test]
fn commands_before_close_without_logout_do_not_begin() {
    let finish = |host: Host| {
        host.finish();
        Some(host)
    };
    left_in_the_socket(finish, 0);
}

#[test]
fn commands_before_logout_and_close_are_executed() {
    let log_out = |mut host: Host| {
        host.log_out();
        host.send();
        host.finish();
        Some(host)
    };
    left_in_the_socket(log_out, OLD);
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
    left_in_the_socket(more, 0);
}

#[test]
fn data_before_reset_begins_no_write() {
    play(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut write = host.command(&cdb::write_10(0, 1, false));
        request::set_write(&mut write, 512, false);
        host.queue(write, &[]);
        host.send();
        let r2t = host.told(opcode::R2T).await;
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
    play(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let inside = target.disk().task_set.handle(CoreIndex::current()).lock(LockMode::Exclusive).await;
        host.write(0, OLD);
        host.send();
        quiet().await;
        host.reset();
        drop(inside);
        until_sessions(&target, 0).await;
        assert_eq!(target.on_medium(0), 0);
    });
}

/// Holds a WRITE for the CmdSN of a request that changes nothing. That request arrives just before the end of the
/// connection.
fn held_behind(first: impl Fn(&mut Host) -> Bhs + Send + 'static) {
    play(move |target| async move {
        let mut host = Host::session(&target, 1).await;
        let awaited = first(&mut host);
        host.write(0, OLD);
        host.send();
        quiet().await;
        host.queue(awaited, &[]);
        host.send();
        host.reset();
        until_sessions(&target, 0).await;
        assert_eq!(target.on_medium(0), 0);
    });
}

#[test]
fn command_held_for_read_does_not_begin_after_reset() {
    held_behind(|host| {
        let mut read = host.command(&cdb::read_10(0, 1));
        request::set_read(&mut read, 512);
        read
    });
}

#[test]
fn command_held_for_nop_does_not_begin_after_reset() {
    held_behind(|host| {
        let in_its_place = host.command(&cdb::test_unit_ready());
        let mut nop = request::nop_out(0, in_its_place.itt(), NONE);
        request::stamp(&mut nop, in_its_place.cmd_sn(), 0);
        nop.set_opcode(opcode::NOP_OUT);
        nop
    });
}

/// The stalled core reads neither the message that ends the session, nor the commands in its socket.
#[test]
fn replaced_session_of_stalled_core_begins_nothing() {
    play(|target| async move {
        let (go_on, held) = flume::bounded::<()>(0);
        let mut old = Host::connect_held(&target, async move {
            _ = held.recv_async().await;
        });
        old.ask_to_log_in("one", 1);
        assert_eq!(old.told(opcode::LOGIN_RESPONSE).await.login_status().0, 0);
        (0..3).for_each(|_| old.write(0, OLD));
        old.send();
        let mut new = Host::session(&target, 1).await;
        new.write(0, NEW);
        new.send();
        new.told(opcode::SCSI_RESPONSE).await;
        drop(go_on);
        while old.next().await.is_some() {}
        quiet().await;
        assert_eq!((target.on_medium(0), target.sessions()), (NEW, 1));
    });
}

/// Limits the target to one session.
fn one_at_a_time(config: &mut TargetConfig) {
    let instance = Instance::new("one");
    instance.max_sessions.store(1, Relaxed);
    config.targets.get_mut(NAME).expect("the target").instance = Some(Arc::new(instance));
}

#[test]
fn replaced_session_of_stalled_core_holds_nothing() {
    play_with(one_at_a_time, |target| async move {
        let (mut old, hold) = Host::session_to_hold(&target, 1).await;
        assert_eq!(old.run(&RESERVE).await, Status::Good as u8);
        hold.begin();
        let mut new = Host::session(&target, 1).await;
        new.write(0, NEW);
        new.send();
        assert_eq!(new.told(opcode::SCSI_RESPONSE).await.scsi_status(), Status::Good as u8);
        assert_eq!(new.run(&RESERVE).await, Status::Good as u8);
        hold.end();
        while old.next().await.is_some() {}
        quiet().await;
        // The end of the old session takes nothing from the new one.
        assert_eq!(new.run(&cdb::test_unit_ready()).await, Status::Good as u8);
        let mut other = Host::connect(&target);
        other.ask_to_log_in("other", 2);
        assert_eq!(other.told(opcode::LOGIN_RESPONSE).await.login_status().0, 3, "the place is taken");
    });
}

#[test]
fn session_of_stalled_core_can_be_ended() {
    play(|target| async move {
        let (mut old, hold) = Host::session_to_hold(&target, 1).await;
        assert_eq!(old.run(&RESERVE).await, Status::Good as u8);
        hold.begin();
        let ended = target.shared.registry.end(|_| true, EndReason::ServerStop).await;
        assert_eq!((ended, target.sessions()), (1, 0));
        let mut other = Host::session_of(&target, "other", 2).await;
        assert_eq!(other.run(&RESERVE).await, Status::Good as u8);
    });
}

/// Leaves WRITEs in the socket of one session. Then a session of initiator `other` aborts the tasks in `scope`.
async fn ended_by(target: &TestTarget, other: &str, scope: AbortScope) -> Host {
    let mut one = Host::session(target, 1).await;
    let other = Host::session_of(target, other, 2).await;
    let from = target.shared.registry.list().pop().expect("two sessions").1;
    (0..3).for_each(|_| one.write(0, OLD));
    one.send();
    let message = |done| {
        let (scope, from, indeterminate) = (scope.clone(), from.clone(), Default::default());
        SessionMessage::Abort { scope, from, indeterminate, done }
    };
    target.shared.registry.broadcast(None, message).await;
    drop(other);
    one
}

/// The commands ended with BUSY, and the session goes on.
async fn none_begins(target: &TestTarget, mut one: Host) {
    let then = target.on_medium(0);
    quiet().await;
    assert_eq!((then, target.on_medium(0)), (0, 0));
    for _ in 0..3 {
        assert_eq!(one.told(opcode::SCSI_RESPONSE).await.scsi_status(), Status::Busy as u8);
    }
    one.write(0, NEW);
    one.send();
    one.told(opcode::SCSI_RESPONSE).await;
    assert_eq!(target.on_medium(0), NEW, "the session goes on");
}

#[test]
fn reset_by_other_session_stops_older_commands() {
    play(|target| async move {
        let one = ended_by(&target, "one", AbortScope::units([target.disk()])).await;
        none_begins(&target, one).await;
    });
}

#[test]
fn preempted_nexus_begins_no_older_command() {
    play(|target| async move {
        let all = AbortScope::Nexuses((0..10_000).map(NexusId).collect());
        let one = ended_by(&target, "other", all).await;
        none_begins(&target, one).await;
    });
}

#[test]
fn reset_by_other_initiator_keeps_unread_commands() {
    play(|target| async move {
        let mut one = ended_by(&target, "other", AbortScope::units([target.disk()])).await;
        one.told(opcode::SCSI_RESPONSE).await;
        assert_eq!(target.on_medium(0), OLD);
    });
}

#[test]
fn new_login_follows_commands_of_old_session() {
    play(|target| async move {
        let mut old = Host::session(&target, 1).await;
        let mut new = Host::connect(&target);
        quiet().await;
        (0..3).for_each(|_| old.write(0, OLD));
        old.send();
        new.ask_to_log_in("one", 1);
        new.told(opcode::LOGIN_RESPONSE).await;
        let then = target.on_medium(0);
        quiet().await;
        assert_eq!(target.on_medium(0), then);
    });
}

#[test]
fn login_before_reset_or_close_ends_no_session() {
    play(|target| async move {
        let mut host = Host::session(&target, 1).await;
        let mut late = [Host::connect(&target), Host::connect(&target)];
        quiet().await;
        late.iter_mut().for_each(|late| late.ask_to_log_in("one", 1));
        let [reset, closed] = late;
        reset.reset();
        closed.finish();
        quiet().await;
        host.write(0, NEW);
        host.send();
        host.told(opcode::SCSI_RESPONSE).await;
        assert_eq!((target.on_medium(0), target.sessions()), (NEW, 1));
    });
}
