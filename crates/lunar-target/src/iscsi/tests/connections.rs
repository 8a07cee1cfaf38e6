//! A session with two connections: shared state, and the state of each connection.

use super::host::Host;
use crate::core::{FrontEnd, ItNexus};
use crate::end_reason::EndReason;
use crate::iscsi::connection::{OpenedConnection, OpenedSession};
use crate::iscsi::full_feature::{self, RunningSession};
use crate::iscsi::session::IscsiSession;
use crate::registry::SessionGuard;
use crate::server_state::ConnectionGuard;
use crate::test_target::{TestTarget, run_ready, run_test};
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::status::logout_response;
use lunar_wire::iscsi::{Bhs, opcode};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::{Status, cdb};
use std::rc::{Rc, Weak};

/// The CID of the second connection. The first has CID 0.
const SECOND: u16 = 7;

/// A session with two connections. The second one has an entry in the registry, since a login negotiates one.
pub struct TwoConnections {
    nexus: Weak<ItNexus<IscsiSession>>,
    _place: (SessionGuard, ConnectionGuard),
}

impl TwoConnections {
    /// The I_T nexus.
    pub fn nexus(&self) -> Rc<ItNexus<IscsiSession>> {
        self.nexus.upgrade().expect("the session has not ended")
    }

    fn has_ended(&self) -> bool {
        self.nexus.upgrade().is_none()
    }
}

impl Drop for TwoConnections {
    fn drop(&mut self) {
        if let Some(nexus) = self.nexus.upgrade() {
            nexus.end(EndReason::ServerStop);
        }
    }
}

/// Makes the second connection one of the session of the first.
fn join(first: OpenedSession, second: OpenedSession) -> TwoConnections {
    let session = RunningSession::start(first);
    let nexus = Rc::downgrade(session.nexus());
    full_feature::join(session.nexus(), OpenedConnection { cid: SECOND, ..second.connection });
    lunar_runtime::spawn(session.run());
    TwoConnections { nexus, _place: (second.guard, second.count) }
}

/// Two hosts on one session; the connection of the second has digests. CmdSN goes on from 1, and tags of the second host
/// from 100.
pub async fn joined(target: &TestTarget) -> (Host, Host, TwoConnections) {
    let (mut a, first) = Host::logged_in(target, 1).await;
    let (mut b, second) = Host::logged_in_with_digests(target, 2).await;
    a.set_next(1, 0);
    b.set_next(2, 100);
    (a, b, join(first, second))
}

fn ready(host: &mut Host) -> Bhs {
    let command = host.command(&cdb::test_unit_ready());
    host.queue(command, &[]);
    host.send();
    command
}

#[test]
fn cmd_sn_is_per_session_and_stat_sn_per_connection() {
    run_test(|target| async move {
        let (mut a, mut b, joined) = joined(&target).await;
        let second = ready(&mut b);
        run_ready().await;
        assert!(b.next_now().is_none(), "CmdSN 2 waits for CmdSN 1");
        let first = ready(&mut a);
        let (to_a, to_b) = (a.receive(opcode::SCSI_RESPONSE).await, b.receive(opcode::SCSI_RESPONSE).await);
        assert_eq!((to_a.itt(), to_b.itt()), (first.itt(), second.itt()));
        // The unit attention of a new I_T nexus goes to its first command only.
        let statuses = [to_a.scsi_status(), to_b.scsi_status()];
        assert_eq!(statuses, [Status::CheckCondition as u8, Status::Good as u8]);
        b.set_next(3, 101);
        ready(&mut b);
        let again = b.receive(opcode::SCSI_RESPONSE).await;
        assert_eq!(again.stat_sn(), to_b.stat_sn().wrapping_add(1), "StatSN of the second connection");
        assert_eq!((again.exp_cmd_sn(), to_b.exp_cmd_sn()), (4, 3), "ExpCmdSN is that of the session");
        assert_eq!(to_a.stat_sn(), to_b.stat_sn(), "both began with the same StatSN");
        drop(joined);
    });
}

#[test]
fn function_on_one_connection_aborts_task_of_another() {
    run_test(|target| async move {
        let (mut a, mut b, joined) = joined(&target).await;
        ready(&mut a);
        a.receive(opcode::SCSI_RESPONSE).await;
        let mut write = a.command(&cdb::write_10(0, 1, false));
        request::set_write(&mut write, 512, false);
        a.queue(write, &[]);
        a.send();
        let r2t = a.receive(opcode::R2T).await;
        assert_eq!((r2t.itt(), joined.nexus().state().has_task(write.itt())), (write.itt(), true));
        b.set_next(3, 100);
        b.manage(TaskManagementFunction::AbortTask, Some(write.itt()));
        assert_eq!(b.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.response(), 0, "FUNCTION COMPLETE");
        assert!(!joined.nexus().state().has_task(write.itt()));
        assert!(a.next_now().is_none(), "no response to an aborted task");
    });
}

