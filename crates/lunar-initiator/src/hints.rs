//! Hints shared by several errors.

use lunar_runtime::error::{Hint, Remedy};

/// `login_timeout` has expired.
pub const LOGIN_TIMEOUT: Hint = Hint::with_remedy(
    "check the network, or add a longer login_timeout=TIME to the URL",
    Remedy::LoginTimeout,
);
/// `command_timeout` has expired, and the command was aborted.
pub const COMMAND_TIMEOUT: Hint = Hint::new(
    "check the disk behind the LUN and the log of the target, or add a longer command_timeout=TIME to the URL",
);
/// `operation_timeout` has expired.
pub const OPERATION_TIMEOUT: Hint = Hint::new(
    "check the disk behind the LUN and the log of the target, or add a longer operation_timeout=TIME to the URL",
);
/// `recovery_timeout` has expired.
pub const RECOVERY_TIMEOUT: Hint = Hint::with_remedy(
    "check the network, or add a longer recovery_timeout=TIME to the URL",
    Remedy::RecoveryTimeout,
);
/// The target requires CHAP, and no user is set.
pub const CREDENTIALS_MISSING: Hint = Hint::new(
    "the target requires CHAP: add USER@ and password_file=FILE to the URL, or set LUNAR_CHAP_USER and \
     LUNAR_CHAP_PASSWORD_FILE",
);
/// The target rejected the required digests.
pub const DIGESTS_OFF: Hint = Hint::new(
    "enable CRC32C digests at the target, or write header_digest=crc32c,none and data_digest=crc32c,none in the URL",
);
/// The peer may speak another protocol.
pub const NOT_A_PORTAL: Hint = Hint::with_remedy(
    "check that host and port are those of an iSCSI portal. If they are, the target is at fault: the debug log has details",
    Remedy::NotIscsi,
);
/// The peer answers the login in a form that is not that of SRP.
#[cfg(feature = "rdma")]
pub const NOT_SRP: Hint = Hint::with_remedy(
    "check that the portal serves SRP. If it does, the target is at fault: the debug log has details",
    Remedy::NotSrp,
);
/// No RDMA device of this host reaches the portal.
#[cfg(feature = "rdma")]
pub const NO_RDMA_DEVICE: Hint = Hint::with_remedy(
    "check the RDMA devices of this host, or remove provider=verbs from the URL to use software iWARP",
    Remedy::NoRdmaDevice,
);
/// Paths lead to different logical units.
pub const PATHS_DIFFER: Hint = Hint::with_remedy("the paths must lead to the same LUN", Remedy::PathsDiffer);
/// A logical unit or a namespace with several paths has no identity.
pub const NO_IDENTITY: Hint =
    Hint::new("use one path: Lunar cannot verify that two paths lead to the same LUN");
