//! The source of RDMA connections: a device, or a function of a benchmark or test.

use crate::{Error, ErrorCode, hints};
use lunar_rdma::{ConnParam, ConnectError, LocalBoxFuture};

/// Makes an RDMA connection from private data and connection parameters.
pub trait RdmaConnector:
    FnOnce(&[u8], ConnParam) -> LocalBoxFuture<'static, Result<lunar_rdma::ConnectedEndpoint, ConnectError>>
{
}

impl<
    F: FnOnce(&[u8], ConnParam) -> LocalBoxFuture<'static, Result<lunar_rdma::ConnectedEndpoint, ConnectError>>,
> RdmaConnector for F
{
}

/// The error when no RDMA device of this host reaches the portal, with the hint of the provider, if any.
pub fn no_device(e: std::io::Error) -> Error {
    by_device(&lunar_rdma::explained(e))
}

fn by_device(e: &std::io::Error) -> Error {
    let hint = lunar_runtime::error::hint(e).cloned().unwrap_or(hints::NO_RDMA_DEVICE);
    Error::new(ErrorCode::Unreachable, lunar_runtime::error::text(e)).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_runtime::error::{with_context, with_hint};

    #[test]
    fn provider_hint_is_kept_whatever_the_message() {
        let no_device = || std::io::Error::from_raw_os_error(19);
        let e = with_context(with_hint(no_device(), "load its module"), "cannot open it");
        let e = by_device(&e);
        assert_eq!(
            (e.what.as_str(), e.hint.as_deref()),
            ("cannot open it: no such device", Some("load its module"))
        );
        let e = by_device(&std::io::Error::other("no device leads there"));
        assert_eq!(e.hint, Some(hints::NO_RDMA_DEVICE));
    }
}
