//! Status codes of login and Reject (RFC 7143 sections 11.13.5 and 11.17.1).

/// Status-Class and Status-Detail of a Login Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginStatus(pub u8, pub u8);

impl LoginStatus {
    /// Login is proceeding, or done.
    pub const SUCCESS: Self = Self(0, 0);
    /// The target moved for now; TargetAddress says where.
    pub const MOVED_TEMPORARILY: Self = Self(1, 1);
    /// The target moved for good.
    pub const MOVED_PERMANENTLY: Self = Self(1, 2);
    /// The initiator made a mistake.
    pub const INITIATOR_ERROR: Self = Self(2, 0);
    /// Authentication failed.
    pub const AUTHENTICATION_FAILURE: Self = Self(2, 1);
    /// This initiator may not use this target.
    pub const AUTHORIZATION_FAILURE: Self = Self(2, 2);
    /// No such target.
    pub const NOT_FOUND: Self = Self(2, 3);
    /// The target was removed.
    pub const REMOVED: Self = Self(2, 4);
    /// No common version.
    pub const UNSUPPORTED_VERSION: Self = Self(2, 5);
    /// Too many connections for this session.
    pub const TOO_MANY_CONNECTIONS: Self = Self(2, 6);
    /// A parameter is missing.
    pub const MISSING_PARAMETER: Self = Self(2, 7);
    /// This session type is not to be had here.
    pub const SESSION_TYPE_UNSUPPORTED: Self = Self(2, 9);
    /// TSIH names no session.
    pub const NO_SUCH_SESSION: Self = Self(2, 10);
    /// A PDU that does not belong into login.
    pub const INVALID_REQUEST: Self = Self(2, 11);
    /// The target failed.
    pub const TARGET_ERROR: Self = Self(3, 0);
    /// The target is not in service.
    pub const SERVICE_UNAVAILABLE: Self = Self(3, 1);
    /// No room for another session or connection.
    pub const OUT_OF_RESOURCES: Self = Self(3, 2);
}

impl std::fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let meaning = match *self {
            Self::SUCCESS => "success",
            Self::MOVED_TEMPORARILY | Self::MOVED_PERMANENTLY => "the target moved",
            Self::INITIATOR_ERROR => "a request that breaks the rules of login",
            Self::AUTHENTICATION_FAILURE => "authentication failed",
            Self::AUTHORIZATION_FAILURE => "no access entry admits this initiator",
            Self::NOT_FOUND => "no such target at this portal",
            Self::REMOVED => "the target was removed",
            Self::UNSUPPORTED_VERSION => "no common version",
            Self::TOO_MANY_CONNECTIONS => "too many connections for this session",
            Self::MISSING_PARAMETER => "a name or a CHAP key is missing",
            Self::SESSION_TYPE_UNSUPPORTED => "discovery is disabled",
            Self::NO_SUCH_SESSION => "no such session",
            Self::INVALID_REQUEST => "a request that does not belong into login",
            Self::SERVICE_UNAVAILABLE => "the target is offline",
            Self::OUT_OF_RESOURCES => "too many sessions",
            _ => "the target failed",
        };
        write!(f, "{:02x}/{:02x} ({meaning})", self.0, self.1)
    }
}

/// Why a PDU is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// The data digest does not fit.
    DataDigest = 0x02,
    /// A SNACK that cannot be served.
    Snack = 0x03,
    /// A protocol error.
    Protocol = 0x04,
    /// An opcode that is not supported.
    Unsupported = 0x05,
    /// More immediate commands than can be held.
    TooManyImmediate = 0x06,
    /// The Initiator Task Tag names a live task.
    TaskInProgress = 0x07,
    /// A field of the PDU is invalid.
    InvalidField = 0x09,
    /// No resources for a long operation.
    LongOperation = 0x0a,
    /// The target waits for a logout.
    WaitingForLogout = 0x0c,
}
