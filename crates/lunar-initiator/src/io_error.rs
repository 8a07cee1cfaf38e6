//! Converts socket errors to errors of this crate.

use crate::{Error, ErrorCode};
use lunar_runtime::error::text;

/// The connection failed. The cause may be local, such as a lack of file descriptors.
pub(crate) fn no_connection(e: &std::io::Error) -> Error {
    const FEW: &str = "raise the limit of this process on open files: ulimit -n";
    let error = Error::new(ErrorCode::Unreachable, text(e));
    if lunar_runtime::descriptors::is_exhausted(e) { error.with_hint(FEW) } else { error }
}

pub(crate) fn lost(e: std::io::Error) -> Error {
    Error::new(ErrorCode::ConnectionLost, text(&e))
}

/// This build has no RDMA support.
#[cfg(not(feature = "rdma"))]
pub(crate) fn no_rdma_feature() -> Error {
    const FEATURE: &str = "build lunar-initiator with the feature \"rdma\", or use iscsi://";
    Error::new(ErrorCode::InvalidArgument, "iSER and SRP: this build has no RDMA support").with_hint(FEATURE)
}
