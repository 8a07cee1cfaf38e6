//! Errors in URLs.

use crate::{Error, ErrorCode};
use lunar_runtime::error::Hint;

/// The scheme of NVMe/TCP.
pub const NVME_SCHEME: &str = "nvme";
/// The form of a URL of NVMe/TCP, for hints.
pub const NVME_FORM: &str = "write nvme://HOST[:PORT]/NQN[/NAMESPACE][?KEY=VALUE&...]";

/// An invalid URL or setting.
pub fn wrong(what: impl Into<String>, hint: impl Into<Hint>) -> Error {
    Error::new(ErrorCode::InvalidArgument, what).with_hint(hint)
}
