//! A session with two connections: what they share, and what each has of its own.

use super::host::Host;
use crate::core::{ItNexus, NexusParams};
use crate::end_reason::EndReason;
use crate::iscsi::connection::{IscsiConnection, OpenedConnection};
use crate::iscsi::session::IscsiSession;
use crate::iser::tests::test_target::{TestTarget, run_ready, run_test};
use crate::registry::SessionGuard;
use crate::server_state::ConnectionGuard;
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::{Bhs, opcode};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::{Status, cdb};
use std::rc::Rc;

/// A session with two connections, and its entries in the registry.
pub struct TwoConnections {
    nexus: Rc<ItNexus<IscsiSession>>,
    _places: [(SessionGuard, ConnectionGuard); 2],
}

impl TwoConnections {
    /// The I_T nexus.
    pub fn nexus(&self) -> &ItNexus<IscsiSession> {
        &self.nexus
    }
}

impl Drop for TwoConnections {
    fn drop(&mut self) {
        self.nexus.state().end_with(EndReason::ServerStop);
    }
}

/// Makes the second connection one of the session of the first.
fn join(first: OpenedConnection, second: OpenedConnection) -> TwoConnections {
    let session = IscsiSession::new(&first);
    let OpenedConnection { shared, login_context, info, guard, count, transport, stat_sn, .. } = first;
    let nexus = ItNexus::new(NexusParams { shared, login_context, info, tsih: guard.tsih }, session);
    let connections = [(transport, stat_sn), (second.transport, second.stat_sn)];
    for (cid, (transport, stat_sn)) in (0..).zip(connections) {
        let (nexus, connection) = (nexus.clone(), IscsiConnection::open(&nexus, transport, cid, stat_sn));
        lunar_runtime::spawn(async move { drop(connection.receive(&nexus).await) });
    }
    TwoConnections { nexus, _places: [(guard, count), (second.guard, second.count)] }
}

/// Two hosts on one session. CmdSN goes on from 1, and tags of the second host from 100.
pub async fn joined(target: &TestTarget) -> (Host, Host, TwoConnections) {
    let (mut a, first) = Host::logged_in(target, 1).await;
    let (mut b, second) = Host::logged_in(target, 2).await;
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
        assert_eq!((r2t.itt(), joined.nexus.state().has_task(write.itt())), (write.itt(), true));
        b.set_next(3, 100);
        b.manage(TaskManagementFunction::AbortTask, Some(write.itt()));
        assert_eq!(b.receive(opcode::TASK_MANAGEMENT_RESPONSE).await.response(), 0, "FUNCTION COMPLETE");
        assert!(!joined.nexus.state().has_task(write.itt()));
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
