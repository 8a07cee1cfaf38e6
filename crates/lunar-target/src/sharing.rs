//! Logical units whose state several servers share.

use lunar_block::LocalBoxFuture;
use lunar_scsi::{AccessState, PendingCommit, PlanResult, TargetPort};
use std::sync::Arc;

/// The other servers of a logical unit.
pub trait StateSharing: Send + Sync {
    /// Lets a change take effect on all servers, and returns the answer of its command. Afterwards, no server executes
    /// a command that the change forbids.
    ///
    /// # Errors
    /// [`SharingLost`].
    fn publish(&self, pending: PendingCommit) -> LocalBoxFuture<'_, Result<PlanResult, SharingLost>>;
    /// Sets the access states of target port groups, on all servers. Returns the answer of SET TARGET PORT GROUPS.
    ///
    /// # Errors
    /// [`SharingLost`].
    fn set_access(
        &self,
        groups: Vec<(u16, AccessState)>,
    ) -> LocalBoxFuture<'_, Result<PlanResult, SharingLost>>;
    /// Installs all changes that other servers have made until now. Returns whether this server may decide on commands.
    ///
    /// # Errors
    /// [`SharingLost`].
    fn refresh(&self) -> LocalBoxFuture<'_, Result<bool, SharingLost>>;
    /// Whether this server may answer commands of the unit. After a pause or a fence it may not: its state is old, and
    /// the outcome of commands in flight is unknown.
    fn may_serve(&self) -> bool;
    /// Whether this server may decide on a new command that does not reach the medium. Otherwise a change of another server
    /// may be missing here.
    fn may_decide(&self) -> bool;
    /// Whether this server cannot serve the unit for now, and says so: commands for the medium fail with NOT READY. The
    /// other units of the target work.
    fn is_unavailable(&self) -> bool;
    /// Returns when no operation of this server can take effect after one of another server: after a loss, the others have
    /// fenced it. Connections stay open until then, because hosts repeat their commands on other paths when they end.
    fn until_fenced(&self) -> LocalBoxFuture<'_, ()>;
    /// The target ports of the other servers.
    fn remote_ports(&self) -> Arc<[RemotePort]>;
}

/// The server has lost its share of the state: whether the last change took place is unknown, so that the command gets
/// no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharingLost;

/// A target port of another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePort {
    /// The port.
    pub port: TargetPort,
    /// The addresses that SendTargets reports, `host:port`. Empty: the server is away.
    pub addresses: Vec<String>,
}