#[test]
fn data_and_response_use_connection_of_command() {
    run_test(|target| async move {
        let (mut a, mut b, joined) = joined(&target).await;
        ready(&mut a);
        a.receive(opcode::SCSI_RESPONSE).await;
        let mut write = b.command(&cdb::write_10(0, 1, false));
        request::set_write(&mut write, 512, false);
        b.queue(write, &[]);
        b.send();
        let r2t = b.receive(opcode::R2T).await;
        b.answer(&r2t, 7).await;
        assert_eq!(b.receive(opcode::SCSI_RESPONSE).await.scsi_status(), 0);
        assert_eq!(target.on_medium(0), 7);
        assert!(a.next_now().is_none());
        drop(joined);
    });
}

/// Data belong to the connection of their command (connection allegiance).
#[test]
fn data_on_other_connection_are_rejected() {
    run_test(|target| async move {
        let (mut a, mut b, joined) = joined(&target).await;
        ready(&mut a);
        a.receive(opcode::SCSI_RESPONSE).await;
        let r2t = b.announce_write().await;
        a.answer(&r2t, 1).await;
        assert_eq!(a.receive(opcode::REJECT).await.opcode(), opcode::REJECT);
        run_ready().await;
        assert!(b.next_now().is_none(), "the command still waits");
        b.answer(&r2t, 7).await;
        assert_eq!(b.receive(opcode::SCSI_RESPONSE).await.scsi_status(), 0);
        assert_eq!(target.on_medium(0), 7);
        drop(joined);
    });
}

#[test]
fn logout_of_a_connection_leaves_the_other() {
    run_test(|target| async move {
        let (mut a, mut b, joined) = joined(&target).await;
        ready(&mut a);
        a.receive(opcode::SCSI_RESPONSE).await;
        let of_b = b.announce_write().await;
        a.set_next(3, 1);
        let of_a = a.announce_write().await;
        b.set_next(4, 101);
        b.log_out_connection(SECOND);
        b.send();
        let response = b.receive(opcode::LOGOUT_RESPONSE).await;
        assert_eq!(response.response(), logout_response::CLOSED);
        assert!(b.next().await.is_none(), "the connection is closed");
        let has_task = |r2t: &Bhs| joined.nexus().state().has_task(r2t.itt());
        assert!(!has_task(&of_b) && has_task(&of_a), "the tasks of the closed connection have ended");
        a.answer(&of_a, 7).await;
        assert_eq!(a.receive(opcode::SCSI_RESPONSE).await.scsi_status(), Status::Good as u8);
        a.set_next(4, 2);
        assert_eq!(a.run(&cdb::test_unit_ready()).await, Status::Good as u8, "the session goes on");
        a.log_out_connection(0);
        a.send();
        a.receive(opcode::LOGOUT_RESPONSE).await;
        assert!(a.next().await.is_none());
        run_ready().await;
        assert!(joined.has_ended(), "the session ends with its last connection");
    });
}

#[test]
fn connection_can_log_out_another_one() {
    run_test(|target| async move {
        let (mut a, mut b, joined) = joined(&target).await;
        ready(&mut a);
        a.receive(opcode::SCSI_RESPONSE).await;
        b.log_out_connection(0);
        b.send();
        assert_eq!(b.receive(opcode::LOGOUT_RESPONSE).await.response(), logout_response::CLOSED);
        assert!(a.next().await.is_none(), "the first connection is closed");
        assert_eq!(b.run(&cdb::test_unit_ready()).await, Status::Good as u8, "the session goes on");
        b.log_out_connection(0);
        b.send();
        assert_eq!(b.receive(opcode::LOGOUT_RESPONSE).await.response(), logout_response::CID_NOT_FOUND);
        drop(joined);
    });
}

#[test]
fn lost_connection_ends_session_with_all_connections() {
    for is_first in [true, false] {
        run_test(move |target| async move {
            let (a, b, joined) = joined(&target).await;
            let (lost, mut other) = if is_first { (a, b) } else { (b, a) };
            drop(lost);
            assert!(other.next().await.is_none(), "session recovery is the only one at ErrorRecoveryLevel 0");
            run_ready().await;
            assert!(joined.has_ended());
        });
    }
}

/// Sends READs until the send queue is full. The host does not receive their data.
async fn fill_send_queue(host: &mut Host, joined: &TwoConnections) {
    while !joined.nexus().state().front().is_full() {
        let mut read = host.command(&cdb::read_10(0, 2048));
        request::set_read(&mut read, 1 << 20);
        host.queue(read, &[]);
        host.send();
        run_ready().await;
    }
}

#[test]
fn silent_connection_does_not_delay_close_of_another() {
    run_test(|target| async move {
        let (mut a, mut b, joined) = joined(&target).await;
        ready(&mut a);
        a.receive(opcode::SCSI_RESPONSE).await;
        a.set_next(2, 1);
        fill_send_queue(&mut a, &joined).await;
        joined.nexus().end(EndReason::ServerStop);
        assert!(b.next().await.is_none(), "the connection is closed");
        run_ready().await;
        assert!(!joined.has_ended(), "the data of the first connection are still being sent");
        drop(a);
    });
}
