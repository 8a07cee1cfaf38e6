//! Codes of responses, Reject and Asynchronous Message (RFC 7143 section 11).

/// Status-Class and Status-Detail of a Login Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginStatus(pub u8, pub u8);

impl LoginStatus {
    /// The login proceeds, or has succeeded.
    pub const SUCCESS: Self = Self(0, 0);
    /// The target moved temporarily to the address in TargetAddress.
    pub const MOVED_TEMPORARILY: Self = Self(1, 1);
    /// The target moved permanently to the address in TargetAddress.
    pub const MOVED_PERMANENTLY: Self = Self(1, 2);
    /// The request violates the login protocol.
    pub const INITIATOR_ERROR: Self = Self(2, 0);
    /// Authentication failed.
    pub const AUTHENTICATION_FAILURE: Self = Self(2, 1);
    /// This initiator may not use this target.
    pub const AUTHORIZATION_FAILURE: Self = Self(2, 2);
    /// The portal serves no target of this name.
    pub const NOT_FOUND: Self = Self(2, 3);
    /// The target was removed.
    pub const REMOVED: Self = Self(2, 4);
    /// No common version.
    pub const UNSUPPORTED_VERSION: Self = Self(2, 5);
    /// Too many connections for this session.
    pub const TOO_MANY_CONNECTIONS: Self = Self(2, 6);
    /// A parameter is missing.
    pub const MISSING_PARAMETER: Self = Self(2, 7);
    /// The portal does not support this session type.
    pub const SESSION_TYPE_UNSUPPORTED: Self = Self(2, 9);
    /// TSIH names no session.
    pub const NO_SUCH_SESSION: Self = Self(2, 10);
    /// The PDU is not valid during login.
    pub const INVALID_REQUEST: Self = Self(2, 11);
    /// The target failed.
    pub const TARGET_ERROR: Self = Self(3, 0);
    /// The target is out of service for now.
    pub const SERVICE_UNAVAILABLE: Self = Self(3, 1);
    /// The target lacks resources for another session or connection.
    pub const OUT_OF_RESOURCES: Self = Self(3, 2);
}

impl std::fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let meaning = match *self {
            Self::SUCCESS => "success",
            Self::MOVED_TEMPORARILY | Self::MOVED_PERMANENTLY => "the target moved",
            Self::INITIATOR_ERROR => "login protocol error",
            Self::AUTHENTICATION_FAILURE => "authentication failed",
            Self::AUTHORIZATION_FAILURE => "no access entry admits this initiator",
            Self::NOT_FOUND => "no such target at this portal",
            Self::REMOVED => "the target was removed",
            Self::UNSUPPORTED_VERSION => "no common version",
            Self::TOO_MANY_CONNECTIONS => "too many connections for this session",
            Self::MISSING_PARAMETER => "a name or a CHAP key is missing",
            Self::SESSION_TYPE_UNSUPPORTED => "discovery is disabled",
            Self::NO_SUCH_SESSION => "no such session",
            Self::INVALID_REQUEST => "request not valid during login",
            Self::SERVICE_UNAVAILABLE => "the target is offline",
            Self::OUT_OF_RESOURCES => "too many sessions",
            _ => "the target failed",
        };
        write!(f, "{:02x}/{:02x} ({meaning})", self.0, self.1)
    }
}

/// The reason of a Reject (RFC 7143 section 11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// Data digest mismatch.
    DataDigest = 0x02,
    /// The SNACK cannot be served.
    Snack = 0x03,
    /// A protocol error.
    Protocol = 0x04,
    /// The command is not supported.
    Unsupported = 0x05,
    /// Too many immediate commands are pending.
    TooManyImmediate = 0x06,
    /// The Initiator Task Tag belongs to a running task.
    TaskInProgress = 0x07,
    /// A field of the PDU is invalid.
    InvalidField = 0x09,
    /// No resources for a long operation: here, key text above the limit.
    LongOperation = 0x0a,
    /// The target resets an earlier negotiation.
    NegotiationReset = 0x0b,
    /// The target waits for a logout.
    WaitingForLogout = 0x0c,
}

/// Responses to a task management function (RFC 7143 section 11.6.1).
pub mod management_response {
    /// The function is complete.
    pub const COMPLETE: u8 = 0;
    /// The referenced task does not exist.
    pub const NO_SUCH_TASK: u8 = 1;
    /// The LUN does not exist.
    pub const NO_SUCH_LUN: u8 = 2;
    /// The target does not reassign tasks.
    pub const REASSIGN_UNSUPPORTED: u8 = 4;
    /// The target does not support the function.
    pub const UNSUPPORTED: u8 = 5;
    /// The initiator may not use the function.
    pub const UNAUTHORIZED: u8 = 6;
    /// The target rejects the function.
    pub const REJECTED: u8 = 255;
}

/// Responses to a logout (RFC 7143 section 11.15.1).
pub mod logout_response {
    /// The connection or session was closed.
    pub const CLOSED: u8 = 0;
    /// The session has no connection with this CID.
    pub const CID_NOT_FOUND: u8 = 1;
    /// The target does not support connection recovery.
    pub const RECOVERY_UNSUPPORTED: u8 = 2;
}

/// Events of an Asynchronous Message (RFC 7143 section 11.9.1).
pub mod async_event {
    use std::ops::RangeInclusive;

    /// SCSI event: the data segment contains sense data.
    pub const SCSI: u8 = 0;
    /// The target requests a logout.
    pub const LOGOUT_REQUEST: u8 = 1;
    /// The target drops the connection.
    pub const CONNECTION_DROP: u8 = 2;
    /// The target drops all connections of the session.
    pub const SESSION_DROP: u8 = 3;
    /// The target requests a negotiation of parameters.
    pub const NEGOTIATION_REQUEST: u8 = 4;
    /// The target has ended all tasks of a logical unit.
    pub const TASK_TERMINATION: u8 = 5;
    /// Vendor-specific events.
    pub const VENDOR_SPECIFIC: RangeInclusive<u8> = 248..=255;
}
