//! The reasons why sessions end.

use std::fmt;

/// The reason why a session ended, for the log and for the last message to the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The initiator closed the connection.
    ConnectionClosed,
    /// The initiator closed the connection, and its last PDU was not a Logout.
    ClosedWithoutLogout,
    /// The initiator reset the connection.
    ConnectionReset,
    /// The connection failed.
    ConnectionLost,
    /// The initiator sent a Logout.
    Logout,
    /// The host ended the connection because of a fault (H2CTermReq).
    TerminatedByHost,
    /// The host did not prove its secret again.
    AuthenticationFailed,
    /// The controller of an I/O queue was disabled, or has ended.
    ControllerEnded,
    /// Another login replaced this session (RFC 7143 section 6.3.5).
    Reinstated,
    /// The data of a write did not arrive in time.
    DataOutTimeout,
    /// A Discovery session was idle for too long.
    DiscoveryTimeout,
    /// The initiator did not answer a ping.
    KeepaliveTimeout,
    /// A SCSI Command PDU contradicts itself (a format error, RFC 7143 section 7.7).
    InvalidScsiCommand,
    /// Too many data are held for a command that is missing in CmdSN order.
    MissingCommand,
    /// The initiator blocked the end of tasks that another session aborted.
    AbortBlocked,
    /// The target, or the initiator's access to it, was removed from the configuration.
    AccessRemoved,
    /// An initiator requested TARGET COLD RESET.
    TargetColdReset,
    /// This server has lost its share of the state of a logical unit, or the cluster has fenced it.
    Fenced,
    /// The server is stopping.
    ServerStop,
}

impl EndReason {
    /// The word of the label `reason`.
    pub fn word(self) -> &'static str {
        match self {
            EndReason::ConnectionClosed => "closed",
            EndReason::ClosedWithoutLogout => "closed_without_logout",
            EndReason::ConnectionReset => "reset",
            EndReason::ConnectionLost => "lost",
            EndReason::Logout => "logout",
            EndReason::TerminatedByHost => "terminated_by_host",
            EndReason::AuthenticationFailed => "authentication_failed",
            EndReason::ControllerEnded => "controller_ended",
            EndReason::Reinstated => "reinstated",
            EndReason::DataOutTimeout => "data_out_timeout",
            EndReason::DiscoveryTimeout => "discovery_timeout",
            EndReason::KeepaliveTimeout => "keepalive_timeout",
            EndReason::InvalidScsiCommand => "invalid_scsi_command",
            EndReason::MissingCommand => "missing_command",
            EndReason::AbortBlocked => "abort_blocked",
            EndReason::AccessRemoved => "access_removed",
            EndReason::TargetColdReset => "target_cold_reset",
            EndReason::Fenced => "fenced",
            EndReason::ServerStop => "server_stop",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndReason::ConnectionClosed => "the initiator closed the connection",
            EndReason::ClosedWithoutLogout => "the initiator closed the connection without a logout",
            EndReason::ConnectionReset => "the initiator reset the connection",
            EndReason::ConnectionLost => "the connection was lost",
            EndReason::Logout => "logout",
            EndReason::TerminatedByHost => "the host ended the connection because of a fault",
            EndReason::AuthenticationFailed => "the host did not prove its secret again",
            EndReason::ControllerEnded => "the controller was disabled, or has ended",
            EndReason::Reinstated => "the initiator logged in again",
            EndReason::DataOutTimeout => "the initiator did not send the data of a write in time",
            EndReason::DiscoveryTimeout => "the discovery session was idle for too long",
            EndReason::KeepaliveTimeout => "the initiator did not answer a NOP-In",
            EndReason::InvalidScsiCommand => {
                "the initiator sent a SCSI Command PDU with contradictory fields"
            }
            EndReason::MissingCommand => "too much data waits for a SCSI Command that has not arrived",
            EndReason::AbortBlocked => "the initiator delayed the end of tasks that another session aborted",
            EndReason::AccessRemoved => "the target, or the access to it, was removed",
            EndReason::TargetColdReset => "TARGET COLD RESET",
            EndReason::Fenced => "the cluster has fenced this server, or the server has paused",
            EndReason::ServerStop => "the server is stopping",
        })
    }
}
