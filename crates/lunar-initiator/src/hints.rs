//! Hints shared by several errors.

use lunar_runtime::error::Hint;

/// `login_timeout` has expired.
pub const LOGIN_TIMEOUT: Hint = Hint::new(
    "check the network with `lunar doctor URL`, or add login_timeout=TIME to the URL; --timeout can only shorten it",
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
pub const RECOVERY_TIMEOUT: Hint =
    Hint::new("check the network with `lunar doctor URL`, or add a longer recovery_timeout=TIME to the URL");
/// The target rejected the required digests.
pub const DIGESTS_OFF: Hint = Hint::new(
    "enable CRC32C digests at the target, or write header_digest=crc32c,none and data_digest=crc32c,none in the URL",
);
/// The peer may speak another protocol.
pub const NOT_A_PORTAL: Hint = Hint::new(
    "check that host and port are those of an iSCSI portal. If they are, the target is at fault: \
     LUNAR_LOG=debug logs details",
);
/// Paths lead to different logical units.
pub const PATHS_DIFFER: Hint =
    Hint::new("each --path must lead to the same LUN; `lunar ls URL` shows the identity of a LUN");
/// A logical unit with several paths has no VPD page 83h.
pub const NO_IDENTITY: Hint =
    Hint::new("use one path: Lunar cannot verify that two paths lead to the same LUN");
