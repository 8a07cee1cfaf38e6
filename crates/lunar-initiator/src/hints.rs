//! Hints shared by several errors.

use lunar_runtime::error::Hint;

/// `login_timeout` has expired.
pub const LOGIN_TIMEOUT: Hint = Hint::new(
    "look at the network with lunar doctor, or wait longer: login_timeout=TIME in the URL (--timeout only cuts)",
);
/// `command_timeout` has expired, and the command was aborted.
pub const COMMAND_TIMEOUT: Hint = Hint::new(
    "look at the disk behind the LUN, and at the target's log; or wait longer: command_timeout=TIME in the URL",
);
/// `operation_timeout` has expired.
pub const OPERATION_TIMEOUT: Hint = Hint::new(
    "look at the disk behind the LUN, and at the target's log; or wait longer: operation_timeout=TIME in the URL",
);
/// `recovery_timeout` has expired.
pub const RECOVERY_TIMEOUT: Hint =
    Hint::new("look at the network with lunar doctor, or wait longer: recovery_timeout=TIME in the URL");
/// The target rejected the required digests.
pub const DIGESTS_OFF: Hint = Hint::new(
    "the target has digests switched off: switch them on there, or leave it the choice: header_digest=crc32c,none and \
     data_digest=crc32c,none",
);
/// The peer may speak another protocol.
pub const NOT_A_PORTAL: Hint = Hint::new(
    "is it an iSCSI portal at all, and the right port? If so, this is a fault of the target; LUNAR_LOG=debug logs more",
);
/// Paths lead to different logical units.
pub const PATHS_DIFFER: Hint = Hint::new(
    "the paths lead to different disks: each --path must be a way to the same LUN (lunar ls shows the identity of each)",
);
/// A logical unit with several paths has no VPD page 83h.
pub const NO_IDENTITY: Hint =
    Hint::new("use one path: without an identity of the LUN, Lunar cannot know whether two paths lead to it");
