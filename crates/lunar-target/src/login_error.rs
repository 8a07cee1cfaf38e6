//! The reasons for which a target refuses a login. Each front end maps them to codes of its protocol:
//! `iscsi/login_status.rs` and `srp/login.rs`.

/// The reason for which a login is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// The portal group serves no such target.
    TargetNotFound,
    /// No access rule of the target admits the initiator with its CHAP account.
    NotAllowed,
    /// The initiator has not proved its identity.
    AuthenticationFailed,
    /// The target is offline or still being opened, its SCSI routing instance drains, or the server stops.
    NotServing,
    /// Discovery is disabled.
    DiscoveryDisabled,
    /// The session exists, and cannot have another connection.
    TooManyConnections,
    /// The session that the login names does not exist.
    NoSuchSession,
    /// A limit on sessions or connections is reached.
    OutOfResources,
}
